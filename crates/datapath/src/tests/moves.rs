//! Queues move between workers, and workers start and end, under traffic with sequence numbers. No packet is
//! lost, duplicated or reordered.

use super::{FakePort, Toy, ToyRule, udp};
use crate::{AutoLb, Config, Datapath, PortConfig, RxqAssign, Spread};
use heddle_datapath_api::{Engine, PortNo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn datapath(nodes: &[u32]) -> Arc<Datapath> {
    let config = Config {
        dummy_numa: Some(nodes.to_vec()),
        ..Config::default()
    };
    Datapath::new(config, Toy::new(vec![ToyRule::output(2)]) as _).unwrap()
}

fn affinity(core: Option<usize>) -> PortConfig {
    PortConfig {
        affinity: core.map(|c| (0, c)).into_iter().collect(),
        ..PortConfig::default()
    }
}

/// The worker of each port's queue.
fn cores(dp: &Datapath) -> Vec<(String, usize)> {
    let text = dp.pmd_rxq_show(None, 0);
    let mut core = 0;
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.split("core_id ").nth(1) {
            core = rest.trim_end_matches(':').parse().unwrap();
        } else if let Some(rest) = line.strip_prefix("  port: ") {
            found.push((rest.split_whitespace().next().unwrap().to_owned(), core));
        }
    }
    found.sort();
    found
}

#[test]
fn moving_queues_loses_and_reorders_nothing() {
    let dp = datapath(&[0, 0, 1]);
    dp.set_workers(Some(&[0, 1, 2])).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let sender = {
        let (a, stop) = (Arc::clone(&a), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut n = 0_u32;
            while !stop.load(Relaxed) {
                // Two flows, so that runs of equal keys end now and then.
                let packet = |i: u32| {
                    let mut p = udp(1, 2, 3, u16::from(i.is_multiple_of(7)));
                    p[42..46].copy_from_slice(&i.to_be_bytes());
                    p
                };
                a.send((n..n + 25).map(packet));
                n += 25;
                std::thread::sleep(Duration::from_micros(50));
            }
            n
        })
    };
    let (began, mut moves) = (Instant::now(), 0_usize);
    while began.elapsed() < Duration::from_secs(2) || moves <= 50 && began.elapsed() < Duration::from_secs(60)
    {
        moves += 1;
        match moves % 50 {
            // The worker of the queue ends, and starts again.
            10 => dp.set_workers(Some(&[(moves + 1) % 3])).unwrap(),
            20 => dp.set_workers(Some(&[0, 1, 2])).unwrap(),
            _ => {
                dp.configure_port(PortNo(1), affinity(Some(moves % 3))).unwrap();
                dp.assign_queues().unwrap();
            }
        }
    }
    stop.store(true, Relaxed);
    let sent = sender.join().unwrap();
    a.drained();
    dp.flush_stats();
    let got: Vec<u32> = b
        .take()
        .iter()
        .map(|p| u32::from_be_bytes(p[42..46].try_into().unwrap()))
        .collect();
    assert!(moves > 50, "{moves}");
    assert_eq!(got.len(), sent as usize);
    assert!(got.iter().copied().eq(0..sent));
    assert_eq!(a.opened.load(Relaxed), 1, "the queue itself was never closed");
    assert_eq!(dp.port_stats(PortNo(1)).unwrap().rx_packets, u64::from(sent));
    assert_eq!(dp.port_stats(PortNo(2)).unwrap().tx_packets, u64::from(sent));
}

