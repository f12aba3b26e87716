//! The offsets of a GSO packet's headers, and the fields that differ in each segment.

use super::outer::pseudo_sum;
use super::{SegmentError, is_v4};
use heddle_packet::GsoKind;
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::eth::ethertype;
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::{Be16, Be32, split, split_mut};

/// Network protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum L3 {
    V4,
    V6,
}

/// Offsets of a train's headers, checked against its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    l3: L3,
    l3_at: usize,
    l4_at: usize,
    proto: u8,
    pub(super) payload: usize,
}

/// Maximum number of tags that are stepped over.
const MAX_TAGS: usize = 4;

/// The header that a packet, or a part of it, begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begins {
    /// An Ethernet header.
    Frame,
    /// An IP header.
    Ip(L3),
}

/// The IP header of the packet that begins at `at`.
pub(super) fn network(frame: &[u8], at: usize, begins: Begins) -> Result<(L3, usize), SegmentError> {
    if let Begins::Ip(l3) = begins {
        return Ok((l3, at));
    }
    let be16 = |at: usize| {
        let b = frame.get(at..at + 2).ok_or(SegmentError::Malformed)?;
        Ok(u16::from_be_bytes([b[0], b[1]]))
    };
    let mut at = at + 12;
    let mut kind_of_frame = be16(at)?;
    for _ in 0..MAX_TAGS {
        if !heddle_wire::eth::is_vlan(kind_of_frame) {
            break;
        }
        at += 4;
        kind_of_frame = be16(at)?;
    }
    match kind_of_frame {
        ethertype::IP => Ok((L3::V4, at + 2)),
        ethertype::IPV6 => Ok((L3::V6, at + 2)),
        _ => Err(SegmentError::Mismatch),
    }
}

/// Writes the checksum of an IPv4 header, whose bytes are `header`.
pub(super) fn write_checksum(header: &mut [u8]) -> Result<(), SegmentError> {
    let (ip, _) = split_mut::<Ipv4>(header).ok_or(SegmentError::Malformed)?;
    ip.csum = Be16::new(0);
    let sum = checksum(header);
    let (ip, _) = split_mut::<Ipv4>(header).ok_or(SegmentError::Malformed)?;
    ip.csum = Be16::new(sum);
    Ok(())
}

/// Sets lengths and identification of the IP header of segment `index`, whose bytes are `segment`. The header
/// is at `l3_at` and, if it is IPv4's, ends at `l4_at`.
pub(super) fn fix_ip(
    segment: &mut [u8],
    (l3_kind, l3_at, l4_at): (L3, usize, usize),
    index: usize,
) -> Result<(), SegmentError> {
    let l3 = segment.get_mut(l3_at..).ok_or(SegmentError::Malformed)?;
    let len = l3.len();
    if is_v4(l3_kind) {
        let (ip, _) = split_mut::<Ipv4>(l3).ok_or(SegmentError::Malformed)?;
        ip.total_len = be16(len)?;
        // Each datagram has its own identification (RFC 6864: it matters only where fragments may arise).
        let step = u16::try_from(index).map_err(|_| SegmentError::TooMany)?;
        ip.id = Be16::new(ip.id.get().wrapping_add(step));
        write_checksum(l3.get_mut(..l4_at - l3_at).ok_or(SegmentError::Malformed)?)?;
    } else {
        let (ip, _) = split_mut::<Ipv6>(l3).ok_or(SegmentError::Malformed)?;
        ip.payload_len = be16(len.checked_sub(Ipv6::LEN).ok_or(SegmentError::Malformed)?)?;
    }
    Ok(())
}

impl Layout {
    /// Finds the headers of the packet that begins at `at`; `l4_at` is the start of the checksum, that is the
    /// L4 header.
    pub(super) fn of(
        frame: &[u8],
        (at, begins): (usize, Begins),
        l4_at: usize,
        kind: GsoKind,
    ) -> Result<Self, SegmentError> {
        let (l3, l3_at) = network(frame, at, begins)?;
        let rest = frame.get(l3_at..).ok_or(SegmentError::Malformed)?;
        let min = match l3 {
            L3::V4 => {
                let (ip, _) = split::<Ipv4>(rest).ok_or(SegmentError::Malformed)?;
                let want = if kind == GsoKind::Udp {
                    proto::UDP
                } else {
                    proto::TCP
                };
                if ip.proto != want || ip.header_len() < Ipv4::LEN || l3_at + ip.header_len() != l4_at {
                    return Err(SegmentError::Mismatch);
                }
                Ipv4::LEN
            }
            L3::V6 => Ipv6::LEN,
        };
        let proto = match (kind, l3) {
            (GsoKind::Tcp4, L3::V4) | (GsoKind::Tcp6, L3::V6) => proto::TCP,
            (GsoKind::Udp, _) => proto::UDP,
            _ => return Err(SegmentError::Mismatch),
        };
        // IPv6 extension headers may be between; the sender claims that they lead to this protocol.
        let l4 = frame
            .get(l4_at..)
            .filter(|_| l4_at >= l3_at + min)
            .ok_or(SegmentError::Malformed)?;
        let l4_len = if proto == proto::TCP {
            let len = split::<Tcp>(l4).ok_or(SegmentError::Malformed)?.0.header_len();
            if len < Tcp::LEN {
                return Err(SegmentError::Malformed);
            }
            len
        } else {
            Udp::LEN
        };
        let payload = l4_at + l4_len;
        if payload > frame.len() {
            return Err(SegmentError::Malformed);
        }
        Ok(Self {
            l3,
            l3_at,
            l4_at,
            proto,
            payload,
        })
    }

