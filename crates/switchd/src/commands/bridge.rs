//! `ofproto/*` and `bridge/*`.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use super::{Commands, bridge_named};
use crate::switch::Switch;
use heddle_daemon::unixctl::Reply;
use heddle_datapath_api::Engine;
use heddle_ofproto::model::Unmatched;
use heddle_ofproto::stats::Stats;

/// A version of the rules that shows every rule that has not been removed.
const NEWEST: u64 = u64::MAX - 1;

/// The rules of Open vSwitch's internal table, in its order: match, packets to count, actions. The first ends
/// runaway lookups, of which there are none here.
const HIDDEN: [(&str, Option<Unmatched>, &str); 4] = [
    ("priority=2,recirc_id=0", None, "drop"),
    (
        "priority=0,reg0=0x1",
        Some(Unmatched::ToController),
        "controller(reason=)",
    ),
    ("priority=0,reg0=0x2", Some(Unmatched::Nothing), "drop"),
    ("priority=0,reg0=0x3", Some(Unmatched::Fragment), "drop"),
];

pub(super) fn register(c: &Commands<'_>) {
    c.add("ofproto/list", "", (0, 0), |s, _| {
        Ok(s.ofproto
            .bridges()
            .iter()
            .map(|b| format!("{}\n", b.name))
            .collect())
    });
    c.add("ofproto/list-tunnels", "", (0, 0), |s, _| {
        let snapshot = s.ofproto.pipeline().snapshot();
        Ok(snapshot.list_tunnels())
    });
    c.add(
        "bridge/dump-flows",
        "[--offload-stats] bridge",
        (1, 2),
        dump_flows,
    );
    c.add("bridge/reconnect", "[bridge]", (0, 1), |s, args| {
        let bridges = match args.first() {
            Some(name) => vec![bridge_named(s, name, "Unknown bridge")?],
            None => s.ofproto.bridges(),
        };
        bridges.iter().for_each(|b| b.reconnect_controllers());
        Ok(String::new())
    });
}

/// All flows of a bridge, also those that the switch made itself.
fn dump_flows(switch: &Switch, args: &[&str]) -> Reply {
    let name = args.last().copied().unwrap_or_default();
    let bridge = bridge_named(switch, name, "Unknown bridge")?;
    // No device forwards by itself here.
    let offloaded = match args {
        ["--offload-stats", _] => "n_offload_packets=0, n_offload_bytes=0, ",
        _ => "",
    };
    let _scope = bridge.tlv_scope();
    switch.datapath.flush_stats();
    let now = switch.clock.now_ms();
    let mut out = String::new();
    for table in bridge.tables.iter() {
        let mut rules = Vec::new();
        // The rule that replaces controllers has a higher priority than any other rule can have.
        table
            .rules
            .for_each(NEWEST, |entry| rules.push((entry.priority, entry.data.clone())));
        rules.sort_by_key(|(priority, r)| (std::cmp::Reverse(*priority), r.created_ms));
        for (priority, rule) in rules {
            // Writing to a string cannot fail.
            if rule.table != 0 {
                let _ = write!(out, "table_id={}, ", rule.table);
            }
            let _ = writeln!(
                out,
                "duration={}s, n_packets={}, n_bytes={}, {offloaded}{},actions={}",
                now.saturating_sub(rule.created_ms) / 1000,
                rule.stats.seen().packets.load(Relaxed),
                rule.stats.seen().bytes.load(Relaxed),
                rule.wide_match().text(None, priority),
                rule.instructions,
            );
        }
    }
    let age_s = now.saturating_sub(bridge.created_ms) / 1000;
    for (what, counted, actions) in HIDDEN {
        let sum = |of: fn(&Stats) -> u64| match counted {
            None => 0,
            Some(why) => bridge
                .tables
                .iter()
                .map(|t| of(t.unmatched[why as usize].seen()))
                .sum(),
        };
        let _ = writeln!(
            out,
            "table_id=254, duration={age_s}s, n_packets={}, n_bytes={}, {offloaded}{what},actions={actions}",
            sum(|s| s.packets.load(Relaxed)),
            sum(|s| s.bytes.load(Relaxed)),
        );
    }
    Ok(out)
}
