//! The devices of ports, as a back end knows them.

use crate::PortLink;
use heddle_datapath_api::PortNo;
use std::collections::HashMap;

/// The device of a port, for input and output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortDevice {
    /// Index of the device.
    pub(crate) ifindex: u32,
    /// Largest IP packet, bytes; 0: no limit.
    pub(crate) mtu: u32,
    /// The device's other end is the host's stack.
    pub(crate) internal: bool,
}

impl From<&PortLink> for PortDevice {
    fn from(link: &PortLink) -> Self {
        Self {
            ifindex: link.ifindex,
            mtu: link.mtu,
            internal: link.internal,
        }
    }
}

/// Ports with their devices, and the devices whose flows must be installed again.
#[derive(Default)]
pub(crate) struct PortDevices {
    ports: HashMap<PortNo, PortDevice>,
    marked: Vec<u32>,
    marked_ports: Vec<PortNo>,
}

impl PortDevices {
    /// The device of a port.
    pub(crate) fn get(&self, no: PortNo) -> Option<&PortDevice> {
        self.ports.get(&no)
    }
    /// All ports on devices that `has` selects by interface index, sorted.
    pub(crate) fn on(&self, has: impl Fn(u32) -> bool) -> Vec<PortNo> {
        let on = self.ports.iter().filter(|(_, d)| has(d.ifindex));
        let mut all: Vec<PortNo> = on.map(|(no, _)| *no).collect();
        all.sort_unstable();
        all
    }
    /// Marks a device: [`Self::set`] returns its ports next time.
    pub(crate) fn mark(&mut self, ifindex: u32) {
        self.marked.push(ifindex);
    }
    /// Marks a port, which may have no device: [`Self::set`] returns it next time.
    pub(crate) fn mark_port(&mut self, no: PortNo) {
        self.marked_ports.push(no);
    }
    /// Whether a device is marked.
    pub(crate) fn is_marked(&self, ifindex: u32) -> bool {
        self.marked.contains(&ifindex)
    }
    /// The ports of a device.
    pub(crate) fn ports_of(&self, ifindex: u32) -> impl Iterator<Item = PortNo> + '_ {
        let of = self.ports.iter().filter(move |(_, d)| d.ifindex == ifindex);
        of.map(|(no, _)| *no)
    }
    /// Sets all ports. Returns those that came, went or changed, and the ports of marked devices, sorted.
    pub(crate) fn set(&mut self, ports: &[PortLink]) -> Vec<PortNo> {
        let new = ports.iter().map(|p| (p.no, p.into())).collect();
        let old = std::mem::replace(&mut self.ports, new);
        let both = old.keys().chain(self.ports.keys());
        let mut changed: Vec<PortNo> = both
            .filter(|no| old.get(no) != self.ports.get(no))
            .copied()
            .collect();
        for ifindex in std::mem::take(&mut self.marked) {
            changed.extend(self.ports_of(ifindex));
        }
        changed.append(&mut self.marked_ports);
        changed.sort_unstable();
        changed.dedup();
        changed
    }
}
