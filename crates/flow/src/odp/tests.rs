use super::*;
use crate::compose::compose;
use crate::extract::{Hint, extract};
use crate::key::{FlowKey, FlowMask, Vlan};
use proptest::prelude::*;

/// Keys and masks as the real daemon printed them.
const CASES: &str = include_str!("cases.tsv");

fn verbose(key: &FlowKey, mask: &FlowMask) -> String {
    KeyText {
        key,
        mask: Some(mask),
        verbose: true,
        names: None,
        vlan_limit: 2,
    }
    .to_string()
}

#[test]
fn dumps_of_open_vswitch_are_read_and_written_again() {
    let mut n = 0;
    for line in CASES.lines().filter(|l| !l.starts_with('#')) {
        let (long, short) = line.split_once('\t').expect("two columns");
        // Opcode 255 is printed as one that cannot be read.
        if long.contains("op=65535") {
            assert!(parse_flow(long, None).is_err());
            continue;
        }
        let (key, mask) = parse_flow(long, None).expect(long);
        assert_eq!(verbose(&key, &mask), long);
        // The text does not show whether a tag's presence counts, if no other bit of the tag does.
        if !long.contains("/0x0,pcp=") {
            assert_eq!(format_key(&key, &mask), short);
        }
        n += 1;
    }
    assert!(n > 40, "{n} cases");
}

#[test]
fn attributes_that_dumps_of_packets_do_not_have() {
    for text in [
        "recirc_id(0x5),dp_hash(0x3/0xf),in_port(7),packet_type(ns=0,id=0),eth_type(0x0806)",
        "ct_state(-new+est+trk),ct_zone(0x9),ct_mark(0x1/0xff),ct_label(0x1),recirc_id(0x1),in_port(1),\
         packet_type(ns=0,id=0),eth_type(0x0800),ipv4(frag=no)",
        "tunnel(tun_id=0x5,src=1.1.1.2,dst=1.1.1.1,ttl=64,flags(-df-csum+key)),recirc_id(0),in_port(4),\
         packet_type(ns=0,id=0),eth_type(0x0800),ipv4(frag=no)",
        "ct_tuple4(src=10.0.0.1,dst=10.0.0.2,proto=6,tp_src=1,tp_dst=2),recirc_id(0),in_port(1),\
         packet_type(ns=0,id=0),eth_type(0x0800),ipv4(frag=no)",
    ] {
        let text = text.replace(' ', "");
        // The packet type alone makes these Ethernet packets; the reader uses the attribute.
        let (key, mask) = parse_flow(&format!("eth(),{text}"), None).expect(&text);
        assert_eq!(format_key(&key, &mask), text);
    }
}

#[test]
fn names_of_ports() {
    let numbers = |s: &str| (s == "p1").then_some(3);
    let names = |p: u32| (p == 3).then(|| "p1".to_string());
    let key = parse_key(
        "in_port(p1),eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),eth_type(0x1234)",
        Some(&numbers),
    );
    let key = key.expect("port by name");
    assert_eq!(key.in_port, 3);
    let text = KeyText {
        key: &key,
        mask: None,
        verbose: false,
        names: Some(&names),
        vlan_limit: 2,
    }
    .to_string();
    assert!(text.contains("in_port(p1),"), "{text}");
    assert!(parse_key("in_port(p2)", Some(&numbers)).is_err());
    assert_eq!(
        parse_key("eth(),eth_type(0x1234)", None).map(|k| k.in_port),
        Ok(PORT_NONE)
    );
}

#[test]
fn a_key_without_ethernet_has_the_packet_type_of_its_ethertype() {
    let key = parse_key(
        "in_port(1),eth_type(0x0800),ipv4(proto=17),udp(src=1,dst=2)",
        None,
    )
    .expect("key");
    assert_eq!((key.packet_type, key.dl_type, key.tp_dst), (0x1_0800, 0x0800, 2));
}

#[test]
fn what_has_no_place_is_ignored() {
    let key = parse_key(
        "in_port(1),eth(),eth_type(0x0800),ipv4(proto=17),tcp(src=1,dst=2),arp(op=1)",
        None,
    );
    assert_eq!(key.map(|k| (k.tp_src, k.nw_proto)), Ok((0, 17)));
}

#[test]
fn errors_say_where() {
    for (text, want) in [
        ("eth(),nonsense(1)", "syntax error at nonsense(1)"),
        ("eth(", "syntax error at eth("),
        ("eth(src=1)", "syntax error at eth(src=1)"),
        ("in_port(1),eth_type", "syntax error at eth_type"),
        ("ipv4(frag=maybe)", "syntax error at ipv4(frag=maybe)"),
        ("eth(),eth_type(0x5ff)", "invalid Ethertype 1535 in flow key"),
        ("tcp(src=1,)", "syntax error at tcp(src=1,)"),
    ] {
        assert_eq!(parse_key(text, None), Err(want.to_string()), "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read(s in "[a-z0-9_(),=/:. ]{0,80}|(eth|ipv4|vlan|encap|tcp|mpls|tunnel)\\([a-z0-9=,/.()]{0,30}\\)") {
        let _ = parse_flow(&s, None);
    }

    #[test]
    fn keys_of_packets_are_written_and_read_again(key in crate::compose::tests::packet_key(), port in 0u32..10) {
        let mut key = key;
        key.in_port = port;
        let text = KeyText { key: &key, mask: None, verbose: false, names: None, vlan_limit: 2 }.to_string();
        let got = parse_key(&text, None).expect(&text);
        // The text has no place for these.
        if key.nw_proto == 2 {
            (key.igmp_group, key.tp_src, key.tp_dst) = (0, 0, 0);
        }
        prop_assert_eq!(got, key, "{}", text);
    }

    #[test]
    fn masked_keys_are_written_and_read_again(key in crate::compose::tests::packet_key(), bits: [u64; 7]) {
        let packet = compose(&key, 0);
        let mut key = FlowKey::default();
        extract(&packet, &Hint::ethernet(packet.len()), &mut key);
        let mut mask = FlowMask::for_packet(&key);
        for (w, b) in mask.words_mut().iter_mut().zip(bits.iter().cycle()) {
            *w &= b;
        }
        // A datapath's mask always has recirculation, packet type, EtherType and tags' presence.
        mask.0.ipv6_label &= 0xf_ffff;
        // If these do not count, the text does not show them, but later parts depend on them.
        mask.0.nw_frag = crate::key::frag::MASK;
        mask.0.tcp_flags = 0xfff;
        mask.0.recirc_id = u32::MAX;
        mask.0.packet_type = u32::MAX;
        mask.0.dl_type = u16::MAX;
        for (tag, m) in key.vlans.iter().zip(&mut mask.0.vlans) {
            if tag.present() {
                *m = Vlan { tpid: u16::MAX, tci: m.tci | Vlan::CFI };
            }
        }
        let text = verbose(&key, &mask);
        let (k, m) = parse_flow(&text, None).expect(&text);
        prop_assert_eq!(verbose(&k, &m), text);
    }
}
