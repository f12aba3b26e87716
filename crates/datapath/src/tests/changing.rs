//! Rules that change while packets are in flight: no packet is forwarded by a rule that had gone before the
//! packet was sent.
//!
//! Each past state of the rules is kept, and each rule writes its number into its packets. A packet was sent
//! after some state had been announced (`floor`). It was seen again before some later state was begun
//! (`ceiling`). A linear search in one of the states in between must give the rule that the packet names.
//! Stale entries, of any cache, name rules of an earlier state.

use super::fake::refused;
use super::{FakePort, Toy, ToyRule, udp};
use crate::{Config, Datapath};
use heddle_datapath_api::{Action, Masked, PortNo};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::key::Match;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const OUT: u32 = 10;
/// Offsets of a packet's number and its source port, from the IP header on.
const NUMBER: std::ops::Range<usize> = 32..36;
const SPORT: std::ops::Range<usize> = 20..22;
/// Two tags: such packets need the full key, and have another kind of entry.
const TAGS: [u8; 8] = [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6];

type Rules = Arc<Vec<ToyRule>>;

/// A rule that writes its number into the source port; its match depends on `shape`.
fn rule(number: u16, shape: u64) -> ToyRule {
    let mut m = Match::any();
    let value = |n: u64| u32::try_from(shape >> n & 3).unwrap();
    match shape % 7 {
        0 => (m.key.nw_dst, m.mask.0.nw_dst) = (value(8), u32::MAX),
        1 => (m.key.nw_src, m.mask.0.nw_src) = (value(8), 3),
        2 => (m.key.tp_dst, m.mask.0.tp_dst) = (u16::try_from(value(8)).unwrap(), 0xffff),
        3 => {
            (m.key.nw_src, m.mask.0.nw_src) = (value(8), u32::MAX);
            (m.key.nw_dst, m.mask.0.nw_dst) = (value(10), u32::MAX);
        }
        _ => {
            (m.key.nw_src, m.mask.0.nw_src) = (value(8), u32::MAX);
            (m.key.nw_dst, m.mask.0.nw_dst) = (value(10), u32::MAX);
            (m.key.tp_dst, m.mask.0.tp_dst) = (u16::try_from(value(12)).unwrap(), 0xffff);
        }
    }
    m.normalize();
    named(m, number)
}

fn named(m: Match, number: u16) -> ToyRule {
    let name = Action::SetL4 {
        proto: 17,
        src: Masked {
            value: number,
            mask: u16::MAX,
        },
        dst: Masked::default(),
    };
    ToyRule::new(m, vec![name, Action::Output(PortNo(OUT))])
}

fn number_of(r: &ToyRule) -> u16 {
    match r.actions.first() {
        Some(Action::SetL4 { src, .. }) => src.value,
        _ => panic!("each rule names itself"),
    }
}

/// The rule that matches a packet.
fn meets(rules: &[ToyRule], key: &FlowKey) -> u16 {
    let found = rules.iter().find(|r| r.matches.matches(key));
    number_of(found.expect("the last one is about all packets"))
}

/// All states of the rules, and how many are begun and announced.
struct History {
    states: Mutex<Vec<Rules>>,
    begun: AtomicUsize,
    announced: AtomicUsize,
}

impl History {
    fn change(&self, toy: &Toy, next: Vec<ToyRule>, one: Option<usize>) {
        let state = {
            let mut states = self.states.lock();
            states.push(Arc::new(next.clone()));
            states.len() - 1
        };
        self.begun.store(state, SeqCst);
        match one {
            Some(at) => toy.replace(at, next[at].clone()),
            None => toy.set(next),
        }
        self.announced.store(state, SeqCst);
    }
}

/// A packet from its IP header on.
fn ip(frame: &mut [u8]) -> &mut [u8] {
    let at = if frame[12..14] == TAGS[..2] { 22 } else { 14 };
    &mut frame[at..]
}

/// xorshift64: only the threads' timing differs from run to run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Changes the rules until `stop` is set.
fn changes(toy: &Toy, history: &History, stop: &AtomicBool) {
    let mut seed = 0x2545_f491_4f6c_dd1d;
    let mut number = 100_u16;
    while !stop.load(SeqCst) {
        let mut next = toy.rules().to_vec();
        number = if number == u16::MAX { 100 } else { number + 1 };
        let r = random(&mut seed);
        let last = next.len() - 1;
        match r % 64 {
            // All rules, in another order.
            0 => {
                next.swap(0, last / 2);
                next[1] = rule(number, r >> 8);
                history.change(toy, next, None);
            }
            1 => {
                next[last] = named(Match::any(), number);
                history.change(toy, next, Some(last));
            }
            _ => {
                let at = usize::try_from(r >> 32).unwrap() % last;
                next[at] = rule(number, r >> 8);
                history.change(toy, next, Some(at));
            }
        }
        // Sometimes a long pause, so that entries become valid again; sometimes none.
        match random(&mut seed) % 16 {
            0 => std::thread::sleep(Duration::from_millis(2)),
            1..8 => std::thread::sleep(Duration::from_micros(100)),
            _ => {}
        }
    }
}

