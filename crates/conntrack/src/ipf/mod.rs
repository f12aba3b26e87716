//! Fragments wait here until their datagram is whole, so that the tracker can judge it.
//!
//! **Problem.** Only the first fragment has ports, and any of them may be missing, repeated, or made up to be
//! read in two ways. What is judged must be what the receiver puts together, and who sends fragments must not
//! hold memory, time or other people's fragments.
//!
//! **Shape.** A fragment is copied ([`Ipf::offer`]) and waits, which leaves the memory that it came in to its
//! owner. The one that makes its datagram whole gives all of them back in order of their places; they go on
//! as fragments, each with what was said of the whole ([`Datagram`]). Fragments may come to several workers:
//! there is one table under one lock, and only fragments take it. Reading, copying and putting together are
//! done without it.
//!
//! **Bounds.** Fragments by number (`dpctl/ipf-set-max-nfrags`) and bytes, datagrams by time; whoever holds
//! the most makes room ([`table`]). A datagram's fragments do not overlap and are not small but for the last,
//! so a datagram has few.
//!
//! **Deviations from Open vSwitch.** Fragments wait with those of their port only, so that nobody completes a
//! neighbour's datagram. A full table forgets old fragments and takes new ones (there: it refuses new ones,
//! for fifteen seconds). What is forgotten is dropped (there: it goes on as invalid, with the next packet of
//! anybody). A fragment in whose midst another one lies overlaps, too; so does what goes beyond the last.

mod datagram;
mod piece;
mod table;
#[cfg(test)]
mod tests;

pub use datagram::{Datagram, Fragment};

use crate::events::{Event, Events};
use crate::protocol::packet::Invalid;
use crate::track::Conntrack;
use crate::track::general::Known;
use crate::tuple::ip;
use piece::{Bad, Piece};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use table::{Added, Key, Table, Waiting};

/// Least value of `dpctl/ipf-set-min-frag`, bytes.
const LEAST_MIN: u32 = 400;
/// Defaults of that, IPv4 and IPv6.
const DEFAULT_MIN: [u32; 2] = [1200, 1280];
/// Fragments that may wait, by default and at most (`dpctl/ipf-set-max-nfrags`).
const DEFAULT_MAX: u32 = 1000;
const MOST_MAX: u32 = 5000;
/// Datagrams that are looked at for their time in a row.
const STEP: usize = 64;

/// Where a fragment came from and went to: only those with the same are put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// Input port.
    pub port: u32,
    /// What else tells senders apart that may have the same addresses (a tunnel), as a hash.
    pub source: u64,
    /// Recirculation id.
    pub recirc_id: u32,
    /// Zone.
    pub zone: u16,
}

/// A packet that is a fragment.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// The packet's first bytes, with all headers.
    pub head: &'a [u8],
    /// Where the IP header begins.
    pub l3: usize,
    /// Bytes of the packet.
    pub len: usize,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
}

/// Why a fragment does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Nothing is put together: `dpctl/ipf-set-disabled`.
    Disabled,
    /// See [`Event::FragmentMalformed`].
    Malformed,
    /// See [`Event::FragmentChecksum`].
    Checksum,
    /// See [`Event::FragmentTooSmall`].
    TooSmall,
    /// See [`Event::FragmentOverlap`].
    Overlap,
    /// See [`Event::FragmentsFull`].
    Full,
}

impl From<Refusal> for Event {
    fn from(r: Refusal) -> Self {
        match r {
            Refusal::Disabled => Self::Fragment,
            Refusal::Malformed => Self::FragmentMalformed,
            Refusal::Checksum => Self::FragmentChecksum,
            Refusal::TooSmall => Self::FragmentTooSmall,
            Refusal::Overlap => Self::FragmentOverlap,
            Refusal::Full => Self::FragmentsFull,
        }
    }
}

/// What becomes of a fragment.
#[derive(Debug)]
pub enum Offered<T> {
    /// It waits for others.
    Waits,
    /// It was the last that was missing: all of them.
    Whole(Datagram<T>),
    /// It is none that is put together. It goes on by itself, as invalid.
    Refused(Refusal),
}

