//! Looking up a burst.
//!
//! Each stage does one thing for all runs and asks for the memory that the next stage reads: hash and bucket, candidates' entries,
//! comparison. Runs that L1 does not answer go through their port's masks in groups, so that a few runs with many masks overlap their cache
//! misses as well as many runs with few masks do.

use super::{Cache, NO_SLOT};
use crate::compact::CompactKey;
use crate::entry::Entry;
use crate::hash::HashKey;
use crate::parse::{Kind, Parsed};
use crate::tuple::{Family, Tuple};
use heddle_flow::FlowKey;
use heddle_sys::simd;

/// Which level answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// The burst before.
    L0,
    /// Exact match.
    L1,
    /// Wildcarded.
    L2,
}

/// The answer for a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// [`NO_SLOT`]: none.
    pub(crate) slot: u32,
    pub(crate) level: Level,
    hash: u64,
    how: How,
}

/// Where a run is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// Found, or nowhere.
    Done,
    /// `hash` is the whole key's.
    L1,
    /// `hash` is the masked key's, under the port's only mask.
    Only,
}

/// The last run of the burst before.
#[derive(Debug, Default)]
pub(super) struct Last {
    key: CompactKey,
    slot: u32,
    /// Zero: none.
    id: u64,
}

/// Masks of extraordinary packets up to which L1 is left out.
const WIDE_FEW: usize = 4;
/// Masks probed side by side for one run, at most.
const GROUP: usize = 8;
/// ... and for all runs together, where there are few.
const IN_FLIGHT: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Scratch {
    found: Vec<Found>,
    todo: Vec<u16>,
    hashes: Vec<[u64; GROUP]>,
}

/// The family of a packet with this key.
#[inline]
pub(super) fn family(compact: Option<&CompactKey>) -> Family {
    match compact {
        None => Family::Wide,
        Some(c) if c.is_v6() => Family::V6,
        Some(_) => Family::V4,
    }
}

/// Keyed hash of a full key under a mask; `n` is the mask's number.
pub(super) fn wide_hash(k: HashKey, tuple: &Tuple, n: u32, key: &FlowKey) -> u64 {
    wide_hash_of(k, n, tuple.of(key))
}

/// As [`wide_hash`], of the masked words.
pub(super) fn wide_hash_of(k: HashKey, n: u32, words: impl Iterator<Item = u64>) -> u64 {
    k.words(std::iter::once(u64::from(n)).chain(words))
}

impl Cache {
    /// Looks the runs of a burst up; the answers are [`Cache::found`].
    pub(crate) fn find(&mut self, parsed: &Parsed) {
        let mut s = std::mem::take(&mut self.scratch);
        self.watches.begin();
        s.found.clear();
        s.todo.clear();
        self.hash_all(parsed, &mut s);
        if !parsed.wide.is_empty() {
            self.find_extraordinary(parsed, &mut s);
        }
        if s.found.len() > 1 {
            self.fetch_entries(&s);
        }
        self.compare(parsed, &mut s);
        if !s.todo.is_empty() {
            self.find_wildcarded(parsed, &mut s);
        }
        // The last ordinary run's answer, for the next burst.
        if let Some(r) = parsed.runs.len().checked_sub(1)
            && let (Some(key), Some(f)) = (parsed.key(r), s.found.get(r))
            && let Some(e) = self.store.get(f.slot)
        {
            self.last = Last {
                key: *key,
                slot: f.slot,
                id: e.id(),
            };
        }
        self.scratch = s;
    }
    /// The answer for run `r`.
    #[inline]
    pub(crate) fn found(&self, r: usize) -> Found {
        self.scratch.found[r]
    }

    fn hash_all(&self, parsed: &Parsed, s: &mut Scratch) {
        for r in 0..parsed.runs.len() {
            s.found.push(self.hash_one(parsed, r));
        }
    }
    #[inline]
    fn hash_one(&self, parsed: &Parsed, r: usize) -> Found {
        let mut f = Found {
            slot: NO_SLOT,
            level: Level::L1,
            hash: 0,
            how: How::Done,
        };
        let Some(key) = parsed.key(r) else { return f };
        if r == 0
            && *key == self.last.key
            && let Some(e) = self.store.get(self.last.slot)
            && e.id() == self.last.id
            && e.alive()
        {
            (f.slot, f.level) = (self.last.slot, Level::L0);
            return f;
        }
        let list = self.tuples.list(key.in_port(), family(Some(key)));
        match list {
            [] => {}
            [only] if !self.always_l1 => {
                if let Some(mask) = self.tuples.compact(only.tuple) {
                    f.hash = mask.hash(key, self.key, only.tuple);
                    f.how = How::Only;
                    f.level = Level::L2;
                    self.table.prefetch(f.hash);
                }
            }
            _ => {
                f.hash = key.hash(self.key);
                f.how = How::L1;
                self.l1.prefetch(f.hash);
            }
        }
        f
    }
    #[inline]
    fn fetch(&self, slot: u32) {
        if let Some(e) = self.store.get(slot) {
            simd::prefetch(e);
            simd::prefetch_write(e.hot());
        }
    }
    fn fetch_entries(&self, s: &Scratch) {
        for f in &s.found {
            match f.how {
                How::Done => {}
                How::L1 => self.l1.candidates(f.hash).for_each(|slot| self.fetch(slot)),
                How::Only => {
                    if let Some(c) = self.table.candidates(f.hash) {
                        c.for_each(|slot| self.fetch(slot));
                    }
                }
            }
        }
    }
    /// Whether the entry in `slot` is this ordinary packet's.
    #[inline]
    fn is(&self, slot: u32, key: &CompactKey) -> bool {
        let Some(e) = self.store.get(slot) else {
            return false;
        };
        e.alive() && self.tuples.compact(e.tuple()).is_some_and(|m| e.matches(key, m))
    }
    fn compare(&mut self, parsed: &Parsed, s: &mut Scratch) {
        for (r, f) in (0..).zip(&mut s.found) {
            let Some(key) = parsed.key(usize::from(r)) else {
                continue;
            };
            match f.how {
                How::Done => {}
                How::L1 => match self.l1.candidates(f.hash).find(|slot| self.is(*slot, key)) {
                    Some(slot) => f.slot = slot,
                    None => s.todo.push(r),
                },
                How::Only => {
                    let found = self
                        .table
                        .candidates(f.hash)
                        .and_then(|mut c| c.find(|slot| self.is(*slot, key)));
                    self.probes += 1;
                    if let Some(slot) = found {
                        f.slot = slot;
                        self.tuples.hit(key.in_port(), family(Some(key)), 0, 1);
                    }
                }
            }
        }
    }

