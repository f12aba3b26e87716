//! Filters match no packet that their flow does not match.

use super::{flow, out};
use crate::Rule;
use crate::tc::keys::Keys;
use heddle_flow::{FlowKey, FlowMask};
use netlink_packet_core::Nla as _;
use netlink_packet_route::tc::TcFilterFlowerOption as Key;
use proptest::prelude::*;
use std::net::Ipv4Addr;

/// A packet as `flower` and a flow's key see it.
#[derive(Clone, Debug)]
struct Packet {
    key: FlowKey,
    tags: u8,
    fragment: bool,
}

fn bit() -> impl Strategy<Value = u8> {
    0_u8..2
}

/// Packets with small values, so that pairs of them share fields.
fn packet() -> impl Strategy<Value = Packet> {
    let l2 = (bit(), bit(), 0_u8..3, 0_u16..3, 0_u16..2);
    let l3 = (any::<bool>(), bit(), bit(), bit(), bit(), any::<bool>());
    let protocols = prop_oneof![Just(1_u8), Just(2), Just(6), Just(17), Just(58), Just(132)];
    let l4 = (protocols, 0_u16..3, 0_u16..3, 0_u16..8, any::<bool>());
    (l2, l3, l4).prop_map(
        |((src, dst, tags, vid, pcp), (v6, ip_src, ip_dst, tos, ttl, fragment), l4)| {
            let (proto, tp_src, tp_dst, flags, nd) = l4;
            let mut key = FlowKey::default();
            (key.in_port, key.dl_src[5], key.dl_dst[5]) = (1, src, dst);
            key.dl_type = if v6 { 0x86dd } else { 0x0800 };
            for tag in key.vlans.iter_mut().take(usize::from(tags)) {
                (tag.tpid, tag.tci) = (0x8100, 0x1000 | vid | pcp << 13);
            }
            if v6 {
                (key.ipv6_src[15], key.ipv6_dst[15]) = (ip_src, ip_dst);
            } else {
                (key.nw_src, key.nw_dst) = (ip_src.into(), ip_dst.into());
            }
            (key.nw_proto, key.nw_tos, key.nw_ttl) = (proto, tos << 2, ttl);
            key.nw_frag = u8::from(fragment);
            let has_ports =
                matches!(proto, 6 | 17 | 132) || (proto, v6) == (1, false) || (proto, v6) == (58, true);
            if has_ports {
                let first = if proto == 58 { 128 + 7 * tp_src } else { tp_src };
                (key.tp_src, key.tp_dst) = (first, tp_dst);
            }
            if proto == 6 {
                key.tcp_flags = flags;
            }
            if nd && key.tp_src == 135 {
                key.nd_target[0] = 1;
            }
            Packet { key, tags, fragment }
        },
    )
}

/// Masks of the fields that packets have: each open, exact, or in part.
fn mask() -> impl Strategy<Value = FlowMask> {
    (any::<u32>(), any::<[bool; 4]>()).prop_map(|(bits, [proto, ports, flags, nd])| {
        let (_, mut mask) = flow();
        let m = &mut mask.0;
        let has = |n: u32| bits >> n & 1 != 0;
        m.dl_src = if has(0) { [0xff; 6] } else { [0; 6] };
        m.dl_dst[5] = if has(1) { 1 } else { 0 };
        m.vlans[0].tpid = if has(2) { u16::MAX } else { 0 };
        m.vlans[0].tci = match bits >> 3 & 3 {
            0 => 0x1000,
            1 => 0xffff,
            2 => 0x1fff,
            _ => 0xf000,
        };
        m.vlans[1].tpid = if has(5) { u16::MAX } else { 0 };
        (m.nw_src, m.ipv6_src[15]) = if has(6) { (u32::MAX, 0xff) } else { (0, 0) };
        (m.nw_dst, m.ipv6_dst[15]) = if has(7) { (1, 1) } else { (0, 0) };
        m.nw_tos = if has(8) { 0xfc } else { 0 };
        m.nw_ttl = if has(9) { 0xff } else { 0 };
        if proto {
            m.nw_proto = 0xff;
            (m.tp_src, m.tp_dst) = if ports {
                (u16::MAX, 1)
            } else {
                (0, u16::from(has(10)))
            };
            m.tcp_flags = if flags { 1 + u16::from(has(11)) } else { 0 };
            m.nd_target = if nd { [0xff; 16] } else { [0; 16] };
        } else if has(12) {
            m.nd_target = [0xff; 16];
        }
        mask
    })
}

