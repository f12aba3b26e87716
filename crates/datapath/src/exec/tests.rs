//! The executor against a parse of its output: the key has the values that were set, and the checksums are
//! right when computed from scratch.

use super::csum::fill_in;
use super::program::Op;
use super::quick::Quick;
use super::{Exec, Live, MAX_COPIES, Meta, apply, set, wire_len};
use crate::counters::{CtCounts, Drops};
use crate::exec::ct::{Ct, Tracked};
use crate::exec::tx::TxTable;
use crate::exec::upcalls::{Bell, Lanes, upcall_ring};
use crate::tests::parsed;
use heddle_conntrack::Conntrack;
use heddle_conntrack::ipf::Ipf;
use heddle_datapath_api::{Action, DropKind, Masked};
use heddle_flow::{FlowKey, packet_type};
use heddle_packet::{Csum, Gso, GsoKind, Packet, Pool, Wrap, Wraps};
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::crc32c::crc32c;
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Shape {
    v6: bool,
    proto: u8,
    tags: usize,
    addr: [u8; 32],
    l4: Vec<u8>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let proto = prop::sample::select(vec![1_u8, 6, 17, 58, 132]);
    let l4 = prop::collection::vec(any::<u8>(), 40..90);
    (any::<bool>(), proto, 0_usize..3, any::<[u8; 32]>(), l4).prop_map(|(v6, proto, tags, addr, l4)| Shape {
        v6,
        proto,
        tags,
        addr,
        l4,
    })
}

/// Offset of the L4 checksum, and the sum of the pseudo header.
fn csum_field(proto: u8, s: Sum, bare: Sum) -> Option<(usize, Sum)> {
    match proto {
        6 => Some((16, s)),
        17 => Some((6, s)),
        58 => Some((2, s)),
        1 => Some((2, bare)),
        _ => None,
    }
}

fn pseudo(frame: &[u8], l3: usize, v6: bool, proto: u8, len: usize) -> Sum {
    let len = u32::try_from(len).unwrap();
    if v6 {
        let a = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap();
        Sum::ZERO.pseudo_v6(&a(l3 + 8), &a(l3 + 24), proto, len)
    } else {
        let a = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        Sum::ZERO.pseudo_v4(a(l3 + 12), a(l3 + 16), proto, len)
    }
}

/// A frame, with right checksums; with `partial`, the L4 checksum is left to the device.
fn build(s: &Shape, partial: bool) -> Packet {
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for i in 0..s.tags {
        f.extend([
            if i == 0 && s.tags == 2 { 0x88 } else { 0x81 },
            if i == 0 && s.tags == 2 { 0xa8 } else { 0 },
            0x20,
            5,
        ]);
    }
    f.extend(if s.v6 { [0x86, 0xdd] } else { [8, 0] });
    let l3 = f.len();
    let mut l4 = s.l4.clone();
    match s.proto {
        6 => l4[12] = 0x50,
        17 => {
            let n = u16::try_from(l4.len()).unwrap();
            l4[4..6].copy_from_slice(&n.to_be_bytes());
        }
        58 => {
            // A solicitation with a source option.
            (l4[0], l4[1]) = (135, 0);
            l4.truncate(32);
            (l4[24], l4[25]) = (1, 1);
        }
        _ => {}
    }
    if s.v6 {
        f.extend([0x60, 0, 0, 0, 0, u8::try_from(l4.len()).unwrap(), s.proto, 64]);
        f.extend(s.addr);
    } else {
        let mut ip = vec![
            0x45,
            0,
            0,
            u8::try_from(20 + l4.len()).unwrap(),
            0,
            1,
            0,
            0,
            64,
            s.proto,
            0,
            0,
        ];
        ip.extend(&s.addr[..8]);
        let c = checksum(&ip).to_be_bytes();
        ip[10..12].copy_from_slice(&c);
        f.extend(ip);
    }
    let l4_at = f.len();
    let n = l4.len();
    f.extend(l4);
    let ps = pseudo(&f, l3, s.v6, s.proto, n);
    let mut p;
    if let Some((at, ps)) = csum_field(s.proto, ps, Sum::ZERO) {
        f[l4_at + at..l4_at + at + 2].fill(0);
        let c = if partial {
            ps.folded()
        } else {
            ps.bytes(&f[l4_at..]).checksum_nonzero()
        };
        f[l4_at + at..l4_at + at + 2].copy_from_slice(&c.to_be_bytes());
        p = Packet::from_bytes(&f);
        if partial {
            p.offload.csum = Csum::Partial {
                start: u16::try_from(l4_at).unwrap(),
                offset: u16::try_from(at).unwrap(),
            };
        }
    } else {
        f[l4_at + 8..l4_at + 12].fill(0);
        let c = crc32c(&f[l4_at..]);
        f[l4_at + 8..l4_at + 12].copy_from_slice(&c);
        p = Packet::from_bytes(&f);
    }
    p
}

