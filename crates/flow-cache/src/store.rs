//! A worker's entries by slot number, in chunks of memory that come and go.
//!
//! The lowest free slot is used next, so that the upper chunks become empty after a flood and can be freed.
//! L1 may keep a slot number longer than the entry lives: [`Store::get`] accepts any number. The caller
//! checks whether the entry there matches.
//!
//! Costs: taking and freeing a slot are a few steps (a scan over full chunks at worst). A new chunk takes an
//! mmap(2), and its pages have to be found and zeroed. While flows come by ten thousands, the revalidator
//! does that in advance ([`crate::spare_memory`]).

use crate::entry::CacheEntry;
use crate::spare_memory::{Maker, Spares, spares};
use heddle_simd::simd;
use heddle_sys::SharedZeroed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release};

/// The number of entries of a chunk, 2 MiB.
pub(crate) const CHUNK: usize = 1 << SHIFT;
const SHIFT: u32 = 14;
const WORDS: usize = CHUNK / 64;
/// Maximum number of chunks: more entries than any limit allows.
const MAX_CHUNKS: usize = 1 << 12;

/// No slot.
pub const NO_SLOT: u32 = u32::MAX;

/// The memory of a chunk, shared with the revalidator.
#[derive(Debug)]
pub(crate) struct ChunkMem {
    pub(crate) entries: SharedZeroed<CacheEntry>,
    /// No slot from here on was ever used.
    pub(crate) top: AtomicU32,
}

#[derive(Debug)]
struct Chunk {
    mem: Arc<ChunkMem>,
    /// A set bit for each free slot.
    free: Box<[u64; WORDS]>,
    n_free: usize,
    /// No word of `free` before this one has a bit.
    low: usize,
}

/// Maximum number of spare chunks that wait for their use.
const SPARES: usize = 4;

pub(crate) struct Store {
    spares: Spares<CacheEntry>,
    /// The entries of each chunk, for [`Store::get`]; empty if there is no chunk.
    entries: Vec<SharedZeroed<CacheEntry>>,
    chunks: Vec<Option<Chunk>>,
    /// No chunk before this one has a free slot.
    hint: usize,
    len: usize,
}

/// The result of [`Store::take`].
pub(crate) struct Taken {
    pub(crate) slot: u32,
    /// The slot's chunk, if it is new.
    pub(crate) chunk: Option<(u32, Arc<ChunkMem>)>,
}

#[inline]
fn split(slot: u32) -> (usize, usize) {
    ((slot >> SHIFT) as usize, slot as usize & (CHUNK - 1))
}

