//! Universal hashes of eight words under many masks, in a few instructions for each mask. The filters of
//! masks use them.
//!
//! NH (Black and others, "UMAC", 1999) adds a random number to each half word, multiplies the halves of
//! each word, and adds up the products. Two different inputs have equal sums with a probability of at most
//! 2^-32 over the random numbers. So a sender that does not know these numbers cannot choose inputs that
//! collide. The code is chosen at run time: AVX2, else the architecture's base instructions (SSE2, NEON),
//! else plain code. One call serves a list of masks. [`sum_plain`] is the twin that tests compare the others
//! with.

#![allow(unsafe_code)] // vector instructions

/// The random numbers, two for each word.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Lanes(pub [u32; 16]);

/// Writes the sum of `words` under each mask to `out`, until either ends. Returns the number of sums.
#[inline]
pub fn sums<'a>(
    words: &[u64; 8],
    lanes: &Lanes,
    masks: impl Iterator<Item = &'a [u64; 8]>,
    out: &mut [u64],
) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            unsafe { sums_avx2(words, lanes, masks, out) }
        } else {
            each(masks, out, |mask| sum_sse2(words, lanes, mask))
        }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        each(masks, out, |mask| sum_neon(words, lanes, mask))
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        each(masks, out, |mask| sum_plain(words, lanes, mask))
    }
}

/// The sum of `words` under one mask.
#[inline]
#[allow(clippy::cast_possible_truncation)] // halves of words
pub fn sum_plain(words: &[u64; 8], lanes: &Lanes, mask: &[u64; 8]) -> u64 {
    (0..8).fold(0, |sum: u64, i| {
        let w = words[i] & mask[i];
        let low = (w as u32).wrapping_add(lanes.0[2 * i]);
        let high = ((w >> 32) as u32).wrapping_add(lanes.0[2 * i + 1]);
        sum.wrapping_add(u64::from(low) * u64::from(high))
    })
}

#[inline(always)]
fn each<'a>(
    masks: impl Iterator<Item = &'a [u64; 8]>,
    out: &mut [u64],
    sum: impl Fn(&[u64; 8]) -> u64,
) -> usize {
    let mut n = 0;
    for (o, mask) in out.iter_mut().zip(masks) {
        *o = sum(mask);
        n += 1;
    }
    n
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sums_avx2<'a>(
    words: &[u64; 8],
    lanes: &Lanes,
    masks: impl Iterator<Item = &'a [u64; 8]>,
    out: &mut [u64],
) -> usize {
    use core::arch::x86_64::{
        __m256i, _mm_add_epi64, _mm_cvtsi128_si64, _mm_unpackhi_epi64, _mm256_add_epi32, _mm256_add_epi64,
        _mm256_and_si256, _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256,
        _mm256_mul_epu32, _mm256_srli_epi64,
    };
    // SAFETY: the loads are of halves of arrays of 64 bytes, of any alignment.
    let load = |p: *const u64, half: usize| unsafe { _mm256_loadu_si256(p.add(4 * half).cast()) };
    let lane = lanes.0.as_ptr().cast();
    let (w, l) = (
        [0, 1].map(|h| load(words.as_ptr(), h)),
        [0, 1].map(|h| load(lane, h)),
    );
    let product = |w: __m256i, l: __m256i, m: __m256i| {
        let added = _mm256_add_epi32(_mm256_and_si256(w, m), l);
        _mm256_mul_epu32(added, _mm256_srli_epi64::<32>(added))
    };
    let mut n = 0;
    for (o, mask) in out.iter_mut().zip(masks) {
        let p = [0, 1].map(|h| product(w[h], l[h], load(mask.as_ptr(), h)));
        let four = _mm256_add_epi64(p[0], p[1]);
        let two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four));
        *o = _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two))).cast_unsigned();
        n += 1;
    }
    n
}

#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, allow(dead_code))]
#[inline(always)]
fn sum_sse2(words: &[u64; 8], lanes: &Lanes, mask: &[u64; 8]) -> u64 {
    use core::arch::x86_64::{
        _mm_add_epi32, _mm_add_epi64, _mm_and_si128, _mm_cvtsi128_si64, _mm_loadu_si128, _mm_mul_epu32,
        _mm_setzero_si128, _mm_srli_epi64, _mm_unpackhi_epi64,
    };
    // SAFETY: every x86-64 has SSE2; the loads are of quarters of arrays of 64 bytes, of any alignment.
    unsafe {
        let load = |p: *const u64, i: usize| _mm_loadu_si128(p.add(2 * i).cast());
        let lane = lanes.0.as_ptr().cast();
        let two = (0..4).fold(_mm_setzero_si128(), |sum, i| {
            let w = _mm_and_si128(load(words.as_ptr(), i), load(mask.as_ptr(), i));
            let added = _mm_add_epi32(w, load(lane, i));
            _mm_add_epi64(sum, _mm_mul_epu32(added, _mm_srli_epi64::<32>(added)))
        });
        _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two))).cast_unsigned()
    }
}

#[cfg(target_arch = "aarch64")]
#[cfg_attr(miri, allow(dead_code))]
#[inline(always)]
fn sum_neon(words: &[u64; 8], lanes: &Lanes, mask: &[u64; 8]) -> u64 {
    use core::arch::aarch64::{
        vaddq_u32, vaddvq_u64, vandq_u64, vdupq_n_u64, vld1q_u32, vld1q_u64, vmlal_u32, vmovn_u64,
        vreinterpretq_u32_u64, vreinterpretq_u64_u32, vshrn_n_u64,
    };
    // SAFETY: every AArch64 has NEON; the loads are of quarters of arrays of 64 bytes.
    unsafe {
        let two = (0..4).fold(vdupq_n_u64(0), |sum, i| {
            let w = vandq_u64(
                vld1q_u64(words.as_ptr().add(2 * i)),
                vld1q_u64(mask.as_ptr().add(2 * i)),
            );
            let lane = vld1q_u32(lanes.0.as_ptr().add(4 * i));
            let added = vreinterpretq_u64_u32(vaddq_u32(vreinterpretq_u32_u64(w), lane));
            vmlal_u32(sum, vmovn_u64(added), vshrn_n_u64::<32>(added))
        });
        vaddvq_u64(two)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_ways_agree(words in any::<[u64; 8]>(), lanes in any::<[u32; 16]>(), masks in proptest::collection::vec(any::<[u64; 8]>(), 0..9), room in 0_usize..12) {
            let lanes = Lanes(lanes);
            let want: Vec<u64> = masks.iter().map(|m| sum_plain(&words, &lanes, m)).take(room).collect();
            let mut out = vec![7; room];
            let n = sums(&words, &lanes, masks.iter(), &mut out);
            prop_assert_eq!(&out[..n], &want[..]);
            prop_assert!(out[n..].iter().all(|o| *o == 7));
            #[cfg(target_arch = "x86_64")]
            for (m, want) in masks.iter().zip(&want) {
                prop_assert_eq!(sum_sse2(&words, &lanes, m), *want);
            }
        }
        #[test]
        fn what_a_mask_leaves_out_does_not_matter(words in any::<[u64; 8]>(), other in any::<[u64; 8]>(), lanes in any::<[u32; 16]>(), mask in any::<[u64; 8]>()) {
            let lanes = Lanes(lanes);
            let mixed = std::array::from_fn(|i| words[i] & mask[i] | other[i] & !mask[i]);
            prop_assert_eq!(sum_plain(&words, &lanes, &mask), sum_plain(&mixed, &lanes, &mask));
        }
    }
}