/// A simple model of `flower`: whether a filter with these keys and this protocol matches a packet.
fn matches(keys: &Keys, p: &Packet) -> bool {
    let k = &p.key;
    let v6 = k.dl_type == 0x86dd;
    let outermost = if p.tags > 0 { 0x8100 } else { k.dl_type };
    let all = &keys.keys;
    // The value of a key whose mask is given, or all of it.
    let under = |mask: Option<u128>, have: u128, want: u128| (have ^ want) & mask.unwrap_or(u128::MAX) == 0;
    macro_rules! mask {
        ($name:ident) => {
            all.iter().find_map(|m| match m {
                Key::$name(v) => Some(u128::from(*v)),
                _ => None,
            })
        };
    }
    let mac = |m: &[u8; 6]| m.iter().fold(0_u128, |all, b| all << 8 | u128::from(*b));
    let mac_mask = |wanted: bool| {
        all.iter().find_map(|m| match m {
            Key::EthSrcMask(v) if wanted => Some(mac(v)),
            Key::EthDstMask(v) if !wanted => Some(mac(v)),
            _ => None,
        })
    };
    let v4 = |a: &Ipv4Addr| u128::from(a.to_bits());
    let ip_mask = |name: u8| {
        all.iter().find_map(|m| match (m, name) {
            (Key::Ipv4SrcMask(v), 0) | (Key::Ipv4DstMask(v), 1) => Some(v4(v)),
            (Key::Ipv6SrcMask(v), 2) | (Key::Ipv6DstMask(v), 3) => Some(v.to_bits()),
            _ => None,
        })
    };
    let is = |proto| k.nw_proto == proto;
    let small = |v: u16| u128::from(v & 0xff);
    keys.protocol == outermost
        && all.iter().all(|key| match key {
            Key::EthSrc(v) => under(mac_mask(true), mac(&k.dl_src), mac(v)),
            Key::EthDst(v) => under(mac_mask(false), mac(&k.dl_dst), mac(v)),
            Key::EthType(v) => *v == outermost,
            Key::VlanEthType(v) => *v == k.dl_type,
            Key::VlanId(v) => *v == k.vlans[0].tci & 0xfff,
            Key::VlanPrio(v) => u16::from(*v) == k.vlans[0].tci >> 13,
            Key::KeyFlags(v) => under(mask!(KeyFlagsMask), u128::from(p.fragment), u128::from(*v)),
            Key::Ipv4Src(v) => !v6 && under(ip_mask(0), u128::from(k.nw_src), v4(v)),
            Key::Ipv4Dst(v) => !v6 && under(ip_mask(1), u128::from(k.nw_dst), v4(v)),
            Key::Ipv6Src(v) => v6 && under(ip_mask(2), u128::from_be_bytes(k.ipv6_src), v.to_bits()),
            Key::Ipv6Dst(v) => v6 && under(ip_mask(3), u128::from_be_bytes(k.ipv6_dst), v.to_bits()),
            Key::IpTos(v) => under(mask!(IpTosMask), k.nw_tos.into(), (*v).into()),
            Key::IpTtl(v) => under(mask!(IpTtlMask), k.nw_ttl.into(), (*v).into()),
            Key::IpProto(v) => is(*v),
            Key::TcpSrc(v) => is(6) && under(mask!(TcpSrcMask), k.tp_src.into(), (*v).into()),
            Key::TcpDst(v) => is(6) && under(mask!(TcpDstMask), k.tp_dst.into(), (*v).into()),
            Key::UdpSrc(v) => is(17) && under(mask!(UdpSrcMask), k.tp_src.into(), (*v).into()),
            Key::UdpDst(v) => is(17) && under(mask!(UdpDstMask), k.tp_dst.into(), (*v).into()),
            Key::TcpFlags(v) => is(6) && under(mask!(TcpFlagsMask), k.tcp_flags.into(), (*v).into()),
            Key::Icmpv4Type(v) => is(1) && under(mask!(Icmpv4TypeMask), small(k.tp_src), (*v).into()),
            Key::Icmpv4Code(v) => is(1) && under(mask!(Icmpv4CodeMask), small(k.tp_dst), (*v).into()),
            Key::Icmpv6Type(v) => is(58) && under(mask!(Icmpv6TypeMask), small(k.tp_src), (*v).into()),
            Key::Icmpv6Code(v) => is(58) && under(mask!(Icmpv6CodeMask), small(k.tp_dst), (*v).into()),
            Key::Other(nla) => {
                let mut n = [0];
                nla.emit_value(&mut n);
                nla.kind() == 102 && n[0] == p.tags
            }
            _ => true,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A filter matches only packets of its flow. It matches the packet that the flow was made for, unless
    /// rules leave that packet to workers.
    #[test]
    fn filters_match_packets_of_their_flow_alone(
        of in packet(), mask in mask(), others in prop::collection::vec(packet(), 40),
    ) {
        let Ok(rule) = Rule::new(&of.key, &mask, &[out(2)]) else { return Ok(()) };
        let Ok(keys) = Keys::of(&rule) else { return Ok(()) };
        let flow = of.key.masked(&mask);
        for p in &others {
            if matches(&keys, p) {
                prop_assert!(p.key.masked(&mask) == flow, "{:?} is not of the flow of {of:?}: {keys:?}", p);
            }
        }
        let left_out = of.tags > 1 || of.fragment || of.key.tcp_flags & 7 != 0 && !rule.all_flags;
        let other_tag = mask.0.vlans[0].tpid == 0 && of.tags > 0;
        prop_assert!(left_out || other_tag || matches(&keys, &of), "{of:?} is not matched: {keys:?}");
    }
}
