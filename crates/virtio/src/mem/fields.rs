//! Arrays of ring fields whose bounds were checked once, when the queue was set up.
//!
//! A ring of a power of two is indexed modulo its length. So no index leaves it, not even a guest's, and no
//! access needs a branch. Other tables ([`Table`]) check each index.

#![allow(unsafe_code)] // the fields of a ring by their addresses

use super::HostRange;
use super::prefetch;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use heddle_sys::Mapping;
use std::sync::Arc;

/// A power of two of elements of `SIZE` bytes each.
#[derive(Clone, Debug)]
pub(crate) struct Fields<const SIZE: usize> {
    ptr: NonNull<u8>,
    mask: usize,
    _map: Arc<Mapping>,
}

// SAFETY: the mapping lives as long as the array; all access is atomic or a raw copy of plain bytes.
unsafe impl<const SIZE: usize> Send for Fields<SIZE> {}
// SAFETY: as above.
unsafe impl<const SIZE: usize> Sync for Fields<SIZE> {}

/// The address and length of an array of fields: values that a loop over it keeps in registers.
#[derive(Clone, Copy)]
pub(crate) struct FieldsView<'a, const SIZE: usize> {
    ptr: *mut u8,
    mask: usize,
    _of: PhantomData<&'a Fields<SIZE>>,
}

impl<const SIZE: usize> FieldsView<'_, SIZE> {
    #[inline(always)]
    fn at(self, index: u16) -> *mut u8 {
        // SAFETY: `index & mask` is below the count, for which there is room (`Fields::new`); the array is
        // borrowed.
        unsafe { self.ptr.add((usize::from(index) & self.mask) * SIZE) }
    }
    /// Prefetches the element's line.
    #[inline(always)]
    pub(crate) fn prefetch(self, index: u16) {
        prefetch::read(self.at(index));
    }
}

impl FieldsView<'_, 2> {
    /// Reads a little-endian 16-bit element, unordered.
    #[inline(always)]
    pub(crate) fn load(self, index: u16) -> u16 {
        debug_assert!(self.at(index).addr().is_multiple_of(2));
        // SAFETY: in bounds (`at`) and aligned, since areas of 16-bit fields are; all parties access it as an
        // atomic.
        let field = unsafe { AtomicU16::from_ptr(self.at(index).cast()) };
        u16::from_le(field.load(Ordering::Relaxed))
    }
}

impl FieldsView<'_, 8> {
    /// Writes two little-endian 32-bit fields at once, unordered. The other side reads them after it has seen
    /// an index that was stored with Release later.
    #[inline(always)]
    pub(crate) fn put(self, index: u16, first: u32, second: u32) {
        let both = (u64::from(first) | u64::from(second) << 32).to_le();
        // SAFETY: in bounds (`at`); written without need of alignment. Only this side writes to it, see above
        // for readers.
        unsafe { self.at(index).cast::<u64>().write_unaligned(both) };
    }
}

impl FieldsView<'_, 16> {
    /// Reads the two halves of an element, each byte once, unordered.
    #[inline(always)]
    pub(crate) fn load(self, index: u16) -> (u64, u64) {
        // SAFETY: in bounds (`at`).
        unsafe { load_pair(self.at(index)) }
    }
}

impl<const SIZE: usize> Fields<SIZE> {
    /// The `count` elements from byte `off` of `range` on. The caller has checked the ring's size and areas.
    pub(crate) fn new(range: &HostRange, off: usize, count: u16) -> Self {
        let count = usize::from(count);
        assert!(
            count.is_power_of_two() && off <= range.len() && SIZE * count <= range.len() - off,
            "areas have the length of their ring"
        );
        Self {
            // SAFETY: inside the range by the line above.
            ptr: unsafe { range.ptr().add(off) },
            mask: count - 1,
            _map: Arc::clone(range.map()),
        }
    }
    /// For a loop over the elements.
    #[inline(always)]
    pub(crate) fn view(&self) -> FieldsView<'_, SIZE> {
        FieldsView {
            ptr: self.ptr.as_ptr(),
            mask: self.mask,
            _of: PhantomData,
        }
    }
    /// The byte offset of an element from the first.
    #[inline]
    pub(crate) fn offset(&self, index: u16) -> usize {
        (usize::from(index) & self.mask) * SIZE
    }
    /// Prefetches the element's line, to write to it.
    #[inline]
    pub(crate) fn prefetch_write(&self, index: u16) {
        prefetch::write(self.view().at(index));
    }
}

