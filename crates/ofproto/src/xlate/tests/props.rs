//! Properties of translations, on random rules and packets.

use super::lab::{Lab, out, resubmit, to};
use crate::model::{VlanMode, VlanSet};
use heddle_datapath_api::Purpose;
use heddle_flow::{FieldId, FieldValue, FlowKey, Match, N_WORDS, Subfield, Vlan};
use heddle_openflow::{Action, Instruction, InstructionSet, Port};
use proptest::prelude::*;
use std::sync::Arc;

fn set(field: FieldId, value: u64, mask: u64) -> Action {
    Action::SetField {
        field,
        value: FieldValue::from_u64(value),
        mask: FieldValue::from_u64(mask),
    }
}

/// The same as OpenFlow 1.0 has it; the mask's bits are adjacent.
fn load(field: FieldId, value: u64, mask: u64) -> Action {
    let (ofs, n_bits) = (mask.trailing_zeros(), mask.count_ones());
    let small = |n: u32| u16::try_from(n).unwrap();
    Action::Load {
        dst: Subfield {
            field,
            ofs: small(ofs),
            n_bits: small(n_bits),
        },
        value: value >> ofs,
    }
}

/// Small numbers everywhere, so that rules and packets meet.
pub(crate) fn action() -> impl Strategy<Value = Action> {
    let reg = |n: u8| Subfield {
        field: FieldId::by_name(&format!("reg{n}")).expect("a register"),
        ofs: 4,
        n_bits: 16,
    };
    let leaf = prop_oneof![
        6 => (1u32..5).prop_map(out),
        3 => (1u8..5).prop_map(resubmit),
        1 => prop_oneof![Just(Port::NORMAL), Just(Port::FLOOD), Just(Port::IN_PORT), Just(Port::CONTROLLER)].prop_map(to),
        1 => (0u64..3).prop_map(|v| load(FieldId::EthDst, v, 0xff)),
        1 => (0u64..3).prop_map(|v| load(FieldId::EthSrc, v << 8, 0xff00)),
        1 => (0u64..3).prop_map(|v| load(FieldId::Ipv4Dst, v, u64::from(u32::MAX))),
        1 => (0u64..3).prop_map(|v| load(FieldId::IpDscp, v << 2, 0x0c)),
        1 => (0u64..3).prop_map(|v| load(FieldId::TcpDst, v, 0xffff)),
        1 => (0u64..3).prop_map(|v| load(FieldId::ArpTpa, v, 0xff)),
        1 => (0u64..3).prop_map(|v| load(FieldId::VlanTci, 0x1000 | v, 0xffff)),
        1 => (0u64..3).prop_map(|v| load(FieldId::PktMark, v, 0xf)),
        1 => (0u64..3, 0u8..3).prop_map(move |(value, n)| Action::Load { dst: reg(n), value }),
        1 => (0u8..3, 0u8..3).prop_map(move |(a, b)| Action::Move { src: reg(a), dst: reg(b) }),
        1 => Just(Action::Move { src: Subfield { field: FieldId::Ipv4Src, ofs: 0, n_bits: 8 },
            dst: Subfield { field: FieldId::Reg0, ofs: 0, n_bits: 8 } }),
        1 => Just(Action::Move { src: Subfield { field: FieldId::EthSrc, ofs: 0, n_bits: 8 },
            dst: Subfield { field: FieldId::EthDst, ofs: 0, n_bits: 8 } }),
        1 => (0u8..3).prop_map(move |n| Action::StackPush(reg(n))),
        1 => (0u8..3).prop_map(move |n| Action::StackPop(reg(n))),
        1 => (0u8..3).prop_map(move |n| Action::OutputReg { src: reg(n), max_len: 0 }),
        1 => (0u16..3).prop_map(|vid| Action::SetVlanVid { vid, push_if_missing: true }),
        1 => (0u8..3).prop_map(|pcp| Action::SetVlanPcp { pcp, push_if_missing: true }),
        2 => Just(Action::StripVlan),
        1 => Just(Action::DecTtl(vec![0])),
        1 => (0u8..3).prop_map(Action::SetIpTtl),
        1 => (0u16..3).prop_map(Action::SetL4Src),
        1 => (0u32..3).prop_map(Action::SetIpv4Src),
        1 => (0u8..3).prop_map(|n| Action::SetEthSrc([2, 0, 0, 0, 0, n])),
        1 => (0u32..3).prop_map(Action::SetQueue),
        1 => Just(Action::PopQueue),
        1 => (1u32..5, 0u32..3).prop_map(|(p, queue)| Action::Enqueue { port: Port(p), queue }),
        1 => Just(Action::Exit),
        1 => (1u32..5).prop_map(|p| Action::Resubmit { port: Port(p), table: Some(1), with_ct_orig: false }),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop::collection::vec(inner, 1..3).prop_map(Action::Clone)
    })
}

