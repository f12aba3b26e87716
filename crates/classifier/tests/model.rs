//! All interleavings of few readers and writers of a table of rules: `make models`.
//!
//! The files under test are compiled anew, with the model checker's atomics. The model leaves out the tables'
//! growth (`heddle_sync::RcuCell`, on top of `arc-swap`), and uses one mask only.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub)]

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
}
#[path = "../src/entry.rs"]
mod entry;
#[path = "../src/slots.rs"]
mod slots;
#[path = "../src/stage.rs"]
mod stage;
#[path = "../src/trie.rs"]
mod trie;

use atomic::{AtomicU64, fence};
use entry::{Entry, FOREVER};
use heddle_sync::ReadGuard;
use loom::model::Builder;
use loom::thread;
use slots::Slots;
use stage::StageIndex;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use trie::Trie;

/// Few switches of threads are enough for the faults that are known; all of them would take days.
fn model(switches: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(f);
}

const MATCH: u64 = 3 << 32 | 1;

/// A table with one match, and the bridge's version.
struct Table {
    slots: Slots<u64>,
    index: StageIndex,
    version: AtomicU64,
    purged: AtomicU64,
}

impl Table {
    fn new() -> Self {
        Self {
            slots: Slots::for_rules(2),
            index: StageIndex::default(),
            version: AtomicU64::new(1),
            purged: AtomicU64::new(0),
        }
    }
    /// Like `Subtable::insert`.
    fn insert(&self, version: u64) -> Arc<Entry<u64>> {
        let entry = Arc::new(Entry {
            values: Arc::from([0]),
            priority: 0,
            added: version,
            removed: AtomicU64::new(FOREVER),
            data: version,
        });
        assert!(self.index.add(MATCH));
        self.slots.insert(MATCH, entry.clone());
        entry
    }
    /// Replaces a rule by one with other actions.
    fn replace(&self, old: &Entry<u64>, version: u64) -> Arc<Entry<u64>> {
        old.removed.store(version, Relaxed);
        let new = self.insert(version);
        self.version.store(version, Release);
        new
    }
    /// Like `Bridge::unlink_garbage` and `Classifier::purge`.
    fn purge(&self, gone: &Arc<Entry<u64>>, version: u64) {
        self.purged.fetch_max(version, Relaxed);
        fence(Release);
        assert!(self.slots.remove(MATCH, gone));
        self.index.sub(MATCH);
        self.slots.tidy();
    }
    /// Looks the rule up: (version that was read, rule).
    fn look(&self) -> (u64, Option<u64>) {
        let version = self.version.load(Acquire);
        if !self.index.has(MATCH) {
            return (version, None);
        }
        let reading = ReadGuard::begin();
        let mut all = self
            .slots
            .candidates(&reading, MATCH)
            .filter(|c| c.entry.visible(version));
        let found = all.next().map(|c| c.entry.data);
        assert!(all.next().is_none(), "two rules of version {version}");
        (version, found)
    }
}

/// While a rule is replaced, a lookup finds the rule of the version that it has read.
#[test]
fn a_lookup_finds_the_rule_of_its_version() {
    model(3, || {
        let table = Arc::new(Table::new());
        let first = table.insert(1);
        let writer = {
            let table = table.clone();
            thread::spawn(move || {
                let second = table.replace(&first, 2);
                table.replace(&second, 3);
            })
        };
        let (version, found) = table.look();
        assert_eq!(found, Some(version));
        writer.join().unwrap();
        assert_eq!(table.look(), (3, Some(3)));
    });
}

/// A lookup that misses an unlinked rule detects the purge.
#[test]
fn a_lookup_knows_of_rules_that_were_unlinked() {
    model(3, || {
        let table = Arc::new(Table::new());
        let first = table.insert(1);
        let writer = {
            let table = table.clone();
            thread::spawn(move || {
                table.replace(&first, 2);
                table.purge(&first, 2);
            })
        };
        let (version, found) = table.look();
        fence(Acquire);
        let torn = table.purged.load(Relaxed) > version;
        assert!(torn || found == Some(version), "{found:?} at {version}");
        writer.join().unwrap();
        assert_eq!(table.look(), (2, Some(2)));
    });
}

/// A prefix that exists all the time is always found, even if others around it come and go.
#[test]
fn a_prefix_is_never_missed() {
    model(2, || {
        let trie = Arc::new(Trie::<1>::default());
        trie.insert(&[0xc0a8_0000], 16);
        let writer = {
            let trie = trie.clone();
            thread::spawn(move || {
                // A node between comes and goes; another node further down reuses its memory.
                trie.insert(&[0xc000_0000], 8);
                trie.remove(&[0xc000_0000], 8);
                trie.insert(&[0xc0a8_8000], 24);
            })
        };
        assert!(trie.lookup(&[0xc0a8_1234]).has(16));
        writer.join().unwrap();
        let found = trie.lookup(&[0xc0a8_8001]);
        assert!(found.has(16) && found.has(24) && !found.has(8));
    });
}
