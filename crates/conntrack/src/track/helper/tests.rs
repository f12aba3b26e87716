use super::expect::Expectations;
use super::ftp::{Form, Malformed, read, write};
use super::*;
use crate::protocol::tcp::{ACK, PSH, SYN};
use crate::table::skew::Skew;
use crate::track::general::state::{DNAT as D, EST, INV, NEW, REL, RPL, SNAT as S, TRK};
use crate::{
    Config, CtAction, CtNat, CtPacket, CtState, Hash, NatHow, NatRange, ReadGuard, Segment, Subject, Verdict,
};
use proptest::prelude::*;
use std::net::IpAddr;

#[test]
fn messages() {
    let port = |side, v6, text: &str| read(side, v6, text.as_bytes()).map(|m| m.map(|m| m.port));
    let (c, s) = (Side::Client, Side::Server);
    for (side, v6, text, want) in [
        (c, false, "PORT 10,1,1,1,4,1\r\n", Ok(Some(1025))),
        (c, false, "port 10,1,1,1,255,255\r\n", Ok(Some(65_535))),
        (c, false, "EPRT |1|10.1.1.1|2000|\r\n", Ok(Some(2000))),
        (c, true, "EPRT |2|fc00::1|2000|\r\n", Ok(Some(2000))),
        (
            s,
            false,
            "227 Entering Passive Mode (10,1,1,2,7,208).\r\n",
            Ok(Some(2000)),
        ),
        (
            s,
            false,
            "229 Entering Extended Passive Mode (|||2000|)\r\n",
            Ok(Some(2000)),
        ),
        (
            s,
            true,
            "229 Entering Extended Passive Mode (|||2000|)\r\n",
            Ok(Some(2000)),
        ),
        // No announcements: messages from the wrong side, other commands, an empty text.
        (s, false, "PORT 10,1,1,1,4,1\r\n", Ok(None)),
        (
            c,
            false,
            "227 Entering Passive Mode (10,1,1,2,7,208).\r\n",
            Ok(None),
        ),
        (c, true, "PORT 10,1,1,1,4,1\r\n", Ok(None)),
        (c, false, "LIST\r\n", Ok(None)),
        (c, false, "", Ok(None)),
        // Malformed.
        (c, false, "PORT 10,1,1,1,4\r\n", Err(Malformed)),
        (c, false, "PORT 10,1,1,256,4,1\r\n", Err(Malformed)),
        (c, false, "PORT 10,1,1,1,256,1\r\n", Err(Malformed)),
        (c, false, "PORT 10,1,1,1,0,0\r\n", Err(Malformed)),
        (c, false, "PORT 10,1,1,1,4,1", Err(Malformed)),
        (c, false, "PORT x\r\n", Err(Malformed)),
        (c, false, "PORT", Err(Malformed)),
        (c, false, "PORT 0010,1,1,1,4,1\r\n", Err(Malformed)),
        (c, false, "EPRT |2|fc00::1|2000|\r\n", Err(Malformed)),
        (c, true, "EPRT |1|10.1.1.1|2000|\r\n", Err(Malformed)),
        (c, true, "EPRT |2|fc00::g|2000|\r\n", Err(Malformed)),
        (c, true, "EPRT |2|fc00::1|65536|\r\n", Err(Malformed)),
        (s, false, "227 no\r\n", Err(Malformed)),
        (s, true, "229 (|||x|)\r\n", Err(Malformed)),
    ] {
        assert_eq!(port(side, v6, text), want, "{text:?}");
    }
    let m = read(c, false, b"PORT 10,1,1,1,4,1\r\n").unwrap().unwrap();
    assert_eq!(m.address, Some((5..13, [10, 1, 1, 1].into(), Form::Commas)));
    let m = read(c, true, b"EPRT |2|fc00::1|2000|\r\n").unwrap().unwrap();
    let fc: IpAddr = "fc00::1".parse().unwrap();
    assert_eq!(m.address, Some((8..15, fc, Form::Usual)));
    assert_eq!(write([10, 1, 1, 240].into(), Form::Commas), "10,1,1,240");
}

