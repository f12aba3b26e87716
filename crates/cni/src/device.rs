//! Kind `device`: moves a device of the host into the pod; its representor becomes the port in the switch.
//!
//! The device is a virtual function of a card, or one that the administrator allows; the same holds for the
//! representor ([`names::is_allowed_device`]). The row of the port has the earlier state of the device (key
//! [`BEFORE`]). DEL moves the device back and restores that state. If the pod's namespace was removed before,
//! the kernel has moved the device to the initial namespace, and DEL only restores the state.
//!
//! **Trust.** Tenants may write the configuration. So without the administrator's permission, a pod gets only
//! a virtual function. Every device must be unused: without IP addresses and master, and no port of the
//! switch.

use crate::conf::{Conf, mac_text};
use crate::db::{Db, IFNAME, NETNS, NETNS_INODE, PodInterface};
use crate::error::{Code, Failure, fail, kernel};
use crate::names;
use crate::pod::Pod;
use crate::sysfs::{Sysfs, Vf, is_pci};
use heddle_sys::net_config::{Change, Device, VfChange};
use heddle_sys::{NetConfig, netns};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Key of `external_ids`: the device's state before ADD, [`SavedState`] as JSON.
pub(crate) const BEFORE: &str = "heddle-cni/device";

/// A device of the host for a pod, and its representor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostDevice {
    pub(crate) device: Device,
    /// PCI address, if the configuration has it in place of the name.
    pub(crate) pci: Option<String>,
    /// Name of the representor.
    pub(crate) representor: String,
    /// Interface index of the representor, and its MTU in bytes.
    port: (u32, u32),
    vf: Option<Vf>,
}

/// State of a device before it went to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct SavedState {
    name: String,
    mac: Option<[u8; 6]>,
    mtu: u32,
    /// MTU of the representor, bytes.
    port_mtu: u32,
    /// Address on the bus, by which DEL finds the device under any name; empty for a virtual device.
    bus: String,
    /// Netdev of the physical function, and the number of the virtual function.
    vf: Option<(String, u32)>,
}

impl HostDevice {
    /// Finds the device that the configuration names, and checks that a pod can have it.
    ///
    /// # Errors
    /// `Conf`: the names are missing or not allowed. `NoKind`: there is no such device, or it is in use.
    pub(crate) fn find(conf: &Conf, host: &NetConfig, db: &mut Db) -> Result<Self, Failure> {
        Self::look(conf, host, db, &Sysfs::default())
    }

    fn look(conf: &Conf, host: &NetConfig, db: &mut Db, sysfs: &Sysfs) -> Result<Self, Failure> {
        let named = match (conf.device_id(), &conf.own.device) {
            (Some(id), _) if !is_pci(id) => fail(
                Code::Conf,
                format!("deviceID {id:?} is not a PCI address like 0000:03:00.2"),
            ),
            (Some(id), _) => Self::by_pci(id, sysfs).map(|(name, vf)| (name, Some(id.to_owned()), vf)),
            (None, Some(name)) => allowed("device", name).map(|()| (name.clone(), None, None)),
            (None, None) => fail(
                Code::NoKind,
                "kind device: the runtime gave no deviceID, and the configuration names no device",
            ),
        };
        let (name, pci, vf) = named?;
        if vf.is_none() && conf.own.trust.is_some() {
            return fail(Code::Conf, format!("trust: {name} is no virtual function"));
        }
        let representor = match (&conf.own.representor, &pci, &vf) {
            (Some(given), ..) => {
                allowed("representor", given)?;
                given.clone()
            }
            (None, Some(pci), Some(vf)) => match sysfs.representor(pci, vf) {
                Some(representor) => representor,
                None => {
                    return fail(
                        Code::NoKind,
                        format!(
                            "deviceID {pci}: the card {} has no representor of virtual function {}: set it \
                             to switchdev mode (devlink dev eswitch set pci/... mode switchdev), or name \
                             the port's device in representor",
                            vf.pf, vf.number
                        ),
                    );
                }
            },
            _ => return fail(Code::Conf, format!("device {name}: representor is missing")),
        };
        let device = unused(host, db, &name)?;
        let Some(port) = host.device(&representor).map_err(|e| kernel(&representor, &e))? else {
            return fail(
                Code::NoKind,
                format!("there is no device {representor} (representor)"),
            );
        };
        if db.named(&representor)?.is_some() {
            return fail(
                Code::NoKind,
                format!("representor {representor} is a port already"),
            );
        }
        Ok(Self {
            device,
            pci,
            representor,
            port: (port.ifindex, port.mtu_bytes),
            vf,
        })
    }