/// A rule's match, in the text of `ovs-ofctl`.
pub(crate) fn matches() -> impl Strategy<Value = String> {
    let l2 = prop_oneof![
        3 => Just(String::new()),
        1 => (0u8..3).prop_map(|n| format!("dl_dst=00:00:00:00:00:{n:02x},")),
        1 => (0u8..3).prop_map(|n| format!("dl_src=00:00:00:00:00:{n:02x}/00:00:00:00:00:0f,")),
    ];
    let vlan = prop_oneof![
        4 => Just(String::new()),
        1 => (0u16..3).prop_map(|v| format!("dl_vlan={v},")),
        1 => Just("vlan_tci=0x1000/0x1000,".to_owned()),
        1 => Just("vlan_tci=0x0000/0x1000,".to_owned()),
        1 => (0u16..3).prop_map(|v| format!("dl_vlan_pcp={v},")),
    ];
    let l3 = prop_oneof![
        3 => Just(String::new()),
        1 => (0u32..3).prop_map(|v| format!("ip,nw_dst=0.0.0.{v},")),
        1 => (0u32..3).prop_map(|v| format!("ip,nw_src=0.0.0.{v}/0.0.0.3,")),
        1 => (0u32..3).prop_map(|v| format!("tcp,tp_dst={v},")),
        1 => (0u32..3).prop_map(|v| format!("tcp,tp_src={v},")),
        1 => Just("udp,".to_owned()),
        1 => Just("ip,nw_frag=later,".to_owned()),
        1 => (0u32..3).prop_map(|v| format!("ip,nw_tos={},", v * 4)),
        1 => (0u32..3).prop_map(|v| format!("arp,arp_tpa=0.0.0.{v},")),
        1 => (0u32..3).prop_map(|v| format!("ip,nw_ttl={v},")),
    ];
    let own = prop_oneof![
        3 => Just(String::new()),
        1 => (1u32..5).prop_map(|v| format!("in_port={v},")),
        1 => (0u32..3).prop_map(|v| format!("reg0={v}/0xf,")),
        1 => (0u32..3).prop_map(|v| format!("reg1={}/0xff0,", v * 16)),
        1 => (0u32..3).prop_map(|v| format!("pkt_mark={v}/0x3,")),
    ];
    (own, vlan, l2, l3).prop_map(|(a, b, c, d)| format!("{a}{b}{c}{d}").trim_end_matches(',').to_owned())
}

#[derive(Clone, Debug)]
pub(crate) struct RandomRule {
    pub(crate) table: u8,
    pub(crate) priority: u16,
    pub(crate) matches: String,
    pub(crate) set: InstructionSet,
}

/// Rules as OpenFlow 1.0 has them.
pub(crate) fn rules(n: usize) -> impl Strategy<Value = Vec<RandomRule>> {
    let one = (0u8..5, 0u16..4, matches(), prop::collection::vec(action(), 0..5)).prop_map(
        |(table, priority, matches, actions)| RandomRule {
            table,
            priority,
            matches,
            set: InstructionSet(vec![Instruction::Apply(actions)]),
        },
    );
    prop::collection::vec(one, 1..n)
}

