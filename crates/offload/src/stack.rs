//! Several back ends as one: each flow is in the first one that accepts it.
//!
//! **Invariant.** An installed flow is in exactly one back end. If that one refuses a change, the flow is
//! offered to the later ones. The back ends have the order of their filters at a device: a packet passes
//! those of the first back end first.

use crate::{Backend, ConnUse, Ebpf, Handle, PortLink, Rule, Tc, Why};
use heddle_conntrack::offloaded::{ConnId, EndOffload, Offloadable};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_port::Divert;
use heddle_sys::TapQueue;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Back ends, in the order in which flows are offered to them. The last one has the connections.
pub struct Stack {
    name: &'static str,
    all: Vec<Box<dyn Backend>>,
    /// Index in `all` of the back end that has the flow.
    backend_of: HashMap<Handle, usize>,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.all.iter().map(|b| b.name());
        f.debug_list().entries(names).finish()
    }
}

impl Stack {
    /// Offers flows to `all` in this order. `name`: the name of the whole.
    pub fn new(name: &'static str, all: Vec<Box<dyn Backend>>) -> Self {
        Self {
            name,
            all,
            backend_of: HashMap::new(),
        }
    }
    /// Installs a flow in the first back end from index `first` on that accepts it. If none does, the reason
    /// is that of the last one, since that one serves all ports.
    fn install_from(&mut self, first: usize, at: Handle, rule: &Rule) -> Result<(), Why> {
        let mut why = Why::InPort;
        for (n, backend) in self.all.iter_mut().enumerate().skip(first) {
            match backend.install(at, rule) {
                Ok(()) => {
                    self.backend_of.insert(at, n);
                    return Ok(());
                }
                Err(refusal) => why = refusal,
            }
        }
        Err(why)
    }
    fn last(&self) -> Option<&dyn Backend> {
        self.all.last().map(|b| b.as_ref())
    }
    fn last_mut(&mut self) -> Option<&mut Box<dyn Backend>> {
        self.all.last_mut()
    }
}

impl Backend for Stack {
    fn name(&self) -> &'static str {
        self.name
    }
    fn backend_name(&self, at: Handle) -> &'static str {
        let backend = self.backend_of.get(&at).and_then(|n| self.all.get(*n));
        backend.map_or(self.name(), |b| b.backend_name(at))
    }
    fn capacity(&self) -> usize {
        self.all.iter().map(|b| b.capacity()).max().unwrap_or(0)
    }
    fn install(&mut self, at: Handle, rule: &Rule) -> Result<(), Why> {
        self.install_from(0, at, rule)
    }
    fn change(&mut self, at: Handle, rule: &Rule) -> (FlowCounts, Result<(), Why>) {
        let Some(n) = self.backend_of.get(&at).copied() else {
            return (FlowCounts::default(), Err(Why::InPort));
        };
        let (counts, done) = self.all[n].change(at, rule);
        let Err(why) = done else {
            return (counts, Ok(()));
        };
        self.backend_of.remove(&at);
        let done = match n + 1 < self.all.len() {
            true => self.install_from(n + 1, at, rule),
            false => Err(why),
        };
        (counts, done)
    }
    fn remove(&mut self, at: Handle) -> FlowCounts {
        match self.backend_of.remove(&at) {
            Some(n) => self.all[n].remove(at),
            None => FlowCounts::default(),
        }
    }
    fn settle(&mut self) {
        self.all.iter_mut().for_each(|b| b.settle());
    }
    fn counters(&mut self, now_ms: u64, f: &mut dyn FnMut(Handle, FlowCounts)) {
        self.all.iter_mut().for_each(|b| b.counters(now_ms, f));
    }
    fn set_ports(&mut self, ports: &[PortLink]) -> Vec<PortNo> {
        let mut changed: Vec<PortNo> = self.all.iter_mut().flat_map(|b| b.set_ports(ports)).collect();
        changed.sort_unstable();
        changed.dedup();
        changed
    }
    fn conn_capacity(&self) -> usize {
        self.last().map_or(0, |b| b.conn_capacity())
    }
    fn end_conns(&self) -> Option<Arc<dyn EndOffload>> {
        self.last()?.end_conns()
    }
    fn adopted_conns(&self) -> Vec<Offloadable> {
        self.last().map_or(Vec::new(), |b| b.adopted_conns())
    }
    fn takes_unreplied(&self) -> bool {
        self.last().is_some_and(|b| b.takes_unreplied())
    }
    fn install_conn(&mut self, conn: &Offloadable) -> Result<(), Why> {
        self.last_mut()
            .map_or(Err(Why::Action("ct")), |b| b.install_conn(conn))
    }
    fn remove_conns(&mut self, ids: &[ConnId]) {
        if let Some(b) = self.last_mut() {
            b.remove_conns(ids);
        }
    }
    fn conn_use(&mut self, id: ConnId) -> ConnUse {
        self.last_mut().map_or(ConnUse::Ended, |b| b.conn_use(id))
    }
    fn drop_adopted(&mut self) {
        self.all.iter_mut().for_each(|b| b.drop_adopted());
    }
    /// Counters of the last back end, then those of the others with the back end's name as a prefix.
    fn stats(&self) -> Vec<(String, u64)> {
        let mut all = self.last().map_or(Vec::new(), |b| b.stats());
        for b in self.all.iter().rev().skip(1) {
            for (key, n) in b.stats() {
                // Flows of an earlier process are one sum over all back ends.
                match all.iter_mut().find(|(k, _)| key == "adopted-flows" && *k == key) {
                    Some((_, sum)) => *sum += n,
                    None => all.push((format!("{}-{key}", b.name()), n)),
                }
            }
        }
        all
    }
    fn left_ports(&self) -> Vec<(String, String)> {
        self.all.iter().flat_map(|b| b.left_ports()).collect()
    }
    fn providers(&self) -> Vec<(&'static str, Vec<PortNo>)> {
        self.all.iter().flat_map(|b| b.providers()).collect()
    }
    fn served_ports(&self) -> Vec<(String, String)> {
        self.all.iter().flat_map(|b| b.served_ports()).collect()
    }
    fn note(&self, at: Handle) -> Option<String> {
        self.all.get(*self.backend_of.get(&at)?)?.note(at)
    }
    fn remove_devices(&mut self) {
        self.all.iter_mut().for_each(|b| b.remove_devices());
    }
    fn shutdown(&mut self) {
        self.all.iter_mut().for_each(|b| b.shutdown());
        self.backend_of.clear();
    }
}

/// Diverts devices to the eBPF program, and adds them to the tc back end, whose filters come before the
/// program.
#[derive(Clone, Debug)]
pub struct Diverters {
    /// Diverts devices.
    pub ebpf: Ebpf,
    /// Adds filters to the same devices.
    pub tc: Tc,
}

impl Divert for Diverters {
    fn divert(&self, name: &str, ifindex: u32) -> io::Result<Arc<TapQueue>> {
        let done = self.ebpf.divert(name, ifindex);
        match &done {
            Ok(_) => self.tc.join(name, ifindex),
            Err(_) => self.tc.release(name, ifindex),
        }
        done
    }
    fn release(&self, name: &str, ifindex: u32) {
        self.tc.release(name, ifindex);
        self.ebpf.release(name, ifindex);
    }
    fn changed(&self, ifindex: u32, diverted: bool) -> bool {
        self.ebpf.changed(ifindex, diverted)
    }
}
