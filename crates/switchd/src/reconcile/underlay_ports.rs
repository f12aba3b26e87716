//! Ports of the datapath for tunnels whose packets leave by a device that is no port of a bridge.
//!
//! **Problem.** The host's own address is often on the physical device itself, and the kernel's datapath has
//! tunnels there. The device stays the host's: the switch only sends outer packets by it, and takes those of
//! its tunnels.
//!
//! **Shape.** [`UnderlayPorts::look`] looks up the routes of all tunnels. [`UnderlayPorts::apply`] opens a
//! [`SystemPort`] for each device that they lead to. One [`OuterFilter`] has the packets of all tunnels, and
//! each of these ports gets it. So a route that moves from one device to another changes no filter.
//! Packets may arrive by another device than the one by which they leave: see [`devices`].
//!
//! **Rests.** A port that no route needs any more stays for [`REST`], so routes that flap open and close
//! nothing. Without tunnels, and if a bridge wants the device, the port is closed at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_datapath::PortConfig;
use heddle_datapath_api::PortNo;
use heddle_offload::PortLink;
use heddle_ofproto::underlay_port::{UnderlayPort, UnderlayPorts as Published};
use heddle_port::{Port, PortStatus, SystemPort};
use heddle_sys::{OuterFilter, OuterGroup, errno_text};
use heddle_tunnel::TunnelConfig;
use heddle_tunnel::config::Local;
use heddle_tunnel::routes::{Query, Routes, source::scope};

use super::environment::Environment;
use super::offload_choice::Diverter;
use super::tunnels::Tunnels;
use super::{Bridges, kinds};
use crate::inventory::Item;

/// The time for which a port stays that no route needs.
const REST: Duration = Duration::from_secs(10);
/// Maximum number of these ports.
const MAX_PORTS: usize = 64;

/// A device that is open.
struct OpenPort {
    device: Arc<SystemPort>,
    no: PortNo,
    status: PortStatus,
    /// The back end of offload has the device, too.
    offloaded: bool,
    /// When the last route to it went.
    unused_since: Option<Instant>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct UnderlayPorts {
    open: BTreeMap<String, OpenPort>,
    /// Devices that cannot be opened, and the reasons.
    failed: BTreeMap<String, String>,
    /// Devices that routes of tunnels lead to.
    wanted: BTreeSet<String>,
    filter: Arc<OuterFilter>,
    /// The kernel forwards flows of a bridge that has tunnels: devices are opened for that.
    offloaded: bool,
    /// There were more devices than [`MAX_PORTS`].
    too_many: bool,
}

impl UnderlayPorts {
    /// Names of the devices that are open.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.open.keys()
    }

