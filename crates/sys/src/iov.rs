//! One element of a gather list, for memory that may be foreign.
//!
//! [`std::io::IoSlice`] holds a `&[u8]`, which promises that no thread or process writes to the bytes
//! meanwhile. Guest memory and kernel rings cannot promise that, so their addresses travel in an [`Iov`]:
//! only the kernel reads through it.

#![allow(unsafe_code)] // an address for the kernel

use core::marker::PhantomData;

/// An address and a length that the kernel may read during `'a`. Same layout as `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Iov<'a> {
    raw: libc::iovec,
    _life: PhantomData<&'a [u8]>,
}

// SAFETY: an `Iov` is a shared borrow of bytes that are only read.
unsafe impl Send for Iov<'_> {}

impl<'a> Iov<'a> {
    /// Borrows private bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            raw: libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            },
            _life: PhantomData,
        }
    }
    /// Names foreign bytes.
    ///
    /// # Safety
    /// `len` bytes at `ptr` stay mapped and readable during `'a`; others may write to them.
    pub unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self {
            raw: libc::iovec {
                iov_base: ptr.cast_mut().cast(),
                iov_len: len,
            },
            _life: PhantomData,
        }
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub(crate) fn raw(&self) -> libc::iovec {
        self.raw
    }
}
