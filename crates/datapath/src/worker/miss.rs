//! The slow path of a lookup: translates packets, caches translations, and re-checks entries whose
//! dependencies moved.
//!
//! **Order.** `any` is read at the start of the lookup, before the translation reads anything. So if a change
//! overtakes a translation, the entry is found stale at its first use after the change.
//!
//! The packet that caused a translation is credited here. The entry counts the packets that follow: a new
//! entry starts with zero packets, as in Open vSwitch.

use super::schedule::sender_of;
use super::stage::Stage;
use super::{Choice, Worker};
use crate::exec::LiveId;
use crate::exec::program::Program;
use heddle_datapath_api::{DropKind, Purpose, Request};
use heddle_flow::{FlowKey, Vlan};
use heddle_flow_cache::{KeyForm, LookupKeys, ProgramId, Sought, Source};
use heddle_packet::BURST;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The log's module for cached flows.
const LOG: &str = "dpif_netdev";

/// A packet that is looked up.
pub(super) struct Subject<'a> {
    pub(super) key: &'a FlowKey,
    /// The key in the form that the cache looks up.
    pub(super) sought: Sought<'a>,
    pub(super) id: LiveId,
}

impl Worker {
    /// No entry matches packet `id`, of run `r`. It is translated if its queue's miss budget allows
    /// ([`super::schedule`]).
    pub(super) fn miss(&mut self, st: &mut Stage, r: usize, id: LiveId, any: u64, now_ms: u64) -> Choice {
        self.counters.misses.add(1);
        // A packet from the control plane has no queue, and no limit.
        if let Some(slot) = self.source_of(id)
            && !self.rx[slot]
                .scheduler
                .misses
                .admits(sender_of(st.keys.context(r)))
        {
            self.resources.lost(DropKind::MissBudget, id);
            return Choice::Dropped;
        }
        self.with_subject(st, r, id, |w, subject| {
            w.translate_missed(subject, now_ms);
            w.install(subject, any, now_ms)
        })
    }

    /// Index of the receive queue that a packet came from. For a copy, of any queue of its port.
    pub(super) fn source_of(&mut self, id: LiveId) -> Option<usize> {
        let i = usize::from(id);
        if i >= BURST {
            let in_port = self.resources.live.get(id).in_port;
            return self.rx.iter().position(|slot| slot.port == in_port);
        }
        let mut end = 0;
        let sources = self.scratch.sources.iter();
        let mut behind = sources.skip_while(|s| {
            end += s.packets;
            end <= i
        });
        behind.next().map(|s| s.slot)
    }

    /// The entry in `slot` matches packet `id`, of run `r`, but may be stale. Returns the choice, and the
    /// slot of the entry that has yet to count the packet, if any.
    pub(super) fn revalidate(
        &mut self,
        st: &mut Stage,
        slot: u32,
        r: usize,
        id: LiveId,
        any: u64,
        now_ms: u64,
    ) -> (Choice, Option<u32>) {
        if let Some(number) = self.recheck(slot, any) {
            return (Choice::Cached(number), Some(slot));
        }
        self.with_subject(st, r, id, |w, subject| w.renew_of(slot, subject, any, now_ms))
    }

