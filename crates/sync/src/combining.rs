//! A value that one thread uses at a time, without any thread waiting for it.
//!
//! **Problem.** Workers sometimes share a ring. A worker that finds it in use must not wait, and must not
//! lose its packets either.
//!
//! **Method.** Flat combining (Hendler, Incze, Shavit and Tzafrir, SPAA 2010). A thread that finds the value
//! taken leaves its work in a queue of the caller's, and calls [`Combining::post`]. The holder cannot release
//! the value without seeing the post ([`Guard::release`]), and then does the work. If there is no holder any
//! more, the thread that posted becomes the holder.
//!
//! **Invariants.** `TAKEN` is set while there is a [`Guard`], of which there is at most one. A post sets
//! `POSTED`. Only a holder clears it: it sees that in [`Guard::is_posted`], and then looks into the queue. So
//! no posted work is forgotten.
//!
//! **Orderings.** Taking is Acquire and releasing is Release, both on the same word: a holder sees the writes
//! of the holder before it. A post is Release and clearing `POSTED` is Acquire: a holder that sees the post
//! sees the work in the queue.
//!
//! **Costs.** Two compare-and-swaps of one word, like a free lock.

#![allow(unsafe_code)] // the value that one thread uses at a time

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::sync::atomic::AtomicU32;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU32;

const TAKEN: u32 = 1;
const POSTED: u32 = 2;

/// A value with at most one user at a time; the module's text explains it.
#[derive(Debug)]
pub struct Combining<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a `Guard` only, of which there is one at a time; it moves between
// threads, so `T: Send`.
unsafe impl<T: Send> Sync for Combining<T> {}

impl<T> Combining<T> {
    /// A value that is not taken.
    pub fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }
    /// Takes the value, unless it is taken already. The holder checks [`Guard::is_posted`].
    #[inline]
    pub fn try_take(&self) -> Option<Guard<'_, T>> {
        match self.word.compare_exchange(0, TAKEN, Acquire, Relaxed) {
            Ok(_) => Some(Guard {
                of: self,
                posted: false,
            }),
            Err(POSTED) => self.take_posted(),
            Err(_) => None,
        }
    }
    #[cold]
    fn take_posted(&self) -> Option<Guard<'_, T>> {
        let taken = self.word.compare_exchange(POSTED, TAKEN, Acquire, Relaxed);
        taken.ok().map(|_| Guard {
            of: self,
            posted: true,
        })
    }
    /// Takes the value if work was posted that no holder has seen.
    #[inline]
    pub fn take_left(&self) -> Option<Guard<'_, T>> {
        if self.word.load(Relaxed) != POSTED {
            return None;
        }
        self.take_posted()
    }
    /// Notifies the holder of work in the queue. If there is no holder, the caller becomes it, and gets the
    /// guard.
    #[cold]
    pub fn post(&self) -> Option<Guard<'_, T>> {
        if self.word.fetch_or(POSTED, AcqRel) & TAKEN != 0 {
            return None; // the holder sees the post when it releases the value
        }
        // If another thread takes the value first, that thread sees the post.
        self.take_posted()
    }
}

/// Access to the value for its holder. Dropping it releases the value without a check for posts; the next
/// holder sees them.
#[derive(Debug)]
pub struct Guard<'a, T> {
    of: &'a Combining<T>,
    posted: bool,
}

