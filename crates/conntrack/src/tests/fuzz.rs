//! Scripts of packets, right ones and broken ones, in both directions and over time. Right ones are compared
//! with the plain twin. No packet causes a panic, and no two connections have one tuple.
//!
//! Each script of the corpus (`corpus/segments`) has an outcome that no script before it has: a state and the
//! events of a kind of packet. `cargo test` replays the corpus with a fixed number of mutants
//! ([`heddle_fuzz`]). `make fuzz FUZZ=segments` searches for a limited time and, with `KEEP=1`, renews the
//! corpus.

use super::frames::{Frame, Inner};
use super::random::{address, packet};
use super::twin::Twin;
use super::*;
use heddle_fuzz::{Bytes, Corpus, Dice, Fuzzer};
use std::collections::BTreeSet;

type Seen = BTreeSet<String>;

fn pick<T: Clone>(bytes: &mut Bytes<'_>, of: &[T]) -> T {
    of[usize::from(bytes.u8()) % of.len()].clone()
}

fn number(bytes: &mut Bytes<'_>) -> u32 {
    let base = pick(bytes, &[1000, 5000, u32::MAX - 100_000]);
    base.wrapping_add(pick(
        bytes,
        &[0, 1, 2, 100, 101, 66_000, 70_000, 0_u32.wrapping_sub(66_500)],
    ))
}

fn inner(bytes: &mut Bytes<'_>) -> Inner {
    match bytes.u8() % 8 {
        0..4 => Inner::Tcp {
            flags: pick(bytes, &[SYN, SYN | ACK, ACK, FIN | ACK, RST, RST | ACK, 0x3f, 0]),
            seq: number(bytes),
            ack: number(bytes),
            window: pick(bytes, &[0, 1, 1000, 0xffff]),
            scale: pick(bytes, &[None, Some(0), Some(7), Some(15)]),
            len: pick(bytes, &[0, 0, 1, 100]),
        },
        4 | 5 => Inner::Udp,
        6 => Inner::Echo,
        _ => pick(bytes, &[Inner::Sctp, Inner::Other]),
    }
}

fn frame(bytes: &mut Bytes<'_>) -> Frame {
    let inner = inner(bytes);
    let flags = bytes.u8();
    let (v6, back, error) = (flags & 7 == 0, flags & 8 != 0, flags >> 4);
    let mut ends = [pick(bytes, &[1, 2]), pick(bytes, &[101, 102, 200, 201])];
    let mut ports = [(); 2].map(|()| pick(bytes, &[2000, 2001, 3000, 3001]));
    if matches!(inner, Inner::Echo) {
        ports[1] = 1;
    } else if back {
        ports.reverse();
    }
    if back {
        ends.reverse();
    }
    let [src, dst] = ends.map(|n| address(v6, n));
    let about = Frame {
        v6,
        src,
        dst,
        ports: (ports[0], ports[1]),
        echo_reply: back,
        inner,
        bad: false,
    };
    if error > 1 {
        return about;
    }
    Frame {
        src: if error == 0 { dst } else { address(v6, 50) },
        dst: src,
        ports: (0, 0),
        echo_reply: false,
        inner: Inner::Error(Box::new(about.clone())),
        ..about
    }
}

fn action(bytes: &mut Bytes<'_>) -> CtAction {
    let (what, how) = (bytes.u8(), bytes.u8());
    let address = |n: u8| IpAddr::from([10, 0, 0, n]);
    let range = NatRange {
        end: if how & 1 == 0 { NatEnd::Src } else { NatEnd::Dst },
        addresses: [
            None,
            Some((address(200), address(200))),
            Some((address(200), address(201))),
        ][usize::from(how >> 1) % 3],
        ports: [None, Some((3000, 3000)), Some((3000, 3001))][usize::from(how >> 3) % 3],
        how: [NatHow::Any, NatHow::Hash, NatHow::Random][usize::from(how >> 5) % 3],
        persistent: how & 0x80 != 0,
    };
    CtAction {
        commit: what & 1 != 0,
        force: what & 0xf0 == 0xf0,
        zone: (what >> 1 & 1).into(),
        mark: (what & 0x30 == 0x10).then_some((how.into(), 7)),
        label: (what & 0x30 == 0x20).then_some((u128::from(how) << 90, 7 << 90)),
        nat: match what >> 2 & 3 {
            0 | 1 => None,
            2 => Some(CtNat { new: None }),
            _ => Some(CtNat { new: Some(range) }),
        },
        ..CtAction::default()
    }
}

