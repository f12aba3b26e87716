//! Where connections are found: from a hash to the numbers of records.
//!
//! **Shape.** Buckets of a cache line, each a head and seven entries. An entry is a word: the hash (32 bits),
//! the low bits of the record's generation, the record's number. A connection has one entry, or two if its
//! two directions have different hashes (NAT). The table grows by one bucket at a time (linear hashing,
//! Litwin 1980): bucket *n* takes from bucket *n − 2ᵏ* what the next bit of the hash says. Whoever inserts
//! into a bucket that is rather full splits one, so no moment exists at which all of it is copied, and nobody
//! counts entries. What does not fit lies in further buckets, which the head links.
//!
//! **Lookups** take no lock and write nothing. They may find an entry that is not theirs (the record is
//! compared), and they must not miss one that was there all the time. An entry stays in its place until it is
//! removed, but for a split and for a bucket that is given back; both change the head. Who finds nothing
//! looks at the head again: if it has changed, or says that the bucket was split since the number of buckets
//! was read, the lookup begins anew.
//!
//! **Writers** lock the buckets of both their hashes in order of number, by a bit of the head. The critical
//! section is short and waits for nothing; a writer that does not get a lock in a bounded number of attempts
//! (its holder was put aside by the system) gives up: the packet goes on without a connection.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, FromZeros, Zeroed, fence, spin_loop};
use crate::table::free_list::FreeList;
use crate::table::hash::Hash;
use heddle_simd::simd;
use heddle_sync::CachePadded;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Entries of a bucket.
const WAYS: usize = if cfg!(loom) { 2 } else { 7 };
/// The first buckets, as a power of two.
const START_BITS: u32 = if cfg!(loom) { 1 } else { 6 };
/// A bucket with so many entries is split, or another in its place: which gives some 3.5 a bucket.
const CROWDED: usize = if cfg!(loom) { 1 } else { 5 };
/// Buckets of one chain. Under a keyed hash nobody fills one on purpose.
const MAX_CHAIN: usize = 32;
/// Attempts at a lock, a few microseconds.
const SPINS: u32 = if cfg!(loom) { 2 } else { 4096 };
/// How often a lookup or a writer begins anew because a split was in its way.
const TRIES: u32 = 64;

/// In a head: a writer is at work.
const LOCK: u64 = 1;
/// In a head: counts what makes lookups begin anew.
const CHANGE: u64 = 1 << 1;
const CHANGES: u64 = 0xffff_fffe;
/// In a head: bits of the hash that lead here; 0 for the first ones.
const DEPTH: u32 = 32;
/// In a head: the next bucket of the chain, and one.
const OVER: u32 = 40;

/// Bits of a record's number in an entry, where 0 means that there is none.
const NUMBER_BITS: u32 = 26;
/// Records that an index can tell apart.
pub(crate) const MAX_RECORDS: usize = (1 << NUMBER_BITS) - 1;

#[derive(Debug, FromZeros)]
#[repr(C, align(64))]
struct Bucket {
    head: AtomicU64,
    entries: [AtomicU64; WAYS],
}

/// What leads to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The record's number.
    pub(crate) number: u32,
    /// Its generation, of which as many bits as there are room for count.
    pub(crate) generation: u32,
}

impl Entry {
    const GENERATIONS: u32 = (1 << (32 - NUMBER_BITS)) - 1;

    fn word(self, hash: Hash) -> u64 {
        let low = (self.generation & Self::GENERATIONS) << NUMBER_BITS | (self.number + 1);
        u64::from(hash.0) << 32 | u64::from(low)
    }
    /// `None`: an empty place, or another hash.
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

/// What an entry of the same hash is for who wants to insert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// Another connection.
    Other,
    /// The same addresses: only one of them can be there.
    Taken,
    /// A connection that is over: its entry may go.
    Dead,
}

/// Why nothing was inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotInserted {
    /// The addresses of the connection (`false`: of its answers) are taken.
    Taken(bool),
    /// No room.
    Full,
    /// A writer was put aside while it held a lock.
    Busy,
}

