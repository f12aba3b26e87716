//! The mirror against a table that plays the kernel, with a tracker of its own.

use crate::choice::{Choice, Zones};
use crate::entry::{EntryKey, KernelEntry};
use crate::mirror::Mirror;
use crate::table::{Refused, Room, Table, Write};
use heddle_conntrack::offloaded::{ConnId, Offloadable};
use heddle_conntrack::{Config, Conntrack, Endpoint, Tuple};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

/// The table's content, and how it behaves.
#[derive(Default)]
struct Content {
    entries: HashMap<EntryKey, KernelEntry>,
    /// Entries that other programs have made.
    foreign: Vec<EntryKey>,
    max: usize,
    /// Further entries are refused, although there is room.
    full: bool,
    labels: bool,
    labels_possible: bool,
    changes: usize,
    broken: bool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Content>>);

impl Fake {
    fn with<R>(&self, f: impl FnOnce(&mut Content) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }
    fn keys(&self) -> Vec<EntryKey> {
        let mut keys: Vec<_> = self.with(|c| c.entries.keys().copied().collect());
        keys.sort_by_key(|k| (k.zone, k.orig.src.l4));
        keys
    }
}

impl Table for Fake {
    fn write(&mut self, entries: &[KernelEntry], how: Write) -> io::Result<Vec<Refused>> {
        self.with(|c| {
            if c.broken {
                return Err(Errno::ACCESS.into());
            }
            let mut all = Vec::new();
            for (index, e) in entries.iter().enumerate() {
                let there = c.entries.get(&e.key).copied();
                let reason = match (how, there) {
                    (Write::New, Some(_)) => Some(Errno::EXIST),
                    (Write::New, None) if c.full => Some(Errno::NOMEM),
                    (Write::Change, None) => Some(Errno::NOENT),
                    // Made without room for a label.
                    (Write::Change, Some(old)) if old.label == 0 && e.label != 0 => Some(Errno::NOSPC),
                    _ => None,
                };
                if let Some(reason) = reason {
                    all.push(Refused { index, reason });
                    continue;
                }
                c.changes += usize::from(how == Write::Change);
                let label = if c.labels { e.label } else { 0 };
                c.entries.insert(e.key, KernelEntry { label, ..*e });
            }
            Ok(all)
        })
    }
    fn remove(&mut self, keys: &[EntryKey]) -> io::Result<()> {
        self.with(|c| keys.iter().for_each(|k| _ = c.entries.remove(k)));
        Ok(())
    }
    fn read(&mut self, key: &EntryKey) -> io::Result<Option<KernelEntry>> {
        Ok(self.with(|c| c.entries.get(key).copied()))
    }
    fn own(&mut self) -> io::Result<Vec<EntryKey>> {
        let keys = self.keys();
        Ok(self.with(|c| keys.into_iter().filter(|k| !c.foreign.contains(k)).collect()))
    }
    fn enable_labels(&mut self) -> io::Result<()> {
        self.with(|c| {
            c.labels = c.labels_possible;
            c.labels.then_some(()).ok_or(io::ErrorKind::Unsupported.into())
        })
    }
    fn room(&self) -> Room {
        self.with(|c| Room {
            count: c.entries.len(),
            max: c.max,
        })
    }
}

const UDP: u8 = 17;
const TCP: u8 = 6;
const NOW: u64 = 1000;

fn tuple(proto: u8, port: u32) -> Tuple {
    Tuple {
        src: Endpoint { addr: 1, l4: port },
        dst: Endpoint { addr: 2, l4: 80 },
        proto,
        ipv6: false,
    }
}

fn key(zone: u16, proto: u8, port: u32) -> EntryKey {
    EntryKey {
        zone,
        orig: tuple(proto, port),
    }
}

/// A connection; its destination is translated if `dnat`.
fn conn(zone: u16, proto: u8, port: u32, dnat: bool, label: u128) -> Offloadable {
    let orig = tuple(proto, port);
    let mut reply = orig.reversed();
    reply.src.addr += u128::from(dnat);
    Offloadable {
        id: ConnId {
            number: 0,
            generation: 0,
        },
        zone,
        replied: true,
        orig,
        reply,
        snat: false,
        dnat,
        mark: 5,
        label,
    }
}

fn tracker(conns: &[Offloadable]) -> Arc<Conntrack> {
    let config = Config {
        capacity: 4096,
        ..Config::default()
    };
    let tracker = Conntrack::new(config).unwrap();
    assert!(conns.iter().all(|c| tracker.adopt(NOW, c)));
    Arc::new(tracker)
}

