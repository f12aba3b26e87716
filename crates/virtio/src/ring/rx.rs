//! From a guest's transmit queue into packets. Exits of a chain: packet, dropped by name; of the queue:
//! stopped by name.
//!
//! A packet's first [`HEAD`] bytes are private, the others stay in the guest's memory as segments until
//! [`DeviceRx::complete`].
//!
//! **Ownership.** Chains that were taken are given back by [`DeviceRx::complete`], and only when the
//! [`Lender`] is whole: no packet refers to the guest's memory any more. The memory snapshot is replaced, and
//! so unmapped, only while no chain is taken. A packet that is kept beyond its burst therefore holds the
//! queue's buffers back; later calls of [`DeviceRx::rx`] look for its return.
//!
//! **Reading ahead.** A call leaves the chains of the next burst in private memory, if the ring has that
//! many, and prefetches the lines of their headers. Lines that the guest's core wrote take hundreds of cycles
//! to come, and the work on this burst hides them.

mod take;

use super::RingError;
use super::config::{Position, QueueConfig, Tracking};
use super::limits::{AHEAD, HEAD};
use super::queue::{Miss, Queue};
use super::walk::Direction;
use crate::mem::SharedMemory;
use crate::net_hdr::{self, NetHdrError};
use heddle_packet::{Burst, Lender, Pool};
use std::sync::Arc;
use take::{Dropped, take};

/// Bytes of a chain that a call reads.
const NEAR: usize = net_hdr::LEN + HEAD;

/// Packets that were given back to the guest without being forwarded. The queue itself is in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxDrops {
    /// Shorter than the virtio-net header and an Ethernet header.
    pub runt: u64,
    /// Longer than the longest frame.
    pub too_long: u64,
    /// The virtio-net header makes no sense.
    pub header: u64,
    /// The last such header's error.
    pub last_header: Option<NetHdrError>,
}

/// The switch's receiving end of a guest's transmit queue.
///
/// Each call of [`DeviceRx::rx`] is followed by [`DeviceRx::complete`] once its packets are gone. A queue
/// that is dropped while packets refer to the guest's memory leaks the snapshot instead of unmapping under
/// them.
#[derive(Debug)]
pub struct DeviceRx {
    queue: Queue,
    header_len: usize,
    drops: RxDrops,
    /// Counts the tails of the packets.
    lender: Lender,
    /// Packets were handed out since the last `complete`.
    open: bool,
    /// A notification is due that the caller does not know of.
    call: bool,
}

impl DeviceRx {
    /// Sets a queue up.
    ///
    /// # Errors
    /// [`RingError::Size`], [`RingError::Area`].
    pub fn new(cfg: QueueConfig, mem: Arc<SharedMemory>) -> Result<Self, RingError> {
        Self::tracked(cfg, mem, Tracking::default())
    }
    /// Sets a queue up of which something is kept outside.
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    pub fn tracked(cfg: QueueConfig, mem: Arc<SharedMemory>, tracking: Tracking) -> Result<Self, RingError> {
        Ok(Self {
            header_len: cfg.features.header_len(),
            queue: Queue::new(cfg, mem, Direction::FromGuest, tracking)?,
            drops: RxDrops::default(),
            lender: Lender::new(),
            open: false,
            call: false,
        })
    }

    /// Appends packets to `burst` until it is full or the ring is empty; returns how many. Takes buffers from
    /// `pool`.
    pub fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        self.queue.refresh();
        let before = burst.len();
        let want = burst.remaining_capacity();
        let have = self.queue.window.len();
        if have < want && self.queue.fetch::<NEAR, false>(want - have) + have == 0 {
            if !self.open && self.queue.window.taken() > 0 {
                // A packet that was kept may have come back.
                self.call |= self.complete();
            }
            return 0;
        }
        let now = self.queue.window.len().min(want);
        self.queue.prepare(now);
        let (window, drops, header_len) = (&self.queue.window, &mut self.drops, self.header_len);
        for chain in window.ready(now) {
            match take(chain, window, header_len, pool, &mut self.lender) {
                Ok(packet) => burst.push(packet),
                Err(drop) => drops.count(drop),
            }
        }
        self.queue.window.take_all(now);
        let have = self.queue.window.len();
        if have < AHEAD {
            self.queue.fetch::<NEAR, false>(AHEAD - have);
        }
        let n = burst.len() - before;
        self.open |= n > 0;
        if !self.open {
            // Only drops: no packet points into the guest, so the caller need not call `complete`.
            self.call |= self.complete();
        }
        n
    }

    /// The packets of all bursts so far are gone: gives their buffers back, unless another owner kept a
    /// packet that refers to one. Returns whether the guest wants to be notified.
    pub fn complete(&mut self) -> bool {
        self.open = false;
        let call = self.lender.is_whole() && self.queue.publish();
        call | self.take_call()
    }
    /// Whether the guest wants to be notified of packets that were all dropped; reported once. To be called
    /// after a call of [`DeviceRx::rx`] that found nothing.
    pub fn take_call(&mut self) -> bool {
        core::mem::take(&mut self.call)
    }

    /// Before sleeping: enables the guest's kicks and looks again. Returns whether there is work already.
    pub fn arm(&mut self) -> bool {
        self.queue.refresh();
        self.queue.arm() || !self.queue.window.is_empty()
    }
    /// After sleeping: kicks are not wanted.
    pub fn disarm(&mut self) {
        self.queue.disarm();
    }
    /// Why the queue is stopped.
    pub fn error(&self) -> Option<RingError> {
        self.queue.error()
    }
    /// Takes a new memory table over, if there is one and nothing points into the old one. Queues do so by
    /// themselves when they are used; this is for those that are not.
    pub fn refresh(&mut self) {
        self.queue.refresh();
    }
    /// An address that the queue waits for, or will; the most urgent first, each reported once.
    pub fn take_miss(&mut self) -> Option<Miss> {
        self.queue.take_miss()
    }
    /// Packets dropped so far.
    pub fn drops(&self) -> RxDrops {
        self.drops
    }
    /// Ends the queue: completes open chains and returns the position at which to continue.
    pub fn stop(mut self) -> Position {
        self.complete();
        self.queue.rewind();
        self.queue.position()
    }
}

impl Drop for DeviceRx {
    fn drop(&mut self) {
        if !self.lender.is_whole() {
            self.queue.leak_memory(); // packets still point into it
        }
    }
}

impl RxDrops {
    #[cold]
    fn count(&mut self, drop: Dropped) {
        match drop {
            Dropped::Runt => self.runt += 1,
            Dropped::TooLong => self.too_long += 1,
            Dropped::Header(e) => {
                self.header += 1;
                self.last_header = Some(e);
            }
        }
    }
}
