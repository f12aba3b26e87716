//! Hardware addresses: their text, and random ones.

use std::fmt::Write as _;

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
