//! Choice of source addresses for packets that have none yet.

use super::prefix::{Prefix, common_len};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Scopes of addresses and routes (`RT_SCOPE_*`): the larger, the narrower.
pub mod scope {
    /// Everywhere.
    pub const UNIVERSE: u8 = 0;
    /// One link.
    pub const LINK: u8 = 253;
    /// This host.
    pub const HOST: u8 = 254;
}

/// An address of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The device that it belongs to.
    pub device: Arc<str>,
    /// The address.
    pub addr: IpAddr,
    /// Prefix length of the link's network, bits.
    pub prefix_len: u8,
    /// Scope, see [`scope`].
    pub scope: u8,
    /// An IPv4 address beside an older one of the same network.
    pub secondary: bool,
    /// A temporary IPv6 address.
    pub temporary: bool,
    /// Not for new connections.
    pub deprecated: bool,
    /// Duplicate address detection has not finished.
    pub tentative: bool,
}

impl Address {
    /// A permanent address of universal scope.
    pub fn new(device: Arc<str>, addr: IpAddr, prefix_len: u8) -> Address {
        Address {
            device,
            addr,
            prefix_len,
            scope: scope::UNIVERSE,
            secondary: false,
            temporary: false,
            deprecated: false,
            tentative: false,
        }
    }
    /// The network of its link.
    pub(super) fn network(&self) -> Option<Prefix> {
        Prefix::new(self.addr, self.prefix_len)
    }
    fn reaches(&self, to: IpAddr) -> bool {
        self.network().is_some_and(|p| p.contains(to))
    }
}

/// The source address that Open vSwitch chooses for routes set by hand: the address of `device` on the
/// smallest network that contains `to`.
pub fn on_network_of<'a>(
    addresses: impl IntoIterator<Item = &'a Address>,
    device: &str,
    to: IpAddr,
) -> Option<IpAddr> {
    let near = addresses
        .into_iter()
        .filter(|a| &*a.device == device && a.reaches(to));
    // The first of equals.
    near.min_by_key(|a| std::cmp::Reverse(a.prefix_len))
        .map(|a| a.addr)
}

/// The source address that Linux chooses for packets to `to` through `device`. `gateway` is the next hop on
/// the link, `reach` the scope of the route.
pub fn as_linux(
    addresses: &[Address],
    device: &str,
    to: IpAddr,
    gateway: Option<IpAddr>,
    reach: u8,
) -> Option<IpAddr> {
    match to {
        IpAddr::V4(_) => v4(addresses, device, gateway.filter(IpAddr::is_ipv4), reach),
        IpAddr::V6(to) => v6(addresses, device, to),
    }
}

/// `inet_select_addr` of Linux. Only primary addresses of a scope at most `reach` count. The first of the
/// device that is on the gateway's network wins, else the first of the device, else the first of any device.
fn v4(addresses: &[Address], device: &str, gateway: Option<IpAddr>, reach: u8) -> Option<IpAddr> {
    let primary = || {
        addresses
            .iter()
            .filter(|a| a.addr.is_ipv4() && !a.secondary && a.scope <= reach)
    };
    let own = || primary().filter(|a| &*a.device == device);
    let near = own().find(|a| gateway.is_none_or(|g| a.reaches(g)));
    let elsewhere = || primary().find(|a| a.scope != scope::LINK);
    near.or_else(|| own().next()).or_else(elsewhere).map(|a| a.addr)
}

/// The scope of an address by RFC 6724, section 5: the larger, the wider.
fn reach_of(addr: Ipv6Addr) -> u8 {
    match addr {
        a if a.is_loopback() => 1,
        a if a.is_multicast() => a.octets()[1] & 0xf,
        a if a.is_unicast_link_local() => 2,
        // Site-local addresses, which RFC 3879 did away with.
        a if a.segments()[0] & 0xffc0 == 0xfec0 => 5,
        _ => 14,
    }
}

/// The labels of RFC 6724, section 2.1, as Linux has them.
fn label(addr: Ipv6Addr) -> u8 {
    let s = addr.segments();
    match addr {
        a if a.is_loopback() => 0,
        a if a.to_ipv4_mapped().is_some() => 4,
        _ if s[0] & 0xfe00 == 0xfc00 => 5,
        _ if s[0] == 0x2002 => 2,
        _ if s[0] == 0x2001 && s[1] == 0 => 6,
        _ if s[0] == 0x2001 && s[1] & 0xfff0 == 0x10 => 7,
        _ if s[0] & 0xffc0 == 0xfec0 => 11,
        _ if s[0] == 0x3ffe => 12,
        _ if s[..6] == [0; 6] => 3,
        _ => 1,
    }
}

/// RFC 6724, section 5, rules 1 to 3 and 5 to 8. Home addresses (rule 4) are not known here.
fn v6(addresses: &[Address], device: &str, to: Ipv6Addr) -> Option<IpAddr> {
    let near = reach_of(to) <= 2;
    let mut best: Option<(&Address, Ipv6Addr)> = None;
    for candidate in addresses {
        let IpAddr::V6(addr) = candidate.addr else {
            continue;
        };
        let here = &*candidate.device == device;
        if candidate.tentative || addr.is_multicast() || (near && !here) {
            continue;
        }
        if best.is_none_or(|(b, b_addr)| better((candidate, addr), (b, b_addr), device, to)) {
            best = Some((candidate, addr));
        }
    }
    best.map(|(a, _)| a.addr)
}

fn better(a: (&Address, Ipv6Addr), b: (&Address, Ipv6Addr), device: &str, to: Ipv6Addr) -> bool {
    let target = reach_of(to);
    // Rule 2: the smallest sufficient scope is best; among insufficient scopes the largest.
    let fitness = |addr: Ipv6Addr| {
        let reach = reach_of(addr);
        if reach >= target {
            (1, u8::MAX - reach)
        } else {
            (0, reach)
        }
    };
    let rank = |(candidate, addr): (&Address, Ipv6Addr)| {
        (
            addr == to,
            fitness(addr),
            !candidate.deprecated,
            &*candidate.device == device,
            label(addr) == label(to),
            !candidate.temporary,
            common_len(addr.into(), to.into()).min(candidate.prefix_len),
        )
    };
    rank(a) > rank(b)
}
