//! From packets into a guest's receive queue. Exits of a packet: sent, full, too long, down; of the queue: stopped by name.
//!
//! A packet's head and its segments are copied once, into the guest's buffers; nothing of the source is kept. Buffers that were
//! read from the ring wait in private memory, so the ring is looked at once per [`super::limits::WINDOW`] chains or when a burst
//! finds too few.

use super::chain::{Direction, Window};
use super::config::{Position, QueueConfig, Tracking};
use super::limits::{RETRIES, WINDOW};
use super::queue::{Miss, Queue};
use super::{Features, RingError};
use crate::mem::{DirtyLog, SharedMemory};
use crate::net_hdr;
use heddle_packet::Packet;
use std::sync::Arc;

/// What became of the packets of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOutcome {
    /// Packets that the guest has now.
    pub sent: u64,
    /// Their bytes, without the virtio-net header.
    pub bytes: u64,
    /// Dropped: the guest had no buffers left.
    pub full: u64,
    /// Dropped: longer than the guest's buffer (without MRG_RXBUF), or than what a packet may be spread over.
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
    /// Which flags of the header may be set: none without GUEST_CSUM (virtio 1.2 §5.1.6.4.1).
    flags: u8,
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
    /// As [`Self::new`].
    pub fn tracked(cfg: QueueConfig, mem: Arc<SharedMemory>, tracking: Tracking) -> Result<Self, RingError> {
        Ok(Self {
            header_len: cfg.features.header_len(),
            mergeable: cfg.features.contains(Features::MRG_RXBUF),
            flags: if cfg.features.contains(Features::GUEST_CSUM) {
                0xff
            } else {
                0
            },
            queue: Queue::new(cfg, mem, Direction::ToGuest, tracking)?,
        })
    }

    /// Sends packets in order. Looks a bounded number of times for buffers, then drops. The packets' metadata must be what the
    /// guest negotiated (software segmentation comes before).
    pub fn tx(&mut self, packets: &[&Packet]) -> TxOutcome {
        let mut out = TxOutcome::default();
        self.queue.refresh();
        for (i, packet) in packets.iter().enumerate() {
            let need = packet.len() + self.header_len;
            match self.reserve(need, packets.len() - i) {
                Ok(chains) => {
                    self.fill(packet, chains, &mut out);
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
        }
        out.call |= self.queue.publish();
        out
    }

    /// Finds chains for `need` bytes at the front of the window; returns how many. `packets` is how many are still to be sent.
    #[inline]
    fn reserve(&mut self, need: usize, packets: usize) -> Result<usize, Refused> {
        if let Some(chain) = self.queue.window.get(0)
            && chain.len as usize >= need
        {
            return Ok(1);
        }
        self.search(need, packets)
    }

    /// As [`DeviceTx::reserve`], when the first chain alone is not enough.
    fn search(&mut self, need: usize, packets: usize) -> Result<usize, Refused> {
        let mut retries = RETRIES;
        loop {
            let (mut have, mut chains) = (0, 0);
            while let Some(chain) = self.queue.window.get(chains) {
                // virtio 1.2 §5.1.6.3.1: each buffer holds at least the header. One that does not could never be used.
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
            self.queue.window.compact();
            if self.queue.window.is_full() {
                return Err(Refused::TooLong);
            }
            let want = if self.mergeable {
                WINDOW
            } else {
                WINDOW.min(packets)
            };
            if self.queue.fetch(want) == 0 {
                if retries == 0 || self.queue.error().is_some() {
                    return Err(Refused::Full);
                }
                retries -= 1;
                core::hint::spin_loop();
            }
        }
    }

    /// Writes header and packet into the first `chains` chains and marks them used.
    #[inline]
    fn fill(&mut self, packet: &Packet, chains: usize, out: &mut TxOutcome) {
        let mut hdr = net_hdr::encode(&packet.offload, packet.len());
        hdr[0] &= self.flags;
        // §5.1.6.1: the last field is num_buffers; 1 without MRG_RXBUF (§5.1.6.4.1).
        hdr[10..12].copy_from_slice(&(chains as u16).to_le_bytes());
        let mut sink = Sink {
            window: &self.queue.window,
            chain: 0,
            piece: 0,
            at: 0,
        };
        sink.put(&hdr[..self.header_len]);
        sink.put(packet.head());
        for seg in packet.segs() {
            sink.put_seg(seg);
        }
        if let Some(log) = self.queue.log() {
            mark(&self.queue.window, chains, packet.len() + self.header_len, log);
        }
        let mut left = packet.len() + self.header_len;
        for _ in 0..chains {
            let Some(chain) = self.queue.window.pop() else {
                break;
            };
            let n = left.min(chain.len as usize);
            left -= n;
            if self.queue.batch.is_full() {
                out.call |= self.queue.publish();
            }
            let kept = self.queue.push_used(chain.id, chain.slots, n as u32);
            debug_assert!(kept, "published when full");
        }
    }

    /// Before sleeping: asks the guest for a kick when it posts buffers. Returns whether there are some already.
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
    /// Takes a new memory table over, if there is one and nothing points into the old one. Queues do so by themselves when they are
    /// used; this is for those that are not.
    pub fn refresh(&mut self) {
        self.queue.refresh();
    }
    /// The address that the queue waits for; told once.
    pub fn take_miss(&mut self) -> Option<Miss> {
        self.queue.take_miss()
    }
    /// Ends the queue: gives back what was only looked at and tells where to go on.
    pub fn stop(mut self) -> Position {
        self.queue.publish();
        self.queue.rewind();
        self.queue.position()
    }
}

/// Tells the dirty log of the first `len` bytes of the first `chains` chains.
#[cold]
fn mark(window: &Window, chains: usize, len: usize, log: &DirtyLog) {
    let mut left = len;
    for chain in (0..chains).filter_map(|i| window.get(i)) {
        for piece in window.pieces(chain) {
            let n = left.min(piece.len());
            piece.mark(Some(log), n);
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
    #[inline]
    fn put(&mut self, src: &[u8]) {
        // The usual case: the current piece has room for all of it.
        if let Some(piece) = self
            .window
            .get(self.chain)
            .and_then(|c| self.window.pieces(c).get(self.piece))
            && piece.len() - self.at > src.len()
        {
            self.at += piece.write(self.at, src);
            return;
        }
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
