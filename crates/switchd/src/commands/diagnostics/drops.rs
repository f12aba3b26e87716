//! `heddle/drops`: the last dropped packet of each reason and port. A trace shows which rule decided.

use std::time::{SystemTime, UNIX_EPOCH};

use heddle_datapath::DropExample;
use heddle_datapath_api::{DropKind, PortNo};
use heddle_flow::odp::KeyText;
use heddle_flow::text::CT_STATE;
use serde_json::{Value, json};

use super::{hex, key_of};
use crate::commands::flows::port_names;
use crate::commands::trace::traced;
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Maximum number of examples that are explained in one reply.
const MAX_EXPLAINED: usize = 256;

/// The known drops as JSON: of one port or all, with the examples after number `since`.
pub(super) fn report(switch: &Switch, port: Option<&str>, since: u64) -> Reply {
    let ports = port_names(switch);
    let wanted = match port {
        None => None,
        Some(name) => match ports.iter().find(|(_, n)| *n == name) {
            Some((no, _)) => Some(*no),
            None => return Err(format!("{name}: no such port of the datapath")),
        },
    };
    let report = switch.drops.report(&switch.datapath, wanted, since);
    let now = SystemTime::now();
    let name = |no: PortNo| ports.get(&no.0).cloned().unwrap_or_else(|| format!("#{}", no.0));
    let examples: Vec<Value> = report
        .examples
        .into_iter()
        .enumerate()
        .map(|(i, (reason, last))| {
            let (at, e) = (last.at, &last.example);
            let why = match i < MAX_EXPLAINED {
                true => explain(switch, e, e.out_port.map(name)),
                false => Explained::default(),
            };
            json!({
                "reason": reason,
                "number": last.number,
                "port": name(e.in_port),
                "to": e.out_port.map(name),
                "to_bridge": e.out_port.is_some_and(|no| is_of_bridge(switch, &name(no))),
                "packets": last.packets(),
                "at": at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
                "age": now.duration_since(at).unwrap_or_default().as_secs_f64(),
                "length": e.len,
                "bytes": hex(&e.head),
                "bridge": why.bridge,
                "table": why.table,
                "cookie": why.cookie,
                "rule": why.rule,
                "packet": why.packet,
                "trace": why.command,
            })
        })
        .collect();
    Ok(format!(
        "{}\n",
        json!({"number": report.number, "totals": report.totals, "examples": examples})
    ))
}

/// Whether an interface is a bridge's own.
fn is_of_bridge(switch: &Switch, name: &str) -> bool {
    let inventory = switch.inventory.read();
    inventory.interfaces.get(name).is_some_and(|i| *i.bridge == *name)
}

/// The explanation of an example, read from a trace.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Explained {
    pub(super) bridge: Option<String>,
    pub(super) table: Option<String>,
    pub(super) cookie: Option<String>,
    pub(super) rule: Option<String>,
    pub(super) packet: Option<String>,
    pub(super) command: Option<String>,
}

/// `to`: the port to which the packet was to be output.
fn explain(switch: &Switch, e: &DropExample, to: Option<String>) -> Explained {
    let key = key_of(&e.head, e.len, e.in_port.0, e.context.as_deref());
    let flow = KeyText {
        key: &key,
        mask: None,
        verbose: false,
        names: None,
        vlan_limit: heddle_flow::key::N_VLANS,
    };
    let flow = flow.to_string();
    let mut args = Vec::new();
    let state = e.context.as_ref().map_or(0, |c| c.ct_state);
    let state = ct_state(state);
    if !state.is_empty() {
        // The first two `ct` of the trace give the packet the state that it had.
        args.extend(["--ct-next", &state, "--ct-next", &state]);
    }
    args.push(&flow);
    // A packet that its port did not accept has met no rule.
    if matches!(e.kind, DropKind::RxInvalid | DropKind::RxPoliced) {
        return Explained {
            packet: Some(flow),
            ..Explained::default()
        };
    }
    let Ok(text) = traced(switch, &args) else {
        return Explained {
            packet: Some(flow),
            ..Explained::default()
        };
    };
    let inventory = switch.inventory.read();
    let sender = to.and_then(|to| Some(inventory.interfaces.get(&to)?.bridge.clone()));
    drop(inventory);
    let quoted: Vec<String> = args.iter().map(|a| quote(a)).collect();
    Explained {
        command: Some(format!("ovs-appctl ofproto/trace {}", quoted.join(" "))),
        ..read_trace(&text, sender.as_deref())
    }
}

/// Names, with commas between, of the bits of a connection's state, as `--ct-next` takes them.
fn ct_state(state: u32) -> String {
    let set = CT_STATE.iter().filter(|(bit, _)| state >> bit & 1 != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

fn quote(text: &str) -> String {
    match text.contains(|c: char| "(), ;|&'\"$".contains(c)) {
        true => format!("'{}'", text.replace('\'', "'\\''")),
        false => text.to_owned(),
    }
}

/// The packet of a trace's text, and the last rule that it met: in the bridge `sender`, if it came there.
pub(super) fn read_trace(text: &str, sender: Option<&str>) -> Explained {
    let mut found = Explained::default();
    // Bridges that the trace is in, with their indentation. After an output to a patch port or a tunnel it
    // continues with the bridge of that output.
    let mut bridges: Vec<(usize, String)> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(flow) = line.strip_prefix("Flow: ") {
            found.packet.get_or_insert_with(|| flow.to_owned());
        } else if let Some(name) = line.strip_prefix("bridge(\"").and_then(|l| l.strip_suffix("\")")) {
            bridges.retain(|(outer, _)| *outer < indent);
            bridges.push((indent, name.to_owned()));
        } else if let Some((table, rule)) = line.split_once(". ")
            && !table.is_empty()
            && table.bytes().all(|b| b.is_ascii_digit())
        {
            let (rule, cookie) = match rule.split_once(", cookie ") {
                Some((rule, cookie)) => (rule, cookie),
                None => (rule, "0x0"),
            };
            bridges.retain(|(outer, _)| *outer <= indent);
            let bridge = bridges.last().map(|(_, name)| name.clone());
            if sender.is_some() && found.bridge.as_deref() == sender && bridge != found.bridge {
                continue;
            }
            found.bridge = bridge;
            found.table = Some(table.to_owned());
            found.cookie = (!rule.starts_with("No match")).then(|| cookie.to_owned());
            found.rule = Some(rule.to_owned());
        }
    }
    found
}
