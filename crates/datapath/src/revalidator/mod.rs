//! The control side of the caches: crediting, re-checking, evicting.
//!
//! The revalidator reads workers' entries in place. A pass credits the packets counted since the last pass.
//! Entries that are idle or whose fresh translation differs are evicted. Stale entries whose fresh
//! translation agrees get a valid cached translation. The pass reports these findings to the workers.
//!
//! **Cost.** A pass reads one cache line per entry. It goes in steps of about [`SLICE`] and releases its lock
//! between steps; workers never take the lock. The revalidator's thread rests between steps, because it may
//! share a processor with a worker or with a program that sends to it. Without rests it would keep that
//! processor for milliseconds, and rings would overflow. While rules change all the time, a pass skips some
//! of the entries in use: their worker checks them with each packet. `Credit::credit`, `Translate::translate`
//! and the observer of flows ([`observed`]) are called under this lock, so they must not call the datapath.

mod dump;
mod observed;

use crate::counters::WorkerCounters;
use crate::flow_cache::{CachedTranslation, CompiledActions, Records, RevalidatorFindings};
use crate::shared::Shared;
use crate::worker::{Command, CommandTx};
use dump::dump_of;
use heddle_datapath_api::changes::KnownBits;
use heddle_datapath_api::{FlowObserver, PortCounts, PortNo, Purpose, Request, Translation};
use heddle_flow_cache::{ScannedEntry, fingerprint};
use observed::Observed;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Number of stale entries that a pass checks itself in any case. Beyond it, entries used in the last
/// [`HOT_MS`] are left to their worker, which checks them with each packet.
const MIN_CHECKS: u64 = 1024;
const HOT_MS: u64 = 1000;
/// Maximum idle time of an entry when the cache is nearly full, milliseconds.
const HURRIED_IDLE_MS: u64 = 100;

/// Target duration of a step; a single check may take longer.
const SLICE: Duration = Duration::from_micros(100);
/// Entries checked between two reads of the clock.
const GLANCE: usize = 16;
/// The log's module for messages that Open vSwitch's `dpif` writes.
const DPIF: &str = "dpif";
/// Maximum number of entries that one pass writes into the log.
const MAX_LOGGED_ENTRIES: u32 = 600;

/// Maximum number of events that one step takes in.
const EVENTS_PER_STEP: usize = 1024;

/// One worker's entries.
pub(crate) struct WorkerRecords {
    pub(crate) index: usize,
    pub(crate) core: usize,
    counters: Arc<WorkerCounters>,
    /// The worker's count of translations that were not cached for the limit, at the last pass.
    limit_hits: u64,
    records: Records,
    commands: Arc<CommandTx>,
}

impl WorkerRecords {
    pub(crate) fn new(
        index: usize,
        core: usize,
        counters: Arc<WorkerCounters>,
        records: Records,
        commands: Arc<CommandTx>,
    ) -> Self {
        Self {
            index,
            core,
            counters,
            limit_hits: 0,
            records,
            commands,
        }
    }
    fn credit(&mut self) {
        let horizon = self.records.drain();
        for chunk in 0..self.records.n_chunks() {
            self.records
                .scan_all(chunk, horizon, |r, seen| r.credit(seen.slot, &seen.now));
        }
        // Entries that were freed meanwhile were not scanned; the worker has reported their counts.
        self.records.drain();
        self.records.give();
    }
}

/// Counts of passes and entries, for `upcall/show` and the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RevalidatorCounts {
    pub(crate) passes: u64,
    pub(crate) idle: u64,
    pub(crate) rechecked: u64,
    pub(crate) changed: u64,
    pub(crate) max_flows: u64,
    /// Sum over passes, for the average.
    pub(crate) sum_flows: u64,
    pub(crate) last_pass_ms: u64,
}

/// State of a running pass.
struct Pass {
    started: Instant,
    now_ms: u64,
    max_idle: u64,
    worker: usize,
    chunk: usize,
    /// The next entry of the chunk.
    at: usize,
    /// Number of stale entries checked.
    looked: u64,
    /// Number of entries that this pass may still write into the log.
    log_quota: u32,
    /// Cached translations made in this pass, by fingerprint.
    made: HashMap<u64, Arc<CachedTranslation>>,
}

