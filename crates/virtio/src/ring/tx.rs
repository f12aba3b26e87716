//! From packets into a guest's receive queue. Exits of a packet: sent, full, too long, down; of the queue:
//! stopped by name.
//!
//! A packet's head and its segments are copied once, into the guest's buffers; nothing of the source is kept.
//! Buffers that were read from the ring wait in private memory. So the ring is read once per
//! [`super::limits::WINDOW`] chains, or when a burst finds too few.

use super::config::{Position, QueueConfig, Tracking};
use super::limits::{AHEAD, RETRIES};
use super::queue::{Miss, Queue};
use super::walk::Direction;
use super::window::Window;
use super::{Features, RingError};
use crate::mem::{GuestMemory, SharedMemory};
use crate::net_hdr;
use heddle_packet::Packet;
use std::sync::Arc;

/// Bytes of a chain whose lines are prefetched: enough for a short packet.
const NEAR: usize = 128;

/// The outcomes of the packets of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOutcome {
    /// Packets that the guest has now.
    pub sent: u64,
    /// Their bytes, without the virtio-net header.
    pub bytes: u64,
    /// Dropped: the guest had no buffers left.
    pub full: u64,
    /// Dropped: longer than the guest's buffer (without MRG_RXBUF), or than the buffers that a packet may
    /// use.
    pub too_long: u64,
    /// Dropped: the queue is stopped.
    pub down: u64,
    /// The guest wants to be notified.
    pub call: bool,
}

/// The switch's sending end of a guest's receive queue.
#[derive(Debug)]
pub struct DeviceTx {
    queue: Queue,
    header_len: usize,
    mergeable: bool,
    /// Flags of the header that may be set: none without GUEST_CSUM (virtio 1.2 §5.1.6.4.1).
    flags: u8,
    /// A migration runs: written pages are marked in the dirty log.
    logging: bool,
}

/// Why a packet is not sent.
enum Refused {
    Full,
    TooLong,
    Runt(u32),
}

impl DeviceTx {
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
            mergeable: cfg.features.contains(Features::MRG_RXBUF),
            logging: false,
            flags: if cfg.features.contains(Features::GUEST_CSUM) {
                0xff
            } else {
                0
            },
            queue: Queue::new(cfg, mem, Direction::ToGuest, tracking)?,
        })
    }

    /// Sends packets in order. Looks a bounded number of times for buffers, then drops. The packets' metadata
    /// must fit the guest's features (software segmentation comes before).
    pub fn tx(&mut self, packets: &[&Packet]) -> TxOutcome {
        let mut out = TxOutcome::default();
        self.queue.refresh();
        self.logging = self.queue.mem().log().is_some();
        self.ahead(packets.len());
        self.queue.prepare(packets.len());
        let mut i = 0;
        while i < packets.len() {
            #[expect(clippy::indexing_slicing, reason = "below the loop's bound")]
            let rest = &packets[i..];
            i += self.straight(rest, &mut out);
            let Some(packet) = packets.get(i) else { break };
            match self.reserve(packet.len() + self.header_len, &mut out) {
                Ok(chains) => {
                    self.fill(packet, chains);
                    out.sent += 1;
                    out.bytes += packet.len() as u64;
                }
                Err(Refused::TooLong) => out.too_long += 1,
                Err(Refused::Full) if self.queue.error().is_none() => {
                    // The ones behind would find the same: a later, shorter one must not overtake either.
                    out.full += (packets.len() - i) as u64;
                    break;
                }
                Err(refused) => {
                    if let Refused::Runt(len) = refused {
                        self.queue.stop(RingError::RuntBuffer(len));
                    }
                    out.down += (packets.len() - i) as u64;
                    break;
                }
            }
            i += 1;
        }
        let given = self.queue.give_back();
        self.ahead(AHEAD);
        if given {
            out.call |= self.queue.needs_call();
        }
        out
    }

    /// Sees to it that the window has `want` chains, if the ring has, and that the lines of their first bytes
    /// are on the way.
    #[inline]
    fn ahead(&mut self, want: usize) {
        let have = self.queue.window.len();
        if have < want {
            self.queue.fetch::<NEAR, true>(want - have);
        }
    }

    /// The usual case, as long as it lasts: the next chain is one piece that takes the whole packet. Returns
    /// how many packets it sent.
    #[inline]
    fn straight(&mut self, packets: &[&Packet], out: &mut TxOutcome) -> usize {
        if self.header_len != net_hdr::LEN || self.logging {
            return 0;
        }
        let (flags, mut bytes) = (self.flags, 0);
        let sent = self.queue.window.take_singles(packets.len(), |i, piece| {
            #[expect(clippy::indexing_slicing, reason = "below `packets.len()`")]
            let packet = packets[i];
            let done = packet.offload.is_plain() && piece.write_plain(packet)
                || piece.write_packet(header(flags, packet, 1), packet);
            done.then(|| {
                bytes += packet.len() as u64;
                (packet.len() + net_hdr::LEN) as u32
            })
        });
        out.sent += sent as u64;
        out.bytes += bytes;
        sent
    }

    /// Finds chains for `need` bytes at the front of the window; returns how many.
    fn reserve(&mut self, need: usize, out: &mut TxOutcome) -> Result<usize, Refused> {
        let mut retries = RETRIES;
        loop {
            let (mut have, mut chains) = (0, 0);
            while let Some(chain) = self.queue.window.get(chains) {
                // virtio 1.2 §5.1.6.3.1: each buffer holds at least the header. One that does not could never
                // be used.
                if (chain.len as usize) < self.header_len {
                    return Err(Refused::Runt(chain.len));
                }
                have += chain.len as usize;
                chains += 1;
                if have >= need {
                    return Ok(chains);
                }
                if !self.mergeable {
                    return Err(Refused::TooLong);
                }
            }
            if self.queue.error().is_some() {
                return Err(Refused::Full);
            }
            if self.queue.window.room() == 0 {
                // Filled chains take up the room; without this, a packet that needs more could never be sent.
                if self.queue.window.taken() == 0 {
                    return Err(Refused::TooLong);
                }
                out.call |= self.queue.publish();
            }
            let room = self.queue.window.room();
            if self.queue.fetch::<NEAR, true>(room.min(AHEAD)) == 0 {
                if self.queue.window.is_fragmented() {
                    return Err(Refused::TooLong);
                }
                if retries == 0 || self.queue.error().is_some() {
                    return Err(Refused::Full);
                }
                retries -= 1;
                core::hint::spin_loop();
            }
        }
    }

    /// Writes header and packet into the first `chains` chains and takes them.
    fn fill(&mut self, packet: &Packet, chains: usize) {
        let header = header(self.flags, packet, chains as u16);
        let mut left = packet.len() + self.header_len;
        if self.logging {
            mark(&self.queue.window, chains, left, self.queue.mem());
        }
        let mut sink = Sink {
            window: &self.queue.window,
            chain: 0,
            piece: 0,
            at: 0,
        };
        #[expect(clippy::indexing_slicing, reason = "one of the two lengths that a header has")]
        sink.put(&header[..self.header_len]);
        sink.put(packet.head());
        for seg in packet.segs() {
            sink.put_seg(seg);
        }
        for _ in 0..chains {
            let n = left.min(self.queue.window.get(0).map_or(0, |c| c.len as usize));
            left -= n;
            self.queue.window.take(n as u32);
        }
    }

    /// Before sleeping: requests a kick of the guest when it posts buffers. Returns whether there are some
    /// already.
    pub fn arm(&mut self) -> bool {
        self.queue.arm() || !self.queue.window.is_empty()
    }
    /// Kicks are not wanted (a switch that drops when full never needs them).
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
    /// Ends the queue: gives back chains that were only read ahead, and returns the position at which to
    /// continue.
    pub fn stop(mut self) -> Position {
        self.queue.publish();
        self.queue.rewind();
        self.queue.position()
    }
}

