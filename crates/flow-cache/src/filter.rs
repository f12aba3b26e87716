//! A filter per mask: it finds out in a few cycles whether an entry under the mask may match a packet.
//!
//! A packet without an exact match is looked up under its origin's masks, and most of them have no entry for
//! it. Without a filter, each mask would take a hash of the masked key and a line of memory. A filter takes a
//! cheaper hash ([`nh`]), of all masks in one call, and one byte. It counts entries by that hash, so that it
//! forgets them too.
//!
//! **Invariant:** an entry in the table under mask `n` is counted in filter `n`. So "no" is certain, and
//! "maybe" costs a lookup in the table. A count that has reached its maximum stays there. Masks beyond
//! [`MAX_FILTERS`] have no filter, and are always "maybe": memory is bounded.
//!
//! A filter becomes less useful with more entries under its mask. The share of wrong "maybe" is 6 % at 256
//! entries, 22 % at 1024 and 63 % at 4096.

use crate::compact::{CompactKey, CompactMask};
use heddle_simd::nh::{self, Lanes};

/// The number of counts of a filter.
const SIZE: usize = 4096;
/// Maximum number of filters, of all ports together: 16 MiB.
const MAX_FILTERS: usize = 4096;
/// Maximum number of masks in one call.
pub(crate) const CHUNK: usize = 32;

type Counts = [u8; SIZE];

/// The filters of all masks, by number.
#[derive(Debug)]
pub(crate) struct Filters {
    lanes: Lanes,
    counts: Vec<Option<Box<Counts>>>,
    /// The number of filters.
    held: usize,
}

/// The index of the count for a hash.
#[inline]
#[allow(clippy::cast_possible_truncation)] // few bits are left
fn place(sum: u64) -> usize {
    const { assert!(SIZE.is_power_of_two()) }
    // The upper bits of a product are the best ones.
    (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SIZE.trailing_zeros())) as usize
}

