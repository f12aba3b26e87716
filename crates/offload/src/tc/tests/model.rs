//! Filters match no packet that their flow does not match.

use super::{flow, out};
use crate::Rule;
use crate::tc::keys::Keys;
use heddle_flow::{FlowKey, FlowMask};
use netlink_packet_core::{DefaultNla, Nla as _};
use netlink_packet_route::tc::TcFilterFlowerOption as Key;
use proptest::prelude::*;
use std::net::Ipv4Addr;

/// A packet as `flower` and a flow's key see it.
#[derive(Clone, Debug)]
struct Packet {
    key: FlowKey,
    tags: u8,
}

fn bit() -> impl Strategy<Value = u8> {
    0_u8..2
}

/// Packets with small values, so that pairs of them share fields.
fn packet() -> impl Strategy<Value = Packet> {
    let l2 = (bit(), bit(), 0_u8..3, 0_u16..3, 0_u16..2);
    let types = prop_oneof![3 => Just(0x0800_u16), 3 => Just(0x86dd), 1 => Just(0x0806), 1 => Just(0x8847)];
    let frag = prop_oneof![4 => Just(0_u8), 1 => Just(1), 1 => Just(3)];
    let l3 = (
        types,
        bit(),
        bit(),
        bit(),
        bit(),
        frag,
        (any::<bool>(), any::<bool>()),
    );
    let protocols = prop_oneof![Just(1_u8), Just(2), Just(6), Just(17), Just(58), Just(132)];
    let l4 = (protocols, 0_u16..3, 0_u16..3, 0_u16..8, any::<bool>());
    (l2, l3, l4).prop_map(
        |((src, dst, tags, vid, pcp), (dl_type, ip_src, ip_dst, tos, ttl, frag, service), l4)| {
            let (proto, tp_src, tp_dst, flags, nd) = l4;
            let v6 = dl_type == 0x86dd;
            let mut key = FlowKey::default();
            (key.in_port, key.dl_src[5], key.dl_dst[5]) = (1, src, dst);
            key.dl_type = dl_type;
            for (tag, service) in key
                .vlans
                .iter_mut()
                .zip([service.0, service.0 && service.1])
                .take(usize::from(tags))
            {
                let tpid = if service { 0x88a8 } else { 0x8100 };
                (tag.tpid, tag.tci) = (tpid, 0x1000 | vid | pcp << 13);
            }
            if dl_type == 0x8847 {
                return Packet { key, tags };
            }
            if dl_type == 0x0806 {
                (key.nw_src, key.nw_dst, key.nw_proto) = (ip_src.into(), ip_dst.into(), 1 + tos + ttl);
                (key.arp_sha[5], key.arp_tha[5]) = (src, ttl);
                return Packet { key, tags };
            }
            if v6 {
                (key.ipv6_src[15], key.ipv6_dst[15]) = (ip_src, ip_dst);
            } else {
                (key.nw_src, key.nw_dst) = (ip_src.into(), ip_dst.into());
            }
            (key.nw_proto, key.nw_tos, key.nw_ttl) = (proto, tos << 2, ttl);
            key.nw_frag = frag;
            if frag & 2 != 0 {
                return Packet { key, tags };
            }
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
            Packet { key, tags }
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
        m.vlans[1].tci = match bits >> 13 & 3 {
            0 | 1 => 0,
            2 => 0x1fff,
            _ => u16::MAX,
        };
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
            m.tcp_flags = match (flags, bits >> 15 & 3) {
                (false, _) => 0,
                (true, 0) => 0xfff,
                (true, n) => u16::try_from(n).unwrap() + u16::from(has(11)),
            };
            m.nd_target = if nd { [0xff; 16] } else { [0; 16] };
        } else if has(12) {
            m.nd_target = [0xff; 16];
        }
        mask
    })
}

/// The masks of a packet's fields: a flow has no bits of fields that its packet does not have.
fn of_packet(packet: &Packet, mut mask: FlowMask, hardware: bool) -> FlowMask {
    let (key, m) = (&packet.key, &mut mask.0);
    let arp = key.dl_type == 0x0806;
    if arp {
        m.arp_sha = if hardware { [0xff; 6] } else { [0; 6] };
        m.arp_tha[5] = u8::from(hardware);
        (m.nw_tos, m.nw_ttl, m.nw_frag) = (0, 0, 0);
        (m.tp_src, m.tp_dst, m.tcp_flags, m.nd_target) = (0, 0, 0, [0; 16]);
        (m.ipv6_src, m.ipv6_dst) = ([0; 16], [0; 16]);
    }
    if key.dl_type == 0x8847 {
        let l2 = FlowKey {
            dl_src: m.dl_src,
            dl_dst: m.dl_dst,
            vlans: m.vlans,
            in_port: m.in_port,
            ..FlowKey::default()
        };
        (*m, m.recirc_id, m.dl_type) = (l2, u32::MAX, u16::MAX);
    }
    mask
}

