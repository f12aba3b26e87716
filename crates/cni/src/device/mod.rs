//! Kind `device`: moves a device of the host into the pod; its representor becomes the port in the switch.
//!
//! The device is a virtual function of a card, or one that the administrator allows; the same holds for the
//! representor ([`names::is_allowed_device`]). The row of the port has the earlier state of the device (key
//! [`BEFORE`]). DEL moves the device back and restores that state. If the pod's namespace was removed before,
//! the kernel has moved the device to the initial namespace, and DEL only restores the state.
//!
//! **Passed through.** A virtual function that is bound to `vfio-pci` has no netdev. A program in the pod
//! opens it (a virtual machine of KubeVirt, DPDK), and that driver gets its address from the card. So the
//! plug-in leaves the function where it is, and only sets its address and trust at the card.
//!
//! **Trust.** Tenants may write the configuration. So without the administrator's permission, a pod gets only
//! a virtual function. Every device must be unused: without IP addresses and master, and no port of the
//! switch.

mod restore;

pub(crate) use restore::{give_back, is_passed};

use crate::conf::{Conf, mac_text};
use crate::db::Db;
use crate::error::{Code, Failure, fail, kernel};
use crate::names;
use crate::pod::Pod;
use crate::sysfs::{Sysfs, Vf, is_pci};
use heddle_sys::NetConfig;
use heddle_sys::net_config::{Change, Device, VfChange};
use restore::SavedState;

/// Key of `external_ids`: the device's state before ADD, [`SavedState`] as JSON.
pub(crate) const BEFORE: &str = "heddle-cni/device";

/// Drivers of devices that programs open themselves: vfio-pci, and its variants for some cards.
fn passes_through(driver: &str) -> bool {
    driver == "vfio-pci" || driver.ends_with("-vfio-pci") || driver.ends_with("_vfio_pci")
}

/// A device of the host for a pod, and its representor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostDevice {
    /// The netdev; `None`: the device is passed through.
    netdev: Option<Device>,
    /// PCI address, if the configuration has it in place of the name.
    pub(crate) pci: Option<String>,
    /// Name of the representor.
    pub(crate) representor: String,
    /// Interface index of the representor, and its MTU in bytes.
    port: (u32, u32),
    vf: Option<Vf>,
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
            (None, Some(name)) => allowed("device", name).map(|()| (Some(name.clone()), None, None)),
            (None, None) => fail(
                Code::NoKind,
                "kind device: the runtime gave no deviceID, and the configuration names no device",
            ),
        };
        let (name, pci, vf) = named?;
        let shown = name.as_ref().or(pci.as_ref()).map_or("", String::as_str);
        if vf.is_none() && conf.own.trust.is_some() {
            return fail(Code::Conf, format!("trust: {shown} is no virtual function"));
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
            _ => return fail(Code::Conf, format!("device {shown}: representor is missing")),
        };
        let netdev = name.map(|name| unused(host, db, &name)).transpose()?;
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
            netdev,
            pci,
            representor,
            port: (port.ifindex, port.mtu_bytes),
            vf,
        })
    }

    /// Netdev of a PCI device, and its virtual function, if it is one. No netdev: it is passed through.
    fn by_pci(id: &str, sysfs: &Sysfs) -> Result<(Option<String>, Option<Vf>), Failure> {
        if !sysfs.has_pci(id) {
            return fail(Code::NoKind, format!("deviceID {id}: there is no such device"));
        }
        let vf = sysfs.vf(id);
        if vf.is_none() {
            allowed("deviceID", id)?;
        }
        match (sysfs.netdev(id), sysfs.driver(id)) {
            (Some(name), _) => Ok((Some(name), vf)),
            (None, Some(driver)) if passes_through(&driver) => match vf {
                Some(vf) => Ok((None, Some(vf))),
                None => fail(
                    Code::Conf,
                    format!(
                        "deviceID {id} is bound to {driver} and is no virtual function: nothing can set its address"
                    ),
                ),
            },
            (None, Some(driver)) => fail(
                Code::NoKind,
                format!("deviceID {id} has no netdev here: driver {driver}, or another pod has it"),
            ),
            (None, None) => fail(Code::NoKind, format!("deviceID {id} has no driver")),
        }
    }

    /// The value of [`BEFORE`].
    pub(crate) fn before(&self) -> String {
        let device = self.netdev.clone().unwrap_or_default();
        let before = SavedState {
            name: device.name,
            mac: device.mac,
            mtu: device.mtu_bytes,
            port_mtu: self.port.1,
            bus: match &self.netdev {
                Some(_) => device.bus_address,
                None => self.pci.clone().unwrap_or_default(),
            },
            vf: self.vf.as_ref().map(|vf| (vf.pf.clone(), vf.number)),
            passed: self.netdev.is_none(),
        };
        serde_json::to_string(&before).unwrap_or_default()
    }

    /// Moves the device into the pod; returns its netdev there. Also sets its address at the card. If the
    /// driver does not support that, the pod can change its address.
    pub(crate) fn give(
        &self,
        host: &NetConfig,
        pod: &Pod,
        conf: &Conf,
        change: &Change<'_>,
    ) -> Result<Option<Device>, Failure> {
        let taken = self.netdev.as_ref().map(|device| pod.take(host, device, change));
        let device = taken.transpose()?;
        let port = Change {
            mtu_bytes: device.as_ref().map(|d| d.mtu_bytes).or(change.mtu_bytes),
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
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported && self.netdev.is_some() => {}
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

/// For the log: the device and its address.
impl std::fmt::Display for HostDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match (&self.netdev, &self.pci) {
            (Some(device), _) => {
                let mac = device.mac.map(mac_text).unwrap_or_default();
                format!("{} ({mac})", device.name)
            }
            (None, pci) => format!("{} (passed through)", pci.as_deref().unwrap_or_default()),
        };
        write!(f, "{name}, port {}", self.representor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::card;
    use std::os::unix::fs::symlink;

    #[test]
    fn functions_with_and_without_a_netdev() {
        let (dir, sysfs) = card(["pf1vf0", "pf1vf1"]);
        let pci = dir.path().join("bus/pci/devices");
        let found = HostDevice::by_pci("0000:03:02.0", &sysfs).unwrap();
        assert_eq!(found.0.as_deref(), Some("ens1v0"));
        std::fs::remove_dir_all(pci.join("0000:03:02.0/net")).unwrap();
        let why = |id: &str| HostDevice::by_pci(id, &sysfs).unwrap_err();
        let refused = why("0000:03:02.0");
        assert_eq!(refused.code, Code::NoKind as u64);
        assert!(
            refused
                .msg
                .contains("no netdev here: driver igbvf, or another pod has it"),
            "{}",
            refused.msg
        );
        for driver in ["vfio-pci", "mlx5_vfio_pci", "nvgrace-gpu-vfio-pci"] {
            std::fs::remove_file(pci.join("0000:03:02.0/driver")).unwrap();
            symlink(format!("../../drivers/{driver}"), pci.join("0000:03:02.0/driver")).unwrap();
            let (netdev, vf) = HostDevice::by_pci("0000:03:02.0", &sysfs).unwrap();
            assert_eq!((netdev, vf.map(|vf| vf.number)), (None, Some(0)), "{driver}");
        }
        // A whole card is not given away, also if vfio-pci has it.
        symlink("../../drivers/vfio-pci", pci.join("0000:03:00.1/driver")).unwrap();
        std::fs::remove_dir_all(pci.join("0000:03:00.1/net")).unwrap();
        assert_eq!(why("0000:03:00.1").code, Code::Conf as u64);
    }
}
