//! Records of connections: who may have one, and when one may be used again.
//!
//! **Count.** There may be as many connections as `maxconns` says. A worker does not add to one number that
//! all share: it takes the right to make some tens of connections at a time while there are few, and one by
//! one when it becomes tight, so that a small limit is exact. Rights that are not used are no connections
//! ([`Slots::count`]).
//!
//! **Use again.** Who frees a record says so to [`Slots::put_aside`]; its number is given away again when all
//! who read at that time have ended. That is work of the thread that sweeps.
//!
//! **Time.** Beside the records is a column of four bytes for each: the second from which on the sweeper has
//! to look at it. The worker that makes a connection writes it, and whoever lets it live shorter than before.
//! One that lives longer is not written: the sweeper looks, and moves it on. So it may be too early, not too
//! late.
//!
//! **Give back.** After many connections have ended, [`Slots::give_back`] returns whole pages of free records
//! to the system. These records lose their generations. So every later connection gets a generation above all
//! earlier ones ([`Slots::fill`]).
//!
//! **Memory.** Records are in a file without a name, which another process can map ([`Slots::file`]). They
//! have no pointers, and what is beside them can be made anew from all of them: the index, the column, the
//! numbers that are free.

mod give_back;

use crate::events::Event;
use crate::free_list::FreeList;
use crate::index::MAX_RECORDS;
use crate::record::{New, Record};
use give_back::GiveBack;
use heddle_sync::{CachePadded, ReadGuard};
use heddle_sys::Zeroed;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// Places where workers keep rights. Threads beyond share them.
const SHARDS: u32 = 32;
/// Rights taken at a time, at most.
const BATCH: u32 = 64;
/// Places of the column that are looked at together.
const TOGETHER: usize = 16;
/// In the column: at once. Times are behind.
const NOW: u32 = 1;

#[derive(Debug)]
pub(crate) struct Slots {
    records: Zeroed<Record>,
    free: FreeList,
    /// See "Time"; 0: there is nothing to look at.
    due: Zeroed<AtomicU32>,
    limit: AtomicU32,
    /// Connections and rights to make one.
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

/// What the column says of a record that expires then.
fn due(expires_ms: u64) -> u32 {
    u32::try_from(expires_ms / 1000).map_or(u32::MAX, |s| s.saturating_add(NOW + 1))
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
    /// Numbers of records that were ever used are below.
    pub(crate) fn used(&self) -> u32 {
        self.free.used()
    }
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Record> {
        self.records.get(number as usize)
    }
    /// The file that the records are in: the first one at its beginning, all others behind.
    #[cfg(test)]
    pub(crate) fn file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.records.file()
    }
    /// The first record that begins behind the huge page that this one is in.
    pub(crate) fn next_page(&self, number: u32) -> u32 {
        u32::try_from(self.records.next_page(number as usize)).unwrap_or(u32::MAX)
    }
    /// Makes the page around a record a huge one, see [`Zeroed::join_pages`]. The first record behind it.
    pub(crate) fn prepare(&self, number: u32) -> io::Result<u32> {
        if let Some(r) = self.get(number) {
            // Of a page that nobody has touched there is nothing to join.
            r.populate();
            self.records.join_pages(number as usize)?;
        }
        Ok(self.next_page(number))
    }

    /// The sweeper is to look at a record when it expires.
    pub(crate) fn look_at(&self, number: u32, expires_ms: u64) {
        self.put_due(number, due(expires_ms));
    }
    /// ... or at once.
    pub(crate) fn look_now(&self, number: u32) {
        self.put_due(number, NOW);
    }
    /// ... or not any more.
    pub(crate) fn look_never(&self, number: u32) {
        self.put_due(number, 0);
    }
    fn put_due(&self, number: u32, due: u32) {
        if let Some(d) = self.due.get(number as usize) {
            // Release pairs with the Acquire in `next_due`: who looks sees why.
            d.store(due, Release);
        }
    }
    /// The sweeper has looked at a record when the column said `seen`, and it lives until then. What others
    /// have said since counts.
    pub(crate) fn look_later(&self, number: u32, seen: u32, expires_ms: u64) {
        if let Some(d) = self.due.get(number as usize) {
            // Whatever it was.
            let _ = d.compare_exchange(seen, due(expires_ms), Relaxed, Relaxed);
        }
    }
    /// The sweeper has looked at a record that is not in use.
    pub(crate) fn was_free(&self, number: u32) {
        if let Some(d) = self.due.get(number as usize) {
            let _ = d.compare_exchange(NOW, 0, Relaxed, Relaxed); // a maker's time stays
        }
    }
    /// The first record of these numbers that is to be looked at, and what the column says.
    pub(crate) fn next_due(&self, now_ms: u64, from: u32, to: u32) -> Option<(u32, u32)> {
        let now = due(now_ms);
        // 0 becomes the latest of all times.
        let is_due = |d: u32| d.wrapping_sub(NOW) < now;
        let places = self.due.get(from as usize..to as usize)?;
        for (chunk, first) in places.chunks(TOGETHER).zip((from..).step_by(TOGETHER)) {
            // No branch for each.
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
    /// Whether a connection may have this record. Others are not read: that could allocate a page.
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
        // Readers of other tests of this process may be there, too.
        while !s.aside.lock().unwrap().is_empty() {
            s.tidy();
        }
        assert_eq!(s.take().unwrap().0, n);
    }
}
