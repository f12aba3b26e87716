//! Selects the connections that belong to a port.
//!
//! * All connections of the zone with the name of the logical port belong to the port.
//! * Ports share a router's zones (`..._snat`, `..._dnat`), and zones that the operator names. Their
//!   connections with an address of the port belong to the port; all others stay.
//! * No connection of another zone belongs to the port.
//!
//! Addresses come from the operator or the orchestrator. An address that a guest announces is ignored: with
//! another tenant's address, the guest would get that tenant's connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use heddle_conntrack::scan::Seen;

use super::PortIdentity;

/// Suffixes of the names of routers' zones.
const ROUTER: [&str; 2] = ["_snat", "_dnat"];

fn is_router(zone: &str) -> bool {
    ROUTER.iter().any(|end| zone.ends_with(end))
}

/// Zones and addresses of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtraZones {
    /// Zones that ports share: names, or names with numbers (`acl=5`).
    pub(crate) zones: Vec<String>,
    /// Addresses of the guest.
    pub(crate) addresses: Vec<IpAddr>,
}

/// A zone with connections of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedZone {
    pub(crate) name: String,
    pub(crate) zone: u16,
    /// All connections belong to the port, not only those with its addresses.
    pub(crate) whole: bool,
}

/// Zones and addresses that select the connections of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) port: String,
    pub(crate) interface: String,
    pub(crate) bridge: String,
    /// Zones, no two with the same number.
    pub(crate) zones: Vec<MovedZone>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Zones that were left out, and why.
    pub(crate) notes: Vec<String>,
}

impl Selection {
    /// The selection of a port, with the additions of the command line.
    pub(crate) fn new(id: &PortIdentity, extra: &ExtraZones) -> Result<Self, String> {
        let mut selection = Selection {
            port: id.port.clone(),
            interface: id.interface.clone(),
            bridge: id.bridge.clone(),
            addresses: id.addresses.iter().chain(&extra.addresses).copied().collect(),
            ..Selection::default()
        };
        if let Some(zone) = id.zones.get(&id.port) {
            // Two names of one number: the zone is shared.
            let names = id.zones.values().filter(|z| *z == zone).count();
            let whole = names == 1 && !id.numbers_elsewhere.contains(zone);
            selection.add(&id.port, *zone, whole);
        }
        for text in &extra.zones {
            let (name, zone) = chosen(text, id)?;
            selection.add(name, zone, false);
        }
        for (name, zone) in &id.zones {
            // A port's name may end like a router's zone.
            if name != &id.port && is_router(name) && !id.logical_ports.contains(name) {
                selection.add(name, *zone, false);
            }
        }
        if selection.zones.is_empty() && selection.notes.is_empty() {
            selection.notes.push(format!(
                "bridge {} has no external_ids:ct-zone-{}, and no --zone was given",
                id.bridge, id.port
            ));
        }
        Ok(selection)
    }

    fn add(&mut self, name: &str, zone: u16, whole: bool) {
        if self.zones.iter().any(|z| z.zone == zone) {
            return;
        }
        if !whole && self.addresses.is_empty() {
            self.notes.push(format!(
                "zone {name} is shared, and no address of the port is known: give --address"
            ));
            return;
        }
        self.zones.push(MovedZone {
            name: name.to_owned(),
            zone,
            whole,
        });
    }

    /// The first zone whose number has another name by now, or that has another number, as a text.
    pub(crate) fn differs(&self, now: &BTreeMap<String, u16>) -> Option<String> {
        self.zones.iter().find_map(|z| {
            let moved = now.get(&z.name).is_some_and(|number| *number != z.zone);
            let taken = z.whole
                && now
                    .iter()
                    .any(|(name, number)| *number == z.zone && *name != z.name);
            (moved || taken).then(|| format!("zone {} has changed its number {}", z.name, z.zone))
        })
    }

    /// Addresses in the form of tuples: whether IPv6, and bits.
    pub(super) fn bits(&self) -> Vec<(bool, u128)> {
        let each = self.addresses.iter();
        each.map(|a| (a.is_ipv6(), heddle_conntrack::bits(*a))).collect()
    }

    /// Index of a connection's zone in [`Self::zones`]; `None`: the connection does not belong to the port.
    pub(super) fn position(&self, seen: &Seen<'_>, addresses: &[(bool, u128)]) -> Option<u16> {
        let at = self.zones.iter().position(|z| z.zone == seen.zone())?;
        let all = self.zones.get(at).is_some_and(|z| z.whole);
        let own = || {
            addresses
                .iter()
                .any(|(ipv6, addr)| seen.has_address(*ipv6, *addr))
        };
        (all || own()).then(|| u16::try_from(at).ok()).flatten()
    }

    /// The zone of this node for a zone of a file, or the reason why there is none.
    pub(crate) fn map(&self, name: &str, id: &PortIdentity) -> Result<MovedZone, String> {
        if let Some(zone) = self.zones.iter().find(|z| z.name == name) {
            return Ok(zone.clone());
        }
        // Two zones of the source may have one number here.
        let number = id.zones.get(name);
        let same = self.zones.iter().find(|z| Some(&z.zone) == number);
        Err(match (number, same) {
            (None, _) => format!("zone {name} is not known here"),
            (Some(_), Some(zone)) => format!("zone {name} is zone {} here", zone.name),
            (Some(_), None) if is_router(name) => {
                format!("zone {name} is shared, and no address of the port is known")
            }
            (Some(_), None) => format!("zone {name} is another port's"),
        })
    }
}

/// Name and number of a zone of `--zone`.
fn chosen<'a>(text: &'a str, id: &PortIdentity) -> Result<(&'a str, u16), String> {
    if let Some((name, number)) = text.rsplit_once('=') {
        let zone = number
            .parse()
            .map_err(|_| format!("--zone {text}: expected NAME or NAME=NUMBER"))?;
        return Ok((name, zone));
    }
    match id.zones.get(text) {
        Some(zone) => Ok((text, *zone)),
        None => Err(format!(
            "--zone {text}: bridge {} has no external_ids:ct-zone-{text}; name its number, as --zone {text}=NUMBER",
            id.bridge
        )),
    }
}
