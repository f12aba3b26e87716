//! Foreign memory in packets: segments, and the count of packets that refer to them.
//!
//! **Problem.** A packet's tail stays in memory of another owner, mostly a guest. The receive queue returns
//! that memory once the burst has been forwarded, and it may be unmapped then. A packet that is kept longer
//! must not read it any more.
//!
//! **Invariants.**
//! * A [`Seg`] stays in its packet: it is neither `Clone` nor can it be moved out, only borrowed
//!   ([`crate::Packet::segs`]). The compiler enforces that.
//! * A packet with segments holds one loan of their [`Lender`], also if it shares them with another packet
//!   ([`crate::Packet::share_into`]). It drops the loan when the segments go: in the pool, by
//!   [`crate::Packet::make_private`], or with the packet.
//! * The owner of the lender returns memory, or unmaps it, only when [`Lender::is_whole`].
//!
//! No safe code can therefore read memory that was returned. The safe error is the opposite one: a packet
//! that is kept, or leaked, blocks the memory of its queue. Code that keeps a packet makes it private.
//!
//! **Costs.** Packets without a tail: nothing. A tail costs one addition to the queue's own count, and one
//! comparison when the packet returns. All packets that return together cost one atomic addition
//! ([`crate::Pool::put_all`]).
//!
//! **Thread-safety.** One thread lends at a time; loans are returned on any thread.

#![allow(unsafe_code)] // foreign memory by its address

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes in foreign memory, part of a packet. They cannot outlive the packet, nor be taken out of it:
///
/// ```compile_fail,E0507
/// let packet = heddle_packet::Packet::new();
/// let seg: heddle_packet::Seg = *packet.segs().first().unwrap();
/// ```
/// ```compile_fail,E0505
/// let packet = heddle_packet::Packet::new();
/// let segs = packet.segs();
/// drop(packet);
/// println!("{}", segs.len());
/// ```
///
/// No method borrows the bytes as a slice, since their owner may change them at any moment. They are only
/// copied out ([`Seg::copy_to`]), or handed to the kernel by address.
#[derive(Debug)]
pub struct Seg {
    ptr: NonNull<u8>,
    len: u32,
}

// SAFETY: a `Seg` is an address and a length, and all access goes through copies. The contract of
// `Packet::push_seg` makes the memory valid on whichever thread holds the packet.
unsafe impl Send for Seg {}

impl Seg {
    /// A segment without bytes.
    pub(crate) const NONE: Self = Self {
        ptr: NonNull::dangling(),
        len: 0,
    };
    /// `len` bytes at `ptr`, for [`crate::Packet::push_seg`], which states the contract.
    #[inline]
    pub(crate) fn new(ptr: NonNull<u8>, len: u32) -> Self {
        Self { ptr, len }
    }
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Address, for an I/O vector that the kernel reads.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }
    /// The same bytes, for another packet that has a loan of their lender ([`Loan::again`]).
    pub(crate) fn again(&self) -> Self {
        Self {
            ptr: self.ptr,
            len: self.len,
        }
    }
    /// Cuts it to `n` bytes.
    pub(crate) fn truncate(&mut self, n: usize) {
        self.len = n.min(self.len()) as u32;
    }
    /// Drops the first `n` bytes (at most all).
    pub(crate) fn advance(&mut self, n: usize) {
        let n = n.min(self.len());
        // SAFETY: `n` is within the segment, so the result is in or one past the same mapping.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= n as u32;
    }
    /// Copies bytes to `dst` until either ends. Returns the number of copied bytes.
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        self.copy_from(0, dst)
    }
    /// Copies bytes from byte `at` on (at most the length) to `dst` until either ends. Returns the number of
    /// copied bytes.
    pub fn copy_from(&self, at: usize, dst: &mut [u8]) -> usize {
        let at = at.min(self.len());
        let n = dst.len().min(self.len() - at);
        // SAFETY: the source is readable for `len` bytes while its packet has it (`Packet::push_seg`). `at +
        // n` is at most `len`, and `dst` is a distinct private buffer. The source may change during the copy,
        // which yields some mixture of bytes: no decision depends on them.
        unsafe { core::ptr::copy_nonoverlapping(self.as_ptr().add(at), dst.as_mut_ptr(), n) };
        n
    }
}

