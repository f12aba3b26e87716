//! From one configuration to the next: which parts of it are another now, for cached answers that depend on them.
//!
//! **Problem.** If each answer depended on the configuration as a whole, a port that comes would have all flows of all others translated again.
//! So a translation depends on those [`Part`]s that it looks at, and [`World::differences`] says which parts a new configuration changes. Whoever gives
//! a translation something new to look at in a [`BridgeView`] says there which part it is of; members that nobody has thought of do not build.
//!
//! Places of bundles in their list are no one's property: they are compared by what is there.

use crate::model::{BridgeView, Bundle, Mirror, PortView, World};
use heddle_datapath::{Generations, PortNo};
use heddle_openflow::Port as OfPort;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// What an answer may depend on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// Where packets from a datapath port come in: the bridge and its port, and both as parts.
    Input(PortNo),
    /// A bridge as a whole: that it is there, and all but its ports and bundles.
    Bridge(u64),
    /// A port of a bridge, with the bundle that it is in.
    Port(u64, OfPort),
    /// All ports and bundles of a bridge.
    Ports(u64),
}

impl Part {
    /// The generation slot.
    pub(crate) fn slot(self) -> u16 {
        Generations::slot_of(match self {
            Self::Input(no) => 1 << 60 | u64::from(no.0),
            Self::Bridge(id) => 2 << 60 | id,
            Self::Port(id, no) => 3 << 60 | id << 32 ^ u64::from(no.0),
            Self::Ports(id) => 4 << 60 | id,
        })
    }
}

impl World {
    /// The parts in which this one differs from `before`.
    pub(crate) fn differences(&self, before: &World) -> BTreeSet<Part> {
        let mut parts = BTreeSet::new();
        let ids: BTreeSet<_> = before.bridges.keys().chain(self.bridges.keys()).collect();
        for id in ids {
            let (old, new) = (before.bridges.get(id), self.bridges.get(id));
            if !old.zip(new).is_some_and(|(a, b)| same_whole(a, b)) {
                parts.insert(Part::Bridge(*id));
            }
            let numbers =
                |b: Option<&Arc<BridgeView>>| b.map(|b| b.ports.keys().copied().collect::<Vec<_>>());
            let all = numbers(old).into_iter().chain(numbers(new)).flatten();
            let moved: Vec<_> = all.filter(|no| !same_port(old, new, *no)).collect();
            if !moved.is_empty() || old.map(|b| &b.bundles) != new.map(|b| &b.bundles) {
                parts.insert(Part::Ports(*id));
            }
            parts.extend(moved.into_iter().map(|no| Part::Port(*id, no)));
        }
        let inputs = before.by_dp_port.keys().chain(self.by_dp_port.keys());
        let moved: Vec<_> = inputs
            .filter(|no| {
                let (old, new) = (before.by_dp_port.get(no), self.by_dp_port.get(no));
                old != new
                    || new.is_some_and(|(id, port)| {
                        parts.contains(&Part::Bridge(*id)) || parts.contains(&Part::Port(*id, *port))
                    })
            })
            .collect();
        parts.extend(moved.into_iter().map(|no| Part::Input(*no)));
        parts
    }
}

/// Two bridges, without their ports and bundles.
fn same_whole(old: &BridgeView, new: &BridgeView) -> bool {
    let BridgeView {
        id,
        name,
        ports: _,
        bundles,
        mirrors,
        tlv,
        local_mac,
        flood_vlans,
        forward_bpdu,
        mac,
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
        control,
    } = old;
    // Mirrors name bundles by their places.
    let places = |bundles: &[Bundle]| bundles.iter().map(|b| b.name.clone()).collect::<Vec<_>>();
    let mirrors_alike = mirrors.len() == new.mirrors.len()
        && mirrors.iter().zip(&new.mirrors).all(|(a, b)| same_mirror(a, b))
        && (mirrors.is_empty() || places(bundles) == places(&new.bundles));
    mirrors_alike
        && features == &new.features
        && (id, name, tlv, local_mac, flood_vlans)
            == (&new.id, &new.name, &new.tlv, &new.local_mac, &new.flood_vlans)
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

/// A port and its bundle, in both or in neither.
fn same_port(old: Option<&Arc<BridgeView>>, new: Option<&Arc<BridgeView>>, no: OfPort) -> bool {
    fn of(b: Option<&Arc<BridgeView>>, no: OfPort) -> Option<(&PortView, Option<&Bundle>)> {
        let port = b?.ports.get(&no)?;
        Some((port, b?.bundles.get(port.bundle)))
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
        up,
        bundle: _,
        patch_rx,
        patch_tx,
    } = old;
    (no, name, binding, mac) == (&new.no, &new.name, &new.binding, &new.mac)
        && (mtu, config, up) == (&new.mtu, &new.config, &new.up)
        && old_bundle == new_bundle
        && Arc::ptr_eq(patch_rx, &new.patch_rx)
        && Arc::ptr_eq(patch_tx, &new.patch_tx)
}
