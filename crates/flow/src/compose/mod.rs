//! Makes the packet that a key describes: for `netdev-dummy/receive`, `ofproto/trace -generate` and tests.
//!
//! The result is an Ethernet frame with right lengths and checksums, as Open vSwitch composes it. If a packet
//! can have the key, reading the frame with [`crate::extract`] gives the key back. Not composed are IPv6
//! fragment headers (the packet comes out whole), packets without Ethernet header (they get one), and the
//! payload of ICMP errors.

#[cfg(test)]
pub(crate) mod tests;

use crate::extract::DL_TYPE_NONE;
use crate::key::{FlowKey, frag};
use heddle_wire::IntoBytes;
use heddle_wire::arp::Arp;
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::crc32c::crc32c;
use heddle_wire::eth::{Ethernet, VlanTag, ethertype, is_mpls};
use heddle_wire::icmp::{Icmp, Igmp, ND_ADVERT, ND_OPT_SLL, ND_OPT_TLL, ND_SOLICIT, NdLla};
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Sctp, Tcp, Udp};
use heddle_wire::nsh::MD_TYPE_1;

/// Flags with which a TCP segment carries no payload here: SYN, FIN, RST.
const NO_PAYLOAD: u16 = 0x7;
/// A later fragment's offset, in units of eight bytes. Any but zero would do.
const LATER_OFFSET: u16 = 100;
/// Greatest IP packet.
const MAX_L3: usize = u16::MAX as usize;

/// The frame for a key, with `payload_len` bytes (0, 1, 2, ... modulo 256) behind TCP, UDP and ICMP echo
/// headers. The payload is cut to what an IP packet can hold.
pub fn compose(key: &FlowKey, payload_len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0u8..=255).cycle().take(payload_len.min(MAX_L3)).collect();
    compose_with(key, &payload, 0)
}

/// The frame for a key, filled up with zeros behind its headers to `size` bytes. `None` if the headers alone
/// are longer, or the size is more than an IP packet's.
pub fn compose_sized(key: &FlowKey, size: usize) -> Option<Vec<u8>> {
    let fill = size
        .checked_sub(compose_with(key, &[], 0).len())
        .filter(|_| size <= MAX_L3)?;
    Some(compose_with(key, &[], fill))
}

/// Like [`compose`]; `fill` zeros follow whatever the payload.
fn compose_with(key: &FlowKey, payload: &[u8], fill: usize) -> Vec<u8> {
    let mut b = Vec::with_capacity(128 + payload.len() + fill);
    b.extend_from_slice(&key.dl_dst);
    b.extend_from_slice(&key.dl_src);
    if key.dl_type == DL_TYPE_NONE {
        let size = Ethernet::LEN + fill;
        b.extend_from_slice(&u16::try_from(size).unwrap_or(0x5dc).to_be_bytes());
        b.resize(size, 0);
        return b;
    }
    for tag in key.vlans.iter().filter(|t| t.present()) {
        let tci = tag.tci & !crate::key::Vlan::CFI;
        b.extend_from_slice(
            VlanTag {
                tpid: tag.tpid.into(),
                tci: tci.into(),
            }
            .as_bytes(),
        );
    }
    b.extend_from_slice(&key.dl_type.to_be_bytes());
    match key.dl_type {
        ethertype::IP => ipv4(&mut b, key, payload, fill),
        ethertype::IPV6 => ipv6(&mut b, key, payload, fill),
        ethertype::ARP | ethertype::RARP => {
            arp(&mut b, key);
            b.resize(b.len() + fill, 0);
        }
        ethertype::NSH => {
            nsh(&mut b, key);
            b.resize(b.len() + fill, 0);
        }
        t => {
            if is_mpls(t) {
                let n = key
                    .mpls_lse
                    .iter()
                    .position(|l| l & 0x100 != 0)
                    .map_or(key.mpls_lse.len(), |i| i + 1);
                for lse in key.mpls_lse.iter().take(n) {
                    b.extend_from_slice(&lse.to_be_bytes());
                }
            }
            b.resize(b.len() + fill, 0);
        }
    }
    b
}

