//! Sending: packets are copied into free frames, and the kernel is called once a burst.
//!
//! A packet whose tail is in received frames of the same memory is sent from there. Its head is written in
//! front of the tail ([`crate::loans`]). It is copied where that is not possible.
//!
//! The kernel sends no more frames than the completion ring has room for.

#![allow(unsafe_code)] // free frames are written by their address

use crate::loans::{Holder, Returning};
use crate::region::{FRAME, Region, frame_number, frame_start};
use crate::ring::{CONTINUES, Consumer, Descriptor, HAS_METADATA, Producer};
use crate::socket::Socket;
use heddle_packet::{Csum, MAX_SEGS, Packet};
use std::io;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// Room in front of the bytes of each frame, for metadata. The kernel wants it in each frame of a packet.
pub(crate) const METADATA: usize = size_of::<Metadata>();
/// Bytes of a packet in one frame.
const ROOM: usize = FRAME - METADATA;
/// Times that the kernel is called for one burst.
const TRIES: u32 = 64;
/// The number of frames that the kernel accepts for one packet.
const MAX_FRAMES: usize = 17;

/// Metadata of a packet to be sent (`struct xsk_tx_metadata`).
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
struct Metadata {
    flags: u64,
    csum_start: u16,
    csum_offset: u16,
    padding: u32,
    launch_time: u64,
}

/// [`Metadata::flags`]: the device or the kernel fills the checksum in.
const CHECKSUM: u64 = 1 << 1;

/// Why a packet was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No free frame: the device is slower than the senders.
    Full,
    /// The packet takes more frames than the kernel accepts for one packet.
    TooLong,
}

/// The sending half of a socket.
#[derive(Debug)]
pub struct Tx {
    socket: Arc<Socket>,
    region: Arc<Region>,
    ring: Producer<Descriptor>,
    completed: Consumer<u64>,
    /// Addresses of frames that are in no ring.
    free: Vec<u64>,
    /// Addresses of all frames of this half.
    own: core::ops::Range<u64>,
    /// The kernel reads metadata.
    metadata: bool,
    /// Maximum number of frames of a packet.
    max_frames: usize,
    /// Packets were pushed since the last [`Tx::flush`].
    pushed: bool,
    /// This half, as the holder of received frames.
    holder: Holder,
    /// The number of received frames that it holds.
    holds: u32,
    /// Maximum of `holds`.
    max_holds: u32,
}

impl Tx {
    pub(crate) fn new(
        socket: Arc<Socket>,
        region: Arc<Region>,
        ring: Producer<Descriptor>,
        completed: Consumer<u64>,
        frames: core::ops::Range<u32>,
        holder: Holder,
    ) -> Self {
        let max_frames = if socket.features().many_frames {
            MAX_FRAMES
        } else {
            1
        };
        Self {
            metadata: socket.reads_metadata(),
            max_frames,
            holder,
            holds: 0,
            max_holds: frames.len() as u32 / 2,
            socket,
            region,
            ring,
            completed,
            own: u64::from(frames.start) * FRAME as u64..u64::from(frames.end) * FRAME as u64,
            free: frames.map(|f| u64::from(f) * FRAME as u64).collect(),
            pushed: false,
        }
    }

    /// Whether packets with [`Csum::Partial`] can be sent as they are.
    pub fn fills_checksums(&self) -> bool {
        self.metadata
    }

    /// Puts a packet into the transmit ring. The kernel gets it at the next [`Tx::flush`]. It must be no GSO
    /// packet, and its checksum is partial only if [`Tx::fills_checksums`].
    ///
    /// # Errors
    /// The packet is not sent.
    #[inline]
    pub fn push(&mut self, packet: &Packet) -> Result<(), Refused> {
        if !packet.segs().is_empty() && self.push_as_it_is(packet) {
            return Ok(());
        }
        let len = packet.len();
        let frames = len.div_ceil(ROOM);
        if frames > self.max_frames {
            return Err(Refused::TooLong);
        }
        if self.free.len() < frames {
            self.reclaim();
        }
        if self.free.len() < frames || (self.ring.room(frames as u32) as usize) < frames {
            return Err(Refused::Full);
        }
        let mut done = 0;
        while done < len {
            let Some(frame) = self.free.pop() else {
                return Err(Refused::Full); // checked above
            };
            let mut options = if done == 0 {
                self.describe(frame, packet)
            } else {
                0
            };
            let n = (len - done).min(ROOM);
            let address = frame + METADATA as u64;
            // SAFETY: the frame was free, so no ring has it and nothing refers to it; `self` is exclusive.
            unsafe {
                self.region
                    .write(address, n as u32, |to| packet.copy_from(done, to))
            };
            done += n;
            options |= if done < len { CONTINUES } else { 0 };
            self.ring.push(Descriptor {
                address,
                len: n as u32,
                options,
            });
        }
        self.pushed = true;
        Ok(())
    }

