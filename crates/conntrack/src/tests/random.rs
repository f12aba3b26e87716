//! Random packets in both directions, over time, beside the [`Twin`].

use super::frames::{Frame, Inner};
use super::twin::{self, Twin};
use super::*;
use crate::protocol::tcp::{PSH, URG};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// A packet, and the actions that track it one after the other.
    Packet(Frame, Vec<CtAction>),
    Seconds(u64),
    Sweep,
    Flush(u16),
    Limit(Option<u32>),
    Max(u32),
    Check(bool),
}

pub(super) fn address(v6: bool, n: u8) -> u128 {
    u128::from(0x0a00_0000 | u32::from(n)) | if v6 { 0xfd00 << 112 } else { 0 }
}

fn segment() -> impl Strategy<Value = Inner> {
    let flags = prop_oneof![
        4 => Just(SYN), 4 => Just(SYN | ACK), 8 => Just(ACK), 3 => Just(FIN | ACK), 1 => Just(RST), 1 => Just(RST | ACK),
        1 => Just(ACK | PSH | URG), 1 => 0_u16..64,
    ];
    let number = |base: u32| {
        prop_oneof![
            8 => (0_u32..4).prop_map(move |n| base + n),
            2 => (98_u32..104).prop_map(move |n| base + n),
            1 => Just(base + 66_000), 1 => Just(base.wrapping_sub(66_500)), 1 => Just(base + 70_000), 1 => Just(0), 1 => any::<u32>(),
        ]
    };
    let base = prop_oneof![Just(1000), Just(5000), Just(u32::MAX - 100_000)];
    let window = prop_oneof![Just(0_u16), Just(1), Just(1000), Just(65535)];
    let scale = prop::option::of(prop_oneof![Just(0_u8), Just(7), Just(14), Just(15)]);
    let len = prop_oneof![4 => Just(0_usize), 2 => Just(1), 2 => Just(100)];
    (
        flags,
        base.clone().prop_flat_map(number),
        base.prop_flat_map(number),
        window,
        scale,
        len,
    )
        .prop_map(|(flags, seq, ack, window, scale, len)| Inner::Tcp {
            flags,
            seq,
            ack,
            window,
            scale,
            len,
        })
}

fn plain() -> impl Strategy<Value = Frame> {
    let inner = prop_oneof![8 => segment(), 4 => Just(Inner::Udp), 3 => Just(Inner::Echo), 1 => Just(Inner::Sctp), 1 => Just(Inner::Other)];
    // Few addresses, so that packets often meet a connection. Actions translate addresses to 200 and 201.
    let who = prop_oneof![4 => Just(1_u8), 1 => Just(2)];
    let whom = prop_oneof![4 => Just(101_u8), 1 => Just(102), 2 => Just(200), 1 => Just(201)];
    let port = || prop_oneof![4 => Just(2000_u16), 1 => Just(2001), 1 => Just(3000), 1 => Just(3001)];
    (
        inner,
        prop::bool::weighted(0.2),
        who,
        whom,
        (port(), port()),
        any::<bool>(),
        prop::bool::weighted(0.02),
    )
        .prop_map(|(inner, v6, who, whom, ports, back, bad)| {
            let (mut src, mut dst, mut ports) = (address(v6, who), address(v6, whom), ports);
            if matches!(inner, Inner::Echo) {
                ports.1 = 1;
            }
            if back {
                (src, dst) = (dst, src);
                if !matches!(inner, Inner::Echo) {
                    ports = (ports.1, ports.0);
                }
            }
            let bad = bad && !matches!(inner, Inner::Sctp | Inner::Other);
            Frame {
                v6,
                src,
                dst,
                ports,
                echo_reply: back,
                inner,
                bad,
            }
        })
}

/// Plain packets, and ICMP errors about them from their destination or from a router on the way.
fn frame() -> impl Strategy<Value = Frame> {
    (plain(), 0_u8..12).prop_map(|(about, kind)| {
        let about = Frame { bad: false, ..about };
        if kind > 1 {
            return about;
        }
        Frame {
            v6: about.v6,
            src: if kind == 0 {
                about.dst
            } else {
                address(about.v6, 50)
            },
            dst: about.src,
            ports: (0, 0),
            echo_reply: false,
            inner: Inner::Error(Box::new(about)),
            bad: false,
        }
    })
}

