//! The parts of the configuration that cached translations depend on, and the parts that a new configuration
//! changes.
//!
//! **Problem.** If each translation depended on the configuration as a whole, a new port would make all flows
//! of all other ports stale. So a translation depends on those [`Part`]s that it looks at, and
//! [`Snapshot::differences`] returns the parts that a new configuration changes. A change that lets
//! translations read a new member of [`BridgeView`] must assign the member to a part there. The build fails
//! if a member has no part.
//!
//! Bundles are compared by their contents: a bundle that only gets another index is the same.
//!
//! **State that moves by itself** has parts of its own. Whether a port may forward is [`Part::Link`]: flows
//! that only send to a port stay valid while its link flaps. The state of a BFD session is not even part of
//! the configuration: see [`crate::monitor`]. Nor is a bond's: see [`crate::bond`]. Such parts have slots of
//! learned state
//! ([`Generations::learned_slot_of`]), which are many and apart from the slots of the configuration.
//!
//! **Costs.** Parts that two configurations share are not compared.

use crate::bfd_port::BfdPort;
use crate::bond_port::BondPart;
use crate::model::{Binding, BridgeView, ByNumber, Mirror, PortBundle, PortView, Snapshot};
use crate::shared_map::SharedMap;
use crate::standby::FailoverPair;
use crate::tunnels::TunnelMap;
use heddle_datapath_api::{Generations, PortNo};
use heddle_openflow::Port as OfPort;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// One part of the configuration that a translation may depend on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// The bridge and port that packets from a datapath port come into, and the parts of both.
    Input(PortNo),
    /// A bridge as a whole: its existence, and all but its ports and bundles.
    Bridge(u64),
    /// A port of a bridge, with the bundle that it is in.
    Port(u64, OfPort),
    /// All ports and bundles of a bridge.
    Ports(u64),
    /// Whether a port of a bridge may forward.
    Link(u64, OfPort),
    /// Settings of connection tracking zones.
    CtZones,
    /// The tunnel ports of a datapath port that have no fixed remote address.
    Tunnels(PortNo),
    /// The tunnel ports of a datapath port that have this remote address.
    Peer(PortNo, IpAddr),
    /// The packets to this host that come out of tunnels.
    TunnelEndpoints,
    /// The datapath ports of tunnels' outer packets that belong to no bridge.
    Underlay,
    /// A part of a bond's state.
    Bond(u64, BondPart),
    /// The active device of a pair ([`crate::standby`]).
    FailoverPair(u64),
}

