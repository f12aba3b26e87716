//! The kernel's own tunnel devices, without a peer and an identifier of their own (`collect_md`, in iproute2
//! `external`). Each packet that is sent by such a device brings its tunnel's key.
//!
//! A device binds the UDP port of its tunnels, and gives received packets to the host's stack with their
//! tunnel's key.

use crate::netlink::Requests;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage::{DelLink, NewLink};
use netlink_packet_route::link::{
    InfoData, InfoGeneve, InfoKind, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage,
};
use std::io;

/// A kind of tunnel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TunnelLinkKind {
    /// VXLAN.
    Vxlan,
    /// Geneve.
    Geneve,
}

impl TunnelLinkKind {
    /// The name that Open vSwitch gives to the device of this UDP port.
    pub fn device_name(self, port: u16) -> String {
        match self {
            Self::Vxlan => format!("vxlan_sys_{port}"),
            Self::Geneve => format!("genev_sys_{port}"),
        }
    }
    /// The properties of a device, as Open vSwitch sets them.
    fn info(self, port: u16) -> [LinkInfo; 2] {
        match self {
            Self::Vxlan => [
                LinkInfo::Kind(InfoKind::Vxlan),
                LinkInfo::Data(InfoData::Vxlan(vec![
                    InfoVxlan::Learning(false),
                    InfoVxlan::CollectMetadata(true),
                    InfoVxlan::UDPZeroCsumRX(true),
                    InfoVxlan::Port(port),
                ])),
            ],
            Self::Geneve => [
                LinkInfo::Kind(InfoKind::Geneve),
                LinkInfo::Data(InfoData::Geneve(vec![
                    InfoGeneve::CollectMetadata,
                    InfoGeneve::UdpZeroCsum6Rx(true),
                    InfoGeneve::Port(port),
                ])),
            ],
        }
    }
}

/// Requests about tunnel devices of one network namespace.
#[derive(Debug)]
pub struct TunnelLinks(Requests);

impl TunnelLinks {
    /// Requests about the caller's namespace.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Requests::new(None).map(Self)
    }

    /// Makes the device of a UDP port, as one of a group of devices. It is down, and has the name
    /// [`TunnelLinkKind::device_name`].
    ///
    /// # Errors
    /// `EEXIST` if there is a device with this name, or of this port; `EOPNOTSUPP` if the kernel has no such
    /// devices.
    pub fn make(&self, kind: TunnelLinkKind, port: u16, group: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.attributes = vec![
            LinkAttribute::IfName(kind.device_name(port)),
            LinkAttribute::Group(group),
            LinkAttribute::LinkInfo(kind.info(port).into()),
        ];
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.0.ask(NewLink(request), flags, |_| {})
    }

    /// Removes a device.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn remove(&self, ifindex: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = ifindex;
        self.0.ask(DelLink(request), NLM_F_ACK, |_| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TapLinks;

    /// In the test's own network namespace, if the kernel has VXLAN.
    #[test]
    fn a_device_is_made_and_removed() {
        let done = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; nothing that processes share is unshared here"
            )]
            if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
                return; // not root
            }
            let (tunnels, links) = (TunnelLinks::new().unwrap(), TapLinks::new(None).unwrap());
            match tunnels.make(TunnelLinkKind::Vxlan, 4789, 77) {
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
                done => done.unwrap(),
            }
            let device = links.named("vxlan_sys_4789").unwrap().unwrap();
            assert_eq!(device.group, 77);
            links.bring_up(device.ifindex, 77).unwrap();
            let again = tunnels.make(TunnelLinkKind::Vxlan, 4789, 77).unwrap_err();
            assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
            // The device has the port.
            let port = std::net::UdpSocket::bind("0.0.0.0:4789").unwrap_err();
            assert_eq!(port.kind(), io::ErrorKind::AddrInUse);
            tunnels.remove(device.ifindex).unwrap();
            assert_eq!(links.named("vxlan_sys_4789").unwrap(), None);
            assert!(tunnels.remove(device.ifindex).is_err());
        });
        done.join().unwrap();
    }
}
