//! Notices of changed network devices, from an rtnetlink socket (rtnetlink(7), group `RTNLGRP_LINK`).
//!
//! The kernel drops notices when the reader is late; [`LinkEvents::read`] then says [`LinkEvent::Lost`] and the
//! reader looks at all its devices. Messages are parsed as untrusted input, although only the kernel sends here.

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

const NLMSG_HDR: usize = 16;
const IFINFO_LEN: usize = 16;

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

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}
fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}
fn align4(n: usize) -> usize {
    n.saturating_add(3) & !3
}

/// Splits a datagram into messages and keeps those about links.
fn parse(mut data: &[u8]) -> Vec<LinkEvent> {
    let mut events = Vec::new();
    while let (Some(len), Some(kind)) = (u32_at(data, 0), u16_at(data, 4)) {
        let len = len as usize;
        let Some(body) = data.get(NLMSG_HDR..len) else {
            break;
        };
        match (kind, link_info(body)) {
            (libc::RTM_NEWLINK, Some(info)) => events.push(LinkEvent::Changed(info)),
            (libc::RTM_DELLINK, Some(info)) => events.push(LinkEvent::Gone(info)),
            _ => {}
        }
        data = data.get(align4(len)..).unwrap_or_default();
    }
    events
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
    let mut attrs = body.get(IFINFO_LEN..)?;
    while let (Some(len), Some(kind)) = (u16_at(attrs, 0), u16_at(attrs, 2)) {
        let len = usize::from(len);
        let Some(value) = attrs.get(4..len) else { break };
        match kind {
            libc::IFLA_IFNAME => {
                let name: Vec<u8> = value.iter().copied().take_while(|&b| b != 0).collect();
                info.name = String::from_utf8_lossy(&name).into_owned();
            }
            libc::IFLA_MTU => info.mtu = u32_at(value, 0).unwrap_or(0),
            _ => {}
        }
        attrs = attrs.get(align4(len)..).unwrap_or_default();
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u16, ifindex: u32, flags: u32, name: &str, mtu: u32) -> Vec<u8> {
        let mut attrs = Vec::new();
        let mut attr = |kind: u16, value: &[u8]| {
            attrs.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
            attrs.extend_from_slice(&kind.to_ne_bytes());
            attrs.extend_from_slice(value);
            attrs.resize(align4(attrs.len()), 0);
        };
        attr(libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        attr(libc::IFLA_MTU, &mtu.to_ne_bytes());
        let mut m = ((NLMSG_HDR + IFINFO_LEN + attrs.len()) as u32)
            .to_ne_bytes()
            .to_vec();
        m.extend_from_slice(&kind.to_ne_bytes());
        m.resize(NLMSG_HDR + 4, 0);
        m.extend_from_slice(&ifindex.to_ne_bytes());
        m.extend_from_slice(&flags.to_ne_bytes());
        m.resize(NLMSG_HDR + IFINFO_LEN, 0);
        m.extend_from_slice(&attrs);
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
