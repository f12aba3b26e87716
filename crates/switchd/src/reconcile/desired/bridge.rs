//! One row of `Bridge`.

use std::collections::{BTreeMap, BTreeSet};

use heddle_flow::field::{FieldId, Subfield};
use heddle_ofproto::bridge::{BridgeConfig, FailMode, MAX_TRACKED, MirrorConfig, PrefixField, TableConfig};
use heddle_ofproto::sampling::IpfixConfig;
use heddle_ofproto::snooping::SnoopingConfig;
use heddle_openflow::Version;
use heddle_ovsdb::{Db, Row, Uuid};

use super::{ControllerRow, InterfaceRow, PortRow, Smap, opt_text, text, value};
use crate::cli::Options;
use crate::reconcile::kinds::{Kind, Unknown, interface_kind};

/// A bridge.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::reconcile) struct BridgeRow {
    pub(in crate::reconcile) uuid: Uuid,
    pub(in crate::reconcile) name: String,
    /// `datapath_type`, `system` where it is empty.
    pub(in crate::reconcile) datapath_type: String,
    /// Ports by name; the local port is among them, if there is to be one.
    pub(in crate::reconcile) ports: BTreeMap<String, PortRow>,
    /// Devices that stand for bonds: see [`PortRow::device_of_bond`].
    pub(in crate::reconcile) devices_of_bonds: Vec<PortRow>,
    pub(in crate::reconcile) controllers: Vec<ControllerRow>,
    pub(in crate::reconcile) fail_mode: FailMode,
    pub(in crate::reconcile) versions: Vec<Version>,
    pub(in crate::reconcile) flood_vlans: Vec<u16>,
    pub(in crate::reconcile) other_config: Smap,
    /// `mcast_snooping_enable`.
    pub(in crate::reconcile) snoops_multicast: bool,
    pub(in crate::reconcile) tables: BTreeMap<u8, TableConfig>,
    /// Ports that mirrors send to: their addresses are not the bridge's.
    pub(in crate::reconcile) mirror_outputs: BTreeSet<Uuid>,
    pub(in crate::reconcile) mirrors: Vec<MirrorConfig>,
    pub(in crate::reconcile) ipfix: IpfixConfig,
}

impl BridgeRow {
    pub(super) fn read(db: &Db, row: &Row) -> BridgeRow {
        let name = text(row, "name");
        let mut ports = BTreeMap::new();
        let floods_vlans = !value(row.ints("flood_vlans")).is_empty();
        for port in db.referenced(row, "ports", "Port") {
            let port = PortRow::read(db, port, floods_vlans);
            if ports.contains_key(&port.name) {
                log::warn!(target: "bridge", "bridge {name}: {} specified twice as bridge port", port.name);
            } else {
                ports.insert(port.name.clone(), port);
            }
        }
        let mut controllers: Vec<ControllerRow> = db
            .referenced(row, "controller", "Controller")
            .into_iter()
            .map(|c| ControllerRow::read(c))
            .collect();
        if matches!(controllers.as_slice(), [only] if only.target == "none") {
            controllers.clear();
        }
        if !controllers.is_empty() && !ports.contains_key(&name) {
            log::warn!(target: "bridge", "bridge {name}: no port named {name}, synthesizing one");
            ports.insert(name.clone(), PortRow::synthetic(&name));
        }
        let mirrors = db.referenced(row, "mirrors", "Mirror");
        BridgeRow {
            uuid: row.uuid(),
            datapath_type: Some(text(row, "datapath_type"))
                .filter(|t| !t.is_empty())
                .unwrap_or("system".into()),
            controllers,
            fail_mode: match opt_text(row, "fail_mode").as_deref() {
                None | Some("standalone") => FailMode::Standalone,
                Some(_) => FailMode::Secure,
            },
            versions: versions(value(row.strs("protocols"))),
            flood_vlans: vlans(&value(row.ints("flood_vlans"))),
            other_config: Smap(value(row.map_str("other_config"))),
            snoops_multicast: value(row.bool("mcast_snooping_enable")),
            tables: tables(db, row, &name),
            mirror_outputs: mirrors
                .iter()
                .filter_map(|m| value(m.opt_uuid("output_port")))
                .collect(),
            mirrors: mirrors
                .iter()
                .filter_map(|m| super::mirror::read(db, m, &name, &ports))
                .collect(),
            ipfix: super::ipfix::read(db, row),
            devices_of_bonds: ports.values().filter_map(PortRow::device_of_bond).collect(),
            ports,
            name,
        }
    }

    /// The address of a bridge while no port lends it one: made from the row's UUID, so that it is stable.
    pub(in crate::reconcile) fn default_mac(&self) -> [u8; 6] {
        let b = self.uuid.as_bytes();
        // Open vSwitch's layout of a UUID in memory: words of 32 bits, little-endian. Locally administered,
        // unicast.
        [b[3] & !1 | 2, b[2], b[1], b[0], b[7], b[6]]
    }

    /// All interfaces, each with its port.
    pub(in crate::reconcile) fn interfaces(&self) -> impl Iterator<Item = (&PortRow, &InterfaceRow)> {
        let ports = self.ports.values().chain(&self.devices_of_bonds);
        ports.flat_map(|port| port.interfaces.iter().map(move |row| (port, row)))
    }

    /// The kind of one of the interfaces.
    pub(in crate::reconcile) fn kind_of(
        &self,
        row: &InterfaceRow,
        options: &Options,
    ) -> Result<Kind, Unknown> {
        // The bridge's own port is internal, whatever type the row has.
        let kind = match row.name == self.name {
            true => "internal",
            false => row.kind.as_str(),
        };
        interface_kind(options, &self.datapath_type, kind)
    }

