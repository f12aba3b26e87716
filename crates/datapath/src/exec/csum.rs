//! Updates the L4 checksum after a header change.
//!
//! Three cases. Filled in (or unknown): updated incrementally (RFC 1624), so that a wrong checksum stays
//! wrong and is found by the receiver. Partial: the field holds the pseudo-header's sum, which the device
//! completes (virtio 1.2 §5.1.6.2); only addresses are part of it. Absent: UDP over IPv4 with a zero field
//! (RFC 768) stays as it is.

use heddle_packet::{Csum, Offload, Packet};
use heddle_wire::checksum::Sum;
use heddle_wire::ip::proto;

/// The part of the packet that changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// An address: part of the pseudo header, where the protocol has one.
    Address,
    /// Bytes that the L4 checksum covers itself.
    L4,
}

/// Offset of the checksum field in the L4 header, and whether a pseudo header counts.
fn field(proto: u8) -> Option<(usize, bool)> {
    match proto {
        proto::TCP => Some((16, true)),
        proto::UDP => Some((6, true)),
        proto::ICMPV6 => Some((2, true)),
        proto::ICMP => Some((2, false)),
        _ => None,
    }
}

/// Updates the checksum after bytes `from` became `to` (equal even lengths, at an even distance from the L4
/// header's start). `l4` is the L4 header's offset.
pub(crate) fn changed(
    head: &mut [u8],
    offload: &Offload,
    l4: usize,
    proto: u8,
    part: Part,
    from: &[u8],
    to: &[u8],
) {
    let Some((at, pseudo)) = field(proto) else { return };
    if part == Part::Address && !pseudo {
        return;
    }
    let Some(bytes) = head.get_mut(l4 + at..).and_then(|h| h.first_chunk_mut::<2>()) else {
        return;
    };
    let old = u16::from_be_bytes(*bytes);
    let mut sum = Sum::ZERO.bytes(to);
    let (mut pieces, rest) = (from.chunks_exact(2), from.len() % 2);
    debug_assert_eq!(rest, 0);
    sum = pieces
        .by_ref()
        .fold(sum, |s, c| s.word(!u16::from_be_bytes([c[0], c[1]])));
    let new = match offload.csum {
        Csum::Partial { start, .. } if usize::from(start) == l4 => match part {
            Part::Address => sum.word(old).folded(),
            Part::L4 => return,
        },
        _ if proto == proto::UDP && old == 0 => return,
        _ => match sum.word(!old).checksum() {
            0 if proto == proto::UDP => 0xffff,
            c => c,
        },
    };
    *bytes = new.to_be_bytes();
}

/// Completes a partial checksum, for a packet that software is about to cut or read. The packet must be
/// private.
pub(crate) fn fill_in(packet: &mut Packet) {
    let Csum::Partial { start, offset } = packet.offload.csum else {
        return;
    };
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    let head = packet.head_mut();
    if let Some(covered) = head.get(start..) {
        let sum = Sum::ZERO.bytes(covered).checksum_nonzero();
        if let Some(field) = head.get_mut(at..).and_then(|h| h.first_chunk_mut::<2>()) {
            *field = sum.to_be_bytes();
        }
    }
    packet.offload.csum = Csum::Unknown;
}
