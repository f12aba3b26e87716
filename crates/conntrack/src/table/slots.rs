//! Records of connections: the threads that may take one, and the time when one may be used again.
//!
//! **Count.** `maxconns` limits the number of connections. Workers do not add to one shared number. A worker
//! takes the right to make some tens of connections at a time. Near the limit it takes rights one by one, so
//! that a small limit is exact. Unused rights are no connections ([`Slots::count`]).
//!
//! **Use again.** A thread that frees a record passes it to [`Slots::put_aside`]. The connection expiry
//! thread returns the number to the free list when all threads that were reading then have finished.
//!
//! **Time.** Beside the records is a column of four bytes for each: the second when the connection expiry
//! thread has to read the record. The maker of a connection writes it, and a thread that makes the timeout
//! shorter. A longer timeout is not written: the expiry thread reads the record and then writes the new time.
//! The time in the column may therefore be too early, but never too late.
//!
//! **Give back.** After many connections have ended, [`Slots::give_back`] returns whole pages of free records
//! to the system. These records lose their generations. So every later connection gets a generation above all
//! earlier ones ([`Slots::fill`]).
//!
//! **Memory.** Records are in a file without a name, which another process can map. They
//! have no pointers. All else can be made anew from the records: the index, the column, the free numbers.

mod give_back;

use crate::events::Event;
use crate::table::free_list::FreeList;
use crate::table::index::MAX_RECORDS;
use crate::table::record::{New, Record};
use give_back::GiveBack;
use heddle_sync::{CachePadded, ReadGuard};
use heddle_sys::Zeroed;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// Shards in which workers keep their rights. More threads than shards share them.
const SHARDS: u32 = 32;
/// Maximum number of rights that a worker takes at a time.
const BATCH: u32 = 64;
/// Times of the column that are compared together.
const TOGETHER: usize = 16;
/// A time of the column: at once. All other times are larger.
const NOW: u32 = 1;

#[derive(Debug)]
pub(crate) struct Slots {
    records: Zeroed<Record>,
    free: FreeList,
    /// See "Time" in the text of the module; 0: the record is not read.
    due: Zeroed<AtomicU32>,
    limit: AtomicU32,
    /// Number of connections and of unused rights.
    taken: CachePadded<AtomicU32>,
    rights: [CachePadded<AtomicU32>; SHARDS as usize],
    aside: Mutex<VecDeque<(u64, Vec<u32>)>>,
    /// The highest generation that a record was given.
    newest: CachePadded<AtomicU32>,
    /// New connections have higher generations than this.
    past: AtomicU32,
    /// Progress of the give-back.
    stage: Mutex<GiveBack>,
}

/// The time in the column for a record that expires then.
fn due(expires_ms: u64) -> u32 {
    u32::try_from(expires_ms / 1000).map_or(u32::MAX, |s| s.saturating_add(NOW + 1))
}

/// The shard of this thread.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = THREADS.fetch_add(1, Relaxed) % SHARDS as usize;
    }
    MINE.with(|m| *m)
}

