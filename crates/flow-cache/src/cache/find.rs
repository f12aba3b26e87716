//! Lookup of a burst.
//!
//! Each pass does one thing for all runs and prefetches the memory that the next pass reads: hash and
//! bucket, candidates' entries, comparison. A run whose entry is valid is counted as soon as it is compared,
//! while the entry is in the processor's cache. Runs that miss in L1 try the masks of their origin
//! ([`super::masks`]).

use super::masks::Probe;
use super::{Cache, is_current};
use crate::burst::{LookupKeys, Run, Sought};
use crate::compact::{CompactKey, CompactMask};
use crate::context::{Bits, Contexts, is_context};
use crate::entry::CacheEntry;
use crate::program_table::{NO_PROGRAM, Program, ProgramId};
use crate::signature::{Bucket, tag_of};
use crate::store::{NO_SLOT, Store};
use crate::subtable::Subtables;
use heddle_datapath_api::Generations;
use heddle_flow::FlowKey;
use heddle_simd::simd;

/// The cache level that matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Exact match.
    L1,
    /// Wildcarded.
    L2,
}

/// Time, generations and clock for the lookup of one burst.
#[derive(Clone, Copy)]
pub struct LookupContext<'a> {
    /// The datapath's clock, milliseconds.
    pub now_ms: u64,
    /// [`Generations::any`], read before the lookup.
    pub any: u64,
    /// The generations that cached translations depend on.
    pub generations: &'a Generations,
}

/// The result of a run's lookup.
#[derive(Clone, Copy, Debug)]
pub struct LookupResult {
    /// Slot of the entry; [`NO_SLOT`]: a miss.
    pub slot: u32,
    /// The program of the entry, if the entry is valid; then it has counted the run. [`NO_PROGRAM`]: the
    /// caller has to validate the entry and count the run.
    pub program: ProgramId,
    /// The level that matched.
    pub level: Level,
    how: How,
    /// A bit for each further way of the bucket whose tag agrees.
    more: u8,
    /// The number of the bucket that the hash leads to.
    place: u32,
    pub(super) hash: u64,
}

/// Summary of a burst in which each run has a valid entry and all entries have one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonProgram {
    /// The program.
    pub program: ProgramId,
    /// The number of runs that L1 matched.
    pub l1: u64,
    /// The number of runs that L2 matched.
    pub l2: u64,
    /// Length of the longest packet, in bytes.
    pub longest: u32,
}

/// The structure that a run is looked up in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// No structure: the slot is known, or the run needs no lookup.
    Done,
    /// L1; `hash` is the hash of the whole key.
    L1,
    /// L2; `hash` is the hash of the key under the origin's only mask.
    Only,
}

/// The lookup method for packets of one origin and family.
struct LookupPlan<'a> {
    /// See [`CompactKey::class`].
    class: u64,
    how: How,
    /// Number of the only mask, if there is just one.
    subtable: u32,
    mask: &'a CompactMask,
    /// The bits outside of compact keys that are hashed.
    context_bits: &'a Bits,
}

/// The guessed entry, unpacked for comparisons with a whole burst.
struct Guessed<'a> {
    slot: u32,
    /// The entry's key with its true origin.
    key: CompactKey,
    /// The origin in the entry's key, or the number of a context.
    origin: u32,
    mask: CompactMask,
    context_bits: &'a Bits,
}

#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) found: Vec<LookupResult>,
    /// Runs that L1 missed.
    pub(super) todo: Vec<u16>,
    pub(super) probes: Vec<Probe>,
}

/// The entry in `slot`, if it matches the packet and is not evicted.
#[inline]
fn meant<'a>(
    store: &'a Store,
    subtables: &Subtables,
    contexts: &Contexts,
    slot: u32,
    sought: Sought<'_>,
) -> Option<&'a CacheEntry> {
    let e = store.get(slot)?;
    let mask = subtables.compact(e.subtable())?;
    let same = match sought.context {
        None => mask.same(|i| e.word(i), sought.key),
        Some(context) => {
            let key = e.key();
            let own = key.with_origin(sought.key.origin());
            mask.same(|i| own.words()[i], sought.key)
                && contexts.agrees(
                    key.origin(),
                    subtables.context_bits(e.subtable()),
                    sought.key.origin(),
                    context,
                )
        }
    };
    (same && e.alive()).then_some(e)
}

