//! Records of connections: who may have one, and when one may be used again.
//!
//! **Count.** There may be as many connections as `maxconns` says. A worker does not add to one number that
//! all share: it takes the right to make some tens of connections at a time while there are few, and one by
//! one when it becomes tight, so that a small limit is exact. Rights that are not used are no connections
//! ([`Slots::count`]).
//!
//! **Use again.** Who frees a record says so to [`Slots::put_aside`]; its number is given away again when all
//! who read at that time have ended. That is work of the thread that sweeps.

use crate::events::Event;
use crate::free_list::FreeList;
use crate::index::MAX_RECORDS;
use crate::record::Record;
use heddle_sync::{CachePadded, ReadGuard};
use heddle_sys::Zeroed;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Places where workers keep rights. Threads beyond share them.
const SHARDS: u32 = 32;
/// Rights taken at a time, at most.
const BATCH: u32 = 64;

#[derive(Debug)]
pub(crate) struct Slots {
    records: Zeroed<Record>,
    free: FreeList,
    limit: AtomicU32,
    /// Connections and rights to make one.
    taken: CachePadded<AtomicU32>,
    rights: [CachePadded<AtomicU32>; SHARDS as usize],
    aside: Mutex<VecDeque<(u64, Vec<u32>)>>,
}

/// This thread's place among the shards.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = THREADS.fetch_add(1, Relaxed) % SHARDS as usize;
    }
    MINE.with(|m| *m)
}

impl Slots {
    /// Memory for so many records, of which none is touched.
    pub(crate) fn new(capacity: usize, limit: u32) -> io::Result<Self> {
        let capacity = capacity.clamp(64, MAX_RECORDS);
        Ok(Self {
            records: Zeroed::in_file("connections", capacity)?,
            free: FreeList::new(capacity)?,
            limit: AtomicU32::new(limit),
            taken: CachePadded::new(AtomicU32::new(0)),
            rights: [(); SHARDS as usize].map(|()| CachePadded::new(AtomicU32::new(0))),
            aside: Mutex::default(),
        })
    }
    pub(crate) fn capacity(&self) -> usize {
        self.records.len()
    }
    /// Numbers of records that were ever used are below.
    pub(crate) fn used(&self) -> u32 {
        self.free.used()
    }
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Record> {
        self.records.get(number as usize)
    }
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }
    pub(crate) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Relaxed);
        for r in &self.rights {
            self.taken.fetch_sub(r.swap(0, Relaxed), Relaxed);
        }
    }
    /// Connections that were made and have not been freed.
    pub(crate) fn count(&self) -> u32 {
        let rights: u32 = self.rights.iter().map(|r| r.load(Relaxed)).sum();
        self.taken.load(Relaxed).saturating_sub(rights)
    }
    /// A free record, which counts from now on.
    pub(crate) fn take(&self) -> Result<(u32, &Record), Event> {
        if !self.admit() {
            return Err(Event::Full);
        }
        let number = self.free.take();
        match number.and_then(|n| Some((n, self.get(n)?))) {
            Some(found) => Ok(found),
            None => {
                self.uncount(1);
                Err(Event::NoRoom)
            }
        }
    }
    /// Gives back what [`Slots::take`] gave and nobody has seen.
    pub(crate) fn give(&self, number: u32) {
        self.free.give(number);
        self.uncount(1);
    }
    fn admit(&self) -> bool {
        let one_less = |r: u32| r.checked_sub(1);
        let mine = self.rights.get(shard());
        if mine.is_some_and(|m| m.fetch_update(Relaxed, Relaxed, one_less).is_ok()) {
            return true;
        }
        let limit = self.limit();
        let mut taken = self.taken.load(Relaxed);
        loop {
            let Some(left) = limit.checked_sub(taken).filter(|l| *l > 0) else {
                return false;
            };
            // So few that the rights of all shards together are less than what is left.
            let batch = (left / (4 * SHARDS)).clamp(1, BATCH);
            match self
                .taken
                .compare_exchange_weak(taken, taken + batch, Relaxed, Relaxed)
            {
                Ok(_) => {
                    if let Some(m) = mine {
                        m.fetch_add(batch - 1, Relaxed);
                    }
                    return true;
                }
                Err(now) => taken = now,
            }
        }
    }
    pub(crate) fn uncount(&self, n: u32) {
        self.taken.fetch_sub(n, Relaxed);
    }
    /// Records that nobody finds any more. They are uncounted at once, and used again when nobody reads them.
    pub(crate) fn put_aside(&self, numbers: Vec<u32>) {
        if numbers.is_empty() {
            return;
        }
        self.uncount(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        aside.push_back((ReadGuard::replaced(), numbers));
    }
    /// Gives away again what nobody reads any more.
    pub(crate) fn tidy(&self) {
        loop {
            let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
            if aside.front().is_none_or(|(since, _)| *since > ReadGuard::over()) {
                return;
            }
            let numbers = aside.pop_front().map(|(_, n)| n).unwrap_or_default();
            drop(aside);
            numbers.into_iter().for_each(|n| self.free.give(n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_limit_is_exact() {
        let s = Slots::new(1 << 16, 10).unwrap();
        let numbers: Vec<_> = std::iter::from_fn(|| s.take().ok().map(|(n, _)| n)).collect();
        assert_eq!((numbers.len(), s.count()), (10, 10));
        assert_eq!(s.take().unwrap_err(), Event::Full);
        s.give(numbers[0]);
        assert!(s.take().is_ok());
        s.set_limit(1000);
        for _ in 0..90 {
            s.take().unwrap();
        }
        assert_eq!(s.count(), 100);
        s.set_limit(50);
        assert_eq!((s.take().unwrap_err(), s.count()), (Event::Full, 100));
    }

    #[test]
    fn rights_are_no_connections() {
        let s = Slots::new(1 << 16, 1 << 20).unwrap();
        s.take().unwrap();
        assert!(s.taken.load(Relaxed) > 1);
        assert_eq!(s.count(), 1);
        s.set_limit(1);
        assert_eq!((s.count(), s.taken.load(Relaxed)), (1, 1));
    }

    #[test]
    fn what_is_read_is_not_used_again() {
        let s = Slots::new(64, 64).unwrap();
        let reading = ReadGuard::begin();
        let n = s.take().unwrap().0;
        s.put_aside(vec![n]);
        s.tidy();
        assert_eq!(s.count(), 0);
        assert_ne!(s.take().unwrap().0, n);
        drop(reading);
        // Readers of other tests of this process may be there, too.
        while !s.aside.lock().unwrap().is_empty() {
            s.tidy();
        }
        assert_eq!(s.take().unwrap().0, n);
    }
}
