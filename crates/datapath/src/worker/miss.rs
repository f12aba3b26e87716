//! Off the fast path: translating a packet, caching the answer, re-checking an entry whose dependencies moved.
//!
//! **Order.** `any` was read at the start of the burst, before the translation reads anything: an entry made from an answer
//! that raced with a change is found stale at its first use after the change.
//!
//! The packet that caused a translation is credited here and at once; the entry counts those that follow, so a new entry
//! starts with zero packets, as in Open vSwitch.

use super::{Choice, Worker};
use crate::entry::{Entry, Handover, NewEntry};
use crate::program::Program;
use crate::slab::SlotRef;
use crate::translate::{Purpose, Request};
use heddle_flow::FlowKey;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    /// No entry matches packet `i`, of run `r`.
    pub(super) fn miss(&mut self, r: usize, i: usize, any: u64, now_ms: u64) -> Choice {
        self.counters.misses.add(1);
        let key = self.full_key(r, i);
        self.translate(&key, i, now_ms);
        self.install(&key, r, i, any, now_ms)
    }

    /// The entry in `slot` matches packet `i`, of run `r`, but may be stale. The flag says whether the packet is still to be counted
    /// on it.
    pub(super) fn revalidate(
        &mut self,
        slot: SlotRef,
        r: usize,
        i: usize,
        any: u64,
        now_ms: u64,
    ) -> (Choice, bool) {
        let Some(entry) = self.cache.entry(slot).cloned() else {
            return (self.miss(r, i, any, now_ms), false);
        };
        if !entry.is_dead() && entry.recheck(any, self.shared.translate.generations()) {
            return (Choice::Entry(slot), true);
        }
        self.counters.revalidated.add(1);
        let key = self.full_key(r, i);
        self.translate(&key, i, now_ms);
        let t = &mut self.scratch.translation;
        let keep = !entry.is_dead()
            && !t.uncacheable
            && entry.agrees(&t.mask, &t.actions)
            && self.handover.free() > 0;
        if !keep {
            self.cache.forget(slot);
            return (self.install(&key, r, i, any, now_ms), false);
        }
        let credits = t.credits.drain(..).collect();
        entry.renew(std::mem::take(&mut t.deps), any);
        let (packets, bytes) = (entry.packets.get(), entry.bytes.get());
        // There was room, and only this thread pushes.
        let _ = self.handover.push(Handover {
            entry,
            slot: slot.index,
            credits,
            any,
            packets,
            bytes,
        });
        (Choice::Entry(slot), true)
    }

    fn translate(&mut self, key: &FlowKey, i: usize, now_ms: u64) {
        let s = &mut self.scratch;
        s.translation.clear();
        let request = Request {
            key,
            packet: Some(&s.burst[i]),
            now_ms,
            purpose: Purpose::Miss,
        };
        self.shared.translate.translate(&request, &mut s.translation);
    }

    /// Runs the translation at hand for packet `i`, and caches it if it may be.
    fn install(&mut self, key: &FlowKey, r: usize, i: usize, any: u64, now_ms: u64) -> Choice {
        let t = &mut self.scratch.translation;
        let program = Program::compile(&t.actions);
        let (len, flags) = (self.scratch.burst[i].len() as u64, key.tcp_flags);
        for c in &t.credits {
            c.credit(1, len, now_ms, flags);
        }
        if self.handover.len() > super::HANDOVER_RING / 2 {
            self.shared.wake_sweeper();
        }
        if t.uncacheable || !self.shared.has_room() || self.handover.free() == 0 {
            self.counters.not_cached.add(1);
            self.scratch.once.push(Arc::new(program));
            // At most one program per packet of the burst.
            return u16::try_from(self.scratch.once.len() - 1).map_or(Choice::Gone, Choice::Once);
        }
        let (tuple, hash) = self.cache.mask_for(&t.mask, key);
        let entry = Arc::new(Entry::new(NewEntry {
            id: self.shared.next_id.fetch_add(1, Relaxed),
            key,
            tuple,
            hash,
            actions: t.actions.drain(..).collect(),
            program,
            deps: std::mem::take(&mut t.deps),
            validated: any,
            now_ms,
        }));
        let credits = t.credits.drain(..).collect();
        let hash_key = self.shared.hash_key;
        let compact = self.scratch.parsed.key(r).map(|k| (*k, k.hash(hash_key)));
        let slot = self.cache.insert(Arc::clone(&entry), compact.as_ref());
        // There was room, and only this thread pushes.
        let _ = self.handover.push(Handover {
            entry,
            slot: slot.index,
            credits,
            any,
            packets: 0,
            bytes: 0,
        });
        self.shared.n_flows.fetch_add(1, Relaxed);
        self.counters.flows.set(self.cache.len() as u64);
        self.counters.masks.set(self.cache.n_masks() as u64);
        Choice::Entry(slot)
    }
}