/// Actions of OpenFlow 1.3 that may be in an action set.
fn set_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1u32..5).prop_map(out),
        1 => prop_oneof![Just(Port::FLOOD), Just(Port::IN_PORT), Just(Port::CONTROLLER)].prop_map(to),
        1 => (0u64..3).prop_map(|v| set(FieldId::EthDst, v, 0xff)),
        1 => (0u64..3).prop_map(|v| set(FieldId::Ipv4Dst, v, u64::from(u32::MAX))),
        1 => (0u64..3).prop_map(|v| set(FieldId::TcpDst, v, 0xffff)),
        1 => (0u64..3).prop_map(|v| set(FieldId::Reg0, v, 0xf)),
        1 => (0u64..3).prop_map(|v| set(FieldId::VlanVid, 0x1000 | v, 0x1fff)),
        1 => (0u64..3).prop_map(|v| set(FieldId::IpDscpShifted, v, 0x3f)),
        1 => (0u64..3).prop_map(|v| set(FieldId::EthSrc, v << 8 | v << 24, 0x0f00_ff00)),
        1 => (0u64..3).prop_map(|v| set(FieldId::ArpTpa, v, 0xff)),
        1 => Just(Action::PopVlan),
        1 => Just(Action::PushVlan(0x8100)),
        1 => Just(Action::PushMpls(0x8847)),
        1 => Just(Action::DecTtl(vec![0])),
        1 => (0u32..3).prop_map(Action::SetQueue),
        1 => (1u8..5).prop_map(resubmit),
    ]
}

/// Rules with the instructions of OpenFlow 1.3.
pub(crate) fn rules13(n: usize) -> impl Strategy<Value = Vec<RandomRule>> {
    let apply = prop::collection::vec(
        prop_oneof![3 => set_action(), 1 => prop_oneof![
            Just(Action::PopMpls(0x0800)),
            Just(Action::DecMplsTtl),
            Just(Action::SetMplsLabel(5)),
            prop::collection::vec(set_action(), 1..3).prop_map(Action::Clone),
        ]],
        0..4,
    )
    .prop_map(|a| Some(Instruction::Apply(a)).filter(|i| *i != Instruction::Apply(vec![])));
    let clear = prop_oneof![4 => Just(None), 1 => Just(Some(Instruction::Clear))];
    let write = prop::collection::vec(set_action(), 0..3)
        .prop_map(|a| Some(Instruction::Write(a)).filter(|i| *i != Instruction::Write(vec![])));
    let metadata = prop_oneof![
        3 => Just(None),
        1 => (0u64..4).prop_map(|value| Some(Instruction::WriteMetadata { value, mask: 3 })),
    ];
    let goto = prop_oneof![1 => Just(None), 2 => (1u8..5).prop_map(Some)];
    let matches = (
        matches(),
        prop_oneof![3 => Just(String::new()), 1 => (0u8..4).prop_map(|m| format!("metadata={m}/0x3"))],
    )
        .prop_map(|(a, b)| {
            [a, b]
                .into_iter()
                .filter(|s| !s.is_empty())
                .collect::<Vec<_>>()
                .join(",")
        });
    let one = (0u8..5, 0u16..4, matches, apply, clear, write, metadata, goto).prop_map(
        |(table, priority, matches, apply, clear, write, metadata, goto)| {
            let goto = goto.map(|t| Instruction::Goto(table + t));
            let set = InstructionSet(
                [apply, clear, write, metadata, goto]
                    .into_iter()
                    .flatten()
                    .collect(),
            );
            RandomRule {
                table,
                priority,
                matches,
                set,
            }
        },
    );
    prop::collection::vec(one, 1..n)
}

/// A packet, in the text of `ovs-ofctl`.
pub(crate) fn packet() -> impl Strategy<Value = String> {
    let vlan = prop_oneof![
        2 => Just(String::new()),
        1 => (0u16..3, 0u8..3).prop_map(|(v, p)| format!("dl_vlan={v},dl_vlan_pcp={p},")),
    ];
    let l3 = prop_oneof![
        1 => Just(String::new()),
        1 => (0u32..3, 0u32..3).prop_map(|(a, b)| format!("arp,arp_op=1,arp_spa=0.0.0.{a},arp_tpa=0.0.0.{b},")),
        4 => (0u32..3, 0u32..3, prop_oneof![Just("tcp"), Just("udp")], 0u16..3, 0u16..3, 0u8..3, 0u8..3).prop_map(
            |(a, b, p, s, d, ttl, tos)| format!(
                "{p},nw_src=0.0.0.{a},nw_dst=0.0.0.{b},{p}_src={s},{p}_dst={d},nw_ttl={ttl},nw_tos={},", tos * 4)),
    ];
    (1u32..5, 0u8..3, 0u8..3, vlan, l3).prop_map(|(port, a, b, vlan, l3)| {
        format!("in_port={port},{vlan}dl_src=00:00:00:00:00:{a:02x},dl_dst=00:00:00:00:00:{b:02x},{l3}")
            .trim_end_matches(',')
            .to_owned()
    })
}

