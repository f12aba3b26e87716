//! Free numbers, taken and given back by any thread without a lock.
//!
//! A stack of numbers below a bound (Treiber 1986). Numbers that were given back are taken first. Numbers
//! that were never used are taken in order, so that the memory behind them is touched in order. The head has
//! a count of its changes: another thread may remove the top and put it back while a thread reads (ABA).
//!
//! A thread that takes a number sees all writes before it was given back.

use crate::atomic::{AtomicU32, AtomicU64, Zeroed};
use heddle_sync::CachePadded;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

#[derive(Debug)]
pub(crate) struct FreeList {
    /// Changes (32 bits), the number on top plus one (32 bits; 0: the stack is empty).
    head: CachePadded<AtomicU64>,
    /// Numbers from here on were never used.
    fresh: CachePadded<AtomicU32>,
    /// For each number on the stack, the number below it plus one.
    next: Zeroed<AtomicU32>,
}

impl FreeList {
    /// A list of the numbers 0 to `n`, which is not included.
    pub(crate) fn new(n: usize) -> io::Result<Self> {
        Ok(Self {
            head: CachePadded::new(AtomicU64::new(0)),
            fresh: CachePadded::new(AtomicU32::new(0)),
            next: Zeroed::new(n, false)?,
        })
    }
    /// An upper bound: all numbers that were ever used are below.
    pub(crate) fn used(&self) -> u32 {
        let most = u32::try_from(self.next.len()).unwrap_or(u32::MAX);
        self.fresh.load(Relaxed).min(most)
    }
    /// Takes a free number.
    pub(crate) fn take(&self) -> Option<u32> {
        self.take_used().or_else(|| self.take_fresh())
    }
    /// Takes a free number that was in use before.
    #[allow(clippy::cast_possible_truncation)] // halves
    pub(crate) fn take_used(&self) -> Option<u32> {
        let mut head = self.head.load(Acquire);
        loop {
            let top = (head as u32).checked_sub(1)?;
            // Another thread may have taken `top`: then `under` is stale, and the count has changed.
            let under = self.next.get(top as usize)?.load(Relaxed);
            match self
                .head
                .compare_exchange_weak(head, changed(head, under), AcqRel, Acquire)
            {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }
    fn take_fresh(&self) -> Option<u32> {
        let n = u32::try_from(self.next.len()).unwrap_or(u32::MAX);
        let one_more = |f: u32| (f < n).then_some(f + 1);
        self.fresh.fetch_update(Relaxed, Relaxed, one_more).ok()
    }
    /// Gives a number back.
    #[allow(clippy::cast_possible_truncation)] // halves
    pub(crate) fn give(&self, place: u32) {
        let Some(next) = self.next.get(place as usize) else {
            return;
        };
        let mut head = self.head.load(Relaxed);
        loop {
            next.store(head as u32, Relaxed);
            // Release pairs with the Acquire in `take`: the thread that takes the number sees all earlier
            // writes.
            match self
                .head
                .compare_exchange_weak(head, changed(head, place + 1), Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

fn changed(head: u64, top: u32) -> u64 {
    ((head >> 32).wrapping_add(1)) << 32 | u64::from(top)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn all_places_once_in_order() {
        let list = FreeList::new(3).unwrap();
        assert_eq!([list.take(), list.take()], [Some(0), Some(1)]);
        list.give(0);
        assert_eq!(list.used(), 2);
        assert_eq!([list.take(), list.take(), list.take()], [Some(0), Some(2), None]);
        assert_eq!(list.used(), 3);
    }

    #[test]
    fn no_place_has_two_users() {
        let list = FreeList::new(64).unwrap();
        let used: Vec<_> = (0..64).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    let mut mine = Vec::new();
                    for n in 0..20_000 {
                        if n % 3 != 0
                            && let Some(p) = list.take()
                        {
                            assert!(!used[p as usize].swap(true, Relaxed));
                            mine.push(p);
                        } else if let Some(p) = mine.pop() {
                            assert!(used[p as usize].swap(false, Relaxed));
                            list.give(p);
                        }
                    }
                    for p in mine {
                        used[p as usize].store(false, Relaxed);
                        list.give(p);
                    }
                });
            }
        });
        let mut all: Vec<_> = std::iter::from_fn(|| list.take()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
    }
}
