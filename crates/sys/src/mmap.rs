//! Memory that is shared with another process: mappings of descriptors, and memfds to map.
//!
//! Invariants: a [`Mapping`] is readable and writable from [`Mapping::as_ptr`] for [`Mapping::len`] bytes
//! until it is dropped; the descriptor may be closed meanwhile. There is no access to the bytes here: the
//! code that maps memory shared with other processes decides how to read it (`heddle-virtio`'s `mem`).
//!
//! A file that its owner cuts after it was mapped raises SIGBUS on access. Its length is checked when it is
//! mapped; for files of other processes there is [`Mapping::guarded`], which survives a later cut.
//!
//! Thread-safety: a mapping is an address range; it may be used and dropped on any thread.

#![allow(unsafe_code)] // mmap and the memory behind it

use crate::sigbus::Guard;
use rustix::fs::{FileType, MemfdFlags, SeekFrom, fstat, fstatfs, ftruncate, memfd_create, seek};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// The kind of pages of a memfd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The system's usual pages.
    #[default]
    Normal,
    /// 2 MiB pages of the hugepage pool; mapping fails where the pool is too small.
    Huge2M,
}

/// Makes a nameless file of `len` zero bytes (memfd_create(2)) that other processes can map, and that may be
/// sealed. `name` is for `/proc/PID/maps`.
///
/// # Errors
/// The error of memfd_create(2) and ftruncate(2); `InvalidInput` for a name with a zero byte.
pub fn memfd(name: &str, len: u64, pages: Pages) -> io::Result<OwnedFd> {
    let huge = match pages {
        Pages::Normal => MemfdFlags::empty(),
        Pages::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
    };
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge)?;
    ftruncate(&fd, len)?;
    Ok(fd)
}

/// A mapped range of memory.
#[derive(Debug)]
pub struct Mapping {
    /// The mapped address: whole pages around the range.
    base: NonNull<u8>,
    base_len: usize,
    ptr: NonNull<u8>,
    len: usize,
    /// Against SIGBUS.
    guard: Option<Guard>,
    /// The file, where it may have holes, and where in it the mapping begins.
    sparse: Option<(OwnedFd, u64)>,
}

