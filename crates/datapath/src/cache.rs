//! The cache hierarchy of one worker: L1 before L2, both referring to the same entries.
//!
//! Removal is deferred: an entry that was found useless in the middle of a burst keeps its slot until
//! [`Cache::reap`], so that packets of the burst that already chose it can still run its program.

use crate::compact::CompactKey;
use crate::entry::{Entry, TupleMask};
use crate::hash::HashKey;
use crate::l1::L1;
use crate::l2::L2;
use crate::slab::{Slab, SlotRef};
use heddle_flow::{FlowKey, FlowMask};
use std::sync::Arc;

/// Which level answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// Exact match.
    L1,
    /// Wildcarded.
    L2,
}

#[derive(Debug)]
pub(crate) struct Cache {
    l1: L1,
    l2: L2,
    slab: Slab,
    len: usize,
    doomed: Vec<SlotRef>,
    probes: u64,
}

impl Cache {
    pub(crate) fn new(l1_entries: usize, max_masks: usize, key: HashKey) -> Self {
        Self {
            l1: L1::new(l1_entries),
            l2: L2::new(max_masks, key),
            slab: Slab::default(),
            len: 0,
            doomed: Vec::new(),
            probes: 0,
        }
    }
    /// Looks an ordinary packet's key up among exact matches. A dead entry is no hit.
    #[inline]
    pub(crate) fn exact(&self, compact: Option<&(CompactKey, u64)>) -> Option<SlotRef> {
        let (key, hash) = compact?;
        let r = self.l1.get(*hash, key)?;
        self.slab.get(r).is_some_and(|e| !e.is_dead()).then_some(r)
    }
    /// Looks up a key that is no exact match; `compact` is its compact form and hash, if it is ordinary. A dead entry is no hit
    /// (but is noted for removal).
    pub(crate) fn wildcarded(
        &mut self,
        key: &FlowKey,
        compact: Option<&(CompactKey, u64)>,
    ) -> Option<SlotRef> {
        let (found, probes) = self.l2.get(key, &self.slab);
        self.probes += probes;
        let r = found?;
        if self.slab.get(r).is_none_or(|e| e.is_dead()) {
            self.forget(r);
            return None;
        }
        self.remember(r, compact);
        Some(r)
    }
    /// Both, one after the other.
    #[cfg(test)]
    pub(crate) fn get(
        &mut self,
        key: &FlowKey,
        compact: Option<&(CompactKey, u64)>,
    ) -> Option<(SlotRef, Level)> {
        let exact = self.exact(compact).map(|r| (r, Level::L1));
        exact.or_else(|| self.wildcarded(key, compact).map(|r| (r, Level::L2)))
    }
    fn remember(&mut self, r: SlotRef, compact: Option<&(CompactKey, u64)>) {
        if let Some((ck, hash)) = compact {
            self.l1.insert(*hash, ck, r, |old| self.slab.get(old).is_none());
        }
    }
    /// Where an answer with mask `want` is to be stored.
    pub(crate) fn mask_for(&self, want: &FlowMask, key: &FlowKey) -> (Arc<TupleMask>, u64) {
        self.l2.mask_for(want, key)
    }
    /// Stores an entry; it is found from now on.
    pub(crate) fn insert(&mut self, entry: Arc<Entry>, compact: Option<&(CompactKey, u64)>) -> SlotRef {
        let r = self.slab.insert(Arc::clone(&entry));
        self.l2.insert(&entry, r);
        self.len += 1;
        self.remember(r, compact);
        r
    }
    /// The entry behind a reference that this burst got.
    #[inline]
    pub(crate) fn entry(&self, r: SlotRef) -> Option<&Arc<Entry>> {
        self.slab.get(r)
    }
    /// Takes an entry out of the lookups now and out of its slot at the next [`Cache::reap`].
    pub(crate) fn forget(&mut self, r: SlotRef) {
        if let Some(e) = self.slab.get(r) {
            e.kill();
            self.l2.remove(e, r);
            self.doomed.push(r);
        }
    }
    /// Forgets the entry with this id, if it still has this slot.
    pub(crate) fn evict(&mut self, slot: u32, id: u64) {
        if let Some((r, e)) = self.slab.at(slot)
            && e.id == id
            && !self.doomed.contains(&r)
        {
            self.forget(r);
        }
    }
    /// Frees the slots of forgotten entries, between bursts; returns how many.
    pub(crate) fn reap(&mut self) -> usize {
        let mut n = 0;
        for r in self.doomed.drain(..) {
            n += usize::from(self.slab.remove(r).is_some());
        }
        self.len -= n;
        n
    }
    /// Reorders the masks by hits.
    pub(crate) fn sort(&mut self) {
        self.l2.sort();
    }
    pub(crate) fn n_masks(&self) -> usize {
        self.l2.n_masks()
    }
    /// Entries held, doomed ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// Masks probed since the last call.
    pub(crate) fn take_probes(&mut self) -> u64 {
        std::mem::take(&mut self.probes)
    }
    /// All entries, for the comparison with a plain list.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SlotRef, &Arc<Entry>)> {
        self.slab.iter()
    }
}
