//! Off the fast path: translating a packet, caching the answer, re-checking an entry whose dependencies moved.
//!
//! **Order.** `any` was read at the start of the burst, before the translation reads anything: an entry made from an answer
//! that raced with a change is found stale at its first use after the change.
//!
//! The packet that caused a translation is credited here, before it leaves; the entry counts those that follow, so a new entry
//! starts with zero packets, as in Open vSwitch.

use super::{Choice, Worker};
use crate::compact::CompactKey;
use crate::drops::DropKind;
use crate::exec::{Live, LiveId};
use crate::program::Program;
use crate::translate::{Purpose, Request};
use heddle_flow::{FlowKey, Vlan};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The log's module for cached flows.
const LOG: &str = "dpif_netdev";

/// A packet that is looked up.
pub(super) struct Subject<'a> {
    pub(super) key: &'a FlowKey,
    /// Its compact key, if it is ordinary.
    pub(super) compact: Option<CompactKey>,
    pub(super) id: LiveId,
}

impl Worker {
    /// No entry matches packet `i`, of run `r`. It is translated for if its queue's miss budget allows ([`super::turn`]).
    pub(super) fn miss(&mut self, r: usize, i: usize, any: u64, now_ms: u64) -> Choice {
        self.counters.misses.add(1);
        // A packet from the control plane has no queue, and no limit.
        if let Some(slot) = self.source_of(i)
            && !self.rx[slot].turn.may_miss()
        {
            self.counters.drops.add(DropKind::MissBudget, 1);
            return Choice::Gone;
        }
        self.with_subject(r, i, |w, subject| {
            w.translate_missed(subject, now_ms);
            w.install(subject, any, now_ms)
        })
    }

    /// The place of the receive queue that packet `i` of the burst came from.
    pub(super) fn source_of(&self, i: usize) -> Option<usize> {
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
        let key = self.scratch.parsed.key(r).copied();
        if let Some(number) = self.recheck(slot, key.as_ref(), any) {
            return (Choice::Cached(number), Some(slot));
        }
        self.with_subject(r, i, |w, subject| w.renew_of(slot, subject, any, now_ms))
    }

    /// As [`Worker::revalidate`].
    pub(super) fn revalidate_of(
        &mut self,
        slot: u32,
        subject: &Subject<'_>,
        any: u64,
        now_ms: u64,
    ) -> (Choice, Option<u32>) {
        match self.recheck(slot, subject.compact.as_ref(), any) {
            Some(number) => (Choice::Cached(number), Some(slot)),
            None => self.renew_of(slot, subject, any, now_ms),
        }
    }

