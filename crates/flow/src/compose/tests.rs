use super::*;
use crate::extract::{Hint, extract};
use crate::key::{Nsh, Vlan};
use proptest::prelude::*;

fn vlan() -> impl Strategy<Value = Vlan> {
    (prop_oneof![Just(0x8100), Just(0x88a8)], any::<u16>()).prop_map(|(tpid, tci)| Vlan {
        tpid,
        tci: tci | Vlan::CFI,
    })
}

fn mac() -> impl Strategy<Value = [u8; 6]> {
    any::<[u8; 6]>()
}

/// Keys that a packet can have (without the parts that come from elsewhere).
pub(crate) fn packet_key() -> impl Strategy<Value = FlowKey> {
    let l2 = (mac(), mac(), proptest::collection::vec(vlan(), 0..=2));
    let kind = prop_oneof![
        Just((0x0800u16, 6u8)),
        Just((0x0800, 17)),
        Just((0x0800, 132)),
        Just((0x0800, 1)),
        Just((0x0800, 2)),
        Just((0x0800, 47)),
        Just((0x86dd, 6)),
        Just((0x86dd, 17)),
        Just((0x86dd, 132)),
        Just((0x86dd, 58)),
        Just((0x86dd, 59)),
        Just((0x0806, 1)),
        Just((0x8035, 2)),
        Just((0x8847, 0)),
        Just((0x8848, 0)),
        Just((0x88b5, 0)),
        Just((0x894f, 0)),
        Just((0x05ff, 0)),
    ];
    let l3 = (
        any::<u32>(),
        any::<u32>(),
        any::<[u8; 16]>(),
        any::<[u8; 16]>(),
        any::<u32>(),
        any::<[u8; 2]>(),
        0u8..3,
    );
    let l4 = (
        any::<u16>(),
        any::<u16>(),
        any::<u16>(),
        any::<u32>(),
        mac(),
        mac(),
        any::<[u32; 3]>(),
        any::<bool>(),
    );
    (l2, kind, l3, l4).prop_map(|((dst, src, vlans), (ty, p), l3, l4)| key(dst, src, &vlans, ty, p, l3, l4))
}

type L3 = (u32, u32, [u8; 16], [u8; 16], u32, [u8; 2], u8);
type L4 = (u16, u16, u16, u32, [u8; 6], [u8; 6], [u32; 3], bool);

fn key(dl_dst: [u8; 6], dl_src: [u8; 6], vlans: &[Vlan], ty: u16, p: u8, l3: L3, l4: L4) -> FlowKey {
    let mut k = FlowKey {
        dl_dst,
        dl_src,
        dl_type: ty,
        ..FlowKey::default()
    };
    if ty != DL_TYPE_NONE {
        for (slot, tag) in k.vlans.iter_mut().zip(vlans) {
            *slot = *tag;
        }
    }
    let (src, dst, src6, dst6, label, [tos, ttl], frag) = l3;
    let (sp, dp, flags, group, sha, tha, lse, nd) = l4;
    match ty {
        ethertype::IP => {
            (k.nw_src, k.nw_dst, k.nw_tos, k.nw_ttl, k.nw_proto) = (src, dst, tos, ttl, p);
            k.nw_frag = [0, frag::ANY, frag::MASK][usize::from(frag)];
        }
        ethertype::IPV6 => {
            (k.ipv6_src, k.ipv6_dst, k.ipv6_label) = (src6, dst6, label & 0xf_ffff);
            (k.nw_tos, k.nw_ttl, k.nw_proto) = (tos, ttl, p);
        }
        ethertype::ARP | ethertype::RARP => {
            (k.nw_src, k.nw_dst, k.nw_proto, k.arp_sha, k.arp_tha) = (src, dst, p, sha, tha);
        }
        ethertype::NSH => {
            let md1 = frag == 0;
            let [c1, c2, c3, c4] = std::array::from_fn(|i| if md1 { [src, dst, label, group][i] } else { 0 });
            k.nsh = Nsh {
                flags: tos & 3,
                ttl: ttl & 0x3f,
                mdtype: if md1 { MD_TYPE_1 } else { frag + 1 },
                np: tos,
                path: lse[0],
                c1,
                c2,
                c3,
                c4,
            };
        }
        t if is_mpls(t) => {
            let n = usize::from(frag);
            for (i, (slot, l)) in k.mpls_lse.iter_mut().zip(lse).enumerate().take(n + 1) {
                *slot = if i == n { l | 0x100 } else { l & !0x100 };
            }
        }
        _ => {}
    }
    if k.nw_frag & frag::LATER != 0 || !matches!(ty, ethertype::IP | ethertype::IPV6) {
        return k;
    }
    match p {
        proto::TCP => (k.tp_src, k.tp_dst, k.tcp_flags) = (sp, dp, flags & 0xfff),
        proto::UDP | proto::SCTP => (k.tp_src, k.tp_dst) = (sp, dp),
        proto::ICMP => (k.tp_src, k.tp_dst) = (sp & 0xff, dp & 0xff),
        proto::IGMP => (k.tp_src, k.tp_dst, k.igmp_group) = (sp & 0xff, dp & 0xff, group),
        proto::ICMPV6 if nd => {
            (k.tp_src, k.igmp_group) = (135 + (sp & 1), group);
            (k.nd_target, k.arp_sha, k.arp_tha) = (dst6, sha, tha);
            k.tcp_flags = if sha != [0; 6] {
                1
            } else {
                u16::from(tha != [0; 6]) * 2
            };
        }
        proto::ICMPV6 => (k.tp_src, k.tp_dst) = (sp & 0x7f, dp & 0xff),
        _ => {}
    }
    k
}

