//! Packets that are recirculated in bursts take the same path as one by one, and keep their order.

use super::flows::setup;
use super::{FakePort, Toy, ToyRule, udp};
use crate::{Config, Datapath};
use heddle_datapath_api::{Action, Engine, HashAlg, Masked, PortNo};
use heddle_flow::extract::{Hint, extract};
use heddle_flow::key::Match;
use heddle_flow::{FlowKey, hash};
use proptest::prelude::*;
use proptest::test_runner::{Config as TestConfig, TestRunner};
use std::sync::Arc;

/// Ids of recirculation that rules use; each leads to greater ones.
const IDS: u32 = 5;
/// Offset of a frame's number.
const NUMBER: usize = 42;

pub(super) fn under(recirc_id: u32) -> Match {
    let mut m = Match::any();
    (m.key.recirc_id, m.mask.0.recirc_id) = (recirc_id, u32::MAX);
    m
}

fn set_src(v: u8) -> Action {
    let whole = |value| Masked {
        value,
        mask: [0, 0, 0, 0, 0, 0xff],
    };
    Action::SetEth {
        src: whole([0, 0, 0, 0, 0, v]),
        dst: Masked::default(),
    }
}

/// Actions that a rule under this id may have.
fn actions(id: u32) -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec((0_u32..9, 0_u8..3), 1..4).prop_map(move |list| {
        let mut all = Vec::new();
        for (what, v) in list {
            let next = (id + 1 + u32::from(v) % 2).min(IDS);
            match what {
                0 => all.push(Action::Output(PortNo(2))),
                1 => all.push(Action::Output(PortNo(3))),
                2 => all.push(set_src(v)),
                3 => all.push(Action::SetMark(Masked {
                    value: v.into(),
                    mask: u32::MAX,
                })),
                4 => all.push(Action::Clone(vec![set_src(7), Action::Output(PortNo(3))])),
                5 if id < IDS => {
                    let (alg, basis) = (HashAlg::L4, v.into());
                    all.extend([Action::Hash { alg, basis }, Action::Recirc(next)]);
                }
                _ if id < IDS => all.push(Action::Recirc(next)),
                _ => all.push(Action::Output(PortNo(2))),
            }
        }
        all
    })
}

fn rules() -> impl Strategy<Value = Vec<ToyRule>> {
    let one = (0..=IDS).prop_flat_map(|id| (Just(id), 0_u8..6, 0_u8..3, actions(id)));
    prop::collection::vec(one, 4..16).prop_map(|list| {
        let mut all: Vec<ToyRule> = list
            .into_iter()
            .map(|(id, which, v, actions)| {
                let mut m = under(id);
                let (key, mask) = (&mut m.key, &mut m.mask.0);
                match which {
                    0 => (key.tp_dst, mask.tp_dst) = (v.into(), 0xffff),
                    1 => (key.dl_src[5], mask.dl_src[5]) = (v, 0xff),
                    2 => (key.pkt_mark, mask.pkt_mark) = (v.into(), u32::MAX),
                    3 => (key.dp_hash, mask.dp_hash) = (u32::from(v) & 1, 1),
                    4 => (key.nw_tos, mask.nw_tos) = (v << 2, 0xff),
                    _ => {}
                }
                ToyRule::new(m, actions)
            })
            .collect();
        all.push(ToyRule::output(2));
        all
    })
}

/// The plain twin: sends one packet after the other.
struct Plain<'a> {
    rules: &'a [ToyRule],
    sent: Vec<(u32, Vec<u8>)>,
}

impl Plain<'_> {
    fn look_up(&mut self, frame: &[u8], recirc_id: u32, pkt_mark: u32, dp_hash: u32) {
        let mut key = FlowKey::default();
        extract(frame, &Hint::ethernet(frame.len()), &mut key);
        (key.in_port, key.recirc_id, key.pkt_mark, key.dp_hash) = (1, recirc_id, pkt_mark, dp_hash);
        let rule = self
            .rules
            .iter()
            .find(|r| r.matches.matches(&key))
            .expect("the last one");
        let actions = rule.actions.clone();
        self.run(&actions, frame.to_vec(), (pkt_mark, None), dp_hash);
    }
    fn run(&mut self, actions: &[Action], mut frame: Vec<u8>, mut meta: (u32, Option<u32>), dp_hash: u32) {
        for a in actions {
            match a {
                Action::Output(to) => self.sent.push((to.0, frame.clone())),
                Action::SetEth { src, .. } => frame[11] = src.value[5],
                Action::SetMark(m) => meta.0 = m.value,
                Action::Hash { basis, .. } => meta.1 = Some(*basis),
                Action::Clone(inner) => self.run(inner, frame.clone(), meta, dp_hash),
                Action::Recirc(id) => {
                    let mut key = FlowKey::default();
                    extract(&frame, &Hint::ethernet(frame.len()), &mut key);
                    let hash = meta
                        .1
                        .map_or(dp_hash, |basis| hash::five_tuple(&key, basis).max(1));
                    self.look_up(&frame, *id, meta.0, hash);
                }
                _ => unreachable!("not among the actions here"),
            }
        }
    }
}

