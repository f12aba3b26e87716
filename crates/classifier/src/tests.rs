mod freed;

use crate::linear::{self, Rule};
use crate::{Classifier, MiniMatch, PrefixField};
use heddle_flow::{FlowKey, FlowMask, Match};
use heddle_sync::ReadGuard;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

thread_local! {
    /// Rules that this thread has looked at in walks over all rules of a subtable.
    pub(crate) static PASSED: Cell<usize> = const { Cell::new(0) };
    /// Views that this thread has made.
    pub(crate) static VIEWS: Cell<usize> = const { Cell::new(0) };
}

/// Small domains, so that rules meet each other and the keys. All stages of the mask, prefixes, single bits,
/// ports.
fn arb_match() -> impl Strategy<Value = Match> {
    (0u8..64, 0u32..3, 0u32..4, 0u16..4, 0u32..=32, 0u8..4).prop_map(|(which, port, nw, tp, len, odd)| {
        let mut m = Match::any();
        if which & 1 != 0 {
            m.key.in_port = port;
            m.mask.0.in_port = u32::MAX;
        }
        if which & 2 != 0 {
            m.key.nw_dst = spread(nw);
            m.mask.0.nw_dst = match odd {
                0 => !1,
                _ => u32::MAX.checked_shl(32 - len).unwrap_or(0),
            };
        }
        if which & 4 != 0 {
            m.key.tp_dst = tp;
            m.mask.0.tp_dst = if odd == 1 { 1 } else { u16::MAX };
        }
        if which & 8 != 0 {
            m.key.regs[3] = nw;
            m.mask.0.regs[3] = 2;
        }
        if which & 16 != 0 {
            m.key.ipv6_src[15] = u8::try_from(nw).expect("below 4");
            m.mask.0.ipv6_src = if odd == 2 { [0xff; 16] } else { [0; 16] };
            m.mask.0.ipv6_src[..8].fill(0xff);
        }
        if which & 32 != 0 {
            m.key.dl_type = 0x0800 + tp;
            m.mask.0.dl_type = u16::MAX;
            m.key.tp_src = tp;
            m.mask.0.tp_src = 3;
        }
        m.normalize();
        m
    })
}

/// Few values, whose bits differ at either end.
fn spread(n: u32) -> u32 {
    n << 30 | n
}

fn arb_key() -> impl Strategy<Value = FlowKey> {
    (0u32..3, 0u32..4, 0u16..4, 0u32..4, 0u8..4, 0u16..4).prop_map(|(in_port, nw, tp_dst, r3, v6, tp)| {
        let mut k = FlowKey {
            in_port,
            nw_dst: spread(nw),
            tp_dst,
            tp_src: tp,
            dl_type: 0x0800 + tp,
            ..FlowKey::default()
        };
        k.ipv6_src[15] = v6;
        k.regs[3] = r3;
        k
    })
}

/// `key` in the bits of `wc`, `other` in all others.
fn mixed(key: &FlowKey, other: &FlowKey, wc: &FlowMask) -> FlowKey {
    let mut out = *other;
    let words = out.words_mut().iter_mut().zip(key.words()).zip(wc.words());
    for ((o, k), m) in words {
        *o = *o & !m | k & m;
    }
    out
}