// SAFETY: an address range that stays valid until drop; it grants no access by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` on, shared, readable and writable. Neither needs to be a
    /// multiple of a page.
    ///
    /// # Errors
    /// `InvalidInput` for an empty range, one beyond the file's end, or beyond the address space; otherwise
    /// errors of fstat(2) and mmap(2).
    pub fn of_fd(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Self> {
        let refuse = || io::Error::from(io::ErrorKind::InvalidInput);
        let st = fstat(fd)?;
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or_else(refuse)?;
        let regular = FileType::from_raw_mode(st.st_mode) == FileType::RegularFile;
        if regular && end > u64::try_from(st.st_size).unwrap_or(0) {
            return Err(refuse());
        }
        // A hugetlb file's block is its page: both ends are rounded to it.
        let page = u64::try_from(st.st_blksize)
            .unwrap_or(0)
            .next_power_of_two()
            .clamp(4096, 1 << 30);
        let page = if regular { page } else { 4096 };
        let from = offset & !(page - 1);
        let base_len = end.checked_next_multiple_of(page).ok_or_else(refuse)? - from;
        let base_len = usize::try_from(base_len).map_err(|_| refuse())?;
        // SAFETY: a new mapping at an address of the kernel's choice changes no existing memory.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                base_len,
                READ_WRITE,
                MapFlags::SHARED,
                fd,
                from,
            )
        }?;
        let base = mapped(base)?;
        // SAFETY: `offset - from` is less than the mapped length.
        let ptr = unsafe { base.add((offset - from) as usize) };
        Ok(Self {
            base,
            base_len,
            ptr,
            len: len as usize,
            guard: None,
            sparse: None,
        })
    }

    /// Maps like [`Mapping::of_fd`], but a file that its owner may cut at any time. When this process touches
    /// a missing page, that page and all behind it become empty pages of this process. [`Mapping::was_cut`]
    /// reports it.
    ///
    /// # Errors
    /// The errors of [`Mapping::of_fd`]; `QuotaExceeded` when 16384 mappings are guarded already; errors of
    /// sigaction(2).
    pub fn guarded(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<Self> {
        let mut map = Self::of_fd(fd, offset, len)?;
        let base = map.base.addr().get();
        let page = huge_page(fd).unwrap_or(4096);
        // Unguarded, it would let its owner end this process.
        let guard = Guard::new(base, map.base_len, page)?;
        map.guard = Some(guard.ok_or(io::ErrorKind::QuotaExceeded)?);
        // In files in memory with small pages, the kernel makes a page and charges this process for it when a
        // hole is read.
        if page == 4096 && crate::foreign::kind(fd) == crate::foreign::Kind::Memory {
            map.sparse = Some((fd.try_clone_to_owned()?, offset & !4095));
        }
        Ok(map)
    }
    /// Whether the file may have holes, so that [`Mapping::data_from`] is worth a call.
    pub fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }
    /// Bytes of the mapping before its first one, to the beginning of a page.
    pub fn misalignment(&self) -> usize {
        self.ptr.addr().get() - self.base.addr().get()
    }
    /// The number of bytes from byte `at` on that the file has pages for: 0 in a hole. `at` counts from the
    /// beginning of the first page.
    ///
    /// # Errors
    /// The error of lseek(2); `Unsupported` for a file that has no holes.
    pub fn data_from(&self, at: u64) -> io::Result<u64> {
        let (fd, from) = self.sparse.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let at = from + at;
        match seek(fd, SeekFrom::Data(at)) {
            Ok(data) if data == at => Ok(seek(fd, SeekFrom::Hole(at))? - at),
            // The next bytes are behind a hole, or there are none.
            Ok(_) | Err(rustix::io::Errno::NXIO) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }
    /// Whether a guarded file was found to be shorter than it was. Bytes read from it mean nothing any more.
    pub fn was_cut(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::was_cut)
    }

    /// Maps `len` zero bytes that no other process sees.
    ///
    /// # Errors
    /// The error of mmap(2).
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let base_len = len
            .max(1)
            .checked_next_multiple_of(4096)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: as in `of_fd`.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), base_len, READ_WRITE, MapFlags::PRIVATE) }?;
        let base = mapped(base)?;
        Ok(Self {
            base,
            base_len,
            ptr: base,
            len,
            guard: None,
            sparse: None,
        })
    }

    /// Advises transparent hugepages, where the system gives them for such memory.
    pub fn advise_huge(&self) {
        // SAFETY: advice about a range that is mapped; refusal is no loss.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.base_len, Advice::LinuxHugepage) };
    }
    /// Has pages that are not there yet come from a NUMA node, as long as it has free ones (mbind(2)).
    ///
    /// # Errors
    /// There is no such node.
    pub fn prefer_node(&self, node: u32) -> io::Result<()> {
        const MPOL_PREFERRED: libc::c_long = 1;
        const BITS: u32 = libc::c_ulong::BITS;
        let mut mask = [0 as libc::c_ulong; 16];
        let word = mask
            .get_mut((node / BITS) as usize)
            .ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (node % BITS);
        // SAFETY: a policy for pages of a range that is mapped. The kernel reads one bit less of the mask
        // than is reported.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.base_len,
                MPOL_PREFERRED,
                mask.as_ptr(),
                libc::c_ulong::from(mask.len() as u32 * BITS),
                0 as libc::c_uint,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
    /// First byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The page size of a file in a hugetlbfs, whose pages cannot be replaced in part. `None`: an ordinary file.
fn huge_page(fd: BorrowedFd<'_>) -> Option<usize> {
    /// `HUGETLBFS_MAGIC`.
    const MAGIC: u64 = 0x9584_58f6;
    let fs = fstatfs(fd).ok()?;
    (fs.f_type as u64 & 0xffff_ffff == MAGIC).then_some(fs.f_bsize as usize)
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn mapped(p: *mut core::ffi::c_void) -> io::Result<NonNull<u8>> {
    NonNull::new(p.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the addresses can be another mapping's.
        self.guard = None;
        // SAFETY: exactly the range that `map` returned; the owner's contract is that nothing refers to it
        // any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.base_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_mappings_share_bytes() {
        let fd = memfd("test", 10_000, Pages::Normal).unwrap();
        let a = Mapping::of_fd(fd.as_fd(), 0, 10_000).unwrap();
        let b = Mapping::of_fd(fd.as_fd(), 5000, 100).unwrap();
        assert_eq!((a.len(), b.len()), (10_000, 100));
        // SAFETY: both ranges are mapped, and used by this test only.
        let seen = unsafe {
            a.as_ptr().add(5003).write(7);
            b.as_ptr().add(3).read()
        };
        assert_eq!(seen, 7);
    }

    /// Holes are told from data without making pages of them.
    #[test]
    fn holes_of_a_file_are_found() {
        let fd = memfd("test", 16 * 4096, Pages::Normal).unwrap();
        let map = Mapping::guarded(fd.as_fd(), 4096, 8 * 4096).unwrap();
        assert!(map.is_sparse());
        assert_eq!(map.data_from(2 * 4096).unwrap(), 0);
        // SAFETY: inside the mapping, which only this test uses.
        unsafe { map.as_ptr().add(2 * 4096).write_volatile(1) };
        assert_eq!(map.data_from(2 * 4096).unwrap(), 4096);
        assert_eq!(
            (map.data_from(0).unwrap(), map.data_from(3 * 4096).unwrap()),
            (0, 0)
        );
        assert!(!Mapping::of_fd(fd.as_fd(), 0, 4096).unwrap().is_sparse());
    }

    /// The file's owner cuts it under a guarded mapping: no signal, empty pages, and a report of it.
    #[test]
    fn a_file_that_is_cut_is_survived() {
        use crate::event::EventFd;
        let raised = EventFd::new().unwrap();
        crate::sigbus::raise(raised.as_fd());
        let fd = memfd("test", 3 * 4096, Pages::Normal).unwrap();
        let (map, other) = (
            Mapping::guarded(fd.as_fd(), 0, 3 * 4096).unwrap(),
            Mapping::guarded(fd.as_fd(), 0, 4096).unwrap(),
        );
        let byte = |at: usize| map.as_ptr().as_ptr().wrapping_add(at);
        for at in [0, 4096, 8192] {
            // SAFETY: inside the mapping.
            unsafe { byte(at).write_volatile(9) };
        }
        assert!(!map.was_cut());
        ftruncate(&fd, 4096).unwrap();
        // SAFETY: inside the mapping; the pages that are missing are replaced.
        let seen = [0, 4096, 8192].map(|at| unsafe { byte(at).read_volatile() });
        assert_eq!(seen, [9, 0, 0]);
        assert!(map.was_cut() && !other.was_cut());
        assert!(raised.drain() > 0);
        crate::sigbus::quiet(raised.as_fd());
        // SAFETY: inside the mapping.
        unsafe { byte(8191).write_volatile(1) };
    }

    /// The process that cut the file has every other page touched, in any order: this process never has more
    /// than two mappings for it.
    #[test]
    fn cut_pages_do_not_use_up_mappings() {
        const PAGES: usize = 4096;
        let fd = memfd("test", PAGES as u64 * 4096, Pages::Normal).unwrap();
        let before = crate::sigbus::cuts();
        for descending in [false, true] {
            let map = Mapping::guarded(fd.as_fd(), 0, PAGES as u64 * 4096).unwrap();
            ftruncate(&fd, 0).unwrap();
            for i in (1..PAGES).step_by(2) {
                let page = if descending { PAGES - i } else { i };
                // SAFETY: inside the mapping; the pages that are missing are replaced.
                unsafe { map.as_ptr().as_ptr().add(page * 4096).write_volatile(1) };
            }
            assert!(map.was_cut() && crate::sigbus::cuts() != before);
            let base = map.as_ptr().addr().get();
            let range = base..base + PAGES * 4096;
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let mine = maps
                .lines()
                .filter_map(|l| usize::from_str_radix(l.split('-').next()?, 16).ok());
            assert!(mine.filter(|at| range.contains(at)).count() <= 3, "{maps}");
            ftruncate(&fd, PAGES as u64 * 4096).unwrap();
        }
    }

    #[test]
    fn ranges_beyond_the_file_are_refused() {
        let fd = memfd("test", 8192, Pages::Normal).unwrap();
        for (offset, len) in [
            (0, 8193),
            (8192, 1),
            (4096, 4097),
            (0, 0),
            (u64::MAX, 2),
            (1, u64::MAX),
        ] {
            let e = Mapping::of_fd(fd.as_fd(), offset, len).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{offset}+{len}");
        }
        assert!(Mapping::anonymous(1 << 20).is_ok());
    }
}
