//! Bridges and internal ports get their hardware addresses.

use std::collections::BTreeMap;

use super::{BridgeReconciler, Iface};
use crate::reconcile::desired::BridgeRow;
use crate::reconcile::{mac_text, parse_mac};

impl BridgeReconciler {
    /// Gives bridges and internal ports their addresses.
    pub(super) fn set_addresses(&mut self) {
        let own = bridge_mac(&self.row, &self.ifaces);
        self.mac = own;
        let mut wanted: BTreeMap<String, [u8; 6]> = BTreeMap::new();
        for iface in self.ifaces.values() {
            let Some((port, row)) = self.row.interface(&iface.name) else {
                continue;
            };
            let address = match row.mac {
                None if port.fake_bridge => lent_mac(&self.row, &self.ifaces, port.bundle.tag),
                address => address,
            };
            match address {
                _ if iface.is_local() => {
                    if address.is_some() {
                        log::error!(
                            target: "bridge",
                            "interface {}: ignoring mac in Interface record (use Bridge record to set local port's mac)",
                            iface.name
                        );
                    }
                    wanted.insert(iface.name.clone(), own);
                }
                Some(mac) if iface.kind.takes_mac => match mac {
                    [0, 0, 0, 0, 0, 0] => {
                        log::error!(target: "bridge", "interface {}: cannot set MAC to all zero address", iface.name);
                    }
                    [first, ..] if first & 1 != 0 => {
                        log::error!(target: "bridge", "interface {}: cannot set MAC to multicast address", iface.name);
                    }
                    mac => drop(wanted.insert(iface.name.clone(), mac)),
                },
                _ => {}
            }
        }
        for (name, address) in wanted {
            let Some(iface) = self.ifaces.get_mut(&name).filter(|i| i.status.mac != address) else {
                continue;
            };
            let done = match iface.device() {
                Some((device, _)) => device.set_mac(address),
                None => Ok(()),
            };
            match done {
                Ok(()) => iface.status.mac = address,
                Err(error) => log::error!(target: "bridge", "interface {name}: setting MAC failed ({error})"),
            }
        }
    }
}

fn is_multicast(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Whether a port may lend this address to its bridge: only a manufacturer's address, which is unique and
/// stable.
fn is_lendable(mac: [u8; 6]) -> bool {
    /// Extreme's discovery and ring protocols send to these, though they are unicast.
    const RESERVED: [[u8; 6]; 3] = [
        [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x00],
        [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x04],
        [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x06],
    ];
    mac[0] & 3 == 0 && mac != [0; 6] && !RESERVED.contains(&mac)
}

/// The address of a bridge: as configured, else the lowest that a port lends, else the bridge's own.
pub(super) fn bridge_mac(row: &BridgeRow, ifaces: &BTreeMap<String, Iface>) -> [u8; 6] {
    if let Some(mac) = row.other_config.get("hwaddr").and_then(parse_mac) {
        if is_multicast(mac) {
            let text = mac_text(mac);
            log::error!(target: "bridge", "bridge {}: cannot set MAC address to multicast address {text}", row.name);
        } else if mac == [0; 6] {
            log::error!(target: "bridge", "bridge {}: cannot set MAC address to zero", row.name);
        } else {
            return mac;
        }
    }
    lent_mac(row, ifaces, None).unwrap_or_else(|| row.default_mac())
}

/// The lowest address that a port lends; with `tag`, only of ports with that tag.
pub(super) fn lent_mac(
    row: &BridgeRow,
    ifaces: &BTreeMap<String, Iface>,
    tag: Option<u16>,
) -> Option<[u8; 6]> {
    let ports = row
        .ports
        .values()
        .filter(|p| p.uuid.is_none_or(|u| !row.mirror_outputs.contains(&u)));
    let lent = ports.filter_map(|port| {
        if let Some(mac) = port.mac {
            return Some(mac);
        }
        // The first of several interfaces by name gives the port's address.
        let names = port.interfaces.iter().map(|i| i.name.as_str());
        let iface = names
            .filter_map(|n| ifaces.get(n))
            .min_by(|a, b| a.name.cmp(&b.name))?;
        let fits = tag.is_none_or(|t| port.bundle.tag == Some(t));
        (!iface.is_local() && fits).then_some(iface.status.mac)
    });
    lent.filter(|mac| is_lendable(*mac)).min()
}

/// The datapath id: as configured, else made of the bridge's address.
pub(super) fn datapath_id(row: &BridgeRow, mac: [u8; 6]) -> u64 {
    let configured = row.other_config.get("datapath-id").and_then(|text| {
        let digits = match text.strip_prefix("0x") {
            Some(rest) if rest.len() <= 16 => rest,
            None if text.len() == 16 => text,
            _ => return None,
        };
        u64::from_str_radix(digits, 16).ok().filter(|id| *id != 0)
    });
    configured.unwrap_or_else(|| mac.iter().fold(0, |id, byte| id << 8 | u64::from(*byte)))
}
