//! Ports of the datapath that belong to no bridge: devices of the host by which outer packets of tunnels come
//! and go.
//!
//! They have no OpenFlow number. Packets that come in by one are decapsulated or dropped, and no table sees
//! their outer headers.

use heddle_datapath_api::PortNo;
use std::sync::Arc;

/// One of these ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnderlayPort {
    /// Number in the datapath.
    pub no: PortNo,
    /// Name of the device.
    pub device: Arc<str>,
    /// The device's Ethernet address.
    pub mac: [u8; 6],
    /// The device's MTU, bytes.
    pub mtu: u32,
}

/// All of these ports: few, so a search looks at each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UnderlayPorts(pub Vec<UnderlayPort>);

impl UnderlayPorts {
    /// The port of a device.
    pub fn of_device(&self, name: &str) -> Option<&UnderlayPort> {
        self.0.iter().find(|port| *port.device == *name)
    }
    /// Whether a datapath port is one of them.
    pub(crate) fn has(&self, no: PortNo) -> bool {
        self.0.iter().any(|port| port.no == no)
    }
    /// Their numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = PortNo> {
        self.0.iter().map(|port| port.no)
    }
}
