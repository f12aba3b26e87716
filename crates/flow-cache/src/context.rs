//! Contexts: what entries ask of packets that stands outside of compact keys.
//!
//! **Problem.** A packet may carry much besides its usual headers: the tunnel that it came in with its
//! options, the state of its connection, a hash. Most entries look at few bits of that, or none. Keys with
//! room for all of it are ten times as long, and whoever sends packets can fill it with values that nobody
//! asked for.
//!
//! **Shape.** An entry's mask has a sparse part, the bits outside that count ([`Bits`]). The values that they
//! must have are a [`Context`], a record with a number, which stands in the entry's compact key in the place
//! of the origin. Entries under one mask that ask for the same values share it. Where all of them are zero,
//! or none count, there is no record, and the origin itself stands there: so packets that carry nothing are
//! compared as 64 bytes, whatever the masks ask for. A packet that does carry something is compared word by
//! word where, and only where, an entry's mask asks for it.
//!
//! **Bounds.** A record lives as long as an entry refers to it, so there are no more of them than entries. A
//! bit that is asked for the first time is another mask's: it changes no entry that is there. Masks do not
//! share records.
//!
//! **Threads.** One worker's own. The revalidator learns records through notes.

use hashbrown::HashTable;
use heddle_flow::{FlowKey, N_WORDS};
use heddle_simd::hash::{HashKey, fold};

/// Words of a full key with the bits of them that count; in order.
pub(crate) type Bits = [(u8, u64)];

/// Numbers of origins are smaller, numbers of contexts are not.
const FIRST: u32 = 1 << 31;

/// A record, as it is shown to the revalidator; also of an origin that is no mere port.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) in_port: u32,
    pub(crate) recirc_id: u32,
    /// What the packet that it was made for had outside of its compact key: (word, value) of each that is not
    /// zero.
    pub(crate) whole: Box<Bits>,
}

#[derive(Debug)]
struct Held {
    subtable: u32,
    origin: u32,
    /// The masked words, as many as the mask has.
    values: Box<[u64]>,
    /// Of these words.
    hash: u64,
    /// Entries that refer to it.
    users: u32,
}

/// Hashes words outside of compact keys. Words that are zero add nothing.
#[derive(Debug)]
pub(crate) struct Outside {
    factors: [u64; N_WORDS],
}

impl Outside {
    pub(crate) fn new(key: &HashKey) -> Self {
        Self {
            factors: std::array::from_fn(|i| key.finish(key.mix(key.start(), i as u64, 1)) | 1),
        }
    }
    #[inline]
    fn of(&self, words: impl Iterator<Item = (u8, u64)>) -> u64 {
        words.fold(0, |h: u64, (i, w)| {
            h.wrapping_add(fold(w, self.factors[usize::from(i) % N_WORDS]))
        })
    }
    /// Of these bits of a full key.
    #[inline]
    pub(crate) fn hash(&self, key: &FlowKey, bits: &Bits) -> u64 {
        self.of(bits.iter().map(|(i, m)| (*i, word(key, *i) & m)))
    }
}

#[inline]
fn word(key: &FlowKey, i: u8) -> u64 {
    key.words().get(usize::from(i)).copied().unwrap_or(0)
}

/// Whether a number that stands in an entry's key is a context's.
#[inline]
pub(crate) fn is_context(number: u32) -> bool {
    number >= FIRST
}

/// A worker's contexts, by number.
#[derive(Debug)]
pub(crate) struct Contexts {
    held: Vec<Option<Held>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    outside: Outside,
}

