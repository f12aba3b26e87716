//! The keyed hash of keys and masked keys.
//!
//! Two 64-bit words are folded per 128-bit product (the mixing step of wyhash). The key is drawn at start from the
//! operating system, so that a sender who knows the code still cannot choose packets that collide. Not a cryptographic hash:
//! a sender who could observe single lookups' times for long might learn something.

use std::hash::{BuildHasher, RandomState};

/// A per-start random key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashKey {
    seed: u64,
    mul: u64,
}

impl HashKey {
    /// Draws a key; the standard library's hasher state is seeded from the operating system.
    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        Self {
            seed: state.hash_one(1_u64),
            mul: state.hash_one(2_u64) | 1,
        }
    }
    /// Starts a hash.
    #[inline]
    pub(crate) fn start(self) -> u64 {
        self.seed
    }
    /// Mixes two words in.
    #[inline]
    pub(crate) fn mix(self, h: u64, a: u64, b: u64) -> u64 {
        fold(a ^ h ^ 0x2d35_8dcc_aa6c_78a5, b ^ self.mul)
    }
    /// Finishes: all bits depend on all input bits.
    #[inline]
    pub(crate) fn finish(self, h: u64) -> u64 {
        fold(h ^ self.seed, self.mul ^ 0x8bb8_4b93_962e_acc9)
    }
    /// Hash of words, an even or odd number of them.
    #[inline]
    pub(crate) fn words(self, mut words: impl Iterator<Item = u64>) -> u64 {
        let mut h = self.start();
        while let Some(a) = words.next() {
            h = self.mix(h, a, words.next().unwrap_or(0));
        }
        self.finish(h)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let p = u128::from(a) * u128::from(b);
    #[allow(clippy::cast_possible_truncation)] // the halves are what is wanted
    let (lo, hi) = (p as u64, (p >> 64) as u64);
    lo ^ hi
}
