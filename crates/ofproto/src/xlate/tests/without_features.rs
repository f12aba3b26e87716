//! Translation without some feature of the datapath, and queues that mark packets.

use super::lab::{Lab, dp, out, resubmit};
use heddle_datapath_api::{Action as Odp, Purpose};
use heddle_flow::{FieldId, Subfield};
use heddle_openflow::action::CheckPktLarger;
use heddle_openflow::{Action, Port};

const IP: &str = "in_port=1,icmp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,nw_tos=252,nw_ecn=3";

fn without(lab: &mut Lab, feature: &str) {
    lab.bridges[0].features.set(feature, "false").unwrap();
    lab.publish();
}

#[test]
fn packets_are_measured_one_by_one() {
    let mut lab = Lab::new(&[3]);
    let larger = Action::CheckPktLarger(Box::new(CheckPktLarger {
        pkt_len: 200,
        dst: Subfield {
            field: FieldId::Reg0,
            ofs: 0,
            n_bits: 1,
        },
    }));
    lab.rule((0, 0), "", vec![larger, resubmit(1)]);
    lab.rule((0, 1), "reg0=1", vec![out(2)]);
    lab.rule((0, 1), "reg0=0", vec![out(3)]);
    assert_eq!(lab.actions(IP), "check_pkt_len(size=200,gt(2),le(3))");
    without(&mut lab, "check_pkt_len");
    let t = lab.translate(&Lab::key(IP), Purpose::Miss);
    assert_eq!(
        t.actions,
        [Odp::Output(dp(0, 3))],
        "there is no packet that could be long"
    );
    assert!(t.uncacheable, "the next one may be");
}

#[test]
fn what_cannot_be_undone_needs_a_clone() {
    let mut lab = Lab::new(&[3]);
    let cut = Action::OutputTrunc {
        port: Port(2),
        max_len: 60,
    };
    lab.rule((0, 0), "", vec![Action::Clone(vec![cut]), out(3)]);
    assert_eq!(lab.actions(IP), "clone(trunc(60),2),3");
    without(&mut lab, "clone");
    assert_eq!(lab.actions(IP), "sample(sample=100.0%,actions(trunc(60),2)),3");
    lab.bridges[0].features.set("sample_nesting", "3").unwrap();
    lab.publish();
    assert_eq!(lab.actions(IP), "3");
    let trace = lab.trace(&["br0", "in_port=1,ip"]).unwrap().text;
    assert!(trace.contains("Failed to compose clone action"), "{trace}");
}

#[test]
fn a_cut_is_the_slow_paths() {
    let mut lab = Lab::new(&[2]);
    let cut = Action::OutputTrunc {
        port: Port(2),
        max_len: 60,
    };
    lab.rule((0, 0), "", vec![cut]);
    let cached = |lab: &Lab| !lab.translate(&Lab::key(IP), Purpose::Miss).uncacheable;
    assert!(cached(&lab));
    without(&mut lab, "trunc");
    assert!(!cached(&lab));
}

#[test]
fn queues_mark_what_leaves_by_them() {
    let mut lab = Lab::new(&[2]);
    lab.bridges[0].bundles[2].queue_dscp = vec![(1, 1), (2, 2)];
    lab.publish();
    let enqueue = |queue| Action::Enqueue { port: Port(2), queue };
    lab.rule(
        (0, 0),
        "",
        vec![enqueue(1), enqueue(2), enqueue(3), out(2), out(0xffff_fffe)],
    );
    assert_eq!(
        lab.actions(IP),
        "set(ipv4(tos=0x4/0xfc)),set(skb_priority(0x1)),2,set(ipv4(tos=0x8/0xfc)),set(skb_priority(0x2)),2,\
         set(ipv4(tos=0xfc/0xfc)),set(skb_priority(0x3)),2,set(skb_priority(0)),2,100"
    );
    let mask = lab.translate(&Lab::key(IP), Purpose::Miss).mask;
    assert_eq!((mask.0.nw_tos, mask.0.skb_priority), (0xfc, u32::MAX));
    // Packets without a DSCP are not marked.
    assert!(!lab.actions("in_port=1,arp").contains("tos"));
}
