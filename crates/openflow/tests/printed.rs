//! The real `ovs-ofctl` reads every message of a switch without complaint, and prints its meaning.

mod common;

use common::{have_ofctl, print_all};
use heddle_openflow::message::*;
use heddle_openflow::text::parse_instructions;
use heddle_openflow::{ErrorKind, FlowStatsWriter, Message, OfError, Port, Version, encode};

/// A message for the client, the versions that have it, and pieces that its text must hold.
struct Case {
    message: Message,
    versions: std::ops::RangeInclusive<Version>,
    expected: &'static [&'static str],
}

use Version::{V10, V11, V12, V13, V14, V15};

fn case(
    message: Message,
    versions: std::ops::RangeInclusive<Version>,
    expected: &'static [&'static str],
) -> Case {
    Case {
        message,
        versions,
        expected,
    }
}

fn reply(body: MpReply) -> Message {
    Message::MultipartReply { more: false, body }
}

fn m(text: &str) -> heddle_flow::Match {
    heddle_flow::Match::parse_text(text, None).expect("match")
}

fn ipfix(collector_set: u32) -> IpfixStats {
    IpfixStats {
        total_flows: 1,
        current_flows: 2,
        packets: 3,
        ipv4_packets: 4,
        ipv6_packets: 5,
        error_packets: 6,
        ipv4_error_packets: 7,
        ipv6_error_packets: 8,
        tx_packets: 9,
        tx_errors: 10,
        collector_set,
    }
}

fn port(n: u32, name: &str) -> PortDesc {
    PortDesc {
        port: Port(n),
        hw_addr: [0xaa, 0, 0, 0, 0, 1],
        name: name.into(),
        config: PortConfig::PORT_DOWN | PortConfig::NO_RECV,
        state: PortState::LINK_DOWN,
        curr: PortFeatures::FD_10G | PortFeatures::COPPER,
        advertised: PortFeatures::FD_1G | PortFeatures::AUTONEG,
        supported: PortFeatures::FD_1G | PortFeatures::FIBER,
        peer: PortFeatures::HD_10M | PortFeatures::PAUSE,
        curr_speed: 10_000_000,
        max_speed: 1_000_000,
    }
}

fn stats(text: &str, actions: &str) -> FlowStats {
    FlowStats {
        table_id: 3,
        match_: m(text),
        priority: 77,
        cookie: 0x1234,
        duration_sec: 5,
        duration_nsec: 120_000_000,
        idle_timeout: 60,
        hard_timeout: 90,
        idle_age: Some(2),
        hard_age: Some(4),
        flags: FlowModFlags::SEND_FLOW_REM,
        importance: 9,
        packet_count: 1000,
        byte_count: 64000,
        instructions: parse_instructions(actions, None).expect("actions"),
    }
}

fn packet_in(format: PacketInFormat) -> Message {
    Message::PacketIn(Box::new(PacketIn {
        format,
        data: vec![
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x12, 0x34, 1, 2, 3, 4,
        ],
        total_len: 100,
        buffer_id: None,
        reason: PacketInReason::Action,
        table_id: 7,
        cookie: 0xabcd,
        metadata: m("in_port=3,reg0=5,metadata=0x9,tun_id=0x77"),
        userdata: vec![1, 2, 3],
        continuation: Vec::new(),
    }))
}

fn flow_removed(nxm: bool) -> Message {
    Message::FlowRemoved(Box::new(FlowRemoved {
        match_: m("in_port=1,tcp,nw_dst=10.0.0.1"),
        priority: 55,
        cookie: 0x77,
        reason: FlowRemovedReason::HardTimeout,
        table_id: Some(4),
        duration_sec: 3,
        duration_nsec: 500_000_000,
        idle_timeout: 10,
        hard_timeout: 20,
        packet_count: 6,
        byte_count: 666,
        nxm,
    }))
}

