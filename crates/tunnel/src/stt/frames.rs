//! Reassembly buffer: segments of STT frames wait here for the rest of their frame.
//!
//! **Shape.** The first segment to arrive of a frame, whichever it is, allocates a buffer of the frame's
//! length. Each segment is copied to its offset there, once. The segment that completes the frame exchanges
//! its packet for the buffer. Most segments arrive in order, so a frame usually has one range of bytes.
//!
//! **Order.** Segments may arrive in any order. A segment with bytes that arrived before is dropped as a
//! whole, and its frame keeps waiting. So one frame can never be read in two ways.
//!
//! **Bounds.** At most [`MAX_FRAMES`] frames wait at a worker, each for at most [`MAX_WAIT_MS`] in a buffer
//! of at most [`BUF_SIZE`](heddle_packet::BUF_SIZE) bytes. At most [`MAX_FRAMES_PER_PEER`] of them are one
//! peer's: a peer that sends incomplete frames evicts its own. A frame has at most [`MAX_RANGES`] ranges.
//! Lost segments are counted ([`Lost`]).
//!
//! **Costs.** A segment is compared with all waiting frames, the newest first.

use crate::pop_error::PopError;
use arrayvec::ArrayVec;
use heddle_flow::FlowKey;
use heddle_packet::{Packet, Pool};

/// Maximum number of waiting frames.
const MAX_FRAMES: usize = 64;
/// Maximum number of waiting frames of one peer.
const MAX_FRAMES_PER_PEER: usize = 32;
/// Maximum number of byte ranges of a frame.
const MAX_RANGES: usize = 32;
/// Longest wait of a frame for its segments, ms.
const MAX_WAIT_MS: u64 = 500;

/// A segment of an STT frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Begin of its bytes in the packet.
    pub(crate) at: usize,
    pub(crate) end: usize,
    /// Length of the whole frame, bytes.
    pub(crate) len: u16,
    /// Offset of its first byte in the frame.
    pub(crate) from: u16,
    /// The frame's number.
    pub(crate) frame: u32,
    /// Source port and destination port.
    pub(crate) ports: u32,
}

impl Segment {
    pub(crate) fn is_whole(&self) -> bool {
        self.from == 0 && self.end - self.at == usize::from(self.len)
    }
    /// The segment's range of bytes in the frame. The caller has checked that it is within the frame.
    fn range(&self) -> (u16, u16) {
        let n = u16::try_from(self.end - self.at).unwrap_or(u16::MAX);
        (self.from, self.from.saturating_add(n))
    }
}

/// The sender of outer packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Peer {
    v4: u32,
    v6: [u8; 16],
    /// Datapath port by which its packets came in.
    in_port: u32,
}

/// Identity of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameId {
    peer: Peer,
    dst: u32,
    dst6: [u8; 16],
    ports: u32,
    frame: u32,
}

impl FrameId {
    /// The frame of a segment with these outer addresses.
    pub(crate) fn new(key: &FlowKey, in_port: u32, s: &Segment) -> Self {
        Self {
            peer: Peer {
                v4: key.tun_src,
                v6: key.tun_ipv6_src,
                in_port,
            },
            dst: key.tun_dst,
            dst6: key.tun_ipv6_dst,
            ports: s.ports,
            frame: s.frame,
        }
    }
}

/// An incomplete frame.
#[derive(Debug)]
struct Frame {
    id: FrameId,
    packet: Packet,
    len: u16,
    /// Byte ranges that have arrived, in order, with gaps between.
    ranges: ArrayVec<(u16, u16), MAX_RANGES>,
    /// Number of segments that have arrived.
    segments: u32,
    tos: u8,
    since_ms: u64,
}

/// Numbers of segments that were dropped after they had waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// The rest of their frame did not arrive in time.
    pub timeout: u64,
    /// Their frame was evicted for another.
    pub evicted: u64,
}

/// One worker's frames, the oldest first. See the module's text.
#[derive(Debug, Default)]
pub struct Frames {
    waiting: Vec<Frame>,
    lost: Lost,
}

impl Frames {
    /// Whether any frame waits.
    #[inline]
    pub fn any(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// The number of waiting frames.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
    /// Whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
    /// Takes the numbers of segments lost since the last call.
    pub fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }

