mod frames;
mod fuzz;
mod offloaded;
mod random;
mod scan;
mod transfer;
mod twin;

use super::state::{DNAT, EST, INV, NEW, REL, RPL, SNAT, TRK};
use super::*;
use crate::protocol::tcp::{ACK, FIN, RST, SYN};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

fn tracker() -> Conntrack {
    Conntrack::new(Config {
        capacity: 1 << 16,
        max_conns: 50_000,
        seed: 5,
    })
    .unwrap()
}

fn tuple(proto: u8, src: (u32, u16), dst: (u32, u16)) -> Tuple {
    let end = |(addr, port): (u32, u16)| Endpoint {
        addr: addr.into(),
        l4: port.into(),
    };
    Tuple {
        src: end(src),
        dst: end(dst),
        proto,
        ipv6: false,
    }
}

const A: u32 = 0x0a00_0001;
const B: u32 = 0x0a00_0002;

fn udp(src: (u32, u16), dst: (u32, u16)) -> Subject {
    Subject {
        tuple: tuple(17, src, dst),
        related: false,
        tcp: None,
    }
}

fn tcp(src: (u32, u16), dst: (u32, u16), flags: u16, seq: u32, ack: u32, len: u32) -> Subject {
    Subject {
        tuple: tuple(6, src, dst),
        related: false,
        tcp: Some(Segment {
            flags,
            seq,
            ack,
            window: 1000,
            len,
            scale: None,
        }),
    }
}

fn commit(zone: u16) -> CtAction {
    CtAction {
        commit: true,
        zone,
        ..CtAction::default()
    }
}

fn snat(min: &str, max: &str, ports: Option<(u16, u16)>) -> CtAction {
    let addr = |a: &str| a.parse::<IpAddr>().unwrap();
    CtAction {
        nat: Some(CtNat {
            new: Some(NatRange {
                end: NatEnd::Src,
                addresses: Some((addr(min), addr(max))),
                ports,
                how: NatHow::Any,
                persistent: false,
            }),
        }),
        ..commit(0)
    }
}

/// Result of `ct` for a packet, and its verdict.
struct Tracked {
    known: CtState,
    verdict: Verdict,
}

impl std::ops::Deref for Tracked {
    type Target = CtState;
    fn deref(&self) -> &CtState {
        &self.known
    }
}

fn run_after(ct: &Conntrack, now: u64, s: &Subject, mut known: CtState, action: &CtAction) -> Tracked {
    let reading = ReadGuard::begin();
    let hash = ct.hash(&s.tuple, action.zone);
    let mut verdict = Verdict::default();
    let packet = CtPacket {
        now_ms: now,
        subject: s,
        hash,
        action,
        known: &mut known,
        verdict: &mut verdict,
    };
    ct.track(&reading, ct.guess(hash), packet);
    Tracked { known, verdict }
}

fn run(ct: &Conntrack, now: u64, s: &Subject, action: &CtAction) -> Tracked {
    run_after(ct, now, s, CtState::default(), action)
}

#[test]
fn udp_is_new_until_a_reply_and_expires() {
    let ct = tracker();
    let (there, back) = (udp((A, 1), (B, 2)), udp((B, 2), (A, 1)));
    let look = CtAction::default();
    assert_eq!(run(&ct, 1000, &there, &look).state, NEW | TRK);
    assert_eq!(run(&ct, 1000, &there, &look).state, NEW | TRK, "not kept");
    let v = run(&ct, 1000, &there, &commit(0));
    assert_eq!((v.state, v.orig), (NEW | TRK, Some(there.tuple)));
    assert_eq!(run(&ct, 1000, &there, &look).state, NEW | TRK);
    assert_eq!(run(&ct, 1000, &back, &commit(1)).state, NEW | TRK, "another zone");
    let v = run(&ct, 1000, &back, &look);
    assert_eq!((v.state, v.orig), (EST | RPL | TRK, Some(there.tuple)));
    assert_eq!(run(&ct, 1000, &there, &look).state, EST | TRK);
    assert_eq!(run(&ct, 30_900, &there, &look).state, EST | TRK);
    assert_eq!(run(&ct, 60_899, &there, &look).state, EST | TRK);
    assert_eq!(run(&ct, 90_900, &there, &look).state, NEW | TRK, "expired");
    assert_eq!(ct.n_conns(), 2);
    while !ct.sweep(90_900, 1) {}
    assert_eq!(ct.n_conns(), 0);
    let v = run(&ct, 91_000, &there, &commit(0));
    assert_eq!((v.state, ct.n_conns()), (NEW | TRK, 1));
}

