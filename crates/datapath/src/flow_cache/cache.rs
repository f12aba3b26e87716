//! The cache hierarchy of one worker: entries, and the ways to find them.
//!
//! L0: the key of the packets before ([`crate::flow_cache::parse::Parsed`]'s runs, and the last run of the
//! burst before). L1: by hash of the whole key. L2: by hash of the masked key, mask by mask. While one entry
//! has all the packets of an origin, it is looked at before anything is hashed. All lead to slots of the same
//! entries, and any entry that matches is right, so a candidate is only ever compared, never trusted. Where
//! an origin's packets have one mask, L2 is as quick as L1 and L1 is left out.
//!
//! There is one kind of entry: what a packet carries besides its usual headers is a part of what is looked up
//! ([`Sought`], [`crate::flow_cache::context`]), and packets that were recirculated are looked up as all
//! others are.
//!
//! A burst's lookups are made side by side (`find`), stage by stage, so that their cache misses overlap.
//!
//! Removal is deferred: an entry that was found useless keeps its slot until [`Cache::reap`] has told the
//! revalidator what it had counted.

use crate::exec::program::Program;
use crate::flow_cache::cached_translation::{CachedTranslation, CachedTranslations};
use crate::flow_cache::compact::CompactKey;
use crate::flow_cache::context::Contexts;
use crate::flow_cache::entry::Entry;
use crate::flow_cache::hash::HashKey;
use crate::flow_cache::l1::L1;
use crate::flow_cache::links::Links;
use crate::flow_cache::note::{Findings, Horizon, Note, RESERVE, RING};
use crate::flow_cache::sig::Bucket;
use crate::flow_cache::spares::{Maker, Pace};
use crate::flow_cache::store::Store;
use crate::flow_cache::subtable::{Subtable, Subtables};
use crate::flow_cache::table::Table;
use crate::flow_cache::watch::{self, OUTSIDE, Watches};
use heddle_flow::FlowKey;
use heddle_sync::ring::Producer;
use std::sync::Arc;

mod fill;
mod find;
mod follow;
mod leave;
mod masks;
mod recent;

pub(crate) use find::{Common, Level, Moment, NO_BODY};
pub(crate) use recent::Recent;

/// A packet's key, as it is looked up.
#[derive(Clone, Copy)]
pub(crate) struct Sought<'a> {
    /// With its origin.
    pub(crate) key: &'a CompactKey,
    /// Where it carries something besides its usual headers: a full key, of which what is outside of the
    /// compact one counts.
    pub(crate) outside: Option<&'a FlowKey>,
}

/// No slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// The memory of a cache that grows with its entries.
pub(crate) struct Memory {
    store: Store,
    table: Table,
}

impl Memory {
    /// None yet, with where it is made before it is needed; see [`crate::flow_cache::spares`] about `near`.
    pub(crate) fn new(near: bool) -> (Self, Makers) {
        let (store, entries) = Store::with_spares(near);
        let (table, buckets) = Table::with_spares(near);
        let makers = Makers {
            entries,
            buckets,
            pace: Pace::new(),
        };
        (Self { store, table }, makers)
    }
}

/// See [`Memory`].
pub(crate) struct Makers {
    entries: Maker<Entry>,
    buckets: Maker<Bucket>,
    pace: Pace,
}

impl Makers {
    /// Makes what is missing, as far as it is time to.
    pub(crate) fn fill(&mut self) {
        // Of these fewer are needed.
        self.buckets.fill(&mut self.pace);
        self.entries.fill(&mut self.pace);
    }
}

/// What a cache is made of.
pub(crate) struct CacheParts {
    pub(crate) memory: Memory,
    pub(crate) l1: L1,
    pub(crate) max_masks: usize,
    pub(crate) key: HashKey,
    pub(crate) notes: Producer<Note>,
    pub(crate) horizon: Arc<Horizon>,
}

pub(crate) struct Cache {
    store: Store,
    translations: CachedTranslations,
    watches: Watches,
    subtables: Subtables,
    table: Table,
    l1: L1,
    contexts: Contexts,
    notes: Producer<Note>,
    horizon: Arc<Horizon>,
    next_id: u64,
    key: HashKey,
    /// Out of L2, not told of yet.
    doomed: Vec<u32>,
    /// Masks gone through by lookups that found something in L2.
    probes: u64,
    new_mask: bool,
    /// A chunk was taken that the revalidator does not know of yet.
    new_chunk: bool,
    /// Slots that were filled in this burst.
    fresh: Vec<u32>,
    /// L1 is used even where a port has one mask.
    always_l1: bool,
    links: Links,
    scratch: find::Scratch,
}

/// Whether an entry is known to be right by now.
#[inline(always)]
fn is_current(
    e: &Entry,
    watches: &mut Watches,
    translations: &CachedTranslations,
    asked: &Asked<'_>,
    moment: &Moment<'_>,
) -> bool {
    let (watch, stamp) = e.watch();
    if watch == watch::NONE {
        return translations
            .get(e.cached())
            .is_some_and(|v| v.valid_at(moment.any));
    }
    watches.holds(watch, stamp, moment.any) || look(e, watches, asked, moment)
}

/// Where it stands what entries ask for outside of their compact keys.
struct Asked<'a> {
    subtables: &'a Subtables,
    contexts: &'a Contexts,
}

