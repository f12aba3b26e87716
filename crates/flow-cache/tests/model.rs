//! All interleavings of a worker and of threads that read its entries: `make models`.
//!
//! The files under test are compiled anew, with the model checker's atomics. Validity groups and cached
//! translations belong to one worker, and are not tested here.
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
/// Numbers of programs.
mod program_table {
    #[derive(Clone, Copy, Default)]
    pub(crate) struct ProgramId(pub u32);
}
#[path = "../src/entry.rs"]
mod entry;

use compact::CompactKey;
use entry::{CacheEntry, Membership, NewEntry};
use loom::model::Builder;
use loom::thread;
use program_table::ProgramId;
use std::sync::Arc;

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
        translation: number(id),
        subtable: number(id) + 1000,
        program: ProgramId::default(),
        now_ms: id,
        membership: Membership::default(),
    }
}

fn number(id: u64) -> u32 {
    u32::try_from(id).unwrap()
}

/// The revalidator reads fields of one id, even if the owner changes or reuses the entry meanwhile.
#[test]
fn an_entry_is_read_whole() {
    model(2, || {
        let entry = Arc::new(CacheEntry::default());
        let owner = {
            let entry = entry.clone();
            thread::spawn(move || {
                entry.publish(&new_entry(1));
                entry.rename(2, 2, ProgramId::default());
                entry.free();
                entry.publish(&new_entry(3));
            })
        };
        if let Some(s) = entry.read() {
            assert_eq!(s.translation, number(s.id));
            // An entry with another cached translation keeps its mask and key.
            let made = if s.id == 2 { 1 } else { s.id };
            assert_eq!((s.subtable, s.counts.used_ms), (number(made) + 1000, made));
            if let Some(key) = entry.read_key(s.id) {
                assert_eq!(key, new_entry(made).key);
            }
            entry.evict(s.id);
        }
        owner.join().unwrap();
        // An id that was evicted earlier does not evict this one.
        let last = entry.read().unwrap();
        assert_eq!((last.id, last.translation), (3, 3));
        assert!(!last.evicted || !entry.alive());
    });
}
