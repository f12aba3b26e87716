//! Rows of `Port` and `Interface`.

use heddle_datapath_api::{MeterAction, MeterBand, MeterConfig};
use heddle_ofproto::bond::BondConfig;
use heddle_ofproto::bridge::PortBundleConfig;
use heddle_ofproto::model::{PriorityTags, VlanMode};
use heddle_ofproto::snooping::PortSnooping;
use heddle_openflow::Port as OfPort;
use heddle_ovsdb::{Db, Row, Uuid};
use heddle_port::QosConfig;

use super::bridge::vlans;
use super::{Smap, bond, opt_text, text, value};
use crate::reconcile::mac::parse_mac;

/// Keys of `Interface.status`: the standby of an interface, and the active device of the two.
pub(in crate::reconcile) const STATUS_STANDBY: &str = "heddle-standby";
pub(in crate::reconcile) const STATUS_ACTIVE: &str = "heddle-active";

/// The guest of an interface, as an orchestrator has written it into `external_ids`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::reconcile) struct GuestIds {
    /// Logical port (`iface-id`).
    pub(in crate::reconcile) port: Option<String>,
    /// The guest's address (`attached-mac`).
    pub(in crate::reconcile) mac: Option<[u8; 6]>,
    /// The text of `attached-mac`, if no guest can have that address.
    pub(in crate::reconcile) bad_mac: Option<String>,
}

impl GuestIds {
    pub(in crate::reconcile) fn read(row: &Row) -> GuestIds {
        let mut ids = value(row.map_str("external_ids"));
        let text = ids.remove("attached-mac");
        let mac = text.as_deref().and_then(parse_mac);
        let mac = mac.filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
        GuestIds {
            port: ids.remove("iface-id"),
            mac,
            bad_mac: text.filter(|_| mac.is_none()),
        }
    }
}

/// A port: one interface, or several in a bond.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::reconcile) struct PortRow {
    /// `None`: there is no row; the switch itself needs the port.
    pub(in crate::reconcile) uuid: Option<Uuid>,
    pub(in crate::reconcile) name: String,
    pub(in crate::reconcile) interfaces: Vec<InterfaceRow>,
    pub(in crate::reconcile) bundle: PortBundleConfig,
    /// The bond that the interfaces are, and their LACP.
    pub(in crate::reconcile) bond: Option<BondConfig>,
    /// The address that the port lends to the bridge, in place of its interface's.
    pub(in crate::reconcile) mac: Option<[u8; 6]>,
    /// Limits of the port's output.
    pub(in crate::reconcile) qos: Option<QosConfig>,
    /// The port represents a VLAN bridge of XenServer's.
    pub(in crate::reconcile) fake_bridge: bool,
    /// `bond_fake_iface`: an internal device stands for the bond.
    pub(super) fake_iface: bool,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reconcile) struct InterfaceRow {
    /// `None`: there is no row.
    pub(in crate::reconcile) uuid: Option<Uuid>,
    pub(in crate::reconcile) name: String,
    /// `type`, `system` where it is empty.
    pub(in crate::reconcile) kind: String,
    pub(in crate::reconcile) options: Smap,
    pub(in crate::reconcile) other_config: Smap,
    /// Settings of a BFD session.
    pub(in crate::reconcile) bfd: Smap,
    /// The number that the user wants.
    pub(in crate::reconcile) ofport_request: Option<OfPort>,
    /// The number that it had, perhaps before this process started.
    pub(in crate::reconcile) ofport: Option<OfPort>,
    pub(in crate::reconcile) mac: Option<[u8; 6]>,
    pub(in crate::reconcile) mtu_request: Option<u32>,
    pub(in crate::reconcile) guest: GuestIds,
    /// The status of a pair, perhaps before this process started: its standby, and its active device.
    pub(in crate::reconcile) pair_before: (Option<String>, Option<String>),
    /// Limits of the interface's input.
    pub(in crate::reconcile) policing: Vec<MeterConfig>,
}

impl PortRow {
    /// `floods_vlans`: the bridge has VLANs that flood.
    pub(super) fn read(db: &Db, row: &Row, floods_vlans: bool) -> PortRow {
        let name = text(row, "name");
        let interfaces: Vec<InterfaceRow> = db
            .referenced(row, "interfaces", "Interface")
            .into_iter()
            .map(|i| InterfaceRow::read(i))
            .collect();
        PortRow {
            uuid: Some(row.uuid()),
            bond: bond::read(row, &name, interfaces.len(), floods_vlans),
            interfaces,
            bundle: PortBundleConfig {
                queue_dscp: queue_dscp(db, row),
                ..bundle(row, &name)
            },
            mac: opt_text(row, "mac").as_deref().and_then(parse_mac),
            fake_bridge: value(row.bool("fake_bridge")),
            fake_iface: value(row.bool("bond_fake_iface")),
            qos: qos(db, row),
            name,
        }
    }

