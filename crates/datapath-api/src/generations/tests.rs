//! Slots that packets cannot choose, writers that overtake each other, and bounded comparisons.

use super::*;
use heddle_flow::{FlowKey, FlowMask, Match};
use std::collections::HashSet;
use std::sync::atomic::Ordering::AcqRel;

/// A guest knows the code and its own addresses. It invents addresses that would share one slot, or the slot
/// of the configuration.
#[test]
fn who_makes_things_up_chooses_no_slot() {
    let plain = |thing: u64| thing.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    for wanted in [0, 77] {
        let crafted = (0_u64..).filter(|thing| plain(*thing) == wanted).take(2000);
        let slots: HashSet<u16> = crafted.map(Generations::learned_slot_of).collect();
        assert!(slots.len() > 1800, "{} slots", slots.len());
        assert!(slots.iter().all(|s| (N_MADE..N_SLOTS).contains(&usize::from(*s))));
    }
    let made: HashSet<u16> = (0..10_000).map(Generations::slot_of).collect();
    assert!(
        made.iter()
            .all(|s| *s != Generations::ALL && usize::from(*s) < N_MADE)
    );
    assert!(made.len() > N_MADE * 9 / 10);
}

/// The bits that all packets to this address have in common.
fn to(nw_dst: u32) -> KnownBits {
    let key = |nw_dst| FlowKey {
        nw_dst,
        ..FlowKey::default()
    };
    KnownBits::new(&key(nw_dst), &FlowMask(key(u32::MAX)))
}

fn about(nw_dst: u32) -> MiniMatch {
    let mut m = Match::any();
    (m.key.nw_dst, m.mask.0.nw_dst) = (nw_dst, u32::MAX);
    MiniMatch::new(&m)
}

/// Two writers overtake each other. While the first one's record is missing, readers do not take the log for
/// complete. The generation never falls.
#[test]
fn writers_that_overtake_leave_the_log_incomplete() {
    let generations = Generations::default();
    let slot = Generations::logged_slot_of(1);
    generations.bump_changed(slot, Changes::anything());
    let before = generations.read(slot);
    let log = generations.log_of(slot).expect("it was written");
    let one = |n| {
        let mut changes = Changes::default();
        changes.add(&about(n));
        changes
    };
    log.write(one(1), |drawn| {
        generations.bump_changed(slot, one(2));
        let now = generations.read(slot).generation;
        assert_eq!((drawn, now), (before.generation + 1, before.generation + 2));
        let mut told = 0;
        let all = generations.changed(slot, before.generation, now, &mut |_| {
            told += 1;
            true
        });
        assert!(all && told == 2, "the first one's record is there, and told");
    });
    let drawn = log.drawn.fetch_add(1, AcqRel) + 1;
    generations.bump_changed(slot, one(3));
    let now = generations.read(slot).generation;
    assert_eq!(now, drawn + 1);
    assert!(
        !generations.changed(slot, drawn - 1, now, &mut |_| true),
        "a record is missing"
    );
    assert!(generations.changed(slot, drawn, now, &mut |_| true));
}

#[test]
fn comparisons_are_bounded() {
    let generations = Generations::default();
    let dep = [generations.read(Generations::logged_slot_of(1))];
    for n in 0..10 {
        let mut changes = Changes::default();
        changes.add(&about(n));
        generations.bump_changed(dep[0].slot, changes);
    }
    assert!(generations.outlasts(&dep, &[], to(11), 10));
    assert!(!generations.outlasts(&dep, &[], to(11), 9));
    assert!(!generations.outlasts(&dep, &[], to(3), 10));
}
