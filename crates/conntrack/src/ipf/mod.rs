//! Fragments wait here until their datagram is whole, so that the tracker can judge it.
//!
//! **Problem.** Only the first fragment has ports. A fragment may be missing, repeated, or made up to be read
//! in two ways. The tracker must judge the datagram that the receiver puts together. A sender of fragments
//! must not exhaust memory or time, or evict the fragments of other senders.
//!
//! **Shape.** [`Ipf::offer`] copies a fragment, and the copy waits. So the memory of the packet returns to
//! its owner. The fragment that completes a datagram returns all of them in the order of their offsets. They
//! continue as fragments, each with the result of the whole ([`Datagram`]). If the packet is looked up again,
//! it continues as the whole packet instead ([`Datagram::whole`]). Several workers may receive fragments of
//! one datagram. So there is one table under one lock, and only fragments take it. Reading,
//! copying and reassembly are done without the lock.
//!
//! **Bounds.** Fragments are bounded by number (`dpctl/ipf-set-max-nfrags`) and bytes, datagrams by time. A
//! full table evicts datagrams of the port that holds the most bytes ([`table`]). A datagram's fragments do
//! not overlap, and only the last may be small, so a datagram has few.
//!
//! **Deviations from Open vSwitch.** A fragment joins only fragments of its own port, so that no sender
//! completes a neighbour's datagram. A full table evicts old fragments and takes new ones. Open vSwitch
//! refuses new ones, for fifteen seconds. Evicted and expired fragments are dropped. In Open vSwitch they
//! continue as invalid, together with the next packet of any sender. A fragment that contains another one
//! overlaps, too; so does one that exceeds the datagram's end.

mod datagram;
mod piece;
mod table;
#[cfg(test)]
mod tests;

pub use datagram::{Datagram, Fragment, WholeDatagram};

use crate::events::{Event, Events};
use crate::protocol::packet::Invalid;
use crate::track::Conntrack;
use crate::track::general::CtState;
use crate::tuple::ip;
use piece::{Bad, Piece};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use table::{Added, Key, Table, Waiting};

/// Least value of `dpctl/ipf-set-min-frag`, bytes.
const MIN_FRAGMENT_LIMIT_BYTES: u32 = 400;
/// Default of `dpctl/ipf-set-min-frag`, bytes: IPv4, IPv6.
const DEFAULT_MIN: [u32; 2] = [1200, 1280];
/// Default and maximum of the number of fragments that may wait (`dpctl/ipf-set-max-nfrags`).
const DEFAULT_MAX: u32 = 1000;
const MAX_WAITING_LIMIT: u32 = 5000;
/// Maximum number of datagrams that [`Ipf::sweep`] expires in one call, and [`Ipf::lists`] shows under one
/// lock.
const STEP: usize = 64;

/// Context of a fragment: only fragments with equal contexts are put together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FragmentContext {
    /// Input port.
    pub port: u32,
    /// Hash that separates senders with the same addresses, for example of different tunnels.
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
    /// Offset of the IP header, bytes.
    pub l3: usize,
    /// Bytes of the packet.
    pub len: usize,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// The whole packet is to continue in place of its fragments. Then the rules of Linux apply. Fragments
    /// may be small unless `dpctl/ipf-set-min-frag` was used. One that overlaps another one ends the
    /// datagram, unless it is a copy (RFC 5722).
    pub joins: bool,
}

/// Why a fragment does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Reassembly is off (`dpctl/ipf-set-disabled`).
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

/// Result of [`Ipf::offer`].
#[derive(Debug)]
pub enum Offered<T> {
    /// The fragment waits for the rest of its datagram.
    Waits,
    /// The fragment was the last missing one: the whole datagram.
    Whole(Datagram<T>),
    /// The fragment was not taken. It continues alone, as invalid.
    Refused(Refusal),
}

