//! The back end of tc: flows become filters of `flower` at the ingress of their port's device. The kernel
//! runs them, or the device's card. `docs/offload-tc.md` explains it to operators.
//!
//! * [`keys`]: the match of a rule as keys of `flower`, with the conditions that the rule leaves out.
//! * [`actions`]: a rule's steps as actions; [`cookie`]: the cookie of the first one.
//! * [`attrs`]: the attributes and actions that `netlink-packet-route` lacks.
//! * [`plan`], [`fields`]: a rule behind others, and how a packet becomes again what came in.
//! * [`paths`]: chains of filters, for flows that track or recirculate. [`chains`] adds them, [`stages`] has
//!   the flows behind a recirculation, and [`chain_removal`] removes all of it.
//! * [`ct`]: the action `ct`, and keys of connections. [`conns`], [`conn_table`], [`entries`]: connections in
//!   the kernel's table.
//! * [`message`]: requests about filters, and the parser of the kernel's messages.
//! * [`encap`], [`tunnel_devices`]: outer headers, and the kernel's devices that write them.
//! * [`side`], [`received`], [`tunnel_programs`]: flows out of tunnels, and packets without a flow.
//! * [`installed`]: the filter of a flow; [`miss_filter`]: the one after those of flows.
//! * [`flows`]: adds, changes and removes filters; [`counts`]: reads their counts.
//! * [`retries`]: flows that a card did not take get another chance.
//! * [`uncounted`]: flows of which a card counts no packet.
//! * [`ports`]: diverts devices, or shares them with the eBPF back end.
//! * [`leftovers`]: filters of an earlier process.
//!
//! **Order of filters.** Filters of flows have lower priority numbers than all other filters of the switch,
//! so they come first. The last one matches all packets. It is the eBPF program, or without eBPF a filter
//! that sends packets to the port's miss device ([`crate::miss`]).
//!
//! **End.** Filters stay and forward after the process has ended. [`crate::Backend::shutdown`] removes them.

mod actions;
mod attrs;
mod chain_removal;
mod chains;
mod conn_table;
mod conns;
mod cookie;
mod counts;
mod ct;
mod encap;
mod entries;
mod fields;
mod flows;
mod installed;
mod keys;
mod leftovers;
mod message;
mod miss_filter;
mod paths;
mod plan;
mod ports;
mod received;
mod retries;
mod side;
mod stages;
#[cfg(test)]
mod tests;
mod tunnel_devices;
mod tunnel_programs;
mod uncounted;

use crate::{Backend, ConnUse, Handle, PortLink, Rule, Why, miss};
use heddle_conntrack::offloaded::{ConnId, EndOffload, Offloadable};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_port::Divert;
use heddle_sys::TapQueue;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Why packets of a tunnel that ends here, and packets out of it, are left to others.
const ENDS_HERE: Why = Why::Tunnel("ends here: eBPF or workers take packets out of it");

/// Why flows that track or recirculate are not filters beside the eBPF program, which has them.
const BESIDE_EBPF: Why = Why::Action("ct or recirc (through tc, beside eBPF)");
/// Linux that removes entries of connections which its flow table has.
const FLOW_TABLE_KERNEL: (u32, u32) = (6, 4);

/// The reason of a refusal, from the error of a request.
fn why(error: &io::Error) -> Why {
    let errno = error.raw_os_error().unwrap_or(Errno::TIMEDOUT.raw_os_error());
    match Errno::from_raw_os_error(errno) {
        Errno::NOSPC => Why::Full,
        Errno::NODEV => Why::InPort,
        _ => Why::Refused(errno),
    }
}

/// Maximum number of flows.
const MAX_FLOWS: usize = 1 << 20;

/// Whether filters run in cards or in the kernel: `other_config:tc-policy`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum TcPolicy {
    /// The card if it accepts the filter, and the kernel.
    #[default]
    None,
    /// The card only.
    SkipSw,
    /// The kernel only.
    SkipHw,
}

impl TcPolicy {
    /// The policy with this name (Open vSwitch's names).
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "skip_sw" => Some(Self::SkipSw),
            "skip_hw" => Some(Self::SkipHw),
            _ => None,
        }
    }
}

/// The tc back end; clones share it. [`crate::Offload`] has one, and ports have one to divert devices.
#[derive(Clone)]
pub struct Tc(Arc<Mutex<flows::FilterTable>>);

impl fmt::Debug for Tc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tc").finish_non_exhaustive()
    }
}

