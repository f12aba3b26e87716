//! Segments of STT frames wait here for the others of their frame.
//!
//! **Shape.** A frame's first segment to come, whichever it is, makes a buffer of the length that it says the
//! frame has; each segment is copied to its place there, once. The one that was missing gives the packet that
//! it came in for the buffer. Most segments come in order: a frame knows which ranges it has, mostly one.
//!
//! **Order of arrival** does not matter. A segment that has a byte that came before is dropped, whole, and
//! the frame goes on without it, so nobody can make two readings of one frame.
//!
//! **Bounds.** [`MAX_FRAMES`] frames wait at a worker, so at most that many buffers of
//! [`BUF_SIZE`](heddle_packet::BUF_SIZE) bytes are held, each for [`MAX_WAIT_MS`]. Of one other end there are
//! [`MAX_OF_END`]: whoever sends pieces of frames that never become whole drives out their own. A frame is in
//! at most [`MAX_RANGES`] ranges. What goes is counted by segments ([`Lost`]).
//!
//! **Costs.** A segment is compared with the frames that wait, the newest first.

use crate::pop::PopError;
use arrayvec::ArrayVec;
use heddle_flow::FlowKey;
use heddle_packet::{Packet, Pool};

/// Frames that wait.
const MAX_FRAMES: usize = 64;
/// Of them, those of one other end.
const MAX_OF_END: usize = 32;
/// Ranges of a frame that are there.
const MAX_RANGES: usize = 32;
/// How long a frame waits for its segments.
const MAX_WAIT_MS: u64 = 500;

/// A part of an STT frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Where its bytes begin in the packet, and end.
    pub(crate) at: usize,
    pub(crate) end: usize,
    /// Bytes of the frame.
    pub(crate) len: u16,
    /// Its place there.
    pub(crate) from: u16,
    /// The frame's number.
    pub(crate) frame: u32,
    /// Source and destination.
    pub(crate) ports: u32,
}

impl Segment {
    pub(crate) fn is_whole(&self) -> bool {
        self.from == 0 && self.end - self.at == usize::from(self.len)
    }
    /// Its place in the frame, which it does not go beyond.
    fn range(&self) -> (u16, u16) {
        let n = u16::try_from(self.end - self.at).unwrap_or(u16::MAX);
        (self.from, self.from.saturating_add(n))
    }
}

/// Another end of tunnels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End {
    v4: u32,
    v6: [u8; 16],
    /// The port that its packets came in by.
    in_port: u32,
}

/// Which frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Of {
    end: End,
    dst: u32,
    dst6: [u8; 16],
    ports: u32,
    frame: u32,
}

impl Of {
    /// Of a segment with these outer addresses.
    pub(crate) fn new(key: &FlowKey, in_port: u32, s: &Segment) -> Self {
        Self {
            end: End {
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

/// A frame of which something is missing.
#[derive(Debug)]
struct Frame {
    of: Of,
    packet: Packet,
    len: u16,
    /// What is there, in order, with gaps between.
    ranges: ArrayVec<(u16, u16), MAX_RANGES>,
    /// Segments that came.
    segments: u32,
    tos: u8,
    since_ms: u64,
}

/// Segments that were dropped after they had waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Others of their frame did not come in time.
    pub timeout: u64,
    /// They made room for others.
    pub evicted: u64,
}

/// One worker's frames, the oldest first. See the module's text.
#[derive(Debug, Default)]
pub struct Frames {
    waiting: Vec<Frame>,
    lost: Lost,
}

impl Frames {
    /// Whether some wait.
    #[inline]
    pub fn any(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
    /// What was lost since this was asked last.
    pub fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }

    /// Drops frames whose time is over.
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

    /// Adds a segment, of a packet with this type of service. `Some`: its frame is whole and is `p` now, its
    /// type of service is this.
    ///
    /// # Errors
    /// [`PopError`]: it is dropped; its frame still waits.
    pub(crate) fn add(
        &mut self,
        p: &mut Packet,
        s: &Segment,
        of: &Of,
        tos: u8,
        pool: &mut Pool,
        now_ms: u64,
    ) -> Result<Option<u8>, PopError> {
        self.expire(pool, now_ms);
        let i = match self.waiting.iter().rposition(|f| f.of == *of) {
            Some(i) => i,
            None => self.begin(s, of, tos, pool, now_ms),
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

    /// Begins a frame. Its place among those that wait.
    fn begin(&mut self, s: &Segment, of: &Of, tos: u8, pool: &mut Pool, now_ms: u64) -> usize {
        let is_theirs = |f: &Frame| f.of.end == of.end;
        let theirs = self.waiting.iter().filter(|f| is_theirs(f)).count();
        let goes = match theirs >= MAX_OF_END {
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
            of: *of,
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
    /// Takes a segment in.
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
        // The first range that ends behind its beginning.
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
            // The whole frame has met what one of its segments has (RFC 6040, 4.2 and RFC 3168, 5.3).
            self.tos |= CONGESTED;
        }
        Ok(())
    }
}
