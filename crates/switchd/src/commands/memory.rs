//! The switch's counts in `memory/show`.

use heddle_datapath_api::Engine;
use std::sync::Arc;

use crate::switch::Switch;
use heddle_daemon::memory::{Reporters, add};

pub(super) fn register(reporters: &Reporters, switch: &Arc<Switch>) {
    let switch = switch.clone();
    reporters.register(move |usage| {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        add(usage, "handlers", count(switch.datapath.n_workers()));
        add(usage, "revalidators", 1);
        let flows = switch.datapath.totals().flows;
        if flows > 0 {
            add(usage, "udpif keys", flows);
        }
        let connections = switch.datapath.conntrack().n_conns();
        if connections > 0 {
            add(usage, "connections", connections.into());
        }
        if let Ok(kinds) = heddle_sys::memory::kinds() {
            for (name, kb) in [
                ("resident-kB", kinds.resident),
                ("program-kB", kinds.program),
                ("socket-rings-kB", kinds.rings),
                ("shared-kB", kinds.shared),
                ("private-kB", kinds.private),
                ("heap-used-kB", kinds.heap_used),
                ("heap-free-kB", kinds.heap_free),
            ] {
                add(usage, name, kb);
            }
        }
        for bridge in switch.ofproto.bridges() {
            add(usage, "ports", count(bridge.n_ports()));
            add(
                usage,
                "rules",
                count(bridge.tables.iter().map(|t| t.rules.len()).sum()),
            );
        }
    });
}
