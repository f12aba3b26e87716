//! Random matches, actions and ports.

use crate::action::{ControllerAction, FieldId, FieldValue, Subfield};
use crate::message::{
    BUCKET_ALL, BUCKET_LAST, Bucket, GROUP_ANY, GroupCommand, GroupMod, GroupType, PortConfig, PortDesc,
    PortFeatures, PortState, Selection, SelectionMethod,
};
use crate::{Action, Instruction, InstructionSet, Port, Version};
use heddle_flow::Match;
use proptest::prelude::*;

pub(super) fn version() -> impl Strategy<Value = Version> {
    prop::sample::select(Version::ALL.to_vec())
}

/// A match of some protocol with random registers, addresses and ports.
pub(super) fn flow_match() -> impl Strategy<Value = Match> {
    let protocol = prop::sample::select(vec![
        "",
        "ip",
        "ipv6",
        "arp",
        "tcp",
        "udp",
        "tcp6",
        "icmp",
        "mpls",
        "sctp",
        "dl_type=0x1234",
    ]);
    (protocol, any::<[Option<u16>; 6]>()).prop_map(|(protocol, v)| {
        let mut parts: Vec<String> = if protocol.is_empty() {
            Vec::new()
        } else {
            vec![protocol.to_owned()]
        };
        let ports = matches!(protocol, "tcp" | "udp" | "tcp6" | "sctp");
        let v4 = matches!(protocol, "ip" | "tcp" | "udp" | "icmp" | "sctp");
        if let Some(x) = v[0] {
            parts.push(format!("in_port={}", x % 0xff00));
        }
        if let Some(x) = v[1] {
            parts.push(format!("reg0={x}"));
        }
        if let (Some(x), true) = (v[2], ports) {
            parts.push(format!("tp_dst={x}"));
        }
        if let (Some(x), true) = (v[3], v4) {
            parts.push(format!("nw_src=10.0.{}.{}", x >> 8, x & 0xff));
        }
        if let Some(x) = v[4] {
            parts.push(format!("dl_vlan={}", x % 4096));
        }
        if let Some(x) = v[5] {
            parts.push(format!("dl_src=00:00:00:00:{:02x}:{:02x}", x >> 8, x & 0xff));
        }
        Match::parse_text(&parts.join(","), None).expect("a match")
    })
}

/// A part of a register.
fn subfield() -> impl Strategy<Value = Subfield> {
    (
        prop::sample::select(vec![FieldId::Reg1, FieldId::Reg7, FieldId::Metadata]),
        0..32u16,
        1..33u16,
    )
        .prop_map(|(field, ofs, n)| Subfield {
            field,
            ofs,
            n_bits: n.min(32 - ofs),
        })
}

fn plain_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (1..0xff00u32).prop_map(|p| Action::Output {
            port: Port(p),
            max_len: 0
        }),
        Just(Action::Output {
            port: Port::NORMAL,
            max_len: 0
        }),
        any::<u16>().prop_map(|max_len| Action::Output {
            port: Port::CONTROLLER,
            max_len
        }),
        subfield().prop_map(|src| Action::OutputReg {
            src,
            max_len: u16::MAX
        }),
        (
            any::<u16>(),
            1..u16::MAX,
            prop::collection::vec(any::<u8>(), 0..9),
            any::<bool>()
        )
            .prop_map(|(max_len, id, userdata, pause)| {
                Action::Controller(ControllerAction {
                    max_len,
                    controller_id: id,
                    reason: 1,
                    userdata,
                    pause,
                    meter_id: None,
                })
            }),
        any::<u32>().prop_map(Action::SetQueue),
        Just(Action::PopQueue),
        (0..4096u16).prop_map(|vid| Action::SetVlanVid {
            vid,
            push_if_missing: true
        }),
        Just(Action::StripVlan),
        any::<[u8; 6]>().prop_map(Action::SetEthDst),
        any::<u32>().prop_map(Action::SetIpv4Src),
        (0..64u8).prop_map(|v| Action::SetIpDscp(v << 2)),
        any::<u8>().prop_map(Action::SetIpTtl),
        any::<u16>().prop_map(Action::SetL4Dst),
        any::<u32>().prop_map(|v| Action::SetField {
            field: FieldId::Reg3,
            value: FieldValue::from_u64(v.into()),
            mask: FieldId::Reg3.full_mask(),
        }),
        (any::<u32>(), 1..u32::MAX).prop_map(|(v, m)| Action::SetField {
            field: FieldId::Reg3,
            value: FieldValue::from_u64((v & m).into()),
            mask: FieldValue::from_u64(m.into()),
        }),
        (subfield(), any::<u64>()).prop_map(|(dst, v)| Action::Load {
            dst,
            value: v & ((1 << dst.n_bits) - 1)
        }),
        subfield().prop_map(|src| Action::Move {
            src,
            dst: Subfield {
                field: FieldId::Reg5,
                ..src
            }
        }),
        subfield().prop_map(Action::StackPush),
        subfield().prop_map(Action::StackPop),
        Just(Action::DecTtl(vec![0])),
        prop::collection::vec(1..99u16, 1..5).prop_map(Action::DecTtl),
        any::<u64>().prop_map(Action::SetTunnel),
        (1..0xff00u32, prop::option::of(0..254u8)).prop_map(|(p, table)| Action::Resubmit {
            port: Port(p),
            table,
            with_ct_orig: false
        }),
        any::<u32>().prop_map(Action::Group),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(|mut b| {
            b.resize((b.len() + 10).next_multiple_of(8) - 10, 0);
            Action::Note(b)
        }),
        Just(Action::Exit),
        prop::sample::select(EXTENSIONS).prop_map(extension),
    ]
}

