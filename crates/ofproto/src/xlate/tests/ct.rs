//! Connection tracking: the emitted actions, the packets that see the state, and the bits of the mask.

use super::lab::{Lab, out, resubmit};
use crate::xlate::PacketOut;
use crate::xlate::ctx::key_port;
use heddle_datapath_api::{Action as Odp, DropReason, PortNo, Purpose, Translation};
use heddle_flow::FlowKey;
use heddle_openflow::text::parse_actions;
use heddle_openflow::{Action, Port};
use heddle_packet::Packet;

const TCP: &str = "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=1,tcp_dst=80";

fn acts(text: &str) -> Vec<Action> {
    parse_actions(text, None).unwrap()
}

/// The packet as it comes back from the datapath under an id, with a connection's state.
fn back(id: u32, state: u32) -> FlowKey {
    FlowKey {
        recirc_id: id,
        ct_state: state,
        ct_zone: 3,
        ct_mark: 7,
        ct_nw_proto: 6,
        ct_nw_src: 0x0a00_0001,
        ..Lab::key(TCP)
    }
}

fn text(lab: &Lab, key: &FlowKey) -> String {
    heddle_datapath_api::format_actions(&lab.translate(key, Purpose::Miss).actions, None)
}

#[test]
fn actions_of_all_forms() {
    let lab = Lab::new(&[2]);
    for (n, (given, expected)) in [
        ("ct", "ct"),
        ("ct(commit)", "ct(commit)"),
        ("ct(commit,force)", "ct(force_commit)"),
        ("ct(zone=5,nat)", "ct(zone=5,nat)"),
        ("ct(commit,alg=tftp)", "ct(commit,helper=tftp)"),
        (
            "ct(commit,zone=5,exec(load:1->NXM_NX_CT_MARK[],set_field:0x10/0xf0->ct_label))",
            "ct(commit,zone=5,mark=0x1/0xffffffff,label=0x10/0xf0)",
        ),
        (
            "ct(commit,nat(src=10.0.0.9-10.0.0.12:100-200,random),exec(set_field:0->ct_mark))",
            "ct(commit,mark=0/0xffffffff,nat(src=10.0.0.9-10.0.0.12:100-200,random))",
        ),
        (
            "ct(commit,nat(dst=[fe80::1]:80))",
            "ct(commit,nat(dst=[fe80::1]:80))",
        ),
        ("ct(commit,nat(src))", "ct(commit,nat(src))"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut actions = acts(given);
        actions.push(out(2));
        let matched = format!("in_port=1,tcp,tcp_src={n}");
        lab.rule((0, 0), &matched, actions);
        let key = TCP.replace("tcp_src=1", &format!("tcp_src={n}"));
        assert_eq!(lab.actions(&key), format!("{expected},2"));
    }
}

/// Changes are committed before the tracker sees the packet; bits that the tracker writes are not in the
/// mask.
#[test]
fn what_came_before_is_committed_and_marks_are_not_in_the_mask() {
    let lab = Lab::new(&[2]);
    let mut actions = acts("dec_ttl,ct(commit,exec(load:1->NXM_NX_CT_MARK[]))");
    actions.push(out(2));
    lab.rule((0, 0), "", actions);
    let t = lab.translate(&Lab::key(TCP), Purpose::Miss);
    assert_eq!(
        heddle_datapath_api::format_actions(&t.actions, None),
        "set(ipv4(ttl=63)),ct(commit,mark=0x1/0xffffffff),2"
    );
    assert_eq!((t.mask.0.ct_mark, t.mask.0.ct_state), (0, 0));
}

/// The translation depends on the bits that a nested action copies out of the mark.
#[test]
fn what_is_read_of_a_mark_is_in_the_mask() {
    let lab = Lab::new(&[2]);
    lab.rule((0, 0), "", acts("ct(table=1)"));
    let copy = "ct(commit,exec(move:NXM_NX_CT_MARK[0..7]->NXM_NX_CT_LABEL[0..7]))";
    lab.rule((0, 1), "", acts(copy));
    assert_eq!(lab.actions(TCP), "ct,recirc(0x1)");
    let t = lab.translate(&back(1, 0x21), Purpose::Miss);
    assert_eq!(
        heddle_datapath_api::format_actions(&t.actions, None),
        "ct(commit,mark=0x7/0xff,label=0x7/0xff)"
    );
    assert_eq!((t.mask.0.ct_mark, t.mask.0.ct_label), (0xff, [0; 16]));
}

#[test]
fn only_the_copy_that_comes_back_knows_the_state() {
    let lab = Lab::new(&[4]);
    let mut actions = acts("ct(table=1,zone=3)");
    actions.push(resubmit(1));
    lab.rule((0, 0), "", actions);
    lab.rule((0, 1), "ct_state=+trk", vec![out(2)]);
    lab.rule((0, 1), "ct_state=-trk", vec![out(3)]);
    assert_eq!(lab.actions(TCP), "ct(zone=3),recirc(0x1),3");
    assert_eq!(text(&lab, &back(1, 0x22)), "2");
}

/// The packet comes back for another reason: the datapath still has its state, the pipeline had forgotten it.
#[test]
fn a_state_that_was_forgotten_does_not_come_back() {
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("ct(commit),debug_recirc,resubmit(,1)"));
    lab.rule((0, 1), "ct_state=-trk,ct_mark=0", vec![out(3)]);
    lab.rule((0, 1), "ct_state=+trk", vec![out(2)]);
    assert_eq!(lab.actions(TCP), "ct(commit),recirc(0x1)");
    assert_eq!(text(&lab, &back(1, 0x22)), "3");
}

