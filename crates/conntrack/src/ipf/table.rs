//! The datagrams that wait, under one lock. A thread holds it for a few map operations at a time.
//!
//! All datagrams have the same timeout, so they expire in the order in which they began. A full table evicts
//! the oldest datagram of the port that holds the most bytes. So a port that floods loses its own fragments,
//! not those of other ports.

use super::datagram::{Fragment, Pieces, cost};
use super::piece::Piece;
use super::{FragmentContext, Refusal};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Timeout of a datagram, as in Open vSwitch.
pub(crate) const TIMEOUT_MS: u64 = 15_000;
/// Maximum memory of all fragments, independent of their number.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// Identity of a fragment's datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) src: u128,
    pub(crate) dst: u128,
    pub(crate) id: u32,
    pub(crate) proto: u8,
    pub(crate) ipv6: bool,
    pub(crate) place: FragmentContext,
}

#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) key: Key,
    pub(crate) pieces: Pieces<T>,
    expires_ms: u64,
}

/// Datagrams of one port.
#[derive(Debug, Default)]
struct PortUsage {
    bytes: usize,
    /// Numbers of the datagrams, oldest first.
    numbers: BTreeSet<u64>,
}

/// Result of [`Table::add`].
pub(crate) enum Added<T> {
    Waits,
    Whole(Waiting<T>),
    Refused(Refusal),
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    by_key: HashMap<Key, u64>,
    /// Oldest first, because numbers grow.
    by_number: BTreeMap<u64, Waiting<T>>,
    ports: HashMap<u32, PortUsage>,
    /// Ports by the bytes that they hold.
    loads: BTreeSet<(usize, u32)>,
    next: u64,
    fragments: usize,
    bytes: usize,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self {
            by_key: HashMap::new(),
            by_number: BTreeMap::new(),
            ports: HashMap::new(),
            loads: BTreeSet::new(),
            next: 0,
            fragments: 0,
            bytes: 0,
        }
    }
    pub(crate) fn fragments(&self) -> usize {
        self.fragments
    }

    /// Memory of all fragments, bytes.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.bytes
    }

    /// Adds a fragment. `evicted` gets the datagrams that made room; the caller drops them without the lock.
    pub(crate) fn add(
        &mut self,
        now_ms: u64,
        key: Key,
        f: Fragment<T>,
        max: usize,
        evicted: &mut Vec<Waiting<T>>,
    ) -> Added<T> {
        let piece: Piece = f.piece;
        let size = cost(f.bytes().len());
        let known = self.by_key.get(&key).copied();
        if let Some(n) = known
            && self
                .by_number
                .get(&n)
                .is_some_and(|w| w.pieces.place(&piece).is_none())
        {
            return Added::Refused(Refusal::Overlap);
        }
        while self.fragments >= max || self.bytes + size > MAX_BYTES {
            let Some(oldest) = self.of_the_greatest().filter(|n| Some(*n) != known) else {
                return Added::Refused(Refusal::Full);
            };
            evicted.extend(self.take(oldest));
        }
        let number = known.unwrap_or_else(|| {
            let n = self.next;
            self.next += 1;
            self.by_key.insert(key, n);
            self.by_number.insert(
                n,
                Waiting {
                    key,
                    pieces: Pieces::default(),
                    expires_ms: now_ms + TIMEOUT_MS,
                },
            );
            n
        });
        let Some(w) = self.by_number.get_mut(&number) else {
            return Added::Refused(Refusal::Full);
        };
        let Some(at) = w.pieces.place(&piece) else {
            return Added::Refused(Refusal::Overlap);
        };
        w.pieces.insert(at, f);
        let whole = w.pieces.whole();
        self.fragments += 1;
        self.bytes += size;
        self.load(key.place.port, |held| {
            held.bytes += size;
            held.numbers.insert(number);
        });
        match whole.then(|| self.take(number)).flatten() {
            Some(w) => Added::Whole(w),
            None => Added::Waits,
        }
    }
    /// Ends the datagram that `piece` overlaps, unless the piece has only bytes of one fragment that waits.
    /// Then it may be a copy. Returns the datagram.
    pub(crate) fn end_overlapped(&mut self, key: &Key, piece: &Piece) -> Option<Waiting<T>> {
        let number = *self.by_key.get(key)?;
        let is_copy = self.by_number.get(&number)?.pieces.has_all_of(piece);
        if is_copy { None } else { self.take(number) }
    }
    /// The oldest datagram of the port that holds the most bytes.
    fn of_the_greatest(&self) -> Option<u64> {
        let (_, port) = self.loads.last()?;
        self.ports.get(port)?.numbers.first().copied()
    }
    /// Changes the datagrams of a port, and its position in `loads`.
    fn load(&mut self, port: u32, change: impl FnOnce(&mut PortUsage)) {
        let held = self.ports.entry(port).or_default();
        self.loads.remove(&(held.bytes, port));
        change(held);
        if held.numbers.is_empty() {
            self.ports.remove(&port);
        } else {
            self.loads.insert((held.bytes, port));
        }
    }
    fn take(&mut self, number: u64) -> Option<Waiting<T>> {
        let w = self.by_number.remove(&number)?;
        self.by_key.remove(&w.key);
        let bytes = w.pieces.bytes();
        self.fragments -= w.pieces.len();
        self.bytes -= bytes;
        self.load(w.key.place.port, |held| {
            held.bytes -= bytes;
            held.numbers.remove(&number);
        });
        Some(w)
    }
    /// Removes the oldest datagram, if its time is over.
    pub(crate) fn expired(&mut self, now_ms: u64) -> Option<Waiting<T>> {
        let (number, w) = self.by_number.first_key_value()?;
        let number = *number;
        (w.expires_ms <= now_ms).then(|| self.take(number)).flatten()
    }
    /// Shows up to `n` datagrams from a number on. Returns the number from which to continue.
    pub(crate) fn show(&self, from: u64, n: usize, mut see: impl FnMut(&Waiting<T>)) -> Option<u64> {
        let mut all = self.by_number.range(from..);
        all.by_ref().take(n).for_each(|(_, w)| see(w));
        all.next().map(|(number, _)| *number)
    }
    /// Whether all counts and indices match the datagrams.
    #[cfg(test)]
    pub(crate) fn is_consistent(&self) -> bool {
        let all = || self.by_number.values();
        let sum = |port: u32| -> usize {
            all()
                .filter(|w| w.key.place.port == port)
                .map(|w| w.pieces.bytes())
                .sum()
        };
        self.fragments == all().map(|w| w.pieces.len()).sum::<usize>()
            && self.bytes == all().map(|w| w.pieces.bytes()).sum::<usize>()
            && self.by_key.len() == self.by_number.len()
            && self.loads.len() == self.ports.len()
            && self
                .ports
                .iter()
                .all(|(port, held)| sum(*port) == held.bytes && self.loads.contains(&(held.bytes, *port)))
    }
}
