//! Buckets of signatures: 32 bits of a hash, and the slot of the entry that may match.
//!
//! A cache line has eight of them, which are compared at once. A signature that agrees makes its slot a
//! candidate, no more: the caller compares the entry in the slot with the packet's key. So a stale or
//! coincidental signature costs a comparison, and never leads to a wrong match.

use heddle_simd::simd;
use zerocopy::FromZeros;

pub(crate) const WAYS: usize = 8;

/// One bucket. A tag of zero is a free way.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, FromZeros)]
pub(crate) struct Bucket {
    pub(crate) tags: [u32; WAYS],
    pub(crate) slots: [u32; WAYS],
}

/// The signature of a hash: its upper half, never zero.
#[inline]
pub(crate) fn tag_of(hash: u64) -> u32 {
    u32::try_from(hash >> 32).unwrap_or(0) | 1
}

impl Bucket {
    /// Ways with this tag, a bit each.
    #[inline]
    pub(crate) fn find(&self, tag: u32) -> u32 {
        simd::match8(&self.tags, tag)
    }
    /// A free way.
    #[inline]
    pub(crate) fn free(&self) -> Option<usize> {
        let free = simd::match8(&self.tags, 0);
        (free != 0).then_some(free.trailing_zeros() as usize)
    }
    /// Puts a signature into a way.
    #[inline]
    pub(crate) fn set(&mut self, way: usize, tag: u32, slot: u32) {
        (self.tags[way], self.slots[way]) = (tag, slot);
    }
    /// The slots of the ways with this tag.
    #[inline]
    pub(crate) fn candidates(&self, tag: u32) -> Candidates<'_> {
        Candidates {
            bucket: self,
            ways: self.find(tag),
        }
    }
    /// The candidates that were left, as [`Candidates::left`] returned them.
    #[inline]
    pub(crate) fn rest(&self, ways: u8) -> Candidates<'_> {
        Candidates {
            bucket: self,
            ways: ways.into(),
        }
    }
}

/// Slots of candidates.
pub(crate) struct Candidates<'a> {
    bucket: &'a Bucket,
    ways: u32,
}

impl Candidates<'_> {
    /// The ways that the iterator has not returned yet, a bit each.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // there are eight
    pub(crate) fn left(&self) -> u8 {
        const { assert!(WAYS == 8) }
        self.ways as u8
    }
}

impl Iterator for Candidates<'_> {
    type Item = u32;
    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.ways == 0 {
            return None;
        }
        let way = self.ways.trailing_zeros() as usize;
        self.ways &= self.ways - 1;
        self.bucket.slots.get(way).copied()
    }
}
