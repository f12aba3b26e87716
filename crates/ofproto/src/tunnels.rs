//! Tunnel ports, and which of them a packet from a tunnel belongs to.
//!
//! **Problem.** All tunnels of one type share a datapath port. Their outer addresses and key tell them apart:
//! a port matches both addresses and the key, or leaves some of them to flows. As in Open vSwitch there are
//! twelve kinds of such matches, which are tried in a fixed order. Ports with a key come before those that
//! leave it to flows. Next, ports with a remote address come first. Then come ports with a local address,
//! ports that accept any local address, and ports that leave it to flows.
//!
//! **Invariants.** No two ports of the map have the same match: a later port is left out until the first one
//! goes. Ports that are left out neither send nor receive.
//!
//! [`TunnelMap::endpoints`] describes the packets to this host that come out of tunnels. All tunnels of a
//! datapath port have one table of options there, which is made from those of their bridges. If two bridges
//! read one option in two ways, the first one counts.
//!
//! **Costs.** A lookup is a hash and a comparison for each kind of match that some port has, and for each
//! packet mode. A change of any tunnel port makes the map anew.

use heddle_datapath_api::PortNo;
use heddle_flow::field::tlv::TlvMap;
use heddle_flow::{FlowKey, packet_type};
use heddle_openflow::Port as OfPort;
use heddle_tunnel::action::Numbers;
use heddle_tunnel::config::{Key, Local, PacketMode};
use heddle_tunnel::{OptionTable, TooBig, TunnelConfig, TunnelPop, TunnelType};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

/// One tunnel port: its configuration, and the datapath port that it shares with others of its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Configuration of the tunnel.
    pub config: TunnelConfig,
    /// The datapath port.
    pub dp: PortNo,
    /// Numbers for the packets that the tunnel sends.
    pub numbers: Numbers,
}

/// The packets of one datapath port's tunnels that end at this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalEndpoint {
    /// The action that decapsulates them.
    pub pop: Arc<TunnelPop>,
    ty: TunnelType,
    /// Destination port; 0: the type has no ports.
    pub port: u16,
    /// The IPv6 variant of a type: it is preferred for IPv6 outer packets.
    pub(crate) is_for_ipv6: bool,
}

impl LocalEndpoint {
    /// IP protocols of the outer packets.
    pub fn protocols(&self) -> &'static [u8] {
        self.ty.protocols()
    }
    /// Whether outer packets have this IP protocol.
    pub(crate) fn has_protocol(&self, proto: u8) -> bool {
        self.ty.protocols().contains(&proto)
    }
}

/// One [`LocalEndpoint`] for each datapath port of these tunnels, with the options that their bridges read.
fn endpoints_of<'a>(tunnels: impl Iterator<Item = (&'a Tunnel, Option<&'a TlvMap>)>) -> Vec<LocalEndpoint> {
    let mut by_port: BTreeMap<PortNo, (&TunnelConfig, OptionTable)> = BTreeMap::new();
    for (tunnel, map) in tunnels {
        let (_, options) = by_port
            .entry(tunnel.dp)
            .or_insert((&tunnel.config, OptionTable::default()));
        if let Some(map) = map {
            options.add(map);
        }
    }
    let end = |(dp, (config, options)): (PortNo, (&TunnelConfig, OptionTable))| {
        Some(LocalEndpoint {
            pop: Arc::new(TunnelPop {
                kind: config.ty.kind().filter(|_| !config.ty.protocols().is_empty())?,
                port: dp.0,
                options,
            }),
            ty: config.ty,
            port: config.dst_port,
            is_for_ipv6: matches!(config.ty, TunnelType::Ip6gre | TunnelType::Ip6erspan),
        })
    };
    by_port.into_iter().filter_map(end).collect()
}

/// The match of a tunnel port on outer headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OuterMatch {
    dp: PortNo,
    /// `None`: left to flows.
    key: Option<u64>,
    /// `None`: left to flows.
    remote: Option<IpAddr>,
    local: Local,
    mode: PacketMode,
}

/// Number of kinds of matches.
const N_KINDS: usize = 12;

impl OuterMatch {
    fn kind(&self) -> usize {
        let local = match self.local {
            Local::Is(_) => 0,
            Local::Any => 1,
            Local::Flow => 2,
        };
        6 * usize::from(self.key.is_none()) + 3 * usize::from(self.remote.is_none()) + local
    }
}

