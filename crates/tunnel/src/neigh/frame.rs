//! Frames that request a neighbour's address: ARP (RFC 826), neighbour solicitations (RFC 4861, 4.3).

use super::Mac;
use heddle_wire::IntoBytes;
use heddle_wire::arp::Arp;
use heddle_wire::checksum::Sum;
use heddle_wire::eth::{Ethernet, ethertype};
use heddle_wire::icmp::{Icmp, ND_OPT_SLL, ND_SOLICIT, NdLla};
use heddle_wire::ip::Ipv6;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// ARP: a request.
const ARP_REQUEST: u16 = 1;
/// The protocol of ICMPv6 messages.
const ICMPV6: u8 = 58;
/// RFC 4861, 7.1.1: a smaller hop limit means that a router has forwarded the message.
const ND_HOP_LIMIT: u8 = 255;
/// Version 6 in an IPv6 header's first word.
const VERSION_6: u32 = 6 << 28;

/// The frame by which `source`, with address `mac`, requests `target`. `None`: they are of different
/// families.
pub fn request_frame(mac: Mac, source: IpAddr, target: IpAddr) -> Option<Vec<u8>> {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => Some(arp(mac, source, target)),
        (IpAddr::V6(source), IpAddr::V6(target)) => Some(solicitation(mac, source, target)),
        _ => None,
    }
}

fn arp(mac: Mac, source: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let eth = Ethernet {
        dst: [0xff; 6],
        src: mac,
        ethertype: ethertype::ARP.into(),
    };
    let arp = Arp {
        sha: mac,
        spa: source.octets(),
        tpa: target.octets(),
        ..Arp::new(ARP_REQUEST)
    };
    [eth.as_bytes(), arp.as_bytes()].concat()
}

fn solicitation(mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let group = solicited_node(target);
    let [.., a, b, c, d] = group.octets();
    let icmp = |csum: u16| Icmp {
        ty: ND_SOLICIT,
        code: 0,
        csum: csum.into(),
        rest: 0.into(),
    };
    let option = NdLla {
        ty: ND_OPT_SLL,
        len: 1,
        mac,
    };
    let message = |csum| [icmp(csum).as_bytes(), &target.octets(), option.as_bytes()].concat();
    let unsummed = message(0);
    // The message has 32 bytes.
    let len = u16::try_from(unsummed.len()).unwrap_or(0);
    let sum = Sum::ZERO
        .pseudo_v6(&source.octets(), &group.octets(), ICMPV6, len.into())
        .bytes(&unsummed);
    let eth = Ethernet {
        dst: [0x33, 0x33, a, b, c, d],
        src: mac,
        ethertype: ethertype::IPV6.into(),
    };
    let ip = Ipv6 {
        flow: VERSION_6.into(),
        payload_len: len.into(),
        next: ICMPV6,
        hop_limit: ND_HOP_LIMIT,
        src: source.octets(),
        dst: group.octets(),
    };
    [eth.as_bytes(), ip.as_bytes(), &message(sum.checksum())].concat()
}

/// The multicast group of a node with this address (RFC 4291, 2.7.1).
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let low = addr.to_bits() & 0xff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}
