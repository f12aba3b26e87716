//! Connections that other connections have announced.
//!
//! They are few and seldom come, so there is one table under one lock. A filter, an array of counters by
//! hash, shows whether the table may have a match. Only then a new connection takes the lock. The number of
//! expectations is bounded, for each announcing connection and in total. An expectation lives for minutes,
//! but no longer than the connection that announced it. A full table evicts the oldest expectation of the
//! zone that has the most. So a zone that announces without end loses its own expectations.

use crate::action::NatEnd;
use crate::tuple::Tuple;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Lifetime of an expectation.
const LIFE_MS: u64 = 300_000;
/// Maximum number of expectations, of one connection and in total.
const OF_ONE: usize = 8;
const IN_ALL: usize = 16_384;
/// Counters of the filter.
const COUNTERS: usize = 1024;

/// Match of an expected connection: any port of `src` to this port of `dst`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) src: u128,
    pub(crate) dst: u128,
    pub(crate) port: u32,
    pub(crate) proto: u8,
    pub(crate) ipv6: bool,
    pub(crate) zone: u16,
}

impl Key {
    pub(crate) fn of(t: &Tuple, zone: u16) -> Self {
        Self {
            src: t.src.addr,
            dst: t.dst.addr,
            port: t.dst.l4,
            proto: t.proto,
            ipv6: t.ipv6,
            zone,
        }
    }
}

/// Identity of the connection that announced another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parent {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// Properties of an expected connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expectation {
    pub(crate) parent: Parent,
    /// Original tuple, mark and label of the connection that announced it.
    pub(crate) orig: Tuple,
    pub(crate) mark: u32,
    pub(crate) label: u128,
    /// The end to translate, its new address and, if it changes, its new port.
    pub(crate) end: NatEnd,
    pub(crate) address: u128,
    pub(crate) port: Option<u32>,
}

#[derive(Debug, Default)]
struct Table {
    by_key: HashMap<Key, (u64, Expectation)>,
    /// Oldest first: the key, its counter, the time of expiry.
    by_age: BTreeMap<u64, (Key, usize, u64)>,
    by_parent: HashMap<u32, VecDeque<u64>>,
    /// Numbers of each zone, oldest first.
    by_zone: HashMap<u16, BTreeSet<u64>>,
    /// Zones in the order of their number of expectations.
    loads: BTreeSet<(usize, u16)>,
    next: u64,
}

impl Table {
    /// Changes the numbers of a zone, and its position in `loads`.
    fn load(&mut self, zone: u16, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let numbers = self.by_zone.entry(zone).or_default();
        self.loads.remove(&(numbers.len(), zone));
        change(numbers);
        match numbers.len() {
            0 => _ = self.by_zone.remove(&zone),
            n => _ = self.loads.insert((n, zone)),
        }
    }
    /// The oldest expectation of the zone that has the most.
    fn of_the_greatest(&self) -> Option<u64> {
        let (_, zone) = self.loads.last()?;
        self.by_zone.get(zone)?.first().copied()
    }
}

#[derive(Debug)]
pub(crate) struct Expectations {
    count: AtomicU32,
    filter: Box<[AtomicU32]>,
    table: Mutex<Table>,
}