/// A connection whose timeout policy was removed has the default timeouts, also after another policy gets the
/// slot.
#[test]
fn a_policy_that_is_gone_is_the_default_for_good() {
    let ct = tracker();
    let (there, back) = (udp((A, 1), (B, 2)), udp((B, 2), (A, 1)));
    let under = |name: &str| CtAction {
        timeout: Some(name.into()),
        ..commit(0)
    };
    let settings = |s| [("udp_first", s), ("udp_multiple", s)];
    ct.set_timeout_policy("first", &settings(100)).unwrap();
    run(&ct, 0, &there, &under("first"));
    assert_eq!(run(&ct, 90_000, &back, &commit(0)).state, EST | RPL | TRK);
    // Each slot gets another policy.
    for n in 0..MAX_POLICIES {
        assert!(ct.remove_timeout_policy(if n == 0 { "first" } else { "next" }));
        ct.set_timeout_policy("next", &settings(2)).unwrap();
    }
    run(&ct, 90_000, &udp((A, 3), (B, 2)), &under("next"));
    assert_eq!(run(&ct, 91_000, &there, &commit(0)).state, EST | TRK);
    assert_eq!(
        run(&ct, 120_900, &there, &CtAction::default()).state,
        EST | TRK,
        "30 s"
    );
    assert_eq!(
        run(&ct, 93_000, &udp((A, 3), (B, 2)), &CtAction::default()).state,
        NEW | TRK,
        "2 s"
    );
    assert_eq!(run(&ct, 150_900, &there, &CtAction::default()).state, NEW | TRK);
}

#[test]
fn tcp_opens_transfers_closes_and_opens_again() {
    let ct = tracker();
    let (a, b) = ((A, 1000), (B, 80));
    let step = |s: &Subject, action: &CtAction| run(&ct, 1000, s, action).state;
    let look = CtAction::default();
    assert_eq!(step(&tcp(b, a, SYN | ACK, 500, 101, 0), &look), INV | TRK);
    assert_eq!(step(&tcp(a, b, SYN, 100, 0, 0), &commit(0)), NEW | TRK);
    assert_eq!(step(&tcp(a, b, SYN, 100, 0, 0), &look), NEW | TRK, "repeated");
    assert_eq!(step(&tcp(b, a, SYN | ACK, 500, 101, 0), &look), EST | RPL | TRK);
    assert_eq!(step(&tcp(a, b, ACK, 101, 501, 0), &look), EST | TRK);
    assert_eq!(step(&tcp(a, b, ACK, 101, 501, 900), &look), EST | TRK);
    assert_eq!(
        step(&tcp(a, b, ACK, 9_001_001, 501, 900), &look),
        INV | TRK,
        "outside"
    );
    let mut shown = Vec::new();
    ct.dump(1000, 0, 100, |c| shown.push(format::conn(&c, false, true)));
    assert_eq!(
        shown,
        ["tcp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=1000,dport=80),\
          reply=(src=10.0.0.2,dst=10.0.0.1,sport=80,dport=1000),timeout=86400,protoinfo=(state=ESTABLISHED)"]
    );
    assert_eq!(step(&tcp(a, b, FIN | ACK, 1001, 501, 0), &look), EST | TRK);
    assert_eq!(step(&tcp(b, a, FIN | ACK, 501, 1002, 0), &look), EST | RPL | TRK);
    assert_eq!(step(&tcp(a, b, ACK, 1002, 502, 0), &look), EST | TRK);
    assert_eq!(step(&tcp(a, b, SYN, 70_000, 0, 0), &commit(0)), NEW | TRK);
    assert_eq!(step(&tcp(b, a, SYN | ACK, 1, 70_001, 0), &look), EST | RPL | TRK);
    assert_eq!(step(&tcp(a, b, RST, 70_001, 0, 0), &look), EST | TRK);
    while !ct.sweep(1000, 100) {}
    assert_eq!(ct.n_conns(), 1);
}