proptest! {
    /// Compact matches give the same results as the wide forms.
    #[test]
    fn compact_matches_compare_as_wide_ones(a in arb_match(), b in arb_match(), key in arb_key()) {
        let (x, y) = (MiniMatch::new(&a), MiniMatch::new(&b));
        let wide = |f: fn(u64, u64, u64, u64) -> bool| {
            let masks = a.mask.words().iter().zip(b.mask.words());
            let keys = a.key.words().iter().zip(b.key.words());
            masks.zip(keys).all(|((m, n), (k, l))| f(*m, *n, *k, *l))
        };
        prop_assert_eq!(x.within(&y), wide(|m, n, k, l| m & n == n && k & n == l));
        prop_assert_eq!(x.overlaps(&y), wide(|m, n, k, l| (k ^ l) & m & n == 0));
        if x.matches(&key) && y.matches(&key) {
            prop_assert!(x.overlaps(&y) && y.overlaps(&x));
        }
    }

    /// At every version, the classifier returns the same as the list. Any key that agrees with the looked-up
    /// key in the wildcards gets the same result.
    #[test]
    fn equals_linear_search(
        ops in prop::collection::vec((arb_match(), 0i32..4, any::<bool>()), 1..60),
        keys in prop::collection::vec((arb_key(), arb_key()), 1..20),
        purge_at in 0u64..60,
        fields in prop::collection::vec(prop::sample::select(PrefixField::all().collect::<Vec<_>>()), 0..4),
        fields_at in 0usize..60,
        (reserve_at, room) in (0usize..60, 0usize..100),
        (publish_at, loose) in (0usize..60, prop::collection::vec((arb_match(), 0i32..4), 1..10)),
    ) {
        let cls = Classifier::new();
        let mut list: Vec<Rule<usize>> = Vec::new();
        let mut entries = HashMap::new();
        for (n, (m, priority, remove)) in ops.iter().enumerate() {
            if n == fields_at {
                cls.set_prefixes(&fields);
            }
            let (version, mini) = (n as u64 + 1, cls.share(MiniMatch::new(m)));
            if n == reserve_at {
                cls.reserve(&mini.mask, room);
            }
            // One rule at most for a match and priority, as OpenFlow has it.
            let old = list.iter().position(|r| {
                r.matches == mini && r.priority == *priority && r.removed == u64::MAX
            });
            if let Some(i) = old {
                list[i].removed = version;
                prop_assert!(cls.remove(&mini, &entries[&i], version));
            }
            if !remove {
                entries.insert(list.len(), cls.insert(&mini, *priority, version, list.len()));
                list.push(Rule { matches: mini.clone(), priority: *priority, added: version, removed: u64::MAX, data: list.len() });
            }
            let found = cls.find_linked(version, &mini, *priority).map(|e| e.data);
            prop_assert_eq!(found, (!remove).then(|| list.len() - 1));
            if n == publish_at {
                cls.publish();
            }
        }
        let last = ops.len() as u64;
        cls.publish();
        cls.purge(purge_at);
        for (m, priority) in &loose {
            let m = MiniMatch::new(m);
            for version in purge_at.min(last)..=last {
                let visible = || list.iter().filter(|r| r.added <= version && version < r.removed);
                let mut within = BTreeSet::new();
                cls.for_each_within(version, &m, |e| assert!(within.insert(e.data), "twice"));
                let want: BTreeSet<usize> = visible().filter(|r| r.matches.within(&m)).map(|r| r.data).collect();
                prop_assert_eq!(within, want);
                let want = visible().any(|r| r.priority == *priority && r.matches.overlaps(&m));
                prop_assert_eq!(cls.overlaps(version, &m, *priority), want);
            }
        }
        let reading = ReadGuard::begin();
        for version in purge_at.min(last)..=last {
            for (key, other) in &keys {
                let mut wc = FlowMask::default();
                let got = cls.lookup(&reading, version, key, &mut wc);
                let want = linear::lookup(&list, version, key);
                prop_assert_eq!(got.map(|e| e.priority), want.map(|r| r.priority));
                if let Some(e) = got {
                    prop_assert!(list[e.data].matches.matches(key));
                }
                // Several rules of equal priority may match; the mixture must match the same set.
                let again = cls.lookup(&reading, version, &mixed(key, other, &wc), &mut FlowMask::default());
                prop_assert_eq!(got.map(|e| e.data), again.map(|e| e.data));
                // With a filter that takes only some of the rules.
                let even = list.iter().filter(|r| r.data % 2 == 0).cloned().collect::<Vec<_>>();
                let mut wc = FlowMask::default();
                let got = cls.lookup_where(&reading, version, key, &mut wc, |e| e.data % 2 == 0);
                let want = linear::lookup(&even, version, key);
                prop_assert_eq!(got.map(|e| e.priority), want.map(|r| r.priority));
                let again = cls.lookup_where(&reading, version, &mixed(key, other, &wc), &mut FlowMask::default(), |e| e.data % 2 == 0);
                prop_assert_eq!(got.map(|e| e.data), again.map(|e| e.data));
            }
        }
        prop_assert_eq!(cls.len(), list.iter().filter(|r| r.removed > purge_at).count());
    }

    #[test]
    fn mini_match_round_trip(m in arb_match(), key in arb_key()) {
        let mini = MiniMatch::new(&m);
        prop_assert_eq!(mini.expand(), m);
        prop_assert_eq!(mini.matches(&key), m.matches(&key));
    }

    /// `within` and `overlaps` against their definitions over all keys of the domain.
    #[test]
    fn within_and_overlaps(a in arb_match(), b in arb_match(), keys in prop::collection::vec(arb_key(), 40)) {
        let (x, y) = (MiniMatch::new(&a), MiniMatch::new(&b));
        for k in &keys {
            if x.within(&y) && x.matches(k) {
                prop_assert!(y.matches(k));
            }
            if x.matches(k) && y.matches(k) {
                prop_assert!(x.overlaps(&y));
            }
        }
        prop_assert!(x.within(&x) && x.overlaps(&x));
    }
}

