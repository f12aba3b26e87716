//! L2: the wildcarded cache of one worker, a tuple space.
//!
//! One hash table per mask, over the words that the mask uses; a lookup probes the masks in the order of their recent hits
//! until one answers. Entries of different masks may overlap, but then they say the same (each is true for every
//! packet it matches), so the first answer is as good as any.
//!
//! **Bounds.** At most `max_masks` masks plus the full one: a result whose mask would be one too many is
//! stored under a mask that is there and contains it, or else under the full mask, which is right, just narrower
//! (CVE-2019-25076 is what happens without a bound). The number of entries is bounded by the caller.

use crate::entry::{Entry, TupleMask};
use crate::hash::HashKey;
use crate::slab::{Slab, SlotRef};
use hashbrown::HashTable;
use heddle_flow::{FlowKey, FlowMask};
use std::sync::Arc;

#[derive(Debug)]
struct Tuple {
    mask: Arc<TupleMask>,
    table: HashTable<(u64, SlotRef)>,
    hits: u64,
}

#[derive(Debug)]
pub(crate) struct L2 {
    tuples: Vec<Tuple>,
    max_masks: usize,
    key: HashKey,
}

impl L2 {
    pub(crate) fn new(max_masks: usize, key: HashKey) -> Self {
        Self {
            tuples: Vec::with_capacity(max_masks + 1),
            max_masks,
            key,
        }
    }
    /// Finds an entry that matches `key`; also says how many masks were probed.
    #[inline]
    pub(crate) fn get(&mut self, key: &FlowKey, slab: &Slab) -> (Option<SlotRef>, u64) {
        let mut probes = 0;
        for t in &mut self.tuples {
            probes += 1;
            let hash = self.key.words(t.mask.of(key));
            let found = t.table.find(hash, |&(h, r)| {
                h == hash && slab.get(r).is_some_and(|e| e.matches(key))
            });
            if let Some(&(_, r)) = found {
                t.hits += 1;
                return (Some(r), probes);
            }
        }
        (None, probes)
    }
    /// The mask to store a result of mask `want` under, and the hash of `key` there.
    pub(crate) fn mask_for(&self, want: &FlowMask, key: &FlowKey) -> (Arc<TupleMask>, u64) {
        let exact = self.tuples.iter().find(|t| t.mask.mask == *want);
        let wider = || self.tuples.iter().find(|t| t.mask.mask.contains(want));
        let mask = match exact {
            Some(t) => Arc::clone(&t.mask),
            None if self.tuples.len() < self.max_masks => Arc::new(TupleMask::new(want)),
            None => match wider() {
                Some(t) => Arc::clone(&t.mask),
                None => {
                    let mut full = FlowMask::default();
                    full.words_mut().fill(u64::MAX);
                    Arc::new(TupleMask::new(&full))
                }
            },
        };
        let hash = self.key.words(mask.of(key));
        (mask, hash)
    }
    /// Stores an entry made for [`L2::mask_for`]'s answer.
    pub(crate) fn insert(&mut self, entry: &Entry, slot: SlotRef) {
        let at = match self.tuples.iter().position(|t| t.mask.mask == entry.tuple.mask) {
            Some(at) => at,
            None => {
                let mask = Arc::clone(&entry.tuple);
                self.tuples.push(Tuple {
                    mask,
                    table: HashTable::new(),
                    hits: 0,
                });
                self.tuples.len() - 1
            }
        };
        self.tuples[at]
            .table
            .insert_unique(entry.hash, (entry.hash, slot), |&(h, _)| h);
    }
    /// Forgets an entry; a mask without entries goes too.
    pub(crate) fn remove(&mut self, entry: &Entry, slot: SlotRef) {
        let Some(at) = self.tuples.iter().position(|t| t.mask.mask == entry.tuple.mask) else {
            return;
        };
        let table = &mut self.tuples[at].table;
        if let Ok(found) = table.find_entry(entry.hash, |&(_, r)| r == slot) {
            found.remove();
        }
        if table.is_empty() {
            self.tuples.remove(at);
        }
    }
    /// Puts often hit masks first and halves the counts. Called now and then, not per packet.
    pub(crate) fn sort(&mut self) {
        self.tuples.sort_by_key(|t| std::cmp::Reverse(t.hits));
        for t in &mut self.tuples {
            t.hits /= 2;
        }
    }
    pub(crate) fn n_masks(&self) -> usize {
        self.tuples.len()
    }
}
