//! A value that one thread uses at a time, and at which no thread waits.
//!
//! **Problem.** Workers share a ring now and then. One that finds it in use must not wait, and must not lose
//! its packets either.
//!
//! **How.** Flat combining (Hendler, Incze, Shavit and Tzafrir, SPAA 2010): who finds the value taken leaves
//! its work in a queue beside it, which is the user's, and says so ([`Combining::post`]). The holder cannot
//! let go without being told ([`Guard::release`]); it does the work then. If there is no holder any more, the
//! one who posted becomes it.
//!
//! **Invariants.** `TAKEN` is set while there is a [`Guard`], of which there is one at most. `POSTED` is set
//! by a post and cleared only by a holder, which is told ([`Guard::is_posted`]) and looks into the queue
//! afterwards. So nothing that was posted is forgotten.
//!
//! **Orderings.** Taking is Acquire and letting go is Release, both on the one word: a holder sees what the
//! one before it wrote. A post is Release and clearing `POSTED` is Acquire: a holder that was told sees what
//! was left in the queue.
//!
//! **Costs.** Two compare-and-swaps of one word, as a lock that is free.

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

/// See the module's text.
#[derive(Debug)]
pub struct Combining<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a `Guard` only, of which there is one at a time; it moves between
// threads, so `T: Send`.
unsafe impl<T: Send> Sync for Combining<T> {}

impl<T> Combining<T> {
    /// A value that nobody has.
    pub fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }
    /// Takes the value, unless somebody has it. The holder looks at [`Guard::is_posted`].
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
    /// Says that something was left for the holder. Where there is none, it is for the caller to do.
    #[cold]
    pub fn post(&self) -> Option<Guard<'_, T>> {
        if self.word.fetch_or(POSTED, AcqRel) & TAKEN != 0 {
            return None; // the holder is told when it lets go
        }
        // Whoever is quicker is told.
        self.take_posted()
    }
}

/// The value, for the one who has it. Dropped, it lets go without being told; what was posted stays for the
/// next one.
#[derive(Debug)]
pub struct Guard<'a, T> {
    of: &'a Combining<T>,
    posted: bool,
}

impl<T> Guard<'_, T> {
    /// Whether something was left since the last holder looked.
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.posted
    }
    /// Lets go; or gives itself back, when something was left meanwhile.
    #[inline]
    pub fn release(self) -> Option<Self> {
        let kept = ManuallyDrop::new(self);
        match kept.of.word.compare_exchange(TAKEN, 0, Release, Relaxed) {
            Ok(_) => None,
            Err(_) => Some(ManuallyDrop::into_inner(kept).told()),
        }
    }
    /// Lets go, and says that the next one has something to do.
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
        // Dropped without a look: the next one is told.
        let mine = c.try_take().unwrap();
        assert!(c.post().is_none());
        drop(mine);
        let mine = c.try_take().unwrap();
        assert!(mine.is_posted());
        mine.leave();
        assert!(c.try_take().unwrap().is_posted());
        assert!(!c.try_take().unwrap().is_posted());
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

/// All interleavings of three who come with work: `make models`.
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
