//! Two interfaces of one guest that are one OpenFlow port.
//!
//! The standby keeps its own OpenFlow number, but its packets have the primary's. The primary's QoS and
//! ingress policing apply to the standby, too. `Interface.status` of both shows the pair and the active
//! device. With it, the active device survives a restart of the daemon.

mod choice;

use std::collections::BTreeMap;

use heddle_ofproto::Ofproto;
use heddle_ofproto::bridge::PortConfig;
use heddle_ofproto::standby::FailoverPair;

use super::{Body, BridgeReconciler, Iface};
use crate::reconcile::desired::{GuestIds, STATUS_ACTIVE, STATUS_STANDBY};
use choice::{Choice, DeviceClass};
use heddle_ovsdb::Row;

/// Key of `Interface.status` of a standby with the name of its primary.
const STATUS_PRIMARY: &str = "heddle-standby-for";

/// A pair, and the name of its standby.
pub(super) struct Pair {
    pub(super) pair: FailoverPair,
    standby: String,
    /// Changes of the active device, and times that the limit was reached, that were logged.
    logged: (u64, u64),
}

/// The class of an interface's device; `None`: it has none.
fn class(iface: &Iface) -> Option<DeviceClass> {
    let Body::Device(device, _) = &iface.body else {
        return None;
    };
    let mut extra = iface.status.extra.iter();
    let is_tap = extra.any(|(key, value)| key == "driver_name" && value == "tun");
    Some(match device.kind() {
        "dpdkvhostuser" | "dpdkvhostuserclient" | "vduse" => DeviceClass::Ring,
        _ if is_tap => DeviceClass::Tap,
        _ => DeviceClass::Card,
    })
}

impl BridgeReconciler {
    /// Chooses the pairs, whose interfaces exist or have failed.
    pub(super) fn choose_pairs(&mut self) {
        let mut before: BTreeMap<String, String> = self
            .row
            .interfaces()
            .filter_map(|(_, row)| Some((row.name.clone(), row.pair_before.0.clone()?)))
            .collect();
        let made = self.standbys.iter();
        before.extend(made.map(|(primary, pair)| (primary.clone(), pair.standby.clone())));
        let ifaces = &self.ifaces;
        let class = |row: &super::InterfaceRow| match ifaces.get(&row.name) {
            Some(iface) => class(iface),
            // An interface without a device so far.
            None => (!matches!(row.kind.as_str(), "patch")).then_some(DeviceClass::Card),
        };
        let Choice { primaries, faults } = choice::choose(&self.row, class, &before);
        self.primaries = primaries;
        for iface in self.ifaces.values_mut() {
            iface.pair_fault = faults.get(&iface.name).cloned();
        }
        for (name, fault) in faults {
            log::warn!(target: "bridge", "bridge {}: interface {name}: {fault}", self.row.name);
        }
    }

    /// Whether the row of one of the interfaces has other ids of the guest than that interface.
    pub(in crate::reconcile) fn guest_ids_differ(&self, row: &Row) -> bool {
        let mut own = self.row.interfaces().map(|(_, interface)| interface);
        let known = own.find(|interface| interface.uuid == Some(row.uuid()));
        known.is_some_and(|interface| interface.guest != GuestIds::read(row))
    }

    /// Makes the chosen pairs. The other device becomes active if the active one has lost its link.
    pub(super) fn follow_standbys(&mut self, of: &Ofproto) {
        let mut before = std::mem::take(&mut self.standbys);
        let mut pairs = BTreeMap::new();
        for (standby, primary) in &self.primaries {
            let interface = |name: &str| {
                let iface = self.ifaces.get(name)?;
                let (_, row) = self.row.interface(name)?;
                Some((iface, iface.device()?.1, row))
            };
            let (Some((first, no, primary)), Some((second, standby_no, row))) =
                (interface(primary), interface(standby))
            else {
                continue;
            };
            let mac = primary.guest.mac.or(row.guest.mac);
            let old = before.remove(&primary.name).filter(|old| old.standby == *standby);
            let pair = match old {
                Some(old) if old.pair.is_of(no, standby_no, mac) => old,
                old => {
                    let by_standby = match &old {
                        Some(old) => old.pair.is_by_standby(),
                        None => primary.pair_before == (Some(standby.clone()), Some(standby.clone())),
                    };
                    Pair {
                        pair: FailoverPair::new(no, standby_no, mac, by_standby),
                        standby: standby.clone(),
                        logged: (0, 0),
                    }
                }
            };
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

    /// Keys and values of `Interface.status` of an interface in a pair.
    pub(in crate::reconcile) fn pair_status(&self, name: &str) -> Vec<(String, String)> {
        let mut pairs = self.standbys.iter();
        let found = pairs.find(|(primary, pair)| *primary == name || pair.standby == name);
        let Some((primary, pair)) = found else {
            return Vec::new();
        };
        let active = match pair.pair.is_by_standby() {
            true => &pair.standby,
            false => primary,
        };
        let other = match primary == name {
            true => (STATUS_STANDBY, &pair.standby),
            false => (STATUS_PRIMARY, primary),
        };
        let both = [other, (STATUS_ACTIVE, active)];
        both.map(|(key, value)| (key.to_owned(), value.clone())).into()
    }

    /// Logs changes of the active device. Returns whether there were any.
    pub(super) fn log_changes_of_standbys(&mut self) -> bool {
        let mut any = false;
        for (primary, pair) in &mut self.standbys {
            let now = (pair.pair.changes(), pair.pair.limited());
            let before = std::mem::replace(&mut pair.logged, now);
            if now.1 != before.1 {
                log::warn!(
                    target: "bridge", per_min = 1, burst = 2;
                    "bridge {}: port {primary}: the guest changes its device too often, some changes came late", self.row.name
                );
            }
            if now.0 == before.0 {
                continue;
            }
            any = true;
            let active = if pair.pair.is_by_standby() {
                &pair.standby
            } else {
                primary
            };
            log::info!(
                target: "bridge", per_min = 10, burst = 20;
                "bridge {}: port {primary}: the guest uses {active} now ({} changes)", self.row.name, now.0
            );
        }
        any
    }
}
