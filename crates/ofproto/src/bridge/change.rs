//! A change of rules: steps that become visible to workers together, or not at all.
//!
//! **Invariants.** All steps happen at `version`, one more than what workers read; [`Change::find`] and
//! selections at that version see the steps already taken. Until [`Bridge::change`] commits, every step can
//! be taken back, newest first. Events are emitted after the commit, in the order of commits: `Bridge::order`
//! is held until the sinks have the last event.
//!
//! **Costs.** A step costs one insertion into or removal from the classifier and one entry in the undo list.

use super::{Bridge, BridgeState, Event, FlowChanged, Linked, Origin};
use crate::group::Group;
use crate::model::Rule;
use crate::versioned::VersionedItem;
use heddle_classifier::MiniMatch;
use heddle_datapath_api::Changes;
use heddle_openflow::message::{FlowEvent, FlowModFlags, FlowRemoved, FlowRemovedReason};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Number of removed rules from which the next change unlinks them, without waiting for the next tick.
/// Lookups go through all versions of a rule that is replaced again and again.
const MIN_GARBAGE: usize = 1024;
/// Number of removed rules (of a deleted table) from which unlinking takes too long for a change: the next
/// tick does it.
const MAX_GARBAGE: usize = 16 * 1024;
/// Pause after caches were read for counters of removed rules, as a multiple of the time that reading took.
const PAUSE_FACTOR: u32 = 9;
/// Reading time that needs no pause. One reading may take long if other threads have the processors, and the
/// rules removed next are to be counted all the same.
const FREE_READING: Duration = Duration::from_millis(500);

/// Removed rules, with the indices of their messages among the events.
pub(super) type RemovedRules = Vec<(usize, Arc<Rule>)>;

/// Steps that are taken together.
pub(super) struct Change<'a> {
    pub(super) bridge: &'a Bridge,
    pub(super) state: &'a mut BridgeState,
    /// The message that requests the next step: within a bundle, each message sets it.
    pub(super) origin: Option<Origin>,
    /// The version at which the steps become visible.
    pub(super) version: u64,
    pub(super) events: Vec<Event>,
    /// Removed rules whose removal is reported to controllers.
    removed_rules: RemovedRules,
    /// Changes by generation slot: for a table, the matches of rules that come or go; for anything else, the
    /// mere fact that it changes.
    pub(super) changes: BTreeMap<u16, Changes>,
    /// Tables that have new rules, which lookups need not find yet.
    grown: BTreeSet<u8>,
    undo: Vec<Step>,
}

/// A step that was taken.
enum Step {
    Linked(Linked),
    Unlinked(Linked),
    GroupAdded(Arc<VersionedItem<Group>>),
    GroupRemoved(Arc<VersionedItem<Group>>),
}