#[test]
fn sources_are_translated_and_back() {
    let ct = tracker();
    let action = snat("1.1.1.1", "1.1.1.1", Some((100, 101)));
    let there = udp((A, 1), (B, 2));
    let v = run(&ct, 1000, &there, &action);
    assert_eq!(v.state, NEW | TRK | SNAT);
    let ends = v.verdict.rewrite.unwrap().outer;
    assert_eq!(ends.src, Some(0x0101_0101));
    let port = ends.ports.unwrap().0;
    assert!((100..=101).contains(&port));
    let back = udp((B, 2), (0x0101_0101, port));
    let nat = CtAction {
        nat: Some(CtNat { new: None }),
        ..CtAction::default()
    };
    let v = run(&ct, 1000, &back, &nat);
    assert_eq!(v.state, EST | RPL | TRK | DNAT);
    let ends = v.verdict.rewrite.unwrap().outer;
    assert_eq!((ends.dst, ends.ports), (Some(A.into()), Some((2, 1))));
    // A translated packet is tracked again in the same zone.
    let v = run(&ct, 1000, &there, &nat);
    let translated = udp((0x0101_0101, port), (B, 2));
    let v = run_after(&ct, 1000, &translated, v.known, &CtAction::default());
    assert_eq!((v.state, v.orig), (EST | TRK | SNAT, Some(there.tuple)));
    // The second client gets the other port, and the third client none.
    let v = run(&ct, 1000, &udp((A, 7), (B, 2)), &action);
    assert_ne!(v.verdict.rewrite.unwrap().outer.ports.unwrap().0, port);
    let v = run(&ct, 1000, &udp((A, 8), (B, 2)), &action);
    assert!(v.verdict.events.has(Event::NatExhausted) && v.verdict.rewrite.is_none() && v.state == NEW | TRK);
    assert!(v.verdict.untranslated, "it must not leave as it came");
    assert_eq!(ct.n_conns(), 2);
}

/// Clients that ping with the same identifier get one identifier each, and each gets its own replies.
#[test]
fn identifiers_of_echo_requests_are_translated_and_back() {
    let ct = tracker();
    let action = snat("10.0.0.201", "10.0.0.201", None);
    let echo = |src: u32, dst: u32, id, kind| Subject {
        tuple: tuple(1, (src, 0), (dst, 0)).with_icmp(id, kind, 0).unwrap(),
        ..Subject::default()
    };
    let nat = CtAction {
        nat: Some(CtNat { new: None }),
        ..CtAction::default()
    };
    let mut ids = std::collections::BTreeSet::new();
    for client in [A, A + 2, A + 3] {
        let v = run(&ct, 1000, &echo(client, B, 500, 8), &action);
        let ends = v.verdict.rewrite.expect("it is translated").outer;
        assert_eq!((ends.src, v.verdict.untranslated), (Some(0x0a00_00c9), false));
        let id = ends.id.unwrap();
        assert!(ids.insert(id), "{id} is another client's");
        let back = run(&ct, 1000, &echo(B, 0x0a00_00c9, id, 0), &nat);
        let ends = back.verdict.rewrite.unwrap().outer;
        assert_eq!((ends.dst, ends.id), (Some(client.into()), Some(500)));
        // An error about the request finds the client, too.
        let error = Subject {
            related: true,
            ..echo(B, 0x0a00_00c9, id, 0)
        };
        let inner = run(&ct, 1000, &error, &nat)
            .verdict
            .rewrite
            .unwrap()
            .inner
            .unwrap();
        assert_eq!((inner.src, inner.id), (Some(client.into()), Some(500)));
    }
    assert!(ids.contains(&500));
}

