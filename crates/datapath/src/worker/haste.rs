//! Moments in which a worker comes before other programs.
//!
//! Somebody else decides when ([`crate::Datapath::hurry`]): a worker that others keep from its processor
//! cannot. The number of a thread that has ended may be another's: it is used under a lock that the thread
//! takes when it ends.

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

/// Lower than that of the thread that ends the moment.
const LEVEL: i32 = 1;

#[derive(Debug)]
struct Thread {
    id: ThreadId,
    raised: bool,
}

/// Of one worker.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "as above")]
pub(crate) struct Haste(Mutex<Option<Thread>>);

/// While this lives, the calling thread is the worker.
pub(crate) struct Running<'h>(&'h Haste);

impl Haste {
    /// The calling thread is the worker.
    pub(crate) fn begin(&self) -> Running<'_> {
        *self.0.lock() = Some(Thread {
            id: ThreadId::own(),
            raised: false,
        });
        Running(self)
    }
    /// Lets the worker run before other programs, unless somebody has given it a priority.
    pub(crate) fn raise(&self) -> io::Result<()> {
        let mut thread = self.0.lock();
        if let Some(t) = thread.as_mut()
            && !t.raised
            && priority::is_ordinary(t.id)
        {
            priority::raise(t.id, LEVEL)?;
            t.raised = true;
        }
        Ok(())
    }
    /// The moment is over.
    pub(crate) fn lower(&self) {
        if let Some(t) = self.0.lock().as_mut()
            && std::mem::take(&mut t.raised)
        {
            // Who could raise it can lower it.
            let _ = priority::lower(t.id);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn only_a_thread_that_runs_is_raised_and_what_others_gave_it_stays() {
        let haste = Haste::default();
        haste.raise().expect("nobody is there");
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
            if haste.raise().is_err() {
                eprintln!("no real-time priority here");
                return;
            }
            assert!(!priority::is_ordinary(id));
            haste.lower();
            assert!(priority::is_ordinary(id));
            priority::raise(id, 7).expect("as before");
            haste.raise().expect("nothing to do");
            haste.lower();
            assert!(!priority::is_ordinary(id), "not ours to lower");
            drop(end);
        });
        assert!(haste.0.lock().is_none());
    }
}
