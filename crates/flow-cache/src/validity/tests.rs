//! Compares groups with a list of all changes, each compared with each entry.

use super::*;
use heddle_classifier::MiniMatch;
use heddle_datapath_api::Changes;
use heddle_flow::{FlowKey, Match};
use proptest::prelude::*;
use std::sync::LazyLock;

/// A rule that matches fields of packets, and fields that translations set.
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

/// Masks of entries.
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

/// An entry of the list.
struct Plain {
    key: FlowKey,
    compact: CompactKey,
    stamp: u32,
    /// The generation of the table up to which the entry is known to be valid.
    right_at: Dep,
}

/// The slot of the table in these tests.
fn slot() -> u16 {
    Generations::logged_slot_of(7)
}

fn log_change(generations: &Generations, changed: &[MiniMatch]) {
    let mut changes = Changes::default();
    changed.iter().for_each(|m| changes.add(m));
    generations.bump_changed(slot(), changes);
}

fn under(subtable: u32, mask: &FlowMask) -> Under<'_> {
    static NOTHING: LazyLock<FlowMask> = LazyLock::new(FlowMask::default);
    Under {
        in_port: 0,
        subtable,
        mask,
        v6: false,
        context_mask: &NOTHING,
    }
}

/// Fields that the tests treat as context.
static CONTEXT_OF_SOME: LazyLock<FlowMask> = LazyLock::new(|| {
    FlowMask(FlowKey {
        nw_dst: u32::MAX,
        nw_frag: u8::MAX,
        dl_type: u16::MAX,
        ..FlowKey::default()
    })
});

proptest! {
    /// An entry stays valid as long as no change since then is known to concern it, whether its key is
    /// compact or partly outside.
    #[test]
    fn an_entry_that_no_change_concerns_stays_valid(
        steps in prop::collection::vec(
            (prop::collection::vec(matches(), 1..3), any::<prop::sample::Index>(), any::<bool>()),
            1..80,
        ),
        mask in masks(),
        reg in 0_u32..3,
        port in 0_u32..3,
        rewritten in any::<bool>(),
        some_context in any::<bool>(),
    ) {
        let generations = Generations::default();
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
            // The ports share a word: the translation has changed one of them before the lookup.
            overrides.push(said((word(&|k| k.tp_dst = 1).0, 0), true));
        }
        let mut groups = ValidityGroups::new();
        let mut under = under(3, &mask);
        if some_context {
            under.context_mask = &CONTEXT_OF_SOME;
        }
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
            let right_at = generations.read(slot());
            let Membership { group, stamp } = groups.enter(&[right_at], &overrides, under).expect("it is new");
            number = group;
            Plain { compact: CompactKey::of(&key, key.in_port), key: key.masked(&mask), stamp, right_at }
        }).collect();
        for (changes, which, all) in steps {
            groups.begin();
            log_change(&generations, &changes.iter().map(MiniMatch::new).collect::<Vec<_>>());
            let any = generations.any();
            let now = generations.read(slot());
            let few = vec![which.index(list.len())];
            for at in if all { (0..list.len()).collect() } else { few } {
                let p = &mut list[at];
                let full = |i: usize| Some(p.key.words()[i.checked_sub(CONTEXT_WORDS.into())?]);
                let key = |i: usize| full(i).unwrap_or_else(|| p.compact.words()[i]);
                let entry = Membership { group: number, stamp: p.stamp };
                let stamp = groups.look(entry, any, &generations, key);
                let known = KnownBits::new(&p.key, &mask);
                let outlasts = generations.outlasts(&[p.right_at], &overrides, known, usize::MAX);
                prop_assert_eq!(stamp.is_some(), outlasts);
                p.right_at = now;
                p.stamp = match stamp {
                    Some(stamp) => stamp,
                    None => {
                        let again = groups.enter(&[now], &overrides, under).expect("it is new");
                        groups.leave(number);
                        again.stamp
                    }
                };
                let entry = Membership { group: number, stamp: p.stamp };
                prop_assert!(groups.holds(entry, any));
            }
        }
        for _ in &list {
            groups.leave(number);
        }
        prop_assert_eq!((groups.n_changes, groups.index.len()), (0, 0));
    }
}