/// If a connection with translation is refused for any reason, its packet is not forwarded untranslated.
#[test]
fn what_was_to_be_translated_is_never_passed_on_as_it_came() {
    let ct = tracker();
    let action = snat("1.1.1.1", "1.1.1.1", None);
    ct.set_max_conns(1);
    assert!(!run(&ct, 1, &udp((A, 1), (B, 1)), &action).verdict.untranslated);
    let v = run(&ct, 1, &udp((A, 2), (B, 1)), &action);
    assert!(v.verdict.events.has(Event::Full) && v.verdict.untranslated);
    // A connection without translation is refused and its packet continues.
    let v = run(&ct, 1, &udp((A, 3), (B, 1)), &commit(2));
    assert!(v.verdict.events.has(Event::Full) && !v.verdict.untranslated);
    // The pipeline decides about an invalid packet.
    let v = run(&ct, 1, &tcp((A, 4), (B, 1), SYN | FIN, 1, 0, 0), &action);
    assert!(v.state == INV | TRK && !v.verdict.untranslated);
    // A protocol without ports has its address alone.
    ct.set_max_conns(100);
    let gre = |src| Subject {
        tuple: tuple(47, (src, 0), (B, 0)),
        ..Subject::default()
    };
    assert!(!run(&ct, 1, &gre(A), &action).verdict.untranslated);
    assert!(run(&ct, 1, &gre(A + 1), &action).verdict.untranslated);
}

#[test]
fn errors_are_related_and_marks_are_kept() {
    let ct = tracker();
    let action = CtAction {
        mark: Some((5, 7)),
        label: Some((1 << 100, 1 << 100)),
        ..commit(3)
    };
    let v = run(&ct, 1000, &udp((A, 1), (B, 2)), &action);
    assert_eq!((v.mark, v.label, v.zone), (5, 1 << 100, 3));
    let error = Subject {
        related: true,
        ..udp((B, 2), (A, 1))
    };
    let look = CtAction {
        zone: 3,
        ..CtAction::default()
    };
    let v = run(&ct, 1000, &error, &look);
    assert_eq!((v.state, v.mark), (REL | RPL | TRK, 5));
    assert_eq!(run(&ct, 1000, &error, &CtAction::default()).state, INV | TRK);
    let filter = |mark| dump::Filter {
        mark: Some(mark),
        ..dump::Filter::default()
    };
    assert_eq!(ct.flush_all(1000, &filter((4, 5))), 0);
    assert_eq!(ct.flush_all(1000, &filter((5, 5))), 1);
    assert_eq!(run(&ct, 1000, &error, &look).state, INV | TRK);
}

#[test]
fn limits_refuse_new_ones_only() {
    let ct = tracker();
    ct.set_zone_limit(1, Some(1));
    ct.set_max_conns(2);
    assert!(
        run(&ct, 1, &udp((A, 1), (B, 1)), &commit(1))
            .verdict
            .events
            .is_empty()
    );
    let v = run(&ct, 1, &udp((A, 2), (B, 1)), &commit(1));
    assert!(v.verdict.events.has(Event::ZoneLimit) && v.state == NEW | TRK);
    assert!(
        run(&ct, 1, &udp((A, 2), (B, 1)), &commit(2))
            .verdict
            .events
            .is_empty()
    );
    assert!(
        run(&ct, 1, &udp((A, 3), (B, 1)), &commit(2))
            .verdict
            .events
            .has(Event::Full)
    );
    assert_eq!(
        run(&ct, 1, &udp((B, 1), (A, 1)), &commit(1)).state,
        EST | RPL | TRK
    );
    assert_eq!((ct.n_conns(), ct.zone_limit(1).count), (2, 1));
}

