//! A map from numbers to things that come and go by version, as rules do in a classifier.
//!
//! **Problem.** Groups change while workers look them up. A batch of changes to rules and groups becomes
//! visible at once. A worker that reads the rules of version 7 must find the groups of version 7.
//!
//! **Invariants.** Lookups at versions `added <= v < removed` see a thing. They see at most one thing of a
//! number: the writer removes the old one at the version at which it adds the new one.
//!
//! **Costs.** A lookup hashes a number and follows two pointers. A change copies one of [`SHARDS`] small
//! maps.
//!
//! **Threads.** Readers never wait. Writers are serialised by the caller (the bridge's mutex).

use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Never removed.
const FOREVER: u64 = u64::MAX;
/// The version after all that were allocated: sees things that are there now or will be once the writer has
/// committed.
pub(crate) const LATEST: u64 = FOREVER - 1;
/// Number of maps.
const SHARDS: usize = 256;

/// One thing, and the versions that see it.
#[derive(Debug)]
pub(crate) struct VersionedItem<T> {
    pub(crate) data: T,
    added: u64,
    removed: AtomicU64,
}

impl<T> VersionedItem<T> {
    /// Whether lookups at `version` see it.
    pub(crate) fn visible(&self, version: u64) -> bool {
        // Relaxed: a reader that races with a removal may see either; the generation that the remover bumps
        // afterwards decides about caching.
        self.added <= version && version < self.removed.load(Relaxed)
    }
    /// Hides it from `version` on.
    pub(crate) fn remove(&self, version: u64) {
        self.removed.store(version, Relaxed);
    }
    /// Takes a removal back.
    pub(crate) fn restore(&self) {
        self.removed.store(FOREVER, Relaxed);
    }
}

type Shard<T> = BTreeMap<u32, Vec<Arc<VersionedItem<T>>>>;

/// The map.
#[derive(Debug)]
pub(crate) struct Versioned<T> {
    shards: Box<[ArcSwap<Shard<T>>]>,
}

impl<T> Default for Versioned<T> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| ArcSwap::default()).collect(),
        }
    }
}

impl<T> Versioned<T> {
    fn shard(&self, id: u32) -> &ArcSwap<Shard<T>> {
        // Numbers are often consecutive, and often multiples of something.
        let h = id.wrapping_mul(0x9e37_79b9) >> 24;
        &self.shards[h as usize % SHARDS]
    }
    /// The thing of this number that is seen at `version`.
    pub(crate) fn get(&self, id: u32, version: u64) -> Option<Arc<VersionedItem<T>>> {
        let shard = self.shard(id).load();
        shard.get(&id)?.iter().find(|h| h.visible(version)).cloned()
    }
    /// Adds a thing, seen from `version` on.
    pub(crate) fn insert(&self, id: u32, version: u64, data: T) -> Arc<VersionedItem<T>> {
        let held = Arc::new(VersionedItem {
            data,
            added: version,
            removed: FOREVER.into(),
        });
        self.change(id, |list| list.push(held.clone()));
        held
    }
    /// Unlinks a thing at once: it was never visible, or no reader looks for it any more.
    pub(crate) fn unlink(&self, id: u32, gone: &Arc<VersionedItem<T>>) {
        self.change(id, |list| list.retain(|h| !Arc::ptr_eq(h, gone)));
    }
    fn change(&self, id: u32, f: impl FnOnce(&mut Vec<Arc<VersionedItem<T>>>)) {
        let cell = self.shard(id);
        let mut shard = Shard::clone(&cell.load());
        let list = shard.entry(id).or_default();
        f(list);
        if list.is_empty() {
            shard.remove(&id);
        }
        cell.store(Arc::new(shard));
    }
    /// Things that are seen at `version`, with their numbers, in order.
    pub(crate) fn all(&self, version: u64) -> Vec<(u32, Arc<VersionedItem<T>>)> {
        let mut all = Vec::new();
        for cell in &self.shards {
            for (id, list) in cell.load().iter() {
                all.extend(list.iter().find(|h| h.visible(version)).map(|h| (*id, h.clone())));
            }
        }
        all.sort_by_key(|(id, _)| *id);
        all
    }
    /// Unlinks things that no lookup at `version` or later sees.
    pub(crate) fn purge(&self, version: u64) {
        for cell in &self.shards {
            let shard = cell.load();
            let dead = |h: &Arc<VersionedItem<T>>| h.removed.load(Relaxed) <= version;
            if shard.values().flatten().any(dead) {
                let mut kept = Shard::clone(&shard);
                kept.retain(|_, list| {
                    list.retain(|h| !dead(h));
                    !list.is_empty()
                });
                cell.store(Arc::new(kept));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_see_what_was_there() {
        let m = Versioned::default();
        let a = m.insert(5, 1, "a");
        a.remove(3);
        m.insert(5, 3, "b");
        let at = |v| m.get(5, v).map(|h| h.data);
        assert_eq!(
            [0, 1, 2, 3, LATEST].map(at),
            [None, Some("a"), Some("a"), Some("b"), Some("b")]
        );
        m.purge(3);
        assert_eq!([2, 3].map(at), [None, Some("b")]);
    }

    proptest! {
        /// Compares with a list that keeps everything.
        #[test]
        fn as_a_list(ops in prop::collection::vec((0..6u32, any::<bool>()), 0..60)) {
            let m = Versioned::default();
            let mut list: Vec<(u32, u64, u64)> = Vec::new();
            for (v, (id, add)) in (1..).zip(&ops) {
                if let Some(old) = m.get(*id, LATEST) {
                    old.remove(v);
                }
                if let Some(old) = list.iter_mut().find(|x| x.0 == *id && x.2 == FOREVER) {
                    old.2 = v;
                }
                if *add {
                    m.insert(*id, v, v);
                    list.push((*id, v, FOREVER));
                }
            }
            let last = ops.len() as u64;
            for v in 0..=last {
                for id in 0..6 {
                    let want = list.iter().find(|x| x.0 == id && x.1 <= v && v < x.2).map(|x| x.1);
                    prop_assert_eq!(m.get(id, v).map(|h| h.data), want);
                }
            }
            m.purge(last);
            prop_assert_eq!(m.all(last).len(), list.iter().filter(|x| x.2 == FOREVER).count());
        }
    }
}
