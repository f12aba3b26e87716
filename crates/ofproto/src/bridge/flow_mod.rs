//! Flow mods: add, modify, delete; strict and not.
//!
//! Semantics follow OpenFlow 1.5 §6.4 and, where versions differ, the version of the connection: before 1.2 an
//! addition always zeroes the counters of the flow that it replaces, and a modification that finds nothing adds.

use super::select::{Select, compact};
use super::{Bridge, Event, Linked, State};
use crate::model::{N_TABLES, Rule, Stats};
use heddle_classifier::MiniMatch;
use heddle_openflow::message::{FlowMod, FlowModCommand, FlowModFlags, FlowRemoved, FlowRemovedReason};
use heddle_openflow::{ErrorKind, Instruction, InstructionSet, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Priority of the hidden rule that stands in for controllers: above all that OpenFlow can say.
const FAIL_OPEN_PRIORITY: i32 = 0x00f0_f0f0;

/// Rules that one message adds and removes, before they become visible together.
struct Batch<'a> {
    bridge: &'a Bridge,
    state: &'a mut State,
    version: u64,
    tables: BTreeSet<u8>,
    events: Vec<Event>,
}

impl Bridge {
    /// Carries out one flow mod. On an error nothing has changed.
    pub fn flow_mod(&self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        if fm.buffer_id.is_some() {
            return Err(ErrorKind::BadRequestBufferUnknown);
        }
        if fm.table_id != 0xff && usize::from(fm.table_id) >= N_TABLES {
            return Err(ErrorKind::FlowModFailedBadTableId);
        }
        self.batch(|b| match fm.command {
            FlowModCommand::Add => b.add(version, fm),
            FlowModCommand::Modify => b.modify(version, fm, false),
            FlowModCommand::ModifyStrict => b.modify(version, fm, true),
            FlowModCommand::Delete => b.delete(fm, false),
            FlowModCommand::DeleteStrict => b.delete(fm, true),
        })
    }

    fn batch(&self, f: impl FnOnce(&mut Batch<'_>) -> Result<(), ErrorKind>) -> Result<(), ErrorKind> {
        let mut state = self.state.lock();
        let version = self.current_version() + 1;
        let mut batch = Batch {
            bridge: self,
            state: &mut state,
            version,
            tables: BTreeSet::new(),
            events: Vec::new(),
        };
        let result = f(&mut batch);
        let Batch { tables, events, .. } = batch;
        if !tables.is_empty() {
            self.commit(version, tables);
        }
        drop(state);
        self.emit(&events);
        result
    }

    /// Removes every flow; without controllers in standalone mode, puts back the one that makes the bridge a
    /// learning switch.
    pub fn flush_flows(&self) {
        let done = self.batch(|b| {
            for table in b.bridge.tables.iter() {
                let mut all = Vec::new();
                table.rules.for_each(b.version - 1, |e| all.push(e.clone()));
                for e in all.iter().filter(|e| !e.data.hidden) {
                    b.unlink(e);
                }
            }
            let config = &b.state.config;
            if !config.has_controllers && config.fail_mode == super::FailMode::Standalone {
                let now = b.bridge.now_ms();
                b.link(default_rule(now, false), 0);
            }
            Ok(())
        });
        debug_assert!(done.is_ok(), "nothing above fails");
    }

    /// Switches the stand-in for absent controllers on or off (fail mode standalone).
    pub fn set_fail_open(&self, on: bool) {
        let done = self.batch(|b| {
            match (on, b.state.fail_open.take()) {
                (false, Some(e)) => b.unlink(&e),
                (true, None) => {
                    let now = b.bridge.now_ms();
                    let linked = b.link(default_rule(now, true), FAIL_OPEN_PRIORITY);
                    b.state.fail_open = Some(linked);
                }
                (_, as_it_was) => b.state.fail_open = as_it_was,
            }
            Ok(())
        });
        debug_assert!(done.is_ok(), "nothing above fails");
    }

    /// Removes rules that timed out, with their flow-removed events.
    pub(super) fn remove_expired(&self, expired: &[(Linked, FlowRemovedReason)]) {
        let done = self.batch(|b| {
            for (e, reason) in expired {
                b.remove(e, *reason);
            }
            Ok(())
        });
        debug_assert!(done.is_ok(), "nothing above fails");
    }

    /// Unlinks what was removed. Called off the beat, when no translation runs at so old a version.
    pub(super) fn purge_rules(&self) {
        if std::mem::take(&mut self.state.lock().garbage) {
            let version = self.current_version();
            self.tables.iter().for_each(|t| t.rules.purge(version));
        }
    }
}

fn default_rule(now: u64, hidden: bool) -> Rule {
    let normal = heddle_openflow::Action::Output {
        port: heddle_openflow::Port::NORMAL,
        max_len: 0,
    };
    Rule {
        table: 0,
        priority: 0,
        matches: MiniMatch::default(),
        cookie: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        importance: 0,
        flags: 0,
        instructions: InstructionSet(vec![Instruction::Apply(vec![normal])]),
        created_ms: now,
        modified_ms: now,
        hidden,
        stats: Arc::new(Stats::default()),
    }
}

impl Batch<'_> {
    fn add(&mut self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        let table = if fm.table_id == 0xff {
            if version != Version::V10 {
                return Err(ErrorKind::FlowModFailedBadTableId);
            }
            0
        } else {
            fm.table_id
        };
        check_goto(&fm.instructions, table)?;
        let matches = compact(&fm.match_);
        let t = &self.bridge.tables[usize::from(table)];
        let old = t
            .rules
            .find_exact(self.version - 1, &matches, i32::from(fm.priority));
        if old.is_none() {
            if fm.flags.contains(FlowModFlags::CHECK_OVERLAP) && self.overlaps(table, fm.priority, &matches) {
                return Err(ErrorKind::FlowModFailedOverlap);
            }
            self.make_room(table)?;
        }
        let now = self.bridge.now_ms();
        let reset = fm.flags.contains(FlowModFlags::RESET_COUNTS) || version <= Version::V11;
        let kept = old.as_ref().filter(|_| !reset);
        let rule = Rule {
            table,
            priority: fm.priority,
            matches,
            cookie: fm.new_cookie,
            idle_timeout: fm.idle_timeout,
            hard_timeout: fm.hard_timeout,
            importance: fm.importance,
            flags: fm.flags.bits(),
            instructions: fm.instructions.clone(),
            created_ms: now,
            modified_ms: now,
            hidden: false,
            stats: kept.map_or_else(Arc::default, |e| e.data.stats.clone()),
        };
        if let Some(old) = &old {
            self.unlink(old);
        }
        self.link(rule, i32::from(fm.priority));
        Ok(())
    }

