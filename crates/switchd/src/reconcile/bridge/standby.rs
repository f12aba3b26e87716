//! Two interfaces of one guest that are one OpenFlow port (`Interface.other_config:heddle-standby-for`).
//!
//! The standby keeps its own OpenFlow number, but its packets have the primary's. The primary's QoS and
//! ingress policing apply to the standby, too.

use std::collections::BTreeMap;

use heddle_ofproto::Ofproto;
use heddle_ofproto::bridge::PortConfig;
use heddle_ofproto::standby::Standby;

use super::{BridgeReconciler, Iface};
use crate::reconcile::desired::{BridgeRow, InterfaceRow};

/// Key of `Interface.other_config` with the name of the primary.
const PRIMARY: &str = "heddle-standby-for";

/// A pair, and the name of its standby.
pub(super) struct Pair {
    pub(super) pair: Standby,
    standby: String,
    /// Number of changes of the active device that were logged.
    logged: u64,
}

/// The primary of a standby; `None`: the interface is no standby. The error is the reason why it cannot be
/// one.
pub(super) fn primary_of<'a>(
    bridge: &'a BridgeRow,
    row: &InterfaceRow,
) -> Result<Option<&'a InterfaceRow>, String> {
    let Some(name) = row.other_config.get(PRIMARY) else {
        return Ok(None);
    };
    let refused = |why: &str| {
        Err(format!(
            "interface {}: {PRIMARY}={name}: {why}, so it is a port of its own",
            row.name
        ))
    };
    if name == row.name || [name, row.name.as_str()].contains(&bridge.name.as_str()) {
        return refused("neither the interface itself nor the bridge's own port can be that");
    }
    let Some((port, primary)) = bridge.interface(name) else {
        return refused("the bridge has no such interface");
    };
    if primary.other_config.get(PRIMARY).is_some() {
        return refused("that interface is a standby, too");
    }
    if port.bond.is_some()
        || bridge
            .interface(&row.name)
            .is_some_and(|(port, _)| port.bond.is_some())
    {
        return refused("members of bonds have no standby");
    }
    let mut others = bridge
        .interfaces()
        .filter(|(_, i)| i.other_config.get(PRIMARY) == Some(name));
    if others.next().is_some_and(|(_, first)| first.name != row.name) {
        return refused("another interface is its standby");
    }
    Ok(Some(primary))
}

impl BridgeReconciler {
    /// Logs interfaces that are configured as standby and cannot be one.
    pub(super) fn check_standbys(&self) {
        for (_, row) in self.row.interfaces() {
            if let Err(why) = primary_of(&self.row, row) {
                log::warn!(target: "bridge", "bridge {}: {why}", self.row.name);
            }
        }
    }

    /// Makes the configured pairs. The other device becomes active if the active one has lost its link.
    pub(super) fn follow_standbys(&mut self, of: &Ofproto) {
        let mut before = std::mem::take(&mut self.standbys);
        let mut pairs = BTreeMap::new();
        for (_, row) in self.row.interfaces() {
            let Ok(Some(primary)) = primary_of(&self.row, row) else {
                continue;
            };
            let device = |name: &str| self.ifaces.get(name).and_then(|i| Some((i, i.device()?.1)));
            let (Some((first, no)), Some((second, standby))) = (device(&primary.name), device(&row.name))
            else {
                continue;
            };
            let mac = primary.guest_mac.or(row.guest_mac);
            let old = before
                .remove(&primary.name)
                .filter(|old| old.pair.is_of(no, standby, mac));
            let pair = old.unwrap_or_else(|| Pair {
                pair: Standby::new(no, standby, mac),
                standby: row.name.clone(),
                logged: 0,
            });
            let up = |i: &Iface| i.status.admin_up && i.status.link_up;
            of.follow_links_of_pair(&pair.pair, up(first), up(second));
            pairs.insert(primary.name.clone(), pair);
        }
        self.standbys = pairs;
    }

    /// Whether an interface is the standby of another one.
    pub(super) fn is_standby(&self, name: &str) -> bool {
        self.standbys.values().any(|pair| pair.standby == name)
    }

    /// Adds the standby to the configuration of its primary.
    pub(super) fn pair_up(&self, config: &mut PortConfig) {
        let Some(pair) = self.standbys.get(&config.name) else {
            return;
        };
        config.standby = Some(pair.pair.clone());
        if let Some(standby) = self.ifaces.get(&pair.standby) {
            config.admin_up |= standby.status.admin_up;
            config.link_up |= standby.status.link_up;
        }
    }

    /// Logs changes of the active device.
    pub(super) fn log_changes_of_standbys(&mut self) {
        for (primary, pair) in &mut self.standbys {
            let changes = pair.pair.changes();
            if std::mem::replace(&mut pair.logged, changes) == changes {
                continue;
            }
            let active = self
                .ifaces
                .values()
                .find(|i| i.device().is_some_and(|(_, no)| no == pair.pair.active()));
            let active = active.map_or("", |i| i.name.as_str());
            log::info!(
                target: "bridge", per_min = 10, burst = 20;
                "bridge {}: port {primary}: the guest uses {active} now ({changes} changes)", self.row.name
            );
        }
    }
}
