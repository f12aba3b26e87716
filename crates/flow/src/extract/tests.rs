use super::*;
use proptest::prelude::*;

/// Keys that the real daemon makes of odd packets.
const CASES: &str = include_str!("cases.tsv");

fn hex(s: &str) -> Vec<u8> {
    (0..s.len() / 2)
        .map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).expect("hex"))
        .collect()
}

fn read(b: &[u8]) -> (FlowKey, Layers) {
    // Old contents of the key must not remain.
    let mut k = FlowKey::default();
    k.words_mut().fill(u64::MAX);
    let l = extract(b, &Hint::ethernet(b.len()), &mut k);
    (k, l)
}

fn case(name: &str) -> Vec<u8> {
    let line = CASES
        .lines()
        .find(|l| l.split('\t').next() == Some(name))
        .expect(name);
    hex(line.split('\t').nth(1).expect("packet"))
}

#[test]
fn as_open_vswitch_reads_them() {
    let mut n = 0;
    for line in CASES.lines().filter(|l| !l.starts_with('#')) {
        let [name, packet, want] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let (mut key, _) = read(&hex(packet));
        key.in_port = 1;
        assert_eq!(key.to_string(), want, "{name}");
        n += 1;
    }
    assert!(n > 100, "{n} cases");
}

#[test]
fn layers_and_oddities() {
    const NO: u16 = NO_OFFSET;
    for (name, l2_5, l3, l4, l2_pad, oddity) in [
        ("tcp", NO, 14, 34, 0, None),
        ("tcp padded", NO, 14, 34, 12, None),
        ("udp6", NO, 14, 54, 12, None),
        ("vlan", NO, 18, 38, 0, None),
        ("qinq", NO, 22, 42, 0, None),
        ("mpls 2", 14, 22, NO, 0, None),
        ("mpls cut", 14, 14, NO, 0, None),
        ("ip options", NO, 14, 42, 0, None),
        ("hop by hop", NO, 14, 62, 0, None),
        ("frag6 later", NO, 14, 62, 0, None),
        ("later fragment", NO, 14, 34, 0, None),
        ("snap ip", NO, 22, 42, 0, None),
        ("llc", NO, 14, NO, 0, None),
        ("arp request", NO, 14, NO, 0, None),
        ("arp hln", NO, 14, NO, 0, Some(Oddity::Arp)),
        ("arp cut", NO, 14, NO, 0, Some(Oddity::Arp)),
        ("ipv4 19 bytes", NO, 14, NO, 0, Some(Oddity::Ipv4Header)),
        ("header length 4 words", NO, 14, NO, 0, Some(Oddity::Ipv4Header)),
        (
            "total length beyond frame",
            NO,
            14,
            NO,
            0,
            Some(Oddity::Ipv4Length),
        ),
        ("total length cuts tcp", NO, 14, 34, 1, Some(Oddity::L4Header)),
        ("tcp offset beyond", NO, 14, 34, 0, Some(Oddity::L4Header)),
        ("ipv6 payload beyond", NO, 14, NO, 0, Some(Oddity::Ipv6Length)),
        ("hop by hop beyond", NO, 14, NO, 0, Some(Oddity::Ipv6Extension)),
        ("nd sll twice", NO, 14, 54, 0, Some(Oddity::NdOption)),
    ] {
        let (_, l) = read(&case(name));
        assert_eq!(
            l,
            Layers {
                l2_5,
                l3,
                l4,
                l2_pad,
                oddity
            },
            "{name}"
        );
    }
}

#[test]
fn a_runt_has_no_ethertype() {
    for n in 0..14 {
        let (k, l) = read(&case("tcp")[..n]);
        assert_eq!(
            (k, l.l3, l.oddity),
            (FlowKey::default(), NO_OFFSET, Some(Oddity::Runt)),
            "{n} bytes"
        );
    }
}

