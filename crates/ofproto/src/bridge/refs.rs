//! The rules that use each group and meter: they are deleted with it.

use super::Linked;
use crate::model::Rule;
use heddle_openflow::{Action, Instruction};
use std::collections::HashMap;
use std::sync::Arc;

/// Rules by their addresses, which are stable while they are linked.
type Rules = HashMap<usize, Linked>;

/// The index of all linked rules.
#[derive(Default)]
pub(crate) struct Refs {
    groups: HashMap<u32, Rules>,
    meters: HashMap<u32, Rules>,
    /// Number of rules that use each tunnel option; empty as long as none does.
    options: HashMap<u8, usize>,
    /// Number of rules that learn flows of this table and cookie, which are deleted after the last such rule.
    learned: HashMap<(u8, u64), usize>,
    /// Tables and cookies that some rule has stopped learning; another one may learn them.
    orphans: Vec<(u8, u64)>,
    /// Tables and cookies that no rule learned at the end of a message: their flows go, whatever comes after.
    dead: Vec<(u8, u64)>,
}

fn place(e: &Linked) -> usize {
    Arc::as_ptr(e).addr()
}

impl Refs {
    /// Adds a rule that was linked.
    pub(crate) fn add(&mut self, e: &Linked) {
        for i in options_used(e) {
            *self.options.entry(i).or_default() += 1;
        }
        for key in learned_by(&e.data) {
            *self.learned.entry(key).or_default() += 1;
        }
        for g in groups_of(&e.data) {
            self.groups.entry(g).or_default().insert(place(e), e.clone());
        }
        if let Some(m) = meter_of(&e.data) {
            self.meters.entry(m).or_default().insert(place(e), e.clone());
        }
    }
    /// Called after each message, also of a bundle.
    pub(crate) fn end_message(&mut self) {
        for key in std::mem::take(&mut self.orphans) {
            if !self.learned.contains_key(&key) {
                self.dead.push(key);
            }
        }
    }
    /// The number of dead entries before a change, for [`Refs::revive`].
    pub(crate) fn n_dead(&self) -> usize {
        self.dead.len()
    }
    /// Undoes a change: entries that died after the first `n` may be learned again.
    pub(crate) fn revive(&mut self, n: usize) {
        self.orphans.extend(self.dead.drain(n.min(self.dead.len())..));
    }
    /// Tables and cookies of learned flows that have to go, since the last call.
    pub(crate) fn take_orphans(&mut self) -> Vec<(u8, u64)> {
        self.end_message();
        std::mem::take(&mut self.dead)
    }
    /// Removes a rule that was unlinked.
    pub(crate) fn remove(&mut self, e: &Linked) {
        for i in options_used(e) {
            if let Some(n) = self.options.get_mut(&i) {
                *n -= 1;
            }
        }
        for key in learned_by(&e.data) {
            if let Some(n) = self.learned.get_mut(&key) {
                *n -= 1;
                if *n == 0 {
                    self.learned.remove(&key);
                    self.orphans.push(key);
                }
            }
        }
        for g in groups_of(&e.data) {
            forget(&mut self.groups, g, e);
        }
        if let Some(m) = meter_of(&e.data) {
            forget(&mut self.meters, m, e);
        }
    }
    /// Whether [`Refs::take_orphans`] may return any.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty() || !self.dead.is_empty()
    }
    /// Number of rules that use a group.
    pub(crate) fn count_group(&self, id: u32) -> usize {
        self.groups.get(&id).map_or(0, HashMap::len)
    }
    /// Number of rules that use a meter.
    pub(crate) fn count_meter(&self, id: u32) -> usize {
        self.meters.get(&id).map_or(0, HashMap::len)
    }
    /// Number of rules that use a tunnel option.
    pub(crate) fn count_option(&self, index: u8) -> usize {
        self.options.get(&index).copied().unwrap_or(0)
    }
    /// Rules that use a group.
    pub(crate) fn of_group(&self, id: u32) -> Vec<Linked> {
        sorted(self.groups.get(&id))
    }
    /// Rules that use a meter.
    pub(crate) fn of_meter(&self, id: u32) -> Vec<Linked> {
        sorted(self.meters.get(&id))
    }
}

fn options_used(e: &Linked) -> impl Iterator<Item = u8> {
    let used = super::tlv::options_of(&e.data.matches, &e.data.instructions);
    let end = u8::try_from(64 - used.leading_zeros()).unwrap_or(64);
    (0..end).filter(move |i| used >> i & 1 != 0)
}

fn forget(of: &mut HashMap<u32, Rules>, id: u32, e: &Linked) {
    if let Some(rules) = of.get_mut(&id) {
        rules.remove(&place(e));
        if rules.is_empty() {
            of.remove(&id);
        }
    }
}

/// The rules in an order that does not depend on their addresses.
fn sorted(rules: Option<&Rules>) -> Vec<Linked> {
    let mut all: Vec<Linked> = rules.iter().flat_map(|r| r.values()).cloned().collect();
    all.sort_by_key(|e| (e.data.table, std::cmp::Reverse(e.priority), e.data.created_ms));
    all
}

/// Calls `f` for every action, also nested ones.
pub(crate) fn for_each_action<'a>(actions: &'a [Action], f: &mut dyn FnMut(&'a Action)) {
    for a in actions {
        f(a);
        match a {
            Action::Clone(inner) => for_each_action(inner, f),
            Action::Ct(ct) => for_each_action(&ct.actions, f),
            _ => {}
        }
    }
}

pub(crate) fn for_each(rule: &Rule, mut f: impl FnMut(&Action)) {
    for i in &rule.instructions.0 {
        if let Instruction::Apply(actions) | Instruction::Write(actions) = i {
            for_each_action(actions, &mut f);
        }
    }
}

/// Tables and cookies of the flows that are deleted when no rule learns them any more.
fn learned_by(rule: &Rule) -> Vec<(u8, u64)> {
    let mut found = Vec::new();
    for_each(rule, |a| {
        if let Action::Learn(l) = a
            && l.delete_learned
        {
            found.push((l.table, l.cookie));
        }
    });
    found
}

fn groups_of(rule: &Rule) -> Vec<u32> {
    let mut found = Vec::new();
    for_each(rule, |a| {
        if let Action::Group(id) = a
            && !found.contains(id)
        {
            found.push(*id);
        }
    });
    found
}

/// The meter that goes with the rule: the first one that it names.
fn meter_of(rule: &Rule) -> Option<u32> {
    let instruction = rule.instructions.0.iter().find_map(|i| match i {
        Instruction::Meter(id) => Some(*id),
        _ => None,
    });
    let mut action = None;
    if instruction.is_none() {
        for_each(rule, |a| {
            if let Action::Meter(id) = a {
                action.get_or_insert(*id);
            }
        });
    }
    instruction.or(action)
}
