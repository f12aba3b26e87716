//! The kernel's knowledge of paths to other hosts, from rtnetlink(7): devices, addresses, routes, rules,
//! neighbours, and notices of their changes.
//!
//! A notice names only the kind of data to read again. So a reader that is late, or misses notices
//! (`ENOBUFS`), has no more to do than another. [`HostEvents`] has to be made before the first reading, so
//! that no change is missed between the two.

mod parse;
#[cfg(test)]
mod tests;

use crate::LinkCtl;
use crate::netlink::{Notices, Requests};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NetlinkBuffer};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as M};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A network device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostLink {
    /// Name.
    pub name: Arc<str>,
    /// Longest packet behind the link's header, bytes.
    pub mtu_bytes: Option<u32>,
    /// Administratively up.
    pub up: bool,
    /// Carrier.
    pub lower_up: bool,
}

/// An address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostAddress {
    /// The device that has it.
    pub device: Arc<str>,
    /// The address.
    pub addr: IpAddr,
    /// The number of leading bits that all addresses of the link share.
    pub prefix_len: u8,
    /// The address's scope (`RT_SCOPE_*`).
    pub scope: u8,
    /// An IPv4 address beside an older one of the same network.
    pub secondary: bool,
    /// A temporary IPv6 address.
    pub temporary: bool,
    /// The address must not be used for new connections.
    pub deprecated: bool,
    /// The address is being tested: another host may have it.
    pub tentative: bool,
}

/// The fate of a route's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostRouteKind {
    /// They are sent.
    Unicast,
    /// They are for this host.
    Local,
    /// They are not sent (unreachable, prohibited, a black hole).
    Refused,
    /// The lookup continues in other tables.
    Throw,
}

/// A route for packets to a single host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostRoute {
    /// Number of its table.
    pub table: u32,
    /// The first address that it is for.
    pub dst: IpAddr,
    /// The length of the prefix, in bits.
    pub dst_len: u8,
    /// The fate of the packets.
    pub kind: HostRouteKind,
    /// Among equal prefixes the route with the lowest metric counts.
    pub metric: u32,
    /// The preferred source address.
    pub prefsrc: Option<IpAddr>,
    /// The route's scope (`RT_SCOPE_*`).
    pub scope: u8,
    /// Maximum packet length, bytes, if the route has one.
    pub mtu_bytes: Option<u32>,
    /// Ways whose devices are up.
    pub hops: Vec<HostHop>,
}

/// A way of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostHop {
    /// The device.
    pub device: Arc<str>,
    /// The device's maximum packet length, bytes.
    pub device_mtu_bytes: Option<u32>,
    /// The next hop; `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// The hop's share of packets, beside other hops.
    pub weight: u32,
}

/// The action of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostRuleAction {
    /// Look up in a table; with a length, only longer prefixes count.
    Table(u32, Option<u8>),
    /// Continue with the rules from this priority on.
    Goto(u32),
    /// No action.
    Nop,
    /// No packets are sent.
    Refuse,
}

/// A rule that chooses a table (ip-rule(8)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostRule {
    /// The least is looked at first.
    pub priority: u32,
    /// For IPv6.
    pub v6: bool,
    /// The rule holds for the packets that do not match it.
    pub invert: bool,
    /// The source begins so.
    pub from: Option<(IpAddr, u8)>,
    /// The destination begins so.
    pub to: Option<(IpAddr, u8)>,
    /// The mark, in the bits of `mark_mask`, is this.
    pub mark: u32,
    /// See `mark`.
    pub mark_mask: u32,
    /// The rule matches on other things too: input device, users, ports, ...
    pub elsewhere: bool,
    /// The rule's action.
    pub action: HostRuleAction,
}

/// A neighbour whose Ethernet address is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostNeighbour {
    /// The device behind which it is.
    pub device: Arc<str>,
    /// The neighbour's address.
    pub addr: IpAddr,
    /// The neighbour's Ethernet address.
    pub mac: [u8; 6],
    /// The neighbour was not heard for long, and the kernel does not probe it (`NUD_STALE`).
    pub stale: bool,
}

/// Devices by index.
pub type HostLinks = HashMap<u32, HostLink>;

/// All but neighbours, each in the kernel's order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostRoutes {
    /// Addresses.
    pub addresses: Vec<HostAddress>,
    /// Rules, IPv4's first.
    pub rules: Vec<HostRule>,
    /// Routes of all tables.
    pub routes: Vec<HostRoute>,
}

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// Reads the kernel's data of the network namespace that it was made in.
#[derive(Debug)]
pub struct HostNet(Requests);

