//! Frames around control messages (RFC 5881 §4, §5).

use crate::message::MESSAGE_LEN;
use heddle_wire::eth::{self, Ethernet, ethertype};
use heddle_wire::ip::Ipv4;
use heddle_wire::{Be16, Be32, IntoBytes as _, checksum, l4, split};
use std::net::Ipv4Addr;

/// UDP destination of control messages.
pub const UDP_PORT: u16 = 3784;
/// Bytes of a frame that carries a message.
pub const FRAME_LEN: usize = 14 + 20 + 8 + MESSAGE_LEN;

const UDP: u8 = 17;
/// RFC 5881 §5: the packet has crossed no router.
pub(crate) const TTL: u8 = 255;
/// Internetwork control.
const TOS: u8 = 0xc0;

/// Addresses and source port of a frame; source before destination.
pub(crate) struct Ends {
    pub(crate) macs: ([u8; 6], [u8; 6]),
    pub(crate) ips: (Ipv4Addr, Ipv4Addr),
    pub(crate) udp_src: u16,
}

/// Builds a frame with this message.
pub(crate) fn build(ends: &Ends, message: &[u8; MESSAGE_LEN]) -> Vec<u8> {
    let eth = Ethernet {
        src: ends.macs.0,
        dst: ends.macs.1,
        ethertype: Be16::new(ethertype::IP),
    };
    #[expect(clippy::cast_possible_truncation, reason = "constants of less than a hundred")]
    let (ip_len, udp_len) = ((FRAME_LEN - 14) as u16, (8 + MESSAGE_LEN) as u16);
    let mut ip = Ipv4 {
        version_ihl: 0x45,
        tos: TOS,
        total_len: Be16::new(ip_len),
        ttl: TTL,
        proto: UDP,
        src: Be32::new(ends.ips.0.to_bits()),
        dst: Be32::new(ends.ips.1.to_bits()),
        ..Ipv4::default()
    };
    ip.csum = Be16::new(checksum::checksum(ip.as_bytes()));
    let udp = l4::Udp {
        src: Be16::new(ends.udp_src),
        dst: Be16::new(UDP_PORT),
        len: Be16::new(udp_len),
        csum: Be16::ZERO,
    };
    let mut frame = Vec::with_capacity(FRAME_LEN);
    for part in [eth.as_bytes(), ip.as_bytes(), udp.as_bytes(), message] {
        frame.extend_from_slice(part);
    }
    frame
}

/// A UDP payload, and the time to live of its IPv4 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp<'a> {
    /// Time to live.
    pub ttl: u8,
    /// Payload, possibly empty.
    pub payload: &'a [u8],
}

/// The UDP packet to port [`UDP_PORT`] in a frame, which may be cut after it. `None`: there is none, its
/// lengths exceed the bytes that are there, or it is a later fragment.
pub fn udp_of(frame: &[u8]) -> Option<Udp<'_>> {
    let (ty, rest) = eth::payload(frame)?;
    if ty != ethertype::IP {
        return None;
    }
    let (ip, _) = split::<Ipv4>(rest)?;
    let packet = rest.get(..ip.total_len.get().into())?;
    let header = ip.header_len();
    if ip.version_ihl >> 4 != 4 || header < size_of::<Ipv4>() || ip.proto != UDP || ip.is_later_fragment() {
        return None;
    }
    let (udp, payload) = split::<l4::Udp>(packet.get(header..)?)?;
    let len = usize::from(udp.len.get()).checked_sub(size_of::<l4::Udp>())?;
    (udp.dst.get() == UDP_PORT).then_some(Udp {
        ttl: ip.ttl,
        payload: payload.get(..len)?,
    })
}