impl Store {
    /// An empty store, with the maker of its spare chunks. `near`: all threads are equally near to the memory
    /// that any of them has touched first. Otherwise there are no spare chunks.
    pub(crate) fn with_spares(near: bool) -> (Self, Maker<CacheEntry>) {
        let (spares, maker) = spares(CHUNK, SPARES, near);
        let store = Self {
            spares,
            entries: Vec::new(),
            chunks: Vec::new(),
            hint: 0,
            len: 0,
        };
        (store, maker)
    }
    /// Frees spare chunks that will not be needed soon. Called once a second.
    pub(crate) fn tidy(&mut self) {
        if self.len < CHUNK {
            self.spares.give_back();
        }
    }
    /// The entry in a slot, in use or not.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&CacheEntry> {
        let (c, i) = split(slot);
        self.entries.get(c)?.get(i)
    }
    /// Takes the lowest free slot; `None`: the system gives no memory.
    pub(crate) fn take(&mut self) -> Option<Taken> {
        while self
            .chunks
            .get(self.hint)
            .is_some_and(|c| c.as_ref().is_some_and(|c| c.n_free == 0))
        {
            self.hint += 1;
        }
        let c = self.hint;
        let mut new = None;
        if self.chunks.get(c).is_none_or(Option::is_none) {
            if c >= MAX_CHUNKS {
                return None;
            }
            // Only a switch with many flows gains by huge pages. A switch with few flows is to stay small.
            let entries = SharedZeroed::new(self.spares.take(c == 0).ok()?);
            let mem = Arc::new(ChunkMem {
                entries: entries.clone(),
                top: AtomicU32::new(0),
            });
            if self.chunks.len() <= c {
                self.chunks.resize_with(c + 1, || None);
                self.entries.resize_with(c + 1, SharedZeroed::default);
            }
            self.entries[c] = entries;
            new = Some((u32::try_from(c).ok()?, Arc::clone(&mem)));
            self.chunks[c] = Some(Chunk {
                mem,
                free: Box::new([u64::MAX; WORDS]),
                n_free: CHUNK,
                low: 0,
            });
        }
        let chunk = self.chunks[c].as_mut()?;
        let (w, word) = chunk
            .free
            .iter_mut()
            .enumerate()
            .skip(chunk.low)
            .find(|(_, w)| **w != 0)?;
        chunk.low = w;
        let i = w * 64 + word.trailing_zeros() as usize;
        *word &= *word - 1;
        chunk.n_free -= 1;
        self.len += 1;
        let at = u32::try_from(i).ok()?;
        if at >= chunk.mem.top.load(Relaxed) {
            // The entry's id is stored later (Release). A reader that sees the id through this bound sees a
            // whole entry.
            chunk.mem.top.store(at + 1, Release);
        }
        // The next call mostly takes this slot. Writing two lines that are not in the processor's cache takes
        // as long as a large part of a translation.
        if let Some(next) = self.entries.get(c).and_then(|entries| entries.get(i + 1)) {
            simd::prefetch_write(next);
            simd::prefetch_write(next.hot());
        }
        let slot = u32::try_from(c).ok()? << SHIFT | at;
        Some(Taken { slot, chunk: new })
    }
    /// Frees a slot, whose entry is free. Returns the number of its chunk if the chunk is empty now and
    /// was freed.
    pub(crate) fn free(&mut self, slot: u32) -> Option<u32> {
        let (c, i) = split(slot);
        let chunk = self.chunks.get_mut(c)?.as_mut()?;
        let bit = 1 << (i % 64);
        if chunk.free[i / 64] & bit != 0 {
            debug_assert!(false, "a slot is freed once");
            return None;
        }
        chunk.free[i / 64] |= bit;
        chunk.n_free += 1;
        chunk.low = chunk.low.min(i / 64);
        self.len -= 1;
        self.hint = self.hint.min(c);
        // The first chunk stays: a switch with a flow now and then would map and unmap it each time.
        if chunk.n_free == CHUNK && c > 0 {
            self.chunks[c] = None;
            self.entries[c] = SharedZeroed::default();
            return u32::try_from(c).ok();
        }
        None
    }
    /// The number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spare_memory::Pace;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The store uses spare chunks after the first chunk, and frees them when there are few entries.
    #[test]
    fn spare_chunks_are_used() {
        let (mut s, mut spares) = Store::with_spares(true);
        while spares.waiting() < SPARES {
            spares.fill(&mut Pace::new());
        }
        spares.fill(&mut Pace::new());
        assert_eq!(spares.waiting(), SPARES);
        for _ in 0..CHUNK {
            s.take().expect("memory");
        }
        assert_eq!(spares.waiting(), SPARES);
        let slot = s.take().expect("memory").slot;
        assert_eq!(spares.waiting(), SPARES - 1);
        assert!(s.get(slot).is_some_and(|e| e.id() == 0));
        s.tidy();
        assert_eq!(spares.waiting(), SPARES - 1);
        (0..CHUNK).for_each(|n| _ = s.free(u32::try_from(n).unwrap()));
        s.tidy();
        assert_eq!(spares.waiting(), 0);
        let (_, mut none) = Store::with_spares(false);
        none.fill(&mut Pace::new());
        assert_eq!(none.waiting(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Compares the store with a set of numbers: the lowest free slot is taken, and empty chunks are
        /// freed.
        #[test]
        fn slots_are_a_set(ops in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..60), at_first in prop::sample::select(vec![0, CHUNK - 3, CHUNK, 2 * CHUNK + 5])) {
            let (mut s, mut used) = (Store::with_spares(false).0, BTreeSet::new());
            let lowest = |s: &mut Store, used: &mut BTreeSet<u32>| {
                let slot = s.take().expect("memory").slot;
                let want = used.iter().zip(0..).find(|(u, n)| *u != n).map_or(u32::try_from(used.len()).unwrap(), |(_, n)| n);
                assert!(used.insert(slot));
                (slot, want)
            };
            for i in 0..at_first {
                prop_assert_eq!(s.take().expect("memory").slot as usize, i);
                used.insert(u32::try_from(i).unwrap());
            }
            for (take, which) in ops {
                if take || used.is_empty() {
                    let (slot, want) = lowest(&mut s, &mut used);
                    prop_assert_eq!(slot, want);
                } else {
                    let slot = *which.get(&used.iter().copied().collect::<Vec<_>>());
                    used.remove(&slot);
                    s.free(slot);
                }
                prop_assert_eq!(s.len(), used.len());
            }
            for slot in &used {
                prop_assert!(s.get(*slot).is_some());
            }
            let mut gone = Vec::new();
            for slot in used {
                gone.extend(s.free(slot));
            }
            prop_assert!(s.get(1 << SHIFT).is_none() && s.get(u32::MAX).is_none());
        }
    }
}
