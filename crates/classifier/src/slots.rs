//! The hash table of a subtable: open addressing, filled slot by slot while readers use it.
//!
//! **Shape.** A table of tags (32 bits of the hash) leads to a table of rules. So a lookup reads one line of
//! tags and one rule. Rules with the same match (of different priorities or versions) occupy neighbouring
//! slots, as colliding rules do.
//!
//! **Threads.** Readers without locks; one writer (the classifier's). A slot is filled once: first the rule,
//! then its tag. A removed rule leaves the tag `DEAD`, and its slot stays taken until the writer makes a new
//! table. The rule is freed when no reader uses it any more. Readers of the old table find the rules that
//! were there when they began.
//!
//! **Costs.** 12 bytes a slot; between three eighths and three quarters of the slots are taken, except in
//! small tables.

use crate::atomic::AtomicU32;
use crate::entry::Entry;
use heddle_sync::{RcuSlots, ReadGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Tag of a slot that was never used.
const FREE: u32 = 0;
/// Tag of a slot whose rule was removed.
const DEAD: u32 = 1;
/// Maximum number of dead slots in a row that lookups pass. Replacing one rule again and again leaves them
/// behind.
const MAX_DEAD_PASSED: usize = 1024;

pub(crate) struct Slots<T> {
    tags: Box<[AtomicU32]>,
    rules: RcuSlots<Entry<T>>,
    /// The number of slots that are not free. The writer's.
    taken: AtomicU32,
}

/// The tag of a hash, never `FREE` or `DEAD`.
#[allow(clippy::cast_possible_truncation)] // the upper half
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32 | 2
}

impl<T> Slots<T> {
    /// A table with room for about twice `n` rules.
    pub(crate) fn for_rules(n: usize) -> Self {
        Self::of_places((n + 1) * 2)
    }

    /// A table with room for `n` rules.
    pub(crate) fn with_room(n: usize) -> Self {
        Self::of_places(n * 4 / 3 + 1)
    }

    fn of_places(n: usize) -> Self {
        let n = n.next_power_of_two().max(4);
        Self {
            tags: (0..n).map(|_| AtomicU32::new(FREE)).collect(),
            rules: RcuSlots::new(n),
            taken: AtomicU32::new(0),
        }
    }

    /// The slots whose tag agrees with this hash, coincidences included.
    #[inline]
    fn places(&self, hash: u64) -> impl Iterator<Item = usize> + '_ {
        let (tag, last) = (tag(hash), self.tags.len() - 1);
        #[allow(clippy::cast_possible_truncation)] // the table's size cuts the bits
        let start = hash as usize;
        (0..=last)
            .map(move |i| start.wrapping_add(i) & last)
            .map(|at| (at, self.tags[at].load(Acquire))) // pairs with the Release in `insert`
            .take_while(|(_, t)| *t != FREE)
            .filter(move |(_, t)| *t == tag)
            .map(|(at, _)| at)
    }

    /// Rules that may have this hash.
    #[inline]
    pub(crate) fn candidates<'a>(
        &'a self,
        reading: &'a ReadGuard,
        hash: u64,
    ) -> impl Iterator<Item = Candidate<'a, T>> {
        self.places(hash).filter_map(|at| self.candidate(at, reading))
    }

    #[inline]
    fn candidate<'a>(&'a self, at: usize, reading: &'a ReadGuard) -> Option<Candidate<'a, T>> {
        let entry = self.rules.load(at, reading)?;
        let rules = &self.rules;
        Some(Candidate { entry, rules, at })
    }

    /// Whether there is room for `n` more rules.
    pub(crate) fn has_room(&self, n: usize) -> bool {
        (self.taken.load(Relaxed) as usize + n) * 4 <= self.tags.len() * 3
    }

    /// Whether a new table is worthwhile, if this one has `n` rules: many slots are dead, or it is much too
    /// large.
    pub(crate) fn is_sparse(&self, n: usize) -> bool {
        let dead = (self.taken.load(Relaxed) as usize).saturating_sub(n);
        dead > 16 && dead * 2 > n || self.tags.len() > 64 + n * 8
    }

    /// Adds a rule; there must be room. Returns whether it passed more than [`MAX_DEAD_PASSED`] dead slots: a
    /// new table is worthwhile.
    pub(crate) fn insert(&self, hash: u64, entry: Arc<Entry<T>>) -> bool {
        let last = self.tags.len() - 1;
        #[allow(clippy::cast_possible_truncation)] // the table's size cuts the bits
        let start = hash as usize;
        let mut dead = 0;
        let free = (0..=last).map(|i| start.wrapping_add(i) & last).find(|at| {
            let tag = self.tags[*at].load(Relaxed);
            dead += usize::from(tag == DEAD);
            tag == FREE
        });
        let Some(at) = free else {
            debug_assert!(false, "the caller has looked whether there is room");
            return false;
        };
        let full = self.rules.set(at, entry).is_err();
        debug_assert!(!full, "a free place has no rule");
        self.taken.fetch_add(1, Relaxed);
        // A reader that sees the tag sees the rule (Acquire in `places`).
        self.tags[at].store(tag(hash), Release);
        dead > MAX_DEAD_PASSED
    }

    /// Removes a rule; `false`: it is not there.
    pub(crate) fn remove(&self, hash: u64, gone: &Arc<Entry<T>>) -> bool {
        let at = {
            let reading = ReadGuard::begin();
            let is = |at: &usize| {
                let entry = self.rules.load(*at, &reading);
                entry.is_some_and(|e| std::ptr::eq(e, &**gone))
            };
            self.places(hash).find(is)
        };
        let Some(at) = at else { return false };
        self.tags[at].store(DEAD, Release);
        self.rules.clear(at);
        true
    }

    /// Frees removed rules that no reader uses. `false`: a reader may still use some.
    pub(crate) fn tidy(&self) -> bool {
        self.rules.tidy()
    }

    /// All rules.
    pub(crate) fn all<'a>(&'a self, reading: &'a ReadGuard) -> impl Iterator<Item = Candidate<'a, T>> {
        let places = self.tags.iter().enumerate();
        places
            .filter(|(_, t)| t.load(Acquire) > DEAD)
            .filter_map(|(at, _)| self.candidate(at, reading))
            .inspect(|_| {
                #[cfg(all(test, not(loom)))]
                crate::tests::PASSED.set(crate::tests::PASSED.get() + 1);
            })
    }

    /// All rules, as counted references.
    pub(crate) fn iter<'a>(&'a self, reading: &'a ReadGuard) -> impl Iterator<Item = Arc<Entry<T>>> + 'a {
        self.all(reading).filter_map(|c| c.take())
    }
}

