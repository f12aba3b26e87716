//! Bonds in translation: members for packets that leave, and packets that members may bring.

use super::lab::{Lab, to};
use crate::bond_port::{BondPort, BondShared, BondView, LacpInput, LacpState, MemberView, Mode, slb_bucket};
use crate::model::{Mirror, MirrorOutput, PortBundle};
use crate::parts::Part;
use heddle_datapath_api::{Purpose, Translation};
use heddle_flow::{FlowKey, Match};
use heddle_openflow::{Action, InstructionSet, Port};
use std::sync::Arc;

const BOND: u64 = 7;
/// Stations behind port 1 and behind the bond.
const A: [u8; 6] = [0x50, 0, 0, 0, 0, 0x0a];
const OUT: &str = "in_port=1,dl_src=50:00:00:00:00:0a,dl_dst=50:00:00:00:00:0b";
const IN: &str = "dl_src=50:00:00:00:00:0b,dl_dst=50:00:00:00:00:0a";
const BROADCAST: &str = "dl_src=50:00:00:00:00:0b,dl_dst=ff:ff:ff:ff:ff:ff";

struct Bonded {
    lab: Lab,
    shared: Arc<BondShared>,
}

/// Ports 2 and 3 of the first bridge as a bond beside ports 1 and 4.
fn bonded(speaks_lacp: bool, change: impl Fn(&mut BondView)) -> Bonded {
    let mut lab = Lab::new(&[4, 2]);
    lab.rule((0, 0), "", vec![to(Port::NORMAL)]);
    let shared = BondShared::new(BOND, 5);
    let bundles = &mut lab.bridges[0].bundles;
    bundles.retain(|b| b.ports != [Port(2)]);
    let at = bundles.iter().position(|b| b.ports == [Port(3)]).unwrap();
    bundles[at] = PortBundle {
        name: "bond0".to_owned(),
        ports: vec![Port(2), Port(3)],
        bond: Some(BondPort {
            shared: shared.clone(),
            is_bond: true,
            speaks_lacp,
        }),
        ..PortBundle::default()
    };
    lab.publish();
    let bonded = Bonded { lab, shared };
    bonded.set(change);
    bonded
}

fn view() -> BondView {
    let member = |no| MemberView {
        no: Port(no),
        accepts: true,
        input: LacpInput::new(BOND, Port(no)),
    };
    BondView {
        mode: Mode::ActiveBackup,
        sends: Some(Mode::ActiveBackup),
        lacp: LacpState::Off,
        fallback: false,
        all_members_active: false,
        basis: 0,
        in_datapath: true,
        active: Some(Port(2)),
        members: vec![member(2), member(3)],
        buckets: Vec::new(),
    }
}

fn slb(v: &mut BondView) {
    (v.mode, v.sends) = (Mode::BalanceSlb, Some(Mode::BalanceSlb));
    v.buckets = vec![Some(Port(2)); 256];
}

impl Bonded {
    fn set(&self, change: impl Fn(&mut BondView)) {
        let mut view = view();
        change(&mut view);
        let parts = view.differences(&self.shared.view.load());
        self.shared.view.store(view);
        for part in parts {
            self.lab.generations.bump(Part::Bond(BOND, part).slot());
        }
    }
    fn translate(&self, text: &str) -> Translation {
        self.lab.translate(&Lab::key(text), Purpose::Miss)
    }
    fn is_fresh(&self, t: &Translation) -> bool {
        self.lab.generations.hold(&t.deps)
    }
}

#[test]
fn floods_and_known_stations_leave_by_the_active_member() {
    let b = bonded(false, |_| {});
    assert_eq!(b.lab.actions(OUT), "100,2,4");
    b.lab.actions(&format!("in_port=2,{IN}"));
    let known = b.translate(OUT);
    assert_eq!(heddle_datapath_api::format_actions(&known.actions, None), "2");
    let other = b.translate("in_port=1,dl_src=50:00:00:00:00:0a,dl_dst=50:00:00:00:00:0a");
    b.set(|v| v.active = Some(Port(3)));
    assert!(!b.is_fresh(&known) && b.is_fresh(&other));
    assert_eq!(b.lab.actions(OUT), "3");
    b.set(|v| v.active = None);
    assert_eq!(b.lab.actions(OUT), "drop");
}

/// Stations are learned on the bond, so that a packet by another member does not move them.
#[test]
fn a_station_behind_a_bond_does_not_move_between_members() {
    let b = bonded(true, |v| v.lacp = LacpState::Negotiated);
    for member in [3, 2, 3] {
        b.lab.actions(&format!("in_port={member},{IN}"));
        assert_eq!(b.lab.bridges[0].mac.entries(0)[0].port, Port(2));
    }
    assert_eq!(b.lab.bridges[0].mac.stats().moved, 0);
    // A packet that comes by one member does not leave by the other.
    assert_eq!(b.lab.actions(&format!("in_port=3,{BROADCAST}")), "100,1,4");
}

