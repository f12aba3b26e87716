//! The order in which entries were used, and the choice of the one to evict. Under the lock of writers.
//!
//! Lookups store their time in the entry alone, so the order may be outdated. [`Order::victim`] then moves
//! the entry to its new position and searches again.

use super::{NeighEntry, NeighKey, Origin};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

struct Node {
    entry: Arc<NeighEntry>,
    /// Position: time of use, then a serial number that distinguishes uses at one time.
    place: (u64, u64),
}

/// Entries by key, and by use within each origin.
#[derive(Default)]
pub(super) struct Order {
    nodes: HashMap<NeighKey, Node>,
    by_use: BTreeMap<(Origin, (u64, u64)), NeighKey>,
    /// Origins by number of entries.
    crowds: BTreeSet<(usize, Origin)>,
    counts: HashMap<Origin, usize>,
    uses: u64,
}

impl Order {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }
    pub(super) fn get(&self, key: &NeighKey) -> Option<&Arc<NeighEntry>> {
        self.nodes.get(key).map(|n| &n.entry)
    }
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<NeighEntry>> {
        self.nodes.values().map(|n| &n.entry)
    }

    fn count(&mut self, origin: Origin, more: bool) {
        let before = self.counts.remove(&origin).unwrap_or(0);
        self.crowds.remove(&(before, origin));
        let now = if more {
            before + 1
        } else {
            before.saturating_sub(1)
        };
        if now > 0 {
            self.counts.insert(origin, now);
            self.crowds.insert((now, origin));
        }
    }

    /// Adds an entry, in place of one with the same key.
    pub(super) fn put(&mut self, entry: Arc<NeighEntry>) {
        self.remove(&entry.key);
        self.uses += 1;
        let place = (entry.used_ms(), self.uses);
        self.by_use.insert((entry.origin, place), entry.key.clone());
        self.count(entry.origin, true);
        self.nodes.insert(entry.key.clone(), Node { entry, place });
    }
    pub(super) fn remove(&mut self, key: &NeighKey) -> Option<Arc<NeighEntry>> {
        let node = self.nodes.remove(key)?;
        self.by_use.remove(&(node.entry.origin, node.place));
        self.count(node.entry.origin, false);
        Some(node.entry)
    }

    /// The entry to evict: the least recently used one of the origin with the most entries.
    pub(super) fn victim(&mut self) -> Option<NeighKey> {
        let origin = self.crowds.last()?.1;
        loop {
            let all = (origin, (0, 0))..=(origin, (u64::MAX, u64::MAX));
            let ((_, place), key) = self.by_use.range(all).next()?;
            let (place, key) = (*place, key.clone());
            let entry = self.nodes.get(&key)?.entry.clone();
            if entry.used_ms() <= place.0 {
                return Some(key);
            }
            self.put(entry);
        }
    }
}
