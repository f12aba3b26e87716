//! All interleavings of few writers and readers of the index of connections: `make models`.
//!
//! It fails where a fault is planted: the first side entered before the second, or entries that a split moves
//! taken away before the head says so. What is done before a thread is started is not told apart from what it
//! does later, so readers are threads of their own.
//!
//! The files under test are compiled anew, with the model checker's atomics and with small buckets. What the
//! model leaves out: records themselves, of which an entry is the number, and epochs, which `heddle_sync`
//! proves.
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
#[path = "../src/free_list.rs"]
mod free_list;
mod hash {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Hash(pub(crate) u32);
}
#[path = "../src/index.rs"]
mod index;

use free_list::FreeList;
use hash::Hash;
use index::{Entry, Index, Judgement, NotInserted};
use loom::model::Builder;
use loom::thread;
use std::sync::Arc;

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

fn entry(number: u32) -> Entry {
    Entry {
        number,
        generation: 0,
    }
}

fn put(index: &Index, number: u32, hashes: [u32; 2]) -> Result<(), NotInserted> {
    let judge = |e: Entry, _| {
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

/// Two workers want one port for different connections: one gets it. Who loses leaves nothing behind. Who
/// finds a connection from its first side finds it from the other.
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

/// What is there is found while others come and go in its bucket, which is split and gathers what lay in
/// further ones.
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

/// A record's number is given to one at a time, and who gets it sees what was done to it before.
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
