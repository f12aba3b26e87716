//! Work that doubles with every step ends: no packet costs a worker more than
//! [`MAX_STEPS`](crate::xlate::limits::MAX_STEPS).

use super::lab::{Lab, out, resubmit};
use crate::group::Group;
use heddle_datapath_api::{Action as Odp, DropReason, Purpose};
use heddle_flow::{FieldId, Subfield};
use heddle_openflow::action::CheckPktLarger;
use heddle_openflow::message::{Bucket, GROUP_ANY, GroupDesc, GroupType};
use heddle_openflow::{Action, Port};

fn bucket(watch_group: u32, actions: Vec<Action>) -> Bucket {
    Bucket {
        id: 0,
        weight: 1,
        watch_port: Port::NONE,
        watch_group,
        actions,
    }
}

/// Groups 1 to `n`, each with two buckets that lead to the next; the last one has none.
fn chain(lab: &Lab, n: u32, ty: GroupType, lead: impl Fn(u32) -> Bucket) {
    for id in 1..=n {
        let next = (id < n).then(|| lead(id + 1));
        let desc = GroupDesc {
            group_id: id,
            ty,
            buckets: next.into_iter().flat_map(|b| [b.clone(), b]).collect(),
            selection: None,
        };
        lab.bridges[0].groups.insert(id, 1, Group::new(desc, 0));
    }
}

fn actions(lab: &Lab) -> Vec<Odp> {
    lab.translate(&Lab::key("in_port=1"), Purpose::Miss).actions
}

#[test]
fn groups_that_lead_to_groups_end() {
    for ty in [GroupType::All, GroupType::Indirect] {
        let lab = Lab::new(&[3]);
        chain(&lab, 60, ty, |next| bucket(GROUP_ANY, vec![Action::Group(next)]));
        lab.rule((0, 0), "", vec![Action::Group(1), out(2)]);
        let t = lab.translate(&Lab::key("in_port=1"), Purpose::Miss);
        assert_eq!(t.actions, [Odp::Drop(DropReason::TooManySteps)]);
        assert!(
            t.credits.len() < 100,
            "an entry holds {} credits",
            t.credits.len()
        );
    }
}

#[test]
fn groups_that_watch_groups_end() {
    let lab = Lab::new(&[3]);
    chain(&lab, 60, GroupType::FastFailover, |next| {
        bucket(next, vec![out(2)])
    });
    lab.rule((0, 0), "", vec![Action::Group(1), out(3)]);
    assert_eq!(actions(&lab), [Odp::Drop(DropReason::TooManySteps)]);
}

#[test]
fn nothing_that_another_bridge_sets_aside_brings_steps_back() {
    let mut lab = Lab::new(&[3, 3]);
    lab.bridges[0].patches.insert(Port(3), (1, Port(1)));
    lab.bridges[1].patches.insert(Port(1), (0, Port(3)));
    lab.publish();
    // The second bridge sends back to the first, whose groups double.
    chain(&lab, 60, GroupType::All, |next| {
        bucket(GROUP_ANY, vec![Action::Group(next)])
    });
    let back = Action::Output {
        port: Port::IN_PORT,
        max_len: 0,
    };
    lab.rule((0, 0), "in_port=1", vec![out(3), out(3), out(2)]);
    lab.rule((1, 0), "", vec![back.clone(), back]);
    lab.rule((0, 0), "in_port=3", vec![Action::Group(1)]);
    assert_eq!(actions(&lab), [Odp::Drop(DropReason::TooManySteps)]);
}

#[test]
fn lists_that_run_for_both_lengths_end() {
    let check = Action::CheckPktLarger(Box::new(CheckPktLarger {
        pkt_len: 100,
        dst: Subfield {
            field: FieldId::Reg0,
            ofs: 0,
            n_bits: 1,
        },
    }));
    fn nodes(list: &[Odp]) -> usize {
        let inner = |a: &Odp| match a {
            Odp::CheckPktLen {
                greater, less_equal, ..
            } => nodes(greater) + nodes(less_equal),
            _ => 0,
        };
        list.iter().map(|a| 1 + inner(a)).sum()
    }
    for rest in [vec![], vec![out(2)], vec![resubmit(1)]] {
        let lab = Lab::new(&[3]);
        let list = std::iter::repeat_n(check.clone(), 40).chain(rest.clone());
        lab.rule((0, 0), "", list.collect());
        lab.rule((0, 1), "", vec![out(2), out(3)]);
        let n = nodes(&actions(&lab));
        assert!(n < 10_000, "{rest:?}: {n} actions");
    }
}
