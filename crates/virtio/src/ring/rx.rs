//! From a guest's transmit queue into packets. Exits of a chain: packet, dropped by name; of the queue: stopped by name.
//!
//! A packet's first [`HEAD`] bytes are private, the others stay in the guest's memory as segments until
//! [`DeviceRx::complete`].

use super::RingError;
use super::chain::{Chain, Direction};
use super::config::{Position, QueueConfig, Tracking};
use super::limits::{HEAD, WINDOW};
use super::queue::{Miss, Queue};
use crate::mem::{Piece, SharedMemory};
use crate::net_hdr::{self, NetHdrError};
use heddle_packet::{BUF_SIZE, Burst, HEADROOM, Packet, Pool};
use std::sync::Arc;

/// Shortest frame: two addresses and a type.
const ETH_HEADER: usize = 14;
/// Longest frame: what a packet holds when it has to be private.
const MAX_FRAME: usize = BUF_SIZE - HEADROOM;

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
/// Each call of [`DeviceRx::rx`] is followed by [`DeviceRx::complete`] once its packets are gone: that is the contract of
/// [`heddle_packet::Seg`]. A queue dropped before leaks its memory snapshot instead of unmapping under a packet.
#[derive(Debug)]
pub struct DeviceRx {
    queue: Queue,
    header_len: usize,
    drops: RxDrops,
    /// Packets were handed out since the last `complete`.
    open: bool,
    /// A notification is due that nobody was told of.
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
    /// As [`Self::new`].
    pub fn tracked(cfg: QueueConfig, mem: Arc<SharedMemory>, tracking: Tracking) -> Result<Self, RingError> {
        Ok(Self {
            header_len: cfg.features.header_len(),
            queue: Queue::new(cfg, mem, Direction::FromGuest, tracking)?,
            drops: RxDrops::default(),
            open: false,
            call: false,
        })
    }

    /// Appends packets to `burst` until it is full or the ring is empty; returns how many. Takes buffers from `pool`.
    pub fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        if self.queue.batch.is_empty() {
            self.queue.refresh();
        }
        let before = burst.len();
        let want = burst.remaining_capacity().min(WINDOW - self.queue.batch.len());
        if self.queue.fetch(want) == 0 {
            return 0;
        }
        while let Some(chain) = self.queue.window.pop() {
            let mut packet = pool.get();
            match take(
                &mut packet,
                &chain,
                self.queue.window.pieces(&chain),
                self.header_len,
            ) {
                Ok(()) => burst.push(packet),
                Err(drop) => {
                    self.drops.count(drop);
                    pool.put(packet);
                }
            }
            let kept = self.queue.push_used(chain.id, chain.slots, 0);
            debug_assert!(kept, "no more chains are fetched than the batch holds");
        }
        let n = burst.len() - before;
        self.open |= n > 0;
        if !self.open {
            // Nothing but drops: no packet points into the guest, so nobody needs to call `complete`.
            self.call |= self.complete();
        }
        n
    }

    /// The packets of all bursts so far are gone: gives their buffers back. Returns whether the guest wants to be notified.
    pub fn complete(&mut self) -> bool {
        self.open = false;
        self.queue.window.clear();
        self.queue.publish() | self.take_call()
    }
    /// Whether the guest wants to be notified of packets that were all dropped; told once. To be asked after a call of
    /// [`DeviceRx::rx`] that found nothing.
    pub fn take_call(&mut self) -> bool {
        core::mem::take(&mut self.call)
    }

    /// Before sleeping: asks the guest for kicks and looks again. Returns whether there is work already.
    pub fn arm(&mut self) -> bool {
        if self.queue.batch.is_empty() {
            self.queue.refresh();
        }
        self.queue.arm()
    }
    /// After sleeping: kicks are not wanted.
    pub fn disarm(&mut self) {
        self.queue.disarm();
    }
    /// Why the queue is stopped.
    pub fn error(&self) -> Option<RingError> {
        self.queue.error()
    }
    /// Takes a new memory table over, if there is one and nothing points into the old one. Queues do so by themselves when they are
    /// used; this is for those that are not.
    pub fn refresh(&mut self) {
        if self.queue.batch.is_empty() {
            self.queue.refresh();
        }
    }
    /// The address that the queue waits for; told once.
    pub fn take_miss(&mut self) -> Option<Miss> {
        self.queue.take_miss()
    }
    /// Packets dropped so far.
    pub fn drops(&self) -> RxDrops {
        self.drops
    }
    /// Ends the queue: completes what is open and tells where to go on.
    pub fn stop(mut self) -> Position {
        self.complete();
        self.queue.rewind();
        self.queue.position()
    }
}

