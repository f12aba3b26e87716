//! Watches against a list of all changes, each compared with each entry.

use super::*;
use crate::changes::Changes;
use heddle_classifier::MiniMatch;
use heddle_flow::Match;
use proptest::prelude::*;

/// A rule about some fields that packets bring, and some that translations set.
fn matches() -> impl Strategy<Value = Match> {
    (0_u8..64, 0_u32..4, 0_u16..4, 0_u32..3, any::<bool>()).prop_map(|(which, nw, tp, reg, v6)| {
        let mut m = Match::any();
        let (k, mask) = (&mut m.key, &mut m.mask.0);
        if which & 1 != 0 {
            (k.nw_dst, mask.nw_dst) = (nw, 3);
        }
        if which & 2 != 0 {
            (k.tp_dst, mask.tp_dst) = (tp, 0xffff);
        }
        if which & 4 != 0 {
            (k.dl_type, mask.dl_type) = (if v6 { 0x86dd } else { 0x0800 }, 0xffff);
        }
        if which & 8 != 0 {
            (k.regs[2], mask.regs[2]) = (reg, u32::MAX);
        }
        if which & 16 != 0 {
            (k.nw_frag, mask.nw_frag) = (1, 1);
        }
        if which & 32 != 0 {
            (k.in_port, mask.in_port) = (reg, u32::MAX);
        }
        m.normalize();
        m
    })
}

/// Bits that entries of a watch have values for.
fn masks() -> impl Strategy<Value = FlowMask> {
    (0_u8..16).prop_map(|which| {
        let mut mask = FlowMask::default();
        let m = &mut mask.0;
        m.in_port = u32::MAX;
        m.dl_type = 0xffff;
        if which & 1 != 0 {
            m.nw_dst = 3;
        }
        if which & 2 != 0 {
            m.tp_dst = 0xffff;
        }
        if which & 4 != 0 {
            m.nw_frag = 3;
        }
        if which & 8 != 0 {
            m.nw_src = 1;
        }
        mask
    })
}

/// An entry, and what a list knows of it.
struct Plain {
    key: FlowKey,
    compact: CompactKey,
    stamp: u32,
    /// The generation of the table up to which it is known to be right.
    right_at: u64,
}

