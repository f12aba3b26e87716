//! `hw-offload` and `heddle-ebpf`: flows of `system` and `internal` ports go to a program in the kernel.
//!
//! The first configuration decides it once, as in Open vSwitch, since a port opens its device for one of the
//! two. State that an earlier daemon left in the kernel is adopted or removed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_datapath::Datapath;
use heddle_datapath_api::Engine;
use heddle_offload::{Ebpf, Offload, Policy, PortLink};
use heddle_port::Divert;

use super::Bridges;
use super::bridge::BridgeReconciler;
use super::globals::Globals;
use super::taps::Taps;
use crate::switch::Switch;

/// The time for which flows of an earlier daemon are kept, unless a controller confirms others before.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The offload as it is set up.
#[derive(Default)]
pub(super) struct Offloading {
    decided: Option<bool>,
    ebpf: Option<Ebpf>,
    offload: Option<Offload>,
    began: Option<Instant>,
}

impl Offloading {
    /// The back end that diverts devices.
    pub(super) fn divert(&self) -> Option<Arc<dyn Divert>> {
        self.ebpf.clone().map(|e| Arc::new(e) as Arc<dyn Divert>)
    }

    /// Applies the setting, before the first port is opened.
    pub(super) fn decide(&mut self, wanted: bool, switch: &Switch) {
        if let Some(decided) = self.decided {
            if decided != wanted {
                log::info!(target: "netdev_offload", "hw-offload and heddle-ebpf take effect when the switch is restarted");
            }
            self.decided = Some(wanted);
            return;
        }
        self.decided = Some(wanted);
        if wanted {
            self.ebpf = start();
        }
        let Some(ebpf) = &self.ebpf else {
            let left = Taps::earlier_owner().map_or(0, Ebpf::remove_leftovers);
            if left > 0 {
                log::info!(target: "netdev_offload", "eBPF programs of an earlier daemon were taken off {left} devices");
            }
            return;
        };
        self.began = Some(Instant::now());
        let clock = switch.clock.clone();
        let offload = Offload::new(
            Box::new(ebpf.clone()),
            Some(Arc::clone(switch.datapath.conntrack())),
            Policy::default(),
            move || clock.now_ms(),
        );
        switch.datapath.set_observer(Some(Box::new(offload.clone())));
        *switch.offload.write() = Some(offload.clone());
        self.offload = Some(offload);
    }

    /// Reports the ports to the back end, and ends the state of an earlier daemon when that is due.
    pub(super) fn set_ports(&mut self, bridges: &Bridges, globals: &Globals) {
        let Some(offload) = self.offload.clone() else {
            return;
        };
        let mut ports: Vec<PortLink> = Vec::new();
        let of = |b: &BridgeReconciler| -> Vec<_> {
            // Workers enforce rates and queues, and offloaded packets bypass workers: ports with limits of
            // either kind stay with workers.
            let limited = |name: &str| {
                let rows = b.row.interface(name);
                rows.is_none_or(|(port, row)| port.qos.is_some() || !row.policing.is_empty())
            };
            let free = b.ifaces.values().filter(|i| !limited(&i.name));
            free.filter_map(|i| Some((i.name.clone(), i.status.clone(), i.device()?)))
                .map(|(name, status, (device, no))| {
                    // An internal port in a pod's namespace is not here.
                    let internal = device.kind() == "internal" && device.is_here();
                    let can = internal || device.kind() == "system";
                    (name, status, can.then_some(internal), no)
                })
                .collect()
        };
        for (name, status, internal, no) in bridges.values().flat_map(of) {
            if let Some(internal) = internal.filter(|_| status.ifindex != 0) {
                ports.push(PortLink {
                    no,
                    name,
                    ifindex: status.ifindex,
                    mtu: status.mtu,
                    internal,
                });
            }
        }
        ports.sort_by_key(|p| p.no);
        offload.set_ports(&ports);
        offload.hold_adopted(globals.restore_wait);
        if !globals.restore_wait && self.began.is_some_and(|began| began.elapsed() >= CONFIRM_TIMEOUT) {
            self.began = None;
            offload.drop_adopted();
        }
    }

    /// A configuration is about to be confirmed.
    pub(super) fn confirm(&mut self, bridges: &Bridges, globals: &Globals, datapath: &Datapath) {
        self.set_ports(bridges, globals);
        if let Some(offload) = &self.offload {
            // The adopted flows stay, although a changed configuration is confirmed.
            offload.hold_adopted(true);
            datapath.observe_now();
            offload.hold_adopted(globals.restore_wait);
        }
    }
}

/// Loads the program; logs the reason if that fails.
fn start() -> Option<Ebpf> {
    let owner = match Taps::owner() {
        Ok(owner) => owner,
        Err(error) => {
            log::warn!(target: "netdev_offload", "eBPF is off: the run directory has no mark ({error})");
            return None;
        }
    };
    match Ebpf::start(owner) {
        Ok(ebpf) => {
            log::info!(target: "netdev_offload", "eBPF is on: flows of system and internal ports are offloaded to the kernel");
            Some(ebpf)
        }
        Err(why) => {
            // The verifier's log is long; the fault is at its end.
            let lines: Vec<&str> = why.lines().filter(|l| !l.trim().is_empty()).collect();
            let last = lines.len().saturating_sub(3);
            let text = match last {
                0 => lines.join("; "),
                _ => format!("{} ... {}", lines[0], lines[last..].join("; ")),
            };
            log::warn!(target: "netdev_offload", "eBPF is off, all packets are forwarded by workers: {text}");
            None
        }
    }
}
