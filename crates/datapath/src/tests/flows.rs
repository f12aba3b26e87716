//! Caching, crediting, evicting, texts.

use super::fake::{FATAL, refused};
use super::{FakePort, Tally, Toy, ToyRule, udp};
use crate::{Config, Datapath};
use heddle_datapath_api::{
    Action, DropKind, Engine, FlowDump, Merged, PortNames, PortNo, Upcall, UpcallCookie, UpcallData,
    UpcallKind,
};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::key::Match;
use heddle_packet::Packet;
use heddle_sync::Clock;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(super) struct Setup {
    pub(super) dp: Arc<Datapath>,
    pub(super) toy: Arc<Toy>,
    pub(super) clock: Arc<Clock>,
    pub(super) a: Arc<FakePort>,
    pub(super) b: Arc<FakePort>,
}

/// Two ports, 1 and 2, under a stopped clock and no background sweeps.
pub(super) fn setup(rules: Vec<ToyRule>) -> Setup {
    let clock = Arc::new(Clock::default());
    clock.stop();
    let toy = Toy::new(rules);
    let config = Config {
        clock: Arc::clone(&clock),
        revalidate_interval_ms: 0,
        ..Config::default()
    };
    let dp = Datapath::new(config, Arc::clone(&toy) as _).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::with_mtu("b", 1000));
    assert_eq!(dp.add_port(Arc::clone(&a) as _, None).unwrap(), PortNo(1));
    assert_eq!(
        dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap(),
        PortNo(2)
    );
    Setup { dp, toy, clock, a, b }
}

pub(super) fn count(t: &Tally) -> (u64, u64) {
    (t.packets.load(Relaxed), t.bytes.load(Relaxed))
}

#[test]
fn forwards_caches_and_credits_each_packet_once() {
    let rule = ToyRule::output(2);
    let tally = Arc::clone(&rule.tally);
    let s = setup(vec![rule]);
    s.a.send((0..100).map(|i| udp(1, 2, i, 80)));
    assert_eq!(s.b.wait(100).len(), 100);
    assert_eq!(
        s.toy.translated.load(Relaxed),
        1,
        "one wildcarded entry serves all"
    );
    s.dp.flush_stats();
    assert_eq!(count(&tally), (100, 6000));
    let flows = s.dp.flows();
    assert_eq!(
        (flows.len(), flows[0].packets),
        (1, 99),
        "the first packet is credited, not counted on the entry"
    );
    let stats = (
        s.dp.port_stats(PortNo(1)).unwrap(),
        s.dp.port_stats(PortNo(2)).unwrap(),
    );
    assert_eq!(
        (
            stats.0.rx_packets,
            stats.0.rx_bytes,
            stats.1.tx_packets,
            stats.1.tx_bytes
        ),
        (100, 6000, 100, 6000)
    );
    // Idle entries are evicted, and their counts are credited to the rule once.
    s.a.send([udp(1, 2, 3, 4)]);
    s.b.wait(1);
    s.clock.warp(9_999);
    s.dp.tick();
    assert_eq!(s.dp.flows().len(), 1);
    s.clock.warp(1);
    s.dp.tick();
    assert!(s.dp.flows().is_empty());
    s.dp.flush_stats();
    s.dp.tick();
    assert_eq!(count(&tally), (101, 6060));
    assert_eq!(s.dp.totals().flows, 0);
    let t = s.dp.totals();
    assert_eq!(t.packets, 101);
    assert_eq!(t.l0_hits + t.l1_hits + t.l2_hits + t.misses, 101);
}

#[test]
fn a_rule_change_is_seen_by_the_next_packet_and_counts_stay_with_their_rule() {
    let (old, new) = (ToyRule::output(2), ToyRule::output(1));
    let (old_tally, new_tally) = (Arc::clone(&old.tally), Arc::clone(&new.tally));
    let s = setup(vec![old]);
    s.a.send((0..10).map(|_| udp(1, 2, 3, 4)));
    s.b.wait(10);
    s.toy.set(vec![new]);
    s.a.send((0..5).map(|_| udp(1, 2, 3, 4)));
    s.a.wait(5);
    s.dp.flush_stats();
    s.dp.tick();
    assert_eq!((count(&old_tally).0, count(&new_tally).0), (10, 5));
    // The revalidator finds a change without traffic, too.
    let before = s.dp.flows()[0].packets;
    let dropped = ToyRule::any(vec![]);
    let tally = Arc::clone(&dropped.tally);
    s.toy.set(vec![dropped]);
    s.dp.tick();
    // The flow is the same, and its further packets count for another rule.
    s.a.send((0..3).map(|_| udp(1, 2, 3, 4)));
    s.a.drained();
    s.dp.flush_stats();
    let flow = &s.dp.flows()[0];
    assert_eq!(
        (flow.actions.len(), flow.packets, s.dp.totals().misses),
        (0, before + 3, 1)
    );
    assert_eq!((count(&new_tally).0, count(&tally).0), (5, 3));
}