/// SCTP has no states of its own: an association is new until a reply comes. Ports tell associations apart.
#[test]
fn sctp_is_as_other_protocols_with_ports() {
    let ct = tracker();
    let sctp = |src, dst| Subject {
        tuple: tuple(132, src, dst),
        related: false,
        tcp: None,
    };
    run(&ct, 1000, &sctp((A, 5), (B, 6)), &commit(0));
    assert_eq!(run(&ct, 1000, &sctp((A, 5), (B, 6)), &commit(0)).state, NEW | TRK);
    assert_eq!(
        run(&ct, 1000, &sctp((B, 6), (A, 5)), &commit(0)).state,
        EST | RPL | TRK
    );
    assert_eq!(
        run(&ct, 1000, &sctp((B, 7), (A, 5)), &CtAction::default()).state,
        NEW | TRK
    );
    let mut shown = String::new();
    ct.dump(1000, 0, 10, |c| shown += &format::conn(&c, true, false));
    assert!(
        shown.starts_with("sctp,orig=(src=10.0.0.1,dst=10.0.0.2,sport=5,dport=6),reply=("),
        "{shown}"
    );
    assert!(!shown.contains("protoinfo"), "{shown}");
    assert_eq!(
        run(&ct, 40_000, &sctp((A, 5), (B, 6)), &CtAction::default()).state,
        NEW | TRK
    );
}

/// Sixteen threads begin, reply to and end the same connections. No two threads get the same port, and in the
/// end no connection is left.
#[test]
fn threads_share_ports_and_connections() {
    let ct = tracker();
    let action = snat("1.1.1.1", "1.1.1.1", Some((1, 2000)));
    let given = Mutex::new(std::collections::BTreeSet::new());
    std::thread::scope(|s| {
        for t in 0..16u16 {
            let (ct, action, given) = (&ct, &action, &given);
            s.spawn(move || {
                for n in 0..100 {
                    let v = run(ct, 1000, &udp((A + u32::from(t), n + 1), (B, 53)), action);
                    let Some(r) = v.verdict.rewrite else {
                        assert!(v.verdict.events.has(Event::Busy), "{:?}", v.verdict);
                        continue;
                    };
                    let port = r.outer.ports.unwrap().0;
                    assert!(given.lock().unwrap().insert(port), "{port} twice");
                    // All threads begin this connection.
                    let both = udp((A, 9), (B + u32::from(n), 9));
                    run(ct, 1000, &both, &commit(7));
                }
            });
        }
    });
    let mut shared = 0;
    ct.dump(1000, 0, u32::MAX, |c| shared += u32::from(c.zone == 7));
    assert_eq!(shared, 100);
    while !ct.sweep(1_000_000, 1000) {}
    assert_eq!(ct.n_conns(), 0);
}

/// Sixteen threads begin and end connections of their own, while records are reused. Each thread finds its
/// own connections and no others.
#[test]
fn a_reused_record_is_of_its_new_connection_only() {
    const THREADS: u32 = 16;
    let ct = Conntrack::new(Config {
        capacity: 256,
        max_conns: 200,
        seed: 9,
    })
    .unwrap();
    let (kept, left) = (AtomicU32::new(0), AtomicU32::new(THREADS));
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (ct, kept, left) = (&ct, &kept, &left);
            s.spawn(move || {
                let mut n = 0;
                // A refused connection is tried again, because records become free later.
                for _ in 0..1_000_000 {
                    if n == 100 {
                        break;
                    }
                    let subject = udp((A + t, 1), (B, 2));
                    let mine = CtAction {
                        mark: Some((t << 16 | n, u32::MAX)),
                        ..commit(5)
                    };
                    let look = CtAction {
                        zone: 5,
                        ..CtAction::default()
                    };
                    let v = run(ct, 1000, &subject, &mine);
                    if v.verdict.events.is_empty() {
                        kept.fetch_add(1, Relaxed);
                        assert_eq!(v.mark, t << 16 | n);
                        assert_eq!(run(ct, 1000, &subject, &look).mark, t << 16 | n);
                        assert!(ct.flush_tuple(1000, &subject.tuple, 5));
                        n += 1;
                    } else {
                        std::thread::yield_now();
                    }
                    let v = run(ct, 1000, &subject, &look);
                    assert_eq!((v.state, v.mark), (NEW | TRK, 0));
                }
                left.fetch_sub(1, Relaxed);
            });
        }
        while left.load(Relaxed) > 0 {
            ct.sweep(1000, 64);
        }
    });
    // A number is free only when no thread can read its record. So some connections find no room at first.
    assert_eq!(kept.into_inner(), THREADS * 100);
    while !ct.sweep(1000, 1000) {}
    assert_eq!(ct.n_conns(), 0);
}

