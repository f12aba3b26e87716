//! Looking up a burst.
//!
//! Each stage does one thing for all runs and asks for the memory that the next stage reads: hash and bucket, candidates' entries,
//! comparison. What is done with an entry that is right and found in the usual way is done at once, while it is at hand. Runs that L1 does not
//! answer go through their port's masks: a filter for each mask says of most of them that they have nothing, the others' cache misses overlap.

use super::masks::Probe;
use super::{Cache, NO_SLOT, is_current};
use crate::compact::{CompactKey, CompactMask};
use crate::entry::Entry;
use crate::parse::{Kind, Parsed, Run};
use crate::sig::{Bucket, tag_of};
use crate::store::Store;
use crate::translate::Generations;
use crate::tuple::{Family, Tuples};
use heddle_simd::simd;

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
    /// The bucket that the hash leads to.
    place: u32,
    pub(super) hash: u64,
}

/// What a burst's runs have in common, where each has an entry that is known to be right, and all have one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) body: u32,
    /// Runs that this level has answered; the others were like the burst before.
    pub(crate) l1: u64,
    pub(crate) l2: u64,
    /// Length of the longest packet.
    pub(crate) longest: u32,
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
    /// The only mask and its number, if there is one.
    tuple: u32,
    mask: &'a CompactMask,
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

/// See [`Common`].
#[inline]
fn common(found: &[Found], runs: &[Run]) -> Option<Common> {
    let body = found.first().map(|f| f.body).filter(|body| *body != NO_BODY)?;
    // Runs of each level in one number: a burst has fewer than would run over.
    const BITS: u32 = 16;
    let (mut odd, mut levels, mut longest) = (0, 0_u64, 0);
    for (f, run) in found.iter().zip(runs) {
        odd |= f.body ^ body;
        levels += 1 << (f.level as u32 * BITS);
        longest = longest.max(run.longest);
    }
    let at = |level: Level| levels >> (level as u32 * BITS) & ((1 << BITS) - 1);
    (odd == 0).then(|| Common {
        body,
        l1: at(Level::L1),
        l2: at(Level::L2),
        longest,
    })
}

impl Cache {
    /// Looks the runs of a burst up, and counts them on the entries that are known to be right; the answers are [`Cache::found`]. Returns what they have in
    /// common, if that is all there is to say of them.
    pub(crate) fn find(&mut self, parsed: &Parsed, moment: &Moment<'_>) -> Option<Common> {
        let mut s = std::mem::take(&mut self.scratch);
        self.watches.begin();
        s.todo.clear();
        let guessed = self.hash_all(parsed, &mut s);
        if !guessed.is_some_and(|slot| self.count_all(slot, parsed, &mut s, moment)) {
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
        let common = common(&s.found, &parsed.runs);
        self.scratch = s;
        common
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
            mask: &CompactMask::NEVER,
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
                    place: 0,
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
                f.how = way.how;
                match way.how {
                    How::Done => {}
                    How::Only => {
                        f.hash = way.mask.hash(key, &self.key, way.tuple);
                        f.level = Level::L2;
                        if far {
                            self.table.prefetch_place(f.hash);
                        } else {
                            f.place = self.table.place(f.hash);
                            self.table.prefetch_at(f.place);
                        }
                    }
                    How::L1 => {
                        f.hash = key.hash(&self.key);
                        f.place = self.l1.place(f.hash);
                        self.l1.prefetch_at(f.place);
                    }
                }
                f
            }));
        if far {
            for f in s.found.iter_mut().filter(|f| f.how == How::Only) {
                f.place = self.table.place(f.hash);
                self.table.prefetch_at(f.place);
            }
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
        let mut way = Way {
            origin: key.origin(),
            how: How::L1,
            tuple: 0,
            mask: &CompactMask::NEVER,
        };
        match list {
            [] => way.how = How::Done,
            [only] if !self.always_l1 => {
                (way.how, way.tuple) = (How::Only, only.tuple);
                way.mask = self.tuples.compact(only.tuple).unwrap_or(way.mask);
            }
            _ => {}
        }
        way
    }
    /// The bucket that a run's hash leads to.
    #[inline]
    fn bucket(&self, f: &Found) -> Option<&Bucket> {
        match f.how {
            How::Done => None,
            How::L1 => self.l1.at(f.place),
            How::Only => self.table.at(f.place),
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
            let e = if f.how == How::Done {
                self.store.get(f.slot)
            } else if let Some(e) = meant(&self.store, &self.tuples, f.slot, key) {
                Some(e)
            } else {
                f.slot = self.other(f, key);
                if f.slot == NO_SLOT && f.how == How::L1 {
                    s.todo.push(u16::try_from(r).unwrap_or(u16::MAX));
                }
                self.store.get(f.slot)
            };
            let Some(e) = e else { continue };
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
}