/// Any number of elements of 16 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    ptr: NonNull<u8>,
    count: u16,
    _map: Arc<Mapping>,
}

// SAFETY: as `Fields`.
unsafe impl Send for Table {}
// SAFETY: as `Fields`.
unsafe impl Sync for Table {}

impl Table {
    /// The `count` elements at the start of `range`.
    pub(crate) fn new(range: &HostRange, count: u16) -> Self {
        assert!(
            16 * usize::from(count) <= range.len() && range.ptr().addr().get().is_multiple_of(16),
            "areas have the length and the alignment of their ring"
        );
        Self {
            ptr: range.ptr(),
            count,
            _map: Arc::clone(range.map()),
        }
    }
    /// For a loop over the elements.
    #[inline(always)]
    pub(crate) fn view(&self) -> TableView<'_> {
        TableView {
            ptr: self.ptr.as_ptr(),
            count: self.count,
            _of: PhantomData,
        }
    }
    /// Prefetches the element's line, to write to it.
    #[inline]
    pub(crate) fn prefetch_write(&self, index: u16) {
        prefetch::write(self.view().at(index));
    }
}

/// The address and length of a [`Table`]: values that a loop over it keeps in registers.
#[derive(Clone, Copy)]
pub(crate) struct TableView<'a> {
    ptr: *mut u8,
    count: u16,
    _of: PhantomData<&'a Table>,
}

impl<'a> TableView<'a> {
    #[inline(always)]
    fn at(self, index: u16) -> *mut u8 {
        assert!(index < self.count, "cursors stay inside their ring");
        // SAFETY: there is room for `count` elements (`Table::new`); the table is borrowed.
        unsafe { self.ptr.add(usize::from(index) * 16) }
    }
    /// The second half of an element (bytes 8 to 15).
    #[inline(always)]
    fn second(self, index: u16) -> &'a AtomicU64 {
        // SAFETY: in bounds; elements are aligned to 16 (`Table::new`); accessed as an atomic, while the
        // table is borrowed.
        unsafe { AtomicU64::from_ptr(self.at(index).add(8).cast()) }
    }
    /// Reads the second half, with Acquire, and then, where it passes `when`, the first; each byte once.
    #[inline(always)]
    pub(crate) fn load_if(self, index: u16, when: impl FnOnce(u64) -> bool) -> Option<(u64, u64)> {
        let second = u64::from_le(self.second(index).load(Ordering::Acquire));
        if !when(second) {
            return None;
        }
        // SAFETY: in bounds, aligned to 16 (`Table::new`); accessed as an atomic.
        let first = unsafe { AtomicU64::from_ptr(self.at(index).cast()) };
        Some((u64::from_le(first.load(Ordering::Relaxed)), second))
    }
    /// Reads the two halves, each byte once, unordered.
    #[inline(always)]
    pub(crate) fn load(self, index: u16) -> (u64, u64) {
        // SAFETY: in bounds (`at`).
        unsafe { load_pair(self.at(index)) }
    }
    /// Writes the second half of an element, at once.
    #[inline(always)]
    pub(crate) fn store_second(self, index: u16, word: u64, order: Ordering) {
        self.second(index).store(word.to_le(), order);
    }
}

/// Reads two little-endian 64-bit words.
///
/// # Safety
/// 16 bytes at `p` are mapped, and `p` is aligned to 16: `QueueConfig::areas` demands that of descriptor
/// areas.
#[inline]
unsafe fn load_pair(p: *mut u8) -> (u64, u64) {
    debug_assert!(p.addr().is_multiple_of(16));
    // SAFETY: the caller's promise; all parties access descriptors as plain or atomic words.
    let word = |off| unsafe { AtomicU64::from_ptr(p.add(off).cast()).load(Ordering::Relaxed) };
    (u64::from_le(word(0)), u64::from_le(word(8)))
}
