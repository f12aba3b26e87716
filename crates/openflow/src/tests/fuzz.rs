//! Almost good messages: decoding any of them returns, and an accepted one can be encoded and decoded again.
//!
//! Each message of the corpus (`corpus/messages`) shows an outcome that none before it does. That is an error
//! for a kind of message, or a part of the decoded form. `cargo test` replays it with a fixed number of
//! mutants ([`heddle_fuzz`]); `make fuzz` continues for a time and, with `KEEP=1`, renews the corpus. A
//! message that fails is kept in a file that is named.

use super::strategies::*;
use crate::message::*;
use crate::{DecodeContext, Message, Port, Version, decode, encode};
use heddle_flow::Match;
use heddle_fuzz::{Corpus, Dice, Fuzzer};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use std::collections::BTreeSet;

/// Outcomes of a message.
type Seen = BTreeSet<String>;

/// Decodes a message, encodes the result, decodes that, and writes it as text.
fn play(bytes: &[u8]) -> Seen {
    let mut seen = Seen::new();
    for table_id in [false, true] {
        let cx = DecodeContext {
            flow_mod_table_id: table_id,
        };
        match decode(bytes, &cx) {
            Err(e) => {
                seen.insert(format!("{:?}", e.error.kind));
            }
            Ok((header, message)) => {
                // Names of variants and types, but no text between quotation marks.
                let text = format!("{message:?}");
                let bare: String = text.split('"').step_by(2).collect::<Vec<_>>().join(" ");
                let name: String = bare.chars().take_while(char::is_ascii_alphabetic).collect();
                let words = bare.split(|c: char| !c.is_ascii_alphanumeric());
                let named = words.filter(|w| w.starts_with(|c: char| c.is_ascii_uppercase()));
                seen.extend(named.map(|w| format!("{name} {w}")));
                let version = header.version;
                again(version, &message, &cx);
                shown(&message);
            }
        }
    }
    seen
}

fn again(version: u8, message: &Message, cx: &DecodeContext) {
    let Some(version) = Version::from_wire(version) else {
        return;
    };
    match message {
        Message::Unsupported(_) => return,
        // The switch passes none of these on.
        Message::Error(e) if e.kind.is_none() => return,
        _ => {}
    }
    // Some decoded messages cannot be encoded in one version.
    let Ok(parts) = encode(version, 7, message) else {
        return;
    };
    for part in parts {
        if let Err(e) = decode(&part, cx) {
            panic!("{version:?} {message:?}: {:?} in {part:02x?}", e.error.kind);
        }
    }
}

/// Writes all texts of a message for people.
fn shown(message: &Message) {
    match message {
        Message::FlowMod(f) => {
            let _ = (f.match_.to_string(), f.instructions.to_string());
        }
        Message::PacketOut(p) => {
            let _ = p.actions.iter().map(ToString::to_string).collect::<Vec<_>>();
        }
        Message::GroupMod(g) => {
            let all = g.buckets.iter().flat_map(|b| &b.actions);
            let _ = all.map(ToString::to_string).collect::<Vec<_>>();
        }
        _ => {}
    }
}

/// Good messages to begin with.
fn seeds() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let mut out = Vec::new();
    for version in Version::ALL {
        let mut add = |m: Message| {
            if let Ok(parts) = encode(version, 5, &m) {
                out.extend(parts);
            }
        };
        for round in 0..60 {
            let mut any = |s: proptest::strategy::BoxedStrategy<Message>| {
                s.new_tree(&mut runner).expect("a message").current()
            };
            let nxm = round % 2 == 1;
            add(any(flow_message(nxm)));
            add(any(group_mod(version)
                .prop_map(|g| Message::GroupMod(Box::new(g)))
                .boxed()));
            add(any(packet_message()));
            add(any(reply(nxm)));
        }
        bundles().into_iter().for_each(&mut add);
        plain().into_iter().for_each(add);
    }
    out.retain(|m| m.len() < 2048);
    out
}

fn flow_message(nxm: bool) -> proptest::strategy::BoxedStrategy<Message> {
    let both = (flow_match(), instructions());
    both.prop_map(move |(m, set)| {
        let mut fm = FlowMod::new(FlowModCommand::Add, m, 5, set);
        fm.nxm = nxm;
        Message::FlowMod(Box::new(fm))
    })
    .boxed()
}

fn packet_message() -> proptest::strategy::BoxedStrategy<Message> {
    actions()
        .prop_map(|actions| {
            let metadata = Match::parse_text("in_port=1", None).expect("a match");
            Message::PacketOut(Box::new(PacketOut {
                metadata,
                buffer_id: None,
                actions,
                data: vec![0; 60],
            }))
        })
        .boxed()
}

