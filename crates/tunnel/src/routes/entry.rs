//! Routes of a table.

use super::prefix::Prefix;
use std::net::IpAddr;
use std::sync::Arc;

/// The table of this host's own addresses.
pub const LOCAL: u32 = 255;
/// The default table of routes.
pub const MAIN: u32 = 254;
/// The table that lookups use last.
pub const DEFAULT: u32 = 253;

/// Treatment of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Packets are sent.
    Unicast,
    /// Packets are for this host.
    Local,
    /// Packets are not sent (unreachable, prohibited, a black hole).
    Refused,
    /// The lookup continues with the next rule.
    Throw,
}

/// A next hop of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Device by which packets leave; for a bridge, its internal port's.
    pub device: Arc<str>,
    /// Gateway; `None`: the destination itself. An IPv4 route may have an IPv6 gateway.
    pub gateway: Option<IpAddr>,
    /// Source address of packets that have none yet.
    pub source: IpAddr,
    /// Longest packet, with its IP header, bytes.
    pub mtu_bytes: Option<u32>,
    /// Share of destinations, if there are several hops.
    pub weight: u32,
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteEntry {
    /// Destinations.
    pub prefix: Prefix,
    /// Set by hand (`ovs/route/add`), not by the system.
    pub user: bool,
    /// Mark of the packets; 0: all packets for whose mark there is no route.
    pub mark: u32,
    /// The lowest metric wins among equal prefixes.
    pub metric: u32,
    /// Treatment of packets.
    pub kind: Kind,
    /// Next hops; empty if `kind` needs none.
    pub hops: Vec<Hop>,
}

impl RouteEntry {
    /// Whether this route wins over another that matches too. A route set by hand ranks like a system's route
    /// whose prefix is 32 bits longer, as in Open vSwitch.
    pub(super) fn beats(&self, other: &RouteEntry) -> bool {
        let rank = |e: &RouteEntry| {
            let len = u32::from(e.prefix.mapped_len()) + if e.user { 32 } else { 0 };
            (len, e.user, std::cmp::Reverse(e.metric))
        };
        rank(self) > rank(other)
    }

    /// The next hop to `dst`, chosen by weight. One destination always has the same hop.
    pub fn hop(&self, dst: IpAddr) -> Option<&Hop> {
        if self.hops.len() < 2 {
            return self.hops.first();
        }
        let bits = match dst {
            IpAddr::V4(a) => u64::from(a.to_bits()),
            #[allow(clippy::cast_possible_truncation)] // folded
            IpAddr::V6(a) => (a.to_bits() ^ a.to_bits() >> 64) as u64,
        };
        let total: u64 = self.hops.iter().map(|h| u64::from(h.weight.max(1))).sum();
        let hash = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut at = (hash * total) >> 32;
        self.hops.iter().find(|h| {
            let weight = u64::from(h.weight.max(1));
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        })
    }
}
