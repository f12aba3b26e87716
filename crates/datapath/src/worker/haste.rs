//! Moments in which a worker comes before other programs.
//!
//! Somebody else decides when they begin ([`crate::Datapath::hurry`]): a worker that others keep from its
//! processor cannot. The worker sees to it that each of them ends: whoever began it may wait for a lock of a
//! thread that gets no processor as long as the moment lasts.
//!
//! The number of a thread that has ended may be another's: it is used under a lock that the thread takes when
//! it ends.

#![expect(
    clippy::disallowed_methods,
    reason = "a lock of those who hurry a worker, which takes it when it ends"
)]

use heddle_sys::priority::{self, ThreadId};
#[expect(
    clippy::disallowed_types,
    reason = "of those who hurry it; the worker takes it when it ends"
)]
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lower than that of the thread that ends the moment.
const LEVEL: i32 = 1;

#[derive(Debug)]
struct Thread {
    id: ThreadId,
    raised: bool,
}

/// Of one worker.
#[derive(Debug, Default)]
pub(crate) struct Haste {
    #[expect(clippy::disallowed_types, reason = "as above")]
    thread: Mutex<Option<Thread>>,
    /// When the moment is over, cycle count; 0: there is none.
    until: AtomicU64,
}

/// While this lives, the calling thread is the worker.
pub(crate) struct Running<'h>(&'h Haste);

impl Haste {
    /// The calling thread is the worker.
    pub(crate) fn begin(&self) -> Running<'_> {
        *self.thread.lock() = Some(Thread {
            id: ThreadId::own(),
            raised: false,
        });
        Running(self)
    }
    /// Lets the worker run before other programs until cycle count `until`, unless somebody has given it a
    /// priority.
    pub(crate) fn raise(&self, until: u64) -> io::Result<()> {
        let mut thread = self.thread.lock();
        let Some(t) = thread.as_mut() else {
            return Ok(());
        };
        if !t.raised && priority::is_ordinary(t.id) {
            priority::raise(t.id, LEVEL)?;
            t.raised = true;
        }
        if t.raised {
            self.until.store(until, Relaxed);
        }
        Ok(())
    }
    /// Called by the worker, once per round: ends the moment, if it is time.
    #[inline]
    pub(crate) fn look(&self, now: u64) {
        // Whoever sets it again meanwhile has it ended a round later.
        let until = self.until.load(Relaxed);
        if until != 0 && now >= until {
            self.lower();
        }
    }
    /// The moment is over.
    #[cold]
    pub(crate) fn lower(&self) {
        let mut thread = self.thread.lock();
        self.until.store(0, Relaxed);
        if let Some(t) = thread.as_mut()
            && std::mem::take(&mut t.raised)
        {
            // Who could raise it can lower it.
            let _ = priority::lower(t.id);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.thread.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn only_a_thread_that_runs_is_raised_and_what_others_gave_it_stays() {
        let haste = Haste::default();
        haste.raise(9).expect("nobody is there");
        std::thread::scope(|s| {
            let (begun, id) = mpsc::channel();
            let (end, ends) = mpsc::channel::<()>();
            let haste = &haste;
            s.spawn(move || {
                let _running = haste.begin();
                begun.send(ThreadId::own()).expect("somebody waits");
                let _ = ends.recv();
            });
            let id = id.recv().expect("it runs");
            if haste.raise(100).is_err() {
                eprintln!("no real-time priority here");
                return;
            }
            assert!(!priority::is_ordinary(id));
            haste.look(99);
            haste.raise(200).expect("as before");
            haste.look(199);
            assert!(!priority::is_ordinary(id), "it goes on");
            haste.look(200);
            assert!(priority::is_ordinary(id), "the worker's own end of it");
            haste.raise(300).expect("as before");
            haste.lower();
            assert!(priority::is_ordinary(id), "somebody else's");
            priority::raise(id, 7).expect("as before");
            haste.raise(400).expect("nothing to do");
            haste.look(500);
            haste.lower();
            assert!(!priority::is_ordinary(id), "not ours to lower");
            drop(end);
        });
        assert!(haste.thread.lock().is_none());
    }
}
