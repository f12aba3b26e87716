//! `hw-offload`, `heddle-ebpf` and `tc-policy`: flows of `system` and `internal` ports go to a program in the
//! kernel (eBPF). Flows of `system` ports also go to filters of tc, in the kernel or a network card.
//!
//! The default is that ports of bridges of type `system` count, where Open vSwitch has the kernel's datapath.
//! The first of these bridges decides it. A setting for all bridges decides it with the first configuration.
//! There is no second decision, as in Open vSwitch, since a port opens its device for one of the two. State
//! that an earlier daemon left in the kernel is adopted or removed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_datapath::Datapath;
use heddle_datapath_api::Engine;
use heddle_offload::{Backend, Diverters, Ebpf, Offload, Policy, PortLink, Stack, Tc, TcPolicy};
use heddle_port::Divert;

use super::Bridges;
use super::desired::{BridgeRow, InterfaceRow, PortRow};
use super::globals::Globals;
use super::offload_choice::{Choice, Diverter, Wanted};
use super::taps::Taps;
use super::underlay_ports::UnderlayPorts;
use crate::switch::Switch;

/// The time for which flows of an earlier daemon are kept, unless a controller confirms others before.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The offload as it is set up.
#[derive(Default)]
pub(super) struct Offloading {
    /// The setting in the last configuration.
    wanted: Option<Wanted>,
    /// The settings that are in force until the switch ends.
    decided: Option<Wanted>,
    diverter: Option<Diverter>,
    offload: Option<Offload>,
    began: Option<Instant>,
}

impl Offloading {
    /// The back end that diverts devices, with the bridges whose devices it diverts.
    pub(super) fn diverter(&self) -> Option<Diverter> {
        self.diverter.clone()
    }

    /// Applies the setting, before the first port of `new` bridges is opened. `has_bridges`: there are some
    /// already.
    pub(super) fn decide(
        &mut self,
        wanted: Wanted,
        new: &BTreeMap<String, BridgeRow>,
        has_bridges: bool,
        switch: &Switch,
    ) {
        let before = self.wanted.replace(wanted);
        let is_first = before.is_none();
        let is_late = self
            .decided
            .map_or(wanted.choice == Choice::All && has_bridges, |decided| {
                decided != wanted
            });
        if is_late && before != Some(wanted) {
            log::info!(target: "netdev_offload", "hw-offload, heddle-ebpf and tc-policy take effect when the switch is restarted");
        }
        if self.decided.is_some() {
            return;
        }
        let wanted = match is_late {
            true => Wanted {
                choice: Choice::Auto,
                ..wanted
            },
            false => wanted,
        };
        let choice = wanted.choice;
        let takes = |row: &BridgeRow| choice.takes(&row.datapath_type, &switch.options);
        let (mut ebpf, mut tc) = (None, None);
        let decides = choice == Choice::All || new.values().any(takes);
        if decides {
            self.decided = Some(wanted);
            ebpf = wanted.ebpf.then(|| start(choice)).flatten();
        }
        if decides || is_first {
            remove_leftovers(ebpf.is_none(), wanted.tc.is_none() || !decides);
        }
        if let Some(policy) = wanted.tc.filter(|_| decides) {
            tc = start_tc(policy, ebpf.is_none());
        }
        let is_ebpf = ebpf.is_some();
        let (backend, divert): (Box<dyn Backend>, Arc<dyn Divert>) = match (ebpf, tc) {
            (None, None) => return,
            (Some(ebpf), None) => (Box::new(ebpf.clone()), Arc::new(ebpf)),
            (None, Some(tc)) => (Box::new(tc.clone()), Arc::new(tc)),
            (Some(ebpf), Some(tc)) => (
                Box::new(Stack::new(
                    "tc and ebpf",
                    vec![Box::new(tc.clone()), Box::new(ebpf.clone())],
                )),
                Arc::new(Diverters { ebpf, tc }),
            ),
        };
        self.began = Some(Instant::now());
        let options = Arc::clone(&switch.options);
        self.diverter = Some(Diverter::new(divert, choice, is_ebpf, options));
        let clock = switch.clock.clone();
        let offload = Offload::new(
            backend,
            Some(Arc::clone(switch.datapath.conntrack())),
            Policy::default(),
            move || clock.now_ms(),
        );
        switch.datapath.set_observer(Some(Box::new(offload.clone())));
        *switch.offload.write() = Some(offload.clone());
        self.offload = Some(offload);
    }