    /// Goes through the masks for the runs that are left.
    fn find_wildcarded(&mut self, parsed: &Parsed, s: &mut Scratch) {
        s.hashes.clear();
        s.hashes.resize(s.found.len(), [0; GROUP]);
        let mut at = 0;
        while !s.todo.is_empty() {
            let group = (IN_FLIGHT / s.todo.len()).clamp(1, GROUP);
            for &r in &s.todo {
                let Some(key) = parsed.key(r.into()) else { continue };
                let list = self.tuples.list(key.in_port(), family(Some(key)));
                let masks = list.iter().skip(at).take(group);
                for (h, u) in s.hashes[usize::from(r)].iter_mut().zip(masks) {
                    if let Some(mask) = self.tuples.compact(u.tuple) {
                        *h = mask.hash(key, self.key, u.tuple);
                        self.table.prefetch(*h);
                    }
                }
            }
            if s.todo.len() > 1 || group > 1 {
                for &r in &s.todo {
                    let Some(key) = parsed.key(r.into()) else { continue };
                    let n = self.tuples.list(key.in_port(), family(Some(key))).len();
                    for h in s.hashes[usize::from(r)]
                        .iter()
                        .take(group.min(n.saturating_sub(at)))
                    {
                        if let Some(c) = self.table.candidates(*h) {
                            c.for_each(|slot| self.fetch(slot));
                        }
                    }
                }
            }
            let (found, hashes) = (&mut s.found, &s.hashes);
            s.todo.retain(|&r| {
                let Some(key) = parsed.key(r.into()) else {
                    return false;
                };
                let (port, family) = (key.in_port(), family(Some(key)));
                let n = self.tuples.list(port, family).len();
                let f = &mut found[usize::from(r)];
                for (i, h) in (at..n).zip(&hashes[usize::from(r)][..group]) {
                    self.probes += 1;
                    let hit = self
                        .table
                        .candidates(*h)
                        .and_then(|mut c| c.find(|slot| self.is(*slot, key)));
                    if let Some(slot) = hit {
                        (f.slot, f.level) = (slot, Level::L2);
                        self.tuples.hit(port, family, i, 1);
                        self.l1.insert(f.hash, slot);
                        return false;
                    }
                }
                at + group < n
            });
            at += group;
        }
    }

    /// Looks one ordinary packet's key up, in L2 only: what L1 does not know may have been stored in this burst.
    pub(crate) fn find_one(&mut self, key: &CompactKey) -> Option<u32> {
        let (port, family) = (key.in_port(), family(Some(key)));
        for i in 0..self.tuples.list(port, family).len() {
            let tuple = self.tuples.list(port, family)[i].tuple;
            let Some(mask) = self.tuples.compact(tuple) else {
                continue;
            };
            let hash = mask.hash(key, self.key, tuple);
            self.probes += 1;
            let found = self
                .table
                .candidates(hash)
                .and_then(|mut c| c.find(|slot| self.is(*slot, key)));
            if found.is_some() {
                self.tuples.hit(port, family, i, 1);
                return found;
            }
        }
        None
    }

    // -- extraordinary packets

    fn is_wide(&self, slot: u32, key: &FlowKey) -> bool {
        self.store.get(slot).is_some_and(Entry::alive)
            && self
                .wide
                .get(&slot)
                .is_some_and(|w| w.tuple.of(key).zip(w.words.iter()).all(|(a, b)| a == *b))
    }
    fn whole_hash(&self, key: &FlowKey) -> u64 {
        self.key.words(key.words().iter().copied())
    }
    fn find_extraordinary(&mut self, parsed: &Parsed, s: &mut Scratch) {
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
            self.probes += 1;
            let found = self
                .table
                .candidates(hash)
                .and_then(|mut c| c.find(|slot| self.is_wide(*slot, key)));
            if let Some(slot) = found {
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
                    self.l1.insert(c.hash(self.key), slot);
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