fn mirror(conns: &[Offloadable], choice: Choice) -> (Mirror<Fake>, Fake, Arc<Conntrack>) {
    let (fake, tracker) = (Fake::default(), tracker(conns));
    fake.with(|c| c.labels = true);
    let mirror = Mirror::new(fake.clone(), tracker.clone(), choice).unwrap();
    (mirror, fake, tracker)
}

fn all() -> Choice {
    Choice {
        all: true,
        ..Choice::default()
    }
}

#[test]
fn translated_udp_and_labels_are_chosen() {
    let conns = [
        conn(7, UDP, 1, true, 0),
        conn(7, UDP, 2, false, 0),
        conn(7, TCP, 3, true, 0),
        conn(7, TCP, 4, false, 1),
        conn(0, UDP, 5, true, 1),
        conn(8, UDP, 6, true, 0),
    ];
    let (mut m, fake, _) = mirror(&conns, Choice::default());
    m.round(NOW, 0).unwrap();
    assert_eq!(fake.keys(), [key(7, UDP, 1), key(7, TCP, 4), key(8, UDP, 6)]);
    let written = fake.with(|c| c.entries[&key(7, UDP, 1)]);
    assert_eq!(
        (written.reply.src.addr, written.mark, written.replied),
        (3, 5, true)
    );
    assert_eq!(fake.with(|c| c.entries[&key(7, TCP, 4)].tcp_state), 3);
    let zones = Zones::parse("7").unwrap();
    m.choose(Choice { zones, ..all() });
    m.round(NOW, 0).unwrap();
    assert_eq!(
        fake.keys(),
        [1, 2, 3, 4].map(|n| key(7, if n < 3 { UDP } else { TCP }, n))
    );
    m.end().unwrap();
    assert_eq!(fake.keys(), []);
}

#[test]
fn a_deletion_ends_the_connection_it_was_about() {
    let (mut m, fake, tracker) = mirror(
        &[conn(7, UDP, 1, true, 0), conn(7, UDP, 2, false, 0)],
        Choice::default(),
    );
    // Without an entry a deletion is about another program's.
    m.deleted(NOW, &[key(7, UDP, 1)]).unwrap();
    assert_eq!(tracker.n_conns(), 2);
    m.round(NOW, 0).unwrap();
    m.deleted(NOW, &[key(7, UDP, 2), key(8, UDP, 1), key(0, UDP, 1)])
        .unwrap();
    assert_eq!((tracker.n_conns(), m.counts().deletions), (2, 0));
    // The event is read after a refresh has made the entry anew: it must not stay.
    m.deleted(NOW, &[key(7, UDP, 1)]).unwrap();
    assert_eq!(
        (tracker.n_conns(), m.counts().deletions, fake.keys().len()),
        (1, 1, 0)
    );
    // The client's next packet begins another connection, which gets an entry.
    assert!(tracker.adopt(NOW, &conn(7, UDP, 1, true, 0)));
    m.round(NOW, 0).unwrap();
    assert_eq!(fake.keys(), [key(7, UDP, 1)]);
    assert_eq!(tracker.n_conns(), 2);
}

#[test]
fn an_entry_that_expired_comes_back_and_one_whose_deletion_is_under_way_does_not() {
    let (mut m, fake, tracker) = mirror(&[conn(7, UDP, 1, true, 0)], Choice::default());
    m.round(NOW, 0).unwrap();
    fake.with(|c| c.entries.clear());
    // Not before it is refreshed, nor right then: the event of a deletion may wait.
    for at in [1, 300_000, 300_500] {
        m.round(NOW, at).unwrap();
        assert_eq!(fake.keys(), []);
    }
    m.deleted(NOW, &[key(7, UDP, 1)]).unwrap();
    assert_eq!(tracker.n_conns(), 0);
    assert!(tracker.adopt(NOW, &conn(7, UDP, 1, true, 0)));
    m.round(NOW, 300_600).unwrap();
    fake.with(|c| c.entries.clear());
    m.round(NOW, 600_600).unwrap();
    m.round(NOW, 601_600).unwrap();
    assert_eq!((fake.keys().len(), tracker.n_conns()), (1, 1));
}

