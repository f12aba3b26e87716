//! The arguments of `ofproto/trace`: `[OPTIONS] {[DATAPATH] ODP-FLOW | BRIDGE FLOW} [OPTIONS] [PACKET]`.

use super::TraceEnv;
use crate::model::{BridgeView, Snapshot};
use crate::tunnels;
use crate::xlate::{Pipeline, key_port};
use heddle_datapath_api::PortNo;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::text::CT_STATE;
use heddle_flow::{FlowKey, compose, odp};
use std::collections::VecDeque;

/// Bytes of payload in a generated packet, unless `--l7-len` gives another number.
const DEFAULT_PAYLOAD: usize = 64;
/// Shortest packet: an Ethernet header.
const ETHERNET_LEN: usize = 14;

/// One trace to run.
pub(super) struct Request<'w> {
    pub(super) bridge: &'w BridgeView,
    /// `in_port` is the OpenFlow port, in the key's form.
    pub(super) key: FlowKey,
    pub(super) packet: Option<Vec<u8>>,
    /// Print names of ports.
    pub(super) names: bool,
    /// Actions that do not fit the packet are an error.
    pub(super) consistent: bool,
    /// Connection states (`ct_state`) that packets come back with from `ct`, the first one first.
    pub(super) ct_next: VecDeque<u32>,
}

struct Options {
    consistent: bool,
    generate: bool,
    names: bool,
    payload: usize,
    ct_next: VecDeque<u32>,
}

/// Reads arguments.
pub(super) fn parse<'w>(
    pipeline: &Pipeline,
    snapshot: &'w Snapshot,
    args: &[&str],
    env: &TraceEnv<'_>,
) -> Result<Request<'w>, String> {
    let (options, mut words) = options(args)?;
    let mut packet = None;
    if !options.generate && words.len() > 1 {
        match hex(words[words.len() - 1]) {
            Ok(bytes) => {
                packet = Some(bytes);
                words.pop();
            }
            Err(e) if words.len() > 2 => return Err(e.to_owned()),
            Err(_) => {}
        }
    }
    let (bridge, mut key) = match words.as_slice() {
        [flow] => flow_of_datapath(pipeline, snapshot, env, None, flow)?,
        [first, flow] => flow_of_datapath(pipeline, snapshot, env, Some(first), flow)?,
        _ => return Err("Syntax error".to_owned()),
    };
    if let Some(bytes) = &packet {
        key = key_of_packet(bytes, &key, bridge);
    } else if options.generate {
        packet = Some(compose::compose(&key, options.payload));
    }
    Ok(Request {
        bridge,
        key,
        packet,
        names: options.names,
        consistent: options.consistent,
        ct_next: options.ct_next,
    })
}

fn options<'a>(args: &[&'a str]) -> Result<(Options, Vec<&'a str>), String> {
    let mut options = Options {
        consistent: false,
        generate: false,
        names: false,
        payload: DEFAULT_PAYLOAD,
        ct_next: VecDeque::new(),
    };
    let mut words = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let of_option = |next: Option<&&'a str>| {
            next.copied()
                .ok_or_else(|| format!("Missing argument for option {arg}"))
        };
        match *arg {
            "-generate" | "--generate" => options.generate = true,
            "-names" | "--names" => options.names = true,
            "-consistent" | "--consistent" => options.consistent = true,
            "--ct-next" => options.ct_next.push_back(ct_state(of_option(args.next())?)?),
            "--l7-len" => {
                let n = of_option(args.next())?;
                options.payload = n.parse().unwrap_or(0);
                if options.payload > 64000 {
                    return Err(format!("{n}: too much L7 data"));
                }
            }
            option if option.starts_with('-') => return Err(format!("{option}: unknown option")),
            _ if words.len() >= 3 => return Err("too many arguments".to_owned()),
            word => words.push(word),
        }
    }
    Ok((options, words))
}

/// Reads flags of `ct_state` by name, and checks that a packet can have them together.
fn ct_state(text: &str) -> Result<u32, String> {
    let flag = |name: &str| {
        CT_STATE
            .iter()
            .find(|(_, n)| *n == name)
            .map(|(bit, _)| 1_u32 << bit)
    };
    let mut state = 0;
    for name in text.split([',', ' ']).filter(|n| !n.is_empty()) {
        state |= flag(name).ok_or_else(|| format!("{name}: unknown connection tracking state flag"))?;
    }
    let [new, est, rpl, inv, trk] =
        ["new", "est", "rpl", "inv", "trk"].map(|n| flag(n).is_some_and(|flag| state & flag != 0));
    let others = state & !0x30 != 0;
    let faults = [
        (state != 0 && !trk, "If \"trk\" is unset, no other flags are set"),
        (inv && others, "when \"inv\" is set, only \"trk\" may also be set"),
        (new && est, "\"new\" and \"est\" are mutually exclusive"),
        (new && rpl, "\"new\" and \"rpy\" are mutually exclusive"),
    ];
    let shown = super::fork::state_text(state);
    let said: String = faults
        .iter()
        .filter(|(wrong, _)| *wrong)
        .map(|(_, why)| format!("{shown}: invalid connection state: {why}\n"))
        .collect();
    if said.is_empty() { Ok(state) } else { Err(said) }
}