/// Extensions in all versions, as texts.
pub(super) const EXTENSIONS: &[&str] = &[
    "learn(table=3)",
    "learn(table=0,idle_timeout=10,hard_timeout=20,fin_idle_timeout=1,fin_hard_timeout=2,priority=7,send_flow_rem,delete_learned,cookie=0x123456789,NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    "learn(table=9,limit=3,result_dst=NXM_NX_REG4[7],eth_type=0x800,ip_src=10.1.2.3,NXM_OF_TCP_SRC[0..3]=0x5,load:0xabcdef->NXM_NX_REG1[],load:NXM_OF_IN_PORT[]->NXM_NX_REG2[0..15])",
    "multipath(eth_src,50,modulo_n,1,0,NXM_NX_REG0[])",
    "multipath(symmetric_l3l4+udp,1024,hrw,16,7,NXM_NX_REG6[4..7])",
    "bundle(nw_dst,0,hrw,ofport,members:1,2,LOCAL)",
    "bundle(symmetric_l4,60,active_backup,ofport,members:)",
    "bundle_load(symmetric_l3,1,active_backup,ofport,NXM_NX_REG1[0..15],members:5,ANY)",
    "fin_timeout(idle_timeout=5)",
    "fin_timeout(idle_timeout=5,hard_timeout=15)",
    "sample(probability=12345,collector_set_id=23456,obs_domain_id=34567,obs_point_id=45678)",
    "sample(probability=1,collector_set_id=2,obs_domain_id=3,obs_point_id=4,sampling_port=56)",
    "sample(probability=1,collector_set_id=2,obs_domain_id=3,obs_point_id=4,sampling_port=56,egress)",
    "sample(probability=12345,collector_set_id=23456,obs_domain_id=NXM_OF_IN_PORT[],obs_point_id=NXM_NX_CT_LABEL[32..63],sampling_port=0)",
    "sample(probability=12345,collector_set_id=23456,obs_domain_id=7,obs_point_id=NXM_NX_REG0[5..9],egress)",
    "check_pkt_larger(1500)->NXM_NX_REG0[3]",
    "ct(commit,force,table=10,zone=NXM_NX_REG0[4..19],nat(src=10.0.0.1-10.0.0.9:1-65535,random),exec(load:0x5->NXM_NX_CT_MARK[]),alg=ftp)",
    "ct(zone=65535,nat)",
    "ct(commit,nat(dst=fe80::20c-fe80::2000,persistent,hash))",
    "ct(commit,nat(dst=[fe80::20c]:50-60))",
    "ct()",
    "ct_clear",
];

/// Reads one of [`EXTENSIONS`].
pub(super) fn extension(text: &str) -> Action {
    let mut list = crate::text::parse_actions(text, None).expect("an action");
    list.pop().expect("one action")
}

