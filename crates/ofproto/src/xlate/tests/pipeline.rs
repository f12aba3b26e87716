//! Tables, limits, actions.

use super::lab::{Lab, dp, out, resubmit, to};
use crate::group::Group;
use crate::model::{TableMiss, port_config};
use heddle_datapath_api::{Action as Odp, DropReason, Purpose};
use heddle_flow::{FieldId, FieldValue, Match, Subfield};
use heddle_openflow::message::{Bucket, GROUP_ANY, GroupDesc, GroupType};
use heddle_openflow::{Action, Instruction, InstructionSet, Port};
use std::sync::atomic::Ordering::Relaxed;

const TCP: &str = "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=1,tcp_dst=80";

#[test]
fn a_rule_and_nothing_else_in_the_mask() {
    let lab = Lab::new(&[3]);
    lab.rule((0, 0), "in_port=1", vec![out(2), out(1), out(9)]);
    let t = lab.translate(&Lab::key(TCP), Purpose::Miss);
    assert_eq!(
        t.actions,
        [Odp::Output(dp(0, 2))],
        "never back, never to what is not there"
    );
    assert_eq!(t.mask.0.nw_src, 0);
    assert_eq!(t.mask.0.nw_frag, 3);
    assert!(lab.generations.hold(&t.deps));
    assert!(!t.uncacheable);
}

#[test]
fn misses() {
    let mut lab = Lab::new(&[2]);
    assert_eq!(
        lab.translate(&Lab::key("in_port=1"), Purpose::Miss).actions,
        [Odp::Drop(DropReason::Policy)]
    );
    lab.bridges[0].miss_to_controller = true;
    lab.publish();
    assert!(lab.actions("in_port=1").contains("reason=7"));
    lab.bridges[0].config.insert(Port(1), port_config::NO_PACKET_IN);
    lab.bridges[0].tables[0].set_miss(TableMiss::Controller);
    lab.publish();
    assert_eq!(lab.actions("in_port=1"), "drop");
    assert!(lab.actions("in_port=2").contains("reason=7"));
    lab.bridges[0].tables[0].set_miss(TableMiss::Continue);
    lab.rule((0, 1), "", vec![out(2)]);
    assert_eq!(lab.actions("in_port=1"), "2");
}

#[test]
fn ports_that_do_not() {
    let mut lab = Lab::new(&[4]);
    lab.rule((0, 0), "", vec![to(Port::FLOOD)]);
    lab.bridges[0].config.insert(Port(2), port_config::NO_FLOOD);
    lab.bridges[0].config.insert(Port(3), port_config::NO_FWD);
    lab.bridges[0].config.insert(Port(4), port_config::NO_RECV);
    lab.publish();
    let mut got: Vec<_> = lab.actions("in_port=1").split(',').map(str::to_owned).collect();
    got.sort();
    assert_eq!(got, ["100", "4"]);
    assert_eq!(lab.actions("in_port=4"), "drop");
}

#[test]
fn unknown_datapath_port() {
    let lab = Lab::new(&[1]);
    let mut key = Lab::key("in_port=1");
    key.in_port = 77;
    assert_eq!(
        lab.translate(&key, Purpose::Miss).actions,
        [Odp::Drop(DropReason::NoPort)]
    );
}

#[test]
fn an_output_to_a_port_that_is_not_there_is_a_drop_of_the_pipeline() {
    let lab = Lab::new(&[1]);
    lab.rule((0, 0), "", vec![out(77)]);
    let key = Lab::key("in_port=1");
    assert_eq!(
        lab.translate(&key, Purpose::Miss).actions,
        [Odp::Drop(DropReason::Policy)]
    );
}

