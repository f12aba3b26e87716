//! Groups by the ports that they count for, each port's in the order of their last reports.

use super::GroupKey;
use super::learn::Used;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// See the module's text.
#[derive(Default)]
pub(super) struct Owners {
    groups: HashMap<u32, BTreeMap<Used, GroupKey>>,
    /// Ports by their number of groups.
    crowds: BTreeSet<(usize, u32)>,
}

impl Owners {
    fn change(&mut self, owner: u32, change: impl FnOnce(&mut BTreeMap<Used, GroupKey>)) {
        let groups = self.groups.entry(owner).or_default();
        self.crowds.remove(&(groups.len(), owner));
        change(groups);
        if groups.is_empty() {
            self.groups.remove(&owner);
        } else {
            self.crowds.insert((groups.len(), owner));
        }
    }
    pub(super) fn insert(&mut self, owner: u32, used: Used, key: GroupKey) {
        self.change(owner, |groups| {
            groups.insert(used, key);
        });
    }
    pub(super) fn remove(&mut self, owner: u32, used: Used) {
        self.change(owner, |groups| {
            groups.remove(&used);
        });
    }
    /// The group that was reported least recently among those of the port with the most groups.
    pub(super) fn victim(&self) -> Option<GroupKey> {
        let (_, owner) = self.crowds.last()?;
        self.groups.get(owner)?.values().next().copied()
    }
}
