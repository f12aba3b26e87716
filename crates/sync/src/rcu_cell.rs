//! A value that a writer replaces and readers read, where freeing an old one takes long: only the writer ever
//! does that.
//!
//! With a plain snapshot the last reader of an old value frees it, whoever that is. A worker that dropped a
//! table of a million rules would stand still for many milliseconds. And each reader of a plain snapshot
//! counts itself in and out; here it says once that it reads ([`ReadGuard`]), whatever it reads then.

#![allow(unsafe_code)] // the value by its pointer

use crate::read_guard::{self, ReadGuard};
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module's text.
pub struct RcuCell<T> {
    /// What `Arc::into_raw` gave, with its count.
    now: AtomicPtr<T>,
    /// What readers may still hold, each with the epoch that began when it was replaced.
    old: Mutex<Vec<(u64, Arc<T>)>>,
    owns: PhantomData<Arc<T>>,
}

impl<T> RcuCell<T> {
    /// A first value.
    pub fn new(value: T) -> Self {
        Self {
            now: AtomicPtr::new(Arc::into_raw(Arc::new(value)).cast_mut()),
            old: Mutex::new(Vec::new()),
            owns: PhantomData,
        }
    }
    /// The value now. Readers neither wait nor free anything.
    #[inline]
    pub fn load<'a>(&'a self, _: &'a ReadGuard) -> &'a T {
        // Acquire pairs with the AcqRel in `replace`: who finds a value finds all of it.
        let value = self.now.load(Acquire);
        // SAFETY: it came from `Arc::into_raw`. Its count is given up in `free` only, when nobody reads any
        // more who began before it was replaced, which this thread did and does as long as the borrow lasts;
        // or when `self` is dropped, which is borrowed.
        unsafe { &*value }
    }
    /// The value now, for longer.
    pub fn get(&self) -> Arc<T> {
        let _reading = ReadGuard::begin();
        let raw = self.now.load(Acquire); // as in `load`
        // SAFETY: it came from `Arc::into_raw`, and is counted as long as this thread reads, as in `load`;
        // the new one gets a count of its own first.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }
    /// Replaces it. Frees what was replaced, now or at a later call, when no reader is left.
    pub fn replace(&self, value: Arc<T>) {
        let before = self.now.swap(Arc::into_raw(value).cast_mut(), AcqRel);
        let since = read_guard::replaced();
        // SAFETY: it came from `Arc::into_raw`, and nobody else can take it out of its place, so its count is
        // given up once.
        let before = unsafe { Arc::from_raw(before) };
        self.free(Some((since, before)));
    }
    /// Frees what was replaced, if no reader is left. `false`: there is one, perhaps.
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
        // Nobody can come to hold what only this list holds and nobody reads.
        old.retain(|(since, v)| *since > over || Arc::strong_count(v) > 1);
        if old.is_empty() {
            *old = Vec::new();
        }
        old.is_empty()
    }
}

impl<T> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // SAFETY: as in `replace`; nobody reads what is borrowed exclusively.
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

    /// Whether a value goes once no reader is left: other tests of this process read, too.
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

    /// Values that say when they are freed: none is while it is read.
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