/// See the module's text.
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
    /// For so many records.
    pub(crate) fn new(records: usize) -> io::Result<Self> {
        // Two entries of each, three and a half a bucket.
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
    /// Where a hash leads when there are so many buckets, and by how many bits of it.
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
    /// Where a hash belongs now.
    fn home(&self, hash: Hash) -> Option<u32> {
        self.home_from(hash, self.n.load(Acquire)) // pairs with the Release in `grow`
    }
    /// As [`Index::home`], for who read the number of buckets before.
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
    /// Where to look instead of a bucket that was split since. One bit at a time: that it was split twice
    /// does not say that the bucket which it was first split into was, too.
    #[inline]
    fn step(hash: Hash, bits: u32) -> (u32, u32) {
        (hash.0 & ((2 << bits) - 1), bits + 1)
    }
    /// The bucket that a hash belongs to, for those who print.
    pub(crate) fn bucket_of(&self, hash: Hash) -> u32 {
        self.home(hash).unwrap_or(0)
    }
    /// Fetches what a lookup reads first.
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
    pub(crate) fn guess(&self, hash: Hash) -> Option<Entry> {
        let (b, _) = Self::place(hash, self.n.load(Relaxed));
        let entries = &self.bucket(b)?.entries;
        // Which one it is nobody foresees: no branch for each.
        let same = |e: &AtomicU64| u32::from((e.load(Relaxed) >> 32) as u32 == hash.0);
        let found = (0..).zip(entries).fold(0, |found, (i, e)| found | same(e) << i);
        // Acquire as in `find`: its record may be read.
        Entry::of_word(entries.get(found.trailing_zeros() as usize)?.load(Acquire), hash)
    }
    /// What `ask` says of the first entry that it knows, of those with this hash.
    #[inline]
    pub(crate) fn find<R>(&self, hash: Hash, mut ask: impl FnMut(Entry) -> Option<R>) -> Option<R> {
        let (mut b, mut bits) = Self::place(hash, self.n.load(Acquire)); // pairs with `grow`
        for _ in 0..TRIES {
            let home = self.bucket(b)?;
            // Acquire pairs with the Release of `grow`: who sees that a bucket was split sees where to.
            let before = home.head.load(Acquire);
            if depth(before) > bits {
                (b, bits) = Self::step(hash, bits);
                continue;
            }
            // Acquire pairs with the Release of `insert`: who sees an entry sees its record. And with that of
            // whoever removed one to put it elsewhere: then the head below has changed.
            let look = |place: &AtomicU64| Entry::of_word(place.load(Acquire), hash).and_then(&mut ask);
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
    /// What `look` says of the first place that it knows, of a chain with this head.
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
    /// All places of a chain.
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
            // Only the holder changes it.
            bucket.head.store(bucket.head.load(Relaxed) & !LOCK, Release);
        }
    }
    /// Locks the homes of both. The second is that of the first if they are one.
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
            // Nobody splits what is locked.
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
    /// Enters a record under its hashes, both or none. `judge` says of entries with the first (`true`) or the
    /// second hash what they are; `publish` is called when nothing can fail any more, before it is found.
    pub(crate) fn insert(
        &self,
        entry: Entry,
        hashes: [Hash; 2],
        mut judge: impl FnMut(Entry, bool) -> Judgement,
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
        entry: Entry,
        hashes: [Hash; 2],
        homes: [u32; 2],
        judge: &mut impl FnMut(Entry, bool) -> Judgement,
        publish: impl FnOnce(),
    ) -> Result<bool, NotInserted> {
        for (first, (hash, b)) in [true, false].into_iter().zip(hashes.into_iter().zip(homes)) {
            // Where both are one, the first time was for both.
            if !first && hashes[0] == hashes[1] {
                continue;
            }
            let home = self.bucket(b).ok_or(NotInserted::Full)?;
            let taken = self.search(home, home.head.load(Relaxed), |place| {
                match judge(Entry::of_word(place.load(Relaxed), hash)?, first) {
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
    /// A free place of a chain whose home is locked, or is nobody else's; not this one.
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
        // Release pairs with the loads in `find`: who was in it when it was given back sees the head that has
        // changed for that.
        more.entries.iter().for_each(|e| e.store(0, Release));
        more.head.store(0, Relaxed);
        // Release pairs with the loads in `chain`.
        last.head
            .store(with_over(last.head.load(Relaxed), Some(number)), Release);
        more.entries.first()
    }
    /// Removes a record's entry. `false`: the bucket's lock could not be had.
    pub(crate) fn remove(&self, entry: Entry, hash: Hash) -> bool {
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
    /// Gives back the buckets of a chain that hold nothing. The home is locked.
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
            // Lookups that were in it begin anew.
            home.head.store(bumped(home.head.load(Relaxed)), Release);
            if let Ok(number) = u32::try_from(number) {
                self.free_over.give(number);
            }
        }
    }
    /// One bucket more, unless somebody else is at it.
    fn grow(&self) {
        if self.splitting.swap(true, Acquire) {
            return; // somebody else makes one
        }
        let n = self.n.load(Relaxed);
        if self.bucket(n).is_some() {
            let parent = n - (1 << n.ilog2());
            if self.lock(parent).is_some() {
                if self.split(parent, n) {
                    // Pairs with the Acquire of who reads it: they see the new bucket's head.
                    self.n.store(n + 1, Release);
                }
                self.unlock(parent);
            }
        }
        self.splitting.store(false, Release);
    }
    /// Moves what belongs to the new bucket `n`. `false`: no room. The parent is locked.
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
        // From here on lookups and writers go to the new one.
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
    /// Moves entries from further buckets of a chain into its home. The home is locked.
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
            // Who has passed the one place and sees the other empty begins anew.
            home.head.store(bumped(home.head.load(Relaxed)), Release);
            place.store(0, Release);
        }
        self.shorten(home);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