    /// Does something with packet `i`, of run `r`, and its full key.
    fn with_subject<T>(&mut self, r: usize, i: usize, f: impl FnOnce(&mut Self, &Subject<'_>) -> T) -> T {
        let id = LiveId::try_from(i).expect("a burst has fewer packets");
        let Some(compact) = self.scratch.parsed.key(r).copied() else {
            let key = &self.full_key(r, i);
            let compact = None;
            return f(self, &Subject { key, compact, id });
        };
        let mut room = self.scratch.room.take().unwrap_or_default();
        let subject = Subject {
            key: room.whole(&compact),
            compact: Some(compact),
            id,
        };
        let done = f(self, &subject);
        self.scratch.room = Some(room);
        done
    }

    /// The program of the entry in `slot`, if its dependencies hold, or what has changed is not about its packets, one of which has this
    /// key.
    fn recheck(&mut self, slot: u32, key: Option<&CompactKey>, any: u64) -> Option<u32> {
        let moment = self.shared.moment(any, self.now_ms);
        let current = self.cache.current(slot, key, &moment);
        if current.is_some() || self.cache.is_watched(slot) {
            return current;
        }
        let generations = self.shared.translate.generations();
        let number = self.cache.entry(slot)?.verdict();
        let verdict = self.cache.verdict(number)?;
        let holds = verdict.recheck(any, generations);
        holds.then(|| self.cache.entry(slot).map(|e| e.body()))?
    }

    /// No entry matches.
    pub(super) fn miss_of(&mut self, subject: &Subject<'_>, any: u64, now_ms: u64) -> Choice {
        self.counters.misses.add(1);
        self.translate_missed(subject, now_ms);
        self.install(subject, any, now_ms)
    }

    /// The dependencies of the entry in `slot` have moved.
    fn renew_of(&mut self, slot: u32, subject: &Subject<'_>, any: u64, now_ms: u64) -> (Choice, Option<u32>) {
        self.counters.revalidated.add(1);
        self.translate(subject, now_ms);
        let t = &mut self.scratch.translation;
        // Masks are per port.
        t.mask.0.in_port = u32::MAX;
        // Whether for this entry's packets the answer is one, be it the old one or not: then it is the same flow, and counts on.
        let agrees = !t.uncacheable
            && self
                .cache
                .entry(slot)
                .and_then(|e| self.cache.tuple(e))
                .is_some_and(|tuple| tuple.mask.contains(&t.mask));
        if agrees && let Some(number) = self.cache.renew(slot, t, any) {
            return (Choice::Cached(number), Some(slot));
        }
        self.cache.forget(slot);
        (self.install(subject, any, now_ms), None)
    }

    fn translate_missed(&mut self, subject: &Subject<'_>, now_ms: u64) {
        if log::log_enabled!(target: LOG, log::Level::Debug) {
            log_missed(&self.shared.name, subject.key);
        }
        self.translate(subject, now_ms);
    }

    fn translate(&mut self, subject: &Subject<'_>, now_ms: u64) {
        let s = &mut self.scratch;
        s.translation.clear();
        let live = Live {
            burst: &mut s.burst,
            copies: &mut s.copies,
        };
        let request = Request {
            key: subject.key,
            packet: Some(live.get(subject.id)),
            now_ms,
            purpose: Purpose::Miss,
        };
        self.shared.ask(&request, &mut s.translation);
        let (key, mask) = (subject.key, &mut s.translation.mask.0);
        if key.recirc_id != 0 && key.vlans[0].present() && mask.vlans[0].tci == 0 {
            // Open vSwitch's datapath leaves no tag open. Here that would cost entries; of packets that are looked up again there are few.
            mask.vlans[0] = Vlan {
                tpid: u16::MAX,
                tci: Vlan::VID_MASK | Vlan::CFI,
            };
        }
    }

    /// Runs the translation at hand for a packet, and caches it if it may be.
    fn install(&mut self, subject: &Subject<'_>, any: u64, now_ms: u64) -> Choice {
        let s = &mut self.scratch;
        let live = Live {
            burst: &mut s.burst,
            copies: &mut s.copies,
        };
        let (key, len) = (subject.key, live.get(subject.id).len() as u64);
        let t = &mut s.translation;
        self.owed.add(&t.credits, len, key.tcp_flags, now_ms);
        if self.cache.wants_sweeper() {
            self.shared.wake_sweeper();
        }
        let has_room = self.shared.has_room(self.cache.entries_of(key.in_port));
        if !has_room && !t.uncacheable {
            self.counters.limit_hits.add(1);
        }
        if has_room
            && !t.uncacheable
            && let Some(verdict) = self.cache.insert(key, subject.compact.as_ref(), t, any, now_ms)
        {
            self.shared.n_flows.fetch_add(1, Relaxed);
            self.counters.flows.set(self.cache.len() as u64);
            if self.cache.take_new_mask() {
                self.counters.masks.set(self.cache.n_masks() as u64);
            }
            if log::log_enabled!(target: LOG, log::Level::Debug) {
                self.log_added(key, verdict);
            }
            return Choice::Cached(verdict);
        }
        self.counters.not_cached.add(1);
        s.once.push(Arc::new(Program::compile(&t.actions)));
        // A burst's packets and their copies are fewer than a number of 16 bits counts.
        u16::try_from(s.once.len() - 1).map_or(Choice::Gone, Choice::Once)
    }

    /// A line for who wants to see every flow that is cached.
    #[cold]
    fn log_added(&self, key: &FlowKey, verdict: u32) {
        // The cache has taken the translation's actions.
        let actions = self.cache.verdict(verdict).map(|v| &*v.body.actions);
        let mut mask = self.scratch.translation.mask;
        mask.0.in_port = u32::MAX;
        let ufid = crate::format::ufid(key, &mask);
        log::debug!(
            target: LOG,
            "flow_add: {ufid} mega_{ufid} {}, actions:{}",
            crate::format::format_key(key, &mask, false, None),
            crate::format::format_actions(actions.unwrap_or_default(), None),
        );
    }
}

/// A line for who wants to see every packet that no entry answers.
#[cold]
fn log_missed(name: &str, key: &FlowKey) {
    let packet = FlowKey {
        in_port: 0,
        recirc_id: 0,
        ..*key
    };
    log::debug!(
        target: LOG,
        "{}: miss upcall:\n{}\n{packet}",
        name.rsplit('@').next().unwrap_or_default(),
        crate::format::format_whole(key),
    );
}
