//! Rules that share a mask: a hash table whose buckets are replaced, never changed in place.
//!
//! A reader that holds a bucket keeps it alive (reference counted by `arc_swap`), so a writer may replace it at
//! any time. The bucket array itself is replaced when it has grown full.

use crate::mini::MiniMask;
use arc_swap::{ArcSwap, ArcSwapOption};
use heddle_flow::FlowKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Never removed.
pub(crate) const FOREVER: u64 = u64::MAX;

/// One rule in a classifier.
#[derive(Debug)]
pub struct Entry<T> {
    /// Masked words, in the order of the subtable's mask.
    pub values: Box<[u64]>,
    /// Higher wins.
    pub priority: i32,
    /// First version that sees it.
    pub added: u64,
    pub(crate) removed: AtomicU64,
    /// The caller's rule.
    pub data: T,
}

impl<T> Entry<T> {
    /// Whether lookups at `version` see it.
    pub fn visible(&self, version: u64) -> bool {
        // Relaxed: a reader that races with a removal may see either, and both are states of `version`; the
        // generation that the remover bumps afterwards decides what may be cached.
        self.added <= version && version < self.removed.load(Ordering::Relaxed)
    }
}

type Bucket<T> = Box<[Arc<Entry<T>>]>;
type Buckets<T> = Box<[ArcSwapOption<Bucket<T>>]>;

pub(crate) struct Subtable<T> {
    pub(crate) mask: Arc<MiniMask>,
    seed: u64,
    buckets: ArcSwap<Buckets<T>>,
    len: AtomicUsize,
    /// No entry has a higher priority. Falls only when the subtable is rebuilt by `purge`.
    pub(crate) max_priority: AtomicI32,
}

fn new_buckets<T>(n: usize) -> Buckets<T> {
    (0..n).map(|_| ArcSwapOption::empty()).collect()
}

impl<T> Subtable<T> {
    pub(crate) fn new(mask: Arc<MiniMask>, seed: u64) -> Self {
        Self {
            mask,
            seed,
            buckets: ArcSwap::from_pointee(new_buckets(4)),
            len: AtomicUsize::new(0),
            max_priority: AtomicI32::new(i32::MIN),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The entry of highest priority that matches `key` and is visible. Entries of a bucket are kept by
    /// falling priority.
    pub(crate) fn lookup(&self, version: u64, key: &FlowKey) -> Option<Arc<Entry<T>>> {
        let buckets = self.buckets.load();
        let bucket = buckets[index(self.mask.hash_key(key, self.seed), buckets.len())].load();
        let found = bucket
            .as_ref()?
            .iter()
            .find(|e| e.visible(version) && self.mask.matches(key, &e.values));
        found.cloned()
    }

    /// All entries with exactly these values, whatever their priority and version.
    pub(crate) fn with_values(&self, values: &[u64]) -> Vec<Arc<Entry<T>>> {
        let buckets = self.buckets.load();
        let bucket = buckets[index(MiniMask::hash_values(values, self.seed), buckets.len())].load();
        bucket.as_ref().map_or_else(Vec::new, |b| {
            b.iter().filter(|e| *e.values == *values).cloned().collect()
        })
    }

    pub(crate) fn insert(&self, entry: Arc<Entry<T>>) {
        if self.len() >= self.buckets.load().len() * 2 {
            self.grow();
        }
        // Before the entry: a reader that finds the entry must not have skipped the subtable for its priority.
        self.max_priority.fetch_max(entry.priority, Ordering::Release);
        insert_into(&self.buckets.load(), entry, self.seed);
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, gone: &Arc<Entry<T>>) {
        let buckets = self.buckets.load();
        let slot = &buckets[index(MiniMask::hash_values(&gone.values, self.seed), buckets.len())];
        let Some(old) = slot.load_full() else { return };
        let kept: Bucket<T> = old.iter().filter(|e| !Arc::ptr_eq(e, gone)).cloned().collect();
        if kept.len() < old.len() {
            self.len.fetch_sub(1, Ordering::Relaxed);
            slot.store((!kept.is_empty()).then(|| Arc::new(kept)));
        }
    }

    pub(crate) fn for_each(&self, f: &mut dyn FnMut(&Arc<Entry<T>>)) {
        for slot in self.buckets.load().iter() {
            if let Some(bucket) = slot.load().as_ref() {
                bucket.iter().for_each(&mut *f);
            }
        }
    }

    fn grow(&self) {
        let bigger = new_buckets(self.buckets.load().len() * 4);
        self.for_each(&mut |e| insert_into(&bigger, e.clone(), self.seed));
        self.buckets.store(Arc::new(bigger));
    }
}

fn index(hash: u64, n: usize) -> usize {
    // `n` is a power of two.
    #[allow(clippy::cast_possible_truncation)]
    let h = hash as usize;
    h & (n - 1)
}

fn insert_into<T>(buckets: &Buckets<T>, entry: Arc<Entry<T>>, seed: u64) {
    let slot = &buckets[index(MiniMask::hash_values(&entry.values, seed), buckets.len())];
    let old = slot.load_full();
    let old: &[Arc<Entry<T>>] = old.as_ref().map_or(&[], |b| b);
    let at = old.partition_point(|e| e.priority >= entry.priority);
    let mut new = Vec::with_capacity(old.len() + 1);
    new.extend_from_slice(&old[..at]);
    new.push(entry);
    new.extend_from_slice(&old[at..]);
    slot.store(Some(Arc::new(new.into_boxed_slice())));
}
