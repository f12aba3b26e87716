//! Packets for the control plane: bounded rings, three per worker, each kind with one eventfd for all.
//!
//! Packets for controllers, frames of protocols that the switch itself speaks, and samples have rings of
//! their own, so that no storm of one kind delays another.
//!
//! The worker never waits: a full ring is a named drop. The eventfd is written once per burst at most, and
//! only if the control side has not been told since it last looked.

use crate::action::UpcallKind;
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

/// The worker's end of one ring.
struct Lane {
    ring: Producer<UpcallPacket>,
    bell: Arc<Bell>,
    pushed: bool,
}

/// The worker's ends.
pub(crate) struct UpcallTx {
    packets: Lane,
    control: Lane,
    samples: Lane,
}

/// The control side's ends of one worker's rings, or of all.
#[derive(Default)]
pub(crate) struct Lanes<T> {
    /// Packets for controllers.
    pub(crate) packets: T,
    /// Frames of the switch's own protocols.
    pub(crate) control: T,
    /// Samples.
    pub(crate) samples: T,
}

/// Rings for one worker.
pub(crate) fn upcall_ring(
    capacity: usize,
    bells: &Lanes<Arc<Bell>>,
) -> (UpcallTx, Lanes<Consumer<UpcallPacket>>) {
    let lane = |bell: &Arc<Bell>| {
        let (ring, rx) = ring(capacity);
        let bell = Arc::clone(bell);
        let tx = Lane {
            ring,
            bell,
            pushed: false,
        };
        (tx, rx)
    };
    let (packets, packets_rx) = lane(&bells.packets);
    let (control, control_rx) = lane(&bells.control);
    let (samples, samples_rx) = lane(&bells.samples);
    let tx = UpcallTx {
        packets,
        control,
        samples,
    };
    let rx = Lanes {
        packets: packets_rx,
        control: control_rx,
        samples: samples_rx,
    };
    (tx, rx)
}

impl UpcallTx {
    fn lane(&mut self, kind: UpcallKind) -> &mut Lane {
        match kind {
            UpcallKind::Controller => &mut self.packets,
            UpcallKind::SlowPath(_) => &mut self.control,
            UpcallKind::Sample => &mut self.samples,
        }
    }
    /// Whether a packet of this kind would be taken.
    pub(crate) fn has_room(&mut self, kind: UpcallKind) -> bool {
        self.lane(kind).ring.free() > 0
    }
    /// Queues a packet, if there is room.
    pub(crate) fn push(&mut self, p: UpcallPacket) {
        let lane = self.lane(p.upcall.kind);
        lane.pushed |= lane.ring.push(p).is_ok();
    }
    /// At the end of a burst: tells the control side.
    pub(crate) fn announce(&mut self) {
        for lane in [&mut self.packets, &mut self.control, &mut self.samples] {
            if std::mem::take(&mut lane.pushed) {
                lane.bell.ring();
            }
        }
    }
}