/// All checksums of the frame are right.
fn verify(p: &Packet, meta: &Meta, key: &FlowKey) -> Result<(), TestCaseError> {
    let f = p.to_vec();
    let (l3, l4) = (usize::from(meta.l3), usize::from(meta.l4));
    let v6 = key.dl_type == 0x86dd;
    if !v6 {
        prop_assert_eq!(checksum(&f[l3..l3 + 20]), 0, "IPv4 header");
    }
    let ps = pseudo(&f, l3, v6, key.nw_proto, f.len() - l4);
    match csum_field(key.nw_proto, ps, Sum::ZERO) {
        Some((_, ps)) => prop_assert_eq!(ps.bytes(&f[l4..]).checksum(), 0, "L4"),
        None => {
            let mut c = f[l4..].to_vec();
            let have = <[u8; 4]>::try_from(&c[8..12]).unwrap();
            c[8..12].fill(0);
            prop_assert_eq!(crc32c(&c), have, "SCTP");
        }
    }
    Ok(())
}

fn m<T>(value: T, mask: T) -> Masked<T> {
    Masked { value, mask }
}

fn mac() -> impl Strategy<Value = Masked<[u8; 6]>> {
    (any::<[u8; 6]>(), any::<[u8; 6]>()).prop_map(|(v, k)| m(std::array::from_fn(|i| v[i] & k[i]), k))
}

fn addr6() -> impl Strategy<Value = Masked<[u8; 16]>> {
    (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(v, k)| m(std::array::from_fn(|i| v[i] & k[i]), k))
}

macro_rules! masked {
    ($t:ty) => {
        any::<($t, $t)>().prop_map(|(v, k)| m(v & k, k))
    };
}

/// An action that fits the shape, and what it does to the key.
fn action(s: &Shape) -> BoxedStrategy<Action> {
    let eth = (mac(), mac())
        .prop_map(|(src, dst)| Action::SetEth { src, dst })
        .boxed();
    let ip = if s.v6 {
        (addr6(), addr6(), masked!(u32), masked!(u8), masked!(u8))
            .prop_map(|(src, dst, l, tclass, hlimit)| {
                let label = m(l.value & 0xf_ffff, l.mask & 0xf_ffff);
                Action::SetIpv6 {
                    src,
                    dst,
                    label,
                    tclass,
                    hlimit,
                }
            })
            .boxed()
    } else {
        (masked!(u32), masked!(u32), masked!(u8), masked!(u8))
            .prop_map(|(src, dst, tos, ttl)| Action::SetIpv4 { src, dst, tos, ttl })
            .boxed()
    };
    let l4 = match s.proto {
        proto @ (6 | 17 | 132) => (masked!(u16), masked!(u16))
            .prop_map(move |(src, dst)| Action::SetL4 { proto, src, dst })
            .boxed(),
        // The ND code must stay 0 and the type a solicitation's for the options to be read.
        58 => prop_oneof![
            (addr6(), mac(), mac()).prop_map(|(target, sll, tll)| Action::SetNd { target, sll, tll }),
            // The option stays the source's address, or its address would be another field.
            masked!(u32).prop_map(|reserved| Action::SetNdExt {
                reserved,
                option: m(0, 0),
            }),
        ]
        .boxed(),
        _ => (masked!(u8), masked!(u8))
            .prop_map(|(ty, code)| Action::SetIcmp { v6: false, ty, code })
            .boxed(),
    };
    prop_oneof![eth, ip, l4].boxed()
}

