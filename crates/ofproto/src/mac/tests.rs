//! The table against what is expected of it, and against a plain twin.

use super::*;
use heddle_datapath_api::Credit;
use proptest::prelude::*;
use std::collections::HashMap;

fn key(n: u8, vlan: u16) -> MacKey {
    MacKey {
        mac: [0x50, 0, 0, 0, 0, n],
        vlan,
    }
}
fn learn(n: u8, port: u32, now_ms: u64) -> Learn {
    Learn {
        key: key(n, 0),
        port: Port(port),
        bond: false,
        gratuitous_arp: false,
        now_ms,
    }
}
fn table() -> (MacTable, Arc<Generations>) {
    let g = Arc::new(Generations::default());
    (MacTable::new(7, g.clone()), g)
}

/// The credit of a translation for a packet of address 1 on this port.
fn credit(t: &Arc<MacTable>, port: u32) -> MacCredit {
    MacCredit {
        table: t.clone(),
        key: key(1, 0),
        port: Port(port),
        bond: false,
        generation: t.generations.read(t.source_slot(key(1, 0))).generation,
    }
}

#[test]
fn what_a_gone_port_sent_last_is_not_learned() {
    let t = Arc::new(table().0);
    t.learn(learn(1, 2, 1000));
    let old = credit(&t, 2);
    assert_eq!(t.flush_port(Port(2)), [key(1, 0)]);
    old.credit(1, 60, 1500, 0);
    assert_eq!(t.lookup(key(1, 0)), None);
    // The guest is at another port now; the old one's count comes late.
    t.learn(learn(1, 3, 2000));
    old.credit(1, 60, 2500, 0);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(3)));
    // A port of that number again: its packets are its own.
    credit(&t, 2).credit(1, 60, 3500, 0);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(2)));
}

/// A guest moves to another host, which announces it; its last packets from here are counted only then.
#[test]
fn packets_of_before_a_move_do_not_take_it_back() {
    let t = Arc::new(table().0);
    t.learn(learn(1, 1, 1000));
    let here = credit(&t, 1);
    t.learn(learn(1, 2, 1400));
    here.credit(3, 180, 1390, 0);
    here.credit(3, 180, 1400, 0);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(2)));
    assert_eq!(t.stats().moved, 1);
    // The guest comes back, and its packets meet cached translations.
    here.credit(1, 60, 1700, 0);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(1)));
    // The packets that it sent from there are older than that.
    credit(&t, 2).credit(1, 60, 1600, 0);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(1)));
}

#[test]
fn learns_moves_and_ages() {
    let (t, g) = table();
    let dst = g.read(t.slot(key(1, 0)));
    assert_eq!(t.learn(learn(1, 1, 1000)), Learned::New);
    assert!(!g.hold(&[dst]), "whoever flooded must ask again");
    assert_eq!(t.lookup(key(1, 0)), Some(Port(1)));
    assert_eq!(t.lookup(key(1, 5)), None, "another VLAN is another address");

    let (dst, src) = (g.read(t.slot(key(1, 0))), g.read(t.source_slot(key(1, 0))));
    assert_eq!(t.learn(learn(1, 1, 2000)), Learned::Same);
    assert!(g.hold(&[dst, src]));
    assert_eq!(t.learn(learn(1, 2, 3000)), Learned::Moved);
    assert!(
        !g.hold(&[dst]) && g.hold(&[src]),
        "a move concerns destinations only"
    );

    t.age(302_999);
    assert_eq!(t.entries(302_999)[0].age_s, Some(299));
    t.age(303_000);
    assert_eq!(t.lookup(key(1, 0)), None);
    assert!(!g.hold(&[src]), "whoever learned must learn again");
    assert_eq!(
        t.stats(),
        MacStats {
            max: 8192,
            learned: 1,
            expired: 1,
            moved: 1,
            ..MacStats::default()
        }
    );
}

#[test]
fn group_addresses_and_static_entries() {
    let (t, _) = table();
    let group = MacKey {
        mac: [1, 0, 0x5e, 0, 0, 1],
        vlan: 0,
    };
    assert_eq!(
        t.learn(Learn {
            key: group,
            ..learn(0, 1, 0)
        }),
        Learned::Refused
    );
    t.add_static(key(1, 0), Port(3), 0);
    assert_eq!(t.learn(learn(1, 1, 0)), Learned::Refused);
    t.flush();
    t.age(10_000_000);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(3)));
    assert_eq!(t.entries(0)[0].age_s, None);
    assert!(t.del_static(key(1, 0)) && !t.del_static(key(1, 0)));
}

#[test]
fn the_crowded_port_makes_room() {
    let (t, _) = table();
    t.configure(MacConfig {
        max_entries: 10,
        idle_s: 300,
    });
    t.learn(learn(100, 2, 0));
    for n in 0..9 {
        t.learn(learn(n, 1, 1));
    }
    t.learn(learn(0, 1, 2));
    assert_eq!(t.learn(learn(101, 2, 3)), Learned::New);
    assert_eq!(
        t.lookup(key(100, 0)),
        Some(Port(2)),
        "the other port keeps its only entry"
    );
    assert_eq!(t.lookup(key(1, 0)), None, "the one that was not used since");
    assert_eq!(t.lookup(key(0, 0)), Some(Port(1)));
    assert_eq!(t.stats().evicted, 1);
}

