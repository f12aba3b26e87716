//! Round trips of random messages through every version, and robustness against any bytes.

mod faults;
mod fuzz;
mod strategies;

use crate::message::*;
use crate::{Action, DecodeContext, Instruction, InstructionSet, Message, Port, Version, decode, encode};
use faults::message;
use heddle_flow::Match;
use proptest::prelude::*;
use strategies::*;

const CX: DecodeContext = DecodeContext {
    flow_mod_table_id: true,
};

/// The message that arrives when `m` is encoded and decoded once. Panics if none arrives.
fn over(version: Version, m: &Message) -> Message {
    let parts = encode(version, 5, m).expect("encodes");
    assert_eq!(parts.len(), 1, "small messages have one part");
    let (header, back) = decode(&parts[0], &CX).unwrap_or_else(|e| panic!("{version:?} {m:?}: {e}"));
    assert_eq!((header.version, header.xid), (version.wire(), 5));
    assert_eq!(usize::from(header.length), parts[0].len());
    back
}

/// A message survives whole.
fn survives(version: Version, m: Message) {
    assert_eq!(over(version, &m), m, "{version:?}");
}

/// A message may lose parts that its version lacks in the first trip, and nothing more in a second.
fn settles(version: Version, m: &Message) -> Message {
    let once = over(version, m);
    assert_eq!(over(version, &once), once, "{version:?}");
    once
}

/// The instructions of a flow mod after its trip.
fn instructions_over(version: Version, m: Match, applied: Vec<Action>) -> Vec<Instruction> {
    let set = InstructionSet(vec![Instruction::Apply(applied)]);
    let fm = FlowMod::new(FlowModCommand::Add, m, 1, set);
    match over(version, &Message::FlowMod(Box::new(fm))) {
        Message::FlowMod(back) => back.instructions.0,
        other => panic!("a flow mod, not {other:?}"),
    }
}

/// A meter is an action in 1.5 and an instruction in 1.3 and 1.4; earlier versions have no meters.
#[test]
fn a_meter_among_actions_is_encoded_in_each_version_that_has_meters() {
    let output = Action::Output {
        port: Port(1),
        max_len: 0,
    };
    let trip = |version, applied: &[Action]| instructions_over(version, Match::any(), applied.to_vec());
    let both = [Action::Meter(7), output.clone()];
    let apply = |actions: &[Action]| Instruction::Apply(actions.to_vec());
    for version in [Version::V13, Version::V14] {
        let split = [Instruction::Meter(7), apply(std::slice::from_ref(&output))];
        assert_eq!(trip(version, &both), split, "{version:?}");
        assert_eq!(trip(version, &both[..1]), [Instruction::Meter(7)], "{version:?}");
    }
    assert_eq!(trip(Version::V15, &both), [apply(&both)]);
    assert_eq!(trip(Version::V12, &both), [apply(&[output])]);
}

