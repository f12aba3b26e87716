//! The trait of a back end.
//!
//! The trait is cut so that each of these can be behind it:
//!
//! | | eBPF | tc flower | `rte_flow` |
//! | --- | --- | --- | --- |
//! | a flow | a value in a map | a filter with a cookie | a rule of a template table |
//! | change in place | map update | `RTM_NEWTFILTER` replaces by handle | `actions_update` |
//! | counts | mapped memory | dump of the chain | `query` with `COUNT`, or ageing |
//! | what it cannot do | [`Rule`] has no word for it, or [`Why`] | the driver's extack | `rte_flow_validate` |
//!
//! **Order.** When [`Backend::change`] or [`Backend::remove`] returns, no packet finds the old actions any
//! more, and the returned counts include the packets that did. After [`Backend::settle`], no packet uses the
//! old actions any more, so a change can be confirmed.

use crate::{Rule, Why};
use heddle_conntrack::offloaded::{ConnId, EndOffload, Offloadable};
use heddle_datapath_api::{FlowCounts, PortNo};
use std::sync::Arc;

/// A flow's name between [`crate::Offload`] and a back end; it is given to another one after it was removed.
pub type Handle = u32;

/// Use of a connection by the back end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnUse {
    /// The tracker has ended it.
    Ended,
    /// The back end has not looked since the last call.
    Unknown,
    /// No packets between the last two looks of the back end.
    Rests,
    /// Packets.
    Used,
}

/// A port as a back end sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLink {
    /// Number of the port in the datapath.
    pub no: PortNo,
    /// Name of the port.
    pub name: String,
    /// Index of its device.
    pub ifindex: u32,
    /// Largest IP packet, bytes; 0: no limit.
    pub mtu: u32,
    /// The device's other end is the host's stack: an internal port. Its packets are not diverted to a miss
    /// device.
    pub internal: bool,
}

/// A place that forwards packets faster than workers do.
pub trait Backend: Send {
    /// Name in dumps (`dp:NAME`).
    fn name(&self) -> &'static str;
    /// Name of the back end that has an installed flow.
    fn backend_name(&self, _at: Handle) -> &'static str {
        self.name()
    }
    /// Maximum number of flows.
    fn capacity(&self) -> usize;
    /// Installs a rule: the back end forwards its packets.
    ///
    /// # Errors
    /// The reason of a refusal; the back end forwards none of the packets then.
    fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why>;
    /// Replaces the actions of an installed flow, without a moment in which a packet finds no flow. Returns
    /// the counts of the old actions. If the new ones are refused, the flow is removed.
    fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>);
    /// Installed flows that are to be given to [`Backend::change`] once more. A network card that did not
    /// take them may do so now.
    fn again(&mut self) -> Vec<Handle> {
        Vec::new()
    }
    /// Takes a flow out. Returns the counts since the last call.
    fn remove(&mut self, at: Handle) -> FlowCounts;
    /// Waits until no packet uses actions that were changed or removed before. Needed by a back end whose
    /// [`Backend::change`] and [`Backend::remove`] do not wait for that.
    fn settle(&mut self) {}
    /// Gives `f` the counts of installed flows since the last call. Flows that counted nothing are left out.
    fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts));
    /// Sets the ports. Returns the ports whose flows must be installed anew, or can be for the first time.
    fn set_ports(&mut self, ports: &[PortLink]) -> Vec<PortNo>;
    /// Maximum number of connections.
    fn conn_capacity(&self) -> usize {
        0
    }
    /// Handle that ends connections at once, from any thread; `None`: the back end has no connections.
    fn end_conns(&self) -> Option<Arc<dyn EndOffload>> {
        None
    }
    /// Connections that an earlier process left here and that have not ended, by the names that they had.
    fn adopted_conns(&self) -> Vec<Offloadable> {
        Vec::new()
    }
    /// Whether the back end takes connections without a reply.
    fn takes_unreplied(&self) -> bool {
        true
    }
    /// Installs a connection, so that rules that track find it.
    ///
    /// # Errors
    /// The reason of a refusal.
    fn install_conn(&mut self, _conn: &Offloadable) -> Result<(), Why> {
        Err(Why::Action("ct"))
    }
    /// Takes connections out.
    fn remove_conns(&mut self, _ids: &[ConnId]) {}
    /// Use of a connection since the last call.
    fn conn_use(&mut self, _id: ConnId) -> ConnUse {
        ConnUse::Ended
    }
    /// Removes the entries of an earlier process that this one has not taken over.
    fn drop_adopted(&mut self) {}
    /// Counters of the back end, for people.
    fn stats(&self) -> Vec<(String, u64)>;
    /// Ports that the back end leaves to workers: name and reason.
    fn left_ports(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// The back ends behind this one, in the order in which flows are offered to them. Each has a name, and
    /// the ports whose flows it may have.
    fn providers(&self) -> Vec<(&'static str, Vec<PortNo>)> {
        vec![(self.name(), Vec::new())]
    }
    /// Ports that the back end serves in a way that is to be shown: name, place and reason.
    fn served_ports(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// A remark about an installed flow, for people.
    fn note(&self, _at: Handle) -> Option<String> {
        None
    }
    /// Removes the devices that were made for this process, which is about to end. Flows stay.
    fn remove_devices(&mut self) {}
    /// Takes everything out and lets go of all ports.
    fn shutdown(&mut self) {}
}