impl Drop for DeviceRx {
    fn drop(&mut self) {
        if self.open {
            self.queue.leak_memory(); // packets may still point into it
        }
    }
}

/// Why a chain made no packet.
enum Dropped {
    Runt,
    TooLong,
    Header(NetHdrError),
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

/// Makes a packet of a chain: the header to private memory and decoded there, then the first bytes to the head, the rest by
/// reference. The header and the packet may be spread over the buffers in any way (virtio 1.2 §2.7.4.1).
#[inline]
fn take(packet: &mut Packet, chain: &Chain, pieces: &[Piece], header_len: usize) -> Result<(), Dropped> {
    let len = (chain.len as usize)
        .checked_sub(header_len)
        .filter(|&n| n >= ETH_HEADER);
    let len = len.ok_or(Dropped::Runt)?;
    if len > MAX_FRAME {
        return Err(Dropped::TooLong);
    }
    let mut hdr = [0; net_hdr::LEN];
    let head = len.min(HEAD);
    let mut source = Source::new(pieces);
    source.header(&mut hdr, header_len);
    source.copy(&mut packet.head_space()[..head]);
    packet.set_head_len(head);
    while let Some((piece, at)) = source.next_piece() {
        if !packet.push_seg(piece.seg(at)) {
            packet.make_private();
            packet.push_seg(piece.seg(at));
        }
    }
    // Offsets in the header are checked against what can be rewritten: the head. A checksum field behind it is rare enough
    // to make the packet private.
    packet.offload = match net_hdr::decode(&hdr, head) {
        Err(NetHdrError::CsumRange) if head < len => {
            packet.make_private();
            net_hdr::decode(&hdr, len)
        }
        decoded => decoded,
    }
    .map_err(Dropped::Header)?;
    Ok(())
}

/// Reads a chain's pieces from the front.
struct Source<'a> {
    pieces: core::slice::Iter<'a, Piece>,
    current: Option<(&'a Piece, usize)>,
}

impl<'a> Source<'a> {
    #[inline]
    fn new(pieces: &'a [Piece]) -> Self {
        let mut pieces = pieces.iter();
        let current = pieces.next().map(|p| (p, 0));
        Self { pieces, current }
    }
    /// Reads the first `len` bytes into `hdr`. Of a first piece that has them all more may be read, which costs less than a copy of
    /// a length that the compiler does not know.
    #[inline]
    fn header(&mut self, hdr: &mut [u8; net_hdr::LEN], len: usize) {
        match &mut self.current {
            Some((piece, at)) if piece.len() > net_hdr::LEN => {
                *hdr = piece.first();
                *at = len;
            }
            _ => self.copy(&mut hdr[..len]),
        }
    }
    /// Fills `dst`; the chain was found to have enough.
    #[inline]
    fn copy(&mut self, dst: &mut [u8]) {
        let mut done = 0;
        while done < dst.len() {
            let Some((piece, at)) = &mut self.current else {
                return;
            };
            let n = piece.read(*at, &mut dst[done..]);
            done += n;
            *at += n;
            if *at == piece.len() {
                self.current = self.pieces.next().map(|p| (p, 0));
            }
        }
    }
    /// The rest of the current piece.
    #[inline]
    fn next_piece(&mut self) -> Option<(&'a Piece, usize)> {
        let rest = self.current.take();
        self.current = self.pieces.next().map(|p| (p, 0));
        rest
    }
}