/// Two bridges joined by a patch; access and trunk ports on the second.
pub(crate) fn lab(rules: &[RandomRule]) -> Lab {
    let mut lab = Lab::new(&[4, 4]);
    {
        let b = &mut lab.bridges[1].bundles;
        (b[1].vlan_mode, b[1].tag) = (VlanMode::Access, Some(1));
        b[2].trunks = Some(Arc::new(VlanSet::from_ids([0, 2])));
        (b[3].vlan_mode, b[3].tag) = (VlanMode::NativeUntagged, Some(2));
    }
    lab.patch((0, 4), (1, 4));
    for r in rules {
        add(&lab, r);
    }
    lab.rule((1, 0), "", vec![to(Port::NORMAL)]);
    lab
}

pub(crate) fn add(lab: &Lab, r: &RandomRule) {
    let m = Match::parse_text(&r.matches, None).unwrap();
    lab.add((0, r.table), r.priority, &m, r.set.clone());
}

/// Whether a packet may have this key: OVS's mask leaves some bits to the rules of the headers.
fn is_consistent(k: &FlowKey) -> bool {
    let tags = k.vlans;
    let clean = |v: &Vlan| {
        if v.present() {
            matches!(v.tpid, 0x8100 | 0x88a8)
        } else {
            *v == Vlan::default()
        }
    };
    tags.iter().all(clean) && (tags[0].present() || !tags[1].present())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any key that agrees under the mask gets the same translation.
    #[test]
    fn a_function_of_the_masked_key(
        rules in prop_oneof![rules(12), rules13(12)],
        text in packet(),
        others in prop::collection::vec((packet(), prop::collection::vec(any::<u64>(), N_WORDS)), 1..20),
    ) {
        let lab = lab(&rules);
        let key = Lab::key(&text);
        // The source is learned now, so that the next translation has nothing to learn.
        lab.translate(&key, Purpose::Miss);
        let t = lab.translate(&key, Purpose::Revalidate);
        prop_assert!(!t.uncacheable);
        for (other, noise) in others {
            // Another packet outside the mask, and one with a few random bits outside the mask.
            let other = Lab::key(&other);
            let mut noisy = key;
            for (i, n) in noise.iter().enumerate() {
                noisy.words_mut()[i] ^= n & n.rotate_left(7) & n.rotate_left(23) & n.rotate_left(31);
            }
            for alien in [other, noisy] {
                let mut k = key;
                for i in 0..N_WORDS {
                    let m = t.mask.words()[i];
                    k.words_mut()[i] = key.words()[i] & m | alien.words()[i] & !m;
                }
                for v in &mut k.vlans {
                    if !v.present() {
                        *v = Vlan::default();
                    }
                }
                // The pipeline's own fields are zero in the datapath.
                (k.regs, k.metadata, k.actset_output, k.conj_id) = ([0; 16], 0, 0, 0);
                if k.tun_present == 0 {
                    k.tun_metadata.fill(0);
                }
                if k.recirc_id == 0 {
                    // A packet from a port has no connection.
                    (k.ct_state, k.ct_zone, k.ct_mark, k.ct_label) = (0, 0, 0, [0; 16]);
                    (k.ct_nw_proto, k.ct_tp_src, k.ct_tp_dst) = (0, 0, 0);
                    (k.ct_nw_src, k.ct_nw_dst) = (0, 0);
                    (k.ct_ipv6_src, k.ct_ipv6_dst) = ([0; 16], [0; 16]);
                }
                if !is_consistent(&k) || !k.equal_under(&key, &t.mask) {
                    continue;
                }
                let again = lab.translate(&k, Purpose::Revalidate);
                prop_assert_eq!(&again.actions, &t.actions, "{}\n{}", key, k);
            }
        }
    }

    /// After a change either a dependency fails or the translation is the same as before.
    #[test]
    fn dependencies_move_with_changes(
        rules in prop_oneof![rules(10), rules13(10)],
        packets in prop::collection::vec(packet(), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), rules(2), 0u8..4), 1..6),
    ) {
        let lab = lab(&rules);
        let mut linked = Vec::new();
        let mut earlier: Vec<(FlowKey, heddle_datapath_api::Translation)> = Vec::new();
        for r in &rules {
            let m = Match::parse_text(&r.matches, None).unwrap();
            linked.push(((0, r.table), lab.add((0, r.table), r.priority + 4, &m, r.set.clone())));
        }
        for (which, new, kind) in changes {
            let before: Vec<_> = packets.iter().map(|p| {
                let key = Lab::key(p);
                let t = lab.translate(&key, Purpose::Revalidate);
                (key, t)
            }).collect();
            match kind {
                0 if !linked.is_empty() => {
                    let (at, entry) = linked.swap_remove(which.index(linked.len()));
                    lab.remove(at, &entry);
                }
                1 => drop(lab.translate(&Lab::key(which.get::<String>(&packets)), Purpose::Miss)),
                2 => lab.bridges[1].mac.flush(),
                _ => add(&lab, &new[0]),
            }
            earlier.extend(before);
            for (key, t) in &earlier {
                let now = lab.translate(key, Purpose::Revalidate);
                if lab.generations.hold(&t.deps) || t.outlasts(key, &lab.generations) {
                    prop_assert_eq!(&now.actions, &t.actions);
                }
                // The same for every packet that the translation was for.
                for other in &packets {
                    let mut k = Lab::key(other);
                    let words = k.words_mut().iter_mut().zip(key.words()).zip(t.mask.words());
                    words.for_each(|((w, k), m)| *w = *w & !m | k & m);
                    let real = is_consistent(&k) && k.equal_under(key, &t.mask);
                    if real && t.outlasts(key, &lab.generations) {
                        prop_assert_eq!(&lab.translate(&k, Purpose::Revalidate).actions, &t.actions);
                    }
                }
            }
        }
    }
}