impl Filters {
    pub(crate) fn new(lanes: Lanes) -> Self {
        Self {
            lanes,
            counts: Vec::new(),
            held: 0,
        }
    }
    /// Makes an empty filter for mask `n`, if there is room for one more.
    pub(crate) fn open(&mut self, n: u32) {
        let at = n as usize;
        if self.counts.len() <= at {
            self.counts.resize_with(at + 1, || None);
        }
        if self.held < MAX_FILTERS {
            self.held += 1;
            // The kernel gives no memory to pages without counts.
            self.counts[at] = vec![0; SIZE].into_boxed_slice().try_into().ok();
        }
    }
    /// Frees the filter of mask `n`.
    pub(crate) fn close(&mut self, n: u32) {
        if self.counts.get_mut(n as usize).and_then(Option::take).is_some() {
            self.held -= 1;
        }
    }
    fn count(&mut self, n: u32, mask: &CompactMask, key: &CompactKey) -> Option<&mut u8> {
        let counts = self.counts.get_mut(n as usize)?.as_mut()?;
        let mut sum = [0];
        nh::sums(key.words(), &self.lanes, std::iter::once(mask.words()), &mut sum);
        counts.get_mut(place(sum[0]))
    }
    /// Counts an entry for `key` under mask `n`, which is `mask`.
    pub(crate) fn add(&mut self, n: u32, mask: &CompactMask, key: &CompactKey) {
        if let Some(c) = self.count(n, mask, key) {
            *c = c.saturating_add(1);
        }
    }
    /// Takes one entry for `key` out of the counts again.
    pub(crate) fn remove(&mut self, n: u32, mask: &CompactMask, key: &CompactKey) {
        if let Some(c) = self.count(n, mask, key)
            && *c != u8::MAX
        {
            debug_assert!(*c > 0, "what is removed was added");
            *c = c.saturating_sub(1);
        }
    }
    /// Filters at most [`CHUNK`] masks. Returns a bit for each mask that may have an entry for `key`.
    #[inline]
    pub(crate) fn maybe<'a>(
        &self,
        key: &CompactKey,
        masks: impl Iterator<Item = (u32, &'a CompactMask)> + Clone,
    ) -> u32 {
        let mut sums = [0; CHUNK];
        let n = nh::sums(
            key.words(),
            &self.lanes,
            masks.clone().map(|(_, m)| m.words()),
            &mut sums,
        );
        let mut bits = 0;
        for (i, ((number, _), sum)) in masks.zip(&sums[..n]).enumerate() {
            let some = match self.counts.get(number as usize) {
                Some(Some(counts)) => counts[place(*sum)] != 0,
                _ => true,
            };
            bits |= u32::from(some) << i;
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add(u32, [u64; 8]),
        Remove(usize),
        Close(u32),
    }

    fn words() -> impl Strategy<Value = [u64; 8]> {
        proptest::array::uniform8(prop_oneof![Just(0), 0..3_u64, any::<u64>()])
    }
    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..40_u32, words()).prop_map(|(n, w)| Step::Add(n, w)),
            4 => any::<usize>().prop_map(Step::Remove),
            1 => (0..40_u32).prop_map(Step::Close),
        ];
        proptest::collection::vec(step, 0..600)
    }

    proptest! {
        /// Compares the filters with a list of the entries.
        #[test]
        fn what_is_there_is_never_denied(lanes in any::<[u32; 16]>(), masks in proptest::collection::vec(words(), 40), steps in steps(), other_words in proptest::collection::vec(words(), 20)) {
            let masks: Vec<_> = masks.into_iter().map(|w| CompactMask::from_key(&CompactKey::from_words(w))).collect();
            let mut filters = Filters::new(Lanes(lanes));
            (0..40).for_each(|n| filters.open(n));
            let mut there: Vec<(u32, CompactKey)> = Vec::new();
            for step in steps {
                match step {
                    Step::Add(n, w) => {
                        let key = CompactKey::from_words(w);
                        filters.add(n, &masks[n as usize], &key);
                        there.push((n, key));
                    }
                    Step::Remove(at) if !there.is_empty() => {
                        let (n, key) = there.swap_remove(at % there.len());
                        filters.remove(n, &masks[n as usize], &key);
                    }
                    Step::Remove(_) => {}
                    Step::Close(n) => {
                        filters.close(n);
                        filters.open(n);
                        there.retain(|(of, _)| *of != n);
                    }
                }
            }
            let keys = there.iter().map(|(_, k)| *k).chain(other_words.into_iter().map(CompactKey::from_words)).collect::<Vec<_>>();
            for first in [0_u32, 3, 32] {
                let list = || (first..40).take(CHUNK).map(|n| (n, &masks[n as usize]));
                for key in &keys {
                    let bits = filters.maybe(key, list());
                    for (i, (n, mask)) in list().enumerate() {
                        let has = there.iter().any(|(of, k)| *of == n && k.masked(mask) == key.masked(mask));
                        prop_assert!(!has || bits >> i & 1 == 1, "mask {} has it", n);
                    }
                }
            }
            // All counts are zero after all entries are removed.
            for (n, key) in there {
                filters.remove(n, &masks[n as usize], &key);
            }
            for n in 0..40_u32 {
                let empty = filters.counts[n as usize].as_ref().is_some_and(|c| c.iter().all(|c| *c == 0));
                prop_assert!(empty);
            }
        }
    }

    #[test]
    #[allow(clippy::cast_possible_truncation)] // small numbers
    fn a_full_count_stays_and_few_others_are_taken_for_what_is_there() {
        let lanes = Lanes(std::array::from_fn(|i| {
            0x9e37_79b9_u32.wrapping_mul(i as u32 + 1) ^ 0x5bd1_e995
        }));
        let mask = CompactMask::from_key(&CompactKey::from_words([u64::MAX; 8]));
        let key = |i: u64| CompactKey::from_words([0, 0, 0, i, 0x0a00_0001, 0, 0, 0]);
        let mut f = Filters::new(lanes);
        f.open(0);
        for _ in 0..300 {
            f.add(0, &mask, &key(1));
        }
        for _ in 0..300 {
            f.remove(0, &mask, &key(1));
        }
        assert_eq!(
            f.maybe(&key(1), [(0, &mask)].into_iter()),
            1,
            "a count that ran over says maybe for ever"
        );
        f.close(0);
        f.open(0);
        (0..256).for_each(|i| f.add(0, &mask, &key(i)));
        let others = if cfg!(miri) { 100 } else { 10_000 };
        let wrong: HashMap<bool, u32> = (1000..1000 + u64::from(others)).fold(HashMap::new(), |mut n, i| {
            *n.entry(f.maybe(&key(i), [(0, &mask)].into_iter()) == 1)
                .or_default() += 1;
            n
        });
        assert!(wrong.get(&true).is_none_or(|n| *n < others / 10), "{wrong:?}");
        // Masks beyond the bound have no filter, and are "maybe".
        (1..=MAX_FILTERS as u32).for_each(|n| f.open(n));
        assert_eq!(f.held, MAX_FILTERS);
        assert_eq!(f.maybe(&key(5000), [(MAX_FILTERS as u32, &mask)].into_iter()), 1);
        f.close(MAX_FILTERS as u32);
        assert_eq!(f.held, MAX_FILTERS, "it had none");
    }
}