#[test]
fn same_result_keeps_the_entry_and_moves_the_credits() {
    let s = setup(vec![ToyRule::output(2)]);
    s.a.send((0..10).map(|_| udp(1, 2, 3, 4)));
    s.b.wait(10);
    for sweep in [false, true] {
        let again = ToyRule::output(2);
        let tally = Arc::clone(&again.tally);
        s.toy.set(vec![again]);
        if sweep {
            s.dp.tick();
        }
        let before = s.dp.flows()[0].packets;
        s.a.send((0..7).map(|_| udp(1, 2, 3, 4)));
        s.b.wait(7);
        s.dp.flush_stats();
        assert_eq!(s.dp.flows()[0].packets, before + 7);
        assert_eq!(count(&tally).0, 7);
    }
}

/// The bits outside the mask must be part of the key for a translation: without its type, for example, a tag
/// is no tag.
#[test]
fn a_pass_checks_the_packet_as_it_was() {
    let s = setup(vec![ToyRule::output(2)]);
    for tags in [&[0x81, 0, 0xe0, 10][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]] {
        let mut frame = udp(1, 2, 3, 4);
        frame.splice(12..12, tags.iter().copied());
        let mut key = FlowKey::default();
        extract(&frame, &Hint::ethernet(frame.len()), &mut key);
        s.a.send([frame]);
        s.b.wait(1);
        s.toy.set(vec![ToyRule::output(2)]);
        s.dp.tick();
        let checked = s.toy.translated_again.lock().take();
        key.in_port = 1;
        assert_eq!(checked, Some(key));
        s.dp.purge();
    }
}

/// `dpctl/dump-flows` without its header, of the flows that `filter` takes.
fn dump_flows_text(s: &Setup, filter: &dyn Fn(&FlowDump) -> bool, names: PortNames<'_>) -> String {
    let mut merged = Merged::default();
    s.dp.each_flow(|flow| {
        if filter(&flow) {
            merged.add(flow);
        }
    });
    let flows = merged.flows().iter();
    flows.map(|f| f.text(s.clock.now_ms(), names) + "\n").collect()
}

#[test]
fn texts_look_like_open_vswitch() {
    let s = setup(vec![ToyRule::output(2)]);
    s.a.send((0..3).map(|_| udp(1, 2, 3, 4)));
    s.b.wait(3);
    s.dp.flush_stats();
    s.clock.warp(1234);
    let text = dump_flows_text(&s, &|_| true, None);
    assert!(
        text.ends_with(", packets:2, bytes:120, used:1.234s, actions:2\n"),
        "{text}"
    );
    let named = dump_flows_text(&s, &|_| true, Some(&|no| (no.0 == 2).then(|| "b".into())));
    assert!(named.ends_with("actions:b\n"), "{named}");
    assert_eq!(dump_flows_text(&s, &|f| f.packets > 5, None), "");
    let stats = s.dp.pmd_stats_show(None);
    assert!(
        stats.contains("\n  packets received: ") && stats.contains("\n  megaflow hits: "),
        "{stats}"
    );
    let rxq = s.dp.pmd_rxq_show(None, 0);
    assert!(
        rxq.contains("  port: a                 queue-id:  0 (enabled)   pmd usage: "),
        "{rxq}"
    );
    let perf =
        s.dp.pmd_perf_show(None, "00:00:00.000", crate::PerfWanted::default());
    assert!(
        perf.contains("  - PHWOL hits:                  0  (  0.0 %)\n"),
        "{perf}"
    );
    assert!(
        s.dp.upcall_show()
            .starts_with("  flows         : (current 1) (avg "),
        "{}",
        s.dp.upcall_show()
    );
    s.dp.pmd_stats_clear(None);
    assert!(s.dp.pmd_stats_show(None).contains("packets received: 0\n"));
}