fn bucket(version: Version, ty: GroupType) -> impl Strategy<Value = Bucket> {
    (actions(), any::<u16>(), 1..0xff00u32, any::<Option<u16>>()).prop_map(
        move |(actions, weight, port, group)| {
            let watches = matches!(ty, GroupType::Select | GroupType::FastFailover);
            Bucket {
                id: 0,
                weight: if ty == GroupType::Select { weight } else { 0 },
                watch_port: if watches { Port(port) } else { Port::NONE },
                watch_group: group.filter(|_| watches).map_or(GROUP_ANY, u32::from),
                // Actions that some versions lack are not about groups.
                actions: actions.into_iter().filter(|_| version > Version::V10).collect(),
            }
        },
    )
}

/// A group modification that `version` has a form for.
pub(super) fn group_mod(version: Version) -> impl Strategy<Value = GroupMod> {
    let numbered = matches!(version, Version::V10 | Version::V15);
    let commands = [
        GroupCommand::Add,
        GroupCommand::Modify,
        GroupCommand::AddOrModify,
        GroupCommand::InsertBucket,
    ];
    let shape = (
        prop::sample::select(commands[..if numbered { 4 } else { 3 }].to_vec()),
        prop::sample::select(GroupType::ALL.to_vec()),
        any::<bool>(),
        any::<u64>(),
        any::<u32>(),
    );
    shape.prop_flat_map(move |(command, ty, hash, param, group_id)| {
        let n = if ty == GroupType::Indirect {
            1..2usize
        } else {
            0..4
        };
        prop::collection::vec(bucket(version, ty), n).prop_map(move |mut buckets| {
            for (n, b) in (0..).zip(&mut buckets) {
                b.id = n * if numbered { 7 } else { 1 };
            }
            let inserts = command == GroupCommand::InsertBucket;
            let method = if hash {
                SelectionMethod::Hash
            } else {
                SelectionMethod::DpHash
            };
            let all = |f: FieldId| (f, f.full_mask());
            let fields = if hash {
                vec![all(FieldId::Ipv4Src), all(FieldId::TcpDst)]
            } else {
                Vec::new()
            };
            GroupMod {
                command,
                ty,
                group_id,
                command_bucket_id: if inserts { BUCKET_LAST } else { BUCKET_ALL },
                buckets,
                selection: (numbered && !inserts && ty == GroupType::Select).then_some(Selection {
                    method,
                    param,
                    fields,
                }),
            }
        })
    })
}

/// A few actions, some of them nested.
pub(super) fn actions() -> impl Strategy<Value = Vec<Action>> {
    let nested = plain_action().prop_recursive(3, 8, 3, |inner| {
        prop::collection::vec(inner, 0..3).prop_map(Action::Clone)
    });
    prop::collection::vec(nested, 0..5)
}

/// Actions, and perhaps metadata and goto behind them.
pub(super) fn instructions() -> impl Strategy<Value = InstructionSet> {
    (
        actions(),
        prop::option::of(any::<(u64, u64)>()),
        prop::option::of(0..254u8),
    )
        .prop_map(|(actions, metadata, goto)| {
            let mut set = vec![Instruction::Apply(actions)];
            set.extend(metadata.map(|(value, mask)| Instruction::WriteMetadata { value, mask }));
            // 1.0 has goto as a resubmit, which must not come after metadata.
            set.extend(goto.filter(|_| metadata.is_none()).map(Instruction::Goto));
            InstructionSet(set)
        })
}

pub(super) fn port_desc() -> impl Strategy<Value = PortDesc> {
    (1..0xff00u32, any::<[u8; 6]>(), "[a-z]{0,15}", any::<[u32; 6]>()).prop_map(|(port, hw_addr, name, f)| {
        let feature = PortFeatures::from_bits_truncate;
        PortDesc {
            port: Port(port),
            hw_addr,
            name,
            config: PortConfig::from_bits_truncate(f[0]),
            state: PortState::from_bits_truncate(f[1]),
            curr: feature(f[2]),
            advertised: feature(f[3]),
            supported: feature(f[4]),
            peer: feature(f[5]),
            curr_speed: f[0],
            max_speed: f[1],
        }
    })
}