#[test]
fn changes_and_ends_are_followed() {
    let (mut m, fake, tracker) = mirror(
        &[conn(7, TCP, 1, false, 1), conn(7, TCP, 2, false, 1)],
        Choice::default(),
    );
    m.round(NOW, 0).unwrap();
    m.round(NOW, 10).unwrap();
    assert_eq!((m.counts().written, m.counts().changed), (2, 0));
    m.round(NOW, 300_000).unwrap();
    assert_eq!((m.counts().changed, fake.with(|c| c.changes)), (2, 2));
    let gone = tracker.find(NOW, &tuple(TCP, 1), 7).unwrap();
    tracker.end(NOW, gone);
    m.round(NOW, 300_010).unwrap();
    assert_eq!((fake.keys(), m.counts().removed), (vec![key(7, TCP, 2)], 1));
    // Another connection with the same addresses comes between two rounds.
    let gone = tracker.find(NOW, &tuple(TCP, 2), 7).unwrap();
    tracker.end(NOW, gone);
    assert!(tracker.adopt(NOW, &conn(7, TCP, 2, true, 9)));
    m.round(NOW, 300_020).unwrap();
    let entry = fake.with(|c| c.entries[&key(7, TCP, 2)]);
    assert_eq!((entry.label, entry.reply.src.addr), (9, 3));
    assert_eq!((m.counts().entries, m.counts().refused), (1, 0));
}

#[test]
fn labels_are_enabled_by_the_first_one_that_got_lost() {
    for possible in [true, false] {
        let (mut m, fake, _) = mirror(
            &[conn(7, TCP, 1, false, 3), conn(7, UDP, 2, true, 0)],
            Choice::default(),
        );
        fake.with(|c| (c.labels, c.labels_possible) = (false, possible));
        m.round(NOW, 0).unwrap();
        let label = fake.with(|c| c.entries[&key(7, TCP, 1)].label);
        assert_eq!((label, fake.keys().len()), (if possible { 3 } else { 0 }, 2));
        m.round(NOW, 300_000).unwrap();
        assert_eq!(fake.keys().len(), 2);
    }
}

#[test]
fn another_programs_entry_stays_and_is_not_followed() {
    let (mut m, fake, tracker) = mirror(&[conn(7, UDP, 1, true, 0)], Choice::default());
    let k = key(7, UDP, 1);
    let other = KernelEntry {
        key: k,
        reply: k.orig.reversed(),
        mark: 77,
        label: 0,
        replied: false,
        tcp_state: 0,
    };
    fake.with(|c| {
        c.entries.insert(k, other);
        c.foreign.push(k);
    });
    m.round(NOW, 0).unwrap();
    assert_eq!((m.counts().refused, m.counts().entries), (1, 0));
    m.deleted(NOW, &[k]).unwrap();
    m.compare(NOW).unwrap();
    assert_eq!((tracker.n_conns(), fake.with(|c| c.entries[&k].mark)), (1, 77));
    fake.with(|c| (c.entries.clear(), c.foreign.clear()));
    m.round(NOW, 29_999).unwrap();
    assert_eq!(fake.keys(), []);
    m.round(NOW, 30_000).unwrap();
    assert_eq!((fake.keys(), m.counts().entries), (vec![k], 1));
}

#[test]
fn the_limit_and_the_room_are_kept() {
    let conns: Vec<_> = (1..=100).map(|port| conn(7, UDP, port, true, 0)).collect();
    let (mut m, fake, _) = mirror(&conns, Choice { limit: 10, ..all() });
    m.round(NOW, 0).unwrap();
    assert_eq!((fake.keys().len(), m.counts().over_limit), (10, 90));
    // Seven eighths of 40.
    fake.with(|c| c.max = 40);
    m.choose(all());
    for _ in 0..3 {
        m.round(NOW, 0).unwrap();
        assert_eq!(
            (fake.keys().len(), m.counts().no_room, m.counts().over_limit),
            (35, 65, 0)
        );
    }
    // The host needs more than fifteen sixteenths of it.
    let key_of = |port| key(9, UDP, port);
    let one = fake.with(|c| c.entries.values().next().copied()).unwrap();
    for port in 1..=4 {
        fake.with(|c| {
            c.entries.insert(
                key_of(port),
                KernelEntry {
                    key: key_of(port),
                    ..one
                },
            )
        });
    }
    m.round(NOW, 0).unwrap();
    assert_eq!(
        (fake.keys().len(), m.counts().entries, m.counts().no_room),
        (35, 31, 69)
    );
    fake.with(|c| (1..=4).for_each(|port| _ = c.entries.remove(&key_of(port))));
    m.round(NOW, 0).unwrap();
    assert_eq!((fake.keys().len(), m.counts().no_room), (35, 65));
    fake.with(|c| (c.max, c.full) = (0, true));
    m.round(NOW, 0).unwrap();
    assert_eq!(
        (fake.keys().len(), m.counts().no_room, m.counts().refused),
        (35, 65, 0)
    );
    fake.with(|c| c.full = false);
    m.round(NOW, 0).unwrap();
    assert_eq!((fake.keys().len(), m.counts().no_room), (100, 0));
}