/// Bytes of a packet in hexadecimal, with or without blanks between them.
fn hex(s: &str) -> Result<Vec<u8>, &'static str> {
    let digits: Option<Vec<u32>> = s
        .chars()
        .filter(|c| !c.is_ascii_whitespace())
        .map(|c| c.to_digit(16))
        .collect();
    let digits = digits
        .filter(|d| d.len() % 2 == 0)
        .ok_or("Trailing garbage in packet data")?;
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .filter_map(|d| u8::try_from(d[0] << 4 | d[1]).ok())
        .collect();
    if bytes.len() < ETHERNET_LEN {
        return Err("Packet data too short for Ethernet");
    }
    Ok(bytes)
}

/// The text of a datapath's key, or else of a bridge's.
fn flow_of_datapath<'w>(
    pipeline: &Pipeline,
    snapshot: &'w Snapshot,
    env: &TraceEnv<'_>,
    first: Option<&str>,
    flow: &str,
) -> Result<(&'w BridgeView, FlowKey), String> {
    match odp::parse_key(flow, Some(env.port_numbers)) {
        Ok(mut key) => {
            if first.is_some_and(|n| !env.datapaths.contains(&n)) {
                return Err("Cannot find the datapath".to_owned());
            }
            if key.recirc_id != 0 {
                // The recirculation id determines the bridge and the port, not the datapath port.
                let frozen = pipeline.frozen(key.recirc_id);
                let known = frozen.and_then(|f| Some((snapshot.bridges.get(&f.frozen.bridge)?, f)));
                let (bridge, held) = known
                    .ok_or_else(|| format!("no recirculation data for recirc_id {:#x}", key.recirc_id))?;
                key.in_port = held.frozen.metadata.in_port;
                return Ok((bridge, key));
            }
            let is_tunnelled = tunnels::is_tunnelled(&key);
            let found = match is_tunnelled {
                true => snapshot.tunnels.receive(&key),
                false => snapshot.by_dp_port.get(&PortNo(key.in_port)).copied(),
            };
            let (bridge, port) = found
                .and_then(|(b, p)| Some((snapshot.bridges.get(&b)?, p)))
                .ok_or_else(|| match is_tunnelled {
                    false if snapshot.underlay.has(PortNo(key.in_port)) => format!(
                        "datapath port {} is in no bridge: its packets come out of tunnels, and are traced there",
                        key.in_port
                    ),
                    true => "no OpenFlow tunnel port for this packet".to_owned(),
                    false => format!("no OpenFlow port for datapath port {}", key.in_port),
                })?;
            if is_tunnelled {
                // Now that the bridge is known, it is known which options are fields.
                let _scope = bridge.tlv_scope();
                if let Ok(again) = odp::parse_key(flow, Some(env.port_numbers)) {
                    key = again;
                }
            }
            key.in_port = key_port(port);
            key.limit_vlans(bridge.vlan_limit);
            Ok((bridge, key))
        }
        Err(e) => match first {
            None => Err(format!("{e} (or the bridge name was omitted)")),
            Some(bridge) => flow_of_bridge(snapshot, bridge, flow),
        },
    }
}

fn flow_of_bridge<'w>(
    snapshot: &'w Snapshot,
    name: &str,
    flow: &str,
) -> Result<(&'w BridgeView, FlowKey), String> {
    let bridge = snapshot.bridges.values().find(|b| b.name == name);
    let bridge: &BridgeView = bridge.ok_or_else(|| format!("{name}: unknown bridge"))?;
    let port = |name: &str| {
        bridge
            .ports
            .values()
            .find(|p| p.name == name)
            .map(|p| key_port(p.no))
    };
    let _scope = bridge.tlv_scope();
    let key = FlowKey::parse_text(flow, Some(&port)).map_err(|e| format!("Bad openflow flow syntax: {e}"))?;
    Ok((bridge, key))
}

/// The key of a packet, with the port, tunnel and metadata of `given`.
fn key_of_packet(bytes: &[u8], given: &FlowKey, bridge: &BridgeView) -> FlowKey {
    let mut key = FlowKey::default();
    let vlan_limit = u8::try_from(bridge.vlan_limit).unwrap_or(u8::MAX);
    extract(
        bytes,
        &Hint {
            vlan_limit,
            ..Hint::ethernet(bytes.len())
        },
        &mut key,
    );
    key.copy_tunnel(given);
    FlowKey {
        in_port: given.in_port,
        skb_priority: given.skb_priority,
        pkt_mark: given.pkt_mark,
        dp_hash: given.dp_hash,
        recirc_id: given.recirc_id,
        ct_state: given.ct_state,
        ct_zone: given.ct_zone,
        ct_mark: given.ct_mark,
        ct_label: given.ct_label,
        ..key
    }
}
