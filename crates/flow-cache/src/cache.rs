//! The cache hierarchy of one worker: entries, and the lookups that find them.
//!
//! L0: the key of the packet before (the runs of [`crate::burst::LookupKeys`]).
//! L1: by hash of the whole key. L2: by hash of the masked key, mask by mask. While one entry matches all
//! packets of an origin, the lookup compares that entry before it hashes anything. All levels lead to slots
//! of the same entries, and any entry that matches is right. So a candidate is always compared, never
//! trusted. If all packets of an origin have one mask, L2 is as fast as L1, and L1 is left out.
//!
//! There is one kind of entry. The context of a packet (all but its usual headers) is a part of the lookup
//! key ([`Sought`](crate::burst::Sought), [`crate::context`]). Recirculated packets are looked up in the same
//! way as all others.
//!
//! The lookups of a burst are made side by side (`find`), pass by pass, so that their cache misses overlap.
//!
//! Removal is deferred: an evicted entry keeps its slot until [`Cache::free_evicted`] has reported its last
//! counts to the revalidator.

use crate::cached_translation::{CachedTranslation, CachedTranslations};
use crate::compact::Source;
use crate::context::Contexts;
use crate::entry::CacheEntry;
use crate::events::{Horizon, RESERVE, RING, RevalidatorEvent, RevalidatorFindings};
use crate::l1::L1;
use crate::links::Links;
use crate::memory::Memory;
use crate::program_table::{Program, ProgramId};
use crate::records::Records;
use crate::store::Store;
use crate::subtable::{Subtable, Subtables};
use crate::table::Table;
use crate::validity::{self, CONTEXT_WORDS, ValidityGroups};
use heddle_simd::hash::HashKey;
use heddle_sync::ring::{Producer, ring};
use std::sync::Arc;

mod fill;
mod find;
mod follow;
mod leave;
mod masks;

pub use find::{CommonProgram, Level, LookupContext, LookupResult};

/// The parts of a cache that are made before its worker starts; see [`CacheParts::new`].
pub struct CacheParts<P: Program> {
    memory: Memory,
    max_masks: usize,
    key: HashKey,
    events: Producer<RevalidatorEvent<P>>,
    horizon: Arc<Horizon>,
}

impl<P: Program> CacheParts<P> {
    /// Makes the parts of a cache with at most `max_masks` masks per list, and the revalidator's half of it.
    /// `near`: all threads are equally near to the memory that any of them has touched first.
    pub fn new(near: bool, max_masks: usize, key: HashKey) -> (Self, Records<P>) {
        let (events, received) = ring(RING);
        let (memory, makers) = Memory::new(near);
        let horizon = Arc::new(Horizon::default());
        let parts = Self {
            memory,
            max_masks,
            key,
            events,
            horizon: Arc::clone(&horizon),
        };
        (parts, Records::new(received, horizon, makers))
    }
}

/// The flow cache of one worker.
pub struct Cache<P: Program> {
    store: Store,
    translations: CachedTranslations<P>,
    groups: ValidityGroups,
    subtables: Subtables,
    table: Table,
    l1: L1,
    contexts: Contexts,
    events: Producer<RevalidatorEvent<P>>,
    horizon: Arc<Horizon>,
    next_id: u64,
    key: HashKey,
    /// Slots whose entries L2 has lost, and whose end is not reported to the revalidator yet.
    evicted: Vec<u32>,
    /// Masks that lookups have tried until they hit in L2.
    probes: u64,
    new_mask: bool,
    /// The store has a new chunk that the revalidator does not know of yet.
    new_chunk: bool,
    /// Slots that were filled in this burst.
    fresh: Vec<u32>,
    /// L1 is used even where a port has one mask.
    always_l1: bool,
    links: Links,
    scratch: find::Scratch,
}

/// Whether an entry is known to be valid at `lookup`.
#[inline(always)]
fn is_current<P: Program>(
    e: &CacheEntry,
    groups: &mut ValidityGroups,
    translations: &CachedTranslations<P>,
    subtables: &Subtables,
    contexts: &Contexts,
    lookup: &LookupContext<'_>,
) -> bool {
    let membership = e.membership();
    if membership.group == validity::NONE {
        return translations
            .get(e.translation())
            .is_some_and(|v| v.valid_at(lookup.any));
    }
    groups.holds(membership, lookup.any) || look(e, groups, subtables, contexts, lookup)
}

/// Compares an entry with the changes since its stamp, by way of its group. Returns whether none of them
/// concerns its packets; then the entry gets the latest stamp.
#[inline(never)]
fn look(
    e: &CacheEntry,
    groups: &mut ValidityGroups,
    subtables: &Subtables,
    contexts: &Contexts,
    lookup: &LookupContext<'_>,
) -> bool {
    let (origin, bits) = (e.key().origin(), subtables.context_bits(e.subtable()));
    let key = |i: usize| match i.checked_sub(CONTEXT_WORDS.into()) {
        None => e.word(i),
        Some(i) => contexts.word(origin, bits, i),
    };
    let now = groups.look(e.membership(), lookup.any, lookup.generations, key);
    if let Some(now) = now {
        e.set_stamp(now);
    }
    now.is_some()
}

