//! Flows as reported to an observer, and its counts. The observer is a table that plays the hardware.

use super::flows::{count, setup};
use super::recirc::under;
use super::{FakePort, Tally, Toy, ToyRule, udp};
use crate::{Config, Datapath, PortConfig};
use heddle_datapath_api::{
    Action, Engine, FlowCounts, FlowId, FlowObserver, ObservedFlow, PortNo, Purpose, Request, Translate,
    Translation,
};
use heddle_flow::extract::{Hint, extract};
use heddle_flow::key::Match;
use heddle_flow::{FlowKey, FlowMask};
use heddle_sync::Clock;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a packet of [`udp`].
const LEN: u64 = 60;

#[derive(Default)]
struct Card {
    flows: HashMap<FlowId, (FlowKey, FlowMask, Arc<[Action]>)>,
    counted: HashMap<FlowId, FlowCounts>,
    added: u32,
    changed: u32,
    gone: u32,
    /// Packets that the observer forwards while it changes or removes a flow.
    late: u64,
}

#[derive(Clone, Default)]
struct Double(Arc<Mutex<Card>>);

impl Card {
    fn count(&mut self, id: FlowId, packets: u64, now_ms: u64) {
        let n = self.counted.entry(id).or_default();
        (n.packets, n.bytes, n.used_ms) = (n.packets + packets, n.bytes + packets * LEN, now_ms);
    }
    fn last(&mut self, id: FlowId) -> FlowCounts {
        self.count(id, self.late, 0);
        self.counted.remove(&id).unwrap()
    }
    /// Number of flows added, changed and gone.
    fn reported(&self) -> (u32, u32, u32) {
        (self.added, self.changed, self.gone)
    }
}

impl Double {
    fn reported(&self) -> (u32, u32, u32) {
        self.0.lock().reported()
    }
    /// Packets with this key arrive at the hardware. `false`: it has no flow for them.
    fn forward(&self, key: &FlowKey, packets: u64, now_ms: u64) -> bool {
        let mut card = self.0.lock();
        let flow = card
            .flows
            .iter()
            .find(|(_, (k, m, _))| k.masked(m) == key.masked(m));
        let id = flow.map(|(id, _)| *id);
        id.map(|id| card.count(id, packets, now_ms)).is_some()
    }
    fn actions(&self) -> Vec<Vec<Action>> {
        let card = self.0.lock();
        card.flows.values().map(|(_, _, a)| a.to_vec()).collect()
    }
}

impl FlowObserver for Double {
    fn added(&mut self, f: &ObservedFlow<'_>) {
        let mut card = self.0.lock();
        card.added += 1;
        let there = card.flows.insert(f.id, (*f.key, *f.mask, Arc::clone(f.actions)));
        assert!(there.is_none());
    }
    fn changed(&mut self, f: &ObservedFlow<'_>) -> FlowCounts {
        let mut card = self.0.lock();
        card.changed += 1;
        let flow = card.flows.get_mut(&f.id).unwrap();
        assert_eq!((flow.0.masked(&flow.1), flow.1), (f.key.masked(f.mask), *f.mask));
        flow.2 = Arc::clone(f.actions);
        card.last(f.id)
    }
    fn gone(&mut self, id: FlowId) -> FlowCounts {
        let mut card = self.0.lock();
        card.gone += 1;
        card.flows.remove(&id).unwrap();
        card.last(id)
    }
    fn counters(&mut self, f: &mut dyn FnMut(FlowId, FlowCounts)) {
        let counted = std::mem::take(&mut self.0.lock().counted);
        counted.into_iter().for_each(|(id, n)| f(id, n));
    }
}

/// The key of a packet of [`udp`] received on port 1.
fn key(sport: u16) -> FlowKey {
    let (frame, mut key) = (udp(1, 2, sport, 80), FlowKey::default());
    extract(&frame, &Hint::ethernet(frame.len()), &mut key);
    key.in_port = 1;
    key
}

fn observed(dp: &Datapath) -> Double {
    let double = Double::default();
    dp.set_observer(Some(Box::new(double.clone())));
    double
}