#[test]
fn backups_bring_no_packets() {
    let b = bonded(false, |_| {});
    assert_eq!(b.lab.actions(&format!("in_port=2,{BROADCAST}")), "100,1,4");
    let refused = b.translate(&format!("in_port=3,{BROADCAST}"));
    assert_eq!(
        heddle_datapath_api::format_actions(&refused.actions, None),
        "drop"
    );
    assert_eq!(b.lab.actions(&format!("in_port=3,{IN}")), "drop");
    b.set(|v| v.active = Some(Port(3)));
    assert!(!b.is_fresh(&refused));
    assert_eq!(b.lab.actions(&format!("in_port=3,{BROADCAST}")), "100,1,4");
}

/// balance-slb: unicast comes by any member, multicast by the active one, and our own packets not at all.
#[test]
fn packets_that_come_back_are_refused() {
    let b = bonded(false, slb);
    b.lab.actions(OUT);
    assert_eq!(b.lab.actions(&format!("in_port=3,{IN}")), "1");
    assert_eq!(b.lab.actions(&format!("in_port=3,{BROADCAST}")), "drop");
    let own = "dl_src=50:00:00:00:00:0a,dl_dst=50:00:00:00:00:0c";
    assert_eq!(b.lab.actions(&format!("in_port=3,{own}")), "drop");
    assert_eq!(b.lab.actions(&format!("in_port=1,{own}")), "100,2,4");
    b.set(|v| {
        slb(v);
        v.all_members_active = true;
    });
    assert_eq!(b.lab.actions(&format!("in_port=3,{BROADCAST}")), "100,1,4");
    // A gratuitous ARP moves the station, unless it has just announced itself elsewhere.
    let arp = |port: u32| {
        b.lab.actions(&format!(
            "in_port={port},arp,dl_src=50:00:00:00:00:0a,dl_dst=ff:ff:ff:ff:ff:ff,arp_op=2"
        ))
    };
    assert_eq!(arp(3), "100,1,4");
    assert_eq!(arp(1), "100,2,4");
    assert_eq!(arp(3), "drop");
}

#[test]
fn only_flows_of_a_bucket_that_moves_are_stale() {
    let b = bonded(false, slb);
    let (first, second) = (b.translate(OUT), b.translate(&OUT.replace("0a,", "0d,")));
    let bucket = |last: u8| usize::from(slb_bucket([0x50, 0, 0, 0, 0, last], 0, 0));
    assert_ne!(bucket(0x0a), bucket(0x0d));
    assert_eq!(first.mask.0.dl_src, [0xff; 6]);
    b.set(|v| {
        slb(v);
        v.buckets[bucket(0x0a)] = Some(Port(3));
    });
    assert!(!b.is_fresh(&first) && b.is_fresh(&second));
    assert_eq!(b.lab.actions(OUT), "100,3,4");
    let credited = b.translate(OUT);
    credited.credits.iter().for_each(|c| c.credit(2, 120, 1000, 0));
    let sent = &b.shared.sent[usize::from(slb_bucket(A, 0, 0))];
    assert_eq!(sent.bytes.load(std::sync::atomic::Ordering::Relaxed), 120);
}

#[test]
fn hashed_flows_end_in_the_datapaths_buckets_and_outlive_them() {
    let tcp = |v: &mut BondView| {
        (v.mode, v.sends) = (Mode::BalanceTcp, Some(Mode::BalanceTcp));
        v.lacp = LacpState::Negotiated;
        v.buckets = vec![Some(Port(2)); 256];
    };
    let b = bonded(true, tcp);
    let flooded = b.translate(OUT);
    assert_eq!(
        heddle_datapath_api::format_actions(&flooded.actions, None),
        "100,lb_output(5),4"
    );
    assert_eq!(flooded.mask.0.nw_src, 0);
    b.set(|v| {
        tcp(v);
        v.buckets = vec![Some(Port(3)); 256];
    });
    assert!(b.is_fresh(&flooded));
    // A member that is no port of the datapath cannot be in its buckets.
    b.set(|v| {
        tcp(v);
        v.in_datapath = false;
    });
    assert!(!b.is_fresh(&flooded));
    let chosen = b.translate(&format!("{OUT},ip,nw_src=10.0.0.1,nw_dst=10.0.0.2"));
    assert_eq!(
        heddle_datapath_api::format_actions(&chosen.actions, None),
        "100,2,4"
    );
    b.set(|v| (v.mode, v.sends) = (Mode::BalanceTcp, None));
    assert_eq!(b.lab.actions(OUT), "100,4");
}

