//! Which entries a change of rules is about: asked by each entry when it is used next, in a few dozen cycles.
//!
//! **Problem.** A thousand rules change in a second, and fifty thousand flows are up. No generation that those flows depend on stays what it
//! was from one packet of a flow to the next, although none of the changes is about any of them. To compare each flow with each change
//! ([`crate::changes`]) costs more than forwarding.
//!
//! **Shape.** Entries that have the same mask, and whose translations depended on the same things in the same order and saw the same
//! constants there, are under one [`Watch`]. When one of these things moves, the watch takes the changes out of its log, once: of each it
//! keeps what a packet that it is about has in the bits of the mask ([`CompactMask`] and value). Changes that ask for the same bits make
//! one [`Filter`]: by hash of the value, the number of the last such change. An entry has a stamp, the number of the change up to which it
//! is known to be right; it goes on if no filter has a later one at the hash of its own bits. On a coincidence the last values themselves are compared.
//!
//! **In doubt** an entry is translated again: a change that asks for none of the mask's bits, one that a log does not tell or tells no more, too many
//! filters. What is known of packets besides the entry's bits is what [`Known`] says: fields that ordinary packets do not have, and registers,
//! metadata and input port as the translation said. Bits that actions have changed before a lookup are not compared there.
//!
//! **Bounds.** A burst takes in [`PATIENCE`] changes; the entries of watches that have missed more than are left by then are translated again, so that a
//! worker that comes back to flows of before does not stand still over what has changed meanwhile. [`MOST`] watches, [`MOST_FILTERS`] filters of 50 KiB for all of them; entries beyond have none, and are checked by their verdicts.
//!
//! **Threads.** One worker's own.

use crate::changes::{Changed, Known, Override};
use crate::compact::{CompactKey, CompactMask};
use crate::hash::Mixer;
use crate::translate::{Dep, Generations};
use hashbrown::HashTable;
use heddle_flow::{FlowKey, FlowMask};
use std::collections::VecDeque;
use std::hash::Hasher;

/// The number that stands for no watch.
pub(crate) const NONE: u16 = 0;
/// Watches of a worker, at most.
const MOST: usize = 1024;
/// Filters of a worker, at most.
const MOST_FILTERS: usize = 256;
/// Filters of one watch, at most.
const FILTERS: usize = 4;
/// Places of a filter.
const PLACES: usize = 4096;
/// Values that a filter remembers.
const VALUES: usize = 512;
/// Changes that are taken in for all watches together, per burst.
const PATIENCE: usize = 2048;
/// The stamp of an entry that is not known to be right.
const NEVER: u32 = 0;
/// Numbers of changes end here: the watch is given up then.
const WORN: u32 = u32::MAX;

/// Odd numbers without a pattern (digits of the fractional part of pi).
const FACTORS: [u64; 8] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7345,
    0xa409_3822_299f_31d1,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6d,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
];

/// What each packet asks.
#[derive(Clone, Copy, Debug)]
struct Hot {
    /// The value of [`Generations::any`] up to which changes are known.
    any: u64,
    /// The last change that may be about entries.
    seq: u32,
    /// Entries with smaller stamps have to be translated again.
    base: u32,
}

/// Changes that ask for the same bits.
struct Filter {
    bits: CompactMask,
    /// By hash of the value: the last change.
    places: Box<[u32; PLACES]>,
    /// The last changes with their values, and the last one that is no longer among them.
    values: VecDeque<(u32, CompactKey)>,
    forgotten: u32,
    last: u32,
}

