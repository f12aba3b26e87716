//! Processor instructions that the forwarding path uses explicitly: prefetches, and the comparison of one tag
//! with eight at once.
//!
//! The comparison is chosen at compile time. That is AVX2 if the build targets it, else SSE2 (in every
//! x86-64) or NEON (in every AArch64), else plain code. A choice at run time would cost a call per bucket,
//! which is more than the whole comparison. [`match8_plain`] is the twin that tests compare the others with.

#![allow(unsafe_code)] // vector instructions and prefetches

/// Prefetches the cache line at the start of `t` for reading.
#[inline(always)]
pub fn prefetch<T>(t: &T) {
    prefetch_at(core::ptr::from_ref(t).cast(), false);
}

/// Prefetches the cache line at the start of `t` for writing.
#[inline(always)]
pub fn prefetch_write<T>(t: &T) {
    prefetch_at(core::ptr::from_ref(t).cast(), true);
}

#[inline(always)]
fn prefetch_at(p: *const u8, write: bool) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads and writes nothing and does not fault, whatever the address.
        unsafe {
            if write {
                _mm_prefetch::<_MM_HINT_ET0>(p.cast());
            } else {
                _mm_prefetch::<_MM_HINT_T0>(p.cast());
            }
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        if write {
            core::arch::asm!("prfm pstl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
        } else {
            core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (p, write);
}

/// Compares eight tags with `tag`. Bit `i` of the result is set if tag `i` is equal.
#[inline(always)]
pub fn match8(tags: &[u32; 8], tag: u32) -> u32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    {
        match8_avx2(tags, tag)
    }
    #[cfg(all(target_arch = "x86_64", not(target_feature = "avx2")))]
    {
        match8_sse2(tags, tag)
    }
    #[cfg(target_arch = "aarch64")]
    {
        match8_neon(tags, tag)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        match8_plain(tags, tag)
    }
}

/// Like [`match8`], one by one.
#[inline]
pub fn match8_plain(tags: &[u32; 8], tag: u32) -> u32 {
    (0..8).fold(0, |m, i| m | u32::from(tags[i] == tag) << i)
}

#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
#[inline(always)]
fn match8_avx2(tags: &[u32; 8], tag: u32) -> u32 {
    use core::arch::x86_64::{
        _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_loadu_si256, _mm256_movemask_ps, _mm256_set1_epi32,
    };
    // SAFETY: the build's target has AVX2; the load is of the 32 bytes of `tags`, of any alignment.
    unsafe {
        let all = _mm256_loadu_si256(tags.as_ptr().cast());
        let same = _mm256_cmpeq_epi32(all, _mm256_set1_epi32(tag.cast_signed()));
        _mm256_movemask_ps(_mm256_castsi256_ps(same)).cast_unsigned()
    }
}

#[cfg(target_arch = "x86_64")]
#[cfg_attr(target_feature = "avx2", allow(dead_code))]
#[inline(always)]
fn match8_sse2(tags: &[u32; 8], tag: u32) -> u32 {
    use core::arch::x86_64::{
        _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
        _mm_set1_epi32, _mm_setzero_si128,
    };
    // SAFETY: every x86-64 has SSE2; the loads are of the two halves of `tags`, of any alignment.
    unsafe {
        let want = _mm_set1_epi32(tag.cast_signed());
        let low = _mm_cmpeq_epi32(_mm_loadu_si128(tags.as_ptr().cast()), want);
        let high = _mm_cmpeq_epi32(_mm_loadu_si128(tags.as_ptr().add(4).cast()), want);
        let bytes = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
        _mm_movemask_epi8(bytes).cast_unsigned()
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn match8_neon(tags: &[u32; 8], tag: u32) -> u32 {
    use core::arch::aarch64::{vaddvq_u32, vandq_u32, vceqq_u32, vdupq_n_u32, vld1q_u32};
    const LOW: [u32; 4] = [1, 2, 4, 8];
    const HIGH: [u32; 4] = [16, 32, 64, 128];
    // SAFETY: every AArch64 has NEON; the loads are of four words each.
    unsafe {
        let want = vdupq_n_u32(tag);
        let low = vandq_u32(vceqq_u32(vld1q_u32(tags.as_ptr()), want), vld1q_u32(LOW.as_ptr()));
        let high = vandq_u32(
            vceqq_u32(vld1q_u32(tags.as_ptr().add(4)), want),
            vld1q_u32(HIGH.as_ptr()),
        );
        vaddvq_u32(low) | vaddvq_u32(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_ways_agree(tags in proptest::array::uniform8(0_u32..4), wild in any::<[u32; 8]>(), tag in 0_u32..4) {
            prop_assert_eq!(match8(&tags, tag), match8_plain(&tags, tag));
            for t in wild {
                prop_assert_eq!(match8(&wild, t), match8_plain(&wild, t));
                prop_assert_eq!(match8(&wild, t ^ 1 << 31), match8_plain(&wild, t ^ 1 << 31));
            }
            #[cfg(target_arch = "x86_64")]
            prop_assert_eq!(match8_sse2(&tags, tag), match8_plain(&tags, tag));
            prefetch(&tags);
            prefetch_write(&tags);
        }
    }
}