fn apply_to_key(k: &mut FlowKey, a: &Action) {
    macro_rules! set {
        ($dst:expr, $m:expr) => {
            $dst = ($dst & !$m.mask) | ($m.value & $m.mask)
        };
    }
    fn bytes<const N: usize>(dst: &mut [u8; N], m: &Masked<[u8; N]>) {
        *dst = std::array::from_fn(|i| (dst[i] & !m.mask[i]) | m.value[i]);
    }
    match a {
        Action::SetEth { src, dst } => {
            bytes(&mut k.dl_src, src);
            bytes(&mut k.dl_dst, dst);
        }
        Action::SetIpv4 { src, dst, tos, ttl } => {
            set!(k.nw_src, src);
            set!(k.nw_dst, dst);
            set!(k.nw_tos, tos);
            set!(k.nw_ttl, ttl);
        }
        Action::SetIpv6 {
            src,
            dst,
            label,
            tclass,
            hlimit,
        } => {
            bytes(&mut k.ipv6_src, src);
            bytes(&mut k.ipv6_dst, dst);
            set!(k.ipv6_label, label);
            set!(k.nw_tos, tclass);
            set!(k.nw_ttl, hlimit);
        }
        Action::SetL4 { src, dst, .. } => {
            set!(k.tp_src, src);
            set!(k.tp_dst, dst);
        }
        Action::SetIcmp { ty, code, .. } => {
            set!(k.tp_src, m(u16::from(ty.value), u16::from(ty.mask)));
            set!(k.tp_dst, m(u16::from(code.value), u16::from(code.mask)));
        }
        Action::SetNd { target, sll, .. } => {
            bytes(&mut k.nd_target, target);
            bytes(&mut k.arp_sha, sll);
        }
        Action::SetNdExt { reserved, .. } => set!(k.igmp_group, reserved),
        _ => unreachable!("not made by the strategy"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Set actions, with and without a checksum that is left to the device.
    #[test]
    fn sets_fields_and_checksums_follow(
        (s, actions) in shape().prop_flat_map(|s| {
            let a = prop::collection::vec(action(&s), 1..4);
            (Just(s), a)
        }),
        partial in any::<bool>(),
    ) {
        // Neighbour discovery is IPv6's; ICMP over IPv6 has no parser.
        prop_assume!((s.proto != 58 || s.v6) && (s.proto != 1 || !s.v6));
        let mut p = build(&s, partial);
        let (key, mut meta) = parsed(&mut p, packet_type::ETHERNET, 2);
        let mut want = key;
        for a in &actions {
            prop_assert_eq!(apply(&mut p, &mut meta, a, 0), Ok(()));
            apply_to_key(&mut want, a);
        }
        fill_in(&mut p);
        let (got, again) = parsed(&mut p, packet_type::ETHERNET, 2);
        prop_assert_eq!(got, want);
        verify(&p, &again, &got)?;
    }

    /// A router's rewrites, compiled together and one by one.
    #[test]
    fn quick_rewrites_are_those_of_single_packets(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        l3 in 0_u16..40,
        (src, dst, tos, ttl) in (mac(), mac(), masked!(u8), masked!(u8)),
        which in prop::collection::vec(any::<bool>(), 1..4),
    ) {
        let (keep, at) = (m(0, 0), usize::from(l3));
        // A zero checksum has two forms there, and either is right.
        prop_assume!(bytes.get(at + 10..at + 12) != Some(&[0xff; 2][..]));
        // The fields are of different headers, as in packets.
        prop_assume!(at >= 12 || which.windows(2).all(|w| w[0] == w[1]));
        let actions = which.iter().map(|eth| match eth {
            true => Action::SetEth { src, dst },
            false => Action::SetIpv4 { src: keep, dst: keep, tos, ttl },
        });
        let ops: Vec<_> = actions.clone().map(Op::Apply).collect();
        let meta = Meta { l3, ..Meta::default() };
        let (mut plain, mut quick) = (Packet::from_bytes(&bytes), Packet::from_bytes(&bytes));
        let (all, n) = Quick::of(&ops, &meta);
        // A second rewrite of the same kind ends the compiled prefix.
        let same = which.iter().skip(1).position(|eth| *eth == which[0]).map_or(which.len(), |i| i + 1);
        prop_assert_eq!(n, same.min(2));
        let done = actions.take(n).all(|a| set::set(&mut plain, &meta, &a).is_some());
        prop_assert_eq!(all.apply(quick.head_mut()), done);
        if done {
            prop_assert_eq!(plain.to_vec(), quick.to_vec());
        }
    }

    /// Tags and labels, in any order: offsets stay right, so that a later set hits the right bytes.
    #[test]
    fn tags_move_the_layers(s in shape().prop_map(|s| Shape { proto: 6, tags: s.tags % 2, ..s }), ops in prop::collection::vec(0_u8..4, 0..6), partial in any::<bool>()) {
        let mut p = build(&s, partial);
        let (key, mut meta) = parsed(&mut p, packet_type::ETHERNET, 2);
        let mut tags = s.tags;
        for op in ops {
            let a = match op {
                0 => Action::PopVlan,
                _ if tags == 2 => continue,
                _ => Action::PushVlan { tpid: 0x8100, tci: 0x1000 | u16::from(op) },
            };
            prop_assert_eq!(apply(&mut p, &mut meta, &a, 0), Ok(()));
            tags = if op == 0 { tags.saturating_sub(1) } else { tags + 1 };
        }
        // Through a label and back.
        prop_assert_eq!(apply(&mut p, &mut meta, &Action::PushMpls { lse: 0x0001_0140, ethertype: 0x8847 }, 0), Ok(()));
        prop_assert_eq!(apply(&mut p, &mut meta, &Action::SetMpls(m(0x0002_0000, 0xffff_f000)), 0), Ok(()));
        let (inside, _) = parsed(&mut p, packet_type::ETHERNET, 2);
        prop_assert_eq!((inside.dl_type, inside.mpls_lse[0]), (0x8847, 0x0002_0140));
        prop_assert_eq!(apply(&mut p, &mut meta, &Action::PopMpls { ethertype: key.dl_type }, 0), Ok(()));
        let port = Action::SetL4 { proto: 6, src: m(1, 0xffff), dst: m(2, 0xffff) };
        prop_assert_eq!(apply(&mut p, &mut meta, &port, 0), Ok(()));
        fill_in(&mut p);
        let (got, again) = parsed(&mut p, packet_type::ETHERNET, 2);
        prop_assert_eq!((got.tp_src, got.tp_dst, got.nw_src, got.ipv6_dst), (1, 2, key.nw_src, key.ipv6_dst));
        prop_assert_eq!((again.l3, again.l4), (meta.l3, meta.l4));
        verify(&p, &again, &got)?;
    }

    /// Padding behind the length in the IP header keeps its bytes, although it looks like a header with a
    /// checksum.
    #[test]
    fn padding_is_no_header(s in shape(), cut in 0_usize..20, push in any::<bool>()) {
        let proto = if s.proto == 58 { s.proto } else { [6, 17][usize::from(s.proto % 2)] };
        let s = Shape { proto, v6: s.v6 || proto == 58, ..s };
        let least = match s.proto { 6 => 20, 17 => 8, _ => 4 };
        let mut p = build(&Shape { tags: 0, ..s.clone() }, false);
        let (_, whole) = parsed(&mut p, packet_type::ETHERNET, 2);
        let (l3, l4) = (usize::from(whole.l3), usize::from(whole.l4));
        let keeps = cut.min(least);
        let said = if s.v6 { keeps } else { 20 + keeps };
        let at = if s.v6 { l3 + 4 } else { l3 + 2 };
        p.head_mut()[at..at + 2].copy_from_slice(&u16::try_from(said).unwrap().to_be_bytes());
        let (_, mut meta) = parsed(&mut p, packet_type::ETHERNET, 2);
        let before = p.to_vec();
        let set = if s.v6 {
            let keep = || m([0; 16], [0; 16]);
            Action::SetIpv6 { src: keep(), dst: m([7; 16], [0xff; 16]), label: m(0, 0), tclass: m(0, 0), hlimit: m(0, 0) }
        } else {
            Action::SetIpv4 { src: m(0, 0), dst: m(7, u32::MAX), tos: m(0, 0), ttl: m(0, 0) }
        };
        let mut list = vec![set];
        list.push(match s.proto {
            58 => Action::SetIcmp { v6: true, ty: m(9, 0xff), code: m(9, 0xff) },
            proto => Action::SetL4 { proto, src: m(9, 0xffff), dst: m(9, 0xffff) },
        });
        if push {
            list.insert(0, Action::PushMpls { lse: 0x100, ethertype: 0x8847 });
            list.push(Action::PopMpls { ethertype: if s.v6 { 0x86dd } else { 0x0800 } });
        }
        for a in &list {
            prop_assert_eq!(apply(&mut p, &mut meta, a, 0), Ok(()));
        }
        let same = p.to_vec()[l4..] == before[l4..];
        // A datagram without checksum has none afterwards; an updated sum may be equal to the old one.
        let none = s.proto == 17 && before[l4 + 6..l4 + 8] == [0, 0];
        prop_assert!(same || keeps == least && !none, "{:?}", meta);
    }

    /// No action panics on any bytes, for any offsets.
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..120), s in shape(), v in any::<[u16; 3]>(), proto in any::<u8>()) {
        let masked = m(0, u8::MAX);
        let list = [
            Action::SetIpv4 { src: m(1, u32::MAX), dst: m(2, u32::MAX), tos: masked, ttl: masked },
            Action::SetL4 { proto, src: m(1, 1), dst: m(1, 1) },
            Action::SetL4 { proto: 132, src: m(1, 1), dst: m(1, 1) },
            Action::SetIcmp { v6: s.v6, ty: masked, code: masked },
            Action::SetArp { sip: m(1, 1), tip: m(1, 1), op: m(1, 1), sha: m([1; 6], [1; 6]), tha: m([1; 6], [1; 6]) },
            Action::SetNd { target: m([1; 16], [1; 16]), sll: m([1; 6], [1; 6]), tll: m([1; 6], [1; 6]) },
            Action::SetNdExt { reserved: m(1, 1), option: masked },
            Action::PushVlan { tpid: 0x8100, tci: 0x1001 },
            Action::PushMpls { lse: 1, ethertype: 0x8847 },
            Action::PopMpls { ethertype: 0x0800 },
            Action::SetMpls(m(1, 1)),
            Action::PopVlan,
        ];
        for a in &list {
            let mut p = Packet::from_bytes(&bytes);
            let mut meta = Meta { l2_5: v[0], l3: v[1], l4: v[2], l4_end: usize::from(v[0]), proto, ..Meta::default() };
            let _ = apply(&mut p, &mut meta, a, 0);
        }
    }
}

