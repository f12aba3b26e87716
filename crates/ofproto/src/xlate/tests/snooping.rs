//! Multicast snooping: what reports and queries teach, and the ports that multicast goes to.

use super::lab::{Lab, to};
use crate::model::VlanMode;
use crate::snooping::{GroupKey, SnoopingConfig, SnoopingTable, SnoopingView};
use heddle_datapath_api::{Purpose, Request, Translate, Translation, format_actions};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_openflow::Port;
use heddle_packet::Packet;
use std::sync::Arc;

/// Bridges with ports 1 to `n`, the first with snooping. The local port is not among the outputs.
fn lab_of(ports: &[u32], flood_unregistered: bool) -> Lab {
    let mut lab = Lab::new(ports);
    for bridge in &mut lab.bridges {
        for (n, bundle) in (0..).zip(&mut bridge.bundles) {
            bundle.id = n + 100;
        }
        // The local port is in a VLAN of its own.
        (bridge.bundles[0].vlan_mode, bridge.bundles[0].tag) = (VlanMode::Access, Some(4000));
    }
    lab.bridges[0].snooping = Some(SnoopingView {
        table: Arc::new(SnoopingTable::new(
            lab.generations.clone(),
            &SnoopingConfig::default(),
        )),
        flood_unregistered,
        flood: Vec::new(),
        flood_reports: Vec::new(),
    });
    lab.rule((0, 0), "", vec![to(Port::NORMAL)]);
    lab.publish();
    lab
}

fn lab(flood_unregistered: bool) -> Lab {
    lab_of(&[5], flood_unregistered)
}

fn view(lab: &mut Lab) -> &mut SnoopingView {
    lab.bridges[0].snooping.as_mut().unwrap()
}