    /// The ports, for the back end of offload.
    pub(super) fn links(&self) -> impl Iterator<Item = PortLink> + '_ {
        let up = self.open.iter().filter(|(_, port)| port.status.ifindex != 0);
        up.map(|(name, port)| PortLink {
            no: port.no,
            name: name.clone(),
            ifindex: port.status.ifindex,
            mtu: port.status.mtu,
            internal: false,
        })
    }

    /// Names of the devices that routes of tunnels lead to.
    pub(super) fn wanted(&self) -> &BTreeSet<String> {
        &self.wanted
    }

    /// The ports as commands show them, under the name of a bridge that has tunnels.
    pub(super) fn items(&self, bridge: Option<&str>) -> BTreeMap<String, Item> {
        let bridge = bridge.unwrap_or_default();
        let item = |port: &OpenPort| Item::of_shared(bridge, port.device.clone(), port.no);
        let all = self.open.iter();
        all.map(|(name, port)| (name.clone(), item(port))).collect()
    }

    /// The devices, and why tunnels cannot use them, if they cannot.
    pub(super) fn states(&self) -> BTreeMap<String, Option<String>> {
        let open = self.open.keys().map(|name| (name.clone(), None));
        let failed = self.failed.iter();
        open.chain(failed.map(|(name, why)| (name.clone(), Some(why.clone()))))
            .collect()
    }

    /// Closes the ports of devices that become ports of bridges.
    pub(super) fn give_up(&mut self, devices: &BTreeSet<String>, env: &Environment) {
        let given: Vec<String> = self
            .open
            .keys()
            .filter(|n| devices.contains(*n))
            .cloned()
            .collect();
        given.iter().for_each(|name| self.close(name, env));
        if !given.is_empty() {
            self.publish(env);
        }
    }

    /// Closes all ports. Their devices stay as they are, for another process that has them from now on.
    pub(super) fn clear(&mut self, env: &Environment) {
        for (name, port) in std::mem::take(&mut self.open) {
            remove_from_datapath(&name, port.no, env);
        }
        *self = Self::default();
        self.publish(env);
    }

    /// Finds the devices and packets of all tunnels by the routes of now. `of_bridges`: devices that bridges
    /// have, or are to have.
    pub(super) fn look(
        &mut self,
        tunnels: &Tunnels,
        bridges: &Bridges,
        of_bridges: &BTreeSet<String>,
        env: &Environment,
    ) {
        let is_real = |bridge: &str| {
            bridges
                .get(bridge)
                .is_some_and(|b| !kinds::is_dummy_datapath(&env.switch.options, &b.row.datapath_type))
        };
        let configs: Vec<&TunnelConfig> = tunnels
            .configs()
            .filter(|(bridge, config)| is_real(bridge) && !config.ty.protocols().is_empty())
            .map(|(_, config)| config)
            .collect();
        self.offloaded = tunnels.configs().any(|(bridge, _)| {
            let diverter = env.diverter.as_ref();
            let bridge = bridges.get(bridge).filter(|_| is_real(bridge));
            bridge.is_some_and(|b| diverter.is_some_and(|d| d.takes(&b.row.datapath_type)))
        });
        let routes = &env.switch.ofproto.pipeline().underlay().routes;
        let mut wanted = devices(&configs, routes);
        wanted.retain(|name| {
            let is_port = of_bridges.contains(name) || env.claims.has(name);
            !is_port && !bridges.values().any(|b| b.has_interface(name))
        });
        let carriers = env.switch.carriers.read();
        let is_up = |device: &str| carriers.get(device) != Some(&false);
        let filter = filter(&configs, routes, is_up);
        drop(carriers);
        self.wanted = wanted;
        if *self.filter != filter {
            self.filter = Arc::new(filter);
            for (name, port) in &self.open {
                if let Err(error) = port.device.set_outer(self.filter.clone()) {
                    let why = errno_text(&error);
                    log::warn!(target: "tunnel", per_min = 5, burst = 5; "{name}: cannot change its filter ({why})");
                }
            }
        }
    }

    /// Opens and closes ports as [`UnderlayPorts::look`] has found. Returns whether there was a change.
    pub(super) fn apply(&mut self, env: &Environment) -> bool {
        let now = Instant::now();
        let (failed, mut changed) = (self.failed.len(), false);
        self.failed.retain(|name, _| self.wanted.contains(name));
        changed |= failed != self.failed.len();
        let is_idle = self.filter.groups.is_empty();
        let mut over = Vec::new();
        for (name, port) in &mut self.open {
            if port.offloaded != self.offloaded {
                // Offload began or ended: the device is opened anew below.
                over.push(name.clone());
            } else if self.wanted.contains(name) {
                port.unused_since = None;
            } else if is_idle || now.duration_since(*port.unused_since.get_or_insert(now)) >= REST {
                over.push(name.clone());
            }
        }
        changed |= !over.is_empty();
        over.iter().for_each(|name| self.close(name, env));
        let missing = self.wanted.iter().filter(|name| !self.open.contains_key(*name));
        for name in missing.cloned().collect::<Vec<_>>() {
            if self.open.len() >= MAX_PORTS {
                if !std::mem::replace(&mut self.too_many, true) {
                    log::warn!(
                        target: "tunnel",
                        "{name}: not used for tunnels: {MAX_PORTS} devices in no bridge are open already (the maximum)"
                    );
                }
                break;
            }
            changed |= self.open(&name, env);
        }
        if changed {
            self.publish(env);
        }
        changed
    }

    /// Reads the state of all devices. Returns whether ports were opened or closed.
    pub(super) fn refresh(&mut self, env: &Environment) -> bool {
        let mut changed = false;
        for (name, port) in &mut self.open {
            let now = port.device.status();
            if port.device.stale() {
                let (datapath, no) = (&env.switch.datapath, port.no);
                if let Err(error) = datapath.replace_port(no, port.device.clone()) {
                    log::warn!(target: "tunnel", per_min = 5, burst = 5; "{name}: {error}");
                }
            }
            if now.mtu != port.status.mtu {
                // The call cannot fail: the port is there.
                let _ = env.switch.datapath.set_port_mtu(port.no, now.mtu);
            }
            changed |= (now.mac, now.mtu) != (port.status.mac, port.status.mtu);
            port.status = now;
        }
        if changed {
            self.publish(env);
        }
        let rests = self.open.values().any(|port| port.unused_since.is_some());
        (rests || !self.failed.is_empty()) && self.apply(env)
    }

    /// Opens a device. Returns whether that, or the reason why it fails, is new.
    fn open(&mut self, name: &str, env: &Environment) -> bool {
        match open(name, &self.filter, self.offloaded, env) {
            Ok(port) => {
                self.failed.remove(name);
                self.open.insert(name.to_owned(), port);
                log::info!(
                    target: "tunnel",
                    "{name}: tunnels use this device, which is in no bridge; its other packets are the host's"
                );
                true
            }
            Err(why) => {
                let is_new = self.failed.get(name) != Some(&why);
                if is_new {
                    log::warn!(target: "tunnel", per_min = 5, burst = 5; "{name}: tunnels cannot use this device ({why})");
                    self.failed.insert(name.to_owned(), why);
                }
                is_new
            }
        }
    }

    fn close(&mut self, name: &str, env: &Environment) {
        let Some(port) = self.open.remove(name) else {
            return;
        };
        // No translation sends packets to it any more.
        self.publish(env);
        remove_from_datapath(name, port.no, env);
        port.device.forget();
        log::info!(target: "tunnel", "{name}: no tunnel uses this device any more");
    }

    fn publish(&self, env: &Environment) {
        let port = |(name, port): (&String, &OpenPort)| UnderlayPort {
            no: port.no,
            device: name.as_str().into(),
            mac: port.status.mac,
            mtu: port.status.mtu,
        };
        let all = self.open.iter().map(port).collect();
        env.switch.ofproto.set_underlay_ports(Published(all));
    }
}

