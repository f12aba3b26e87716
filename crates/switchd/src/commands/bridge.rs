//! `ofproto/*` and `bridge/*`.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use super::{Commands, bridge_named};
use crate::switch::Switch;
use crate::unixctl::Reply;

/// A version of the rules that shows every rule that has not been removed.
const NEWEST: u64 = u64::MAX - 1;

pub(super) fn register(c: &Commands<'_>) {
    c.add("ofproto/list", "", (0, 0), |s, _| {
        Ok(s.ofproto
            .bridges()
            .iter()
            .map(|b| format!("{}\n", b.name))
            .collect())
    });
    // No tunnels yet: none to list.
    c.add("ofproto/list-tunnels", "", (0, 0), |_, _| Ok(String::new()));
    c.add(
        "bridge/dump-flows",
        "[--offload-stats] bridge",
        (1, 2),
        dump_flows,
    );
}

/// All flows of a bridge, also those that the switch made itself.
fn dump_flows(switch: &Switch, args: &[&str]) -> Reply {
    let name = args.last().copied().unwrap_or_default();
    let bridge = bridge_named(switch, name, "Unknown bridge")?;
    let _scope = bridge.tlv_scope();
    switch.datapath.flush_stats();
    let now = switch.clock.now_ms();
    let mut out = String::new();
    for table in bridge.tables.iter() {
        let mut rules = Vec::new();
        table
            .rules
            .for_each(NEWEST, |entry| rules.push(entry.data.clone()));
        rules.sort_by_key(|r| (std::cmp::Reverse(r.priority), r.created_ms));
        for rule in rules {
            // Writing to a string cannot fail.
            if rule.table != 0 {
                let _ = write!(out, "table_id={}, ", rule.table);
            }
            let _ = writeln!(
                out,
                "duration={}s, n_packets={}, n_bytes={}, {},actions={}",
                now.saturating_sub(rule.created_ms) / 1000,
                rule.stats.seen().packets.load(Relaxed),
                rule.stats.seen().bytes.load(Relaxed),
                rule.wide_match().text(None, rule.priority.into()),
                rule.instructions,
            );
        }
    }
    Ok(out)
}
