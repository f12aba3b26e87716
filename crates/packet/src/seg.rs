//! A piece of a packet that lies in memory which somebody else may write at any time.

use core::ptr::NonNull;

/// Bytes in foreign memory: readable until the receive queue that made it is told that the burst is complete.
///
/// There is no way to borrow the bytes as a slice: another party may change them at any moment, so they are
/// only copied out ([`Seg::copy_to`]) or handed to the kernel by address.
#[derive(Clone, Copy, Debug)]
pub struct Seg {
    ptr: NonNull<u8>,
    len: u32,
}

// SAFETY: a `Seg` is an address and a length; all access goes through volatile-safe copies, and the
// constructor's contract makes the memory valid on whichever thread holds the packet.
unsafe impl Send for Seg {}

impl Seg {
    /// Names `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The memory stays mapped and readable for as long as any packet of the burst that holds this segment
    /// lives, that is until the receive queue's `complete` is called.
    pub unsafe fn new(ptr: NonNull<u8>, len: u32) -> Self {
        Self { ptr, len }
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Address, for an I/O vector that the kernel reads.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }
    /// The first `n` bytes (at most all of them).
    pub fn prefix(&self, n: usize) -> Seg {
        Seg {
            ptr: self.ptr,
            len: n.min(self.len()) as u32,
        }
    }
    /// Splits off the first `n` bytes (at most all of them), leaving the rest.
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.len());
        // SAFETY: `n` is within the segment, so the result is in or one past the same mapping.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= n as u32;
    }
    /// Copies as many bytes as fit in `dst`, returns how many.
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        let n = dst.len().min(self.len());
        // SAFETY: the source is readable for `len` bytes by the constructor's contract and `dst` is a
        // distinct private buffer. The source may change during the copy, which yields some mixture of
        // bytes: nothing is decided on them.
        unsafe { core::ptr::copy_nonoverlapping(self.ptr.as_ptr(), dst.as_mut_ptr(), n) };
        n
    }
}
