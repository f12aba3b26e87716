//! Bonds on a clock that tests move, without a switch.

use super::config::MemberLink;
use super::machine::Bond;
use super::rebalance::{MemberLoad, Move, plan};
use super::*;
use crate::bond_port::{BUCKETS, BondView};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn settings(mode: Mode) -> BondSettings {
    BondSettings {
        mode,
        rebalance_ms: 10_000,
        ..BondSettings::default()
    }
}

fn link(n: u8, carrier: bool) -> MemberLink {
    MemberLink {
        no: OfPort(n.into()),
        name: format!("p{n}"),
        mac: [2, 0, 0, 0, 0, n],
        carrier,
    }
}

/// A bond with members 1 to `n`, all of them up.
fn bond(settings: BondSettings, n: u8) -> Bond {
    let mut bond = Bond::new("bond0", settings, 1000);
    set_up(&mut bond, &vec![true; n.into()]);
    run(&mut bond, 1000);
    bond
}

fn set_up(bond: &mut Bond, up: &[bool]) {
    bond.set_members((1..).zip(up).map(|(n, up)| link(n, *up)).collect());
    for (n, up) in (1..).zip(up) {
        bond.set_may_enable(OfPort(n), *up);
    }
}

fn run(bond: &mut Bond, now_ms: u64) {
    bond.run(LacpState::Off, now_ms);
}

fn members_of(bond: &Bond) -> BTreeMap<Option<OfPort>, usize> {
    let mut n = BTreeMap::new();
    bond.buckets
        .iter()
        .for_each(|b| *n.entry(b.member).or_default() += 1);
    n
}

const fn port(n: u32) -> Option<OfPort> {
    Some(OfPort(n))
}

#[test]
fn the_active_member_fails_over_and_the_last_one_stays() {
    let mut b = bond(settings(Mode::ActiveBackup), 2);
    assert_eq!(b.active, port(1));
    assert!(b.take_learning() && !b.take_learning());
    set_up(&mut b, &[false, true]);
    run(&mut b, 2000);
    assert_eq!((b.active, b.active_mac[5]), (port(2), 2));
    assert!(b.take_learning() && b.take_active_changed());
    set_up(&mut b, &[true, true]);
    run(&mut b, 3000);
    assert_eq!(b.active, port(2));
    set_up(&mut b, &[false, false]);
    run(&mut b, 4000);
    assert_eq!((b.active, b.sends()), (None, Some(Mode::ActiveBackup)));
    assert!(!b.take_learning());
}

#[test]
fn the_primary_becomes_active_whenever_it_is_enabled() {
    let primary = BondSettings {
        primary: Some("p2".into()),
        ..settings(Mode::ActiveBackup)
    };
    let mut b = bond(primary, 3);
    assert_eq!(b.active, port(2));
    set_up(&mut b, &[true, false, true]);
    run(&mut b, 2000);
    assert_eq!(b.active, port(1));
    set_up(&mut b, &[true, true, true]);
    run(&mut b, 3000);
    assert_eq!(b.active, port(2));
}

#[test]
fn a_new_bond_begins_with_the_last_active_member() {
    let last = BondSettings {
        last_active: [2, 0, 0, 0, 0, 3],
        ..settings(Mode::ActiveBackup)
    };
    assert_eq!(bond(last, 3).active, port(3));
}

