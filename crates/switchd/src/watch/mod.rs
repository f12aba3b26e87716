//! Packets that operators look at: examples of dropped ones (`heddle drops`) and captures (`heddle capture`).
//!
//! Workers give examples, a few of each reason and port a second ([`heddle_datapath::DropExample`]). The last
//! one of each reason and port is kept here, and explained on request: a trace of the packet shows which rule
//! decided. A capture lives as long as its client reads it.

pub(crate) mod capture;
pub(crate) mod drops;

#[cfg(test)]
mod tests;

use heddle_datapath::DropExample;
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};

/// Maximum number of VLAN tags that are shown of a packet.
const VLANS: u8 = 2;

/// The key of a packet that begins with `head` and came in by datapath port `in_port`.
fn key_of(head: &[u8], len: usize, in_port: u32, carried: Option<&FlowKey>) -> FlowKey {
    let mut key = FlowKey::default();
    let hint = Hint {
        total_len: len.max(head.len()),
        packet_type: carried.map_or(0, |c| c.packet_type),
        vlan_limit: VLANS,
    };
    extract(head, &hint, &mut key);
    if let Some(carried) = carried {
        key.copy_tunnel(carried);
    }
    key.in_port = in_port;
    key
}

fn key_of_example(e: &DropExample) -> FlowKey {
    key_of(&e.head, e.len, e.in_port.0, e.carried.as_deref())
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS[usize::from(n & 15)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(*b)]).collect()
}