fn remove_from_datapath(name: &str, no: PortNo, env: &Environment) {
    if let Err(error) = env.switch.datapath.del_port(no) {
        log::warn!(target: "tunnel", "{name}: {error}");
    }
}

/// Opens a device for the packets of a filter. An error: the reason why it cannot be used.
fn open(
    name: &str,
    filter: &Arc<OuterFilter>,
    offloaded: bool,
    env: &Environment,
) -> Result<OpenPort, String> {
    let device = SystemPort::open(name).map_err(|error| error.to_string())?;
    let diverter = env.diverter.as_ref().filter(|_| offloaded);
    let device = device
        .diverted_by(diverter.map(Diverter::back_end))
        .kept_by(env.switch.ingress.get().cloned())
        .takes_outer(filter.clone());
    let device = Arc::new(device);
    let datapath = &env.switch.datapath;
    let no = datapath
        .add_port(device.clone(), None)
        .map_err(|error| error.to_string())?;
    let config = PortConfig {
        n_rxq: 1,
        affinity: Vec::new(),
        numa: device.status().numa,
    };
    if let Err(error) = datapath.configure_port(no, config) {
        remove_from_datapath(name, no, env);
        device.forget();
        return Err(error.to_string());
    }
    let status = device.status();
    // The call cannot fail: the port is there.
    let _ = datapath.set_port_mtu(no, status.mtu);
    Ok(OpenPort {
        device,
        no,
        status,
        offloaded,
        unused_since: None,
    })
}

