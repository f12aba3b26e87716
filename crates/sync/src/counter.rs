//! Counters that one thread writes and others read.
//!
//! A worker owns its counters: it adds with a plain load and store (no locked instruction), and other threads
//! only read. Two writers would lose counts, but corrupt nothing. Orderings are relaxed throughout, since a
//! counter orders nothing. A reader that must see "all up to now" first synchronises with the worker by other
//! means.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use crossbeam_utils::CachePadded;

/// A single-writer counter. Wraps at 2^64.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter that starts at `n`.
    pub const fn new(n: u64) -> Self {
        Self(AtomicU64::new(n))
    }
    /// Adds `n`. Only the owning thread calls this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    /// Replaces the value. Only the owning thread calls this.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
    /// Reads it, from any thread.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_reader_sees_it_grow_to_the_end() {
        let c = Arc::new(Counter::new(0));
        let w = Arc::clone(&c);
        let t = std::thread::spawn(move || (0..100_000).for_each(|_| w.add(1)));
        let mut last = 0;
        while last < 100_000 {
            let now = c.get();
            assert!(now >= last);
            last = now;
            std::hint::spin_loop();
        }
        t.join().unwrap();
        assert_eq!(c.get(), 100_000);
    }
}