impl HostNet {
    /// For the caller's namespace.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Requests::new(None).map(Self)
    }

    /// All devices.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn links(&self) -> io::Result<HostLinks> {
        let mut links = HostLinks::new();
        self.dump(M::GetLink(LinkMessage::default()), |m| {
            if let M::NewLink(m) = m {
                links.insert(m.header.index, parse::link(m));
            }
        })?;
        Ok(links)
    }

    /// All addresses.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn addresses(&self, links: &HostLinks) -> io::Result<Vec<HostAddress>> {
        let mut all = Vec::new();
        for family in FAMILIES {
            let mut request = AddressMessage::default();
            request.header.family = family;
            self.dump(M::GetAddress(request), |m| {
                if let M::NewAddress(m) = m {
                    all.extend(parse::address(&m, links));
                }
            })?;
        }
        Ok(all)
    }

    /// Addresses, rules, and routes of all tables.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn routes(&self, links: &HostLinks) -> io::Result<HostRoutes> {
        let mut all = HostRoutes {
            addresses: self.addresses(links)?,
            ..HostRoutes::default()
        };
        for family in FAMILIES {
            let mut request = RuleMessage::default();
            request.header.family = family;
            // A kernel without rules refuses the request.
            let told = self.dump(M::GetRule(request), |m| {
                if let M::NewRule(m) = m {
                    all.rules.push(parse::rule(&m));
                }
            });
            match told {
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                told => told?,
            }
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            self.dump(M::GetRoute(request), |m| {
                if let M::NewRoute(m) = m {
                    all.routes.extend(parse::route(m, links));
                }
            })?;
        }
        Ok(all)
    }

    /// Neighbours behind devices that `wanted` names.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn neighbours(
        &self,
        links: &HostLinks,
        wanted: impl Fn(&str) -> bool,
    ) -> io::Result<Vec<HostNeighbour>> {
        let mut all = Vec::new();
        for family in FAMILIES {
            let mut request = NeighbourMessage::default();
            request.header.family = family;
            self.dump(M::GetNeighbour(request), |m| {
                if let M::NewNeighbour(m) = m {
                    all.extend(parse::neighbour(m, links).filter(|n| wanted(&n.device)));
                }
            })?;
        }
        Ok(all)
    }

    /// Has the kernel find or confirm the Ethernet address of a neighbour, as if it sent a packet there.
    ///
    /// # Errors
    /// `ENODEV`; `PermissionDenied` without `CAP_NET_ADMIN`.
    pub fn probe_neighbour(&self, device: &str, addr: IpAddr) -> io::Result<()> {
        let mut request = NeighbourMessage::default();
        request.header.family = match addr {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        request.header.ifindex = LinkCtl::new()?.ifindex(device)?;
        request.header.flags = NeighbourFlags::Use;
        let to = match addr {
            IpAddr::V4(addr) => NeighbourAddress::Inet(addr),
            IpAddr::V6(addr) => NeighbourAddress::Inet6(addr),
        };
        request.attributes.push(NeighbourAttribute::Destination(to));
        self.0
            .ask(M::NewNeighbour(request), NLM_F_ACK | NLM_F_CREATE, |_| {})
    }

    fn dump(&self, request: M, each: impl FnMut(M)) -> io::Result<()> {
        self.0.ask(request, NLM_F_DUMP, each)
    }
}

/// The kinds of data to read again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    /// Devices, addresses, rules, routes.
    pub routes: bool,
    /// Neighbours.
    pub neighbours: bool,
}

impl Changed {
    /// Both.
    pub const ALL: Self = Self {
        routes: true,
        neighbours: true,
    };
    /// Neither.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
    fn add(&mut self, other: Self) {
        self.routes |= other.routes;
        self.neighbours |= other.neighbours;
    }
}

/// Groups of notices (`RTNLGRP_*` in linux/rtnetlink.h), a bit each.
const GROUPS: u32 = {
    const fn bit(group: u32) -> u32 {
        1 << (group - 1)
    }
    const LINK: u32 = 1;
    const NEIGH: u32 = 3;
    const IPV4_IFADDR: u32 = 5;
    const IPV4_ROUTE: u32 = 7;
    const IPV4_RULE: u32 = 8;
    const IPV6_IFADDR: u32 = 9;
    const IPV6_ROUTE: u32 = 11;
    const IPV6_RULE: u32 = 19;
    const NEXTHOP: u32 = 32;
    bit(LINK)
        | bit(NEIGH)
        | bit(IPV4_IFADDR)
        | bit(IPV4_ROUTE)
        | bit(IPV4_RULE)
        | bit(IPV6_IFADDR)
        | bit(IPV6_ROUTE)
        | bit(IPV6_RULE)
        | bit(NEXTHOP)
};

/// A subscription to the notices of this thread's network namespace.
#[derive(Debug)]
pub struct HostEvents(Notices);

impl HostEvents {
    /// Subscribes. The descriptor is non-blocking and readable when notices wait.
    ///
    /// # Errors
    /// The error of socket(2) and bind(2).
    pub fn new() -> io::Result<Self> {
        Notices::new(GROUPS).map(Self)
    }

    /// Takes notices that wait now, at most `max` datagrams.
    ///
    /// # Errors
    /// The error of recv(2) except `EAGAIN`, `EINTR` and `ENOBUFS`; after the latter all has changed.
    pub fn read(&mut self, max: usize) -> io::Result<Changed> {
        let mut changed = Changed::default();
        for _ in 0..max {
            match self.0.read() {
                Ok([]) => break,
                Ok(data) => changed.add(changes(data)),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changed = Changed::ALL,
                Err(e) => return Err(e),
            }
        }
        Ok(changed)
    }
}

impl AsFd for HostEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
impl AsRawFd for HostEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }
}

/// The kinds of data that a datagram's messages concern. Only their headers are read; an odd message concerns
/// everything.
fn changes(mut data: &[u8]) -> Changed {
    let mut changed = Changed::default();
    while !data.is_empty() {
        let Ok(message) = NetlinkBuffer::new_checked(data) else {
            return Changed::ALL;
        };
        let len = message.length() as usize;
        // A message begins with its family.
        let family = message.payload().first().copied().map(i32::from);
        match message.message_type() {
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => {
                changed.neighbours |= matches!(family, Some(libc::AF_INET | libc::AF_INET6));
            }
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
                changed.routes |= matches!(family, Some(libc::AF_INET | libc::AF_INET6));
            }
            _ => changed.routes = true,
        }
        data = data.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    changed
}
