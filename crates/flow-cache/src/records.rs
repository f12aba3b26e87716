//! The revalidator's records of one worker: its entries, the meaning of the numbers in them, and how far they
//! are credited.
//!
//! **Exactness.** Each packet that an entry counts is credited once. A record remembers, per slot, up to
//! which counts the entry is credited. When an entry is removed or gets another id, an event brings its last
//! counts, and the rest is credited then.
//!
//! Credit is collected per cached translation and given once per pass: ten thousand entries of one rule are
//! one call.

use crate::cached_translation::CachedTranslation;
use crate::context::Context;
use crate::entry::{CacheEntry, Snapshot};
use crate::events::{Horizon, RevalidatorEvent};
use crate::memory::Makers;
use crate::program_table::Program;
use crate::store::{CHUNK, ChunkMem};
use crate::subtable::{MAX_LISTED, Subtable};
use heddle_datapath_api::FlowCounts;
use heddle_flow::FlowKey;
use heddle_sync::ring::Consumer;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// A chunk of entries, with the counts up to which they are credited. Each kind of count is an array of its
/// own, so that only pages in use take memory.
struct Chunk {
    mem: Arc<ChunkMem>,
    ids: Vec<u64>,
    packets: Vec<u64>,
    bytes: Vec<u64>,
    /// (entry id, flow): the flow that each entry is to an observer. Empty without observer.
    flows: Vec<(u64, u64)>,
}

/// Maximum number of new entries that wait for [`Records::take_new`].
const MAX_NEW: usize = 16384;

/// A cached translation with pending credits.
pub struct CreditedTranslation<P: Program> {
    /// The cached translation.
    pub cached: Arc<CachedTranslation<P>>,
    pending: FlowCounts,
}

/// An entry in use, as a scan found it.
pub struct ScannedEntry<'a> {
    /// The entry's slot.
    pub slot: u32,
    /// The entry itself, which its owner may change at any time.
    pub entry: &'a CacheEntry,
    /// A consistent copy of the entry.
    pub now: Snapshot,
}

/// The revalidator's view of one worker's cache.
pub struct Records<P: Program> {
    events: Consumer<RevalidatorEvent<P>>,
    makers: Makers,
    horizon: Arc<Horizon>,
    chunks: Vec<Option<Chunk>>,
    translations: Vec<Option<CreditedTranslation<P>>>,
    /// Cached translations with pending credits.
    touched: Vec<u32>,
    subtables: Vec<Option<Arc<Subtable>>>,
    /// Contexts, and origins with a recirculation id.
    contexts: HashMap<u32, Arc<Context>>,
    /// New entries (slot, id) that [`Records::take_new`] has not returned, oldest first.
    new: VecDeque<(u32, u64)>,
}

fn put<T>(list: &mut Vec<Option<T>>, at: u32, value: Option<T>) {
    let at = at as usize;
    if list.len() <= at {
        if value.is_none() {
            return;
        }
        list.resize_with(at + 1, || None);
    }
    list[at] = value;
}