/// The number of returned loans; on a line of its own, since other threads than the lender's may write it.
#[derive(Debug)]
#[repr(align(64))]
struct Returned(AtomicU64);

/// Counts the packets that refer to the memory of one receive queue.
#[derive(Debug)]
pub struct Lender {
    lent: u64,
    returned: NonNull<Returned>,
}

// SAFETY: `returned` is an atomic that lives until the last loan and the lender are gone.
unsafe impl Send for Lender {}

impl Lender {
    /// A lender without loans.
    pub fn new() -> Self {
        Self {
            lent: 0,
            returned: NonNull::from(Box::leak(Box::new(Returned(AtomicU64::new(0))))),
        }
    }
    /// Whether no packet refers to the memory.
    #[inline]
    pub fn is_whole(&self) -> bool {
        // SAFETY: only `drop` frees it.
        let returned = unsafe { &self.returned.as_ref().0 };
        // Acquire pairs with the Release in `give_back`: all reads of the memory came before.
        returned.load(Ordering::Acquire) == self.lent
    }
    #[inline]
    pub(crate) fn lend(&mut self) -> Loan {
        self.lent += 1;
        Loan(self.returned)
    }
}

impl Default for Lender {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // Outstanding loans need the count. Then it leaks, as does the memory that they refer to.
        if self.is_whole() {
            // SAFETY: made by `Box::leak` in `new`; no loan is left that refers to it.
            drop(unsafe { Box::from_raw(self.returned.as_ptr()) });
        }
    }
}

/// A packet's reference to a lender. Dropping it returns the loan.
#[derive(Debug)]
pub(crate) struct Loan(NonNull<Returned>);

// SAFETY: refers to an atomic that lives as long as the loan (`Lender::drop`).
unsafe impl Send for Loan {}

impl Loan {
    pub(crate) fn is_of(&self, lender: &Lender) -> bool {
        self.0 == lender.returned
    }
    /// Makes one more loan without the lender: it lowers the number of returned loans by one.
    pub(crate) fn again(&self) -> Self {
        // SAFETY: the count lives while there is a loan, and this is one.
        let returned = unsafe { &self.0.as_ref().0 };
        // Relaxed: this loan is still out, so no thread may reuse the memory because of this value. The
        // number wraps, and so does the comparison.
        returned.fetch_sub(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // SAFETY: this is one loan, which ends here.
        unsafe { give_back(self.0, 1) };
    }
}

/// Returns `n` loans.
///
/// # Safety
/// The caller has that many loans, and gives up all of them: the count may be gone afterwards.
unsafe fn give_back(to: NonNull<Returned>, n: u64) {
    // SAFETY: the count lives while there is a loan.
    let returned = unsafe { &to.as_ref().0 };
    // Release pairs with the Acquire in `Lender::is_whole`.
    returned.fetch_add(n, Ordering::Release);
}

/// Loans that are returned together: consecutive loans of one lender with one addition.
#[derive(Default)]
pub(crate) struct Loans {
    of: Option<NonNull<Returned>>,
    n: u64,
}

impl Loans {
    #[inline]
    pub(crate) fn add(&mut self, loan: Loan) {
        let loan = ManuallyDrop::new(loan);
        if self.of != Some(loan.0) {
            self.end();
            self.of = Some(loan.0);
        }
        self.n += 1;
    }
    fn end(&mut self) {
        if let Some(to) = self.of.take() {
            // SAFETY: `add` has taken `n` loans since `of` was set, and has not dropped them.
            unsafe { give_back(to, core::mem::take(&mut self.n)) };
        }
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        self.end();
    }
}
