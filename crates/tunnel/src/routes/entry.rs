//! What a route says.

use super::prefix::Prefix;
use std::net::IpAddr;
use std::sync::Arc;

/// The table of addresses that are this host's own.
pub const LOCAL: u32 = 255;
/// The table that routes are in unless they say otherwise.
pub const MAIN: u32 = 254;
/// The table that is looked at last.
pub const DEFAULT: u32 = 253;

/// What becomes of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// They are sent.
    Unicast,
    /// They are for this host.
    Local,
    /// They are not sent (unreachable, prohibited, a black hole).
    Refused,
    /// Other tables are asked.
    Throw,
}

/// A way that a route gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The device that packets leave by, for a bridge its internal port's.
    pub device: Arc<str>,
    /// Who gets them there; `None`: the destination itself. Of the other family where an IPv4 route has an
    /// IPv6 gateway.
    pub gateway: Option<IpAddr>,
    /// The address that packets come from which say nothing else.
    pub source: IpAddr,
    /// Longest packet, with its IP header, bytes.
    pub mtu_bytes: Option<u32>,
    /// Its share of packets, where there are other ways.
    pub weight: u32,
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where to.
    pub prefix: Prefix,
    /// Given by hand (`ovs/route/add`), not by the system.
    pub user: bool,
    /// Packets that it is for have this mark; 0: any packets that no route with their mark is for.
    pub mark: u32,
    /// Of equal prefixes the least counts.
    pub metric: u32,
    /// What becomes of packets.
    pub kind: Kind,
    /// Where they go. None unless `kind` is one of those that have ways.
    pub hops: Vec<Hop>,
}

impl Entry {
    /// Whether this one counts where both match. A route by hand is as good as one of the system's whose
    /// prefix is 32 bits longer, as in Open vSwitch.
    pub(super) fn beats(&self, other: &Entry) -> bool {
        let rank = |e: &Entry| {
            let len = u32::from(e.prefix.mapped_len()) + if e.user { 32 } else { 0 };
            (len, e.user, std::cmp::Reverse(e.metric))
        };
        rank(self) > rank(other)
    }

    /// The way to `dst`: always the same one to the same destination, by weights.
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
