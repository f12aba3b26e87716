//! From a device to its session, from any thread.

use heddle_sys::EventFd;
use heddle_virtio::ring::Miss;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most misses that wait to be sent. Queues tell a miss again when it was not resolved, so those beyond are no loss.
const MAX_MISSES: usize = 256;

/// What a device has to tell its front end. Cheap to clone; calls after the connection's end do nothing.
#[derive(Clone, Debug)]
pub struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    misses: Mutex<Vec<Miss>>,
    /// A descriptor of the front end's made a notification wait.
    stuck: AtomicBool,
    wake: Arc<EventFd>,
}

impl Link {
    pub(super) fn new(wake: Arc<EventFd>) -> Self {
        Self(Arc::new(Inner {
            misses: Mutex::new(Vec::new()),
            stuck: AtomicBool::new(false),
            wake,
        }))
    }
    /// A queue waits for an address behind the IOMMU ([`heddle_virtio::DeviceRx::take_miss`]): asks the front end for it. Costs a
    /// lock and a system call; a queue has at most one miss at a time.
    pub fn miss(&self, miss: Miss) {
        let mut misses = self.0.misses.lock();
        if misses.len() < MAX_MISSES && !misses.contains(&miss) {
            misses.push(miss);
            self.0.wake.notify();
        }
    }
    /// A descriptor of the front end's made a notification wait ([`EventFd::is_stuck`]): its session ends, since each new one could do the
    /// same.
    #[cold]
    pub fn stuck(&self) {
        if !self.0.stuck.swap(true, Ordering::Relaxed) {
            self.0.wake.notify();
        }
    }
    pub(super) fn is_stuck(&self) -> bool {
        self.0.stuck.load(Ordering::Relaxed)
    }
    /// What was told since the last time.
    pub(super) fn take(&self) -> Vec<Miss> {
        core::mem::take(&mut self.0.misses.lock())
    }
}