#[test]
fn what_is_changed_is_committed_once_and_undone_for_later_outputs() {
    let lab = Lab::new(&[4]);
    let ttl = Action::DecTtl(vec![0]);
    lab.rule(
        (0, 0),
        "",
        vec![
            Action::Clone(vec![Action::SetEthDst([2; 6]), ttl.clone(), out(2)]),
            out(3),
            ttl,
            Action::SetL4Dst(81),
            out(4),
        ],
    );
    assert_eq!(
        lab.actions(TCP),
        "set(eth(dst=02:02:02:02:02:02)),set(ipv4(ttl=63)),2,set(eth(dst=00:00:00:00:00:00)),set(ipv4(ttl=64)),3,\
         set(ipv4(ttl=63)),set(tcp(dst=81)),4"
    );
}

#[test]
fn masked_sets_write_only_their_bits() {
    let lab = Lab::new(&[2]);
    let field = |field, v: u64, m: u64| Action::SetField {
        field,
        value: FieldValue::from_u64(v),
        mask: FieldValue::from_u64(m),
    };
    lab.rule(
        (0, 0),
        "",
        vec![field(FieldId::Ipv4Dst, 0x0000_0100, 0x0000_ff00), out(2)],
    );
    assert_eq!(lab.actions(TCP), "set(ipv4(dst=0.0.1.0/0.0.255.0)),2");
    assert_eq!(lab.actions("in_port=1,arp"), "2", "no such field in this packet");
}

#[test]
fn ttl_runs_out() {
    let lab = Lab::new(&[2]);
    lab.rule((0, 0), "", vec![resubmit(1), out(2)]);
    lab.rule((0, 1), "", vec![Action::DecTtl(vec![0]), out(1)]);
    let text = lab.actions("in_port=2,icmp,nw_ttl=1");
    assert!(
        text.starts_with("userspace(") && text.contains("reason=2"),
        "{text}"
    );
    assert!(
        !text.contains(",1"),
        "the list ends, the caller's goes on: {text}"
    );
}

#[test]
fn tags() {
    let lab = Lab::new(&[4]);
    let vid = |vid, push_if_missing| Action::SetVlanVid { vid, push_if_missing };
    lab.rule(
        (0, 0),
        "in_port=1",
        vec![
            vid(5, false),
            out(2),
            vid(5, true),
            out(3),
            Action::PopVlan,
            out(4),
        ],
    );
    lab.rule(
        (0, 0),
        "in_port=2",
        vec![Action::PushVlan(0x88a8), vid(7, false), out(1)],
    );
    assert_eq!(lab.actions("in_port=1"), "2,push_vlan(vid=5,pcp=0),3,pop_vlan,4");
    assert_eq!(
        lab.actions("in_port=1,dl_vlan=3,dl_vlan_pcp=2"),
        "pop_vlan,push_vlan(vid=5,pcp=2),2,3,pop_vlan,4"
    );
    assert_eq!(
        lab.actions("in_port=2,dl_vlan=3"),
        "push_vlan(tpid=0x88a8,vid=7,pcp=0),1"
    );
}

#[test]
fn labels() {
    let lab = Lab::new(&[2]);
    lab.rule(
        (0, 0),
        "ip",
        vec![
            Action::DecTtl(vec![]),
            Action::PushMpls(0x8847),
            Action::SetMplsLabel(9),
            out(2),
        ],
    );
    lab.rule(
        (0, 0),
        "mpls",
        vec![Action::PopMpls(0x0800), Action::SetEthDst([2; 6]), out(2)],
    );
    lab.rule(
        (0, 0),
        "mpls,mpls_label=1",
        vec![Action::PopMpls(0x0800), resubmit(1)],
    );
    assert_eq!(
        lab.actions(TCP),
        "set(ipv4(ttl=63)),push_mpls(label=9,tc=0,ttl=63,bos=1,eth_type=0x8847),2"
    );
    // The headers behind the label stay as they are, the opcode of ARP too.
    lab.rule((0, 0), "arp", vec![Action::PushMpls(0x8847), out(2)]);
    let labelled = lab.actions("in_port=1,arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.2");
    assert!(
        labelled.starts_with("push_mpls(") && labelled.ends_with("),2"),
        "{labelled}"
    );
    assert_eq!(
        lab.actions("in_port=1,mpls,mpls_label=7,mpls_bos=1"),
        "set(eth(dst=02:02:02:02:02:02)),pop_mpls(eth_type=0x800),2"
    );
}