/// Sweeps remove connections within a second of their time. That time may become earlier or later than at
/// first, and a connection may be ended.
#[test]
fn sweeps_are_in_time() {
    let ct = tracker();
    let (a, b) = ((A, 1000), (B, 80));
    let look = CtAction::default();
    let swept = |now| {
        while !ct.sweep(now, 7) {}
        ct.n_conns()
    };
    // An established TCP connection lives for a day, and for fifteen minutes after a FIN.
    run(&ct, 0, &tcp(a, b, SYN, 100, 0, 0), &commit(0));
    run(&ct, 0, &tcp(b, a, SYN | ACK, 500, 101, 0), &look);
    run(&ct, 0, &tcp(a, b, ACK, 101, 501, 0), &look);
    assert_eq!(swept(31_000), 1);
    assert_eq!(swept(80_000_000), 1);
    run(&ct, 80_000_000, &tcp(a, b, FIN | ACK, 101, 501, 0), &look);
    assert_eq!((swept(80_899_000), swept(80_901_000)), (1, 0));
    // UDP lives for 60 seconds, and for 30 after packets in both directions.
    run(&ct, 0, &udp(a, b), &commit(0));
    run(&ct, 0, &udp(b, a), &look);
    assert_eq!((swept(29_999), swept(31_000)), (1, 0));
    run(&ct, 0, &udp(a, b), &commit(0));
    run(&ct, 50_000, &udp(a, b), &look);
    assert_eq!((swept(61_000), swept(109_999), swept(111_000)), (1, 1, 0));
    // One of many is ended.
    for n in 0..1000 {
        run(&ct, 0, &udp((A, n + 1), b), &commit(n % 3));
    }
    let filter = dump::Filter {
        zone: Some(1),
        ..dump::Filter::default()
    };
    let (ended, _) = ct.flush(1000, 0, 2000, &filter);
    assert_eq!((ended, swept(1000)), (333, 667));
    assert_eq!(swept(61_000), 0);
}

/// Another process maps the file of the records and finds a connection there.
#[test]
fn records_are_in_a_file() {
    let ct = tracker();
    run(&ct, 1000, &udp((A, 1), (B, 2)), &commit(7));
    let words = heddle_sys::shared_words::SharedWords::of_fd(ct.slots.file().unwrap(), 2 * 24).unwrap();
    let w: Vec<_> = (0..24).map(|i| words.load(i)).collect();
    assert_eq!((w[0] >> 48, w[0] >> 40 & 0xff), (7, 17), "zone and protocol");
    assert_eq!((w[1], w[3]), (1 << 32 | 2, u64::from(A) << 32 | u64::from(B)));
    assert_eq!((w[5] & 3, w[6]), (1, 61_000), "in use; until then");
    run(&ct, 1000, &udp((A, 3), (B, 2)), &commit(7));
    assert_eq!(words.load(24 + 1), 3 << 32 | 2, "the next one follows");
    while !ct.sweep(61_000, 10) {}
    assert_eq!(words.load(5), 0, "no longer in use");
}

