//! The flow monitors of one connection, and what they are told.
//!
//! A change that several monitors want to know is told once. The connection's own changes are told by the transaction id
//! of its message alone, unless a monitor asks for more. When more than [`PAUSE_BYTES`] wait to be read, the connection
//! is told of removals only, and only of flows that it knows; once everything has been read, it is told what came and
//! changed meanwhile, and that this is all.

use crate::bridge::{FlowChanged, Monitor};
use crate::model::Rule;
use heddle_openflow::InstructionSet;
use heddle_openflow::message::{FlowChange, FlowEvent, FlowUpdate, MonitorFlags};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of notifications that may wait before they are held back.
pub(super) const PAUSE_BYTES: usize = 128 * 1024;
/// Changes in full, also the connection's own (see [`MonitorFlags::ONLY_OWN`]).
const IN_FULL: MonitorFlags = MonitorFlags::NO_ABBREV.union(MonitorFlags::ONLY_OWN);

/// The monitors of one connection.
#[derive(Default)]
pub(super) struct Monitors {
    pub(super) by_id: BTreeMap<u32, Arc<Monitor>>,
    /// Held back: the version of the tables when that began.
    pub(super) paused: Option<u64>,
}

impl Monitors {
    /// What the connection `peer` is told of these changes, in order.
    pub(super) fn updates<'c>(
        &self,
        peer: u64,
        changes: impl Iterator<Item = &'c FlowChanged>,
    ) -> Vec<FlowUpdate> {
        let mut updates = Vec::new();
        let mut told = None;
        for change in changes {
            let flags = self.flags(change);
            if flags.is_empty() {
                continue;
            }
            let own = change.origin.filter(|o| o.peer == peer);
            match own {
                Some(own) if !flags.intersects(IN_FULL) && self.paused.is_none() => {
                    if told != Some(own.xid) {
                        told = Some(own.xid);
                        updates.push(FlowUpdate::Abbrev(own.xid));
                    }
                }
                _ => updates.push(full(change.what, &change.rule, flags)),
            }
        }
        updates
    }

    /// What all monitors together want to know of a change; empty if nothing.
    fn flags(&self, change: &FlowChanged) -> MonitorFlags {
        if let Some(paused) = self.paused {
            let known = change.rule.born <= paused;
            if !matches!(change.what, FlowEvent::Removed(_)) || !known {
                return MonitorFlags::empty();
            }
        }
        let wanted = self.by_id.values().filter(|m| m.concerns(change));
        wanted.fold(MonitorFlags::empty(), |all, m| all | m.flags)
    }

    /// What the connection has not been told of a flow since `paused`. `changed`: the version of its last change.
    pub(super) fn missed(
        paused: u64,
        changed: u64,
        rule: &Rule,
        monitors: &[Arc<Monitor>],
    ) -> Option<FlowUpdate> {
        let what = if rule.born > paused {
            FlowEvent::Added
        } else if changed > paused {
            FlowEvent::Modified
        } else {
            return None;
        };
        // A flow that is new is told to those who want to know of changes too: they may not have seen it.
        let kinds = match what {
            FlowEvent::Added => MonitorFlags::ADD | MonitorFlags::MODIFY,
            _ => MonitorFlags::MODIFY,
        };
        let wanted = monitors.iter().filter(|m| m.flags.intersects(kinds));
        let flags = wanted.fold(MonitorFlags::empty(), |all, m| all | m.flags);
        (!flags.is_empty()).then(|| full(what, rule, flags))
    }
}

/// A change in full.
pub(super) fn full(what: FlowEvent, rule: &Rule, flags: MonitorFlags) -> FlowUpdate {
    FlowUpdate::Full(Box::new(FlowChange {
        event: what,
        table_id: rule.table,
        priority: rule.priority,
        idle_timeout: rule.idle_timeout.load(Relaxed),
        hard_timeout: rule.hard_timeout.load(Relaxed),
        cookie: rule.cookie,
        match_: rule.wide_match(),
        instructions: if flags.contains(MonitorFlags::INSTRUCTIONS) {
            InstructionSet::clone(&rule.instructions)
        } else {
            InstructionSet::default()
        },
    }))
}
