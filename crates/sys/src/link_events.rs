//! Notices of changed network devices, from an rtnetlink socket (rtnetlink(7), group `RTNLGRP_LINK`).
//!
//! The kernel drops notices when the reader is late; [`LinkEvents::read`] then says [`LinkEvent::Lost`] and the
//! reader looks at all its devices. Messages are parsed as untrusted input, although only the kernel sends here.

use crate::netlink::{self, u32_at};
use crate::{cvt_len, sock};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A device appeared or changed.
    Changed(LinkInfo),
    /// A device is gone from this namespace.
    Gone(LinkInfo),
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
pub struct LinkEvents {
    fd: OwnedFd,
    buf: Vec<u8>,
}

impl LinkEvents {
    /// Subscribes. The descriptor is non-blocking and readable when notices wait.
    ///
    /// # Errors
    /// What socket(2) and bind(2) say.
    pub fn new() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        let fd = sock::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE)?;
        // SAFETY: a C structure for which all zeroes are a value.
        let mut addr: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
        addr.nl_family = libc::AF_NETLINK as u16;
        addr.nl_groups = libc::RTMGRP_LINK as u32;
        sock::bind(fd.as_fd(), &addr)?;
        Ok(Self {
            fd,
            buf: vec![0; 32 * 1024],
        })
    }

    /// Takes the notices that wait now (at most one datagram's worth); empty when none does.
    ///
    /// # Errors
    /// What recv(2) says but `EAGAIN`, `EINTR` and `ENOBUFS` (which is [`LinkEvent::Lost`]).
    pub fn read(&mut self) -> io::Result<Vec<LinkEvent>> {
        let (ptr, len) = (self.buf.as_mut_ptr(), self.buf.len());
        // SAFETY: `buf` is writable for its length.
        let got = cvt_len(unsafe { libc::recv(self.fd.as_raw_fd(), ptr.cast(), len, libc::MSG_TRUNC) });
        match got {
            Ok(n) if n > len => Ok(vec![LinkEvent::Lost]),
            Ok(n) => Ok(parse(self.buf.get(..n).unwrap_or_default())),
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(Vec::new()),
                Some(libc::ENOBUFS) => Ok(vec![LinkEvent::Lost]),
                _ => Err(e),
            },
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
impl AsRawFd for LinkEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Splits a datagram into messages and keeps those about links.
fn parse(data: &[u8]) -> Vec<LinkEvent> {
    let event = |(kind, body)| match kind {
        libc::RTM_NEWLINK => link_info(body).map(LinkEvent::Changed),
        libc::RTM_DELLINK => link_info(body).map(LinkEvent::Gone),
        _ => None,
    };
    netlink::messages(data).filter_map(event).collect()
}

/// `struct ifinfomsg` and its attributes.
fn link_info(body: &[u8]) -> Option<LinkInfo> {
    let flags = u32_at(body, 8)?;
    let mut info = LinkInfo {
        ifindex: u32_at(body, 4)?,
        up: flags & libc::IFF_UP as u32 != 0,
        lower_up: flags & libc::IFF_LOWER_UP as u32 != 0,
        ..LinkInfo::default()
    };
    for (kind, value) in netlink::attributes(body.get(netlink::IFINFO..)?) {
        match kind {
            libc::IFLA_IFNAME => info.name = netlink::text(value),
            libc::IFLA_MTU => info.mtu = u32_at(value, 0).unwrap_or(0),
            _ => {}
        }
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u16, ifindex: u32, flags: u32, name: &str, mtu: u32) -> Vec<u8> {
        let name = [name.as_bytes(), b"\0"].concat();
        let attributes = [
            (libc::IFLA_IFNAME, &name[..]),
            (libc::IFLA_MTU, &mtu.to_ne_bytes()[..]),
        ];
        let mut m = netlink::link_message(kind, 0, ifindex, &attributes);
        m[netlink::HEADER + 8..netlink::HEADER + 12].copy_from_slice(&flags.to_ne_bytes());
        m
    }

    #[test]
    fn messages_become_events() {
        let up = (libc::IFF_UP | libc::IFF_LOWER_UP) as u32;
        let mut data = message(libc::RTM_NEWLINK, 7, up, "eth7", 9000);
        data.extend(message(libc::RTM_DELLINK, 8, 0, "veth-a", 1500));
        let info = |ifindex, name: &str, up, mtu| LinkInfo {
            ifindex,
            name: name.into(),
            up,
            lower_up: up,
            mtu,
        };
        assert_eq!(
            parse(&data),
            [
                LinkEvent::Changed(info(7, "eth7", true, 9000)),
                LinkEvent::Gone(info(8, "veth-a", false, 1500))
            ]
        );
    }

    proptest! {
        #[test]
        fn nonsense_is_ignored(mut data in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..80) {
            let good = message(libc::RTM_NEWLINK, 7, 0, "eth7", 9000);
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
