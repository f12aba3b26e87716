//! A GSO packet in a tunnel of UDP as it is, for devices that cut such packets: its headers' offsets, and an
//! outer checksum. The checksum field holds the sum of the pseudo header, as the device expects it.

use super::{Cut, MAX_OUTER_BYTES, is_v4};
use arrayvec::ArrayVec;
use heddle_packet::{Packet, Wrap};
use heddle_virtio::net_hdr::Tunnel;
use heddle_wire::l4::Udp;
use heddle_wire::split;

/// The bytes to send in place of the first bytes of a GSO packet's head.
#[derive(Debug)]
pub struct Whole {
    /// The offsets of its headers.
    pub tunnel: Tunnel,
    /// The packet up to the end of the outer UDP header.
    pub outer: ArrayVec<u8, MAX_OUTER_BYTES>,
}

/// Describes a GSO packet in one tunnel of UDP. `None`: it is in no such tunnel, is longer than an IP header
/// allows, or its headers are not the expected ones.
pub fn whole(packet: &Packet) -> Option<Whole> {
    let gso = packet.offload.gso?;
    let (Wrap::Vxlan | Wrap::Geneve, within) = gso.wraps.split()? else {
        return None;
    };
    if !within.is_empty() || !gso.kind.is_for_devices() {
        return None;
    }
    let cut = Cut::of(packet).ok()?;
    let outer = cut.outers.first()?;
    let len = packet.len();
    if len - outer.l3_at > usize::from(u16::MAX) {
        return None;
    }
    let (udp, _) = split::<Udp>(packet.head().get(outer.l4_at..)?)?;
    if usize::from(udp.len.get()) != len - outer.l4_at {
        return None;
    }
    let csum = udp.csum.get() != 0;
    let mut bytes = ArrayVec::new();
    let head = packet.head().get(..outer.l4_at + Udp::LEN)?;
    bytes.try_extend_from_slice(head).ok()?;
    if csum {
        let sum = outer.open_csum(packet.head(), len)?;
        let field = outer.l4_at + usize::from(super::UDP_CSUM_AT);
        bytes
            .get_mut(field..field + 2)?
            .copy_from_slice(&sum.to_be_bytes());
    }
    Some(Whole {
        tunnel: Tunnel {
            outer_l4: u16::try_from(outer.l4_at).ok()?,
            inner_l3: u16::try_from(cut.inner_l3).ok()?,
            v6: !is_v4(outer.l3),
            csum,
        },
        outer: bytes,
    })
}
