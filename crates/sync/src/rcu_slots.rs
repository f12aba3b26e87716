//! Places for reference-counted values, each filled and emptied again. Only the writer frees a value, when no
//! reader uses it any more.
//!
//! **Problem.** A table that writers fill while readers use it cannot free a removed value at once. Without
//! more help it would keep all removed values until the table is replaced. Rules that are replaced all the
//! time would then double its memory.
//!
//! **Shape.** Like [`crate::RcuCell`], for many small values. A writer that empties a place sets the value
//! aside, and [`RcuSlots::tidy`] frees it later. Values that are set aside together share one epoch, since a
//! new epoch costs a fence.
//!
//! **Costs.** Eight bytes a place; a load for each read.

#![allow(unsafe_code)] // values by their pointers

use crate::read_guard::{self, ReadGuard};
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::sync::atomic::AtomicPtr;
#[cfg(not(loom))]
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of values that share one epoch.
const TOGETHER: usize = 256;

/// An array of places; the module's text explains it.
pub struct RcuSlots<T> {
    /// Null, or a pointer from `Arc::into_raw`, with its count.
    places: Box<[AtomicPtr<T>]>,
    aside: Mutex<Aside<T>>,
    owns: PhantomData<Arc<T>>,
}

/// Values that have left their places, and may still be read.
struct Aside<T> {
    fresh: Vec<Arc<T>>,
    /// (epoch that began after the values had left, values).
    old: VecDeque<(u64, Vec<Arc<T>>)>,
}

impl<T> Aside<T> {
    /// Takes the values that no reader uses any more.
    fn take_unread(&mut self) -> Vec<Vec<Arc<T>>> {
        if !self.fresh.is_empty() {
            let fresh = std::mem::take(&mut self.fresh);
            self.old.push_back((read_guard::replaced(), fresh));
        }
        if self.old.is_empty() {
            return Vec::new();
        }
        let over = read_guard::over();
        let n = self.old.partition_point(|(since, _)| *since <= over);
        let unread = self.old.drain(..n).map(|(_, list)| list).collect();
        if self.old.is_empty() {
            *self = Self::default();
        }
        unread
    }
}

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Self {
            fresh: Vec::new(),
            old: VecDeque::new(),
        }
    }
}

impl<T> RcuSlots<T> {
    /// An array of `n` empty places.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self {
            places: (0..n).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            aside: Mutex::default(),
            owns: PhantomData,
        }
    }

    /// Fills a place. If it is full already, or does not exist, returns the value.
    ///
    /// # Errors
    /// The place is full, or does not exist.
    pub fn set(&self, at: usize, value: Arc<T>) -> Result<(), Arc<T>> {
        let Some(place) = self.places.get(at) else {
            return Err(value);
        };
        let raw = Arc::into_raw(value).cast_mut();
        // Release pairs with the Acquire of the readers: a reader that sees the pointer sees the value.
        match place.compare_exchange(ptr::null_mut(), raw, Release, Relaxed) {
            Ok(_) => Ok(()),
            // SAFETY: `raw` came from `Arc::into_raw` above and was stored nowhere.
            Err(_) => Err(unsafe { Arc::from_raw(raw) }),
        }
    }

    /// The value, if there is one.
    #[inline]
    pub fn load<'a>(&'a self, at: usize, _: &'a ReadGuard) -> Option<&'a T> {
        let raw = self.places.get(at)?.load(Acquire); // pairs with `set`
        // SAFETY: a pointer that is not null came from `Arc::into_raw`. `take_unread` gives up its count only
        // when all threads that began to read before it left its place have ended. This thread is one of
        // them, as long as the borrow lasts. The drop of `self` gives it up too, but `self` is borrowed.
        unsafe { raw.as_ref() }
    }

    /// Whether the place exists and is empty.
    pub fn is_empty(&self, at: usize) -> bool {
        let place = self.places.get(at);
        place.is_some_and(|p| p.load(Relaxed).is_null()) // `set` looks again
    }

    /// A counted reference to the value.
    pub fn arc(&self, at: usize) -> Option<Arc<T>> {
        let _reading = ReadGuard::begin();
        let raw = self.places.get(at)?.load(Acquire); // pairs with `set`
        if raw.is_null() {
            return None;
        }
        // SAFETY: it came from `Arc::into_raw`, and is counted while this thread reads (see `load`). The new
        // reference gets its own count first.
        unsafe {
            Arc::increment_strong_count(raw);
            Some(Arc::from_raw(raw))
        }
    }

    /// Empties a place. A later call, or [`RcuSlots::tidy`], frees the value when no reader is left.
    pub fn clear(&self, at: usize) {
        let Some(place) = self.places.get(at) else { return };
        // Before the epoch that `take_unread` begins. Acquire: the thread that frees the value has seen all
        // of it.
        let raw = place.swap(ptr::null_mut(), AcqRel);
        if raw.is_null() {
            return;
        }
        // SAFETY: it came from `Arc::into_raw`, and only this thread has taken it out of its place, so its
        // count is given up once.
        let value = unsafe { Arc::from_raw(raw) };
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        aside.fresh.push(value);
        if aside.fresh.len() >= TOGETHER {
            let unread = aside.take_unread();
            drop(aside);
            drop(unread);
        }
    }

    /// Frees values that have left their places and that no reader uses. `false`: some may still be used.
    pub fn tidy(&self) -> bool {
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        let unread = aside.take_unread();
        let done = aside.old.is_empty();
        drop(aside);
        drop(unread);
        done
    }
}

