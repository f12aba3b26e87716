//! Hardware addresses: their text, and the choice of a bridge's address.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::desired::BridgeRow;
use super::state::Iface;

/// Reads `00:11:22:33:44:55`.
pub(crate) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next()?;
        if part.len() > 2 {
            return None;
        }
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// Writes `00:11:22:33:44:55`.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    let mut text = String::new();
    for (i, byte) in mac.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{byte:02x}", if i == 0 { "" } else { ":" });
    }
    text
}

/// A random address that no card has.
pub(super) fn random_mac() -> [u8; 6] {
    let random = heddle_ovsdb::Uuid::new_v4();
    let b = random.as_bytes();
    [b[0] & !1 | 2, b[1], b[2], b[3], b[4], b[5]]
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
