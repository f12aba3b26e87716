//! Iterations that took long.
//!
//! A packet waits as long as an iteration takes. A thread that stands still has either work that takes long, or waits for a
//! lock, or has been put aside by the scheduler; what the thread has run meanwhile tells the first from the others. It has run no longer than the
//! iteration took, and that is what is said of short ones. Of others what it ran is read at their ends, no more often than every [`READ_US`]: a time that may
//! begin before the iteration does.

use heddle_sync::Counter;
use heddle_sys::{Tsc, clock};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How often a thread's own time is read, and how much too long it may therefore seem.
const READ_US: u64 = 100;
/// Iterations from here on are told.
const LONG_US: u64 = 1000;

/// What a thread has run, as it was read last. The worker's own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ran {
    /// Time stamp counter; 0: not read yet.
    at: u64,
    ns: u64,
}

/// The longest iterations of a worker, and how many there were.
#[derive(Debug, Default)]
pub(super) struct Long {
    /// Cycles of the longest one, and the most cycles that the thread has run itself in one.
    longest: AtomicU64,
    longest_own: AtomicU64,
    long: Counter,
    long_own: Counter,
}

/// A copy of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LongNumbers {
    longest_us: u64,
    longest_own_us: u64,
    long: u64,
    long_own: u64,
}

impl Long {
    /// An iteration of `cycles` is over at `end`. Owner only.
    pub(super) fn iteration(&self, ran: &mut Ran, cycles: u64, end: u64) {
        let mut own = cycles;
        if end.wrapping_sub(ran.at) >= Tsc::from_us(READ_US) {
            let ns = clock::thread_ns();
            if ran.at != 0 {
                own = cycles.min(Tsc::from_ns(ns.wrapping_sub(ran.ns)));
            }
            *ran = Ran { at: end, ns };
        }
        for (longest, cycles) in [(&self.longest, cycles), (&self.longest_own, own)] {
            // Written by others only to forget it.
            if cycles > longest.load(Relaxed) {
                longest.store(cycles, Relaxed);
            }
        }
        let long = Tsc::from_us(LONG_US);
        if cycles >= long {
            self.long.add(1);
            self.long_own.add(u64::from(own >= long));
        }
    }
    /// Forgets the longest one.
    pub(super) fn clear(&self) {
        self.longest.store(0, Relaxed);
        self.longest_own.store(0, Relaxed);
    }
    pub(super) fn read(&self) -> LongNumbers {
        let us = |cycles: &AtomicU64| cycles.load(Relaxed) / Tsc::from_us(1).max(1);
        let (longest_own_us, long_own) = (us(&self.longest_own), self.long_own.get());
        // The worker may be between two of its writes.
        LongNumbers {
            longest_us: us(&self.longest).max(longest_own_us),
            longest_own_us,
            long: self.long.get().max(long_own),
            long_own,
        }
    }
}

impl LongNumbers {
    /// What was counted since `base`; the longest one is forgotten when that is taken.
    pub(super) fn since(&self, base: &Self) -> Self {
        Self {
            long: self.long.wrapping_sub(base.long),
            long_own: self.long_own.wrapping_sub(base.long_own),
            ..*self
        }
    }
}

impl std::fmt::Display for LongNumbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Longest iteration (us): {}, run by the thread itself: {}; of 1 ms and more: {}, run: {}",
            self.longest_us, self.longest_own_us, self.long, self.long_own,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What is known after an iteration that does this.
    fn after(long: &Long, ran: &mut Ran, work: &dyn Fn()) -> LongNumbers {
        let start = Tsc::now();
        work();
        let end = Tsc::now();
        long.iteration(ran, end - start, end);
        long.read()
    }

    fn run(ns: u64) {
        let before = clock::thread_ns();
        while clock::thread_ns() < before + ns {}
    }

    #[test]
    fn time_asleep_is_not_own() {
        let (long, mut ran) = (Long::default(), Ran::default());
        // The first one begins to read what the thread runs; the machine may stand still in it.
        let first = after(&long, &mut ran, &|| {});
        long.clear();
        let n = after(&long, &mut ran, &|| {
            std::thread::sleep(Duration::from_millis(30));
        });
        assert!(n.longest_us >= 29_000 && n.longest_own_us < 15_000, "{n:?}");
        assert_eq!((n.since(&first).long, n.since(&n).long), (1, 0));
        let n = after(&long, &mut ran, &|| run(3_000_000));
        assert!(n.longest_own_us >= 2_990 && n.long_own > 0, "{n:?}");
        long.clear();
        let n = long.read();
        assert_eq!((n.longest_us, n.longest_own_us), (0, 0));
    }

    #[test]
    fn short_ones_count_and_none_has_run_longer_than_it_took() {
        let (long, mut ran) = (Long::default(), Ran::default());
        let n = after(&long, &mut ran, &|| run(20_000));
        assert!(n.longest_us >= 19 && n.longest_own_us >= 19, "{n:?}");
        long.clear();
        // What the thread runs between two of them is none's.
        run(3_000_000);
        let n = after(&long, &mut ran, &|| run(300_000));
        assert!(n.longest_own_us >= 290, "{n:?}");
        assert!(n.longest_own_us <= n.longest_us && n.long_own <= n.long, "{n:?}");
    }
}