/// A load of all meaningful bits of a field is written as a load of the whole field.
#[test]
fn whole_fields_are_loaded_whole() {
    use heddle_flow::{FieldId, FieldValue, Subfield};
    let arp = Match::parse_text("arp", None).unwrap();
    let set = Action::SetField {
        field: FieldId::ArpOp,
        value: FieldValue::from_u64(2),
        mask: FieldId::ArpOp.full_mask(),
    };
    let loaded = instructions_over(Version::V10, arp, vec![set]);
    let whole = Action::Load {
        dst: Subfield::all(FieldId::ArpOp),
        value: 2,
    };
    assert_eq!(loaded, [Instruction::Apply(vec![whole])]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn flow_mods(version in version(), m in flow_match(), set in instructions(), command in 0..5u8,
                 priority: u16, cookie in 0..u64::MAX, timeouts: (u16, u16), nxm: bool) {
        let command = [FlowModCommand::Add, FlowModCommand::Modify, FlowModCommand::ModifyStrict,
                       FlowModCommand::Delete, FlowModCommand::DeleteStrict][usize::from(command)];
        let mut fm = FlowMod::new(command, m, priority, set);
        fm.new_cookie = cookie;
        (fm.idle_timeout, fm.hard_timeout) = timeouts;
        fm.flags = FlowModFlags::all();
        fm.nxm = nxm && version == Version::V10;
        let once = settles(version, &Message::FlowMod(Box::new(fm.clone())));
        let Message::FlowMod(back) = once else { panic!("a flow mod") };
        prop_assert_eq!(back.command, command);
        prop_assert_eq!(back.idle_timeout, fm.idle_timeout);
        // OXM and NXM have every field that the strategy makes.
        if version >= Version::V12 || fm.nxm {
            prop_assert_eq!(back.match_, m);
        }
    }

    #[test]
    fn flow_stats(version in version(), m in flow_match(), set in instructions(), count: u32, nxm: bool) {
        let nxm = nxm && version == Version::V10;
        let s = FlowStats {
            table_id: 4, match_: m, priority: 9, cookie: 8, duration_sec: 7, duration_nsec: 6,
            idle_timeout: 5, hard_timeout: 4,
            idle_age: (nxm || version == Version::V15).then_some(3), hard_age: nxm.then_some(2),
            flags: FlowModFlags::empty(), importance: 0,
            packet_count: count.into(), byte_count: u64::from(count) * 60, instructions: set,
        };
        let message = Message::MultipartReply { more: false, body: MpReply::Flow { nxm, flows: vec![s.clone(), s] } };
        settles(version, &message);
    }

    #[test]
    fn flow_requests(version in version(), m in flow_match(), cookie: u64, mask: u64, nxm: bool, sum: bool) {
        let nxm = nxm && version == Version::V10;
        let (cookie, cookie_mask) = if version == Version::V10 && !nxm { (0, 0) } else { (cookie & mask, mask) };
        let m = if version == Version::V10 && !nxm || version == Version::V11 { Match::any() } else { m };
        let q = Box::new(FlowStatsRequest {
            match_: m, table_id: 7, out_port: Port::LOCAL, out_group: GROUP_ANY, cookie, cookie_mask, nxm,
        });
        let body = if sum { MpRequest::Aggregate(q) } else { MpRequest::Flow(q) };
        survives(version, Message::MultipartRequest { more: false, body });
    }

    #[test]
    fn flow_removed(version in version(), m in flow_match(), reason in 0..3u8, packets: u32, nxm: bool) {
        let reason = [FlowRemovedReason::IdleTimeout, FlowRemovedReason::HardTimeout, FlowRemovedReason::Delete][usize::from(reason)];
        let f = FlowRemoved {
            match_: m, priority: 3, cookie: 4, reason, table_id: Some(9), duration_sec: 1, duration_nsec: 2,
            idle_timeout: 3, hard_timeout: 0, packet_count: packets.into(), byte_count: 7, nxm: nxm && version == Version::V10,
        };
        settles(version, &Message::FlowRemoved(Box::new(f)));
    }

    #[test]
    fn packets(version in version(), data in prop::collection::vec(any::<u8>(), 0..80), port in 1..60000u32,
               actions in actions(), format in 0..3u8) {
        let mut m = Match::any();
        m.set_field(crate::action::FieldId::InPortOxm, heddle_flow::FieldValue::from_u64(port.into()), None);
        m.mask.0.packet_type = if version == Version::V15 { 0 } else { u32::MAX };
        survives_actions(version, PacketOut { metadata: m, buffer_id: None, actions, data: data.clone() });
        let format = [PacketInFormat::Standard, PacketInFormat::Nxt, PacketInFormat::Nxt2][usize::from(format)];
        let p = PacketIn {
            format, total_len: u32::try_from(data.len()).expect("short") + 5, data, buffer_id: None,
            reason: PacketInReason::Action, table_id: 3, cookie: 77, metadata: m,
            userdata: vec![1; 3], continuation: vec![2; 16],
        };
        let once = settles(version, &Message::PacketIn(Box::new(p.clone())));
        let Message::PacketIn(back) = once else { panic!("a packet-in") };
        prop_assert_eq!(&back.data, &p.data);
        prop_assert_eq!(back.metadata.key.in_port, port);
        if format == PacketInFormat::Nxt2 {
            prop_assert_eq!((&back.userdata, &back.continuation), (&p.userdata, &p.continuation));
        }
    }

    #[test]
    fn ports(version in version(), desc in port_desc(), mask: u32) {
        let status = PortStatus { reason: PortReason::Modify, desc: desc.clone() };
        let once = settles(version, &Message::PortStatus(status));
        let Message::PortStatus(s) = once else { panic!("a port status") };
        prop_assert_eq!((s.desc.port, &s.desc.name, s.desc.hw_addr), (desc.port, &desc.name, desc.hw_addr));
        let mask = PortConfig::from_bits_truncate(mask);
        let m = PortMod { port: desc.port, hw_addr: desc.hw_addr, config: desc.config & mask, mask, advertise: desc.advertised };
        settles(version, &Message::PortMod(m));
        settles(version, &Message::MultipartReply { more: false, body: MpReply::PortDesc(vec![desc.clone(), desc]) });
    }

    #[test]
    fn counters(version in version(), v: [u64; 12], n in 1..60000u32) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = v;
        let since13 = |x| if version >= Version::V13 { x } else { u32::MAX };
        let s = PortStats {
            port: Port(n), duration_sec: since13(4), duration_nsec: since13(5),
            rx_packets: a, tx_packets: b, rx_bytes: c, tx_bytes: d, rx_dropped: e, tx_dropped: f,
            rx_errors: g, tx_errors: h, rx_frame_err: i, rx_over_err: j, rx_crc_err: k, collisions: l,
            custom: if version >= Version::V14 { vec![("name".into(), a), (String::new(), b)] } else { Vec::new() },
        };
        survives(version, Message::MultipartReply { more: false, body: MpReply::Port(vec![s.clone(), s]) });
        let q = QueueStats { port: Port(n), queue: 3, tx_bytes: a, tx_packets: b, tx_errors: c,
                             duration_sec: since13(4), duration_nsec: since13(5) };
        survives(version, Message::MultipartReply { more: false, body: MpReply::Queue(vec![q, q]) });
        let t = TableStats { table_id: 3, active_count: n, lookup_count: a, matched_count: b, ..TableStats::default() };
        survives(version, Message::MultipartReply { more: false, body: MpReply::Table(vec![t]) });
    }

    /// Group modifications, and the same as a description.
    #[test]
    fn groups((version, m) in version().prop_flat_map(|v| group_mod(v).prop_map(move |m| (v, m))),
              counts in prop::collection::vec(any::<(u64, u64)>(), 0..4)) {
        let m = match settles(version, &Message::GroupMod(Box::new(m))) {
            Message::GroupMod(m) => *m,
            other => panic!("{other:?}"),
        };
        survives(version, Message::GroupMod(Box::new(m.clone())));
        let desc = GroupDesc { group_id: m.group_id, ty: m.ty, buckets: m.buckets, selection: m.selection };
        survives(version, Message::MultipartReply { more: false, body: MpReply::GroupDesc(vec![desc.clone(), desc]) });
        let age = if matches!(version, Version::V11 | Version::V12) { u32::MAX } else { 7 };
        let stats = GroupStats { group_id: 1, ref_count: 2, packet_count: 3, byte_count: 4, duration_sec: age,
                                 duration_nsec: age, buckets: counts };
        survives(version, Message::MultipartReply { more: false, body: MpReply::GroupStats(vec![stats]) });
    }

    /// Meters in the versions that have them.
    #[test]
    fn meters(id: u32, flags in 0..16u16, rates in prop::collection::vec(any::<(u32, u32, Option<u8>)>(), 0..4)) {
        let flags = MeterFlags::from_bits_retain(if flags & 3 == 3 { flags ^ 1 } else { flags });
        let band = |(rate, burst_size, level): &(u32, u32, Option<u8>)| Band {
            kind: level.map_or(BandKind::Drop, BandKind::DscpRemark), rate: *rate, burst_size: *burst_size };
        let config = MeterConfig { meter_id: id, flags, bands: rates.iter().map(band).collect() };
        for version in [Version::V13, Version::V14, Version::V15] {
            let command = MeterCommand::Modify;
            survives(version, Message::MeterMod(MeterMod { command, config: config.clone() }));
            survives(version, Message::MultipartReply { more: false, body: MpReply::MeterConfig(vec![config.clone()]) });
            let stats = MeterStats { meter_id: id, flow_count: 1, packet_in_count: 2, byte_in_count: 3, duration_sec: 4,
                                     duration_nsec: 5, bands: vec![(6, 7); rates.len()] };
            survives(version, Message::MultipartReply { more: false, body: MpReply::MeterStats(vec![stats]) });
        }
    }

    /// Actions survive in text too.
    #[test]
    fn texts(set in instructions()) {
        let text = set.to_string();
        let back = crate::text::parse_instructions(&text, None).unwrap_or_else(|e| panic!("{text}: {e}"));
        prop_assert_eq!(back.to_string(), text);
    }

    /// No bytes whatever make a decoder panic.
    #[test]
    fn noise(version in 0..8u8, ty in 0..40u8, body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![version, ty, 0, 0, 0, 0, 0, 1];
        bytes.extend(&body);
        let len = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        bytes[2..4].copy_from_slice(&len);
        let _ = decode(&bytes, &CX);
        let _ = decode(&body, &CX);
    }
}