#[test]
fn registers_metadata_stack() {
    let lab = Lab::new(&[5]);
    let reg = |n: usize| Subfield {
        field: FieldId::by_name(&format!("reg{n}")).expect("a register"),
        ofs: 0,
        n_bits: 16,
    };
    lab.rule(
        (0, 0),
        "",
        vec![
            Action::Load {
                dst: reg(0),
                value: 3,
            },
            Action::Move {
                src: reg(0),
                dst: reg(1),
            },
            Action::StackPush(reg(1)),
            Action::Load {
                dst: reg(1),
                value: 4,
            },
            Action::OutputReg {
                src: reg(1),
                max_len: 0,
            },
            Action::StackPop(reg(2)),
            resubmit(1),
        ],
    );
    lab.rule(
        (0, 1),
        "reg0=3,reg1=4,reg2=3",
        vec![Action::OutputReg {
            src: reg(2),
            max_len: 0,
        }],
    );
    assert_eq!(lab.actions("in_port=1"), "4,3");
    let mask = lab.translate(&Lab::key("in_port=1"), Purpose::Miss).mask;
    assert_eq!(mask.0.regs, [0; 16], "the datapath has no registers");
}

#[test]
fn action_set_and_goto() {
    let lab = Lab::new(&[4]);
    let set = InstructionSet(vec![
        Instruction::Apply(vec![out(2)]),
        Instruction::Write(vec![out(3), Action::SetEthSrc([1; 6])]),
        Instruction::WriteMetadata {
            value: 0xff,
            mask: 0xf,
        },
        Instruction::Goto(5),
    ]);
    lab.add((0, 0), 1, &Match::any(), set);
    lab.add(
        (0, 5),
        1,
        &Match::parse_text("metadata=0xf", None).unwrap(),
        InstructionSet(vec![Instruction::Write(vec![out(4)])]),
    );
    assert_eq!(lab.actions("in_port=1"), "2,set(eth(src=01:01:01:01:01:01)),4");
}

#[test]
fn resubmit_with_another_port_and_exit() {
    let lab = Lab::new(&[4]);
    let as_port = |p| Action::Resubmit {
        port: Port(p),
        table: None,
        with_ct_orig: false,
    };
    lab.rule((0, 0), "in_port=1", vec![as_port(2), as_port(9), out(4)]);
    lab.rule((0, 0), "in_port=2", vec![to(Port::IN_PORT), out(1), out(3)]);
    assert_eq!(
        lab.actions("in_port=1"),
        "1,3,4",
        "only the lookup sees the other port"
    );
    lab.rule((0, 0), "in_port=9", vec![Action::Exit, out(3)]);
    assert_eq!(lab.actions("in_port=1"), "1,3");
}

#[test]
fn limits_end_it() {
    let lab = Lab::new(&[3]);
    lab.rule((0, 0), "in_port=1", vec![out(2), resubmit(0)]);
    assert_eq!(
        lab.translate(&Lab::key("in_port=1"), Purpose::Miss).actions,
        [Odp::Drop(DropReason::RecursionTooDeep)]
    );
    // Not deep but many: each table resubmits to the next one twice.
    lab.rule((0, 0), "in_port=2", vec![resubmit(1)]);
    for t in 1..20 {
        lab.rule((0, t), "", vec![resubmit(t + 1), resubmit(t + 1)]);
    }
    assert_eq!(
        lab.translate(&Lab::key("in_port=2"), Purpose::Miss).actions,
        [Odp::Drop(DropReason::TooManyResubmits)]
    );
}