/// A rule that is removed at the version that added it was never visible. It leaves no dead slots for lookups
/// to pass for long.
#[test]
fn what_comes_and_goes_with_one_version_goes_at_once() {
    let cls = Classifier::new();
    let host = |n: u32| MiniMatch::new(&ip_match(1, n, 32, None));
    let (many, times) = if cfg!(miri) { (30, 50) } else { (3000, 10_000) };
    for n in 0..many {
        cls.insert(&host(n), 5, 1, n);
    }
    cls.publish();
    for n in 0..times {
        let e = cls.insert(&host(7777), 9, 2, n);
        assert_eq!(cls.len(), many as usize + 1);
        assert!(cls.remove(&host(7777), &e, 2) && !cls.remove(&host(7777), &e, 2));
        cls.restore(&e);
        assert!(cls.find_exact(2, &host(7777), 9).is_none());
    }
    assert_eq!((cls.len(), cls.n_masks()), (many as usize, 1));
    let key = FlowKey {
        in_port: 1,
        nw_dst: many - 1,
        ..FlowKey::default()
    };
    let reading = ReadGuard::begin();
    assert_eq!(
        cls.lookup(&reading, 2, &key, &mut FlowMask::default())
            .map(|e| e.data),
        Some(many - 1)
    );
}

#[test]
fn readers_go_on_while_a_writer_loads_rules() {
    const RULES: u32 = if cfg!(miri) { 50 } else { 20_000 };
    let cls = std::sync::Arc::new(Classifier::new());
    let any = MiniMatch::new(&Match::any());
    cls.insert(&any, 0, 0, u32::MAX);
    cls.publish();
    let writer = {
        let cls = cls.clone();
        std::thread::spawn(move || {
            for n in 0..RULES {
                let mut m = Match::any();
                m.key.nw_dst = n;
                m.mask.0.nw_dst = u32::MAX;
                cls.insert(&MiniMatch::new(&m), 1, 0, n);
                cls.publish();
            }
        })
    };
    let mut seen = 0;
    while !writer.is_finished() {
        let reading = ReadGuard::begin();
        let key = FlowKey {
            nw_dst: seen % RULES,
            ..FlowKey::default()
        };
        let e = cls
            .lookup(&reading, 0, &key, &mut FlowMask::default())
            .expect("the catch-all matches");
        assert!(e.data == u32::MAX || e.data == key.nw_dst);
        seen += 7;
    }
    writer.join().expect("writer ends");
    let reading = ReadGuard::begin();
    for n in [0, 1, RULES / 2, RULES - 1] {
        let key = FlowKey {
            nw_dst: n,
            ..FlowKey::default()
        };
        assert_eq!(
            cls.lookup(&reading, 0, &key, &mut FlowMask::default())
                .map(|e| e.data),
            Some(n)
        );
    }
}

/// If a match has all bits of the rules' mask, a walk does not look at rules with other values. Neither does
/// a check for overlaps.
#[test]
fn rules_named_in_full_are_found_at_once() {
    let cls = Classifier::new();
    let many = if cfg!(miri) { 30 } else { 2000 };
    for n in 0..many {
        cls.insert(&MiniMatch::new(&ip_match(1, n, 32, Some(80))), 5, 1, n);
        cls.insert(&MiniMatch::new(&ip_match(2, n << 8, 24, None)), 5, 1, many + n);
    }
    let found = |m: Match| {
        let mut found = Vec::new();
        cls.for_each_within(1, &MiniMatch::new(&m), |e| found.push(e.data));
        found
    };
    PASSED.set(0);
    for n in 0..many {
        let (host, net) = (ip_match(1, n, 32, Some(80)), ip_match(2, n << 8, 24, None));
        assert!(cls.overlaps(1, &MiniMatch::new(&host), 5) && !cls.overlaps(1, &MiniMatch::new(&host), 4));
        assert!(!cls.overlaps(1, &MiniMatch::new(&ip_match(3, n, 32, Some(80))), 5));
        assert_eq!(found(host), [n]);
        // Rules with longer prefixes might be within it.
        if n % 100 == 0 {
            assert_eq!(found(net), [many + n]);
        }
    }
    assert!(
        PASSED.get() <= (many / 100 * many + many) as usize,
        "{}",
        PASSED.get()
    );
}

