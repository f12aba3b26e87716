//! Passes over all connections: fields, versions, and the end of one connection.

use super::*;
use crate::track::offloaded::ConnId;

/// Identity and version of each connection.
fn seen(ct: &Conntrack, now: u64) -> Vec<(ConnId, u64)> {
    let mut all = Vec::new();
    assert_eq!(
        ct.scan(now, 0, u32::MAX, |c| all.push((c.id(), c.version()))),
        None
    );
    all
}

#[test]
fn a_version_follows_what_copies_have() {
    let ct = tracker();
    let there = udp((A, 1), (B, 2));
    run(&ct, 1000, &there, &commit(3));
    let first = seen(&ct, 1000);
    assert_eq!((first.len(), seen(&ct, 1001) == first), (1, true));
    ct.scan(1000, 0, u32::MAX, |c| {
        assert_eq!((c.zone(), c.proto()), (3, 17));
        assert!(!c.is_translated() && !c.is_labelled() && !c.is_replied() && c.tcp_class().is_none());
    });
    run(&ct, 1000, &udp((B, 2), (A, 1)), &commit(3));
    let replied = seen(&ct, 1000);
    assert_ne!(replied, first);
    let mut marked = commit(3);
    marked.mark = Some((7, u32::MAX));
    run(&ct, 1000, &there, &marked);
    let with_mark = seen(&ct, 1000);
    assert_ne!(with_mark, replied);
    let mut labelled = commit(3);
    labelled.label = Some((1 << 100, u128::MAX));
    run(&ct, 1000, &there, &labelled);
    assert_ne!(seen(&ct, 1000), with_mark);
    ct.scan(1000, 0, u32::MAX, |c| {
        assert!(c.is_labelled() && c.is_replied());
        assert_eq!((c.conn().mark, c.conn().label), (7, 1 << 100));
    });
}

#[test]
fn one_connection_ends() {
    let ct = tracker();
    for port in [1, 2] {
        run(&ct, 1000, &udp((A, port), (B, 2)), &commit(3));
    }
    let ids: Vec<_> = seen(&ct, 1000).into_iter().map(|(id, _)| id).collect();
    let mut orig = None;
    ct.scan(1000, 0, 1, |c| orig = Some(c.conn().orig));
    let orig = orig.unwrap();
    assert_eq!(ct.find(1000, &orig, 3), Some(ids[0]));
    assert_eq!(ct.find(1000, &orig, 4), None);
    assert_eq!(ct.find(1000, &orig.reversed(), 3), None);
    assert!(ct.end(1000, ids[0]) && !ct.end(1000, ids[0]));
    assert_eq!((ct.find(1000, &orig, 3), ct.n_conns()), (None, 1));
    assert_eq!(seen(&ct, 1000)[0].0, ids[1]);
    // The number belongs to another connection now.
    run(&ct, 1000, &udp((A, 1), (B, 2)), &commit(3));
    assert!(!ct.end(1000, ids[0]));
    assert_eq!(ct.n_conns(), 2);
}