/// Whether nothing that changed since an entry was stamped has to do with packets with its key, as its watch
/// knows.
#[inline(never)]
fn look(e: &Entry, watches: &mut Watches, asked: &Asked<'_>, moment: &Moment<'_>) -> bool {
    let (watch, stamp) = e.watch();
    let (context, outside) = (e.key().context(), asked.subtables.outside(e.subtable()));
    let key = |i: usize| match i.checked_sub(OUTSIDE.into()) {
        None => e.word(i),
        Some(i) => asked.contexts.word(context, outside, i),
    };
    let now = watches.look(watch, stamp, moment.any, moment.generations, key);
    if let Some(now) = now {
        e.set_stamp(now);
    }
    now.is_some()
}

impl Cache {
    pub(crate) fn new(p: CacheParts) -> Self {
        Self {
            store: p.memory.store,
            translations: CachedTranslations::default(),
            watches: Watches::new(),
            subtables: Subtables::new(p.max_masks),
            table: p.memory.table,
            l1: p.l1,
            contexts: Contexts::new(&p.key),
            notes: p.notes,
            horizon: p.horizon,
            next_id: 1,
            key: p.key,
            doomed: Vec::new(),
            probes: 0,
            new_mask: false,
            new_chunk: false,
            fresh: Vec::new(),
            always_l1: false,
            links: Links::new(),
            scratch: find::Scratch::default(),
        }
    }
    /// The entry in a slot that was found just now.
    #[inline]
    pub(crate) fn entry(&self, slot: u32) -> Option<&Entry> {
        self.store.get(slot)
    }
    /// A cached translation of this burst.
    #[inline]
    pub(crate) fn cached(&self, n: u32) -> Option<&Arc<CachedTranslation>> {
        self.translations.get(n)
    }
    /// A program of this burst.
    #[inline]
    pub(crate) fn program(&self, n: u32) -> Option<&Program> {
        Some(&self.translations.body(n)?.program)
    }
    /// The mask of an entry.
    pub(crate) fn subtable(&self, e: &Entry) -> Option<&Arc<Subtable>> {
        self.subtables.get(e.subtable())
    }
    /// Whether so many notes wait that the revalidator should take them soon, or it should make another
    /// chunk.
    pub(crate) fn wants_revalidator(&mut self) -> bool {
        std::mem::take(&mut self.new_chunk) || !self.notes.has_room(RING - RESERVE / 2)
    }

    fn push(&mut self, note: Note) {
        let full = self.notes.push(note).is_err();
        debug_assert!(!full, "the caller has looked whether there is room");
    }

    /// The program of the entry in `slot`, if the entry is known to be right by now.
    #[inline]
    pub(crate) fn current(&mut self, slot: u32, moment: &Moment<'_>) -> Option<u32> {
        let e = self.store.get(slot)?;
        let asked = Asked {
            subtables: &self.subtables,
            contexts: &self.contexts,
        };
        is_current(e, &mut self.watches, &self.translations, &asked, moment).then(|| e.body())
    }
    /// Whether the entry in `slot` has a watch, which is all that can tell whether it is right.
    pub(crate) fn is_watched(&self, slot: u32) -> bool {
        self.store.get(slot).is_some_and(|e| e.watch().0 != watch::NONE)
    }
    /// Whether there are entries to be reaped.
    pub(crate) fn has_doomed(&self) -> bool {
        !self.doomed.is_empty()
    }
    /// Gives an empty list back to the revalidator.
    pub(crate) fn give_back(&mut self, list: Findings) {
        if self.notes.has_room(RESERVE) {
            self.push(Note::Spent(list));
        }
    }
    /// The origin of packets that came in by this port and were recirculated under this id.
    pub(crate) fn origin_of(&mut self, in_port: u32, recirc_id: u32) -> u32 {
        self.subtables.origin_of(in_port, recirc_id)
    }
    /// The port and the recirculation id of an origin.
    pub(crate) fn source(&self, origin: u32) -> (u32, u32) {
        self.subtables.source(origin)
    }
    /// Once a second, between bursts: orders masks by hits, frees origins, looks whether L1 has the right
    /// size.
    pub(crate) fn tidy(&mut self) {
        let mut at = 0;
        while let Some(origin) = self.subtables.hit_origin(at) {
            self.count_guess(origin);
            at += 1;
        }
        let notes = &mut self.notes;
        self.subtables
            .tidy(|n| notes.has_room(RESERVE) && notes.push(Note::ContextGone(n)).is_ok());
        self.store.tidy();
        self.l1.tidy(self.store.len());
        self.links.tidy();
    }
    /// `emc-insert-inv-prob`, where it was given: how many insertions into a full part of L1 one succeeds of;
    /// 0: L1 is not used.
    pub(crate) fn set_inv_prob(&mut self, n: Option<u32>) {
        self.l1.set_inv_prob(n.unwrap_or(crate::flow_cache::l1::INV_PROB));
        self.always_l1 = n.is_some_and(|n| n > 0);
    }
    /// How many entries a port has.
    pub(crate) fn entries_of(&self, port: u32) -> usize {
        self.subtables.entries_of(port)
    }
    /// How many masks there are.
    pub(crate) fn n_masks(&self) -> usize {
        self.subtables.len()
    }
    /// Entries held, doomed ones included.
    pub(crate) fn len(&self) -> usize {
        self.store.len()
    }
    /// Whether a mask was added since the last call.
    pub(crate) fn take_new_mask(&mut self) -> bool {
        std::mem::take(&mut self.new_mask)
    }
    /// Masks probed since the last call.
    pub(crate) fn take_probes(&mut self) -> u64 {
        std::mem::take(&mut self.probes)
    }
}
