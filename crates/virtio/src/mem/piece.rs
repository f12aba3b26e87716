//! Checked pieces of buffers, and the copies into and out of them: the bytes of packets go through here.
//!
//! Another party may write to the same bytes at any time. Copies therefore go through raw pointers, and no
//! reference is made. The result may be a mixture of old and new bytes. No decision depends on it before it
//! is private.

#![allow(unsafe_code)] // a buffer of the guest by its address

use super::{copy, prefetch};
use crate::net_hdr;
use core::ptr::NonNull;
use heddle_packet::{HEAD_SPACE, Lender, Packet, Seg};

/// Bytes of a cache line.
const LINE: usize = 64;

/// A checked piece of a buffer. Valid as long as the [`super::GuestMemory`] that made it. Queues keep that
/// snapshot until none of its pieces is in use, so pieces do not leave this crate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    ptr: NonNull<u8>,
    len: u32,
    /// The index of its region in the table, for the dirty log.
    pub(super) region: u16,
}

// SAFETY: an address whose mapping the owning queue keeps alive; it grants raw copies only.
unsafe impl Send for Piece {}

impl Piece {
    /// No bytes.
    pub(crate) const EMPTY: Self = Self {
        ptr: NonNull::dangling(),
        len: 0,
        region: 0,
    };