/// All workers' entries.
pub(crate) struct Revalidator {
    shared: Arc<Shared>,
    pub(crate) workers: Vec<WorkerRecords>,
    scratch: Translation,
    pass: Option<Pass>,
    observed: Option<Observed>,
    pub(crate) counts: RevalidatorCounts,
}

impl Revalidator {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            workers: Vec::new(),
            scratch: Translation::default(),
            pass: None,
            observed: None,
            counts: RevalidatorCounts::default(),
        }
    }
    /// Sets the observer of flows. All flows of the previous one are reported to that one as gone.
    pub(crate) fn set_observer(&mut self, observer: Option<Box<dyn FlowObserver>>) {
        if let Some(mut before) = self.observed.take() {
            before.all_gone();
        }
        self.workers.iter_mut().for_each(|w| w.records.forget_flows());
        self.pass = None;
        self.shared.observed.store(observer.is_some(), Relaxed);
        self.observed = observer.map(|o| Observed::new(o, self.shared.hash_key));
    }
    /// One full pass, if there is an observer.
    pub(crate) fn observe(&mut self) {
        if self.observed.is_some() {
            self.pass();
        }
        self.observed.iter_mut().for_each(|o| o.observer.confirm());
    }
    /// Reports some of the flows that are new since the last pass to the observer; `false`: there are no
    /// more.
    pub(crate) fn report_new(&mut self) -> bool {
        if self.observed.is_none() || self.shared.paused.load(Relaxed) {
            return false;
        }
        let end = Instant::now() + SLICE;
        let mut pass = self.pass_state(0);
        for worker in 0..self.workers.len() {
            let more = self.check_worker(worker, &mut pass, |r, horizon, look| {
                while let Some(slot) = r.take_new(horizon) {
                    r.look(slot, horizon, |r, seen| look.at(r, seen));
                    if Instant::now() >= end {
                        return true;
                    }
                }
                false
            });
            if more == Some(true) {
                return true;
            }
            pass.made.clear();
        }
        false
    }
    /// Returns the time spent notifying the observer of new flows since the last call.
    pub(crate) fn take_reporting(&mut self) -> Duration {
        let observed = self.observed.as_mut();
        observed.map_or(Duration::ZERO, |o| std::mem::take(&mut o.reporting))
    }
    /// Counts of a port's packets that no worker received or sent.
    pub(crate) fn port_counts(&self, no: PortNo) -> PortCounts {
        let observed = self.observed.as_ref();
        observed.map_or(PortCounts::default(), |o| o.observer.port_counts(no))
    }
    /// Packets that a rule drops and that no worker received.
    pub(crate) fn dropped(&self) -> u64 {
        self.observed.as_ref().map_or(0, |o| o.observer.dropped())
    }
    /// Takes in some of the waiting events, so that the rings have room; `false`: no more are waiting.
    pub(crate) fn drain(&mut self) -> bool {
        let all = self.workers.iter_mut();
        all.fold(false, |more, w| w.records.drain_some(EVENTS_PER_STEP) | more)
    }
    /// Credits everything counted so far.
    pub(crate) fn credit(&mut self) {
        for w in &mut self.workers {
            w.credit();
        }
        self.observed.iter_mut().for_each(Observed::collect);
    }
    /// One full pass.
    pub(crate) fn pass(&mut self) {
        self.pass = None;
        while self.step() {}
    }
    /// Runs one piece of a pass; `false`: that was the last one.
    pub(crate) fn step(&mut self) -> bool {
        let end = Instant::now() + SLICE;
        let mut pass = match self.pass.take() {
            Some(p) => p,
            None => self.begin(),
        };
        let (chunk, at) = (pass.chunk, pass.at);
        let next = self.check_worker(pass.worker, &mut pass, |r, horizon, look| {
            let next = r.scan(chunk, at, horizon, |r, seen| {
                look.at(r, seen);
                !(seen.slot as usize).is_multiple_of(GLANCE) || Instant::now() < end
            });
            (next, r.n_chunks())
        });
        let Some((next, n_chunks)) = next else {
            if !self.check_missed(&mut pass, end) {
                self.pass = Some(pass);
                return true;
            }
            self.observed.iter_mut().for_each(|o| o.observer.pass_ends());
            let c = &mut self.counts;
            c.passes += 1;
            c.last_pass_ms = u64::try_from(pass.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            return false;
        };
        match next {
            Some(next) => pass.at = next,
            None => (pass.chunk, pass.at) = (pass.chunk + 1, 0),
        }
        if pass.chunk >= n_chunks {
            (pass.worker, pass.chunk) = (pass.worker + 1, 0);
            // Workers do not share cached translations.
            pass.made.clear();
        }
        self.pass = Some(pass);
        true
    }
    /// Lets `f` check entries of one worker, with ids below the given one, and sends the findings to the
    /// worker. `None`: there is no such worker.
    fn check_worker<T>(
        &mut self,
        worker: usize,
        pass: &mut Pass,
        f: impl FnOnce(&mut Records, u64, &mut EntryCheck<'_>) -> T,
    ) -> Option<T> {
        let w = self.workers.get_mut(worker)?;
        let horizon = w.records.drain();
        let mut findings = RevalidatorFindings::new();
        let mut look = EntryCheck {
            shared: &self.shared,
            scratch: &mut self.scratch,
            counts: &mut self.counts,
            pass,
            worker: w.index,
            observed: self.observed.as_mut(),
            findings: &mut findings,
        };
        let seen = f(&mut w.records, horizon, &mut look);
        w.records.give();
        if !findings.is_empty() {
            // A worker that takes no commands is stopping, and frees all its entries.
            let _ = w.commands.send(Command::Findings(findings));
        }
        Some(seen)
    }
    /// Ends a pass: the observer is notified that flows which the pass did not find valid are gone. Before
    /// that they are checked once more: their worker may have been rewriting them, mostly after findings of
    /// the pass before. `false`: `end` was reached first.
    fn check_missed(&mut self, pass: &mut Pass, end: Instant) -> bool {
        while let Some((id, shown)) = self.observed.as_ref().and_then(|o| o.missed(&mut pass.at)) {
            if let Some(at) = self.workers.iter().position(|w| w.index == shown.worker) {
                pass.made.clear();
                self.check_worker(at, pass, |r, horizon, look| {
                    r.look(shown.slot, horizon, |r, seen| look.at(r, seen))
                });
            }
            self.observed.iter_mut().for_each(|o| o.gone_if_missed(id));
            if Instant::now() >= end {
                return false;
            }
        }
        true
    }
    fn begin(&mut self) -> Pass {
        let n = self.shared.n_flows.load(Relaxed);
        let limit = self.shared.flow_limit.load(Relaxed);
        self.counts.max_flows = self.counts.max_flows.max(n as u64);
        self.counts.sum_flows += n as u64;
        self.log_limit(limit);
        self.observed.iter_mut().for_each(Observed::begin);
        let is_logged = log::log_enabled!(target: DPIF, log::Level::Debug);
        self.pass_state(if is_logged { MAX_LOGGED_ENTRIES } else { 0 })
    }
    /// The state at the beginning of a pass that may write this number of entries into the log.
    fn pass_state(&self, log_quota: u32) -> Pass {
        let n = self.shared.n_flows.load(Relaxed);
        let limit = self.shared.flow_limit.load(Relaxed);
        Pass {
            started: Instant::now(),
            now_ms: self.shared.clock.now_ms(),
            max_idle: match n {
                _ if n > limit.saturating_mul(2) => 0,
                // New flows are not cached, or soon will not be.
                _ if n >= limit - limit / 16 => HURRIED_IDLE_MS,
                _ => u64::MAX,
            }
            .min(self.shared.max_idle_ms.load(Relaxed)),
            worker: 0,
            chunk: 0,
            at: 0,
            looked: 0,
            log_quota,
            made: HashMap::new(),
        }
    }
    /// Logs that the limit kept translations out of the cache since the last pass: each of their packets is
    /// translated.
    fn log_limit(&mut self, limit: usize) {
        let mut kept_out = 0;
        for w in &mut self.workers {
            let n = w.counters.limit_hits.get();
            kept_out += n - std::mem::replace(&mut w.limit_hits, n);
        }
        if kept_out > 0 {
            log::warn!(target: "ofproto_dpif_upcall", per_min = 1, burst = 5;
                "upcall: datapath reached the limit of {limit} flows: {kept_out} translations were not cached");
        }
    }
    /// Removes all entries, crediting them.
    pub(crate) fn purge(&mut self) {
        for w in &mut self.workers {
            let horizon = w.records.drain();
            for chunk in 0..w.records.n_chunks() {
                let mut findings = RevalidatorFindings::new();
                w.records.scan_all(chunk, horizon, |r, seen| {
                    r.credit(seen.slot, &seen.now);
                    if !seen.now.evicted {
                        seen.entry.evict(seen.now.id);
                        findings.push((seen.slot, seen.now.id, None));
                    }
                });
                let _ = w.commands.send(Command::Findings(findings));
            }
            w.records.give();
        }
        self.observed.iter_mut().for_each(Observed::all_gone);
    }
    /// Credits and drops all entries of a worker that has ended.
    pub(crate) fn retire(&mut self, index: usize) {
        self.pass = None;
        self.workers.retain_mut(|w| {
            if w.index == index {
                w.credit();
            }
            w.index != index
        });
    }
}

/// Result of checking an entry's translation.
enum CheckResult {
    /// The cached translation is valid.
    Holds,
    /// This cached translation replaces it; the worker is notified.
    Renewed(Arc<CachedTranslation>),
    /// The entry was not checked.
    Unknown,
    /// No translation is valid under the entry's mask.
    Wrong,
}

/// A check of entries.
struct EntryCheck<'a> {
    shared: &'a Shared,
    scratch: &'a mut Translation,
    counts: &'a mut RevalidatorCounts,
    pass: &'a mut Pass,
    worker: usize,
    observed: Option<&'a mut Observed>,
    findings: &'a mut RevalidatorFindings,
}