fn arp(b: &mut Vec<u8>, key: &FlowKey) {
    let mut arp = Arp::new(key.nw_proto.into());
    if matches!(key.nw_proto, 1 | 2) {
        arp.sha = key.arp_sha;
        arp.spa = key.nw_src.to_be_bytes();
        arp.tha = key.arp_tha;
        arp.tpa = key.nw_dst.to_be_bytes();
    }
    b.extend_from_slice(arp.as_bytes());
}

/// The header alone: the key has nothing of the packet behind it. Metadata of type 2 is empty.
fn nsh(b: &mut Vec<u8>, key: &FlowKey) {
    let k = &key.nsh;
    let context = k.context_header();
    let metadata = if k.mdtype == MD_TYPE_1 {
        context.as_bytes()
    } else {
        &[]
    };
    b.extend_from_slice(k.base_header(metadata.len()).as_bytes());
    b.extend_from_slice(metadata);
}

/// The L4 packet, checksum still zero; filled up with zeros, and cut to what fits behind an L3 header.
fn l4_with_fill(key: &FlowKey, payload: &[u8], fill: usize, l3_header: usize) -> Vec<u8> {
    let mut l4 = l4(key, payload);
    l4.resize(l4.len() + fill, 0);
    l4.truncate(MAX_L3 - l3_header);
    if key.nw_proto == proto::UDP && key.nw_frag & frag::LATER == 0 {
        let len = u16::try_from(l4.len()).unwrap_or(u16::MAX);
        if let Some((udp, _)) = heddle_wire::split_mut::<Udp>(&mut l4) {
            udp.len = len.into();
        }
    }
    l4
}

fn ipv4(b: &mut Vec<u8>, key: &FlowKey, payload: &[u8], fill: usize) {
    let mut l4 = l4_with_fill(key, payload, fill, Ipv4::LEN);
    let frag = match (key.nw_frag & frag::ANY != 0, key.nw_frag & frag::LATER != 0) {
        (false, _) => 0,
        (true, false) => Ipv4::MORE,
        (true, true) => Ipv4::MORE | LATER_OFFSET,
    };
    let mut ip = Ipv4 {
        version_ihl: 0x45,
        tos: key.nw_tos,
        total_len: u16::try_from(Ipv4::LEN + l4.len()).unwrap_or(u16::MAX).into(),
        frag: frag.into(),
        ttl: key.nw_ttl,
        proto: key.nw_proto,
        src: key.nw_src.into(),
        dst: key.nw_dst.into(),
        ..Ipv4::default()
    };
    ip.csum = checksum(ip.as_bytes()).into();
    let len = u32::try_from(l4.len()).unwrap_or(0);
    l4_checksum(
        key,
        &mut l4,
        Sum::ZERO.pseudo_v4(key.nw_src, key.nw_dst, key.nw_proto, len),
    );
    b.extend_from_slice(ip.as_bytes());
    b.extend_from_slice(&l4);
}

fn ipv6(b: &mut Vec<u8>, key: &FlowKey, payload: &[u8], fill: usize) {
    let mut l4 = l4_with_fill(key, payload, fill, 0);
    let ip = Ipv6 {
        flow: (6 << 28 | u32::from(key.nw_tos) << 20 | key.ipv6_label & Ipv6::LABEL).into(),
        payload_len: u16::try_from(l4.len()).unwrap_or(u16::MAX).into(),
        next: key.nw_proto,
        hop_limit: key.nw_ttl,
        src: key.ipv6_src,
        dst: key.ipv6_dst,
    };
    let len = u32::try_from(l4.len()).unwrap_or(0);
    l4_checksum(
        key,
        &mut l4,
        Sum::ZERO.pseudo_v6(&key.ipv6_src, &key.ipv6_dst, key.nw_proto, len),
    );
    b.extend_from_slice(ip.as_bytes());
    b.extend_from_slice(&l4);
}

