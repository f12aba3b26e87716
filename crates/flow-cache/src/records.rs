//! What the revalidator knows of one worker's entries: where they lie, what the numbers in them mean, how far
//! they are credited.
//!
//! **Exactness.** What an entry has counted is credited once. A record remembers, per slot, up to which
//! counts; the note about an entry that is gone (or goes on under another id) brings its last counts, and the
//! rest is credited then.
//!
//! Credit is collected per cached translation and given once per pass: ten thousand entries of one rule are
//! one call.

use crate::cache::Makers;
use crate::cached_translation::CachedTranslation;
use crate::context::Context;
use crate::entry::{Entry, Snapshot};
use crate::note::{Counted, Horizon, Note};
use crate::program_table::Program;
use crate::store::{CHUNK, ChunkMem};
use crate::subtable::{MAX_LISTED, Subtable};
use heddle_flow::FlowKey;
use heddle_sync::ring::Consumer;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// A chunk of entries, with the counts up to which they are credited; by arrays, whose pages are touched as
/// far as the chunk is used.
struct Chunk {
    mem: Arc<ChunkMem>,
    ids: Vec<u64>,
    packets: Vec<u64>,
    bytes: Vec<u64>,
    /// The flow that an entry (its id) is to an observer. Empty without one.
    flows: Vec<(u64, u64)>,
}

/// A cached translation with what is still to be credited to it.
pub struct Held<P: Program> {
    /// It.
    pub cached: Arc<CachedTranslation<P>>,
    pending: Counted,
}

/// One entry in use, at the time of a scan.
pub struct Seen<'a> {
    /// Where.
    pub slot: u32,
    /// It, which goes on counting.
    pub entry: &'a Entry,
    /// What it was then.
    pub now: Snapshot,
}

