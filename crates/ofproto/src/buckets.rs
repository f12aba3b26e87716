//! A hash table that lookups read while another thread changes it: buckets of entries, each bucket replaced
//! as a whole.
//!
//! A reader keeps the bucket that it loaded alive, so an entry is never reused under its eyes. The number of
//! buckets is about half the maximum number of entries. The hash is keyed, so that an attacker cannot fill
//! one bucket on purpose. One thread changes the table at a time: its user has a mutex.

use arc_swap::{ArcSwap, ArcSwapOption};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

type Bucket<E> = Vec<Arc<E>>;
type Array<E> = Box<[ArcSwapOption<Bucket<E>>]>;

/// See the module's text. `bits` below: a number of an entry's key; equal keys have equal ones. `is`: whether
/// an entry has the key.
pub(crate) struct Buckets<E> {
    buckets: ArcSwap<Array<E>>,
    seed: u64,
}

/// Number of buckets for a maximum number of entries.
fn len_for(max_entries: usize) -> usize {
    (max_entries / 2).next_power_of_two().max(16)
}

fn empty<E>(len: usize) -> Array<E> {
    (0..len).map(|_| ArcSwapOption::empty()).collect()
}

impl<E> Buckets<E> {
    pub(crate) fn new(max_entries: usize) -> Self {
        Self {
            buckets: ArcSwap::from_pointee(empty(len_for(max_entries))),
            seed: RandomState::new().hash_one(1u8),
        }
    }

    fn at(&self, bits: u64, n: usize) -> usize {
        // Folded 128-bit product, as in the classifier: all bits of key and seed reach the low bits.
        let p = u128::from(bits ^ self.seed) * u128::from(self.seed.rotate_left(32) | 1);
        let h = (p >> 64) ^ p ^ (p >> 32);
        #[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted; `n` is a power of two
        let h = h as usize;
        h & (n - 1)
    }

    /// `f` of the entry, without counting a reference.
    pub(crate) fn read<T>(&self, bits: u64, is: impl Fn(&E) -> bool, f: impl Fn(&Arc<E>) -> T) -> Option<T> {
        let buckets = self.buckets.load();
        let bucket = buckets.get(self.at(bits, buckets.len()))?.load();
        bucket.as_ref()?.iter().find(|e| is(e)).map(f)
    }

    /// Adds an entry, in place of the one that has its key.
    pub(crate) fn put(&self, bits: u64, is: impl Fn(&E) -> bool, entry: Arc<E>) {
        let buckets = self.buckets.load();
        replace(&buckets[self.at(bits, buckets.len())], is, Some(entry));
    }

    /// Takes an entry out.
    pub(crate) fn remove(&self, bits: u64, is: impl Fn(&E) -> bool) {
        let buckets = self.buckets.load();
        replace(&buckets[self.at(bits, buckets.len())], is, None);
    }

    /// Rebuilds for another number of entries, if that needs another number of buckets. It is called at every
    /// tick, and costs nothing then.
    pub(crate) fn resize(&self, max_entries: usize, bits_of: impl Fn(&E) -> u64) {
        let len = len_for(max_entries);
        if self.buckets.load().len() == len {
            return;
        }
        let old = self.buckets.load_full();
        let new = empty(len);
        for slot in old.iter() {
            for e in slot.load().iter().flat_map(|b| b.iter()) {
                replace(&new[self.at(bits_of(e), new.len())], |_| false, Some(e.clone()));
            }
        }
        self.buckets.store(Arc::new(new));
    }
}

/// Replaces the entries that `is` names by `entry`.
fn replace<E>(slot: &ArcSwapOption<Bucket<E>>, is: impl Fn(&E) -> bool, entry: Option<Arc<E>>) {
    let old = slot.load_full();
    let kept = old.iter().flat_map(|b| b.iter()).filter(|e| !is(e)).cloned();
    let bucket: Bucket<E> = kept.chain(entry).collect();
    slot.store((!bucket.is_empty()).then(|| Arc::new(bucket)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_size_makes_other_buckets() {
        let buckets: Buckets<u64> = Buckets::new(1_000_000);
        buckets.put(7, |e| *e == 7, Arc::new(7));
        let before = buckets.buckets.load_full();
        buckets.resize(999_999, |e| *e);
        assert!(Arc::ptr_eq(&before, &buckets.buckets.load_full()));
        buckets.resize(10, |e| *e);
        assert_eq!(buckets.buckets.load().len(), 16);
        assert_eq!(buckets.read(7, |e| *e == 7, |e| **e), Some(7));
    }
}