impl Expectations {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            filter: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
            table: Mutex::default(),
        }
    }
    /// Whether there are any.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }
    fn counter(hash: u32) -> usize {
        usize::try_from(hash).unwrap_or(0) % COUNTERS
    }
    fn remove(&self, t: &mut Table, number: u64) {
        let Some((key, counter, _)) = t.by_age.remove(&number) else {
            return;
        };
        if let Some(n) = self.filter.get(counter) {
            n.fetch_sub(1, Relaxed);
        }
        self.count.fetch_sub(1, Relaxed);
        t.load(key.zone, |numbers| _ = numbers.remove(&number));
        let Some((_, e)) = t.by_key.remove(&key) else {
            return;
        };
        if let Some(of_parent) = t.by_parent.get_mut(&e.parent.number) {
            of_parent.retain(|n| *n != number);
            if of_parent.is_empty() {
                t.by_parent.remove(&e.parent.number);
            }
        }
    }
    /// Adds an expectation; `hash`: of the key. `false`: another live connection has announced the same key,
    /// and its expectation stays.
    pub(crate) fn add(
        &self,
        now_ms: u64,
        key: Key,
        hash: u32,
        e: Expectation,
        lives: impl Fn(Parent) -> bool,
    ) -> bool {
        let mut guard = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let t = &mut *guard;
        if let Some((number, old)) = t.by_key.get(&key).copied() {
            if old.parent != e.parent && lives(old.parent) {
                return false;
            }
            self.remove(t, number);
        }
        let of_parent = t.by_parent.entry(e.parent.number).or_default();
        let oldest = (of_parent.len() >= OF_ONE)
            .then(|| of_parent.front().copied())
            .flatten();
        let oldest = oldest.or_else(|| t.of_the_greatest().filter(|_| t.by_age.len() >= IN_ALL));
        if let Some(oldest) = oldest {
            self.remove(t, oldest);
        }
        let (number, counter) = (t.next, Self::counter(hash));
        t.next += 1;
        t.by_key.insert(key, (number, e));
        t.by_age.insert(number, (key, counter, now_ms + LIFE_MS));
        t.by_parent.entry(e.parent.number).or_default().push_back(number);
        t.load(key.zone, |numbers| _ = numbers.insert(number));
        if let Some(n) = self.filter.get(counter) {
            n.fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        true
    }
    /// Returns the expectation for a key, and removes it if its time is over or its parent is gone. `hash`:
    /// of the key.
    pub(crate) fn find(
        &self,
        now_ms: u64,
        key: Key,
        hash: u32,
        lives: impl Fn(Parent) -> bool,
    ) -> Option<Expectation> {
        let counter = self.filter.get(Self::counter(hash))?;
        (counter.load(Relaxed) > 0).then_some(())?;
        let mut t = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, e) = *t.by_key.get(&key)?;
        let (.., until) = *t.by_age.get(&number)?;
        if now_ms < until && lives(e.parent) {
            return Some(e);
        }
        self.remove(&mut t, number);
        None
    }
    /// The expectations of one connection, oldest first.
    pub(crate) fn of_parent(&self, parent: Parent) -> Vec<(Key, Expectation)> {
        let t = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = t.by_parent.get(&parent.number).into_iter().flatten();
        let keys = numbers.filter_map(|n| t.by_age.get(n).map(|(key, ..)| *key));
        keys.filter_map(|key| Some((key, t.by_key.get(&key)?.1)))
            .filter(|(_, e)| e.parent == parent)
            .collect()
    }
    /// Removes some of the expectations whose time is over.
    pub(crate) fn sweep(&self, now_ms: u64) {
        const STEP: usize = 256;
        if self.is_empty() {
            return;
        }
        let mut t = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..STEP {
            let first = t.by_age.first_key_value().map(|(n, (.., until))| (*n, *until));
            let Some((number, _)) = first.filter(|(_, until)| *until <= now_ms) else {
                break;
            };
            self.remove(&mut t, number);
        }
    }
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let t = self.table.lock().unwrap();
        let n = t.by_age.len();
        let sum: u32 = self.filter.iter().map(|c| c.load(Relaxed)).sum();
        assert_eq!(n, t.by_key.len());
        assert_eq!(n, t.by_parent.values().map(VecDeque::len).sum::<usize>());
        assert_eq!(n, t.by_zone.values().map(BTreeSet::len).sum::<usize>());
        assert_eq!(n, t.loads.iter().map(|(n, _)| n).sum::<usize>());
        assert_eq!((n, n), (sum as usize, self.count.load(Relaxed) as usize));
        n
    }
}