/// See the module.
pub struct Records<P: Program> {
    notes: Consumer<Note<P>>,
    makers: Makers,
    horizon: Arc<Horizon>,
    chunks: Vec<Option<Chunk>>,
    translations: Vec<Option<Held<P>>>,
    /// CachedTranslations with something pending.
    touched: Vec<u32>,
    subtables: Vec<Option<Arc<Subtable>>>,
    /// Of what is no mere port.
    contexts: HashMap<u32, Arc<Context>>,
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
    pub(crate) fn new(notes: Consumer<Note<P>>, horizon: Arc<Horizon>, makers: Makers) -> Self {
        Self {
            notes,
            makers,
            horizon,
            chunks: Vec::new(),
            translations: Vec::new(),
            touched: Vec::new(),
            subtables: Vec::new(),
            contexts: HashMap::new(),
        }
    }
    /// Takes the notes that wait. Returns the id below which entries may be read now.
    pub fn drain(&mut self) -> u64 {
        let horizon = self.horizon.get();
        // Bounded: a worker that goes on writing does not hold the revalidator here.
        self.drain_some(2 * crate::note::RING);
        horizon
    }
    /// Takes so many notes; `false`: no more wait.
    pub fn drain_some(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(note) = self.notes.pop() else {
                return false;
            };
            self.take(note);
        }
        true
    }
    fn take(&mut self, note: Note<P>) {
        match note {
            Note::Chunk(n, mem) => {
                let zeros = || vec![0; CHUNK];
                let chunk = Chunk {
                    mem,
                    ids: zeros(),
                    packets: zeros(),
                    bytes: zeros(),
                    flows: Vec::new(),
                };
                put(&mut self.chunks, n, Some(chunk));
                // Flows that fill one chunk may stay within it.
                if n > 0 {
                    self.makers.fill();
                }
            }
            Note::ChunkGone(n) => put(&mut self.chunks, n, None),
            Note::CachedTranslation(n, cached) => {
                let held = Held {
                    cached,
                    pending: Counted::default(),
                };
                put(&mut self.translations, n, Some(held));
            }
            Note::CachedTranslationGone(n) => {
                if let Some(h) = self.translations.get_mut(n as usize).and_then(Option::as_mut) {
                    h.give();
                }
                put(&mut self.translations, n, None);
            }
            Note::Subtable(n, subtable) => put(&mut self.subtables, n, Some(subtable)),
            Note::Spent(list) => drop(list),
            Note::SubtableGone(n) => put(&mut self.subtables, n, None),
            Note::Context(n, context) => _ = self.contexts.insert(n, context),
            Note::ContextGone(n) => _ = self.contexts.remove(&n),
            Note::Gone(slot, id, cached, counted) => {
                self.account(slot, id, cached, &counted);
                self.record(slot, 0, &Counted::default());
            }
            Note::Renamed(slot, id, cached, counted, new) => {
                self.account(slot, id, cached, &counted);
                self.record(slot, new, &counted);
            }
        }
    }
    fn split(slot: u32) -> (usize, usize) {
        (slot as usize / CHUNK, slot as usize % CHUNK)
    }
    /// Notes what entry `id` has counted since it was last looked at, for its cached translation.
    pub(crate) fn account(&mut self, slot: u32, id: u64, cached: u32, counted: &Counted) {
        let (c, i) = Self::split(slot);
        let Some(Some(chunk)) = self.chunks.get_mut(c) else {
            return;
        };
        let before = if chunk.ids[i] == id {
            (chunk.packets[i], chunk.bytes[i])
        } else {
            (0, 0)
        };
        let packets = counted.packets.saturating_sub(before.0);
        let bytes = counted.bytes.saturating_sub(before.1);
        if let Some(Some(h)) = self.translations.get_mut(cached as usize)
            && (packets > 0 || bytes > 0)
        {
            if h.pending.packets == 0 {
                self.touched.push(cached);
            }
            h.pending.packets += packets;
            h.pending.bytes += bytes;
            h.pending.used_ms = h.pending.used_ms.max(counted.used_ms);
            h.pending.tcp_flags |= counted.tcp_flags;
        }
    }
    /// Remembers how far it is credited.
    fn record(&mut self, slot: u32, id: u64, counted: &Counted) {
        let (c, i) = Self::split(slot);
        // Of an entry that is not the recorded one nothing is credited yet: that need not be written, into
        // memory that would have to be found.
        if (counted.packets, counted.bytes) != (0, 0)
            && let Some(Some(chunk)) = self.chunks.get_mut(c)
        {
            (chunk.ids[i], chunk.packets[i], chunk.bytes[i]) = (id, counted.packets, counted.bytes);
        }
    }
    /// Notes what an entry has counted since it was last looked at, and remembers how far it is credited.
    pub fn credit(&mut self, slot: u32, s: &Snapshot) {
        let counted = Counted {
            packets: s.packets,
            bytes: s.bytes,
            used_ms: s.used_ms,
            tcp_flags: s.tcp_flags,
        };
        self.account(slot, s.id, s.cached, &counted);
        self.record(slot, s.id, &counted);
    }
    /// Gives the creditors what is pending.
    pub fn give(&mut self) {
        for n in self.touched.drain(..) {
            if let Some(Some(h)) = self.translations.get_mut(n as usize) {
                h.give();
            }
        }
    }
    /// Chunks of entries that there may be.
    pub fn n_chunks(&self) -> usize {
        self.chunks.len()
    }
    /// Looks at all entries of one chunk, as [`Records::scan`] does.
    pub fn scan_all(&mut self, chunk: usize, horizon: u64, mut f: impl FnMut(&mut Self, &Seen<'_>)) {
        self.scan(chunk, 0, horizon, |r, seen| {
            f(r, seen);
            true
        });
    }
    /// Looks at the entries of one chunk whose ids are below `horizon` (from [`Records::drain`], with nothing
    /// taken since), beginning with the one at place `from`, as long as `f` goes along. Returns the place to
    /// go on at; `None`: that was the last one.
    pub fn scan(
        &mut self,
        chunk: usize,
        from: usize,
        horizon: u64,
        mut f: impl FnMut(&mut Self, &Seen<'_>) -> bool,
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
            if !f(self, &Seen { slot, entry, now }) {
                return Some(i + 1);
            }
        }
        None
    }
    /// Looks at the entry in one slot, if there is one, as [`Records::scan`] does.
    pub fn look<T>(
        &mut self,
        slot: u32,
        horizon: u64,
        f: impl FnOnce(&mut Self, &Seen<'_>) -> T,
    ) -> Option<T> {
        let (chunk, at) = Self::split(slot);
        let mem = Arc::clone(&self.chunks.get(chunk)?.as_ref()?.mem);
        let entry = mem.entries.get(at)?;
        let now = entry.read().filter(|s| s.id < horizon)?;
        Some(f(self, &Seen { slot, entry, now }))
    }
    /// What an entry was said to be with [`Records::set_flow`].
    pub fn flow_of(&self, seen: &Seen<'_>) -> Option<u64> {
        let (c, i) = Self::split(seen.slot);
        let (id, flow) = self.chunks.get(c)?.as_ref()?.flows.get(i)?;
        (*id == seen.now.id).then_some(*flow)
    }
    /// Says which flow an entry is to an observer.
    pub fn set_flow(&mut self, seen: &Seen<'_>, flow: u64) {
        let (c, i) = Self::split(seen.slot);
        if let Some(Some(chunk)) = self.chunks.get_mut(c) {
            if chunk.flows.is_empty() {
                chunk.flows = vec![(0, 0); CHUNK];
            }
            chunk.flows[i] = (seen.now.id, flow);
        }
    }
    /// No entry is any flow to an observer.
    pub fn forget_flows(&mut self) {
        self.chunks
            .iter_mut()
            .flatten()
            .for_each(|c| c.flows = Vec::new());
    }
    /// A cached translation by its number.
    pub fn held(&mut self, cached: u32) -> Option<&mut Held<P>> {
        self.translations.get_mut(cached as usize)?.as_mut()
    }
    /// The key of the packet that an entry was made for, and the entry's mask.
    pub fn whole_key(&self, seen: &Seen<'_>) -> Option<(FlowKey, Arc<Subtable>)> {
        let subtable = self.subtables.get(seen.now.subtable as usize)?.as_ref()?;
        let compact = seen.entry.read_key(seen.now.id)?;
        let mut key = compact.whole();
        match compact.context() {
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

impl<P: Program> Held<P> {
    fn give(&mut self) {
        let p = std::mem::take(&mut self.pending);
        if p.packets == 0 && p.bytes == 0 {
            return;
        }
        for c in &self.cached.credits {
            c.credit(p.packets, p.bytes, p.used_ms, p.tcp_flags);
        }
    }
}