/// Tracks a packet with some changed bytes, which may be cut off.
fn broken(ct: &Conntrack, now_ms: u64, bytes: &mut Bytes<'_>, seen: &mut Seen) {
    let (f, action) = (frame(bytes), action(bytes));
    let mut head = f.bytes();
    for _ in 0..bytes.u8() % 4 {
        let at = usize::from(bytes.u8()) % head.len();
        head[at] = bytes.u8();
    }
    let len = head.len();
    head.truncate(if bytes.u8() & 1 == 0 {
        len
    } else {
        bytes.u8().into()
    });
    let yes = || true;
    let mut p = f.packet(&head, &yes);
    (p.l4, p.end) = (p.l4 + usize::from(bytes.u8() & 4), usize::from(bytes.u8()));
    let mut known = CtState::default();
    let mut verdict = Verdict::default();
    match p.read() {
        Ok(s) => {
            let hash = ct.hash(&s.tuple, action.zone);
            let packet = CtPacket {
                now_ms,
                subject: &s,
                hash,
                action: &action,
                known: &mut known,
                verdict: &mut verdict,
            };
            ct.track(&ReadGuard::begin(), ct.guess(hash), packet);
            let mut h = [0; SHORT];
            h.iter_mut().zip(&head).for_each(|(h, b)| *h = *b);
            let said = |i: usize| usize::from(u16::from_be_bytes([h[i], h[i + 1]]));
            let (version, l4, end) = if f.v6 {
                (6, 40, 40 + said(4))
            } else {
                (4, 20, said(2))
            };
            let shape = Shape {
                there: head.len(),
                is_gso: false,
                good: true,
            };
            let mut short = FastPacket::default();
            if h[0] >> 4 == version
                && (p.l4, p.end) == (l4, end)
                && head.len() >= FastPacket::read_bytes(&h)
                && short.read(&h, shape)
            {
                assert_eq!(s, short.subject());
            }
        }
        Err(why) => verdict.events = ct.invalid(action.zone, why, &mut known),
    }
    let at = At {
        l3: 0,
        l4: p.l4,
        ipv6: f.v6,
        proto: f.proto(),
        partial: bytes.u8() & 1 == 0,
        l4_len: head.len(),
    };
    if let Some(r) = verdict.rewrite {
        r.apply(&mut head, at);
    }
    seen.insert(format!(
        "broken {} {:x} {:?}",
        f.proto(),
        known.state,
        verdict.events
    ));
}

fn play(script: &[u8]) -> Seen {
    let mut bytes = Bytes::new(script, Segments::MAX_SCRIPT_LEN);
    let ct = tracker();
    let mut twin = Twin::default();
    (twin.max, twin.now_s) = (50_000, 1000);
    let (mut seen, mut like_twin) = (Seen::new(), true);
    while !bytes.is_empty() {
        match bytes.u8() {
            0..200 if like_twin => {
                let (f, proto) = (frame(&mut bytes), bytes.u8() % 2);
                let actions: Vec<_> = (0..=proto).map(|_| action(&mut bytes)).collect();
                let of = f.proto();
                let (state, events) = packet(&ct, &mut twin, f, &actions);
                seen.insert(format!("{of} {state:x} {events:?}"));
            }
            0..200 => broken(&ct, twin.now_s * 1000, &mut bytes, &mut seen),
            200..220 => twin.now_s += pick(&mut bytes, &[1, 29, 30, 60, 1000]),
            220..230 => {
                while !ct.sweep(twin.now_s * 1000, 1000) {}
                twin.sweep();
            }
            230..235 => {
                let limit = pick(&mut bytes, &[None, Some(0), Some(1), Some(3)]);
                ct.set_zone_limit(1, limit);
                twin.set_limit(limit.map(|l| l as usize));
            }
            235..240 => {
                let on = bytes.u8() & 1 == 0;
                ct.set_tcp_seq_chk(on);
                twin.unchecked = !on;
            }
            // The twin does not model broken packets, so the comparison ends here.
            _ => {
                like_twin = false;
                broken(&ct, twin.now_s * 1000, &mut bytes, &mut seen);
            }
        }
    }
    let mut tuples = BTreeSet::new();
    ct.dump(twin.now_s * 1000, 0, u32::MAX, |c| {
        let mut add = |t: Tuple| {
            let key = (c.zone, t.proto, t.ipv6, t.src, t.dst);
            assert!(tuples.insert(key), "two connections have {t:?}");
        };
        add(c.orig);
        if c.reply != c.orig {
            add(c.reply);
        }
    });
    seen
}

struct Segments;

impl Fuzzer for Segments {
    type Outcome = String;
    type OutcomeClass = String;
    const NAME: &'static str = "segments";
    const MAX_SCRIPT_LEN: usize = 600;
    fn play(&self, script: &[u8]) -> (Seen, Seen) {
        let seen = play(script);
        (seen.clone(), seen)
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        Dice::noise()
    }
}

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), Segments::NAME)
}

/// The corpus, and mutants of it.
#[test]
fn scripts_of_segments_break_nothing() {
    let scripts = corpus().scripts().unwrap();
    let seen: Seen = scripts.iter().flat_map(|s| play(s)).collect();
    assert!(seen.len() > 50, "{} outcomes", seen.len());
    let mut dice = Dice::new(3);
    for _ in 0..500 {
        play(&dice.mutant(&scripts, Segments::MAX_SCRIPT_LEN));
    }
}

/// `make fuzz FUZZ=segments`.
#[test]
#[ignore = "as long as FUZZ_SECONDS says"]
fn explore() {
    heddle_fuzz::explore(&Segments, &corpus()).unwrap();
}