    /// An interface of any of the ports.
    pub(in crate::reconcile) fn interface(&self, name: &str) -> Option<(&PortRow, &InterfaceRow)> {
        // Usually an interface has the name of its port.
        let ports = self.ports.get(name).into_iter().chain(self.ports.values());
        let mut ports = ports.chain(&self.devices_of_bonds);
        ports.find_map(|p| Some((p, p.interfaces.iter().find(|i| i.name == name)?)))
    }

    /// A number of `other_config`, with which 0 stands for the default.
    fn number_or(&self, key: &str, default: u64) -> u64 {
        match self.other_config.number(key, 0) {
            0 => default,
            n => n,
        }
    }

    /// The settings of multicast snooping.
    fn snooping(&self) -> SnoopingConfig {
        let defaults = SnoopingConfig::default();
        let size = self.number_or("mcast-snooping-table-size", defaults.max_groups as u64);
        SnoopingConfig {
            max_groups: usize::try_from(size).unwrap_or(usize::MAX),
            idle_s: self.number_or("mcast-snooping-aging-time", defaults.idle_s),
            flood_unregistered: !self
                .other_config
                .bool("mcast-snooping-disable-flood-unregistered", false),
        }
    }

    /// The configuration for OpenFlow. `vlan_limit` and `bundle_idle_s` are the whole switch's.
    pub(in crate::reconcile) fn config(
        &self,
        datapath_id: u64,
        vlan_limit: usize,
        bundle_idle_s: u64,
    ) -> BridgeConfig {
        let defaults = BridgeConfig::default();
        let number = |key, default| self.number_or(key, default);
        BridgeConfig {
            datapath_id,
            fail_mode: self.fail_mode,
            has_controllers: self.controllers.iter().any(ControllerRow::is_primary),
            versions: if self.versions.is_empty() {
                defaults.versions
            } else {
                self.versions.clone()
            },
            flood_vlans: self.flood_vlans.clone(),
            forward_bpdu: self.other_config.bool("forward-bpdu", false),
            mac_aging_s: number("mac-aging-time", defaults.mac_aging_s),
            mac_table_size: usize::try_from(number("mac-table-size", defaults.mac_table_size as u64))
                .unwrap_or(usize::MAX),
            snooping: self.snoops_multicast.then(|| self.snooping()),
            vlan_limit,
            bundle_idle_s,
            mirrors: self.mirrors.clone(),
            ipfix: self.ipfix.clone(),
            dp_desc: self.other_config.get("dp-desc").map(str::to_owned),
            dp_sn: self.other_config.get("dp-sn").map(str::to_owned),
        }
    }
}

fn versions(names: Vec<&str>) -> Vec<Version> {
    let mut versions: Vec<Version> = names.into_iter().filter_map(Version::by_name).collect();
    versions.sort_unstable();
    versions
}

/// VLAN ids; others are left out.
pub(super) fn vlans(ids: &[i64]) -> Vec<u16> {
    ids.iter()
        .filter_map(|id| u16::try_from(*id).ok())
        .filter(|id| *id < 4096)
        .collect()
}

fn tables(db: &Db, row: &Row, bridge: &str) -> BTreeMap<u8, TableConfig> {
    let mut tables = BTreeMap::new();
    for (number, uuid) in value(row.map_int_uuid("flow_tables")) {
        let (Ok(number), Some(row)) = (u8::try_from(number), db.row("Flow_Table", uuid)) else {
            log::warn!(target: "bridge", "bridge {bridge}: flow table {number} is not one of 0 to 254");
            continue;
        };
        let config = TableConfig {
            name: opt_text(row, "name").filter(|n| !n.is_empty()),
            flow_limit: value(row.opt_int("flow_limit")).and_then(|n| usize::try_from(n).ok()),
            evict: opt_text(row, "overflow_policy").as_deref() == Some("evict"),
            groups: groups(row, bridge, number),
            prefixes: prefixes(row, bridge),
        };
        tables.insert(number, config);
    }
    tables
}

/// Fields whose values form groups of flows for eviction; an empty list if one of them is bad.
fn groups(row: &Row, bridge: &str, number: u8) -> Vec<Subfield> {
    let texts = value(row.strs("groups"));
    let parsed: Result<Vec<Subfield>, String> = texts.into_iter().map(str::parse).collect();
    parsed.unwrap_or_else(|why| {
        log::warn!(target: "bridge", "bridge {bridge}: Flow_Table {number} 'groups' configured with invalid field ({why})");
        Vec::new()
    })
}

/// Fields whose prefixes are tracked, from `Flow_Table.prefixes`; `None`: the column has no sensible value.
fn prefixes(row: &Row, bridge: &str) -> Option<Vec<PrefixField>> {
    let mut fields = Vec::new();
    for name in value(row.strs("prefixes")) {
        if name == "none" {
            return Some(Vec::new());
        }
        let Some(id) = FieldId::by_name(name) else {
            log::warn!(target: "bridge", "bridge {bridge}: 'prefixes' with unknown field: {name}");
            continue;
        };
        match PrefixField::of(id) {
            None => {
                log::warn!(target: "bridge", "bridge {bridge}: 'prefixes' with incompatible field: {name}");
            }
            Some(_) if fields.len() >= MAX_TRACKED => {
                log::warn!(target: "bridge", "bridge {bridge}: 'prefixes' with too many fields, field not used: {name}");
            }
            Some(field) => fields.push(field),
        }
    }
    (!fields.is_empty()).then_some(fields)
}