    /// Calls `f` with packet `id`, of run `r`, and its full key.
    fn with_subject<T>(
        &mut self,
        st: &mut Stage,
        r: usize,
        id: LiveId,
        f: impl FnOnce(&mut Self, &Subject<'_>) -> T,
    ) -> T {
        let mut room = self.scratch.room.take().unwrap_or_default();
        let sought = st.keys.sought(r).expect("runts are not looked up");
        let key = match (st.keys.runs[r].form, sought.context) {
            (KeyForm::Full(_), Some(key)) => key,
            (_, context) => {
                let source = Source {
                    in_port: self.resources.live.get(id).in_port,
                    recirc_id: st.keys.recirc_id,
                };
                room.whole(sought.key, source, context)
            }
        };
        let done = f(self, &Subject { key, sought, id });
        self.scratch.room = Some(room);
        done
    }

    /// The program of the entry in `slot`, if its dependencies hold, or if the changes are not about its
    /// packets.
    fn recheck(&mut self, slot: u32, any: u64) -> Option<ProgramId> {
        let lookup = self.shared.lookup(any, self.resources.now_ms);
        let current = self.cache.current(slot, &lookup);
        if current.is_some() || self.cache.has_group(slot) {
            return current;
        }
        let generations = self.shared.translate.generations();
        let translation = self.cache.entry(slot)?.translation();
        let cached = self.cache.translation(translation)?;
        let holds = cached.recheck(any, generations);
        holds.then(|| self.cache.entry(slot).map(|e| e.program()))?
    }

    /// Renews or replaces the entry in `slot`, whose dependencies have moved. Returns like
    /// [`Self::revalidate`].
    fn renew_of(&mut self, slot: u32, subject: &Subject<'_>, any: u64, now_ms: u64) -> (Choice, Option<u32>) {
        self.counters.revalidated.add(1);
        self.translate(subject, now_ms);
        let t = &mut self.scratch.translation;
        // Masks are per origin.
        (t.mask.0.in_port, t.mask.0.recirc_id) = (u32::MAX, u32::MAX);
        // Whether the new translation holds for all packets of the entry. If so, the entry keeps its
        // counters, even with new actions.
        let agrees = !t.uncacheable
            && self
                .cache
                .entry(slot)
                .and_then(|e| self.cache.subtable(e))
                .is_some_and(|subtable| subtable.mask.contains(&t.mask));
        if agrees && let Some(number) = self.cache.renew(slot, t, any) {
            return (Choice::Cached(number), Some(slot));
        }
        self.cache.evict(slot);
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
        let request = Request {
            key: subject.key,
            packet: Some(self.resources.live.get(subject.id)),
            now_ms,
            purpose: Purpose::Miss,
        };
        self.shared.translate(&request, &mut s.translation);
        let (key, mask) = (subject.key, &mut s.translation.mask.0);
        if key.recirc_id != 0 && key.vlans[0].present() && mask.vlans[0].tci == 0 {
            // Open vSwitch's datapath always matches the VLAN tag. Here that would cost entries, so only
            // recirculated packets with a tag do so.
            mask.vlans[0] = Vlan {
                tpid: u16::MAX,
                tci: Vlan::VID_MASK | Vlan::CFI,
            };
        }
    }

    /// Chooses the program of the last translation for a packet, and caches it if allowed. Credits the
    /// packet.
    fn install(&mut self, subject: &Subject<'_>, any: u64, now_ms: u64) -> Choice {
        let (key, len) = (subject.key, self.resources.live.get(subject.id).len() as u64);
        let t = &mut self.scratch.translation;
        self.pending_credits.add(&t.credits, len, key.tcp_flags, now_ms);
        if self.cache.wants_revalidator() {
            self.shared.wake_revalidator();
        }
        let has_room = self.shared.has_room(self.cache.entries_of(key.in_port));
        if !has_room && !t.uncacheable {
            self.counters.limit_hits.add(1);
        }
        if has_room
            && !t.uncacheable
            && let Some(program) = self.cache.insert(subject.sought, t, any, now_ms)
        {
            if self.shared.observed.load(Relaxed) {
                self.cache.announce();
                self.shared.wake_revalidator();
            }
            self.shared.n_flows.fetch_add(1, Relaxed);
            self.counters.flows.set(self.cache.n_entries() as u64);
            if self.cache.take_new_mask() {
                self.counters.masks.set(self.cache.n_masks() as u64);
            }
            if log::log_enabled!(target: LOG, log::Level::Debug) {
                self.log_added(key);
            }
            return Choice::Cached(program);
        }
        self.counters.not_cached.add(1);
        self.once.push(Arc::new(Program::compile(&t.actions)));
        // The number of a burst's lookups without an entry fits into 16 bits.
        u16::try_from(self.once.len() - 1).map_or(Choice::Dropped, Choice::Once)
    }

    /// Logs the flow of the last translation, which was cached.
    #[cold]
    fn log_added(&self, key: &FlowKey) {
        // The cache leaves the actions in the translation.
        let actions = &self.scratch.translation.actions;
        let mut mask = self.scratch.translation.mask;
        mask.0.in_port = u32::MAX;
        let ufid = heddle_datapath_api::ufid(key, &mask);
        log::debug!(
            target: LOG,
            "flow_add: {ufid} mega_{ufid} {}, actions:{}",
            heddle_datapath_api::format_key(key, &mask, false, None),
            heddle_datapath_api::format_actions(actions, None),
        );
    }
}

/// Logs a packet that no entry matches.
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
        heddle_datapath_api::format_whole(key),
    );
}