#[test]
fn delays_hold_back_changes_of_links() {
    let delayed = BondSettings {
        updelay_ms: 500,
        downdelay_ms: 300,
        ..settings(Mode::ActiveBackup)
    };
    let mut b = bond(delayed, 2);
    set_up(&mut b, &[false, true]);
    run(&mut b, 2000);
    assert_eq!((b.active, b.wake_ms()), (port(1), Some(2300)));
    run(&mut b, 2299);
    assert_eq!(b.active, port(1));
    run(&mut b, 2300);
    assert_eq!(b.active, port(2));
    set_up(&mut b, &[true, true]);
    run(&mut b, 3000);
    assert!(!b.by_name("p1").unwrap().enabled);
    // A link that does not last does not count.
    set_up(&mut b, &[false, true]);
    run(&mut b, 3400);
    assert_eq!(b.wake_ms(), None);
    set_up(&mut b, &[true, true]);
    run(&mut b, 3600);
    run(&mut b, 4100);
    assert!(b.by_name("p1").unwrap().enabled);
    // The only link that comes is used at once.
    set_up(&mut b, &[false, false]);
    run(&mut b, 5000);
    run(&mut b, 5300);
    assert_eq!(b.active, None);
    set_up(&mut b, &[false, true]);
    run(&mut b, 6000);
    assert_eq!(b.active, port(2));
}

#[test]
fn buckets_spread_over_enabled_members_and_move_only_from_a_failed_one() {
    let mut b = bond(settings(Mode::BalanceSlb), 4);
    assert!(members_of(&b).values().all(|n| *n == 64), "{:?}", members_of(&b));
    (0..BUCKETS).for_each(|n| b.account(n, 1000));
    let before: Vec<_> = b.buckets.iter().map(|b| b.member).collect();
    set_up(&mut b, &[true, false, true, true]);
    run(&mut b, 2000);
    for (old, new) in before.iter().zip(&b.buckets) {
        assert!(new.member != port(2) && (*old == new.member || *old == port(2)));
    }
    // With load they stay; without, they use a member that comes.
    let before: Vec<_> = b.buckets.iter().map(|b| b.member).collect();
    set_up(&mut b, &[true; 4]);
    run(&mut b, 3000);
    assert!(before.iter().eq(b.buckets.iter().map(|b| &b.member)));
    let mut fresh = Bond::new("bond1", settings(Mode::BalanceSlb), 1000);
    set_up(&mut fresh, &[true, false]);
    run(&mut fresh, 1000);
    assert_eq!(members_of(&fresh).len(), 1);
    set_up(&mut fresh, &[true, true]);
    run(&mut fresh, 2000);
    assert_eq!(
        members_of(&fresh),
        BTreeMap::from([(port(1), 128), (port(2), 128)])
    );
}

#[test]
fn balance_tcp_needs_a_partner_or_falls_back() {
    let mut b = bond(settings(Mode::BalanceTcp), 2);
    assert_eq!(b.sends(), None);
    b.run(LacpState::Configured, 2000);
    assert_eq!(b.sends(), None);
    b.run(LacpState::Negotiated, 3000);
    assert_eq!(b.sends(), Some(Mode::BalanceTcp));
    let fallback = BondSettings {
        fallback: true,
        ..settings(Mode::BalanceTcp)
    };
    let mut b = bond(fallback, 2);
    b.run(LacpState::Configured, 2000);
    assert_eq!((b.sends(), b.buckets.len()), (Some(Mode::ActiveBackup), 0));
    assert!(b.take_learning());
    b.run(LacpState::Negotiated, 3000);
    assert_eq!((b.sends(), b.buckets.len()), (Some(Mode::BalanceTcp), BUCKETS));
    assert_eq!(members_of(&b).len(), 2);
}

#[test]
fn load_moves_to_the_member_with_less() {
    let mut b = bond(settings(Mode::BalanceSlb), 2);
    for (n, bucket) in b.buckets.iter_mut().enumerate() {
        bucket.member = port(1);
        bucket.bytes = if n < 10 { 1_000_000 } else { 0 };
    }
    b.rebalance(5000);
    assert_eq!(members_of(&b).len(), 1, "it is not time yet");
    b.rebalance(11_000);
    let load = |no| {
        let of = b.buckets.iter().filter(|b| b.member == no);
        of.map(|b| b.bytes).sum::<u64>()
    };
    // The average halves in each interval.
    assert_eq!((load(port(1)), load(port(2))), (2_500_000, 2_500_000));
    assert_eq!(b.next_rebalance_ms, 21_000);
}

