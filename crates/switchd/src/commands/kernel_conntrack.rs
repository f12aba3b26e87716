//! The mirror of connections in the kernel's table, for users.

use std::fmt::Write as _;

use super::Commands;
use crate::mirror_state::MirrorState;

pub(super) fn register(c: &Commands<'_>) {
    c.add("heddle/kernel-conntrack", "", (0, 0), |switch, _| {
        let counts = match switch.kernel_conntrack.state() {
            MirrorState::Off => {
                return Ok(
                    "off: other_config:heddle-kernel-conntrack of the table Open_vSwitch is not set\n".into(),
                );
            }
            MirrorState::Failed(why) => return Ok(format!("not possible: {why}\n")),
            MirrorState::On(counts) => counts,
        };
        let mut out = String::new();
        for (name, n) in [
            ("entries", counts.entries as u64),
            ("refused", counts.refused as u64),
            ("over limit", counts.over_limit as u64),
            ("no room", counts.no_room as u64),
            ("written", counts.written),
            ("changed", counts.changed),
            ("removed", counts.removed),
            ("deletions followed", counts.deletions),
            ("comparisons", counts.comparisons),
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{:<19} {n:>10}", format!("{name}:"));
        }
        Ok(out)
    });
}