impl EntryCheck<'_> {
    fn at(&mut self, r: &mut Records, seen: &ScannedEntry<'_>) {
        let now = &seen.now;
        r.credit(seen.slot, now);
        if now.evicted {
            return;
        }
        if self.pass.log_quota > 0 {
            self.log_entry(r, seen);
        }
        let (mut flow, mut used_ms) = (None, now.counts.used_ms);
        if let Some(o) = &mut self.observed {
            flow = o.find(r, seen);
            if let Some(id) = flow {
                used_ms = used_ms.max(o.counts(id).used_ms);
                o.observer.seen(id, now.counts.packets);
            }
        }
        let useless = if self.pass.now_ms.saturating_sub(used_ms) >= self.pass.max_idle {
            self.counts.idle += 1;
            true
        } else {
            let check_translation = self.check_translation(r, seen);
            let wrong = matches!(check_translation, CheckResult::Wrong);
            self.counts.changed += u64::from(wrong);
            if let Some(o) = &mut self.observed {
                let translation = match check_translation {
                    CheckResult::Holds => r.translation(now.translation).map(|h| Arc::clone(&h.cached)),
                    CheckResult::Renewed(made) => Some(made),
                    CheckResult::Unknown | CheckResult::Wrong => None,
                };
                match (translation, flow) {
                    (Some(translation), _) => o.right(flow, r, seen, self.worker, translation),
                    (None, Some(id)) if wrong => o.gone(id),
                    _ => {}
                }
            }
            wrong
        };
        if useless {
            seen.entry.evict(now.id);
            self.findings.push((seen.slot, now.id, None));
        }
    }

    /// Logs an entry at the debug level.
    #[cold]
    fn log_entry(&mut self, r: &mut Records, seen: &ScannedEntry<'_>) {
        if let Some(flow) = dump_of(r, seen) {
            self.pass.log_quota -= 1;
            let ufid = heddle_datapath_api::ufid(&flow.key, &flow.mask);
            let text = flow.text_verbose(self.pass.now_ms, None);
            log::debug!(target: DPIF, "{}: flow_dump {ufid} {text}", self.shared.name);
        }
    }
    /// Logs an entry whose fresh translation differs.
    #[cold]
    fn log_changed(&mut self, r: &Records, seen: &ScannedEntry<'_>) {
        if let Some((key, subtable)) = r.whole_key(seen) {
            self.pass.log_quota = self.pass.log_quota.saturating_sub(1);
            let key_text = heddle_datapath_api::format_key(&key, &subtable.mask, true, None);
            log::debug!(
                target: DPIF,
                "{}: put[modify] {} {key_text}, actions:{}",
                self.shared.name,
                heddle_datapath_api::ufid(&key, &subtable.mask),
                heddle_datapath_api::format_actions(&self.scratch.actions, None),
            );
        }
    }

    /// Checks whether the entry agrees with a fresh translation. If a translation was made, its cached
    /// translation is handed to the worker.
    fn check_translation(&mut self, r: &mut Records, seen: &ScannedEntry<'_>) -> CheckResult {
        let generations = self.shared.translate.generations();
        // Read before anything that the translation reads.
        let any = generations.any();
        let Some(held) = r.translation(seen.now.translation) else {
            // The event of the cached translation arrives by the next pass.
            return CheckResult::Unknown;
        };
        if held.cached.valid_at(any) || held.cached.recheck(any, generations) {
            return CheckResult::Holds;
        }
        let hot =
            seen.now.counts.packets > 0 && self.pass.now_ms.saturating_sub(seen.now.counts.used_ms) < HOT_MS;
        // If an observer forwards a flow, no worker checks it.
        if hot && self.pass.looked >= MIN_CHECKS && self.observed.is_none() {
            return CheckResult::Unknown;
        }
        self.pass.looked += 1;
        let cached = Arc::clone(&held.cached);
        let compiled = Arc::clone(&cached.compiled);
        // The key of an actual packet is needed. A key without the bits outside the mask may be impossible (a
        // tag without its type).
        let Some((whole, subtable)) = r.whole_key(seen) else {
            return CheckResult::Unknown;
        };
        let known = KnownBits::new(&whole.masked(&subtable.mask), &subtable.mask);
        if cached.outlasts(known, generations) {
            return CheckResult::Holds;
        }
        self.counts.rechecked += 1;
        let t = &mut *self.scratch;
        t.clear();
        let request = Request {
            key: &whole,
            packet: None,
            now_ms: self.pass.now_ms,
            purpose: Purpose::Revalidate,
        };
        self.shared.translate(&request, t);
        // Masks are per origin, so these bits always count.
        (t.mask.0.in_port, t.mask.0.recirc_id) = (u32::MAX, u32::MAX);
        if t.uncacheable || !subtable.mask.contains(&t.mask) {
            return CheckResult::Wrong;
        }
        // An entry with other actions is the same flow, and its counts continue.
        let same = *compiled.actions == *t.actions;
        if !same {
            self.counts.changed += 1;
            if self.pass.log_quota > 0 {
                self.log_changed(r, seen);
            }
        }
        let t = &mut *self.scratch;
        let print = fingerprint(&t.actions, &t.deps, &t.credits);
        let made = match self.pass.made.get(&print) {
            Some(v) if v.is_result_of(t) => {
                v.confirm(any);
                Arc::clone(v)
            }
            _ => {
                let compiled = if same {
                    compiled
                } else {
                    CompiledActions::of(&t.actions)
                };
                let v = CachedTranslation::renewed(t, compiled, any);
                self.pass.made.insert(print, Arc::clone(&v));
                v
            }
        };
        self.findings
            .push((seen.slot, seen.now.id, Some(Arc::clone(&made))));
        CheckResult::Renewed(made)
    }
}
