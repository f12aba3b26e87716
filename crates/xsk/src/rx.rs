//! Receiving: packets out of the frames that the kernel has filled.
//!
//! A short packet is copied, and its frame is free at once. The first [`HEAD`] bytes of a longer
//! one are copied; the others stay in the frame, which is lent to the packet. [`Rx::complete`] gives the
//! frames back to the kernel when no packet refers to them. A frame that a sending half holds by then comes
//! back after it was sent ([`crate::loans`]).
//!
//! The fill ring has room for all frames, so that a free frame can always be given to the kernel.

#![allow(unsafe_code)] // frames are lent by their address

use crate::region::{FRAME, Region, frame_number, frame_start};
use crate::ring::{CONTINUES, Consumer, Descriptor, Producer};
use crate::socket::Socket;
use core::ops::Range;
use heddle_packet::{Burst, HEAD_SPACE, Lender, MAX_SEGS, Packet, Pool};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Bytes of a long packet that are copied: its headers.
const HEAD: usize = 128;
/// Maximum number of frames that are read for one packet; the kernel's own maximum is 18.
const MAX_FRAMES: u32 = 32;

/// Packets that the queue could not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxFaults {
    /// Shorter than an Ethernet header.
    pub runt: u64,
    /// Longer than [`heddle_packet::BUF_SIZE`], or in more frames than a packet has segments.
    pub too_long: u64,
    /// The kernel's descriptor is not of a frame of ours.
    pub bad_descriptor: u64,
}

/// The receiving half of a socket.
#[derive(Debug)]
pub struct Rx {
    pub(crate) socket: Arc<Socket>,
    region: Arc<Region>,
    fill: Producer<u64>,
    ring: Consumer<Descriptor>,
    /// Addresses of frames that no packet refers to.
    free: Vec<u64>,
    /// Addresses of frames to which packets may refer.
    lent: Vec<u64>,
    lender: Lender,
    /// The numbers of all frames of this half.
    own: Range<u32>,
    /// The number of frames that are in neither list: sending halves hold them, or have returned them.
    out: u32,
    faults: RxFaults,
}

impl Rx {
    /// Gives `frames` to the kernel.
    pub(crate) fn new(
        socket: Arc<Socket>,
        region: Arc<Region>,
        fill: Producer<u64>,
        ring: Consumer<Descriptor>,
        frames: Range<u32>,
    ) -> Self {
        let mut at_home = Vec::with_capacity(frames.len());
        let out = region.loans.settle_in(frames.clone(), &mut at_home);
        let mut free = Vec::with_capacity(frames.len());
        free.extend(at_home.into_iter().map(|f| u64::from(f) * FRAME as u64));
        let lent = Vec::with_capacity(frames.len());
        let mut rx = Self {
            socket,
            region,
            fill,
            ring,
            free,
            lent,
            lender: Lender::new(),
            own: frames,
            out,
            faults: RxFaults::default(),
        };
        rx.refill();
        rx
    }

    /// Appends received packets to `burst` until it is full, or none is left. Returns how many.
    pub fn rx(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let before = burst.len();
        if self.ring.look() == 0 {
            // A driver that found the fill ring empty does not look at it again by itself.
            if self.socket.features().zero_copy && self.fill.wants_wakeup() {
                self.socket.wake_rx();
            }
            // Sending halves may have returned frames since, and no packet may come without them.
            self.complete();
            return 0;
        }
        // Bounded by the ring, so that bad packets do not hold the worker.
        while !burst.is_full() {
            let Some(frames) = self.frames_of_next() else {
                break;
            };
            let packet = match frames {
                1 => self.take_one(pool),
                n => self.take_many(pool, n),
            };
            self.ring.advance(frames);
            burst.extend(packet);
        }
        self.ring.release();
        burst.len() - before
    }

    /// The number of frames of the next packet. `None`: there is none, or its last frame is still to come.
    #[inline]
    fn frames_of_next(&self) -> Option<u32> {
        let mut n = 0;
        loop {
            let descriptor = self.ring.peek(n)?;
            n += 1;
            if descriptor.options & CONTINUES == 0 || n == MAX_FRAMES {
                return Some(n);
            }
        }
    }

    /// Whether the bytes are in one frame of this half.
    #[inline]
    fn has_frame(&self, address: u64, len: u32) -> bool {
        let frame = self.region.frame_of(address, len);
        frame.is_some_and(|frame| self.own.contains(&frame))
    }

    /// Takes the next packet, which is in one frame.
    #[inline]
    fn take_one(&mut self, pool: &mut Pool) -> Option<Packet> {
        let Descriptor { address, len, .. } = self.ring.peek(0)?;
        let n = len as usize;
        if !self.has_frame(address, len) {
            self.faults.bad_descriptor += 1;
            return None;
        }
        if n < ETH_HEADER {
            self.faults.runt += 1;
            self.free.push(frame_start(address));
            return None;
        }
        let head = if n <= HEAD_SPACE { n } else { HEAD };
        let mut packet = pool.get_head(head);
        self.region.read(address, packet.head_mut());
        if head < n {
            self.lend(&mut packet, address + head as u64, len - head as u32);
        } else {
            self.free.push(frame_start(address));
        }
        Some(packet)
    }

