//! Frames around messages.

use crate::info::{PDU_LEN, Pdu};
use heddle_wire::eth::{Ethernet, payload};
use heddle_wire::{Be16, IntoBytes as _};

/// EtherType of the slow protocols (IEEE 802.3 annex 57A).
pub const ETHERTYPE: u16 = 0x8809;
/// Destination of messages: no bridge forwards it.
pub const DESTINATION: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x02];
/// Bytes of a frame that carries a message.
pub const FRAME_LEN: usize = 14 + PDU_LEN;

/// Builds a frame with this message.
pub fn frame(src: [u8; 6], pdu: &Pdu) -> Vec<u8> {
    let eth = Ethernet {
        src,
        dst: DESTINATION,
        ethertype: Be16::new(ETHERTYPE),
    };
    let mut frame = Vec::with_capacity(FRAME_LEN);
    frame.extend_from_slice(eth.as_bytes());
    frame.extend_from_slice(&pdu.bytes());
    frame
}

/// The payload of a frame of the slow protocols, behind VLAN tags. `None`: the frame is another one.
pub fn payload_of(frame: &[u8]) -> Option<&[u8]> {
    let (ty, rest) = payload(frame)?;
    (ty == ETHERTYPE).then_some(rest)
}