fn read(packet: &[u8]) -> FlowKey {
    let mut k = FlowKey::default();
    let layers = extract(packet, &Hint::ethernet(packet.len()), &mut k);
    assert_eq!(layers.oddity, None, "{packet:02x?}");
    k
}

/// Whether an IPv4 packet's checksums are right, or a reason why there is none to look at.
fn checksums_right(packet: &[u8], k: &FlowKey) -> bool {
    let mut again = FlowKey::default();
    let l = extract(packet, &Hint::ethernet(packet.len()), &mut again);
    let (l3, l4) = (&packet[usize::from(l.l3)..], &packet[usize::from(l.l4)..]);
    let len = u32::try_from(l4.len()).expect("short");
    let pseudo = if k.dl_type == ethertype::IP {
        assert_eq!(checksum(&l3[..20]), 0);
        Sum::ZERO.pseudo_v4(k.nw_src, k.nw_dst, k.nw_proto, len)
    } else {
        Sum::ZERO.pseudo_v6(&k.ipv6_src, &k.ipv6_dst, k.nw_proto, len)
    };
    match (k.dl_type, k.nw_proto) {
        (_, proto::TCP | proto::UDP) | (ethertype::IPV6, proto::ICMPV6) => pseudo.bytes(l4).checksum() == 0,
        (ethertype::IP, proto::ICMP | proto::IGMP) => checksum(l4) == 0,
        (_, proto::SCTP) => {
            let mut zeroed = l4.to_vec();
            zeroed[8..12].fill(0);
            crc32c(&zeroed)[..] == l4[8..12]
        }
        _ => true,
    }
}

#[test]
fn sizes() {
    let k = FlowKey::parse_text("udp,nw_src=1.2.3.4,udp_dst=9", None).expect("key");
    assert_eq!(compose(&k, 64).len(), 14 + 20 + 8 + 64);
    assert_eq!(compose_sized(&k, 100).map(|p| p.len()), Some(100));
    assert_eq!(compose_sized(&k, 41), None);
    assert_eq!(compose_sized(&k, 70_000), None);
    assert!(compose(&k, 1 << 20).len() <= 65_549);
    let llc = FlowKey {
        dl_type: DL_TYPE_NONE,
        ..FlowKey::default()
    };
    assert_eq!(
        compose_sized(&llc, 60).map(|p| (p.len(), p[12..14].to_vec())),
        Some((60, vec![0, 60]))
    );
}

/// Bytes that Open vSwitch 3.1.0's dummy port sent on for the same text.
#[test]
fn as_open_vswitch_composes() {
    for line in include_str!("cases.tsv").lines().filter(|l| !l.starts_with('#')) {
        let (text, hex) = line.split_once('\t').expect("two columns");
        let key = crate::odp::parse_key(text, None).expect(text);
        let got: String = compose(&key, 64).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(got, hex, "{text}");
    }
}

proptest! {
    #[test]
    fn what_is_composed_reads_as_its_key(k in packet_key(), n in 0usize..200) {
        let packet = compose(&k, n);
        prop_assert_eq!(read(&packet), k, "{:02x?}", packet);
        if matches!(k.dl_type, ethertype::IP | ethertype::IPV6) && k.nw_frag & frag::LATER == 0 {
            prop_assert!(checksums_right(&packet, &k), "{:02x?}", packet);
        }
        let padded = compose_sized(&k, packet.len() + 10).expect("longer");
        let stream = matches!(k.nw_proto, proto::ICMPV6 | proto::SCTP) || k.dl_type == DL_TYPE_NONE;
        prop_assert!(stream || read(&padded) == k);
    }

    #[test]
    fn any_key_is_composed(words: [u64; 9]) {
        let mut k = FlowKey::default();
        for (w, x) in k.words_mut().iter_mut().zip(words.iter().cycle()) {
            *w = *x;
        }
        let _ = compose(&k, 10);
    }
}