/// The devices by which outer packets of these tunnels leave, or may arrive. Packets to an address of a
/// device arrive by that device. Packets to an address of the loopback device may arrive by any device.
fn devices(configs: &[&TunnelConfig], routes: &Routes) -> BTreeSet<String> {
    let (mut found, mut by_any) = (BTreeSet::new(), BTreeSet::new());
    let mut locals = BTreeSet::new();
    for config in configs {
        let Some(dst) = config.remote else {
            by_any.extend(families(config));
            continue;
        };
        let query = Query {
            mark: config.egress_pkt_mark.unwrap_or(0),
            dst,
            src: fixed_local(config),
        };
        let ways = routes.devices(&query);
        if !ways.is_empty() {
            found.extend(ways.iter().map(ToString::to_string));
            locals.extend(routes.lookup(&query).map(|route| route.source));
        }
    }
    let all = routes.addresses();
    let loopbacks: BTreeSet<&str> = all
        .iter()
        .filter(|a| a.addr.is_loopback())
        .map(|a| &*a.device)
        .collect();
    for own in all.iter().filter(|a| locals.contains(&a.addr)) {
        match loopbacks.contains(&*own.device) {
            true => _ = by_any.insert(own.addr.is_ipv6()),
            false => _ = found.insert(own.device.to_string()),
        }
    }
    let reachable = all.iter().filter(|a| {
        a.scope == scope::UNIVERSE && by_any.contains(&a.addr.is_ipv6()) && !loopbacks.contains(&*a.device)
    });
    found.extend(reachable.map(|a| a.device.to_string()));
    found
}

/// The tunnel's local address, if that is fixed.
fn fixed_local(config: &TunnelConfig) -> Option<IpAddr> {
    match config.local {
        Local::Is(local) => Some(local),
        Local::Any | Local::Flow => None,
    }
}

/// Whether a tunnel's outer packets are IPv6; both, if flows choose that.
fn families(config: &TunnelConfig) -> Vec<bool> {
    match config.remote.or(fixed_local(config)) {
        Some(ip) => vec![ip.is_ipv6()],
        None => vec![false, true],
    }
}

