//! Memory of free records goes back to the system, step by step.
//!
//! A give-back takes free numbers from the free list, so that no worker has these records. It gives whole
//! pages of them back, and then puts the numbers back into the list.

use super::Slots;
use crate::table::record::Record;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Free records that a give-back leaves to workers, if fewer records than this were never used.
const MIN_FREE_RECORDS: u32 = 1 << 16;
/// Numbers that one call of [`Slots::give_back`] takes from the free list, or puts back into it.
const MAX_STEP_RECORDS: u32 = 4096;
/// Numbers that one call searches for pages to give back.
const MAX_STEP_SEARCHED: u32 = 1 << 16;
/// Runs of consecutive numbers whose pages one call gives back, with two system calls each.
const MAX_STEP_RUNS: usize = 64;

/// The stage of a give-back.
#[derive(Debug, Default)]
pub(super) enum GiveBack {
    /// No give-back is in progress.
    #[default]
    Idle,
    /// Numbers of records are being taken from the free list.
    Taking(Numbers),
    /// Pages of these records are being given back, from this number on.
    Pages(Numbers, u32),
    /// The numbers are being put back into the free list.
    Freeing(Numbers),
}

/// A set of records' numbers, as a bitmap.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    words: Vec<u64>,
    pub(super) len: u32,
}

impl Numbers {
    pub(super) fn add(&mut self, n: u32) {
        let at = n as usize / 64;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        if let Some(word) = self.words.get_mut(at) {
            self.len += u32::from(*word >> (n % 64) & 1 == 0);
            *word |= 1 << (n % 64);
        }
    }
    fn has(&self, n: u32) -> bool {
        let word = self.words.get(n as usize / 64);
        word.is_some_and(|w| w >> (n % 64) & 1 != 0)
    }
    /// An upper bound: all numbers of the set are below.
    pub(super) fn end(&self) -> u32 {
        u32::try_from(self.words.len() * 64).unwrap_or(u32::MAX)
    }
    /// The first run of consecutive numbers from `from` on, as far as it is below `to`.
    pub(super) fn run(&self, from: u32, to: u32) -> Range<u32> {
        let to = to.min(self.end()).max(from);
        let start = (from..to).find(|n| self.has(*n)).unwrap_or(to);
        start..(start..to).find(|n| !self.has(*n)).unwrap_or(to)
    }
    /// Removes the highest number and returns it.
    pub(super) fn pop(&mut self) -> Option<u32> {
        loop {
            let word = self.words.last_mut()?;
            if *word == 0 {
                self.words.pop();
                continue;
            }
            let bit = 63 - word.leading_zeros();
            *word &= !(1 << bit);
            self.len -= 1;
            return Some((u32::try_from(self.words.len()).unwrap_or(u32::MAX) - 1) * 64 + bit);
        }
    }
}

impl Slots {
    /// Starts a give-back of free records' memory, unless one is in progress.
    pub(crate) fn begin_giving_back(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*stage, GiveBack::Idle) {
            *stage = GiveBack::Taking(Numbers::default());
        }
    }
    /// Does the next step of the give-back. `true`: there is more to do.
    pub(crate) fn give_back(&self) -> bool {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = match std::mem::take(&mut *stage) {
            GiveBack::Idle => return false,
            GiveBack::Taking(mut free) => {
                let unused = u32::try_from(self.capacity()).unwrap_or(u32::MAX) - self.used();
                let keep = if unused < MIN_FREE_RECORDS {
                    MIN_FREE_RECORDS
                } else {
                    0
                };
                let left = self.used().saturating_sub(self.count() + free.len + keep);
                let before = free.len;
                let some = (0..left.min(MAX_STEP_RECORDS)).map_while(|_| self.free.take_used());
                some.for_each(|n| free.add(n));
                if free.len - before < MAX_STEP_RECORDS {
                    // Release pairs with the Acquire in `fill`. `newest` covers the generations of these
                    // records: a thread that freed one had seen its generation.
                    self.past.store(self.newest.load(Relaxed), Release);
                    GiveBack::Pages(free, 0)
                } else {
                    GiveBack::Taking(free)
                }
            }
            GiveBack::Pages(free, mut at) => {
                let to = at.saturating_add(MAX_STEP_SEARCHED);
                for _ in 0..MAX_STEP_RUNS {
                    let run = free.run(at, to);
                    at = run.end;
                    let run = run.start as usize..run.end as usize;
                    // If the kernel refuses, the pages stay allocated.
                    let _ = self.records.give_back(run.clone(), Record::words);
                    let _ = self.due.give_back(run, |due| [due]);
                }
                if at < free.end() {
                    GiveBack::Pages(free, at)
                } else {
                    GiveBack::Freeing(free)
                }
            }
            GiveBack::Freeing(mut free) => {
                // The highest first: the free list is a stack, so the lowest are used again first, and the
                // others stay without memory.
                for _ in 0..MAX_STEP_RECORDS {
                    match free.pop() {
                        Some(n) => self.free.give(n),
                        None => return false,
                    }
                }
                GiveBack::Freeing(free)
            }
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_beside_a_list() {
        let list = [3_u32, 4, 5, 63, 64, 65, 66, 300];
        let mut set = Numbers::default();
        list.into_iter().chain([64]).for_each(|n| set.add(n));
        assert_eq!((set.len, set.end()), (8, 320));
        assert_eq!(set.run(0, 1000), 3..6);
        assert_eq!(set.run(6, 65), 63..65);
        assert_eq!(set.run(67, 200), 200..200);
        assert_eq!(set.run(200, 1000), 300..301);
        assert_eq!(set.run(301, 1000), 320..320);
        let popped: Vec<_> = std::iter::from_fn(|| set.pop()).collect();
        assert_eq!(popped, [300, 66, 65, 64, 63, 5, 4, 3]);
        assert_eq!(set.len, 0);
    }
}