impl Filter {
    /// The place of a key's value. Words are multiplied side by side: nobody gains by values that coincide, which rules choose, not packets.
    #[inline]
    fn place(&self, key: &CompactKey) -> usize {
        let words = key.words().iter().zip(self.bits.words()).zip(FACTORS);
        let sum = words.fold(0, |h: u64, ((w, m), f)| h.wrapping_add((w & m).wrapping_mul(f)));
        let mixed = (sum ^ sum >> 32).wrapping_mul(FACTORS[0]);
        usize::try_from(mixed >> (64 - PLACES.ilog2())).unwrap_or(0)
    }
    /// Whether a change after `stamp` may be about this key.
    #[inline]
    fn meets(&self, key: &CompactKey, stamp: u32) -> bool {
        self.last > stamp && self.places[self.place(key) % PLACES] > stamp && self.really_meets(key, stamp)
    }
    #[cold]
    fn really_meets(&self, key: &CompactKey, stamp: u32) -> bool {
        let masked = key.masked(&self.bits);
        let later = self.values.iter().rev().take_while(|(seq, _)| *seq > stamp);
        self.forgotten > stamp || later.into_iter().any(|(_, value)| *value == masked)
    }
    fn add(&mut self, value: CompactKey, seq: u32) {
        let at = self.place(&value);
        self.places[at] = seq;
        if self.values.len() == VALUES
            && let Some((gone, _)) = self.values.pop_front()
        {
            self.forgotten = gone;
        }
        self.values.push_back((seq, value));
        self.last = seq;
    }
}

/// See the module's text.
struct Watch {
    slots: Box<[u16]>,
    overrides: Box<[Override]>,
    tuple: u32,
    mask: FlowMask,
    v6: bool,
    fingerprint: u64,
    users: u32,
    /// The generation of each slot up to which changes are known.
    seen: Box<[u64]>,
    filters: Vec<Filter>,
}

/// The entries' mask, as a watch needs it.
#[derive(Clone, Copy)]
pub(crate) struct Under<'a> {
    /// Its number.
    pub(crate) tuple: u32,
    pub(crate) mask: &'a FlowMask,
    pub(crate) v6: bool,
}

/// A worker's watches, by number.
pub(crate) struct Watches {
    hot: Vec<Hot>,
    all: Vec<Option<Box<Watch>>>,
    free: Vec<u16>,
    index: HashTable<u16>,
    /// The last one that was entered; listed.
    last: u16,
    n_filters: usize,
    /// Changes that may still be taken in.
    patience: usize,
}

