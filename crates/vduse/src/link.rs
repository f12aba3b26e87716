//! From workers to their session: misses of addresses, and interrupts.

use crate::host::DeviceEnd;
use heddle_sys::EventFd;
use heddle_virtio::device::{Interrupt, Link};
use heddle_virtio::ring::Miss;
use parking_lot::Mutex;
use std::sync::Arc;

/// Maximum number of misses that wait. A queue reports an unresolved miss again.
const MAX_MISSES: usize = 64;

/// Reports of workers to a session.
#[derive(Debug)]
pub(crate) struct Outbox {
    misses: Mutex<Vec<Miss>>,
    wake: Arc<EventFd>,
}

impl Outbox {
    pub(crate) fn new(wake: Arc<EventFd>) -> Self {
        Self {
            misses: Mutex::default(),
            wake,
        }
    }
    /// The misses since the last call.
    pub(crate) fn take(&self) -> Vec<Miss> {
        core::mem::take(&mut *self.misses.lock())
    }
}

impl Link for Outbox {
    fn miss(&self, miss: Miss) {
        let Some(mut misses) = self.misses.try_lock() else {
            return; // the queue reports it again
        };
        if misses.len() < MAX_MISSES && !misses.contains(&miss) {
            misses.push(miss);
            self.wake.notify();
        }
    }
}

/// The interrupt of one ring.
#[derive(Debug)]
pub(crate) struct Irq {
    pub(crate) end: Arc<dyn DeviceEnd>,
    pub(crate) index: u16,
}

impl Interrupt for Irq {
    fn raise(&self) {
        // Refused while the driver is not ready; the session makes that good.
        let _ = self.end.interrupt(self.index);
    }
}
