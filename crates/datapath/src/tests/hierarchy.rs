//! The whole cache hierarchy against the rules themselves, while the rules change.

use super::{FakePort, Toy, ToyRule, udp};
use crate::{Config, Datapath};
use heddle_datapath_api::{Action, Engine, PortNo};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::key::Match;
use proptest::prelude::*;
use proptest::test_runner::{Config as TestConfig, TestRunner};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Rules over few values, overlapping; the output identifies the rule.
fn rules() -> impl Strategy<Value = Vec<ToyRule>> {
    let one = (0_u32..4, 0_u32..4, 0_u16..4, 0_u8..8, 0_u32..3);
    prop::collection::vec(one, 1..8).prop_map(|list| {
        let mut rules: Vec<ToyRule> = list
            .into_iter()
            .map(|(src, dst, port, which, out)| {
                let mut m = Match::any();
                if which & 1 != 0 {
                    (m.key.nw_src, m.mask.0.nw_src) = (src, u32::MAX);
                }
                if which & 2 != 0 {
                    (m.key.nw_dst, m.mask.0.nw_dst) = (dst, 3);
                }
                if which & 4 != 0 {
                    (m.key.tp_dst, m.mask.0.tp_dst) = (port, 0xffff);
                }
                m.normalize();
                ToyRule::new(m, vec![Action::Output(PortNo(10 + out))])
            })
            .collect();
        rules.push(ToyRule::output(10));
        rules
    })
}

fn expected(rules: &[ToyRule], frame: &[u8], in_port: u32) -> Option<u32> {
    let mut key = FlowKey::default();
    extract(frame, &Hint::ethernet(frame.len()), &mut key);
    key.in_port = in_port;
    rules
        .iter()
        .find(|r| r.matches.matches(&key))
        .and_then(|r| match r.actions.first() {
            Some(Action::Output(no)) => Some(no.0),
            _ => None,
        })
}

#[test]
fn every_packet_goes_where_the_current_rules_send_it() {
    follows(&Toy::new(vec![]));
}

#[test]
fn every_packet_goes_where_the_current_rules_send_it_by_a_log_of_changes() {
    follows(&Toy::logged(vec![]));
}

fn follows(toy: &Arc<Toy>) {
    let config = Config {
        cpus: Some(vec![0, 0]),
        l1_entries: 16,
        max_masks: 3,
        revalidate_interval_ms: 1,
        ..Config::default()
    };
    let dp = Datapath::new(config, Arc::clone(toy) as _).unwrap();
    let ins = [FakePort::new("in0"), FakePort::new("in1")];
    let outs = [
        FakePort::new("out0"),
        FakePort::new("out1"),
        FakePort::new("out2"),
    ];
    for (no, p) in (1..).zip(&ins) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    for (no, p) in (10..).zip(&outs) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    // Another thread bumps unrelated generations all the time.
    let stop = Arc::new(AtomicBool::new(false));
    let bumper = {
        let (toy, stop) = (Arc::clone(toy), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                heddle_datapath_api::Translate::generations(&*toy)
                    .bump(heddle_datapath_api::Generations::slot_of(20));
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        })
    };
    let frame =
        (0_u32..5, 0_u32..5, 0_u16..5, 0_u16..20).prop_map(|(s, d, port, sport)| udp(s, d, sport, port));
    let traffic = prop::collection::vec((0_usize..2, frame), 1..150);
    let strategy = (rules(), prop::collection::vec((traffic, rules()), 1..4));
    let mut runner = TestRunner::new(TestConfig {
        cases: 150,
        source_file: Some(file!()),
        ..TestConfig::default()
    });
    let mut credited = 0;
    let mut sent = 0;
    let outcome = runner.run(&strategy, |(first, rounds)| {
        toy.set(first);
        for (traffic, next) in rounds {
            let rules = toy.rules();
            let mut want = [vec![], vec![], vec![]];
            for (i, f) in &traffic {
                let out = expected(&rules, f, 1 + u32::try_from(*i).unwrap()).unwrap();
                want[usize::try_from(out - 10).unwrap()].push(f.clone());
            }
            for (i, p) in ins.iter().enumerate() {
                p.send(traffic.iter().filter(|(j, _)| *j == i).map(|(_, f)| f.clone()));
            }
            for (p, mut want) in outs.iter().zip(want) {
                let mut got = p.wait(want.len());
                got.sort();
                want.sort();
                prop_assert_eq!(got, want);
            }
            // A few rules change: only their packets may be translated again; other entries must still be
            // right.
            for (i, r) in next.iter().take(3).enumerate() {
                let at = (next.len() + i) % rules.len();
                let mut changed = r.clone();
                changed.matches = rules[at].matches;
                toy.replace(at, changed);
            }
            dp.flush_stats();
        }
        Ok(())
    });
    stop.store(true, Relaxed);
    bumper.join().unwrap();
    outcome.unwrap();
    // The packets credited to any rule are the packets sent: count through the ports.
    for r in toy.rules().iter() {
        credited += r.tally.packets.load(Relaxed);
    }
    for no in [1, 2] {
        sent += dp.port_stats(PortNo(no)).unwrap().rx_packets;
    }
    let t = dp.totals();
    assert!(credited <= sent);
    assert_eq!(t.packets, sent);
    assert_eq!(t.l0_hits + t.l1_hits + t.l2_hits + t.misses, sent);
    assert!(t.masks <= 4);
}