/// A worker whose processor another program takes for a while, or a stopped process, gives its queues back
/// late.
#[test]
fn queues_of_a_worker_that_replies_late_are_not_lost() {
    let dp = datapath(&[0, 0]);
    dp.set_workers(Some(&[0])).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    let stalled = a.stall(crate::worker::WORKER_TIMEOUT + Duration::from_secs(1));
    dp.set_workers(Some(&[1])).unwrap();
    stalled.join().unwrap();
    assert_eq!(cores(&dp), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    a.send([udp(1, 2, 3, 4)]);
    assert_eq!(b.wait(1).len(), 1);
}

#[test]
fn a_queue_that_no_worker_may_poll_waits_with_its_packets() {
    let dp = datapath(&[0, 0]);
    dp.set_workers(Some(&[0])).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    dp.configure_port(PortNo(2), affinity(Some(0))).unwrap();
    dp.assign_queues().unwrap();
    assert!(dp.pmd_rxq_show(None, 0).contains("isolated : true"));
    assert_eq!(cores(&dp), [("b".to_owned(), 0)]);
    a.send([udp(1, 2, 3, 4)]);
    std::thread::sleep(Duration::from_millis(20));
    assert!(b.take().is_empty());
    dp.set_workers(Some(&[0, 1])).unwrap();
    assert_eq!(cores(&dp), [("a".to_owned(), 1), ("b".to_owned(), 0)]);
    assert_eq!(b.wait(1).len(), 1, "it was in the queue all the time");
}

#[test]
fn queues_are_shared_out_when_all_ports_are_there() {
    let dp = datapath(&[0, 0]);
    dp.set_workers(Some(&[0, 1])).unwrap();
    for (no, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        dp.add_port(FakePort::new(name) as _, Some(PortNo(no))).unwrap();
    }
    let on = |dp: &Datapath| cores(dp).into_iter().map(|(_, core)| core).collect::<Vec<_>>();
    let set = |assign| {
        dp.set_spread(Spread {
            assign,
            isolate: true,
        });
        dp.assign_queues().unwrap();
    };
    set(RxqAssign::RoundRobin);
    assert_eq!(on(&dp), [0, 1, 0, 1]);
    set(RxqAssign::Cycles);
    assert_eq!(on(&dp), [0, 1, 1, 0]);
    dp.rebalance().unwrap();
    assert_eq!(on(&dp), [0, 1, 1, 0]);
}

#[test]
fn automatic_balancing_follows_the_load() {
    let clock = Arc::new(heddle_sync::Clock::default());
    clock.stop();
    let config = Config {
        dummy_numa: Some(vec![0, 0]),
        clock: Arc::clone(&clock),
        ..Config::default()
    };
    let dp = Datapath::new(config, Toy::new(vec![ToyRule::output(9)]) as _).unwrap();
    dp.set_workers(Some(&[0, 1])).unwrap();
    let ports: Vec<_> = (1..=4_u32)
        .map(|no| (no, FakePort::new(&format!("p{no}"))))
        .collect();
    for (no, port) in &ports {
        dp.add_port(Arc::clone(port) as _, Some(PortNo(*no))).unwrap();
    }
    dp.set_spread(Spread {
        assign: RxqAssign::Group,
        isolate: true,
    });
    dp.set_auto_lb(AutoLb {
        enabled: true,
        load: 0,
        improvement: 1,
        ..AutoLb::default()
    });
    dp.assign_queues().unwrap();
    let place = |dp: &Datapath| cores(dp).into_iter().map(|(_, core)| core).collect::<Vec<_>>();
    assert_eq!(place(&dp), [0, 1, 0, 1]);
    // The two ports of the first worker have traffic, the others none. It would take a real minute's cycles
    // to make the worker busy by percents. So the packets are made expensive: they are few in a long
    // pretended time.
    for second in 0..200 {
        for (_, port) in ports.iter().filter(|(no, _)| no % 2 == 1) {
            port.send((0..64).map(|i| udp(1, second, i, 4)));
            port.drained();
        }
        dp.flush_stats();
        clock.warp(1000);
        dp.balance();
    }
    // Too little gain: no worker was busy for one percent of a minute.
    assert_eq!(place(&dp), [0, 1, 0, 1]);
    dp.rebalance().unwrap();
    let on = place(&dp);
    assert_ne!(on[0], on[2], "measured, the two busy queues are apart: {on:?}");
}

/// If a mask names the processors of the default workers, these workers stay and keep their caches; also in
/// the other direction. Masks without any usable processor are equal to no mask.
#[test]
fn a_mask_that_names_the_same_processors_keeps_workers_and_caches() {
    let dp = Datapath::new(Config::default(), Toy::new(vec![ToyRule::output(2)]) as _).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    dp.assign_queues().unwrap();
    let workers = || -> Vec<(usize, usize)> {
        let seen = dp.snapshot();
        seen.workers.iter().map(|w| (w.id, w.core)).collect()
    };
    let forwards = || {
        a.send([udp(1, 2, 3, 4)]);
        b.wait(1);
    };
    let before = workers();
    let places = cores(&dp);
    let named: Vec<usize> = before.iter().map(|(_, core)| *core).collect();
    forwards();
    for mask in [Some(&named[..]), None, Some(&[100_000]), Some(&[200_000]), None] {
        dp.set_workers(mask).unwrap();
        forwards();
        assert_eq!(
            (workers(), cores(&dp)),
            (before.clone(), places.clone()),
            "{mask:?}"
        );
        assert_eq!((dp.flows().len(), dp.totals().misses), (1, 1), "{mask:?}");
    }
}