impl Tc {
    /// Takes over the filters that an earlier process with the same `owner` number left. `alone`: there is no
    /// eBPF program behind the filters, so this back end diverts devices itself.
    ///
    /// # Errors
    /// The reason, in one line, why this kernel or this user cannot have such filters.
    pub fn start(owner: u64, policy: TcPolicy, alone: bool) -> Result<Self, String> {
        if alone {
            miss::remove_miss_devices(miss::group_of(owner));
        }
        ports::probe()?;
        let mut state = flows::FilterTable::new(owner, policy, alone).map_err(|e| e.to_string())?;
        state.adopt();
        Ok(Self(Arc::new(Mutex::new(state))))
    }
    /// Removes the filters that earlier processes with the same `owner` number left, and the tunnel devices.
    /// Returns the number of filters.
    pub fn remove_leftovers(owner: u64) -> usize {
        let n = leftovers::remove(owner);
        tunnel_devices::remove_leftovers(owner);
        n
    }
    /// Number of filters of flows that an earlier process left, and that still forward.
    pub fn adopted(&self) -> usize {
        self.0.lock().adopted()
    }
    /// Adds a device that has the eBPF program: filters of flows come before the program.
    pub fn join(&self, name: &str, ifindex: u32) {
        self.0.lock().join(name, ifindex);
    }
}

impl Divert for Tc {
    fn divert(&self, name: &str, ifindex: u32) -> io::Result<Arc<TapQueue>> {
        self.0.lock().divert(name, ifindex)
    }
    fn release(&self, _name: &str, ifindex: u32) {
        self.0.lock().let_go(ifindex);
    }
    fn changed(&self, ifindex: u32, diverted: bool) -> bool {
        self.0.lock().changed(ifindex, diverted)
    }
}

impl Backend for Tc {
    fn name(&self) -> &'static str {
        "tc"
    }
    fn capacity(&self) -> usize {
        MAX_FLOWS
    }
    fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        self.0.lock().install(at, rule)
    }
    fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        self.0.lock().change(at, rule)
    }
    fn again(&mut self) -> Vec<Handle> {
        self.0.lock().again()
    }
    fn remove(&mut self, at: Handle) -> FlowCounts {
        self.0.lock().remove(at)
    }
    fn settle(&mut self) {
        self.0.lock().settle();
    }
    fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        self.0.lock().counters(now_ms, f);
    }
    fn set_ports(&mut self, ports: &[PortLink]) -> Vec<PortNo> {
        self.0.lock().set_ports(ports)
    }
    fn conn_capacity(&self) -> usize {
        match self.0.lock().alone {
            true => conn_table::MAX_CONNS,
            false => 0,
        }
    }
    fn end_conns(&self) -> Option<Arc<dyn EndOffload>> {
        let state = self.0.lock();
        state.alone.then(|| state.conns.ender())
    }
    fn takes_unreplied(&self) -> bool {
        false
    }
    fn install_conn(&mut self, conn: &Offloadable) -> Result<(), Why> {
        let state = &mut *self.0.lock();
        let for_cards = state.policy != TcPolicy::SkipHw
            && state.devices.values().any(|d| d.is_card)
            && crate::kernel::version() >= FLOW_TABLE_KERNEL;
        state.conns.install(conn, for_cards)
    }
    fn remove_conns(&mut self, ids: &[ConnId]) {
        self.0.lock().conns.remove(ids);
    }
    fn conn_use(&mut self, id: ConnId) -> ConnUse {
        self.0.lock().conns.used(id)
    }
    fn drop_adopted(&mut self) {
        self.0.lock().drop_adopted();
    }
    fn stats(&self) -> Vec<(String, u64)> {
        self.0.lock().stats()
    }
    fn left_ports(&self) -> Vec<(String, String)> {
        self.0.lock().others.all()
    }
    fn providers(&self) -> Vec<(&'static str, Vec<PortNo>)> {
        let state = self.0.lock();
        let serves = |ifindex| state.devices.contains_key(&ifindex) && state.serves(ifindex);
        vec![(self.name(), state.ports.on(serves))]
    }
    fn served_ports(&self) -> Vec<(String, String)> {
        self.0.lock().served_ports()
    }
    fn note(&self, at: Handle) -> Option<String> {
        self.0.lock().note(at)
    }
    fn remove_devices(&mut self) {
        let state = self.0.lock();
        if state.alone {
            miss::remove_miss_devices(state.group);
        }
    }
    fn shutdown(&mut self) {
        self.0.lock().shutdown();
    }
}
