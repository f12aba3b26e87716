//! Connections that a back end forwards: when this is allowed, when they return to the tracker, and how they
//! continue there.

use super::*;
use crate::track::offloaded::{ConnId, EndOffload, Offloadable};
use std::sync::Arc;

/// Records the numbers of connections that ended.
#[derive(Default)]
struct Ended(Mutex<Vec<u32>>);

impl EndOffload for Ended {
    fn end(&self, number: u32) {
        self.0.lock().unwrap().push(number);
    }
}

impl Ended {
    fn take(&self) -> usize {
        std::mem::take(&mut *self.0.lock().unwrap()).len()
    }
}

fn watched() -> (Conntrack, Arc<Ended>) {
    let (ct, ended) = (tracker(), Arc::new(Ended::default()));
    ct.set_end_offload(ended.clone());
    (ct, ended)
}

fn found(ct: &Conntrack, now: u64) -> Vec<ConnId> {
    let mut all = Vec::new();
    assert_eq!(ct.offloadable(now, 0, u32::MAX, |c| all.push(c.id)), None);
    all
}

/// A connection of TCP that is established at time 1000.
fn established(ct: &Conntrack) -> ConnId {
    for (s, state) in [
        (tcp((A, 1), (B, 2), SYN, 100, 0, 0), NEW | TRK),
        (tcp((B, 2), (A, 1), SYN | ACK, 500, 101, 0), EST | RPL | TRK),
    ] {
        assert_eq!(run(ct, 1000, &s, &commit(3)).state, state);
        assert_eq!(found(ct, 1000), []);
    }
    run(ct, 1000, &tcp((A, 1), (B, 2), ACK, 101, 501, 0), &commit(3));
    let all = found(ct, 1000);
    assert_eq!(all.len(), 1);
    all[0]
}

#[test]
fn windows_are_learned_anew() {
    let (ct, ended) = watched();
    let id = established(&ct);
    let far = |seq, ack| tcp((A, 1), (B, 2), ACK, seq, ack, 100);
    let look = CtAction {
        zone: 3,
        ..CtAction::default()
    };
    assert_eq!(
        run(&ct, 1000, &far(1 << 30, 501), &look).state,
        INV | TRK,
        "not offloaded"
    );
    let conn = ct.offload(1000, id).unwrap();
    assert_eq!((conn.zone, conn.orig.src.l4, conn.reply.src.l4), (3, 1, 2));
    assert_eq!(ct.offload(1000, id), None, "there is one back end");
    assert_eq!(found(&ct, 1000), []);
    // A gigabyte went by. Now a segment comes up, and then a FIN.
    assert_eq!(run(&ct, 2000, &far(1 << 30, 1 << 29), &look).state, EST | TRK);
    assert_eq!(run(&ct, 2000, &far(1 << 31, 1 << 30), &look).state, EST | TRK);
    assert_eq!(ended.take(), 0);
    let fin = tcp((B, 2), (A, 1), FIN | ACK, 3 << 30, (1 << 31) + 9999, 0);
    assert_eq!(run(&ct, 2000, &fin, &look).state, EST | RPL | TRK);
    assert_eq!(ended.take(), 1);
    assert!(!ct.still_offloaded(2000, id, true));
    // The first segment of the other endpoint shows its window. From then on windows are checked.
    let last = tcp((A, 1), (B, 2), ACK, (1 << 31) + 50_000, (3 << 30) + 1, 100);
    assert_eq!(run(&ct, 2000, &last, &look).state, EST | TRK);
    assert_eq!(run(&ct, 2000, &far(7, 1 << 30), &look).state, INV | TRK);
}

#[test]
fn resets_end_it() {
    for flags in [RST, RST | ACK] {
        let (ct, ended) = watched();
        let id = established(&ct);
        ct.offload(1000, id).unwrap();
        let rst = tcp((B, 2), (A, 1), flags, 1 << 30, 1 << 20, 0);
        assert_eq!(run(&ct, 1000, &rst, &commit(3)).state, EST | RPL | TRK);
        assert_eq!(ended.take(), 1);
    }
    // A SYN is checked as usual.
    let (ct, ended) = watched();
    ct.offload(1000, established(&ct)).unwrap();
    let syn = tcp((A, 1), (B, 2), SYN, 1 << 30, 0, 0);
    assert_eq!(run(&ct, 1000, &syn, &commit(3)).state, INV | TRK);
    assert_eq!(ended.take(), 0);
}

#[test]
fn what_changes_it_ends_it() {
    let marks = |mark, label| CtAction {
        mark,
        label,
        ..commit(3)
    };
    let s = tcp((A, 1), (B, 2), ACK, 101, 501, 0);
    for (action, ends) in [
        (marks(Some((7, 7)), None), 1),
        (marks(Some((0, 7)), None), 0),
        (marks(None, Some((1, u128::MAX))), 1),
        (marks(None, Some((0, u128::MAX))), 0),
        (
            CtAction {
                force: true,
                ..commit(3)
            },
            0,
        ),
    ] {
        let (ct, ended) = watched();
        let id = established(&ct);
        ct.offload(1000, id).unwrap();
        run(&ct, 1000, &s, &action);
        assert_eq!(ended.take(), ends, "{action:?}");
    }
    let (ct, ended) = watched();
    let id = established(&ct);
    ct.offload(1000, id).unwrap();
    assert_eq!(ct.flush_all(1000, &Default::default()), 1);
    assert_eq!(ended.take(), 1);
    assert!(!ct.still_offloaded(1000, id, false));
    assert_eq!(ct.offload(1000, id), None);
    // With `force`, a packet in the reply direction begins a new connection.
    let id = established(&ct);
    ct.offload(1000, id).unwrap();
    let reply = tcp((B, 2), (A, 1), ACK, 501, 101, 0);
    let force = CtAction {
        force: true,
        ..commit(3)
    };
    run(&ct, 1000, &reply, &force);
    assert_eq!(ended.take(), 1);
}

