//! The observer of cached flows: the revalidator reports each flow once, however many workers cache it.
//!
//! An observer may offload flows (to a program in the kernel, to a network card). No worker sees the packets
//! that are forwarded there. The observer returns their counts, and these reach rules, the ages of cached
//! flows, and dumps.
//!
//! **Flows.** A flow is a mask, and a key in the bits of that mask; input port and recirculation id always
//! count. A stage behind a recirculation is a flow of its own. Flows of different masks may overlap; then
//! their actions are the same, so none goes before another.
//!
//! **Reports.** The revalidator reports in its passes: workers pay nothing. At the end of a pass the observer
//! knows exactly the flows that the pass found in a worker's cache and found right. The pass cannot look at a
//! flow that its worker is rewriting each time. It reports such a flow as gone, and a later pass reports it
//! as added. The safe error is a flow too few: a worker forwards its packets.
//!
//! **Changes of rules.** A flow that gets other actions or other creditors is reported as changed, at once
//! when the revalidator finds that out. It is not gone and added: its packets need not come up between the
//! two, and its counts continue. A flow that its mask does not fit any more, or that must not be cached, is
//! gone. A change of rules is in force for the observer when the first pass that begins after it has ended.
//! That takes `Config::revalidate_interval_ms` and the time of a pass, or one call of
//! [`Engine::observe_now`](crate::Engine::observe_now), which is to come before the change is confirmed.
//!
//! **Threads.** All methods are called under the revalidator's lock, by one thread at a time. They must not
//! call the datapath. They should return soon: an observer that has to wait for a device reads its counters
//! in a thread of its own. Only `added` may leave its work for later.
//!
//! **Bounds.** There are at most as many flows as workers cache. An observer need not take all of them: it
//! returns zero counts for a flow that it left alone.

use crate::action::{Action, PortNo};
use crate::translation::Credit;
use heddle_flow::{FlowKey, FlowMask};
use std::sync::Arc;

/// Name of a flow until it is gone. A name is used again after 2^32 other flows at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(pub u64);

/// A flow.
pub struct ObservedFlow<'a> {
    /// The name of the flow.
    pub id: FlowId,
    /// The key of a packet of this flow, whole.
    pub key: &'a FlowKey,
    /// Bits of the key that count.
    pub mask: &'a FlowMask,
    /// Actions on its packets.
    pub actions: &'a Arc<[Action]>,
    /// Counters to credit with them. The revalidator does that, also with the counts of the observer.
    pub credits: &'a [Arc<dyn Credit>],
}

/// Packets of a flow.
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

impl FlowCounts {
    /// Adds counts of the same flow.
    pub fn add(&mut self, more: &Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.used_ms = self.used_ms.max(more.used_ms);
        self.tcp_flags |= more.tcp_flags;
    }
    /// Credits these packets, if there are any.
    pub fn credit(&self, credits: &[Arc<dyn Credit>]) {
        if self.packets > 0 || self.bytes > 0 {
            let n = self;
            credits
                .iter()
                .for_each(|c| c.credit(n.packets, n.bytes, n.used_ms, n.tcp_flags));
        }
    }
}

/// Packets that a port received and sent without a worker.
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

/// An observer of cached flows.
///
/// Counts are of packets since the last report: each packet is counted in one of them.
pub trait FlowObserver: Send {
    /// There is a new flow.
    fn added(&mut self, flow: &ObservedFlow<'_>);
    /// A flow's actions or creditors have changed. When this returns, no packet is forwarded by the old
    /// actions any more. Returns the counts under them.
    fn changed(&mut self, flow: &ObservedFlow<'_>) -> FlowCounts;
    /// A flow is gone: when this returns, the observer forwards none of its packets. Returns the last counts.
    fn gone(&mut self, id: FlowId) -> FlowCounts;
    /// Gives `f` the counts of flows. Called at the beginning of each pass, and before statistics and flows
    /// are shown.
    fn counters(&mut self, f: &mut dyn FnMut(FlowId, FlowCounts));
    /// A pass has seen an entry of this flow, and its worker has counted `packets` since it was made.
    fn seen(&mut self, _id: FlowId, _packets: u64) {}
    /// A pass has ended.
    fn pass_ends(&mut self) {}
    /// A change is about to be confirmed: the pass that ended last was made for it.
    fn confirm(&mut self) {}
    /// Packets of a port that the observer forwarded, received and sent, since the port was added.
    fn port_counts(&self, _no: PortNo) -> PortCounts {
        PortCounts::default()
    }
    /// Packets that a rule drops, and that the observer dropped, since it was made.
    fn dropped(&self) -> u64 {
        0
    }
    /// Place outside of workers where packets of a flow are forwarded, as dumps print it (`dp:NAME`).
    fn place(&self, _id: FlowId) -> Option<&'static str> {
        None
    }
    /// Why an observer does not forward the flow, for people.
    fn waits(&self, _id: FlowId) -> Option<String> {
        None
    }
}