    /// Lengths and identification of segment `index`, whose bytes are `frame`.
    pub(super) fn fix_ip(&self, frame: &mut [u8], index: usize) -> Result<(), SegmentError> {
        fix_ip(frame, (self.l3, self.l3_at, self.l4_at), index)
    }

    /// The L4 header's offset in a finished segment, and the sum of all bytes from there on. Its checksum
    /// makes that sum the complement of the pseudo header's sum.
    pub(super) fn sum_behind(&self, segment: &[u8]) -> Result<(usize, Sum), SegmentError> {
        let pseudo = self.pseudo(segment)?;
        Ok((self.l4_at, Sum::ZERO.word(!pseudo.folded())))
    }

    /// Sequence number, flags and checksum of the segment whose payload starts `from` bytes into the train's.
    pub(super) fn fix_tcp(
        &self,
        frame: &mut [u8],
        from: usize,
        first: bool,
        last: bool,
    ) -> Result<(), SegmentError> {
        const FIN_PSH: u16 = 0x09;
        const CWR: u16 = 0x80;
        let l4 = frame.get_mut(self.l4_at..).ok_or(SegmentError::Malformed)?;
        let (tcp, _) = split_mut::<Tcp>(l4).ok_or(SegmentError::Malformed)?;
        let step = u32::try_from(from).map_err(|_| SegmentError::TooMany)?;
        tcp.seq = Be32::new(tcp.seq.get().wrapping_add(step));
        let mut ctl = tcp.ctl.get();
        if !last {
            ctl &= !FIN_PSH;
        }
        if !first {
            // The congestion-window-reduced signal is sent once (RFC 3168, 6.1.2).
            ctl &= !CWR;
        }
        tcp.ctl = Be16::new(ctl);
        tcp.csum = Be16::new(0);
        let sum = self.l4_sum(frame)?.checksum();
        let l4 = frame.get_mut(self.l4_at..).ok_or(SegmentError::Malformed)?;
        let (tcp, _) = split_mut::<Tcp>(l4).ok_or(SegmentError::Malformed)?;
        tcp.csum = Be16::new(sum);
        Ok(())
    }

    /// Length and checksum of a datagram.
    pub(super) fn fix_udp(&self, frame: &mut [u8]) -> Result<(), SegmentError> {
        let l4 = frame.get_mut(self.l4_at..).ok_or(SegmentError::Malformed)?;
        let len = be16(l4.len())?;
        let (udp, _) = split_mut::<Udp>(l4).ok_or(SegmentError::Malformed)?;
        udp.len = len;
        udp.csum = Be16::new(0);
        let sum = self.l4_sum(frame)?.checksum_nonzero();
        let l4 = frame.get_mut(self.l4_at..).ok_or(SegmentError::Malformed)?;
        let (udp, _) = split_mut::<Udp>(l4).ok_or(SegmentError::Malformed)?;
        udp.csum = Be16::new(sum);
        Ok(())
    }

    /// Sum of pseudo header and L4 bytes.
    fn l4_sum(&self, frame: &[u8]) -> Result<Sum, SegmentError> {
        let l4 = frame.get(self.l4_at..).ok_or(SegmentError::Malformed)?;
        Ok(self.pseudo(frame)?.bytes(l4))
    }
    fn pseudo(&self, frame: &[u8]) -> Result<Sum, SegmentError> {
        let l3 = frame.get(self.l3_at..).ok_or(SegmentError::Malformed)?;
        let len = frame
            .len()
            .checked_sub(self.l4_at)
            .ok_or(SegmentError::Malformed)?;
        let len = u32::try_from(len).map_err(|_| SegmentError::Malformed)?;
        pseudo_sum(l3, self.l3, self.proto, len)
    }
}

pub(super) fn be16(n: usize) -> Result<Be16, SegmentError> {
    u16::try_from(n)
        .map(Be16::new)
        .map_err(|_| SegmentError::Malformed)
}