/// The header of a packet that is spread over `chains`; `flags` may be set. §5.1.6.1: the last field is
/// num_buffers; 1 without MRG_RXBUF (§5.1.6.4.1).
#[inline]
fn header(flags: u8, packet: &Packet, chains: u16) -> [u8; net_hdr::LEN] {
    let mut header = net_hdr::header(&packet.offload, packet.len(), chains);
    header[0] &= flags;
    header
}

/// Marks the first `len` bytes of the first `chains` chains in the dirty log.
#[cold]
fn mark(window: &Window, chains: usize, len: usize, mem: &GuestMemory) {
    let mut left = len;
    for chain in (0..chains).filter_map(|i| window.get(i)) {
        for piece in window.pieces(chain) {
            let n = left.min(piece.len());
            mem.mark(piece, n);
            left -= n;
        }
    }
}

/// Writes into chains from the front of the window; the caller has found that there is room.
struct Sink<'a> {
    window: &'a Window,
    chain: usize,
    piece: usize,
    at: usize,
}

impl Sink<'_> {
    #[expect(clippy::indexing_slicing, reason = "below the loop's bound")]
    #[inline]
    fn put(&mut self, src: &[u8]) {
        let mut done = 0;
        while done < src.len() {
            let Some(chain) = self.window.get(self.chain) else {
                return;
            };
            let Some(piece) = self.window.pieces(chain).get(self.piece) else {
                self.next_chain();
                continue;
            };
            let n = piece.write(self.at, &src[done..]);
            done += n;
            self.moved(n, piece.len());
        }
    }
    #[inline]
    fn put_seg(&mut self, seg: &heddle_packet::Seg) {
        let mut done = 0;
        while done < seg.len() {
            let Some(chain) = self.window.get(self.chain) else {
                return;
            };
            let Some(piece) = self.window.pieces(chain).get(self.piece) else {
                self.next_chain();
                continue;
            };
            let n = piece.write_seg(self.at, seg, done);
            done += n;
            self.moved(n, piece.len());
        }
    }
    #[inline]
    fn moved(&mut self, n: usize, piece_len: usize) {
        self.at += n;
        if self.at == piece_len {
            self.at = 0;
            self.piece += 1;
        }
    }
    fn next_chain(&mut self) {
        self.chain += 1;
        self.piece = 0;
        self.at = 0;
    }
}
