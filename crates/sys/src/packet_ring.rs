//! A receive ring shared with the kernel (`PACKET_RX_RING`, `TPACKET_V2`): packets are found and taken
//! without a system call.
//!
//! The ring is an array of frames of [`FRAME`] bytes; the status word of each shows its owner. The kernel
//! fills frames in order and gives each to us; we read it and give it back, in order. If a packet is longer
//! than a frame, the kernel queues it whole on the socket, and marks its frame ([`Frame::on_socket`]). Long
//! packets are received with [`crate::RecvBatch`], in the order of their frames.
//!
//! Invariants: `at` is the first frame that we have not given back. The bytes of a frame are only borrowed
//! while it is ours, when the kernel does not write to it. Lengths in a frame are the kernel's; they are
//! bounded by the frame all the same.

#![allow(unsafe_code)] // frames that the kernel writes

use crate::batch::StrippedVlan;
use crate::mmap::Mapping;
use crate::packet_socket::VNET_HDR_LEN;
use crate::{PacketSocket, sock};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of one frame: a packet of 1500 bytes with two tags, and the ring's own header.
pub const FRAME: usize = 2048;

const TPACKET_V2: i32 = 1;
const PACKET_VERSION: i32 = 10;
const PACKET_RX_RING: i32 = 5;
const PACKET_COPY_THRESH: i32 = 7;
const STATUS_KERNEL: u32 = 0;
const STATUS_USER: u32 = 1;
const STATUS_COPY: u32 = 1 << 1;
const STATUS_VLAN_VALID: u32 = 1 << 4;
const STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
/// Bytes of a block, which the kernel allocates in one piece.
const BLOCK: usize = 64 * 1024;

/// `struct tpacket_req`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Request {
    block_size: u32,
    block_nr: u32,
    frame_size: u32,
    frame_nr: u32,
}

/// `struct tpacket2_hdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    sec: u32,
    nsec: u32,
    vlan_tci: u16,
    vlan_tpid: u16,
    padding: [u8; 4],
}

/// The ring of one packet socket.
#[derive(Debug)]
pub struct RxRing {
    map: Mapping,
    frames: usize,
    at: usize,
}

/// A packet in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'r> {
    /// The virtio-net header and the packet; of a longer packet the first part.
    pub bytes: &'r [u8],
    /// The packet is whole on the socket; `bytes` has only its start.
    pub on_socket: bool,
    /// The packet did not fit the frame and is not on the socket either.
    pub truncated: bool,
    /// The tag to put back, if the kernel took one out.
    pub vlan: Option<StrippedVlan>,
}

impl RxRing {
    /// Gives `socket` a ring of about `frames` frames. Must be done before the socket is bound; the socket
    /// must have the virtio-net header.
    ///
    /// # Errors
    /// `ENOMEM` without contiguous memory, `EINVAL` on a socket that has a ring or lacks the header.
    pub fn attach(socket: &PacketSocket, frames: usize) -> io::Result<Self> {
        if !socket.has_vnet_hdr() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let blocks = (frames * FRAME).div_ceil(BLOCK).max(1);
        let frames = blocks * (BLOCK / FRAME);
        let request = Request {
            block_size: BLOCK as u32,
            block_nr: blocks as u32,
            frame_size: FRAME as u32,
            frame_nr: frames as u32,
        };
        let fd = socket.as_fd();
        sock::set(fd, libc::SOL_PACKET, PACKET_VERSION, &TPACKET_V2)?;
        sock::set(fd, libc::SOL_PACKET, PACKET_COPY_THRESH, &1_i32)?;
        sock::set(fd, libc::SOL_PACKET, PACKET_RX_RING, &request)?;
        let map = Mapping::of_fd(fd, 0, (blocks * BLOCK) as u64)?;
        Ok(Self { map, frames, at: 0 })
    }

    fn header(&self) -> *mut Header {
        debug_assert!(self.at < self.frames);
        // SAFETY: `at` is below `frames`, and `frames` frames are mapped.
        unsafe { self.map.as_ptr().as_ptr().add(self.at * FRAME).cast() }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: the status word is the first of the header, aligned, mapped as long as `self`, and accessed
        // by both sides as one word.
        unsafe { AtomicU32::from_ptr(core::ptr::addr_of_mut!((*self.header()).status)) }
    }

    /// Whether a packet waits.
    pub fn has_packet(&self) -> bool {
        // Acquire pairs with the kernel's write barrier between a frame's bytes and its status.
        self.status().load(Ordering::Acquire) & STATUS_USER != 0
    }

    /// The oldest packet that is ours.
    pub fn packet(&self) -> Option<Frame<'_>> {
        // Acquire: as in `has_packet`.
        let status = self.status().load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the frame is ours, so the kernel does not write to it until `release`, which needs `&mut
        // self`.
        let header = unsafe { self.header().read() };
        let from = usize::from(header.mac).saturating_sub(VNET_HDR_LEN).min(FRAME);
        let len = (header.snaplen as usize + VNET_HDR_LEN).min(FRAME - from);
        // SAFETY: `from + len` is at most FRAME, and the frame is ours, as above.
        let bytes = unsafe { core::slice::from_raw_parts(self.header().cast::<u8>().add(from), len) };
        let on_socket = status & STATUS_COPY != 0;
        let vlan = (status & STATUS_VLAN_VALID != 0).then_some(StrippedVlan {
            tpid: if status & STATUS_VLAN_TPID_VALID != 0 {
                header.vlan_tpid
            } else {
                0x8100
            },
            tci: header.vlan_tci,
        });
        Some(Frame {
            bytes,
            on_socket,
            truncated: header.snaplen < header.len && !on_socket,
            vlan,
        })
    }

    /// Gives the oldest packet's frame back to the kernel; nothing happens when there is none.
    pub fn release(&mut self) {
        if !self.has_packet() {
            return;
        }
        // Release: our reads of the frame are over before the kernel sees that it may write again.
        self.status().store(STATUS_KERNEL, Ordering::Release);
        self.at = if self.at + 1 == self.frames {
            0
        } else {
            self.at + 1
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout that linux/if_packet.h fixes.
    #[test]
    fn layout() {
        assert_eq!(size_of::<Header>(), 32);
        assert_eq!(core::mem::offset_of!(Header, mac), 12);
        assert_eq!(core::mem::offset_of!(Header, vlan_tci), 24);
        assert_eq!(size_of::<Request>(), 16);
        assert_eq!(BLOCK % FRAME, 0);
    }
}