/// A packet-out survives but for actions that have another form in its version.
fn survives_actions(version: Version, p: PacketOut) {
    let Message::PacketOut(back) = settles(version, &Message::PacketOut(Box::new(p.clone()))) else {
        panic!("a packet-out")
    };
    assert_eq!((back.in_port(), &back.data), (p.in_port(), &p.data));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Bytes of good messages with a few of them changed: the decoder returns in all cases, and an accepted
    /// message can be encoded again.
    #[test]
    fn mutations(version in version(), m in flow_match(), set in instructions(),
                 changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut: prop::sample::Index) {
        let mut fm = FlowMod::new(FlowModCommand::Add, m, 5, set);
        fm.nxm = version == Version::V10;
        let mut bytes = encode(version, 5, &Message::FlowMod(Box::new(fm))).expect("encodes").concat();
        for (at, v) in changes {
            let at = at.index(bytes.len());
            bytes[at] = v;
        }
        let keep = cut.index(4 * bytes.len());
        bytes.truncate(keep.max(8));
        let len = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        bytes[2..4].copy_from_slice(&len);
        if let Ok((h, back)) = decode(&bytes, &CX)
            && !matches!(back, Message::Unsupported(_))
            && let Some(v) = Version::from_wire(h.version)
        {
            let _ = encode(v, 5, &back);
            let _ = format!("{back:?}");
        }
    }
}