    /// Netdev of a PCI device, and its virtual function, if it is one.
    fn by_pci(id: &str, sysfs: &Sysfs) -> Result<(String, Option<Vf>), Failure> {
        if !sysfs.has_pci(id) {
            return fail(Code::NoKind, format!("deviceID {id}: there is no such device"));
        }
        let vf = sysfs.vf(id);
        if vf.is_none() {
            allowed("deviceID", id)?;
        }
        match (sysfs.netdev(id), sysfs.driver(id)) {
            (Some(name), _) => Ok((name, vf)),
            (None, Some(driver)) => fail(
                Code::NoKind,
                format!("deviceID {id} has no netdev here: driver {driver}, or another pod has it"),
            ),
            (None, None) => fail(Code::NoKind, format!("deviceID {id} has no driver")),
        }
    }

    /// The value of [`BEFORE`].
    pub(crate) fn before(&self) -> String {
        let before = SavedState {
            name: self.device.name.clone(),
            mac: self.device.mac,
            mtu: self.device.mtu_bytes,
            port_mtu: self.port.1,
            bus: self.device.bus_address.clone(),
            vf: self.vf.as_ref().map(|vf| (vf.pf.clone(), vf.number)),
        };
        serde_json::to_string(&before).unwrap_or_default()
    }

    /// Moves the device into the pod. Sets its address at the card, so that the pod cannot use another one.
    pub(crate) fn give(
        &self,
        host: &NetConfig,
        pod: &Pod,
        conf: &Conf,
        change: &Change<'_>,
    ) -> Result<Device, Failure> {
        let device = pod.take(host, &self.device, change)?;
        let port = Change {
            mtu_bytes: Some(device.mtu_bytes),
            up: Some(true),
            ..Change::default()
        };
        host.change(self.port.0, &port)
            .map_err(|e| kernel(&format!("representor {}", self.representor), &e))?;
        if let Some(vf) = &self.vf {
            self.set_vf(host, vf, change.mac, conf.own.trust)?;
        }
        Ok(device)
    }

    fn set_vf(
        &self,
        host: &NetConfig,
        vf: &Vf,
        mac: Option<[u8; 6]>,
        trust: Option<bool>,
    ) -> Result<(), Failure> {
        let Some(pf) = host.device(&vf.pf).map_err(|e| kernel(&vf.pf, &e))? else {
            return fail(Code::NoKind, format!("there is no device {}", vf.pf));
        };
        let set = |change| host.change_vf(pf.ifindex, vf.number, change);
        let named = |what: &str, e| {
            kernel(
                &format!("{what} of virtual function {} of {}", vf.number, vf.pf),
                &e,
            )
        };
        match set(VfChange { mac, trust: None }) {
            // The netdev has the address, but the driver cannot make the card enforce it.
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {}
            done => done.map_err(|e| named("address", e))?,
        }
        set(VfChange { mac: None, trust }).map_err(|e| named("trust", e))
    }
}

fn allowed(key: &str, name: &str) -> Result<(), Failure> {
    if names::is_allowed_device(name) {
        return Ok(());
    }
    fail(
        Code::Conf,
        format!(
            "{key} {name:?} is neither a virtual function nor in {} of the container runtime's environment",
            names::DEVICES_VARIABLE
        ),
    )
}

/// The device of that name, if the node does not use it.
fn unused(host: &NetConfig, db: &mut Db, name: &str) -> Result<Device, Failure> {
    let used = |why: String| fail(Code::NoKind, format!("device {name} is in use: {why}"));
    let Some(device) = host.device(name).map_err(|e| kernel(name, &e))? else {
        return fail(
            Code::NoKind,
            format!("there is no device {name} in the plug-in's network namespace"),
        );
    };
    if device.master.is_some() {
        return used("it is below another device".to_owned());
    }
    if db.named(name)?.is_some() {
        return used("it is a port of a bridge".to_owned());
    }
    let settings = host.settings(device.ifindex).map_err(|e| kernel(name, &e))?;
    let is_global = |(ip, _): &(std::net::IpAddr, u8)| match ip {
        std::net::IpAddr::V4(_) => true,
        std::net::IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    match settings.addresses().into_iter().find(is_global) {
        Some((ip, len)) => used(format!("it has the address {ip}/{len}")),
        None => Ok(device),
    }
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

/// For the log: the device and its address.
impl std::fmt::Display for HostDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mac = self.device.mac.map(mac_text).unwrap_or_default();
        write!(f, "{} ({mac}), port {}", self.device.name, self.representor)
    }
}
