//! A rule, and the versions that see it.

use crate::atomic::AtomicU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The version of removal of a rule that was never removed.
pub(crate) const FOREVER: u64 = u64::MAX;

/// One rule in a classifier.
#[derive(Debug)]
pub struct Entry<T> {
    /// Masked words, in the order of the subtable's mask.
    pub values: Arc<[u64]>,
    /// The rule of higher priority wins.
    pub priority: i32,
    /// The first version that sees it.
    pub added: u64,
    pub(crate) removed: AtomicU64,
    /// The caller's rule.
    pub data: T,
}

impl<T> Entry<T> {
    /// Whether lookups at `version` see it.
    pub fn visible(&self, version: u64) -> bool {
        // Relaxed: a reader that races with a removal may see either state, and both are states of `version`.
        // The remover bumps a generation afterwards, which decides what may be cached.
        self.added <= version && version < self.removed.load(Ordering::Relaxed)
    }
}