/// Summarizes the results of a burst, see [`CommonProgram`].
#[inline]
fn common(found: &[LookupResult], runs: &[Run]) -> Option<CommonProgram> {
    let program = found
        .first()
        .map(|f| f.program)
        .filter(|program| *program != NO_PROGRAM)?;
    // One number has a field of 16 bits per level. A burst has too few runs to overflow one.
    const BITS: u32 = 16;
    let (mut odd, mut levels, mut longest) = (0, 0_u64, 0);
    for (f, run) in found.iter().zip(runs) {
        odd |= f.program.0 ^ program.0;
        levels += 1 << (f.level as u32 * BITS);
        longest = longest.max(run.longest);
    }
    let at = |level: Level| levels >> (level as u32 * BITS) & ((1 << BITS) - 1);
    (odd == 0).then(|| CommonProgram {
        program,
        l1: at(Level::L1),
        l2: at(Level::L2),
        longest,
    })
}

impl<P: Program> Cache<P> {
    /// Looks up the runs of a burst and counts them on entries that are known to be valid. [`Cache::found`]
    /// returns the results one by one. Returns a summary if all runs have valid entries with one program.
    pub fn find(&mut self, parsed: &impl LookupKeys, lookup: &LookupContext<'_>) -> Option<CommonProgram> {
        let mut s = std::mem::take(&mut self.scratch);
        self.groups.begin();
        s.todo.clear();
        let guessed = self.hash_all(parsed, &mut s);
        if !guessed.is_some_and(|slot| self.count_all(slot, parsed, &mut s, lookup)) {
            self.fetch_entries(&mut s);
            self.compare(parsed, &mut s, lookup);
            if !s.todo.is_empty() {
                self.find_wildcarded(parsed, &mut s);
            }
        }
        self.learn(parsed, &s);
        let common = common(&s.found, parsed.runs());
        self.scratch = s;
        common
    }
    /// The result of run `r` of the last lookup.
    #[inline]
    pub fn found(&self, r: usize) -> LookupResult {
        self.scratch.found[r]
    }
    /// Remembers the entries that the next burst of the same origin may match again.
    fn learn(&mut self, parsed: &impl LookupKeys, s: &Scratch) {
        let (Some(first), Some(last)) = (s.found.first(), s.found.last()) else {
            return;
        };
        let r = parsed.runs().len() - 1;
        let (Some(head), Some(tail)) = (parsed.sought(0), parsed.sought(r)) else {
            return;
        };
        let origin = tail.key.origin();
        if head.key.origin() != origin {
            return;
        }
        let Some(o) = self.subtables.origin_mut(origin) else {
            return;
        };
        if last.slot != o.guess.slot && o.guess.hits > 0 {
            self.count_guess(origin);
        }
        if let Some(o) = self.subtables.origin_mut(origin) {
            o.guess.learn(first.slot, last.slot);
        }
    }