/// Counters of one family.
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
    /// Reassembly is on.
    pub enabled: bool,
    /// Smallest size of a fragment that is not the last, bytes of the IP packet.
    pub min_size: u32,
    /// Fragments that the table took.
    pub accepted: u64,
    /// Fragments of datagrams that became whole.
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

/// Output of `dpctl/ipf-get-status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Maximum number of fragments that may wait.
    pub max: u32,
    /// Number of fragments that wait.
    pub waiting: u32,
    /// IPv4 and IPv6.
    pub families: [FamilyStatus; 2],
}

/// See the module's text. `T`: context that the caller gives with a fragment and gets back with it.
#[derive(Debug)]
pub struct Ipf<T> {
    enabled: [AtomicBool; 2],
    min: [AtomicU32; 2],
    /// The user has set `min`.
    min_is_set: [AtomicBool; 2],
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
            min_is_set: Default::default(),
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
    /// Updates the number of fragments that wait. The caller holds the table's lock.
    fn note(&self, table: &Table<T>) {
        let n = u32::try_from(table.fragments()).unwrap_or(u32::MAX);
        self.waiting.store(n, Relaxed);
    }

    /// Takes a fragment. `copy` returns all its bytes and the caller's context. It is called only for well
    /// formed fragments.
    pub fn offer(
        &self,
        now_ms: u64,
        frame: Frame<'_>,
        place: FragmentContext,
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
        let least = usize::try_from(self.min[v6].load(Relaxed)).unwrap_or(usize::MAX);
        let counts_least = !frame.joins || self.min_is_set[v6].load(Relaxed);
        if !piece.last && piece.size < least && counts_least {
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
        let (mut evicted, mut old, mut overlapped) = (Vec::new(), Vec::new(), None);
        let added = {
            let mut table = self.table();
            old.extend(table.expired(now_ms));
            let added = table.add(now_ms, key, fragment, max, &mut evicted);
            if frame.joins && matches!(added, Added::Refused(Refusal::Overlap)) {
                overlapped = table.end_overlapped(&key, &piece);
            }
            self.note(&table);
            added
        };
        for w in evicted {
            self.counts(w.key.ipv6)
                .purged
                .fetch_add(w.pieces.len() as u64, Relaxed);
        }
        self.forget(old);
        if let Some(w) = overlapped {
            counts.overlap.fetch_add(w.pieces.len() as u64, Relaxed);
        }
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
    /// Drops datagrams whose time is over. `false`: there may be more of them.
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

    /// Returns the number of fragments that were dropped because their time was over, and to make room.
    pub fn dropped(&self) -> (u64, u64) {
        let sum = |of: fn(&Counts) -> &AtomicU64| self.counts.iter().map(|c| of(c).load(Relaxed)).sum();
        (sum(|c| &c.expired), sum(|c| &c.purged))
    }
    /// Turns reassembly of a family on or off.
    pub fn set_enabled(&self, ipv6: bool, on: bool) {
        self.enabled[usize::from(ipv6)].store(on, Relaxed);
    }
    /// Sets the smallest size of a fragment that is not the last. `false`: that is too small.
    pub fn set_min(&self, ipv6: bool, bytes: u32) -> bool {
        let good = bytes >= MIN_FRAGMENT_LIMIT_BYTES;
        if good {
            self.min[usize::from(ipv6)].store(bytes, Relaxed);
            self.min_is_set[usize::from(ipv6)].store(true, Relaxed);
        }
        good
    }
    /// Sets the maximum number of fragments that may wait. `false`: it is too large.
    pub fn set_max(&self, n: u32) -> bool {
        let good = n <= MAX_WAITING_LIMIT;
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
    /// Marks a refused fragment as invalid in `known`. Returns the event to count.
    pub fn refused(&self, zone: u16, why: Refusal, known: &mut CtState) -> Events {
        self.invalid(zone, Invalid::Fragment, known);
        Event::from(why).into()
    }
}
