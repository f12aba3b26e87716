//! Freeing the memory of removed rules.

use super::ip_match;
use crate::{Classifier, Entry, MiniMatch};
use heddle_flow::{FlowKey, FlowMask};
use heddle_sync::ReadGuard;
use std::sync::{Arc, Weak};

fn host(n: u32) -> MiniMatch {
    MiniMatch::new(&ip_match(1, n, 32, None))
}

/// Adds `n` rules with addresses from `first` on.
fn load(cls: &Classifier<u32>, first: u32, n: u32, version: u64) -> Vec<Arc<Entry<u32>>> {
    let all = (first..first + n).map(|n| cls.insert(&host(n), 7, version, n));
    let all = all.collect();
    cls.publish();
    all
}

fn remove(cls: &Classifier<u32>, gone: &[Arc<Entry<u32>>], version: u64) {
    for e in gone {
        assert!(cls.remove(&host(e.data), e, version));
    }
    assert_eq!(cls.purge(version), gone.len() as u64);
}

/// Waits, since tests that run beside this one are readers too.
fn wait_until(cls: &Classifier<u32>, done: impl Fn() -> bool) {
    while !done() {
        cls.tidy();
        std::thread::yield_now();
    }
}

#[test]
fn rules_are_freed_though_their_table_stays() {
    let cls = Classifier::new();
    let n = if cfg!(miri) { 100 } else { 1000 };
    let mut all = load(&cls, 0, n, 1);
    // Too few for a new table.
    let gone: Vec<_> = all.drain(..n as usize / 10).collect();
    let weak: Vec<Weak<_>> = gone.iter().map(Arc::downgrade).collect();
    remove(&cls, &gone, 2);
    drop(gone);
    wait_until(&cls, || weak.iter().all(|e| e.strong_count() == 0));
    assert_eq!(cls.len(), all.len());
    for e in &all {
        assert!(cls.find_exact(2, &host(e.data), 7).is_some());
    }
}

#[test]
fn rules_that_are_read_are_freed_later() {
    let cls = Classifier::new();
    let mut all = load(&cls, 0, 100, 1);
    let gone = all.split_off(99);
    let weak = Arc::downgrade(&gone[0]);
    let reading = ReadGuard::begin();
    let key = FlowKey {
        in_port: 1,
        nw_dst: 99,
        ..FlowKey::default()
    };
    let found = cls.lookup(&reading, 1, &key, &mut FlowMask::default());
    remove(&cls, &gone, 2);
    drop(gone);
    cls.tidy();
    assert_eq!((found.map(|e| e.data), weak.strong_count()), (Some(99), 1));
    drop(reading);
    wait_until(&cls, || weak.strong_count() == 0);
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn prefixes_are_told_apart_again_after_there_were_too_many() {
    let cls = Classifier::new();
    let stays = load(&cls, 0x0a01_0203, 1, 1);
    let key = FlowKey {
        in_port: 1,
        nw_dst: 0x0b01_0203,
        ..FlowKey::default()
    };
    let looked_at = || {
        let (reading, mut wc) = (ReadGuard::begin(), FlowMask::default());
        let found = cls.lookup(&reading, 1, &key, &mut wc);
        (found.map(|e| e.data), wc.0.nw_dst)
    };
    assert_eq!(looked_at(), (None, 0xff00_0000));
    let many = load(&cls, 0x1000_0000, 1 << 18, 0);
    assert_eq!(looked_at(), (None, u32::MAX), "more than are told apart");
    remove(&cls, &many, 1);
    assert_eq!(looked_at(), (None, 0xff00_0000));
    assert_eq!(cls.len(), stays.len());
}