/// Rules change while packets are in flight. Each packet is forwarded by some rule set that was current in
/// between, and is credited to exactly one rule.
#[test]
fn changes_in_flight_lose_no_credit() {
    let rule = |out| ToyRule::output(out);
    let toy = Toy::new(vec![rule(10)]);
    let config = Config {
        cpus: Some(vec![0, 0]),
        revalidate_interval_ms: 1,
        ..Config::default()
    };
    let dp = Datapath::new(config, Arc::clone(&toy) as _).unwrap();
    let ports: Vec<_> = (0..4).map(|i| FakePort::new(&format!("p{i}"))).collect();
    for (no, p) in [1, 2, 10, 11].into_iter().zip(&ports) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    let n = 200_usize;
    let senders: Vec<_> = ports[..2]
        .iter()
        .map(|p| {
            let p = Arc::clone(p);
            std::thread::spawn(move || {
                for i in 0..n {
                    p.send((0..50).map(|j| udp(1, 2, j, u16::try_from(i).unwrap())));
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
            })
        })
        .collect();
    let mut tallies = vec![Arc::clone(&toy.rules()[0].tally)];
    for i in 0..100 {
        let r = rule(10 + i % 2);
        tallies.push(Arc::clone(&r.tally));
        toy.set(vec![r]);
        if i % 10 == 0 {
            dp.purge();
        }
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
    senders.into_iter().for_each(|s| s.join().unwrap());
    let total = 2 * n * 50;
    let mut out = 0;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while out < total {
        out += ports[2].take().len() + ports[3].take().len();
        assert!(std::time::Instant::now() < deadline, "{out} of {total}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    dp.flush_stats();
    dp.tick();
    dp.flush_stats();
    let credited: u64 = tallies.iter().map(|t| t.packets.load(Relaxed)).sum();
    assert_eq!((out as u64, credited), (total as u64, total as u64));
}

/// Entries that a changed rule does not concern are not translated again, neither alone nor among many
/// entries of one cached translation.
#[test]
fn only_what_a_change_is_about_is_translated_again() {
    only_what_a_change_is_about(&[]);
    // Two tags: such packets need the full key.
    only_what_a_change_is_about(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]);
}

fn only_what_a_change_is_about(tags: &[u8]) {
    let rule = |dst: u32, out| {
        let mut m = Match::any();
        (m.key.nw_dst, m.mask.0.nw_dst) = (dst, u32::MAX);
        ToyRule::new(m, vec![Action::Output(PortNo(out))])
    };
    let toy = Toy::logged(vec![rule(1, 10), rule(2, 11), ToyRule::output(11)]);
    let config = Config {
        revalidate_interval_ms: 1_000_000,
        ..Config::default()
    };
    let dp = Datapath::new(config, Arc::clone(&toy) as _).unwrap();
    let ports: Vec<_> = (0..3).map(|i| FakePort::new(&format!("p{i}"))).collect();
    for (no, p) in [1, 10, 11].into_iter().zip(&ports) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    // Two flows have rules of their own; ten share the last one.
    let all = || {
        (1..=12).map(|dst| {
            let mut frame = udp(9, dst, 5, 6);
            frame.splice(12..12, tags.iter().copied());
            frame
        })
    };
    let run = |to_10: usize| {
        ports[0].send(all());
        assert_eq!(
            (ports[1].wait(to_10).len(), ports[2].wait(12 - to_10).len()),
            (to_10, 12 - to_10)
        );
        toy.translated.swap(0, Relaxed)
    };
    assert_eq!(run(1), 12);
    assert_eq!(run(1), 0);
    toy.replace(1, rule(2, 10));
    assert_eq!(run(2), 1, "one flow is about the rule");
    assert_eq!(run(2), 0);
    toy.replace(1, rule(99, 10));
    toy.replace(1, rule(2, 10));
    assert_eq!(run(2), 1);
    toy.replace(0, rule(7, 10));
    assert_eq!(
        run(2),
        2,
        "the rule is about one of the ten now, and about one no more"
    );
    assert_eq!(run(2), 0);
    toy.set(toy.rules().to_vec());
    assert_eq!(run(2), 12, "anything may have changed");
}
