//! The last example of each reason and port, and its explanation by a trace.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use heddle_datapath::DropExample;
use heddle_datapath_api::{DropKind, PortNo};
use heddle_flow::odp::KeyText;
use heddle_flow::text::CT_STATE;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{hex, key_of_example};
use crate::commands::{port_names, traced};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;

/// Most pairs of a reason and a port that are kept.
pub(super) const MOST_PAIRS: usize = 4096;
/// Most examples that are explained in one reply.
const MOST_EXPLAINED: usize = 256;

/// The counts and the last example of one reason at one port.
pub(super) struct Entry {
    /// Number of the example among all.
    pub(super) number: u64,
    /// Packets that were dropped.
    pub(super) seen: u64,
    /// The number of these packets that were dropped before the last reset.
    forgotten: u64,
    at: SystemTime,
    last: DropExample,
}

/// The known drops.
#[derive(Default)]
pub(crate) struct Drops(Mutex<Kept>);

#[derive(Default)]
pub(super) struct Kept {
    pub(super) entries: BTreeMap<(&'static str, u32), Entry>,
    number: u64,
    /// The number of the last example before the last reset, and the totals then.
    reset_number: u64,
    reset_totals: BTreeMap<&'static str, u64>,
}

impl Kept {
    pub(super) fn note(&mut self, e: DropExample, at: SystemTime) {
        self.number += 1;
        let key = (e.kind.name(), e.in_port.0);
        let old = self.entries.get(&key);
        let (seen, forgotten) = old.map_or((0, 0), |old| (old.seen, old.forgotten));
        let seen = seen + e.seen;
        if self.entries.len() >= MOST_PAIRS && !self.entries.contains_key(&key) {
            // The entry with the oldest example is removed.
            let oldest = self
                .entries
                .iter()
                .min_by_key(|(_, e)| e.number)
                .map(|(key, _)| *key);
            oldest.and_then(|key| self.entries.remove(&key));
        }
        let entry = Entry {
            number: self.number,
            seen,
            forgotten,
            at,
            last: e,
        };
        self.entries.insert(key, entry);
    }

    /// Reports leave out earlier drops from now on. Metrics continue to count.
    fn reset(&mut self, totals: BTreeMap<&'static str, u64>) {
        self.entries.values_mut().for_each(|e| e.forgotten = e.seen);
        self.reset_number = self.number;
        self.reset_totals = totals;
    }

    /// Removes entries of ports that are gone: another port may get the number.
    fn retain_ports(&mut self, is_there: impl Fn(u32) -> bool) {
        self.entries
            .retain(|(_, port), _| *port == PortNo::NONE.0 || is_there(*port));
    }
}

impl Drops {
    /// Takes the examples of workers.
    pub(crate) fn gather(&self, switch: &Switch) {
        let now = SystemTime::now();
        let mut kept = self.0.lock();
        switch.datapath.take_drop_examples(&mut |e| kept.note(e, now));
        kept.retain_ports(|no| switch.datapath.port(PortNo(no)).is_some());
    }

    /// Resets the counts, for an operator who wants to see only later drops.
    pub(crate) fn reset(&self, switch: &Switch) {
        self.gather(switch);
        self.0.lock().reset(totals(switch));
    }

    /// Packets by the port that they came in by and the reason.
    pub(crate) fn by_port(&self, switch: &Switch) -> BTreeMap<u32, BTreeMap<&'static str, u64>> {
        self.gather(switch);
        let mut all: BTreeMap<u32, BTreeMap<&'static str, u64>> = BTreeMap::new();
        for ((reason, port), entry) in &self.0.lock().entries {
            all.entry(*port).or_default().insert(reason, entry.seen);
        }
        all
    }

    /// The known drops as JSON: of one port or all, with the examples after number `since`.
    pub(crate) fn told(&self, switch: &Switch, port: Option<&str>, since: u64) -> Reply {
        self.gather(switch);
        let ports = port_names(switch);
        let wanted = match port {
            None => None,
            Some(name) => match ports.iter().find(|(_, n)| *n == name) {
                Some((no, _)) => Some(*no),
                None => return Err(format!("{name}: no such port of the datapath")),
            },
        };
        let kept = self.0.lock();
        let number = kept.number;
        let mut examples: Vec<_> = kept
            .entries
            .iter()
            .filter(|((_, no), e)| e.number > since.max(kept.reset_number) && wanted.is_none_or(|w| w == *no))
            .map(|((reason, _), e)| (*reason, e.number, e.seen - e.forgotten, e.at, e.last.clone()))
            .collect();
        let before = kept.reset_totals.clone();
        drop(kept);
        examples.sort_by_key(|(_, number, ..)| std::cmp::Reverse(*number));
        let now = SystemTime::now();
        let name = |no: PortNo| ports.get(&no.0).cloned().unwrap_or_else(|| format!("#{}", no.0));
        let told: Vec<Value> = examples
            .into_iter()
            .enumerate()
            .map(|(i, (reason, number, seen, at, e))| {
                let why = match i < MOST_EXPLAINED {
                    true => explain(switch, &e, e.out_port.map(name)),
                    false => Explained::default(),
                };
                json!({
                    "reason": reason,
                    "number": number,
                    "port": name(e.in_port),
                    "to": e.out_port.map(name),
                    "to_bridge": e.out_port.is_some_and(|no| is_of_bridge(switch, &name(no))),
                    "packets": seen,
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
        let mut totals = totals(switch);
        for (reason, n) in &mut totals {
            *n = n.saturating_sub(before.get(reason).copied().unwrap_or(0));
        }
        totals.retain(|_, n| *n > 0);
        if let Some(port) = wanted {
            // Totals of one port, as far as its examples count: all but the drops since the last example.
            totals.clear();
            let kept = self.0.lock();
            let of_it = kept.entries.iter().filter(|((_, no), _)| *no == port);
            let since = of_it.map(|((reason, _), e)| (*reason, e.seen - e.forgotten));
            totals.extend(since.filter(|(_, n)| *n > 0));
        }
        Ok(format!(
            "{}\n",
            json!({"number": number, "totals": totals, "examples": told})
        ))
    }
}

/// Packets by reason, since the daemon started.
fn totals(switch: &Switch) -> BTreeMap<&'static str, u64> {
    let all: BTreeMap<&str, u64> = switch.datapath.coverage().into_iter().collect();
    let of = |kind: &DropKind| Some((kind.name(), *all.get(kind.name()).filter(|n| **n > 0)?));
    DropKind::ALL.iter().filter_map(of).collect()
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
    let key = key_of_example(e);
    let flow = KeyText {
        key: &key,
        mask: None,
        verbose: false,
        names: None,
        vlan_limit: heddle_flow::key::N_VLANS,
    };
    let flow = flow.to_string();
    let mut args = Vec::new();
    let state = e.carried.as_ref().map_or(0, |c| c.ct_state);
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

/// An example, for tests.
#[cfg(test)]
pub(super) fn example(kind: DropKind, port: u32, seen: u64) -> DropExample {
    DropExample {
        kind,
        in_port: PortNo(port),
        out_port: None,
        at_ms: 0,
        seen,
        len: 60,
        head: vec![0; 60],
        carried: None,
    }
}
