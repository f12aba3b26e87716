//! Where others are told of cached flows: each flow once, however many workers cache it.
//!
//! An observer may carry flows out somewhere else (a program in the kernel, a network card). What it
//! forwards there, no worker sees; it gives the counts back, and they reach rules, the ages of cached flows,
//! and dumps.
//!
//! **What a flow is.** A mask, and a key in the bits of that mask; input port and recirculation id always
//! count. A stage behind a recirculation is a flow of its own. Flows of different masks may overlap; then
//! they say the same, so none goes before another.
//!
//! **When it is told.** The revalidator tells, in its passes: workers pay nothing. At the end of a pass the
//! observer knows exactly the flows that the pass found in a worker's cache and found right. A flow that the
//! pass could not look at, because its worker was rewriting it each time, is told as gone, and as added by a
//! later pass: the safe error is a flow too few, whose packets a worker forwards.
//!
//! **When rules change.** A flow that goes on with other actions or other creditors is told as changed, at
//! once when the revalidator finds that out. It is not gone and added: its packets need not come up between
//! the two, and its counts go on. A flow that its mask does not fit any more, or that must not be cached, is
//! gone. A change of rules is in force for the observer when the first pass that begins after it has ended:
//! that takes `Config::revalidate_interval_ms` and the time of a pass, or one call of
//! [`Engine::observe_now`](crate::Engine::observe_now), which is to come before the change is confirmed.
//!
//! **Threads.** All methods are called under the revalidator's lock, by one thread at a time. They must not
//! call the datapath. They should return soon: who has to wait for a device reads its counters in a thread of
//! its own. Only `added` may leave for later what it is asked for.
//!
//! **Bounds.** There are as many flows as workers cache, at most. An observer need not take all of them: of
//! one that it left alone it says that nothing was counted.

use crate::action::{Action, PortNo};
use crate::translation::Credit;
use heddle_flow::{FlowKey, FlowMask};
use std::sync::Arc;

/// Names a flow from its being added until it is gone. Given to another flow after 2^32 others at the
/// earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(pub u64);

/// A flow.
pub struct ObservedFlow<'a> {
    /// Its name.
    pub id: FlowId,
    /// The key of a packet of this flow, whole.
    pub key: &'a FlowKey,
    /// Which bits of it count.
    pub mask: &'a FlowMask,
    /// What is done to its packets.
    pub actions: &'a Arc<[Action]>,
    /// Who is credited with them. The revalidator does that, also with what the observer has counted.
    pub credits: &'a [Arc<dyn Credit>],
}

/// Packets that an observer forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the last one came, milliseconds of the datapath's clock (`Config::clock`).
    pub used_ms: u64,
    /// Union of their TCP flags.
    pub tcp_flags: u16,
}

/// What a port received and sent without a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// Someone who is told of cached flows.
///
/// Counts are of what was not told before: each packet is counted in one answer.
pub trait FlowObserver: Send {
    /// There is a new flow.
    fn added(&mut self, flow: &ObservedFlow<'_>);
    /// A flow's actions or creditors are others now: when this returns, no packet is forwarded by the old
    /// actions any more. Returns what was counted under them.
    fn changed(&mut self, flow: &ObservedFlow<'_>) -> FlowCounts;
    /// A flow is no more: when this returns, none of its packets is forwarded by the observer. Returns what
    /// was counted last.
    fn gone(&mut self, id: FlowId) -> FlowCounts;
    /// Gives `f` what flows have counted. Called at the beginning of each pass, and before statistics and
    /// flows are shown.
    fn counters(&mut self, f: &mut dyn FnMut(FlowId, FlowCounts));
    /// A pass has seen an entry of this flow, and its worker has counted so many packets since it was made.
    fn seen(&mut self, _id: FlowId, _packets: u64) {}
    /// A pass has ended.
    fn pass_ends(&mut self) {}
    /// A change is about to be confirmed: the pass that ended last was made for it.
    fn confirm(&mut self) {}
    /// What a port received and sent of packets that the observer forwarded, since it came.
    fn port_counts(&self, _no: PortNo) -> PortCounts {
        PortCounts::default()
    }
    /// Where else packets of a flow are forwarded, as dumps say it (`dp:NAME`).
    fn place(&self, _id: FlowId) -> Option<&'static str> {
        None
    }
    /// Why they are not, for people.
    fn waits(&self, _id: FlowId) -> Option<String> {
        None
    }
}
