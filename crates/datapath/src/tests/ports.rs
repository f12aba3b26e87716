//! Ports and workers that are added and removed under traffic; sleeping.

use super::{FakePort, Toy, ToyRule, udp};
use crate::{Config, Datapath, DatapathError, PortConfig};
use heddle_datapath_api::{Action, Engine, Masked, MeterAction, MeterBand, MeterConfig, NoReply, PortNo};
use heddle_flow::FlowKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[test]
fn a_port_that_cannot_be_opened_again_keeps_its_number() {
    let toy = Toy::new(vec![ToyRule::any(vec![Action::Output(PortNo(2))])]);
    let dp = Datapath::new(Config::default(), toy as _).unwrap();
    let (a, b, c) = (FakePort::new("a"), FakePort::new("b"), FakePort::new("c"));
    dp.add_port(Arc::clone(&a) as _, None).unwrap();
    dp.add_port(Arc::clone(&b) as _, None).unwrap();
    a.refuses.store(true, Relaxed);
    assert!(dp.replace_port(PortNo(1), Arc::clone(&a) as _).is_err());
    // Another port gets another number, and settings of the first one are not its own.
    assert_eq!(dp.add_port(Arc::clone(&c) as _, None).unwrap(), PortNo(3));
    let opened = c.opened.load(Relaxed);
    let two = PortConfig {
        n_rxq: 2,
        ..PortConfig::default()
    };
    dp.configure_port(PortNo(1), two).unwrap();
    let two_packets = MeterConfig {
        packets: true,
        bands: vec![MeterBand {
            action: MeterAction::Drop,
            rate: 1,
            burst: 2,
        }],
    };
    dp.set_policing(PortNo(1), &[two_packets]).unwrap();
    assert!(dp.replace_port(PortNo(1), Arc::clone(&a) as _).is_err());
    assert_eq!(c.opened.load(Relaxed), opened);
    a.refuses.store(false, Relaxed);
    let before = a.opened.load(Relaxed);
    dp.replace_port(PortNo(1), Arc::clone(&a) as _).unwrap();
    assert_eq!(
        a.opened.load(Relaxed) - before,
        2,
        "with the number of queues set meanwhile"
    );
    dp.replace_port(PortNo(1), Arc::clone(&a) as _).unwrap();
    a.send((0..4).map(|n| udp(1, 2, 3, n)));
    let sent = b.wait(1).len();
    a.drained();
    let sent = sent + b.take().len();
    // The worker's clock may be a millisecond older than the bucket.
    assert!(
        (1..=2).contains(&sent),
        "{sent} packets: the limit was set meanwhile"
    );
    // Once it is deleted, its number is free.
    a.refuses.store(true, Relaxed);
    assert!(dp.replace_port(PortNo(1), Arc::clone(&a) as _).is_err());
    dp.del_port(PortNo(1)).unwrap();
    assert!(matches!(dp.del_port(PortNo(1)), Err(DatapathError::NoPort(_))));
    assert_eq!(dp.add_port(FakePort::new("d") as _, None).unwrap(), PortNo(1));
}

#[test]
fn ports_come_and_go_while_traffic_runs() {
    let toy = Toy::new(vec![ToyRule::any(vec![
        Action::Output(PortNo(2)),
        Action::Output(PortNo(3)),
    ])]);
    let dp = Datapath::new(
        Config {
            cpus: Some(vec![0, 0, 0]),
            ..Config::default()
        },
        toy as _,
    )
    .unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let sender = {
        let (a, stop) = (Arc::clone(&a), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut n = 0_usize;
            while !stop.load(Relaxed) {
                a.send((0..20).map(|i| udp(1, 2, i, 4)));
                n += 20;
                std::thread::sleep(Duration::from_micros(100));
            }
            n
        })
    };
    let mut third = 0;
    for round in 0..30 {
        let c = FakePort::new("c");
        assert_eq!(dp.add_port(Arc::clone(&c) as _, None).unwrap(), PortNo(3));
        assert!(matches!(
            dp.add_port(FakePort::new("d") as _, Some(PortNo(3))),
            Err(DatapathError::InUse(_))
        ));
        assert!(matches!(
            dp.add_port(FakePort::new("bad") as _, None),
            Err(DatapathError::Port(_))
        ));
        third += c.wait(1).len();
        dp.del_port(PortNo(3)).unwrap();
        let left = c.take().len();
        std::thread::sleep(Duration::from_millis(2));
        assert!(c.take().is_empty(), "nothing is sent to a port that is gone");
        third += left;
        assert_eq!(Arc::strong_count(&c), 1, "its queues are closed");
        if round == 15 {
            dp.set_workers(Some(&[0, 0])).unwrap();
            dp.configure_port(
                PortNo(1),
                PortConfig {
                    n_rxq: 2,
                    ..PortConfig::default()
                },
            )
            .unwrap();
        }
    }
    stop.store(true, Relaxed);
    let sent = sender.join().unwrap();
    assert!(third > 0);
    a.drained();
    b.wait(1);
    dp.flush_stats();
    let s = dp.port_stats(PortNo(1)).unwrap();
    assert_eq!(s.rx_packets, sent as u64, "counts survive workers and queues");
    assert_eq!(dp.ports().len(), 2);
    assert!(matches!(dp.del_port(PortNo(9)), Err(DatapathError::NoPort(_))));
    assert_eq!(dp.port_by_name("b"), Some(PortNo(2)));
}

