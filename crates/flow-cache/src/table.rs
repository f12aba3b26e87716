//! The hash table of L2: all masks' entries of one worker, by hash of the masked key.
//!
//! Extendible hashing (Fagin and others, 1979): a directory, indexed by the first bits of the tag, leads to
//! segments of 32 buckets. A segment with a full bucket is split in two by one more bit of its tags. So the
//! table grows by half a microsecond's work at a time, without a copy of the whole, and a lookup reads one
//! bucket. Half-empty neighbours are joined again. A table that has become small is rebuilt, so that a flood
//! leaves no memory behind.
//!
//! **Bounds.** Hashes are keyed, so a sender cannot fill one segment on purpose. A bucket that is full at the
//! largest depth refuses ([`Table::insert`] returns `false`).

use crate::signature::{Bucket, Candidates, WAYS, tag_of};
use crate::spare_memory::{Maker, Spares, spares};
use heddle_simd::simd;
use heddle_sys::Zeroed;

/// The number of buckets of a segment, 2 KiB.
const SEGMENT: usize = 32;
/// The number of segments of a slab of memory, 2 MiB.
const SLAB: usize = 1024;
/// Maximum number of a tag's bits that the directory uses.
const MAX_DEPTH: u32 = 24;
/// Maximum number of spare slabs that wait for their use.
const SPARES: usize = 2;
/// The size of a directory that fills most of a processor's L1 cache.
const FAR: usize = 1 << 12;
/// Maximum number of entries of a table that is rebuilt in one go.
const SMALL: usize = 4096;