/// An interval that is over by the new setting ends at once, but not before time has passed.
#[test]
fn a_changed_interval_counts_from_the_last_rebalancing() {
    let mut b = bond(settings(Mode::BalanceSlb), 2);
    assert_eq!(b.next_rebalance_ms, 11_000);
    let with = |rebalance_ms| BondSettings {
        rebalance_ms,
        ..settings(Mode::BalanceSlb)
    };
    b.configure(with(2000), 9000);
    b.rebalance(9000);
    assert_eq!((b.next_rebalance_ms, b.wake_ms()), (3000, Some(9001)));
    b.rebalance(9001);
    assert_eq!((b.next_rebalance_ms, b.wake_ms()), (11_001, Some(11_001)));
    b.configure(with(60_000), 10_000);
    assert_eq!(b.next_rebalance_ms, 69_001);
}

#[test]
fn small_differences_and_single_flows_stay() {
    let of = |buckets: &[u64]| MemberLoad {
        bytes: buckets.iter().sum(),
        buckets: (0..).zip(buckets.iter().copied()).collect(),
    };
    assert_eq!(plan(&mut [of(&[50_000, 40_000]), of(&[])]), []);
    assert_eq!(plan(&mut [of(&[9_000_000]), of(&[])]), []);
    assert_eq!(plan(&mut [of(&[500_000, 500_000]), of(&[990_000])]), []);
    let moved = |bucket| Move { bucket, to: 1 };
    assert_eq!(plan(&mut [of(&[500_000, 400_000]), of(&[])]), [moved(1)]);
    assert_eq!(
        plan(&mut [of(&[800_000, 300_000, 300_000]), of(&[])]),
        [moved(1), moved(2)]
    );
}

#[test]
fn commands() {
    let mut b = bond(settings(Mode::BalanceSlb), 2);
    assert_eq!(b.migrate("x", "p1"), Err("bad hash"));
    assert_eq!(b.migrate("3", "p9"), Err("no such member"));
    assert_eq!(b.migrate("259", "p2"), Ok("migrated"));
    assert_eq!(b.buckets[3].member, port(2));
    assert_eq!(b.set_active("p2"), Ok("done"));
    assert_eq!(b.set_active("p2"), Ok("no change"));
    assert_eq!(b.set_enabled("p1", false), Ok("disabled"));
    assert_eq!(b.set_active("p1"), Err("cannot make disabled member active"));
    assert_eq!(b.migrate("3", "p1"), Err("cannot migrate to disabled member"));
    assert_eq!(b.set_enabled("p7", true), Err("no such member"));
    let mut b = bond(settings(Mode::ActiveBackup), 1);
    assert_eq!(b.migrate("3", "p1"), Err("not an SLB bond"));
}