proptest! {
    /// An entry goes on only if none of the changes since is about it; and it does go on if that can be known at all and there is room.
    #[test]
    fn goes_on_what_no_change_is_about(
        steps in prop::collection::vec((prop::collection::vec(matches(), 1..3), any::<prop::sample::Index>(), any::<bool>()), 1..80),
        mask in masks(),
        reg in 0_u32..3,
        port in 0_u32..3,
        rewritten in any::<bool>(),
    ) {
        let generations = Generations::default();
        let slot = Generations::logged_slot_of(7);
        let word = |f: &dyn Fn(&mut FlowKey)| {
            let mut k = FlowKey::default();
            f(&mut k);
            let at = k.words().iter().position(|w| *w != 0).expect("a field was set");
            (u8::try_from(at).unwrap(), k.words()[at])
        };
        let said = |(word, value): (u8, u64), changed| Override { from: 0, word, changed, value };
        let mut overrides = vec![said(word(&|k| k.in_port = port + 8), false)];
        overrides[0].value = word(&|k| k.in_port = 1).1 * u64::from(port);
        if reg != 0 {
            overrides.push(said(word(&|k| k.regs[2] = reg), false));
        }
        if rewritten {
            // The ports share a word: the translation has changed one of them before it looked.
            overrides.push(said((word(&|k| k.tp_dst = 1).0, 0), true));
        }
        let mut watches = Watches::new();
        let under = Under { tuple: 3, mask: &mask, v6: false };
        let mut number = NONE;
        let mut list: Vec<Plain> = (0..24_u32).map(|n| {
            let key = FlowKey {
                in_port: 1,
                dl_type: 0x0800,
                nw_proto: 17,
                nw_ttl: 9,
                nw_dst: n & 3,
                tp_dst: u16::try_from(n >> 2 & 3).unwrap(),
                nw_src: n >> 4,
                ..FlowKey::default()
            };
            let (n, stamp) = watches.enter(std::iter::once(generations.read(slot)), &overrides, under).expect("it is new");
            number = n;
            Plain { key, compact: CompactKey::of(&key, key.in_port), stamp, right_at: generations.read(slot).generation }
        }).collect();
        let mut kinds = std::collections::BTreeSet::new();
        for (changes, which, all) in steps {
            watches.begin();
            let mut told = Changes::default();
            for m in &changes {
                told.add(&MiniMatch::new(m));
                kinds.insert(m.mask.words().to_vec());
            }
            generations.bump_changed(slot, told);
            let any = generations.any();
            let now = generations.read(slot).generation;
            let few = vec![which.index(list.len())];
            for at in if all { (0..list.len()).collect() } else { few } {
                let p = &mut list[at];
                let stamp = watches.look(number, &p.compact, p.stamp, any, &generations);
                let mut known = Known::new(&p.key.masked(&mask), &mask);
                overrides.iter().for_each(|o| known.apply(o));
                let passes = generations.passes_by(slot, p.right_at, now, &known, &mut 1_000_000);
                match stamp {
                    Some(stamp) => {
                        prop_assert!(passes, "a change is about it");
                        prop_assert!(watches.holds(number, stamp, any));
                        (p.stamp, p.right_at) = (stamp, now);
                    }
                    None => {
                        // More kinds of changes than filters make entries forget.
                        prop_assert!(!passes || kinds.len() > FILTERS, "none is about it");
                        p.stamp = watches.enter(std::iter::once(generations.read(slot)), &overrides, under).expect("it is new").1;
                        watches.leave(number);
                        p.right_at = now;
                    }
                }
            }
        }
        for _ in &list {
            watches.leave(number);
        }
        prop_assert_eq!((watches.n_filters, watches.index.len()), (0, 0));
    }
}

fn about(dst: u32) -> MiniMatch {
    let mut m = Match::any();
    (m.key.nw_dst, m.mask.0.nw_dst) = (dst, u32::MAX);
    MiniMatch::new(&m)
}

/// An answer that is older than what is known of changes is refused; one under another mask, or that saw other constants, has a watch of its own;
/// what a log does not tell any more makes all stale.
#[test]
fn what_is_not_known_is_not_right() {
    let generations = Generations::default();
    let slot = Generations::logged_slot_of(7);
    let mut mask = FlowMask::default();
    mask.0.nw_dst = u32::MAX;
    let mut watches = Watches::new();
    let under = |tuple| Under {
        tuple,
        mask: &mask,
        v6: false,
    };
    let dep = || std::iter::once(generations.read(slot));
    let old = generations.read(slot);
    let (n, stamp) = watches.enter(dep(), &[], under(1)).unwrap();
    let (other, _) = watches.enter(dep(), &[], under(2)).unwrap();
    assert_ne!(n, other);
    let change = |dst| {
        let mut c = Changes::default();
        c.add(&about(dst));
        generations.bump_changed(slot, c);
    };
    let key = CompactKey::of_family(false);
    change(5);
    let stamp = watches.look(n, &key, stamp, generations.any(), &generations);
    assert!(stamp.is_some());
    assert!(watches.enter(std::iter::once(old), &[], under(1)).is_none());
    // The values of the last changes are compared, of those before only their hashes.
    for dst in 1..20_000 {
        change(dst);
        watches.begin();
        watches.look(n, &key, 0, generations.any(), &generations);
    }
    assert!(
        watches
            .look(n, &key, stamp.unwrap(), generations.any(), &generations)
            .is_none()
    );
    let (_, stamp) = watches.enter(dep(), &[], under(1)).unwrap();
    assert_eq!(
        watches.look(n, &key, stamp, generations.any(), &generations),
        Some(stamp)
    );
    for dst in 1..2_000 {
        change(dst);
    }
    assert!(
        watches
            .look(n, &key, stamp, generations.any(), &generations)
            .is_none(),
        "the log has forgotten some"
    );
    // A change of something without a log.
    let (n, stamp) = watches
        .enter(std::iter::once(generations.read(9)), &[], under(1))
        .unwrap();
    generations.bump(9);
    assert!(
        watches
            .look(n, &key, stamp, generations.any(), &generations)
            .is_none()
    );
}