fn about(dst: u32) -> MiniMatch {
    let mut m = Match::any();
    (m.key.nw_dst, m.mask.0.nw_dst) = (dst, u32::MAX);
    MiniMatch::new(&m)
}

/// The mask of entries that differ in the field that [`about`] matches.
fn by_address() -> FlowMask {
    let mut mask = FlowMask::default();
    mask.0.nw_dst = u32::MAX;
    mask
}

/// The words of the key of a packet without an address.
fn key(at: usize) -> u64 {
    CompactKey::of_family(false).words()[at]
}

/// A translation older than the known changes is refused. Another mask has another group. Changes that the
/// log has forgotten make all entries stale.
#[test]
fn what_is_not_known_is_not_right() {
    let (generations, mask, mut groups) = (Generations::default(), by_address(), ValidityGroups::new());
    let old = generations.read(slot());
    let mut entry = groups.enter(&[old], &[], under(1, &mask)).unwrap();
    let other = groups.enter(&[old], &[], under(2, &mask)).unwrap();
    assert_ne!(entry.group, other.group);
    log_change(&generations, &[about(5)]);
    entry.stamp = groups.look(entry, generations.any(), &generations, key).unwrap();
    assert!(groups.enter(&[old], &[], under(1, &mask)).is_none());
    // One change more than a group keeps.
    for dst in (1..).take(MAX_GROUP_CHANGES + 1) {
        let kept = groups.look(entry, generations.any(), &generations, key);
        assert!(kept.is_some(), "{dst}");
        log_change(&generations, &[about(dst)]);
    }
    assert_eq!(groups.look(entry, generations.any(), &generations, key), None);
    let now = || [generations.read(slot())];
    entry.stamp = groups.enter(&now(), &[], under(1, &mask)).unwrap().stamp;
    let any = generations.any();
    assert_eq!(groups.look(entry, any, &generations, key), Some(entry.stamp));
    (1..2_000).for_each(|dst| log_change(&generations, &[about(dst)]));
    let forgotten = groups.look(entry, generations.any(), &generations, key);
    assert_eq!(forgotten, None, "the log has forgotten some");
    // A change of something without a log.
    let dep = [generations.read(9)];
    let entry = groups.enter(&dep, &[], under(1, &mask)).unwrap();
    generations.bump(9);
    assert_eq!(groups.look(entry, generations.any(), &generations, key), None);
}

/// The number of groups is bounded, and numbers of unused groups are reused.
#[test]
fn watches_are_bounded() {
    let (generations, mask, mut groups) = (Generations::default(), by_address(), ValidityGroups::new());
    let enter = |groups: &mut ValidityGroups, subtable: usize| {
        let under = under(u32::try_from(subtable).unwrap(), &mask);
        groups.enter(&[generations.read(1)], &[], under).unwrap().group
    };
    let all: Vec<u16> = (0..2 * MAX_GROUPS)
        .map(|subtable| enter(&mut groups, subtable))
        .collect();
    // One port leaves groups for other ports.
    assert_eq!(all.iter().filter(|n| **n != NONE).count(), MAX_GROUPS / PORTS);
    let elsewhere = Under {
        in_port: 1,
        ..under(0, &mask)
    };
    let other = groups
        .enter(&[generations.read(2)], &[], elsewhere)
        .unwrap()
        .group;
    assert_ne!(other, NONE);
    all.iter().for_each(|n| groups.leave(*n));
    assert_ne!(enter(&mut groups, 0), NONE);
}