fn cases() -> Vec<Case> {
    let features = SwitchFeatures {
        datapath_id: 0xfedc_ba98,
        n_buffers: 0,
        n_tables: 254,
        auxiliary_id: 0,
        capabilities: Capabilities::FLOW_STATS | Capabilities::QUEUE_STATS | Capabilities::BUNDLES,
        actions: 0xfff,
        ports: vec![port(1, "eth0"), port(0xffff_fffe, "br0")],
    };
    let role = RoleRequest {
        role: Role::Primary,
        generation_id: Some(7),
    };
    let async_config = AsyncConfig {
        primary: [7; 6],
        secondary: [2; 6],
        named: 0x3f3f,
    };
    let port_stats = PortStats {
        rx_packets: 11,
        tx_bytes: 22,
        duration_sec: 1,
        duration_nsec: 0,
        ..PortStats::unknown(Port(1))
    };
    let custom = PortStats {
        custom: vec![("rx_q0_good".into(), 5), ("x".into(), 6)],
        ..port_stats.clone()
    };
    let queue = QueueStats {
        port: Port(1),
        queue: 3,
        tx_bytes: 4,
        tx_packets: 5,
        tx_errors: 6,
        duration_sec: 7,
        duration_nsec: 0,
    };
    let table = TableStats {
        name: "classifier".into(),
        table_id: 0,
        max_entries: 1_000_000,
        active_count: 3,
        lookup_count: 4,
        matched_count: 2,
    };
    let table_features = |id: u8, next: Vec<u8>| TableFeatures {
        table_id: id,
        name: format!("t{id}"),
        metadata_match: u64::MAX,
        metadata_write: u64::MAX,
        max_entries: 1_000_000,
        eviction: true,
        vacancy: false,
        next,
        command: TableFeaturesCommand::Replace,
        unknown: false,
        any_properties: true,
    };
    let queues = QueueConfig {
        port: Port(1),
        queues: vec![(1, Some(10), None), (2, Some(20), Some(500))],
    };
    vec![
        case(
            Message::Hello(Hello { bitmap: Some(0x12) }),
            V10..=V15,
            &["version bitmap: 0x01, 0x04"],
        ),
        case(Message::EchoReply(vec![1, 2]), V10..=V15, &["2 bytes of payload"]),
        case(
            Message::FeaturesReply(features),
            V10..=V15,
            &["dpid:00000000fedcba98", "n_tables:254", "QUEUE_STATS"],
        ),
        case(
            Message::GetConfigReply(SwitchConfig {
                flags: ConfigFlags::empty(),
                miss_send_len: 128,
            }),
            V10..=V15,
            &["frags=normal miss_send_len=128"],
        ),
        case(
            packet_in(PacketInFormat::Standard),
            V10..=V15,
            &["total_len=100", "in_port=3", "(via action)"],
        ),
        case(
            packet_in(PacketInFormat::Nxt),
            V10..=V15,
            &[
                "NXT_PACKET_IN",
                "table_id=7 cookie=0xabcd total_len=100",
                "reg0=0x5",
            ],
        ),
        case(
            packet_in(PacketInFormat::Nxt2),
            V10..=V15,
            &[
                "NXT_PACKET_IN2",
                "userdata=01.02.03",
                "metadata=0x9",
                "tun_id=0x77",
            ],
        ),
        case(
            flow_removed(false),
            V10..=V15,
            &[
                "priority=55,tcp,in_port=1,nw_dst=10.0.0.1 reason=hard",
                "duration3.500s",
                "pkts6 bytes666",
            ],
        ),
        case(flow_removed(true), V10..=V10, &["NXT_FLOW_REMOVED", "table_id=4"]),
        case(
            Message::PortStatus(PortStatus {
                reason: PortReason::Modify,
                desc: port(2, "veth1"),
            }),
            V10..=V15,
            &[
                "MOD",
                "2(veth1): addr:aa:00:00:00:00:01",
                "PORT_DOWN",
                "LINK_DOWN",
            ],
        ),
        case(Message::BarrierReply, V10..=V15, &["BARRIER_REPLY"]),
        case(
            Message::RoleReply(role),
            V12..=V15,
            &["role=primary generation_id=7"],
        ),
        case(
            Message::RoleReply(role),
            V10..=V11,
            &["NXT_ROLE_REPLY", "role=primary"],
        ),
        case(
            Message::RoleStatus(RoleStatus {
                role: Role::Secondary,
                reason: RoleReason::PrimaryRequest,
                generation_id: 5,
            }),
            V13..=V15,
            &["role=secondary generation_id=5 reason=primary_request"],
        ),
        case(
            Message::GetAsyncReply(async_config),
            V13..=V15,
            &["PACKET_IN: no_match action invalid_ttl"],
        ),
        case(
            Message::QueueGetConfigReply(queues.clone()),
            V10..=V13,
            &["port=1", "queue 1", "min_rate:1.0%", "max_rate:50.0%"],
        ),
        case(
            reply(MpReply::Desc(DescStats {
                mfr_desc: "Heddle".into(),
                serial_num: "None".into(),
                ..DescStats::default()
            })),
            V10..=V15,
            &["Manufacturer: Heddle", "Serial Num: None"],
        ),
        case(
            reply(MpReply::Flow {
                nxm: false,
                flows: vec![stats(
                    "in_port=1,ip,nw_src=10.0.0.0/8",
                    "mod_nw_dst:1.2.3.4,output:2",
                )],
            }),
            V10..=V15,
            &[
                "table=3",
                "n_packets=1000, n_bytes=64000",
                "idle_timeout=60",
                "priority=77,ip,in_port=1,nw_src=10.0.0.0/8",
                "output:2",
            ],
        ),
        case(
            reply(MpReply::Flow {
                nxm: true,
                flows: vec![
                    stats("reg0=1", "load:1->NXM_NX_REG1[],resubmit(,4)"),
                    stats("ipv6", "drop"),
                ],
            }),
            V10..=V10,
            &[
                "NXST_FLOW",
                "idle_age=2, hard_age=4",
                "actions=load:0x1->NXM_NX_REG1[],resubmit(,4)",
                "actions=drop",
            ],
        ),
        case(
            reply(MpReply::Flow {
                nxm: false,
                flows: vec![
                    stats("ip", "write_metadata:0x1/0xff,goto_table:9"),
                    stats("tcp", "mod_tp_dst:80,write_actions(output:1)"),
                ],
            }),
            V13..=V15,
            &[
                "write_metadata:0x1/0xff,goto_table:9",
                "set_field:80->tcp_dst,write_actions(output:1)",
                "send_flow_rem",
            ],
        ),
        case(
            reply(MpReply::Aggregate {
                nxm: false,
                stats: AggregateStats {
                    packet_count: 5,
                    byte_count: 6,
                    flow_count: 7,
                },
            }),
            V10..=V15,
            &["packet_count=5 byte_count=6 flow_count=7"],
        ),
        case(
            reply(MpReply::Aggregate {
                nxm: true,
                stats: AggregateStats {
                    packet_count: 5,
                    byte_count: 6,
                    flow_count: 7,
                },
            }),
            V10..=V10,
            &["NXST_AGGREGATE", "flow_count=7"],
        ),
        case(
            reply(MpReply::Table(vec![
                table.clone(),
                TableStats { table_id: 1, ..table },
            ])),
            V10..=V15,
            &["active=3, lookup=4, matched=2"],
        ),
        case(
            reply(MpReply::Port(vec![port_stats, custom])),
            V10..=V15,
            &["rx pkts=11, bytes=?", "tx pkts=?, bytes=22"],
        ),
        case(
            reply(MpReply::Queue(vec![queue])),
            V10..=V15,
            &["port 1 queue 3: bytes=4, pkts=5, errors=6"],
        ),
        case(
            reply(MpReply::PortDesc(vec![port(1, "a"), port(2, "abcdefghijklmno")])),
            V10..=V15,
            &["1(a): addr", "2(abcdefghijklmno)", "10GB-FD COPPER"],
        ),
        case(
            reply(MpReply::TableFeatures(vec![
                table_features(0, vec![1, 2, 3]),
                table_features(1, Vec::new()),
            ])),
            V13..=V15,
            &[
                "table 0 (\"t0\")",
                "max_entries=1000000",
                "next tables: 1-3",
                "instructions: ",
                "exact match or wildcard",
            ],
        ),
        case(
            reply(MpReply::TableDesc(vec![TableDesc {
                table_id: 2,
                eviction: true,
                ..TableDesc::default()
            }])),
            V14..=V15,
            &["table 2", "eviction=on"],
        ),
        case(
            reply(MpReply::IpfixBridge(ipfix(0))),
            V10..=V15,
            &["flows=1, current flows=2, sampled pkts=3", "tx errs=10"],
        ),
        case(
            reply(MpReply::IpfixFlow(vec![ipfix(7), ipfix(8)])),
            V10..=V15,
            &["2 ids", "id   7: flows=1", "id   8: flows=1, current flows=2"],
        ),
        case(
            reply(MpReply::QueueDesc(vec![queues])),
            V14..=V15,
            &["queue 2", "min_rate:2.0%", "max_rate:50.0%"],
        ),
        case(
            reply(MpReply::GroupFeatures(GroupFeatures {
                types: 15,
                capabilities: 0,
                max_groups: [9; 4],
                actions: [1; 4],
            })),
            V10..=V15,
            &["max_groups=0x9"],
        ),
        case(
            reply(MpReply::MeterFeatures(MeterFeatures {
                max_meters: 5,
                band_types: 2,
                capabilities: 1,
                max_bands: 1,
                max_color: 0,
            })),
            V13..=V15,
            &["max_meter:5"],
        ),
    ]
}