    /// Hashes each run's key and prefetches the bucket of the hash. Returns the slot of the guessed entry if
    /// all runs match it.
    fn hash_all(&mut self, parsed: &impl LookupKeys, s: &mut Scratch) -> Option<u32> {
        s.found.clear();
        let origin = parsed.sought(0).map_or(u32::MAX, |s| s.key.origin());
        let guess = self
            .subtables
            .origin(origin)
            .and_then(|o| o.guess.slot())
            .and_then(|slot| self.guessed(slot));
        let mut guessed = 0;
        let (far, full) = (self.table.is_far(), parsed.has_context());
        let mut plan = LookupPlan {
            class: u64::MAX,
            how: How::Done,
            subtable: 0,
            mask: &NO_MASK,
            context_bits: &[],
        };
        let runs = parsed.runs().iter().zip(parsed.keys()).enumerate();
        s.found.extend(runs.map(|(r, (run, key))| {
            let mut f = LookupResult {
                slot: NO_SLOT,
                program: NO_PROGRAM,
                level: Level::L1,
                how: How::Done,
                more: 0,
                place: 0,
                hash: 0,
            };
            f.program = run.program.number;
            if run.program.is_known() {
                return f;
            }
            let context = if full { parsed.context(r) } else { None };
            if let Some(g) = &guess
                && g.mask.same(|i| g.key.words()[i], key)
                && self.is_guess(g, key, context)
            {
                (f.slot, f.level) = (g.slot, Level::L2);
                guessed += 1;
                return f;
            }
            if key.class() != plan.class {
                plan = self.plan(key);
            }
            f.how = plan.how;
            let more = context.map_or(0, |key| self.contexts.hash(key, plan.context_bits));
            match plan.how {
                How::Done => {}
                How::Only => {
                    f.hash = plan.mask.hash(key, &self.key, plan.subtable) ^ more;
                    f.level = Level::L2;
                    if far {
                        self.table.prefetch_place(f.hash);
                    } else {
                        f.place = self.table.place(f.hash);
                        self.table.prefetch_at(f.place);
                    }
                }
                How::L1 => {
                    f.hash = key.hash(&self.key) ^ more;
                    f.place = self.l1.place(f.hash);
                    self.l1.prefetch_at(f.place);
                }
            }
            f
        }));
        let all = guess
            .map(|g| g.slot)
            .filter(|_| guessed as usize == s.found.len());
        if far {
            for f in s.found.iter_mut().filter(|f| f.how == How::Only) {
                f.place = self.table.place(f.hash);
                self.table.prefetch_at(f.place);
            }
        }
        if guessed > 0 {
            self.note_guesses(origin, guessed);
        }
        all
    }
    fn note_guesses(&mut self, origin: u32, n: u32) {
        let Some(o) = self.subtables.origin_mut(origin) else {
            return;
        };
        let hits = &mut o.guess.hits;
        let first = *hits == 0;
        *hits = hits.saturating_add(n);
        if first {
            self.subtables.list_hit(origin);
        }
    }
    /// Counts the hits of the guessed entry for its mask, so that the mask is tried early when the guess
    /// ends. If the entry was replaced meanwhile, another mask gets the hits. That is harmless: the order of
    /// masks affects speed only.
    pub(super) fn count_guess(&mut self, origin: u32) {
        let Some(o) = self.subtables.origin_mut(origin) else {
            return;
        };
        let (slot, hits) = (o.guess.slot, std::mem::take(&mut o.guess.hits));
        if hits > 0
            && let Some(e) = self.store.get(slot)
        {
            let (family, subtable) = (e.key().family(), e.subtable());
            self.subtables.hit_mask(origin, family, subtable, hits);
        }
    }
    /// The entry in `slot`, unpacked for comparisons with a whole burst.
    fn guessed(&self, slot: u32) -> Option<Guessed<'_>> {
        let e = self.store.get(slot).filter(|e| e.alive())?;
        let (key, origin) = (e.key(), e.key().origin());
        Some(Guessed {
            slot,
            key: key.with_origin(self.contexts.origin(origin)),
            origin,
            mask: *self.subtables.compact(e.subtable())?,
            context_bits: self.subtables.context_bits(e.subtable()),
        })
    }
    /// Whether a packet that agrees with the guess in its compact key agrees in its context too.
    #[inline]
    fn is_guess(&self, g: &Guessed<'_>, key: &CompactKey, context: Option<&FlowKey>) -> bool {
        match context {
            None => !is_context(g.origin),
            Some(context) => self
                .contexts
                .agrees(g.origin, g.context_bits, key.origin(), context),
        }
    }
    fn plan(&self, key: &CompactKey) -> LookupPlan<'_> {
        let (origin, family) = (key.origin(), key.family());
        let mut plan = LookupPlan {
            class: key.class(),
            how: How::L1,
            subtable: 0,
            mask: &NO_MASK,
            context_bits: self.subtables.all_context_bits(origin, family),
        };
        match self.subtables.list(origin, family) {
            [] => plan.how = How::Done,
            [only] if !self.always_l1 => {
                (plan.how, plan.subtable) = (How::Only, only.subtable);
                plan.mask = self.subtables.compact(only.subtable).unwrap_or(plan.mask);
            }
            _ => {}
        }
        plan
    }
    /// The bucket that a run's hash leads to.
    #[inline]
    fn bucket(&self, f: &LookupResult) -> Option<&Bucket> {
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
    /// Takes the first candidate of each run, and prefetches its entry.
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
    /// Compares the candidates with the runs' keys. Valid entries count the runs.
    fn compare(&mut self, parsed: &impl LookupKeys, s: &mut Scratch, lookup: &LookupContext<'_>) {
        let full = parsed.has_context();
        let runs = parsed.runs().iter().zip(parsed.keys());
        for (r, (f, (run, key))) in s.found.iter_mut().zip(runs).enumerate() {
            if run.program.is_known() {
                continue;
            }
            let context = if full { parsed.context(r) } else { None };
            let sought = Sought { key, context };
            let e = if f.how == How::Done {
                self.store.get(f.slot)
            } else if let Some(e) = meant(&self.store, &self.subtables, &self.contexts, f.slot, sought) {
                Some(e)
            } else {
                f.slot = self.other(f, sought);
                if f.slot == NO_SLOT && f.how == How::L1 {
                    s.todo.push(u16::try_from(r).unwrap_or(u16::MAX));
                }
                self.store.get(f.slot)
            };
            let Some(e) = e else { continue };
            // A match in L2 without a walk through masks: under the only mask, or by the guess. It counts as
            // one probe.
            self.probes += u64::from(f.level == Level::L2);
            if is_current(
                e,
                &mut self.groups,
                &self.translations,
                &self.subtables,
                &self.contexts,
                lookup,
            ) {
                f.program = e.program();
                e.count(run.packets(), run.bytes, lookup.now_ms, key.tcp_flags());
            }
        }
    }
    /// Counts all runs at once on the entry in `slot`, which all of them match. Returns `false` without
    /// counting if the entry is not valid.
    fn count_all(
        &mut self,
        slot: u32,
        parsed: &impl LookupKeys,
        s: &mut Scratch,
        lookup: &LookupContext<'_>,
    ) -> bool {
        let Some(e) = self.store.get(slot) else {
            return false;
        };
        if !is_current(
            e,
            &mut self.groups,
            &self.translations,
            &self.subtables,
            &self.contexts,
            lookup,
        ) {
            return false;
        }
        let program = e.program();
        let (mut packets, mut bytes, mut tcp_flags) = (0, 0, 0);
        for ((f, run), key) in s.found.iter_mut().zip(parsed.runs()).zip(parsed.keys()) {
            f.program = program;
            packets += run.packets();
            bytes += run.bytes;
            tcp_flags |= key.tcp_flags();
        }
        e.count(packets, bytes, lookup.now_ms, tcp_flags);
        self.probes += s.found.len() as u64;
        true
    }
    /// The slot of the packet's entry among the remaining candidates.
    #[cold]
    fn other(&self, f: &LookupResult, sought: Sought<'_>) -> u32 {
        let more = self.bucket(f).map(|b| b.rest(f.more));
        let found = more.and_then(|mut c| c.find(|slot| self.is(*slot, sought)));
        found.unwrap_or(NO_SLOT)
    }
    /// Whether the entry in `slot` matches this packet.
    #[inline]
    pub(super) fn is(&self, slot: u32, sought: Sought<'_>) -> bool {
        meant(&self.store, &self.subtables, &self.contexts, slot, sought).is_some()
    }
}

/// A placeholder that no lookup uses.
static NO_MASK: CompactMask = CompactMask::NOTHING;
