//! Packets that wait for an event are recirculated when it occurs, in their order, or are dropped by name.

use super::flows::{Setup, setup};
use super::recirc::under;
use super::{ToyRule, udp};
use heddle_datapath_api::{
    Action, DropKind, Engine, Generations, Masked, PortNo, Translate, Wait, format_actions,
};
use heddle_flow::key::Match;
use std::time::{Duration, Instant};

const OUT: Action = Action::Output(PortNo(2));

/// A slot that no rule has.
fn slot() -> u16 {
    Generations::learned_slot_of(77)
}

/// Waits for the generation after `changes`.
fn wait(changes: u64, recirc: u32) -> Action {
    Action::Wait(Wait {
        slot: slot(),
        generation: Generations::default().read(slot()).generation + changes,
        recirc,
    })
}

fn set_src() -> Action {
    Action::SetEth {
        src: Masked {
            value: [9; 6],
            mask: [0xff; 6],
        },
        dst: Masked::default(),
    }
}

fn dropped(s: &Setup) -> u64 {
    s.dp.flush_stats();
    let all = s.dp.coverage();
    let name = DropKind::TunnelNeighbour.name();
    all.iter().find(|c| c.0 == name).map_or(0, |c| c.1)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn frames(n: u16) -> Vec<Vec<u8>> {
    (0..n).map(|i| udp(1, 2, i / 4, i)).collect()
}

fn changed(s: &Setup) {
    s.toy.generations().bump(slot());
}

#[test]
fn packets_continue_as_they_were_and_in_order() {
    // Mark and rewritten headers are kept; meanwhile the packet itself is sent elsewhere.
    let mark = Action::SetMark(Masked {
        value: 7,
        mask: u32::MAX,
    });
    let mut marked = under(5);
    (marked.key.pkt_mark, marked.mask.0.pkt_mark) = (7, u32::MAX);
    let s = setup(vec![
        ToyRule::new(marked, vec![OUT]),
        ToyRule::new(under(5), vec![]),
        ToyRule::new(Match::any(), vec![set_src(), mark, wait(0, 5), set_src(), OUT]),
    ]);
    let want: Vec<_> = frames(200)
        .into_iter()
        .map(|mut f| {
            f[6..12].fill(9);
            f
        })
        .collect();
    s.a.send(frames(200));
    assert_eq!(s.b.wait(200), want, "those that do not wait");
    s.a.drained();
    assert!(s.b.take().is_empty());
    changed(&s);
    assert_eq!(s.b.wait(200), want);
    assert_eq!(dropped(&s), 0);
    assert_eq!(waited(&s), 200);
}

fn waited(s: &Setup) -> u64 {
    let all = s.dp.snapshot().workers;
    let counters = all.iter().flat_map(|w| &w.counters);
    counters.filter(|(n, _)| *n == "waited").map(|(_, n)| n).sum()
}

#[test]
fn too_many_and_too_late_are_dropped_by_name() {
    let s = setup(vec![
        ToyRule::new(under(5), vec![OUT]),
        ToyRule::new(Match::any(), vec![wait(0, 5)]),
    ]);
    s.a.send(frames(300));
    s.a.drained();
    until("the overflow", || dropped(&s) == 300 - 256);
    s.clock.warp(2999);
    s.a.send(frames(1));
    s.a.drained();
    until("one more", || dropped(&s) == 300 - 256 + 1);
    s.clock.warp(1);
    until("the end", || dropped(&s) == 301);
    changed(&s);
    s.a.send(frames(1));
    assert_eq!(
        s.b.wait(1).len(),
        1,
        "what comes after the change does not wait long"
    );
}

/// The first event was not sufficient: packets that wait again keep the rest of their time.
#[test]
fn who_waits_again_has_the_time_that_is_left() {
    let wait_twice = |rules: Vec<ToyRule>| {
        let s = setup(rules);
        s.a.send(frames(40));
        s.a.drained();
        s.clock.warp(2000);
        changed(&s);
        until("the second wait", || waited(&s) == 80);
        s
    };
    let s = wait_twice(vec![
        ToyRule::new(under(6), vec![OUT]),
        ToyRule::new(under(5), vec![wait(1, 6)]),
        ToyRule::new(Match::any(), vec![wait(0, 5)]),
    ]);
    s.clock.warp(999);
    changed(&s);
    assert_eq!(s.b.wait(40), frames(40));
    let s = wait_twice(vec![
        ToyRule::new(under(5), vec![wait(1, 5)]),
        ToyRule::new(Match::any(), vec![wait(0, 5)]),
    ]);
    s.clock.warp(1000);
    until("the end", || dropped(&s) == 40);
}

#[test]
fn the_text_is_that_of_open_vswitch() {
    assert_eq!(format_actions(&[wait(0, 5)], None), "drop");
    assert_eq!(format_actions(&[OUT, wait(0, 5), OUT], None), "2,2");
}
