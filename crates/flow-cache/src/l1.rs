//! L1: the exact-match cache of one worker, by hash of the whole key.
//!
//! A lookup returns candidates: slots of entries that a packet with this hash has matched. A bucket is one
//! line of memory with eight ways. L1 has no keys of its own: the caller compares the entry under its mask,
//! which is right for any packet. L1 does not own slots: a slot that is free or has another entry by now does
//! not match.
//!
//! Admission: a free way is taken at once. A full bucket gives up a way for one insertion in four
//! (`inv_prob`), so that a scan over many flows does not evict repeating flows. L1 grows when insertions into
//! full buckets within a second exceed the number of buckets. More such insertions make it grow more, up to a
//! bound. The new L1 starts empty and fills from L2. The number of entries is no measure of the number of
//! flows: many flows may share few entries under many masks. So L1 returns to its first size only when there
//! are almost no entries left.

use crate::signature::{Bucket, WAYS, tag_of};
use heddle_simd::simd;
use heddle_sys::Zeroed;

/// Default `inv_prob`: of this number of insertions into a full bucket, one succeeds.
pub(crate) const INV_PROB: u32 = 4;

/// Maximum factor of growth in one step. L1 grows in few large steps: each one empties it, and filling it
/// again from L2 is expensive.
const MAX_GROWTH_FACTOR: usize = 64;

#[derive(Debug)]
pub(crate) struct L1 {
    buckets: Zeroed<Bucket>,
    first: usize,
    max: usize,
    /// Insertions into full buckets: for admission, for choosing the victim, and for growth.
    turn: u32,
    turn_seen: u32,
    inv_prob: u32,
}

impl L1 {
    /// A cache of at least `entries` ways at first (rounded up to a power of two of buckets), and at most
    /// `most`.
    ///
    /// # Errors
    /// The system's error if it has no memory.
    pub(crate) fn new(entries: usize, max: usize) -> std::io::Result<Self> {
        let buckets = |n: usize| n.div_ceil(WAYS).max(1).next_power_of_two();
        let first = buckets(entries);
        Ok(Self {
            buckets: Zeroed::new(first, false)?,
            first,
            max: buckets(max).max(first),
            turn: 0,
            turn_seen: 0,
            inv_prob: INV_PROB,
        })
    }
    /// One insertion in `n` into a full bucket succeeds. 0 turns L1 off: it forgets its contents and inserts
    /// nothing.
    pub(crate) fn set_inv_prob(&mut self, n: u32) {
        if n == 0 && self.inv_prob != 0 {
            match Zeroed::new(self.first, false) {
                Ok(empty) => self.buckets = empty,
                Err(_) => self.buckets.fill(Bucket::default()),
            }
        }
        self.inv_prob = n;
    }
    /// The number of the bucket for this hash, as long as the size stays.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    pub(crate) fn place(&self, hash: u64) -> u32 {
        hash as u32 & (self.buckets.len() as u32 - 1)
    }
    /// The bucket of this number.
    #[inline]
    pub(crate) fn at(&self, place: u32) -> Option<&Bucket> {
        self.buckets.get(place as usize)
    }
    /// Prefetches the bucket of this number.
    #[inline]
    pub(crate) fn prefetch_at(&self, place: u32) {
        if let Some(b) = self.at(place) {
            simd::prefetch(b);
        }
    }
    /// Remembers `slot` for a hash. A way with the same tag is taken first: its slot did not match.
    pub(crate) fn insert(&mut self, hash: u64, slot: u32) {
        if self.inv_prob == 0 {
            return;
        }
        let (at, tag) = (self.place(hash) as usize, tag_of(hash));
        let b = &mut self.buckets[at];
        let same = b.find(tag);
        let way = match (same, b.free()) {
            (0, Some(way)) => way,
            (0, None) => {
                self.turn = self.turn.wrapping_add(1);
                if !self.turn.is_multiple_of(self.inv_prob) {
                    return;
                }
                (self.turn / self.inv_prob) as usize % WAYS
            }
            (ways, _) => ways.trailing_zeros() as usize,
        };
        b.set(way, tag, slot);
    }
    /// Once a second, between bursts: resizes L1 if needed. `entries`: the number of entries of the whole
    /// cache.
    pub(crate) fn tidy(&mut self, entries: usize) {
        let full = self.turn.wrapping_sub(self.turn_seen) as usize;
        self.turn_seen = self.turn;
        let n = self.buckets.len();
        let want = match n {
            _ if full > n && n < self.max => {
                let times = (full / n).next_power_of_two().clamp(2, MAX_GROWTH_FACTOR);
                (n * times).min(self.max)
            }
            _ if entries < WAYS && n > self.first => self.first,
            _ => n,
        };
        if want != n
            && let Ok(new) = Zeroed::new(want, true)
        {
            self.buckets = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L1 grows until it holds many flows of few entries, and keeps that size. Without entries it becomes
    /// small again.
    #[test]
    fn it_grows_with_flows_and_not_with_entries() {
        let (flows, entries) = (100_000_u64, 64);
        let mut l1 = L1::new(8192, 1 << 20).unwrap();
        let hash = |n: u64| n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let round = |l1: &mut L1| {
            let mut missed = 0;
            for n in 0..flows {
                let slot = u32::try_from(n % entries).unwrap();
                if !l1
                    .at(l1.place(hash(n)))
                    .unwrap()
                    .candidates(tag_of(hash(n)))
                    .any(|s| s == slot)
                {
                    missed += 1;
                    l1.insert(hash(n), slot);
                }
            }
            missed
        };
        for _second in 0..4 {
            for _ in 0..5 {
                round(&mut l1);
            }
            l1.tidy(usize::try_from(entries).unwrap());
        }
        for _ in 0..20 {
            round(&mut l1);
        }
        let missed = round(&mut l1);
        assert!(
            missed < flows / 20,
            "{missed} of {flows} flows are not remembered"
        );
        assert!(l1.buckets.len() <= (1 << 20) / WAYS);
        l1.tidy(0);
        l1.tidy(0);
        assert_eq!(l1.buckets.len(), l1.first);
    }
}
