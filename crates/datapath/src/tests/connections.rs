//! Packets behind `ct` have the same result as in a datapath that forgets its entries before each burst. That
//! one also forgets the links from connections to entries. Rules change meanwhile.

use super::recirc::under;
use super::{FakePort, Toy, ToyRule, udp};
use crate::{Config, Datapath};
use heddle_conntrack::dump::Filter;
use heddle_conntrack::{CtAction, CtNat, NatEnd, NatHow, NatRange, state};
use heddle_datapath_api::{Action, Engine, Masked, PortNo};
use heddle_wire::checksum::checksum;
use proptest::prelude::*;
use proptest::test_runner::{Config as TestConfig, TestRunner};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const PORTS: u32 = 4;
/// The first client's L4 port; the server's is 1.
const CLIENT: u16 = 10;
/// The port that address translation gives.
const GIVEN: u16 = 20;

/// Protocol of a flow.
enum Kind {
    Udp,
    Tcp,
    Udp6,
}
const KINDS: [Kind; 4] = [Kind::Udp, Kind::Tcp, Kind::Udp, Kind::Udp6];

/// The compared parts of a frame that left: its number, its source, and its headers from IP on.
type Left = (u8, u8, Vec<u8>);

fn ct(zone: u16, commit: bool, mark: Option<u32>, nat: bool) -> Action {
    // One address and port, so the choice does not depend on a random number.
    let address = [10, 0, 1, u8::try_from(zone).unwrap()].into();
    let range = NatRange {
        end: if zone.is_multiple_of(2) {
            NatEnd::Src
        } else {
            NatEnd::Dst
        },
        addresses: Some((address, address)),
        ports: Some((GIVEN, GIVEN)),
        how: NatHow::Any,
        persistent: false,
    };
    let commit = commit || mark.is_some();
    Action::Ct(Arc::new(CtAction {
        zone,
        commit,
        mark: mark.map(|m| (m, u32::MAX)),
        nat: nat.then_some(CtNat {
            new: commit.then_some(range),
        }),
        ..CtAction::default()
    }))
}

fn set_src(v: u8) -> Action {
    Action::SetEth {
        src: Masked {
            value: [0, 0, 0, 0, 0, v],
            mask: [0, 0, 0, 0, 0, 0xff],
        },
        dst: Masked::default(),
    }
}

/// Actions of a logical router before packets are tracked or sent.
fn before() -> impl Strategy<Value = Vec<Action>> {
    let some = |p, action: Action| prop::option::weighted(p, Just(action));
    // Later rules match on the TOS. (For IPv6 this action has another meaning, but the same in both
    // switches.)
    let tos = Action::SetIpv4 {
        src: Masked::default(),
        dst: Masked::default(),
        tos: Masked {
            value: 1 << 2,
            mask: 0xff,
        },
        ttl: Masked::default(),
    };
    let src = (0_u8..3).prop_map(set_src);
    (
        some(0.3, Action::CtClear),
        prop::option::weighted(0.4, src),
        some(0.15, tos),
    )
        .prop_map(|(clear, src, tos)| [clear, src, tos].into_iter().flatten().collect())
}

/// Actions of a rule under this id; ids of stages that track lead to the next one.
fn actions(id: u32) -> impl Strategy<Value = Vec<Action>> {
    // Each stage has a zone of its own. So the result does not depend on the bursts: all packets of a burst
    // are tracked in one stage before any is in the next.
    let zone = u16::try_from(id).unwrap();
    let track = (
        any::<bool>(),
        prop::option::weighted(0.2, 1_u32..3),
        prop::bool::weighted(0.4),
        before(),
    )
        .prop_map(move |(commit, mark, nat, mut list)| {
            list.extend([ct(zone, commit, mark, nat), Action::Recirc(id + 1)]);
            list
        });
    let output = || (3..=PORTS).prop_map(|no| Action::Output(PortNo(no)));
    let last = prop_oneof![
        4 => output().prop_map(|o| vec![o]),
        2 => (0_u8..3, output()).prop_map(|(v, o)| vec![set_src(v), o]),
        2 => (before(), output()).prop_map(|(mut list, o)| {
            list.push(o);
            list
        }),
        1 => Just(vec![]),
        1 => (output(), output()).prop_map(|(a, b)| vec![a, set_src(9), b]),
    ];
    let (first, later) = if id == 0 {
        (9, 1)
    } else {
        (u32::from(id < 3) * 2, 4)
    };
    prop_oneof![first.max(1) => track, later => last].prop_map(move |list| match list.last() {
        Some(Action::Recirc(n)) if *n > 3 => vec![Action::Output(PortNo(3))],
        _ => list,
    })
}