/// The texts of Open vSwitch for the same bonds.
#[test]
fn texts() {
    let mut b = bond(settings(Mode::BalanceSlb), 2);
    b.buckets[7].member = port(2);
    b.account(7, 5000);
    let want = "---- bond0 ----\nbond_mode: balance-slb\nbond may use recirculation: no, Recirc-ID : -1\n\
                bond-hash-basis: 0\nlb_output action: disabled, bond-id: -1\nall members active: false\n\
                updelay: 0 ms\ndowndelay: 0 ms\nnext rebalance: 9500 ms\nlacp_status: off\n\
                lacp_fallback_ab: false\nactive-backup primary: <none>\n\
                active member mac: 02:00:00:00:00:01(p1)\n\nmember p1: enabled\n  active member\n  \
                may_enable: true\n\nmember p2: enabled\n  may_enable: true\n  hash 7: 4 kB load\n\n";
    assert_eq!(b.details(5, 1500), want);
    assert_eq!(b.line(5), "bond0\tbalance-slb\t5\tp1, p2\n");
    let primary = BondSettings {
        primary: Some("p9".into()),
        lb_output: true,
        ..settings(Mode::BalanceTcp)
    };
    let b = bond(primary, 1);
    let text = b.details(5, 1500);
    for line in [
        "bond may use recirculation: yes, Recirc-ID : 5\n",
        "lb_output action: enabled, bond-id: 5\n",
        "active-backup primary: p9 (no such member)\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_change_of_one_bucket_concerns_that_bucket_alone() {
    let view = |buckets: &[u32], active: u32| BondView {
        mode: Mode::BalanceSlb,
        sends: Some(Mode::BalanceSlb),
        lacp: LacpState::Off,
        fallback: false,
        all_members_active: false,
        basis: 0,
        in_datapath: true,
        active: port(active),
        members: Vec::new(),
        buckets: buckets.iter().map(|n| port(*n)).collect(),
    };
    use crate::bond_port::BondPart;
    let old = view(&[1, 2, 1], 1);
    assert_eq!(old.differences(&old), []);
    assert_eq!(view(&[1, 2, 2], 1).differences(&old), [BondPart::Bucket(2)]);
    assert_eq!(view(&[1, 2, 1], 2).differences(&old), [BondPart::Active]);
}

proptest! {
    /// Whatever links and loads do, buckets and the active member are of enabled members, and rebalancing
    /// never makes the highest load higher.
    #[test]
    fn links_and_loads_of_any_kind(
        mode in 1..3u8,
        steps in proptest::collection::vec(
            (any::<[bool; 4]>(), any::<u8>(), 0..5_000_000u64, 0..8000u64, any::<bool>()), 1..60)
    ) {
        let mode = if mode == 1 { Mode::BalanceSlb } else { Mode::BalanceTcp };
        let mut b = Bond::new("bond0", BondSettings { updelay_ms: 700, ..settings(mode) }, 0);
        let mut now_ms = 0;
        for (up, bucket, bytes, ms, balance) in steps {
            now_ms += ms;
            set_up(&mut b, &up);
            b.account(bucket.into(), bytes);
            b.run(LacpState::Negotiated, now_ms);
            let enabled: Vec<_> = b.members.iter().filter(|m| m.enabled).map(|m| m.link.no).collect();
            prop_assert_eq!(b.active.is_some(), !enabled.is_empty());
            prop_assert!(b.active.is_none_or(|a| enabled.contains(&a)));
            let highest = |b: &Bond| enabled.iter().map(|no| {
                b.buckets.iter().filter(|x| x.member == Some(*no)).map(|x| x.bytes).sum::<u64>()
            }).max().unwrap_or(0);
            let before = highest(&b);
            if balance {
                b.rebalance(now_ms);
            }
            prop_assert!(highest(&b) <= before);
            let known = |m: Option<OfPort>| m.is_some_and(|no| enabled.contains(&no));
            prop_assert!(b.buckets.iter().all(|x| known(x.member) || enabled.is_empty()));
            let _ = b.details(1, now_ms);
        }
    }
}

#[test]
fn lacp_notices_a_loss_of_carrier_that_the_device_counts() {
    let member = |carrier, link_resets| MemberConfig {
        no: OfPort(1),
        name: "p1".into(),
        mac: [2, 0, 0, 0, 0, 1],
        carrier,
        link_resets,
        dp: None,
        lacp: LinkSettings::default(),
        bfd: None,
    };
    let config = BondConfig {
        bond: Some(settings(Mode::BalanceTcp)),
        lacp: Some(LacpSettings::default()),
    };
    let mut all = All::default();
    let id = all.id_of("bond0", 1);
    let entry = all.by_id.get_mut(&id).unwrap();
    let mut notices = |carrier, link_resets| {
        entry.configure(1, &config, &[member(carrier, link_resets)], 1000);
        !entry.lacp.as_ref().unwrap().has_carrier(1)
    };
    assert!(!notices(true, 0));
    assert!(!notices(false, 0), "a device that is set down and counts nothing");
    assert!(!notices(true, 0));
    assert!(notices(false, 1));
    assert!(notices(false, 1), "nothing has changed since");
    assert!(!notices(true, 2));
}
