//! Addresses, routes and neighbours of a device: given one by one, or carried from one device to another.

use super::NetConfig;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as M;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, route};
use std::io;
use std::net::IpAddr;

/// The settings of a device, as the kernel's messages.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    addresses: Vec<AddressMessage>,
    routes: Vec<RouteMessage>,
    neighbours: Vec<NeighbourMessage>,
}

impl Settings {
    /// Addresses with the lengths of their prefixes.
    pub fn addresses(&self) -> Vec<(IpAddr, u8)> {
        let one = |m: &AddressMessage| Some((address_of(m)?, m.header.prefix_len));
        self.addresses.iter().filter_map(one).collect()
    }
    /// Number of routes, without those that the kernel makes with an address.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }
    /// Whether the device has no setting of a user: at most addresses that the kernel makes by itself.
    pub fn is_empty(&self) -> bool {
        let link_local = |(ip, _): &(IpAddr, u8)| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        self.routes.is_empty() && self.addresses().iter().all(link_local)
    }
    /// Keeps only the addresses that the kernel did not make by itself.
    pub fn retain_given(&mut self) {
        self.addresses
            .retain(|m| !matches!(address_of(m), Some(IpAddr::V6(ip)) if ip.is_unicast_link_local()));
    }
}

/// A route to give to a device.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The first address that it is for.
    pub dst: IpAddr,
    /// The length of the prefix, in bits; 0: the default route.
    pub dst_len: u8,
    /// The next hop; `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// Longest packet, bytes.
    pub mtu_bytes: Option<u32>,
    /// Maximum TCP segment size to advertise, bytes.
    pub advmss: Option<u32>,
    /// Among equal prefixes the route with the lowest priority counts.
    pub priority: Option<u32>,
    /// Number of its table; `None`: the main one.
    pub table: Option<u32>,
    /// The route's scope (`RT_SCOPE_*`); `None`: derived from the gateway.
    pub scope: Option<u8>,
}