/// Wire length of a segment of a GSO packet in a tunnel: the outer headers count, too, although `meta` has
/// other offsets.
#[test]
fn segments_in_tunnels_have_all_headers() {
    const OUTER: usize = 50;
    let mut bytes = vec![0; OUTER + 54 + 3000];
    // TCP without options.
    bytes[OUTER + 34 + 12] = 0x50;
    let mut p = Packet::new_big();
    p.set_bytes(&bytes);
    let at = |n: usize| u16::try_from(n).unwrap();
    p.offload.csum = Csum::Partial {
        start: at(OUTER + 34),
        offset: 16,
    };
    p.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        ecn: false,
        size: 1000,
        hdr_len: 0,
        wraps: Wraps::default().with(Wrap::Geneve).unwrap(),
    });
    let meta = Meta {
        l3: 14,
        l4: 34,
        ..Meta::default()
    };
    assert_eq!(wire_len(&p, &meta), OUTER + 54 + 1000);
}

/// A neighbour solicitation becomes an advertisement: flags, the option's type, then the address in it; the
/// checksum follows. Without an option there is no type to write.
#[test]
fn neighbour_discovery_beside_its_addresses() {
    let whole = |v| Masked {
        value: v,
        mask: u8::MAX,
    };
    let ext = Action::SetNdExt {
        reserved: m(0xe000_0000, u32::MAX),
        option: whole(2),
    };
    let nd = Action::SetNd {
        target: Masked::default(),
        sll: Masked::default(),
        tll: m([2, 0, 0, 0, 0, 0xfe], [0xff; 6]),
    };
    for options in [8, 0] {
        let mut icmp = vec![136, 0, 0, 0, 0, 0, 0, 0];
        icmp.extend([0xaa; 16]);
        icmp.extend(&[1, 1, 9, 9, 9, 9, 9, 9][..options]);
        let mut b = vec![0; 12];
        b.extend([
            0x86,
            0xdd,
            0x60,
            0,
            0,
            0,
            0,
            u8::try_from(icmp.len()).unwrap(),
            58,
            255,
        ]);
        b.extend([0; 32]);
        let sum = heddle_wire::checksum::Sum::ZERO
            .pseudo_v6(&[0; 16], &[0; 16], 58, u32::try_from(icmp.len()).unwrap())
            .bytes(&icmp)
            .checksum();
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        b.extend(icmp);
        let mut p = Packet::from_bytes(&b);
        let (_, mut meta) = parsed(&mut p, packet_type::ETHERNET, 2);
        assert_eq!(apply(&mut p, &mut meta, &ext, 0), Ok(()));
        assert_eq!(apply(&mut p, &mut meta, &nd, 0), Ok(()));
        let (key, again) = parsed(&mut p, packet_type::ETHERNET, 2);
        verify(&p, &again, &key).unwrap();
        assert_eq!(key.igmp_group, 0xe000_0000);
        let want = if options == 0 {
            ([0; 6], 0)
        } else {
            ([2, 0, 0, 0, 0, 0xfe], 2)
        };
        assert_eq!((key.arp_tha, key.tcp_flags), want);
        assert_eq!(key.nd_target, [0xaa; 16]);
    }
    let text = heddle_datapath_api::format_actions(&[ext], None);
    assert_eq!(text, "set(nd_ext(nd_reserved=0xe0000000,nd_options_type=2))");
}

