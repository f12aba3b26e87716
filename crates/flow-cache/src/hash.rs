//! The keyed hash of keys and masked keys.
//!
//! Each 128-bit product folds two 64-bit words (the mixing step of wyhash), with independent products for the
//! words of a compact key. The key is drawn at start from the operating system, so that a sender who knows
//! the code cannot choose packets that collide. This is no cryptographic hash: a sender that could time
//! single lookups for long might learn something.

use heddle_simd::nh::Lanes;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// A per-start random key.
#[derive(Clone, Copy, Debug)]
pub struct HashKey {
    seed: u64,
    mul: u64,
    /// Factors for keys of eight words: each pair folds two words, independently of the other pairs. All are
    /// drawn one by one, since related lanes could be made to cancel out.
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
    pub(crate) fn random_lanes() -> Lanes {
        let state = RandomState::new();
        #[allow(clippy::cast_possible_truncation)] // half of a random word
        Lanes(std::array::from_fn(|i| state.hash_one(i) as u32))
    }
    /// One key for all data that is not private to a worker.
    pub fn of_process() -> Self {
        static KEY: LazyLock<HashKey> = LazyLock::new(HashKey::random);
        *KEY
    }
    /// Hash of a key's eight words; without `long` the last two are left out. Equal words under different
    /// seeds have unrelated hashes.
    #[inline(always)]
    pub(crate) fn key(&self, w: impl Fn(usize) -> u64, long: bool, seed: u32) -> u64 {
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

/// A hasher for anything but keys. Its input may come from packets: rules copy packet fields into actions and
/// registers. A sender that chooses thousands of these fields must not be able to make their hashes collide.
pub(crate) struct Mixer {
    h: u64,
    key: HashKey,
}

impl Mixer {
    pub(crate) fn new(start: u64) -> Self {
        let key = HashKey::of_process();
        Self {
            h: key.start() ^ start,
            key,
        }
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.key.finish(self.h)
    }
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let word = part.iter().fold(0, |w, b| w << 8 | u64::from(*b));
            self.write_u64(word);
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.h = self.key.mix(self.h, n, 0);
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let p = u128::from(a) * u128::from(b);
    #[allow(clippy::cast_possible_truncation)] // the halves are what is wanted
    let (lo, hi) = (p as u64, (p >> 64) as u64);
    lo ^ hi
}