/// A random number.
fn anything() -> u32 {
    let hash = RandomState::new().hash_one(());
    #[allow(clippy::cast_possible_truncation)] // the low half
    let low = (hash & u64::from(u32::MAX)) as u32;
    low
}

/// Formats a number like C's `%#x`: zero has no prefix.
fn hex(v: u64) -> String {
    match v {
        0 => "0".to_owned(),
        v => format!("{v:#x}"),
    }
}

impl Tunnel {
    /// A tunnel that has not sent a packet yet.
    pub fn new(config: TunnelConfig, dp: PortNo) -> Self {
        Self {
            // Receivers tell frames of STT apart by their numbers. So two tunnels between the same hosts
            // begin with different numbers.
            numbers: match config.ty {
                TunnelType::Stt => Numbers::beginning_with(anything()),
                _ => Numbers::default(),
            },
            config,
            dp,
        }
    }
    pub(crate) fn outer_match(&self) -> OuterMatch {
        OuterMatch {
            dp: self.dp,
            key: match self.config.in_key {
                Key::Flow => None,
                key => Some(key.value()),
            },
            remote: self.config.remote,
            local: self.config.local,
            mode: self.config.mode,
        }
    }
    /// Whether both ports have the same match.
    pub fn has_same_match(&self, other: &Tunnel) -> bool {
        self.outer_match() == other.outer_match()
    }
    /// The match as text, for `ofproto/list-tunnels` and messages.
    pub fn match_text(&self) -> String {
        // Without a local address, the text has the unspecified one of IPv6.
        let local = match self.config.local {
            Local::Is(local) => local.to_string(),
            Local::Any => "::".to_owned(),
            Local::Flow => "flow".to_owned(),
        };
        let remote = self
            .config
            .remote
            .map_or_else(|| "flow".to_owned(), |r| r.to_string());
        let key = match self.config.in_key {
            Key::Flow => "flow".to_owned(),
            key => hex(key.value()),
        };
        let mode = self.config.mode.text();
        format!("{local}->{remote}, key={key}, {mode}, dp port={}", self.dp.0)
    }
    /// The line of `ofproto/list-tunnels`.
    fn line(&self, name: &str) -> String {
        let c = &self.config;
        let mut s = format!(
            "port {}: {name} ({}: {}",
            self.dp.0,
            c.ty.name(),
            self.match_text()
        );
        if c.out_key != c.in_key {
            match c.out_key {
                Key::Absent => s.push_str(", out_key=none"),
                Key::Flow => s.push_str(", out_key=flow"),
                Key::Is(key) => _ = write!(s, ", out_key={}", hex(key)),
            }
        }
        match c.ttl {
            None => s.push_str(", ttl=inherit"),
            Some(ttl) => _ = write!(s, ", ttl={ttl}"),
        }
        match c.tos {
            None => s.push_str(", tos=inherit"),
            Some(0) => {}
            Some(tos) => _ = write!(s, ", tos={tos:#x}"),
        }
        if !c.df {
            s.push_str(", df=false");
        }
        if c.csum {
            s.push_str(", csum=true");
        }
        s + ")\n"
    }
}

/// The outer source address of a packet from a tunnel; `None`: the packet came from no tunnel.
pub(crate) fn source(key: &FlowKey) -> Option<IpAddr> {
    is_tunnelled(key).then(|| address(key.tun_src, key.tun_ipv6_src))
}

/// Whether a packet came from a tunnel.
pub(crate) fn is_tunnelled(key: &FlowKey) -> bool {
    key.tun_dst != 0 || key.tun_ipv6_dst != [0; 16]
}

/// The one of two addresses that is not zero.
pub(crate) fn address(v4: u32, v6: [u8; 16]) -> IpAddr {
    match v4 {
        0 => IpAddr::V6(v6.into()),
        v4 => IpAddr::V4(v4.into()),
    }
}

/// Bridge id and OpenFlow port of a tunnel port.
pub(crate) type TunnelPort = (u64, OfPort);

/// See the module's text.
#[derive(Default, Debug)]
pub struct TunnelMap {
    ports: HashMap<OuterMatch, TunnelPort>,
    /// Number of ports by kind of match.
    n_of_kind: [usize; N_KINDS],
    endpoints: Vec<LocalEndpoint>,
}