fn listener(port: u32) -> crate::snooping::Listener {
    crate::snooping::Listener {
        bundle: port + 100,
        port: Port(port),
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |p: &[u8]| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

/// An IPv4 packet of IGMP in VLAN `vlan`, from 10.0.0.1 to 239.1.1.1.
fn igmp(vlan: u16, body: &str) -> Vec<u8> {
    let mut body = bytes(body);
    let sum = heddle_wire::checksum::checksum(&body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = bytes("01005e010101 020000000009");
    if vlan != 0 {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend(bytes("0800 4500"));
    frame.extend(u16::try_from(20 + body.len()).unwrap().to_be_bytes());
    frame.extend(bytes("0000 0000 01 02 0000 0a000001 ef010101"));
    frame.extend(body);
    frame
}

const JOIN: &str = "16000000 ef010101";
const LEAVE: &str = "17000000 ef010101";
const QUERY: &str = "11640000 00000000";

/// MLD 1 report for ff05::1:3, as Linux sends it.
const MLD_JOIN: &str = "333300010003 020000000009 86dd 60000000 0020 00 01 \
    fe800000000000000000000000000009 ff050000000000000000000000010003 3a00 0502 0000 0100 \
    8300 800f 0000 0000 ff050000000000000000000000010003";

fn receive(lab: &Lab, port: u32, frame: &[u8]) -> (String, Translation) {
    receive_at(lab, port, frame, 1000)
}

fn receive_at(lab: &Lab, port: u32, frame: &[u8], now_ms: u64) -> (String, Translation) {
    let packet = Packet::from_bytes(frame);
    let mut key = FlowKey::default();
    extract(packet.head(), &Hint::ethernet(packet.len()), &mut key);
    key.in_port = port;
    let mut t = Translation::default();
    let request = Request {
        key: &key,
        packet: Some(&packet),
        now_ms,
        purpose: Purpose::Miss,
    };
    lab.pipeline.translate(&request, &mut t);
    (format_actions(&t.actions, None), t)
}

fn send(lab: &Lab, port: u32, frame: &[u8]) -> String {
    receive(lab, port, frame).0
}

const DATA: &str = "in_port=1,udp,dl_src=02:00:00:00:00:07,dl_dst=01:00:5e:01:01:01,nw_dst=239.1.1.1";
const DATA6: &str = "in_port=1,udp6,dl_src=02:00:00:00:00:07,dl_dst=33:33:00:01:00:03,ipv6_dst=ff05::1:3";

#[test]
fn data_goes_to_listeners_only() {
    let lab = lab(true);
    let flooded = lab.translate(&Lab::key(DATA), Purpose::Miss);
    assert_eq!(format_actions(&flooded.actions, None), "2,3,4,5");
    assert!(!flooded.uncacheable);
    let (report, t) = receive(&lab, 3, &igmp(0, JOIN));
    assert_eq!(report, "drop", "no router wants it");
    assert!(t.uncacheable, "each report is to refresh the table");
    assert!(!lab.generations.hold(&flooded.deps));
    let cached = lab.translate(&Lab::key(DATA), Purpose::Miss);
    assert_eq!(format_actions(&cached.actions, None), "3");
    // A report that changes nothing leaves cached translations alone.
    receive(&lab, 3, &igmp(0, JOIN));
    assert!(lab.generations.hold(&cached.deps));
    receive(&lab, 4, &igmp(0, JOIN));
    assert_eq!(lab.actions(DATA), "3,4");
    assert_eq!(lab.actions(&DATA.replace("in_port=1", "in_port=3")), "4");
    receive(&lab, 3, &igmp(0, LEAVE));
    receive(&lab, 4, &igmp(0, LEAVE));
    assert_eq!(lab.actions(DATA), "2,3,4,5");
    // The mask has what decides, and nothing else of the packet.
    let m = &cached.mask.0;
    assert_eq!(
        (m.nw_proto, m.nw_dst, m.nw_src, m.tp_src, m.tp_dst),
        (0xff, u32::MAX, 0, 0, 0)
    );
}

#[test]
fn routers_get_everything_in_their_vlan() {
    let mut lab = lab(false);
    assert_eq!(lab.actions(DATA), "drop");
    assert_eq!(send(&lab, 5, &igmp(0, QUERY)), "1,2,3,4", "queries are for all");
    assert_eq!(lab.actions(DATA), "5");
    assert_eq!(send(&lab, 3, &igmp(0, JOIN)), "5");
    assert_eq!(lab.actions(DATA), "3,5");
    // A router's own report makes it no listener, and a query makes a listener a router: one copy each.
    receive(&lab, 5, &igmp(0, JOIN));
    receive(&lab, 3, &igmp(0, QUERY));
    assert_eq!(lab.actions(DATA), "3,5");
    let tagged = DATA.replace("udp,", "udp,dl_vlan=9,");
    assert_eq!(lab.actions(&tagged), "drop");
    receive(&lab, 5, &igmp(9, QUERY));
    assert_eq!(lab.actions(&tagged), "5");
    // A port that leaves the VLAN gets no more of it.
    (lab.bridges[0].bundles[5].vlan_mode, lab.bridges[0].bundles[5].tag) = (VlanMode::Access, Some(8));
    lab.publish();
    assert_eq!(lab.actions(&tagged), "drop");
}

#[test]
fn flood_ports_get_data_of_their_vlans_and_teach_nothing() {
    let mut lab = lab(false);
    view(&mut lab).flood = vec![listener(4), listener(2)];
    lab.bridges[0].bundles[4].snooping.flood = true;
    lab.publish();
    assert_eq!(lab.actions(DATA), "4,2");
    receive(&lab, 4, &igmp(0, QUERY));
    receive(&lab, 4, &igmp(0, JOIN));
    assert!(view(&mut lab).table.entries(0).is_empty());
    receive(&lab, 3, &igmp(0, JOIN));
    receive(&lab, 2, &igmp(0, JOIN));
    assert_eq!(lab.actions(DATA), "3,2,4", "each port once");
    (lab.bridges[0].bundles[4].vlan_mode, lab.bridges[0].bundles[4].tag) = (VlanMode::Access, Some(8));
    lab.publish();
    assert_eq!(lab.actions(DATA), "3,2");
}

#[test]
fn ports_for_reports_get_them_and_never_leave_at_once() {
    let mut lab = lab(true);
    view(&mut lab).flood_reports = vec![listener(2), listener(3)];
    lab.bridges[0].bundles[3].snooping.flood_reports = true;
    lab.publish();
    assert_eq!(send(&lab, 1, &igmp(0, JOIN)), "2,3");
    assert_eq!(send(&lab, 3, &igmp(0, JOIN)), "2");
    receive(&lab, 1, &igmp(0, LEAVE));
    receive(&lab, 3, &igmp(0, LEAVE));
    assert_eq!(lab.actions(DATA), "3", "another host may be behind the port");
}

#[test]
fn local_groups_and_other_frames_are_flooded() {
    let lab = lab(false);
    for (dst, ip) in [
        ("01:00:5e:00:00:fb", "udp,nw_dst=224.0.0.251"),
        ("33:33:00:00:00:01", "udp6,ipv6_dst=ff02::1"),
        ("01:00:5e:01:01:01", "dl_type=0x1234"),
        ("ff:ff:ff:ff:ff:ff", "udp,nw_dst=239.1.1.1"),
        // A type of IGMP that no version of the protocol has.
        ("01:00:5e:01:01:01", "ip,nw_proto=2,nw_dst=239.1.1.1"),
    ] {
        let key = format!("in_port=1,dl_src=02:00:00:00:00:07,dl_dst={dst},{ip}");
        assert_eq!(lab.actions(&key), "2,3,4,5", "{key}");
    }
    for ip in [
        "udp,nw_dst=224.0.1.1",
        "udp6,ipv6_dst=ff02::2",
        "icmp6,ipv6_dst=ff05::1,icmpv6_type=128",
    ] {
        let key = format!("in_port=1,dl_src=02:00:00:00:00:07,dl_dst=01:00:5e:01:01:01,{ip}");
        assert_eq!(lab.actions(&key), "drop", "{key}");
    }
}

#[test]
fn mld_is_learned_as_igmp_is() {
    let lab = lab(false);
    assert_eq!(lab.actions(DATA6), "drop");
    let (report, t) = receive(&lab, 2, &bytes(MLD_JOIN));
    assert_eq!((&*report, t.uncacheable), ("drop", true));
    let found = lab.bridges[0].snooping.as_ref().unwrap().table.entries(0);
    assert_eq!(
        found[0].key.group,
        "ff05::1:3".parse::<std::net::Ipv6Addr>().unwrap()
    );
    assert_eq!(lab.actions(DATA6), "2");
    // Neighbour discovery needs no reports, but it is multicast of a group.
    let t = lab.translate(
        &Lab::key(&DATA6.replace("udp6", "icmp6,icmpv6_type=135")),
        Purpose::Miss,
    );
    assert_eq!(
        (format_actions(&t.actions, None).as_str(), t.uncacheable),
        ("2", false)
    );
    assert_eq!(t.mask.0.tp_src, 0xff, "not to be taken for MLD");
}

/// A wrong checksum, a trace without a packet and a check of a cached entry teach nothing.
#[test]
fn only_packets_teach() {
    let lab = lab(true);
    let mut bad = igmp(0, JOIN);
    *bad.last_mut().unwrap() ^= 1;
    receive(&lab, 3, &bad);
    let key = "in_port=3,ip,nw_proto=2,dl_dst=01:00:5e:01:01:01,nw_dst=239.1.1.1";
    lab.trace(&["br0", key]).unwrap();
    let report = FlowKey {
        tp_src: 0x16,
        ..Lab::key(key)
    };
    lab.translate(&report, Purpose::Miss);
    lab.translate(&report, Purpose::Revalidate);
    let table = &lab.bridges[0].snooping.as_ref().unwrap().table;
    assert!(table.entries(0).is_empty());
    // A trace with a packet has its effects.
    let hex: String = igmp(0, JOIN).iter().map(|b| format!("{b:02x}")).collect();
    let text = lab.trace(&["br0", "in_port=3", &hex]).unwrap().text;
    assert!(
        text.contains(" -> multicast snooping learned that 239.1.1.1 is on port p03 in VLAN 0\n"),
        "{text}"
    );
    assert_eq!(table.entries(0).len(), 1);
}

/// A report that crosses a patch port is learned on both bridges.
#[test]
fn patch_ports_are_ports() {
    let mut lab = lab_of(&[3, 3], false);
    lab.patch((0, 3), (1, 3));
    lab.bridges[1].snooping = Some(SnoopingView {
        table: Arc::new(SnoopingTable::new(
            lab.generations.clone(),
            &SnoopingConfig::default(),
        )),
        ..lab.bridges[0].snooping.clone().unwrap()
    });
    lab.rule((1, 0), "", vec![to(Port::NORMAL)]);
    view(&mut lab).flood_reports = vec![listener(3)];
    lab.publish();
    receive(&lab, 1, &igmp(0, JOIN));
    let at = |lab: &Lab, bridge: usize| {
        let table = &lab.bridges[bridge].snooping.as_ref().unwrap().table;
        table
            .entries(0)
            .iter()
            .map(|e| e.listener.port)
            .collect::<Vec<_>>()
    };
    assert_eq!((at(&lab, 0), at(&lab, 1)), (vec![Port(1)], vec![Port(3)]));
    let other = lab.translate(
        &FlowKey {
            in_port: 101,
            ..Lab::key(DATA)
        },
        Purpose::Miss,
    );
    assert_eq!(format_actions(&other.actions, None), "1");
}

/// A bond is one listener, and stays it when the port that the report came in by leaves the bond.
#[test]
fn a_bond_is_one_listener() {
    let mut lab = lab(false);
    lab.bridges[0].bundles[2].ports = vec![Port(2), Port(3)];
    lab.bridges[0].bundles.remove(3);
    lab.publish();
    receive(&lab, 2, &igmp(0, JOIN));
    receive(&lab, 3, &igmp(0, JOIN));
    assert_eq!(lab.actions(DATA), "2");
    lab.bridges[0].bundles[2].ports = vec![Port(3)];
    lab.publish();
    assert_eq!(lab.actions(DATA), "3");
    // Another row of that name is another listener.
    lab.bridges[0].bundles[2].id = 77;
    lab.publish();
    assert_eq!(lab.actions(DATA), "drop");
}

/// A thousand listeners are one translation, which is the same each time.
#[test]
fn a_large_group_is_one_translation() {
    let lab = lab_of(&[1000], false);
    let table = &lab.bridges[0].snooping.as_ref().unwrap().table;
    let key = GroupKey {
        group: std::net::Ipv4Addr::new(239, 1, 1, 1).to_ipv6_mapped(),
        vlan: 0,
    };
    for port in 2..=1000 {
        table.learn(std::iter::once(crate::snooping::MembershipReport {
            key,
            from: listener(port),
            change: crate::snooping::MembershipChange::Join(heddle_wire::membership::Protocol::Igmp2),
            now_ms: 0,
        }));
    }
    let lab_key = FlowKey {
        in_port: 1,
        ..Lab::key(DATA)
    };
    let t = lab.translate(&lab_key, Purpose::Miss);
    assert_eq!((t.actions.len(), t.uncacheable), (999, false));
    assert_eq!(lab.translate(&lab_key, Purpose::Revalidate).actions, t.actions);
}

/// Multicast of all kinds that snooping tells apart, from ports 1 and 2.
fn keys() -> Vec<FlowKey> {
    let mut keys = Vec::new();
    for (port, vlan, dst) in origins() {
        let v4 = ["239.1.1.1", "239.1.1.2", "224.0.0.9"].map(|ip| format!("ip,nw_dst={ip}"));
        let v6 = ["ff05::1", "ff05::2", "ff02::1"].map(|ip| format!("ipv6,ipv6_dst={ip}"));
        let others = ["arp".to_owned(), "dl_type=0x1234".to_owned()];
        for l3 in v4.iter().chain(&v6).chain(&others) {
            let base = Lab::key(&format!(
                "in_port={port},{vlan}dl_src=02:00:00:00:00:07,dl_dst={dst},{l3}"
            ));
            keys.push(base);
            for (protocol, ty) in [
                (2, 0x11),
                (2, 0x16),
                (2, 0x33),
                (17, 0x16),
                (58, 128),
                (58, 130),
                (58, 143),
            ] {
                keys.push(FlowKey {
                    nw_proto: protocol,
                    tp_src: ty,
                    ..base
                });
            }
        }
    }
    keys
}

fn origins() -> impl Iterator<Item = (u32, &'static str, &'static str)> {
    let macs = ["01:00:5e:01:01:01", "ff:ff:ff:ff:ff:ff"];
    let vlans = ["", "dl_vlan=1,"];
    let of_port = move |port| vlans.into_iter().flat_map(move |v| macs.map(|m| (port, v, m)));
    (1..=2).flat_map(of_port)
}

/// Fills the table of a bridge with strict settings: listeners, a router and flood ports.
fn filled() -> Lab {
    let mut lab = lab(false);
    view(&mut lab).flood = vec![listener(4)];
    lab.publish();
    let table = lab.bridges[0].snooping.as_ref().unwrap().table.clone();
    let groups = ["::ffff:239.1.1.1", "ff05::1"];
    for (port, vlan, group) in [
        (1, 0, groups[0]),
        (2, 0, groups[0]),
        (3, 1, groups[0]),
        (2, 1, groups[1]),
        (5, 0, "::"),
    ] {
        let change = match group {
            "::" => crate::snooping::MembershipChange::Query,
            _ => crate::snooping::MembershipChange::Join(heddle_wire::membership::Protocol::Mld2),
        };
        table.learn(std::iter::once(crate::snooping::MembershipReport {
            key: GroupKey {
                group: group.parse().unwrap(),
                vlan,
            },
            from: listener(port),
            change,
            now_ms: 0,
        }));
    }
    lab
}

/// Any key that agrees under the mask gets the same translation.
#[test]
fn a_cached_translation_is_right_for_all_its_packets() {
    let lab = filled();
    let keys = keys();
    // The source is learned now, so that the next translation has nothing to learn.
    keys.iter().for_each(|k| drop(lab.translate(k, Purpose::Miss)));
    let learned = |k: &FlowKey| {
        lab.translate(k, Purpose::Miss);
        lab.translate(k, Purpose::Revalidate)
    };
    let mut shared = 0;
    for k in &keys {
        let t = learned(k);
        if t.uncacheable {
            continue;
        }
        for other in keys.iter().filter(|o| o.equal_under(k, &t.mask) && *o != k) {
            let again = learned(other);
            assert_eq!(
                (again.actions, again.uncacheable),
                (t.actions.clone(), false),
                "{k}\n{other}"
            );
            shared += 1;
        }
    }
    assert!(shared > 50, "{shared}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]

    /// After a report, a query or a flush, either a dependency fails or the translation is the same.
    #[test]
    fn cached_translations_follow_the_table(
        steps in proptest::collection::vec((1..5_u32, 0..4_u8, proptest::bool::ANY), 1..12),
    ) {
        let lab = filled();
        let keys: Vec<FlowKey> = keys().into_iter().filter(|k| k.dl_dst != [0xff; 6] && k.in_port == 1).collect();
        keys.iter().for_each(|k| drop(lab.translate(k, Purpose::Miss)));
        let mut earlier: Vec<(FlowKey, Translation)> = Vec::new();
        for (port, kind, tagged) in steps {
            let vlan = u16::from(tagged);
            earlier.extend(keys.iter().map(|k| (*k, lab.translate(k, Purpose::Revalidate))));
            match kind {
                0 => drop(receive(&lab, port, &igmp(vlan, JOIN))),
                1 => drop(receive(&lab, port, &igmp(vlan, LEAVE))),
                2 => drop(receive(&lab, port, &igmp(vlan, QUERY))),
                _ => lab.bridges[0].snooping.as_ref().unwrap().table.flush_bundle(port + 100),
            }
            for (k, t) in earlier.iter().filter(|(_, t)| !t.uncacheable && lab.generations.hold(&t.deps)) {
                proptest::prop_assert_eq!(&lab.translate(k, Purpose::Revalidate).actions, &t.actions);
            }
        }
    }
}

/// Frames of IGMP 3 and MLD 2 with `RECORDS` records each, all of them about different groups.
mod storms {
    use super::*;
    use heddle_datapath_api::{Action as Odp, DropReason};
    use heddle_wire::ip::{proto, pseudo};

    const RECORDS: u32 = 180;
    /// Records that a port may send at once, and in a second.
    const BURST: usize = 4096;
    const PER_SECOND: usize = 1000;

    fn igmp3(first: u32) -> Vec<u8> {
        let mut body = bytes("22000000 0000");
        body.extend(u16::try_from(RECORDS).unwrap().to_be_bytes());
        for n in first..first + RECORDS {
            body.extend([4, 0, 0, 0]);
            body.extend((0xea00_0000 + n).to_be_bytes());
        }
        let hex: String = body.iter().map(|b| format!("{b:02x}")).collect();
        igmp(0, &hex)
    }

    fn mld2(first: u32) -> Vec<u8> {
        let mut body = bytes("8f000000 0000");
        body.extend(u16::try_from(RECORDS).unwrap().to_be_bytes());
        for n in first..first + RECORDS {
            body.extend([4, 0, 0, 0]);
            body.extend(std::net::Ipv6Addr::from_bits(0xff15 << 112 | u128::from(n)).octets());
        }
        let mut ip =
            bytes("60000000 0000 3a 01 fe800000000000000000000000000009 ff020000000000000000000000000016");
        let len = u16::try_from(body.len()).unwrap();
        ip[4..6].copy_from_slice(&len.to_be_bytes());
        let sum = pseudo(&ip, true, proto::ICMPV6, len.into()).unwrap().bytes(&body);
        body[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
        let mut frame = bytes("333300000016 020000000009 86dd");
        frame.extend(ip);
        frame.extend(body);
        frame
    }

    fn large_lab() -> Lab {
        let mut lab = lab(true);
        let config = SnoopingConfig {
            max_groups: 1_000_000,
            ..SnoopingConfig::default()
        };
        view(&mut lab).table = Arc::new(SnoopingTable::new(lab.generations.clone(), &config));
        lab.publish();
        lab
    }

    fn groups(lab: &Lab, port: u32) -> usize {
        let table = &lab.bridges[0].snooping.as_ref().unwrap().table;
        let all = table.entries(0);
        all.iter().filter(|e| e.listener == listener(port)).count()
    }

    /// Work is counted in groups that are learned: a flood of records learns its burst and its rate, whatever
    /// it sends. Its drops are cached until the bucket is looked at again, and another port loses nothing.
    #[test]
    fn a_flood_of_records_is_bounded_by_port() {
        for make in [igmp3, mld2] {
            let lab = large_lab();
            let table = lab.bridges[0].snooping.as_ref().unwrap().table.clone();
            let mut first = 0;
            for second in 1..4 {
                for _ in 0..200 {
                    receive_at(&lab, 3, &make(first), second * 1000);
                    first += RECORDS;
                }
                let bound = BURST + PER_SECOND * usize::try_from(second - 1).unwrap();
                let learned = groups(&lab, 3);
                let over = learned.checked_sub(bound).expect("the port has its rate");
                assert!(over < usize::try_from(RECORDS).unwrap(), "{over} of {first}");
                let (actions, t) = receive_at(&lab, 3, &make(first), second * 1000);
                assert_eq!(actions, "drop");
                assert_eq!(t.actions, [Odp::Drop(DropReason::ReportLimit)]);
                assert!(!t.uncacheable && lab.generations.hold(&t.deps));
                // The check of a cached drop leads to the same drop.
                let again = lab.translate(
                    &Lab::key("in_port=3,ip,nw_proto=2,dl_dst=01:00:5e:00:00:16,nw_dst=224.0.0.22"),
                    Purpose::Revalidate,
                );
                assert_eq!((again.actions, again.uncacheable), (t.actions, false));
                table.age(second * 1000);
                assert!(!lab.generations.hold(&t.deps), "the bucket is looked at again");
            }
            // An ordinary report of another port, and one of the port itself a second later.
            receive_at(&lab, 2, &igmp(0, JOIN), 3000);
            assert_eq!(groups(&lab, 2), 1);
            let before = groups(&lab, 3);
            receive_at(&lab, 3, &igmp(0, JOIN), 4000);
            assert_eq!(groups(&lab, 3), before + 1);
        }
    }

    /// Messages without records, and those of ports that nothing is learned from, are charged, too.
    #[test]
    fn each_message_costs_a_record() {
        for (frame, flood) in [
            (igmp(0, QUERY), false),
            (igmp(0, "13000000 ef010101"), false),
            (igmp(0, JOIN), true),
        ] {
            let mut lab = large_lab();
            lab.bridges[0].bundles[3].snooping.flood = flood;
            lab.publish();
            let is_dropped = |_: &usize| {
                let (_, t) = receive_at(&lab, 3, &frame, 1000);
                t.actions == [Odp::Drop(DropReason::ReportLimit)]
            };
            assert_eq!((0..2 * BURST).find(is_dropped), Some(BURST));
        }
    }
}
