//! A port with its zones and addresses, from the database.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use heddle_ovsdb::{Db, Row};

/// Key of `Interface.external_ids` with the name of the logical port.
const LOGICAL_PORT: &str = "iface-id";
/// Keys of `Interface.external_ids` with the guest's addresses: of OVN-Kubernetes and of Kube-OVN.
const ADDRESSES: [&str; 2] = ["ip_addresses", "ip"];
/// Prefix of the keys of `Bridge.external_ids` with the numbers of zones, as OVN writes them.
const ZONE: &str = "ct-zone-";

/// A port of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortIdentity {
    /// Name of the interface.
    pub(crate) interface: String,
    pub(crate) bridge: String,
    /// Logical port: `external_ids:iface-id`, or the interface's name.
    pub(crate) port: String,
    /// Zones of the bridge, by name.
    pub(crate) zones: BTreeMap<String, u16>,
    /// Addresses that the orchestrator wrote.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Numbers of zones of other bridges. All bridges have one connection tracker.
    pub(crate) numbers_elsewhere: BTreeSet<u16>,
    /// Names of all logical ports.
    pub(crate) logical_ports: BTreeSet<String>,
}

fn external_ids(row: &Row) -> BTreeMap<String, String> {
    row.map_str("external_ids").unwrap_or_default()
}

/// The name of an interface's logical port.
fn logical(name: &str, ids: &BTreeMap<String, String>) -> String {
    ids.get(LOGICAL_PORT).map_or(name, String::as_str).to_owned()
}

/// Addresses in the texts of [`ADDRESSES`], with or without prefix lengths.
fn addresses(ids: &BTreeMap<String, String>) -> BTreeSet<IpAddr> {
    let texts = ADDRESSES.iter().filter_map(|key| ids.get(*key));
    let each = texts.flat_map(|text| text.split([',', ' ', '"', '[', ']']));
    each.filter_map(|one| one.split('/').next()?.parse().ok())
        .collect()
}

fn zones(bridge: &Row) -> BTreeMap<String, u16> {
    let ids = external_ids(bridge).into_iter();
    ids.filter_map(|(key, value)| {
        let name = key.strip_prefix(ZONE).filter(|name| !name.is_empty())?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    })
    .collect()
}

/// Zones of a bridge, by name; empty if there is no such bridge.
pub(crate) fn zones_of(db: &Db, bridge: &str) -> BTreeMap<String, u16> {
    let mut rows = db.rows("Bridge");
    let found = rows.find(|row| row.str("name").is_ok_and(|name| name == bridge));
    found.map(|row| zones(row)).unwrap_or_default()
}

impl PortIdentity {
    /// Finds the port with this name of an interface or of a logical port. An interface's name has
    /// precedence.
    pub(crate) fn find(db: &Db, name: &str) -> Result<Self, String> {
        let mut id = Self::named(db, name)?;
        let others = db
            .rows("Bridge")
            .filter(|row| row.str("name").is_ok_and(|name| name != id.bridge));
        id.numbers_elsewhere = others.flat_map(|row| zones(row).into_values()).collect();
        let ports = db.rows("Interface");
        id.logical_ports = ports
            .map(|row| logical(row.str("name").unwrap_or_default(), &external_ids(row)))
            .collect();
        Ok(id)
    }

    fn named(db: &Db, name: &str) -> Result<Self, String> {
        let mut found: Option<Self> = None;
        for bridge in db.rows("Bridge") {
            let bridge_name = bridge.str("name").unwrap_or_default();
            for port in db.referenced(bridge, "ports", "Port") {
                for row in db.referenced(port, "interfaces", "Interface") {
                    let (interface, ids) = (row.str("name").unwrap_or_default(), external_ids(row));
                    let port = logical(interface, &ids);
                    let exact = interface == name;
                    if !exact && port != name {
                        continue;
                    }
                    let here = Self {
                        interface: interface.to_owned(),
                        bridge: bridge_name.to_owned(),
                        port,
                        zones: zones(bridge),
                        addresses: addresses(&ids),
                        ..Self::default()
                    };
                    if exact {
                        return Ok(here);
                    }
                    if let Some(other) = found.as_ref().filter(|f| f.bridge != here.bridge) {
                        return Err(format!(
                            "interfaces {} of bridge {} and {} of bridge {} are both of port {name}: name one of them",
                            other.interface, other.bridge, here.interface, here.bridge
                        ));
                    }
                    found.get_or_insert(here);
                }
            }
        }
        found.ok_or_else(|| {
            format!("no port '{name}': expected the name of an interface, or its external_ids:{LOGICAL_PORT}")
        })
    }
}
