//! Big tables of plain numbers in pages of their own. They are zero at first, resident only where they were
//! touched, and given back to the system at once when dropped.
//!
//! A table of two megabytes or more starts at a huge page's boundary and can request huge pages from the
//! kernel (`madvise(2)`, `MADV_HUGEPAGE`). Without them, random reads of a large table spend most of their
//! time in the page tables. The kernel may decline; nothing depends on it.
//!
//! A table in a file without a name ([`Zeroed::in_file`]) can be handed to another process. Most systems give
//! such files no huge pages when they are written to, even where advised
//! (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`). They join the present pages on demand
//! ([`Zeroed::join_pages`]).

#![allow(unsafe_code)] // mmap and the memory behind it

use crate::cvt;
use crate::locked::PAGE;
use crate::mmap::{Pages, memfd};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use zerocopy::FromZeros;

const HUGE: usize = 2 << 20;

/// A number that threads share. Every bit pattern is a value, and it may change at any time.
pub trait Atomic: sealed::Sealed {}
impl Atomic for AtomicU32 {}
impl Atomic for AtomicU64 {}
mod sealed {
    pub trait Sealed {}
    impl Sealed for super::AtomicU32 {}
    impl Sealed for super::AtomicU64 {}
}

/// `len` values of `T`, zeros at first.
#[derive(Debug)]
pub struct Zeroed<T> {
    base: NonNull<u8>,
    base_len: usize,
    ptr: NonNull<T>,
    len: usize,
    /// The mapped file; `None`: memory of this process.
    file: Option<OwnedFd>,
}

// SAFETY: it owns its memory as a `Box<[T]>` does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T: FromZeros> Zeroed<T> {
    /// Maps a table. `huge`: request huge pages, so that the first write into each costs the zeroing of all
    /// of it.
    ///
    /// # Errors
    /// `OutOfMemory` for a table beyond the address space; errors of mmap(2).
    pub fn new(len: usize, huge: bool) -> io::Result<Self> {
        Self::map(len, huge, None)
    }
    /// Maps a table in a memfd of this name, whose descriptor [`Zeroed::file`] gives. Its first byte is the
    /// table's. Memory is used as it is written to.
    ///
    /// # Errors
    /// The errors of [`Zeroed::new`] and of memfd_create(2).
    pub fn in_file(name: &str, len: usize) -> io::Result<Self>
    where
        T: Sync,
    {
        let bytes = Self::bytes(len)?;
        let file = memfd(name, bytes as u64, Pages::Normal)?;
        // A read of a page that was cut off would end this process (SIGBUS).
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
        Self::map(len, true, Some(file))
    }
    fn bytes(len: usize) -> io::Result<usize> {
        let bytes = len.max(1).checked_mul(size_of::<T>());
        bytes.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
    fn map(len: usize, huge: bool, file: Option<OwnedFd>) -> io::Result<Self> {
        const {
            assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= 4096 && size_of::<T>() > 0);
        }
        let refuse = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = Self::bytes(len)?;
        let align = if bytes >= HUGE { HUGE } else { 0 };
        let base_len = bytes.checked_add(align).ok_or_else(refuse)?;
        // Miri knows neither this nor advice.
        let lazily = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                base_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | lazily,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(refuse)?;
        let shift = match align {
            0 => 0,
            a => base.align_offset(a),
        };
        // SAFETY: `shift` is below the alignment, by which the mapping is longer than the table.
        let ptr = unsafe { base.add(shift) };
        // From here on a drop unmaps it, also after an error.
        let table = Self {
            base,
            base_len,
            ptr: ptr.cast(),
            len,
            file,
        };
        if let Some(file) = &table.file {
            // SAFETY: it takes the place of a part of the mapping above, to which no reference exists. The
            // file has that many bytes, and is sealed against being cut.
            let place = unsafe {
                libc::mmap(
                    ptr.as_ptr().cast(),
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED | lazily,
                    file.as_raw_fd(),
                    0,
                )
            };
            if place == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        if huge && align != 0 && !cfg!(miri) {
            // SAFETY: the range is within the mapping. The call is advice: a refusal changes nothing.
            let _ = cvt(unsafe { libc::madvise(ptr.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) });
        }
        crate::locked::add(base.addr().get(), base_len);
        Ok(table)
    }
}

impl<T> Zeroed<T> {
    /// The file that it is a mapping of, if [`Zeroed::in_file`] made it. The file is sealed: no process can
    /// cut it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
    /// The first value that begins behind the huge page in which value `at` begins.
    pub fn next_page(&self, at: usize) -> usize {
        let start = at.saturating_mul(size_of::<T>()) & !(HUGE - 1);
        start.saturating_add(HUGE).div_ceil(size_of::<T>())
    }
    /// Joins the small pages around the beginning of value `at` to a huge page (`MADV_COLLAPSE`, Linux 6.1),
    /// if all of that belongs to the table. A thread that touches it meanwhile waits, up to some
    /// milliseconds.
    ///
    /// # Errors
    /// The error of madvise(2): this system does not do it, or not now; or none of the pages was touched yet.
    pub fn join_pages(&self, at: usize) -> io::Result<()> {
        const MADV_COLLAPSE: libc::c_int = 25;
        let start = at.saturating_mul(size_of::<T>()) & !(HUGE - 1);
        if start.saturating_add(HUGE) > self.len * size_of::<T>() || cfg!(miri) {
            return Ok(());
        }
        // SAFETY: `start` is below the table's bytes.
        let page = unsafe { self.ptr.cast::<u8>().add(start) };
        // SAFETY: the range is within the mapping, and its content stays.
        cvt(unsafe { libc::madvise(page.as_ptr().cast(), HUGE, MADV_COLLAPSE) })?;
        Ok(())
    }
}