    /// Takes the next packet, which is in `n` frames.
    fn take_many(&mut self, pool: &mut Pool, n: u32) -> Option<Packet> {
        let descriptors = |rx: &Self, i| rx.ring.peek(i).filter(|d| rx.has_frame(d.address, d.len));
        let (mut known, mut bytes) = (0, 0);
        for d in (0..n).filter_map(|i| descriptors(self, i)) {
            known += 1;
            bytes += d.len as usize;
        }
        let first = descriptors(self, 0).map_or(0, |d| d.len as usize);
        let refused = if known < n {
            Some(&mut self.faults.bad_descriptor)
        } else if first < ETH_HEADER {
            Some(&mut self.faults.runt)
        } else if n as usize > MAX_SEGS || bytes > MAX_BYTES {
            Some(&mut self.faults.too_long)
        } else {
            None
        };
        if let Some(count) = refused {
            *count += 1;
            for i in 0..n {
                // A frame that is not known is lost; the kernel does not report such frames.
                let known = descriptors(self, i);
                self.free.extend(known.map(|d| frame_start(d.address)));
            }
            return None;
        }
        let head = first.min(HEAD);
        let mut packet = pool.get_head(head);
        for i in 0..n {
            let Some(d) = descriptors(self, i) else { continue };
            let skip = if i == 0 { head as u32 } else { 0 };
            if i == 0 {
                self.region.read(d.address, packet.head_mut());
            }
            if d.len == skip {
                self.free.push(frame_start(d.address));
            } else {
                self.lend(&mut packet, d.address + u64::from(skip), d.len - skip);
            }
        }
        Some(packet)
    }

    /// Lends the rest of a frame to a packet that has room for a segment.
    #[inline]
    fn lend(&mut self, packet: &mut Packet, address: u64, len: u32) {
        let Some(bytes) = self.region.bytes(address, len) else {
            return;
        };
        // SAFETY: the bytes are mapped as long as the region, and `drop` leaves it mapped while a packet
        // refers to it. The kernel does not write to the frame before `complete` gives it back, and then
        // the lender is whole.
        let pushed = unsafe { packet.push_seg(bytes, len, &mut self.lender) };
        debug_assert!(pushed, "at most MAX_SEGS frames");
        self.lent.push(frame_start(address));
        let offset = (address - frame_start(address)) as u16;
        self.region.loans.lend(frame_number(address), offset);
    }

    /// The packets of the last bursts are gone: their frames are given to the kernel.
    #[inline]
    pub fn complete(&mut self) {
        if (!self.lent.is_empty() || self.out > 0) && self.lender.is_whole() {
            self.settle();
        }
        if !self.free.is_empty() {
            self.refill();
        }
    }

    /// No packet refers to lent frames any more.
    #[inline]
    fn settle(&mut self) {
        let loans = &self.region.loans;
        for address in self.lent.drain(..) {
            match loans.settle(frame_number(address)) {
                true => self.free.push(address),
                false => self.out += 1,
            }
        }
        if self.out > 0 {
            self.out -= loans.take_returned(self.own.start, |frame| {
                self.free.push(u64::from(frame) * FRAME as u64)
            });
        }
    }

    fn refill(&mut self) {
        let n = self.fill.room(self.free.len() as u32);
        for _ in 0..n {
            let Some(address) = self.free.pop() else { break };
            self.fill.push(address);
        }
        self.fill.publish();
        if self.fill.wants_wakeup() {
            self.socket.wake_rx();
        }
    }

    /// Whether a packet waits.
    pub fn has_packet(&mut self) -> bool {
        self.ring.look() > 0
    }
    /// Packets that could not be taken so far.
    pub fn faults(&self) -> RxFaults {
        self.faults
    }
    /// The numbers of frames that are free and lent.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.free.len(), self.lent.len())
    }
    /// The numbers of all of its frames.
    #[cfg(test)]
    pub(crate) fn own(&self) -> Range<u32> {
        self.own.clone()
    }
    /// The number of frames in the receive ring.
    #[cfg(test)]
    pub(crate) fn waiting(&mut self) -> usize {
        self.ring.look() as usize
    }
    /// The number of frames that sending halves hold, and of those that they have returned and this half has
    /// not yet taken.
    #[cfg(test)]
    pub(crate) fn out(&self) -> u32 {
        self.out
    }
}

impl AsRawFd for Rx {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        if !self.lender.is_whole() {
            // Packets refer to the region, which stays mapped for ever.
            self.socket.lose_frames();
            core::mem::forget(Arc::clone(&self.region));
        }
    }
}

const ETH_HEADER: usize = 14;
/// Bytes of the longest packet.
const MAX_BYTES: usize = heddle_packet::BUF_SIZE - heddle_packet::HEADROOM;