/// The number of changes in all groups is bounded. Entries that one of the changes concerns are valid in no
/// group.
#[test]
fn notes_are_bounded() {
    let (generations, mask, mut groups) = (Generations::default(), by_address(), ValidityGroups::new());
    let dep = [generations.read(slot())];
    let all: Vec<Membership> = (0..300)
        .map(|subtable| groups.enter(&dep, &[], under(subtable, &mask)).unwrap())
        .collect();
    let most = u32::try_from(MAX_GROUP_CHANGES).unwrap();
    (1..=most).for_each(|dst| log_change(&generations, &[about(dst)]));
    let right = |groups: &mut ValidityGroups, entry, dst: u32| {
        groups.begin();
        let fields = FlowMask(FlowKey {
            nw_dst: dst,
            ..FlowKey::default()
        });
        let key = |i: usize| CompactMask::of_fields(&fields, false).words()[i];
        groups.look(entry, generations.any(), &generations, key)
    };
    let run_steps = all
        .iter()
        .filter(|w| right(&mut groups, **w, 0).is_some())
        .count();
    assert_eq!(run_steps, MAX_CHANGES / MAX_GROUP_CHANGES);
    assert_eq!(groups.n_changes, MAX_CHANGES);
    for group in &all {
        assert!(
            [1, 7, most]
                .iter()
                .all(|dst| right(&mut groups, *group, *dst).is_none())
        );
    }
}

/// When numbers of changes run out, entries are translated again and get another group.
#[test]
fn a_worn_watch_is_given_up() {
    let (generations, mask, mut groups) = (Generations::default(), by_address(), ValidityGroups::new());
    let enter = |groups: &mut ValidityGroups| {
        let entered = groups.enter(&[generations.read(slot())], &[], under(1, &mask));
        entered.unwrap().group
    };
    let n = enter(&mut groups);
    groups.all[usize::from(n)].changes.last = WORN - 3;
    let entry = Membership {
        group: n,
        stamp: WORN - 1,
    };
    let mut stamp = Some(WORN - 3);
    for dst in 1..5 {
        assert_eq!(stamp.is_some(), dst < 4);
        log_change(&generations, &[about(dst)]);
        let any = generations.any();
        stamp = groups.look(entry, any, &generations, key);
        assert!(dst < 3 || !groups.holds(entry, any));
    }
    assert_eq!(stamp, None);
    assert_ne!(enter(&mut groups), n);
}

/// A burst takes in a bounded number of changes, even after bundles of many rules that the worker has not
/// read yet. The remaining entries are not taken for valid.
#[test]
fn a_burst_takes_in_a_bounded_number_of_changes() {
    let (generations, mask, mut groups) = (Generations::default(), by_address(), ValidityGroups::new());
    let dep = [generations.read(slot())];
    let all: Vec<Membership> = (0..8)
        .map(|subtable| groups.enter(&dep, &[], under(subtable, &mask)).unwrap())
        .collect();
    for bundle in 0..50 {
        let changed: Vec<_> = (0..60).map(|n| about(1000 + bundle * 60 + n)).collect();
        log_change(&generations, &changed);
    }
    let last = |w: &ValidityGroups, n: u16| w.all[usize::from(n)].changes.last;
    let any = generations.any();
    groups.begin();
    for entry in &all {
        assert_eq!(groups.look(*entry, any, &generations, key), None);
    }
    // One more change for each group: it makes its entries stale.
    let taken = all.iter().map(|entry| last(&groups, entry.group) - entry.stamp);
    assert_eq!(taken.sum::<u32>() as usize, TAKEN_IN_CHANGES + all.len());
    // Entries with that stamp are valid from there on.
    log_change(&generations, &[about(7)]);
    groups.begin();
    for entry in &all {
        let stamp = last(&groups, entry.group);
        let entry = Membership { stamp, ..*entry };
        let now = groups.look(entry, generations.any(), &generations, key);
        assert_eq!(now, Some(stamp + 1));
    }
}
