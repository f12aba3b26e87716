//! A value that a writer replaces and readers read. Freeing an old value takes long, so only the writer
//! frees.
//!
//! With a plain snapshot, the last reader of an old value frees it, and that may be a worker. A worker that
//! dropped a table of a million rules would stall for many milliseconds. And each reader of a plain snapshot
//! counts itself in and out. Here a thread announces once that it reads ([`ReadGuard`]), for all values that
//! it reads then.

#![allow(unsafe_code)] // the value by its pointer

use crate::read_guard::{self, ReadGuard};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, PoisonError};

/// A value that is replaced while readers use it; the module's text explains it.
pub struct RcuCell<T> {
    /// A pointer from `Arc::into_raw`, with its count.
    now: AtomicPtr<T>,
    /// Values that readers may still use, each with the epoch that began when it was replaced.
    old: Mutex<Vec<(u64, Arc<T>)>>,
    owns: PhantomData<Arc<T>>,
}

impl<T> RcuCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        Self {
            now: AtomicPtr::new(Arc::into_raw(Arc::new(value)).cast_mut()),
            old: Mutex::new(Vec::new()),
            owns: PhantomData,
        }
    }
    /// The current value. Readers neither wait nor free anything.
    #[inline]
    pub fn load<'a>(&'a self, _: &'a ReadGuard) -> &'a T {
        // Acquire pairs with the AcqRel in `replace`: a reader that finds a value finds all of it.
        let value = self.now.load(Acquire);
        // SAFETY: it came from `Arc::into_raw`. `free` gives up its count only when all threads that began to
        // read before it was replaced have ended. This thread is one of them, as long as the borrow lasts.
        // The drop of `self` gives it up too, but `self` is borrowed.
        unsafe { &*value }
    }
    /// A counted reference to the current value.
    pub fn get(&self) -> Arc<T> {
        let _reading = ReadGuard::begin();
        let raw = self.now.load(Acquire); // pairs with the AcqRel in `replace`
        // SAFETY: it came from `Arc::into_raw`, and is counted while this thread reads (see `load`). The new
        // reference gets its own count first.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }
    /// Replaces the value. Frees old values, now or at a later call, when no reader is left.
    pub fn replace(&self, value: Arc<T>) {
        let before = self.now.swap(Arc::into_raw(value).cast_mut(), AcqRel);
        let since = read_guard::replaced();
        // SAFETY: it came from `Arc::into_raw`, and only this thread has taken it out of its place, so its
        // count is given up once.
        let before = unsafe { Arc::from_raw(before) };
        self.free(Some((since, before)));
    }
    /// Frees old values that no reader uses. `false`: some may still be used.
    pub fn tidy(&self) -> bool {
        self.free(None)
    }
    fn free(&self, more: Option<(u64, Arc<T>)>) -> bool {
        let mut old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        old.extend(more);
        if old.is_empty() {
            return true;
        }
        let over = read_guard::over();
        // A value that only this list holds, and that no reader uses, cannot get a new reference.
        old.retain(|(since, v)| *since > over || Arc::strong_count(v) > 1);
        if old.is_empty() {
            *old = Vec::new();
        }
        old.is_empty()
    }
}

impl<T> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // SAFETY: as in `replace`; `self` is borrowed exclusively, so there is no reader.
        drop(unsafe { Arc::from_raw(*self.now.get_mut()) });
    }
}

impl<T: fmt::Debug> fmt::Debug for RcuCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RcuCell").field(&self.get()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Weak;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Whether a value is freed once no reader is left. Other tests of this process are readers, too.
    fn is_tidied(r: &RcuCell<i32>, value: &Weak<i32>) -> bool {
        (0..5000).any(|_| {
            r.tidy();
            std::thread::sleep(std::time::Duration::from_millis(1));
            value.upgrade().is_none()
        })
    }

    #[test]
    fn a_reader_frees_nothing() {
        let r = RcuCell::new(1);
        let reading = ReadGuard::begin();
        let (seen, first) = (r.load(&reading), Arc::downgrade(&r.get()));
        r.replace(Arc::new(2));
        assert_eq!((*seen, *r.load(&ReadGuard::begin())), (1, 2));
        drop(reading);
        assert!(first.upgrade().is_some(), "it waits for the writer");
        assert!(is_tidied(&r, &first));
        // At once, unless another test of this process happens to read.
        let freed_at_once = (0..5000).any(|n| {
            let second = Arc::downgrade(&r.get());
            r.replace(Arc::new(n));
            let freed = second.upgrade().is_none();
            std::thread::sleep(std::time::Duration::from_millis(1));
            freed
        });
        assert!(freed_at_once, "nobody read it");
        let (held, third) = (r.get(), Arc::downgrade(&r.get()));
        r.replace(Arc::new(4));
        drop(held);
        assert!(third.upgrade().is_some(), "nor does who held it for longer");
        assert!(is_tidied(&r, &third));
    }

    /// Each value records that it is freed; none is freed while it is read.
    #[test]
    fn what_is_read_is_there() {
        struct Whole(AtomicBool, u64);
        impl Drop for Whole {
            fn drop(&mut self) {
                self.0.store(false, Relaxed);
            }
        }
        let whole = |n| Whole(AtomicBool::new(true), n);
        let end = if cfg!(miri) { 50 } else { 20_000 };
        let r = Arc::new(RcuCell::new(whole(0)));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let r = r.clone();
                std::thread::spawn(move || {
                    let mut last = 0;
                    while last < end {
                        let reading = ReadGuard::begin();
                        let seen = r.load(&reading);
                        let inner = r.load(&ReadGuard::begin()).1;
                        assert!(seen.1 >= last && inner >= seen.1 && seen.0.load(Relaxed));
                        last = seen.1;
                    }
                })
            })
            .collect();
        (1..=end).for_each(|n| r.replace(Arc::new(whole(n))));
        readers
            .into_iter()
            .for_each(|t| t.join().expect("it saw whole values"));
        r.tidy();
        assert!(r.old.lock().expect("nobody panicked").is_empty());
    }
}