impl Slots {
    /// Allocates address space for records, without touching their memory.
    pub(crate) fn new(capacity: usize, limit: u32) -> io::Result<Self> {
        let capacity = capacity.clamp(64, MAX_RECORDS);
        Ok(Self {
            records: Zeroed::in_file("connections", capacity)?,
            free: FreeList::new(capacity)?,
            due: Zeroed::new(capacity, true)?,
            limit: AtomicU32::new(limit),
            taken: CachePadded::new(AtomicU32::new(0)),
            rights: [(); SHARDS as usize].map(|()| CachePadded::new(AtomicU32::new(0))),
            aside: Mutex::default(),
            newest: CachePadded::new(AtomicU32::new(0)),
            past: AtomicU32::new(0),
            stage: Mutex::default(),
        })
    }
    pub(crate) fn capacity(&self) -> usize {
        self.records.len()
    }
    /// An upper bound: numbers of all records that were ever used are below.
    pub(crate) fn used(&self) -> u32 {
        self.free.used()
    }
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Record> {
        self.records.get(number as usize)
    }
    /// The file of the records, one after the other from its beginning.
    #[cfg(test)]
    pub(crate) fn file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.records.file()
    }
    /// The first record that begins behind the huge page that this one is in.
    pub(crate) fn next_page(&self, number: u32) -> u32 {
        u32::try_from(self.records.next_page(number as usize)).unwrap_or(u32::MAX)
    }
    /// Makes the page around a record a huge one, see [`Zeroed::join_pages`]. Returns the first record behind
    /// it.
    pub(crate) fn prepare(&self, number: u32) -> io::Result<u32> {
        if let Some(r) = self.get(number) {
            // The kernel joins only pages that were touched.
            r.populate();
            self.records.join_pages(number as usize)?;
        }
        Ok(self.next_page(number))
    }

    /// The connection expiry thread has to read a record when it expires.
    pub(crate) fn look_at(&self, number: u32, expires_ms: u64) {
        self.put_due(number, due(expires_ms));
    }
    /// The connection expiry thread has to read a record at once.
    pub(crate) fn look_now(&self, number: u32) {
        self.put_due(number, NOW);
    }
    /// The connection expiry thread does not read a record any more.
    pub(crate) fn look_never(&self, number: u32) {
        self.put_due(number, 0);
    }
    fn put_due(&self, number: u32, due: u32) {
        if let Some(d) = self.due.get(number as usize) {
            // Release pairs with the Acquire in `next_due`: the reader sees the change of the record.
            d.store(due, Release);
        }
    }
    /// The connection expiry thread has read a record whose time was `seen`, and the record expires later. A
    /// time that another thread wrote meanwhile stays.
    pub(crate) fn look_later(&self, number: u32, seen: u32, expires_ms: u64) {
        if let Some(d) = self.due.get(number as usize) {
            // Whatever it was.
            let _ = d.compare_exchange(seen, due(expires_ms), Relaxed, Relaxed);
        }
    }
    /// The connection expiry thread has read a record that is not in use.
    pub(crate) fn was_free(&self, number: u32) {
        if let Some(d) = self.due.get(number as usize) {
            let _ = d.compare_exchange(NOW, 0, Relaxed, Relaxed); // a maker's time stays
        }
    }
    /// The first record of these numbers whose time has come, and that time.
    pub(crate) fn next_due(&self, now_ms: u64, from: u32, to: u32) -> Option<(u32, u32)> {
        let now = due(now_ms);
        // Subtraction turns 0 into the latest of all times.
        let is_due = |d: u32| d.wrapping_sub(NOW) < now;
        let places = self.due.get(from as usize..to as usize)?;
        for (chunk, first) in places.chunks(TOGETHER).zip((from..).step_by(TOGETHER)) {
            // One fold over all times, without a branch for each.
            let any = chunk.iter().fold(false, |any, d| any | is_due(d.load(Relaxed)));
            if any {
                let mut seen = (first..).zip(chunk.iter().map(|d| d.load(Acquire)));
                if let Some(found) = seen.find(|(_, d)| is_due(*d)) {
                    return Some(found);
                }
            }
        }
        None
    }
    /// Whether a connection may have this record. Do not read others: that could allocate a page.
    pub(crate) fn may_be_used(&self, number: u32) -> bool {
        self.due
            .get(number as usize)
            .is_some_and(|d| d.load(Acquire) != 0)
    }
    /// Fills a free record; returns its new generation.
    pub(crate) fn fill(&self, record: &Record, new: &New) -> u32 {
        // Acquire pairs with the Release in `give_back`: a thread that fills a record which lost its memory
        // sees the new value.
        let generation = record.fill(new, self.past.load(Acquire));
        if generation > self.newest.load(Relaxed) {
            self.newest.fetch_max(generation, Relaxed);
        }
        generation
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
    /// Number of connections that were made and have not been freed.
    pub(crate) fn count(&self) -> u32 {
        let rights: u32 = self.rights.iter().map(|r| r.load(Relaxed)).sum();
        self.taken.load(Relaxed).saturating_sub(rights)
    }
    /// Takes a free record; it is counted from now on.
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
    /// Returns a record of [`Slots::take`] that no other thread has seen.
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
            // The rights of all shards together are less than the rest.
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
    /// Takes records that lookups do not find any more. They are uncounted at once, and used again when no
    /// thread reads them.
    pub(crate) fn put_aside(&self, numbers: Vec<u32>) {
        if numbers.is_empty() {
            return;
        }
        self.uncount(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        aside.push_back((ReadGuard::replaced(), numbers));
    }
    #[cfg(test)]
    pub(crate) fn has_put_aside(&self) -> bool {
        !self
            .aside
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }
    /// Frees the records that no thread reads any more.
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

    /// The column beside a plain list of times.
    #[test]
    fn due_is_what_is_over_to_the_second() {
        let s = Slots::new(1000, 1000).unwrap();
        let mut times = vec![None; 1000];
        let mut x = 7_u64;
        let mut random = |n: u64| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (x >> 33) % n
        };
        for _ in 0..200 {
            for _ in 0..random(20) {
                let (n, t) = (random(1000), random(90_000));
                let n32 = u32::try_from(n).unwrap();
                times[usize::try_from(n).unwrap()] = match random(4) {
                    0 => {
                        s.look_never(n32);
                        None
                    }
                    1 => {
                        s.look_now(n32);
                        Some(0)
                    }
                    _ => {
                        s.look_at(n32, t);
                        Some(t)
                    }
                };
            }
            let (now, mut at) = (random(90_000), u32::try_from(random(900)).unwrap());
            for (n, t) in (0..).zip(&times).skip(at as usize) {
                if t.is_some_and(|t| t / 1000 <= now / 1000) {
                    let (found, seen) = s.next_due(now, at, 1000).unwrap();
                    assert_eq!(found, n);
                    s.look_later(n, seen + 1, 0);
                    assert_eq!(s.next_due(now, n, n + 1), Some((n, seen)), "said anew since");
                    at = n + 1;
                }
            }
            assert_eq!(s.next_due(now, at, 1000), None);
        }
        for (at, now, is) in [
            (u64::MAX, 90_000_000, false),
            (u64::MAX, u64::MAX, true),
            (1000, u64::MAX, true),
        ] {
            s.look_at(5, at);
            assert_eq!(s.next_due(now, 5, 6).is_some(), is, "{at} {now}");
        }
        s.was_free(5);
        assert!(s.next_due(5000, 5, 6).is_some(), "a maker's time");
        s.look_now(5);
        s.was_free(5);
        assert_eq!(s.next_due(5000, 5, 6), None);
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
        // Tests in other threads of this process may be reading, too.
        while !s.aside.lock().unwrap().is_empty() {
            s.tidy();
        }
        assert_eq!(s.take().unwrap().0, n);
    }
}
