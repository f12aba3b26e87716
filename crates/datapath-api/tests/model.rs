//! All interleavings of threads that change things and a thread that caches translations: `make models`.
//!
//! The files under test are compiled anew, with the model checker's atomics.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub)]

mod atomic {
    pub(crate) use loom::sync::atomic::AtomicU64;
}
#[path = "../src/changes.rs"]
mod changes;
#[path = "../src/generations.rs"]
mod generations;

use atomic::AtomicU64;
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

/// A thing that changes twice, whose state is its generation.
#[test]
fn a_translation_is_not_older_than_its_generation() {
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
        // In the order of a worker: `any`, then the generation, then the thing.
        let any = generations.any();
        let dep = generations.read(slot);
        let seen = thing.load(Relaxed);
        assert!(
            dep.generation >= any,
            "a later answer is said to be checked at `any`"
        );
        assert!(seen >= dep.generation, "an old state under a new generation");
        // Later: what is valid at this `any`, or has its generation still, is what a fresh look would find.
        let now = generations.any();
        if generations.hold(&[dep]) {
            assert!(dep.generation >= now);
        }
        writer.join().unwrap();
        assert_eq!((generations.any(), generations.read(slot).generation), (3, 3));
    });
}

/// Two threads change rules of one table, and a third one caches a translation. Once a change has been
/// logged, the translation has seen it, or the log lists it, or the log does not list all changes.
#[test]
fn each_change_is_seen_or_logged() {
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