/// If old and new queues cannot exist at once, the old ones are closed first.
#[test]
fn queues_that_cannot_take_over_take_their_turn() {
    let toy = Toy::new(vec![ToyRule::output(2)]);
    let dp = Datapath::new(Config::default(), toy as _).unwrap();
    let (a, b) = (FakePort::new("jealous"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    let two = PortConfig {
        n_rxq: 2,
        ..PortConfig::default()
    };
    dp.configure_port(PortNo(1), two).unwrap();
    a.send([udp(1, 2, 3, 4)]);
    assert_eq!(b.wait(1).len(), 1);
    assert_eq!(a.opened.load(Relaxed), 2);
}

#[test]
fn idle_workers_sleep_and_wake_up() {
    let toy = Toy::new(vec![ToyRule::output(2)]);
    let dp = Datapath::new(Config::default(), toy as _).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, None).unwrap();
    dp.add_port(Arc::clone(&b) as _, None).unwrap();
    for _ in 0..20 {
        a.send([udp(1, 2, 3, 4)]);
        assert_eq!(b.wait(1).len(), 1);
        std::thread::sleep(Duration::from_millis(3));
    }
    let iterations = || -> u64 {
        let c = dp.pmd_perf_show(None, "", crate::PerfWanted::default());
        let numbers = c.lines().filter_map(|l| l.strip_prefix("  Iterations:"));
        numbers
            .map(|l| l.split_whitespace().next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    // The worker falls asleep in the end, however late.
    let sleeps = || {
        let before = iterations();
        std::thread::sleep(Duration::from_millis(200));
        iterations() - before < 10
    };
    assert!((0..50).any(|_| sleeps()), "an idle switch does nothing");
}

#[test]
fn shutdown_ends_all() {
    let toy = Toy::new(vec![]);
    let dp = Datapath::new(Config::default(), Arc::clone(&toy) as _).unwrap();
    let a = FakePort::new("a");
    dp.add_port(Arc::clone(&a) as _, None).unwrap();
    dp.shutdown();
    dp.shutdown();
    assert!(matches!(
        dp.inject(
            heddle_packet::Packet::new(),
            &FlowKey::default(),
            PortNo(1),
            vec![]
        ),
        Err(NoReply)
    ));
    drop(dp);
    assert_eq!((Arc::strong_count(&a), Arc::strong_count(&toy)), (1, 1));
}

#[test]
fn queues_go_to_workers_of_their_memorys_node() {
    let toy = Toy::new(vec![ToyRule::output(2)]);
    let config = Config {
        dummy_numa: Some(vec![0, 0, 1, 1]),
        ..Config::default()
    };
    let dp = Datapath::new(config, toy as _).unwrap();
    let on = |core: usize| {
        let text = dp.pmd_rxq_show(Some(core), 0);
        let ports = text.lines().filter_map(|l| l.strip_prefix("  port: "));
        let mut names: Vec<String> = ports.map(|l| l[..1].to_owned()).collect();
        names.sort_unstable();
        (text.lines().nth(1).unwrap_or_default().to_owned(), names.concat())
    };
    // Without a mask: the first processor of each node.
    assert_eq!(on(0).0, "pmd thread numa_id 0 core_id 0:");
    assert_eq!(on(2).0, "pmd thread numa_id 1 core_id 2:");
    dp.set_workers(Some(&[1, 2, 3, 99])).unwrap();
    assert_eq!(dp.n_workers(), 3, "a processor that does not exist has no worker");
    let numa = |no, numa| {
        let config = PortConfig {
            numa,
            ..PortConfig::default()
        };
        dp.configure_port(PortNo(no), config).unwrap();
        dp.assign_queues().unwrap();
    };
    for (no, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        dp.add_port(FakePort::new(name) as _, Some(PortNo(no))).unwrap();
        numa(no, Some(u32::from(no < 4)));
    }
    assert_eq!(on(1).1, "d");
    assert_eq!((on(2).1 + &on(3).1).len(), 3, "node 1 has two workers");
    assert!(!on(2).1.is_empty() && !on(3).1.is_empty());
    numa(1, Some(0));
    assert_eq!(on(1).1, "ad", "it moves with its memory");
    numa(1, Some(7));
    assert_eq!(
        (on(1).1 + &on(2).1 + &on(3).1).len(),
        4,
        "a node without workers: anywhere"
    );
}

/// A broadcast storm in which each of many ports gets the packet in another form. A burst takes more copies
/// than may be held at a time.
#[test]
fn floods_that_take_many_copies_lose_nothing() {
    let form = |n: u8| Action::SetEth {
        src: Masked {
            value: [2, 0, 0, 0, 0, n],
            mask: [0xff; 6],
        },
        dst: Masked::default(),
    };
    let flood = (0..200)
        .flat_map(|n| [form(n), Action::Output(PortNo(2))])
        .collect();
    let dp = Datapath::new(Config::default(), Toy::new(vec![ToyRule::any(flood)]) as _).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    a.send((0..64).map(|_| udp(1, 2, 3, 4)));
    let got = b.wait(64 * 200);
    assert!(
        got.chunks(200)
            .all(|one| one.iter().zip(0..).all(|(p, n)| p[11] == n))
    );
    assert_eq!(got.len(), 64 * 200);
}

/// A queue that keeps packets gets each as it was when it was sent there, even if it is rewritten later.
/// Other queues are unaffected.
#[test]
fn a_queue_that_keeps_packets_gets_its_own() {
    const N: u16 = 40;
    let full = |value| Masked {
        value,
        mask: [0xff; 6],
    };
    let rewrite = Action::SetEth {
        src: full([0; 6]),
        dst: full([2; 6]),
    };
    let toy = Toy::new(vec![ToyRule::any(vec![
        Action::Output(PortNo(2)),
        Action::Output(PortNo(3)),
        rewrite,
        Action::Output(PortNo(2)),
    ])]);
    let dp = Datapath::new(Config::default(), toy as _).unwrap();
    let ports = ["a", "shaper", "c"].map(FakePort::new);
    for (no, port) in (1..).zip(&ports) {
        dp.add_port(Arc::clone(port) as _, Some(PortNo(no))).unwrap();
    }
    let frame = |i| udp(1, 2, i, 4);
    let mut later = Vec::new();
    for i in 0..N {
        ports[0].send([frame(i)]);
        assert_eq!(ports[2].wait(1), [frame(i)], "the other port's goes out at once");
        later.extend(ports[1].take());
    }
    ports[0].drained();
    later.extend(ports[1].take());
    let rewritten = |i| {
        let mut f = frame(i);
        f[..6].fill(2);
        f[6..12].fill(0);
        f
    };
    // Packets that came with the last one are still kept.
    let want: Vec<_> = (0..N - 1).flat_map(|i| [frame(i), rewritten(i)]).collect();
    assert_eq!(later, want);
    dp.flush_stats();
    assert_eq!(dp.port_stats(PortNo(2)).unwrap().tx_packets, 2 * u64::from(N));
}

/// Queues whose every poll is a system call are not polled while they are empty and other queues have
/// packets. Their new packets are seen all the same.
#[test]
fn empty_taps_are_not_looked_at_beside_rings() {
    let toy = Toy::new(vec![ToyRule::any(vec![Action::Output(PortNo(9))])]);
    let config = Config {
        cpus: Some(vec![0]),
        ..Config::default()
    };
    let dp = Datapath::new(config, toy as _).unwrap();
    let (ring, out) = (FakePort::new("ring"), FakePort::new("out"));
    let taps = ["tap0", "tap1", "tap2"].map(FakePort::new);
    dp.add_port(Arc::clone(&ring) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&out) as _, Some(PortNo(9))).unwrap();
    for (no, tap) in (2..).zip(&taps) {
        dp.add_port(Arc::clone(tap) as _, Some(PortNo(no))).unwrap();
    }
    let looks = || taps.iter().map(|t| t.looks()).sum::<u64>();
    ring.set_endless(Some(udp(1, 2, 3, 4)));
    std::thread::sleep(Duration::from_millis(20));
    let before = (looks(), ring.looks());
    // Measured in rounds, not in time: on a busy machine the worker has few rounds in a while.
    while ring.looks() - before.1 < 10_000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (looks, rounds) = (looks() - before.0, ring.looks() - before.1);
    assert!(looks <= rounds / 100, "{looks} looks in {rounds} rounds");
    let packet = udp(5, 6, 7, 8);
    taps[1].send([packet.clone()]);
    while !out.wait(1).contains(&packet) {}
    ring.set_endless(None);
}
