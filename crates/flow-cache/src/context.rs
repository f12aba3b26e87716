//! Contexts: the values outside of compact keys that entries match on.
//!
//! **Problem.** A packet may have much metadata besides its usual headers: its tunnel with options, the state
//! of its connection, a hash. Most entries match on few bits of it, or none. Keys with room for all of it are
//! ten times as long. And senders of packets could fill them with values that no rule matches on.
//!
//! **Shape.** An entry's mask has a sparse part, the context bits that count ([`Bits`]). The values that they
//! must have are a [`Context`], a record with a number. This number replaces the origin in the entry's
//! compact key. Entries under one mask with the same values share a record. If all values are zero, or no bit
//! counts, there is no record, and the key keeps its origin. So packets without metadata are compared as 64
//! bytes, whatever the masks are. A packet with metadata is compared word by word, in the words that the
//! entry's mask has.
//!
//! **Bounds.** A record lives as long as an entry refers to it, so there are no more records than entries. A
//! new context bit makes a new mask and changes no entry that exists. Masks do not share records.
//!
//! **Threads.** Contexts belong to one worker. The revalidator learns records through events.

use crate::numbered::{Interned, Numbered};
use heddle_flow::{FlowKey, N_WORDS};
use heddle_simd::hash::{HashKey, fold};

/// Words of a full key with their bits that count; in order.
pub(crate) type Bits = [(u8, u64)];

/// The first number of a context; numbers of origins are smaller.
const FIRST: u32 = 1 << 31;

/// A record as the revalidator gets it, also of an origin with a recirculation id.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) in_port: u32,
    pub(crate) recirc_id: u32,
    /// The words outside of the compact key that the example packet had: (word, value) of each that is not
    /// zero.
    pub(crate) whole: Box<Bits>,
}

/// The words outside of compact keys that entries with one number require.
#[derive(Debug)]
struct RequiredWords {
    subtable: u32,
    origin: u32,
    /// The masked words, one for each word of the mask.
    values: Box<[u64]>,
    /// Hash of these words.
    hash: u64,
}

/// The hash of words outside of compact keys. Words that are zero add nothing.
#[derive(Debug)]
pub(crate) struct ContextHash {
    factors: [u64; N_WORDS],
}

impl ContextHash {
    pub(crate) fn new(key: &HashKey) -> Self {
        Self {
            factors: std::array::from_fn(|i| key.finish(key.mix(key.start(), i as u64, 1)) | 1),
        }
    }
    #[inline]
    fn of(&self, words: impl Iterator<Item = (u8, u64)>) -> u64 {
        words.fold(0, |h: u64, (i, w)| {
            h.wrapping_add(fold(w, self.factors[usize::from(i) % N_WORDS]))
        })
    }
    /// Hash of these bits of a full key.
    #[inline]
    pub(crate) fn hash(&self, key: &FlowKey, bits: &Bits) -> u64 {
        self.of(bits.iter().map(|(i, m)| (*i, word(key, *i) & m)))
    }
}

#[inline]
fn word(key: &FlowKey, i: u8) -> u64 {
    key.words().get(usize::from(i)).copied().unwrap_or(0)
}

/// Whether a number from an entry's key is the number of a context.
#[inline]
pub(crate) fn is_context(number: u32) -> bool {
    number >= FIRST
}

/// The mask of an entry, as far as it concerns the context.
#[derive(Clone, Copy)]
pub(crate) struct ContextMask<'a> {
    /// The number of the mask.
    pub(crate) subtable: u32,
    pub(crate) bits: &'a Bits,
    /// The packets are odd: there is a record even if no bit counts, as it describes them.
    pub(crate) is_odd: bool,
}

/// A worker's contexts, by number.
#[derive(Debug)]
pub(crate) struct Contexts {
    /// Their users are entries.
    all: Numbered<RequiredWords>,
    hash: ContextHash,
}

impl Contexts {
    pub(crate) fn new(key: &HashKey) -> Self {
        Self {
            all: Numbered::default(),
            hash: ContextHash::new(key),
        }
    }
    #[inline]
    fn get(&self, number: u32) -> Option<&RequiredWords> {
        self.all.get(number ^ FIRST)
    }
    /// Hash of these bits of a full key; zero if all are zero.
    #[inline]
    pub(crate) fn hash(&self, key: &FlowKey, bits: &Bits) -> u64 {
        self.hash.hash(key, bits)
    }
    /// The origin behind a number in an entry's key.
    #[inline]
    pub(crate) fn origin(&self, number: u32) -> u32 {
        let context = self.get(number).filter(|_| is_context(number));
        context.map_or(number, |h| h.origin)
    }
    /// The hash of the context's words behind a number in an entry's key.
    pub(crate) fn hash_of(&self, number: u32) -> u64 {
        let context = self.get(number).filter(|_| is_context(number));
        context.map_or(0, |h| h.hash)
    }
    /// The value that an entry with this number in its key requires of word `i` of a full key. `bits` are the
    /// context bits of its mask.
    pub(crate) fn word(&self, number: u32, bits: &Bits, i: usize) -> u64 {
        let values = self
            .get(number)
            .filter(|_| is_context(number))
            .map_or(&[][..], |h| &h.values);
        let mut words = bits.iter().zip(values);
        words
            .find(|((at, _), _)| usize::from(*at) == i)
            .map_or(0, |(_, v)| *v)
    }
    /// Whether a packet of this origin matches the context or origin in an entry's key. `bits` are the
    /// context bits of the entry's mask, and `key` has the packet's context bits.
    #[inline]
    pub(crate) fn agrees(&self, number: u32, bits: &Bits, origin: u32, key: &FlowKey) -> bool {
        if !is_context(number) {
            return number == origin && bits.iter().all(|(i, m)| word(key, *i) & m == 0);
        }
        self.get(number).is_some_and(|h| {
            let odd = bits.iter().zip(&h.values);
            h.origin == origin && odd.fold(0, |odd, ((i, m), v)| odd | (word(key, *i) & m ^ v)) == 0
        })
    }
    /// The number for an entry under this mask, for this packet of `origin`. Counts one more user. `None`:
    /// there are too many records.
    pub(crate) fn retain(&mut self, mask: ContextMask<'_>, origin: u32, key: &FlowKey) -> Option<Interned> {
        let ContextMask {
            subtable,
            bits,
            is_odd,
        } = mask;
        let hash = self.hash(key, bits);
        let values = || bits.iter().map(|(i, m)| word(key, *i) & m);
        if !is_odd && values().all(|v| v == 0) {
            return Some(Interned::known(origin));
        }
        let print = print(hash, subtable, origin);
        let found = self.all.find(print, |h| {
            (h.subtable, h.origin, h.hash) == (subtable, origin, hash)
                && values().eq(h.values.iter().copied())
        });
        if found.is_none() && self.all.len() >= FIRST as usize {
            return None;
        }
        let new = || RequiredWords {
            subtable,
            origin,
            values: values().collect(),
            hash,
        };
        let n = found.unwrap_or_else(|| self.all.insert(print, new()));
        self.all.retain(n);
        Some(Interned {
            number: n ^ FIRST,
            is_new: found.is_none(),
        })
    }
    /// Counts one entry less. Returns whether that was the last one, so that the number is free now.
    pub(crate) fn release(&mut self, number: u32) -> bool {
        let n = number ^ FIRST;
        is_context(number) && self.all.release(n) && self.all.remove(n).is_some()
    }
}

fn print(hash: u64, subtable: u32, origin: u32) -> u64 {
    hash ^ (u64::from(subtable) << 32 | u64::from(origin)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