impl Bridge {
    /// Takes the steps of `f` and makes them visible. Where `f` fails, everything is as it was before.
    pub(super) fn change<R, E>(
        &self,
        origin: Option<Origin>,
        f: impl FnOnce(&mut Change<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let result = self.change_without_deferred_work(origin, f);
        self.do_deferred_work();
        result
    }

    /// Does the same as [`Bridge::change`] without [`Bridge::do_deferred_work`].
    pub(super) fn change_without_deferred_work<R, E>(
        &self,
        origin: Option<Origin>,
        f: impl FnOnce(&mut Change<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let _order = self.order.lock();
        let mut state = self.state.lock();
        if (MIN_GARBAGE..MAX_GARBAGE).contains(&state.garbage) {
            // A change unlinks them, and not a worker, which has packets to forward.
            state.garbage = 0;
            self.unlink_garbage();
        }
        // Events of flows that workers have added come first.
        let before = state.learn_receiver.take_events();
        let (result, mut events, removed_rules) = self.change_in(&mut state, origin, true, f);
        drop(state);
        self.read_removed_counters(&mut events, &removed_rules);
        self.emit(&before);
        self.emit(&events);
        result
    }

    /// Reads the caches' counters of removed rules, for the messages about them. At most a tenth of the time
    /// is spent on it: a controller may remove flow by flow. For rules that timed out the caches are always
    /// read. Only packets that workers are forwarding just now still use these rules, and reading the
    /// caches waits for those.
    fn read_removed_counters(&self, events: &mut [Event], removed_rules: &[(usize, Arc<Rule>)]) {
        let Some((first, _)) = removed_rules.first() else {
            return;
        };
        let timed_out = match events.get(*first) {
            Some(Event::FlowRemoved(m)) => matches!(
                m.reason,
                FlowRemovedReason::IdleTimeout | FlowRemovedReason::HardTimeout
            ),
            _ => false,
        };
        let mut last = self.last_cache_reading.lock();
        let begin = Instant::now();
        let excess = last.map_or(Duration::ZERO, |(end, excess)| {
            excess.saturating_sub(begin.saturating_duration_since(end) / PAUSE_FACTOR)
        });
        if !timed_out && excess > FREE_READING {
            return;
        }
        self.refresh();
        *last = Some((Instant::now(), excess + begin.elapsed()));
        for (at, rule) in removed_rules {
            if let Some(Event::FlowRemoved(message)) = events.get_mut(*at)
                && let Some(message) = Arc::get_mut(message)
            {
                (message.packet_count, message.byte_count) = super::stats::counts(rule.stats.seen());
            }
        }
    }

    /// Takes the steps of `f`, with both mutexes held. `searches`: also deletes learned flows that no flow
    /// learns any more, which searches whole tables. Returns the events, which the caller must emit; none
    /// after a failure. Returns also the removed rules with a message, whose counters are read before it is
    /// emitted ([`Bridge::read_removed_counters`]).
    pub(super) fn change_in<R, E>(
        &self,
        state: &mut BridgeState,
        origin: Option<Origin>,
        searches: bool,
        f: impl FnOnce(&mut Change<'_>) -> Result<R, E>,
    ) -> (Result<R, E>, Vec<Event>, RemovedRules) {
        let n_dead = state.refs.n_dead();
        let mut change = Change {
            bridge: self,
            version: self.current_version() + 1,
            state,
            origin,
            events: Vec::new(),
            removed_rules: Vec::new(),
            changes: BTreeMap::new(),
            grown: BTreeSet::new(),
            undo: Vec::new(),
        };
        let result = f(&mut change);
        if result.is_err() {
            change.roll_back();
            change.state.refs.revive(n_dead);
            return (result, Vec::new(), Vec::new());
        }
        if searches {
            change.delete_orphans();
        }
        change.publish();
        let Change {
            version,
            changes,
            events,
            removed_rules,
            ..
        } = change;
        if !changes.is_empty() {
            self.commit(version, changes);
        }
        (result, events, removed_rules)
    }
}

impl Change<'_> {
    /// The rule with exactly this match and priority, as the steps so far have left things.
    pub(super) fn find(&self, table: u8, matches: &MiniMatch, priority: i32) -> Option<Linked> {
        self.bridge.tables[usize::from(table)]
            .rules
            .find_linked(self.version, matches, priority)
    }

    /// Has lookups at this change's version find the rules that it adds.
    pub(super) fn publish(&mut self) {
        let grown = std::mem::take(&mut self.grown).into_iter().map(usize::from);
        grown.for_each(|t| self.bridge.tables[t].rules.publish());
    }

    /// Records a change of something other than rules, which has this generation slot.
    pub(super) fn touch(&mut self, slot: u16) {
        self.changes.entry(slot).or_default();
    }

    /// Records a changed rule for the cached translations that depend on its table.
    fn note(&mut self, table: u8, matches: &MiniMatch) {
        let slot = self.bridge.tables[usize::from(table)].slot;
        self.changes.entry(slot).or_default().add(matches);
    }

    /// Adds a rule.
    pub(super) fn link(&mut self, mut rule: Rule, priority: i32) -> Linked {
        let table = rule.table;
        let rules = &self.bridge.tables[usize::from(table)].rules;
        rule.matches = rules.share(rule.matches);
        let matches = rule.matches.clone();
        let entry = rules.insert(&matches, priority, self.version, Arc::new(rule));
        self.state.timeouts.add(&entry);
        self.state.tables[usize::from(table)].linked(&entry);
        self.state.refs.add(&entry);
        self.note(table, &matches);
        self.grown.insert(table);
        self.undo.push(Step::Linked(entry.clone()));
        entry
    }

    /// Removes a rule without an event.
    pub(super) fn unlink(&mut self, e: &Linked) {
        let table = usize::from(e.data.table);
        if self.bridge.tables[table]
            .rules
            .remove(&e.data.matches, e, self.version)
        {
            self.state.garbage += 1;
            self.state.timeouts.removed(e);
            self.state.tables[table].unlinked(e);
            self.state.refs.remove(e);
            self.note(e.data.table, &e.data.matches);
            self.undo.push(Step::Unlinked(e.clone()));
        }
    }

    /// Removes a rule and adds the events about that.
    pub(super) fn remove(&mut self, e: &Linked, reason: FlowRemovedReason) {
        self.unlink(e);
        if FlowModFlags::from_bits_truncate(e.data.flags).contains(FlowModFlags::SEND_FLOW_REM) {
            let message = self.removed(&e.data, reason);
            self.removed_rules.push((self.events.len(), e.data.clone()));
            self.events.push(Event::FlowRemoved(Arc::new(message)));
        }
        self.report(FlowEvent::Removed(reason), e.data.clone(), None);
        self.table_status(e.data.table);
    }

    /// Adds a group; one with this number was removed before.
    pub(super) fn link_group(&mut self, group: Group) {
        let (id, slot) = (group.id, Group::slot(self.bridge.id, group.id));
        let held = self.bridge.groups.insert(id, self.version, group);
        self.undo.push(Step::GroupAdded(held));
        self.touch(slot);
    }

    /// Removes a group, but no rule that uses it.
    pub(super) fn unlink_group(&mut self, group: &Arc<VersionedItem<Group>>) {
        group.remove(self.version);
        self.state.garbage += 1;
        self.undo.push(Step::GroupRemoved(group.clone()));
        self.touch(Group::slot(self.bridge.id, group.data.id));
    }

    /// Adds an event for flow monitors. `old`: the rule before, if its actions count too.
    pub(super) fn report(&mut self, what: FlowEvent, rule: Arc<Rule>, old: Option<Arc<Rule>>) {
        if rule.hidden || self.bridge.monitors.load(Relaxed) == 0 {
            return;
        }
        self.events.push(Event::FlowChanged(Arc::new(FlowChanged {
            what,
            rule,
            old,
            origin: self.origin,
        })));
    }

    fn removed(&self, rule: &Rule, reason: FlowRemovedReason) -> FlowRemoved {
        let (duration_sec, duration_nsec) = super::stats::age(self.bridge.now_ms(), rule.created_ms);
        let (packet_count, byte_count) = super::stats::counts(rule.stats.seen());
        FlowRemoved {
            match_: rule.wide_match(),
            priority: rule.priority,
            cookie: rule.cookie,
            reason,
            table_id: Some(rule.table),
            duration_sec,
            duration_nsec,
            idle_timeout: rule.idle_timeout.load(Relaxed),
            hard_timeout: rule.hard_timeout.load(Relaxed),
            packet_count,
            byte_count,
            nxm: false,
        }
    }

    /// Takes all steps back. Added rules were never visible: their ranges of versions are empty.
    fn roll_back(&mut self) {
        self.state.garbage += self.undo.len();
        for step in std::mem::take(&mut self.undo).into_iter().rev() {
            match step {
                Step::Linked(e) => {
                    let table = usize::from(e.data.table);
                    self.bridge.tables[table]
                        .rules
                        .remove(&e.data.matches, &e, self.version);
                    self.state.tables[table].unlinked(&e);
                    self.state.refs.remove(&e);
                }
                Step::Unlinked(e) => {
                    let table = usize::from(e.data.table);
                    self.bridge.tables[table].rules.restore(&e);
                    self.state.tables[table].linked(&e);
                    self.state.refs.add(&e);
                }
                Step::GroupAdded(g) => g.remove(self.version),
                Step::GroupRemoved(g) => g.restore(),
            }
        }
    }
}
