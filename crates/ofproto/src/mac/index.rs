//! The structure that lookups read: buckets of entries, each bucket replaced as a whole.
//!
//! A reader keeps the bucket that it loaded alive, so an entry is never reused under its eyes. The number of
//! buckets is about half the maximum number of entries. The hash is keyed, so that an attacker cannot fill
//! one bucket on purpose.

use super::MacKey;
use arc_swap::{ArcSwap, ArcSwapOption};
use heddle_openflow::Port;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One learned address.
#[derive(Debug)]
pub(super) struct LearnedMac {
    pub(super) key: MacKey,
    port: AtomicU32,
    /// Coarse clock when last seen, ms. Also written by threads that found the mutex taken.
    pub(super) used_ms: AtomicU64,
}

impl LearnedMac {
    pub(super) fn new(key: MacKey, port: Port, now_ms: u64) -> Self {
        Self {
            key,
            port: port.0.into(),
            used_ms: now_ms.into(),
        }
    }
    /// Relaxed, here and below: the generation that the writer bumps after a change is what orders it for
    /// readers.
    pub(super) fn port(&self) -> Port {
        Port(self.port.load(Relaxed))
    }
    pub(super) fn set_port(&self, port: Port) {
        self.port.store(port.0, Relaxed);
    }
    pub(super) fn used_ms(&self) -> u64 {
        self.used_ms.load(Relaxed)
    }
}

type Bucket = Vec<Arc<LearnedMac>>;
type Buckets = Box<[ArcSwapOption<Bucket>]>;

pub(super) struct Index {
    buckets: ArcSwap<Buckets>,
    seed: u64,
}

fn empty(max_entries: usize) -> Buckets {
    let n = (max_entries / 2).next_power_of_two().max(16);
    (0..n).map(|_| ArcSwapOption::empty()).collect()
}

impl Index {
    pub(super) fn new(max_entries: usize) -> Self {
        Self {
            buckets: ArcSwap::from_pointee(empty(max_entries)),
            seed: RandomState::new().hash_one(1u8),
        }
    }

    fn at(&self, key: MacKey, n: usize) -> usize {
        // Folded 128-bit product, as in the classifier: all bits of key and seed reach the low bits.
        let p = u128::from(key.bits() ^ self.seed) * u128::from(self.seed.rotate_left(32) | 1);
        let h = (p >> 64) ^ p ^ (p >> 32);
        #[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted; `n` is a power of two
        let h = h as usize;
        h & (n - 1)
    }

    /// The port of an entry, without counting a reference.
    pub(super) fn port_of(&self, key: MacKey) -> Option<Port> {
        let buckets = self.buckets.load();
        let bucket = buckets.get(self.at(key, buckets.len()))?.load();
        bucket.as_ref()?.iter().find(|e| e.key == key).map(|e| e.port())
    }

    pub(super) fn find(&self, key: MacKey) -> Option<Arc<LearnedMac>> {
        let buckets = self.buckets.load();
        let bucket = buckets.get(self.at(key, buckets.len()))?.load();
        bucket.as_ref()?.iter().find(|e| e.key == key).cloned()
    }

    /// Adds an entry (the caller holds the mutex and knows that there is none for this key).
    pub(super) fn insert(&self, entry: Arc<LearnedMac>) {
        let buckets = self.buckets.load();
        put(&buckets[self.at(entry.key, buckets.len())], entry);
    }

    /// Takes an entry out (the caller holds the mutex).
    pub(super) fn remove(&self, key: MacKey) {
        let buckets = self.buckets.load();
        let slot = &buckets[self.at(key, buckets.len())];
        if let Some(old) = slot.load_full() {
            let kept: Bucket = old.iter().filter(|e| e.key != key).cloned().collect();
            slot.store((!kept.is_empty()).then(|| Arc::new(kept)));
        }
    }

    /// Rebuilds for another number of entries (the caller holds the mutex).
    pub(super) fn resize(&self, max_entries: usize) {
        let old = self.buckets.load_full();
        let new = empty(max_entries);
        if new.len() == old.len() {
            return;
        }
        for slot in old.iter() {
            for e in slot.load().iter().flat_map(|b| b.iter()) {
                put(&new[self.at(e.key, new.len())], e.clone());
            }
        }
        self.buckets.store(Arc::new(new));
    }
}

fn put(slot: &ArcSwapOption<Bucket>, entry: Arc<LearnedMac>) {
    let mut bucket = slot.load_full().map_or_else(Vec::new, |b| Vec::clone(&b));
    bucket.push(entry);
    slot.store(Some(Arc::new(bucket)));
}
