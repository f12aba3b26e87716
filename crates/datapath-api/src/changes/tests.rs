//! Packets that a change concerns, by the log and by comparing.

use super::*;
use heddle_flow::Match;
use proptest::prelude::*;

fn matches() -> impl Strategy<Value = Match> {
    (0u8..8, 0u32..4, 0u32..4, 0u32..4).prop_map(|(which, reg, nw, port)| {
        let mut m = Match::any();
        if which & 1 != 0 {
            (m.key.regs[2], m.mask.0.regs[2]) = (reg, u32::MAX);
        }
        if which & 2 != 0 {
            (m.key.nw_dst, m.mask.0.nw_dst) = (nw, 3);
        }
        if which & 4 != 0 {
            (m.key.in_port, m.mask.0.in_port) = (port, u32::MAX);
        }
        m.normalize();
        m
    })
}

/// An empty log that begins with generation `first`.
fn log_from(first: u64) -> Log {
    Log {
        drawn: AtomicU64::new(first - 1),
        ..Log::default()
    }
}

/// A log of these changes from generation `first` on.
fn log_of(first: u64, all: &[Vec<Match>]) -> Log {
    let log = log_from(first);
    for matches in all {
        let mut changes = Changes::default();
        matches.iter().for_each(|m| changes.add(&MiniMatch::new(m)));
        log.write(changes, |_| {});
    }
    log
}

#[test]
fn constants_are_cleared() {
    let mut key = FlowKey::default();
    key.words_mut().fill(u64::MAX);
    clear_constants(&mut key);
    let left = key.words().iter().zip(constants().words());
    assert!(left.into_iter().all(|(k, c)| *k == !c));
}

proptest! {
    /// Changes that are passed over match none of the packets, as far as these are known. If all bits are
    /// known, exactly the changes that match are not passed over.
    #[test]
    fn passes_by_what_matches_no_packet(
        all in prop::collection::vec(prop::collection::vec(matches(), 1..4), 1..50),
        first in 1u64..40,
        from in 0usize..50,
        (reg, nw, port) in (0u32..4, 0u32..4, 0u32..4),
        nw_known in any::<bool>(),
        nw_changed in any::<bool>(),
    ) {
        let log = log_of(first, &all);
        let from = from.min(all.len());
        let mut key = FlowKey { nw_dst: nw, ..FlowKey::default() };
        let mut mask = FlowMask::default();
        mask.0.nw_dst = if nw_known { u32::MAX } else { 0 };
        let mut known = KnownBits::new(&key, &mask);
        (key.in_port, key.regs[2]) = (port, reg);
        for (word, value) in (0..).zip(key.words()) {
            let constant = constants().words()[usize::from(word)] != 0;
            let changed = nw_changed && mask.words()[usize::from(word)] != 0;
            if constant || changed {
                known.apply(&Override { from: 0, word, changed, value: *value });
            }
        }
        let to = first - 1 + all.len() as u64;
        let passed = passes(&log, first - 1 + from as u64, to, &known);
        let any_matches = all[from..].iter().flatten().any(|m| m.matches(&key));
        if passed {
            // For all values of the address, if it is unknown.
            for nw_dst in 0..4 {
                let key = if nw_known && !nw_changed { key } else { FlowKey { nw_dst, ..key } };
                prop_assert!(!all[from..].iter().flatten().any(|m| m.matches(&key)));
            }
        } else if nw_known && !nw_changed {
            prop_assert!(any_matches);
        }
    }
}

/// Whether the log is complete between the two generations, and no change in it concerns these packets.
fn passes(log: &Log, from: u64, to: u64, known: &KnownBits) -> bool {
    log.visit(from, to, &mut |m| known.excludes(m))
}

/// The bits that all packets to this address have in common.
fn to(nw_dst: u32) -> KnownBits {
    let key = |nw_dst| FlowKey {
        nw_dst,
        ..FlowKey::default()
    };
    KnownBits::new(&key(nw_dst), &FlowMask(key(u32::MAX)))
}

fn about(nw_dst: u32) -> Match {
    let mut m = Match::any();
    (m.key.nw_dst, m.mask.0.nw_dst) = (nw_dst, u32::MAX);
    m
}

#[test]
fn what_is_too_long_ago_or_unknown_is_not_passed_by() {
    let n = KEPT + 40;
    let log = log_of(1, &vec![vec![about(7)]; usize::try_from(n).unwrap()]);
    let (same, other) = (to(7), to(8));
    assert!(passes(&log, n - KEPT, n, &other));
    assert!(!passes(&log, n - KEPT - 1, n, &other));
    assert!(!passes(&log, n - 1, n, &same));
    assert!(passes(&log, n, n, &same));
    assert!(!passes(&log, n, n + 1, &other), "no such record");
    log.write(Changes::anything(), |generation| assert_eq!(generation, n + 1));
    assert!(!passes(&log, n, n + 1, &other));
}

/// The log keeps the common bits of rules that are too many to be listed. It keeps no bit that one of the
/// rules does not match.
#[test]
fn many_are_logged_by_their_common_bits() {
    let mut changes = Changes::default();
    for n in 0..1000 {
        changes.add(&MiniMatch::new(&about(0x0a00_0000 | n)));
    }
    assert!(changes.0.len() <= MAX_LISTED);
    let log = log_from(1);
    log.write(changes, |_| {});
    assert!(passes(&log, 0, 1, &to(0x0b00_0000)));
    assert!((0..1000).all(|n| !passes(&log, 0, 1, &to(0x0a00_0000 | n))));
}

#[test]
fn conjunctions_are_never_passed_by() {
    let mut m = Match::any();
    (m.key.conj_id, m.mask.0.conj_id) = (7, u32::MAX);
    let log = log_of(1, &[vec![m]]);
    let all = FlowMask(FlowKey {
        conj_id: u32::MAX,
        ..FlowKey::default()
    });
    assert!(!passes(&log, 0, 1, &KnownBits::new(&FlowKey::default(), &all)));
}