impl<T> Zeroed<T> {
    /// Makes `values` zero and gives their memory back to the system, as far as it is whole pages. Returns
    /// the number of bytes given back. Other threads may read and write meanwhile, but writes to these values
    /// may be lost. `numbers` returns all shared numbers of a value, in their order in memory: if the value
    /// has other parts, nothing is given back.
    ///
    /// # Errors
    /// The error of fallocate(2) or madvise(2).
    pub fn give_back<A: Atomic, const N: usize>(
        &self,
        values: Range<usize>,
        numbers: impl FnOnce(&T) -> [&A; N],
    ) -> io::Result<usize> {
        let Some(first) = self.get(values.start..values.end).and_then(<[T]>::first) else {
            return Ok(0);
        };
        let expected = (std::ptr::from_ref(first).addr()..).step_by(size_of::<A>());
        let numbers = numbers(first).map(|n| std::ptr::from_ref(n).addr());
        let all = size_of::<T>() == N * size_of::<A>() && expected.zip(numbers).all(|(a, b)| a == b);
        let start = (values.start * size_of::<T>()).next_multiple_of(PAGE);
        let end = values.end * size_of::<T>() / PAGE * PAGE;
        if !all || start >= end || cfg!(miri) {
            return Ok(0);
        }
        if let Some(file) = &self.file {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, hole, start as u64, (end - start) as u64)?;
            return Ok(end - start);
        }
        // Since Linux 5.18. The older MADV_DONTNEED fails for a locked range.
        const MADV_DONTNEED_LOCKED: libc::c_int = 24;
        // SAFETY: `start` is below the table's bytes.
        let at = unsafe { self.ptr.cast::<u8>().add(start) };
        let advise = |advice| {
            // SAFETY: the range is whole pages of the table, and a private mapping. Its bytes are shared
            // numbers (`Atomic`), which may become zero while others hold references to them.
            cvt(unsafe { libc::madvise(at.as_ptr().cast(), end - start, advice) })
        };
        advise(MADV_DONTNEED_LOCKED).or_else(|_| advise(libc::MADV_DONTNEED))?;
        Ok(end - start)
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is aligned to a page at least and `T` to no more. The mapping has room for `len`
        // values, which are valid when zero (`FromZeros`) and stay valid until drop.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Zeroed<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        crate::locked::remove(self.base.addr().get(), self.base_len);
        // SAFETY: exactly the range that `new` mapped; no borrow of it exists any more. `T` needs no drop.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.base_len) };
    }
}

/// A [`Zeroed`] with several owners, none of which can have it exclusively any more: its values are changed
/// through atomics, if at all. Each owner has the table's address, not the address of a counter beside it.
#[derive(Debug)]
pub struct SharedZeroed<T> {
    ptr: NonNull<T>,
    len: usize,
    /// `None`: there is no table.
    owner: Option<Arc<Zeroed<T>>>,
}

// SAFETY: it gives out shared references to values that an `Arc` owns.
unsafe impl<T: Send + Sync> Send for SharedZeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for SharedZeroed<T> {}

impl<T> SharedZeroed<T> {
    /// Makes a shared table of one that its owner gives up.
    pub fn new(table: Zeroed<T>) -> Self {
        Self {
            ptr: table.ptr,
            len: table.len,
            owner: Some(Arc::new(table)),
        }
    }
}

impl<T> Default for SharedZeroed<T> {
    /// No values.
    fn default() -> Self {
        Self {
            ptr: NonNull::dangling(),
            len: 0,
            owner: None,
        }
    }
}

impl<T> Clone for SharedZeroed<T> {
    fn clone(&self) -> Self {
        Self {
            owner: self.owner.clone(),
            ..*self
        }
    }
}