impl<T> Guard<'_, T> {
    /// Whether work was posted since the last holder looked.
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.posted
    }
    /// Releases the value. If work was posted meanwhile, keeps the value and returns the guard again.
    #[inline]
    pub fn release(self) -> Option<Self> {
        let kept = ManuallyDrop::new(self);
        match kept.of.word.compare_exchange(TAKEN, 0, Release, Relaxed) {
            Ok(_) => None,
            Err(_) => Some(ManuallyDrop::into_inner(kept).told()),
        }
    }
    /// Releases the value, and leaves a post for the next holder. The caller comes back later
    /// ([`Combining::take_left`]), unless another thread came.
    #[cold]
    pub fn leave(self) {
        let kept = ManuallyDrop::new(self);
        kept.of.word.store(POSTED, Release);
    }
    #[cold]
    fn told(mut self) -> Self {
        self.of.word.fetch_and(!POSTED, Acquire);
        self.posted = true;
        self
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.of.word.fetch_and(!TAKEN, Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, and it is borrowed.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed mutably.
        unsafe { &mut *self.of.value.get() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn one_has_it_and_is_told() {
        let c = Combining::new(1);
        let mut mine = c.try_take().unwrap();
        assert!(!mine.is_posted() && c.try_take().is_none());
        *mine += 1;
        assert!(c.post().is_none(), "somebody has it");
        let mine = mine.release().expect("told");
        assert!(mine.is_posted() && mine.release().is_none());
        assert_eq!(c.try_take().as_deref(), Some(&2));
        assert!(c.post().unwrap().is_posted(), "nobody has it");
        // The guard is dropped without a look: the next holder sees the post.
        let mine = c.try_take().unwrap();
        assert!(c.post().is_none());
        drop(mine);
        let mine = c.try_take().unwrap();
        assert!(mine.is_posted());
        assert!(c.take_left().is_none(), "somebody has it");
        mine.leave();
        assert!(c.try_take().unwrap().is_posted());
        assert!(!c.try_take().unwrap().is_posted());
        assert!(c.take_left().is_none(), "nothing is left");
        c.try_take().unwrap().leave();
        assert!(c.take_left().unwrap().is_posted());
    }

    #[test]
    fn what_four_threads_leave_is_all_done() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let (c, left) = (Combining::new(0_u64), AtomicU64::new(0));
        let come = || {
            let mut held = match c.try_take() {
                Some(mut held) => {
                    *held += 1;
                    Some(held)
                }
                None => {
                    left.fetch_add(1, Relaxed);
                    c.post()
                }
            };
            while let Some(mut mine) = held {
                if mine.is_posted() {
                    *mine += left.swap(0, Relaxed);
                }
                held = mine.release();
            }
        };
        let work = || (0..rounds).for_each(|_| come());
        std::thread::scope(|s| {
            (0..4).for_each(|_| {
                s.spawn(work);
            });
        });
        assert_eq!((*c.try_take().unwrap(), left.load(Relaxed)), (4 * rounds, 0));
    }
}

/// All interleavings of three threads that bring work: `make models`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell as Watched;
    use loom::sync::{Arc, atomic::AtomicU32 as Count};

    /// Loom reports two uses at a time.
    struct Done(Watched<u32>);

    fn add(held: &mut Guard<'_, Done>, n: u32) {
        // SAFETY: the claim that the model checks.
        held.0.with_mut(|p| unsafe { *p += n });
    }

    fn come(c: &Combining<Done>, left: &Count) {
        let mut held = match c.try_take() {
            Some(mut held) => {
                add(&mut held, 1);
                Some(held)
            }
            None => {
                left.fetch_add(1, Relaxed);
                c.post()
            }
        };
        while let Some(mut mine) = held {
            if mine.is_posted() {
                add(&mut mine, left.swap(0, Relaxed));
            }
            held = mine.release();
        }
    }

    #[test]
    fn no_work_is_lost_and_none_is_done_at_the_same_time() {
        loom::model(|| {
            let shared = Arc::new((Combining::new(Done(Watched::new(0))), Count::new(0)));
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || come(&shared.0, &shared.1))
                })
                .collect();
            come(&shared.0, &shared.1);
            others.into_iter().for_each(|t| t.join().unwrap());
            let held = shared.0.try_take().expect("nobody has it");
            // SAFETY: as in `add`.
            let done = held.0.with(|p| unsafe { *p });
            assert_eq!((done, shared.1.load(Relaxed)), (3, 0));
        });
    }
}