#[test]
fn fields_that_no_text_shows() {
    assert_eq!(read(&case("igmp")).0.igmp_group, 0x0001_0002);
    let (k, _) = read(&case("nd advert"));
    assert_eq!((k.igmp_group, k.tcp_flags), (0x6000_0000, 2));
    let (k, _) = read(&case("mpls 4"));
    assert_eq!(k.mpls_lse.map(|l| l >> 12), [1, 2, 3]);
    let (k, _) = read(&case("qinq"));
    assert_eq!(k.vlans.map(|v| v.tpid), [0x88a8, 0x8100]);
}

#[test]
fn the_vlan_limit_makes_inner_tags_ethertypes() {
    let packet = case("qinq");
    for (limit, tags, dl_type) in [
        (0u8, 0usize, 0x88a8),
        (1, 1, 0x8100),
        (2, 2, 0x0800),
        (9, 2, 0x0800),
    ] {
        let mut k = FlowKey::default();
        extract(
            &packet,
            &Hint {
                vlan_limit: limit,
                ..Hint::ethernet(packet.len())
            },
            &mut k,
        );
        assert_eq!(
            (k.vlans.iter().filter(|v| v.present()).count(), k.dl_type),
            (tags, dl_type),
            "limit {limit}"
        );
    }
}

#[test]
fn packets_without_ethernet() {
    let packet = &case("tcp")[14..];
    let mut k = FlowKey::default();
    let hint = Hint {
        packet_type: 0x1_0800,
        ..Hint::ethernet(packet.len())
    };
    let l = extract(packet, &hint, &mut k);
    assert_eq!(
        (k.packet_type, k.dl_type, k.tp_dst, k.dl_dst),
        (0x1_0800, 0x0800, 80, [0; 6])
    );
    assert_eq!((l.l3, l.l4), (0, 20));
}

#[test]
fn a_jumbo_frame_of_which_the_head_is_given() {
    let mut packet = case("udp");
    packet[16..18].copy_from_slice(&9000u16.to_be_bytes());
    let mut k = FlowKey::default();
    let hint = Hint::ethernet(14 + 9000);
    let l = extract(&packet, &hint, &mut k);
    assert_eq!((k.tp_dst, l.oddity), (4000, None));
    assert_eq!(
        extract(&packet[..36], &hint, &mut k).oddity,
        Some(Oddity::BeyondView)
    );
    assert_eq!(
        extract(&packet[..36], &Hint::ethernet(36), &mut k).oddity,
        Some(Oddity::Ipv4Length)
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read(b: Vec<u8>, extra in 0usize..70_000, vlan_limit: u8, packet_type: u32) {
        let mut k = FlowKey::default();
        let _ = extract(&b, &Hint { total_len: b.len() + extra, packet_type, vlan_limit }, &mut k);
        let _ = extract(&b, &Hint { total_len: 0, packet_type: 0, vlan_limit }, &mut k);
    }

    /// Changed and cut packets cause no panic. Offsets are within the packet, and the key's padding is zero.
    /// The result is the same from the packet's head, if all headers are in it.
    #[test]
    fn changed_packets(
        i in 0usize..200, changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        cut in any::<prop::sample::Index>(), view in any::<prop::sample::Index>(),
    ) {
        let lines: Vec<_> = CASES.lines().filter(|l| !l.starts_with('#')).collect();
        let mut b = hex(lines[i % lines.len()].split('\t').nth(1).expect("packet"));
        for (at, v) in changes {
            let at = at.index(b.len());
            b[at] = v;
        }
        b.truncate(cut.index(b.len() + 1));
        let (k, l) = read(&b);
        prop_assert_eq!((k._pad1, k._pad2, k._pad3, k._pad4), (0, 0, 0, 0));
        for ofs in [l.l2_5, l.l3, l.l4] {
            prop_assert!(ofs == NO_OFFSET || usize::from(ofs) <= b.len());
        }
        prop_assert_ne!(l.oddity, Some(Oddity::BeyondView));
        let mut part = FlowKey::default();
        let head = &b[..view.index(b.len() + 1)];
        let layers = extract(head, &Hint::ethernet(b.len()), &mut part);
        if layers.oddity != Some(Oddity::BeyondView) {
            prop_assert_eq!((part, layers), (k, l));
        }
    }
}