proptest! {
    #[test]
    fn no_text_panics(text in prop::collection::vec(any::<u8>(), 0..300), client: bool, v6: bool, like in 0_usize..4) {
        let mut all = [&b""[..], b"PORT 1,", b"EPRT |", b"227 ("][like].to_vec();
        all.extend(text);
        let side = if client { Side::Client } else { Side::Server };
        if let Ok(Some(m)) = read(side, v6, &all) {
            prop_assert!(m.port != 0 && m.address.is_none_or(|(r, ..)| r.end <= all.len()));
        }
    }

    /// Segments in order, some retransmitted, some with a replacement. The shift of each, and of its
    /// acknowledgement, is the sum of the earlier replacements.
    #[test]
    fn shifted_numbers(
        start in any::<u32>(),
        // A segment is longer than the address in it.
        segments in prop::collection::vec((17_u32..200, prop::option::of(-8_i32..9), 0_u8..3), 1..60),
    ) {
        let (mut skew, mut seq, mut shift) = (Skew::default(), start, 0_i32);
        for (len, replaced, again) in segments {
            for _ in 0..=again {
                // `shift` is the plain twin: the sum of the changes before this segment.
                prop_assert_eq!(skew.of_sent(seq), shift);
                if let Some(n) = replaced {
                    skew = skew.with(seq, n).unwrap();
                }
            }
            let n = replaced.unwrap_or(0);
            // Acknowledgements of the segment's beginning and of its end.
            let begins = seq.wrapping_add_signed(shift);
            let next = seq.wrapping_add(len);
            let ends = next.wrapping_add_signed(shift + n);
            prop_assert_eq!(begins.wrapping_add_signed(skew.of_received(begins)), seq);
            prop_assert_eq!(ends.wrapping_add_signed(skew.of_received(ends)), next);
            (seq, shift) = (next, shift + n);
        }
    }

    /// For any announcements and lookups, counts stay right and bounded.
    #[test]
    fn bounded(steps in prop::collection::vec((0_u32..20, 0_u32..40, 0_u64..400_000, any::<bool>()), 1..200)) {
        let table = Expectations::new();
        let mut now_ms = 0;
        for (number, port, later, find) in steps {
            now_ms += later / 10;
            let key = Key { src: 1, dst: 2, port, proto: 6, ipv6: false, zone: 0 };
            let parent = Parent { number, generation: 1 };
            let e = expectation(parent);
            // Connections with even numbers are alive.
            let lives = |p: Parent| p.number.is_multiple_of(2);
            if find {
                let found = table.find(now_ms, key, port, lives);
                prop_assert!(found.is_none_or(|e| e.parent.number.is_multiple_of(2)));
            } else {
                let added = table.add(now_ms, key, port, e, lives);
                let found = table.find(now_ms, key, port, |_| true);
                prop_assert!(!added || found == Some(e));
            }
            prop_assert!(table.len() <= 40);
        }
        table.sweep(now_ms + 300_000);
        prop_assert_eq!(table.len(), 0);
        prop_assert!(table.is_empty());
    }
}

fn expectation(parent: Parent) -> Expectation {
    Expectation {
        parent,
        orig: Tuple::default(),
        mark: 0,
        label: 0,
        end: NatEnd::Src,
        address: 0,
        port: None,
    }
}

#[test]
fn one_connection_announces_few() {
    let table = Expectations::new();
    let parent = Parent {
        number: 1,
        generation: 1,
    };
    for port in 0..1000 {
        let key = Key {
            src: 1,
            dst: 2,
            port,
            proto: 6,
            ipv6: false,
            zone: 0,
        };
        assert!(table.add(0, key, port, expectation(parent), |_| true));
    }
    assert_eq!(table.len(), 8);
}

/// A tracker and an FTP session through it.
struct Session {
    ct: Conntrack,
    ipv6: bool,
}

/// Addresses: client, server, and the translated address of one of them.
const CLIENT: u128 = 0x0a01_0101;
const SERVER: u128 = 0x0a01_0102;
const SEEN: u128 = 0x0a01_01f0;

impl Session {
    fn new() -> Self {
        let config = Config {
            capacity: 1 << 10,
            max_conns: 500,
            seed: 3,
        };
        Self {
            ct: Conntrack::new(config).unwrap(),
            ipv6: false,
        }
    }
    fn subject(&self, src: (u128, u32), dst: (u128, u32), tcp: Option<(u16, u32, u32, u32)>) -> Subject {
        let end = |(addr, l4)| Endpoint { addr, l4 };
        Subject {
            tuple: Tuple {
                src: end(src),
                dst: end(dst),
                proto: if tcp.is_some() { 6 } else { 17 },
                ipv6: self.ipv6,
            },
            related: false,
            tcp: tcp.map(|(flags, seq, ack, len)| Segment {
                flags,
                seq,
                ack,
                window: 1000,
                len,
                scale: None,
            }),
        }
    }
    fn track(&self, s: &Subject, action: &CtAction) -> (CtState, Verdict) {
        let hash: Hash = self.ct.hash(&s.tuple, action.zone);
        let mut known = CtState::default();
        let (mut v, reading) = (Verdict::default(), ReadGuard::begin());
        let packet = CtPacket {
            now_ms: 1000,
            subject: s,
            hash,
            action,
            known: &mut known,
            verdict: &mut v,
        };
        self.ct.track(&reading, self.ct.guess(hash), packet);
        (known, v)
    }
}