impl<P: Program> Cache<P> {
    /// Makes a cache whose L1 has `l1_entries` ways at first and at most `max_l1_entries`. The worker calls
    /// this itself, so that the memory is near to its core.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(p: CacheParts<P>, l1_entries: usize, max_l1_entries: usize) -> std::io::Result<Self> {
        Ok(Self {
            store: p.memory.store,
            translations: CachedTranslations::default(),
            groups: ValidityGroups::new(),
            subtables: Subtables::new(p.max_masks),
            table: p.memory.table,
            l1: L1::new(l1_entries, max_l1_entries)?,
            contexts: Contexts::new(&p.key),
            events: p.events,
            horizon: p.horizon,
            next_id: 1,
            key: p.key,
            evicted: Vec::new(),
            probes: 0,
            new_mask: false,
            new_chunk: false,
            fresh: Vec::new(),
            always_l1: false,
            links: Links::new(),
            scratch: find::Scratch::default(),
        })
    }
    /// The entry in a slot that was found just now.
    #[inline]
    pub fn entry(&self, slot: u32) -> Option<&CacheEntry> {
        self.store.get(slot)
    }
    /// A cached translation of this burst, by its number.
    #[inline]
    pub fn translation(&self, n: u32) -> Option<&Arc<CachedTranslation<P>>> {
        self.translations.get(n)
    }
    /// A program of this burst.
    #[inline]
    pub fn program(&self, n: ProgramId) -> Option<&P> {
        Some(&self.translations.program(n)?.program)
    }
    /// The mask of an entry.
    pub fn subtable(&self, e: &CacheEntry) -> Option<&Arc<Subtable>> {
        self.subtables.get(e.subtable())
    }
    /// Whether to wake the revalidator soon: the ring of events is filling up, or another chunk is to be
    /// made.
    pub fn wants_revalidator(&mut self) -> bool {
        std::mem::take(&mut self.new_chunk) || !self.events.has_room(RING - RESERVE / 2)
    }

    fn push(&mut self, event: RevalidatorEvent<P>) {
        let full = self.events.push(event).is_err();
        debug_assert!(!full, "the caller has looked whether there is room");
    }

    /// The program of the entry in `slot`, if the entry is known to be valid at `lookup`.
    #[inline]
    pub fn current(&mut self, slot: u32, lookup: &LookupContext<'_>) -> Option<ProgramId> {
        let e = self.store.get(slot)?;
        is_current(
            e,
            &mut self.groups,
            &self.translations,
            &self.subtables,
            &self.contexts,
            lookup,
        )
        .then(|| e.program())
    }
    /// Whether the entry in `slot` has a group. Only the group can decide whether such an entry is valid.
    pub fn has_group(&self, slot: u32) -> bool {
        self.store
            .get(slot)
            .is_some_and(|e| e.membership().group != validity::NONE)
    }
    /// Whether evicted entries wait for [`Cache::free_evicted`].
    pub fn has_evicted(&self) -> bool {
        !self.evicted.is_empty()
    }
    /// Gives an empty list back to the revalidator.
    pub fn give_back(&mut self, list: RevalidatorFindings<P>) {
        if self.events.has_room(RESERVE) {
            self.push(RevalidatorEvent::Spent(list));
        }
    }
    /// The origin of packets that came in by this port and carry this recirculation id.
    pub fn origin_of(&mut self, in_port: u32, recirc_id: u32) -> u32 {
        self.subtables.origin_of(in_port, recirc_id)
    }
    /// The port and the recirculation id of an origin.
    pub fn source(&self, origin: u32) -> Source {
        self.subtables.source(origin)
    }
    /// Housekeeping, once a second between bursts: orders masks by hits, frees unused origins, resizes L1 and
    /// the links.
    pub fn tidy(&mut self) {
        let mut at = 0;
        while let Some(origin) = self.subtables.hit_origin(at) {
            self.count_guess(origin);
            at += 1;
        }
        let events = &mut self.events;
        self.subtables
            .tidy(|n| events.has_room(RESERVE) && events.push(RevalidatorEvent::Context(n, None)).is_ok());
        self.store.tidy();
        self.l1.tidy(self.store.len());
        self.links.tidy();
    }
    /// Sets `emc-insert-inv-prob`: one in `n` insertions into a full bucket of L1 succeeds. 0 turns L1 off,
    /// `None` means the default.
    pub fn set_inv_prob(&mut self, n: Option<u32>) {
        self.l1.set_inv_prob(n.unwrap_or(crate::l1::INV_PROB));
        self.always_l1 = n.is_some_and(|n| n > 0);
    }
    /// The number of entries of a port.
    pub fn entries_of(&self, port: u32) -> usize {
        self.subtables.entries_of(port)
    }
    /// The number of masks.
    pub fn n_masks(&self) -> usize {
        self.subtables.len()
    }
    /// The number of entries that have a slot. Evicted ones that are not freed yet are included.
    pub fn n_entries(&self) -> usize {
        self.store.len()
    }
    /// Whether a mask was added since the last call.
    pub fn take_new_mask(&mut self) -> bool {
        std::mem::take(&mut self.new_mask)
    }
    /// Masks probed since the last call.
    pub fn take_probes(&mut self) -> u64 {
        std::mem::take(&mut self.probes)
    }
}
