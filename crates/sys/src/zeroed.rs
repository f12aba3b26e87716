//! Big tables of plain numbers in pages of their own: zero at first, resident only where they were touched,
//! given back to the system at once when dropped.
//!
//! A table of two megabytes or more starts at a huge page's boundary and can ask the kernel for huge pages
//! (`madvise(2)`, `MADV_HUGEPAGE`): random reads of a large table otherwise spend most of their time in the
//! page tables. The kernel may decline; nothing depends on it.

use crate::cvt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use zerocopy::FromZeros;

const HUGE: usize = 2 << 20;

/// `len` values of `T`, zeros at first.
#[derive(Debug)]
pub struct Zeroed<T> {
    base: NonNull<u8>,
    base_len: usize,
    ptr: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its memory as a `Box<[T]>` does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T: FromZeros> Zeroed<T> {
    /// Maps a table. `huge`: ask for huge pages, so that the first write into each costs the zeroing of all
    /// of it.
    ///
    /// # Errors
    /// `OutOfMemory` for a table beyond the address space; what mmap(2) says.
    pub fn new(len: usize, huge: bool) -> io::Result<Self> {
        const {
            assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= 4096 && size_of::<T>() > 0);
        }
        let refuse = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = len.max(1).checked_mul(size_of::<T>()).ok_or_else(refuse)?;
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
        if huge && align != 0 && !cfg!(miri) {
            // SAFETY: the range is within the mapping. Advice: an answer other than "yes" changes nothing.
            let _ = cvt(unsafe { libc::madvise(ptr.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) });
        }
        Ok(Self {
            base,
            base_len,
            ptr: ptr.cast(),
            len,
        })
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is aligned to a page at least and `T` to no more; the mapping has room for `len`
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
        // SAFETY: exactly the range that `new` mapped; nobody borrows it any more. `T` needs no drop.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.base_len) };
    }
}

/// A [`Zeroed`] that several hold, none of whom can have it exclusively any more: its values are changed
/// through atomics, if at all. Whoever holds one has the table's address, not that of a counter beside it.
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
    /// Of a table that is given up for that.
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
        // SAFETY: the owner's values (see its `deref`), which stay where they are and which nobody borrows
        // exclusively, because the owner is behind an `Arc` of this module that hands no such borrow out;
        // without an owner, none.
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