/// What is counted per family.
#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    completed: AtomicU64,
    expired: AtomicU64,
    too_small: AtomicU64,
    overlap: AtomicU64,
    purged: AtomicU64,
}

/// Settings and counts of one family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FamilyStatus {
    /// Its fragments are put together.
    pub enabled: bool,
    /// Smallest size of a fragment that is not the last, bytes of the IP packet.
    pub min_size: u32,
    /// Fragments that waited.
    pub accepted: u64,
    /// Fragments that went on.
    pub completed: u64,
    /// Fragments that were dropped because their time was over.
    pub expired: u64,
    /// Fragments below the smallest size.
    pub too_small: u64,
    /// Fragments that overlapped others.
    pub overlap: u64,
    /// Fragments that were dropped to make room.
    pub purged: u64,
}

/// What `dpctl/ipf-get-status` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Fragments that may wait.
    pub max: u32,
    /// Fragments that wait.
    pub waiting: u32,
    /// IPv4 and IPv6.
    pub families: [FamilyStatus; 2],
}

/// See the module's text. `T`: what those who hand fragments over want back with them.
#[derive(Debug)]
pub struct Ipf<T> {
    enabled: [AtomicBool; 2],
    min: [AtomicU32; 2],
    max: AtomicU32,
    waiting: AtomicU32,
    counts: [Counts; 2],
    table: Mutex<Table<T>>,
}

impl<T> Default for Ipf<T> {
    fn default() -> Self {
        Self {
            enabled: [true, true].map(AtomicBool::new),
            min: DEFAULT_MIN.map(AtomicU32::new),
            max: AtomicU32::new(DEFAULT_MAX),
            waiting: AtomicU32::new(0),
            counts: Default::default(),
            table: Mutex::new(Table::new()),
        }
    }
}