#[test]
fn a_state_that_is_known_survives_other_recirculations() {
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("ct(table=1)"));
    lab.rule((0, 1), "", acts("debug_recirc,resubmit(,2)"));
    lab.rule((0, 2), "ct_state=+trk,ct_mark=7", vec![out(2)]);
    assert_eq!(lab.actions(TCP), "ct,recirc(0x1)");
    assert_eq!(text(&lab, &back(1, 0x22)), "recirc(0x2)");
    assert_eq!(text(&lab, &back(2, 0x22)), "2");
}

#[test]
fn clearing_needs_an_action_only_where_something_is_known() {
    let mut lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("ct_clear,ct(table=1),ct_clear,output:3"));
    lab.rule((0, 1), "", acts("ct_clear,ct_clear,resubmit(,2)"));
    lab.rule((0, 2), "ct_state=-trk,ct_mark=0", vec![out(2)]);
    assert_eq!(lab.actions(TCP), "ct,recirc(0x1),3");
    assert_eq!(text(&lab, &back(1, 0x22)), "ct_clear,2");
    lab.bridges[0].features.set("ct_clear", "false").unwrap();
    lab.publish();
    assert_eq!(text(&lab, &back(1, 0x22)), "2");
}

/// Each bridge tracks for itself.
#[test]
fn behind_a_patch_port_nothing_is_known() {
    let mut lab = Lab::new(&[3, 3]);
    lab.patch((0, 2), (1, 1));
    lab.rule((0, 0), "", acts("ct(table=1)"));
    lab.rule((0, 1), "", acts("output:2,resubmit(,2)"));
    lab.rule((0, 2), "ct_state=+trk", vec![out(3)]);
    lab.rule((1, 0), "ct_state=-trk", acts("ct(zone=9,table=1),output:2"));
    lab.rule((1, 0), "ct_state=+trk", vec![out(3)]);
    assert_eq!(lab.actions(TCP), "ct,recirc(0x1)");
    assert_eq!(text(&lab, &back(1, 0x22)), "clone(ct(zone=9),recirc(0x2),102),3");
}

#[test]
fn clones_keep_their_tracking_to_themselves() {
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("ct(table=1)"));
    lab.rule((0, 1), "", acts("clone(ct(commit),output:2),ct_clear,output:3"));
    lab.actions(TCP);
    assert_eq!(text(&lab, &back(1, 0x21)), "clone(ct(commit),2),ct_clear,3");
}