    #[inline]
    pub(super) fn new(ptr: NonNull<u8>, len: u32, region: u16) -> Self {
        Self { ptr, len, region }
    }
    pub(super) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }
    /// Prefetches the lines of the first `n` bytes (at most all; at most three lines), to read or to write.
    #[inline(always)]
    pub(crate) fn prefetch(&self, n: usize, write: bool) {
        let from = self.ptr.as_ptr().cast_const();
        let last = self.len().min(n).wrapping_sub(1);
        prefetch::either(from, write);
        // Buffers seldom begin at a line: the last byte may be one line further than the length suggests.
        prefetch::either(from.wrapping_add(last), write);
        if last.wrapping_add(1) > 2 * LINE {
            prefetch::either(from.wrapping_add(LINE), write);
        }
    }
    /// Copies as many bytes from `at` on as there are and as fit into `dst`; returns how many.
    #[inline]
    pub(crate) fn read(&self, at: usize, dst: &mut [u8]) -> usize {
        let n = dst.len().min(self.len().saturating_sub(at));
        if n > 0 {
            // SAFETY: `at + n <= len`; `dst` is private memory, so it does not overlap.
            unsafe { core::ptr::copy_nonoverlapping(self.ptr.as_ptr().add(at), dst.as_mut_ptr(), n) };
        }
        n
    }
    /// The first `N` bytes; zeros if it has fewer.
    #[inline]
    pub(crate) fn first<const N: usize>(&self) -> [u8; N] {
        if self.len() < N {
            return [0; N];
        }
        // SAFETY: `N <= len`, and byte arrays have no alignment.
        unsafe { self.ptr.as_ptr().cast::<[u8; N]>().read() }
    }
    /// Copies the `n` bytes (at least 16) from `at` on into the packet's head space; `false` if there are
    /// fewer, or no room.
    #[inline]
    pub(crate) fn read_head(&self, at: usize, n: usize, dst: &mut [u8; HEAD_SPACE]) -> bool {
        if !(16..=HEAD_SPACE).contains(&n) || at > self.len() || n > self.len() - at {
            return false;
        }
        // SAFETY: source and destination have `n` bytes; the destination is private, so they do not overlap.
        unsafe { copy::some(self.ptr.as_ptr().add(at), dst.as_mut_ptr(), n) };
        true
    }
    /// Copies as many bytes of `src` to `at` as there is room for; returns how many.
    #[inline]
    pub(crate) fn write(&self, at: usize, src: &[u8]) -> usize {
        let n = src.len().min(self.len().saturating_sub(at));
        if n > 0 {
            // SAFETY: `at + n <= len`; `src` is private memory, so it does not overlap.
            unsafe { core::ptr::copy_nonoverlapping(src.as_ptr(), self.ptr.as_ptr().add(at), n) };
        }
        n
    }
    /// Like [`Piece::write`], from a foreign segment (without its first `skip` bytes): the one copy between
    /// two guests.
    #[inline]
    pub(crate) fn write_seg(&self, at: usize, seg: &Seg, skip: usize) -> usize {
        let left = seg.len().saturating_sub(skip);
        let n = left.min(self.len().saturating_sub(at));
        if n > 0 {
            // A long segment is spread over many pieces: the bytes for the next one are prefetched while this
            // one is filled.
            let next = seg.as_ptr().wrapping_add(skip + n);
            for off in (0..n.min(left - n)).step_by(LINE) {
                prefetch::read(next.wrapping_add(off));
            }
            // SAFETY: both ranges are inside their mappings. A guest that posts one buffer for both
            // directions makes them overlap, so this is a copy that allows it.
            unsafe { core::ptr::copy(seg.as_ptr().add(skip), self.ptr.as_ptr().add(at), n) };
        }
        n
    }
    /// Writes a virtio-net header whose only information is "one buffer", and the whole packet behind it.
    /// Returns `false`, and writes nothing, without room, or if the packet's head is too short for this to be
    /// worth while.
    #[inline(always)]
    pub(crate) fn write_plain(&self, packet: &Packet) -> bool {
        const HEADER: usize = net_hdr::LEN;
        let head = packet.head();
        let Some((first, rest)) = head.split_first_chunk::<4>() else {
            return false;
        };
        if rest.len() < 16 || self.len() < HEADER + packet.len() {
            return false;
        }
        // The header's last two words, and the packet's first bytes: sixteen bytes are one store.
        let [a, b, c, d] = *first;
        let [e, f] = 1_u16.to_le_bytes();
        let to = self.ptr.as_ptr();
        // SAFETY: there is room for header, head and all segments; header and head are private; see
        // `segments` for those.
        unsafe {
            to.cast::<[u64; 2]>()
                .write_unaligned([0, u64::from_ne_bytes([0, 0, e, f, a, b, c, d])]);
            copy::some(rest.as_ptr(), to.add(16), rest.len());
            segments(packet, to.add(HEADER + head.len()));
        }
        true
    }
    /// Writes a header of `HEADER` bytes and the whole packet behind it; `false`, and nothing written,
    /// without room.
    #[inline]
    pub(crate) fn write_packet<const HEADER: usize>(&self, header: [u8; HEADER], packet: &Packet) -> bool {
        if self.len() < HEADER + packet.len() {
            return false;
        }
        let head = packet.head();
        // SAFETY: there is room for header, head and all segments (`Packet::len` is their sum). Header and
        // head are private; segments may overlap with the piece, and are copied so that they may.
        unsafe {
            let mut to = self.ptr.as_ptr();
            to.cast::<[u8; HEADER]>().write(header);
            to = to.add(HEADER);
            if head.len() >= 16 {
                copy::some(head.as_ptr(), to, head.len());
            } else {
                core::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
            }
            segments(packet, to.add(head.len()));
        }
        true
    }
    /// Appends the bytes from `at` on to the packet as a segment; `false` if that has too many already.
    /// `lender` belongs to the receive queue whose window this piece is in.
    #[inline]
    pub(crate) fn lend(&self, at: usize, packet: &mut Packet, lender: &mut Lender) -> bool {
        let at = at.min(self.len());
        // SAFETY: `at <= len`, so the address is in or one past the mapping. The queue keeps the memory
        // snapshot of its pieces until `lender` is whole, and for ever when it is dropped before that
        // (`DeviceRx`).
        unsafe { packet.push_seg(self.ptr.add(at), self.len - at as u32, lender) }
    }
}

/// Copies the packet's segments to `to`, one behind the other.
///
/// # Safety
/// There is room for all of them. They may overlap with it.
#[inline(always)]
unsafe fn segments(packet: &Packet, to: *mut u8) {
    let mut to = to;
    for seg in packet.segs() {
        // SAFETY: the caller's promise; segments are readable while their packet lives. A guest that posts
        // one buffer for both directions makes source and destination overlap, so this is a copy that allows
        // it.
        unsafe {
            core::ptr::copy(seg.as_ptr(), to, seg.len());
            to = to.add(seg.len());
        }
    }
}
