//! The memory of frames (UMEM). Sockets of several queues and devices may share it.
//!
//! Invariants: the memory stays mapped as long as the region. The kernel writes to frames of the fill ring,
//! and reads frames of the transmit ring; all others are ours. Addresses that the kernel reports are checked
//! all the same ([`Region::bytes`]). A frame's address in every ring is its offset in the memfd. A
//! process that takes over needs the memfd, the sockets, their parts, and the state of each frame.

#![allow(unsafe_code)] // memory that the kernel writes

use crate::loans::Loans;
use core::ptr::NonNull;
use heddle_sys::mmap::{Mapping, Pages, memfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of a frame, a page. A packet that is longer takes several.
pub(crate) const FRAME: usize = 4096;

/// Bytes of the longest packet that is received in one frame: the kernel keeps room in front of it.
pub const MAX_RECEIVED: usize = FRAME - 256;

/// Frames in memory that the kernel can write to.
#[derive(Debug)]
pub(crate) struct Region {
    map: Mapping,
    frames: u32,
    /// The frames that sending halves hold.
    pub(crate) loans: Loans,
    /// The memory, for a process that takes the sockets over.
    _file: OwnedFd,
}

impl Region {
    /// `frames` zero frames, in memory of NUMA node `node` if it has room.
    ///
    /// # Errors
    /// No memory, or no descriptors left.
    pub(crate) fn new(frames: u32, node: Option<u32>) -> io::Result<Self> {
        let len = u64::from(frames) * FRAME as u64;
        let file = memfd("heddle-xsk", len, Pages::Normal)?;
        let map = Mapping::of_fd(file.as_fd(), 0, len)?;
        map.advise_huge();
        if let Some(Err(e)) = node.map(|node| map.prefer_node(node)) {
            log::info!(target: "netdev_afxdp", "memory of another NUMA node than the card's may be used ({e})");
        }
        Ok(Self {
            map,
            frames,
            loans: Loans::new(frames),
            _file: file,
        })
    }
    pub(crate) fn address(&self) -> u64 {
        self.map.as_ptr().addr().get() as u64
    }
    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }
    /// The frame of an address, if the `len` bytes from there on are in one frame of this region.
    pub(crate) fn frame_of(&self, address: u64, len: u32) -> Option<u32> {
        let frame = u32::try_from(address / FRAME as u64)
            .ok()
            .filter(|f| *f < self.frames)?;
        (address % FRAME as u64 + u64::from(len) <= FRAME as u64).then_some(frame)
    }
    /// The address of a byte of this region, which a packet refers to. `None`: it is elsewhere.
    #[inline]
    pub(crate) fn address_of(&self, byte: *const u8) -> Option<u64> {
        let at = (byte.addr() as u64).wrapping_sub(self.address());
        (at < self.len()).then_some(at)
    }
    /// The memory at an address for which [`Region::frame_of`] has found a frame.
    pub(crate) fn bytes(&self, address: u64, len: u32) -> Option<NonNull<u8>> {
        self.frame_of(address, len)?;
        // SAFETY: the frame, and with it the address, is in the mapping.
        Some(unsafe { self.map.as_ptr().add(address as usize) })
    }
    /// Copies bytes of a frame that is ours to `to`, until either ends. `false`: not in one frame.
    pub(crate) fn read(&self, address: u64, to: &mut [u8]) -> bool {
        let Some(from) = self.bytes(address, to.len() as u32) else {
            return false;
        };
        // SAFETY: `bytes` has checked that these bytes are mapped; `to` is private memory.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }
    /// Calls `fill` with the `len` bytes at an address. `None`: not in one frame.
    ///
    /// # Safety
    /// No other reference to these `len` bytes exists, and no ring has a descriptor that covers them.
    pub(crate) unsafe fn write<T>(
        &self,
        address: u64,
        len: u32,
        fill: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let to = self.bytes(address, len)?;
        // SAFETY: `bytes` has checked that they are mapped. By contract nothing else refers to them.
        let bytes = unsafe { core::slice::from_raw_parts_mut(to.as_ptr(), len as usize) };
        Some(fill(bytes))
    }
}

/// Address of the frame that has the byte at `address`.
#[inline]
pub(crate) fn frame_start(address: u64) -> u64 {
    address & !(FRAME as u64 - 1)
}

/// Number of the frame that has the byte at `address`, which is in a region.
#[inline]
pub(crate) fn frame_number(address: u64) -> u32 {
    (address / FRAME as u64) as u32
}
