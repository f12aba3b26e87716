//! Who reads what a writer may have replaced meanwhile: so that the writer knows when nobody does any more.
//!
//! **Problem.** A reader that counts itself in and out of each value that it reads pays two locked
//! instructions each time, and each of them waits until all that was stored before has arrived. A translation
//! reads three such values, or sixty where it goes through thirty tables.
//!
//! **Shape** (epochs; Fraser 2004). A thread says once that it reads, and once that it has ended; in between
//! it reads whatever it likes by plain loads, and reading within reading costs nothing. Saying so is to put
//! the number of the present epoch into a place of its own ([`Mark`]). A writer that has replaced a value
//! begins a new epoch, and frees the old value when no place has an earlier one.
//!
//! **Bounds.** A reader that is put aside keeps all from being freed that was replaced since it began; it
//! delays nobody. Readers wait for nobody: only a thread's first reading, and its end, take a lock, which
//! writers hold for a look at each thread.

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

/// The epoch that a thread's reading began in; zero: it does not read.
type Mark = CachePadded<AtomicU64>;

/// All that there is to know of readers.
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
    /// One thread more.
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
        // Acquire pairs with the AcqRel in `next`: who begins in an epoch sees what was replaced before it.
        // Release, as in `end`: a writer may see this mark, and not the one before.
        mark.store(self.epoch.load(Acquire), Release);
        // Pairs with the fence in `next`: either the writer sees this mark, or this thread sees what it has
        // put in the old value's place.
        fence(SeqCst);
    }
    fn end(mark: &Mark) {
        // Pairs with the Acquire in `oldest`: what was read was read before it is freed.
        mark.store(0, Release);
    }
    /// To be called after a value was replaced: begins an epoch. Who reads since then, or later, does not
    /// read that value.
    fn next(&self) -> u64 {
        fence(SeqCst);
        self.epoch.fetch_add(1, AcqRel) + 1
    }
    /// The earliest epoch that somebody reads since.
    fn oldest(&self) -> u64 {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let since = marks.iter().map(|m| m.load(Acquire));
        since.filter(|s| *s != 0).min().unwrap_or(u64::MAX)
    }
}

/// A thread as a reader.
struct Reader {
    mark: Arc<Mark>,
    /// Readings within each other.
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

/// As long as it is there, nothing is freed that this thread may find in a [`crate::RcuCell`]. Cheap within
/// another one.
#[must_use]
#[derive(Debug)]
pub struct ReadGuard {
    /// It is this thread's.
    _here: PhantomData<*const ()>,
}

impl ReadGuard {
    /// From now on.
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
    /// For values that are known by other means than pointers, such as places of a table. To be called after
    /// a value has become unreachable: it is read by nobody any more when [`ReadGuard::over`] has reached the
    /// number that this gives.
    pub fn replaced() -> u64 {
        replaced()
    }
    /// See [`ReadGuard::replaced`]. Takes a look at each thread.
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

/// A value was replaced just now: nobody finds it who begins to read from the epoch on whose number this is.
pub(crate) fn replaced() -> u64 {
    READERS.next()
}

/// The epochs up to which nobody reads any more: a value that was replaced with an epoch up to this one is
/// read by nobody.
pub(crate) fn over() -> u64 {
    READERS.oldest()
}

/// All interleavings of one who reads twice and one who replaces: `scripts/models loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    #![allow(unsafe_code)] // the values that the model checker watches

    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// Values that are written when they are freed: the model checker reports who reads one meanwhile.
    struct Values([UnsafeCell<u32>; 3]);

    // SAFETY: a value is written by who has found that nobody reads it; the model checks that very claim.
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
                    // SAFETY: what is checked.
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
                        // SAFETY: what is checked.
                        values.0[*n].with_mut(|v| unsafe { *v = 1 });
                    }
                    read
                });
            }
            reader.join().expect("the reader ends");
        });
    }
}