fn with_nat(end: NatEnd, address: u128) -> CtAction {
    CtAction {
        commit: true,
        helper: Some(CtHelper::Ftp),
        mark: Some((7, 0xff)),
        nat: Some(CtNat {
            new: Some(NatRange {
                end,
                addresses: Some((ip(address, false), ip(address, false))),
                ports: None,
                how: NatHow::Any,
                persistent: false,
            }),
        }),
        ..CtAction::default()
    }
}

/// Translates packets of existing connections.
fn nat() -> CtAction {
    CtAction {
        nat: Some(CtNat::default()),
        ..CtAction::default()
    }
}

/// The client's address is translated. Its PORT is rewritten, later sequence numbers are shifted, and the
/// server may connect to it.
#[test]
fn active_with_translated_client() {
    let s = Session::new();
    let out = |f, seq, ack, len| s.subject((CLIENT, 4000), (SERVER, 21), Some((f, seq, ack, len)));
    let back = |f, seq, ack, len| s.subject((SERVER, 21), (SEEN, 4000), Some((f, seq, ack, len)));
    s.track(&out(SYN, 99, 0, 0), &with_nat(NatEnd::Src, SEEN));
    s.track(&back(SYN | ACK, 499, 100, 0), &nat());
    let (k, v) = s.track(&out(ACK, 100, 500, 0), &nat());
    assert_eq!((k.state, k.mark), (EST | S | TRK, 7));
    let edit = s.ct.control(1000, v.control.unwrap(), 100, 500, b"");
    assert_eq!(edit, Edit::default());
    let text = b"PORT 10,1,1,1,16,0\r\n";
    let len = u32::try_from(text.len()).unwrap();
    for again in 0..2 {
        let (_, v) = s.track(&out(ACK | PSH, 100, 500, len), &nat());
        let edit = s.ct.control(1000, v.control.unwrap(), 100, 500, text);
        let replace = Some((5..13, "10,1,1,240".to_owned()));
        let want = Edit {
            replace,
            ..Edit::default()
        };
        assert_eq!(edit, want, "{again}");
    }
    // The server acknowledges the two bytes that the rewrite added.
    let (k, v) = s.track(&back(ACK, 500, 100 + len + 2, 10), &nat());
    assert_eq!(k.state, EST | RPL | D | TRK);
    let edit =
        s.ct.control(1000, v.control.unwrap(), 500, 100 + len + 2, b"200 ok\r\n");
    assert_eq!((edit.seq, edit.ack), (0, -2));
    let (_, v) = s.track(&out(ACK, 100 + len, 510, 6), &nat());
    let edit =
        s.ct.control(1000, v.control.unwrap(), 100 + len, 510, b"LIST\r\n");
    assert_eq!((edit.seq, edit.ack), (2, 0));
    // The connection from the server.
    let data = s.subject((SERVER, 20), (SEEN, 4096), Some((SYN, 1, 0, 0)));
    let (k, _) = s.track(&data, &CtAction::default());
    assert_eq!((k.state, k.mark), (NEW | REL | TRK, 7));
    assert_eq!(k.orig.map(|o| o.src.addr), Some(CLIENT));
    let accept = CtAction {
        commit: true,
        ..nat()
    };
    let (k, v) = s.track(&data, &accept);
    assert_eq!(k.state, NEW | REL | D | TRK);
    let to = v.rewrite.unwrap().outer;
    assert_eq!((to.src, to.dst, to.ports), (None, Some(CLIENT), Some((20, 4096))));
    let answer = s.subject((CLIENT, 4096), (SERVER, 20), Some((SYN | ACK, 7, 2, 0)));
    let (k, v) = s.track(&answer, &nat());
    assert_eq!((k.state, k.mark), (EST | REL | RPL | S | TRK, 7));
    assert_eq!(v.rewrite.unwrap().outer.src, Some(SEEN));
    // No connection to another port is expected.
    let other = s.subject((SERVER, 20), (SEEN, 4097), Some((SYN, 1, 0, 0)));
    assert_eq!(s.track(&other, &CtAction::default()).0.state, NEW | TRK);
    // An expectation ends with the connection that announced it.
    s.ct.flush_all(1000, &crate::dump::Filter::default());
    assert_eq!(s.track(&data, &CtAction::default()).0.state, NEW | TRK);
}