#[test]
fn it_lives_as_long_as_the_back_end_uses_it() {
    let (ct, ended) = watched();
    for s in [udp((A, 1), (B, 2)), udp((B, 2), (A, 1))] {
        assert_eq!(found(&ct, 1000), []);
        run(&ct, 1000, &s, &commit(0));
    }
    assert_eq!(found(&ct, 5000), [], "it was not used of late");
    let id = found(&ct, 1000)[0];
    ct.offload(1000, id).unwrap();
    for now in (0..200).map(|n| 1000 + n * 1000) {
        assert!(ct.still_offloaded(now, id, true));
        ct.sweep(now, 1000);
    }
    let last = 200_000;
    assert!(ct.still_offloaded(last + 29_000, id, false));
    assert!(!ct.still_offloaded(last + 31_000, id, true), "too late");
    ct.sweep(last + 31_000, 1000);
    assert_eq!((ct.n_conns(), ended.take()), (0, 1));
}

#[test]
fn a_stream_of_udp_leaves_with_its_reply() {
    let (ct, ended) = watched();
    let (there, back) = (udp((A, 1), (B, 2)), udp((B, 2), (A, 1)));
    run(&ct, 1000, &there, &commit(0));
    assert_eq!(found(&ct, 1000), [], "one packet is no stream");
    assert_eq!(run(&ct, 1000, &there, &commit(0)).state, NEW | TRK);
    let id = found(&ct, 1000)[0];
    let conn = ct.offload(1000, id).unwrap();
    assert_eq!((conn.replied, conn.state(false)), (false, NEW | TRK));
    // More of the same changes nothing, and the timeout is that of such a stream.
    run(&ct, 1000, &there, &commit(0));
    assert!(ended.take() == 0 && ct.still_offloaded(30_000, id, true));
    assert!(ct.still_offloaded(89_000, id, false) && !ct.still_offloaded(91_000, id, false));
    run(&ct, 40_000, &back, &commit(0));
    assert_eq!(ended.take(), 1, "the reply");
    assert!(!ct.still_offloaded(40_000, id, true));
    let id = found(&ct, 40_000)[0];
    let conn = ct.offload(40_000, id).unwrap();
    assert_eq!((conn.replied, conn.state(true)), (true, EST | RPL | TRK));
    // The next process tracks a stream on, too.
    let (next, _) = watched();
    let unreplied = Offloadable {
        replied: false,
        ..conn
    };
    assert!(next.adopt(1000, &unreplied));
    assert_eq!(run(&next, 1000, &there, &commit(0)).state, NEW | TRK);
    assert_eq!(run(&next, 1000, &back, &commit(0)).state, EST | RPL | TRK);
}

#[test]
fn connections_of_an_earlier_process_are_tracked_on() {
    let (ct, _) = watched();
    let look = CtAction {
        zone: 3,
        nat: Some(CtNat { new: None }),
        ..CtAction::default()
    };
    let mut conn = Offloadable {
        id: ConnId {
            number: 5,
            generation: 6,
        },
        zone: 3,
        replied: true,
        orig: tuple(6, (A, 1), (B, 2)),
        reply: tuple(6, (B, 2), (A, 1)),
        snat: false,
        dnat: false,
        mark: 7,
        label: 8,
    };
    assert!(ct.adopt(1000, &conn));
    assert!(!ct.adopt(1000, &conn), "it is there");
    // Either endpoint may send first, at any position of the windows.
    let v = run(&ct, 1000, &tcp((B, 2), (A, 1), ACK, 1 << 30, 1 << 31, 100), &look);
    assert_eq!((v.state, v.mark, v.label), (EST | RPL | TRK, 7, 8));
    let v = run(
        &ct,
        1000,
        &tcp((A, 1), (B, 2), ACK, 1 << 31, (1 << 30) + 100, 50),
        &look,
    );
    assert_eq!(v.state, EST | TRK);
    assert_eq!(found(&ct, 1000).len(), 1, "a back end may have it again");
    // A translated UDP connection.
    conn.orig = tuple(17, (A, 1), (B, 2));
    conn.reply = tuple(17, (B, 2), (A + 9, 700));
    conn.snat = true;
    assert!(ct.adopt(1000, &conn));
    let v = run(&ct, 1000, &udp((B, 2), (A + 9, 700)), &look);
    assert_eq!(v.state, EST | RPL | TRK | DNAT);
    let outer = v.verdict.rewrite.unwrap().outer;
    assert_eq!((outer.dst, outer.ports), (Some(A.into()), Some((2, 1))));
    let v = run(&ct, 1000, &udp((A, 1), (B, 2)), &look);
    assert_eq!(v.state, EST | TRK | SNAT);
    // The replies have the tuple of another connection.
    conn.orig = tuple(17, (A, 3), (B, 2));
    assert!(!ct.adopt(1000, &conn));
    // The zone has reached its limit.
    ct.set_zone_limit(9, Some(1));
    conn.zone = 9;
    assert!(ct.adopt(1000, &conn));
    conn.orig.dst.l4 = 4;
    conn.reply.src.l4 = 4;
    assert!(!ct.adopt(1000, &conn));
}