/// The packets that come out of these tunnels. `is_up`: whether a device takes packets.
fn filter(configs: &[&TunnelConfig], routes: &Routes, is_up: impl Fn(&str) -> bool) -> OuterFilter {
    type Key = (bool, u8, u16, Option<IpAddr>);
    let mut groups: BTreeMap<Key, Option<BTreeSet<IpAddr>>> = BTreeMap::new();
    for config in configs {
        let port = match config.ty.has_dst_port() {
            true => config.dst_port,
            false => 0,
        };
        for v6 in families(config) {
            for protocol in config.ty.protocols() {
                let key = (v6, *protocol, port, fixed_local(config));
                let remotes = groups.entry(key).or_insert_with(|| Some(BTreeSet::new()));
                match config.remote {
                    None => *remotes = None,
                    Some(remote) => {
                        if let Some(remotes) = remotes {
                            remotes.insert(remote);
                        }
                    }
                }
            }
        }
    }
    let mut locals: Vec<IpAddr> = match groups.is_empty() {
        true => Vec::new(),
        false => routes
            .addresses()
            .into_iter()
            .filter(|a| !a.addr.is_loopback() && is_up(&a.device))
            .map(|a| a.addr)
            .collect(),
    };
    locals.sort_unstable();
    locals.dedup();
    let group = |((v6, protocol, port, local), remotes): (Key, Option<BTreeSet<IpAddr>>)| OuterGroup {
        v6,
        protocol,
        port,
        local,
        remotes: remotes.map(|remotes| remotes.into_iter().collect()),
    };
    OuterFilter {
        groups: groups.into_iter().map(group).collect(),
        locals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_tunnel::TunnelType;
    use heddle_tunnel::config::parse;
    use heddle_tunnel::routes::{Address, Kind, MAIN, Prefix, System, SystemHop, SystemRoute};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn config(ty: TunnelType, options: &[(&str, &str)]) -> TunnelConfig {
        let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        parse("t0", ty, &options.collect()).unwrap().0
    }

    /// eth0 has 10.0.0.1/24 and fd00::1/64, eth1 has 10.1.0.1/24; 20.0.0.0/8 has next hops on both. The
    /// loopback device has 10.9.9.1, too.
    fn routes() -> Routes {
        let routes = Routes::new(Box::new(|_| {}));
        let address = |device: &str, addr, len| Address::new(device.into(), ip(addr), len);
        let route = |to, len, hops: &[&str]| SystemRoute {
            table: MAIN,
            prefix: Prefix::new(ip(to), len).unwrap(),
            kind: Kind::Unicast,
            metric: 0,
            prefsrc: None,
            scope: 0,
            mtu_bytes: None,
            hops: hops
                .iter()
                .map(|device| SystemHop {
                    device: (*device).into(),
                    device_mtu_bytes: Some(1500),
                    gateway: None,
                    weight: 1,
                })
                .collect(),
        };
        let mut lo = address("lo", "127.0.0.1", 8);
        lo.scope = scope::HOST;
        routes.set_system(&System {
            addresses: vec![
                lo,
                address("lo", "10.9.9.1", 32),
                address("eth0", "10.0.0.1", 24),
                address("eth0", "fd00::1", 64),
                address("eth1", "10.1.0.1", 24),
            ],
            rules: Vec::new(),
            routes: vec![
                route("10.0.0.0", 24, &["eth0"]),
                route("10.1.0.0", 24, &["eth1"]),
                route("20.0.0.0", 8, &["eth0", "eth1"]),
                route("fd00::", 64, &["eth0"]),
            ],
        });
        routes
    }

    fn names(configs: &[TunnelConfig]) -> Vec<String> {
        let configs: Vec<&TunnelConfig> = configs.iter().collect();
        devices(&configs, &routes()).into_iter().collect()
    }

    #[test]
    fn devices_are_those_of_routes_or_all_with_addresses() {
        let to = |remote| config(TunnelType::Geneve, &[("remote_ip", remote)]);
        assert_eq!(names(&[to("10.0.0.2")]), ["eth0"]);
        assert_eq!(names(&[to("20.0.0.2")]), ["eth0", "eth1"]);
        assert!(names(&[to("30.0.0.2")]).is_empty(), "no route");
        assert_eq!(names(&[to("flow")]), ["eth0", "eth1"]);
        let of_loopback = |remote| {
            let options = [("remote_ip", remote), ("local_ip", "10.9.9.1")];
            config(TunnelType::Geneve, &options)
        };
        assert_eq!(names(&[of_loopback("10.0.0.2")]), ["eth0", "eth1"]);
        assert!(names(&[of_loopback("30.0.0.2")]).is_empty(), "no route");
        let v6 = config(
            TunnelType::Vxlan,
            &[("remote_ip", "flow"), ("local_ip", "fd00::1")],
        );
        assert_eq!(names(&[v6]), ["eth0"]);
    }

    #[test]
    fn tunnels_of_one_port_share_a_group() {
        let all = [
            config(TunnelType::Geneve, &[("remote_ip", "10.0.0.2")]),
            config(TunnelType::Geneve, &[("remote_ip", "10.0.0.3"), ("key", "5")]),
            config(
                TunnelType::Vxlan,
                &[("remote_ip", "10.0.0.2"), ("local_ip", "10.0.0.1")],
            ),
            config(TunnelType::Gre, &[("remote_ip", "fd00::2")]),
            config(TunnelType::Stt, &[("remote_ip", "flow")]),
        ];
        let configs: Vec<&TunnelConfig> = all.iter().collect();
        let found = filter(&configs, &routes(), |device| device != "eth1");
        let group = |v6, protocol, port, local: Option<&str>, remotes: Option<&[&str]>| OuterGroup {
            v6,
            protocol,
            port,
            local: local.map(ip),
            remotes: remotes.map(|r| r.iter().map(|a| ip(a)).collect()),
        };
        assert_eq!(
            found.groups,
            [
                group(false, 6, 7471, None, None),
                group(false, 17, 4789, Some("10.0.0.1"), Some(&["10.0.0.2"])),
                group(false, 17, 6081, None, Some(&["10.0.0.2", "10.0.0.3"])),
                group(true, 6, 7471, None, None),
                group(true, 47, 0, None, Some(&["fd00::2"])),
            ]
        );
        assert_eq!(found.locals, [ip("10.0.0.1"), ip("10.9.9.1"), ip("fd00::1")]);
        assert_eq!(filter(&[], &routes(), |_| true), OuterFilter::default());
    }
}
