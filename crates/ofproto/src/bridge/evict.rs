//! Eviction from full tables (`Flow_Table.overflow_policy=evict`, OpenFlow 1.4 §6.5).
//!
//! Flows are put into groups by the values of configured fields, so that one user of a table cannot crowd out
//! the others. The largest group loses a flow: the least important one, among equals the one that would time
//! out first. Flows without a timeout stay.
//!
//! **Costs.** A step costs two tree operations. The time at which an idle flow would time out moves with its
//! packets. It is looked at only when the flow is the next to go; if it has changed, the flow goes back in
//! the order. So no thread makes the whole order anew (workers evict, too, for flows that their packets
//! learn). At most [`MAX_MOVED`] flows are put back for one that goes. A flow whose time has become shorter
//! (by `fin_timeout`) waits for its turn.

use super::Linked;
use super::expire::deadline_ms;
use crate::model::Rule;
use heddle_flow::field::Subfield;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Maximum number of flows that are put back before one goes.
const MAX_MOVED: usize = 64;

/// The smallest one goes first: importance, time, then the order in which flows came.
type Rank = (u16, u64, u64);
/// The values of the fields that make a group.
type Group = Vec<u8>;

/// The flows of one table that may be evicted.
#[derive(Debug, Default)]
pub(super) struct Evictor {
    fields: Vec<Subfield>,
    groups: HashMap<Group, BTreeMap<Rank, Linked>>,
    by_size: BTreeSet<(usize, Group)>,
    members: HashMap<usize, (Group, Rank)>,
    next: u64,
}

impl Evictor {
    /// An evictor for a table that has these flows.
    pub(super) fn new(fields: Vec<Subfield>, rules: impl IntoIterator<Item = Linked>) -> Self {
        let mut evictor = Self {
            fields,
            ..Self::default()
        };
        rules.into_iter().for_each(|e| evictor.add(&e));
        evictor
    }

    pub(super) fn fields(&self) -> &[Subfield] {
        &self.fields
    }

    pub(super) fn add(&mut self, e: &Linked) {
        let rule = &e.data;
        if rule.hidden || super::expire::deadline_ms(rule) == u64::MAX {
            return;
        }
        let group = self.group_of(rule);
        self.next += 1;
        let rank = (rule.importance, deadline_ms(rule), self.next);
        let members = self.groups.entry(group.clone()).or_default();
        self.by_size.remove(&(members.len(), group.clone()));
        members.insert(rank, e.clone());
        self.by_size.insert((members.len(), group.clone()));
        self.members.insert(key(e), (group, rank));
    }

    pub(super) fn remove(&mut self, e: &Linked) {
        let Some((group, rank)) = self.members.remove(&key(e)) else {
            return;
        };
        let Some(members) = self.groups.get_mut(&group) else {
            return;
        };
        self.by_size.remove(&(members.len(), group.clone()));
        members.remove(&rank);
        if members.is_empty() {
            self.groups.remove(&group);
        } else {
            self.by_size.insert((members.len(), group));
        }
    }

    /// The flow that goes next, if any may.
    pub(super) fn victim(&mut self) -> Option<Linked> {
        for _ in 0..MAX_MOVED {
            let (_, largest) = self.by_size.last()?;
            let members = self.groups.get_mut(largest)?;
            let first = members.first_entry()?;
            let (importance, then, came) = *first.key();
            let now = deadline_ms(&first.get().data);
            if now == then {
                return Some(first.get().clone());
            }
            // Packets have come since.
            let e = first.remove();
            let rank = (importance, now, came);
            self.members.insert(key(&e), (largest.clone(), rank));
            members.insert(rank, e);
        }
        let (_, largest) = self.by_size.last()?;
        self.groups.get(largest)?.values().next().cloned()
    }

    fn group_of(&self, rule: &Rule) -> Group {
        let mut group = Vec::new();
        if self.fields.is_empty() {
            return group;
        }
        let m = rule.wide_match();
        for s in &self.fields {
            group.extend_from_slice(&s.extract(s.field.get(&m.key)).as_u128().to_be_bytes());
        }
        group
    }
}

/// Entries are compared by their addresses: the evictor holds them, so no other entry can get the same one.
fn key(e: &Linked) -> usize {
    Arc::as_ptr(e) as usize
}
