//! Packets that come back from a connection tracker: traced after the packet itself, one translation per
//! copy.
//!
//! A trace tracks nothing. The user gives the states in which packets come back (`--ct-next`), else they are
//! new; addresses are translated to the first ones of their ranges.

use super::args::Request;
use super::{TraceEnv, Traced};
use crate::model::Snapshot;
use crate::xlate::Pipeline;
use crate::xlate::input::Start;
use crate::xlate::report::Fork;
use heddle_flow::FlowKey;
use heddle_flow::text::{CT_STATE, format_flags};
use heddle_openflow::action::{Nat, NatAddresses, NatDirection};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum number of copies of a trace. Rules may send a packet to the tracker again and again.
const MAX_FORKS: usize = 512;

/// State of a packet for which the user gave none: tracked, new.
const DEFAULT_STATE: u32 = 0x21;

/// Traces copies, and the copies that these make.
pub(super) fn trace_all(
    pipeline: &Pipeline,
    snapshot: &Snapshot,
    request: &Request<'_>,
    forks: Vec<Fork>,
    env: &TraceEnv<'_>,
    traced: &mut Traced,
) {
    let mut states = request.ct_next.clone();
    let mut queue = VecDeque::from(forks);
    for _ in 0..MAX_FORKS {
        let Some(mut fork) = queue.pop_front() else { return };
        traced.text.push_str(&head(&mut fork, &mut states));
        let again = Request {
            bridge: request.bridge,
            key: fork.key,
            packet: request.packet.clone(),
            names: request.names,
            consistent: request.consistent,
            ct_next: VecDeque::new(),
        };
        let start = Start::Thaw {
            frozen: &fork.held.frozen,
            resumed: false,
        };
        let (more, run, forks) = super::one(pipeline, snapshot, &again, start, env);
        traced.text.push_str(&more);
        traced.runs.extend(run);
        queue.extend(forks);
    }
    if !queue.is_empty() {
        let text = &mut traced.text;
        text.push_str(&format!("\n\nTrace ends here: over {MAX_FORKS} recirculations\n"));
    }
}

/// The lines above a copy's trace. Gives the copy its state and translates its addresses.
fn head(fork: &mut Fork, states: &mut VecDeque<u32>) -> String {
    let line = "=".repeat(79);
    let (state, how) = match states.pop_front() {
        None => (
            DEFAULT_STATE,
            "default ct_state=trk|new (use --ct-next to customize)".to_owned(),
        ),
        Some(state) => (state, format!("ct_state={}", state_text(state))),
    };
    fork.key.ct_state = state;
    let mut text = format!(
        "\n\n{line}\nrecirc({:#x}) - resume conntrack with {how}\n",
        fork.held.id
    );
    if let Some(nat) = fork.nat.take() {
        let before = tuple(&fork.key, nat.addresses);
        translate(&mut fork.key, &nat);
        let after = tuple(&fork.key, nat.addresses);
        text.push_str(&format!(
            "Replacing src/dst IP/ports to simulate NAT:\n Initial flow: {before}\n Modified flow: {after}\n"
        ));
    }
    text + &format!("{line}\n\n")
}

/// The names of a state's flags, `|` between them.
pub(super) fn state_text(state: u32) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = format_flags(&mut text, CT_STATE, state, u32::MAX, u32::MAX);
    text
}

/// A key's addresses and ports, of the kind that is translated.
fn tuple(k: &FlowKey, of: NatAddresses) -> String {
    let (sport, dport) = (k.tp_src, k.tp_dst);
    match of {
        NatAddresses::None => String::new(),
        NatAddresses::V4(..) => format!(
            "nw_src={},tp_src={sport},nw_dst={},tp_dst={dport}",
            Ipv4Addr::from(k.nw_src),
            Ipv4Addr::from(k.nw_dst)
        ),
        NatAddresses::V6(..) => format!(
            "ipv6_src=[{}],tp_src={sport},ipv6_dst=[{}],tp_dst={dport}",
            Ipv6Addr::from(k.ipv6_src),
            Ipv6Addr::from(k.ipv6_dst)
        ),
    }
}

/// Writes the first address and port of the ranges.
fn translate(k: &mut FlowKey, nat: &Nat) {
    let Some(direction) = nat.direction else { return };
    let source = direction == NatDirection::Src;
    match nat.addresses {
        NatAddresses::None => return,
        NatAddresses::V4(first, _) => *(if source { &mut k.nw_src } else { &mut k.nw_dst }) = first.into(),
        NatAddresses::V6(first, _) => {
            *(if source { &mut k.ipv6_src } else { &mut k.ipv6_dst }) = first.octets();
        }
    }
    if let Some((first, _)) = nat.ports.filter(|(first, _)| *first != 0) {
        *(if source { &mut k.tp_src } else { &mut k.tp_dst }) = first;
    }
}