fn address_of(m: &AddressMessage) -> Option<IpAddr> {
    let find = |local: bool| {
        m.attributes.iter().find_map(|a| match a {
            AddressAttribute::Local(ip) if local => Some(*ip),
            AddressAttribute::Address(ip) if !local => Some(*ip),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

impl NetConfig {
    /// Gives a device an address, without a test for duplicates.
    ///
    /// # Errors
    /// `EEXIST` if it has that; `ENODEV`.
    pub fn add_address(&self, ifindex: u32, ip: IpAddr, prefix_len: u8) -> io::Result<()> {
        let mut m = AddressMessage::default();
        m.header.family = family(ip);
        m.header.prefix_len = prefix_len;
        m.header.index = ifindex;
        m.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
        if let IpAddr::V4(v4) = ip {
            let host = u32::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
            if prefix_len < 31 {
                m.attributes
                    .push(AddressAttribute::Broadcast((v4.to_bits() | host).into()));
            }
        } else {
            m.header.flags = AddressHeaderFlags::Nodad;
        }
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.0.ask(M::NewAddress(m), flags, drop)
    }

    /// Gives a device a route.
    ///
    /// # Errors
    /// `EEXIST`; `ENETUNREACH` if the gateway is not on the link; `ENETDOWN`.
    pub fn add_route(&self, ifindex: u32, r: &Route) -> io::Result<()> {
        let mut m = RouteMessage::default();
        let scope = match (r.scope, r.gateway) {
            (Some(scope), _) => scope.into(),
            (None, None) if r.dst.is_ipv4() => RouteScope::Link,
            (None, _) => RouteScope::Universe,
        };
        m.header = RouteHeader {
            address_family: family(r.dst),
            destination_prefix_length: r.dst_len,
            protocol: RouteProtocol::Boot,
            scope,
            kind: RouteType::Unicast,
            table: r
                .table
                .map_or(RouteHeader::RT_TABLE_MAIN, |t| u8::try_from(t).unwrap_or(0)),
            ..RouteHeader::default()
        };
        m.attributes.push(RouteAttribute::Oif(ifindex));
        if r.dst_len > 0 {
            m.attributes.push(RouteAttribute::Destination(r.dst.into()));
        }
        m.attributes
            .extend(r.gateway.map(|g| RouteAttribute::Gateway(g.into())));
        m.attributes.extend(r.priority.map(RouteAttribute::Priority));
        m.attributes.extend(r.table.map(RouteAttribute::Table));
        let metrics: Vec<RouteMetric> = [
            r.mtu_bytes.map(RouteMetric::Mtu),
            r.advmss.map(RouteMetric::Advmss),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !metrics.is_empty() {
            m.attributes.push(RouteAttribute::Metrics(metrics));
        }
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.0.ask(M::NewRoute(m), flags, drop)
    }

    /// The settings of a device: addresses, routes that are not the kernel's own, neighbours.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn settings(&self, ifindex: u32) -> io::Result<Settings> {
        let mut all = Settings::default();
        for family in FAMILIES {
            let mut request = AddressMessage::default();
            request.header.family = family;
            self.0.ask(M::GetAddress(request), NLM_F_DUMP, |answer| {
                if let M::NewAddress(m) = answer
                    && m.header.index == ifindex
                {
                    all.addresses.push(m);
                }
            })?;
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            self.0.ask(M::GetRoute(request), NLM_F_DUMP, |answer| {
                if let M::NewRoute(m) = answer
                    && leads_through(&m, ifindex)
                    && is_given(&m.header)
                {
                    all.routes.push(m);
                }
            })?;
            let mut request = NeighbourMessage::default();
            request.header.family = family;
            self.0.ask(M::GetNeighbour(request), NLM_F_DUMP, |answer| {
                if let M::NewNeighbour(m) = answer
                    && m.header.ifindex == ifindex
                    && !matches!(
                        m.header.state,
                        NeighbourState::Noarp | NeighbourState::Failed | NeighbourState::Incomplete
                    )
                {
                    all.neighbours.push(m);
                }
            })?;
        }
        // A route through a gateway is taken only if the route to the gateway is there.
        all.routes.sort_by_key(|m| m.header.scope != RouteScope::Link);
        Ok(all)
    }

    /// Gives a device, which must be up, the settings of another one, whose index was `old`. The device keeps
    /// the settings that it has.
    ///
    /// # Errors
    /// The first error of the kernel; all other settings were tried.
    pub fn restore(&self, ifindex: u32, old: u32, settings: &Settings) -> io::Result<()> {
        let mut first = Ok(());
        let mut done = |result: io::Result<()>| match result {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
            Err(e) if first.is_ok() => first = Err(e),
            _ => {}
        };
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        for m in &settings.addresses {
            done(self.0.ask(M::NewAddress(address_for(m, ifindex)), flags, drop));
        }
        // Twice: one may need another that follows it.
        let mut left: Vec<RouteMessage> = settings
            .routes
            .iter()
            .map(|m| route_for(m, ifindex, old))
            .collect();
        left.retain(|m| self.0.ask(M::NewRoute(m.clone()), flags, drop).is_err());
        for m in left {
            done(self.0.ask(M::NewRoute(m), flags, drop));
        }
        for m in &settings.neighbours {
            done(
                self.0
                    .ask(M::NewNeighbour(neighbour_for(m, ifindex)), flags, drop),
            );
        }
        first
    }

    /// Takes a device's addresses away, and with them its routes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove_addresses(&self, settings: &Settings) -> io::Result<()> {
        for m in &settings.routes {
            // The route may have gone with the one before.
            let _ = self.0.ask(M::DelRoute(m.clone()), NLM_F_ACK, drop);
        }
        for m in &settings.addresses {
            match self.0.ask(M::DelAddress(m.clone()), NLM_F_ACK, drop) {
                // A secondary address goes with the first one of its network.
                Err(e) if e.raw_os_error() != Some(libc::EADDRNOTAVAIL) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

fn leads_through(m: &RouteMessage, ifindex: u32) -> bool {
    m.attributes.iter().any(|a| match a {
        RouteAttribute::Oif(index) => *index == ifindex,
        RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| hop.interface_index == ifindex),
        _ => false,
    })
}

/// A route that a user has given: the kernel makes the others with addresses.
fn is_given(header: &RouteHeader) -> bool {
    !matches!(
        header.protocol,
        RouteProtocol::Kernel | RouteProtocol::IcmpRedirect
    ) && header.kind == RouteType::Unicast
        && !header.flags.contains(RouteFlags::Cloned)
}

fn address_for(m: &AddressMessage, ifindex: u32) -> AddressMessage {
    let mut m = m.clone();
    m.header.index = ifindex;
    // The kernel finds out anew whether the address is secondary and whether to test it. A test would keep
    // the address from being used for a second.
    let nodad = m.header.family == AddressFamily::Inet6;
    m.header.flags = if nodad {
        AddressHeaderFlags::Nodad
    } else {
        AddressHeaderFlags::empty()
    };
    for attribute in &mut m.attributes {
        if let AddressAttribute::Flags(flags) = attribute {
            *flags &= AddressFlags::Noprefixroute | AddressFlags::Managetempaddr | AddressFlags::Mcautojoin;
            if nodad {
                *flags |= AddressFlags::Nodad;
            }
        }
    }
    // A label begins with the device's name, which may be another one now.
    m.attributes.retain(|a| !matches!(a, AddressAttribute::Label(_)));
    m
}

fn route_for(m: &RouteMessage, ifindex: u32, old: u32) -> RouteMessage {
    let mut m = m.clone();
    m.header.flags &= RouteFlags::Onlink;
    m.attributes
        .retain(|a| !matches!(a, RouteAttribute::CacheInfo(_)));
    for attribute in &mut m.attributes {
        match attribute {
            RouteAttribute::Oif(index) => *index = ifindex,
            RouteAttribute::MultiPath(hops) => {
                for hop in hops.iter_mut().filter(|hop| hop.interface_index == old) {
                    hop.interface_index = ifindex;
                    hop.flags &= route::RouteNextHopFlags::Onlink;
                }
            }
            _ => {}
        }
    }
    m
}

fn neighbour_for(m: &NeighbourMessage, ifindex: u32) -> NeighbourMessage {
    let mut m = m.clone();
    m.header.ifindex = ifindex;
    if m.header.state != NeighbourState::Permanent {
        m.header.state = NeighbourState::Stale;
    }
    m.attributes.retain(|a| {
        matches!(
            a,
            NeighbourAttribute::Destination(_) | NeighbourAttribute::LinkLayerAddress(_)
        )
    });
    m
}
