//! Looking up a burst.
//!
//! Each stage does one thing for all runs and asks for the memory that the next stage reads: hash and bucket, candidates' entries,
//! comparison. What is done with an entry that is right and found in the usual way is done at once, while it is at hand. Runs that L1 does not
//! answer go through their port's masks: a filter for each mask says of most of them that they have nothing, the others' cache misses overlap.

use super::masks::Probe;
use super::{Cache, NO_SLOT, is_current};
use crate::compact::{CompactKey, CompactMask};
use crate::entry::Entry;
use crate::hash::HashKey;
use crate::parse::{Kind, Parsed};
use crate::sig::{Bucket, tag_of};
use crate::store::Store;
use crate::translate::Generations;
use crate::tuple::{Family, Tuple, Tuples};
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

/// When a burst is looked up, and what for.
#[derive(Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// The datapath's clock, milliseconds.
    pub(crate) now_ms: u64,
    /// [`Generations::any`], read before.
    pub(crate) any: u64,
    pub(crate) generations: &'a Generations,
}

/// The answer for a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// [`NO_SLOT`]: none.
    pub(crate) slot: u32,
    /// The program of the entry there, which is known to be right and has counted the run; [`NO_BODY`]: both is left to do.
    pub(crate) body: u32,
    pub(crate) level: Level,
    how: How,
    /// Ways of the bucket that may be meant besides the one of `slot`, a bit each.
    more: u8,
    pub(super) hash: u64,
}

/// No program.
pub(crate) const NO_BODY: u32 = u32::MAX;

/// Where a run is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// Nowhere, or it is found.
    Done,
    /// `hash` is the whole key's.
    L1,
    /// `hash` is the masked key's, under the port's only mask.
    Only,
}

/// How ordinary packets of one port and family are looked up.
struct Way<'a> {
    /// See [`CompactKey::origin`].
    origin: u64,
    how: How,
    tuple: u32,
    mask: Option<&'a CompactMask>,
}

/// The last run of the burst before.
#[derive(Debug, Default)]
pub(super) struct Last {
    key: CompactKey,
    slot: u32,
    /// Zero: none.
    id: u64,
}

/// The entry that the last run of the burst before matched, whatever its key: where many flows have one entry, it is looked at before anything is
/// hashed.
#[derive(Debug, Default)]
pub(super) struct Guess {
    slot: u32,
    /// How often it would have been right lately.
    trust: u8,
    /// Runs that it answered, for which its mask is not counted up yet.
    hits: u32,
}

impl Guess {
    /// It is looked at from here on. Bursts of one entry count one up, others two down.
    const TRUSTED: u8 = 4;
    const MOST: u8 = 8;

    #[inline]
    fn slot(&self) -> Option<u32> {
        (self.trust >= Self::TRUSTED).then_some(self.slot)
    }
    /// The first and the last run of a burst had these entries.
    fn learn(&mut self, first: u32, last: u32) {
        let same = first == last && last != NO_SLOT;
        self.trust = if same {
            (self.trust + 1).min(Self::MOST)
        } else {
            self.trust.saturating_sub(2)
        };
        self.slot = last;
    }
}

/// What is compared of that entry.
struct Guessed {
    slot: u32,
    words: [u64; 8],
    mask: CompactMask,
}

/// Masks of extraordinary packets up to which L1 is left out.
const WIDE_FEW: usize = 4;
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) found: Vec<Found>,
    /// Runs that the exact matches have nothing for.
    pub(super) todo: Vec<u16>,
    pub(super) probes: Vec<Probe>,
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

/// The entry in `slot`, if it is this ordinary packet's.
#[inline]
fn meant<'a>(store: &'a Store, tuples: &Tuples, slot: u32, key: &CompactKey) -> Option<&'a Entry> {
    let e = store.get(slot)?;
    (e.alive()
        && tuples
            .compact(e.tuple())
            .is_some_and(|m| m.same(|i| e.word(i), key)))
    .then_some(e)
}

