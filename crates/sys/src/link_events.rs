//! Notices of changed network devices, from an rtnetlink socket (rtnetlink(7), groups `RTNLGRP_LINK` and
//! `RTNLGRP_TC`).
//!
//! The kernel drops notices when the reader is late. [`LinkEvents::read`] then returns [`LinkEvent::Lost`],
//! and the reader checks all its devices. A notice that cannot be parsed has the same effect.

use crate::netlink::{self, Message};
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// A change of one device, or a sign of lost notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A device appeared or changed.
    Changed(LinkInfo),
    /// A device is gone from this namespace.
    Gone(LinkInfo),
    /// The filter at a device's ingress ([`crate::Ingress::hold`]) was removed.
    Released {
        /// Interface index.
        ifindex: u32,
    },
    /// Some notices were lost: look at every device.
    Lost,
}

/// The device of a notice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// Carrier.
    pub lower_up: bool,
    /// MTU, 0 when the notice has none.
    pub mtu: u32,
}

/// A subscription to the notices of this thread's network namespace.
#[derive(Debug)]
pub struct LinkEvents(netlink::Notices);

impl LinkEvents {
    /// Subscribes. The descriptor is non-blocking and readable when notices wait.
    ///
    /// # Errors
    /// The error of socket(2) and bind(2).
    pub fn new() -> io::Result<Self> {
        netlink::Notices::new((libc::RTMGRP_LINK | libc::RTMGRP_TC) as u32).map(Self)
    }

    /// Takes the notices that wait now (at most one datagram's worth); empty when none does.
    ///
    /// # Errors
    /// The error of recv(2) except `EAGAIN`, `EINTR` and `ENOBUFS` (which is [`LinkEvent::Lost`]).
    pub fn read(&mut self) -> io::Result<Vec<LinkEvent>> {
        match self.0.read() {
            Ok(data) => Ok(netlink::messages(data).filter_map(event).collect()),
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(vec![LinkEvent::Lost]),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
impl AsRawFd for LinkEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }
}

/// The event that a message reports, if it is one about links.
fn event(message: Result<Message, netlink::NotUnderstood>) -> Option<LinkEvent> {
    let Ok(message) = message else {
        return Some(LinkEvent::Lost);
    };
    match message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(m)) => Some(LinkEvent::Changed(info(m))),
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(m)) => Some(LinkEvent::Gone(info(m))),
        NetlinkPayload::InnerMessage(other) => {
            crate::ingress::released(&other).map(|ifindex| LinkEvent::Released { ifindex })
        }
        _ => None,
    }
}

fn info(message: LinkMessage) -> LinkInfo {
    let mut info = LinkInfo {
        ifindex: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        lower_up: message.header.flags.contains(LinkFlags::LowerUp),
        ..LinkInfo::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => info.name = name,
            LinkAttribute::Mtu(mtu) => info.mtu = mtu,
            _ => {}
        }
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(
        kind: fn(LinkMessage) -> RouteNetlinkMessage,
        ifindex: u32,
        flags: LinkFlags,
        name: &str,
        mtu: u32,
    ) -> Vec<u8> {
        let mut link = LinkMessage::default();
        (link.header.index, link.header.flags) = (ifindex, flags);
        link.attributes = vec![LinkAttribute::IfName(name.into()), LinkAttribute::Mtu(mtu)];
        let mut message = Message::from(kind(link));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn parse(data: &[u8]) -> Vec<LinkEvent> {
        netlink::messages(data).filter_map(event).collect()
    }

    #[test]
    fn messages_become_events() {
        let up = LinkFlags::Up | LinkFlags::LowerUp;
        let mut data = message(RouteNetlinkMessage::NewLink, 7, up, "eth7", 9000);
        data.extend(message(
            RouteNetlinkMessage::DelLink,
            8,
            LinkFlags::empty(),
            "veth-a",
            1500,
        ));
        let info = |ifindex, name: &str, up, mtu| LinkInfo {
            ifindex,
            name: name.into(),
            up,
            lower_up: up,
            mtu,
        };
        let mut expected = vec![
            LinkEvent::Changed(info(7, "eth7", true, 9000)),
            LinkEvent::Gone(info(8, "veth-a", false, 1500)),
        ];
        assert_eq!(parse(&data), expected);
        // A name of no bytes, but its attribute has a length: the notice's device is unknown.
        let mut odd = message(RouteNetlinkMessage::NewLink, 9, up, "eth9", 1500);
        odd[32] = 2;
        data.extend(odd);
        expected.push(LinkEvent::Lost);
        assert_eq!(parse(&data), expected);
    }

    proptest! {
        #[test]
        fn nonsense_is_ignored(mut data in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..80) {
            let good = message(RouteNetlinkMessage::NewLink, 7, LinkFlags::empty(), "eth7", 9000);
            let _ = parse(&data);
            prop_assert!(parse(&good[..cut.min(good.len() - 1)]).is_empty());
            data.splice(0..0, good);
            prop_assert!(!parse(&data).is_empty());
        }
    }

    #[test]
    fn a_quiet_socket_has_nothing() {
        let mut events = LinkEvents::new().unwrap();
        assert!(events.read().is_ok());
    }
}
