//! What the host's kernel says of its routes, and what becomes of it.

use super::entry::{Entry, Hop, Kind};
use super::fib::Fib;
use super::prefix::Prefix;
use super::rule::Rule;
use super::source::{Address, as_linux};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Routes, rules and addresses of a host at one time.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct System {
    /// In the kernel's order.
    pub addresses: Vec<Address>,
    /// In the kernel's order.
    pub rules: Vec<Rule>,
    /// Those that packets to a single host may meet.
    pub routes: Vec<SystemRoute>,
}

/// A route of a host's kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemRoute {
    /// The table that it is in.
    pub table: u32,
    /// Where to.
    pub prefix: Prefix,
    /// What becomes of packets.
    pub kind: Kind,
    /// Of equal prefixes the least counts.
    pub metric: u32,
    /// The source that it asks for.
    pub prefsrc: Option<IpAddr>,
    /// How far it reaches, see [`super::source::scope`].
    pub scope: u8,
    /// Longest packet, bytes, if the route says so.
    pub mtu_bytes: Option<u32>,
    /// The ways that can be gone now.
    pub hops: Vec<SystemHop>,
}

/// A way of a [`SystemRoute`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemHop {
    /// The device's name.
    pub device: Arc<str>,
    /// The device's longest packet, bytes.
    pub device_mtu_bytes: Option<u32>,
    /// Who gets packets there.
    pub gateway: Option<IpAddr>,
    /// Its share.
    pub weight: u32,
}

/// The same, for lookups.
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

/// The route, unless it would send packets and has no way or no address to send them from.
fn entry(route: &SystemRoute, addresses: &[Address]) -> Option<Entry> {
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
    (!sends || !hops.is_empty()).then_some(Entry {
        prefix: route.prefix,
        user: false,
        mark: 0,
        metric: route.metric,
        kind: route.kind,
        hops,
    })
}
