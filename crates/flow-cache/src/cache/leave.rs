//! Removing entries and freeing their slots.

use super::Cache;
use crate::entry::CacheEntry;
use crate::events::{RESERVE, RevalidatorEvent};
use crate::program_table::Program;
use heddle_datapath_api::FlowCounts;

impl<P: Program> Cache<P> {
    pub(super) fn counted(e: &CacheEntry) -> FlowCounts {
        // No concurrent change: the owner itself reads here.
        e.read().map_or(FlowCounts::default(), |s| s.counts)
    }

    /// Removes an entry from the lookups now. The next [`Cache::free_evicted`] frees its slot.
    pub fn evict(&mut self, slot: u32) {
        let Some(e) = self.store.get(slot) else { return };
        e.evict(e.id());
        let n = e.subtable();
        let context = e.key().origin();
        let key = e.key().with_origin(self.contexts.origin(context));
        let Some(mask) = self.subtables.compact(n) else {
            return;
        };
        let hash = mask.hash(&key, &self.key, n) ^ self.contexts.hash_of(context);
        if self.table.remove(hash, slot) {
            self.subtables.left(n, &key);
            self.evicted.push(slot);
        }
    }
    /// Evicts the entry with this id, if it still has this slot.
    pub fn evict_id(&mut self, slot: u32, id: u64) {
        if self.store.get(slot).is_some_and(|e| e.id() == id) {
            self.evict(slot);
        }
    }
    /// Frees slots of evicted entries and unused cached translations, at most `most` of each. The caller
    /// runs it between bursts. It stops when the ring to the revalidator has no room. Returns the number of
    /// freed entries.
    pub fn free_evicted(&mut self, most: usize) -> usize {
        let mut n = 0;
        self.fresh.clear();
        while n < most && self.events.has_room(RESERVE) {
            let Some(slot) = self.evicted.pop() else { break };
            let Some(e) = self.store.get(slot) else { continue };
            let (id, translation, subtable, counted) =
                (e.id(), e.translation(), e.subtable(), Self::counted(e));
            self.groups.leave(e.membership().group);
            let context = e.key().origin();
            let origin = self.contexts.origin(context);
            e.free();
            self.push(RevalidatorEvent::Gone(slot, id, translation, counted));
            self.translations.release(translation);
            if self.contexts.release(context) {
                self.push(RevalidatorEvent::Context(context, None));
            }
            if self.subtables.remove(subtable, origin) {
                self.push(RevalidatorEvent::Subtable(subtable, None));
            }
            if let Some(chunk) = self.store.free(slot) {
                self.push(RevalidatorEvent::Chunk(chunk, None));
            }
            n += 1;
        }
        let events = &mut self.events;
        self.translations.free_unused(most, |v| {
            events.has_room(RESERVE) && events.push(RevalidatorEvent::CachedTranslation(v, None)).is_ok()
        });
        if n > 0 {
            self.table.tidy();
        }
        n
    }
}