#[test]
fn a_taken_table_does_not_stop_a_worker() {
    let (t, _) = table();
    t.learn(learn(1, 1, 0));
    let held = t.inner.lock();
    assert_eq!(t.learn(learn(2, 1, 5)), Learned::Busy);
    assert_eq!(t.learn(learn(1, 2, 5)), Learned::Busy);
    assert_eq!(t.learn(learn(1, 1, 5)), Learned::Same);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(1)));
    drop(held);
    assert_eq!(t.entries(5000)[0].age_s, Some(5));
}

#[test]
fn gratuitous_arp_locks_against_bonds() {
    let (t, _) = table();
    t.learn(Learn {
        gratuitous_arp: true,
        ..learn(1, 1, 0)
    });
    let over_bond = Learn {
        gratuitous_arp: true,
        bond: true,
        ..learn(1, 9, 100)
    };
    assert_eq!(t.learn(over_bond), Learned::Refused);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(1)));
    assert_eq!(
        t.learn(Learn {
            now_ms: 6000,
            ..over_bond
        }),
        Learned::Moved
    );
}

#[test]
fn credits_keep_an_entry() {
    let t = Arc::new(table().0);
    t.learn(learn(1, 1, 0));
    let c = credit(&t, 1);
    c.credit(0, 0, 200_000, 0);
    c.credit(3, 180, 100_000, 0);
    t.age(399_000);
    assert_eq!(t.lookup(key(1, 0)), Some(Port(1)));
    t.age(400_000);
    assert_eq!(t.lookup(key(1, 0)), None);
}

/// More senders than the table has room for: cached packets bring evicted addresses back some time later.
/// They are not translated for that.
#[test]
fn who_made_room_comes_back_with_what_was_counted() {
    let (t, g) = table();
    let t = Arc::new(t);
    t.configure(MacConfig {
        max_entries: 10,
        idle_s: 300,
    });
    t.learn(learn(1, 1, 0));
    let (c, src, dst) = (
        credit(&t, 1),
        g.read(t.source_slot(key(1, 0))),
        g.read(t.slot(key(1, 0))),
    );
    (10..20).for_each(|n| _ = t.learn(learn(n, 1, 1)));
    assert_eq!((t.lookup(key(1, 0)), t.stats().evicted), (None, 1));
    assert!(
        g.hold(&[src]) && !g.hold(&[dst]),
        "its own packets find their way as before"
    );
    c.credit(0, 0, 500, 0);
    assert_eq!(t.lookup(key(1, 0)), None);
    c.credit(3, 180, 500, 0);
    assert_eq!((t.lookup(key(1, 0)), t.stats().evicted), (Some(Port(1)), 2));
    // A flushed address stays away.
    t.flush_port(Port(1));
    c.credit(3, 180, 600, 0);
    assert_eq!(t.lookup(key(1, 0)), None);
}

#[derive(Clone, Debug)]
enum Op {
    Learn(u8, u32),
    Age,
    Flush(u32),
    Resize(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u8..40, 1u32..4).prop_map(|(n, p)| Op::Learn(n, p)),
        1 => Just(Op::Age),
        1 => (1u32..4).prop_map(Op::Flush),
        1 => (10usize..50).prop_map(Op::Resize),
    ]
}

proptest! {
    /// The twin: a list in order of use.
    #[test]
    fn like_a_list(ops in prop::collection::vec(op(), 1..200)) {
        let (t, _) = table();
        let mut twin: Vec<(u8, u32, u64)> = Vec::new();
        let mut max = 8192;
        let mut now = 0;
        for op in ops {
            now += 7000;
            match op {
                Op::Learn(n, port) => {
                    t.learn(learn(n, port, now));
                    if let Some(i) = twin.iter().position(|e| e.0 == n) {
                        twin.remove(i);
                    } else if twin.len() >= max {
                        let mut counts: HashMap<u32, usize> = HashMap::new();
                        twin.iter().for_each(|e| *counts.entry(e.1).or_default() += 1);
                        let crowded = counts.iter().map(|(p, n)| (*n, *p)).max().unwrap().1;
                        let i = twin.iter().position(|e| e.1 == crowded).unwrap();
                        twin.remove(i);
                    }
                    twin.push((n, port, now));
                }
                Op::Age => {
                    t.age(now);
                    twin.retain(|e| e.2 + 300_000 > now);
                    while twin.len() > max {
                        let mut counts: HashMap<u32, usize> = HashMap::new();
                        twin.iter().for_each(|e| *counts.entry(e.1).or_default() += 1);
                        let crowded = counts.iter().map(|(p, n)| (*n, *p)).max().unwrap().1;
                        let i = twin.iter().position(|e| e.1 == crowded).unwrap();
                        twin.remove(i);
                    }
                }
                Op::Flush(port) => {
                    t.flush_port(Port(port));
                    twin.retain(|e| e.1 != port);
                }
                Op::Resize(n) => {
                    max = n;
                    t.configure(MacConfig { max_entries: n, idle_s: 300 });
                }
            }
            let got: Vec<_> = t.entries(now).iter().map(|e| (e.key.mac[5], e.port.0)).collect();
            prop_assert_eq!(&got, &twin.iter().map(|e| (e.0, e.1)).collect::<Vec<_>>());
            for n in 0..40 {
                let expected = twin.iter().find(|e| e.0 == n).map(|e| Port(e.1));
                prop_assert_eq!(t.lookup(key(n, 0)), expected);
            }
        }
    }
}
