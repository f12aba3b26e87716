//! The index of connections: from a hash to the numbers of records.
//!
//! **Shape.** A bucket is a cache line: a head and seven entries. An entry is a word: the hash (32 bits), the
//! low bits of the record's generation, the record's number. A connection has one entry, or two if its two
//! directions have different hashes (NAT). The table grows by one bucket at a time (linear hashing, Litwin
//! 1980). Bucket *n* takes from bucket *n − 2ᵏ* the entries with the next bit of the hash set. A thread that
//! inserts into a rather full bucket splits one. So the whole table is never copied at once, and entries are
//! not counted. Overflow buckets have the entries for which a bucket has no room. The head links them.
//!
//! **Lookups** take no lock and write nothing. They may find an entry of another connection, since the record
//! is compared. They must not miss an entry that was there all the time. An entry stays in its slot until it
//! is removed, or a split or the removal of an overflow bucket moves it. Both of them change the head. A
//! lookup that finds nothing reads the head again. It starts again if the head has changed, or if the bucket
//! was split after the lookup read the number of buckets.
//!
//! **Writers** lock the home buckets of both hashes in order of number, by a bit of the head. The critical
//! section is short and never waits. A lock may be busy for a bounded number of attempts, if the system has
//! preempted its holder. Then the writer gives up: the packet is forwarded without a connection.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, FromZeros, Zeroed, fence, spin_loop};
use crate::table::free_list::FreeList;
use crate::table::hash::Hash;
use heddle_simd::simd;
use heddle_sync::CachePadded;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Entries of a bucket.
const WAYS: usize = if cfg!(loom) { 2 } else { 7 };
/// Number of buckets at first, as a power of two.
const START_BITS: u32 = if cfg!(loom) { 1 } else { 6 };
/// A bucket with this number of entries causes a split. So the average is about 3.5 entries a bucket.
const CROWDED: usize = if cfg!(loom) { 1 } else { 5 };
/// Maximum number of buckets in one chain. The hash has a secret key, so a sender cannot fill a chain.
const MAX_CHAIN: usize = 32;
/// Attempts to take a lock. They take a few microseconds.
const SPINS: u32 = if cfg!(loom) { 2 } else { 4096 };
/// Maximum number of restarts of a lookup or a writer because of splits.
const TRIES: u32 = 64;

/// Bit of a head: a writer has the lock.
const LOCK: u64 = 1;
/// Bits of a head: the number of changes that restart lookups.
const CHANGE: u64 = 1 << 1;
const CHANGES: u64 = 0xffff_fffe;
/// Bits of a head: the number of hash bits that lead here; 0 for the first buckets.
const DEPTH: u32 = 32;
/// Bits of a head: the next bucket of the chain, plus one.
const OVER: u32 = 40;

/// Bits of a record's number in an entry; 0 is an empty slot.
const NUMBER_BITS: u32 = 26;
/// Maximum number of records.
pub(crate) const MAX_RECORDS: usize = (1 << NUMBER_BITS) - 1;

#[derive(Debug, FromZeros)]
#[repr(C, align(64))]
struct Bucket {
    head: AtomicU64,
    entries: [AtomicU64; WAYS],
}

/// A reference to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordRef {
    /// The record's number.
    pub(crate) number: u32,
    /// Generation of the record. The entry stores only its lowest bits.
    pub(crate) generation: u32,
}

impl RecordRef {
    const GENERATIONS: u32 = (1 << (32 - NUMBER_BITS)) - 1;

    fn word(self, hash: Hash) -> u64 {
        let low = (self.generation & Self::GENERATIONS) << NUMBER_BITS | (self.number + 1);
        u64::from(hash.0) << 32 | u64::from(low)
    }
    /// `None`: an empty slot, or another hash.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    fn of_word(word: u64, hash: Hash) -> Option<Self> {
        if (word >> 32) as u32 != hash.0 {
            return None;
        }
        let number = (word as u32 & MAX_RECORDS as u32).checked_sub(1)?;
        Some(Self {
            number,
            generation: word as u32 >> NUMBER_BITS,
        })
    }
    /// Whether it leads to a record of this generation.
    #[inline]
    pub(crate) fn is_of(self, generation: u32) -> bool {
        (self.generation ^ generation) & Self::GENERATIONS == 0
    }
}

