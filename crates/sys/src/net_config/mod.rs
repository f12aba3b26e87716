//! Changing the network devices of a namespace over rtnetlink(7): moving, naming, addresses, routes.
//!
//! **Problem.** A program that sets up the network of a pod or machine works in namespaces that are not its
//! own. It must not run another program for each step.
//!
//! **How.** A socket stays in the namespace that it was opened in, so one [`NetConfig`] per namespace serves
//! any thread. Each call is one request that the kernel acknowledges. [`NetConfig::settings`] keeps a
//! device's settings as the kernel's own messages. So [`NetConfig::restore`] gives them to another device
//! with all attributes, also those that this crate does not know.

mod settings;
#[cfg(test)]
mod tests;
mod vf;

use crate::netlink::Requests;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::{self as M, DelLink, GetLink, NewLink, SetLink};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
pub use settings::{Route, Settings};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
pub use vf::VfChange;

/// A network device of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Interface index, in its namespace.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// The kind of link (`veth`, `tun`), empty for hardware.
    pub kind: String,
    /// The text set by `ip link set DEV alias TEXT`, empty if none.
    pub alias: String,
    /// Hardware address, if it is an Ethernet device.
    pub mac: Option<[u8; 6]>,
    /// Largest packet behind the Ethernet header, bytes.
    pub mtu_bytes: u32,
    /// Administratively up.
    pub up: bool,
    /// Whether there is a carrier. A device that is down has none.
    pub carrier: bool,
    /// Index of the device that it belongs to (a bridge, a bond).
    pub master: Option<u32>,
    /// For a veth: the index of the other end, in the other end's namespace.
    pub peer: Option<u32>,
    /// Address of its hardware on the bus (PCI), empty if it has none.
    pub bus_address: String,
}

/// Changes of a device; `None` leaves a setting as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change<'a> {
    /// Move it there, before all else.
    pub namespace: Option<&'a OwnedFd>,
    /// The device's new name.
    pub name: Option<&'a str>,
    /// Hardware address.
    pub mac: Option<[u8; 6]>,
    /// Largest packet behind the Ethernet header, bytes.
    pub mtu_bytes: Option<u32>,
    /// Administratively up.
    pub up: Option<bool>,
    /// The device that it belongs to, 0 for none.
    pub master: Option<u32>,
}

/// Requests about the devices of one network namespace.
#[derive(Debug)]
pub struct NetConfig(Requests);

impl NetConfig {
    /// About the caller's namespace, or about `ns`.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN` to enter `ns`; no descriptors left.
    pub fn new(ns: Option<&OwnedFd>) -> io::Result<Self> {
        Requests::new(ns).map(Self)
    }

    /// All devices.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn devices(&self) -> io::Result<Vec<Device>> {
        self.links(LinkMessage::default(), NLM_F_DUMP)
    }

    /// The device of that name, if there is one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn device(&self, name: &str) -> io::Result<Option<Device>> {
        if name.is_empty() || name.len() > crate::tap::NAME_MAX {
            return Ok(None);
        }
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.into()));
        match self.links(request, NLM_F_ACK) {
            Ok(links) => Ok(links.into_iter().next()),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Changes a device, in one request.
    ///
    /// # Errors
    /// `ENODEV`; `EEXIST` if the new name is taken; the driver's error.
    pub fn change(&self, ifindex: u32, change: &Change<'_>) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        if let Some(up) = change.up {
            request.header.change_mask = LinkFlags::Up;
            request.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        }
        let attributes = &mut request.attributes;
        attributes.extend(change.namespace.map(|ns| LinkAttribute::NetNsFd(ns.as_raw_fd())));
        attributes.extend(change.name.map(|name| LinkAttribute::IfName(name.into())));
        attributes.extend(change.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        attributes.extend(change.mtu_bytes.map(LinkAttribute::Mtu));
        attributes.extend(change.master.map(LinkAttribute::Controller));
        self.0.ask(SetLink(request), NLM_F_ACK, drop)
    }

    /// Makes a pair of veth devices: one here, up; the other, down, in the namespace `there`.
    ///
    /// # Errors
    /// `EEXIST` if one of the names is taken.
    pub fn add_veth(&self, name: &str, mtu_bytes: Option<u32>, peer: &Change<'_>) -> io::Result<()> {
        let mut other = LinkMessage::default();
        other
            .attributes
            .extend(peer.name.map(|name| LinkAttribute::IfName(name.into())));
        other
            .attributes
            .extend(peer.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        other.attributes.extend(mtu_bytes.map(LinkAttribute::Mtu));
        other
            .attributes
            .extend(peer.namespace.map(|ns| LinkAttribute::NetNsFd(ns.as_raw_fd())));
        let mut request = LinkMessage::default();
        request.header.change_mask = LinkFlags::Up;
        request.header.flags = LinkFlags::Up;
        request.attributes.push(LinkAttribute::IfName(name.into()));
        request.attributes.extend(mtu_bytes.map(LinkAttribute::Mtu));
        request.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        self.0
            .ask(NewLink(request), NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, drop)
    }

    /// Removes a device. One that is not there is fine.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for hardware.
    pub fn remove(&self, ifindex: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        match self.0.ask(DelLink(request), NLM_F_ACK, drop) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            done => done,
        }
    }

    fn links(&self, request: LinkMessage, flags: u16) -> io::Result<Vec<Device>> {
        let mut devices = Vec::new();
        self.0.ask(GetLink(request), flags, |answer| {
            if let M::NewLink(message) = answer {
                devices.push(device(message));
            }
        })?;
        Ok(devices)
    }
}

fn device(message: LinkMessage) -> Device {
    let mut device = Device {
        ifindex: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        carrier: message.header.flags.contains(LinkFlags::LowerUp),
        ..Device::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::Address(mac) => device.mac = mac.try_into().ok(),
            LinkAttribute::IfAlias(alias) => device.alias = alias,
            LinkAttribute::Mtu(mtu) => device.mtu_bytes = mtu,
            LinkAttribute::Controller(index) => device.master = Some(index),
            LinkAttribute::Link(index) => device.peer = Some(index),
            LinkAttribute::ParentDevName(address) => device.bus_address = address,
            LinkAttribute::LinkInfo(parts) => {
                device.kind = parts
                    .iter()
                    .find_map(|part| match part {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    })
                    .unwrap_or_default();
            }
            _ => {}
        }
    }
    device
}
