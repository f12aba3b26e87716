//! All interleavings of few writers and readers of the index of connections, and of the states of one
//! connection's record: `make models`.
//!
//! Planted faults that make it fail:
//! * the index: the first side is entered before the second; a split takes entries away before it changes the
//!   head;
//! * a record: published before it is filled; its state is stored instead of exchanged;
//! * labels and windows: written without a lock; a label becomes current before it is written.
//!
//! The model checker does not order the steps before a thread starts and those of the thread, so readers are
//! threads of their own. The files under test are compiled here with the model checker's atomics and with
//! small buckets. Epochs are left out, `heddle_sync` proves them. The index is tried without records: its
//! entries are only numbers.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub)]

mod atomic {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
    /// All the model checker's atomics are zero at first.
    pub(crate) use std::default::Default as FromZeros;

    #[derive(Debug)]
    pub(crate) struct Zeroed<T>(Vec<T>);

    impl<T: Default> Zeroed<T> {
        pub(crate) fn new(len: usize, _: bool) -> std::io::Result<Self> {
            Ok(Self((0..len).map(|_| T::default()).collect()))
        }
    }
    impl<T> std::ops::Deref for Zeroed<T> {
        type Target = [T];
        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}
mod protocol {
    /// Both ends of TCP, as far as records keep them.
    pub(crate) mod tcp {
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub(crate) enum TcpState {
            #[default]
            Closed,
        }
        impl TcpState {
            pub(crate) fn from_bits(_: u64) -> Self {
                Self::Closed
            }
        }
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub(crate) enum Scale {
            #[default]
            None,
            Unknown,
            Known(u8),
        }
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub(crate) struct Peer {
            pub(crate) lo: u32,
            pub(crate) hi: u32,
            pub(crate) window: u16,
            pub(crate) scale: Scale,
            pub(crate) state: TcpState,
        }
    }
}
#[path = "../src/table"]
mod table {
    pub(crate) mod free_list;
    pub(crate) mod hash;
    pub(crate) mod index;
    pub(crate) mod key;
    pub(crate) mod record;
    mod record_words;
    mod skew;
    mod tcp_words;
}
#[path = "../src/tuple.rs"]
mod tuple;

use loom::model::Builder;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use protocol::tcp;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use table::free_list::FreeList;
use table::hash::Hash;
use table::index::{Index, Judgement, NotInserted, RecordRef};
use table::key::Key;
use table::record::{DEAD, New, Phase, Record, USED};
use tuple::{Endpoint, Tuple};

/// Few switches of threads are enough for the faults that are known; all of them would take days.
fn model(switches: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(f);
}

/// Room for eight buckets.
fn index() -> Arc<Index> {
    Arc::new(Index::new(16).unwrap())
}

fn entry(number: u32) -> RecordRef {
    RecordRef {
        number,
        generation: 0,
    }
}

fn put(index: &Index, number: u32, hashes: [u32; 2]) -> Result<(), NotInserted> {
    let judge = |e: RecordRef, _| {
        if e.number == number {
            Judgement::Other
        } else {
            Judgement::Taken
        }
    };
    index.insert(entry(number), hashes.map(Hash), judge, || ())
}

fn has(index: &Index, number: u32, hash: u32) -> bool {
    index
        .find(Hash(hash), |e| (e.number == number).then_some(()))
        .is_some()
}

/// Two workers want one port for different connections: one gets it, and the other leaves no entry behind. A
/// connection that is found from one side is found from the other.
#[test]
fn both_directions_or_neither_and_a_port_once() {
    model(2, || {
        let index = index();
        let other = {
            let index = index.clone();
            thread::spawn(move || put(&index, 2, [3, 2]))
        };
        let first = put(&index, 1, [1, 2]);
        let second = other.join().unwrap();
        // Busy: the other held a lock and was put aside.
        assert!(
            first.is_ok() || second.is_ok() || first == second,
            "{first:?} {second:?}"
        );
        assert!(!(first.is_ok() && second.is_ok()));
        for (number, hash, done) in [(1, 1, first.is_ok()), (2, 3, second.is_ok())] {
            assert_eq!((has(&index, number, hash), has(&index, number, 2)), (done, done));
        }
    });
}

#[test]
fn who_sees_one_side_sees_the_other() {
    model(2, || {
        let index = index();
        let reader = {
            let index = index.clone();
            thread::spawn(move || {
                if has(&index, 1, 1) {
                    assert!(has(&index, 1, 2));
                }
            })
        };
        put(&index, 1, [1, 2]).unwrap();
        reader.join().unwrap();
    });
}

/// An entry is found while others are added to its bucket and removed. The bucket is split, and takes back
/// entries from its overflow buckets.
#[test]
fn what_is_there_is_found() {
    model(2, || {
        let index = index();
        // All of one bucket of the first two.
        put(&index, 1, [2, 2]).unwrap();
        let writer = {
            let index = index.clone();
            thread::spawn(move || {
                for (number, hash) in [(2, 4), (3, 6)] {
                    let _ = put(&index, number, [hash, hash]);
                }
                index.remove(entry(2), Hash(4));
            })
        };
        let reader = {
            let index = index.clone();
            thread::spawn(move || assert!(has(&index, 1, 2)))
        };
        writer.join().unwrap();
        reader.join().unwrap();
        assert!(has(&index, 1, 2));
        assert!(index.len() > 2, "nothing was split");
    });
}

/// A record's number is given to one thread at a time. The thread sees all earlier writes to the list.
#[test]
fn a_number_is_given_once() {
    model(3, || {
        let list = Arc::new(FreeList::new(2).unwrap());
        let taken = list.take().unwrap();
        let other = {
            let list = list.clone();
            thread::spawn(move || {
                list.give(taken);
                list.take()
            })
        };
        let mine = {
            let list = list.clone();
            thread::spawn(move || list.take())
        };
        let (mine, theirs) = (mine.join().unwrap(), other.join().unwrap());
        assert!(mine.is_some() || theirs.is_some());
        assert_ne!(mine, theirs);
    });
}

/// UDP of IPv6, so that the record's words of all lines count.
fn tuple(n: u32) -> Tuple {
    let end = |n: u32| Endpoint {
        addr: u128::from(n) << 64 | u128::from(n),
        l4: n,
    };
    Tuple {
        src: end(n),
        dst: end(n + 100),
        proto: 17,
        ipv6: true,
    }
}

fn made(r: &Record, n: u32) -> u32 {
    let new = New {
        skews: Default::default(),
        state: 0,
        zone: 5,
        orig: tuple(n),
        reply: tuple(n).reversed(),
        flags: 0,
        expires_ms: 1000,
        policy: 0,
        mark: n,
        label: u128::from(n) << 64 | u128::from(n),
        tcp: [tcp::Peer {
            lo: n,
            hi: n,
            ..tcp::Peer::default()
        }; 2],
        admission: 0,
        parent: None,
    };
    r.fill(&new, 0)
}

/// A connection of the model: published, and known to all threads.
fn record() -> Arc<Record> {
    let r = Arc::new(Record::default());
    made(&r, 7);
    r.publish(true, 0);
    r
}

/// A thread that sees a record in use sees all that the maker wrote. This holds for the index and for a walk
/// over all records. A thread with an old number sees another generation.
#[test]
fn who_sees_a_record_sees_all_of_it() {
    model(3, || {
        let (r, index) = (Arc::new(Record::default()), Arc::new(AtomicU32::new(0)));
        let maker = {
            let (r, index) = (r.clone(), index.clone());
            thread::spawn(move || {
                let generation = made(&r, 7);
                r.publish(true, 0);
                index.store(generation, Release);
            })
        };
        let whole = |r: &Record| {
            assert_eq!((r.direction(&Key::new(&tuple(7), 5)), r.mark()), (Some(false), 7));
            assert_eq!((r.label(), r.peers()[1].hi), (7 << 64 | 7, 7));
        };
        let finder = {
            let (r, index) = (r.clone(), index.clone());
            thread::spawn(move || {
                let generation = index.load(Acquire);
                if generation != 0 {
                    assert!(r.is_alive(0) && r.generation() == generation);
                    whole(&r);
                }
            })
        };
        if r.is_alive(0) {
            whole(&r);
        }
        maker.join().unwrap();
        finder.join().unwrap();
    });
}

/// One of several threads ends a connection. It stays ended while packets still change its state.
#[test]
fn it_ends_once() {
    model(3, || {
        let r = record();
        let enders: Vec<_> = (0..2)
            .map(|_| {
                let r = r.clone();
                thread::spawn(move || r.kill())
            })
            .collect();
        r.advance(|_| Phase::Both);
        r.set_label(1, 1);
        let ended = enders.into_iter().map(|t| t.join().unwrap());
        assert_eq!(ended.filter(|e| *e).count(), 1);
        assert_eq!((r.state() & (USED | DEAD), r.phase()), (USED | DEAD, Phase::Both));
    });
}

/// Two packets of UDP change a connection at once: neither change is lost.
#[test]
fn no_move_is_lost() {
    model(3, || {
        let r = record();
        let other = {
            let r = r.clone();
            thread::spawn(move || {
                r.advance(|p| p.max(Phase::Single));
                r.set_mark(0x100, 0xff00)
            })
        };
        r.advance(|_| Phase::Both);
        r.set_mark(1, 0xff);
        other.join().unwrap();
        assert_eq!((r.phase(), r.mark()), (Phase::Both, 0x101));
    });
}

/// A thread that reads a label with two equal halves.
fn reader(r: &Arc<Record>) -> thread::JoinHandle<()> {
    let r = r.clone();
    thread::spawn(move || {
        let label = r.label();
        assert_eq!(label >> 64, label & u128::from(u64::MAX), "{label:x}");
    })
}

/// Wherever a writer is preempted, no thread reads half of a label, and no reader waits: after
/// [`record::MAX_LABEL_READS`] reads it would panic.
#[test]
fn readers_wait_for_no_writer() {
    model(3, || {
        let r = record();
        let reader = reader(&r);
        // Both places are written, the second one over what the reader may be reading.
        r.set_label(1 << 64 | 1, u128::MAX);
        r.set_label(2 << 64 | 2, u128::MAX);
        reader.join().unwrap();
        assert_eq!(r.label(), 2 << 64 | 2);
    });
}

/// A thread that sees the count of a label reads that label or a later one.
#[test]
fn a_count_stands_for_its_label() {
    model(3, || {
        let r = record();
        let reader = {
            let r = r.clone();
            thread::spawn(move || {
                let count = r.label_count();
                let label = r.label();
                assert!(label == 1 << 64 | 1 || label == 7 << 64 | 7 && count == 0);
            })
        };
        r.set_label(1 << 64 | 1, u128::MAX);
        reader.join().unwrap();
    });
}

/// No thread reads half of a label.
#[test]
fn labels_are_whole() {
    model(3, || {
        let r = record();
        let reader = reader(&r);
        r.set_label(1 << 64 | 1, 0xf << 64 | 0xf);
        reader.join().unwrap();
    });
}

/// Bits of a label that two write stay both.
#[test]
fn labels_add_up() {
    model(3, || {
        let r = record();
        let writer = {
            let r = r.clone();
            thread::spawn(move || r.set_label(1 << 64 | 1, 0xf << 64 | 0xf))
        };
        r.set_label(0x20 << 64 | 0x20, 0xf0 << 64 | 0xf0);
        writer.join().unwrap();
        assert_eq!(r.label(), 0x21 << 64 | 0x21);
    });
}

/// Two segments move one connection's windows one after the other.
#[test]
fn windows_move_one_after_the_other() {
    model(3, || {
        let r = record();
        let step = |r: &Record| {
            r.with_peers(|p| {
                p[0].lo += 1;
                p[1].window += 1;
            })
        };
        let other = {
            let r = r.clone();
            thread::spawn(move || step(&r))
        };
        let mine = step(&r);
        let theirs = other.join().unwrap();
        assert!(mine.is_some() && theirs.is_some());
        let peers = r.peers();
        assert_eq!((peers[0].lo, peers[1].window), (9, 2));
    });
}