/// The server's address is translated: its reply to PASV gets the address that the client knows.
#[test]
fn passive_with_translated_server() {
    let s = Session::new();
    let out = |f, seq, ack| s.subject((CLIENT, 4000), (SEEN, 21), Some((f, seq, ack, 0)));
    let back = |f, seq, ack, len| s.subject((SERVER, 21), (CLIENT, 4000), Some((f, seq, ack, len)));
    s.track(&out(SYN, 99, 0), &with_nat(NatEnd::Dst, SERVER));
    s.track(&back(SYN | ACK, 499, 100, 0), &nat());
    s.track(&out(ACK, 100, 500), &nat());
    let (_, v) = s.track(&back(ACK, 500, 100, 48), &nat());
    let text = b"227 Entering Passive Mode (10,1,1,2,16,0).\r\n";
    let edit = s.ct.control(1000, v.control.unwrap(), 500, 100, text);
    assert_eq!(edit.replace, Some((27..35, "10,1,1,240".to_owned())));
    let data = s.subject((CLIENT, 4001), (SEEN, 4096), Some((SYN, 1, 0, 0)));
    let accept = CtAction {
        commit: true,
        ..nat()
    };
    let (k, v) = s.track(&data, &accept);
    assert_eq!(k.state, NEW | REL | D | TRK);
    assert_eq!(v.rewrite.unwrap().outer.dst, Some(SERVER));
    // A message that announces another host's address is invalid, from a server and from a client.
    let (_, v) = s.track(&back(ACK, 548, 100, 48), &nat());
    let text = b"227 Entering Passive Mode (10,1,1,9,16,1).\r\n";
    assert!(s.ct.control(1000, v.control.unwrap(), 548, 100, text).malformed);
    let (_, v) = s.track(&out(ACK, 100, 500), &nat());
    assert!(
        s.ct.control(1000, v.control.unwrap(), 100, 500, b"PORT 10,1,1,2,1,1\r\n")
            .malformed
    );
    let data = s.subject((CLIENT, 4001), (SEEN, 4097), Some((SYN, 1, 0, 0)));
    assert_eq!(s.track(&data, &accept).0.state, NEW | TRK);
}

/// Without `alg`, or with it on another port, no message is read. The helper's name is shown anyway.
#[test]
fn only_those_with_a_helper_pay() {
    let s = Session::new();
    let commit = |helper| CtAction {
        commit: true,
        helper,
        ..CtAction::default()
    };
    let syn = |port, to| s.subject((CLIENT, port), (SERVER, to), Some((SYN, 1, 0, 0)));
    let ftp = Some(CtHelper::Ftp);
    assert!(s.track(&syn(1, 21), &commit(None)).1.control.is_none());
    assert!(s.track(&syn(2, 21), &commit(ftp)).1.control.is_some());
    assert!(s.track(&syn(3, 80), &commit(ftp)).1.control.is_none());
    assert!(
        s.track(&syn(4, 21), &commit(Some(CtHelper::Tftp)))
            .1
            .control
            .is_none()
    );
    let mut shown = std::collections::BTreeMap::new();
    s.ct.dump(1000, 0, 100, |c| {
        shown.insert(c.orig.src.l4, c.helper);
    });
    assert_eq!(shown.into_values().collect::<Vec<_>>(), [None, ftp, ftp, None]);
}

/// The reply to a TFTP request comes from another port. It goes to the source port of the request, even if
/// that was translated.
#[test]
fn replies_of_tftp() {
    let s = Session::new();
    let mut action = with_nat(NatEnd::Src, SEEN);
    action.helper = Some(CtHelper::Tftp);
    if let Some(range) = action.nat.as_mut().and_then(|n| n.new.as_mut()) {
        range.ports = Some((9000, 9000));
    }
    let (k, _) = s.track(&s.subject((CLIENT, 5000), (SERVER, 69), None), &action);
    assert_eq!(k.state, NEW | S | TRK);
    let answer = s.subject((SERVER, 3333), (SEEN, 9000), None);
    assert_eq!(s.track(&answer, &CtAction::default()).0.state, NEW | REL | TRK);
    let accept = CtAction {
        commit: true,
        ..nat()
    };
    let (k, v) = s.track(&answer, &accept);
    assert_eq!(k.state, NEW | REL | D | TRK);
    let to = v.rewrite.unwrap().outer;
    assert_eq!((to.dst, to.ports), (Some(CLIENT), Some((3333, 5000))));
    let more = s.subject((CLIENT, 5000), (SERVER, 3333), None);
    let (k, v) = s.track(&more, &nat());
    assert_eq!((k.state & INV, v.rewrite.unwrap().outer.src), (0, Some(SEEN)));
    assert_eq!(v.rewrite.unwrap().outer.ports, Some((9000, 3333)));
}

