//! Ranges of a guest's memory that hold rings, in this process.
//!
//! Another party may write to the same bytes at any time, so ring fields are atomics of their natural size
//! and alignment. This module, `fields` and `piece` are the only code that touches a guest's bytes.

#![allow(unsafe_code)] // a range of guest memory by its address

use super::{MemError, prefetch};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use heddle_sys::Mapping;
use std::sync::Arc;

/// A checked range inside one mapping, which it keeps alive: a ring, an event area.
#[derive(Clone, Debug)]
pub struct HostRange {
    ptr: NonNull<u8>,
    len: usize,
    log: u64,
    map: Arc<Mapping>,
}

// SAFETY: the mapping lives as long as the range; all access is atomic or a raw copy.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// `len` bytes at `offset` of `map`, which the caller has checked to be inside; refused when not aligned.
    pub(super) fn new(
        map: Arc<Mapping>,
        offset: usize,
        len: usize,
        log: u64,
        align: usize,
    ) -> Result<Self, MemError> {
        assert!(
            offset <= map.len() && len <= map.len() - offset,
            "regions lie inside their mapping"
        );
        // SAFETY: within the mapping by the line above.
        let ptr = unsafe { map.as_ptr().add(offset) };
        if !ptr.addr().get().is_multiple_of(align) {
            return Err(MemError::Misaligned { addr: log, align });
        }
        Ok(Self { ptr, len, log, map })
    }
    pub(super) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
    pub(super) fn map(&self) -> &Arc<Mapping> {
        &self.map
    }
    /// `len` bytes at `offset` of `map`, which need not belong to a guest.
    ///
    /// # Errors
    /// [`MemError::BeyondMapping`], [`MemError::Misaligned`].
    pub fn of(map: Arc<Mapping>, offset: u64, len: u64, align: usize) -> Result<Self, MemError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= map.len() as u64);
        if !inside {
            return Err(MemError::BeyondMapping { base: offset });
        }
        Self::new(map, offset as usize, len as usize, 0, align)
    }
    /// Sets where dirty logging places the first byte.
    pub(crate) fn logged_at(mut self, log: u64) -> Self {
        self.log = log;
        self
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The address of the first byte for dirty logging.
    pub fn log_addr(&self) -> u64 {
        self.log
    }

    /// A pointer to a `T` at `off`. Offsets are computed from masked ring positions, never taken from a
    /// guest.
    #[inline]
    fn at<T>(&self, off: usize) -> *mut T {
        assert!(
            off < self.len
                && size_of::<T>() <= self.len - off
                && (self.ptr.addr().get() + off).is_multiple_of(align_of::<T>()),
            "ring fields lie inside the ring, aligned"
        );
        // SAFETY: inside the range, and aligned, by the lines above.
        unsafe { self.ptr.as_ptr().add(off).cast() }
    }
    #[inline]
    fn a16(&self, off: usize) -> &AtomicU16 {
        // SAFETY: valid and aligned for the life of `self` (`at`); all parties access it as an atomic.
        unsafe { AtomicU16::from_ptr(self.at(off)) }
    }
    #[inline]
    fn a32(&self, off: usize) -> &AtomicU32 {
        // SAFETY: as `a16`.
        unsafe { AtomicU32::from_ptr(self.at(off)) }
    }
    #[inline]
    fn a64(&self, off: usize) -> &AtomicU64 {
        // SAFETY: as `a16`.
        unsafe { AtomicU64::from_ptr(self.at(off)) }
    }
    /// Reads the little-endian 16-bit field at `off`.
    #[inline]
    pub fn load16(&self, off: usize, order: Ordering) -> u16 {
        u16::from_le(self.a16(off).load(order))
    }
    /// Writes the little-endian 16-bit field at `off`.
    #[inline]
    pub fn store16(&self, off: usize, value: u16, order: Ordering) {
        self.a16(off).store(value.to_le(), order);
    }
    /// Reads the little-endian 32-bit field at `off`.
    #[inline]
    pub fn load32(&self, off: usize, order: Ordering) -> u32 {
        u32::from_le(self.a32(off).load(order))
    }
    /// Writes the little-endian 32-bit field at `off`.
    #[inline]
    pub fn store32(&self, off: usize, value: u32, order: Ordering) {
        self.a32(off).store(value.to_le(), order);
    }
    /// Reads the little-endian 64-bit field at `off`, unordered.
    #[inline]
    pub fn load64(&self, off: usize) -> u64 {
        u64::from_le(self.a64(off).load(Ordering::Relaxed))
    }
    /// Writes the little-endian 64-bit field at `off`, unordered.
    #[inline]
    pub fn store64(&self, off: usize, value: u64) {
        self.a64(off).store(value.to_le(), Ordering::Relaxed);
    }
    /// Writes the little-endian 64-bit field at `off`, after all writes before it.
    #[inline]
    pub fn store64_release(&self, off: usize, value: u64) {
        self.a64(off).store(value.to_le(), Ordering::Release);
    }
    /// A pointer to `len` bytes at `off`.
    #[inline]
    fn bytes(&self, off: usize, len: usize) -> *mut u8 {
        assert!(
            off <= self.len && len <= self.len - off,
            "bytes lie inside the range"
        );
        // SAFETY: inside the range, or one past it, by the line above.
        unsafe { self.ptr.as_ptr().add(off) }
    }
    /// Copies the bytes at `off` out. Another party may write meanwhile: the result may be a mixture.
    ///
    /// # Panics
    /// When they are not all inside the range; so do [`HostRange::write`] and [`HostRange::copy_to`].
    #[inline]
    pub fn read(&self, off: usize, dst: &mut [u8]) {
        let src = self.bytes(off, dst.len());
        // SAFETY: `src` has `dst.len()` bytes; `dst` is private memory, so they do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
    }
    /// Copies `src` to `off`.
    #[inline]
    pub fn write(&self, off: usize, src: &[u8]) {
        let dst = self.bytes(off, src.len());
        // SAFETY: as `read`.
        unsafe { core::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
    }
    /// Copies `len` bytes at `off` to `to` of another range.
    #[inline]
    pub fn copy_to(&self, off: usize, other: &Self, to: usize, len: usize) {
        let (src, dst) = (self.bytes(off, len), other.bytes(to, len));
        // SAFETY: both have `len` bytes; this copy allows them to overlap.
        unsafe { core::ptr::copy(src, dst, len) };
    }
    /// Prefetches the line at `off`.
    #[inline]
    pub fn prefetch(&self, off: usize) {
        prefetch::read(self.at::<u8>(off));
    }
    /// Prefetches the line at `off`, to write to it.
    #[inline]
    pub fn prefetch_write(&self, off: usize) {
        prefetch::write(self.at::<u8>(off));
    }
}
