//! Loops in this process carry everything, in order and unchanged; with them the generator itself is tested.

use super::*;
use crate::flows::{Order, Spread};
use crate::frame::Shape;
use crate::load::{Checks, Timing, Touch};
use crate::report::Outcome;
use core::time::Duration;

/// Measures until enough packets were carried, however busy the machine is, and checks that each missing
/// packet is counted.
fn measure(kind: Kind, ports: usize, setup: Setup, load: Load) -> Outcome {
    const ENOUGH: u64 = 2000;
    let core = *cpu::allowed().unwrap().last().unwrap();
    let setup = Setup {
        huge: heddle_vhost_user::frontend::HugePages::Never,
        ..setup
    };
    let (floor, mut engine) = Floor::start(kind, ports, core, &setup, &[load]).unwrap();
    let timing = Timing {
        warm_up: Duration::from_millis(5),
        measure: Duration::from_millis(20),
        drain: Duration::from_secs(20),
        ..Timing::default()
    };
    let (mut sent, mut received, mut latency) = (0, 0, None);
    for _ in 0..1000 {
        let mut outcome = engine.measure(&timing).unwrap();
        sent += outcome.sent_total;
        received += outcome.received_total;
        let context = format!("{kind:?} {setup:?} {load:?} {outcome:?}");
        assert_eq!((outcome.corrupt, outcome.reordered), (0, 0), "{context}");
        latency = outcome.latency.or(latency);
        if received < ENOUGH || outcome.received_total == 0 || latency.is_none() {
            continue; // on a busy machine a phase may see few packets, and none that is timed
        }
        let work = floor.stop().unwrap();
        assert!(work.busy > 0);
        // Announcements are not counted by the engine.
        let announced = ports as u64;
        assert_eq!(work.packets, sent + announced, "{context}");
        assert_eq!(received, work.packets - work.dropped - announced, "{context}");
        outcome.sent_total = sent;
        outcome.latency = latency;
        return outcome;
    }
    panic!("only {received} of {sent} packets arrived");
}

#[test]
fn every_kind_carries_every_packet_in_every_layout() {
    for kind in [Kind::OneCopy, Kind::TwoCopies, Kind::Rings] {
        for packed in [false, true] {
            for (mergeable, size) in [(true, 64), (true, 9000), (false, 64), (false, 9000)] {
                let setup = Setup {
                    packed,
                    mergeable,
                    ..Setup::default()
                };
                let load = Load {
                    shape: Shape::Udp(size),
                    checks: Checks::Content,
                    touch: if packed { Touch::Packets } else { Touch::Changes },
                    flows: 100,
                    ..Load::default()
                };
                let o = measure(kind, 2, setup, load);
                assert_eq!(o.read, o.received_total);
            }
        }
    }
}

#[test]
fn gso_packets_pass_whole() {
    for kind in [Kind::OneCopy, Kind::Rings] {
        let load = Load {
            shape: Shape::Tso {
                size: Shape::MAX,
                mss: 1448,
            },
            checks: Checks::Content,
            burst: 16,
            ..Load::default()
        };
        let o = measure(kind, 2, Setup::default(), load);
        assert_eq!(o.foreign_pps, 0.0);
    }
}

#[test]
fn many_ports_both_ways_in_order_with_probes() {
    for packed in [false, true] {
        let setup = Setup {
            packed,
            in_order: true,
            event_idx: true,
            pairs: 2,
            ..Setup::default()
        };
        let load = Load {
            both_ways: true,
            flows: 1000,
            order: Order::Random,
            touch: Touch::Changes,
            ..Load::default()
        };
        let o = measure(Kind::Rings, 4, setup, load);
        // One of 64 was read, give or take a ring's worth per receiver.
        let probes = o.received_total / 64;
        assert!(o.read.abs_diff(probes) <= 8 * 256 / 64 + probes / 2, "{o:?}");
        let latency = o.latency.unwrap();
        assert!(latency.p50_us > 0.0 && latency.p50_us <= latency.p99_us);
    }
}

#[test]
fn a_fixed_rate_is_kept() {
    let load = Load {
        rate: Some(50_000.0),
        checks: Checks::Probes(1),
        ..Load::default()
    };
    let o = measure(Kind::OneCopy, 2, Setup::default(), load);
    // Other programs may keep the generator from its core, but never speed it up.
    let due = 50_000.0 * o.seconds;
    assert!(o.sent_pps * o.seconds <= due + 300.0, "{o:?}");
    assert_eq!(o.read, o.received_total);
}

/// Two pairs with loads of their own: each has its own result, and their sum is the whole.
#[test]
fn a_storm_beside_established_traffic() {
    let established = Load {
        rate: Some(20_000.0),
        checks: Checks::Probes(1),
        ..Load::default()
    };
    let storm = Load {
        flows: u32::MAX,
        spread: Spread::Explosion,
        checks: Checks::Lengths,
        ..Load::default()
    };
    let setup = Setup {
        huge: heddle_vhost_user::frontend::HugePages::Never,
        ..Setup::default()
    };
    let core = *cpu::allowed().unwrap().last().unwrap();
    let (floor, mut engine) = Floor::start(Kind::OneCopy, 4, core, &setup, &[established, storm]).unwrap();
    let timing = Timing {
        measure: Duration::from_millis(500),
        drain: Duration::from_secs(20),
        ..Timing::default()
    };
    let o = engine.measure(&timing).unwrap();
    floor.stop().unwrap();
    let [a, b] = o.pairs.as_slice() else {
        panic!("two pairs: {o:?}");
    };
    assert!((a.received_pps + b.received_pps - o.received_pps).abs() < 1.0);
    assert!(a.sent_pps * o.seconds <= 20_000.0 * o.seconds + 300.0, "{o:?}");
    assert!(b.received_pps > 0.0 && b.latency.is_none(), "{o:?}");
    assert_eq!((o.corrupt, o.reordered), (0, 0));
}

#[test]
fn one_port_sends_to_itself() {
    let o = measure(Kind::OneCopy, 1, Setup::default(), Load::default());
    assert!(o.received_total > 0);
}

#[test]
fn nonsense_is_refused() {
    let wrong = [
        (
            Setup::default(),
            Load {
                shape: Shape::Udp(40),
                ..Load::default()
            },
        ),
        (
            Setup::default(),
            Load {
                shape: Shape::Udp(70_000),
                ..Load::default()
            },
        ),
        (
            Setup::default(),
            Load {
                checks: Checks::Probes(3),
                ..Load::default()
            },
        ),
        (
            Setup::default(),
            Load {
                checks: Checks::Probes(512),
                ..Load::default()
            },
        ),
        (
            Setup::default(),
            Load {
                rate: Some(0.0),
                ..Load::default()
            },
        ),
        (
            Setup {
                ring: 100,
                ..Setup::default()
            },
            Load::default(),
        ),
    ];
    for (setup, load) in wrong {
        assert!(
            matches!(load.check(&setup), Err(RunError::Impossible(_))),
            "{setup:?} {load:?}"
        );
    }
}
