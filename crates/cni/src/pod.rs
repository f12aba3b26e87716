//! The pod's side: its namespace, its device, addresses and routes.

use crate::error::{Code, Failure, fail, kernel};
use crate::result::Addresses;
use heddle_sys::net_config::{Change, Device};
use heddle_sys::{NetConfig, netns};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// A pod's network namespace.
pub(crate) struct Pod {
    pub(crate) ns: OwnedFd,
    pub(crate) net: NetConfig,
}

/// The namespace, `None` if it is gone.
fn open(path: &str) -> io::Result<Option<OwnedFd>> {
    match netns::open(Path::new(path)) {
        Ok(ns) => Ok(Some(ns)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        // A namespace that was unmounted leaves an ordinary, empty file.
        Err(e) if e.raw_os_error() == Some(25) => Ok(None), // ENOTTY
        Err(e) => Err(e),
    }
}

/// Whether the switch has made a device for that port.
fn is_of(device: &Device, port: &str) -> bool {
    device.alias.ends_with(&format!(":{port}"))
}

impl Pod {
    pub(crate) fn open(path: &str) -> Result<Self, Failure> {
        let ns = match open(path) {
            Ok(Some(ns)) => ns,
            Ok(None) => return fail(Code::Container, format!("there is no network namespace {path}")),
            Err(e) => return Err(kernel(&format!("network namespace {path}"), &e)),
        };
        match NetConfig::new(Some(&ns)) {
            Ok(net) => Ok(Self { ns, net }),
            Err(e) => Err(kernel(&format!("network namespace {path}"), &e)),
        }
    }

    /// Whether the namespace with that number is at that path; without a number, whether there is any. If
    /// that is unknown, it is taken to be there.
    pub(crate) fn exists(path: &str, inode: Option<u64>) -> bool {
        match (open(path), inode) {
            (Ok(None), _) => false,
            (Ok(Some(ns)), Some(inode)) => netns::id(&ns).map_or(true, |id| id == inode),
            _ => true,
        }
    }

    pub(crate) fn device(&self, name: &str) -> Result<Option<Device>, Failure> {
        self.net
            .device(name)
            .map_err(|e| kernel(&format!("device {name}"), &e))
    }

    /// The number of the namespace, while it is there.
    pub(crate) fn id(&self) -> Result<u64, Failure> {
        netns::id(&self.ns).map_err(|e| kernel("the container's network namespace", &e))
    }

    /// The device of `port`, if the switch has made it here, with its settings.
    pub(crate) fn born(
        &self,
        ifname: &str,
        port: &str,
        change: &Change<'_>,
    ) -> Result<Option<Device>, Failure> {
        let Some(device) = self.device(ifname)?.filter(|d| is_of(d, port)) else {
            return Ok(None);
        };
        let change = Change {
            name: None,
            mac: change.mac.filter(|_| device.mac != change.mac),
            mtu_bytes: change.mtu_bytes.filter(|mtu| device.mtu_bytes != *mtu),
            ..*change
        };
        if change.mac.is_some() || change.mtu_bytes.is_some() {
            let done = self.net.change(device.ifindex, &change);
            done.map_err(|e| kernel(&format!("address and MTU of {ifname}"), &e))?;
        }
        self.device(ifname)
    }

    /// Waits until the device of that name has gone, if it belongs to `port` and is about to go.
    pub(crate) fn wait_until_free(&self, ifname: &str, port: &str) -> Result<(), Failure> {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            match self.device(ifname)? {
                None => return Ok(()),
                Some(device) if is_of(&device, port) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Some(_) => {
                    return fail(
                        Code::Device,
                        format!("the container has a device {ifname} already"),
                    );
                }
            }
        }
    }

    /// Moves a device into the pod, with its name and settings. It stays down.
    pub(crate) fn take(
        &self,
        host: &NetConfig,
        device: &Device,
        change: &Change<'_>,
    ) -> Result<Device, Failure> {
        let name = change.name.unwrap_or(&device.name);
        let change = Change {
            namespace: Some(&self.ns),
            ..*change
        };
        host.change(device.ifindex, &change).map_err(|e| {
            kernel(
                &format!("moving {} into the container as {name}", device.name),
                &e,
            )
        })?;
        match self.device(name)? {
            Some(device) => Ok(device),
            None => fail(Code::Device, format!("device {name} left the container")),
        }
    }

    /// Gives a device addresses and routes, and brings it up.
    pub(crate) fn configure(&self, device: &Device, addresses: &Addresses) -> Result<(), Failure> {
        let name = &device.name;
        self.sysctls(name, addresses.ips.iter().any(|ip| ip.address.is_ipv6()))?;
        for ip in &addresses.ips {
            self.net
                .add_address(device.ifindex, ip.address, ip.prefix_len)
                .map_err(|e| kernel(&format!("address {} of {name}", ip.address), &e))?;
        }
        self.up(device)?;
        for route in addresses.routes() {
            match self.net.add_route(device.ifindex, &route) {
                // Another network of the pod has this route already.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                done => {
                    done.map_err(|e| {
                        kernel(&format!("route {}/{} of {name}", route.dst, route.dst_len), &e)
                    })?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn up(&self, device: &Device) -> Result<(), Failure> {
        let up = Change {
            up: Some(true),
            ..Change::default()
        };
        self.net
            .change(device.ifindex, &up)
            .map_err(|e| kernel(&format!("device {}", device.name), &e))
    }

    /// Makes the device announce its addresses when it comes up, since caches may still have the pod's
    /// earlier holder. Turns IPv6 on if an IPv6 address is given.
    fn sysctls(&self, name: &str, with_ipv6: bool) -> Result<(), Failure> {
        let name = name.to_owned();
        let set = move || {
            let set = |family: &str, key: &str, value: &str| {
                std::fs::write(format!("/proc/sys/net/{family}/conf/{name}/{key}"), value)
            };
            // The pod works without these.
            let _ = set("ipv4", "arp_notify", "1");
            let _ = set("ipv6", "ndisc_notify", "1");
            if with_ipv6 {
                set("ipv6", "disable_ipv6", "0")
            } else {
                Ok(())
            }
        };
        netns::inside(&self.ns, set).map_err(|e| kernel("turning IPv6 on in the container", &e))
    }
}