    fn modify(&mut self, version: Version, fm: &FlowMod, strict: bool) -> Result<(), ErrorKind> {
        let found = Select::new(fm, strict, false).run(self.bridge);
        if found.is_empty() {
            let adds = version <= Version::V11 && fm.cookie_mask == 0;
            return if adds { self.add(version, fm) } else { Ok(()) };
        }
        for e in &found {
            check_goto(&fm.instructions, e.data.table)?;
        }
        let now = self.bridge.now_ms();
        for e in &found {
            let old = &e.data;
            let reset = fm.flags.contains(FlowModFlags::RESET_COUNTS);
            let rule = Rule {
                table: old.table,
                priority: old.priority,
                matches: old.matches.clone(),
                cookie: if fm.modify_cookie {
                    fm.new_cookie
                } else {
                    old.cookie
                },
                idle_timeout: old.idle_timeout,
                hard_timeout: old.hard_timeout,
                importance: old.importance,
                flags: old.flags,
                instructions: fm.instructions.clone(),
                created_ms: old.created_ms,
                modified_ms: now,
                hidden: false,
                stats: if reset { Arc::default() } else { old.stats.clone() },
            };
            self.unlink(e);
            self.link(rule, e.priority);
        }
        Ok(())
    }

    fn delete(&mut self, fm: &FlowMod, strict: bool) -> Result<(), ErrorKind> {
        for e in Select::new(fm, strict, true).run(self.bridge) {
            self.remove(&e, FlowRemovedReason::Delete);
        }
        Ok(())
    }

    fn overlaps(&self, table: u8, priority: u16, matches: &MiniMatch) -> bool {
        let mut found = false;
        self.bridge.tables[usize::from(table)]
            .rules
            .for_each(self.version - 1, |e| {
                found |= e.priority == i32::from(priority) && e.data.matches.overlaps(matches);
            });
        found
    }

    /// Refuses, or evicts the rule that is worth least, when the table's configured limit is reached.
    fn make_room(&mut self, table: u8) -> Result<(), ErrorKind> {
        let Some(config) = self.state.tables.get(&table) else {
            return Ok(());
        };
        let Some(limit) = config.flow_limit else {
            return Ok(());
        };
        let mut rules = Vec::new();
        self.bridge.tables[usize::from(table)]
            .rules
            .for_each(self.version - 1, |e| {
                if !e.data.hidden {
                    rules.push(e.clone());
                }
            });
        if rules.len() < limit {
            return Ok(());
        }
        // OpenFlow 1.4 §6.5: lowest importance first; then what would expire first. Rules without a timeout stay.
        let victim = rules
            .into_iter()
            .filter(|e| config.evict && (e.data.idle_timeout != 0 || e.data.hard_timeout != 0))
            .min_by_key(|e| (e.data.importance, super::expire::deadline_ms(&e.data)));
        let Some(victim) = victim else {
            return Err(ErrorKind::FlowModFailedTableFull);
        };
        self.remove(&victim, FlowRemovedReason::Eviction);
        Ok(())
    }

    fn link(&mut self, mut rule: Rule, priority: i32) -> Linked {
        let (table, timed) = (rule.table, rule.idle_timeout != 0 || rule.hard_timeout != 0);
        let rules = &self.bridge.tables[usize::from(table)].rules;
        rule.matches = rules.share(rule.matches);
        let matches = rule.matches.clone();
        let entry = rules.insert(&matches, priority, self.version, Arc::new(rule));
        if timed {
            self.state.timed.push(entry.clone());
        }
        self.tables.insert(table);
        entry
    }

    fn unlink(&mut self, e: &Linked) {
        let table = e.data.table;
        if self.bridge.tables[usize::from(table)]
            .rules
            .remove(&e.data.matches, e, self.version)
        {
            self.state.garbage = true;
            self.tables.insert(table);
        }
    }

    fn remove(&mut self, e: &Linked, reason: FlowRemovedReason) {
        self.unlink(e);
        if FlowModFlags::from_bits_truncate(e.data.flags).contains(FlowModFlags::SEND_FLOW_REM) {
            self.events
                .push(Event::FlowRemoved(Arc::new(self.removed(&e.data, reason))));
        }
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
}

/// Goto only goes on (OpenFlow 1.5 §5.5), to a table that exists.
fn check_goto(instructions: &InstructionSet, table: u8) -> Result<(), ErrorKind> {
    match instructions.goto() {
        Some(t) if t <= table || usize::from(t) >= N_TABLES => Err(ErrorKind::BadInstructionBadTableId),
        _ => Ok(()),
    }
}
