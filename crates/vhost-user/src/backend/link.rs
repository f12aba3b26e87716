//! From workers to their session: misses of addresses, and notifications.

use heddle_sys::EventFd;
use heddle_virtio::device::{Call, Interrupt, Link};
use heddle_virtio::ring::Miss;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of misses that wait to be sent. A queue reports an unresolved miss again, so the misses
/// beyond are no loss.
const MAX_MISSES: usize = 256;

/// Reports of workers to a session. A clone is cheap; calls after the connection's end do nothing.
#[derive(Clone, Debug)]
pub(super) struct Outbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    misses: Mutex<Vec<Miss>>,
    /// A descriptor of the front end's made a notification wait.
    stuck: AtomicBool,
    wake: Arc<EventFd>,
}

impl Outbox {
    pub(super) fn new(wake: Arc<EventFd>) -> Self {
        Self(Arc::new(Inner {
            misses: Mutex::new(Vec::with_capacity(MAX_MISSES)),
            stuck: AtomicBool::new(false),
            wake,
        }))
    }
    /// A descriptor of the front end's made a notification wait ([`EventFd::is_stuck`]): its session ends,
    /// since each new one could do the same.
    #[cold]
    pub(super) fn stuck(&self) {
        if !self.0.stuck.swap(true, Ordering::Relaxed) {
            self.0.wake.notify();
        }
    }
    pub(super) fn is_stuck(&self) -> bool {
        self.0.stuck.load(Ordering::Relaxed)
    }
    /// The misses since the last call.
    pub(super) fn take(&self) -> Vec<Miss> {
        let misses = &mut *self.0.misses.lock();
        if misses.is_empty() {
            return Vec::new();
        }
        core::mem::replace(misses, Vec::with_capacity(MAX_MISSES))
    }
    /// Notifications by a descriptor of the front end's, which is non-blocking.
    pub(super) fn call(&self, fd: OwnedFd) -> Call {
        Box::new(CallFd {
            fd: EventFd::from(fd),
            outbox: self.clone(),
        })
    }
}

impl Link for Outbox {
    /// Costs a `try_lock`, which never waits, and a system call; a queue has at most one miss at a time.
    fn miss(&self, miss: Miss) {
        let Some(mut misses) = self.0.misses.try_lock() else {
            return; // the queue reports it again
        };
        if misses.len() < MAX_MISSES && !misses.contains(&miss) {
            misses.push(miss);
            self.0.wake.notify();
        }
    }
}

/// An eventfd, or a pipe, of the front end's.
#[derive(Debug)]
struct CallFd {
    fd: EventFd,
    outbox: Outbox,
}

impl Interrupt for CallFd {
    fn raise(&self) {
        self.fd.notify();
        if self.fd.is_stuck() {
            self.outbox.stuck();
        }
    }
}
