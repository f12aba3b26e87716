//! Restores a device of the host after its pod: DEL, GC and `heddle-cni sweep`.

use super::BEFORE;
use crate::db::{IFNAME, NETNS, NETNS_INODE, PodInterface};
use crate::pod::Pod;
use heddle_sys::net_config::{Change, Device, VfChange};
use heddle_sys::{NetConfig, netns};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// State of a device before it went to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SavedState {
    pub(super) name: String,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: u32,
    /// MTU of the representor, bytes.
    pub(super) port_mtu: u32,
    /// Address on the bus, by which DEL finds the device under any name; empty for a virtual device.
    pub(super) bus: String,
    /// Netdev of the physical function, and the number of the virtual function.
    pub(super) vf: Option<(String, u32)>,
    /// The device has no netdev.
    pub(super) passed: bool,
}

/// Whether the device of a pod's Interface has no netdev, since a program in the pod opens it.
pub(crate) fn is_passed(interface: &PodInterface) -> bool {
    serde_json::from_str::<SavedState>(interface.id(BEFORE)).is_ok_and(|saved| saved.passed)
}

/// Moves the device of a pod's Interface back to the host, and restores its state. Errors are ignored: the
/// pod is gone in any case.
pub(crate) fn give_back(interface: &PodInterface) {
    let Ok(before) = serde_json::from_str::<SavedState>(interface.id(BEFORE)) else {
        return;
    };
    let Ok(host) = NetConfig::new(None) else { return };
    let down = Change {
        up: Some(false),
        ..Change::default()
    };
    if let Ok(Some(port)) = host.device(&interface.name) {
        let changed = before.port_mtu != 0 && before.port_mtu != port.mtu_bytes;
        let down = Change {
            mtu_bytes: changed.then_some(before.port_mtu),
            ..down
        };
        let _ = host.change(port.ifindex, &down);
    }
    if before.passed {
        free_vf(&before, &host);
        return;
    }
    take_out(interface, &before, &host);
    let here = match before.bus.is_empty() {
        true => host.device(&before.name).ok().flatten(),
        false => by_bus(&host, &before.bus),
    };
    if let Some(device) = here {
        let _ = host.change(device.ifindex, &down);
        let state = Change {
            mac: before.mac.filter(|_| device.mac != before.mac),
            mtu_bytes: Some(before.mtu).filter(|mtu| *mtu != 0 && *mtu != device.mtu_bytes),
            ..Change::default()
        };
        free_vf(&before, &host);
        if state.mac.is_some() || state.mtu_bytes.is_some() {
            let _ = host.change(device.ifindex, &state);
        }
        if device.name != before.name {
            let name = Change {
                name: Some(&before.name),
                ..Change::default()
            };
            let _ = host.change(device.ifindex, &name);
        }
    }
}

/// Moves the device out of the pod's namespace, if the namespace exists and has it.
fn take_out(interface: &PodInterface, saved: &SavedState, host: &NetConfig) {
    let inode = interface.id(NETNS_INODE).parse().ok();
    let path = interface.id(NETNS);
    if !Pod::exists(path, inode) {
        return;
    }
    let Ok(pod) = Pod::open(path) else { return };
    let device = match saved.bus.is_empty() {
        true => pod.device(interface.id(IFNAME)).ok().flatten(),
        false => by_bus(&pod.net, &saved.bus),
    };
    let (Some(device), Ok(home)) = (device, netns::open(Path::new("/proc/self/ns/net"))) else {
        return;
    };
    let back = |name| {
        let change = Change {
            namespace: Some(&home),
            name,
            up: Some(false),
            ..Change::default()
        };
        pod.net.change(device.ifindex, &change)
    };
    if let Err(e) = back(Some(&saved.name)) {
        // Another device has the name now.
        if e.kind() == std::io::ErrorKind::AlreadyExists {
            let spare = format!("hdb{}", device.ifindex);
            let _ = back(host.device(&spare).ok().flatten().is_none().then_some(&spare));
        }
    }
}

/// Resets the card's settings of a virtual function to the driver's defaults.
fn free_vf(saved: &SavedState, host: &NetConfig) {
    let Some((pf, number)) = &saved.vf else { return };
    if let Ok(Some(pf)) = host.device(pf) {
        for change in [
            VfChange {
                mac: Some([0; 6]),
                trust: None,
            },
            VfChange {
                mac: None,
                trust: Some(false),
            },
        ] {
            let _ = host.change_vf(pf.ifindex, *number, change);
        }
    }
}

fn by_bus(net: &NetConfig, bus: &str) -> Option<Device> {
    net.devices().ok()?.into_iter().find(|d| d.bus_address == bus)
}
