//! The eBPF back end. A classifier at the ingress of each port's device forwards the packets of its flows,
//! and leads the rest to the switch. `docs/offload-inside.md` explains how and why.
//!
//! * [`abi`]: keys and values of the maps, which the program and this process share.
//! * [`layout`]: rules, connections and ports as these.
//! * [`load`]: the program comes into the kernel, or is found there, where an earlier process left it.
//! * [`ports`]: devices are diverted, and given back.
//! * [`flows`]: rules become entries of maps, with masks, generations and counters.
//! * [`conns`]: connections become entries of maps.
//! * [`twin`]: a plain twin of the program, for tests.
//!
//! **End.** The program stays at the devices when the process ends, and still forwards.
//! [`crate::Backend::shutdown`] removes it.

mod abi;
mod conns;
mod flows;
mod layout;
mod load;
mod ports;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod twin;

use crate::miss;
use crate::{Backend, ConnUse, Handle, PortLink, Rule, Why};
use heddle_conntrack::offloaded::{ConnId, EndOffload, Offloadable};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_port::Divert;
use heddle_sys::TapQueue;
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The back end; clones share it. One is the back end of [`crate::Offload`], one is given to ports.
#[derive(Clone)]
pub struct Ebpf(Arc<Mutex<flows::State>>);

impl fmt::Debug for Ebpf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ebpf").finish_non_exhaustive()
    }
}

impl Ebpf {
    /// Loads the program, or takes over what an earlier process with the same `owner` number left.
    ///
    /// # Errors
    /// One line with the reason why this kernel, or this user, cannot load it.
    pub fn start(owner: u64) -> Result<Self, String> {
        // An earlier process that was killed may still be closing them.
        let group = miss::group_of(owner);
        miss::remove_miss_devices(group);
        let found = load::find(owner)?;
        let adopt = found.is_some();
        let loaded = match found {
            Some(loaded) => loaded,
            None => load::load(owner)?,
        };
        let mut state = flows::State::new(loaded, group);
        if adopt {
            state.adopt();
        }
        Ok(Self(Arc::new(Mutex::new(state))))
    }
    /// Detaches the programs of any version that earlier processes with the same `owner` number left. Those
    /// that this back end has taken over stay. Returns the number of devices.
    pub fn remove_leftovers(owner: u64) -> usize {
        load::remove_leftovers(owner)
    }
    /// Entries that an earlier process left, and that no flow has confirmed yet.
    pub fn adopted(&self) -> usize {
        self.0.lock().adopted()
    }
}

impl Divert for Ebpf {
    fn divert(&self, name: &str, ifindex: u32) -> io::Result<Arc<TapQueue>> {
        self.0.lock().divert(name, ifindex)
    }
    fn release(&self, name: &str, ifindex: u32) {
        self.0.lock().release(name, ifindex);
    }
    fn changed(&self, ifindex: u32, diverted: bool) -> bool {
        self.0.lock().changed(ifindex, diverted)
    }
}

impl Backend for Ebpf {
    fn name(&self) -> &'static str {
        "ebpf"
    }
    fn capacity(&self) -> usize {
        abi::MAX_FLOWS - layout::SPARE
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
    fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        self.0.lock().counters(now_ms, f);
    }
    fn set_ports(&mut self, ports: &[PortLink]) -> Vec<PortNo> {
        self.0.lock().set_ports(ports)
    }
    fn conn_capacity(&self) -> usize {
        abi::MAX_CONNS / 2
    }
    fn end_conns(&self) -> Option<Arc<dyn EndOffload>> {
        Some(Arc::new(conns::Live(Arc::clone(&self.0.lock().loaded.live))))
    }
    fn adopted_conns(&self) -> Vec<Offloadable> {
        self.0.lock().adopted_conns()
    }
    fn install_conn(&mut self, conn: &Offloadable) -> Result<(), Why> {
        self.0.lock().install_conn(conn)
    }
    fn remove_conns(&mut self, ids: &[ConnId]) {
        self.0.lock().remove_conns(ids);
    }
    fn conn_use(&mut self, id: ConnId) -> ConnUse {
        self.0.lock().conn_use(id)
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
        let has = |ifindex| state.diverted.contains_key(&ifindex);
        vec![(self.name(), state.ports.on(has))]
    }
    fn remove_devices(&mut self) {
        miss::remove_miss_devices(self.0.lock().group);
    }
    fn shutdown(&mut self) {
        self.0.lock().shutdown();
    }
}