#[test]
fn iterations_are_counted_once_however_many_queues_have_packets() {
    let s = setup(vec![ToyRule::output(9)]);
    for _ in 0..20 {
        s.a.send((0..200).map(|_| udp(1, 2, 3, 4)));
        s.b.send((0..200).map(|_| udp(2, 1, 3, 4)));
        s.a.drained();
        s.b.drained();
    }
    s.dp.flush_stats();
    let perf = s.dp.pmd_perf_show(
        None,
        "",
        crate::PerfWanted {
            brief: true,
            ..Default::default()
        },
    );
    let sum = |name: &str| -> u64 {
        let rest = perf.lines().filter_map(|l| l.trim_start().strip_prefix(name));
        rest.map(|l| l.split_whitespace().next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    let (all, busy, idle) = (
        sum("Iterations:"),
        sum("- busy iterations:"),
        sum("- idle iterations:"),
    );
    assert_eq!(sum("Rx packets:"), 8000, "{perf}");
    assert!(busy > 0 && busy + idle == all, "{perf}");
    // A turn takes at most a burst of each of the two queues.
    assert!((8000 / 64..=8000).contains(&busy), "{perf}");
}

#[test]
fn drops_have_names() {
    let s = setup(vec![ToyRule::output(2)]);
    let read = |kind: DropKind| {
        s.dp.flush_stats();
        s.dp.coverage()
            .into_iter()
            .find(|(n, _)| *n == kind.name())
            .unwrap()
            .1
    };
    s.a.send([vec![0; 13], vec![], udp(1, 2, 3, 4)]);
    s.b.wait(1);
    assert_eq!(read(DropKind::RxInvalid), 1);
    let stats = s.dp.port_stats(PortNo(1)).unwrap();
    assert_eq!((stats.rx_errors, stats.rx_dropped), (1, 1));
    assert_eq!(stats.rx_reasons, [("runt", 1)]);
    let mut long = udp(1, 2, 3, 4);
    long.resize(1000 + 19, 0);
    s.a.send([long.clone()]);
    assert_eq!(read(DropKind::TxTooLong), 1);
    s.dp.set_port_mtu(PortNo(2), 1500).unwrap();
    s.a.send([long]);
    s.b.wait(1);
    s.toy.set(vec![ToyRule::output(77)]);
    s.a.send([udp(1, 2, 3, 4)]);
    assert_eq!(read(DropKind::InvalidPort), 1);
    s.toy.set(vec![]);
    s.a.send([udp(1, 2, 3, 4)]);
    assert_eq!(read(DropKind::Policy), 1);
}

/// Fifty copies per recirculation, six levels deep, would need 15 thousand million lookups.
#[test]
fn a_packet_is_looked_up_so_often_and_no_more() {
    let copies = vec![Action::Clone(vec![Action::Recirc(1)]); 50];
    let s = setup(vec![ToyRule::any(copies)]);
    s.a.send([udp(1, 2, 3, 4)]);
    s.a.drained();
    s.toy.set(vec![ToyRule::output(2)]);
    s.a.send([udp(1, 2, 3, 4)]);
    s.b.wait(1);
    s.dp.flush_stats();
    let coverage = s.dp.coverage();
    let dropped = coverage.iter().find(|(n, _)| *n == DropKind::Recirc.name());
    assert!(dropped.is_some_and(|(_, n)| *n > 50), "{coverage:?}");
}

struct TextCookie(&'static str);
impl UpcallData for TextCookie {
    fn text(&self) -> String {
        self.0.into()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn packets_to_and_from_the_control_plane() {
    let cookie = || UpcallCookie(Arc::new(TextCookie("controller(reason=1)")));
    let up = |kind, max_len| {
        Action::Userspace(Arc::new(Upcall {
            kind,
            max_len,
            cookie: cookie(),
        }))
    };
    let s = setup(vec![ToyRule::any(vec![
        up(UpcallKind::Controller, 20),
        Action::Output(PortNo(2)),
    ])]);
    let frame = udp(1, 2, 3, 4);
    s.a.send([frame.clone()]);
    s.b.wait(1);
    let mut got = Vec::new();
    assert_eq!(s.dp.take_upcalls(10, &mut |u| got.push(u)), 1);
    assert_eq!(
        (&got[0].bytes[..], got[0].total_len, got[0].in_port),
        (&frame[..20], 60, PortNo(1))
    );
    assert_eq!(
        (got[0].key.nw_src, got[0].key.in_port, got[0].key.tp_dst),
        (1, 1, 4)
    );
    assert!(got[0].packet.is_none());
    assert_eq!(got[0].upcall.cookie.0.text(), "controller(reason=1)");
    assert!(
        s.dp.flows()[0]
            .text(1000, None)
            .ends_with("actions:userspace(pid=0,controller(reason=1)),2")
    );
    // A slow-path packet is handed over whole, and is injected again.
    s.toy.set(vec![ToyRule::any(vec![up(
        UpcallKind::SlowPath("test"),
        u16::MAX,
    )])]);
    s.dp.inject_translate(Packet::from_bytes(&frame), PortNo(1))
        .unwrap();
    let mut again = None;
    assert_eq!(s.dp.take_control(10, &mut |u| again = u.packet), 1);
    s.dp.inject(
        again.unwrap(),
        &FlowKey::default(),
        PortNo(1),
        vec![Action::Output(PortNo(2))],
    )
    .unwrap();
    assert_eq!(s.b.take(), std::slice::from_ref(&frame));
    // An injected packet may have a context.
    let mut known = Match::any();
    (known.key.recirc_id, known.mask.0.recirc_id) = (9, u32::MAX);
    (known.key.ct_mark, known.mask.0.ct_mark) = (7, u32::MAX);
    (known.key.pkt_mark, known.mask.0.pkt_mark) = (3, u32::MAX);
    s.toy
        .set(vec![ToyRule::new(known, vec![Action::Output(PortNo(2))])]);
    for (ct_mark, sent) in [(7, 1), (8, 0)] {
        let key = FlowKey {
            ct_mark,
            pkt_mark: 3,
            regs: [5; 16],
            ..FlowKey::default()
        };
        s.dp.inject(
            Packet::from_bytes(&frame),
            &key,
            PortNo(1),
            vec![Action::Recirc(9)],
        )
        .unwrap();
        assert_eq!(s.b.take().len(), sent);
    }
    s.toy.set(vec![ToyRule::any(vec![up(
        UpcallKind::SlowPath("test"),
        u16::MAX,
    )])]);
    assert_eq!(
        s.dp.port_stats(PortNo(1)).unwrap().rx_packets,
        2,
        "an injected packet was received, a packet-out was not"
    );
    // Packets beyond the ring's size are dropped by name, and forwarding continues.
    for _ in 0..600 {
        s.dp.inject_translate(Packet::from_bytes(&frame), PortNo(1))
            .unwrap();
    }
    assert_eq!(s.dp.totals().lost, 600 - 512);
    assert_eq!(s.dp.take_control(usize::MAX, &mut |_| {}), 512);
    assert_eq!(s.dp.take_control(usize::MAX, &mut |_| {}), 0);
}

/// Entries are freed all the time, also while statistics are read: their counts are in the result.
#[test]
fn a_flush_has_what_goes_meanwhile_had_counted() {
    let mut never = Match::any();
    (never.key.tp_dst, never.mask.0.tp_dst) = (u16::MAX, u16::MAX);
    let (each, rest) = (ToyRule::new(never, Vec::new()), ToyRule::output(2));
    let tally = Arc::clone(&rest.tally);
    let config = Config {
        revalidate_interval_ms: 1,
        max_idle_ms: 0,
        ..Config::default()
    };
    let dp = Datapath::new(config, Toy::new(vec![each, rest]) as _).unwrap();
    let (a, b) = (FakePort::new("a"), FakePort::new("b"));
    dp.add_port(Arc::clone(&a) as _, Some(PortNo(1))).unwrap();
    dp.add_port(Arc::clone(&b) as _, Some(PortNo(2))).unwrap();
    let mut sent = 0;
    for _ in 0..60 {
        for _ in 0..3 {
            a.send((0..1000).map(|i| udp(1, 2, 3, i)));
            sent += 1000;
        }
        a.drained();
        dp.flush_stats();
        assert_eq!(count(&tally).0 + refused(&dp), sent);
    }
}

/// Packets that trigger a bug of the pipeline are dropped by name; packets before and behind them are
/// forwarded.
#[test]
fn a_panic_of_the_pipeline_costs_its_packet() {
    let mut never = Match::any();
    (never.key.tp_dst, never.mask.0.tp_dst) = (u16::MAX, u16::MAX);
    let s = setup(vec![ToyRule::new(never, Vec::new()), ToyRule::output(2)]);
    let all = [1, FATAL, 2, FATAL, FATAL, 3].map(|dst| udp(1, 2, FATAL, dst));
    s.a.send(all);
    assert_eq!(s.b.wait(3).len(), 3);
    s.a.send([udp(1, 2, 3, 4)]);
    assert_eq!(s.b.wait(1).len(), 1);
    let coverage = s.dp.coverage();
    let faults = coverage.iter().find(|(name, _)| *name == DropKind::Fault.name());
    assert_eq!(faults.map(|(_, n)| *n), Some(3));
}
