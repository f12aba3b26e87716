//! Messages are read back as a collector reads them, by their templates alone.

#![allow(clippy::cast_possible_truncation)] // values of two or four bytes

use crate::template::{Kind, VARIABLE};
use crate::{CacheConfig, Direction, Exporter, Interface, MAX_FLOWS, Sampled, Tunnel};
use heddle_flow::{FlowKey, Vlan};
use proptest::prelude::*;
use std::collections::HashMap;

/// Values by element (enterprise, id), in the order of the record.
type Record = Vec<(Element, Vec<u8>)>;
/// Enterprise and id.
type Element = (u32, u16);
/// Fields of templates, with their lengths, by domain and template id.
type Templates = HashMap<(u32, u16), Vec<(u32, u16, u16)>>;

/// Reads messages as RFC 7011 says, and nothing else.
#[derive(Default)]
struct Collector {
    templates: Templates,
    records: Vec<(u32, Record)>,
    sequence: HashMap<u32, u32>,
}

fn be(b: &[u8]) -> u64 {
    b.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

impl Collector {
    fn take(&mut self, m: &[u8]) {
        assert_eq!((be(&m[0..2]), be(&m[2..4])), (10, m.len() as u64));
        assert!(m.len() < 1500);
        let domain = be(&m[12..16]) as u32;
        let expected = self.sequence.entry(domain).or_default();
        assert_eq!(be(&m[8..12]) as u32, *expected, "sequence number");
        let mut at = 16;
        while at < m.len() {
            let (id, len) = (be(&m[at..at + 2]) as u16, be(&m[at + 2..at + 4]) as usize);
            let set = &m[at + 4..at + len];
            match id {
                2 | 3 => self.template(domain, id == 3, set),
                _ => {
                    *self.sequence.get_mut(&domain).unwrap() += 1;
                    let record = self.record(domain, id, set);
                    self.records.push((domain, record));
                }
            }
            at += len;
        }
        assert_eq!(at, m.len());
    }

    fn template(&mut self, domain: u32, options: bool, set: &[u8]) {
        let (id, n) = (be(&set[0..2]) as u16, be(&set[2..4]) as usize);
        let mut at = if options { 6 } else { 4 };
        let mut fields = Vec::new();
        for _ in 0..n {
            let (element, len) = (be(&set[at..at + 2]) as u16, be(&set[at + 2..at + 4]) as u16);
            at += 4;
            let mut enterprise = 0;
            if element & 0x8000 != 0 {
                enterprise = be(&set[at..at + 4]) as u32;
                at += 4;
            }
            fields.push((enterprise, element & 0x7fff, len));
        }
        assert_eq!(at, set.len());
        self.templates.insert((domain, id), fields);
    }

    fn record(&self, domain: u32, id: u16, set: &[u8]) -> Record {
        let fields = self.templates.get(&(domain, id)).expect("a template came before");
        let mut at = 0;
        let mut record = Vec::new();
        for (enterprise, element, len) in fields {
            let mut len = usize::from(*len);
            if len == usize::from(VARIABLE) {
                len = usize::from(set[at]);
                at += 1;
            }
            record.push(((*enterprise, *element), set[at..at + len].to_vec()));
            at += len;
        }
        assert_eq!(at, set.len(), "the record is as long as its template says");
        record
    }

    fn flows(&self) -> Vec<&Record> {
        let is_flow = |r: &&Record| r.iter().any(|(e, _)| *e == (0, 138));
        self.records.iter().map(|(_, r)| r).filter(is_flow).collect()
    }
}

fn get(r: &Record, element: u16) -> u64 {
    be(&r
        .iter()
        .find(|(e, _)| *e == (0, element))
        .unwrap_or_else(|| panic!("{element}"))
        .1)
}

fn tcp() -> FlowKey {
    FlowKey {
        dl_type: 0x0800,
        dl_src: [2, 0, 0, 0, 0, 1],
        dl_dst: [2, 0, 0, 0, 0, 2],
        nw_proto: 6,
        nw_src: 0x0a00_0001,
        nw_dst: 0x0a00_0002,
        nw_ttl: 64,
        nw_tos: 0xb8,
        tp_src: 1000,
        tp_dst: 80,
        tcp_flags: 0x12,
        ..FlowKey::default()
    }
}

fn sampled<'a>(key: &'a FlowKey, input: &'a Interface) -> Sampled<'a> {
    Sampled {
        key,
        bytes: 114,
        segments: 1,
        each: 10,
        domain: 7,
        point: 9,
        direction: Direction::Ingress,
        input,
        output: input,
        tunnel: None,
        dropped: false,
    }
}

const SECOND_US: u64 = 1_000_000;
const NOW_US: u64 = 1_700_000_000 * SECOND_US;

fn remembering(active_timeout_s: u32, max_flows: u32) -> CacheConfig {
    CacheConfig {
        active_timeout_s,
        max_flows,
        virtual_obs_id: None,
    }
}

#[test]
fn a_flow_is_one_record_when_its_time_is_over() {
    let (key, eth0) = (
        tcp(),
        Interface {
            index: 3,
            name: "eth0".into(),
        },
    );
    let mut collector = Collector::default();
    let mut exporter = Exporter::new(1, remembering(60, 100));
    let mut send = |m: &[u8]| {
        collector.take(m);
        (1, 0)
    };
    exporter.sample(&sampled(&key, &eth0), NOW_US, &mut send);
    let longer = Sampled {
        bytes: 214,
        dropped: true,
        ..sampled(&key, &eth0)
    };
    exporter.sample(&longer, NOW_US + SECOND_US, &mut send);
    assert_eq!(exporter.due_us(), Some(NOW_US + 60 * SECOND_US));
    exporter.expire(NOW_US + 59 * SECOND_US, &mut send);
    assert_eq!(
        (exporter.stats().current_flows, exporter.stats().tx_messages),
        (1, 0)
    );
    exporter.expire(NOW_US + 60 * SECOND_US, &mut send);
    let stats = exporter.stats();
    assert_eq!(
        (
            stats.total_flows,
            stats.current_flows,
            stats.packets,
            stats.ipv4_packets
        ),
        (1, 0, 2, 2)
    );
    let flows = collector.flows();
    let [r] = flows.as_slice() else {
        panic!("{flows:?}")
    };
    let expected = [
        (138, 9),
        (61, 0),
        (10, 3),
        (60, 4),
        (192, 64),
        (4, 6),
        (195, 46),
        (196, 5),
        (5, 0xb8),
        (8, 0x0a00_0001),
        (7, 1000),
        (11, 80), // key
        (2, 20),
        (86, 20),
        (133, 10),
        (352, 3280),
        (354, 20),
        (136, 2),
        (158, 60_000_000),
        (159, 59_000_000),
        (1, 3000),
        (132, 2000),
        (25, 100),
        (26, 200),
        (198, 10 * 100 * 100 + 10 * 200 * 200),
        (222, 20),
        (218, 20),
        (219, 0),
    ];
    for (element, value) in expected {
        assert_eq!(get(r, element), value, "element {element}");
    }
    assert_eq!(r.iter().find(|(e, _)| *e == (0, 82)).unwrap().1, b"eth0");
    assert!(collector.records.iter().all(|(domain, _)| *domain == 7));
}

#[test]
fn all_kinds_are_read_by_their_templates() {
    let input = Interface {
        index: 1,
        name: "in".into(),
    };
    let tunnel = Tunnel {
        src: 1,
        dst: 2,
        proto: 17,
        tp_dst: 6081,
        kind: 7,
        key: 0xabcdef,
        key_len: 3,
        ..Tunnel::default()
    };
    let mut collector = Collector::default();
    let mut exporter = Exporter::new(
        1,
        CacheConfig {
            virtual_obs_id: Some("me".into()),
            ..CacheConfig::default()
        },
    );
    let mut n = 0;
    for dl_type in [0x0800, 0x86dd, 0x0806] {
        for nw_proto in [1, 6, 17, 58, 132, 99] {
            for bits in 0..8u8 {
                let mut key = FlowKey {
                    dl_type,
                    nw_proto,
                    ..tcp()
                };
                key.vlans[0] = Vlan {
                    tpid: 0x8100,
                    tci: if bits & 1 != 0 { 0xb00a } else { 0 },
                };
                let s = Sampled {
                    direction: if bits & 2 != 0 {
                        Direction::Egress
                    } else {
                        Direction::Ingress
                    },
                    tunnel: (bits & 4 != 0).then_some(&tunnel),
                    domain: u32::from(bits),
                    ..sampled(&key, &input)
                };
                exporter.sample(&s, NOW_US, &mut |m| {
                    collector.take(m);
                    (1, 0)
                });
                n += 1;
                assert_eq!(collector.flows().len(), n, "sent at once");
                let r = collector.flows()[n - 1];
                assert_eq!(r.iter().find(|(e, _)| *e == (6876, 898)).unwrap().1, b"me");
                let tun_key = r.iter().find(|(e, _)| *e == (6876, 892)).map(|(_, v)| v.clone());
                assert_eq!(tun_key, (bits & 4 != 0).then(|| vec![0xab, 0xcd, 0xef]));
            }
        }
    }
    assert_eq!(Kind::all().count(), 2 * 11 * 4);
}

#[test]
fn a_flood_of_flows_is_bounded() {
    let input = Interface::default();
    let mut exporter = Exporter::new(1, remembering(4200, u32::MAX));
    let mut n = 0;
    for i in 0..u32::try_from(MAX_FLOWS).unwrap() + 500 {
        let key = FlowKey { nw_src: i, ..tcp() };
        exporter.sample(&sampled(&key, &input), NOW_US, &mut |_| {
            n += 1;
            (0, 1)
        });
    }
    assert_eq!(exporter.stats().current_flows, MAX_FLOWS as u64);
    assert_eq!(exporter.stats().tx_errors, n);
    exporter.end(NOW_US, &mut |_| (1, 0));
    assert_eq!((exporter.stats().current_flows, exporter.due_us()), (0, None));
}

#[test]
fn a_gso_packet_counts_as_its_segments() {
    let (key, input) = (tcp(), Interface::default());
    let mut collector = Collector::default();
    let train = Sampled {
        bytes: 3 * 1014,
        segments: 3,
        each: 1,
        ..sampled(&key, &input)
    };
    Exporter::new(1, CacheConfig::default()).sample(&train, NOW_US, &mut |m| {
        collector.take(m);
        (1, 0)
    });
    let r = collector.flows()[0];
    assert_eq!(
        [2, 352, 1, 25, 26].map(|e| get(r, e)),
        [3, 3042, 3000, 1000, 1000]
    );
}

proptest! {
    /// Whatever is sampled, collectors can read it, and the sums are right.
    #[test]
    fn records_add_up(packets in prop::collection::vec((0u32..4, 0u32..3, 0u64..70_000, 0u64..4_000_000), 0..60), max in 0u32..5, timeout in 0u32..4) {
        let input = Interface::default();
        let mut collector = Collector::default();
        let mut exporter = Exporter::new(1, remembering(timeout, max));
        let mut now_us = NOW_US;
        let mut sum = 0;
        for (src, domain, bytes, later) in packets {
            now_us += later;
            let key = FlowKey { nw_src: src, ..tcp() };
            let s = Sampled { bytes, domain, ..sampled(&key, &input) };
            sum += 10 * bytes;
            let mut send = |m: &[u8]| { collector.take(m); (1, 0) };
            exporter.sample(&s, now_us, &mut send);
            exporter.expire(now_us, &mut send);
            prop_assert!(exporter.stats().current_flows <= u64::from(max));
            prop_assert!(exporter.due_us().is_none_or(|due| due > now_us));
        }
        exporter.end(now_us, &mut |m| { collector.take(m); (1, 0) });
        prop_assert_eq!(collector.flows().iter().map(|r| get(r, 352)).sum::<u64>(), sum);
    }
}
