//! One ring that is shared with the kernel: a power of two of entries, and two indices that only grow.
//!
//! **Invariants.** One side writes entries and then moves `producer`; the other one reads them and then moves
//! `consumer`. `producer - consumer` is at most the size. Each side keeps a copy of the other one's index and
//! reads the shared one only when the copy shows no room, or no entry.
//!
//! **Costs.** An entry is one write or read; the shared indices are touched once a burst.
//!
//! Source: Linux, `Documentation/networking/af_xdp.rst`, and the layout of `XDP_MMAP_OFFSETS`.

#![allow(unsafe_code)] // memory that the kernel writes

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use heddle_sys::mmap::Mapping;
use std::io;
use std::os::fd::BorrowedFd;
use zerocopy::{FromBytes, IntoBytes};

/// Offsets of a ring's parts in its mapping, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    pub(crate) flags: u64,
    pub(crate) entries: u64,
}

/// An entry: a plain value.
pub(crate) trait RingEntry: Copy + FromBytes + IntoBytes {}
impl RingEntry for u64 {}
impl RingEntry for Descriptor {}

/// One frame of a packet in the receive or transmit ring (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// Offset of the first byte in the region.
    pub(crate) address: u64,
    /// Bytes in this frame.
    pub(crate) len: u32,
    pub(crate) options: u32,
}

/// [`Descriptor::options`]: the packet continues in the next frame.
pub(crate) const CONTINUES: u32 = 1;
/// [`Descriptor::options`]: metadata is in front of the bytes.
pub(crate) const HAS_METADATA: u32 = 1 << 1;
const NEED_WAKEUP: u32 = 1;

/// The shared memory of one ring.
#[derive(Debug)]
struct Shared<T> {
    map: Mapping,
    layout: Layout,
    size: u32,
    entries: PhantomData<T>,
}

impl<T: RingEntry> Shared<T> {
    fn map(fd: BorrowedFd<'_>, at: u64, layout: Layout, size: u32) -> io::Result<Self> {
        let len = layout.entries + u64::from(size) * size_of::<T>() as u64;
        let words = [layout.producer, layout.consumer, layout.flags];
        let fits = size.is_power_of_two()
            && words.iter().all(|w| w.is_multiple_of(4) && w + 4 <= len)
            && layout.entries.is_multiple_of(align_of::<T>() as u64);
        if !fits {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            map: Mapping::of_fd(fd, at, len)?,
            layout,
            size,
            entries: PhantomData,
        })
    }
    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: `map` has checked that an aligned word is there, in memory that lives as long as `self`.
        // Both sides access it as one word.
        unsafe { AtomicU32::from_ptr(self.map.as_ptr().as_ptr().add(at as usize).cast()) }
    }
    fn producer(&self) -> &AtomicU32 {
        self.word(self.layout.producer)
    }
    fn consumer(&self) -> &AtomicU32 {
        self.word(self.layout.consumer)
    }
    #[inline]
    fn entry(&self, index: u32) -> NonNull<T> {
        let at = self.layout.entries as usize + (index & (self.size - 1)) as usize * size_of::<T>();
        // SAFETY: `map` has mapped `size` entries from there on, aligned.
        unsafe { self.map.as_ptr().add(at).cast() }
    }
    fn wants_wakeup(&self) -> bool {
        // Relaxed: the kernel sets it before it looks at the ring for the last time, behind a barrier of its
        // own; a system call follows.
        self.word(self.layout.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The end of a ring that this process writes: fill and transmit.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    ring: Shared<T>,
    /// Index of the next entry.
    next: u32,
    /// Index of the first entry for which there is no room, as last seen.
    end: u32,
}

impl<T: RingEntry> Producer<T> {
    /// Maps the ring of `size` entries at offset `at` of a descriptor.
    ///
    /// # Errors
    /// The error of mmap(2); `InvalidData` for a layout that makes no sense.
    pub(crate) fn map(fd: BorrowedFd<'_>, at: u64, layout: Layout, size: u32) -> io::Result<Self> {
        let ring = Shared::map(fd, at, layout, size)?;
        let next = ring.producer().load(Ordering::Relaxed);
        Ok(Self {
            ring,
            next,
            end: next,
        })
    }
    /// The number of entries that can be pushed; at least `wanted` if there is so much room.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        let room = self.end.wrapping_sub(self.next);
        if room >= wanted {
            return room;
        }
        // Acquire pairs with the kernel's release: it has read the entries that it has consumed.
        let consumed = self.ring.consumer().load(Ordering::Acquire);
        self.end = consumed.wrapping_add(self.ring.size);
        // An index that makes no sense leaves no room.
        Some(self.end.wrapping_sub(self.next))
            .filter(|n| *n <= self.ring.size)
            .unwrap_or(0)
    }
    /// Writes an entry, for which [`Producer::room`] has found room.
    #[inline]
    pub(crate) fn push(&mut self, entry: T) {
        debug_assert!(self.end != self.next);
        // SAFETY: the entry is ours until `publish` has moved the index over it.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }
    /// Hands the written entries to the kernel.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release: the entries, and the bytes of their frames, are written before.
        self.ring.producer().store(self.next, Ordering::Release);
    }
    /// Whether the kernel has not consumed all entries.
    pub(crate) fn is_pending(&self) -> bool {
        self.ring.consumer().load(Ordering::Relaxed) != self.next
    }
    /// Whether the kernel looks at the ring only after a system call.
    #[inline]
    pub(crate) fn wants_wakeup(&self) -> bool {
        self.ring.wants_wakeup()
    }
}

/// The end of a ring that this process reads: receive and completion.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    ring: Shared<T>,
    /// Index of the next entry.
    next: u32,
    /// Index of the first entry that is not there yet, as last seen.
    end: u32,
}

impl<T: RingEntry> Consumer<T> {
    /// See [`Producer::map`].
    pub(crate) fn map(fd: BorrowedFd<'_>, at: u64, layout: Layout, size: u32) -> io::Result<Self> {
        let ring = Shared::map(fd, at, layout, size)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        Ok(Self {
            ring,
            next,
            end: next,
        })
    }
    /// Looks for new entries. Returns the number of entries that wait.
    #[inline]
    pub(crate) fn look(&mut self) -> u32 {
        // Acquire pairs with the kernel's release: the entries and their bytes are written.
        self.end = self.ring.producer().load(Ordering::Acquire);
        let waiting = self.end.wrapping_sub(self.next);
        if waiting > self.ring.size {
            // An index that makes no sense: there is nothing.
            self.end = self.next;
            return 0;
        }
        waiting
    }
    /// The next of the entries that [`Consumer::look`] has found, without taking it.
    #[inline]
    pub(crate) fn peek(&self, ahead: u32) -> Option<T> {
        (ahead < self.end.wrapping_sub(self.next)).then(|| {
            // SAFETY: the kernel has written the entry, and does not write to it again before `release`.
            unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read() }
        })
    }
    /// Takes `n` entries that [`Consumer::peek`] has shown.
    #[inline]
    pub(crate) fn advance(&mut self, n: u32) {
        debug_assert!(n <= self.end.wrapping_sub(self.next));
        self.next = self.next.wrapping_add(n);
    }
    /// Gives the room of the taken entries back to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        // Release: the entries are read before.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