impl<T> Deref for SharedZeroed<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the owner's values (see its `deref`), which stay where they are. No exclusive borrow of
        // them exists, because the owner is behind an `Arc` of this module that hands none out. Without an
        // owner there are no values.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    #[cfg_attr(miri, ignore = "tens of gigabytes")]
    fn zero_aligned_and_lazy() {
        for (len, huge) in [
            (0, false),
            (1, false),
            (1000, true),
            (1 << 20, true),
            (1 << 20, false),
        ] {
            let mut t = Zeroed::<[u64; 8]>::new(len, huge).unwrap();
            assert_eq!(t.len(), len);
            assert!(t.iter().step_by(777).all(|v| *v == [0; 8]));
            if let Some(last) = t.last_mut() {
                last[7] = 9;
                assert_eq!(t[len - 1], [0, 0, 0, 0, 0, 0, 0, 9]);
                assert_eq!(t.as_ptr().align_offset(64), 0);
            }
        }
        // 64 GiB of address space, of which one page is touched.
        let t = Zeroed::<AtomicU64>::new(8 << 30, false).unwrap();
        t[5 << 30].store(1, Relaxed);
        assert_eq!((t[5 << 30].load(Relaxed), t[0].load(Relaxed)), (1, 0));
        assert!(Zeroed::<u64>::new(usize::MAX, false).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "memfd")]
    fn in_a_file_that_others_map() {
        for len in [10, 1 << 20] {
            let t = Zeroed::<AtomicU64>::in_file("test", len).unwrap();
            t[len - 1].store(7, Relaxed);
            let other = crate::shared_words::SharedWords::of_fd(t.file().unwrap(), len).unwrap();
            assert!(
                rustix::fs::ftruncate(t.file().unwrap(), 0).is_err(),
                "it is sealed"
            );
            assert_eq!((other.load(0), other.load(len - 1)), (0, 7));
            other.store(3, 9);
            assert_eq!(t[3].load(Relaxed), 9);
            assert_eq!(
                [0, 3, HUGE / 8].map(|at| t.next_page(at)),
                [HUGE / 8, HUGE / 8, HUGE / 4]
            );
            // Joined or not, the content stays.
            if let Err(e) = t.join_pages(3) {
                println!("no huge pages for files: {e}");
            }
            t[5].store(4, Relaxed);
            assert_eq!([3, 5, len - 1].map(|at| other.load(at)), [9, 4, 7]);
        }
        assert!(Zeroed::<u64>::new(10, true).unwrap().file().is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "pages")]
    fn whole_pages_are_given_back() {
        fn one(v: &AtomicU64) -> [&AtomicU64; 1] {
            [v]
        }
        for t in [
            Zeroed::<AtomicU64>::new(1 << 20, false).unwrap(),
            Zeroed::<AtomicU64>::in_file("test", 1 << 20).unwrap(),
        ] {
            t.iter().for_each(|v| v.store(7, Relaxed));
            let before = crate::memory::usage().unwrap().resident;
            // The first and the last page have values that stay.
            assert_eq!(t.give_back(1..(1 << 20) - 1, one).unwrap(), (8 << 20) - 2 * PAGE);
            assert!(crate::memory::usage().unwrap().resident + (7 << 20) < before);
            let values = [0, 511, 512, (1 << 20) - 513, (1 << 20) - 512].map(|at| t[at].load(Relaxed));
            assert_eq!(values, [7, 7, 0, 0, 7]);
            t[1000].store(3, Relaxed);
            assert_eq!(t[1000].load(Relaxed), 3);
            assert_eq!(t.give_back(5..5, one).unwrap(), 0);
            assert_eq!(t.give_back(0..usize::MAX, one).unwrap(), 0);
        }
        // A value of several numbers, all of them named, in their order.
        #[derive(zerocopy::FromZeros)]
        #[repr(C)]
        struct Pair(AtomicU64, AtomicU64);
        let t = Zeroed::<Pair>::new(1 << 12, false).unwrap();
        t[300].1.store(1, Relaxed);
        assert_eq!(t.give_back(0..1 << 12, |v| [&v.1, &v.0]).unwrap(), 0);
        assert_eq!(t.give_back(0..1 << 12, |v| [&v.0, &v.0]).unwrap(), 0);
        assert_eq!(
            (
                t.give_back(0..1 << 12, |v| one(&v.0)).unwrap(),
                t[300].1.load(Relaxed)
            ),
            (0, 1)
        );
        assert_eq!(t.give_back(0..1 << 12, |v| [&v.0, &v.1]).unwrap(), 16 << 12);
        assert_eq!(t[300].1.load(Relaxed), 0);
        // A value of which only a part is shared numbers stays.
        #[derive(zerocopy::FromZeros)]
        #[repr(C)]
        struct Mixed(AtomicU64, u64);
        let t = Zeroed::<Mixed>::new(1 << 12, false).unwrap();
        t[300].0.store(1, Relaxed);
        assert_eq!(t.give_back(0..1 << 12, |v| one(&v.0)).unwrap(), 0);
        assert_eq!((t[300].0.load(Relaxed), t[300].1), (1, 0));
    }

    #[test]
    fn shared_by_several() {
        let none = SharedZeroed::<AtomicU64>::default();
        assert!(none.is_empty() && none.clone().is_empty());
        let one = SharedZeroed::new(Zeroed::<AtomicU64>::new(1 << 20, true).unwrap());
        let other = one.clone();
        std::thread::spawn(move || other[77].store(5, Relaxed))
            .join()
            .unwrap();
        assert_eq!((one.len(), one[77].load(Relaxed)), (1 << 20, 5));
    }
}
