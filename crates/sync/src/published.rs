//! A snapshot that one side replaces and the other reads without waiting.
//!
//! Built on `arc-swap`. A load is wait-free in practice, and touches no shared reference count while few
//! loads are outstanding. The old value lives until its last reader lets go. `store` is Release and `load` is
//! Acquire: a reader that sees the new snapshot sees all writes before its store.

use arc_swap::ArcSwap;
use std::sync::Arc;

/// A cell holding the current snapshot of a `T`.
#[derive(Debug, Default)]
pub struct Published<T>(ArcSwap<T>);

impl<T> Published<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        Self(ArcSwap::from_pointee(value))
    }
    /// The current snapshot, borrowed: for reads of a bounded time on a worker.
    pub fn load(&self) -> impl std::ops::Deref<Target = Arc<T>> + '_ {
        self.0.load()
    }
    /// The current snapshot, to keep.
    pub fn get(&self) -> Arc<T> {
        self.0.load_full()
    }
    /// Replaces the snapshot.
    pub fn store(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_whole_snapshots() {
        // Interpreted code is a hundred times slower.
        let end = if cfg!(miri) { 50 } else { 10_000 };
        let cell = Arc::new(Published::new((0_u64, 0_u64)));
        let w = Arc::clone(&cell);
        let t = std::thread::spawn(move || (1..=end).for_each(|i| w.store((i, i * 3))));
        let mut last = 0;
        while last < end {
            let (a, b) = **cell.load();
            assert_eq!(b, a * 3);
            assert!(a >= last);
            last = a;
        }
        t.join().unwrap();
        assert_eq!(cell.get().0, end);
    }
}
