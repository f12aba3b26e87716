//! The assignment against Open vSwitch's own examples, and what must hold for any machine.

use super::balance::{nothing_to_do, variance};
use super::*;
use proptest::prelude::*;

fn cores(numa: &[u32]) -> Vec<Core> {
    let place = |(core, numa): (usize, &u32)| Core { core, numa: *numa };
    numa.iter().enumerate().map(place).collect()
}

fn queue(i: usize, numa: u32) -> Queue {
    Queue {
        port: "p0".into(),
        queue: i,
        numa: Some(numa),
        pinned: None,
        cycles: 0,
        must: false,
    }
}

fn spread(assign: RxqAssign) -> Spread {
    Spread {
        assign,
        isolate: true,
    }
}

fn places(p: &Plan) -> Vec<usize> {
    p.place.iter().map(|w| w.unwrap()).collect()
}

#[test]
fn eight_idle_queues_on_two_workers() {
    let (c, q) = (cores(&[0, 0]), (0..8).map(|i| queue(i, 0)).collect::<Vec<_>>());
    let on = |assign| places(&plan(spread(assign), &c, &q));
    assert_eq!(on(RxqAssign::RoundRobin), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(on(RxqAssign::Cycles), [0, 1, 1, 0, 0, 1, 1, 0]);
    assert_eq!(on(RxqAssign::Group), [0, 1, 0, 1, 0, 1, 0, 1]);
}

#[test]
fn group_evens_out_what_cycles_leaves_uneven() {
    let c = cores(&[0, 0]);
    let mut q: Vec<Queue> = (0..4).map(|i| queue(i, 0)).collect();
    for (q, cycles) in q.iter_mut().zip([100, 10, 10, 10]) {
        q.cycles = cycles;
    }
    assert_eq!(places(&plan(spread(RxqAssign::Cycles), &c, &q)), [0, 1, 1, 0]);
    assert_eq!(places(&plan(spread(RxqAssign::Group), &c, &q)), [0, 1, 1, 1]);
}

#[test]
fn another_node_is_reported() {
    let q: Vec<Queue> = (0..8).map(|i| queue(i, 1)).collect();
    let p = plan(spread(RxqAssign::Cycles), &cores(&[0, 0]), &q);
    assert_eq!(places(&p), [0, 1, 1, 0, 0, 1, 1, 0]);
    let text = "There's no available (non-isolated) pmd thread on numa node 1. Port 'p0' rx queue 7 will be assigned to a pmd on \
                numa node 0. This may lead to reduced performance.";
    assert!(p.notes.iter().any(|n| n.queue == Some(7) && n.text == text));
    // The queue's own node, as long as that has a worker; else all nodes take part.
    let far = cores(&[1, 2, 1, 2]);
    assert_eq!(
        places(&plan(spread(RxqAssign::Group), &far, &q[..4])),
        [0, 2, 0, 2]
    );
    let q: Vec<Queue> = (0..4).map(|i| queue(i, 0)).collect();
    for assign in [RxqAssign::Group, RxqAssign::Cycles, RxqAssign::RoundRobin] {
        let mut on = places(&plan(spread(assign), &far, &q));
        on.sort_unstable();
        assert_eq!(on, [0, 1, 2, 3]);
    }
}

#[test]
fn affinity_isolates() {
    let c: Vec<Core> = [1, 2].map(|core| Core { core, numa: 0 }).to_vec();
    let mut q: Vec<Queue> = (0..4).map(|i| queue(i, 0)).collect();
    for (q, core) in q.iter_mut().zip([3, 7, 2, 8]) {
        q.pinned = Some(core);
    }
    let p = plan(Spread::default(), &c, &q);
    assert_eq!((places(&p), p.isolated), (vec![0, 0, 1, 0], vec![false, true]));
    assert!(p.notes.iter().any(|n| {
        n.warning
            && n.text
                .starts_with("Core  3 cannot be pinned with port 'p0' rx queue 0. Use")
    }));
    q.iter_mut().for_each(|q| q.pinned = None);
    q[0].pinned = Some(1);
    let p = plan(Spread::default(), &c, &q);
    assert_eq!(
        (places(&p), &p.isolated[..]),
        (vec![0, 1, 1, 1], &[true, false][..])
    );
    // Only `group` can share the worker.
    let shared = Spread {
        assign: RxqAssign::Group,
        isolate: false,
    };
    let p = plan(shared, &c, &q);
    assert_eq!(
        (places(&p), &p.isolated[..]),
        (vec![0, 1, 0, 1], &[false, false][..])
    );
    let p = plan(
        Spread {
            assign: RxqAssign::Cycles,
            isolate: false,
        },
        &c,
        &q,
    );
    assert_eq!(places(&p), [0, 1, 1, 1]);
}

#[test]
fn without_a_worker_of_its_own_a_queue_is_not_polled_unless_it_must_be() {
    let c = cores(&[0]);
    let mut q: Vec<Queue> = (0..3).map(|i| queue(i, 0)).collect();
    q[0].pinned = Some(0);
    q[2].must = true;
    let p = plan(Spread::default(), &c, &q);
    assert_eq!(p.place, [Some(0), None, Some(0)]);
    let warnings: Vec<_> = p.notes.iter().filter(|n| n.warning).map(|n| n.queue).collect();
    assert_eq!(warnings, [Some(1)]);
    assert_eq!(plan(Spread::default(), &[], &q).place, [None, None, None]);
}

#[test]
fn dry_runs_report_what_they_find() {
    let c = cores(&[0, 0]);
    let group = |improvement| Balance {
        improvement,
        spread: spread(RxqAssign::Group),
    };
    let mut q: Vec<Queue> = (0..3).map(|i| queue(i, 0)).collect();
    let mut now = plan(group(25).spread, &c, &q);
    let run = dry_run(group(25), &c, &q, &now, 1000);
    assert!(!run.go && run.lines[0] == "PMD auto load balance performing dry run.");
    assert_eq!(
        run.lines[1],
        "Numa node 0. Current variance 0 Estimated variance 0. Variance improvement 0%."
    );
    assert_eq!(
        run.lines[2],
        "PMD load variance improvement threshold 25% is not met."
    );
    // 90 % and nothing become 50 % and 40 %.
    for (q, cycles) in q.iter_mut().zip([500, 400, 0]) {
        q.cycles = cycles;
    }
    now.place = vec![Some(0), Some(0), Some(1)];
    let run = dry_run(group(25), &c, &q, &now, 1000);
    assert_eq!(
        run.lines[1],
        "Numa node 0. Current variance 2025 Estimated variance 25. Variance improvement 98%."
    );
    assert!(run.go);
    assert!(!dry_run(group(99), &c, &q, &now, 1000).go);
    let why = nothing_to_do(spread(RxqAssign::RoundRobin), &now);
    assert!(why.is_some_and(|w| w.ends_with("pmd-rxq-assign=roundrobin assignment type configured.")));
    now.isolated[0] = true;
    assert!(nothing_to_do(spread(RxqAssign::Group), &now).is_some_and(|w| w.contains("not enough")));
}

#[test]
fn variances() {
    assert_eq!(variance(&[]), 0);
    assert_eq!(variance(&[7]), 0);
    assert_eq!(variance(&[100, 0]), 2500);
    assert_eq!(variance(&[u64::MAX, 0]), u64::MAX / 2);
}

prop_compose! {
    fn a_machine()(
        numa in proptest::collection::vec(0_u32..3, 1..7),
        queues in proptest::collection::vec(
            (proptest::option::of(0_u32..4), proptest::option::weighted(0.3, 0_usize..9), 0_u64..1000, any::<bool>()), 0..20),
        assign in prop_oneof![Just(RxqAssign::Cycles), Just(RxqAssign::RoundRobin), Just(RxqAssign::Group)],
        isolate in any::<bool>(),
    ) -> (Vec<Core>, Vec<Queue>, Spread) {
        let queues = queues.into_iter().enumerate().map(|(i, (numa, pinned, cycles, must))| Queue {
            port: format!("p{}", i / 3), queue: i % 3, numa, pinned, cycles, must,
        });
        (cores(&numa), queues.collect(), Spread { assign, isolate })
    }
}

proptest! {
    /// Every queue has one worker, affinities are followed, and isolated workers get no other queues. A queue
    /// stays on its node if that has a worker for it.
    #[test]
    fn any_machine((cores, queues, spread) in a_machine()) {
        let p = plan(spread, &cores, &queues);
        prop_assert_eq!(p.place.len(), queues.len());
        let some_free = p.isolated.iter().any(|i| !i);
        for (q, place) in queues.iter().zip(&p.place) {
            let pinned = q.pinned.and_then(|core| cores.iter().position(|c| c.core == core));
            let Some(at) = *place else {
                prop_assert!(pinned.is_none() && !q.must && !some_free);
                continue;
            };
            if let Some(w) = pinned {
                prop_assert_eq!(at, w);
                prop_assert_eq!(p.isolated[w], spread.isolate || spread.assign != RxqAssign::Group);
                continue;
            }
            prop_assert!(!p.isolated[at] || (q.must && !some_free));
            let local = |w: usize| !p.isolated[w] && q.numa.is_none_or(|n| n == cores[w].numa);
            prop_assert!(local(at) || (0..cores.len()).all(|w| !local(w)));
        }
        for w in (0..cores.len()).filter(|w| p.isolated[*w]) {
            prop_assert!(queues.iter().zip(&p.place).any(|(q, at)| *at == Some(w) && q.pinned.is_some()));
        }
        // Equal inputs give equal assignments: no queue moves without a reason.
        prop_assert_eq!(plan(spread, &cores, &queues), p);
    }

    /// A rebalance that is carried out makes no node's variance worse, and at least one better.
    #[test]
    fn rebalancing_never_makes_it_worse(
        (cores, queues, spread) in a_machine(), shuffle in any::<u64>(), improvement in 1_u64..100,
    ) {
        let mut now = plan(spread, &cores, &queues);
        for (i, (q, place)) in queues.iter().zip(&mut now.place).enumerate() {
            let to = usize::try_from(shuffle.rotate_left(u32::try_from(i).unwrap_or(0) * 3) % 7).unwrap_or(0);
            if q.pinned.is_none() && to < cores.len() && !now.isolated[to] {
                *place = Some(to);
            }
        }
        let minute = 1000;
        if dry_run(Balance { improvement, spread }, &cores, &queues, &now, minute).go {
            let then = plan(spread, &cores, &queues);
            let of = |p: &Plan, numa| super::balance::node_variance(&cores, &queues, p, numa, minute);
            let change: Vec<(u64, u64)> = (0..3).map(|n| (of(&now, n), of(&then, n))).collect();
            prop_assert!(change.iter().all(|(a, b)| b <= a), "{:?}", change);
            prop_assert!(change.iter().any(|(a, b)| b < a), "{:?}", change);
        }
    }
}
