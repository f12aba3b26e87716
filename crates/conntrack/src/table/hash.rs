//! The keyed hash of tuples: one for both directions, so that one entry finds a connection from both sides.
//!
//! A sender who knows the addresses but not the key cannot aim at one bucket. The hash takes two folded
//! multiplications for IPv4 and four for IPv6, and no table.

use crate::tuple::{Endpoint, Tuple};
use heddle_simd::hash::fold;

/// The hash of a tuple and a zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Hash(pub(crate) u32);

/// Random keys of one tracker.
#[derive(Clone, Debug)]
pub(crate) struct Keys([u64; 6]);

impl Keys {
    pub(crate) fn new(seed: u64) -> Self {
        let mut s = seed;
        Self([(); 6].map(|()| next(&mut s) | 1))
    }
    #[inline]
    pub(crate) fn hash(&self, t: &Tuple, zone: u16) -> Hash {
        if !t.ipv6 {
            return self.hash4(word(&t.src), word(&t.dst), t.proto, zone);
        }
        let end = |e: &Endpoint| (halves(e.addr), e.l4);
        self.hash6(end(&t.src), end(&t.dst), t.proto, zone)
    }
    /// The hash over IPv6. Each endpoint has both halves of its address, and a port or an identifier.
    #[inline]
    pub(crate) fn hash6(&self, src: ([u64; 2], u32), dst: ([u64; 2], u32), proto: u8, zone: u16) -> Hash {
        let [k0, k1, k2, k3, k4, k5] = self.0;
        // Both directions give the same pair.
        let (([a_hi, a_lo], a), ([b_hi, b_lo], b)) = (src.min(dst), src.max(dst));
        let pair = fold(a_hi ^ k0, a_lo ^ k1).wrapping_add(fold(b_hi ^ k2, b_lo ^ k3))
            ^ fold(u64::from(a) << 32 | u64::from(b), k4);
        Hash((fold(pair ^ k5, rest(zone, proto, true) ^ k2) >> 32) as u32)
    }
    /// The hash over IPv4. Each endpoint has its address in the high half, and a port or an identifier.
    #[inline]
    pub(crate) fn hash4(&self, src: u64, dst: u64, proto: u8, zone: u16) -> Hash {
        let [k0, k1, k2, _, _, k5] = self.0;
        let pair = fold(src.min(dst) ^ k0, src.max(dst) ^ k1);
        Hash((fold(pair ^ k5, rest(zone, proto, false) ^ k2) >> 32) as u32)
    }
}

#[inline]
fn rest(zone: u16, proto: u8, ipv6: bool) -> u64 {
    u64::from(zone) << 16 | u64::from(proto) << 8 | u64::from(ipv6)
}

/// An endpoint of IPv4: the address in the upper half, the port or identifier in the lower half.
#[inline]
#[allow(clippy::cast_possible_truncation)] // IPv4
fn word(e: &Endpoint) -> u64 {
    u64::from(e.addr as u32) << 32 | u64::from(e.l4)
}

#[allow(clippy::cast_possible_truncation)] // halves
pub(crate) const fn halves(a: u128) -> [u64; 2] {
    [(a >> 64) as u64, a as u64]
}

/// The next number of a sequence (splitmix64, Steele, Lea and Flood 2014).
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_have_one_hash_and_everything_counts() {
        let keys = Keys::new(7);
        let t = |v6| {
            let end = |addr, l4| Endpoint { addr, l4 };
            Tuple {
                src: end(1, 1000),
                dst: end(2, 53),
                proto: 17,
                ipv6: v6,
            }
        };
        for v6 in [false, true] {
            let (t, h) = (t(v6), keys.hash(&t(v6), 5));
            assert_eq!(h, keys.hash(&t.reversed(), 5));
            assert_ne!(h, keys.hash(&t, 6));
            assert_ne!(h, keys.hash(&Tuple { proto: 6, ..t }, 5));
            assert_ne!(h, Keys::new(8).hash(&t, 5));
            let mut other = t;
            other.src.l4 = 1001;
            assert_ne!(h, keys.hash(&other, 5));
            let mut other = t;
            std::mem::swap(&mut other.src.l4, &mut other.dst.l4);
            assert_ne!(h, keys.hash(&other, 5));
        }
    }

    /// Neighbouring ports and addresses spread over buckets as random numbers do.
    #[test]
    fn neighbours_spread() {
        let keys = Keys::new(3);
        let mut buckets = vec![0u32; 4096];
        for n in 0..4096 * 4 {
            let t = Tuple {
                src: Endpoint {
                    addr: 0x0a00_0001 + n / 256,
                    l4: u32::try_from(n % 256).unwrap() + 1024,
                },
                dst: Endpoint {
                    addr: 0x0a01_0001,
                    l4: 80,
                },
                proto: 6,
                ipv6: false,
            };
            buckets[keys.hash(&t, 0).0 as usize % 4096] += 1;
        }
        let most = buckets.iter().max().unwrap();
        let empty = buckets.iter().filter(|n| **n == 0).count();
        // Poisson with mean 4: 75 empty ones, and hardly one with more than 16.
        assert!(*most <= 18 && (30..150).contains(&empty), "{most} {empty}");
    }
}
