//! ICMP errors of routers about outer packets that are too long for a path (RFC 1191, RFC 8201).
//!
//! **Trust.** Anybody may send such an error. A caller uses it only if the quoted headers are those of a
//! packet that it may have sent ([`TooBig`]).

use crate::proto;
use heddle_wire::checksum::checksum;
use heddle_wire::icmp::{ICMP_TOO_BIG, ICMPV6_TOO_BIG, Icmp};
use heddle_wire::ip::{Ipv4, Ipv6};
use heddle_wire::split;
use std::net::{IpAddr, Ipv4Addr};

/// Bits of an IPv4 header's fragment field that are the offset.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The packet that an error quotes, and the MTU that the error reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TooBig {
    /// Source of the packet.
    pub source: IpAddr,
    /// Destination of the packet.
    pub destination: IpAddr,
    /// IP protocol of the packet.
    pub protocol: u8,
    /// Destination port; 0: the protocol has none.
    pub port: u16,
    /// Longest packet that the path carries, with its IP header, bytes. Old routers report 0.
    pub mtu_bytes: u32,
}

impl TooBig {
    /// The error in an IPv4 packet; `None`: it is none, or is damaged.
    pub fn parse_v4(packet: &[u8]) -> Option<TooBig> {
        let (ip, _) = split::<Ipv4>(packet)?;
        let message = packet.get(header_len(ip)..usize::from(ip.total_len.get()))?;
        let (icmp, quote) = split::<Icmp>(message)?;
        // The kernel checks this sum only later.
        if (icmp.ty, icmp.code) != ICMP_TOO_BIG || checksum(message) != 0 {
            return None;
        }
        let (inner, _) = split::<Ipv4>(quote)?;
        let is_first = inner.frag.get() & FRAGMENT_OFFSET == 0;
        let l4 = quote.get(header_len(inner)..).filter(|_| is_first)?;
        Some(TooBig {
            source: Ipv4Addr::from(inner.src.get()).into(),
            destination: Ipv4Addr::from(inner.dst.get()).into(),
            protocol: inner.proto,
            port: port(inner.proto, l4)?,
            mtu_bytes: icmp.rest.get() & u32::from(u16::MAX),
        })
    }

    /// The error in an ICMPv6 message whose checksum is right; `None`: it is none.
    pub fn parse_v6(message: &[u8]) -> Option<TooBig> {
        let (icmp, quote) = split::<Icmp>(message)?;
        if icmp.ty != ICMPV6_TOO_BIG {
            return None;
        }
        let (inner, l4) = split::<Ipv6>(quote)?;
        let protocol = match inner.next {
            // The next header of the routing header: the packet belongs to segment routing.
            proto::ROUTING => *l4.first()?,
            next => next,
        };
        Some(TooBig {
            source: IpAddr::V6(inner.src.into()),
            destination: IpAddr::V6(inner.dst.into()),
            protocol,
            port: port(protocol, l4)?,
            mtu_bytes: icmp.rest.get(),
        })
    }
}

fn header_len(ip: &Ipv4) -> usize {
    usize::from(ip.version_ihl & 0xf) * 4
}

/// The destination port. `None`: the quote is too short.
fn port(protocol: u8, l4: &[u8]) -> Option<u16> {
    match protocol {
        proto::UDP | proto::TCP => Some(u16::from_be_bytes(*l4.get(2..4)?.first_chunk()?)),
        _ => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// An error about a UDP packet from 10.0.0.1 to 10.0.0.2, port 4789.
    fn v4() -> Vec<u8> {
        let quote = [
            &[
                0x45, 0, 5, 220, 0, 1, 0x40, 0, 60, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ][..],
            &[0xc3, 0x50, 0x12, 0xb5, 5, 200, 0, 0],
        ]
        .concat();
        let mut icmp = [&[3, 4, 0, 0, 0, 0, 5, 0x14][..], &quote].concat();
        let sum = checksum(&icmp).to_be_bytes();
        icmp[2..4].copy_from_slice(&sum);
        let header = [0x45, 0, 0, 56, 0, 1, 0, 0, 64, 1, 0, 0, 10, 9, 9, 9, 10, 0, 0, 1];
        [&header[..], &icmp].concat()
    }

    #[test]
    fn the_quoted_packet_is_found() {
        let expected = TooBig {
            source: ip("10.0.0.1"),
            destination: ip("10.0.0.2"),
            protocol: 17,
            port: 4789,
            mtu_bytes: 1300,
        };
        assert_eq!(TooBig::parse_v4(&v4()), Some(expected));
        // Bytes behind the packet do not count.
        assert_eq!(TooBig::parse_v4(&[v4(), vec![9; 7]].concat()), Some(expected));
    }

    #[test]
    fn damaged_errors_are_refused() {
        let whole = v4();
        for len in 0..whole.len() {
            assert_eq!(TooBig::parse_v4(&whole[..len]), None, "{len} bytes");
        }
        // Each byte of the ICMP message is covered by the checksum.
        for at in 20..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 0x10;
            assert_eq!(TooBig::parse_v4(&other), None, "byte {at}");
        }
    }

    #[test]
    fn errors_of_ipv6_may_quote_a_routing_header() {
        let quote = |next: u8, l4: &[u8]| {
            let mut all = vec![2, 0, 0, 0, 0, 0, 5, 0x14, 0x60, 0, 0, 0, 4, 0, next, 64];
            all.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            all.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            all.extend(l4);
            all
        };
        let error = TooBig::parse_v6(&quote(17, &[1, 2, 0x17, 0xc1])).expect("an error");
        assert_eq!(
            (
                error.source,
                error.destination,
                error.protocol,
                error.port,
                error.mtu_bytes
            ),
            (ip("fd00::1"), ip("fd00::2"), 17, 6081, 1300)
        );
        let routed = TooBig::parse_v6(&quote(43, &[41, 2, 4, 0])).expect("an error");
        assert_eq!((routed.protocol, routed.port), (41, 0));
        assert_eq!(TooBig::parse_v6(&quote(17, &[1, 2, 0x17])), None, "too short");
        let mut other = quote(17, &[1, 2, 0x17, 0xc1]);
        other[0] = 3;
        assert_eq!(TooBig::parse_v6(&other), None, "another type");
    }
}