#[test]
fn after_lost_events_the_tables_are_compared() {
    let conns: Vec<_> = (1..=4).map(|port| conn(7, UDP, port, true, 0)).collect();
    let (mut m, fake, tracker) = mirror(&conns, Choice::default());
    m.round(NOW, 0).unwrap();
    let stray = KernelEntry {
        key: key(7, UDP, 99),
        ..fake.with(|c| c.entries[&key(7, UDP, 1)])
    };
    fake.with(|c| {
        c.entries.remove(&key(7, UDP, 2));
        c.entries.insert(stray.key, stray);
    });
    m.compare(NOW).unwrap();
    assert_eq!(fake.keys(), [1, 3, 4].map(|n| key(7, UDP, n)));
    assert_eq!(
        (tracker.n_conns(), m.counts().deletions, m.counts().comparisons),
        (3, 1, 1)
    );
    // The kernel dropped an entry for want of room: the connection continues.
    fake.with(|c| c.max = 3);
    m.round(NOW, 0).unwrap();
    fake.with(|c| c.entries.remove(&key(7, UDP, 1)));
    m.compare(NOW).unwrap();
    assert_eq!((tracker.n_conns(), m.counts().deletions), (3, 1));
    fake.with(|c| c.max = 0);
    m.round(NOW, 0).unwrap();
    assert_eq!(fake.keys(), [1, 3, 4].map(|n| key(7, UDP, n)));
}

#[test]
fn entries_of_an_earlier_process_go_first() {
    let fake = Fake::default();
    let left = key(7, UDP, 1);
    let foreign = key(7, UDP, 2);
    let entry = |key| KernelEntry {
        key,
        reply: left.orig,
        mark: 0,
        label: 0,
        replied: false,
        tcp_state: 0,
    };
    fake.with(|c| {
        c.entries = [left, foreign].map(|k| (k, entry(k))).into();
        c.foreign.push(foreign);
    });
    let mut m = Mirror::new(
        fake.clone(),
        tracker(&[conn(7, UDP, 3, true, 0)]),
        Choice::default(),
    )
    .unwrap();
    assert_eq!(fake.keys(), [foreign]);
    fake.with(|c| c.broken = true);
    assert!(m.round(NOW, 0).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Begin(u32, bool),
    End(u32),
    Delete(u32),
    Expire(u32),
    Lose(u32),
    Round(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let port = 1_u32..9;
    prop_oneof![
        (port.clone(), any::<bool>()).prop_map(|(p, dnat)| Step::Begin(p, dnat)),
        port.clone().prop_map(Step::End),
        port.clone().prop_map(Step::Delete),
        port.clone().prop_map(Step::Expire),
        port.prop_map(Step::Lose),
        (0_u64..400_000).prop_map(Step::Round),
    ]
}

proptest! {
    /// After any history and some quiet rounds, the table has the chosen connections and no others.
    #[test]
    fn the_tables_agree_in_the_end(steps in prop::collection::vec(step(), 0..60)) {
        let (mut m, fake, tracker) = mirror(&[], Choice::default());
        let mut at = 0;
        for step in steps {
            match step {
                Step::Begin(port, dnat) => _ = tracker.adopt(NOW, &conn(7, UDP, port, dnat, 0)),
                Step::End(port) => {
                    if let Some(id) = tracker.find(NOW, &tuple(UDP, port), 7) {
                        tracker.end(NOW, id);
                    }
                }
                Step::Delete(port) => {
                    let k = key(7, UDP, port);
                    if fake.with(|c| c.entries.remove(&k).is_some()) {
                        m.deleted(NOW, &[k]).unwrap();
                    }
                }
                Step::Expire(port) => _ = fake.with(|c| c.entries.remove(&key(7, UDP, port))),
                Step::Lose(port) => {
                    fake.with(|c| c.entries.remove(&key(7, UDP, port)));
                    m.compare(NOW).unwrap();
                }
                Step::Round(ms) => {
                    at += ms;
                    m.round(NOW, at).unwrap();
                }
            }
        }
        for _ in 0..3 {
            at += 300_000;
            m.round(NOW, at).unwrap();
        }
        let mut expected = Vec::new();
        tracker.scan(NOW, 0, u32::MAX, |c| {
            if c.is_translated() {
                expected.push(EntryKey { zone: c.zone(), orig: c.conn().orig });
            }
        });
        expected.sort_by_key(|k| k.orig.src.l4);
        prop_assert_eq!(fake.keys(), expected);
        prop_assert_eq!(m.counts().entries, fake.keys().len());
    }
}
