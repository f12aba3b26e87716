//! The control side of the caches: crediting, re-checking, evicting.
//!
//! Workers hand over each entry they make; the sweeper keeps a [`Record`] of it until the worker has let go of it. A pass
//! credits what was counted since the last one, kills entries that are idle or whose fresh translation differs,
//! and tells the workers which slots to free.
//!
//! **Exactness.** What an entry has counted is credited once: the record remembers how far it has credited, and an entry
//! that the worker has let go of is credited a last time after that (`Arc::get_mut` synchronises with the worker's drop), so no
//! count is lost.
//!
//! **Cost.** A pass reads each entry's counters: one cache line per entry. It runs under a lock that workers never
//! take. `Credit::credit` and `Translate::translate` are called under it, so they must not call the datapath.

use crate::action::Action;
use crate::entry::{Entry, Handover};
use crate::shared::Shared;
use crate::translate::{Credit, Purpose, Request, Translation};
use crate::view::FlowDump;
use crate::worker::{Command, CommandTx};
use heddle_sync::ring::Consumer;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Idle time allowed while there are more entries than the limit, milliseconds.
const HURRIED_IDLE_MS: u64 = 100;

/// An entry and what is known of it here.
struct Record {
    entry: Arc<Entry>,
    slot: u32,
    credits: Vec<Arc<dyn Credit>>,
    /// Generation of the translation that named the credits: an older one that arrives late does not replace them.
    credits_any: u64,
    /// How much has been credited.
    packets: u64,
    bytes: u64,
    /// The worker has been told to free it.
    told: bool,
}

impl Record {
    /// Credits what was counted up to `packets` and `bytes`.
    fn credit_to(&mut self, packets: u64, bytes: u64) {
        let (p, b) = (
            packets.saturating_sub(self.packets),
            bytes.saturating_sub(self.bytes),
        );
        if p == 0 && b == 0 {
            return;
        }
        let flags = u16::try_from(self.entry.tcp_flags.get()).unwrap_or(0);
        for c in &self.credits {
            c.credit(p, b, self.entry.used_ms.get(), flags);
        }
        (self.packets, self.bytes) = (packets.max(self.packets), bytes.max(self.bytes));
    }
    fn credit(&mut self) {
        self.credit_to(self.entry.packets.get(), self.entry.bytes.get());
    }
}

/// One worker's entries.
pub(crate) struct SweepWorker {
    pub(crate) index: usize,
    pub(crate) core: Option<usize>,
    ring: Consumer<Handover>,
    records: HashMap<u64, Record>,
    commands: Arc<CommandTx>,
}

impl SweepWorker {
    pub(crate) fn new(
        index: usize,
        core: Option<usize>,
        ring: Consumer<Handover>,
        commands: Arc<CommandTx>,
    ) -> Self {
        Self {
            index,
            core,
            ring,
            records: HashMap::new(),
            commands,
        }
    }
    fn drain(&mut self) {
        while let Some(h) = self.ring.pop() {
            match self.records.get_mut(&h.entry.id) {
                Some(r) => {
                    r.credit_to(h.packets, h.bytes);
                    if h.any >= r.credits_any {
                        (r.credits, r.credits_any) = (h.credits, h.any);
                    }
                }
                None => {
                    let (entry, slot, credits, credits_any) = (h.entry, h.slot, h.credits, h.any);
                    let (packets, bytes) = (h.packets, h.bytes);
                    let record = Record {
                        slot,
                        credits,
                        credits_any,
                        packets,
                        bytes,
                        told: false,
                        entry,
                    };
                    self.records.insert(record.entry.id, record);
                }
            }
        }
    }
    fn credit(&mut self) {
        self.drain();
        for r in self.records.values_mut() {
            r.credit();
        }
    }
    fn live(&self) -> impl Iterator<Item = &Record> {
        self.records.values().filter(|r| !r.entry.is_dead())
    }
}

/// What a pass did, for `upcall/show` and the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweepCounts {
    pub(crate) passes: u64,
    pub(crate) idle: u64,
    pub(crate) rechecked: u64,
    pub(crate) changed: u64,
    pub(crate) max_flows: u64,
    /// Sum over passes, for the average.
    pub(crate) sum_flows: u64,
    pub(crate) last_pass_ms: u64,
}

/// All workers' entries.
pub(crate) struct Sweep {
    shared: Arc<Shared>,
    pub(crate) workers: Vec<SweepWorker>,
    scratch: Translation,
    pub(crate) counts: SweepCounts,
}

