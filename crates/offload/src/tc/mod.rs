//! The back end of tc: flows become filters of `flower` at the ingress of their port's device, which the
//! kernel runs, or the device's card. `docs/offload-tc.md` explains it to operators.
//!
//! * [`keys`]: a rule's match as keys, and the conditions that a rule does not name.
//! * [`actions`]: a rule's steps as actions.
//! * [`attrs`]: the attributes and actions that `netlink-packet-route` lacks.
//! * [`message`]: messages about filters, and what is read of the kernel's.
//! * [`flows`]: filters come, change and go, with their counts.
//! * [`ports`]: devices are diverted, or shared with the eBPF back end.
//! * [`leftovers`]: filters of an earlier process.
//!
//! **Order of filters.** Filters of flows have lower priorities (which come first) than all others of the
//! switch. Behind them is one that takes all packets: the eBPF program if that is on, otherwise a filter
//! that hands them to the port's miss device ([`crate::miss`]).
//!
//! **End.** Filters stay when the process ends, and still forward. [`crate::Backend::shutdown`] removes them.

mod actions;
mod attrs;
mod flows;
mod keys;
mod leftovers;
mod message;
mod ports;
#[cfg(test)]
mod tests;

use crate::{Backend, Handle, PortLink, Rule, Why, miss};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_port::Divert;
use heddle_sys::TapQueue;
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Maximum number of filters.
const MAX_FILTERS: usize = 1 << 20;

/// The places that filters may have: `other_config:tc-policy`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum TcPolicy {
    /// The card if it takes the filter, and the kernel.
    #[default]
    None,
    /// The card only.
    SkipSw,
    /// The kernel only.
    SkipHw,
}

impl TcPolicy {
    /// The policy of this name, as Open vSwitch has them.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "skip_sw" => Some(Self::SkipSw),
            "skip_hw" => Some(Self::SkipHw),
            _ => None,
        }
    }
}

/// The back end; clones share it. One is the back end of [`crate::Offload`], one is given to ports.
#[derive(Clone)]
pub struct Tc(Arc<Mutex<flows::State>>);

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
    /// One line with the reason why this kernel, or this user, cannot have such filters.
    pub fn start(owner: u64, policy: TcPolicy, alone: bool) -> Result<Self, String> {
        if alone {
            miss::remove_miss_devices(miss::group_of(owner));
        }
        ports::probe()?;
        let mut state = flows::State::new(owner, policy, alone).map_err(|e| e.to_string())?;
        state.adopt();
        Ok(Self(Arc::new(Mutex::new(state))))
    }
    /// Removes the filters that earlier processes with the same `owner` number left. Returns their number.
    pub fn remove_leftovers(owner: u64) -> usize {
        leftovers::remove(owner)
    }
    /// Filters of flows that an earlier process left, and that still forward.
    pub fn adopted(&self) -> usize {
        self.0.lock().adopted()
    }
    /// The device of a port has the eBPF program: filters of flows may stand before that.
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
        MAX_FILTERS
    }
    fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        self.0.lock().install(at, rule)
    }
    fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        self.0.lock().change(at, rule)
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
    fn drop_adopted(&mut self) {
        self.0.lock().drop_adopted();
    }
    fn stats(&self) -> Vec<(String, u64)> {
        self.0.lock().stats()
    }
    fn left_ports(&self) -> Vec<(String, String)> {
        self.0.lock().others.all()
    }
    fn served_ports(&self) -> Vec<(String, String)> {
        self.0.lock().served_ports()
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