fn rule(id: u32) -> impl Strategy<Value = ToyRule> {
    (0_u8..9, 0_u8..3, actions(id)).prop_map(move |(which, v, actions)| {
        let mut m = under(id);
        let (key, mask) = (&mut m.key, &mut m.mask.0);
        let bit = [state::NEW, state::EST, state::RPL][usize::from(v)];
        match which {
            0 | 1 if id > 0 => (key.ct_state, mask.ct_state) = (u32::from(bit), u32::from(bit)),
            2 if id > 0 => (key.ct_mark, mask.ct_mark) = (v.into(), u32::MAX),
            3 if id > 0 => (key.ct_zone, mask.ct_zone) = (v.into(), u16::MAX),
            4 if id > 0 => (key.ct_tp_dst, mask.ct_tp_dst) = (v.into(), u16::MAX),
            5 | 7 => {
                (key.tp_dst, mask.tp_dst) = ([1, CLIENT, GIVEN][usize::from(v)], u16::MAX);
            }
            6 => (key.nw_tos, mask.nw_tos) = (v << 2, 0xff),
            _ => {}
        }
        ToyRule::new(m, actions)
    })
}

fn rules() -> impl Strategy<Value = Vec<ToyRule>> {
    let some = |id| prop::collection::vec(rule(id), 1..6);
    (some(0), some(1), some(2), some(3)).prop_map(|(a, b, c, d)| {
        let track = ToyRule::new(under(0), vec![ct(0, true, None, false), Action::Recirc(1)]);
        let all = [a, vec![track], b, c, d, vec![ToyRule::output(3)]];
        all.into_iter().flatten().collect()
    })
}

struct Switch {
    toy: Arc<Toy>,
    dp: Arc<Datapath>,
    ports: Vec<Arc<FakePort>>,
}

impl Switch {
    fn new() -> Self {
        let toy = Toy::new(vec![]);
        let config = Config {
            l1_entries: 16,
            revalidate_interval_ms: 1,
            ..Config::default()
        };
        let dp = Datapath::new(config, Arc::clone(&toy) as _).unwrap();
        let ports: Vec<_> = (1..=PORTS).map(|no| FakePort::new(&format!("p{no}"))).collect();
        for (no, p) in (1..).zip(&ports) {
            p.set_checked(true);
            dp.add_port(Arc::clone(p) as _, Some(PortNo(no))).unwrap();
        }
        Self { toy, dp, ports }
    }
    /// Sends frames in by a port; returns the frames that leave by each port.
    fn send(&self, port: usize, frames: &[Vec<u8>]) -> Vec<(usize, Vec<Left>)> {
        self.ports[port].send(frames.to_vec());
        self.ports[port].drained();
        self.dp.flush_stats();
        // The last byte is the number.
        let left = |f: &Vec<u8>| f.split_last().map(|(n, f)| (*n, f[11], f[14..].to_vec()));
        let seen = |p: &Arc<FakePort>| p.take().iter().filter_map(left).collect();
        self.ports.iter().map(seen).enumerate().collect()
    }
}

