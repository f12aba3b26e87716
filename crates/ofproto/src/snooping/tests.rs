//! The table against what is expected of it, and against a plain twin.

use super::*;
use heddle_wire::membership::Protocol;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn key(n: u8, vlan: u16) -> GroupKey {
    GroupKey {
        group: std::net::Ipv4Addr::new(239, 1, 1, n).to_ipv6_mapped(),
        vlan,
    }
}

fn listener(bundle: u32) -> Listener {
    Listener {
        bundle,
        port: Port(bundle),
    }
}

fn table(max_groups: usize) -> (SnoopingTable, Arc<Generations>) {
    let g = Arc::new(Generations::default());
    let config = SnoopingConfig {
        max_groups,
        ..SnoopingConfig::default()
    };
    (SnoopingTable::new(g.clone(), &config), g)
}

fn report(key: GroupKey, bundle: u32, change: MembershipChange, now_ms: u64) -> MembershipReport {
    MembershipReport {
        key,
        from: listener(bundle),
        change,
        now_ms,
    }
}

const JOIN: MembershipChange = MembershipChange::Join(Protocol::Igmp2);

fn learn(t: &SnoopingTable, key: GroupKey, bundle: u32, change: MembershipChange, now_ms: u64) -> Snooped {
    t.learn(std::iter::once(report(key, bundle, change, now_ms)))
}

fn bundles(t: &SnoopingTable, key: GroupKey) -> Vec<u32> {
    let group = t.lookup(key);
    group.map_or(Vec::new(), |g| g.listeners.iter().map(|l| l.bundle).collect())
}

#[test]
fn listeners_come_and_go_and_move_the_slot() {
    let (t, g) = table(100);
    let before = g.read(t.slot(key(1, 5)));
    assert_eq!(learn(&t, key(1, 5), 2, JOIN, 1000), Snooped::Changed(1));
    assert!(!g.hold(&[before]), "packets that flooded ask again");
    let before = g.read(t.slot(key(1, 5)));
    assert_eq!(learn(&t, key(1, 5), 2, JOIN, 2000), Snooped::Changed(0));
    assert!(
        g.hold(&[before]),
        "a report that changes nothing leaves cached translations alone"
    );
    assert_eq!(learn(&t, key(1, 5), 3, JOIN, 2000), Snooped::Changed(0));
    assert_eq!(bundles(&t, key(1, 5)), [2, 3]);
    assert_eq!(bundles(&t, key(1, 6)), [0; 0], "another VLAN is another group");
    assert_eq!(
        learn(&t, key(1, 5), 2, MembershipChange::Leave, 3000),
        Snooped::Changed(1)
    );
    assert_eq!(
        learn(&t, key(1, 5), 2, MembershipChange::Leave, 3000),
        Snooped::Changed(0)
    );
    assert_eq!(bundles(&t, key(1, 5)), [3]);
    learn(&t, key(1, 5), 3, MembershipChange::Leave, 3000);
    assert!(
        t.lookup(key(1, 5)).is_none(),
        "a group without listeners is no group"
    );
}

/// A message beside a storm learns few of the storm's records, and none is lost or out of order.
#[test]
fn a_message_does_not_pay_for_the_records_of_others() {
    let (t, _) = table(2000);
    let storm = |n: u8| (0..=u8::MAX).map(move |i| report(key(i, u16::from(n)), 1, JOIN, 0));
    let busy = t.inner.lock();
    for n in 0..2 {
        assert_eq!(t.learn(storm(n)), Snooped::Later);
    }
    assert_eq!(
        learn(&t, key(9, 9), 1, MembershipChange::Leave, 0),
        Snooped::Later
    );
    drop(busy);
    let n_groups = || t.inner.lock().n_groups;
    assert_eq!(learn(&t, key(1, 50), 2, JOIN, 0), Snooped::Later);
    assert_eq!(n_groups(), 17);
    // A message with 256 records has time for 256 others.
    assert_eq!(t.learn(storm(2)), Snooped::Later);
    assert_eq!(n_groups(), 17 + 16 + 256);
    t.age(0);
    assert_eq!(n_groups(), 3 * 256 + 1);
    assert_eq!(learn(&t, key(1, 51), 2, JOIN, 0), Snooped::Changed(1));
}

