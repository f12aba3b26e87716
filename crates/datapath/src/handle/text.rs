//! Texts and sums for the control plane.

use super::Datapath;
use crate::control::WorkerHandle;
use crate::control::show;
use crate::counters::add_all;
use crate::perf::PerfWanted;
use heddle_conntrack::Event;
use heddle_datapath_api::{DropKind, Snapshot, Totals};
use std::sync::atomic::Ordering::Relaxed;

impl Datapath {
    /// `dpif-netdev/pmd-stats-show`, of the worker of processor `core` or of all.
    pub fn pmd_stats_show(&self, core: Option<usize>) -> String {
        show::pmd_stats(&self.control.lock(), core)
    }
    /// `dpif-netdev/pmd-stats-clear`.
    pub fn pmd_stats_clear(&self, core: Option<usize>) {
        let now_ms = self.shared.clock.now_ms();
        let mut control = self.control.lock();
        let chosen = |w: &&mut WorkerHandle| core.is_none_or(|core| core == w.core);
        for w in control.workers.iter_mut().filter(chosen) {
            w.base = w.counters.read();
            w.base_perf = w.counters.perf.read();
            w.counters.perf.clear();
            w.base_lost = w.counters.drops.get(DropKind::Upcall);
            w.cleared_ms = now_ms;
        }
    }
    /// `dpif-netdev/pmd-rxq-show`: usage over the last `secs` seconds, or a minute if that is 0.
    pub fn pmd_rxq_show(&self, core: Option<usize>, secs: u64) -> String {
        show::pmd_rxq(&self.control.lock(), core, secs)
    }
    /// `dpif-netdev/pmd-sleep-show`.
    pub fn pmd_sleep_show(&self) -> String {
        show::pmd_sleep(&self.control.lock())
    }
    /// Counters of workers and queues.
    pub fn snapshot(&self) -> Snapshot {
        show::snapshot(&self.control.lock())
    }
    /// `dpif-netdev/pmd-perf-show`; `time` is the wall clock as `HH:MM:SS.mmm`.
    pub fn pmd_perf_show(&self, core: Option<usize>, time: &str, wanted: PerfWanted) -> String {
        show::pmd_perf(&self.control.lock(), core, time, wanted)
    }
    /// The lines of `upcall/show` below the datapath's name.
    pub fn upcall_show(&self) -> String {
        let counts = self.revalidator.lock().counts;
        show::upcalls(&self.control.lock(), &counts)
    }
    /// Named drops, and events of connection tracking, since the start, as `coverage/show` and
    /// `coverage/read-counter` name them.
    pub fn coverage(&self) -> Vec<(&'static str, u64)> {
        let control = self.control.lock();
        let kinds = DropKind::ALL.iter().zip(&control.past_drops);
        // The table of fragments belongs to no worker, so it has counters of its own.
        let (expired, evicted) = self.shared.fragments.dropped();
        let without = control.dropped_without_worker();
        let drops = kinds.map(|(kind, past)| {
            let past = match kind {
                DropKind::FragmentTimeout => &expired,
                DropKind::FragmentEvicted => &evicted,
                _ => past,
            };
            let now: u64 = control.workers.iter().map(|w| w.counters.drops.get(*kind)).sum();
            let without = if *kind == DropKind::Policy { without } else { 0 };
            (kind.name(), past + now + without)
        });
        let mut tracked = control.past_tracked;
        for w in &control.workers {
            add_all(&mut tracked, w.counters.ct.get());
        }
        let events = Event::ALL.iter().zip(tracked).map(|(event, n)| (event.name(), n));
        drops.chain(events).collect()
    }
    /// Totals over all workers since the start.
    pub fn totals(&self) -> Totals {
        let control = self.control.lock();
        let mut t = Totals::default();
        let lost = DropKind::ALL.iter().position(|k| *k == DropKind::Upcall);
        t.lost = lost.and_then(|i| control.past_drops.get(i)).copied().unwrap_or(0);
        for n in control
            .workers
            .iter()
            .map(|w| w.counters.read())
            .chain([control.past])
        {
            t.packets += n.packets;
            t.l0_hits += n.l0_hits;
            t.l1_hits += n.l1_hits;
            t.l2_hits += n.l2_hits;
            t.misses += n.misses;
            t.limit_hits += n.limit_hits;
            t.l2_masks_probed += n.l2_probes;
            t.masks = t.masks.max(n.masks);
        }
        t.lost += control
            .workers
            .iter()
            .map(|w| w.counters.drops.get(DropKind::Upcall))
            .sum::<u64>();
        t.flows = self.shared.n_flows.load(Relaxed) as u64;
        t
    }
}
