//! Follows the kernel: its routes, addresses and neighbours become the switch's.
//!
//! **Problem.** Tunnels' outer packets follow the host's own routes, which may change thousands of times a
//! second.
//!
//! **Shape.** A thread waits for the kernel's notices, reads the changed objects again, and hands them over.
//! Only flows that depend on a changed object are translated again. After each reading the thread rests for
//! several times as long as that took. So a routing daemon that loads a million routes costs only a part of a
//! core. A notice that some were lost causes a full reading.
//!
//! With `--disable-system-route` only addresses are followed, as routes that are given by hand need them.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use heddle_sys::host_net::{
    Changed, HostAddress, HostHop, HostLinks, HostRoute, HostRouteKind, HostRoutes, HostRule, HostRuleAction,
};
use heddle_sys::{Epoll, HostEvents, HostNet};
use heddle_tunnel::neigh::{NeighKey, SystemNeighbour, SystemNeighbours};
use heddle_tunnel::routes::{Action, Address, Kind, Prefix, Rule, System, SystemHop, SystemRoute};

use crate::path_mtu::PathErrors;
use crate::switch::Switch;
use heddle_daemon::vlog::errno_text;

/// After this time without a notice, the thread checks whether to end.
const WAIT_MS: i32 = 200;
/// The shortest rest after a reading: notices usually come in groups.
const REST: Duration = Duration::from_millis(20);
/// The longest rest.
const MAX_REST: Duration = Duration::from_secs(5);
/// The rest after a reading, as a multiple of the reading's time.
const REST_TIMES: u32 = 4;
/// The rest after a failed reading.
const RETRY: Duration = Duration::from_secs(1);
/// Tokens: a notice of the kernel, an error about a path.
const NOTICE: u64 = 0;
const PATH_ERROR: u64 = 1;
/// Notices that are read in one go, datagrams.
const BATCH: usize = 256;

impl Switch {
    /// Follows the kernel until the switch ends.
    pub(crate) fn follow_kernel(&self) {
        if let Err(error) = self.follow() {
            log::error!(
                target: "route_table",
                "the kernel's routes are not followed: no notices of changes ({})",
                errno_text(&error)
            );
        }
    }

    fn follow(&self) -> io::Result<()> {
        // Opened before the first reading, so that no change is missed.
        let mut events = HostEvents::new()?;
        let mut epoll = Epoll::new(3)?;
        epoll.add(events.as_raw_fd(), NOTICE)?;
        let path_errors = PathErrors::open();
        path_errors.add_to(&epoll, PATH_ERROR)?;
        let net = HostNet::new()?;
        let mut due = Changed::ALL;
        let mut ports = 0;
        while !self.is_ending() {
            if due.is_nothing() {
                let (mut noticed, mut path_error) = (false, false);
                for ready in epoll.wait(WAIT_MS)? {
                    noticed |= ready.token == NOTICE;
                    path_error |= ready.token == PATH_ERROR;
                }
                if noticed {
                    due = events.read(BATCH)?;
                }
                if path_error {
                    let began = Instant::now();
                    self.learn_path_mtus(&path_errors);
                    self.rest(rest_after(began));
                }
                self.ofproto
                    .pipeline()
                    .underlay()
                    .routes
                    .expire_path_mtus(Instant::now());
                // A changed set of ports changes the set of neighbours to follow.
                let now = self.inventory_changes.load(Relaxed);
                due.neighbours |= std::mem::replace(&mut ports, now) != now;
                continue;
            }
            let began = Instant::now();
            // Later notices are for the next reading.
            let rest = match self.read_kernel(&net, due) {
                Ok(()) => {
                    due = Changed::default();
                    rest_after(began)
                }
                Err(error) => {
                    log::warn!(target: "route_table", "cannot read the kernel's routes ({})", errno_text(&error));
                    RETRY
                }
            };
            self.rest(rest);
        }
        Ok(())
    }

