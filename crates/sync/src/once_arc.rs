//! A place for one reference-counted value: empty at first, filled once. Any thread reads it without a lock
//! and without counting.
//!
//! The place works like `OnceLock<Arc<T>>`, in eight bytes and with one load per read. A writer fills a table
//! of such places while readers use it; the table is freed as a whole.

#![allow(unsafe_code)] // the value by its pointer

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(loom)]
use loom::sync::atomic::AtomicPtr;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::AtomicPtr;

/// A place that is filled once; the module's text explains it.
pub struct OnceArc<T> {
    /// Null, or a pointer from `Arc::into_raw`, which never changes until the owner is dropped.
    place: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

impl<T> OnceArc<T> {
    /// An empty place.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn empty() -> Self {
        Self {
            place: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }
    /// An empty place; the model checker's atomics are made at run time.
    #[must_use]
    #[cfg(loom)]
    pub fn empty() -> Self {
        Self {
            place: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }
    /// Fills it. If it is full already, returns the value.
    ///
    /// # Errors
    /// The place is full.
    pub fn set(&self, value: Arc<T>) -> Result<(), Arc<T>> {
        let raw = Arc::into_raw(value).cast_mut();
        // Release pairs with the Acquire of the readers: a reader that sees the pointer sees the value.
        match self
            .place
            .compare_exchange(ptr::null_mut(), raw, Release, Relaxed)
        {
            Ok(_) => Ok(()),
            // SAFETY: `raw` came from `Arc::into_raw` above and was stored nowhere.
            Err(_) => Err(unsafe { Arc::from_raw(raw) }),
        }
    }
    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        let raw = self.place.load(Acquire); // pairs with `set`
        // SAFETY: a pointer that is not null came from `Arc::into_raw`, whose count this place owns until it
        // is dropped, which the borrow of `self` forbids.
        unsafe { raw.as_ref() }
    }
    /// A counted reference to the value.
    #[inline]
    pub fn arc(&self) -> Option<Arc<T>> {
        let raw = self.place.load(Acquire); // pairs with `set`
        if raw.is_null() {
            return None;
        }
        // SAFETY: as in `get`, the place's own count keeps the value alive; the new `Arc` gets a count of its
        // own first.
        unsafe {
            Arc::increment_strong_count(raw);
            Some(Arc::from_raw(raw))
        }
    }
}

impl<T> Default for OnceArc<T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T> Drop for OnceArc<T> {
    fn drop(&mut self) {
        // Exclusive: no other thread can reach it.
        #[cfg(not(loom))]
        let raw = *self.place.get_mut();
        #[cfg(loom)]
        let raw = self.place.with_mut(|raw| *raw);
        if !raw.is_null() {
            // SAFETY: the place's own count, given up exactly once.
            drop(unsafe { Arc::from_raw(raw) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceArc").field(&self.get()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_filled_once_and_freed_once() {
        let value = Arc::new(5);
        let place = OnceArc::empty();
        assert!(place.get().is_none() && place.arc().is_none());
        place.set(Arc::clone(&value)).expect("empty");
        assert_eq!(place.set(Arc::new(6)), Err(Arc::new(6)));
        assert_eq!((place.get(), place.arc()), (Some(&5), Some(Arc::clone(&value))));
        assert_eq!(Arc::strong_count(&value), 2);
        drop(place);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn readers_see_nothing_or_all_of_it() {
        let place = Arc::new(OnceArc::empty());
        let reader = {
            let place = Arc::clone(&place);
            std::thread::spawn(move || {
                loop {
                    if let Some(v) = place.get() {
                        assert_eq!(*v, vec![7; 100]);
                        return place.arc();
                    }
                    std::hint::spin_loop();
                }
            })
        };
        place.set(Arc::new(vec![7; 100])).expect("nobody else fills it");
        assert_eq!(reader.join().expect("reader ends").as_deref(), place.get());
    }
}

/// All interleavings of two writers and one reader: `make models`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Weak;

    /// A value whose construction the model checker sees. It reports a read before the write as a race.
    struct Value(UnsafeCell<u32>, Weak<()>);

    // SAFETY: written before it is shared, only read afterwards; the model checks that very claim.
    unsafe impl Send for Value {}
    // SAFETY: as above.
    unsafe impl Sync for Value {}

    /// `alive` counts values that were not dropped.
    fn made(n: u32, alive: &Arc<()>) -> Arc<Value> {
        let value = Value(UnsafeCell::new(0), Arc::downgrade(alive));
        // SAFETY: not shared yet.
        value.0.with_mut(|p| unsafe { *p = n });
        Arc::new(value)
    }

    fn read(value: &Value) -> u32 {
        // SAFETY: shared, so never written again.
        value.0.with(|p| unsafe { *p })
    }

    #[test]
    fn one_of_two_writers_wins_and_readers_see_whole_values() {
        loom::model(|| {
            let (place, alive) = (Arc::new(OnceArc::empty()), Arc::new(()));
            let (other, counted) = (place.clone(), alive.clone());
            let writer = thread::spawn(move || other.set(made(1, &counted)).is_ok());
            let other = place.clone();
            let reader = thread::spawn(move || {
                let seen = other.get().map(read);
                // A value that was there once stays.
                let again = other.arc().map(|v| read(&v));
                assert!(seen.is_none() || seen == again, "{seen:?} became {again:?}");
            });
            let mine = place.set(made(2, &alive)).is_ok();
            let theirs = writer.join().expect("the writer ends");
            reader.join().expect("the reader ends");
            assert!(mine != theirs, "exactly one fills it");
            assert_eq!(place.get().map(read), Some(if mine { 2 } else { 1 }));
            assert_eq!(Arc::weak_count(&alive), 1, "the other value is gone");
            drop(place);
            assert_eq!(Arc::weak_count(&alive), 0);
        });
    }
}
