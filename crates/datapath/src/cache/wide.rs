//! Looking extraordinary packets up, one by one: by their full keys, in L1 where there are several masks, and mask by mask.

use super::Cache;
use super::find::{Level, Scratch, family};
use crate::compact::CompactKey;
use crate::entry::Entry;
use crate::hash::HashKey;
use crate::parse::{Kind, Parsed};
use crate::tuple::{Family, Tuple};
use heddle_flow::FlowKey;

/// Masks of extraordinary packets up to which L1 is left out.
const WIDE_FEW: usize = 4;

/// Keyed hash of a full key under a mask; `n` is the mask's number.
pub(super) fn wide_hash(k: HashKey, tuple: &Tuple, n: u32, key: &FlowKey) -> u64 {
    wide_hash_of(k, n, tuple.of(key))
}

/// As [`wide_hash`], of the masked words.
pub(super) fn wide_hash_of(k: HashKey, n: u32, words: impl Iterator<Item = u64>) -> u64 {
    k.words(std::iter::once(u64::from(n)).chain(words))
}

impl Cache {
    fn is_wide(&self, slot: u32, key: &FlowKey) -> bool {
        self.store.get(slot).is_some_and(Entry::alive)
            && self
                .wide
                .get(&slot)
                .is_some_and(|w| w.tuple.of(key).zip(w.words.iter()).all(|(a, b)| a == *b))
    }
    fn whole_hash(&self, key: &FlowKey) -> u64 {
        self.key.words(key.used().iter().copied())
    }
    pub(super) fn find_extraordinary(&mut self, parsed: &Parsed, s: &mut Scratch) {
        for (r, f) in s.found.iter_mut().enumerate() {
            if let Kind::Wide(_) = parsed.runs[r].kind
                && let Some(key) = parsed.known(r)
                && let Some((slot, level)) = self.find_wide(key)
            {
                (f.slot, f.level) = (slot, level);
            }
        }
    }
    /// Looks a full key up that has no compact form.
    pub(crate) fn find_wide(&mut self, key: &FlowKey) -> Option<(u32, Level)> {
        let n = self.tuples.list(key.in_port, Family::Wide).len();
        // Hashing all of a full key costs as much as a few masks.
        let whole = (n > WIDE_FEW).then(|| self.whole_hash(key));
        if let Some(hash) = whole
            && let Some(slot) = self.l1.candidates(hash).find(|slot| self.is_wide(*slot, key))
        {
            return Some((slot, Level::L1));
        }
        for i in 0..n {
            let number = self.tuples.list(key.in_port, Family::Wide)[i].tuple;
            let Some(tuple) = self.tuples.get(number) else {
                continue;
            };
            let hash = wide_hash(self.key, tuple, number, key);
            let found = self
                .table
                .candidates(hash)
                .and_then(|mut c| c.find(|slot| self.is_wide(*slot, key)));
            if let Some(slot) = found {
                self.probes += i as u64 + 1;
                self.tuples.hit(key.in_port, Family::Wide, i, 1);
                if let Some(hash) = whole {
                    self.l1.insert(hash, slot);
                }
                return Some((slot, Level::L2));
            }
        }
        None
    }
    /// Makes L1 know an entry for a packet's key.
    pub(super) fn remember(&mut self, key: &FlowKey, compact: Option<&CompactKey>, slot: u32) {
        match compact {
            Some(c) => {
                if self.always_l1 || self.tuples.list(key.in_port, family(compact)).len() > 1 {
                    self.l1.insert(c.hash(&self.key), slot);
                }
            }
            None => {
                if self.tuples.list(key.in_port, Family::Wide).len() > WIDE_FEW {
                    self.l1.insert(self.whole_hash(key), slot);
                }
            }
        }
    }
}
