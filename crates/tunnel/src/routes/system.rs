//! Routes, rules and addresses of the host's kernel, and their conversion for lookups.

use super::entry::{Hop, Kind, RouteEntry};
use super::fib::Fib;
use super::prefix::Prefix;
use super::rule::Rule;
use super::source::{Address, as_linux};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Routes, rules and addresses of a host, in one snapshot.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct System {
    /// In the kernel's order.
    pub addresses: Vec<Address>,
    /// In the kernel's order.
    pub rules: Vec<Rule>,
    /// Routes that may apply to packets for a single host.
    pub routes: Vec<SystemRoute>,
}

/// A route of a host's kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemRoute {
    /// Table number.
    pub table: u32,
    /// Destinations.
    pub prefix: Prefix,
    /// Treatment of packets.
    pub kind: Kind,
    /// The lowest metric wins among equal prefixes.
    pub metric: u32,
    /// Configured source address.
    pub prefsrc: Option<IpAddr>,
    /// Scope, see [`super::source::scope`].
    pub scope: u8,
    /// Longest packet, bytes, if the route has a limit.
    pub mtu_bytes: Option<u32>,
    /// Next hops that are usable now.
    pub hops: Vec<SystemHop>,
}

/// A next hop of a [`SystemRoute`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemHop {
    /// The device's name.
    pub device: Arc<str>,
    /// The device's longest packet, bytes.
    pub device_mtu_bytes: Option<u32>,
    /// Gateway; `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// Share of destinations.
    pub weight: u32,
}

/// The same in the form that lookups use.
#[derive(Default, Debug)]
pub(super) struct Cached {
    pub(super) addresses: Vec<Address>,
    pub(super) rules: Vec<Rule>,
    pub(super) tables: HashMap<u32, Fib>,
}

impl Cached {
    pub(super) fn new(system: &System) -> Cached {
        let mut tables: HashMap<u32, Fib> = HashMap::new();
        for route in &system.routes {
            if let Some(entry) = entry(route, &system.addresses) {
                tables.entry(route.table).or_default().add(entry);
            }
        }
        Cached {
            addresses: system.addresses.clone(),
            rules: system.rules.clone(),
            tables,
        }
    }
}

/// The route for lookups. `None`: it would send packets, but has no hop with a source address.
fn entry(route: &SystemRoute, addresses: &[Address]) -> Option<RouteEntry> {
    let to = route.prefix.addr();
    let hops: Vec<Hop> = route
        .hops
        .iter()
        .filter_map(|hop| {
            let own = (route.kind == Kind::Local && route.prefix == Prefix::host(to)).then_some(to);
            let source = route.prefsrc.or(own).or_else(|| {
                let to = hop.gateway.filter(|g| g.is_ipv6() == to.is_ipv6()).unwrap_or(to);
                as_linux(addresses, &hop.device, to, hop.gateway, route.scope)
            })?;
            Some(Hop {
                device: hop.device.clone(),
                gateway: hop.gateway,
                source,
                mtu_bytes: route.mtu_bytes.or(hop.device_mtu_bytes),
                weight: hop.weight,
            })
        })
        .collect();
    let sends = matches!(route.kind, Kind::Unicast | Kind::Local);
    (!sends || !hops.is_empty()).then_some(RouteEntry {
        prefix: route.prefix,
        user: false,
        mark: 0,
        metric: route.metric,
        kind: route.kind,
        hops,
    })
}
