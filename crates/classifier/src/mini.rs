//! Matches without the words that they do not use.
//!
//! A [`Match`] is two wide keys; nearly all of their words are zero in nearly all rules. The compact form
//! keeps the indexes of the mask's non-zero words and, in the same order, their masks and values.

use heddle_flow::{FlowKey, FlowMask, Match, N_WORDS};
use std::sync::Arc;

/// The non-zero words of a mask: their indexes and bits. Equal masks are equal values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct MiniMask {
    words: Box<[(u8, u64)]>,
    /// Hash of the words, so that finding a mask again costs little.
    hash: u64,
}

impl std::hash::Hash for MiniMask {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl MiniMask {
    /// Compacts a mask.
    pub fn new(mask: &FlowMask) -> Self {
        let words = (mask.0.first_used()..).zip(mask.0.used());
        let words = words.filter(|(_, m)| **m != 0);
        // Fewer than 256 words: checked here once for the whole crate.
        const { assert!(N_WORDS <= 255) };
        let words: Box<[_]> = words
            .map(|(i, m)| (u8::try_from(i).expect("N_WORDS <= 255"), *m))
            .collect();
        let hash = words.iter().fold(0, |h, (i, m)| mix(h ^ u64::from(*i), *m));
        Self { words, hash }
    }
    /// The word indexes and their masks.
    pub fn words(&self) -> &[(u8, u64)] {
        &self.words
    }
    /// The values of `key` under this mask.
    pub fn values(&self, key: &FlowKey) -> Box<[u64]> {
        let w = key.words();
        self.words.iter().map(|(i, m)| w[usize::from(*i)] & m).collect()
    }
    /// Whether `key` under this mask has these values.
    pub fn matches(&self, key: &FlowKey, values: &[u64]) -> bool {
        let w = key.words();
        self.words
            .iter()
            .zip(values)
            .all(|((i, m), v)| w[usize::from(*i)] & m == *v)
    }
    /// Sets these bits in a wide mask.
    pub fn add_to(&self, mask: &mut FlowMask) {
        let w = mask.words_mut();
        for (i, m) in &self.words {
            w[usize::from(*i)] |= m;
        }
    }
    /// The bits of one word.
    fn word(&self, index: u8) -> Option<(usize, u64)> {
        let at = self.words.binary_search_by_key(&index, |(i, _)| *i).ok()?;
        Some((at, self.words[at].1))
    }
    /// Whether all its bits are also bits of the other.
    pub(crate) fn within(&self, other: &MiniMask) -> bool {
        let mut words = self.words.iter();
        words.all(|(i, m)| other.word(*i).is_some_and(|(_, o)| m & o == *m))
    }
    /// The part of a match in bits of this mask.
    pub(crate) fn in_common(&self, m: &MiniMatch) -> InCommon {
        let asked = m.each().filter_map(|(i, mask, value)| {
            let (at, own) = self.word(i)?;
            Some((at, mask & own, value & own))
        });
        InCommon(asked.collect())
    }
    /// The wide form.
    pub fn expand(&self) -> FlowMask {
        let mut m = FlowMask::default();
        self.add_to(&mut m);
        m
    }
}

/// The part of a match that applies to values under some mask: (index of the value, bits, their values).
pub(crate) struct InCommon(Vec<(usize, u64, u64)>);

impl InCommon {
    /// Whether these values agree with the match.
    pub(crate) fn agrees(&self, values: &[u64]) -> bool {
        let asked = self.0.iter();
        asked.fold(true, |all, (at, mask, value)| {
            all & (values[*at] & mask == *value)
        })
    }
    /// The match's values, one for each word of the mask. Only valid if the match has bits in each word.
    pub(crate) fn values(&self) -> Vec<u64> {
        self.0.iter().map(|(_, _, value)| *value).collect()
    }
}

/// A hash that takes masked words one after the other, and can be read in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher(u64);

impl Hasher {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// Adds the words of `key` under these masks; the same as [`Hasher::values`] of the masked words.
    #[inline]
    pub(crate) fn key(&mut self, key: &FlowKey, words: &[(u8, u64)]) {
        let w = key.words();
        for (i, m) in words {
            self.0 = mix(self.0, w[usize::from(*i)] & m);
        }
    }
    /// Adds masked words.
    #[inline]
    pub(crate) fn values(&mut self, values: &[u64]) {
        self.0 = values.iter().fold(self.0, |h, v| mix(h, *v));
    }
    /// The hash so far.
    #[inline]
    pub(crate) fn get(self) -> u64 {
        finish(self.0)
    }
}

/// Folds a 64×64→128-bit product: one multiplication mixes all bits (as wyhash and foldhash do).
fn mix(h: u64, v: u64) -> u64 {
    let p = u128::from(h ^ v ^ 0x9e37_79b9_7f4a_7c15) * u128::from(v.rotate_left(32) ^ 0xd6e8_feb8_6659_fd93);
    #[allow(clippy::cast_possible_truncation)] // the two halves, on purpose
    let folded = (p as u64) ^ ((p >> 64) as u64);
    folded ^ h.rotate_left(23)
}

fn finish(h: u64) -> u64 {
    let h = (h ^ (h >> 32)).wrapping_mul(0x9fb2_1c65_1e98_df25);
    h ^ (h >> 29)
}

/// A match in the compact form; the mask is shared by all rules of a subtable.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct MiniMatch {
    /// The bits that count.
    pub mask: Arc<MiniMask>,
    /// The values of these bits, in the mask's order.
    pub values: Arc<[u64]>,
}

impl MiniMatch {
    /// Compacts a match.
    pub fn new(m: &Match) -> Self {
        let mask = Arc::new(MiniMask::new(&m.mask));
        let values = mask.values(&m.key).into();
        Self { mask, values }
    }
    /// The wide form.
    pub fn expand(&self) -> Match {
        let mut out = Match {
            mask: self.mask.expand(),
            ..Match::default()
        };
        let w = out.key.words_mut();
        for ((i, _), v) in self.mask.words().iter().zip(&*self.values) {
            w[usize::from(*i)] = *v;
        }
        out
    }
    /// Whether a packet with this key matches.
    pub fn matches(&self, key: &FlowKey) -> bool {
        self.mask.matches(key, &self.values)
    }
    /// The match's part in one word: bits, and their values.
    pub fn word(&self, index: u8) -> (u64, u64) {
        let at = self.mask.word(index);
        at.map_or((0, 0), |(at, mask)| (mask, self.values[at]))
    }
    fn each(&self) -> impl Iterator<Item = (u8, u64, u64)> + '_ {
        let words = self.mask.words().iter().zip(&*self.values);
        words.map(|((i, m), v)| (*i, *m, *v))
    }
    /// Whether everything that matches `self` also matches `loose` (OpenFlow's non-strict comparison).
    pub fn within(&self, loose: &MiniMatch) -> bool {
        loose.each().all(|(i, loose_mask, loose_value)| {
            let (mask, value) = self.word(i);
            mask & loose_mask == loose_mask && value & loose_mask == loose_value
        })
    }
    /// Whether some packet could match both.
    pub fn overlaps(&self, other: &MiniMatch) -> bool {
        self.each().all(|(i, mask, value)| {
            let (other_mask, other_value) = other.word(i);
            (value ^ other_value) & mask & other_mask == 0
        })
    }
}