impl Watches {
    pub(crate) fn new() -> Self {
        Self {
            // Nothing is watched by number 0.
            hot: vec![Hot::START],
            all: vec![None],
            free: Vec::new(),
            index: HashTable::new(),
            last: NONE,
            n_filters: 0,
            patience: PATIENCE,
        }
    }
    /// Another burst begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.patience = PATIENCE;
    }
    fn get(&self, n: u16) -> Option<&Watch> {
        self.all.get(usize::from(n))?.as_deref()
    }

    /// An entry under this mask has an answer that depends on these things, seen like this. Returns the number of its watch ([`NONE`]: there
    /// can be none), and its stamp. `None`: the answer is older than what is known of changes, so it is worth nothing.
    pub(crate) fn enter(
        &mut self,
        deps: impl ExactSizeIterator<Item = Dep> + Clone,
        overrides: &[Override],
        under: Under<'_>,
    ) -> Option<(u16, u32)> {
        let is = |w: &Watch| {
            w.tuple == under.tuple
                && *w.overrides == *overrides
                && w.slots.len() == deps.len()
                && w.slots.iter().zip(deps.clone()).all(|(s, d)| *s == d.slot)
        };
        // Many entries in a row mostly have one.
        let last = self.get(self.last).is_some_and(is).then_some(self.last);
        let print = last.map_or_else(
            || fingerprint(deps.clone().map(|d| d.slot), overrides, under.tuple),
            |_| 0,
        );
        let all = &self.all;
        let same = |n: &u16| {
            all[usize::from(*n)]
                .as_ref()
                .is_some_and(|w| w.fingerprint == print && is(w))
        };
        if let Some(n) = last.or_else(|| self.index.find(print, same).copied()) {
            self.last = n;
            let i = usize::from(n);
            let w = self.all[i].as_mut().expect("what is in the index is held");
            if deps.zip(&w.seen).any(|(d, seen)| d.generation < *seen) {
                return None;
            }
            w.users += 1;
            return Some((n, self.hot[i].seq));
        }
        let n = match self.free.pop() {
            Some(n) => n,
            None if self.all.len() > MOST => return Some((NONE, NEVER)),
            None => {
                self.hot.push(Hot::START);
                self.all.push(None);
                u16::try_from(self.all.len() - 1).expect("MOST is less than 2^16")
            }
        };
        let i = usize::from(n);
        self.hot[i] = Hot::START;
        self.all[i] = Some(Box::new(Watch {
            slots: deps.clone().map(|d| d.slot).collect(),
            overrides: overrides.into(),
            tuple: under.tuple,
            mask: *under.mask,
            v6: under.v6,
            fingerprint: print,
            users: 1,
            seen: deps.map(|d| d.generation).collect(),
            filters: Vec::new(),
        }));
        let all = &self.all;
        self.index.insert_unique(print, n, |n| {
            all[usize::from(*n)].as_ref().map_or(0, |w| w.fingerprint)
        });
        Some((n, self.hot[i].seq))
    }
    /// An entry is gone, or has another watch.
    pub(crate) fn leave(&mut self, n: u16) {
        let Some(Some(w)) = self.all.get_mut(usize::from(n)) else {
            return;
        };
        w.users -= 1;
        if w.users == 0 {
            self.n_filters -= w.filters.len();
            self.unlist(n);
            self.all[usize::from(n)] = None;
            self.free.push(n);
        }
    }
    fn unlist(&mut self, n: u16) {
        if self.last == n {
            self.last = NONE;
        }
        let print = self.get(n).map_or(0, |w| w.fingerprint);
        if let Ok(found) = self.index.find_entry(print, |m| *m == n) {
            found.remove();
        }
    }

    /// Whether an entry with this stamp is right, as far as generation `any` is known; `false` means that it has to be looked at.
    #[inline]
    pub(crate) fn holds(&self, n: u16, stamp: u32, any: u64) -> bool {
        self.hot
            .get(usize::from(n))
            .is_some_and(|h| h.any == any && h.seq == stamp)
    }
    /// Whether an entry, of which `key` is a packet's, that was right at `stamp` is right now: with its new stamp. `any` was read before.
    #[inline]
    pub(crate) fn look(
        &mut self,
        n: u16,
        key: &CompactKey,
        stamp: u32,
        any: u64,
        generations: &Generations,
    ) -> Option<u32> {
        let i = usize::from(n);
        if self.hot.get(i)?.any != any {
            self.catch_up(n, any, generations);
        }
        let h = self.hot[i];
        if stamp < h.base {
            return None;
        }
        let w = self.all.get(i)?.as_ref()?;
        let met = stamp != h.seq && w.filters.iter().any(|f| f.meets(key, stamp));
        (!met).then_some(h.seq)
    }

    /// Takes in what has changed.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self, n: u16, any: u64, generations: &Generations) {
        let i = usize::from(n);
        let Some(mut w) = self.all[i].take() else { return };
        let moved = w
            .slots
            .iter()
            .zip(&w.seen)
            .any(|(s, seen)| generations.read(*s).generation != *seen);
        if moved {
            self.take_changes(&mut w, i, generations);
        }
        self.hot[i].any = any;
        let worn = self.hot[i].base == WORN;
        self.all[i] = Some(w);
        if worn {
            // Its entries, translated again, get another one.
            self.unlist(n);
        }
    }
    fn take_changes(&mut self, w: &mut Watch, i: usize, generations: &Generations) {
        let mut scope = Scope::new(&w.mask, w.v6);
        let Watch {
            slots,
            overrides,
            seen,
            filters,
            ..
        } = w;
        let mut overrides = overrides.iter().peekable();
        for (at, (slot, seen)) in (0_u16..).zip(slots.iter().zip(seen)) {
            while let Some(o) = overrides.next_if(|o| o.from <= at) {
                scope.apply(o);
            }
            let now = generations.read(*slot).generation;
            if now == *seen {
                continue;
            }
            let (hot, n_filters, patience) = (&mut self.hot[i], &mut self.n_filters, &mut self.patience);
            let told = generations.changed(*slot, *seen, now, &mut |c| {
                if *patience == 0 {
                    return false;
                }
                *patience -= 1;
                match scope.projected(c) {
                    About::None => true,
                    About::All => false,
                    About::Some(bits, value) => hot.note(filters, n_filters, bits, value),
                }
            });
            if !told {
                hot.all_stale();
            }
            *seen = now;
        }
    }
}

