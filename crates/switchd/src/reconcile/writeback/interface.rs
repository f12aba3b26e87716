//! `Interface`: number, state, counters, and the error if it could not be made.

use heddle_datapath_api::{Engine, POLICED, PortStats};
use std::collections::BTreeMap;

use heddle_ovsdb::{Columns, Datum, Db, Txn};
use heddle_port::PortStatus;
use heddle_sys::DeviceCounters;

use super::{Report, report};
use crate::reconcile::bridge::{Body, BridgeReconciler, Failure, Iface};
use crate::reconcile::mac::mac_text;

/// Columns that are not configuration.
pub(super) const OWN: &[&str] = &[
    "ofport",
    "error",
    "status",
    "statistics",
    "admin_state",
    "link_state",
    "link_resets",
    "link_speed",
    "duplex",
    "mtu",
    "mac_in_use",
    "ifindex",
    "lacp_current",
    "bfd_status",
    "cfm_fault",
    "cfm_fault_status",
    "cfm_flap_count",
    "cfm_health",
    "cfm_remote_mpids",
    "cfm_remote_opstate",
    "external_ids",
];

/// Columns that an interface has only while it exists.
const STATE: &[&str] = &[
    "status",
    "statistics",
    "admin_state",
    "link_state",
    "link_resets",
    "link_speed",
    "duplex",
    "mtu",
    "mac_in_use",
    "ifindex",
    "bfd_status",
    "lacp_current",
];

fn up_down(up: bool) -> &'static str {
    if up { "up" } else { "down" }
}

fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Report<'_> {
    pub(super) fn describe_interface(
        &self,
        bridge: &BridgeReconciler,
        iface: &Iface,
        all: bool,
        txn: &mut Txn,
    ) {
        let Some(row) = iface.uuid.and_then(|u| self.db.row("Interface", u)) else {
            return;
        };
        let status = &iface.status;
        let speed = (status.speed_bps != 0).then(|| int(status.speed_bps));
        let duplex = speed.map(|_| {
            if status.full_duplex.unwrap_or(false) {
                "full"
            } else {
                "half"
            }
        });
        let error = self
            .patch_error(bridge, iface)
            .or_else(|| status.error.clone())
            .or_else(|| iface.mtu_refused.clone())
            .or_else(|| iface.qos_refused.clone())
            .or_else(|| iface.pair_fault.clone());
        let session = self.switch.ofproto.monitor().status(&iface.name);
        let known = status.extra.iter().filter(|(_, v)| !v.is_empty()).cloned();
        let known = known.chain(bridge.pair_status(&iface.name));
        let mut columns = Columns::new()
            .with("ofport", i64::from(iface.no.0 & 0xffff))
            .with("error", Datum::optional(error))
            .with("admin_state", up_down(status.admin_up))
            .with("link_state", up_down(status.link_up))
            .with("link_resets", int(status.link_resets))
            .with("link_speed", Datum::optional(speed))
            .with("duplex", Datum::optional(duplex))
            .with("mtu", Datum::optional((status.mtu != 0).then_some(status.mtu)))
            .with("mac_in_use", mac_text(status.mac))
            .with("ifindex", status.ifindex)
            .with("status", Datum::map(known))
            .with("bfd_status", Datum::map(session.into_iter().flatten()))
            .with(
                "lacp_current",
                Datum::optional(iface.lacp_current(&self.switch.ofproto)),
            );
        if all || row.datum("statistics").is_ok_and(Datum::is_empty) {
            columns.set("statistics", self.statistics(bridge, iface));
        }
        report(txn.update_changed(row, &columns));
    }

    fn statistics(&self, bridge: &BridgeReconciler, iface: &Iface) -> Datum {
        match &iface.body {
            Body::Device(device, no) => {
                let stats = self.switch.datapath.port_stats(*no).unwrap_or_default();
                let common = counters(&stats, &iface.status).map(|(name, n)| (name.to_owned(), n));
                let own = device.device_counters().map(device_keys).into_iter().flatten();
                let own = own.map(|(name, n)| (name.to_owned(), n));
                let mut all: BTreeMap<String, u64> =
                    common.into_iter().chain(own).chain(device.statistics()).collect();
                for (reason, n) in &stats.rx_reasons {
                    *all.entry(rx_reason_key(reason)).or_default() += n;
                }
                Datum::map(all.into_iter().map(|(name, n)| (name, int(n))))
            }
            Body::Patch(_) | Body::Tunnel(_) => {
                let ((rx, rx_bytes), (tx, tx_bytes)) =
                    bridge.bridge.patch_stats(iface.no).unwrap_or_default();
                let all = [
                    ("rx_packets", rx),
                    ("rx_bytes", rx_bytes),
                    ("tx_packets", tx),
                    ("tx_bytes", tx_bytes),
                ];
                Datum::map(all.map(|(name, n)| (name, int(n))))
            }
        }
    }

    /// The error of a patch port whose peer is missing, or has another peer.
    fn patch_error(&self, bridge: &BridgeReconciler, iface: &Iface) -> Option<String> {
        let Body::Patch(peer) = &iface.body else {
            return None;
        };
        let other = self.bridges.values().find_map(|b| b.ifaces.get(peer));
        let paired = matches!(other.map(|o| &o.body), Some(Body::Patch(back)) if *back == iface.name);
        let datapath = &bridge.row.datapath_type;
        (!paired).then(|| format!("No usable peer '{peer}' exists in '{datapath}' datapath."))
    }
}

pub(super) fn describe_failure(db: &Db, failure: &Failure, txn: &mut Txn) {
    let Some(row) = db.row("Interface", failure.uuid) else {
        return;
    };
    let mut columns = Columns::new()
        .with("ofport", -1_i64)
        .with("error", Datum::optional(failure.error.text.as_deref()));
    for column in STATE {
        columns.set(column, Datum::empty());
    }
    report(txn.update_changed(row, &columns));
}

/// The key of a receive queue's own reason to drop: Open vSwitch's where it has one, else `rx_` and the name.
fn rx_reason_key(reason: &str) -> String {
    match reason {
        POLICED => "ovs_rx_qos_drops".to_owned(),
        other => format!("rx_{}", other.replace('-', "_")),
    }
}

/// Counters that a device's driver keeps, as (name in the database, count).
fn device_keys(counters: DeviceCounters) -> [(&'static str, u64); 6] {
    [
        ("collisions", counters.collisions),
        ("rx_crc_err", counters.rx_crc_errors),
        ("rx_frame_err", counters.rx_frame_errors),
        ("rx_missed_errors", counters.rx_missed_errors),
        ("rx_multicast_packets", counters.rx_multicast),
        ("rx_over_err", counters.rx_over_errors),
    ]
}

/// Counters of an interface, as (name in the database, count).
fn counters(stats: &PortStats, status: &PortStatus) -> [(&'static str, u64); 8] {
    [
        ("rx_packets", stats.rx_packets),
        ("tx_packets", stats.tx_packets),
        ("rx_bytes", stats.rx_bytes),
        ("tx_bytes", stats.tx_bytes),
        ("rx_dropped", stats.rx_dropped + status.rx_dropped),
        ("tx_dropped", stats.tx_dropped),
        ("rx_errors", stats.rx_errors),
        ("tx_errors", stats.tx_errors),
    ]
}
