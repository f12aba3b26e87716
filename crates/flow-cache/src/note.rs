//! What a worker tells the revalidator, in order.
//!
//! The revalidator reads entries where they lie; what the numbers in them stand for, and what became of
//! entries that are gone, it learns from notes. A worker publishes an entry only after the notes about its
//! numbers, and says up to which id that holds ([`Horizon`]); the revalidator reads that first, then all
//! notes, then entries with ids below. So a number means the same to both, although numbers are given anew.

use crate::cached_translation::CachedTranslation;
use crate::context::Context;
use crate::program_table::Program;
use crate::store::ChunkMem;
use crate::subtable::Subtable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// Notes that may wait.
pub(crate) const RING: usize = 8192;
/// Room that an installation needs at most.
pub(crate) const ROOM: usize = 5;

/// Room that is left for installations by all else: a thousand rules that go at once must not keep new flows
/// from being cached.
pub(crate) const RESERVE: usize = RING / 2;

/// What an entry had counted at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) used_ms: u64,
    pub(crate) tcp_flags: u16,
}

/// What the revalidator found about entries (slot, id): of no use any more, or (with a cached translation)
/// right again.
pub type Findings<P> = Vec<(u32, u64, Option<Arc<CachedTranslation<P>>>)>;

#[derive(Debug)]
pub(crate) enum Note<P: Program> {
    /// Entries from `n * CHUNK` on lie here.
    Chunk(u32, Arc<ChunkMem>),
    /// ... and no longer.
    ChunkGone(u32),
    /// A cached translation has this number.
    CachedTranslation(u32, Arc<CachedTranslation<P>>),
    CachedTranslationGone(u32),
    /// A mask has this number.
    Subtable(u32, Arc<Subtable>),
    SubtableGone(u32),
    /// This number stands for that in entries' keys.
    Context(u32, Arc<Context>),
    ContextGone(u32),
    /// The entry `id` in this slot, of this cached translation, is gone, and had counted this.
    Gone(u32, u64, u32, Counted),
    /// As `Gone`, but it goes on counting under another id (the second) with another cached translation.
    Renamed(u32, u64, u32, Counted, u64),
    /// An emptied list, back to where its memory is from: to free it may take the allocator a thousand times
    /// as long as to fill it, and system calls.
    Spent(Findings<P>),
}

/// The id from which on entries may refer to what notes have not told yet.
#[derive(Debug, Default)]
pub(crate) struct Horizon(AtomicU64);

impl Horizon {
    /// All entries with smaller ids are told of. Owner only.
    pub(crate) fn set(&self, id: u64) {
        self.0.store(id, Release); // pairs with `get`: the notes pushed before are seen
    }
    /// Read before the notes.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Acquire)
    }
}