impl<P: Program> Records<P> {
    pub(crate) fn new(events: Consumer<RevalidatorEvent<P>>, horizon: Arc<Horizon>, makers: Makers) -> Self {
        Self {
            events,
            makers,
            horizon,
            chunks: Vec::new(),
            translations: Vec::new(),
            touched: Vec::new(),
            subtables: Vec::new(),
            contexts: HashMap::new(),
            new: VecDeque::new(),
        }
    }
    /// Takes the waiting events. Returns the horizon: entries with smaller ids may be read now.
    pub fn drain(&mut self) -> u64 {
        let horizon = self.horizon.get();
        // Bounded: a worker that keeps writing does not hold the revalidator here.
        self.drain_some(2 * crate::events::RING);
        horizon
    }
    /// Takes up to `most` events; `false`: no more are waiting.
    pub fn drain_some(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(event) = self.events.pop() else {
                return false;
            };
            self.take(event);
        }
        true
    }
    fn take(&mut self, event: RevalidatorEvent<P>) {
        match event {
            RevalidatorEvent::Chunk(n, mem) => {
                let zeros = || vec![0; CHUNK];
                // The first chunk alone needs no spare: all flows may fit into it.
                let grows = n > 0 && mem.is_some();
                let chunk = mem.map(|mem| Chunk {
                    mem,
                    ids: zeros(),
                    packets: zeros(),
                    bytes: zeros(),
                    flows: Vec::new(),
                });
                put(&mut self.chunks, n, chunk);
                if grows {
                    self.makers.fill();
                }
            }
            RevalidatorEvent::CachedTranslation(n, cached) => {
                if let Some(before) = self.translation(n) {
                    before.give();
                }
                let new = cached.map(|cached| CreditedTranslation {
                    cached,
                    pending: FlowCounts::default(),
                });
                put(&mut self.translations, n, new);
            }
            RevalidatorEvent::Subtable(n, subtable) => put(&mut self.subtables, n, subtable),
            RevalidatorEvent::Context(n, Some(context)) => _ = self.contexts.insert(n, context),
            RevalidatorEvent::Context(n, None) => _ = self.contexts.remove(&n),
            RevalidatorEvent::Spent(list) => drop(list),
            // A scan finds those that are left out.
            RevalidatorEvent::New(..) if self.new.len() >= MAX_NEW => {}
            RevalidatorEvent::New(slot, id) => self.new.push_back((slot, id)),
            RevalidatorEvent::Gone(slot, id, translation, counted) => {
                self.account(slot, id, translation, &counted);
                self.record(slot, 0, &FlowCounts::default());
            }
            RevalidatorEvent::Renamed(slot, id, translation, counted, new) => {
                self.account(slot, id, translation, &counted);
                self.record(slot, new, &counted);
            }
        }
    }
    fn split(slot: u32) -> (usize, usize) {
        (slot as usize / CHUNK, slot as usize % CHUNK)
    }
    /// Adds the counts of entry `id` since the last call to the pending credits of its cached translation.
    pub(crate) fn account(&mut self, slot: u32, id: u64, translation: u32, counted: &FlowCounts) {
        let (c, i) = Self::split(slot);
        let Some(Some(chunk)) = self.chunks.get_mut(c) else {
            return;
        };
        let before = if chunk.ids[i] == id {
            (chunk.packets[i], chunk.bytes[i])
        } else {
            (0, 0)
        };
        let new = FlowCounts {
            packets: counted.packets.saturating_sub(before.0),
            bytes: counted.bytes.saturating_sub(before.1),
            ..*counted
        };
        if let Some(Some(h)) = self.translations.get_mut(translation as usize)
            && (new.packets > 0 || new.bytes > 0)
        {
            if h.pending.packets == 0 {
                self.touched.push(translation);
            }
            h.pending.add(&new);
        }
    }
    /// Remembers how far the entry is credited.
    fn record(&mut self, slot: u32, id: u64, counted: &FlowCounts) {
        let (c, i) = Self::split(slot);
        // Without a record an entry is credited up to zero. So zero counts need no record, which would touch
        // more memory.
        if (counted.packets, counted.bytes) != (0, 0)
            && let Some(Some(chunk)) = self.chunks.get_mut(c)
        {
            (chunk.ids[i], chunk.packets[i], chunk.bytes[i]) = (id, counted.packets, counted.bytes);
        }
    }
    /// Adds the entry's counts since the last call to the pending credits, and remembers how far it is
    /// credited.
    pub fn credit(&mut self, slot: u32, s: &Snapshot) {
        self.account(slot, s.id, s.translation, &s.counts);
        self.record(slot, s.id, &s.counts);
    }
    /// Gives all pending credits to the creditors.
    pub fn give(&mut self) {
        for n in self.touched.drain(..) {
            if let Some(Some(h)) = self.translations.get_mut(n as usize) {
                h.give();
            }
        }
    }
    /// The number of chunks, empty numbers included.
    pub fn n_chunks(&self) -> usize {
        self.chunks.len()
    }
    /// Looks at all entries of one chunk, like [`Records::scan`].
    pub fn scan_all(&mut self, chunk: usize, horizon: u64, mut f: impl FnMut(&mut Self, &ScannedEntry<'_>)) {
        self.scan(chunk, 0, horizon, |r, seen| {
            f(r, seen);
            true
        });
    }
    /// Calls `f` with each entry of a chunk, from index `from` on, until `f` returns `false`. Skips ids from
    /// `horizon` on. [`Records::drain`] has returned `horizon`, and no event was taken since. Returns the
    /// index at which to resume, or `None` at the chunk's end.
    pub fn scan(
        &mut self,
        chunk: usize,
        from: usize,
        horizon: u64,
        mut f: impl FnMut(&mut Self, &ScannedEntry<'_>) -> bool,
    ) -> Option<usize> {
        let Some(Some(c)) = self.chunks.get(chunk) else {
            return None;
        };
        let mem = Arc::clone(&c.mem);
        let top = mem.top.load(Acquire) as usize; // pairs with the Release in `Store::take`
        for (i, entry) in mem.entries.iter().enumerate().take(top).skip(from) {
            let Some(now) = entry.read().filter(|s| s.id < horizon) else {
                continue;
            };
            // Slots are 32 bits wide.
            let slot = u32::try_from(chunk * CHUNK + i).unwrap_or(u32::MAX);
            if !f(self, &ScannedEntry { slot, entry, now }) {
                return Some(i + 1);
            }
        }
        None
    }
    /// Calls `f` with the entry in one slot, if there is one, like [`Records::scan`].
    pub fn look<T>(
        &mut self,
        slot: u32,
        horizon: u64,
        f: impl FnOnce(&mut Self, &ScannedEntry<'_>) -> T,
    ) -> Option<T> {
        let (chunk, at) = Self::split(slot);
        let mem = Arc::clone(&self.chunks.get(chunk)?.as_ref()?.mem);
        let entry = mem.entries.get(at)?;
        let now = entry.read().filter(|s| s.id < horizon)?;
        Some(f(self, &ScannedEntry { slot, entry, now }))
    }
    /// The slot of the oldest new entry with an id below `horizon` that was not returned yet.
    /// [`Records::drain`] has returned `horizon`.
    pub fn take_new(&mut self, horizon: u64) -> Option<u32> {
        let (slot, _) = *self.new.front().filter(|(_, id)| *id < horizon)?;
        self.new.pop_front();
        Some(slot)
    }
    /// The flow that [`Records::set_flow`] has set for the entry.
    pub fn flow_of(&self, seen: &ScannedEntry<'_>) -> Option<u64> {
        let (c, i) = Self::split(seen.slot);
        let (id, flow) = self.chunks.get(c)?.as_ref()?.flows.get(i)?;
        (*id == seen.now.id).then_some(*flow)
    }
    /// Sets the flow that an entry is to an observer.
    pub fn set_flow(&mut self, seen: &ScannedEntry<'_>, flow: u64) {
        let (c, i) = Self::split(seen.slot);
        if let Some(Some(chunk)) = self.chunks.get_mut(c) {
            if chunk.flows.is_empty() {
                chunk.flows = vec![(0, 0); CHUNK];
            }
            chunk.flows[i] = (seen.now.id, flow);
        }
    }
    /// Forgets the flows of all entries.
    pub fn forget_flows(&mut self) {
        self.chunks
            .iter_mut()
            .flatten()
            .for_each(|c| c.flows = Vec::new());
        self.new.clear();
    }
    /// A cached translation by its number.
    pub fn translation(&mut self, translation: u32) -> Option<&mut CreditedTranslation<P>> {
        self.translations.get_mut(translation as usize)?.as_mut()
    }
    /// The full key of the packet that an entry was made for, and the entry's mask.
    pub fn whole_key(&self, seen: &ScannedEntry<'_>) -> Option<(FlowKey, Arc<Subtable>)> {
        let subtable = self.subtables.get(seen.now.subtable as usize)?.as_ref()?;
        let compact = seen.entry.read_key(seen.now.id)?;
        let mut key = compact.whole();
        match compact.origin() {
            port @ ..=MAX_LISTED => key.in_port = port,
            number => {
                let context = self.contexts.get(&number)?;
                (key.in_port, key.recirc_id) = (context.in_port, context.recirc_id);
                for (i, bits) in &context.whole {
                    if let Some(word) = key.words_mut().get_mut(usize::from(*i)) {
                        *word |= bits;
                    }
                }
            }
        }
        Some((key, Arc::clone(subtable)))
    }
}

impl<P: Program> CreditedTranslation<P> {
    fn give(&mut self) {
        std::mem::take(&mut self.pending).credit(&self.cached.credits);
    }
}
