//! Packets for the control plane: one bounded ring per worker, one eventfd for all.
//!
//! The worker never waits: a full ring is a named drop. The eventfd is written once per burst at most, and
//! only if the control side has not been told since it last looked.

use crate::view::UpcallPacket;
use heddle_sync::ring::{Consumer, Producer, ring};
use heddle_sys::EventFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};

/// The bell that workers ring.
#[derive(Debug)]
pub(crate) struct Bell {
    pub(crate) fd: EventFd,
    rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            fd: EventFd::new()?,
            rung: AtomicBool::new(false),
        })
    }
    /// Makes the descriptor readable. The swap orders the ring's content before the flag: a control side that
    /// cleared the flag (Release) before it looked at the rings is told again.
    pub(crate) fn ring(&self) {
        // Between the ring's tail and the flag; pairs with the fence in `silence`, so that not both sides
        // miss the other.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if !self.rung.swap(true, AcqRel) {
            self.fd.notify();
        }
    }
    /// To be called before looking at the rings.
    pub(crate) fn silence(&self) {
        self.fd.drain();
        self.rung.store(false, Release);
        // A packet pushed before this line is seen by the look that follows; one pushed after it rings again.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// The worker's end.
pub(crate) struct UpcallTx {
    ring: Producer<UpcallPacket>,
    bell: Arc<Bell>,
    pushed: bool,
}

/// A ring for one worker.
pub(crate) fn upcall_ring(capacity: usize, bell: Arc<Bell>) -> (UpcallTx, Consumer<UpcallPacket>) {
    let (tx, rx) = ring(capacity);
    (
        UpcallTx {
            ring: tx,
            bell,
            pushed: false,
        },
        rx,
    )
}

impl UpcallTx {
    pub(crate) fn has_room(&mut self) -> bool {
        self.ring.free() > 0
    }
    /// Queues a packet, if there is room.
    pub(crate) fn push(&mut self, p: UpcallPacket) {
        self.pushed |= self.ring.push(p).is_ok();
    }
    /// At the end of a burst: tells the control side.
    pub(crate) fn announce(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.bell.ring();
        }
    }
}
