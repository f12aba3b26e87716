//! State shared by all threads of a datapath.

use crate::exec::fragments::WaitingFragment;
use crate::exec::upcalls::{Bell, Lanes};
use crate::exec::watch::WatchInbox;
use crate::perf::SuspectSetting;
use heddle_conntrack::Conntrack;
use heddle_conntrack::ipf::Ipf;
use heddle_datapath_api::{Action, DropReason, Request, Translate, Translation};
use heddle_flow_cache::{HashKey, LookupContext};
use heddle_sync::{Clock, Wakeup};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Settings and shared counts; relaxed, each is independent of the others.
pub(crate) struct Shared {
    /// Name of the datapath in the log.
    pub(crate) name: String,
    pub(crate) translate: Arc<dyn Translate>,
    pub(crate) clock: Arc<Clock>,
    /// Rung when packets for the control plane wait.
    pub(crate) bells: Lanes<Arc<Bell>>,
    /// Examples of dropped packets, and the capture.
    pub(crate) watched: Arc<WatchInbox>,
    pub(crate) hash_key: HashKey,
    pub(crate) conntrack: Arc<Conntrack>,
    /// Fragments that wait to be tracked.
    pub(crate) fragments: Ipf<WaitingFragment>,
    /// Entries held by all workers. Changed on insertion and removal only.
    pub(crate) n_flows: AtomicUsize,
    pub(crate) flow_limit: AtomicUsize,
    pub(crate) max_idle_ms: AtomicU64,
    /// VLAN tags that the parser reads.
    pub(crate) vlan_limit: AtomicU8,
    /// Maximum time of polling without packets, cycles.
    pub(crate) spin_cycles: AtomicU64,
    /// `emc-insert-inv-prob`; [`UNSET`] by default.
    pub(crate) inv_prob: AtomicU32,
    /// Whether packets are joined to GSO packets at egress.
    pub(crate) joins: AtomicBool,
    /// `pmd-perf-metrics`: iterations are sorted into histograms.
    pub(crate) perf_metrics: AtomicBool,
    /// Workers keep processors from halting while packets come every few milliseconds.
    pub(crate) light_sleep: AtomicBool,
    /// Selects the iterations that are logged.
    pub(crate) suspects: SuspectSetting,
    /// The revalidator's thread, to be woken when a worker's handover ring fills up, or for an observer's new
    /// flow.
    pub(crate) revalidator_wakeup: Wakeup,
    /// There is an observer of flows, which is to know of new flows soon.
    pub(crate) observed: AtomicBool,
    /// The revalidator makes no passes.
    pub(crate) paused: AtomicBool,
    /// A pass is due before the revalidator's interval is over.
    pub(crate) hurried: AtomicBool,
    pub(crate) stop: AtomicBool,
}

/// See [`Shared::has_room`].
const SHARE: usize = 16;
/// Smaller limits are not shared among ports.
const SHARED_FROM: usize = 1024;

/// A setting that was not set.
pub(crate) const UNSET: u32 = u32::MAX;

impl Shared {
    /// Whether another entry may be cached for a port that has `held`. A port may hold [`SHARE`] times the
    /// number of free entries. So no sender, nor a few of them together, can use up the cache ("dynamic
    /// thresholds", Choudhury and Hahne 1998).
    pub(crate) fn has_room(&self, held: usize) -> bool {
        let limit = self.flow_limit.load(Relaxed);
        let left = limit.saturating_sub(self.n_flows.load(Relaxed));
        left > 0 && (limit < SHARED_FROM || held < left.saturating_mul(SHARE))
    }
    /// The context of a lookup; `any` was read before.
    pub(crate) fn lookup(&self, any: u64, now_ms: u64) -> LookupContext<'_> {
        LookupContext {
            now_ms,
            any,
            generations: self.translate.generations(),
        }
    }
    /// Calls the pipeline. A panic would be a bug of the pipeline: then the translation drops the packet and
    /// is not cached. So a packet that triggers such a bug costs itself, but not the worker with all of its
    /// queues.
    pub(crate) fn translate(&self, request: &Request<'_>, out: &mut Translation) {
        // After a panic `out` is cleared. The pipeline changes shared state under its own locks, or not at
        // all.
        let asked = AssertUnwindSafe(|| self.translate.translate(request, out));
        if catch_unwind(asked).is_err() {
            out.clear();
            out.actions.push(Action::Drop(DropReason::Fault));
            out.uncacheable = true;
        }
        out.credits.settle();
    }
    pub(crate) fn wake_revalidator(&self) {
        self.revalidator_wakeup.ring();
    }
}
