//! MTUs of paths that are narrower than their routes, learned from ICMP errors.
//!
//! Source: the route exceptions of Linux (`__ip_rt_update_pmtu` in net/ipv4/route.c,
//! `__ip6_rt_update_pmtu` in net/ipv6/route.c). An exception belongs to a destination and a next hop. So a
//! route that changes to another next hop begins with its own MTU. An exception ends after some minutes, and
//! the next long packet tries the path again.

use super::{Query, Route, Routes, Table};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of paths. Another one takes the place of the one that ends first.
const MAX_PATHS: usize = 4096;
/// Smallest MTU of IPv6, bytes. Errors with a smaller one are ignored (RFC 8201, 4).
const MIN_V6_BYTES: u32 = 1280;

/// The way to a destination.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Path {
    dst: IpAddr,
    device: Arc<str>,
    gateway: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    mtu_bytes: u32,
    until: Instant,
}

pub(super) type PathMtus = HashMap<Path, PathMtu>;

/// An MTU that an error reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathReport {
    /// Source of the packet that was too long.
    pub source: IpAddr,
    /// Destination of that packet.
    pub destination: IpAddr,
    /// The MTU, bytes.
    pub mtu_bytes: u32,
    /// Some packets have this destination, although none was sent yet.
    pub is_configured: bool,
}

/// Limits for what is learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathLimits {
    /// Smallest MTU that is used for IPv4, bytes.
    pub min_v4_bytes: u32,
    /// Lifetime of an MTU for IPv4.
    pub v4_lifetime: Duration,
    /// Lifetime of an MTU for IPv6.
    pub v6_lifetime: Duration,
}

/// An MTU that was learned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LearnedMtu {
    /// Destination of the path.
    pub destination: IpAddr,
    /// Device of the path.
    pub device: Arc<str>,
    /// The MTU, bytes.
    pub mtu_bytes: u32,
}

impl Table {
    /// The route of such packets.
    pub(super) fn route(&self, q: &Query) -> Option<Route> {
        let mut route = Route::new(self.lookup(q)?);
        if !self.path_mtus.is_empty() {
            let known = self.path_mtus.get(&path(q.dst, &route));
            route.path_mtu_bytes = known.map(|known| known.mtu_bytes);
        }
        Some(route)
    }
}

fn path(dst: IpAddr, route: &Route) -> Path {
    Path {
        dst,
        device: route.device.clone(),
        gateway: route.gateway,
    }
}

impl Routes {
    /// Learns the MTUs of paths that lookups use. Reports of other packets are ignored: the source is not
    /// that of such packets, or no lookup had this destination. So is an MTU that is not smaller than the
    /// present one, and one of IPv6 below the minimum. Returns new MTUs.
    pub fn learn_path_mtus(
        &self,
        reports: &[PathReport],
        limits: &PathLimits,
        now: Instant,
    ) -> Vec<LearnedMtu> {
        let mut given = self.writer.lock();
        let table = self.now.get();
        let mut paths = (*given.path_mtus).clone();
        let (mut learned, mut is_changed) = (Vec::new(), false);
        for report in reports {
            let dst = report.destination;
            let (mtu_bytes, lifetime) = match dst.is_ipv4() {
                true => (report.mtu_bytes.max(limits.min_v4_bytes), limits.v4_lifetime),
                false if report.mtu_bytes < MIN_V6_BYTES => continue,
                false => (report.mtu_bytes, limits.v6_lifetime),
            };
            let mut queries = self.watch.queries_to(dst);
            if report.is_configured {
                let fixed = Some(report.source);
                queries.extend([None, fixed].map(|src| Query { mark: 0, dst, src }));
            }
            for q in queries {
                let route = table.route(&q).filter(|r| r.source == report.source && !r.local);
                let Some(route) = route else { continue };
                let path = path(dst, &route);
                let before = paths.get(&path).copied();
                let present = before.map(|b| b.mtu_bytes).or(route.mtu_bytes);
                let until = now + lifetime;
                let is_known = present == Some(mtu_bytes);
                // An error that is repeated prolongs the time only after half of it, as in Linux.
                let is_fresh = before.is_none_or(|b| b.until > now + lifetime / 2);
                if present.is_some_and(|present| mtu_bytes > present) || is_known && is_fresh {
                    continue;
                }
                if before.is_none() && paths.len() >= MAX_PATHS {
                    let first = paths
                        .iter()
                        .min_by_key(|(_, mtu)| mtu.until)
                        .map(|(p, _)| p.clone());
                    first.and_then(|first| paths.remove(&first));
                }
                paths.insert(path, PathMtu { mtu_bytes, until });
                is_changed = true;
                if !is_known {
                    learned.push(LearnedMtu {
                        destination: dst,
                        device: route.device,
                        mtu_bytes,
                    });
                }
            }
        }
        if is_changed {
            given.path_mtus = Arc::new(paths);
            let system = table.system.clone();
            drop(table);
            self.publish(given.table(system));
        }
        learned
    }

    /// Forgets MTUs whose time is over.
    pub fn expire_path_mtus(&self, now: Instant) {
        let mut given = self.writer.lock();
        if given.path_mtus.values().all(|mtu| mtu.until > now) {
            return;
        }
        let mut paths = (*given.path_mtus).clone();
        paths.retain(|_, mtu| mtu.until > now);
        given.path_mtus = Arc::new(paths);
        let system = self.now.get().system.clone();
        self.publish(given.table(system));
    }
}
