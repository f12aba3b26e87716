//! Checked pieces of buffers, and the copies into and out of them: the bytes of packets go through here.
//!
//! Another party may write to the same bytes at any time. Copies therefore go through raw pointers (no reference is made, the
//! result may be a mixture of old and new bytes, nothing is decided on it before it is private).

use super::prefetch;
use core::ptr::NonNull;
use heddle_packet::{HEAD_SPACE, Packet, Seg};

/// Bytes of a cache line.
const LINE: usize = 64;

/// A checked piece of a buffer. Valid as long as the [`super::GuestMemory`] that made it; queues keep that snapshot until
/// none of its pieces is in use, so pieces do not leave this crate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    ptr: NonNull<u8>,
    len: u32,
    /// Its place in the table of regions, for the dirty log.
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
    /// Asks for the lines of the first `n` bytes (at most all; at most three lines), to read or to write.
    #[inline]
    pub(crate) fn prefetch(&self, n: usize, write: bool) {
        let hint = if write { prefetch::write } else { prefetch::read };
        let from = self.ptr.as_ptr().cast_const();
        let last = self.len().min(n).wrapping_sub(1);
        hint(from);
        // Buffers seldom begin at a line: the last byte may be one line further than the length says.
        hint(from.wrapping_add(last));
        if last.wrapping_add(1) > 2 * LINE {
            hint(from.wrapping_add(LINE));
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
    /// Copies the `n` bytes (at least 16) from `at` on into the packet's head space; `false` if there are fewer, or no room.
    #[inline]
    pub(crate) fn read_head(&self, at: usize, n: usize, dst: &mut [u8; HEAD_SPACE]) -> bool {
        if !(16..=HEAD_SPACE).contains(&n) || at > self.len() || n > self.len() - at {
            return false;
        }
        // SAFETY: source and destination have `n` bytes; the destination is private, so they do not overlap.
        unsafe { copy_some(self.ptr.as_ptr().add(at), dst.as_mut_ptr(), n) };
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
    /// As [`Piece::write`], from a foreign segment (without its first `skip` bytes): the one copy between two guests.
    #[inline]
    pub(crate) fn write_seg(&self, at: usize, seg: &Seg, skip: usize) -> usize {
        let n = seg.len().saturating_sub(skip).min(self.len().saturating_sub(at));
        if n > 0 {
            // SAFETY: both ranges are inside their mappings. A guest that posts one buffer for both directions makes them
            // overlap, so this is a copy that allows it.
            unsafe { core::ptr::copy(seg.as_ptr().add(skip), self.ptr.as_ptr().add(at), n) };
        }
        n
    }
    /// Writes a header of `HEADER` bytes and the whole packet behind it; `false`, and nothing written, without room.
    #[inline]
    pub(crate) fn write_packet<const HEADER: usize>(&self, header: [u8; HEADER], packet: &Packet) -> bool {
        if self.len() < HEADER + packet.len() {
            return false;
        }
        let head = packet.head();
        // SAFETY: there is room for header, head and all segments (`Packet::len` is their sum). Header and head are private;
        // segments may overlap with the piece, and are copied so that they may.
        unsafe {
            let mut to = self.ptr.as_ptr();
            to.cast::<[u8; HEADER]>().write(header);
            to = to.add(HEADER);
            if head.len() >= 16 {
                copy_some(head.as_ptr(), to, head.len());
            } else {
                core::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
            }
            to = to.add(head.len());
            for seg in packet.segs() {
                core::ptr::copy(seg.as_ptr(), to, seg.len());
                to = to.add(seg.len());
            }
        }
        true
    }
    /// The bytes from `at` on, as a segment of a packet.
    #[inline]
    pub(crate) fn seg(&self, at: usize) -> Seg {
        let at = at.min(self.len());
        // SAFETY: `at <= len`, so the address is in or one past the mapping, which the receive queue keeps (`DeviceRx` holds
        // the memory snapshot until `complete`, and for ever when it is dropped before).
        unsafe { Seg::new(self.ptr.add(at), self.len - at as u32) }
    }
}

/// Copies `n` bytes, at least 16, without a call for what is as long as headers: the first and the last `K` bytes, which may
/// overlap, where `K <= n <= 2 * K`.
///
/// # Safety
/// Both ranges are valid for `n` bytes and do not overlap.
#[inline]
unsafe fn copy_some(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: each arm reads and writes within `n` bytes, by its condition.
    unsafe {
        match n {
            65..=128 => ends::<64>(src, dst, n),
            33..=64 => ends::<32>(src, dst, n),
            16..=32 => ends::<16>(src, dst, n),
            _ => core::ptr::copy_nonoverlapping(src, dst, n),
        }
    }
}

/// # Safety
/// As [`copy_some`], with `K <= n <= 2 * K`.
#[inline]
unsafe fn ends<const K: usize>(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: the caller's promise; arrays of bytes have no alignment.
    unsafe {
        let first = src.cast::<[u8; K]>().read();
        let last = src.add(n - K).cast::<[u8; K]>().read();
        dst.cast::<[u8; K]>().write(first);
        dst.add(n - K).cast::<[u8; K]>().write(last);
    }
}
