//! Off the fast path: translating a packet, caching the answer, re-checking an entry whose dependencies moved.
//!
//! **Order.** `any` was read at the start of the burst, before the translation reads anything: an entry made from an answer
//! that raced with a change is found stale at its first use after the change.
//!
//! The packet that caused a translation is credited here and at once; the entry counts those that follow, so a new entry
//! starts with zero packets, as in Open vSwitch.

use super::{Choice, Worker};
use crate::drops::DropKind;
use crate::program::Program;
use crate::translate::{Purpose, Request};
use heddle_flow::FlowKey;
use heddle_sys::Tsc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    /// No entry matches packet `i`, of run `r`. It is translated for if its queue's miss budget allows ([`super::turn`]).
    pub(super) fn miss(&mut self, r: usize, i: usize, any: u64, now_ms: u64) -> Choice {
        self.counters.misses.add(1);
        // A packet from the control plane has no queue, and no limit.
        let slot = self.source_of(i);
        if let Some(slot) = slot
            && !self.rx[slot].turn.may_miss()
        {
            self.counters.drops.add(DropKind::MissBudget, 1);
            return Choice::Gone;
        }
        let before = Tsc::now();
        let key = self.full_key(r, i);
        self.translate(&key, i, now_ms);
        let choice = self.install(&key, r, i, any, now_ms);
        if let Some(slot) = slot {
            self.rx[slot].turn.spend(Tsc::now().wrapping_sub(before));
        }
        choice
    }

    /// The place of the receive queue that packet `i` of the burst came from.
    fn source_of(&self, i: usize) -> Option<usize> {
        let mut end = 0;
        let sources = self.scratch.sources.iter();
        let mut behind = sources.skip_while(|s| {
            end += s.packets;
            end <= i
        });
        behind.next().map(|s| s.slot)
    }

    /// The entry in `slot` matches packet `i`, of run `r`, but may be stale. With the choice comes the slot of the entry that the packet is
    /// still to be counted on, if it is.
    pub(super) fn revalidate(
        &mut self,
        slot: u32,
        r: usize,
        i: usize,
        any: u64,
        now_ms: u64,
    ) -> (Choice, Option<u32>) {
        let Some(number) = self.cache.entry(slot).map(|e| e.verdict()) else {
            return (self.miss(r, i, any, now_ms), None);
        };
        let Some(verdict) = self.cache.verdict(number).map(Arc::clone) else {
            return (self.miss(r, i, any, now_ms), None);
        };
        let generations = self.shared.translate.generations();
        let holds = verdict.valid_at(any) || verdict.recheck(any, generations);
        if holds || self.cache.passes_by(slot, any, generations) {
            return (Choice::Verdict(number), Some(slot));
        }
        self.counters.revalidated.add(1);
        let key = self.full_key(r, i);
        self.translate(&key, i, now_ms);
        let t = &mut self.scratch.translation;
        // Masks are per port.
        t.mask.0.in_port = u32::MAX;
        let agrees = !t.uncacheable
            && *verdict.body.actions == *t.actions
            && self
                .cache
                .entry(slot)
                .and_then(|e| self.cache.tuple(e))
                .is_some_and(|tuple| tuple.mask.contains(&t.mask));
        if agrees && let Some(number) = self.cache.renew(slot, t, any) {
            return (Choice::Verdict(number), Some(slot));
        }
        self.cache.forget(slot);
        (self.install(&key, r, i, any, now_ms), None)
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
        let s = &mut self.scratch;
        let t = &mut s.translation;
        let (len, flags) = (s.burst[i].len() as u64, key.tcp_flags);
        for c in &t.credits {
            c.credit(1, len, now_ms, flags);
        }
        if self.cache.notes_waiting() > crate::note::RING / 2 {
            self.shared.wake_sweeper();
        }
        if !t.uncacheable
            && self.shared.has_room()
            && let Some(verdict) = self.cache.insert(key, s.parsed.key(r), t, any, now_ms)
        {
            self.shared.n_flows.fetch_add(1, Relaxed);
            self.counters.flows.set(self.cache.len() as u64);
            if self.cache.take_new_mask() {
                self.counters.masks.set(self.cache.n_masks() as u64);
            }
            return Choice::Verdict(verdict);
        }
        self.counters.not_cached.add(1);
        s.once.push(Arc::new(Program::compile(&t.actions)));
        // At most one program per packet of the burst.
        u16::try_from(s.once.len() - 1).map_or(Choice::Gone, Choice::Once)
    }
}