    /// Drops frames that have waited too long.
    pub fn expire(&mut self, pool: &mut Pool, now_ms: u64) {
        let old = self
            .waiting
            .iter()
            .take_while(|f| f.since_ms + MAX_WAIT_MS <= now_ms)
            .count();
        for f in self.waiting.drain(..old) {
            self.lost.timeout += u64::from(f.segments);
            pool.put(f.packet);
        }
    }

    /// Adds a segment of a packet with this type of service. `Some`: the frame is complete and has replaced
    /// `p`; the value is the frame's type of service.
    ///
    /// # Errors
    /// [`PopError`]: the segment is refused; its frame still waits.
    pub(crate) fn add(
        &mut self,
        p: &mut Packet,
        s: &Segment,
        id: &FrameId,
        tos: u8,
        pool: &mut Pool,
        now_ms: u64,
    ) -> Result<Option<u8>, PopError> {
        self.expire(pool, now_ms);
        let i = match self.waiting.iter().rposition(|f| f.id == *id) {
            Some(i) => i,
            None => self.begin(s, id, tos, pool, now_ms),
        };
        let Some(frame) = self.waiting.get_mut(i) else {
            return Err(PopError::Part);
        };
        frame.take(p, s, tos)?;
        if frame.ranges.as_slice() != [(0, frame.len)] {
            return Ok(None);
        }
        let whole = self.waiting.remove(i);
        let part = std::mem::replace(p, whole.packet);
        p.in_port = part.in_port;
        pool.put(part);
        Ok(Some(whole.tos))
    }

    /// Begins a frame. Returns its index in `waiting`.
    fn begin(&mut self, s: &Segment, id: &FrameId, tos: u8, pool: &mut Pool, now_ms: u64) -> usize {
        let is_theirs = |f: &Frame| f.id.peer == id.peer;
        let theirs = self.waiting.iter().filter(|f| is_theirs(f)).count();
        let goes = match theirs >= MAX_FRAMES_PER_PEER {
            true => self.waiting.iter().position(is_theirs),
            false => (self.waiting.len() >= MAX_FRAMES).then_some(0),
        };
        if let Some(i) = goes {
            let old = self.waiting.remove(i);
            self.lost.evicted += u64::from(old.segments);
            pool.put(old.packet);
        }
        let len = usize::from(s.len);
        let mut packet = pool.get_for(len);
        packet.set_head_len(len);
        self.waiting.push(Frame {
            id: *id,
            packet,
            len: s.len,
            ranges: ArrayVec::new(),
            segments: 0,
            tos,
            since_ms: now_ms,
        });
        self.waiting.len() - 1
    }
}

impl Frame {
    /// Copies a segment into the frame.
    fn take(&mut self, p: &Packet, s: &Segment, tos: u8) -> Result<(), PopError> {
        const CONGESTED: u8 = 3;
        if s.len != self.len {
            return Err(PopError::Frame);
        }
        let (from, upto) = s.range();
        let space = self
            .packet
            .head_mut()
            .get_mut(usize::from(from)..usize::from(upto));
        let space = space.ok_or(PopError::Beyond)?;
        // The first range that ends behind the segment's first byte.
        let next = self
            .ranges
            .iter()
            .position(|r| r.1 > from)
            .unwrap_or(self.ranges.len());
        match self.ranges.get(next) {
            Some(r) if r.0 <= from && upto <= r.1 => return Err(PopError::Duplicate),
            Some(r) if r.0 < upto => return Err(PopError::Overlap),
            _ => {}
        }
        let before = next
            .checked_sub(1)
            .and_then(|i| self.ranges.get(i))
            .is_some_and(|r| r.1 == from);
        let behind = self.ranges.get(next).is_some_and(|r| r.0 == upto);
        match (before, behind) {
            (false, false) if self.ranges.is_full() => return Err(PopError::Scattered),
            (false, false) => self.ranges.insert(next, (from, upto)),
            (true, false) => {
                if let Some(r) = self.ranges.get_mut(next - 1) {
                    r.1 = upto;
                }
            }
            (false, true) => {
                if let Some(r) = self.ranges.get_mut(next) {
                    r.0 = from;
                }
            }
            (true, true) => {
                let (_, upto) = self.ranges.remove(next);
                if let Some(r) = self.ranges.get_mut(next - 1) {
                    r.1 = upto;
                }
            }
        }
        p.copy_from(s.at, space);
        self.segments += 1;
        if tos & CONGESTED == CONGESTED {
            // Congestion of one segment is that of the frame (RFC 6040, 4.2 and RFC 3168, 5.3).
            self.tos |= CONGESTED;
        }
        Ok(())
    }
}