/// A hash of an address, without collisions between IPv4 addresses.
fn short(ip: IpAddr) -> u64 {
    let all = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    #[allow(clippy::cast_possible_truncation)] // the low half
    let low = all as u64;
    ((all >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ low
}

impl Part {
    /// The generation slot.
    pub(crate) fn slot(self) -> u16 {
        match self {
            Self::Link(..) | Self::Peer(..) | Self::Bond(..) | Self::FailoverPair(_) => {
                Generations::learned_slot_of(self.number())
            }
            _ => Generations::slot_of(self.number()),
        }
    }

    /// A number of this part alone. The upper four bits are the kind of part; those of a peer are mixed with
    /// a hash.
    fn number(self) -> u64 {
        match self {
            Self::Input(no) => 1 << 60 | u64::from(no.0),
            Self::Bridge(id) => 2 << 60 | id,
            Self::Port(id, no) => 3 << 60 | id << 32 ^ u64::from(no.0),
            Self::Ports(id) => 4 << 60 | id,
            Self::Link(id, no) => 5 << 60 | id << 32 ^ u64::from(no.0),
            Self::CtZones => 6 << 60,
            Self::TunnelEndpoints => 7 << 60,
            // 8 is the kind of groups (`Group::slot`).
            Self::Tunnels(dp) => 9 << 60 | u64::from(dp.0),
            Self::Underlay => 11 << 60,
            Self::FailoverPair(id) => 13 << 60 | id,
            Self::Bond(id, part) => 12 << 60 | id << 20 | part.number(),
            Self::Peer(dp, ip) => 10 << 60 ^ short(ip).rotate_left(16) ^ u64::from(dp.0),
        }
    }
}

impl Snapshot {
    /// The next configuration, with these bridges.
    pub(crate) fn followed_by(&self, bridges: ByNumber<u64, Arc<BridgeView>>) -> Snapshot {
        let mut by_dp_port = self.by_dp_port.clone();
        let (mut left, mut came) = (Vec::new(), Vec::new());
        let mut tunnels_moved = false;
        let none = SharedMap::default();
        let tlv = |b: Option<&Arc<BridgeView>>| b.and_then(|b| b.tlv.clone());
        let ids: BTreeSet<u64> = self.bridges.keys().chain(bridges.keys()).copied().collect();
        for id in ids {
            tunnels_moved |= tlv(self.bridges.get(&id)) != tlv(bridges.get(&id));
            let old = self.bridges.get(&id).map_or(&none, |b| &b.ports);
            let new = bridges.get(&id).map_or(&none, |b| &b.ports);
            for no in new.differences(old) {
                // The whole tunnel is compared: a tunnel of another type may have the same match on the same
                // datapath port.
                let tunnel_moved =
                    old.get(&no).and_then(|p| p.tunnel()) != new.get(&no).and_then(|p| p.tunnel());
                tunnels_moved |= tunnel_moved;
                let at = |ports: &SharedMap<OfPort, Arc<PortView>>| {
                    ports.get(&no).map_or([None; 2], |p| inputs_of(p))
                };
                let (was, is) = (at(old), at(new));
                if was != is {
                    left.extend(was.into_iter().flatten().map(|dp| (dp, (id, no))));
                    came.extend(is.into_iter().flatten().map(|dp| (dp, (id, no))));
                }
            }
        }
        // Removals come first: other ports may take over the same datapath ports.
        for (dp, at) in left {
            if by_dp_port.get(&dp) == Some(&at) {
                by_dp_port.remove(&dp);
            }
        }
        for (dp, at) in came {
            by_dp_port.insert(dp, at);
        }
        let tunnels = match tunnels_moved {
            true => Arc::new(tunnels_of(&bridges, &self.tunnels)),
            false => self.tunnels.clone(),
        };
        Snapshot {
            bridges,
            by_dp_port,
            tunnels,
            ct_timeouts: self.ct_timeouts.clone(),
            underlay: self.underlay.clone(),
        }
    }

    /// The parts in which this configuration differs from `before`.
    pub(crate) fn differences(&self, before: &Snapshot) -> BTreeSet<Part> {
        let mut parts = BTreeSet::new();
        let ids: BTreeSet<_> = before.bridges.keys().chain(self.bridges.keys()).collect();
        for id in ids {
            let (old, new) = (before.bridges.get(id), self.bridges.get(id));
            let (old, new) = match (old, new) {
                (Some(old), Some(new)) => (&**old, &**new),
                // The whole bridge was added or removed.
                (one, other) => {
                    parts.insert(Part::Bridge(*id));
                    let ports = one.or(other).into_iter().flat_map(|b| b.ports.iter());
                    for (no, port) in ports {
                        parts.extend([Part::Port(*id, no), Part::Link(*id, no)]);
                        parts.extend(of_tunnel(port));
                    }
                    parts.insert(Part::Ports(*id));
                    continue;
                }
            };
            if !same_whole(old, new) {
                parts.insert(Part::Bridge(*id));
            }
            let mut all: BTreeSet<OfPort> = new.ports.differences(&old.ports).into_iter().collect();
            for place in new.bundles.differences(&old.bundles) {
                let (was, is) = (old.bundles.get(&place), new.bundles.get(&place));
                if was != is {
                    parts.insert(Part::Ports(*id));
                    all.extend(was.into_iter().chain(is).flat_map(|b| &b.ports));
                }
            }
            for no in all {
                if !same_port(old, new, no) {
                    parts.extend([Part::Port(*id, no), Part::Ports(*id)]);
                }
                let (was, is) = (old.ports.get(&no), new.ports.get(&no));
                let outer = |p: Option<&Arc<PortView>>| Some(p?.tunnel()?.outer_match());
                if outer(was) != outer(is) {
                    parts.extend(was.into_iter().chain(is).filter_map(|p| of_tunnel(p)));
                }
                // A session that changes its state bumps the slot itself. Here only the device's state and
                // the session's identity are compared.
                let up = |b: &BridgeView| {
                    let port = b.ports.get(&no)?;
                    Some((port.up, port.bfd.as_ref().map(BfdPort::id), port.lacp.clone()))
                };
                if up(old) != up(new) {
                    parts.insert(Part::Link(*id, no));
                }
            }
        }
        let moved = self.by_dp_port.differences(&before.by_dp_port);
        let moved = moved
            .into_iter()
            .filter(|no| before.by_dp_port.get(no) != self.by_dp_port.get(no));
        let mut inputs: BTreeSet<PortNo> = moved.collect();
        for part in &parts {
            // Packets that come in by a datapath port depend only on its `Input`, so it changes along with
            // the bridge and port.
            let bridge = |id: &u64| self.bridges.get(id).into_iter();
            match part {
                Part::Bridge(id) => {
                    let ports = bridge(id).flat_map(|b| b.ports.values());
                    inputs.extend(ports.flat_map(|p| inputs_of(p)).flatten());
                }
                Part::Port(id, no) => {
                    let port = bridge(id).filter_map(|b| b.ports.get(no));
                    inputs.extend(port.flat_map(|p| inputs_of(p)).flatten());
                }
                Part::Input(_)
                | Part::Ports(_)
                | Part::Link(..)
                | Part::CtZones
                | Part::Tunnels(_)
                | Part::Peer(..)
                | Part::TunnelEndpoints
                | Part::Underlay
                | Part::Bond(..)
                | Part::FailoverPair(_) => {}
            }
        }
        if self.tunnels.endpoints() != before.tunnels.endpoints() {
            parts.insert(Part::TunnelEndpoints);
        }
        if self.underlay != before.underlay {
            parts.insert(Part::Underlay);
            inputs.extend(before.underlay.numbers().chain(self.underlay.numbers()));
        }
        if self.ct_timeouts != before.ct_timeouts {
            parts.insert(Part::CtZones);
        }
        parts.extend(inputs.into_iter().map(Part::Input));
        parts
    }
}

/// The tunnels of these bridges.
fn tunnels_of(bridges: &ByNumber<u64, Arc<BridgeView>>, before: &TunnelMap) -> TunnelMap {
    let mut ids: Vec<u64> = bridges.keys().copied().collect();
    ids.sort_unstable();
    let mut tunnels = Vec::new();
    for bridge in ids.iter().filter_map(|id| bridges.get(id)) {
        let ports = bridge.ports.iter();
        let of_bridge =
            ports.filter_map(|(no, port)| Some(((bridge.id, no), &**port.tunnel()?, bridge.tlv.as_deref())));
        tunnels.extend(of_bridge);
    }
    TunnelMap::of(&tunnels, before)
}

/// The datapath ports from which packets come into a port: its own, and its standby.
fn inputs_of(port: &PortView) -> [Option<PortNo>; 2] {
    match port.binding {
        Binding::Datapath(no) => [Some(no), port.standby.as_ref().map(FailoverPair::standby_port)],
        Binding::Patch(_) | Binding::Tunnel(_) | Binding::Unbound => [None; 2],
    }
}

/// The part that packets of a tunnel port depend on.
fn of_tunnel(port: &PortView) -> Option<Part> {
    let t = port.tunnel()?;
    Some(match t.config.remote {
        Some(remote) => Part::Peer(t.dp, remote),
        None => Part::Tunnels(t.dp),
    })
}

/// Whether two views of a bridge are equal, apart from their ports and bundles.
fn same_whole(old: &BridgeView, new: &BridgeView) -> bool {
    let BridgeView {
        id,
        name,
        ports: _,
        bundles,
        mirrors,
        tlv,
        flood_vlans,
        forward_bpdu,
        mac,
        snooping,
        tables,
        groups,
        meters,
        version,
        purged,
        vlan_limit,
        miss_to_controller,
        frags,
        features,
        has_controllers,
        ipfix,
        control,
    } = old;
    // Mirrors refer to bundles by index.
    let renamed = |place: &usize| {
        let (was, is) = (bundles.get(place), new.bundles.get(place));
        was.zip(is).is_some_and(|(was, is)| was.name != is.name)
    };
    let mirrors_alike = mirrors.len() == new.mirrors.len()
        && mirrors.iter().zip(&new.mirrors).all(|(a, b)| same_mirror(a, b))
        && (mirrors.is_empty() || !new.bundles.differences(bundles).iter().any(renamed));
    mirrors_alike
        && features == &new.features
        && ipfix == &new.ipfix
        && snooping == &new.snooping
        && (id, name, tlv, flood_vlans) == (&new.id, &new.name, &new.tlv, &new.flood_vlans)
        && (
            forward_bpdu,
            vlan_limit,
            miss_to_controller,
            frags,
            has_controllers,
        ) == (
            &new.forward_bpdu,
            &new.vlan_limit,
            &new.miss_to_controller,
            &new.frags,
            &new.has_controllers,
        )
        && Arc::ptr_eq(mac, &new.mac)
        && Arc::ptr_eq(tables, &new.tables)
        && Arc::ptr_eq(groups, &new.groups)
        && Arc::ptr_eq(meters, &new.meters)
        && Arc::ptr_eq(version, &new.version)
        && Arc::ptr_eq(purged, &new.purged)
        && Weak::ptr_eq(control, &new.control)
}

fn same_mirror(old: &Mirror, new: &Mirror) -> bool {
    let Mirror {
        sources,
        destinations,
        vlans,
        output,
        snaplen,
        same_output,
        stats,
    } = old;
    (sources, destinations, vlans) == (&new.sources, &new.destinations, &new.vlans)
        && (output, snaplen, same_output) == (&new.output, &new.snaplen, &new.same_output)
        && Arc::ptr_eq(stats, &new.stats)
}

/// Whether a port and its bundle are equal in both views, or in neither. Whether the port may forward is
/// another part.
fn same_port(old: &BridgeView, new: &BridgeView, no: OfPort) -> bool {
    fn of(b: &BridgeView, no: OfPort) -> Option<(&PortView, Option<&Arc<PortBundle>>)> {
        let port = b.ports.get(&no)?;
        Some((port, b.bundles.get(&port.bundle)))
    }
    let ((old, old_bundle), (new, new_bundle)) = match (of(old, no), of(new, no)) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return true,
        _ => return false,
    };
    let PortView {
        no,
        name,
        binding,
        mac,
        mtu,
        config,
        up: _,
        bfd,
        lacp,
        standby,
        bundle: _,
        patch_rx,
        patch_tx,
    } = old;
    (no, name, binding, mac) == (&new.no, &new.name, &new.binding, &new.mac)
        && (mtu, config, bfd, lacp) == (&new.mtu, &new.config, &new.bfd, &new.lacp)
        && standby == &new.standby
        && old_bundle == new_bundle
        && Arc::ptr_eq(patch_rx, &new.patch_rx)
        && Arc::ptr_eq(patch_tx, &new.patch_tx)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn numbers_of_parts_are_distinct() {
        let mut parts = vec![Part::CtZones, Part::TunnelEndpoints, Part::Underlay];
        for n in [0, 1, 2, 3, 255, 65_279] {
            let dp = PortNo(n);
            parts.extend([Part::Input(dp), Part::Tunnels(dp)]);
            for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST] {
                parts.push(Part::Peer(dp, ip.into()));
            }
            for id in [1, 2, 3, 1000] {
                parts.extend([Part::Port(id, OfPort(n)), Part::Link(id, OfPort(n))]);
                parts.push(Part::Bond(id, BondPart::Member(OfPort(n))));
            }
        }
        for id in [1, 2, 3, 1000] {
            parts.extend([Part::Bridge(id), Part::Ports(id), Part::FailoverPair(id)]);
            parts.extend([BondPart::Mode, BondPart::Active].map(|p| Part::Bond(id, p)));
            parts.extend((0..=u8::MAX).map(|n| Part::Bond(id, BondPart::Bucket(n))));
        }
        let numbers: BTreeSet<u64> = parts.iter().map(|p| p.number()).collect();
        assert_eq!(numbers.len(), parts.len());
    }
}