/// A datapath of two workers, ports 1 and 2, under a stopped clock and without a background revalidator.
fn two_workers(toy: &Arc<Toy>) -> (Arc<Datapath>, Arc<Clock>, Arc<FakePort>) {
    let clock = Arc::new(Clock::default());
    clock.stop();
    let config = Config {
        clock: Arc::clone(&clock),
        revalidate_interval_ms: 0,
        dummy_numa: Some(vec![0, 0]),
        ..Config::default()
    };
    let dp = Datapath::new(config, Arc::clone(toy) as _).unwrap();
    dp.set_workers(Some(&[0, 1])).unwrap();
    let a = FakePort::new("a");
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(FakePort::new("b") as _, Some(PortNo(2))).unwrap();
    (dp, clock, a)
}

/// Has this worker poll port 1.
fn poll_by(dp: &Datapath, core: usize) {
    let config = PortConfig {
        affinity: vec![(0, core)],
        ..PortConfig::default()
    };
    dp.configure_port(PortNo(1), config).unwrap();
    dp.assign_queues().unwrap();
}

fn send(dp: &Datapath, port: &FakePort, packets: impl IntoIterator<Item = Vec<u8>>) {
    port.send(packets);
    port.drained();
    dp.flush_stats();
}

/// Waits until the workers have executed the revalidator's findings. Each worker replies after an iteration
/// without packets. There may be one more iteration before it takes the findings in.
fn settle(dp: &Datapath) {
    (0..2).for_each(|_| dp.flush_stats());
}

#[test]
fn a_flow_of_two_workers_is_reported_once() {
    let toy = Toy::new(vec![ToyRule::output(2)]);
    let (dp, clock, a) = two_workers(&toy);
    let double = observed(&dp);
    for core in [0, 1] {
        poll_by(&dp, core);
        send(&dp, &a, (0..10).map(|_| udp(1, 2, 3, 80)));
        dp.tick();
        assert_eq!((dp.flows().len(), double.reported()), (core + 1, (1, 0, 0)));
    }
    // The observer's counts are shown once.
    assert!(double.forward(&key(3), 5, clock.now_ms()));
    let packets = |dp: &Datapath| dp.flows().iter().map(|f| f.packets).sum::<u64>();
    assert_eq!(packets(&dp), 2 * 9 + 5);
    // The flow is gone with the last worker that has it.
    dp.set_workers(Some(&[1])).unwrap();
    dp.tick();
    assert_eq!((packets(&dp), double.reported()), (9 + 5, (1, 0, 0)));
    dp.set_workers(Some(&[0])).unwrap();
    dp.tick();
    assert_eq!(double.reported(), (1, 0, 1));
}

/// The next pass would begin after more than 16 minutes.
#[test]
fn a_new_flow_is_reported_without_a_pass() {
    let config = Config {
        revalidate_interval_ms: 1_000_000,
        ..Config::default()
    };
    let mut m = Match::any();
    (m.key.tp_src, m.mask.0.tp_src) = (1, 0xffff);
    let rules = vec![ToyRule::new(m, vec![]), ToyRule::output(2)];
    let dp = Datapath::new(config, Toy::new(rules) as _).unwrap();
    let a = FakePort::new("a");
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(FakePort::new("b") as _, Some(PortNo(2))).unwrap();
    let double = observed(&dp);
    for flow in 1..=3 {
        a.send([udp(1, 2, flow, 80), udp(1, 2, flow, 80)]);
        let end = Instant::now() + Duration::from_secs(60);
        while double.reported() != (flow.into(), 0, 0) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(double.reported(), (flow.into(), 0, 0));
    }
}

