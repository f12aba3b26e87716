//! The keyed hash of keys and masked keys.
//!
//! Two 64-bit words are folded per 128-bit product (the mixing step of wyhash), of compact keys side by side.
//! The key is drawn at start from the operating system, so that a sender who knows the code still cannot
//! choose packets that collide. Not a cryptographic hash: a sender who could observe single lookups' times
//! for long might learn something.

use crate::nh::Lanes;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// A per-start random key.
#[derive(Clone, Copy, Debug)]
pub struct HashKey {
    seed: u64,
    mul: u64,
    /// For keys of eight words: two words of a key are folded with two of these, all pairs side by side.
    /// Drawn one by one: lanes that are related could be made to cancel out.
    lanes: [[u64; 2]; 4],
}

impl HashKey {
    /// Draws a key; the standard library's hasher state is seeded from the operating system.
    pub fn random() -> Self {
        let state = RandomState::new();
        Self {
            seed: state.hash_one(1_u64),
            mul: state.hash_one(2_u64) | 1,
            lanes: std::array::from_fn(|i| std::array::from_fn(|j| state.hash_one((i, j)))),
        }
    }
    /// Random numbers for the filters' hash.
    pub fn random_lanes() -> Lanes {
        let state = RandomState::new();
        #[allow(clippy::cast_possible_truncation)] // half of a random word
        Lanes(std::array::from_fn(|i| state.hash_one(i) as u32))
    }
    /// The key of what is no worker's own.
    pub fn of_process() -> Self {
        static KEY: LazyLock<HashKey> = LazyLock::new(HashKey::random);
        *KEY
    }
    /// Hash of a key's eight words, of which the last two are left out unless `long`. Equal words under
    /// different seeds have unrelated hashes.
    #[inline(always)]
    pub fn key(&self, w: impl Fn(usize) -> u64, long: bool, seed: u32) -> u64 {
        let l = &self.lanes;
        let lane = |i: usize| fold(w(2 * i) ^ l[i][0], w(2 * i + 1) ^ l[i][1]);
        let mut h = lane(0) ^ lane(1) ^ lane(2) ^ self.mul.wrapping_mul(seed.into());
        if long {
            h ^= lane(3);
        }
        self.finish(h)
    }
    /// Starts a hash.
    #[inline]
    pub fn start(self) -> u64 {
        self.seed
    }
    /// Mixes two words in.
    #[inline]
    pub fn mix(self, h: u64, a: u64, b: u64) -> u64 {
        fold(a ^ h ^ 0x2d35_8dcc_aa6c_78a5, b ^ self.mul)
    }
    /// Finishes: all bits depend on all input bits.
    #[inline]
    pub fn finish(self, h: u64) -> u64 {
        fold(h ^ self.seed, self.mul ^ 0x8bb8_4b93_962e_acc9)
    }
}

/// Both halves of a product: each bit of it depends on all bits of the factors.
#[inline]
pub fn fold(a: u64, b: u64) -> u64 {
    let p = u128::from(a) * u128::from(b);
    #[allow(clippy::cast_possible_truncation)] // the halves are what is wanted
    let (lo, hi) = (p as u64, (p >> 64) as u64);
    lo ^ hi
}
