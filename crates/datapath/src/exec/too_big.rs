//! The ICMP error that replaces a packet which is too long for its path (RFC 1191, RFC 8201).
//!
//! Source: `skb_tunnel_check_pmtu` in Linux (net/ipv4/ip_tunnel_core.c), which makes the same error.

#[cfg(test)]
mod tests;

use super::Meta;
use super::tags::be16;
use heddle_flow::packet_type;
use heddle_packet::Packet;
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::eth::{Ethernet, ethertype};
use heddle_wire::icmp::{ICMP_TOO_BIG, ICMPV6_TOO_BIG, Icmp, is_icmp_error, is_icmpv6_error};
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::{IntoBytes, split, split_mut};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum length of an error with its IP header, bytes. A smaller MTU gets no error.
const MAX_V4_ERROR: usize = 576;
const MAX_V6_ERROR: usize = 1280;
/// Longest Ethernet header with tags.
const MAX_L2: usize = 64;
const TTL: u8 = 64;

/// Replaces the packet by an ICMP error to its sender, with the packet's destination as source. `None`: no
/// error may be sent. Examples are an IPv4 packet without DF, a fragment, another ICMP error, a multicast
/// address, wrong lengths, and an MTU below the minimum. `frame_len` is the length in bytes of the longest
/// frame that the path carries.
pub(super) fn replace(p: &mut Packet, meta: &mut Meta, frame_len: u16) -> Option<()> {
    let l3 = usize::from(meta.l3);
    if meta.packet_type != packet_type::ETHERNET || l3 > MAX_L2 || meta.l4 == u16::MAX {
        return None;
    }
    let mtu = frame_len.checked_sub(meta.l3)?;
    let mut out = [0; MAX_L2 + MAX_V6_ERROR];
    let (l2, rest) = out.split_at_mut_checked(l3)?;
    l2.copy_from_slice(p.head().get(..l3)?);
    let (eth, _) = split_mut::<Ethernet>(l2)?;
    if eth.dst[0] & 1 != 0 {
        return None;
    }
    (eth.src, eth.dst) = (eth.dst, eth.src);
    let (len, headers, protocol) = match be16(l2, l3.checked_sub(2)?)? {
        ethertype::IP => (error_v4(p, meta, rest, mtu)?, Ipv4::LEN, proto::ICMP),
        ethertype::IPV6 => (error_v6(p, meta, rest, mtu)?, Ipv6::LEN, proto::ICMPV6),
        _ => return None,
    };
    let (mark, queue, in_port) = (p.mark(), p.queue(), p.in_port);
    p.set_bytes(out.get(..l3 + len)?);
    p.set_mark(mark);
    p.set_queue(queue);
    p.in_port = in_port;
    *meta = Meta {
        l4: u16::try_from(l3 + headers).ok()?,
        l4_end: l3 + len,
        proto: protocol,
        later_fragment: false,
        routing_header: false,
        ..*meta
    };
    Some(())
}

/// Writes the error in `out`. Returns its length.
fn error_v4(p: &Packet, meta: &Meta, out: &mut [u8], mtu: u16) -> Option<usize> {
    let (ip, _) = split::<Ipv4>(p.head().get(usize::from(meta.l3)..)?)?;
    let (src, dst) = (Ipv4Addr::from(ip.src.get()), Ipv4Addr::from(ip.dst.get()));
    let is_unicast = |a: Ipv4Addr| !a.is_multicast() && !a.is_broadcast() && !a.is_unspecified();
    let sender = is_unicast(src) && !src.is_loopback() && src.octets()[0] != 0;
    if usize::from(mtu) < MAX_V4_ERROR || ip.frag.get() != Ipv4::DONT || !sender || !is_unicast(dst) {
        return None;
    }
    if ip.proto == proto::ICMP && is_icmp_error(*p.head().get(usize::from(meta.l4))?) {
        return None;
    }
    let all = usize::from(ip.total_len.get());
    let right = checksum(p.head().get(usize::from(meta.l3)..usize::from(meta.l4))?) == 0;
    if !right || all <= usize::from(mtu) {
        return None; // a part of the frame is padding, or the header is not valid
    }
    let quoted = all.min(MAX_V4_ERROR - Ipv4::LEN - Icmp::LEN);
    let len = Ipv4::LEN + Icmp::LEN + quoted;
    let mut header = Ipv4 {
        version_ihl: 0x45,
        total_len: u16::try_from(len).ok()?.into(),
        frag: Ipv4::DONT.into(),
        ttl: TTL,
        proto: proto::ICMP,
        src: ip.dst,
        dst: ip.src,
        ..Ipv4::default()
    };
    header.csum = checksum(header.as_bytes()).into();
    let message = quote(p, meta, out, header.as_bytes(), quoted)?;
    let (icmp, _) = split_mut::<Icmp>(message)?;
    *icmp = Icmp {
        ty: ICMP_TOO_BIG.0,
        code: ICMP_TOO_BIG.1,
        rest: u32::from(mtu).into(),
        ..Icmp::default()
    };
    let sum = checksum(message);
    split_mut::<Icmp>(message)?.0.csum = sum.into();
    Some(len)
}

fn error_v6(p: &Packet, meta: &Meta, out: &mut [u8], mtu: u16) -> Option<usize> {
    let (ip, _) = split::<Ipv6>(p.head().get(usize::from(meta.l3)..)?)?;
    let (src, dst) = (Ipv6Addr::from(ip.src), Ipv6Addr::from(ip.dst));
    let is_unicast = |a: Ipv6Addr| !a.is_multicast() && !a.is_unspecified();
    if usize::from(mtu) < MAX_V6_ERROR || !is_unicast(src) || src.is_loopback() || !is_unicast(dst) {
        return None;
    }
    if meta.proto == proto::ICMPV6 && is_icmpv6_error(*p.head().get(usize::from(meta.l4))?) {
        return None;
    }
    let all = Ipv6::LEN + usize::from(ip.payload_len.get());
    if all <= usize::from(mtu) {
        return None;
    }
    let quoted = all.min(MAX_V6_ERROR - Ipv6::LEN - Icmp::LEN);
    let payload = u16::try_from(Icmp::LEN + quoted).ok()?;
    let header = Ipv6 {
        flow: 0x6000_0000.into(),
        payload_len: payload.into(),
        next: proto::ICMPV6,
        hop_limit: TTL,
        src: ip.dst,
        dst: ip.src,
    };
    let message = quote(p, meta, out, header.as_bytes(), quoted)?;
    let (icmp, _) = split_mut::<Icmp>(message)?;
    *icmp = Icmp {
        ty: ICMPV6_TOO_BIG,
        rest: u32::from(mtu).into(),
        ..Icmp::default()
    };
    let pseudo = Sum::ZERO.pseudo_v6(&header.src, &header.dst, proto::ICMPV6, payload.into());
    let sum = pseudo.bytes(message).checksum();
    split_mut::<Icmp>(message)?.0.csum = sum.into();
    Some(Ipv6::LEN + usize::from(payload))
}

/// Writes the error's IP header, and `n` bytes of the packet behind the room for the ICMP header. Returns the
/// ICMP message. `None`: the packet has fewer bytes.
fn quote<'a>(p: &Packet, meta: &Meta, out: &'a mut [u8], header: &[u8], n: usize) -> Option<&'a mut [u8]> {
    let (ip, message) = out.split_at_mut_checked(header.len())?;
    ip.copy_from_slice(header);
    let message = message.get_mut(..Icmp::LEN + n)?;
    let quoted = message.get_mut(Icmp::LEN..)?;
    (p.copy_from(meta.l3.into(), quoted) == n).then_some(message)
}