#[test]
fn a_change_is_reported_before_it_is_confirmed_and_counts_stay_with_their_rule() {
    let rules: Vec<ToyRule> = [2, 1, 1, 1].map(ToyRule::output).into();
    let tallies: Vec<Arc<Tally>> = rules.iter().map(|r| Arc::clone(&r.tally)).collect();
    let s = setup(vec![rules[0].clone()]);
    let double = observed(&s.dp);
    double.0.lock().late = 1;
    send(&s.dp, &s.a, (0..10).map(|_| udp(1, 2, 3, 80)));
    s.dp.observe_now();
    s.dp.pause_revalidator(true);
    // Other actions, then another rule with the same actions.
    for (i, rule) in rules.iter().enumerate().skip(1) {
        assert!(double.forward(&key(3), 5, 0));
        s.toy.set(vec![rule.clone()]);
        s.dp.tick();
        assert_eq!(double.reported().1 + 1, u32::try_from(i).unwrap(), "it is paused");
        s.dp.observe_now();
        assert_eq!(double.actions(), std::slice::from_ref(&rule.actions));
    }
    // The same rule again is no change.
    s.toy.set(vec![rules[3].clone()]);
    s.dp.observe_now();
    assert_eq!(double.reported(), (1, 3, 0));
    // The mask does not fit any more.
    let mut m = Match::any();
    (m.key.tp_src, m.mask.0.tp_src) = (4, 0xffff);
    s.toy.set(vec![ToyRule::new(m, vec![]), rules[3].clone()]);
    s.dp.observe_now();
    assert_eq!(
        (double.reported(), double.forward(&key(3), 5, 0)),
        ((1, 3, 1), false)
    );
    let counts: Vec<_> = tallies.iter().map(|t| count(t)).collect();
    assert_eq!(counts, [16, 6, 6, 1].map(|n| (n, n * LEN)));
}

#[test]
fn what_it_forwards_is_shown_and_keeps_the_flow() {
    let rule = ToyRule::output(2);
    let tally = Arc::clone(&rule.tally);
    let s = setup(vec![rule]);
    let double = observed(&s.dp);
    send(&s.dp, &s.a, (0..10).map(|_| udp(1, 2, 3, 80)));
    s.dp.tick();
    for n in 1..=3 {
        s.clock.warp(9_000);
        let now = s.clock.now_ms();
        assert!(double.forward(&key(3), 5, now));
        let flow = &s.dp.flows()[0];
        assert_eq!(
            (flow.packets, flow.bytes, flow.used_ms),
            (9 + 5 * n, (9 + 5 * n) * LEN, now)
        );
        s.dp.tick();
    }
    s.dp.flush_stats();
    assert_eq!((count(&tally), double.reported()), ((25, 25 * LEN), (1, 0, 0)));
    s.clock.warp(10_000);
    s.dp.tick();
    assert_eq!((s.dp.flows().len(), double.reported()), (0, (1, 0, 1)));
}

#[test]
fn all_are_gone_after_a_purge_and_for_one_who_leaves() {
    let s = setup(vec![ToyRule::output(2)]);
    let first = observed(&s.dp);
    for n in 1..=2 {
        send(&s.dp, &s.a, [udp(1, 2, 3, 80)]);
        s.dp.tick();
        assert_eq!(first.reported(), (n, 0, n - 1));
        if n == 1 {
            s.dp.purge();
            assert_eq!(first.reported(), (1, 0, 1));
        }
    }
    let second = observed(&s.dp);
    assert_eq!((first.reported(), second.reported()), ((2, 0, 2), (0, 0, 0)));
    s.dp.observe_now();
    assert_eq!(second.reported(), (1, 0, 0));
    s.dp.set_observer(None);
    s.dp.observe_now();
    assert_eq!((second.reported(), s.dp.flows().len()), ((1, 0, 1), 1));
}

