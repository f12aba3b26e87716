//! The hashes of all rules' values in the first part of a mask: they let a lookup stop before it looks at the
//! rest.
//!
//! **Problem.** A subtable whose rules match the port and an L4 port need not look at the L4 port of a packet
//! from another port. So the mask is cut into stages (Open vSwitch's: metadata, L2, L3, L4). Each stage but
//! the last keeps the set of its rules' hashes up to there.
//!
//! **Shape.** An open-addressed table of words: 32 bits of hash, 32 bits for the number of rules. If a hash
//! agrees by coincidence, the lookup continues. That costs bits in the megaflow, and never leads to a wrong
//! result.
//!
//! **Threads.** Readers without locks; one writer (the classifier's). A slot's hash never changes while a
//! table lives, so a reader finds the hashes that were there before it began. The subtable replaces a full
//! table by a bigger one, or by one without dead hashes ([`StageIndex::rebuilt`]).
//!
//! **Costs.** 8 bytes a slot; a quarter to three quarters of the slots are taken.

use crate::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A counted set of hashes, of bounded size.
#[derive(Debug)]
pub(crate) struct StageIndex {
    slots: Box<[AtomicU64]>,
    /// The number of slots whose hash is set, whether rules have it or not. The writer's.
    taken: AtomicU64,
}

/// The part of the hash that is kept. Never zero, since zero marks a free slot.
fn tag(hash: u64) -> u64 {
    hash >> 32 | 1
}

const COUNT: u64 = u32::MAX as u64;

impl Default for StageIndex {
    fn default() -> Self {
        Self::with_slots(4)
    }
}

impl StageIndex {
    fn with_slots(n: usize) -> Self {
        Self {
            slots: (0..n).map(|_| AtomicU64::new(0)).collect(),
            taken: AtomicU64::new(0),
        }
    }

    /// The slot with `tag`, or the free slot for it. Tables are never full.
    fn find(&self, tag: u64) -> Option<&AtomicU64> {
        let n = self.slots.len();
        #[allow(clippy::cast_possible_truncation)] // a tag has 32 bits
        let start = (tag >> 1) as usize;
        (0..n)
            .map(|i| &self.slots[start.wrapping_add(i) & (n - 1)])
            .find(|s| {
                let at = s.load(Acquire) >> 32; // pairs with the Release stores of the writer
                at == tag || at == 0
            })
    }

    /// Whether some rule may have this hash.
    pub(crate) fn has(&self, hash: u64) -> bool {
        self.find(tag(hash)).is_some_and(|s| s.load(Acquire) & COUNT != 0)
    }

    /// Counts one more rule with this hash. Called before the rule itself becomes visible. `false`: there is
    /// no room, and nothing has changed.
    #[must_use]
    pub(crate) fn add(&self, hash: u64) -> bool {
        let Some(slot) = self.find(tag(hash)) else {
            return false;
        };
        let old = slot.load(Relaxed);
        if old == 0 {
            let taken = self.taken.load(Relaxed);
            if (taken + 1) * 4 > self.slots.len() as u64 * 3 {
                return false;
            }
            self.taken.store(taken + 1, Relaxed);
        }
        let count = (old & COUNT).saturating_add(1).min(COUNT);
        slot.store(tag(hash) << 32 | count, Release);
        true
    }

    /// Counts one rule less. Called after the rule itself is gone.
    pub(crate) fn sub(&self, hash: u64) {
        if let Some(slot) = self.find(tag(hash)) {
            let old = slot.load(Relaxed);
            // A count that reached its maximum stays there: "may have".
            if old & COUNT != 0 && old & COUNT != COUNT {
                slot.store(old - 1, Release);
            }
        }
    }

    /// A copy with more room, without hashes that no rule has any more.
    #[must_use]
    pub(crate) fn rebuilt(&self) -> Self {
        let live = self.slots.iter().filter(|s| s.load(Relaxed) & COUNT != 0).count();
        let new = Self::with_slots(((live + 1) * 2).next_power_of_two());
        for s in &self.slots {
            let v = s.load(Relaxed);
            if v & COUNT != 0
                && let Some(free) = new.find(v >> 32)
            {
                free.store(v, Relaxed);
            }
        }
        new.taken.store(live as u64, Relaxed);
        new
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Compares the index with a map of counts. New tables leave dead hashes out.
        #[test]
        fn counts(ops in prop::collection::vec((0u64..40, any::<bool>()), 1..300)) {
            let mut index = StageIndex::default();
            let mut map: HashMap<u64, u32> = HashMap::new();
            let hash = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for (n, add) in ops {
                let have = map.entry(n).or_default();
                if add {
                    *have += 1;
                    if !index.add(hash(n)) {
                        index = index.rebuilt();
                        prop_assert!(index.add(hash(n)));
                    }
                } else if *have > 0 {
                    *have -= 1;
                    index.sub(hash(n));
                }
                for n in 0..40 {
                    prop_assert_eq!(index.has(hash(n)), map.get(&n).is_some_and(|c| *c > 0));
                }
            }
        }
    }
}