#[test]
fn small_messages_survive() {
    for version in Version::ALL {
        let v12 = version >= Version::V12;
        let v13 = version >= Version::V13;
        let mut all = vec![
            Message::Hello(Hello { bitmap: Some(0x7e) }),
            Message::Hello(Hello { bitmap: None }),
            Message::EchoRequest(vec![1, 2, 3]),
            Message::FeaturesRequest,
            Message::GetConfigRequest,
            Message::SetConfig(SwitchConfig {
                flags: ConfigFlags::FRAG_DROP,
                miss_send_len: 9,
            }),
            Message::BarrierRequest,
            Message::BarrierReply,
            Message::FlowModTableId(true),
            Message::SetPacketInFormat(PacketInFormat::Nxt2),
            Message::SetControllerId(77),
            Message::CtFlushZone(5),
            Message::CtFlush {
                ip_proto: 1,
                properties: vec![0, 2, 0, 6, 0, 9, 0, 0],
            },
            Message::RoleRequest(RoleRequest {
                role: Role::Primary,
                generation_id: v12.then_some(5),
            }),
            Message::RoleReply(RoleRequest {
                role: Role::Equal,
                generation_id: None,
            }),
            Message::MultipartRequest {
                more: false,
                body: MpRequest::Desc,
            },
            Message::MultipartRequest {
                more: false,
                body: MpRequest::Table,
            },
            Message::MultipartRequest {
                more: false,
                body: MpRequest::Port(Port(3)),
            },
            Message::MultipartRequest {
                more: false,
                body: MpRequest::Queue {
                    port: Port(3),
                    queue: 4,
                },
            },
            Message::MultipartRequest {
                more: false,
                body: MpRequest::PortDesc(Port::NONE),
            },
            Message::MultipartRequest {
                more: false,
                body: MpRequest::GroupStats(5),
            },
            Message::MultipartRequest {
                more: false,
                body: MpRequest::GroupFeatures,
            },
        ];
        if version == Version::V10 {
            all.push(Message::SetFlowFormat(true));
        }
        if version <= Version::V13 {
            all.push(Message::QueueGetConfigRequest(QueueGetConfig {
                port: Port(5),
                queue: None,
            }));
        }
        if v13 {
            all.push(Message::GetAsyncRequest);
            all.push(Message::MultipartRequest {
                more: false,
                body: MpRequest::MeterStats(5),
            });
            all.push(Message::MultipartRequest {
                more: false,
                body: MpRequest::TableFeatures(Vec::new()),
            });
            all.push(Message::RoleStatus(RoleStatus {
                role: Role::Secondary,
                reason: RoleReason::Config,
                generation_id: 4,
            }));
        }
        if version >= Version::V14 {
            let c = AsyncConfig {
                primary: [0, 1, 2, 3, 8, 1],
                secondary: [2; 6],
                named: 0x3f3f,
            };
            let c = AsyncConfig {
                secondary: [2, 1, 2, 3, 16, 0],
                ..c
            };
            all.push(Message::SetAsync(c));
            all.push(Message::MultipartRequest {
                more: false,
                body: MpRequest::TableDesc,
            });
            let q = QueueGetConfig {
                port: Port(5),
                queue: Some(3),
            };
            all.push(Message::MultipartRequest {
                more: false,
                body: MpRequest::QueueDesc(q),
            });
        }
        for m in all {
            survives(version, m);
        }
    }
}