#[test]
fn replies_print_cleanly() {
    if !have_ofctl() {
        return;
    }
    let mut wires = Vec::new();
    let mut about = Vec::new();
    for c in cases() {
        for version in Version::ALL.into_iter().filter(|v| c.versions.contains(v)) {
            for part in
                encode(version, 7, &c.message).unwrap_or_else(|e| panic!("{version:?} {:?}: {e}", c.message))
            {
                wires.push(part);
                about.push((version, c.expected));
            }
        }
    }
    let printed = print_all(&wires.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let mut problems = Vec::new();
    for ((version, expected), text) in about.into_iter().zip(printed) {
        // A packet that was cut short is meant to be.
        let text = text.replace("(***total_len != data_len***)", "");
        let missing: Vec<_> = expected.iter().filter(|s| !text.contains(**s)).collect();
        if text.contains("***") || text.contains("WARN") || !missing.is_empty() {
            problems.push(format!("{version:?}, missing {missing:?}:\n{text}"));
        }
    }
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

/// Each error reads back as itself, by the client's name for it.
#[test]
fn errors_print_by_name() {
    if !have_ofctl() {
        return;
    }
    let mut wires = Vec::new();
    let mut names = Vec::new();
    let about = [1u8, 4, 0, 8, 0, 0, 0, 9];
    for version in [V10, V11, V12, V13, V14, V15] {
        for kind in ErrorKind::ALL {
            // If two errors share numbers, readers take the first of them.
            let first = kind
                .code(version)
                .and_then(|raw| ErrorKind::from_code(version, raw));
            if first == Some(*kind) && version as u8 % 2 == *kind as u8 % 2 {
                wires.push(OfError::new(*kind, &about).encode(version, 3));
                names.push((version, kind.name()));
            }
        }
    }
    let printed = print_all(&wires.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let wrong: Vec<String> = names
        .iter()
        .zip(&printed)
        .filter(|((_, name), text)| !text.contains(*name))
        .map(|(n, text)| format!("{n:?}: {text}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A reply longer than a message is split, each part whole by itself.
#[test]
fn long_replies_are_split() {
    let flow = stats("in_port=1,ip", "output:2");
    for version in Version::ALL {
        let mut w = FlowStatsWriter::new(version, 9, true);
        for _ in 0..3000 {
            w.push(&flow).expect("fits");
        }
        let parts = w.finish();
        assert!(parts.len() > 1, "{version:?}");
        let mut flows = 0;
        for (i, part) in parts.iter().enumerate() {
            let (header, message) = heddle_openflow::decode(part, &Default::default()).expect("decodes");
            assert_eq!(header.xid, 9);
            let Message::MultipartReply {
                more,
                body: MpReply::Flow { flows: list, .. },
            } = message
            else {
                panic!("a flow reply")
            };
            assert_eq!(more, i + 1 < parts.len());
            flows += list.len();
        }
        assert_eq!(flows, 3000);
    }
}