    /// Sends a packet from the received frames that have its tail. `false`: it is to be copied.
    fn push_as_it_is(&mut self, packet: &Packet) -> bool {
        let (head, segs) = (packet.head(), packet.segs());
        let n = segs.len();
        if n > self.max_frames
            || self.holds + n as u32 > self.max_holds
            || self.ring.room(n as u32) < n as u32
        {
            return false;
        }
        // All frames are found before one is taken.
        let mut addresses = [0_u64; MAX_SEGS];
        for (seg, to) in segs.iter().zip(&mut addresses) {
            let Some(address) = self.region.address_of(seg.as_ptr()) else {
                return false;
            };
            *to = address;
        }
        let addresses = &addresses[..n];
        let Some(first) = addresses.first().copied() else {
            return false;
        };
        let room = (first - frame_start(first)) as usize;
        let fits = |len: usize| room + len <= FRAME && head.len() + METADATA <= room;
        if !segs.first().is_some_and(|seg| fits(seg.len())) {
            return false;
        }
        for (taken, address) in addresses.iter().enumerate() {
            if !self.hold(*address) {
                for address in &addresses[..taken] {
                    let offset = (address - frame_start(*address)) as u16;
                    self.region.loans.release(frame_number(*address), offset);
                }
                return false;
            }
        }
        self.holds += n as u32;
        let start = first - head.len() as u64;
        // SAFETY: `hold` has made the bytes in front of the tail ours. Packets refer to the tail and what is
        // behind it. The frame came out of the receive ring, and no other half has put it into a ring.
        unsafe {
            self.region
                .write(start, head.len() as u32, |to| to.copy_from_slice(head));
        }
        let mut options = self.describe(start - METADATA as u64, packet);
        for (i, (seg, address)) in segs.iter().zip(addresses).enumerate() {
            let (address, len) = match i {
                0 => (start, head.len() + seg.len()),
                _ => (*address, seg.len()),
            };
            options |= if i + 1 < n { CONTINUES } else { 0 };
            self.ring.push(Descriptor {
                address,
                len: len as u32,
                options,
            });
            options = 0;
        }
        self.pushed = true;
        self.socket.count_without_copy(1);
        true
    }
    /// Takes a received frame, of which a packet has the bytes from `address` on.
    #[inline]
    fn hold(&self, address: u64) -> bool {
        let offset = (address - frame_start(address)) as u16;
        // The kernel wants the room for metadata in each frame.
        usize::from(offset) >= METADATA && self.region.loans.hold(frame_number(address), offset, self.holder)
    }

    /// Writes the metadata of a packet to its first frame. Returns the descriptor's options.
    #[inline]
    fn describe(&mut self, frame: u64, packet: &Packet) -> u32 {
        let Csum::Partial { start, offset } = packet.offload.csum else {
            return 0;
        };
        let metadata = Metadata {
            flags: CHECKSUM,
            csum_start: start,
            csum_offset: offset,
            ..Metadata::default()
        };
        // SAFETY: the bytes are in a free frame, or in front of a held frame's tail: see the callers.
        unsafe {
            self.region.write(frame, METADATA as u32, |to| {
                to.copy_from_slice(metadata.as_bytes())
            });
        }
        HAS_METADATA
    }

    /// Takes back the frames of packets that were sent, and returns received ones.
    pub(crate) fn reclaim(&mut self) {
        let n = self.completed.look();
        if n == 0 {
            return;
        }
        let mut returning = Returning::default();
        for i in 0..n {
            let Some(address) = self.completed.peek(i) else {
                break;
            };
            let frame = frame_start(address);
            if self.own.contains(&frame) {
                self.free.push(frame);
            } else if returning.add(&self.region.loans, (address / FRAME as u64) as u32, self.holder) {
                self.holds -= 1;
            }
        }
        returning.end(&self.region.loans);
        self.completed.advance(n);
        self.completed.release();
    }

    /// Has the kernel send packets that it has put off, and returns received frames that were sent. Returns
    /// whether packets still wait.
    pub fn send_pending(&mut self) -> bool {
        self.socket.push_sends();
        if self.holds > 0 {
            self.reclaim();
        }
        self.socket.is_put_off()
    }
    /// Whether it holds received frames. [`Tx::send_pending`] returns them, and is to be called now and then.
    #[inline]
    pub fn holds_received(&self) -> bool {
        self.holds > 0
    }
    /// Whether the kernel has put packets off: [`Tx::send_pending`] is to be called soon.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.socket.is_put_off()
    }

    /// Hands the pushed packets to the kernel.
    ///
    /// # Errors
    /// The kernel does not send now: `ENETDOWN`, `ENXIO`. It has the packets all the same.
    pub fn flush(&mut self) -> io::Result<()> {
        if !core::mem::take(&mut self.pushed) {
            return Ok(());
        }
        self.ring.publish();
        let result = self.wake();
        // The receivers of these frames wait for them.
        if self.holds > 0 {
            self.reclaim();
        }
        result
    }
    /// Has the kernel send, if it has to be called.
    fn wake(&mut self) -> io::Result<()> {
        let mut tries = TRIES;
        while !self.socket.features().need_wakeup || self.ring.wants_wakeup() {
            let called = self.socket.wake_tx();
            if !self.ring.is_pending() {
                break;
            }
            tries -= 1;
            match called {
                // A zero-copy driver sends by itself from here on.
                Ok(()) if self.socket.features().zero_copy => break,
                Ok(()) if tries > 0 => {}
                Err(e) if tries > 0 && again(&e) => {}
                Err(e) if !again(&e) => return Err(e),
                _ => {
                    // Sent with the next burst, or by `send_pending`.
                    self.socket.put_off();
                    break;
                }
            }
        }
        Ok(())
    }
    #[cfg(test)]
    pub(crate) fn free_frames(&self) -> usize {
        self.free.len()
    }
}

/// Errors after which the kernel may be called again: it sends only a part of the ring in a call.
fn again(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::AGAIN, Errno::BUSY, Errno::NOBUFS];
    error
        .raw_os_error()
        .is_some_and(|code| codes.iter().any(|e| e.raw_os_error() == code))
}
