//! L1: the exact-match cache of one worker.
//!
//! Set associative: 8 ways per set, a 16-bit tag each (one 16-byte load compares them all), then the 64-byte
//! compact key, then the reference into the worker's entries. It holds no ownership: a reference carries the slot's
//! generation and is ignored once the slot was reused. Fixed size, no allocation after the start.
//!
//! Admission: a free or stale way is taken at once; a full set gives up a way for one insertion in four, so that a scan
//! over many flows does not sweep out the ones that repeat.

use crate::compact::CompactKey;
use crate::slab::SlotRef;

const WAYS: usize = 8;

#[derive(Debug)]
pub(crate) struct L1 {
    tags: Box<[[u16; WAYS]]>,
    keys: Box<[[CompactKey; WAYS]]>,
    refs: Box<[[SlotRef; WAYS]]>,
    set_mask: usize,
    /// Counts insertions into full sets, for admission and for choosing the victim.
    turn: u32,
}

impl L1 {
    /// A cache of at least `entries` entries (rounded up to a power of two sets).
    pub(crate) fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(WAYS).max(1).next_power_of_two();
        Self {
            tags: vec![[0; WAYS]; sets].into(),
            keys: vec![[CompactKey::default(); WAYS]; sets].into(),
            refs: vec![[SlotRef::NONE; WAYS]; sets].into(),
            set_mask: sets - 1,
            turn: 0,
        }
    }
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    fn place(&self, hash: u64) -> (usize, u16) {
        // Zero marks an empty way; the top bits are independent of those that choose the set.
        (hash as usize & self.set_mask, (hash >> 48) as u16 | 1)
    }
    /// The reference stored for `key`; the caller checks that it is still good.
    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &CompactKey) -> Option<SlotRef> {
        let (set, tag) = self.place(hash);
        let tags = &self.tags[set];
        let mut hits = 0_u32;
        for (way, t) in tags.iter().enumerate() {
            hits |= u32::from(*t == tag) << way;
        }
        while hits != 0 {
            let way = hits.trailing_zeros() as usize;
            if self.keys[set][way] == *key {
                return Some(self.refs[set][way]);
            }
            hits &= hits - 1;
        }
        None
    }
    /// Remembers `slot` for `key`. `stale` says whether a reference is no longer good.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: &CompactKey,
        slot: SlotRef,
        stale: impl Fn(SlotRef) -> bool,
    ) {
        let (set, tag) = self.place(hash);
        let (tags, keys, refs) = (&mut self.tags[set], &mut self.keys[set], &mut self.refs[set]);
        let same = (0..WAYS).find(|&w| tags[w] == tag && keys[w] == *key);
        let free = || (0..WAYS).find(|&w| tags[w] == 0 || stale(refs[w]));
        let way = match same.or_else(free) {
            Some(way) => way,
            None => {
                self.turn = self.turn.wrapping_add(1);
                if !self.turn.is_multiple_of(4) {
                    return;
                }
                (self.turn / 4) as usize % WAYS
            }
        };
        tags[way] = tag;
        keys[way] = *key;
        refs[way] = slot;
    }
}
