//! TCP segmentation of dummy ports (`options:ol_tso_segsz=N`). The port receives long TCP packets as GSO
//! packets with N bytes of payload for each segment. It transmits GSO packets in one piece.

#![deny(clippy::indexing_slicing)] // packets may be malformed

use crate::segment::{self, SegmentError};
use heddle_packet::{Csum, Gso, GsoKind, Offload, Packet, Pool, Wraps};
use heddle_wire::eth::{Ethernet, ethertype};
use heddle_wire::ip::{Ipv4, Ipv6, proto, pseudo};
use heddle_wire::l4::Tcp;
use heddle_wire::{split, split_mut};

/// Offset of the checksum in the TCP header, bytes.
const TCP_CSUM_AT: u16 = 16;

/// The offload of a received frame: GSO if the frame is TCP without VLAN tags, with more than `size` bytes of
/// payload. Then the pseudo header's sum is written into the frame. Other frames are unchanged.
pub(super) fn mark(frame: &mut [u8], size: u16) -> Offload {
    gso(frame, size).unwrap_or_default()
}

fn gso(frame: &mut [u8], size: u16) -> Option<Offload> {
    let (eth, ip_header) = split::<Ethernet>(frame)?;
    let (v6, l4) = match eth.ethertype.get() {
        ethertype::IP => {
            let (ip, _) = split::<Ipv4>(ip_header)?;
            (ip.proto == proto::TCP && !ip.is_fragment())
                .then_some((false, Ethernet::LEN + ip.header_len()))?
        }
        ethertype::IPV6 => {
            let (ip, _) = split::<Ipv6>(ip_header)?;
            (ip.next == proto::TCP).then_some((true, Ethernet::LEN + Ipv6::LEN))?
        }
        _ => return None,
    };
    let len = frame.len().checked_sub(l4)?;
    let sum = pseudo(ip_header, v6, proto::TCP, u32::try_from(len).ok()?)?;
    let (tcp, _) = split_mut::<Tcp>(frame.get_mut(l4..)?)?;
    let header = tcp.header_len();
    if header < Tcp::LEN || len <= header + usize::from(size) {
        return None;
    }
    tcp.csum = sum.folded().into();
    Some(Offload {
        csum: Csum::Partial {
            start: u16::try_from(l4).ok()?,
            offset: TCP_CSUM_AT,
        },
        gso: Some(Gso {
            kind: if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 },
            ecn: false,
            size,
            hdr_len: u16::try_from(l4 + header).ok()?,
            wraps: Wraps::default(),
        }),
    })
}

/// The frame of a GSO packet in one piece, with one checksum: tests look at frames before the device would
/// segment them. `None`: the packet is no GSO packet, or is one that such a device cannot segment.
pub(super) fn whole(pool: &mut Pool, packet: &Packet) -> Option<Result<Vec<u8>, SegmentError>> {
    packet.offload.gso.filter(|_| !packet.needs_cutting())?;
    let frame = packet.to_vec();
    let mut copy = pool.get_for(frame.len());
    copy.set_bytes(&frame);
    copy.offload.csum = packet.offload.csum;
    Some(segment::complete_csum(&mut copy).map(|()| copy.to_vec()))
}