fn no_packet_by_a_rule_that_had_gone(toy: &Arc<Toy>, config: Config, seconds: f32) {
    let first: Vec<ToyRule> = (0..12)
        .map(|n| rule(n + 1, u64::from(n) * 0x0135_7913))
        .chain([named(Match::any(), 50)])
        .collect();
    let history = Arc::new(History {
        states: Mutex::new(vec![Arc::new(first.clone())]),
        begun: 0.into(),
        announced: 0.into(),
    });
    toy.set(first);
    let dp = Datapath::new(config, Arc::clone(toy) as _).unwrap();
    let ins = [FakePort::new("in0"), FakePort::new("in1")];
    let out = FakePort::new("out");
    for (no, p) in (1..).zip(&ins) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    dp.add_port(Arc::clone(&out) as _, Some(PortNo(OUT))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let changer = {
        let (toy, history, stop) = (Arc::clone(toy), Arc::clone(&history), Arc::clone(&stop));
        std::thread::spawn(move || changes(&toy, &history, &stop))
    };
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut floors: Vec<(usize, FlowKey)> = Vec::new();
    let (mut seen, mut told_apart) = (0, 0);
    let end = Instant::now() + Duration::from_secs_f32(seconds);
    let patience = end + Duration::from_secs(60);
    // The run is sufficient when the test saw states that it can distinguish, and every cache level was used.
    // On a busy machine that may take longer.
    let worth = |told_apart: usize| {
        let t = dp.totals();
        told_apart > 10 && t.l0_hits > 0 && t.l1_hits > 0 && t.l2_hits > 0 && t.misses > 0
    };
    let mut enough = false;
    // A queue that falls behind on a busy machine drops new flows, and counts them.
    let refused = || usize::try_from(refused(&dp)).unwrap();
    while !enough || seen + refused() < floors.len() {
        assert!(
            Instant::now() < patience,
            "{seen} of {} came back: {:?}",
            floors.len(),
            dp.coverage()
        );
        enough = enough
            || Instant::now() > end && (worth(told_apart) || Instant::now() > end + Duration::from_secs(30));
        if !enough && floors.len() - seen - refused() < 400 {
            for (no, p) in (1..).zip(&ins) {
                let r = random(&mut seed);
                let burst: Vec<Vec<u8>> = (0..r % 40)
                    .map(|i| {
                        let r = random(&mut seed);
                        let part = |n: u32| u32::try_from(r >> n & 3).unwrap();
                        // Runs of one flow, few flows, and sometimes one of many flows.
                        let sport = u16::try_from(if r.is_multiple_of(5) {
                            r >> 20 & 0xfff
                        } else {
                            i / 8
                        })
                        .unwrap();
                        let mut f = udp(part(8), part(10), sport, u16::try_from(part(12)).unwrap());
                        if part(40) == 0 {
                            f.splice(12..12, TAGS);
                        }
                        ip(&mut f)[NUMBER]
                            .copy_from_slice(&u32::try_from(floors.len()).unwrap().to_be_bytes());
                        let mut key = FlowKey::default();
                        extract(&f, &Hint::ethernet(f.len()), &mut key);
                        key.in_port = no;
                        // The port's packets are sent below, so a state announced by now was announced
                        // before.
                        floors.push((history.announced.load(SeqCst), key));
                        f
                    })
                    .collect();
                p.send(burst);
            }
            if seed.is_multiple_of(512) {
                dp.purge();
            }
        }
        let mut got = out.take();
        let ceiling = history.begun.load(SeqCst);
        for f in &mut got {
            let ip = ip(f);
            let n = u32::from_be_bytes(ip[NUMBER].try_into().unwrap());
            let by = u16::from_be_bytes(ip[SPORT].try_into().unwrap());
            let (floor, key) = &floors[n as usize];
            let states = history.states.lock()[*floor..=ceiling].to_vec();
            let may: Vec<u16> = states.iter().map(|s| meets(s, key)).collect();
            assert!(
                may.contains(&by),
                "packet {n} by rule {by}, of {may:?} since state {floor}"
            );
            told_apart += usize::from(*floor > 0 && meets(&history.states.lock()[floor - 1], key) != may[0]);
        }
        seen += got.len();
        std::thread::yield_now();
    }
    stop.store(true, SeqCst);
    changer.join().unwrap();
    assert!(worth(told_apart), "{told_apart} of {seen}, {:?}", dp.totals());
}

fn config() -> Config {
    Config {
        cpus: Some(vec![0, 1]),
        l1_entries: 16,
        max_l1_entries: 64,
        revalidate_interval_ms: 1,
        ..Config::default()
    }
}

#[test]
fn of_tables_that_log_changes() {
    no_packet_by_a_rule_that_had_gone(&Toy::logged(vec![]), config(), 3.0);
}

#[test]
fn of_tables_that_do_not_log_changes() {
    no_packet_by_a_rule_that_had_gone(&Toy::new(vec![]), config(), 1.5);
}

/// Few masks, and room for few entries: most results are stored under other masks than their own, or not at
/// all.
#[test]
fn with_little_room() {
    let config = Config {
        max_masks: 2,
        flow_limit: 24,
        max_idle_ms: 3,
        ..config()
    };
    no_packet_by_a_rule_that_had_gone(&Toy::logged(vec![]), config, 1.5);
}
