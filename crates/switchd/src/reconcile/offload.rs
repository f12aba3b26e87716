//! `hw-offload` and `heddle-ebpf`: flows of `system` and `internal` ports go to a program in the kernel.
//!
//! The first configuration decides it once, as in Open vSwitch, since a port opens its device for one of the
//! two. State that an earlier daemon left in the kernel is adopted or removed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_datapath_api::Engine;
use heddle_offload::{Ebpf, Offload, Policy, PortLink};
use heddle_port::types::Divert;

use super::Reconciler;
use super::state::BridgeState;
use super::taps::Taps;

/// The time for which flows of an earlier daemon are kept, unless a controller confirms others before.
const KEPT: Duration = Duration::from_secs(10);

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

impl Reconciler {
    /// Applies the settings, before the first port is opened.
    pub(super) fn decide_offload(&mut self) {
        let wanted = self.globals.offload;
        let o = &mut self.offloading;
        if let Some(decided) = o.decided {
            if decided != wanted {
                log::info!(target: "netdev_offload", "hw-offload and heddle-ebpf take effect when the switch is restarted");
            }
            o.decided = Some(wanted);
            return;
        }
        o.decided = Some(wanted);
        if wanted {
            o.ebpf = start();
        }
        let Some(ebpf) = &o.ebpf else {
            let left = Taps::earlier_owner().map_or(0, Ebpf::remove_leftovers);
            if left > 0 {
                log::info!(target: "netdev_offload", "eBPF programs of an earlier daemon were taken off {left} devices");
            }
            return;
        };
        o.began = Some(Instant::now());
        let clock = self.switch.clock.clone();
        let offload = Offload::new(
            Box::new(ebpf.clone()),
            Some(Arc::clone(self.switch.datapath.conntrack())),
            Policy::default(),
            move || clock.now_ms(),
        );
        self.switch.datapath.set_observer(Some(Box::new(offload.clone())));
        *self.switch.offload.write() = Some(offload.clone());
        o.offload = Some(offload);
    }

    /// Reports the ports to the back end, and ends the state of an earlier daemon when that is due.
    pub(super) fn refresh_offload(&mut self) {
        let Some(offload) = self.offloading.offload.clone() else {
            return;
        };
        let mut ports: Vec<PortLink> = Vec::new();
        let of = |b: &BridgeState| -> Vec<_> {
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
        for (name, status, internal, no) in self.bridges.values().flat_map(of) {
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
        offload.hold_adopted(self.globals.restore_wait);
        if !self.globals.restore_wait && self.offloading.began.is_some_and(|began| began.elapsed() >= KEPT) {
            self.offloading.began = None;
            offload.drop_adopted();
        }
    }

    /// A configuration is about to be confirmed.
    pub(super) fn confirm_offload(&mut self) {
        self.refresh_offload();
        if let Some(offload) = &self.offloading.offload {
            // The adopted flows stay, although a changed configuration is confirmed.
            offload.hold_adopted(true);
            self.switch.datapath.observe_now();
            offload.hold_adopted(self.globals.restore_wait);
        }
    }
}
