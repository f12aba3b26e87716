//! A value that a writer replaces and readers read, where freeing an old one takes long: only the writer ever does that.
//!
//! With a plain snapshot the last reader of an old value frees it, whoever that is. A worker that dropped a table of a million rules would
//! stand still for many milliseconds.

use arc_swap::{ArcSwap, Guard};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module's text.
#[derive(Debug)]
pub struct Replaced<T> {
    now: ArcSwap<T>,
    /// What readers may still hold.
    old: Mutex<Vec<Arc<T>>>,
}

impl<T> Replaced<T> {
    /// A first value.
    pub fn new(value: T) -> Self {
        Self {
            now: ArcSwap::from_pointee(value),
            old: Mutex::new(Vec::new()),
        }
    }
    /// The value now. Readers neither wait nor free anything.
    #[inline]
    pub fn load(&self) -> Guard<Arc<T>> {
        self.now.load()
    }
    /// The value now, for longer.
    pub fn get(&self) -> Arc<T> {
        self.now.load_full()
    }
    /// Replaces it. Frees what was replaced, now or at a later call, when no reader is left.
    pub fn replace(&self, value: Arc<T>) {
        let before = self.now.swap(value);
        self.free(Some(before));
    }
    /// Frees what was replaced, if no reader is left.
    pub fn tidy(&self) {
        self.free(None);
    }
    fn free(&self, more: Option<Arc<T>>) {
        let mut old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        old.extend(more);
        // Nobody can come to hold what only this list holds.
        old.retain(|v| Arc::strong_count(v) > 1);
        if old.is_empty() {
            *old = Vec::new();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reader_frees_nothing() {
        let r = Replaced::new(1);
        let (guard, first) = (r.load(), Arc::downgrade(&r.get()));
        r.replace(Arc::new(2));
        assert_eq!((**guard, **r.load()), (1, 2));
        drop(guard);
        assert!(first.upgrade().is_some(), "it waits for the writer");
        r.tidy();
        assert!(first.upgrade().is_none());
        let second = Arc::downgrade(&r.get());
        r.replace(Arc::new(3));
        assert!(second.upgrade().is_none(), "nobody read it");
    }
}