/// There are only so many watches; the numbers of those that nobody has any more are given again.
#[test]
fn watches_are_bounded() {
    let generations = Generations::default();
    let mask = FlowMask::default();
    let mut watches = Watches::new();
    let enter = |watches: &mut Watches, tuple: usize| {
        let under = Under {
            tuple: u32::try_from(tuple).unwrap(),
            mask: &mask,
            v6: true,
        };
        watches
            .enter(std::iter::once(generations.read(1)), &[], under)
            .unwrap()
            .0
    };
    let all: Vec<u16> = (0..2 * MOST).map(|tuple| enter(&mut watches, tuple)).collect();
    assert_eq!(all.iter().filter(|n| **n != NONE).count(), MOST);
    all.iter().for_each(|n| watches.leave(*n));
    assert_ne!(enter(&mut watches, 0), NONE);
}

/// When numbers of changes run out, entries are translated again and get another watch.
#[test]
fn a_worn_watch_is_given_up() {
    let generations = Generations::default();
    let slot = Generations::logged_slot_of(7);
    let mut mask = FlowMask::default();
    mask.0.nw_dst = u32::MAX;
    let under = Under {
        tuple: 1,
        mask: &mask,
        v6: false,
    };
    let mut watches = Watches::new();
    let dep = || std::iter::once(generations.read(slot));
    let (n, _) = watches.enter(dep(), &[], under).unwrap();
    watches.hot[usize::from(n)].seq = WORN - 2;
    let key = CompactKey::of_family(false);
    let mut stamp = Some(WORN - 2);
    for dst in 1..5 {
        let mut c = Changes::default();
        c.add(&about(dst));
        generations.bump_changed(slot, c);
        stamp = stamp.and_then(|s| watches.look(n, &key, s, generations.any(), &generations));
    }
    assert_eq!(stamp, None);
    assert_ne!(watches.enter(dep(), &[], under).unwrap().0, n);
}

/// Bundles of many rules, and a worker that has looked after something else meanwhile: what it takes in is bounded, and the rest is not taken for right.
#[test]
fn a_burst_takes_in_so_many_changes() {
    let generations = Generations::default();
    let slot = Generations::logged_slot_of(7);
    let mut mask = FlowMask::default();
    mask.0.nw_dst = u32::MAX;
    let mut watches = Watches::new();
    let enter = |watches: &mut Watches, tuple| {
        let under = Under {
            tuple,
            mask: &mask,
            v6: false,
        };
        let entered = watches.enter(std::iter::once(generations.read(slot)), &[], under);
        entered.unwrap()
    };
    let all: Vec<(u16, u32)> = (0..8).map(|tuple| enter(&mut watches, tuple)).collect();
    for bundle in 0..50 {
        let mut changes = Changes::default();
        (0..60).for_each(|n| changes.add(&about(1000 + bundle * 60 + n)));
        generations.bump_changed(slot, changes);
    }
    let key = CompactKey::of_family(false);
    let taken = |w: &Watches| -> u32 {
        all.iter()
            .map(|(n, _)| w.hot[usize::from(*n)].seq - NEVER - 1)
            .sum()
    };
    let any = generations.any();
    watches.begin();
    for (n, stamp) in &all {
        assert_eq!(watches.look(*n, &key, *stamp, any, &generations), None);
    }
    // One more for each watch: that its entries are stale.
    assert_eq!(taken(&watches) as usize, PATIENCE + all.len());
    // They are right from there on.
    let mut changes = Changes::default();
    changes.add(&about(7));
    generations.bump_changed(slot, changes);
    watches.begin();
    for (tuple, (n, _)) in (0..).zip(&all) {
        let stamp = watches.hot[usize::from(*n)].seq;
        let any = generations.any();
        assert!(
            watches.look(*n, &key, stamp, any, &generations).is_some(),
            "{tuple}"
        );
    }
}