/// Many rules with different masks and priorities are added together: that makes one view. So does removing
/// or restoring them together.
#[test]
fn what_comes_together_is_shown_at_once() {
    let cls = Classifier::new();
    let many = if cfg!(miri) { 20 } else { 500 };
    let matches = |n: u32| {
        let mut m = ip_match(1, 0xffff_ffff, 32, None);
        m.mask.0.nw_dst = n + 1;
        m.normalize();
        MiniMatch::new(&m)
    };
    VIEWS.set(0);
    let all: Vec<_> = (0..many)
        .map(|n| cls.insert(&matches(n), n.cast_signed(), 1, n))
        .collect();
    assert_eq!((cls.n_masks(), VIEWS.get()), (0, 0));
    for n in 0..many {
        assert!(cls.find_linked(1, &matches(n), n.cast_signed()).is_some());
    }
    cls.publish();
    cls.publish();
    assert_eq!((cls.n_masks(), VIEWS.get()), (many as usize, 1));
    // Undone, as in a change whose later step failed.
    let (last, m) = (&all[0], matches(many));
    let e = cls.insert(&m, 7, 2, many);
    assert!(cls.remove(&matches(0), last, 2) && cls.remove(&m, &e, 2));
    cls.restore(last);
    assert!(cls.find_linked(2, &matches(0), 0).is_some());
    for (n, e) in (0..).zip(&all) {
        assert!(cls.remove(&matches(n), e, 3));
    }
    cls.purge(3);
    assert_eq!((cls.n_masks(), cls.len()), (0, 0));
    assert!(VIEWS.get() <= 2);
}

/// The bits that a lookup depends on, in a classifier with these rules.
fn wildcards(rules: &[Match], key: &FlowKey) -> FlowMask {
    let cls = Classifier::new();
    for (n, m) in (0..).zip(rules) {
        cls.insert(&MiniMatch::new(m), n, 0, n);
    }
    cls.publish();
    let mut wc = FlowMask::default();
    cls.lookup(&ReadGuard::begin(), 0, key, &mut wc);
    wc
}

fn ip_match(in_port: u32, nw_dst: u32, len: u32, tp_dst: Option<u16>) -> Match {
    let mut m = Match::any();
    m.key.in_port = in_port;
    m.mask.0.in_port = u32::MAX;
    m.key.nw_dst = nw_dst;
    m.mask.0.nw_dst = u32::MAX << (32 - len);
    if let Some(tp) = tp_dst {
        m.key.tp_dst = tp;
        m.mask.0.tp_dst = u16::MAX;
    }
    m.normalize();
    m
}

#[test]
fn a_stage_that_no_rule_has_ends_the_lookup() {
    let rules = [ip_match(1, 0x0a01_0000, 16, Some(80))];
    let key = FlowKey {
        in_port: 2,
        nw_dst: 0x0a01_0203,
        tp_dst: 80,
        ..FlowKey::default()
    };
    let wc = wildcards(&rules, &key);
    assert_eq!(
        (wc.0.in_port, wc.0.nw_dst, wc.0.tp_dst),
        (u32::MAX, 0, 0),
        "another port: the rest does not matter"
    );
}

#[test]
fn few_bits_tell_an_address_from_all_prefixes() {
    let rules = [
        ip_match(1, 0x0a01_0000, 16, None),
        ip_match(2, 0xc0a8_0000, 16, None),
    ];
    let key = FlowKey {
        in_port: 1,
        nw_dst: 0x0b01_020f,
        ..FlowKey::default()
    };
    let wc = wildcards(&rules, &key);
    assert_eq!(wc.0.nw_dst, 0xff00_0000, "11 is told from 10 by eight bits");
}

#[test]
fn few_bits_tell_a_port_from_all_ports() {
    let rules = [ip_match(1, 0x0a01_0000, 16, Some(80))];
    let key = FlowKey {
        in_port: 1,
        nw_dst: 0x0a01_020f,
        tp_dst: 79,
        ..FlowKey::default()
    };
    let wc = wildcards(&rules, &key);
    assert_eq!((wc.0.nw_dst, wc.0.tp_dst), (0xffff_0000, 0xfff0));
}

/// Among matching rules of equal priority, the rule with the oldest mask wins.
#[test]
fn of_equals_the_first_mask_counts() {
    let mut wide = Match::any();
    (wide.key.in_port, wide.mask.0.in_port) = (1, u32::MAX);
    let mut narrow = wide;
    (narrow.key.tp_dst, narrow.mask.0.tp_dst) = (7, u16::MAX);
    for order in [[&wide, &narrow], [&narrow, &wide]] {
        let cls = Classifier::new();
        for (n, m) in order.into_iter().enumerate() {
            cls.insert(&MiniMatch::new(m), 5, 1, n);
        }
        cls.publish();
        let found = || {
            let reading = ReadGuard::begin();
            cls.lookup(&reading, 2, &narrow.key, &mut FlowMask::default())
                .map(|e| e.data)
        };
        assert_eq!(found(), Some(0));
        // A mask with a rule of higher priority comes first, even if it is younger.
        let mut other = *order[1];
        other.key.in_port = 2;
        cls.insert(&MiniMatch::new(&other), 6, 2, 2);
        cls.publish();
        assert_eq!(found(), Some(1));
    }
}