impl Contexts {
    pub(crate) fn new(key: &HashKey) -> Self {
        Self {
            held: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            outside: Outside::new(key),
        }
    }
    #[inline]
    fn get(&self, number: u32) -> Option<&Held> {
        self.held.get((number ^ FIRST) as usize)?.as_ref()
    }
    /// Hash of these bits of a full key; zero where all are zero.
    #[inline]
    pub(crate) fn hash(&self, key: &FlowKey, bits: &Bits) -> u64 {
        self.outside.hash(key, bits)
    }
    /// The origin that the number in an entry's key stands for, and the hash of what it says of the outside.
    #[inline]
    pub(crate) fn origin(&self, number: u32) -> (u32, u64) {
        if !is_context(number) {
            return (number, 0);
        }
        self.get(number).map_or((number, 0), |h| (h.origin, h.hash))
    }
    /// What an entry with this number in its key asks of word `i` of a full key; `bits` are those of its
    /// mask.
    pub(crate) fn word(&self, number: u32, bits: &Bits, i: usize) -> u64 {
        let values = self
            .get(number)
            .filter(|_| is_context(number))
            .map_or(&[][..], |h| &h.values);
        let mut words = bits.iter().zip(values);
        words
            .find(|((at, _), _)| usize::from(*at) == i)
            .map_or(0, |(_, v)| *v)
    }
    /// Whether a packet of this origin, with this outside its compact key, has what the number in an entry's
    /// key asks for; `bits` are those of the entry's mask.
    #[inline]
    pub(crate) fn agrees(&self, number: u32, bits: &Bits, origin: u32, key: &FlowKey) -> bool {
        if !is_context(number) {
            return number == origin && bits.iter().all(|(i, m)| word(key, *i) & m == 0);
        }
        self.get(number).is_some_and(|h| {
            let odd = bits.iter().zip(&h.values);
            h.origin == origin && odd.fold(0, |odd, ((i, m), v)| odd | (word(key, *i) & m ^ v)) == 0
        })
    }
    /// The number for entries under a mask (of this number, with these bits), and what this packet of that
    /// origin has there, which has one user more; the flag says that it is new. With `whole` there is a
    /// record also where nothing counts: it shows what odd packets look like. `None`: there are too many.
    pub(crate) fn retain(
        &mut self,
        (subtable, bits, whole): (u32, &Bits, bool),
        origin: u32,
        key: &FlowKey,
    ) -> Option<(u32, bool)> {
        let hash = self.hash(key, bits);
        let values = || bits.iter().map(|(i, m)| word(key, *i) & m);
        if !whole && values().all(|v| v == 0) {
            return Some((origin, false));
        }
        let print = print(hash, subtable, origin);
        let all = &self.held;
        let same = |n: &u32| {
            let held = all.get(*n as usize).and_then(Option::as_ref);
            held.is_some_and(|h| {
                (h.subtable, h.origin, h.hash) == (subtable, origin, hash)
                    && values().eq(h.values.iter().copied())
            })
        };
        if let Some(&n) = self.index.find(print, same) {
            if let Some(Some(h)) = self.held.get_mut(n as usize) {
                h.users += 1;
            }
            return Some((n ^ FIRST, false));
        }
        let held = Some(Held {
            subtable,
            origin,
            values: values().collect(),
            hash,
            users: 1,
        });
        let n = match self.free.pop() {
            Some(n) => n,
            None => {
                let n = u32::try_from(self.held.len()).ok().filter(|n| *n < FIRST)?;
                self.held.push(None);
                n
            }
        };
        self.held[n as usize] = held;
        let all = &self.held;
        self.index.insert_unique(print, n, |n| print_of(all, *n));
        Some((n ^ FIRST, true))
    }
    /// An entry refers to it no more. Returns whether that was the last one: then the number may be given to
    /// another.
    pub(crate) fn release(&mut self, number: u32) -> bool {
        if !is_context(number) {
            return false;
        }
        let n = number ^ FIRST;
        let Some(Some(h)) = self.held.get_mut(n as usize) else {
            return false;
        };
        h.users -= 1;
        if h.users > 0 {
            return false;
        }
        let print = print_of(&self.held, n);
        if let Ok(found) = self.index.find_entry(print, |m| *m == n) {
            found.remove();
        }
        self.held[n as usize] = None;
        self.free.push(n);
        true
    }
}

fn print(hash: u64, subtable: u32, origin: u32) -> u64 {
    hash ^ (u64::from(subtable) << 32 | u64::from(origin)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn print_of(all: &[Option<Held>], n: u32) -> u64 {
    let held = all.get(n as usize).and_then(Option::as_ref);
    held.map_or(0, |h| print(h.hash, h.subtable, h.origin))
}