    /// The local port of a bridge whose row has none.
    pub(in crate::reconcile) fn synthetic(name: &str) -> PortRow {
        let interface = InterfaceRow {
            uuid: None,
            name: name.to_owned(),
            kind: "internal".into(),
            options: Smap::default(),
            other_config: Smap::default(),
            bfd: Smap::default(),
            ofport_request: None,
            ofport: None,
            mac: None,
            policing: Vec::new(),
            mtu_request: None,
            guest: GuestIds::default(),
            pair_before: (None, None),
        };
        PortRow {
            uuid: None,
            name: name.to_owned(),
            interfaces: vec![interface],
            bundle: PortBundleConfig {
                name: name.to_owned(),
                ..PortBundleConfig::default()
            },
            bond: None,
            mac: None,
            qos: None,
            fake_bridge: false,
            fake_iface: false,
        }
    }

    /// The internal device with the bond's name. The device is in no bundle, so NORMAL never uses it. `None`:
    /// none is wanted.
    pub(super) fn device_of_bond(&self) -> Option<PortRow> {
        let has_name = self.interfaces.iter().any(|i| i.name == self.name);
        let wanted = self.fake_iface && self.interfaces.len() > 1 && !has_name;
        wanted.then(|| PortRow {
            name: NO_PORT.to_owned(),
            ..Self::synthetic(&self.name)
        })
    }
}

/// Name of the port of an interface that is in no port: no row has it.
const NO_PORT: &str = "";

fn bundle(row: &Row, name: &str) -> PortBundleConfig {
    let tag = value(row.opt_int("tag"))
        .and_then(|t| u16::try_from(t).ok())
        .filter(|t| *t < 4096);
    let trunks = vlans(&value(row.ints("trunks")));
    let cvlans = vlans(&value(row.ints("cvlans")));
    let other_config = Smap(value(row.map_str("other_config")));
    let vlan_mode = match opt_text(row, "vlan_mode").as_deref() {
        Some("access") => VlanMode::Access,
        Some("trunk") => VlanMode::Trunk,
        Some("native-tagged") => VlanMode::NativeTagged,
        Some("native-untagged") => VlanMode::NativeUntagged,
        Some("dot1q-tunnel") => VlanMode::Dot1qTunnel,
        Some(other) => {
            log::warn!(target: "bridge", "port {name}: unknown VLAN mode {other}, falling back to trunk mode");
            VlanMode::Trunk
        }
        None if tag.is_some() => {
            if !trunks.is_empty() || !cvlans.is_empty() {
                log::warn!(target: "bridge", "port {name}: ignoring trunks in favor of implicit vlan");
            }
            VlanMode::Access
        }
        None => VlanMode::Trunk,
    };
    PortBundleConfig {
        name: name.to_owned(),
        vlan_mode,
        tag,
        trunks,
        cvlans,
        qinq_ethtype: if other_config.get("qinq-ethtype") == Some("802.1q") {
            0x8100
        } else {
            0x88a8
        },
        priority_tags: match other_config.get("priority-tags") {
            Some("if-nonzero" | "true") => PriorityTags::IfNonzero,
            Some("always") => PriorityTags::Always,
            _ => PriorityTags::Never,
        },
        protected: value(row.bool("protected")),
        queue_dscp: Vec::new(),
        bond: None,
        snooping: PortSnooping {
            flood: other_config.bool("mcast-snooping-flood", false),
            flood_reports: other_config.bool("mcast-snooping-flood-reports", false),
        },
    }
}

/// Limits of the port's output, and its queues.
fn qos(db: &Db, row: &Row) -> Option<QosConfig> {
    let qos = db.referenced(row, "qos", "QoS").into_iter().next()?;
    let details = |row: &Row| value(row.map_str("other_config"));
    let queues = value(qos.map_int_uuid("queues")).into_iter();
    let queues = queues.filter_map(|(id, uuid)| {
        let queue = db.row("Queue", uuid)?;
        Some((u32::try_from(id).ok()?, details(queue)))
    });
    Some(QosConfig {
        kind: text(qos, "type"),
        details: details(qos),
        queues: queues.collect(),
    })
    .filter(|q| !q.kind.is_empty())
}