/// Changes that do not concern a packet leave its translation valid, wherever in the pipeline they are.
#[test]
fn unrelated_changes_are_told_from_related_ones() {
    let mut lab = Lab::new(&[4, 4]);
    lab.patch((0, 4), (1, 4));
    let all = u64::from(u32::MAX);
    lab.rule(
        (0, 0),
        "in_port=1",
        vec![load(FieldId::Reg0, 7, all), resubmit(1)],
    );
    lab.rule(
        (0, 0),
        "in_port=2",
        vec![load(FieldId::Reg0, 8, all), resubmit(1)],
    );
    lab.rule(
        (0, 1),
        "ip,reg0=7,nw_dst=10.0.0.1",
        vec![load(FieldId::Ipv4Dst, 9, all), resubmit(2)],
    );
    lab.rule((0, 2), "", vec![out(4)]);
    lab.rule((1, 0), "in_port=4", vec![out(2)]);
    let key = Lab::key("in_port=1,ip,nw_src=10.0.0.9,nw_dst=10.0.0.1");
    let unrelated = [
        ((0, 0), "in_port=3"),
        ((0, 1), "reg0=8"),
        ((0, 1), "ip,nw_dst=10.0.0.2"),
        ((0, 1), "reg3=1"),
        ((0, 2), "reg0=6"),
        ((0, 3), ""),
        ((1, 0), "in_port=1"),
        ((1, 0), "reg0=7"),
        ((1, 0), "dl_type=0x86dd"),
    ];
    let related = [
        ((0, 0), "in_port=1"),
        ((0, 0), "ip,nw_ttl=3"),
        ((0, 1), "reg0=7"),
        ((0, 1), "ip,nw_dst=10.0.0.1"),
        // The address was changed before.
        ((0, 2), "ip,nw_dst=0.0.0.9"),
        ((0, 2), "reg0=7"),
        ((1, 0), "reg0=0"),
        ((1, 0), "in_port=4"),
    ];
    let cases = unrelated.iter().map(|c| (c, true));
    for ((at, text), outlasts) in cases.chain(related.iter().map(|c| (c, false))) {
        let t = lab.translate(&key, Purpose::Revalidate);
        assert!(lab.generations.hold(&t.deps) && t.outlasts(&key, &lab.generations));
        let m = Match::parse_text(text, None).unwrap();
        let e = lab.add(*at, 1, &m, InstructionSet(Vec::new()));
        assert_eq!(t.outlasts(&key, &lab.generations), outlasts, "{at:?} {text}");
        let t = lab.translate(&key, Purpose::Revalidate);
        lab.remove(*at, &e);
        assert_eq!(t.outlasts(&key, &lab.generations), outlasts, "{at:?} {text} goes");
    }
}