/// The relation of an entry with the same hash to a connection that is to be inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// Another connection.
    Other,
    /// The same addresses: the table can have only one of the two.
    Taken,
    /// A connection that has ended: its entry may be removed.
    Dead,
}

/// The reason why a connection was not inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotInserted {
    /// Another connection has the addresses of the original (`true`) or the reply direction (`false`).
    Taken(bool),
    /// No room.
    Full,
    /// Another writer held a lock all the time.
    Busy,
}

/// The index of one tracker.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Zeroed<Bucket>,
    over: Zeroed<Bucket>,
    free_over: FreeList,
    /// Buckets in use.
    n: CachePadded<AtomicU32>,
    splitting: CachePadded<AtomicBool>,
}

#[allow(clippy::cast_possible_truncation)] // eight bits
fn depth(head: u64) -> u32 {
    match (head >> DEPTH) & 0xff {
        0 => START_BITS,
        d => d as u32,
    }
}

fn over(head: u64) -> Option<usize> {
    usize::try_from(head >> OVER).ok()?.checked_sub(1)
}

fn with_over(head: u64, next: Option<u32>) -> u64 {
    head & ((1 << OVER) - 1) | next.map_or(0, |n| u64::from(n) + 1) << OVER
}

fn bumped(head: u64) -> u64 {
    head & !CHANGES | head.wrapping_add(CHANGE) & CHANGES
}

