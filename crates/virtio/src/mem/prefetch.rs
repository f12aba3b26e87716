//! Hints to the processor: bring a line near before it is needed.
//!
//! Lines that another core has written take hundreds of cycles to come; hints for a whole burst overlap them.

#![allow(unsafe_code)] // one instruction

/// To read from it.
#[inline(always)]
pub(crate) fn read(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; it never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}

/// To write to it: takes the line away from other cores at once instead of at the first store.
#[inline(always)]
pub(crate) fn write(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; it never faults. Processors without the instruction execute it as a no-op.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) p.addr(), options(nostack, preserves_flags, nomem));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}

/// To write to it, or to read. Branches: a choice made with a pointer would be a call for each line.
#[inline(always)]
pub(crate) fn either(p: *const u8, to_write: bool) {
    if to_write { write(p) } else { read(p) }
}