impl Cache {
    /// Looks the runs of a burst up, and counts them on the entries that are known to be right; the answers are [`Cache::found`].
    pub(crate) fn find(&mut self, parsed: &Parsed, moment: &Moment<'_>) {
        let mut s = std::mem::take(&mut self.scratch);
        self.watches.begin();
        s.todo.clear();
        let only = self.hash_all(parsed, &mut s);
        if !only.is_some_and(|slot| self.count_all(slot, parsed, &mut s, moment)) {
            self.fetch_entries(&mut s);
            if !parsed.wide.is_empty() {
                self.find_extraordinary(parsed, &mut s);
            }
            self.compare(parsed, &mut s, moment);
            if !s.todo.is_empty() {
                self.find_wildcarded(parsed, &mut s);
            }
        }
        if let [first, .., last] = &s.found[..] {
            if last.slot != self.guess.slot {
                self.count_guesses();
            }
            self.guess.learn(first.slot, last.slot);
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

    /// Hashes each run's key and asks for the bucket that it leads to. Returns the slot of the entry that all runs match, if that was guessed.
    fn hash_all(&mut self, parsed: &Parsed, s: &mut Scratch) -> Option<u32> {
        let mut way = Way {
            origin: u64::MAX,
            how: How::Done,
            tuple: 0,
            mask: None,
        };
        let guess = self.guess.slot().and_then(|slot| self.guessed(slot));
        let mut guessed = 0;
        let far = self.table.is_far();
        s.found.clear();
        s.found
            .extend(parsed.runs.iter().zip(&parsed.compact).map(|(run, key)| {
                let mut f = Found {
                    slot: NO_SLOT,
                    body: NO_BODY,
                    level: Level::L1,
                    how: How::Done,
                    more: 0,
                    hash: 0,
                };
                if run.kind != Kind::Ordinary {
                    return f;
                }
                if let Some(g) = &guess
                    && g.mask.same(|i| g.words[i], key)
                {
                    (f.slot, f.level) = (g.slot, Level::L2);
                    guessed += 1;
                    return f;
                }
                if key.origin() != way.origin {
                    way = self.way(key);
                }
                match (way.how, way.mask) {
                    (How::Only, Some(mask)) => {
                        f.hash = mask.hash(key, &self.key, way.tuple);
                        f.how = How::Only;
                        f.level = Level::L2;
                        if far {
                            self.table.prefetch_place(f.hash);
                        } else {
                            self.table.prefetch(f.hash);
                        }
                    }
                    (How::L1, _) => {
                        f.hash = key.hash(&self.key);
                        f.how = How::L1;
                        self.l1.prefetch(f.hash);
                    }
                    _ => {}
                }
                f
            }));
        if far {
            let only = s.found.iter().filter(|f| f.how == How::Only);
            only.for_each(|f| self.table.prefetch(f.hash));
        }
        self.guess.hits = self
            .guess
            .hits
            .saturating_add(u32::try_from(guessed).unwrap_or(u32::MAX));
        if guessed == s.found.len() {
            return guess.map(|g| g.slot);
        }
        if let (Some(key), Some(f)) = (
            parsed.runs.first().and_then(|_| parsed.key(0)),
            s.found.first_mut(),
        ) && *key == self.last.key
            && let Some(e) = self.store.get(self.last.slot)
            && e.id() == self.last.id
            && e.alive()
        {
            (f.slot, f.level, f.how) = (self.last.slot, Level::L0, How::Done);
        }
        None
    }
    /// Counts the mask up of the entry that was guessed: what has all the packets is not to be found last when it has not any more. (If the entry went meanwhile,
    /// another's mask is: the order is a matter of cost only.)
    pub(super) fn count_guesses(&mut self) {
        let hits = std::mem::take(&mut self.guess.hits);
        if hits > 0
            && let Some(e) = self.store.get(self.guess.slot)
        {
            let key = e.key();
            self.tuples
                .hit_mask(key.in_port(), family(Some(&key)), e.tuple(), hits);
        }
    }
    /// The entry in `slot`, to be compared with all of a burst.
    fn guessed(&self, slot: u32) -> Option<Guessed> {
        let e = self.store.get(slot).filter(|e| e.alive())?;
        Some(Guessed {
            slot,
            words: *e.key().words(),
            mask: *self.tuples.compact(e.tuple())?,
        })
    }
    fn way(&self, key: &CompactKey) -> Way<'_> {
        let list = self.tuples.list(key.in_port(), family(Some(key)));
        let (how, tuple) = match list {
            [] => (How::Done, 0),
            [only] if !self.always_l1 => (How::Only, only.tuple),
            _ => (How::L1, 0),
        };
        Way {
            origin: key.origin(),
            how,
            tuple,
            mask: self.tuples.compact(tuple),
        }
    }
    /// The bucket that a run's hash leads to.
    #[inline]
    fn bucket(&self, f: &Found) -> Option<&Bucket> {
        match f.how {
            How::Done => None,
            How::L1 => Some(self.l1.bucket(f.hash)),
            How::Only => self.table.bucket(f.hash),
        }
    }
    #[inline]
    pub(super) fn fetch(&self, slot: u32) {
        if let Some(e) = self.store.get(slot) {
            simd::prefetch(e);
            simd::prefetch_write(e.hot());
        }
    }
    /// Takes the first candidate of each run, and asks for its entry.
    fn fetch_entries(&self, s: &mut Scratch) {
        for f in &mut s.found {
            let Some(bucket) = self.bucket(f) else { continue };
            let mut candidates = bucket.candidates(tag_of(f.hash));
            if let Some(slot) = candidates.next() {
                f.slot = slot;
                f.more = candidates.left();
                self.fetch(slot);
            }
        }
    }
    /// Compares the candidates with the runs' keys. Entries that are right count the runs.
    fn compare(&mut self, parsed: &Parsed, s: &mut Scratch, moment: &Moment<'_>) {
        for (r, f) in s.found.iter_mut().enumerate() {
            let (Some(key), Some(run)) = (parsed.key(r), parsed.runs.get(r)) else {
                continue;
            };
            if f.how != How::Done && meant(&self.store, &self.tuples, f.slot, key).is_none() {
                f.slot = self.other(f, key);
                if f.slot == NO_SLOT {
                    if f.how == How::L1 {
                        s.todo.push(u16::try_from(r).unwrap_or(u16::MAX));
                    }
                    continue;
                }
            }
            let Some(e) = self.store.get(f.slot) else { continue };
            // Found without going through masks, and yet wildcarded: under the only one, or the one that was guessed.
            self.probes += u64::from(f.level == Level::L2);
            if is_current(e, &mut self.watches, &self.verdicts, Some(key), moment) {
                f.body = e.body();
                e.count(run.packets(), run.bytes, moment.now_ms, key.tcp_flags());
            }
        }
    }
    /// As [`Cache::compare`], where all runs are known to match the entry in `slot`: it counts them at once, if it is right. Returns whether it is.
    fn count_all(&mut self, slot: u32, parsed: &Parsed, s: &mut Scratch, moment: &Moment<'_>) -> bool {
        let Some(e) = self.store.get(slot) else {
            return false;
        };
        if !is_current(e, &mut self.watches, &self.verdicts, parsed.key(0), moment) {
            return false;
        }
        let body = e.body();
        let (mut packets, mut bytes, mut tcp_flags) = (0, 0, 0);
        for ((f, run), key) in s.found.iter_mut().zip(&parsed.runs).zip(&parsed.compact) {
            f.body = body;
            packets += run.packets();
            bytes += run.bytes;
            tcp_flags |= key.tcp_flags();
        }
        e.count(packets, bytes, moment.now_ms, tcp_flags);
        self.probes += s.found.len() as u64;
        true
    }
    /// The slot of this key's entry, where the first candidate is not it.
    #[cold]
    fn other(&self, f: &Found, key: &CompactKey) -> u32 {
        let more = self.bucket(f).map(|b| b.rest(f.more));
        let found = more.and_then(|mut c| c.find(|slot| self.is(*slot, key)));
        found.unwrap_or(NO_SLOT)
    }
    /// Whether the entry in `slot` is this ordinary packet's.
    #[inline]
    pub(super) fn is(&self, slot: u32, key: &CompactKey) -> bool {
        meant(&self.store, &self.tuples, slot, key).is_some()
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
        self.key.words(key.used().iter().copied())
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
