//! Short copies without a call, for heads of packets.
//!
//! Chunks are loaded into registers, by width, before any is stored. A compiler that is given arrays of bytes
//! takes a detour over the stack. Its loads then wait for stores that wait for lines of another core.

#![allow(unsafe_code)] // copies from and to addresses of the guest

/// Sixteen bytes in a register.
#[cfg(all(target_arch = "x86_64", not(miri)))]
type Chunk = core::arch::x86_64::__m128i;
/// A chunk of the same width for other targets.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
type Chunk = u128;

/// # Safety
/// 16 bytes at `p` are readable.
#[inline(always)]
unsafe fn load(p: *const u8) -> Chunk {
    // SAFETY: the caller's promise; read without need of alignment.
    unsafe { p.cast::<Chunk>().read_unaligned() }
}

/// # Safety
/// 16 bytes at `p` are writable.
#[inline(always)]
unsafe fn store(p: *mut u8, chunk: Chunk) {
    // SAFETY: the caller's promise; written without need of alignment.
    unsafe { p.cast::<Chunk>().write_unaligned(chunk) }
}

/// Copies `n` bytes, at least 16: the first and the last half, which may overlap, by sixteen bytes each.
///
/// # Safety
/// Both ranges are valid for `n` bytes and do not overlap.
#[inline(always)]
pub(super) unsafe fn some(src: *const u8, dst: *mut u8, n: usize) {
    debug_assert!(n >= 16);
    // SAFETY: each arm reads and writes within `n` bytes, by its condition: `K` chunks fit, and `2 * K` reach
    // over all.
    unsafe {
        match n {
            33..=64 => ends::<2>(src, dst, n),
            16..=32 => ends::<1>(src, dst, n),
            65..=128 => ends::<4>(src, dst, n),
            _ => core::ptr::copy_nonoverlapping(src, dst, n),
        }
    }
}

/// # Safety
/// The conditions of [`some`], and `16 * K <= n <= 32 * K`.
#[inline(always)]
unsafe fn ends<const K: usize>(src: *const u8, dst: *mut u8, n: usize) {
    let last = n - 16 * K;
    // SAFETY: the caller's promise: chunk `i` of the first half ends at `16 * K` at most, of the last half at
    // `n`.
    unsafe {
        let first: [Chunk; K] = core::array::from_fn(|i| load(src.add(16 * i)));
        let second: [Chunk; K] = core::array::from_fn(|i| load(src.add(last + 16 * i)));
        for (i, chunk) in first.into_iter().enumerate() {
            store(dst.add(16 * i), chunk);
        }
        for (i, chunk) in second.into_iter().enumerate() {
            store(dst.add(last + 16 * i), chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        /// Against the standard library's copy; nothing around the destination changes.
        #[test]
        fn copies_all_and_no_more(n in 16_usize..300, from in 0_usize..64, to in 0_usize..64) {
            let src: Vec<u8> = (0..400).map(|i| (i * 7 + 3) as u8).collect();
            let (mut got, mut expected) = (vec![0xee_u8; 400], vec![0xee_u8; 400]);
            expected[to..to + n].copy_from_slice(&src[from..from + n]);
            // SAFETY: both have `n` bytes from there on (64 + 300 < 400), in different allocations.
            unsafe { super::some(src.as_ptr().add(from), got.as_mut_ptr().add(to), n) };
            prop_assert_eq!(got, expected);
        }
    }
}
