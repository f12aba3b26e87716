//! Flows that are to be added, as far as they can be prepared beforehand.
//!
//! **Problem.** A million flows of one bundle take effect under the bridge's lock. Work that does not depend
//! on other rules is done before. A flow mod is read, checked by itself and made compact when it arrives,
//! while the controller sends the next one.

use super::change::Change;
use super::flow_mod::check_goto;
use super::interned::Interned;
use super::select::compact;
use super::tlv::options_of;
use crate::model::Rule;
use crate::stats::LazyStats;
use heddle_classifier::{MiniMask, MiniMatch};
use heddle_openflow::message::{FlowEvent, FlowMod, FlowModCommand, FlowModFlags};
use heddle_openflow::{Action, ErrorKind, Instruction, InstructionSet, Version};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Serial number of the next rule that is added ([`Rule::serial`]). Relaxed: rules of a bridge are added
/// under its lock, which orders them.
static NEXT_SERIAL: AtomicU32 = AtomicU32::new(1);

/// Masks that are remembered.
const MASKS: usize = 1024;

/// Masks and instructions that waiting additions share.
#[derive(Default)]
pub(crate) struct SharedByAdditions {
    masks: HashSet<Arc<MiniMask>>,
    /// The last flow's mask: consecutive flow mods usually have the same one.
    last: Arc<MiniMask>,
    instructions: Interned,
}

impl SharedByAdditions {
    /// The mask that is there already, or this one.
    fn mask(&mut self, mask: Arc<MiniMask>) -> Arc<MiniMask> {
        if self.last != mask {
            if self.masks.len() >= MASKS {
                self.masks.clear();
            }
            self.last = match self.masks.get(&mask) {
                Some(known) => known.clone(),
                None => {
                    self.masks.insert(mask.clone());
                    mask
                }
            };
        }
        self.last.clone()
    }
}

/// A flow that is to be added, checked by itself.
#[derive(Debug)]
pub struct Addition {
    table: u8,
    priority: u16,
    matches: MiniMatch,
    cookie: u64,
    idle_timeout: u16,
    hard_timeout: u16,
    importance: u16,
    flags: FlowModFlags,
    /// A flow that it replaces does not pass its counters on.
    reset: bool,
    instructions: Arc<InstructionSet>,
}

impl Addition {
    fn new(version: Version, fm: &FlowMod, instructions: Arc<InstructionSet>) -> Result<Self, ErrorKind> {
        let table = match fm.table_id {
            0xff if version != Version::V10 => return Err(ErrorKind::FlowModFailedBadTableId),
            0xff => 0,
            table => table,
        };
        Ok(Self {
            table,
            priority: fm.priority,
            matches: compact(&fm.match_),
            cookie: fm.new_cookie,
            idle_timeout: fm.idle_timeout,
            hard_timeout: fm.hard_timeout,
            importance: fm.importance,
            flags: fm.flags,
            reset: fm.flags.contains(FlowModFlags::RESET_COUNTS) || version <= Version::V11,
            instructions,
        })
    }

    /// Prepares a flow mod that has been checked ([`Bridge::check_bundled`](super::Bridge::check_bundled)).
    /// `None`: it is no addition, or it uses tunnel options, whose map may change until then.
    pub(crate) fn prepare(version: Version, fm: &FlowMod, shared: &mut SharedByAdditions) -> Option<Self> {
        if fm.command != FlowModCommand::Add {
            return None;
        }
        let instructions = shared.instructions.share(&fm.instructions);
        let mut new = Self::new(version, fm, instructions).ok()?;
        if options_of(&new.matches, &new.instructions) != 0 {
            return None;
        }
        new.matches.mask = shared.mask(new.matches.mask);
        Some(new)
    }

    /// Bytes of memory that its instructions take, if no other addition shares them.
    pub(crate) fn weight(&self) -> usize {
        // The addition and [`SharedByAdditions`] hold one reference each.
        if Arc::strong_count(&self.instructions) > 2 {
            return 0;
        }
        let set = self.instructions.0.iter();
        set.map(|i| match i {
            Instruction::Apply(actions) | Instruction::Write(actions) => weigh(actions),
            _ => 0,
        })
        .sum()
    }

    /// The table that it goes to, and its mask.
    pub(super) fn place(&self) -> (u8, &Arc<MiniMask>) {
        (self.table, &self.matches.mask)
    }
}

/// Bytes that a list of actions takes, roughly.
fn weigh(actions: &[Action]) -> usize {
    let nested = actions.iter().map(|a| match a {
        Action::Clone(inner) => weigh(inner),
        Action::Ct(ct) => weigh(&ct.actions),
        _ => 0,
    });
    size_of_val(actions) + nested.sum::<usize>()
}

impl Change<'_> {
    /// Adds the flow of a flow mod, whose own consistency has been checked.
    pub(super) fn add(&mut self, version: Version, fm: &FlowMod) -> Result<(), ErrorKind> {
        let instructions = self.state.interned.share(&fm.instructions);
        self.add_prepared(Addition::new(version, fm, instructions)?)
    }

    /// Adds a flow that was prepared. The groups and meters that it names must exist now.
    pub(super) fn add_prepared(&mut self, new: Addition) -> Result<(), ErrorKind> {
        let table = new.table;
        check_goto(&new.instructions, table)?;
        self.bridge.check_instruction_references(&new.instructions)?;
        self.check_options(&new.matches, &new.instructions)?;
        let old = self.find(table, &new.matches, i32::from(new.priority));
        if old.is_none() {
            let overlap = new.flags.contains(FlowModFlags::CHECK_OVERLAP);
            let rules = &self.bridge.tables[usize::from(table)].rules;
            if overlap && rules.overlaps(self.version, &new.matches, i32::from(new.priority)) {
                return Err(ErrorKind::FlowModFailedOverlap);
            }
            self.make_room(table)?;
        }
        let now = self.bridge.now_ms();
        let rule = Rule {
            table,
            priority: new.priority,
            matches: new.matches,
            cookie: new.cookie,
            idle_timeout: new.idle_timeout.into(),
            hard_timeout: new.hard_timeout.into(),
            importance: new.importance,
            flags: new.flags.bits(),
            instructions: self.state.interned.adopt(new.instructions),
            created_ms: now,
            modified_ms: now.into(),
            born: self.version,
            serial: NEXT_SERIAL.fetch_add(1, Relaxed),
            hidden: false,
            stats: old
                .as_ref()
                .map_or_else(LazyStats::default, |e| e.data.heir(new.reset)),
        };
        if let Some(old) = &old {
            self.unlink(old);
        }
        let priority = i32::from(rule.priority);
        let linked = self.link(rule, priority);
        self.report(FlowEvent::Added, linked.data.clone(), old.map(|e| e.data.clone()));
        self.table_status(table);
        Ok(())
    }
}
