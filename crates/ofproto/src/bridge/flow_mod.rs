//! Flow mods: add, modify, delete; strict and not.
//!
//! Semantics follow OpenFlow 1.5 §6.4 and, where versions differ, the version of the connection. Before 1.2
//! an addition always zeroes the counters of the flow that it replaces, and a modification that finds no flow
//! adds one.

use super::change::Change;
use super::select::Select;
use super::{Bridge, Linked, Origin};
use crate::model::{N_TABLES, Rule};
use crate::stats::LazyStats;
use heddle_classifier::MiniMatch;
use heddle_openflow::message::{
    FlowEvent, FlowMod, FlowModCommand, FlowModFlags, FlowRemovedReason, GROUP_ALL, METER_ALL,
};
use heddle_openflow::{ErrorKind, Instruction, InstructionSet, Version};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// Priority of the hidden rule that acts for controllers: above all that OpenFlow can express.
const FAIL_OPEN_PRIORITY: i32 = 0x00f0_f0f0;

/// Rules that were freed, of all bridges.
static FREED: AtomicU64 = AtomicU64::new(0);

/// Number of rules that have been unlinked and freed since the start, of all bridges.
pub fn freed_rules() -> u64 {
    FREED.load(Relaxed)
}

impl Bridge {
    /// Counts the rules of a bridge that goes as freed.
    pub(crate) fn count_freed(&self) {
        FREED.fetch_add(self.n_rules().unwrap_or(0), Relaxed);
    }

    /// Carries out one flow mod. On an error nothing has changed.
    pub fn flow_mod(&self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        self.flow_mod_by(version, fm, None)
    }

    /// Carries out one flow mod for a connection.
    pub(super) fn flow_mod_by(
        &self,
        version: Version,
        fm: &FlowMod,
        origin: Option<Origin>,
    ) -> Result<(), ErrorKind> {
        self.check_flow_mod(version, fm)?;
        self.change(origin, |c| c.flow_mod(version, fm))
    }

    /// Removes every flow, group and meter; without controllers in standalone mode, puts back the flow that
    /// makes the bridge a learning switch.
    pub fn flush_flows(&self) {
        let done: Result<(), ErrorKind> = self.change(None, |b| {
            b.delete_groups(GROUP_ALL);
            b.delete_meters(METER_ALL);
            for table in b.bridge.tables.iter() {
                let mut all = Vec::new();
                table.rules.for_each(b.version, |e| all.push(e.clone()));
                for e in all.iter().filter(|e| !e.data.hidden) {
                    b.remove(e, FlowRemovedReason::Delete);
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

    /// Adds or removes the rule that acts for absent controllers (fail mode standalone). Returns whether that
    /// is a change.
    pub fn set_fail_open(&self, on: bool) -> bool {
        let mut changed = true;
        let done: Result<(), ErrorKind> = self.change(None, |b| {
            match (on, b.state.fail_open.take()) {
                (false, Some(e)) => b.unlink(&e),
                (true, None) => {
                    let now = b.bridge.now_ms();
                    let linked = b.link(default_rule(now, true), FAIL_OPEN_PRIORITY);
                    b.state.fail_open = Some(linked);
                }
                (_, as_it_was) => {
                    b.state.fail_open = as_it_was;
                    changed = false;
                }
            }
            Ok(())
        });
        debug_assert!(done.is_ok(), "nothing above fails");
        changed
    }

    /// Removes rules that timed out, with their flow-removed events.
    pub(super) fn remove_expired(&self, expired: &[(Linked, FlowRemovedReason)]) {
        let done: Result<(), ErrorKind> = self.change(None, |b| {
            for (e, reason) in expired {
                b.remove(e, *reason);
            }
            Ok(())
        });
        debug_assert!(done.is_ok(), "nothing above fails");
    }

    /// Unlinks removed rules, and frees those that were being read when they were unlinked.
    pub(super) fn purge_rules(&self) {
        if std::mem::take(&mut self.state.lock().garbage) > 0 {
            self.unlink_garbage();
        }
        let _tables_in_use = self.tables_in_use.read();
        self.tables.iter().for_each(|t| t.rules.tidy());
    }

    /// Unlinks removed rules and groups. Translations that are under way at an earlier version find out by
    /// `purged`, and begin anew.
    pub(super) fn unlink_garbage(&self) {
        let _tables_in_use = self.tables_in_use.read();
        let version = self.current_version();
        self.purged.fetch_max(version, Relaxed);
        // Pairs with the fence in `xlate::Position::is_torn`: a translation that misses a rule unlinked below
        // sees the number stored above.
        fence(Release);
        let unlinked = self.tables.iter().map(|t| t.rules.purge(version)).sum();
        FREED.fetch_add(unlinked, Relaxed);
        self.groups.purge(version);
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
        idle_timeout: 0.into(),
        hard_timeout: 0.into(),
        importance: 0,
        flags: 0,
        instructions: Arc::new(InstructionSet(vec![Instruction::Apply(vec![normal])])),
        created_ms: now,
        modified_ms: now.into(),
        born: 0,
        serial: 0,
        hidden,
        stats: LazyStats::default(),
    }
}

impl Change<'_> {
    /// Takes the steps of one flow mod, whose own consistency has been checked (`Bridge::check_flow_mod`).
    pub(super) fn flow_mod(&mut self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        match fm.command {
            FlowModCommand::Add => self.add(version, fm),
            FlowModCommand::Modify => self.modify(version, fm, false),
            FlowModCommand::ModifyStrict => self.modify(version, fm, true),
            FlowModCommand::Delete => self.delete(fm, false),
            FlowModCommand::DeleteStrict => self.delete(fm, true),
        }
    }

    pub(super) fn modify(&mut self, version: Version, fm: &FlowMod, strict: bool) -> Result<(), ErrorKind> {
        let found = Select::new(fm, strict, false).run(self.bridge, self.version);
        if found.is_empty() {
            let adds = version <= Version::V11 && fm.cookie_mask == 0;
            return if adds { self.add(version, fm) } else { Ok(()) };
        }
        for e in &found {
            check_goto(&fm.instructions, e.data.table)?;
        }
        self.bridge.check_instruction_references(&fm.instructions)?;
        self.check_options(&MiniMatch::default(), &fm.instructions)?;
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
                idle_timeout: old.idle_timeout.load(Relaxed).into(),
                hard_timeout: old.hard_timeout.load(Relaxed).into(),
                importance: old.importance,
                flags: old.flags,
                instructions: self.state.interned.share(&fm.instructions),
                created_ms: old.created_ms,
                modified_ms: now.into(),
                born: old.born,
                serial: old.serial,
                hidden: false,
                stats: old.heir(reset),
            };
            self.unlink(e);
            let new = self.link(rule, e.priority).data.clone();
            // Flow monitors get only flows that are different now.
            if new.cookie != old.cookie || new.instructions != old.instructions {
                self.report(FlowEvent::Modified, new, Some(old.clone()));
            }
        }
        Ok(())
    }

    fn delete(&mut self, fm: &FlowMod, strict: bool) -> Result<(), ErrorKind> {
        for e in Select::new(fm, strict, true).run(self.bridge, self.version) {
            self.remove(&e, FlowRemovedReason::Delete);
        }
        Ok(())
    }
}

/// A goto leads to a later table (OpenFlow 1.5 §5.5) that exists.
pub(super) fn check_goto(instructions: &InstructionSet, table: u8) -> Result<(), ErrorKind> {
    match instructions.goto() {
        Some(t) if t <= table || usize::from(t) >= N_TABLES => Err(ErrorKind::BadInstructionBadTableId),
        _ => Ok(()),
    }
}
