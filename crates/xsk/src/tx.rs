//! Sending: packets are copied into free frames, and the kernel is called once a burst.
//!
//! The completion ring has room for all frames, as the kernel demands.

#![allow(unsafe_code)] // free frames are written by their address

use crate::region::{FRAME, Region};
use crate::ring::{CONTINUES, Consumer, Descriptor, HAS_METADATA, Producer};
use crate::socket::Socket;
use heddle_packet::{Csum, Packet};
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
}

impl Tx {
    pub(crate) fn new(
        socket: Arc<Socket>,
        region: Arc<Region>,
        ring: Producer<Descriptor>,
        completed: Consumer<u64>,
        frames: core::ops::Range<u32>,
    ) -> Self {
        let max_frames = if socket.features().many_frames {
            MAX_FRAMES
        } else {
            1
        };
        Self {
            metadata: socket.reads_metadata(),
            max_frames,
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

    /// Copies a packet to the transmit ring. The kernel gets it at the next [`Tx::flush`]. It must be no GSO
    /// packet, and its checksum is partial only if [`Tx::fills_checksums`].
    ///
    /// # Errors
    /// The packet was not copied.
    #[inline]
    pub fn push(&mut self, packet: &Packet) -> Result<(), Refused> {
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
            // SAFETY: the frame was free, so it is in no ring and nothing refers to it; `self` is exclusive.
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
        // SAFETY: as in `push`.
        unsafe {
            self.region.write(frame, METADATA as u32, |to| {
                to.copy_from_slice(metadata.as_bytes())
            });
        }
        HAS_METADATA
    }

    /// Takes back the frames of packets that were sent.
    #[cold]
    fn reclaim(&mut self) {
        let n = self.completed.look();
        for i in 0..n {
            let Some(address) = self.completed.peek(i) else {
                break;
            };
            let frame = address & !(FRAME as u64 - 1);
            self.free.extend(self.own.contains(&frame).then_some(frame));
        }
        self.completed.advance(n);
        self.completed.release();
    }

    /// Has the kernel send packets that it has put off. Returns whether some still wait.
    pub fn send_pending(&mut self) -> bool {
        self.socket.push_sends();
        self.socket.is_put_off()
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
    /// The number of free frames.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
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