    /// Reports the ports to the back end, and ends the state of an earlier daemon when that is due.
    pub(super) fn set_ports(&mut self, bridges: &Bridges, underlay: &UnderlayPorts, globals: &Globals) {
        let (Some(offload), Some(diverter)) = (self.offload.clone(), &self.diverter) else {
            return;
        };
        let (mut ports, mut kept) = (Vec::new(), Vec::new());
        let mut bypassing = HashSet::new();
        let taken = bridges.values().filter(|b| diverter.takes(&b.row.datapath_type));
        for (bridge, iface) in taken.flat_map(|b| b.ifaces.values().map(move |i| (b, i))) {
            let Some((port, row)) = bridge.row.interface(&iface.name) else {
                continue;
            };
            // Workers enforce rates and queues, and offloaded packets bypass workers.
            if let Some(limit) = limit_of(port, row) {
                kept.push((iface.name.clone(), limit));
                continue;
            }
            let Some((device, no)) = iface.device() else {
                continue;
            };
            if matches!(device.kind(), "afxdp" | "dpdk") {
                bypassing.insert(no);
            }
            // An internal port in a pod's namespace is not here.
            let internal = device.kind() == "internal" && device.is_here();
            if (internal || device.kind() == "system") && iface.status.ifindex != 0 {
                ports.push(PortLink {
                    no,
                    name: iface.name.clone(),
                    ifindex: iface.status.ifindex,
                    mtu: iface.status.mtu,
                    internal,
                });
            }
        }
        ports.extend(underlay.links());
        ports.sort_by_key(|p| p.no);
        offload.set_bypassing_ports(bypassing);
        offload.set_ports(&ports);
        offload.set_kept_ports(kept);
        offload.hold_adopted(globals.restore_wait);
        if !globals.restore_wait && self.began.is_some_and(|began| began.elapsed() >= CONFIRM_TIMEOUT) {
            self.began = None;
            offload.drop_adopted();
        }
    }

    /// A configuration is about to be confirmed.
    pub(super) fn confirm(
        &mut self,
        bridges: &Bridges,
        underlay: &UnderlayPorts,
        globals: &Globals,
        datapath: &Datapath,
    ) {
        self.set_ports(bridges, underlay, globals);
        if let Some(offload) = &self.offload {
            // The adopted flows stay, although a changed configuration is confirmed.
            offload.hold_adopted(true);
            datapath.observe_now();
            offload.hold_adopted(globals.restore_wait);
        }
    }
}

/// Removes what an earlier daemon left in the kernel and this one does not use.
fn remove_leftovers(ebpf: bool, tc: bool) {
    let Some(owner) = Taps::earlier_owner() else {
        return;
    };
    if ebpf {
        let n = Ebpf::remove_leftovers(owner);
        if n > 0 {
            log::info!(target: "netdev_offload", "eBPF programs of an earlier daemon were taken off {n} devices");
        }
    }
    if tc {
        let n = Tc::remove_leftovers(owner);
        if n > 0 {
            log::info!(target: "netdev_offload", "{n} tc filters of an earlier daemon were removed");
        }
    }
}

/// Starts the tc back end; logs the reason if that fails. That is a warning if there is no other back end.
fn start_tc(policy: TcPolicy, alone: bool) -> Option<Tc> {
    let level = match alone {
        true => log::Level::Warn,
        false => log::Level::Info,
    };
    let owner = match Taps::owner() {
        Ok(owner) => owner,
        Err(error) => {
            log::log!(target: "netdev_offload", level, "tc is off: the run directory has no mark ({error})");
            return None;
        }
    };
    match Tc::start(owner, policy, alone) {
        Ok(tc) => {
            log::info!(target: "netdev_offload", "tc is on: flows of {} are offloaded to filters of flower", match (alone, policy) {
                (true, _) => "system ports of all bridges",
                (false, TcPolicy::SkipHw) => "system ports of all bridges (tc-policy is skip_hw), and then to eBPF,",
                (false, _) => "network cards that take them",
            });
            Some(tc)
        }
        Err(why) => {
            log::log!(target: "netdev_offload", level, "tc is off: {why}");
            None
        }
    }
}

/// Loads the program; logs the reason if that fails. That is a warning if a setting requests it.
fn start(choice: Choice) -> Option<Ebpf> {
    let level = match choice {
        Choice::All => log::Level::Warn,
        Choice::Auto | Choice::Never => log::Level::Info,
    };
    let bridges = match choice {
        Choice::All => "all bridges",
        Choice::Auto | Choice::Never => "bridges of type system",
    };
    let owner = match Taps::owner() {
        Ok(owner) => owner,
        Err(error) => {
            log::log!(target: "netdev_offload", level, "eBPF is off: the run directory has no mark ({error})");
            return None;
        }
    };
    match Ebpf::start(owner) {
        Ok(ebpf) => {
            log::info!(target: "netdev_offload", "eBPF is on: flows of system and internal ports of {bridges} are offloaded to the kernel");
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
            log::log!(target: "netdev_offload", level, "eBPF is off, all packets are forwarded by workers: {text}");
            None
        }
    }
}
/// The limit of a port's rates, or its queues, in words.
fn limit_of(port: &PortRow, row: &InterfaceRow) -> Option<String> {
    let policed = (!row.policing.is_empty()).then(|| "it has ingress policing".to_owned());
    let qos = port.qos.as_ref().map(|qos| format!("it has QoS ({})", qos.kind));
    qos.or(policed)
}
