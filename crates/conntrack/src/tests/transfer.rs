//! Connections that move from one tracker to another in the midst of their packets.

use super::*;
use crate::transfer::{ConnCopy, Imported, Malformed, Refusal};

fn copies(ct: &Conntrack, now: u64, zone: u16) -> Vec<ConnCopy> {
    let mut all = Vec::new();
    let next = ct.scan(now, 0, u32::MAX, |c| {
        if c.zone() == zone {
            all.push(c.copy());
        }
    });
    assert_eq!(next, None);
    all
}

fn only(ct: &Conntrack, now: u64, zone: u16) -> ConnCopy {
    let mut all = copies(ct, now, zone);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Imports into zone 9.
fn import(ct: &Conntrack, c: &ConnCopy, learn: bool) -> Result<Imported, Refusal> {
    ct.import(5000, 9, None, c, learn, None)
}

fn look(zone: u16) -> CtAction {
    CtAction {
        zone,
        nat: Some(CtNat::default()),
        ..CtAction::default()
    }
}

const SEEN: u32 = 0xc000_0201;

/// A connection of TCP from A to B, whose source is translated, in zone 3.
fn translated(ct: &Conntrack) {
    let action = CtAction {
        mark: Some((7, 0xff)),
        label: Some((5 << 100, u128::MAX)),
        ..snat("192.0.2.1", "192.0.2.1", Some((4000, 4000)))
    };
    let action = CtAction { zone: 3, ..action };
    run(ct, 1000, &tcp((A, 1), (B, 2), SYN, 100, 0, 0), &action);
    run(
        ct,
        1000,
        &tcp((B, 2), (SEEN, 4000), SYN | ACK, 500, 101, 0),
        &look(3),
    );
    run(ct, 1000, &tcp((A, 1), (B, 2), ACK, 101, 501, 0), &look(3));
}

#[test]
fn a_translated_stream_continues_at_the_other_node() {
    let (here, there) = (tracker(), tracker());
    translated(&here);
    // Without its connection, a segment in the midst is a new one.
    let next = tcp((A, 1), (B, 2), ACK, 101, 501, 100);
    let look = look(9);
    assert_eq!(run(&there, 5000, &next, &look).state, NEW | TRK);
    let copy = only(&here, 1000, 3);
    assert_eq!(import(&there, &copy, false), Ok(Imported::New));
    let k = run(&there, 5000, &next, &look);
    assert_eq!((k.state, k.mark, k.label), (EST | SNAT | TRK, 7, 5 << 100));
    let back = tcp((B, 2), (SEEN, 4000), ACK, 501, 201, 10);
    assert_eq!(run(&there, 5000, &back, &look).state, EST | RPL | DNAT | TRK);
    // Windows are checked from the first segment on.
    let far = tcp((A, 1), (B, 2), ACK, 1 << 30, 511, 100);
    assert_eq!(run(&there, 5000, &far, &look).state & INV, INV);
    let (a, b) = (only(&there, 5000, 9), only(&here, 1000, 3));
    assert_eq!((a.orig, a.reply, a.nat), (b.orig, b.reply, b.nat));
}

#[test]
fn windows_of_an_old_copy_are_learned_until_the_end_of_the_move() {
    for ends in [false, true] {
        let (here, there) = (tracker(), tracker());
        translated(&here);
        import(&there, &only(&here, 1000, 3), true).unwrap();
        if ends {
            there.scan(5000, 0, u32::MAX, |c| {
                assert!(c.is_imported());
                c.settle();
                assert!(!c.is_imported());
            });
        }
        let later = |seq| tcp((A, 1), (B, 2), ACK, seq, 501 + (1 << 20), 100);
        let state = run(&there, 5000, &later(1 << 30), &look(9)).state;
        if ends {
            assert_eq!(state & INV, INV);
            continue;
        }
        assert_eq!(state, EST | SNAT | TRK);
        // The first segment has shown the windows.
        assert_eq!(run(&there, 5000, &later(1 << 29), &look(9)).state & INV, INV);
        assert_eq!(
            run(&there, 5000, &later((1 << 30) + 100), &look(9)).state & INV,
            0
        );
    }
}

/// A back end forwards the segments, and the tracker has old windows.
#[test]
fn an_offloaded_connection_moves_without_windows() {
    let (here, there) = (tracker(), tracker());
    translated(&here);
    let mut id = None;
    here.offloadable(1000, 0, u32::MAX, |c| id = Some(c.id));
    here.offload(1000, id.unwrap()).unwrap();
    let copy = only(&here, 1000, 3);
    assert!(copy.loose);
    import(&there, &copy, false).unwrap();
    there.scan(5000, 0, u32::MAX, |c| c.settle());
    let later = |seq| tcp((A, 1), (B, 2), ACK, seq, 501 + (1 << 20), 100);
    assert_eq!(
        run(&there, 5000, &later(1 << 30), &look(9)).state,
        EST | SNAT | TRK
    );
    assert_eq!(run(&there, 5000, &later(1 << 29), &look(9)).state & INV, INV);
}

#[test]
fn an_import_may_be_repeated() {
    let (here, there) = (tracker(), tracker());
    translated(&here);
    let old = only(&here, 1000, 3);
    assert_eq!(import(&there, &old, true), Ok(Imported::New));
    run(
        &here,
        1000,
        &tcp((A, 1), (B, 2), ACK | crate::tcp::PSH, 101, 501, 900),
        &look(3),
    );
    let new = only(&here, 1000, 3);
    assert_ne!(old, new);
    assert_eq!(import(&there, &new, false), Ok(Imported::Renewed));
    let moved = only(&there, 5000, 9);
    assert_eq!((moved.tcp, moved.loose), (new.tcp, false));
    // The guest has come. Its connection here is newer than any copy.
    let next = tcp((A, 1), (B, 2), ACK, 1001, 501, 100);
    assert_eq!(run(&there, 5000, &next, &look(9)).state & INV, 0);
    assert_eq!(import(&there, &old, true), Ok(Imported::InUse));
    assert_eq!(there.n_conns(), 1);
    // After the move a copy is one like all others, and is known to have been here.
    let was_here = || {
        let mut all = Vec::new();
        there.scan(5000, 0, u32::MAX, |c| all.push(c.is_imported() && c.was_here()));
        all
    };
    assert_eq!(was_here(), [false]);
    there.scan(5000, 0, u32::MAX, |c| c.settle());
    assert_eq!(import(&there, &new, true), Ok(Imported::Replaced));
    assert_eq!(was_here(), [true]);
    // Once more: the copy's windows are still too old.
    assert_eq!(import(&there, &new, false), Ok(Imported::Renewed));
    assert_eq!(was_here(), [true]);
    there.scan(5000, 0, u32::MAX, |c| c.settle());
    assert_eq!(was_here(), [false]);
    // The windows of the copy are too old, and no segment has come since: the next one shows them.
    let later = tcp((A, 1), (B, 2), ACK, 1 << 30, 1 << 29, 100);
    assert_eq!(run(&there, 5000, &later, &look(9)).state & INV, 0);
    assert_eq!(there.n_conns(), 1);
}

/// The other node has tracked the same connection by itself: the copy is in its place.
#[test]
fn the_imported_connection_wins() {
    let (here, there) = (tracker(), tracker());
    run(&here, 1000, &udp((A, 1), (B, 2)), &commit(3));
    let copy = only(&here, 1000, 3);
    let mut marked = commit(9);
    marked.mark = Some((1, 1));
    run(&there, 5000, &udp((A, 1), (B, 2)), &marked);
    assert_eq!(import(&there, &copy, false), Ok(Imported::Replaced));
    assert_eq!((only(&there, 5000, 9).mark, there.n_conns()), (0, 1));
    assert_eq!(import(&there, &copy, false), Ok(Imported::InUse));
    // In the opposite direction.
    let there = tracker();
    run(&there, 5000, &udp((B, 2), (A, 1)), &marked);
    assert_eq!(import(&there, &copy, false), Ok(Imported::Replaced));
    assert_eq!((only(&there, 5000, 9).orig, there.n_conns()), (copy.orig, 1));
    // With another translation.
    let there = tracker();
    let other = CtAction {
        zone: 9,
        ..snat("192.0.2.9", "192.0.2.9", None)
    };
    run(&there, 5000, &udp((A, 1), (B, 2)), &other);
    assert_eq!(import(&there, &copy, false), Ok(Imported::Replaced));
    assert_eq!((only(&there, 5000, 9).nat, there.n_conns()), (None, 1));
}

#[test]
fn refused_copies_change_nothing() {
    let (here, there) = (tracker(), tracker());
    translated(&here);
    let copy = only(&here, 1000, 3);
    // Another guest here has the translated port towards the same peer.
    let action = CtAction {
        zone: 9,
        ..snat("192.0.2.1", "192.0.2.1", Some((4000, 4000)))
    };
    run(&there, 5000, &tcp((A + 9, 1), (B, 2), SYN, 1, 0, 0), &action);
    assert_eq!(import(&there, &copy, false), Err(Refusal::NatClash));
    assert_eq!(only(&there, 5000, 9).orig.src.addr, (A + 9).into());

    let there = tracker();
    there.set_zone_limit(9, Some(1));
    run(&there, 5000, &udp((A, 9), (B, 9)), &commit(9));
    assert_eq!(import(&there, &copy, false), Err(Refusal::ZoneFull));
    there.set_zone_limit(9, None);
    there.set_max_conns(1);
    assert_eq!(import(&there, &copy, false), Err(Refusal::Full));
    there.set_max_conns(9);
    assert_eq!(import(&there, &copy, false), Ok(Imported::New));
    assert_eq!(there.zone_limit(9).count, 0);

    let expired = ConnCopy {
        left_ms: 0,
        ..copy.clone()
    };
    assert_eq!(import(&there, &expired, false), Err(Refusal::Expired));
    // A limit that is full has room for the connection that is replaced.
    let there = tracker();
    there.set_zone_limit(9, Some(1));
    run(&there, 5000, &tcp((B, 2), (A, 1), SYN, 1, 0, 0), &commit(9));
    assert_eq!(import(&there, &copy, false), Ok(Imported::Replaced));
    assert_eq!(there.zone_limit(9).count, 1);
}

#[test]
fn no_copy_lives_longer_than_the_rules_here() {
    let (here, there) = (tracker(), tracker());
    run(&here, 1000, &udp((A, 1), (B, 2)), &commit(3));
    let mut copy = only(&here, 1000, 3);
    copy.left_ms = u64::MAX;
    import(&there, &copy, false).unwrap();
    assert_eq!(only(&there, 5000, 9).left_ms, 60_000);
    let there = tracker();
    there.set_timeout_policy("1", &[("udp_first", 5)]).unwrap();
    there.import(5000, 9, Some("1"), &copy, false, None).unwrap();
    assert_eq!(only(&there, 5000, 9).left_ms, 5000);
}

#[test]
fn contradictions_are_refused() {
    let ct = tracker();
    translated(&ct);
    run(&ct, 1000, &udp((A, 1), (B, 2)), &commit(3));
    let all = copies(&ct, 1000, 3);
    let (stream, datagrams) = (all[0].clone(), all[1].clone());
    assert_eq!((stream.check(), datagrams.check()), (Ok(()), Ok(())));
    let bad = |of: &ConnCopy, change: fn(&mut ConnCopy), why| {
        let mut c = of.clone();
        change(&mut c);
        assert_eq!(c.check(), Err(Malformed(why)));
        assert_eq!(import(&ct, &c, true), Err(Refusal::Malformed));
    };
    bad(
        &stream,
        |c| c.orig.src.addr = 1 << 32,
        "an address or a port that no packet has",
    );
    bad(
        &stream,
        |c| c.reply.dst.l4 = 1 << 16,
        "an address or a port that no packet has",
    );
    bad(
        &stream,
        |c| c.reply.proto = 17,
        "different protocols in both directions",
    );
    bad(
        &stream,
        |c| c.nat = None,
        "tuples that do not fit the translation",
    );
    bad(
        &stream,
        |c| c.reply.src.addr += 1,
        "tuples that do not fit the translation",
    );
    bad(
        &datagrams,
        |c| c.reply.src.l4 += 1,
        "tuples that do not fit the translation",
    );
    bad(
        &datagrams,
        |c| c.tcp = Some(Default::default()),
        "TCP states of another protocol, or none",
    );
    bad(
        &stream,
        |c| c.tcp = None,
        "TCP states of another protocol, or none",
    );
    bad(&datagrams, |c| c.loose = true, "unknown windows without TCP");
    bad(
        &stream,
        |c| c.tcp.as_mut().unwrap()[1].scale = crate::tcp::Scale::Known(15),
        "a window scale above 14",
    );
    bad(
        &stream,
        |c| c.skews[0] = 1,
        "changes of a helper without a helper",
    );
    bad(
        &stream,
        |c| c.parent = Some(tuple(17, (A, 1), (B, 2))),
        "a parent of another kind",
    );
}

/// Connections of all kinds, as `dump` shows them, are the same at the other node.
#[test]
fn all_kinds_move_whole() {
    let (here, there) = (tracker(), tracker());
    let mut marked = commit(9);
    (marked.mark, marked.label) = (Some((3, 7)), Some((1 << 90, 3 << 90)));
    let nat = |action: CtAction| CtAction {
        zone: 9,
        mark: marked.mark,
        ..action
    };
    let ping = |id, kind| Subject {
        tuple: tuple(1, (A, 0), (B, 0)).with_icmp(id, kind, 0).unwrap(),
        related: false,
        tcp: None,
    };
    let six = |mut s: Subject| {
        s.tuple.ipv6 = true;
        (s.tuple.src.addr, s.tuple.dst.addr) = (7 << 100, 9 << 100);
        s
    };
    for (subject, action) in [
        (udp((A, 1), (B, 2)), marked.clone()),
        (
            udp((A, 1), (B, 3)),
            nat(snat("192.0.2.1", "192.0.2.3", Some((7, 9)))),
        ),
        (tcp((A, 1), (B, 3), SYN, 5, 0, 0), marked.clone()),
        (ping(77, 8), nat(snat("192.0.2.1", "192.0.2.3", None))),
        (ping(78, 8), marked.clone()),
        (six(udp((0, 5), (0, 6))), marked.clone()),
        (six(tcp((0, 5), (0, 6), SYN, 1, 0, 0)), commit(9)),
    ] {
        assert_eq!(run(&here, 5000, &subject, &action).state & (NEW | INV), NEW);
        if subject.tuple.proto == 17 {
            let back = Subject {
                tuple: copies(&here, 5000, 9).pop().unwrap().reply,
                ..subject
            };
            run(&here, 5000, &back, &look(9));
        }
    }
    // A label that is in its second slot.
    let mut again = marked.clone();
    again.label = Some((2 << 90, 3 << 90));
    run(&here, 5000, &udp((A, 1), (B, 2)), &again);
    let all = copies(&here, 5000, 9);
    assert_eq!(all.len(), 7);
    assert_eq!(all[0].label, 2 << 90);
    for c in &all {
        assert_eq!(import(&there, c, false), Ok(Imported::New), "{c:?}");
    }
    assert_eq!(copies(&there, 5000, 9), all);
    let dumped = |ct: &Conntrack| {
        let mut lines = Vec::new();
        ct.dump(5000, 0, u32::MAX, |c| {
            lines.push(crate::format::conn(&c, true, true));
        });
        lines
    };
    assert_eq!(dumped(&here), dumped(&there));
    let (n, next) = here.end_where(5000, 0, u32::MAX, |c| c.has_address(false, A.into()));
    assert_eq!((n, next, here.n_conns()), (5, None, 2));
}
