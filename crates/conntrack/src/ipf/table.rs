//! The datagrams that wait, under one lock, which is held for some map operations at a time.
//!
//! All of them have the same time to become whole, so the order in which they came is that in which they
//! expire. Where there is no room, the oldest datagram of the port that holds the most makes room: who floods
//! has his own fragments forgotten, and those of others stay.

use super::datagram::{Fragment, Pieces, cost};
use super::piece::Piece;
use super::{Place, Refusal};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How long a datagram may wait, as in Open vSwitch.
pub(crate) const TIMEOUT_MS: u64 = 15_000;
/// Memory that fragments may hold together, however few they are.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// Which datagram a fragment is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) src: u128,
    pub(crate) dst: u128,
    pub(crate) id: u32,
    pub(crate) proto: u8,
    pub(crate) ipv6: bool,
    pub(crate) place: Place,
}

#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) key: Key,
    pub(crate) pieces: Pieces<T>,
    expires_ms: u64,
}

/// What one port holds.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// Its datagrams by age.
    numbers: BTreeSet<u64>,
}

/// What became of a fragment.
pub(crate) enum Added<T> {
    Waits,
    Whole(Waiting<T>),
    Refused(Refusal),
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    by_key: HashMap<Key, u64>,
    /// By age: numbers grow.
    by_number: BTreeMap<u64, Waiting<T>>,
    ports: HashMap<u32, Held>,
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

    /// Bytes that they hold.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.bytes
    }

    /// Adds a fragment; `evicted` gets the datagrams that made room, which the caller forgets without the
    /// lock.
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
    /// The oldest datagram of the port that holds the most.
    fn of_the_greatest(&self) -> Option<u64> {
        let (_, port) = self.loads.last()?;
        self.ports.get(port)?.numbers.first().copied()
    }
    /// Changes what a port holds.
    fn load(&mut self, port: u32, change: impl FnOnce(&mut Held)) {
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
    /// Takes the oldest one, if its time is over.
    pub(crate) fn expired(&mut self, now_ms: u64) -> Option<Waiting<T>> {
        let (number, w) = self.by_number.first_key_value()?;
        let number = *number;
        (w.expires_ms <= now_ms).then(|| self.take(number)).flatten()
    }
    /// Shows up to `n` of them from a number on; gives where to go on.
    pub(crate) fn show(&self, from: u64, n: usize, mut see: impl FnMut(&Waiting<T>)) -> Option<u64> {
        let mut all = self.by_number.range(from..);
        all.by_ref().take(n).for_each(|(_, w)| see(w));
        all.next().map(|(number, _)| *number)
    }
    /// Whether all counts say what is there.
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
