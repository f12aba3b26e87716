//! Packets that go into tunnels and come out of them.

use super::Meta;
use crate::drops::DropKind;
use heddle_flow::FlowKey;
use heddle_packet::Packet;

/// Takes the headers of the tunnel of this port off a packet, and writes what they said into `tunnel`
/// (members of the tunnel; the others are not looked at). Returns what the packet begins with now
/// ([`heddle_flow::packet_type`]).
pub(crate) fn pop(
    _packet: &mut Packet,
    _meta: &Meta,
    _port: u32,
    _tunnel: &mut FlowKey,
) -> Result<u32, DropKind> {
    Err(DropKind::InvalidPort)
}
