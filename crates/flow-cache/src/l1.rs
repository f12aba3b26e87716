//! L1: the exact-match cache of one worker, by hash of the whole key.
//!
//! It answers with candidates: slots of entries that a packet with this hash was an example of. One line of
//! memory per bucket, eight ways; no keys of its own (the entry is compared under its mask, which is right
//! for any packet that agrees with it), no ownership: a slot that has another entry by now, or none, does not
//! match.
//!
//! Admission: a free way is taken at once; a full bucket gives up a way for one insertion in four
//! (`inv_prob`), so that a scan over many flows does not sweep out the ones that repeat. The cache grows when
//! a second has seen more insertions into full buckets than an eighth of its size, the more the faster, up to
//! a bound; the new one starts empty and fills from the wildcarded cache. How many flows there are says
//! nothing about how many entries there are: many flows may share few entries under many masks. So the cache
//! goes back to its first size only when there is next to no entry left.

use crate::sig::{Bucket, WAYS, tag_of};
use heddle_simd::simd;
use heddle_sys::Zeroed;

/// Insertions into a full bucket of which one succeeds, if nothing else was said.
pub(crate) const INV_PROB: u32 = 4;

/// How many times its size it grows to at once, at most: what it knew is to be learned anew, mask by mask,
/// and twice would be dear.
const MOST_TIMES: usize = 64;

#[derive(Debug)]
pub(crate) struct L1 {
    buckets: Zeroed<Bucket>,
    first: usize,
    most: usize,
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
    /// What the system says when it gives no memory.
    pub(crate) fn new(entries: usize, most: usize) -> std::io::Result<Self> {
        let buckets = |n: usize| n.div_ceil(WAYS).max(1).next_power_of_two();
        let first = buckets(entries);
        Ok(Self {
            buckets: Zeroed::new(first, false)?,
            first,
            most: buckets(most).max(first),
            turn: 0,
            turn_seen: 0,
            inv_prob: INV_PROB,
        })
    }
    /// One insertion in `n` into a full bucket succeeds; 0: nothing is inserted at all, and what was is
    /// forgotten.
    pub(crate) fn set_inv_prob(&mut self, n: u32) {
        if n == 0 && self.inv_prob != 0 {
            match Zeroed::new(self.first, false) {
                Ok(empty) => self.buckets = empty,
                Err(_) => self.buckets.fill(Bucket::default()),
            }
        }
        self.inv_prob = n;
    }
    /// The number of the bucket that a lookup of this hash reads, as long as the size stays.
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
    /// Fetches the bucket of this number.
    #[inline]
    pub(crate) fn prefetch_at(&self, place: u32) {
        if let Some(b) = self.at(place) {
            simd::prefetch(b);
        }
    }
    /// Remembers `slot` for a hash. A way with the same tag is taken first: what it named did not match.
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
    /// Once a second, between bursts: changes the size if it is wrong; `entries`: how many there are to
    /// remember slots of.
    pub(crate) fn tidy(&mut self, entries: usize) {
        let full = self.turn.wrapping_sub(self.turn_seen) as usize;
        self.turn_seen = self.turn;
        let n = self.buckets.len();
        let want = match n {
            _ if full > n && n < self.most => {
                let times = (full / n).next_power_of_two().clamp(2, MOST_TIMES);
                (n * times).min(self.most)
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

    /// Many flows of few entries make it grow to hold them, and keep it so; without entries it is small
    /// again.
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
