//! Events from a worker to the revalidator, in order.
//!
//! The revalidator reads entries in place. It learns from events what the numbers in an entry mean, and what
//! a removed entry has counted. A worker publishes an entry only after the events about its numbers, and then
//! raises the [`Horizon`] above the entry's id. The revalidator reads the horizon first, then all events,
//! then entries with smaller ids. So a number means the same to both, although numbers are reused.

use crate::cached_translation::CachedTranslation;
use crate::context::Context;
use crate::program_table::Program;
use crate::store::ChunkMem;
use crate::subtable::Subtable;
use heddle_datapath_api::FlowCounts;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// Maximum number of waiting events.
pub(crate) const RING: usize = 8192;
/// Maximum number of events of one insertion.
pub(crate) const ROOM: usize = 6;

/// Room that all other events leave for insertions: when a thousand rules go at once, new flows can still be
/// cached.
pub(crate) const RESERVE: usize = RING / 2;

/// Results of the revalidator about entries (slot, id): useless, or valid again with this cached translation.
pub type RevalidatorFindings<P> = Vec<(u32, u64, Option<Arc<CachedTranslation<P>>>)>;

#[derive(Debug)]
pub(crate) enum RevalidatorEvent<P: Program> {
    /// This chunk has the entries from `n * CHUNK` on; `None`: it is freed.
    Chunk(u32, Option<Arc<ChunkMem>>),
    /// The cached translation of this number, if there is one from now on.
    CachedTranslation(u32, Option<Arc<CachedTranslation<P>>>),
    /// The mask of this number, if there is one from now on.
    Subtable(u32, Option<Arc<Subtable>>),
    /// The context of this number in entries' keys, if there is one from now on.
    Context(u32, Option<Arc<Context>>),
    /// The entry of this slot and this id is new. Only sent for a revalidator with an observer of flows.
    New(u32, u64),
    /// The entry `id` of this slot and this cached translation is gone; these were its last counts.
    Gone(u32, u64, u32, FlowCounts),
    /// Like `Gone`, but the entry continues under a new id (the last field) with another cached translation.
    Renamed(u32, u64, u32, FlowCounts, u64),
    /// An emptied list, returned to the thread that allocated it. Freeing it elsewhere may take the allocator
    /// a thousand times as long as filling it, and system calls.
    Spent(RevalidatorFindings<P>),
}

/// The first id whose numbers the events do not explain yet.
#[derive(Debug, Default)]
pub(crate) struct Horizon(AtomicU64);

impl Horizon {
    /// Entries with smaller ids are explained by events. Only the owner calls this.
    pub(crate) fn set(&self, id: u64) {
        self.0.store(id, Release); // pairs with `get`: the events pushed before are seen
    }
    /// The horizon, to be read before the events.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Acquire)
    }
}
