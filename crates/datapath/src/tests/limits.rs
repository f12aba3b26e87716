//! Limits of cached flows: their number, their lifetime, the cache that they go into. Flows are read in
//! pieces.

use super::flows::{count, setup};
use super::{FakePort, ToyRule, udp};
use heddle_datapath_api::{Action, Engine, PortNo};
use std::sync::Arc;

#[test]
fn flow_limit_and_purge() {
    let mut m = heddle_flow::key::Match::any();
    m.mask.0.tp_src = 0xffff;
    m.key.tp_src = 9999;
    let rest = ToyRule::output(2);
    let tally = Arc::clone(&rest.tally);
    let s = setup(vec![ToyRule::new(m, vec![]), rest]);
    s.dp.set_flow_limit(10);
    s.a.send((0..50).map(|i| udp(1, 2, i, 4)));
    s.b.wait(50);
    s.dp.flush_stats();
    assert_eq!(s.dp.flows().len(), 10);
    assert_eq!(s.dp.totals().limit_hits, 40);
    assert_eq!(count(&tally).0, 50);
    s.dp.purge();
    assert!(s.dp.flows().is_empty());
    s.dp.set_workers(Some(&[0])).unwrap();
    assert_eq!(
        s.dp.totals().limit_hits,
        40,
        "also what workers that have ended counted"
    );
    s.a.send((0..50).map(|i| udp(1, 2, i, 4)));
    s.b.wait(50);
    s.dp.purge();
    s.dp.tick();
    assert_eq!(count(&tally).0, 100);
}

/// A pipeline under which each source port is an entry of its own.
fn by_source_port() -> Vec<ToyRule> {
    let mut m = heddle_flow::key::Match::any();
    m.mask.0.tp_src = 0xffff;
    m.key.tp_src = 65_535;
    vec![ToyRule::new(m, vec![]), ToyRule::output(2)]
}

/// A flood of flows on one port leaves room for those of another.
#[test]
fn a_port_leaves_room_for_others() {
    let s = setup(by_source_port());
    let c = FakePort::new("c");
    assert_eq!(
        s.dp.add_port(Arc::clone(&c) as _, Some(PortNo(3))).unwrap(),
        PortNo(3)
    );
    s.dp.set_flow_limit(2048);
    for round in 0..10 {
        s.a.send((0..500).map(|i| udp(1, 2, round * 500 + i, 4)));
        assert_eq!(s.b.wait(500).len(), 500, "all are forwarded, cached or not");
    }
    let held = s.dp.flows().len();
    assert_eq!(held, 2048 * 16 / 17 + 1);
    c.send((0..100).map(|i| udp(1, 2, i, 4)));
    assert_eq!(s.b.wait(100).len(), 100);
    assert_eq!(s.dp.flows().len(), held + 100);
}

/// An entry without packets is evicted after `max-idle`.
#[test]
fn idle_entries_end_by_command() {
    let s = setup(vec![ToyRule::output(2)]);
    for idle in [500, 2_000] {
        s.dp.set_max_idle_ms(idle);
        s.a.send([udp(1, 2, 3, 4)]);
        s.b.wait(1);
        s.clock.warp(idle - 1);
        s.dp.tick();
        assert_eq!(s.dp.flows().len(), 1, "{idle}");
        s.clock.warp(1);
        s.dp.tick();
        assert_eq!(s.dp.flows().len(), 0, "{idle}");
    }
}

/// `emc-insert-inv-prob`: by default a port with one mask does not use the exact-match cache; with 1 it does;
/// with 0 no port does.
#[test]
fn the_exact_match_cache_is_used_as_configured() {
    let s = setup(by_source_port());
    let hits = |n: Option<u32>| {
        s.dp.set_emc_insert_inv_prob(n);
        let before = s.dp.totals();
        for _ in 0..10 {
            s.a.send((0..8).map(|i| udp(1, 2, i, 4)));
            s.b.wait(8);
        }
        let after = s.dp.totals();
        (
            after.l1_hits - before.l1_hits,
            after.l2_hits - before.l2_hits + after.misses - before.misses,
        )
    };
    assert_eq!(hits(None), (0, 80));
    let (l1, l2) = hits(Some(1));
    assert!(l1 >= 64 && l1 + l2 == 80, "{l1} {l2}");
    assert_eq!(hits(Some(0)), (0, 80), "what it knew is forgotten");
}

/// Only masks of hits are counted, for any number of packets that miss beside them.
#[test]
fn masks_of_misses_are_not_counted() {
    let tagged = |port: u16| {
        let mut frame = udp(1, 2, port, 4);
        frame.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]);
        frame
    };
    let plain = |port: u16| udp(1, 2, port, 4);
    for frame in [&plain as &dyn Fn(u16) -> Vec<u8>, &tagged] {
        let s = setup(by_source_port());
        s.dp.set_emc_insert_inv_prob(Some(0));
        s.dp.set_flow_limit(10);
        for _ in 0..4 {
            s.a.send((0..50).map(frame));
            s.b.wait(50);
        }
        let t = s.dp.totals();
        assert!(t.misses > 100 && t.l2_hits >= 25, "{t:?}");
        assert_eq!(t.l2_masks_probed, t.l2_hits, "there is one mask: {t:?}");
        // With one more mask, of one entry, each packet under the first mask probes at most one mask more.
        let before = t;
        let mut m = heddle_flow::key::Match::any();
        m.mask.0.tp_dst = 0xffff;
        m.key.tp_dst = 9;
        s.dp.purge();
        s.dp.tick();
        s.toy.set(
            [
                vec![ToyRule::new(m, vec![Action::Output(PortNo(2))])],
                by_source_port(),
            ]
            .concat(),
        );
        let mut first = frame(3);
        let at = first.len() - 60 + 36;
        first[at..at + 2].copy_from_slice(&[0, 9]);
        for _ in 0..4 {
            s.a.send([first.clone()]);
            s.b.wait(1);
            s.a.send((0..50).map(frame));
            s.b.wait(50);
        }
        let t = s.dp.totals();
        let (hits, masks) = (
            t.l2_hits - before.l2_hits,
            t.l2_masks_probed - before.l2_masks_probed,
        );
        assert!(t.misses - before.misses > 100 && hits >= 25, "{t:?}");
        assert!((hits..=2 * hits).contains(&masks), "{hits} {masks}");
    }
}

/// A reader of flows holds few of them, and does not block other threads. A flow that is freed between two
/// pieces is not shown.
#[test]
fn flows_are_read_in_pieces() {
    let s = setup(by_source_port());
    s.a.send((0..600).map(|i| udp(1, 2, i, 4)));
    s.b.wait(600);
    let (mut seen, mut ports) = (0, Vec::new());
    s.dp.each_flow(|flow| {
        seen += 1;
        ports.push(flow.key.tp_src);
    });
    assert_eq!(seen, 600);
    assert!(ports.is_sorted(), "the oldest first");
    let mut left = 0;
    s.dp.each_flow(|_| {
        if left == 0 {
            s.dp.purge();
        }
        left += 1;
    });
    assert!((1..600).contains(&left), "{left}");
}