/// A rule in its slot.
pub(crate) struct Candidate<'a, T> {
    pub(crate) entry: &'a Entry<T>,
    rules: &'a RcuSlots<Entry<T>>,
    at: usize,
}

impl<T> Candidate<'_, T> {
    /// A counted reference to the rule; `None` if it is gone.
    pub(crate) fn take(&self) -> Option<Arc<Entry<T>>> {
        self.rules.arc(self.at)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(n: u64) -> Arc<Entry<u64>> {
        Arc::new(Entry {
            values: Arc::from([n]),
            priority: 0,
            added: 0,
            removed: u64::MAX.into(),
            data: n,
        })
    }

    proptest! {
        /// Compares the table with a list: colliding hashes, and a new table when one is full.
        #[test]
        fn same_as_a_list(ops in prop::collection::vec((0u64..30, any::<bool>(), any::<bool>()), 1..200)) {
            // Few different slots, and few different tags.
            let hash = |n: u64| ((n % 3) << 32) | (n % 5);
            let mut slots = Slots::for_rules(0);
            let mut list: Vec<Arc<Entry<u64>>> = Vec::new();
            for (n, add, rebuild) in ops {
                if rebuild || !slots.has_room(1) {
                    let new = Slots::for_rules(list.len());
                    slots.iter(&ReadGuard::begin()).for_each(|e| _ = new.insert(hash(e.data), e));
                    slots = new;
                }
                match list.iter().position(|e| e.data == n) {
                    Some(at) if !add => prop_assert!(slots.remove(hash(n), &list.swap_remove(at))),
                    None if !add => prop_assert!(!slots.remove(hash(n), &entry(n))),
                    _ => {
                        list.push(entry(n));
                        slots.insert(hash(n), list[list.len() - 1].clone());
                    }
                }
                prop_assert_eq!(slots.all(&ReadGuard::begin()).count(), list.len());
                for e in &list {
                    let found = slots.candidates(&ReadGuard::begin(), hash(e.data)).filter_map(|c| c.take()).any(|c| Arc::ptr_eq(&c, e));
                    prop_assert!(found);
                }
            }
        }
    }

    #[test]
    fn bytes_per_rule() {
        for n in if cfg!(miri) {
            [10, 100, 500]
        } else {
            [1000, 10_000, 100_000]
        } {
            let mut slots = Slots::<u64>::for_rules(0);
            for i in 0..n {
                if !slots.has_room(1) {
                    slots = Slots::for_rules(i);
                    slots.taken.store(u32::try_from(i).unwrap(), Relaxed);
                }
                slots.taken.fetch_add(1, Relaxed);
            }
            assert!(
                slots.tags.len() * 12 <= n * 32 + 100,
                "{} places for {n} rules",
                slots.tags.len()
            );
        }
    }
}