/// A simple model of `flower`: whether a filter with these keys and this protocol matches a packet.
fn matches(keys: &Keys, p: &Packet) -> bool {
    let k = &p.key;
    let v6 = k.dl_type == 0x86dd;
    let outermost = if p.tags > 0 { k.vlans[0].tpid } else { k.dl_type };
    let behind = if p.tags > 1 { k.vlans[1].tpid } else { k.dl_type };
    let is_ip = matches!(k.dl_type, 0x0800 | 0x86dd);
    // `flower` reads no L4 header of a fragment.
    let whole = k.nw_frag == 0;
    let l4 = |n: u16| if whole { n } else { 0 };
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
            Key::VlanEthType(v) => *v == behind,
            Key::VlanId(v) => *v == k.vlans[0].tci & 0xfff,
            Key::VlanPrio(v) => u16::from(*v) == k.vlans[0].tci >> 13,
            Key::KeyFlags(v) => {
                let flags = [0_u8, 3, 0, 1][usize::from(k.nw_frag)];
                under(mask!(KeyFlagsMask), flags.into(), u128::from(*v))
            }
            Key::Ipv4Src(v) => !v6 && under(ip_mask(0), u128::from(k.nw_src), v4(v)),
            Key::Ipv4Dst(v) => !v6 && under(ip_mask(1), u128::from(k.nw_dst), v4(v)),
            Key::Ipv6Src(v) => v6 && under(ip_mask(2), u128::from_be_bytes(k.ipv6_src), v.to_bits()),
            Key::Ipv6Dst(v) => v6 && under(ip_mask(3), u128::from_be_bytes(k.ipv6_dst), v.to_bits()),
            Key::IpTos(v) => under(mask!(IpTosMask), k.nw_tos.into(), (*v).into()),
            Key::IpTtl(v) => under(mask!(IpTtlMask), k.nw_ttl.into(), (*v).into()),
            Key::IpProto(v) => is_ip && is(*v),
            Key::TcpSrc(v) => is(6) && under(mask!(TcpSrcMask), l4(k.tp_src).into(), (*v).into()),
            Key::TcpDst(v) => is(6) && under(mask!(TcpDstMask), l4(k.tp_dst).into(), (*v).into()),
            Key::UdpSrc(v) => is(17) && under(mask!(UdpSrcMask), l4(k.tp_src).into(), (*v).into()),
            Key::UdpDst(v) => is(17) && under(mask!(UdpDstMask), l4(k.tp_dst).into(), (*v).into()),
            Key::TcpFlags(v) => is(6) && under(mask!(TcpFlagsMask), l4(k.tcp_flags).into(), (*v).into()),
            Key::Icmpv4Type(v) => is(1) && under(mask!(Icmpv4TypeMask), small(l4(k.tp_src)), (*v).into()),
            Key::Icmpv4Code(v) => is(1) && under(mask!(Icmpv4CodeMask), small(l4(k.tp_dst)), (*v).into()),
            Key::Icmpv6Type(v) => is(58) && under(mask!(Icmpv6TypeMask), small(l4(k.tp_src)), (*v).into()),
            Key::Icmpv6Code(v) => is(58) && under(mask!(Icmpv6CodeMask), small(l4(k.tp_dst)), (*v).into()),
            Key::Other(nla) => other(all, nla, p),
            _ => true,
        })
}

/// A key that the library has no name for.
fn other(all: &[Key], nla: &DefaultNla, p: &Packet) -> bool {
    let bytes = |nla: &DefaultNla| {
        let mut bytes = vec![0; nla.value_len()];
        nla.emit_value(&mut bytes);
        bytes
    };
    let mask_of = |kind: u16| {
        let masks = all.iter().find_map(|m| match m {
            Key::Other(nla) if nla.kind() == kind + 1 => Some(bytes(nla)),
            _ => None,
        });
        masks.expect("each field of ARP has a mask")
    };
    let (k, want, kind) = (&p.key, bytes(nla), nla.kind());
    let arp = |have: &[u8]| {
        let mask = mask_of(kind);
        // Fields of other operations than request and reply are read as zeros.
        let have = if k.nw_proto > 2 {
            vec![0; have.len()]
        } else {
            have.to_vec()
        };
        let all = have.iter().zip(&want).zip(&mask);
        k.dl_type == 0x0806 && have.len() == want.len() && all.clone().all(|((h, w), m)| (h ^ w) & m == 0)
    };
    let number = || u16::from_ne_bytes([want[0], want[1]]);
    match kind {
        57 => arp(&k.nw_src.to_be_bytes()),
        59 => arp(&k.nw_dst.to_be_bytes()),
        61 => arp(&[k.nw_proto]),
        63 => arp(&k.arp_sha),
        65 => arp(&k.arp_tha),
        // The mask of the attribute before it.
        58 | 60 | 62 | 64 | 66 => true,
        77 => p.tags == 2 && number() == k.vlans[1].tci & 0xfff,
        78 => p.tags == 2 && u16::from(want[0]) == k.vlans[1].tci >> 13,
        79 => p.tags == 2 && want == k.dl_type.to_be_bytes(),
        102 => want == [p.tags],
        _ => panic!("an unknown key {kind}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A filter matches only packets of its flow. It matches the packet that the flow was made for.
    /// Exceptions are a tag on which the flow does not match, and ARP of a rare operation.
    #[test]
    fn filters_match_packets_of_their_flow_alone(
        of in packet(), mask in mask(), hardware in any::<bool>(), others in prop::collection::vec(packet(), 40),
    ) {
        let mask = of_packet(&of, mask, hardware);
        let Ok(rule) = Rule::new(&of.key, &mask, &[out(2)]) else { return Ok(()) };
        let Ok(keys) = Keys::of(&rule) else { return Ok(()) };
        let flow = of.key.masked(&mask);
        for p in &others {
            if matches(&keys, p) {
                prop_assert!(p.key.masked(&mask) == flow, "{:?} is not of the flow of {of:?}: {keys:?}", p);
            }
        }
        let left_out = mask.0.vlans[0].tpid == 0 && of.tags > 0 || of.key.dl_type == 0x0806 && of.key.nw_proto > 2;
        prop_assert!(left_out || matches(&keys, &of), "{of:?} is not matched: {keys:?}");
    }
}