impl Index {
    /// Allocates address space for this number of records.
    pub(crate) fn new(records: usize) -> io::Result<Self> {
        // Two entries for each record, and 3.5 entries a bucket.
        let most = records
            .div_ceil(2)
            .next_power_of_two()
            .clamp(1 << START_BITS, 1 << 28);
        let over = (most / 4).clamp(if cfg!(loom) { 2 } else { 64 }, (1 << 24) - 2);
        Ok(Self {
            buckets: Zeroed::new(most, true)?,
            over: Zeroed::new(over, false)?,
            free_over: FreeList::new(over)?,
            n: CachePadded::new(AtomicU32::new(1 << START_BITS)),
            splitting: CachePadded::new(AtomicBool::new(false)),
        })
    }
    /// Buckets in use.
    pub(crate) fn len(&self) -> u32 {
        self.n.load(Relaxed)
    }
    /// The home bucket of a hash in a table of `n` buckets, and the number of hash bits that select it.
    #[inline]
    fn place(hash: Hash, n: u32) -> (u32, u32) {
        let bits = n.ilog2();
        let half = 1 << bits;
        let b = hash.0 & (half - 1) | hash.0 & half;
        if b >= n {
            (b - half, bits)
        } else if b >= half || b < n - half {
            (b, bits + 1)
        } else {
            (b, bits)
        }
    }
    #[inline]
    fn bucket(&self, b: u32) -> Option<&Bucket> {
        self.buckets.get(b as usize)
    }
    /// The home bucket of a hash now.
    fn home(&self, hash: Hash) -> Option<u32> {
        self.home_from(hash, self.n.load(Acquire)) // pairs with the Release in `grow`
    }
    /// The same as [`Index::home`], for a caller that has read the number of buckets before.
    fn home_from(&self, hash: Hash, n: u32) -> Option<u32> {
        let (mut b, mut bits) = Self::place(hash, n);
        for _ in 0..32 {
            if depth(self.bucket(b)?.head.load(Acquire)) <= bits {
                return Some(b);
            }
            (b, bits) = Self::step(hash, bits);
        }
        None
    }
    /// The bucket to read after a bucket was split. One bit at a time: after two splits of a bucket, the
    /// first of the new buckets may have been split or not.
    #[inline]
    fn step(hash: Hash, bits: u32) -> (u32, u32) {
        (hash.0 & ((2 << bits) - 1), bits + 1)
    }
    /// The home bucket of a hash, for output.
    pub(crate) fn bucket_of(&self, hash: Hash) -> u32 {
        self.home(hash).unwrap_or(0)
    }
    /// Prefetches the home bucket of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: Hash) {
        let (b, _) = Self::place(hash, self.n.load(Relaxed));
        if let Some(bucket) = self.bucket(b) {
            simd::prefetch(bucket);
        }
    }
    /// An entry that a lookup will probably find.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // a half
    pub(crate) fn guess(&self, hash: Hash) -> Option<RecordRef> {
        let (b, _) = Self::place(hash, self.n.load(Relaxed));
        let entries = &self.bucket(b)?.entries;
        // No branch for each entry: the processor could not predict it.
        let same = |e: &AtomicU64| u32::from((e.load(Relaxed) >> 32) as u32 == hash.0);
        let found = (0..).zip(entries).fold(0, |found, (i, e)| found | same(e) << i);
        // Acquire as in `find`: the record may be read next.
        RecordRef::of_word(entries.get(found.trailing_zeros() as usize)?.load(Acquire), hash)
    }
    /// The result of `ask` for the first entry with this hash for which it has one.
    #[inline]
    pub(crate) fn find<R>(&self, hash: Hash, mut ask: impl FnMut(RecordRef) -> Option<R>) -> Option<R> {
        let (mut b, mut bits) = Self::place(hash, self.n.load(Acquire)); // pairs with `grow`
        for _ in 0..TRIES {
            let home = self.bucket(b)?;
            // Acquire pairs with the Release of `grow`: a thread that sees the split sees the new bucket.
            let before = home.head.load(Acquire);
            if depth(before) > bits {
                (b, bits) = Self::step(hash, bits);
                continue;
            }
            // Acquire pairs with the Release of `insert`: a thread that sees an entry sees its record. It
            // also pairs with the writer that removed an entry and put it elsewhere: then the head below has
            // changed.
            let look = |place: &AtomicU64| RecordRef::of_word(place.load(Acquire), hash).and_then(&mut ask);
            if let Some(found) = self.search(home, before, look) {
                return Some(found);
            }
            fence(Acquire);
            if (home.head.load(Relaxed) ^ before) & !LOCK == 0 {
                return None;
            }
        }
        None
    }
    /// The result of `look` for the first slot of a chain for which it has one. `head` is the head of the
    /// chain.
    #[inline]
    fn search<'a, R>(
        &'a self,
        home: &'a Bucket,
        head: u64,
        mut look: impl FnMut(&'a AtomicU64) -> Option<R>,
    ) -> Option<R> {
        for place in &home.entries {
            if let Some(found) = look(place) {
                return Some(found);
            }
        }
        let mut next = over(head);
        for _ in 1..MAX_CHAIN {
            let bucket = self.over.get(next?)?;
            next = over(bucket.head.load(Acquire)); // pairs with `free_place`
            if let Some(found) = bucket.entries.iter().find_map(&mut look) {
                return Some(found);
            }
        }
        None
    }
    /// All slots of a chain.
    fn chain<'a>(&'a self, home: &'a Bucket, head: u64) -> impl Iterator<Item = &'a AtomicU64> {
        let mut next = over(head);
        let further = std::iter::from_fn(move || {
            let bucket = self.over.get(next?)?;
            next = over(bucket.head.load(Acquire)); // pairs with `free_place`
            Some(bucket)
        });
        home.entries
            .iter()
            .chain(further.take(MAX_CHAIN).flat_map(|b| &b.entries))
    }
    fn lock(&self, b: u32) -> Option<u64> {
        let head = &self.bucket(b)?.head;
        for _ in 0..SPINS {
            let now = head.load(Relaxed);
            // Acquire pairs with the Release in `unlock`.
            if now & LOCK == 0
                && head
                    .compare_exchange_weak(now, now | LOCK, Acquire, Relaxed)
                    .is_ok()
            {
                return Some(now | LOCK);
            }
            spin_loop();
        }
        None
    }
    fn unlock(&self, b: u32) {
        if let Some(bucket) = self.bucket(b) {
            // Only the holder of the lock changes the head.
            bucket.head.store(bucket.head.load(Relaxed) & !LOCK, Release);
        }
    }
    /// Locks both home buckets. The second is equal to the first if both hashes have the same home.
    fn lock_both(&self, hashes: [Hash; 2]) -> Option<[u32; 2]> {
        for _ in 0..TRIES {
            if hashes[0] == hashes[1] {
                let home = self.home(hashes[0])?;
                self.lock(home)?;
                if self.home(hashes[0]) == Some(home) {
                    return Some([home; 2]);
                }
                self.unlock(home);
                continue;
            }
            let homes = [self.home(hashes[0])?, self.home(hashes[1])?];
            let (low, high) = (homes[0].min(homes[1]), homes[0].max(homes[1]));
            self.lock(low)?;
            if high != low && self.lock(high).is_none() {
                self.unlock(low);
                return None;
            }
            // A locked bucket is not split.
            if self.home(hashes[0]) == Some(homes[0]) && self.home(hashes[1]) == Some(homes[1]) {
                return Some(homes);
            }
            self.unlock_both(homes);
        }
        None
    }
    fn unlock_both(&self, homes: [u32; 2]) {
        self.unlock(homes[0]);
        if homes[1] != homes[0] {
            self.unlock(homes[1]);
        }
    }
    /// Inserts a record under both of its hashes, or under none. `judge` decides about entries with the first
    /// (`true`) or the second hash. `publish` is called when the insert cannot fail any more, before lookups
    /// find it.
    pub(crate) fn insert(
        &self,
        entry: RecordRef,
        hashes: [Hash; 2],
        mut judge: impl FnMut(RecordRef, bool) -> Judgement,
        publish: impl FnOnce(),
    ) -> Result<(), NotInserted> {
        let homes = self.lock_both(hashes).ok_or(NotInserted::Busy)?;
        let result = self.insert_locked(entry, hashes, homes, &mut judge, publish);
        self.unlock_both(homes);
        if result? {
            self.grow();
        }
        Ok(())
    }
    fn insert_locked(
        &self,
        entry: RecordRef,
        hashes: [Hash; 2],
        homes: [u32; 2],
        judge: &mut impl FnMut(RecordRef, bool) -> Judgement,
        publish: impl FnOnce(),
    ) -> Result<bool, NotInserted> {
        for (first, (hash, b)) in [true, false].into_iter().zip(hashes.into_iter().zip(homes)) {
            // If both homes are one bucket, the first round was for both hashes.
            if !first && hashes[0] == hashes[1] {
                continue;
            }
            let home = self.bucket(b).ok_or(NotInserted::Full)?;
            let taken = self.search(home, home.head.load(Relaxed), |place| {
                match judge(RecordRef::of_word(place.load(Relaxed), hash)?, first) {
                    Judgement::Other => None,
                    Judgement::Taken => Some(NotInserted::Taken(first)),
                    Judgement::Dead => {
                        place.store(0, Release);
                        None
                    }
                }
            });
            taken.map_or(Ok(()), Err)?;
        }
        let home = self.bucket(homes[0]).ok_or(NotInserted::Full)?;
        let first = self.free_place(home, None).ok_or(NotInserted::Full)?;
        if hashes[1] != hashes[0] {
            let home = self.bucket(homes[1]).ok_or(NotInserted::Full)?;
            let second = self.free_place(home, Some(first)).ok_or(NotInserted::Full)?;
            publish();
            second.store(entry.word(hashes[1]), Release); // pairs with `find`, as below
        } else {
            publish();
        }
        first.store(entry.word(hashes[0]), Release);
        let used = home.entries.iter().filter(|e| e.load(Relaxed) != 0).count();
        Ok(used > CROWDED)
    }
    /// A free slot of a chain, other than the argument. Its home is locked, or no other thread knows the
    /// chain.
    fn free_place<'a>(&'a self, home: &'a Bucket, not: Option<&AtomicU64>) -> Option<&'a AtomicU64> {
        let free = |place: &'a AtomicU64| {
            let free = place.load(Relaxed) == 0 && !not.is_some_and(|n| std::ptr::eq(n, place));
            free.then_some(place)
        };
        if let Some(place) = self.search(home, home.head.load(Relaxed), free) {
            return Some(place);
        }
        let mut last = home;
        let mut length = 0;
        while let Some(next) = over(last.head.load(Relaxed)) {
            last = self.over.get(next)?;
            length += 1;
            if length + 1 >= MAX_CHAIN {
                return None;
            }
        }
        let number = self.free_over.take()?;
        let more = self.over.get(number as usize)?;
        // Release pairs with the loads in `find`: a lookup that was in the bucket when it was removed sees
        // that the head has changed.
        more.entries.iter().for_each(|e| e.store(0, Release));
        more.head.store(0, Relaxed);
        // Release pairs with the loads in `chain`.
        last.head
            .store(with_over(last.head.load(Relaxed), Some(number)), Release);
        more.entries.first()
    }
    /// Removes a record's entry. `false`: the lock of the bucket was busy.
    pub(crate) fn remove(&self, entry: RecordRef, hash: Hash) -> bool {
        let Some([b, _]) = self.lock_both([hash; 2]) else {
            return false;
        };
        if let Some(home) = self.bucket(b) {
            let word = entry.word(hash);
            self.search(home, home.head.load(Relaxed), |place| {
                if place.load(Relaxed) == word {
                    place.store(0, Release);
                }
                None::<()>
            });
            self.shorten(home);
        }
        self.unlock(b);
        true
    }
    /// Removes the empty overflow buckets of a chain. The home is locked.
    fn shorten(&self, home: &Bucket) {
        let mut last = home;
        while let Some(number) = over(last.head.load(Relaxed)) {
            let Some(bucket) = self.over.get(number) else {
                return;
            };
            if bucket.entries.iter().any(|e| e.load(Relaxed) != 0) {
                last = bucket;
                continue;
            }
            let after = bucket.head.load(Relaxed) >> OVER;
            let head = last.head.load(Relaxed) & ((1 << OVER) - 1) | after << OVER;
            last.head.store(head, Release);
            // Lookups that were in the bucket start again.
            home.head.store(bumped(home.head.load(Relaxed)), Release);
            if let Ok(number) = u32::try_from(number) {
                self.free_over.give(number);
            }
        }
    }
    /// Adds one bucket, unless another thread is adding one.
    fn grow(&self) {
        if self.splitting.swap(true, Acquire) {
            return; // another thread adds one
        }
        let n = self.n.load(Relaxed);
        if self.bucket(n).is_some() {
            let parent = n - (1 << n.ilog2());
            if self.lock(parent).is_some() {
                if self.split(parent, n) {
                    // Release pairs with the Acquire of readers: they see the head of the new bucket.
                    self.n.store(n + 1, Release);
                }
                self.unlock(parent);
            }
        }
        self.splitting.store(false, Release);
    }
    /// Moves the entries of the new bucket `n` out of its parent, which is locked. `false`: no room.
    fn split(&self, parent: u32, n: u32) -> bool {
        let (Some(old), Some(new)) = (self.bucket(parent), self.bucket(n)) else {
            return false;
        };
        let bits = n.ilog2() + 1;
        let moves = |word: u64| word != 0 && (word >> 32) & (1 << (bits - 1)) != 0;
        let deeper = u64::from(bits) << DEPTH;
        new.head.store(deeper, Relaxed);
        for place in self.chain(old, old.head.load(Relaxed)) {
            let word = place.load(Relaxed);
            if moves(word) {
                let Some(free) = self.free_place(new, None) else {
                    self.chain(new, new.head.load(Relaxed))
                        .for_each(|e| e.store(0, Relaxed));
                    self.shorten(new);
                    return false;
                };
                free.store(word, Release);
            }
        }
        // From here on lookups and writers use the new bucket.
        let head = old.head.load(Relaxed) & !(0xff << DEPTH) | deeper;
        old.head.store(bumped(head), Release);
        for place in self.chain(old, head) {
            if moves(place.load(Relaxed)) {
                place.store(0, Release);
            }
        }
        self.gather(old);
        true
    }
    /// Moves entries of overflow buckets into the home bucket, which is locked.
    fn gather(&self, home: &Bucket) {
        let head = home.head.load(Relaxed);
        if over(head).is_none() {
            return;
        }
        for place in self.chain(home, head).skip(WAYS) {
            let word = place.load(Relaxed);
            if word == 0 {
                continue;
            }
            let Some(free) = home.entries.iter().find(|e| e.load(Relaxed) == 0) else {
                break;
            };
            free.store(word, Release);
            // A lookup that has passed the new slot and sees the old one empty starts again.
            home.head.store(bumped(home.head.load(Relaxed)), Release);
            place.store(0, Release);
        }
        self.shorten(home);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