pub(crate) struct Table {
    /// Segment numbers by the first `depth` bits of the tag.
    dir: Vec<u32>,
    depth: u32,
    slabs: Vec<Zeroed<Bucket>>,
    segs: Vec<Seg>,
    /// Segments not in use, which are all zeros.
    free: Vec<u32>,
    len: usize,
    spares: Spares<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Seg {
    /// The number of first bits that all tags in the segment share.
    depth: u8,
    len: u16,
}

impl Table {
    /// An empty table, with the maker of its spare slabs.
    pub(crate) fn with_spares(near: bool) -> (Self, Maker<Bucket>) {
        let (spares, maker) = spares(SLAB * SEGMENT, SPARES, near);
        (Self::new(spares), maker)
    }
    fn new(spares: Spares<Bucket>) -> Self {
        Self {
            dir: Vec::new(),
            depth: 0,
            slabs: Vec::new(),
            segs: Vec::new(),
            free: Vec::new(),
            len: 0,
            spares,
        }
    }
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    #[inline]
    fn place_of(&self, tag: u32) -> Option<&u32> {
        // Two shifts: a shift by all 32 bits would be none.
        self.dir.get(((tag >> 1) >> (31 - self.depth)) as usize)
    }
    #[inline]
    fn seg_of(&self, tag: u32) -> Option<usize> {
        self.place_of(tag).map(|s| *s as usize)
    }
    /// The number of the bucket for this hash, until an insertion or a removal.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    pub(crate) fn place(&self, hash: u64) -> u32 {
        let seg = self.place_of(tag_of(hash)).map_or(0, |s| *s);
        seg * SEGMENT as u32 + hash as u32 % SEGMENT as u32
    }
    /// The bucket of this number.
    #[inline]
    pub(crate) fn at(&self, place: u32) -> Option<&Bucket> {
        const { assert!((SLAB * SEGMENT).is_power_of_two()) }
        let place = place as usize;
        self.slabs
            .get(place / (SLAB * SEGMENT))?
            .get(place % (SLAB * SEGMENT))
    }
    /// The bucket for this hash.
    #[inline]
    fn bucket(&self, hash: u64) -> Option<&Bucket> {
        self.at(self.place(hash))
    }
    fn bucket_mut(&mut self, seg: usize, i: usize) -> Option<&mut Bucket> {
        self.slabs.get_mut(seg / SLAB)?.get_mut(seg % SLAB * SEGMENT + i)
    }
    /// Whether the directory is too large for the processor's L1 cache. Then [`Table::prefetch_place`] pays
    /// off.
    #[inline]
    pub(crate) fn is_far(&self) -> bool {
        self.dir.len() >= FAR
    }
    /// Prefetches the directory's place, which [`Table::prefetch`] reads.
    #[inline]
    pub(crate) fn prefetch_place(&self, hash: u64) {
        if let Some(seg) = self.place_of(tag_of(hash)) {
            simd::prefetch(seg);
        }
    }
    /// Prefetches the bucket for this hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.prefetch_at(self.place(hash));
    }
    /// Prefetches the bucket of this number.
    #[inline]
    pub(crate) fn prefetch_at(&self, place: u32) {
        if let Some(b) = self.at(place) {
            simd::prefetch(b);
        }
    }
    /// The slots that may match.
    #[inline]
    pub(crate) fn candidates(&self, hash: u64) -> Option<Candidates<'_>> {
        Some(self.bucket(hash)?.candidates(tag_of(hash)))
    }
    /// Inserts a slot; `false`: no room.
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    pub(crate) fn insert(&mut self, hash: u64, slot: u32) -> bool {
        let (tag, i) = (tag_of(hash), hash as usize % SEGMENT);
        if self.dir.is_empty() {
            let Some(seg) = self.new_seg(0) else { return false };
            self.dir.push(seg);
        }
        loop {
            let Some(seg) = self.seg_of(tag) else { return false };
            let Some(b) = self.bucket_mut(seg, i) else {
                return false;
            };
            if let Some(way) = b.free() {
                b.set(way, tag, slot);
                self.segs[seg].len += 1;
                self.len += 1;
                return true;
            }
            if !self.split(seg, tag) {
                return false;
            }
        }
    }
    /// Removes a slot; `false`: it was not there.
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    pub(crate) fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let (tag, i) = (tag_of(hash), hash as usize % SEGMENT);
        let Some(seg) = self.seg_of(tag) else { return false };
        let Some(b) = self.bucket_mut(seg, i) else {
            return false;
        };
        let Some(way) = (0..WAYS).find(|w| b.tags[*w] == tag && b.slots[*w] == slot) else {
            return false;
        };
        b.set(way, 0, 0);
        self.segs[seg].len -= 1;
        self.len -= 1;
        if self.segs[seg].len.is_multiple_of(16) {
            self.join(seg, tag);
        }
        true
    }
    /// Between bursts: rebuilds a table that has become small. At most a tenth of a millisecond's work.
    pub(crate) fn tidy(&mut self) {
        if self.len > SMALL || self.segs.len() <= SMALL / 16 {
            return;
        }
        let mut new = Self::new(Spares::none(SLAB * SEGMENT));
        for seg in 0..self.segs.len() {
            if self.segs[seg].len == 0 {
                continue;
            }
            for i in 0..SEGMENT {
                let Some(b) = self.bucket_mut(seg, i).copied() else {
                    return;
                };
                for (tag, slot) in b.tags.iter().zip(b.slots).filter(|(t, _)| **t != 0) {
                    // The table uses no more of a hash than the tag and the bucket's index.
                    if !new.insert(u64::from(*tag) << 32 | i as u64, slot) {
                        return;
                    }
                }
            }
        }
        std::mem::swap(&mut self.spares, &mut new.spares);
        self.spares.give_back();
        *self = new;
    }
    fn new_seg(&mut self, depth: u8) -> Option<u32> {
        let seg = Seg { depth, len: 0 };
        if let Some(n) = self.free.pop() {
            self.segs[n as usize] = seg;
            return Some(n);
        }
        let n = self.segs.len();
        if n / SLAB == self.slabs.len() {
            self.slabs.push(self.spares.take(n == 0).ok()?);
        }
        self.segs.push(seg);
        u32::try_from(n).ok()
    }
    /// The range of the directory that leads to the segment of `tag` if that has this depth.
    fn range(&self, tag: u32, depth: u32) -> std::ops::Range<usize> {
        let first = ((tag >> 1) >> (31 - depth)) as usize;
        let n = 1 << (self.depth - depth);
        first * n..(first + 1) * n
    }
    /// Splits a segment by the next bit of its tags.
    fn split(&mut self, seg: usize, tag: u32) -> bool {
        let depth = u32::from(self.segs[seg].depth);
        if depth >= MAX_DEPTH {
            return false;
        }
        let Some(new) = self.new_seg(self.segs[seg].depth + 1) else {
            return false;
        };
        let other = new as usize;
        if depth == self.depth {
            self.dir = self.dir.iter().flat_map(|s| [*s, *s]).collect();
            self.depth += 1;
        }
        self.segs[seg].depth += 1;
        let mut moved = 0;
        for i in 0..SEGMENT {
            let Some(from) = self.bucket_mut(seg, i) else {
                return false;
            };
            let mut to = Bucket::default();
            for way in 0..WAYS {
                if from.tags[way] << depth >> 31 != 0 {
                    to.set(way, from.tags[way], from.slots[way]);
                    from.set(way, 0, 0);
                    moved += 1;
                }
            }
            if let Some(b) = self.bucket_mut(other, i) {
                *b = to;
            }
        }
        self.segs[seg].len -= moved;
        self.segs[other].len = moved;
        // The upper half of the places that led to the old segment.
        let both = self.range(tag, depth);
        let upper = both.start + both.len() / 2..both.end;
        self.dir[upper].fill(new);
        true
    }
    /// Joins the segment of `tag` with its neighbour, if both together are a quarter full.
    fn join(&mut self, seg: usize, tag: u32) {
        let depth = u32::from(self.segs[seg].depth);
        if depth == 0 {
            return;
        }
        // The neighbour's tags differ in the last bit that the segment's tags share.
        let buddy_tag = tag ^ 1 << (32 - depth);
        let Some(buddy) = self.seg_of(buddy_tag) else {
            return;
        };
        let (a, b) = (self.segs[seg], self.segs[buddy]);
        if a.depth != b.depth || usize::from(a.len + b.len) > SEGMENT * WAYS / 4 {
            return;
        }
        let count = |t: &Self, s: usize, i: usize| {
            let b = &t.slabs[s / SLAB][s % SLAB * SEGMENT + i];
            b.tags.iter().filter(|t| **t != 0).count()
        };
        if (0..SEGMENT).any(|i| count(self, seg, i) + count(self, buddy, i) > WAYS) {
            return;
        }
        for i in 0..SEGMENT {
            let Some(from) = self.bucket_mut(buddy, i) else {
                return;
            };
            let gone = std::mem::take(from);
            let Some(to) = self.bucket_mut(seg, i) else { return };
            for (tag, slot) in gone.tags.iter().zip(gone.slots).filter(|(t, _)| **t != 0) {
                if let Some(way) = to.free() {
                    to.set(way, *tag, slot);
                }
            }
        }
        self.segs[seg].len += b.len;
        self.segs[seg].depth -= 1;
        self.segs[buddy].len = 0;
        let both = self.range(tag, depth - 1);
        // The number was a u32 in the directory.
        let n = u32::try_from(seg).unwrap_or(0);
        self.dir[both].fill(n);
        self.free.push(u32::try_from(buddy).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    fn hash(n: u32) -> u64 {
        let h = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        (h >> 60) as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Compares the table with a set. A slot is among the candidates of its hash until it is removed,
        /// through growth, joining and rebuilding.
        #[test]
        fn same_as_a_set(
            phases in prop::collection::vec((any::<bool>(), 0_u32..20_000, 0_u32..20_000), 1..8),
            narrow in any::<bool>(),
        ) {
            // With `narrow`, many hashes share the first bits of their tags.
            let h = |n: u32| if narrow { hash(n) >> 6 | hash(n) & 0x1f } else { hash(n) };
            let (mut t, mut twin) = (Table::with_spares(false).0, BTreeSet::new());
            for (put, from, to) in phases {
                for n in from.min(to)..from.max(to) {
                    if put && !twin.contains(&n) {
                        prop_assert!(t.insert(h(n), n));
                        twin.insert(n);
                    } else if !put {
                        prop_assert_eq!(t.remove(h(n), n), twin.remove(&n));
                    }
                }
                t.tidy();
                prop_assert_eq!(t.len(), twin.len());
                for n in 0..20_000 {
                    let found = t.candidates(h(n)).is_some_and(|mut c| c.any(|s| s == n));
                    prop_assert_eq!(found, twin.contains(&n));
                }
            }
            for n in &twin {
                prop_assert!(t.remove(h(*n), *n));
            }
            t.tidy();
            prop_assert!(t.segs.len() <= SMALL / 16 && t.segs.iter().all(|s| s.len == 0));
        }
    }

    #[test]
    fn equal_hashes_are_refused_in_the_end() {
        let mut t = Table::with_spares(false).0;
        let n = (0..1000).take_while(|n| t.insert(7 << 32, *n)).count();
        assert_eq!(n, WAYS);
        assert_eq!(t.candidates(7 << 32).unwrap().count(), WAYS);
    }

    #[test]
    fn memory_per_entry() {
        let mut t = Table::with_spares(false).0;
        for n in 0..300_000 {
            assert!(t.insert(hash(n), n));
        }
        let bytes = t.segs.len() * SEGMENT * size_of::<Bucket>() + t.dir.len() * 4;
        assert!(bytes / 300_000 < 25, "{} bytes per entry", bytes / 300_000);
        // The directory has at most a few times more places than segments, since hashes are even.
        assert!(t.dir.len() <= t.segs.len() * 8);
    }
}