#[test]
fn a_router_port_is_no_listener() {
    let (t, _) = table(100);
    let routers = GroupKey::routers(7);
    assert_eq!(
        learn(&t, routers, 4, MembershipChange::Query, 0),
        Snooped::Changed(1)
    );
    assert_eq!(
        learn(&t, routers, 4, MembershipChange::Query, 9000),
        Snooped::Changed(0)
    );
    learn(&t, key(1, 7), 4, JOIN, 9000);
    assert!(t.lookup(key(1, 7)).is_none());
    learn(&t, key(1, 8), 4, JOIN, 9000);
    assert_eq!(bundles(&t, key(1, 8)), [4], "its router is in another VLAN");
    t.age(9000 + 179_999);
    assert_eq!(bundles(&t, routers), [4]);
    t.age(9000 + 180_000);
    assert_eq!(bundles(&t, routers), [0; 0]);
    assert_eq!(bundles(&t, key(1, 8)), [4]);
}

/// Each listener has its own time, also in a group that another one keeps.
#[test]
fn listeners_expire_one_by_one() {
    let (t, _) = table(100);
    t.configure(&SnoopingConfig {
        idle_s: 20,
        ..SnoopingConfig::default()
    });
    for (bundle, at) in [(1, 0), (2, 5000), (1, 10_000)] {
        learn(&t, key(1, 0), bundle, JOIN, at);
    }
    t.age(24_999);
    assert_eq!(bundles(&t, key(1, 0)), [1, 2]);
    t.age(25_000);
    assert_eq!(bundles(&t, key(1, 0)), [1]);
    t.age(30_000);
    assert!(t.lookup(key(1, 0)).is_none());
}

#[test]
fn a_full_table_forgets_a_group_of_the_largest_port() {
    let (t, _) = table(10);
    learn(&t, key(1, 0), 1, JOIN, 0);
    learn(&t, key(2, 0), 1, JOIN, 1);
    for n in 100..250 {
        learn(&t, key(n, 0), 2, JOIN, n.into());
    }
    assert_eq!(
        (bundles(&t, key(1, 0)), bundles(&t, key(2, 0))),
        (vec![1], vec![1])
    );
    assert_eq!(t.entries(0).len(), 10);
    assert_eq!(bundles(&t, key(249, 0)), [2]);
    // A group that another port listens to, too, counts for that port before it would be forgotten.
    learn(&t, key(242, 0), 3, JOIN, 300);
    for n in 0..90 {
        learn(&t, key(n, 1), 2, JOIN, 400 + u64::from(n));
    }
    assert_eq!(bundles(&t, key(242, 0)), [2, 3]);
    assert_eq!(bundles(&t, key(1, 0)), [1]);
}

#[test]
fn a_smaller_limit_removes_groups_with_the_next_tick() {
    let (t, _) = table(100);
    for n in 0..50 {
        learn(&t, key(n, 0), 1, JOIN, n.into());
    }
    t.configure(&SnoopingConfig {
        max_groups: 3,
        ..SnoopingConfig::default()
    });
    assert_eq!(t.config().max_groups, 10, "the least that Open vSwitch allows");
    t.age(50);
    let left: Vec<GroupKey> = t.entries(50).iter().map(|e| e.key).collect();
    assert_eq!(left, (40..50).map(|n| key(n, 0)).collect::<Vec<_>>());
}

#[test]
fn reports_of_a_busy_table_are_learned_by_the_next_thread() {
    let (t, _) = table(100);
    let busy = t.inner.lock();
    assert_eq!(learn(&t, key(1, 0), 1, JOIN, 0), Snooped::Later);
    assert_eq!(learn(&t, key(2, 0), 1, JOIN, 0), Snooped::Later);
    assert_eq!(
        learn(&t, key(1, 0), 1, MembershipChange::Leave, 0),
        Snooped::Later
    );
    drop(busy);
    assert!(t.lookup(key(2, 0)).is_none());
    t.age(0);
    assert_eq!(
        (bundles(&t, key(1, 0)), bundles(&t, key(2, 0))),
        (vec![], vec![1])
    );
    // The queue is bounded.
    let busy = t.inner.lock();
    for n in (0..200).cycle().take(5000) {
        learn(&t, key(n, 3), 1, JOIN, 0);
    }
    drop(busy);
    t.age(0);
    assert_eq!(t.entries(0).len(), 100);
}

