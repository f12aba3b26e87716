//! All interleavings of a worker and the readers of its entries, and of changes and the caches that depend on
//! them: `make models`.
//!
//! The files under test are compiled anew, with the model checker's atomics. Watches and cached translations
//! belong to one worker, and are not tested here.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub)]

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, fence};
    /// All the model checker's atomics are zero at first.
    pub(crate) use std::default::Default as FromZeros;
}
/// Keys that have nothing but words.
mod compact {
    pub(crate) struct CompactMask([u64; 8]);
    impl CompactMask {
        pub(crate) fn words(&self) -> &[u64; 8] {
            &self.0
        }
    }
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub(crate) struct CompactKey([u64; 8]);
    impl CompactKey {
        pub(crate) fn words(&self) -> &[u64; 8] {
            &self.0
        }
        pub(crate) fn from_words(words: [u64; 8]) -> Self {
            Self(words)
        }
    }
}
#[path = "../src/changes.rs"]
mod changes;
#[path = "../src/entry.rs"]
mod entry;
#[path = "../src/generations.rs"]
mod generations;
#[path = "../src/hash.rs"]
mod hash;

use atomic::AtomicU64;
use compact::CompactKey;
use entry::{Entry, NewEntry};
use generations::Generations;
use loom::model::Builder;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Few switches of threads are enough for the faults that are known; all of them would take days.
fn model(switches: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(f);
}

fn new_entry(id: u64) -> NewEntry {
    NewEntry {
        id,
        key: CompactKey::from_words([id; 8]),
        cached: number(id),
        subtable: number(id) + 1000,
        body: 0,
        now_ms: id,
        watch: 0,
        stamp: 0,
    }
}

fn number(id: u64) -> u32 {
    u32::try_from(id).unwrap()
}

/// The revalidator reads fields of one id, even if the owner changes or reuses the entry meanwhile.
#[test]
fn an_entry_is_read_whole() {
    model(2, || {
        let entry = Arc::new(Entry::default());
        let owner = {
            let entry = entry.clone();
            thread::spawn(move || {
                entry.publish(&new_entry(1));
                entry.rename(2, 2, 0);
                entry.retire();
                entry.publish(&new_entry(3));
            })
        };
        if let Some(s) = entry.read() {
            assert_eq!(s.cached, number(s.id));
            // An entry with another cached translation keeps its mask and key.
            let made = if s.id == 2 { 1 } else { s.id };
            assert_eq!((s.subtable, s.used_ms), (number(made) + 1000, made));
            if let Some(key) = entry.read_key(s.id) {
                assert_eq!(key, new_entry(made).key);
            }
            entry.condemn(s.id);
        }
        owner.join().unwrap();
        // An id that was condemned earlier does not condemn this one.
        let last = entry.read().unwrap();
        assert_eq!((last.id, last.cached), (3, 3));
        assert!(!last.dead || !entry.alive());
    });
}

/// A thing that changes twice, whose state is its generation.
#[test]
fn an_answer_is_not_older_than_its_generation() {
    model(3, || {
        let generations = Arc::new(Generations::default());
        let thing = Arc::new(AtomicU64::new(1));
        let slot = Generations::slot_of(7);
        let writer = {
            let (generations, thing) = (generations.clone(), thing.clone());
            thread::spawn(move || {
                for state in 2..4 {
                    thing.store(state, Relaxed);
                    generations.bump(slot);
                }
            })
        };
        // Like a worker: `any`, then the dependency, then the thing.
        let any = generations.any();
        let dep = generations.read(slot);
        let seen = thing.load(Relaxed);
        assert!(
            dep.generation >= any,
            "a later answer is said to be checked at `any`"
        );
        assert!(seen >= dep.generation, "an old state under a new generation");
        // Later: a result that is valid at this `any`, or whose generation is unchanged, equals a fresh one.
        let now = generations.any();
        if generations.hold(&[dep]) {
            assert!(dep.generation >= now);
        }
        writer.join().unwrap();
        assert_eq!((generations.any(), generations.read(slot).generation), (3, 3));
    });
}

/// Two writers change rules of one table while a cache keeps a result. A completed change is never missed.
/// Either the result has seen it, or the log reports it, or the log is incomplete.
#[test]
fn each_change_is_seen_or_told() {
    let about = |n: u32| {
        let mut m = heddle_flow::Match::any();
        (m.key.nw_dst, m.mask.0.nw_dst) = (n, u32::MAX);
        heddle_classifier::MiniMatch::new(&m)
    };
    let rules = Arc::new([about(1), about(2)]);
    model(2, move || {
        let generations = Arc::new(Generations::default());
        let rules = rules.clone();
        let of_each = || Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (things, said) = (of_each(), of_each());
        let slot = Generations::logged_slot_of(7);
        let writer = |n: usize| {
            let (generations, rules) = (generations.clone(), rules.clone());
            let (things, said) = (things.clone(), said.clone());
            thread::spawn(move || {
                things[n].store(1, Relaxed);
                let mut changes = changes::Changes::default();
                changes.add(&rules[n]);
                generations.bump_changed(slot, changes);
                said[n].store(1, Release);
            })
        };
        let writers = [writer(0), writer(1)];
        let dep = generations.read(slot);
        let seen = [0, 1].map(|n| things[n].load(Relaxed));
        let check = || {
            let said = [0, 1].map(|n| said[n].load(Acquire));
            let now = generations.read(slot).generation;
            let mut told = [false; 2];
            let all = generations.changed(slot, dep.generation, now, &mut |m| {
                (0..2).for_each(|n| told[n] |= m.values == rules[n].values);
                true
            });
            for n in 0..2 {
                let known = seen[n] == 1 || told[n] || now != dep.generation && !all;
                assert!(said[n] == 0 || known, "change {n} is missed");
            }
        };
        check();
        writers.into_iter().for_each(|w| w.join().unwrap());
        check();
    });
}