fn l4(key: &FlowKey, payload: &[u8]) -> Vec<u8> {
    if key.nw_frag & frag::LATER != 0 {
        return Vec::new();
    }
    let (src, dst) = (key.tp_src.into(), key.tp_dst.into());
    let (ty, code) = ((key.tp_src & 0xff) as u8, (key.tp_dst & 0xff) as u8);
    let mut b = Vec::new();
    match key.nw_proto {
        proto::TCP => {
            let ctl = (5 << 12 | key.tcp_flags & Tcp::FLAGS).into();
            b.extend_from_slice(
                Tcp {
                    src,
                    dst,
                    ctl,
                    ..Tcp::default()
                }
                .as_bytes(),
            );
            if key.tcp_flags & NO_PAYLOAD == 0 {
                b.extend_from_slice(payload);
            }
        }
        proto::UDP => {
            b.extend_from_slice(
                Udp {
                    src,
                    dst,
                    ..Udp::default()
                }
                .as_bytes(),
            );
            b.extend_from_slice(payload);
        }
        proto::SCTP => b.extend_from_slice(
            Sctp {
                src,
                dst,
                ..Sctp::default()
            }
            .as_bytes(),
        ),
        proto::ICMP => {
            b.extend_from_slice(
                Icmp {
                    ty,
                    code,
                    ..Icmp::default()
                }
                .as_bytes(),
            );
            if matches!((ty, code), (0 | 8, 0)) {
                b.extend_from_slice(payload);
            }
        }
        proto::IGMP => {
            let igmp = Igmp {
                ty,
                code,
                group: key.igmp_group.into(),
                ..Igmp::default()
            };
            b.extend_from_slice(igmp.as_bytes());
        }
        proto::ICMPV6 => {
            let icmp = Icmp {
                ty,
                code,
                rest: key.igmp_group.into(),
                ..Icmp::default()
            };
            b.extend_from_slice(icmp.as_bytes());
            match (ty, code) {
                (ND_SOLICIT | ND_ADVERT, 0) => {
                    b.extend_from_slice(&key.nd_target);
                    for (ty, mac) in [(ND_OPT_SLL, key.arp_sha), (ND_OPT_TLL, key.arp_tha)] {
                        if mac != [0; 6] {
                            b.extend_from_slice(NdLla { ty, len: 1, mac }.as_bytes());
                        }
                    }
                }
                (128 | 129, 0) => b.extend_from_slice(payload),
                _ => {}
            }
        }
        _ => {}
    }
    b
}

/// Writes the checksum into an L4 packet where it is zero.
fn l4_checksum(key: &FlowKey, l4: &mut [u8], pseudo: Sum) {
    if key.nw_frag & frag::LATER != 0 {
        return;
    }
    let with_pseudo = pseudo.bytes(l4);
    let plain = checksum(l4);
    let crc = crc32c(l4);
    match key.nw_proto {
        proto::TCP => put(l4, |h: &mut Tcp| h.csum = with_pseudo.checksum().into()),
        proto::UDP => put(l4, |h: &mut Udp| h.csum = with_pseudo.checksum_nonzero().into()),
        proto::SCTP => put(l4, |h: &mut Sctp| h.csum = crc),
        proto::ICMP => put(l4, |h: &mut Icmp| h.csum = plain.into()),
        proto::IGMP => put(l4, |h: &mut Igmp| h.csum = plain.into()),
        proto::ICMPV6 => put(l4, |h: &mut Icmp| h.csum = with_pseudo.checksum().into()),
        _ => {}
    }
}

fn put<T>(l4: &mut [u8], f: impl FnOnce(&mut T))
where
    T: heddle_wire::FromBytes + IntoBytes + heddle_wire::KnownLayout + heddle_wire::Unaligned,
{
    if let Some((h, _)) = heddle_wire::split_mut::<T>(l4) {
        f(h);
    }
}