#[test]
fn a_gone_port_takes_its_listeners_and_routers_along() {
    let (t, g) = table(100);
    learn(&t, key(1, 0), 1, JOIN, 0);
    learn(&t, key(1, 0), 2, JOIN, 0);
    learn(&t, key(2, 0), 1, JOIN, 0);
    learn(&t, GroupKey::routers(9), 1, MembershipChange::Query, 0);
    let held = [key(1, 0), key(2, 0), GroupKey::routers(9)].map(|k| g.read(t.slot(k)));
    t.flush_bundle(1);
    assert_eq!(t.entries(0).len(), 1);
    assert_eq!(bundles(&t, key(1, 0)), [2]);
    assert!(held.iter().all(|d| !g.hold(&[*d])));
    t.flush();
    assert!(t.entries(0).is_empty() && t.lookup(key(1, 0)).is_none());
}

/// The twin: each listener with the time of its last report.
#[derive(Default)]
struct Plain(BTreeMap<(GroupKey, u32), u64>);

impl Plain {
    fn learn(&mut self, r: &MembershipReport) {
        let at = (r.key, r.from.bundle);
        let is_router = self
            .0
            .contains_key(&(GroupKey::routers(r.key.vlan), r.from.bundle));
        match r.change {
            MembershipChange::Join(_) if is_router => {}
            MembershipChange::Join(_) | MembershipChange::Query => drop(self.0.insert(at, r.now_ms)),
            MembershipChange::Leave => drop(self.0.remove(&at)),
        }
    }
    fn age(&mut self, now_ms: u64) {
        self.0.retain(|(key, _), at| {
            let idle = if key.is_of_routers() { 180_000 } else { 300_000 };
            now_ms < *at + idle
        });
    }
}

#[derive(Clone, Debug)]
enum Step {
    Learn(u8, u16, u32, u8),
    Pass(u64),
    FlushBundle(u32),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..6_u8, 0..3_u16, 0..5_u32, 0..5_u8).prop_map(|(g, v, b, c)| Step::Learn(g, v, b, c)),
        6 => (0..120_000_u64).prop_map(Step::Pass),
        1 => (0..5_u32).prop_map(Step::FlushBundle),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    /// Without its limit, the table has what the twin has. A lookup changes only with its slot.
    #[test]
    fn the_table_is_its_twin(steps in prop::collection::vec(step(), 0..120)) {
        let (t, g) = table(100);
        let (mut plain, mut now) = (Plain::default(), 1000);
        let keys: Vec<GroupKey> = (0..3)
            .flat_map(|v| (0..6).map(move |n| key(n, v)).chain([GroupKey::routers(v)]))
            .collect();
        for step in steps {
            let before: Vec<_> = keys.iter().map(|k| (g.read(t.slot(*k)), bundles(&t, *k))).collect();
            match step {
                Step::Learn(n, vlan, bundle, change) => {
                    let r = match change {
                        0 => report(GroupKey::routers(vlan), bundle, MembershipChange::Query, now),
                        1 => report(key(n, vlan), bundle, MembershipChange::Leave, now),
                        _ => report(key(n, vlan), bundle, JOIN, now),
                    };
                    t.learn(std::iter::once(r));
                    plain.learn(&r);
                }
                Step::Pass(ms) => {
                    now += ms;
                    t.age(now);
                    plain.age(now);
                }
                Step::FlushBundle(bundle) => {
                    t.flush_bundle(bundle);
                    plain.0.retain(|(_, b), _| *b != bundle);
                }
                Step::Flush => {
                    t.flush();
                    plain.0.clear();
                }
            }
            for (k, (dep, old)) in keys.iter().zip(before) {
                let mut seen = bundles(&t, *k);
                prop_assert!(seen == old || !g.hold(&[dep]));
                seen.sort_unstable();
                let want: Vec<u32> = plain.0.keys().filter(|(p, _)| p == k).map(|(_, b)| *b).collect();
                prop_assert_eq!(&seen, &want);
            }
            let mut listed: Vec<_> = t.entries(now).iter().map(|e| ((e.key, e.listener.bundle), e.age_s)).collect();
            listed.sort_unstable();
            let want: Vec<_> = plain.0.iter().map(|(k, at)| (*k, now / 1000 - at / 1000)).collect();
            prop_assert_eq!(listed, want);
        }
    }
}