/// A packet of a conversation; `back`: in the direction of replies. `via`: the address that a zone gives to
/// one of both ends, which the other one then talks to.
fn frame(flow: u16, back: bool, via: Option<u8>, tos: u8, n: u8) -> Vec<u8> {
    let (client, server) = (0x0a00_0001 + u32::from(flow), 0x0a00_0100);
    let to = |end, port| via.map_or((end, port), |v| (u32::from_be_bytes([10, 0, 1, v]), GIVEN));
    let mut f = if back {
        let (to, port) = to(client, CLIENT + flow);
        udp(server, to, 1, port)
    } else {
        let (to, port) = to(server, 1);
        udp(client, to, CLIENT + flow, port)
    };
    match KINDS[usize::from(flow)] {
        Kind::Udp => {}
        Kind::Tcp => {
            f[23] = 6;
            // Both sequence numbers 7; ACK; a window.
            f[38..50].copy_from_slice(&[0, 0, 0, 7, 0, 0, 0, 7, 0x50, 0x10, 0xff, 0xff]);
        }
        Kind::Udp6 => {
            let end = |at: usize| [&[0xfd; 12], &f[at..at + 4]].concat();
            let (src, dst) = (end(26), end(30));
            let head = [0x60 | tos >> 2, tos << 6, 0, 0, 0, 26, 17, 64];
            let ip = [&head[..], &src, &dst].concat();
            f.splice(12..34, [vec![0x86, 0xdd], ip].concat());
        }
    }
    *f.last_mut().expect("a frame") = n;
    if f[14] == 0x45 {
        f[15] = tos << 2;
        f[24..26].fill(0);
        let sum = checksum(&f[14..34]);
        f[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    f
}

#[test]
fn connections_lead_where_a_fresh_lookup_leads() {
    let (kept, fresh) = (Switch::new(), Switch::new());
    let via = prop::option::weighted(0.3, 0_u8..3);
    let packet = (0_u16..4, prop::bool::weighted(0.1), via, 0_u8..2);
    let burst = (
        any::<bool>(),
        prop::collection::vec(packet, 1..20),
        prop::option::weighted(0.2, any::<prop::sample::Index>()),
    );
    let strategy = (
        rules(),
        prop::collection::vec(rule(1), 4),
        prop::collection::vec(burst, 1..12),
    );
    let mut runner = TestRunner::new(TestConfig {
        cases: 200,
        source_file: Some(file!()),
        ..TestConfig::default()
    });
    let outcome = runner.run(&strategy, |(rules, others, bursts)| {
        for s in [&kept, &fresh] {
            s.dp.conntrack().flush_all(0, &Filter::default());
            let own: Vec<_> = rules
                .iter()
                .map(|r| ToyRule::new(r.matches, r.actions.clone()))
                .collect();
            s.toy.set(own);
            s.ports.iter().for_each(|p| drop(p.take()));
        }
        let mut others = others.into_iter().cycle();
        for (back, packets, change) in bursts {
            if let Some(at) = change {
                let at = at.index(rules.len());
                let other = others.next().unwrap();
                for s in [&kept, &fresh] {
                    s.toy
                        .replace(at, ToyRule::new(other.matches, other.actions.clone()));
                }
            }
            let frames: Vec<_> = (0..)
                .zip(packets)
                .map(|(n, (flow, turned, via, tos))| frame(flow, back != turned, via, tos, n))
                .collect();
            let port = usize::from(back);
            let got = kept.send(port, &frames);
            fresh.dp.purge();
            let want = fresh.send(port, &frames);
            // Copies leave after their burst's packets.
            let sorted = |mut all: Vec<(usize, Vec<Left>)>| {
                all.iter_mut().for_each(|(_, list)| list.sort_unstable());
                all
            };
            prop_assert_eq!(sorted(got), sorted(want));
        }
        let counts = |s: &Switch| -> Vec<u64> {
            s.dp.flush_stats();
            s.toy
                .rules()
                .iter()
                .map(|r| r.tally.packets.load(Relaxed))
                .collect()
        };
        fresh.dp.purge();
        prop_assert_eq!(counts(&kept), counts(&fresh));
        Ok(())
    });
    outcome.unwrap();
    let t = kept.dp.totals();
    assert!(t.l1_hits > 100, "links were followed: {t:?}");
}