/// If there is no room for a copy, packets that failed before are not counted as dropped again.
#[test]
fn packets_without_room_for_a_copy_are_counted_once() {
    let tracker = Conntrack::new(heddle_conntrack::Config::default()).unwrap();
    let (counts, drops, fragments) = (CtCounts::default(), Drops::default(), Ipf::default());
    let bell = || Arc::new(Bell::new().unwrap());
    let bells = Lanes {
        packets: bell(),
        control: bell(),
        samples: bell(),
    };
    let (mut upcalls, _readers) = upcall_ring(8, &bells);
    let mut live = Live {
        burst: (0..4).map(|_| Packet::from_bytes(&[0; 60])).collect(),
        copies: (1..MAX_COPIES).map(|_| Packet::new()).collect(),
    };
    let mut exec = Exec {
        live: &mut live,
        key: None,
        context: None,
        ct: Ct {
            tracker: &tracker,
            counts: &counts,
            now_ms: 0,
        },
        fragments: &fragments,
        resumed: &mut Vec::new(),
        tracked: &mut Tracked::new(),
        pool: &mut Pool::new(8),
        tx: &mut TxTable::default(),
        upcalls: &mut upcalls,
        recirc: &mut None,
        drops: &drops,
        random: &mut 1,
        now_ms: 0,
    };
    // There is room for the first copy. The third packet has failed before.
    let mut failed = 0b0100;
    assert_eq!(exec.copy_all(0..4, &mut failed).len(), 4);
    assert_eq!((failed, drops.get(DropKind::Copies)), (0b1110, 2));
}
