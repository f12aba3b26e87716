//! The flow monitors of one connection, and the updates that they send.
//!
//! A change that concerns several monitors gives one update. The connection's own changes are reported by the
//! transaction id of their message alone, unless a monitor requests them in full. When more than
//! [`PAUSE_BYTES`] wait to be read, monitors pause: only removals are reported, and only of flows that the
//! peer knows. Once everything has been read, the peer gets the flows that came and changed meanwhile. Then a
//! message reports that monitors have resumed.

use crate::bridge::{FlowChanged, Monitor};
use crate::model::Rule;
use heddle_openflow::InstructionSet;
use heddle_openflow::message::{FlowChange, FlowEvent, FlowUpdate, MonitorFlags};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of updates that may wait before monitors pause.
pub(super) const PAUSE_BYTES: usize = 128 * 1024;
/// Changes in full, also the connection's own (see [`MonitorFlags::ONLY_OWN`]).
const IN_FULL: MonitorFlags = MonitorFlags::NO_ABBREV.union(MonitorFlags::ONLY_OWN);

/// The monitors of one connection.
#[derive(Default)]
pub(super) struct Monitors {
    pub(super) by_id: BTreeMap<u32, Arc<Monitor>>,
    /// The version of the tables when the pause began; `None`: no pause.
    pub(super) paused: Option<u64>,
    /// Rules that have replaced, during the pause, rules that the peer knows; by their addresses.
    heirs: HashMap<usize, Arc<Rule>>,
}

impl Monitors {
    /// The updates about these changes for the connection `peer`, in order.
    pub(super) fn updates<'c>(
        &mut self,
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

    /// Ends the pause. Returns the version of the tables when it began.
    pub(super) fn resume(&mut self) -> Option<u64> {
        self.heirs.clear();
        self.paused.take()
    }

    /// Whether the peer got a rule, or one that it has replaced, before the pause.
    fn knows(&self, rule: &Arc<Rule>, paused: u64) -> bool {
        rule.born <= paused || self.heirs.contains_key(&Arc::as_ptr(rule).addr())
    }

    /// The flags of all monitors that report a change; empty if none does.
    fn flags(&mut self, change: &FlowChanged) -> MonitorFlags {
        if let Some(paused) = self.paused {
            if let Some(old) = &change.old
                && self.knows(old, paused)
            {
                self.heirs.remove(&Arc::as_ptr(old).addr());
                if change.rule.born > paused {
                    let heir = change.rule.clone();
                    self.heirs.insert(Arc::as_ptr(&heir).addr(), heir);
                }
            }
            if !matches!(change.what, FlowEvent::Removed(_)) || !self.knows(&change.rule, paused) {
                return MonitorFlags::empty();
            }
            self.heirs.remove(&Arc::as_ptr(&change.rule).addr());
        }
        let wanted = self.by_id.values().filter(|m| m.concerns(change));
        wanted.fold(MonitorFlags::empty(), |all, m| all | m.flags)
    }

    /// The update about a flow that the peer has missed since `paused`. `changed`: the version of its last
    /// change.
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
        // A new flow also goes to monitors of modifications: they may not have seen it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::{BridgeConfig, Event, EventSink, FailMode};
    use heddle_flow::Match;
    use heddle_openflow::message::{FlowMod, FlowModCommand, FlowMonitorRequest, GROUP_ANY, MonitorCommand};
    use heddle_openflow::{Port, Version};
    use parking_lot::Mutex;

    #[derive(Default)]
    struct Seen(Mutex<Vec<Arc<FlowChanged>>>);

    impl EventSink for Seen {
        fn events(&self, events: &[Event]) {
            let changes = events.iter().filter_map(|e| match e {
                Event::FlowChanged(c) => Some(c.clone()),
                _ => None,
            });
            self.0.lock().extend(changes);
        }
    }

    /// A flow that the peer knows, and that other rules have replaced before its removal, is reported as
    /// removed. A flow that the peer never knew is not.
    #[test]
    fn removals_during_a_pause_are_known_by_earlier_rules() {
        let of = crate::Ofproto::new(Arc::default());
        let config = BridgeConfig {
            fail_mode: FailMode::Secure,
            ..BridgeConfig::default()
        };
        let bridge = of.add_bridge("br0", config);
        bridge.count_monitors(1);
        let seen = Arc::new(Seen::default());
        let sink: Arc<dyn EventSink> = seen.clone();
        bridge.subscribe(&sink);
        let all = FlowMonitorRequest {
            id: 1,
            flags: MonitorFlags::ADD | MonitorFlags::REMOVED | MonitorFlags::MODIFY,
            out_port: Port::NONE,
            out_group: GROUP_ANY,
            table_id: 0xff,
            command: MonitorCommand::Add,
            match_: Match::any(),
        };
        let mut monitors = Monitors::default();
        monitors.by_id.insert(1, Arc::new(Monitor::new(all).unwrap()));
        let change = |command, priority| {
            let fm = FlowMod::new(command, Match::any(), priority, InstructionSet::default());
            bridge.flow_mod(Version::V14, &fm).unwrap();
        };
        change(FlowModCommand::Add, 1);
        seen.0.lock().clear();
        monitors.paused = Some(bridge.tables_version());
        for priority in [1, 1, 2, 2] {
            change(FlowModCommand::Add, priority);
        }
        for priority in [1, 2] {
            change(FlowModCommand::DeleteStrict, priority);
        }
        let changes = std::mem::take(&mut *seen.0.lock());
        assert_eq!(changes.len(), 6);
        let told = monitors.updates(9, changes.iter().map(|c| &**c));
        let gone = |u: &FlowUpdate| match u {
            FlowUpdate::Full(c) => Some((c.priority, matches!(c.event, FlowEvent::Removed(_)))),
            _ => None,
        };
        assert_eq!(told.iter().map(gone).collect::<Vec<_>>(), [Some((1, true))]);
        assert!(monitors.heirs.is_empty());
    }
}
