use crate::linear::{self, Rule};
use crate::{Classifier, MiniMatch};
use heddle_flow::{FlowKey, FlowMask, Match};
use proptest::prelude::*;
use std::collections::HashMap;

/// Small domains, so that rules meet each other and the keys.
fn arb_match() -> impl Strategy<Value = Match> {
    (0u8..16, 0u32..3, 0u32..4, 0u16..2, 0u8..2).prop_map(|(which, port, nw, tp, prefix)| {
        let mut m = Match::any();
        if which & 1 != 0 {
            m.key.in_port = port;
            m.mask.0.in_port = u32::MAX;
        }
        if which & 2 != 0 {
            m.key.nw_dst = nw;
            m.mask.0.nw_dst = if prefix == 0 { u32::MAX } else { !1 };
        }
        if which & 4 != 0 {
            m.key.tp_dst = tp;
            m.mask.0.tp_dst = 1;
        }
        if which & 8 != 0 {
            m.key.regs[3] = nw;
            m.mask.0.regs[3] = 2;
        }
        m.normalize();
        m
    })
}

fn arb_key() -> impl Strategy<Value = FlowKey> {
    (0u32..3, 0u32..4, 0u16..2, 0u32..4).prop_map(|(in_port, nw_dst, tp_dst, r3)| {
        let mut k = FlowKey {
            in_port,
            nw_dst,
            tp_dst,
            ..FlowKey::default()
        };
        k.regs[3] = r3;
        k
    })
}

proptest! {
    /// At every version, the classifier answers what the list answers; and any key that agrees with the looked-up
    /// key in the wildcards gets the same answer.
    #[test]
    fn equals_linear_search(
        ops in prop::collection::vec((arb_match(), 0i32..4, any::<bool>()), 1..60),
        keys in prop::collection::vec((arb_key(), arb_key()), 1..20),
        purge_at in 0u64..60,
    ) {
        let cls = Classifier::new();
        let mut list: Vec<Rule<usize>> = Vec::new();
        let mut entries = HashMap::new();
        for (n, (m, priority, remove)) in ops.iter().enumerate() {
            let (version, mini) = (n as u64 + 1, MiniMatch::new(m));
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
                list.push(Rule { matches: mini, priority: *priority, added: version, removed: u64::MAX, data: list.len() });
            }
        }
        let last = ops.len() as u64;
        cls.purge(purge_at);
        for version in purge_at.min(last)..=last {
            for (key, other) in &keys {
                let mut wc = FlowMask::default();
                let got = cls.lookup(version, key, &mut wc);
                let want = linear::lookup(&list, version, key);
                prop_assert_eq!(got.as_ref().map(|e| e.priority), want.map(|r| r.priority));
                if let Some(e) = &got {
                    prop_assert!(list[e.data].matches.matches(key));
                }
                if key.equal_under(other, &wc) {
                    let again = cls.lookup(version, other, &mut FlowMask::default());
                    prop_assert_eq!(got.map(|e| e.data), again.map(|e| e.data));
                }
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

#[test]
fn readers_go_on_while_a_writer_loads_rules() {
    let cls = std::sync::Arc::new(Classifier::new());
    let any = MiniMatch::new(&Match::any());
    cls.insert(&any, 0, 0, u32::MAX);
    let writer = {
        let cls = cls.clone();
        std::thread::spawn(move || {
            for n in 0..20_000u32 {
                let mut m = Match::any();
                m.key.nw_dst = n;
                m.mask.0.nw_dst = u32::MAX;
                cls.insert(&MiniMatch::new(&m), 1, 0, n);
            }
        })
    };
    let mut seen = 0;
    while !writer.is_finished() {
        let key = FlowKey {
            nw_dst: seen % 20_000,
            ..FlowKey::default()
        };
        let e = cls
            .lookup(0, &key, &mut FlowMask::default())
            .expect("the catch-all matches");
        assert!(e.data == u32::MAX || e.data == key.nw_dst);
        seen += 7;
    }
    writer.join().expect("writer ends");
    for n in [0, 1, 9_999, 19_999] {
        let key = FlowKey {
            nw_dst: n,
            ..FlowKey::default()
        };
        assert_eq!(
            cls.lookup(0, &key, &mut FlowMask::default()).map(|e| e.data),
            Some(n)
        );
    }
}