/// A zone that announces without end loses its own expectations; the only one of another zone stays.
#[test]
fn who_announces_too_much_makes_room() {
    let all = Expectations::new();
    let add = |zone: u16, n: u32| {
        let key = Key {
            src: 1,
            dst: u128::from(n),
            port: 5,
            proto: proto::TCP,
            ipv6: false,
            zone,
        };
        let parent = Parent {
            number: n,
            generation: u32::from(zone),
        };
        let e = Expectation {
            parent,
            orig: Tuple::default(),
            mark: 0,
            label: 0,
            end: NatEnd::Src,
            address: 0,
            port: None,
        };
        assert!(all.add(0, key, n, e, |_| true));
        (key, n)
    };
    let quiet = add(7, 0);
    let first = add(8, 1);
    for n in 2..20_000 {
        add(8, n);
    }
    assert_eq!(all.len(), 16_384);
    assert!(all.find(1, quiet.0, quiet.1, |_| true).is_some());
    assert!(all.find(1, first.0, first.1, |_| true).is_none());
    all.sweep(u64::MAX);
    assert_eq!(all.len(), 16_384 - 256);
}

/// A session moves to another tracker after PORT: shifts continue, and the server may connect.
#[test]
fn a_session_moves() {
    let (s, there) = (Session::new(), Session::new());
    let out = |f, seq, ack, len| s.subject((CLIENT, 4000), (SERVER, 21), Some((f, seq, ack, len)));
    let back = |f, seq, ack, len| s.subject((SERVER, 21), (SEEN, 4000), Some((f, seq, ack, len)));
    s.track(&out(SYN, 99, 0, 0), &with_nat(NatEnd::Src, SEEN));
    s.track(&back(SYN | ACK, 499, 100, 0), &nat());
    s.track(&out(ACK, 100, 500, 0), &nat());
    let text = b"PORT 10,1,1,1,16,0\r\n";
    let len = u32::try_from(text.len()).unwrap();
    let (_, v) = s.track(&out(ACK | PSH, 100, 500, len), &nat());
    assert!(
        s.ct.control(1000, v.control.unwrap(), 100, 500, text)
            .replace
            .is_some()
    );
    let mut moved = Vec::new();
    s.ct.scan(1000, 0, u32::MAX, |c| moved.push(c.copy()));
    assert_eq!((moved.len(), moved[0].expected.len()), (1, 1));
    let done = there.ct.import(1000, 0, None, &moved[0], false, None);
    assert_eq!(done, Ok(crate::transfer::Imported::New));
    let mut again = Vec::new();
    there.ct.scan(1000, 0, u32::MAX, |c| again.push(c.copy()));
    assert_eq!(again, moved);
    let (k, v) = there.track(&back(ACK, 500, 100 + len + 2, 10), &nat());
    assert_eq!(k.state, EST | RPL | D | TRK);
    let edit = there
        .ct
        .control(1000, v.control.unwrap(), 500, 100 + len + 2, b"200 ok\r\n");
    assert_eq!((edit.seq, edit.ack), (0, -2));
    let data = s.subject((SERVER, 20), (SEEN, 4096), Some((SYN, 1, 0, 0)));
    let (k, _) = there.track(&data, &CtAction::default());
    assert_eq!((k.state, k.mark), (NEW | REL | TRK, 7));
    let accept = CtAction {
        commit: true,
        ..nat()
    };
    let (k, _) = there.track(&data, &accept);
    assert_eq!(k.state, NEW | REL | D | TRK);
    // The announced connection moves on, with its parent.
    let mut third = Vec::new();
    there.ct.scan(1000, 0, u32::MAX, |c| third.push(c.copy()));
    assert_eq!(third.len(), 2);
    for c in &third {
        assert_eq!(
            s.ct.import(1000, 5, None, c, false, None),
            Ok(crate::transfer::Imported::New)
        );
    }
}