impl Hot {
    const START: Self = Self {
        any: 0,
        seq: NEVER + 1,
        base: NEVER + 1,
    };
    fn next(&mut self) -> u32 {
        if self.seq >= WORN - 1 {
            self.base = WORN;
        } else {
            self.seq += 1;
        }
        self.seq
    }
    fn all_stale(&mut self) {
        let seq = self.next();
        self.base = self.base.max(seq);
    }
    /// Notes a change; `false`: there is no room to.
    fn note(
        &mut self,
        filters: &mut Vec<Filter>,
        n_filters: &mut usize,
        bits: CompactMask,
        value: CompactKey,
    ) -> bool {
        let seq = self.next();
        let at = match filters.iter().position(|f| f.bits == bits) {
            Some(at) => at,
            None if filters.len() < FILTERS && *n_filters < MOST_FILTERS => {
                *n_filters += 1;
                filters.push(Filter {
                    bits,
                    places: vec![0; PLACES].into_boxed_slice().try_into().expect("that many"),
                    values: VecDeque::new(),
                    forgotten: 0,
                    last: 0,
                });
                filters.len() - 1
            }
            None => {
                // The one whose bits were asked for longest ago; entries that have not seen its last change know nothing any more.
                let Some((at, f)) = filters.iter_mut().enumerate().min_by_key(|(_, f)| f.last) else {
                    return false;
                };
                self.base = self.base.max(f.last);
                f.bits = bits;
                f.places.fill(0);
                f.values.clear();
                f.forgotten = 0;
                at
            }
        };
        filters[at].add(value, seq);
        true
    }
}

/// Which entries a change is about.
enum About {
    None,
    All,
    /// Those with this value in these bits.
    Some(CompactMask, CompactKey),
}

/// What a lookup sees of the packets of a watch's entries.
struct Scope {
    /// What all of them have.
    known: Known,
    /// The bits that each entry has a value of its own for.
    own: FlowMask,
    v6: bool,
}

impl Scope {
    /// At the beginning of a translation.
    fn new(mask: &FlowMask, v6: bool) -> Self {
        // Of what compact keys have no room for all ordinary packets have the same: what the expansion of any key shows.
        let fixed = CompactMask::default().restrict(mask);
        let key = CompactKey::of_family(v6).expand(&fixed);
        let mut own = *mask;
        own.words_mut()
            .iter_mut()
            .zip(fixed.words())
            .for_each(|(w, f)| *w &= !f);
        // One is no OpenFlow port, the other is not asked for bit by bit.
        (own.0.in_port, own.0.vlans[0].tpid) = (0, 0);
        Self {
            known: Known::new(&key, &fixed),
            own,
            v6,
        }
    }
    /// As a later lookup saw them.
    fn apply(&mut self, o: &Override) {
        self.known.apply(o);
        if o.changed
            && let Some(w) = self.own.words_mut().get_mut(usize::from(o.word))
        {
            *w = 0;
        }
    }
    fn projected(&self, c: Changed<'_>) -> About {
        if self.known.passes(c) {
            return About::None;
        }
        let (mut mask, mut value) = (FlowMask::default(), FlowKey::default());
        let own = self.own.words();
        c.each(|i, m, v| {
            if let (Some(own), Some(to), Some(key)) = (
                own.get(i),
                mask.words_mut().get_mut(i),
                value.words_mut().get_mut(i),
            ) {
                *to = m & own;
                *key = v & m & own;
            }
        });
        let bits = CompactMask::of_fields(&mask, self.v6);
        if bits == CompactMask::default() {
            return About::All;
        }
        let value = CompactMask::of_fields(&FlowMask(value), self.v6);
        About::Some(bits, CompactKey::from_words(*value.words()))
    }
}

fn fingerprint(slots: impl Iterator<Item = u16>, overrides: &[Override], tuple: u32) -> u64 {
    let mut h = Mixer::new(tuple.into());
    slots.for_each(|s| h.write_u16(s));
    for o in overrides {
        h.write_u64(u64::from(o.from) << 16 | u64::from(o.word) << 1 | u64::from(o.changed));
        h.write_u64(o.value);
    }
    h.finish()
}

#[cfg(test)]
mod tests;
