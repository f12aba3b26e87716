//! A change of rules: steps that become visible to workers together, or not at all.
//!
//! **Invariants.** All steps happen at `version`, one more than what workers read; [`Change::find`] and selections at that
//! version see the steps already taken. Until [`Bridge::change`] commits, every step can be taken back, newest first.
//! Events are handed out after the commit, in the order of commits: `Bridge::order` is held from the first step
//! until the last event is with its sinks.
//!
//! **Costs.** A step costs one insertion into or removal from the classifier and one entry in the undo list.

use super::{Bridge, Event, FlowChanged, Linked, Origin, State};
use crate::model::Rule;
use heddle_classifier::MiniMatch;
use heddle_datapath::Changes;
use heddle_openflow::message::{FlowEvent, FlowModFlags, FlowRemoved, FlowRemovedReason};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Steps that are taken together.
pub(super) struct Change<'a> {
    pub(super) bridge: &'a Bridge,
    pub(super) state: &'a mut State,
    /// Whose message asks for it; changes with the message within a bundle.
    pub(super) origin: Option<Origin>,
    /// The version at which the steps become visible.
    pub(super) version: u64,
    pub(super) events: Vec<Event>,
    /// By generation slot of a table: the matches of the rules that come or go.
    changes: BTreeMap<u16, Changes>,
    undo: Vec<Step>,
}

/// A step that was taken.
enum Step {
    Linked(Linked),
    Unlinked(Linked),
}

impl Bridge {
    /// Takes the steps of `f` and makes them visible. Where `f` fails, everything is as it was before.
    pub(super) fn change<R, E>(
        &self,
        origin: Option<Origin>,
        f: impl FnOnce(&mut Change<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let _order = self.order.lock();
        let mut state = self.state.lock();
        let mut change = Change {
            bridge: self,
            version: self.current_version() + 1,
            state: &mut state,
            origin,
            events: Vec::new(),
            changes: BTreeMap::new(),
            undo: Vec::new(),
        };
        let result = f(&mut change);
        if result.is_err() {
            change.roll_back();
            return result;
        }
        let Change {
            version,
            changes,
            events,
            ..
        } = change;
        if !changes.is_empty() {
            self.commit(version, changes);
        }
        drop(state);
        self.emit(&events);
        result
    }
}

impl Change<'_> {
    /// The rule with exactly this match and priority, as the steps so far have left things.
    pub(super) fn find(&self, table: u8, matches: &MiniMatch, priority: i32) -> Option<Linked> {
        self.bridge.tables[usize::from(table)]
            .rules
            .find_exact(self.version, matches, priority)
    }

    /// Cached answers are told which rule of a table changes.
    fn note(&mut self, table: u8, matches: &MiniMatch) {
        let slot = self.bridge.tables[usize::from(table)].slot;
        self.changes.entry(slot).or_default().add(matches);
    }

    /// Adds a rule.
    pub(super) fn link(&mut self, mut rule: Rule, priority: i32) -> Linked {
        let (table, timed) = (rule.table, rule.idle_timeout != 0 || rule.hard_timeout != 0);
        let rules = &self.bridge.tables[usize::from(table)].rules;
        rule.matches = rules.share(rule.matches);
        let matches = rule.matches.clone();
        let entry = rules.insert(&matches, priority, self.version, Arc::new(rule));
        if timed {
            self.state.timed.push(entry.clone());
        }
        self.state.tables[usize::from(table)].linked(&entry);
        self.note(table, &matches);
        self.undo.push(Step::Linked(entry.clone()));
        entry
    }

    /// Removes a rule, telling nobody.
    pub(super) fn unlink(&mut self, e: &Linked) {
        let table = usize::from(e.data.table);
        if self.bridge.tables[table]
            .rules
            .remove(&e.data.matches, e, self.version)
        {
            self.state.garbage = true;
            self.state.tables[table].unlinked(e);
            self.note(e.data.table, &e.data.matches);
            self.undo.push(Step::Unlinked(e.clone()));
        }
    }

    /// Removes a rule and says so.
    pub(super) fn remove(&mut self, e: &Linked, reason: FlowRemovedReason) {
        self.unlink(e);
        if FlowModFlags::from_bits_truncate(e.data.flags).contains(FlowModFlags::SEND_FLOW_REM) {
            let message = self.removed(&e.data, reason);
            self.events.push(Event::FlowRemoved(Arc::new(message)));
        }
        self.report(FlowEvent::Removed(reason), e.data.clone(), None);
        self.table_status(e.data.table);
    }

    /// Tells flow monitors. `old`: the rule before, where its actions count too.
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
        FlowRemoved {
            match_: rule.wide_match(),
            priority: rule.priority,
            cookie: rule.cookie,
            reason,
            table_id: Some(rule.table),
            duration_sec,
            duration_nsec,
            idle_timeout: rule.idle_timeout,
            hard_timeout: rule.hard_timeout,
            packet_count: rule.stats.packets.load(Relaxed),
            byte_count: rule.stats.bytes.load(Relaxed),
            nxm: false,
        }
    }

    /// Takes all steps back. What was added was never visible: its versions are empty.
    fn roll_back(&mut self) {
        self.state.garbage |= !self.undo.is_empty();
        for step in std::mem::take(&mut self.undo).into_iter().rev() {
            match step {
                Step::Linked(e) => {
                    let table = usize::from(e.data.table);
                    self.bridge.tables[table]
                        .rules
                        .remove(&e.data.matches, &e, self.version);
                    self.state.tables[table].unlinked(&e);
                }
                Step::Unlinked(e) => {
                    let table = usize::from(e.data.table);
                    self.bridge.tables[table].rules.restore(&e);
                    self.state.tables[table].linked(&e);
                }
            }
        }
    }
}