/// For each packet, the sources of its own frames at a port, in their order. Then the order in which packets
/// of each flow came there first: a burst's copies leave after its packets.
type View = (Vec<(u8, Vec<u8>)>, Vec<(u8, u8)>);

fn view<'a>(frames: impl Iterator<Item = &'a Vec<u8>>) -> View {
    let mut own: Vec<(u8, Vec<u8>)> = Vec::new();
    let mut first = Vec::new();
    for f in frames {
        // The flow, and the number in it.
        let id = (f[29] * 8 + f[37], f[NUMBER]);
        match own.iter_mut().find(|(n, _)| *n == f[NUMBER]) {
            Some((_, list)) => list.push(f[11]),
            None => {
                own.push((f[NUMBER], vec![f[11]]));
                first.push(id);
            }
        }
    }
    own.sort_unstable();
    // The order between flows is not specified.
    first.sort_by_key(|(flow, _)| *flow);
    (own, first)
}

#[test]
fn bursts_are_recirculated_as_packets_are() {
    let toy = Toy::new(vec![]);
    let config = Config {
        l1_entries: 16,
        max_masks: 3,
        revalidate_interval_ms: 1,
        ..Config::default()
    };
    let dp = Datapath::new(config, Arc::clone(&toy) as _).unwrap();
    let ports: Vec<_> = (1..=3).map(|no| FakePort::new(&format!("p{no}"))).collect();
    for (no, p) in (1..).zip(&ports) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    let frame = (0_u32..3, 0_u16..3, 0_u8..3);
    let strategy = (
        rules(),
        prop::collection::vec(prop::collection::vec(frame, 1..40), 1..5),
    );
    let mut runner = TestRunner::new(TestConfig {
        cases: 300,
        source_file: Some(file!()),
        ..TestConfig::default()
    });
    let outcome = runner.run(&strategy, |(rules, bursts)| {
        toy.set(rules.clone());
        // Frames left by an earlier case that failed.
        ports.iter().for_each(|p| drop(p.take()));
        for burst in bursts {
            let frames: Vec<_> = (0..)
                .zip(burst)
                .map(|(n, (flow, tp_dst, tos))| {
                    let mut f = udp(flow, 9, 5, tp_dst);
                    (f[15], f[NUMBER]) = (tos << 2, n);
                    f
                })
                .collect();
            let mut plain = Plain {
                rules: &rules,
                sent: Vec::new(),
            };
            frames.iter().for_each(|f| plain.look_up(f, 0, 0, 0));
            ports[0].send(frames);
            ports[0].drained();
            dp.flush_stats();
            for no in [2, 3] {
                let want = plain.sent.iter().filter(|(to, _)| *to == no).map(|(_, f)| f);
                let want = view(want);
                let got = ports[usize::try_from(no).unwrap() - 1].take();
                prop_assert_eq!(view(got.iter()), want, "port {}", no);
            }
        }
        Ok(())
    });
    outcome.unwrap();
}

/// A packet is recirculated this number of times, and no more.
#[test]
fn recirculation_ends() {
    let chain = |length: u32| -> Vec<ToyRule> {
        (0..=length)
            .map(|id| match id {
                id if id == length => ToyRule::new(under(id), vec![Action::Output(PortNo(2))]),
                id => ToyRule::new(under(id), vec![Action::Recirc(id + 1)]),
            })
            .collect()
    };
    let s = setup(chain(32));
    s.a.send([udp(1, 2, 3, 4), udp(1, 2, 3, 5)]);
    assert_eq!(s.b.wait(2).len(), 2);
    s.toy.set(chain(33));
    s.a.send([udp(1, 2, 3, 4)]);
    s.a.drained();
    s.dp.flush_stats();
    assert!(s.b.take().is_empty());
    let dropped = |s: &super::flows::Setup| {
        let all = s.dp.coverage();
        all.iter()
            .find(|(name, _)| name.contains("recirc"))
            .map(|(_, n)| *n)
    };
    assert_eq!(dropped(&s), Some(1));
    // Ten copies each time are too many, but the original packet comes to its end.
    let wide = |id: u32| {
        let mut list = vec![Action::Recirc(id + 1); 10];
        list.push(Action::Output(PortNo(2)));
        ToyRule::new(under(id), list)
    };
    s.toy.set((0..8).map(wide).chain([ToyRule::output(2)]).collect());
    s.a.send([udp(1, 2, 3, 4)]);
    s.a.drained();
    s.dp.flush_stats();
    let sent = s.b.take().len();
    assert!((1..=1200).contains(&sent), "{sent}");
    assert!(dropped(&s) > Some(1));
}