    /// Sleeps, unless it is time to end.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !self.is_ending()
        {
            std::thread::park_timeout(left);
        }
    }

    fn read_kernel(&self, net: &HostNet, due: Changed) -> io::Result<()> {
        let underlay = self.ofproto.pipeline().underlay();
        let links = net.links()?;
        if due.routes {
            *self.carriers.write() = links.values().map(|l| (l.name.clone(), l.lower_up)).collect();
            let routes = match self.options.disable_system_route {
                true => HostRoutes {
                    addresses: net.addresses(&links)?,
                    ..HostRoutes::default()
                },
                false => net.routes(&links)?,
            };
            underlay.routes.set_system(&system(routes));
            self.kernel_read.store(true, Relaxed);
            self.routes_changed.notify_one();
            // Flows of changed routes request their neighbours now, before a packet is lost for want of one.
            self.datapath.revalidate_soon();
        }
        if due.neighbours && !self.options.disable_system_route {
            underlay
                .neighbours
                .set_system(self.kernel_neighbours(net, &links)?);
        }
        Ok(())
    }

    /// Has the kernel find the neighbours that workers miss on devices that are no ports of bridges.
    pub(crate) fn probe_neighbours(&self) {
        let requests = self
            .ofproto
            .pipeline()
            .underlay()
            .neighbours
            .take_kernel_requests();
        if requests.is_empty() {
            return;
        }
        let net = HostNet::new();
        for request in requests {
            let probed = match &net {
                Ok(net) => net.probe_neighbour(&request.device, request.target),
                Err(error) => Err(error.kind().into()),
            };
            if let Err(error) = probed {
                log::warn!(
                    target: "tunnel", per_min = 5, burst = 5;
                    "{}: the kernel does not request neighbour {} ({})",
                    request.device, request.target, errno_text(&error)
                );
            }
        }
    }

    /// Neighbours behind ports of bridges, by the bridge, and behind devices that tunnels use, by the device.
    fn kernel_neighbours(&self, net: &HostNet, links: &HostLinks) -> io::Result<SystemNeighbours> {
        let bridges: HashMap<String, String> = {
            let inventory = self.inventory.read();
            let all = inventory.interfaces.iter();
            let ports = all.map(|(name, item)| (name.clone(), item.bridge.clone()));
            let devices = inventory.underlay.keys().map(|name| (name.clone(), name.clone()));
            devices.chain(ports).collect()
        };
        let known = net.neighbours(links, |device| bridges.contains_key(device))?;
        let by_bridge = known.into_iter().filter_map(|n| {
            let key = NeighKey {
                bridge: bridges.get(&*n.device)?.as_str().into(),
                ip: n.addr,
            };
            let known = SystemNeighbour {
                mac: n.mac,
                in_doubt: n.stale,
            };
            Some((key, known))
        });
        Ok(by_bridge.collect())
    }
}

/// The rest after work that began at this time.
fn rest_after(began: Instant) -> Duration {
    (began.elapsed() * REST_TIMES).clamp(REST, MAX_REST)
}

/// The kernel's routes in the types of [`heddle_tunnel`].
fn system(host: HostRoutes) -> System {
    System {
        addresses: host.addresses.into_iter().map(address).collect(),
        rules: host.rules.iter().map(rule).collect(),
        routes: host.routes.into_iter().filter_map(route).collect(),
    }
}

fn address(a: HostAddress) -> Address {
    Address {
        device: a.device,
        addr: a.addr,
        prefix_len: a.prefix_len,
        scope: a.scope,
        secondary: a.secondary,
        temporary: a.temporary,
        deprecated: a.deprecated,
        tentative: a.tentative,
    }
}

fn rule(r: &HostRule) -> Rule {
    let prefix = |p: Option<_>| p.and_then(|(addr, len)| Prefix::new(addr, len));
    Rule {
        priority: r.priority,
        v6: r.v6,
        invert: r.invert,
        user: false,
        from: prefix(r.from),
        to: prefix(r.to),
        mark: r.mark,
        mark_mask: r.mark_mask,
        elsewhere: r.elsewhere,
        action: match r.action {
            HostRuleAction::Table(table, suppress_len) => Action::Table { table, suppress_len },
            HostRuleAction::Goto(priority) => Action::Goto(priority),
            HostRuleAction::Nop => Action::Nop,
            HostRuleAction::Refuse => Action::Refuse,
        },
    }
}

fn route(r: HostRoute) -> Option<SystemRoute> {
    let hop = |h: HostHop| SystemHop {
        device: h.device,
        device_mtu_bytes: h.device_mtu_bytes,
        gateway: h.gateway,
        weight: h.weight,
    };
    Some(SystemRoute {
        table: r.table,
        prefix: Prefix::new(r.dst, r.dst_len)?,
        kind: match r.kind {
            HostRouteKind::Unicast => Kind::Unicast,
            HostRouteKind::Local => Kind::Local,
            HostRouteKind::Refused => Kind::Refused,
            HostRouteKind::Throw => Kind::Throw,
        },
        metric: r.metric,
        prefsrc: r.prefsrc,
        scope: r.scope,
        mtu_bytes: r.mtu_bytes,
        hops: r.hops.into_iter().map(hop).collect(),
    })
}