/// Every table resubmits to all later ones and back to the first: as deep as the limits allow, on a thread
/// with a small stack.
#[test]
fn the_machines_stack_survives() {
    let run = || {
        let lab = Lab::new(&[3]);
        for t in 0..250 {
            let mut nested = vec![resubmit(t + 1)];
            for _ in 0..20 {
                nested = vec![Action::Clone(nested)];
            }
            nested.push(out(2));
            lab.rule((0, t), "", nested);
        }
        lab.rule((0, 250), "", vec![resubmit(0)]);
        let t = lab.translate(&Lab::key("in_port=1"), Purpose::Miss);
        assert_eq!(t.actions, [Odp::Drop(DropReason::RecursionTooDeep)]);
    };
    std::thread::Builder::new()
        .stack_size(256 * 1024)
        .spawn(run)
        .unwrap()
        .join()
        .unwrap();
}

/// The pipeline does not limit how often a packet comes back. Each time is a translation of its own, with
/// ids, registers and stack as the one before left them.
#[test]
fn a_packet_comes_back_as_often_as_the_datapath_lets_it() {
    const TIMES: u8 = 32;
    let lab = Lab::new(&[3]);
    for t in 0..TIMES {
        let count = Action::set(
            Subfield::all(FieldId::Reg0),
            FieldValue::from_u64(u64::from(t) + 1),
        );
        let push = Action::StackPush(Subfield::all(FieldId::Reg0));
        lab.rule(
            (0, t),
            "",
            vec![count, push, Action::DebugRecirc, resubmit(t + 1)],
        );
    }
    lab.rule((0, TIMES), "reg0=32", vec![out(2)]);
    let mut key = Lab::key("in_port=1");
    let mut held = Vec::new();
    for t in 0..TIMES {
        let answer = lab.translate(&key, Purpose::Miss);
        assert!(!answer.uncacheable, "time {t}");
        assert_eq!(answer.actions, [Odp::Recirc(u32::from(t) + 1)]);
        key.recirc_id = u32::from(t) + 1;
        held.push(answer);
    }
    assert_eq!(
        lab.translate(&key, Purpose::Miss).actions,
        [Odp::Output(dp(0, 2))]
    );
}

#[test]
fn a_pushed_stack_has_an_end() {
    let lab = Lab::new(&[3]);
    let push = Action::StackPush(Subfield::all(FieldId::Xxreg0));
    lab.rule(
        (0, 0),
        "",
        vec![push; 5000].into_iter().chain([resubmit(1)]).collect(),
    );
    let t = lab.translate(&Lab::key("in_port=1"), Purpose::Miss);
    assert_eq!(t.actions, [Odp::Drop(DropReason::StackTooDeep)]);
}

#[test]
fn unsupported_actions_drop_by_name() {
    let lab = Lab::new(&[3]);
    lab.rule((0, 0), "", vec![out(2), Action::Decap(0xfffe)]);
    let t = lab.translate(&Lab::key("in_port=1,vlan_tci=0x1003"), Purpose::Miss);
    assert_eq!(t.actions, [Odp::Drop(DropReason::UnsupportedPacketType)]);
}

#[test]
fn patches_fold() {
    let mut lab = Lab::new(&[3, 3]);
    lab.patch((0, 3), (1, 3));
    let reg0 = Subfield::all(FieldId::Reg0);
    lab.rule(
        (0, 0),
        "",
        vec![
            Action::Load { dst: reg0, value: 7 },
            Action::SetEthSrc([1; 6]),
            out(3),
            resubmit(1),
        ],
    );
    lab.rule((0, 1), "reg0=7", vec![out(2)]);
    lab.rule(
        (1, 0),
        "in_port=3,reg0=0",
        vec![Action::SetEthSrc([2; 6]), out(1), out(3), Action::Exit],
    );
    let t = lab.translate(&Lab::key("in_port=1"), Purpose::Miss);
    let text = heddle_datapath_api::format_actions(&t.actions, None);
    assert_eq!(
        text,
        "set(eth(src=02:02:02:02:02:02)),101,set(eth(src=01:01:01:01:01:01)),2"
    );
    t.credits.iter().for_each(|c| c.credit(2, 120, 5, 0));
    let snapshot = lab.pipeline.snapshot();
    let stats = |b: u64, p| snapshot.bridges[&b].ports.get(&Port(p)).expect("it is there");
    assert_eq!(stats(0, 3).patch_tx.packets.load(Relaxed), 2);
    assert_eq!(stats(1, 3).patch_rx.bytes.load(Relaxed), 120);
}