impl<T> Drop for RcuSlots<T> {
    fn drop(&mut self) {
        for place in &self.places {
            // Exclusive: no other thread can reach it, so any ordering will do.
            let raw = place.load(Relaxed);
            if !raw.is_null() {
                // SAFETY: the place's own count, given up exactly once.
                drop(unsafe { Arc::from_raw(raw) });
            }
        }
    }
}

impl<T> fmt::Debug for RcuSlots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcuSlots")
            .field("n", &self.places.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    /// Waits until all is freed: readers of other tests in this process delay that.
    fn tidy<T>(places: &RcuSlots<T>) {
        while !places.tidy() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn it_is_filled_once_and_freed_once() {
        let (a, b) = (Arc::new(5), Arc::new(6));
        let places = RcuSlots::new(2);
        let reading = ReadGuard::begin();
        assert!(places.load(0, &reading).is_none() && places.arc(0).is_none());
        places.set(0, a.clone()).expect("empty");
        places.set(1, b.clone()).expect("empty");
        assert_eq!(places.set(0, Arc::new(7)), Err(Arc::new(7)));
        assert_eq!(places.set(2, Arc::new(7)), Err(Arc::new(7)), "there is none");
        assert_eq!(
            (places.load(0, &reading), places.arc(1)),
            (Some(&5), Some(b.clone()))
        );
        drop(reading);
        places.clear(0);
        places.clear(0);
        places.clear(2);
        assert_eq!((places.arc(0), places.arc(1)), (None, Some(b.clone())));
        tidy(&places);
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 2));
        places.set(0, a.clone()).expect("empty again");
        places.clear(1);
        drop(places);
        assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 1));
    }

    #[test]
    fn what_is_read_waits() {
        let (places, reading) = (RcuSlots::new(1), ReadGuard::begin());
        let value = Arc::new(5);
        places.set(0, value.clone()).expect("empty");
        let seen = places.load(0, &reading);
        places.clear(0);
        assert!(!places.tidy());
        assert_eq!((seen, Arc::strong_count(&value)), (Some(&5), 2));
        drop(reading);
        tidy(&places);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    /// Each value records that it is freed. None is freed while it is read, and all are freed in the end.
    #[test]
    fn what_is_read_is_there() {
        static ALIVE: AtomicUsize = AtomicUsize::new(0);
        struct Whole(AtomicBool);
        impl Whole {
            fn new() -> Arc<Self> {
                ALIVE.fetch_add(1, Relaxed);
                Arc::new(Self(AtomicBool::new(true)))
            }
        }
        impl Drop for Whole {
            fn drop(&mut self) {
                self.0.store(false, Relaxed);
                ALIVE.fetch_sub(1, Relaxed);
            }
        }
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let places = Arc::new(RcuSlots::<Whole>::new(4));
        let end = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (places, end) = (places.clone(), end.clone());
                std::thread::spawn(move || {
                    while !end.load(Relaxed) {
                        let reading = ReadGuard::begin();
                        for at in 0..4 {
                            let seen = places.load(at, &reading);
                            assert!(seen.is_none_or(|v| v.0.load(Relaxed)));
                            assert!(places.arc(at).is_none_or(|v| v.0.load(Relaxed)));
                        }
                    }
                })
            })
            .collect();
        for n in 0..rounds {
            places.clear(n % 4);
            assert!(places.set(n % 4, Whole::new()).is_ok());
        }
        end.store(true, Relaxed);
        readers
            .into_iter()
            .for_each(|t| t.join().expect("it saw whole values"));
        tidy(&places);
        assert_eq!(ALIVE.load(Relaxed), 4);
        drop(places);
        assert_eq!(ALIVE.load(Relaxed), 0);
    }
}

/// All interleavings of a reader and a writer that replaces: `scripts/models loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;

    /// A value that is written when it is freed: the model checker reports a read at the same time.
    struct Value(UnsafeCell<u32>);

    // SAFETY: written before it is shared, and when it is freed. The model checks that no reader reads it
    // then.
    unsafe impl Send for Value {}
    // SAFETY: as above.
    unsafe impl Sync for Value {}

    impl Drop for Value {
        fn drop(&mut self) {
            // SAFETY: the claim that the model checks.
            self.0.with_mut(|v| unsafe { *v = 0 });
        }
    }

    #[test]
    fn what_is_read_is_not_freed() {
        loom::model(|| {
            let places = Arc::new(RcuSlots::new(1));
            let set = |n| assert!(places.set(0, Arc::new(Value(UnsafeCell::new(n)))).is_ok());
            set(1);
            let theirs = places.clone();
            let reader = thread::spawn(move || {
                let reading = ReadGuard::begin();
                if let Some(value) = theirs.load(0, &reading) {
                    // SAFETY: the claim that the model checks.
                    let seen = value.0.with(|v| unsafe { *v });
                    assert!(seen == 1 || seen == 2);
                }
            });
            places.clear(0);
            places.tidy();
            set(2);
            reader.join().expect("the reader ends");
        });
    }
}