impl Sweep {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            workers: Vec::new(),
            scratch: Translation::default(),
            counts: SweepCounts::default(),
        }
    }
    /// Takes handed-over entries in, so that the rings have room.
    pub(crate) fn drain(&mut self) {
        for w in &mut self.workers {
            w.drain();
        }
    }
    /// Credits everything counted so far.
    pub(crate) fn credit(&mut self) {
        for w in &mut self.workers {
            w.credit();
        }
    }
    /// One full pass.
    pub(crate) fn pass(&mut self) {
        let started = std::time::Instant::now();
        let now_ms = self.shared.clock.now_ms();
        let (n, limit) = (
            self.shared.n_flows.load(Relaxed),
            self.shared.flow_limit.load(Relaxed),
        );
        let max_idle = match n {
            _ if n > limit.saturating_mul(2) => 0,
            _ if n > limit => HURRIED_IDLE_MS,
            _ => self.shared.max_idle_ms.load(Relaxed),
        };
        for w in &mut self.workers {
            w.drain();
            let mut evict = Vec::new();
            let (shared, scratch, counts) = (&self.shared, &mut self.scratch, &mut self.counts);
            w.records
                .retain(|_, r| keep(r, shared, scratch, counts, now_ms, max_idle, &mut evict));
            if !evict.is_empty() {
                // A worker that takes no commands is stopping, and lets go of all its entries.
                let _ = w.commands.send(Command::Evict(evict));
            }
        }
        let c = &mut self.counts;
        c.passes += 1;
        c.max_flows = c.max_flows.max(n as u64);
        c.sum_flows += n as u64;
        c.last_pass_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    }
    /// Kills all entries, crediting them.
    pub(crate) fn purge(&mut self) {
        for w in &mut self.workers {
            w.credit();
            let mut evict = Vec::new();
            for r in w.records.values_mut() {
                r.entry.kill();
                if !std::mem::replace(&mut r.told, true) {
                    evict.push((r.slot, r.entry.id));
                }
            }
            let _ = w.commands.send(Command::Evict(evict));
        }
    }
    /// Credits and drops all of a worker that has ended.
    pub(crate) fn retire(&mut self, index: usize) {
        self.workers.retain_mut(|w| {
            if w.index == index {
                w.credit();
            }
            w.index != index
        });
    }
    /// All live entries, oldest first.
    pub(crate) fn flows(&mut self) -> Vec<FlowDump> {
        let mut all: Vec<(u64, FlowDump)> = Vec::new();
        for w in &mut self.workers {
            w.drain();
            let dumps = w.live().map(|r| {
                let e = &r.entry;
                let dump = FlowDump {
                    key: e.key(),
                    mask: e.tuple.mask,
                    packets: e.packets.get(),
                    bytes: e.bytes.get(),
                    used_ms: e.used_ms.get(),
                    tcp_flags: u16::try_from(e.tcp_flags.get()).unwrap_or(0),
                    actions: Arc::<[Action]>::clone(&e.actions),
                    core: w.core,
                    worker: w.index,
                };
                (e.id, dump)
            });
            all.extend(dumps);
        }
        all.sort_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, d)| d).collect()
    }
}

/// Looks at one record; `false`: it is finished.
fn keep(
    r: &mut Record,
    shared: &Shared,
    scratch: &mut Translation,
    counts: &mut SweepCounts,
    now_ms: u64,
    max_idle: u64,
    evict: &mut Vec<(u32, u64)>,
) -> bool {
    r.credit();
    if !r.entry.is_dead() {
        let last = r.entry.used_ms.get().max(r.entry.created_ms);
        if now_ms.saturating_sub(last) >= max_idle {
            counts.idle += 1;
            r.entry.kill();
        } else if !still_right(r, shared, scratch, counts, now_ms) {
            counts.changed += 1;
            r.entry.kill();
        }
    }
    if r.entry.is_dead() {
        if Arc::get_mut(&mut r.entry).is_some() {
            r.credit();
            return false;
        }
        if !std::mem::replace(&mut r.told, true) {
            evict.push((r.slot, r.entry.id));
        }
    }
    true
}

/// Whether the entry says what a fresh translation says.
fn still_right(
    r: &mut Record,
    shared: &Shared,
    scratch: &mut Translation,
    counts: &mut SweepCounts,
    now_ms: u64,
) -> bool {
    let generations = shared.translate.generations();
    // Before anything that the translation reads.
    let any = generations.any();
    if r.entry.valid_at(any) || r.entry.recheck(any, generations) {
        return true;
    }
    counts.rechecked += 1;
    scratch.clear();
    let key = r.entry.key();
    let request = Request {
        key: &key,
        packet: None,
        now_ms,
        purpose: Purpose::Revalidate,
    };
    shared.translate.translate(&request, scratch);
    if scratch.uncacheable || !r.entry.agrees(&scratch.mask, &scratch.actions) {
        return false;
    }
    r.credit();
    (r.credits, r.credits_any) = (scratch.credits.drain(..).collect(), any);
    r.entry.renew(std::mem::take(&mut scratch.deps), any);
    true
}