fn action() -> impl Strategy<Value = CtAction> {
    let range = (any::<bool>(), 0_u8..3, 0_u8..3, 0_u8..3, any::<bool>()).prop_map(
        |(src, addrs, ports, how, persistent)| NatRange {
            end: if src { NatEnd::Src } else { NatEnd::Dst },
            addresses: match addrs {
                0 => None,
                1 => Some(("10.0.0.200".parse().unwrap(), "10.0.0.200".parse().unwrap())),
                _ => Some(("10.0.0.200".parse().unwrap(), "10.0.0.201".parse().unwrap())),
            },
            ports: match ports {
                0 => None,
                1 => Some((3000, 3000)),
                _ => Some((3000, 3001)),
            },
            how: [NatHow::Any, NatHow::Hash, NatHow::Random][usize::from(how)],
            persistent,
        },
    );
    let mark = prop::option::weighted(0.1, (0_u32..8, 0_u32..8));
    let label = prop::option::weighted(0.1, (0_u128..8, 0_u128..8).prop_map(|(v, m)| (v << 90, m << 90)));
    let nat = prop::option::weighted(0.5, prop::option::of(range).prop_map(|new| CtNat { new }));
    (
        any::<bool>(),
        prop::bool::weighted(0.05),
        0_u16..2,
        mark,
        label,
        nat,
    )
        .prop_map(|(commit, force, zone, mark, label, nat)| CtAction {
            commit: commit || force || nat.is_some_and(|n: CtNat| n.new.is_some()),
            force,
            zone,
            mark,
            label,
            nat,
            ..CtAction::default()
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => (frame(), prop::collection::vec(action(), 1..3)).prop_map(|(f, a)| Step::Packet(f, a)),
        4 => prop_oneof![Just(1_u64), Just(29), Just(30), Just(60), Just(1000)].prop_map(Step::Seconds),
        2 => Just(Step::Sweep),
        1 => (0_u16..2).prop_map(Step::Flush),
        1 => prop::option::of(0_u32..4).prop_map(Step::Limit),
        1 => (1_u32..12).prop_map(Step::Max),
        1 => prop::bool::weighted(0.7).prop_map(Step::Check),
    ]
}

fn all_like_the_twin(steps: Vec<Step>) {
    let ct = tracker();
    let mut twin = Twin::default();
    (twin.max, twin.now_s) = (50_000, 1000);
    for step in steps {
        match step {
            Step::Packet(f, actions) => _ = packet(&ct, &mut twin, f, &actions),
            Step::Seconds(s) => twin.now_s += s,
            Step::Sweep => {
                while !ct.sweep(twin.now_s * 1000, 1000) {}
                twin.sweep();
            }
            Step::Flush(zone) => {
                let filter = dump::Filter {
                    zone: Some(zone),
                    ..dump::Filter::default()
                };
                ct.flush_all(twin.now_s * 1000, &filter);
                twin.flush(zone);
            }
            Step::Limit(limit) => {
                ct.set_zone_limit(1, limit);
                twin.set_limit(limit.map(|l| l as usize));
            }
            Step::Max(n) => {
                ct.set_max_conns(n);
                twin.max = n as usize;
            }
            Step::Check(on) => {
                ct.set_tcp_seq_chk(on);
                twin.unchecked = !on;
            }
        }
        assert_eq!(ct.n_conns() as usize, twin.count());
    }
}

/// Tracks and translates a packet by the fast path. `None`: the fast path refuses it.
fn briefly(
    ct: &Conntrack,
    (f, bytes): (&Frame, &mut [u8]),
    before: &CtState,
    action: &CtAction,
    now_ms: u64,
) -> Option<(CtState, bool, Events)> {
    let mut s = FastPacket::default();
    let mut head = [0; SHORT];
    head.iter_mut().zip(&*bytes).for_each(|(h, b)| *h = *b);
    let shape = Shape {
        there: bytes.len(),
        is_gso: false,
        good: f.is_right(bytes),
    };
    let usual =
        *before == CtState::default() && action.only_looks() && bytes.len() >= FastPacket::read_bytes(&head);
    if !usual || !s.read(&head, shape) {
        return None;
    }
    let guess = ct.guess(ct.hash_short(&s, action.zone));
    let (zone, nat) = (action.zone, action.nat.is_some());
    let (brief, ends, events) = ct.track_short(now_ms, &ReadGuard::begin(), &s, guess, zone, nat)?;
    if let Some(ends) = ends {
        ends.apply(bytes, &s, false);
    }
    Some((ct.known(&brief, action), ends.is_some(), events))
}

/// Lets the tracker and the twin track a packet, and compares both. Returns the state and the events after
/// the last action.
pub(super) fn packet(
    ct: &Conntrack,
    twin: &mut Twin,
    mut f: Frame,
    actions: &[CtAction],
) -> (u8, Vec<Event>) {
    let mut counted = Vec::new();
    let (mut known, mut plain) = (CtState::default(), twin::TwinState::default());
    for action in actions {
        let mut bytes = f.bytes();
        let mut verdict = Verdict::default();
        let verify = || f.is_right(&f.bytes());
        let short = briefly(ct, (&f, &mut bytes), &known, action, twin.now_s * 1000);
        let mut translated = false;
        match f.packet(&bytes, &verify).read() {
            _ if let Some((now, done, events)) = short => {
                (known, translated, verdict.events) = (now, done, events);
            }
            Ok(s) => {
                let reading = ReadGuard::begin();
                let hash = ct.hash(&s.tuple, action.zone);
                let packet = CtPacket {
                    now_ms: twin.now_s * 1000,
                    subject: &s,
                    hash,
                    action,
                    known: &mut known,
                    verdict: &mut verdict,
                };
                ct.track(&reading, ct.guess(hash), packet);
            }
            Err(why) => verdict.events = ct.invalid(action.zone, why, &mut known),
        }
        let at = At {
            l3: 0,
            l4: f.ip_len(),
            ipv6: f.v6,
            proto: f.proto(),
            partial: false,
            l4_len: bytes.len() - f.ip_len(),
        };
        if let Some(r) = verdict.rewrite {
            r.apply(&mut bytes, at);
            translated = true;
        }
        let what = format!("{f:x?} {action:?}");
        let got = translated.then_some(&bytes[..]);
        twin.track(&mut f, &mut plain, action, got);
        assert_eq!(f.bytes(), bytes, "{what}");
        let seen = (known.state, known.zone, known.mark, known.label, known.orig);
        let wanted = (plain.state, plain.zone, plain.mark, plain.label, plain.orig);
        assert_eq!(seen, wanted, "{what}");
        let mut events: Vec<_> = verdict.events.iter().collect();
        let mut expected = twin.events.clone();
        events.sort_by_key(|e| *e as u8);
        expected.sort_by_key(|e| *e as u8);
        assert_eq!(events, expected, "{what}");
        counted = events;
    }
    (known.state, counted)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_tracker_does_what_its_plain_twin_does(steps in prop::collection::vec(step(), 1..80)) {
        all_like_the_twin(steps);
    }
}