fn reply(nxm: bool) -> proptest::strategy::BoxedStrategy<Message> {
    (flow_match(), port_desc())
        .prop_map(move |(match_, port)| {
            if !nxm {
                let reason = PortReason::Modify;
                return Message::PortStatus(PortStatus { reason, desc: port });
            }
            let flow = FlowStatsRequest {
                match_,
                table_id: 7,
                out_port: Port::NONE,
                out_group: GROUP_ANY,
                cookie: 1,
                cookie_mask: 1,
                nxm,
            };
            let body = MpRequest::Flow(Box::new(flow));
            Message::MultipartRequest { more: false, body }
        })
        .boxed()
}

fn bundles() -> Vec<Message> {
    let control = |command| {
        Message::BundleControl(BundleControl {
            id: 3,
            command,
            flags: BUNDLE_ATOMIC,
        })
    };
    let flow = FlowMod::new(
        FlowModCommand::Add,
        Match::any(),
        1,
        crate::InstructionSet::default(),
    );
    let inner = Message::FlowMod(Box::new(flow));
    vec![
        control(BundleCommand::OpenRequest),
        Message::BundleAdd(BundleAdd {
            id: 3,
            flags: BUNDLE_ATOMIC,
            message: Box::new(inner),
        }),
        control(BundleCommand::CommitRequest),
    ]
}

fn plain() -> Vec<Message> {
    let request = |body| Message::MultipartRequest { more: false, body };
    let queue = QueueGetConfig {
        port: Port(5),
        queue: Some(3),
    };
    let role = RoleRequest {
        role: Role::Primary,
        generation_id: Some(5),
    };
    let meter = MeterMod {
        command: MeterCommand::Add,
        config: MeterConfig {
            meter_id: 1,
            flags: MeterFlags::KBPS | MeterFlags::STATS,
            bands: vec![Band {
                kind: BandKind::DscpRemark(1),
                rate: 5,
                burst_size: 6,
            }],
        },
    };
    vec![
        Message::Hello(Hello { bitmap: Some(0x7e) }),
        Message::EchoRequest(vec![1, 2, 3]),
        Message::FeaturesRequest,
        Message::GetConfigRequest,
        Message::SetConfig(SwitchConfig {
            flags: ConfigFlags::FRAG_DROP,
            miss_send_len: 9,
        }),
        Message::BarrierRequest,
        Message::FlowModTableId(true),
        Message::SetPacketInFormat(PacketInFormat::Nxt2),
        Message::SetControllerId(77),
        Message::RoleRequest(role),
        Message::GetAsyncRequest,
        Message::SetAsync(AsyncConfig::defaults(Version::V14)),
        Message::MeterMod(meter),
        Message::QueueGetConfigRequest(queue),
        Message::FlowMonitorCancel(3),
        request(MpRequest::Desc),
        request(MpRequest::Table),
        request(MpRequest::Port(Port(3))),
        request(MpRequest::PortDesc(Port::NONE)),
        request(MpRequest::GroupStats(5)),
        request(MpRequest::GroupFeatures),
        request(MpRequest::MeterStats(5)),
        request(MpRequest::TableFeatures(Vec::new())),
        request(MpRequest::TableDesc),
        request(MpRequest::QueueDesc(queue)),
        request(MpRequest::IpfixBridge),
        request(MpRequest::IpfixFlow),
    ]
}

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), "messages")
}

#[test]
fn the_corpus_and_mutants_of_it_break_nothing() {
    let corpus = corpus().scripts().expect("the corpus is beside the source");
    let mut seen = Seen::new();
    corpus.iter().for_each(|m| seen.extend(play(m)));
    // The fuzzer's mutants also reach deep decoders.
    for part in [
        "FlowMod SetField",
        "GroupMod Bucket",
        "BundleAdd FlowMod",
        "PacketOut Learn",
    ] {
        assert!(seen.contains(part), "{part} is not among {} things", seen.len());
    }
    let mut dice = Dice::new(1);
    for _ in 0..20_000 {
        play(&dice.message(&corpus, Messages::MAX_SCRIPT_LEN));
    }
}

struct Messages;

impl Fuzzer for Messages {
    type Outcome = String;
    type OutcomeClass = String;
    const NAME: &'static str = "messages";
    const MAX_SCRIPT_LEN: usize = 4096;
    fn play(&self, message: &[u8]) -> (Seen, Seen) {
        let seen = play(message);
        (seen.clone(), seen)
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        seeds()
    }
    fn mutant(&self, dice: &mut Dice, of: &[Vec<u8>]) -> Vec<u8> {
        dice.message(of, Self::MAX_SCRIPT_LEN)
    }
    /// Sorts messages with most outcomes first; long ones are removed, as they have too many bytes for their
    /// outcomes.
    fn rank(&self, messages: &mut Vec<Vec<u8>>) {
        messages.retain(|m| m.len() <= 1024);
        messages.sort_by_cached_key(|m| (std::cmp::Reverse(play(m).len()), m.len(), m.clone()));
    }
}

/// See the module's header.
#[test]
#[ignore = "runs for FUZZ_SECONDS; make fuzz"]
fn explore() {
    heddle_fuzz::explore(&Messages, &corpus()).expect("the corpus is beside the source");
}