/// After a flood, whole pages of records go back to the system. Connections between them are unchanged, and a
/// new connection is never taken for an old one.
#[test]
fn memory_of_records_is_given_back() {
    const CONNECTIONS: u32 = 200_000;
    let ct = Conntrack::new(Config::default()).unwrap();
    let made = |n: u32, now| {
        let udp = udp(
            (A + 0x100 + n / 50_000, u16::try_from(n % 50_000 + 1).unwrap()),
            (B, 2),
        );
        run(&ct, now, &udp, &commit(0))
    };
    for n in 0..CONNECTIONS {
        made(n, 0);
    }
    // Every 5,000th connection is refreshed.
    for n in (0..CONNECTIONS).step_by(5000) {
        made(n, 50_000);
    }
    let words =
        heddle_sys::shared_words::SharedWords::of_fd(ct.slots.file().unwrap(), CONNECTIONS as usize * 24)
            .unwrap();
    let generations = |numbers: std::ops::Range<u32>| -> Vec<u64> {
        numbers
            .map(|n| words.load(n as usize * 24) & 0xffff_ffff)
            .collect()
    };
    assert!(generations(1..5000).iter().all(|g| *g == 1));
    while !ct.sweep(61_000, 100_000) {}
    assert_eq!(ct.n_conns(), CONNECTIONS / 5000);
    // Records are free when no thread of this process reads any table: other tests read theirs.
    while ct.slots.has_put_aside() {
        std::thread::yield_now();
        ct.sweep(61_000, 0);
    }
    let file = std::fs::File::from(ct.slots.file().unwrap().try_clone_to_owned().unwrap());
    let bytes_in_file = || file.metadata().unwrap().blocks() * 512;
    let before = bytes_in_file();
    ct.begin_giving_back();
    let mut pieces = 0;
    while ct.give_back() {
        pieces += 1;
    }
    assert!(pieces > 2 * CONNECTIONS / 4096, "it is no long piece of work");
    let given = before - bytes_in_file();
    assert!(
        given > u64::from(CONNECTIONS) * 192 * 3 / 4,
        "{given} of {before} bytes"
    );
    for n in (0..CONNECTIONS).step_by(5000) {
        let back = udp(
            (B, 2),
            (A + 0x100 + n / 50_000, u16::try_from(n % 50_000 + 1).unwrap()),
        );
        assert_eq!(
            run(&ct, 61_000, &back, &CtAction::default()).state,
            EST | RPL | TRK
        );
    }
    // New connections use free records, the lowest first. Their generations differ from those before.
    for n in 1..5000 {
        assert_eq!(made(n, 61_000).state, NEW | TRK);
    }
    assert!(
        generations(1..5000).iter().all(|g| *g == 2),
        "{:?}",
        generations(1..50)
    );
    assert_eq!(ct.n_conns(), CONNECTIONS / 5000 + 4999);
}

/// Memory is allocated ahead of connections, and no connection is lost by this.
#[test]
fn memory_is_made_ready_ahead() {
    let ct = Conntrack::new(Config::default()).unwrap();
    let ahead = |ct: &Conntrack| ct.prepared.lock().unwrap().to;
    ct.prepare();
    assert_eq!(ahead(&ct), 0, "nothing is tracked");
    for n in 0..40_000_u16 {
        run(&ct, 0, &udp((A, n + 1), (B, 2)), &commit(0));
        if n % 5000 == 0 {
            ct.prepare();
        }
    }
    ct.prepare();
    let p = ct.prepared.lock().unwrap();
    println!("{p:?}");
    // A kernel that does not join pages refuses at once.
    assert!(p.refused > 0 || p.to >= 40_000 + 80_000);
    drop(p);
    for n in 0..40_000_u16 {
        let back = udp((B, 2), (A, n + 1));
        assert_eq!(run(&ct, 0, &back, &CtAction::default()).state, EST | RPL | TRK);
    }
}
