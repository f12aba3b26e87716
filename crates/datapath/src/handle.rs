//! The public handle. (Signatures; the bodies follow.)
#![allow(clippy::unimplemented, unused_variables, missing_docs)]

use crate::action::{Action, PortNo};
use crate::config::{Config, DatapathError, PortConfig};
use crate::translate::Translate;
use crate::view::{FlowDump, PortInfo, PortStats, Totals, UpcallPacket};
use heddle_packet::Packet;
use heddle_port::Port;
use std::sync::Arc;

/// A running datapath: workers, sweeper, ports. `Arc<Datapath>` is shared by `ofproto` and `switchd`; every method
/// may be called from any control thread, none from a worker (that is, from `Translate::translate`).
#[derive(Debug)]
pub struct Datapath(());

impl Datapath {
    /// Starts workers and sweeper.
    pub fn new(config: Config, translate: Arc<dyn Translate>) -> Result<Arc<Self>, DatapathError> { unimplemented!() }
    /// Stops all threads. Also done on drop.
    pub fn shutdown(&self) { unimplemented!() }

    // -- ports
    /// Adds a port under `want`, or under the lowest free number from 1. One receive queue until
    /// [`Datapath::configure_port`] says otherwise.
    pub fn add_port(&self, port: Arc<dyn Port>, want: Option<PortNo>) -> Result<PortNo, DatapathError> { unimplemented!() }
    /// Removes a port; when it returns, no worker uses it any more.
    pub fn del_port(&self, no: PortNo) -> Result<(), DatapathError> { unimplemented!() }
    /// Reopens a port's queues as told.
    pub fn configure_port(&self, no: PortNo, config: PortConfig) -> Result<(), DatapathError> { unimplemented!() }
    /// Says that the port's MTU is now this (0: no limit). Read from `Port::status` when the port is added.
    pub fn set_port_mtu(&self, no: PortNo, mtu: u32) -> Result<(), DatapathError> { unimplemented!() }
    pub fn ports(&self) -> Vec<PortInfo> { unimplemented!() }
    pub fn port(&self, no: PortNo) -> Option<Arc<dyn Port>> { unimplemented!() }
    pub fn port_by_name(&self, name: &str) -> Option<PortNo> { unimplemented!() }
    pub fn port_stats(&self, no: PortNo) -> Option<PortStats> { unimplemented!() }

    // -- workers
    /// One pinned worker per processor of `cpus`; `None`: one unpinned worker per allowed processor, at most 4.
    pub fn set_workers(&self, cpus: Option<&[usize]>) -> Result<(), DatapathError> { unimplemented!() }
    pub fn n_workers(&self) -> usize { unimplemented!() }

    // -- packets from the control plane
    /// Runs `actions` on `packet` on a worker; returns when they have run and the outputs were handed to the ports.
    pub fn inject(&self, packet: Packet, in_port: PortNo, actions: Vec<Action>) -> Result<(), DatapathError> { unimplemented!() }
    /// Treats `packet` as received on `in_port` (counted there, looked up); returns when it has been forwarded.
    pub fn inject_translate(&self, packet: Packet, in_port: PortNo) -> Result<(), DatapathError> { unimplemented!() }

    // -- packets for the control plane
    /// Readable when packets wait for [`Datapath::take_upcalls`] (poll, epoll; no need to read it).
    pub fn upcall_fd(&self) -> std::os::fd::RawFd { unimplemented!() }
    /// Hands over up to `max` waiting packets, returns how many.
    pub fn take_upcalls(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize { unimplemented!() }

    // -- cached flows
    /// Credits everything counted so far: rule statistics are exact for all packets that were forwarded before the call.
    pub fn flush_stats(&self) { unimplemented!() }
    /// One full pass of the sweeper now: credits, re-translates what depends on changed things, evicts idle entries.
    pub fn tick(&self) { unimplemented!() }
    /// Removes all cached flows (`revalidator/purge`, `dpctl/del-flows`), crediting them first.
    pub fn purge(&self) { unimplemented!() }
    pub fn flows(&self) -> Vec<FlowDump> { unimplemented!() }
    pub fn flow_limit(&self) -> usize { unimplemented!() }
    pub fn set_flow_limit(&self, n: usize) { unimplemented!() }
    pub fn set_max_idle_ms(&self, ms: u64) { unimplemented!() }

    // -- text
    /// `dpctl/dump-flows`: one line per flow; `name` prints port names (`--names`).
    pub fn dump_flows_text(&self, filter: &dyn Fn(&FlowDump) -> bool, name: Option<&dyn Fn(PortNo) -> Option<String>>) -> String { unimplemented!() }
    pub fn pmd_stats_show(&self) -> String { unimplemented!() }
    pub fn pmd_stats_clear(&self) { unimplemented!() }
    pub fn pmd_rxq_show(&self) -> String { unimplemented!() }
    pub fn pmd_perf_show(&self) -> String { unimplemented!() }
    /// Lines of `upcall/show` below the datapath's name.
    pub fn upcall_show(&self) -> String { unimplemented!() }
    /// Named drops and coverage counters, as `coverage/show` and `coverage/read-counter` name them.
    pub fn coverage(&self) -> Vec<(&'static str, u64)> { unimplemented!() }
    pub fn totals(&self) -> Totals { unimplemented!() }
}