/// Each stage is an entry of its own, and a change behind a recirculation is in force at once.
#[test]
fn stages_are_entries_of_their_own() {
    let second = |to| ToyRule::new(under(1), vec![Action::Output(PortNo(to))]);
    let s = setup(vec![ToyRule::new(under(0), vec![Action::Recirc(1)]), second(2)]);
    let frames = || (0..10).map(|i| udp(1, 2, 3, i));
    s.a.send(frames());
    assert_eq!(s.b.wait(10).len(), 10);
    s.a.send(frames());
    assert_eq!(s.b.wait(10).len(), 10);
    s.dp.flush_stats();
    let flows = s.dp.flows();
    let shown: Vec<_> = flows
        .iter()
        .map(|f| (f.key.recirc_id, f.key.in_port, f.packets))
        .collect();
    assert_eq!(shown, [(0, 1, 19), (1, 1, 19)]);
    assert!(flows.iter().all(|f| f.mask.0.recirc_id == u32::MAX));
    s.toy.replace(1, ToyRule::new(under(1), vec![]));
    s.a.send(frames());
    s.a.drained();
    s.toy.replace(1, second(2));
    s.a.send(frames());
    assert_eq!(s.b.wait(10).len(), 10);
    s.dp.purge();
    assert!(s.dp.flows().is_empty());
}

/// Packets whose headers are not at the usual offsets keep their own context.
#[test]
fn odd_packets_of_one_burst_keep_what_they_carry() {
    let port = |v: u16| {
        let mut m = under(0);
        (m.key.tp_dst, m.mask.0.tp_dst) = (v, u16::MAX);
        let mark = Action::SetMark(Masked {
            value: v.into(),
            mask: u32::MAX,
        });
        let push = Action::PushMpls {
            lse: 0x100,
            ethertype: 0x8847,
        };
        ToyRule::new(m, vec![mark, push, Action::Recirc(1)])
    };
    let marked = |v: u32| {
        let mut m = under(2);
        (m.key.pkt_mark, m.mask.0.pkt_mark) = (v, u32::MAX);
        ToyRule::new(m, vec![Action::Output(PortNo(2 + v))])
    };
    let toy = Toy::new(vec![
        port(0),
        port(1),
        ToyRule::new(under(1), vec![Action::Recirc(2)]),
        marked(0),
        marked(1),
    ]);
    let dp = Datapath::new(Config::default(), Arc::clone(&toy) as _).unwrap();
    let ports: Vec<_> = (1..=3).map(|no| FakePort::new(&format!("p{no}"))).collect();
    for (no, p) in (1..).zip(&ports) {
        dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
    }
    for round in 0..3 {
        ports[0].send([udp(1, 2, 3, 1), udp(1, 2, 3, 0), udp(1, 2, 3, 1)]);
        ports[0].drained();
        dp.flush_stats();
        let sent = (ports[1].take().len(), ports[2].take().len());
        assert_eq!(sent, (1, 2), "round {round}");
    }
}

/// A whole burst that is recirculated may be copied as often as one that is not.
#[test]
fn copies_behind_a_recirculation_are_enough_for_a_burst() {
    let copies = || vec![Action::Clone(vec![set_src(7), Action::Output(PortNo(2))]); 200];
    for rules in [
        vec![ToyRule::new(under(0), copies())],
        vec![
            ToyRule::new(under(0), vec![Action::Recirc(1)]),
            ToyRule::new(under(1), copies()),
        ],
    ] {
        let s = setup(rules);
        s.a.send((0..32).map(|_| udp(1, 2, 3, 4)));
        s.a.drained();
        s.dp.flush_stats();
        assert_eq!(s.b.take().len(), 32 * 200);
    }
}