/// A packet that reaches the bond over a patch port meets the rules once, with the tag that it had then. The
/// choice of a member is no second lookup.
#[test]
fn the_choice_of_a_member_meets_no_rule_again() {
    let mut b = bonded(true, |v| {
        (v.mode, v.sends) = (Mode::BalanceTcp, Some(Mode::BalanceTcp));
        v.lacp = LacpState::Negotiated;
        v.buckets = vec![Some(Port(2)); 256];
    });
    b.lab.patch((0, 4), (1, 2));
    let vid = Action::SetVlanVid {
        vid: 1,
        push_if_missing: true,
    };
    b.lab.rule((1, 0), "in_port=1", vec![vid, to(Port(2))]);
    let tagged = Match::parse_text("in_port=1,dl_vlan=1", None).unwrap();
    b.lab.add((1, 0), 0x9000, &tagged, InstructionSet(Vec::new()));
    let key = FlowKey {
        in_port: 101,
        ..Lab::key("ip,dl_src=50:00:00:00:00:0b,dl_dst=50:00:00:00:00:0a,nw_src=10.0.0.2,nw_dst=10.0.0.1")
    };
    let t = b.lab.translate(&key, Purpose::Miss);
    let actions = heddle_datapath_api::format_actions(&t.actions, None);
    assert_eq!(actions, "push_vlan(vid=1,pcp=0),100,1,lb_output(5)");
    assert!(!actions.contains("recirc"));
}

#[test]
fn lacp_decides_which_members_bring_packets() {
    let b = bonded(true, |v| {
        v.lacp = LacpState::Negotiated;
        v.members[1].accepts = false;
    });
    assert_eq!(b.lab.actions(&format!("in_port=2,{IN}")), "100,1,4");
    let refused = b.translate(&format!("in_port=3,{IN}"));
    assert_eq!(
        heddle_datapath_api::format_actions(&refused.actions, None),
        "drop"
    );
    b.set(|v| v.lacp = LacpState::Negotiated);
    assert!(!b.is_fresh(&refused));
    b.set(|v| v.lacp = LacpState::Configured);
    assert_eq!(b.lab.actions(&format!("in_port=2,{IN}")), "drop");
    b.set(|v| (v.lacp, v.fallback) = (LacpState::Configured, true));
    assert_eq!(b.lab.actions(&format!("in_port=2,{IN}")), "100,1,4");
    assert_eq!(b.lab.actions(&format!("in_port=3,{IN}")), "drop");
}

/// Messages of LACP are handed over before any rule, and only on ports that speak it.
#[test]
fn messages_of_lacp_are_handed_over() {
    let pdu = "dl_src=50:00:00:00:00:0b,dl_dst=01:80:c2:00:00:02,dl_type=0x8809";
    let b = bonded(true, |_| {});
    for member in [2, 3] {
        assert_eq!(
            b.lab.actions(&format!("in_port={member},{pdu}")),
            "userspace(pid=0,slow_path(lacp))"
        );
    }
    assert_eq!(b.lab.actions(&format!("in_port=1,{pdu}")), "drop");
    let silent = bonded(false, |_| {});
    assert_eq!(silent.lab.actions(&format!("in_port=2,{pdu}")), "drop");
}

#[test]
fn mirrors_see_the_bond_and_send_by_it() {
    let mut b = bonded(false, |_| {});
    let bond = b.lab.bridges[0]
        .bundles
        .iter()
        .position(|x| x.name == "bond0")
        .unwrap();
    let mirror = |sources: Vec<usize>, output: usize| Mirror {
        sources,
        destinations: Vec::new(),
        vlans: None,
        output: MirrorOutput::Bundle(output),
        snaplen: 0,
        same_output: 1,
        stats: Arc::default(),
    };
    let bundle_of = |b: &Bonded, port| {
        b.lab.bridges[0]
            .bundles
            .iter()
            .position(|x| x.ports == [Port(port)])
            .unwrap()
    };
    let four = bundle_of(&b, 4);
    b.lab.bridges[0].mirrors = vec![mirror(vec![bond], four)];
    b.lab.publish();
    assert_eq!(b.lab.actions(&format!("in_port=2,{BROADCAST}")), "4,100,1");
    let one = bundle_of(&b, 1);
    b.lab.bridges[0].mirrors = vec![mirror(vec![one], bond)];
    b.lab.bridges[0].mac.flush();
    b.lab.publish();
    assert_eq!(b.lab.actions(OUT), "2,100,4");
}
