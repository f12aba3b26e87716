//! Readers announce that they read, so that a writer knows when no reader uses a replaced value any more.
//!
//! **Problem.** A reader that counts itself in and out of each value pays two locked instructions each time.
//! Each of them waits until all earlier stores have completed. A translation reads three such values, or
//! sixty if it goes through thirty tables.
//!
//! **Shape** (epochs; Fraser 2004). A thread announces when it begins to read and when it ends. In between it
//! reads any values by plain loads, and nested readings cost nothing. To announce, it stores the number of
//! the current epoch in a word of its own ([`Mark`]). A writer that has replaced a value begins a new epoch,
//! and frees the old value when no mark has an earlier one.
//!
//! **Bounds.** A reader that is descheduled delays the freeing of everything replaced since it began, but it
//! delays no thread. Readers do not wait. Only a thread's first reading, and its end, take a lock, which
//! writers hold while they look at each thread's mark.

use crate::CachePadded;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use std::sync::{Arc, PoisonError};

#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicU64, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicU64, fence},
};

/// The epoch in which a thread began to read; zero: it does not read.
type Mark = CachePadded<AtomicU64>;

/// The epoch, and the marks of all threads.
struct Readers {
    epoch: AtomicU64,
    marks: Mutex<Vec<Arc<Mark>>>,
}

#[cfg(not(loom))]
static READERS: Readers = Readers {
    epoch: AtomicU64::new(1),
    marks: Mutex::new(Vec::new()),
};
#[cfg(loom)]
loom::lazy_static! {
    static ref READERS: Readers = Readers {
        epoch: AtomicU64::new(1),
        marks: Mutex::new(Vec::new()),
    };
}

impl Readers {
    /// Registers one more thread.
    fn join(&self) -> Arc<Mark> {
        let mark = Arc::new(Mark::new(AtomicU64::new(0)));
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.push(Arc::clone(&mark));
        mark
    }
    #[cfg(not(loom))]
    fn leave(&self, mark: &Arc<Mark>) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.retain(|m| !Arc::ptr_eq(m, mark));
    }
    fn begin(&self, mark: &Mark) {
        // Acquire pairs with the AcqRel in `next`: a thread that begins in an epoch sees all values replaced
        // before it. Release, as in `end`: a writer may see this mark, and not the one before.
        mark.store(self.epoch.load(Acquire), Release);
        // Pairs with the fence in `next`: either the writer sees this mark, or this thread sees the new
        // value.
        fence(SeqCst);
    }
    fn end(mark: &Mark) {
        // Pairs with the Acquire in `oldest`: the reads come before the freeing.
        mark.store(0, Release);
    }
    /// Begins an epoch, after a value was replaced. A thread that begins to read from then on does not read
    /// that value.
    fn next(&self) -> u64 {
        fence(SeqCst);
        self.epoch.fetch_add(1, AcqRel) + 1
    }
    /// The earliest epoch of all current readers.
    fn oldest(&self) -> u64 {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let since = marks.iter().map(|m| m.load(Acquire));
        since.filter(|s| *s != 0).min().unwrap_or(u64::MAX)
    }
}

/// The calling thread as a reader.
struct Reader {
    mark: Arc<Mark>,
    /// Depth of nested readings.
    depth: Cell<usize>,
}

// The model checker's threads end with the model, and so do its readers.
#[cfg(not(loom))]
impl Drop for Reader {
    fn drop(&mut self) {
        READERS.leave(&self.mark);
    }
}

#[cfg(loom)]
use loom::thread_local;

thread_local! {
    static READER: Reader = Reader {
        mark: READERS.join(),
        depth: Cell::new(0),
    };
}

/// While it exists, no value is freed that this thread may find in a [`crate::RcuCell`]. A nested guard is
/// cheap.
#[must_use]
#[derive(Debug)]
pub struct ReadGuard {
    /// Not `Send`: the mark belongs to this thread.
    _here: PhantomData<*const ()>,
}

impl ReadGuard {
    /// Begins to read.
    #[inline]
    pub fn begin() -> Self {
        READER.with(|r| {
            let depth = r.depth.get();
            if depth == 0 {
                READERS.begin(&r.mark);
            }
            r.depth.set(depth + 1);
        });
        Self { _here: PhantomData }
    }
    /// Begins an epoch, for values without pointers, such as indexes of a table. Called after a value has
    /// become unreachable. No reader uses the value any more when [`ReadGuard::over`] has reached the number
    /// that this returns.
    pub fn replaced() -> u64 {
        replaced()
    }
    /// The limit that [`ReadGuard::replaced`] describes. Reads the mark of each thread.
    pub fn over() -> u64 {
        over()
    }
}

impl Drop for ReadGuard {
    #[inline]
    fn drop(&mut self) {
        READER.with(|r| {
            let depth = r.depth.get() - 1;
            r.depth.set(depth);
            if depth == 0 {
                Readers::end(&r.mark);
            }
        });
    }
}

/// Begins an epoch after a value was replaced. A thread that begins to read in this epoch or later does not
/// find the value.
pub(crate) fn replaced() -> u64 {
    READERS.next()
}

/// The oldest epoch of a current reader. No reader uses a value that was replaced with this epoch or an
/// earlier one.
pub(crate) fn over() -> u64 {
    READERS.oldest()
}

/// All interleavings of a thread that reads twice and one that replaces: `scripts/models loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    #![allow(unsafe_code)] // the values that the model checker watches

    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// Values that are written when they are freed: the model checker reports a read at the same time.
    struct Values([UnsafeCell<u32>; 3]);

    // SAFETY: a thread writes a value after it found that no reader uses it; the model checks that very
    // claim.
    unsafe impl Send for Values {}
    // SAFETY: as above.
    unsafe impl Sync for Values {}

    #[test]
    fn what_is_read_is_not_freed() {
        loom::model(|| {
            let readers = Arc::new(Readers {
                epoch: AtomicU64::new(1),
                marks: Mutex::new(Vec::new()),
            });
            let values = Arc::new(Values(std::array::from_fn(|_| UnsafeCell::new(0))));
            let now = Arc::new(AtomicUsize::new(0));
            let mark = readers.join();
            let theirs = (readers.clone(), values.clone(), now.clone());
            let reader = thread::spawn(move || {
                let (readers, values, now) = theirs;
                let mut last = 0;
                for _ in 0..2 {
                    readers.begin(&mark);
                    let n = now.load(Acquire);
                    // SAFETY: the claim that the model checks.
                    assert_eq!(values.0[n].with(|v| unsafe { *v }), 0);
                    assert!(n >= last);
                    last = n;
                    Readers::end(&mark);
                }
            });
            let mut old = Vec::new();
            for n in 1..3 {
                let before = now.swap(n, AcqRel);
                old.push((readers.next(), before));
                let over = readers.oldest();
                old.retain(|(since, n)| {
                    let read = *since > over;
                    if !read {
                        // SAFETY: the claim that the model checks.
                        values.0[*n].with_mut(|v| unsafe { *v = 1 });
                    }
                    read
                });
            }
            reader.join().expect("the reader ends");
        });
    }
}