/// The DSCP that each queue of a port's QoS writes into packets.
fn queue_dscp(db: &Db, row: &Row) -> Vec<(u32, u8)> {
    let qos = db.referenced(row, "qos", "QoS").into_iter();
    let queues = qos
        .filter(|q| !text(q, "type").is_empty())
        .flat_map(|q| value(q.map_int_uuid("queues")));
    let dscp = |(id, uuid)| {
        let dscp = value(db.row("Queue", uuid)?.opt_int("dscp"))?;
        Some((
            u32::try_from(id).ok()?,
            u8::try_from(dscp).ok().filter(|d| *d < 64)?,
        ))
    };
    queues.filter_map(dscp).collect()
}

impl InterfaceRow {
    fn read(row: &Row) -> InterfaceRow {
        InterfaceRow {
            uuid: Some(row.uuid()),
            name: text(row, "name"),
            kind: Some(text(row, "type"))
                .filter(|t| !t.is_empty())
                .unwrap_or("system".into()),
            options: Smap(value(row.map_str("options"))),
            other_config: Smap(value(row.map_str("other_config"))),
            bfd: Smap(value(row.map_str("bfd"))),
            ofport_request: value(row.opt_int("ofport_request")).and_then(ordinary),
            ofport: value(row.opt_int("ofport")).and_then(ordinary),
            mac: opt_text(row, "mac").as_deref().and_then(parse_mac),
            policing: policing(row),
            mtu_request: value(row.opt_int("mtu_request")).map(|m| u32::try_from(m).unwrap_or(u32::MAX)),
            guest: GuestIds::read(row),
            pair_before: {
                let mut status = value(row.map_str("status"));
                (status.remove(STATUS_STANDBY), status.remove(STATUS_ACTIVE))
            },
        }
    }
}

/// Default burst of a rate, as in Open vSwitch: kilobits, and thousands of packets.
const POLICING_BURST_KBIT: u32 = 8000;
const POLICING_BURST_KPKTS: u32 = 16;
/// A bucket must have room for one GSO packet, or none would ever pass: kilobits.
const GSO_KBIT: u32 = 525;

/// Limits of an interface's input.
fn policing(row: &Row) -> Vec<MeterConfig> {
    let number = |column| u32::try_from(value(row.int(column))).unwrap_or(0);
    let (kbit, kpkts) = (
        number("ingress_policing_rate"),
        number("ingress_policing_kpkts_rate"),
    );
    let kbit = (kbit > 0).then(|| kbit_limit(kbit, number("ingress_policing_burst")));
    let kpkts = (kpkts > 0).then(|| kpkts_limit(kpkts, number("ingress_policing_kpkts_burst")));
    kbit.into_iter().chain(kpkts).collect()
}

fn kbit_limit(rate: u32, burst: u32) -> MeterConfig {
    let burst = if burst == 0 { POLICING_BURST_KBIT } else { burst };
    limit(false, rate, burst.max(GSO_KBIT))
}

fn kpkts_limit(rate: u32, burst: u32) -> MeterConfig {
    let burst = if burst == 0 { POLICING_BURST_KPKTS } else { burst };
    limit(true, rate.saturating_mul(1000), burst.saturating_mul(1000))
}

/// A limit that drops. A bucket gets tokens once a millisecond, so one that cannot keep those of two would
/// limit the rate further.
fn limit(packets: bool, rate: u32, burst: u32) -> MeterConfig {
    let burst = burst.max(rate.div_ceil(500));
    MeterConfig {
        packets,
        bands: vec![MeterBand {
            action: MeterAction::Drop,
            rate,
            burst,
        }],
    }
}

/// A number that an ordinary port can have.
fn ordinary(number: i64) -> Option<OfPort> {
    u32::try_from(number)
        .ok()
        .filter(|n| (1..=OfPort::MAX.0).contains(n))
        .map(OfPort)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_never_limits_the_rate() {
        let burst = |limit: MeterConfig| limit.bands[0].burst;
        assert_eq!(burst(kbit_limit(10_000, 1000)), 1000);
        assert_eq!(burst(kbit_limit(10_000, 1)), GSO_KBIT);
        assert_eq!(burst(kbit_limit(10_000, 0)), 8000);
        assert_eq!(burst(kbit_limit(25_000_000, 0)), 50_000);
        assert_eq!(burst(kpkts_limit(10, 1)), 1000);
        assert_eq!(burst(kpkts_limit(2000, 1)), 4000);
    }
}