#[test]
fn a_zone_may_come_from_a_field() {
    let lab = Lab::new(&[4]);
    let first = "load:5->NXM_NX_REG0[],ct(zone=NXM_NX_REG0[0..15],table=1)";
    lab.rule((0, 0), "", acts(first));
    lab.rule((0, 1), "", acts("ct(commit,zone=NXM_NX_CT_ZONE[])"));
    assert_eq!(lab.actions(TCP), "ct(zone=5),recirc(0x1)");
    let t = lab.translate(&back(1, 0x21), Purpose::Miss);
    assert_eq!(
        heddle_datapath_api::format_actions(&t.actions, None),
        "ct(commit,zone=3)"
    );
    assert_eq!(t.mask.0.ct_zone, u16::MAX);
}

#[test]
fn timeouts_are_those_of_the_zone() {
    let lab = Lab::new(&[4]);
    lab.rule((0, 0), "", acts("ct(commit,zone=4),output:2"));
    let t = lab.translate(&Lab::key(TCP), Purpose::Miss);
    let mut snapshot = crate::model::Snapshot::clone(&lab.pipeline.snapshot());
    snapshot.ct_timeouts = std::sync::Arc::new([(4, "1".into())].into());
    lab.pipeline.publish(snapshot);
    assert!(!lab.generations.hold(&t.deps), "what was said before is stale");
    assert_eq!(lab.actions(TCP), "ct(commit,zone=4,timeout=1),2");
    let t = lab.translate(&Lab::key("in_port=1,ip,nw_proto=47"), Purpose::Miss);
    assert_eq!(
        heddle_datapath_api::format_actions(&t.actions, None),
        "ct(commit,zone=4),2"
    );
    assert_eq!(t.mask.0.nw_proto, u8::MAX);
}

/// Rules may send a packet round for ever: a trace ends.
#[test]
fn a_trace_of_a_ring_ends() {
    let lab = Lab::new(&[2]);
    lab.rule((0, 0), "", acts("ct(table=0)"));
    let text = lab.trace(&["br0", TCP]).unwrap().text;
    assert!(text.ends_with("Trace ends here: over 512 recirculations\n"));
}

/// A packet that a controller has sent came in by no port; it is looked up again in the bridge that it was
/// sent in.
#[test]
fn what_controllers_send_is_looked_up_again() {
    let lab = Lab::new(&[2]);
    lab.rule((0, 0), "tcp", acts("ct(table=1)"));
    lab.rule((0, 1), "in_port=controller,tcp", vec![out(2)]);
    let key = FlowKey {
        in_port: key_port(Port::CONTROLLER),
        ..Lab::key(TCP)
    };
    let sent = PacketOut {
        bridge: 0,
        key: &key,
        actions: &[resubmit(0)],
        packet: &Packet::from_bytes(&[0; 60]),
        now_ms: 0,
        version: None,
    };
    let mut first = Translation::default();
    lab.pipeline.packet_out(&sent, &mut first).unwrap();
    let id = match first.actions[..] {
        [Odp::Ct(_), Odp::Recirc(id)] => id,
        ref other => panic!("{other:?}"),
    };
    let again = FlowKey {
        in_port: PortNo::NONE.0,
        ..back(id, 0x21)
    };
    assert_eq!(text(&lab, &again), "2");
    // Packets from a port that was removed meanwhile are dropped.
    let key = back(0, 0);
    let first = lab.translate(&key, Purpose::Miss);
    let Some(Odp::Recirc(id)) = first.actions.last() else {
        panic!("{:?}", first.actions);
    };
    let again = FlowKey {
        in_port: 77,
        ..back(*id, 0x21)
    };
    assert_eq!(
        lab.translate(&again, Purpose::Miss).actions,
        [Odp::Drop(DropReason::NoPort)]
    );
}