#[test]
fn each_stage_is_a_flow() {
    let stages = [
        ToyRule::new(under(0), vec![Action::Recirc(7)]),
        ToyRule::new(under(7), vec![Action::Output(PortNo(2))]),
    ];
    let tallies = stages.each_ref().map(|r| Arc::clone(&r.tally));
    let s = setup(stages.to_vec());
    let double = observed(&s.dp);
    send(&s.dp, &s.a, (0..3).map(|_| udp(1, 2, 3, 80)));
    s.dp.tick();
    assert_eq!(double.reported(), (2, 0, 0));
    for (recirc_id, packets) in [(0, 5), (7, 4)] {
        let stage = FlowKey { recirc_id, ..key(3) };
        assert!(double.forward(&stage, packets, 0));
    }
    s.dp.flush_stats();
    assert_eq!(tallies.map(|t| count(&t).0), [8, 7]);
    s.toy.replace(1, ToyRule::new(under(7), vec![]));
    s.dp.observe_now();
    assert_eq!(double.reported(), (2, 1, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Send(u16),
    /// The hardware gets packets of this flow.
    Forward(u16),
    /// Another rule list: rules for these source ports, and their outputs.
    Rules(Vec<(u16, u32)>),
    /// This rule gets other actions.
    Replace(usize, u32),
    Warp(u64),
    Move(usize),
    Workers(usize),
    Purge,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let sport = 0_u16..6;
    let one = prop_oneof![
        6 => sport.clone().prop_map(Op::Send),
        3 => sport.clone().prop_map(Op::Forward),
        1 => prop::collection::vec((sport, 1_u32..3), 0..4).prop_map(Op::Rules),
        3 => (any::<usize>(), 1_u32..3).prop_map(|(at, to)| Op::Replace(at, to)),
        2 => (1_000_u64..6_000).prop_map(Op::Warp),
        2 => (0_usize..2).prop_map(Op::Move),
        1 => (1_usize..3).prop_map(Op::Workers),
        1 => Just(Op::Purge),
    ];
    prop::collection::vec(one, 1..40)
}

fn rule((sport, to): (u16, u32)) -> ToyRule {
    let mut m = Match::any();
    (m.key.tp_src, m.mask.0.tp_src) = (sport, 0xffff);
    ToyRule::new(m, vec![Action::Output(PortNo(to))])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// After each pass the observer has the live flows with fresh translations. Each packet is credited once,
    /// whether a worker or the observer forwarded it.
    #[test]
    fn it_knows_the_live_flows(ops in ops(), logged: bool) {
        let first = vec![ToyRule::output(2)];
        let mut tallies = vec![Arc::clone(&first[0].tally)];
        let toy = if logged { Toy::logged(first) } else { Toy::new(first) };
        let (dp, clock, a) = two_workers(&toy);
        let double = observed(&dp);
        double.0.lock().late = 1;
        let mut packets = 0;
        for op in ops {
            match op {
                Op::Send(sport) => {
                    send(&dp, &a, (0..3).map(|_| udp(1, 2, sport, 80)));
                    packets += 3;
                }
                Op::Forward(sport) => {
                    packets += 5 * u64::from(double.forward(&key(sport), 5, clock.now_ms()));
                }
                Op::Rules(list) => {
                    let mut rules: Vec<ToyRule> = list.into_iter().map(rule).collect();
                    rules.push(ToyRule::output(2));
                    tallies.extend(rules.iter().map(|r| Arc::clone(&r.tally)));
                    toy.set(rules);
                }
                Op::Replace(at, to) => {
                    let rules = toy.rules();
                    let at = at % rules.len();
                    let new = ToyRule::new(rules[at].matches, vec![Action::Output(PortNo(to))]);
                    tallies.push(Arc::clone(&new.tally));
                    toy.replace(at, new);
                }
                Op::Warp(ms) => clock.warp(ms),
                Op::Move(core) => poll_by(&dp, core),
                Op::Workers(n) => dp.set_workers(Some(&[0, 1][..n])).unwrap(),
                Op::Purge => dp.purge(),
            }
            settle(&dp);
            dp.observe_now();
            settle(&dp);
            let words = |m: &FlowMask| m.words().to_vec();
            let shown = |key: &FlowKey, mask: &FlowMask| (key.masked(mask).words().to_vec(), words(mask));
            let mut live: Vec<_> = dp.flows().iter().map(|f| shown(&f.key, &f.mask)).collect();
            live.sort();
            live.dedup();
            let card = double.0.lock();
            let mut reported: Vec<_> = card.flows.values().map(|(k, m, _)| shown(k, m)).collect();
            reported.sort();
            prop_assert_eq!(reported, live);
            for (key, _, actions) in card.flows.values() {
                let mut fresh = Translation::default();
                let purpose = Purpose::Revalidate;
                toy.translate(&Request { key, packet: None, now_ms: 0, purpose }, &mut fresh);
                prop_assert_eq!(&**actions, &*fresh.actions);
            }
        }
        dp.flush_stats();
        let card = double.0.lock();
        let credited: u64 = tallies.iter().map(|t| count(t).0).sum();
        prop_assert_eq!(credited, packets + u64::from(card.changed + card.gone));
    }
}