impl TunnelMap {
    fn add(&mut self, wanted: OuterMatch, place: TunnelPort) {
        if let std::collections::hash_map::Entry::Vacant(free) = self.ports.entry(wanted) {
            free.insert(place);
            self.n_of_kind[wanted.kind()] += 1;
        }
    }

    /// The map of these tunnels, with the tables of options of their bridges. Ports in `before` whose match
    /// is the same stay in the map.
    pub(crate) fn of<'a>(
        tunnels: &[(TunnelPort, &'a Tunnel, Option<&'a TlvMap>)],
        before: &TunnelMap,
    ) -> Self {
        let mut map = Self::default();
        for (place, tunnel, _) in tunnels {
            if before.get(&tunnel.outer_match()) == Some(*place) {
                map.add(tunnel.outer_match(), *place);
            }
        }
        for (place, tunnel, _) in tunnels {
            map.add(tunnel.outer_match(), *place);
        }
        map.endpoints = endpoints_of(tunnels.iter().map(|(_, tunnel, options)| (*tunnel, *options)));
        map
    }

    /// The tunnels' packets that end at this host, by datapath port.
    pub fn endpoints(&self) -> &[LocalEndpoint] {
        &self.endpoints
    }

    /// Whether these are outer headers of packets that some tunnel sends. `Some(true)`: the destination is
    /// configured; otherwise flows choose it.
    pub fn sends(&self, quoted: &TooBig) -> Option<bool> {
        let ends = self.endpoints.iter();
        let same = ends.filter(|e| e.has_protocol(quoted.protocol) && e.port == quoted.port);
        let dps: Vec<PortNo> = same.map(|e| PortNo(e.pop.port)).collect();
        let is_of = |tunnel: &&OuterMatch| {
            let local = match tunnel.local {
                Local::Is(local) => local == quoted.source,
                Local::Any | Local::Flow => true,
            };
            local && dps.contains(&tunnel.dp) && tunnel.remote.is_none_or(|r| r == quoted.destination)
        };
        let found = self.ports.keys().filter(is_of);
        found.map(|tunnel| tunnel.remote.is_some()).max()
    }

    /// Whether there is no tunnel at all.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// The tunnel port with this match.
    pub(crate) fn get(&self, wanted: &OuterMatch) -> Option<TunnelPort> {
        self.ports.get(wanted).copied()
    }

    /// The port that a packet from a tunnel belongs to; `in_port` of its key is the datapath's.
    pub(crate) fn receive(&self, key: &FlowKey) -> Option<TunnelPort> {
        let here = address(key.tun_dst, key.tun_ipv6_dst);
        let there = source(key)?;
        let (legacy, other) = match key.packet_type >> 16 {
            packet_type::NS_ETHERTYPE => (PacketMode::LegacyL3, PacketMode::LegacyL2),
            _ => (PacketMode::LegacyL2, PacketMode::LegacyL3),
        };
        // After a recirculation, the packet may begin with another kind of header than in the tunnel.
        let modes = [legacy, PacketMode::Aware, other];
        let modes = if key.recirc_id == 0 {
            &modes[..2]
        } else {
            &modes[..]
        };
        for of_key in [Some(key.tun_id), None] {
            for remote in [Some(there), None] {
                for local in [Local::Is(here), Local::Any, Local::Flow] {
                    let wanted = OuterMatch {
                        dp: PortNo(key.in_port),
                        key: of_key,
                        remote,
                        local,
                        mode: legacy,
                    };
                    if self.n_of_kind[wanted.kind()] == 0 {
                        continue;
                    }
                    let found = modes.iter().find_map(|mode| {
                        self.ports.get(&OuterMatch {
                            mode: *mode,
                            ..wanted
                        })
                    });
                    if let Some(place) = found {
                        return Some(*place);
                    }
                }
            }
        }
        None
    }

    /// The text of `ofproto/list-tunnels`. `port` returns the name and the tunnel of a port.
    pub(crate) fn list<'a>(&self, port: impl Fn(TunnelPort) -> Option<(&'a str, &'a Tunnel)>) -> String {
        let line = |(wanted, place): (&OuterMatch, &TunnelPort)| {
            let (name, tunnel) = port(*place)?;
            Some((wanted.kind(), tunnel.line(name)))
        };
        let mut lines: Vec<(usize, String)> = self.ports.iter().filter_map(line).collect();
        lines.sort();
        lines.into_iter().map(|(_, line)| line).collect()
    }
}
