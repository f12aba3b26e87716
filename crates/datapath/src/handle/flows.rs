//! Cached flows, and how they are cached.

use super::Datapath;
use crate::perf::SuspectLog;
use heddle_datapath_api::{Engine, FlowDump, FlowObserver};
use std::sync::atomic::Ordering::Relaxed;

/// Flows that are read under one lock.
const AT_A_TIME: usize = 256;

impl Datapath {
    /// Runs one full pass of the revalidator: it credits, translates entries with changed dependencies again,
    /// and evicts idle entries. Does nothing while the revalidator is paused.
    pub fn tick(&self) {
        if !self.shared.paused.load(Relaxed) {
            self.revalidator.lock().pass();
        }
        // Only if there is no connection expiry thread: connections must be checked by one thread at a time.
        let expiry = self.expiry.lock();
        while expiry.is_none() && !self.shared.fragments.sweep(self.shared.clock.now_ms()) {}
        while expiry.is_none() && !self.shared.conntrack.sweep(self.shared.clock.now_ms(), u32::MAX) {}
    }
    /// Sets the observer of cached flows. Existing flows are reported to it with the next pass. All flows of
    /// the previous observer are reported to that one as gone. When the datapath ends, the observer is
    /// dropped without a report; flows that it has offloaded are its own responsibility.
    pub fn set_observer(&self, observer: Option<Box<dyn FlowObserver>>) {
        self.revalidator.lock().set_observer(observer);
    }
    /// Pauses or resumes the revalidator (`revalidator/pause`, `revalidator/resume`). A running pass ends
    /// first. Workers still check the entries that they use.
    pub fn pause_revalidator(&self, paused: bool) {
        self.shared.paused.store(paused, Relaxed);
        drop(self.revalidator.lock());
    }
    /// Makes the next pass begin soon, because of a change that must not wait for the next packet of each
    /// flow.
    pub fn revalidate_soon(&self) {
        self.shared.hurried.store(true, Relaxed);
        self.shared.wake_revalidator();
    }
    /// Removes all cached flows, crediting them (`revalidator/purge`, `dpctl/del-flows`).
    pub fn purge(&self) {
        self.flush_stats();
        self.revalidator.lock().purge();
    }
    /// All cached flows, oldest first. The same flow may be cached by several workers.
    pub fn flows(&self) -> Vec<FlowDump> {
        let mut all = Vec::new();
        self.each_flow(|flow| all.push(flow));
        all
    }
    /// Gives `f` all cached flows one by one, in the order of [`Datapath::flows`]. Only some of them are held
    /// at a time.
    pub fn each_flow(&self, mut f: impl FnMut(FlowDump)) {
        let places = self.revalidator.lock().places();
        for some in places.chunks(AT_A_TIME) {
            let flows = self.revalidator.lock().dump(some);
            flows.into_iter().for_each(&mut f);
        }
    }
    /// Maximum number of cached flows.
    pub fn flow_limit(&self) -> usize {
        self.shared.flow_limit.load(Relaxed)
    }
    /// Sets the maximum number of cached flows (`flow-limit`).
    pub fn set_flow_limit(&self, n: usize) {
        self.shared.flow_limit.store(n, Relaxed);
    }
    /// Sets the idle time after which a flow is evicted (`max-idle`).
    pub fn set_max_idle_ms(&self, ms: u64) {
        self.shared.max_idle_ms.store(ms, Relaxed);
    }
    /// `emc-insert-inv-prob`: one of `n` insertions into a full part of the exact-match cache succeeds; 0
    /// switches that cache off. `None`, the default: the datapath chooses, and leaves the cache out where it
    /// gains nothing.
    pub fn set_emc_insert_inv_prob(&self, n: Option<u32>) {
        let n = n.map_or(crate::shared::UNSET, |n| n.min(crate::shared::UNSET - 1));
        self.shared.inv_prob.store(n, Relaxed);
    }
    /// `heddle-gro`: whether packets are joined for devices that take GSO packets; on by default.
    pub fn set_gro(&self, on: bool) {
        self.shared.joins.store(on, Relaxed);
    }
    /// Selects iterations that workers log while they keep histograms (`dpif-netdev/pmd-perf-log-set`).
    pub fn set_suspect_log(&self, log: &SuspectLog) {
        self.shared.suspects.set(log);
    }
    /// Sets whether workers keep histograms of their iterations (`pmd-perf-metrics`).
    pub fn set_perf_metrics(&self, on: bool) {
        self.shared.perf_metrics.store(on, Relaxed);
    }
}