impl<T> Ipf<T> {
    fn table(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn counts(&self, ipv6: bool) -> &Counts {
        &self.counts[usize::from(ipv6)]
    }
    /// Notes how many wait. The table is locked.
    fn note(&self, table: &Table<T>) {
        let n = u32::try_from(table.fragments()).unwrap_or(u32::MAX);
        self.waiting.store(n, Relaxed);
    }

    /// Takes a fragment. `copy` gives all its bytes and what is to be given back with them; it is called only
    /// for fragments that are well formed.
    pub fn offer(
        &self,
        now_ms: u64,
        frame: Frame<'_>,
        place: Place,
        copy: impl FnOnce() -> (Box<[u8]>, T),
    ) -> Offered<T> {
        let v6 = usize::from(frame.ipv6);
        let counts = self.counts(frame.ipv6);
        if !self.enabled[v6].load(Relaxed) {
            return Offered::Refused(Refusal::Disabled);
        }
        let head = frame.head.get(frame.l3..).unwrap_or_default();
        let avail = frame.len.saturating_sub(frame.l3);
        let piece = match Piece::read(head, avail, frame.ipv6) {
            Ok(piece) => piece,
            Err(Bad::Malformed) => return Offered::Refused(Refusal::Malformed),
            Err(Bad::Checksum) => return Offered::Refused(Refusal::Checksum),
        };
        if !piece.last && piece.size < usize::try_from(self.min[v6].load(Relaxed)).unwrap_or(usize::MAX) {
            counts.too_small.fetch_add(1, Relaxed);
            return Offered::Refused(Refusal::TooSmall);
        }
        let key = Key {
            src: piece.src,
            dst: piece.dst,
            id: piece.id,
            proto: piece.proto,
            ipv6: frame.ipv6,
            place,
        };
        let (bytes, context) = copy();
        let fragment = Fragment::new(piece, bytes, frame.l3, context);
        let max = usize::try_from(self.max.load(Relaxed)).unwrap_or(usize::MAX);
        let (mut evicted, mut old) = (Vec::new(), Vec::new());
        let added = {
            let mut table = self.table();
            old.extend(table.expired(now_ms));
            let added = table.add(now_ms, key, fragment, max, &mut evicted);
            self.note(&table);
            added
        };
        for w in evicted {
            self.counts(w.key.ipv6)
                .purged
                .fetch_add(w.pieces.len() as u64, Relaxed);
        }
        self.forget(old);
        match added {
            Added::Refused(why) => {
                if why == Refusal::Overlap {
                    counts.overlap.fetch_add(1, Relaxed);
                }
                Offered::Refused(why)
            }
            Added::Waits => {
                counts.accepted.fetch_add(1, Relaxed);
                Offered::Waits
            }
            Added::Whole(w) => {
                counts.accepted.fetch_add(1, Relaxed);
                counts.completed.fetch_add(w.pieces.len() as u64, Relaxed);
                Offered::Whole(w.pieces.join(w.key.ipv6))
            }
        }
    }
    fn forget(&self, old: Vec<Waiting<T>>) {
        for w in old {
            let n = w.pieces.len() as u64;
            self.counts(w.key.ipv6).expired.fetch_add(n, Relaxed);
        }
    }
    /// Forgets datagrams whose time is over. `false`: there may be more of them.
    pub fn sweep(&self, now_ms: u64) -> bool {
        if self.waiting.load(Relaxed) == 0 {
            return true;
        }
        let mut old = Vec::new();
        {
            let mut table = self.table();
            while old.len() < STEP
                && let Some(w) = table.expired(now_ms)
            {
                old.push(w);
            }
            self.note(&table);
        }
        let done = old.len() < STEP;
        self.forget(old);
        done
    }

    /// Fragments that were dropped: because their time was over, and to make room.
    pub fn dropped(&self) -> (u64, u64) {
        let sum = |of: fn(&Counts) -> &AtomicU64| self.counts.iter().map(|c| of(c).load(Relaxed)).sum();
        (sum(|c| &c.expired), sum(|c| &c.purged))
    }
    /// Puts fragments of a family together, or not.
    pub fn set_enabled(&self, ipv6: bool, on: bool) {
        self.enabled[usize::from(ipv6)].store(on, Relaxed);
    }
    /// Sets the smallest size of a fragment that is not the last. `false`: that is too small.
    pub fn set_min(&self, ipv6: bool, bytes: u32) -> bool {
        let good = bytes >= LEAST_MIN;
        if good {
            self.min[usize::from(ipv6)].store(bytes, Relaxed);
        }
        good
    }
    /// Sets how many fragments may wait. `false`: too many.
    pub fn set_max(&self, n: u32) -> bool {
        let good = n <= MOST_MAX;
        if good {
            self.max.store(n, Relaxed);
        }
        good
    }
    /// Settings and counts.
    pub fn status(&self) -> Status {
        let family = |v6: usize| {
            let c = &self.counts[v6];
            let get = |n: &AtomicU64| n.load(Relaxed);
            FamilyStatus {
                enabled: self.enabled[v6].load(Relaxed),
                min_size: self.min[v6].load(Relaxed),
                accepted: get(&c.accepted),
                completed: get(&c.completed),
                expired: get(&c.expired),
                too_small: get(&c.too_small),
                overlap: get(&c.overlap),
                purged: get(&c.purged),
            }
        };
        Status {
            max: self.max.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            families: [family(0), family(1)],
        }
    }
    /// The datagrams that wait, oldest first, as `dpctl/ipf-get-status -m` shows them.
    pub fn lists(&self) -> Vec<String> {
        let (mut out, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.table().show(at, STEP, |w| out.push(text(w)));
        }
        out
    }
    /// See [`Table::is_consistent`].
    #[cfg(test)]
    fn is_consistent(&self) -> bool {
        self.table().is_consistent()
    }
}

fn text<T>(w: &Waiting<T>) -> String {
    let k = &w.key;
    format!(
        "(src={},dst={},recirc_id={},ip_id={},dl_type=0x{:x},zone={},nw_proto={},num_fragments={},state={})",
        ip(k.src, k.ipv6),
        ip(k.dst, k.ipv6),
        k.place.recirc_id,
        k.id,
        if k.ipv6 { 0x86dd } else { 0x0800 },
        k.place.zone,
        k.proto,
        w.pieces.len(),
        w.pieces.state(),
    )
}

impl Conntrack {
    /// Of a fragment that is not put together.
    pub fn refused(&self, zone: u16, why: Refusal, known: &mut Known) -> Events {
        self.invalid(zone, Invalid::Fragment, known);
        Event::from(why).into()
    }
}