#[test]
fn instruction_texts() {
    let set = InstructionSet(vec![
        Instruction::Apply(vec![Action::Output {
            port: Port::CONTROLLER,
            max_len: 128,
        }]),
        Instruction::Write(vec![]),
        Instruction::Goto(4),
    ]);
    assert_eq!(set.to_string(), "CONTROLLER:128,write_actions(drop),goto_table:4");
    assert_eq!(InstructionSet::default().to_string(), "drop");
    assert!(crate::text::parse_instructions("goto_table:1,clear_actions", None).is_err());
    assert!(crate::text::parse_actions("goto_table:1", None).is_err());
    assert!(crate::text::parse_actions("load:0x10->NXM_NX_REG0[0..3]", None).is_err());
    assert!(crate::text::parse_actions("output:nosuchport", None).is_err());
    assert_eq!(crate::text::parse_actions("drop", None), Ok(Vec::new()));
}

/// Lists in text nest as deep as in messages, whichever way a list is written.
#[test]
fn texts_that_nest_too_deeply_are_refused() {
    let nested = |open: &str, close: &str, n: usize| {
        let text = format!("{}output:1{}", open.repeat(n), close.repeat(n));
        crate::text::parse_actions(&text, None)
    };
    for (open, close) in [("clone(", ")"), ("clone:", ""), ("ct(commit,exec(", "))")] {
        for n in [65, 1000, 20_000] {
            let error = nested(open, close, n).unwrap_err();
            assert!(error.contains("64 levels deep"), "{open}: {error}");
        }
    }
    assert!(nested("clone(", ")", 64).is_ok());
    let text = format!("{}drop{}", "write_actions(".repeat(1000), ")".repeat(1000));
    assert!(crate::text::parse_instructions(&text, None).is_err());
}

/// The entry of Nicira's second load starts right behind the subtype, not behind the usual padding; a round
/// trip alone does not see the difference.
#[test]
fn second_load_starts_early() {
    let mut body = vec![0xff, 0xff, 0xff, 0xff, 0, 1, 0, 24];
    body.extend([
        0xff, 0xff, 0, 24, 0, 0, 0x23, 0x20, 0, 33, 0, 1, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0,
    ]);
    let (_, m) = decode(&message(1, 13, &body), &CX).expect("decodes");
    let Message::PacketOut(p) = m else {
        panic!("a packet-out")
    };
    assert_eq!(p.actions[0].to_string(), "set_field:0x5->reg0");
}

/// Extensions print as they were written, and survive the wire.
#[test]
fn extensions_survive() {
    let newer = [
        "encap(ethernet)",
        "encap(nsh)",
        "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678),tlv(0x2000,20,0xfedcba9876543210)))",
        "encap(mpls_mc)",
        "decap()",
        "decap(packet_type(ns=0,type=0))",
        "dec_nsh_ttl",
    ];
    for text in EXTENSIONS.iter().chain(&newer) {
        let a = extension(text);
        assert_eq!(a.to_string(), *text);
        for version in [Version::V13, Version::V15] {
            let m = Message::PacketOut(Box::new(PacketOut {
                metadata: Match::parse_text("in_port=1", None).expect("a match"),
                buffer_id: None,
                actions: vec![a.clone()],
                data: Vec::new(),
            }));
            let Message::PacketOut(back) = settles(version, &m) else {
                panic!("{text}");
            };
            // 1.5 has a set-field in the place of a load.
            if version == Version::V13 || !text.contains("exec") {
                assert_eq!(back.actions, std::slice::from_ref(&a));
            }
        }
    }
    assert_eq!(
        extension("conjunction(55,2/2)").to_string(),
        "conjunction(55,2/2)"
    );
}