#[test]
fn patches_in_a_ring_end() {
    let mut lab = Lab::new(&[3, 3]);
    lab.patch((0, 2), (1, 2));
    lab.patch((0, 3), (1, 3));
    lab.rule((0, 0), "", vec![to(Port::ALL)]);
    lab.rule((1, 0), "", vec![to(Port::ALL)]);
    let t = lab.translate(&Lab::key("in_port=1"), Purpose::Miss);
    assert!(!t.actions.is_empty());
}

/// Whether there was a tag decides the effect of popping it, also if there was none and in a clone of a
/// clone.
#[test]
fn a_tag_that_is_not_there_counts_where_it_is_taken_away() {
    let lab = Lab::new(&[3]);
    let nested = Action::Clone(vec![Action::StripVlan, Action::Clone(vec![out(2)])]);
    lab.rule((0, 0), "in_port=1", vec![nested]);
    let untagged = lab.translate(&Lab::key("in_port=1"), Purpose::Miss);
    assert_eq!(untagged.mask.0.vlans[0].tci, 0x1000);
    assert_eq!(lab.actions("in_port=1"), "2");
    assert_ne!(lab.actions("in_port=1,dl_vlan=5"), "2");
}

/// Overrides for later lookups have only values that are the same for all packets of a translation. They
/// leave out the packet's own bits of the same word.
#[test]
fn overrides_are_the_same_for_all_packets_of_a_translation() {
    let lab = Lab::new(&[2]);
    lab.rule((0, 0), "ip", vec![Action::SetIpv4Dst(7), resubmit(1)]);
    lab.rule((0, 1), "ip", vec![Action::SetIpv4Dst(8), resubmit(2)]);
    lab.rule((0, 2), "ip,dl_src=00:00:00:00:00:01", vec![out(2)]);
    let seen = |nw_src, dp_hash| {
        let mut key = Lab::key(TCP);
        (key.nw_src, key.dp_hash) = (nw_src, dp_hash);
        lab.translate(&key, Purpose::Miss).overrides
    };
    assert!(!seen(1, 0).is_empty());
    assert_eq!(seen(1, 0), seen(2, 0));
    assert_eq!(seen(1, 0), seen(1, 5));
}

/// The bits of a hash that count may all be zero, and then an entry does not show that there is a hash.
/// Translated again, the entry is still for packets that came back with one, and does not request another.
#[test]
fn a_hash_of_which_zeros_are_left_is_a_hash() {
    let lab = Lab::new(&[3]);
    let bucket = |id, port| Bucket {
        id,
        weight: 1,
        watch_port: Port::NONE,
        watch_group: GROUP_ANY,
        actions: vec![out(port)],
    };
    let group = GroupDesc {
        group_id: 1,
        ty: GroupType::Select,
        buckets: vec![bucket(0, 2), bucket(1, 3)],
        selection: None,
    };
    lab.bridges[0].groups.insert(1, 1, Group::new(group, 0));
    lab.rule((0, 0), "ip", vec![Action::Group(1)]);
    let mut key = Lab::key(TCP);
    let first = lab.translate(&key, Purpose::Miss);
    let Some(Odp::Recirc(id)) = first.actions.last() else {
        panic!("{:?}", first.actions)
    };
    (key.recirc_id, key.dp_hash) = (*id, 0xff00);
    let back = lab.translate(&key, Purpose::Miss);
    assert!(matches!(back.actions[..], [Odp::Output(_)]), "{:?}", back.actions);
    assert_ne!(back.mask.0.dp_hash, 0);
    key.dp_hash &= back.mask.0.dp_hash;
    assert_eq!(key.dp_hash, 0);
    assert_eq!(lab.translate(&key, Purpose::Revalidate).actions, back.actions);
}
