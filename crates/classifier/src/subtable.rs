//! Rules that share a mask: stages that can end a lookup early, and a hash table.
//!
//! Readers get both with one load ([`Shape`]). Rules come and go in place. A part that is full is replaced by
//! a bigger one, and the writer frees the old one when no reader is left.

use crate::entry::Entry;
use crate::mini::{Hasher, MiniMask, MiniMatch};
use crate::prefix::{N_FIELDS, PrefixField, Tries};
use crate::slots::{Candidate, Slots};
use crate::stage::StageIndex;
use crate::trie::Trie;
use core::mem::offset_of;
use heddle_flow::{FlowKey, FlowMask, N_WORDS};
use heddle_sync::{RcuCell, ReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// First words of the second and later stages: L2, L3, L4. The first stage is metadata, known without
/// parsing.
const STAGES: [usize; 3] = [
    word(offset_of!(FlowKey, dl_dst)),
    word(offset_of!(FlowKey, nw_src)),
    word(offset_of!(FlowKey, tp_src)),
];
/// The word that holds both L4 ports.
const PORTS: usize = STAGES[2];

const fn word(offset: usize) -> usize {
    assert!(offset.is_multiple_of(8), "a stage begins with a word");
    offset / 8
}

/// A part of the mask that lookups check before the next part.
struct Stage {
    /// The stage's end in the mask's list of words.
    end: usize,
    /// The words of the key that it covers.
    covers: core::ops::Range<u8>,
}

/// The data that lookups read. Its parts are changed in place, and replaced when they are full.
struct Shape<T> {
    /// The hashes of all rules' values up to each stage's end; the last stage needs none.
    indexes: Box<[Arc<StageIndex>]>,
    slots: Arc<Slots<T>>,
}

/// The L4 ports of all rules. They let a lookup exclude a packet's ports by few bits.
struct Ports {
    /// Source port in the upper half, destination in the lower.
    mask: u32,
    len: u32,
    trie: Trie<1>,
}

pub(crate) struct Subtable<T> {
    pub(crate) mask: Arc<MiniMask>,
    seed: u64,
    stages: Box<[Stage]>,
    /// The length of the mask's prefix in each field of [`PrefixField::all`].
    pub(crate) prefixes: [u8; N_FIELDS],
    has_prefixes: bool,
    ports: Option<Box<Ports>>,
    shape: RcuCell<Shape<T>>,
    len: AtomicUsize,
}

fn stages(mask: &MiniMask) -> Box<[Stage]> {
    let mut all = Vec::new();
    let (mut done, mut begin) = (0, 0);
    for border in STAGES.iter().copied().chain([N_WORDS]) {
        let end = mask.words().partition_point(|(i, _)| usize::from(*i) < border);
        if end > done {
            let border = u8::try_from(border).expect("N_WORDS <= 255");
            all.push(Stage {
                end,
                covers: begin..border,
            });
            (done, begin) = (end, border);
        }
    }
    all.into()
}

/// The two ports of a key as one number.
fn ports(key: &FlowKey) -> u32 {
    u32::from(key.tp_src) << 16 | u32::from(key.tp_dst)
}

impl<T> Subtable<T> {
    pub(crate) fn new(mask: Arc<MiniMask>, seed: u64) -> Self {
        let wide = mask.expand();
        let ports = ports(&wide.0);
        let stages = stages(&mask);
        let mut prefixes = [0; N_FIELDS];
        prefixes
            .iter_mut()
            .zip(PrefixField::all())
            .for_each(|(len, f)| *len = f.length(&wide));
        let indexed = stages.len().saturating_sub(1);
        let shape = Shape {
            indexes: (0..indexed).map(|_| Arc::default()).collect(),
            slots: Arc::new(Slots::for_rules(0)),
        };
        Self {
            seed,
            stages,
            has_prefixes: prefixes.iter().any(|len| *len > 0),
            prefixes,
            ports: (ports != 0).then(|| {
                Box::new(Ports {
                    mask: ports,
                    len: 32 - ports.trailing_zeros(),
                    trie: Trie::default(),
                })
            }),
            mask,
            shape: RcuCell::new(shape),
            len: AtomicUsize::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The visible entry of highest priority that matches `key` and that `accept` takes. Adds the bits that
    /// the result depends on to `wc`.
    pub(crate) fn lookup<'a>(
        &'a self,
        reading: &'a ReadGuard,
        version: u64,
        key: &FlowKey,
        tries: &mut Tries<'_>,
        wc: &mut FlowMask,
        accept: &mut impl FnMut(&'a Entry<T>) -> bool,
    ) -> Option<&'a Entry<T>> {
        let words = self.mask.words();
        let shape = self.shape.load(reading);
        let mut hash = Hasher::new(self.seed);
        let mut done = 0;
        for (n, stage) in self.stages.iter().enumerate() {
            if self.has_prefixes && tries.rule_out(&self.prefixes, stage.covers.clone(), key, wc) {
                add(&words[..done], wc);
                return None;
            }
            hash.key(key, &words[done..stage.end]);
            done = stage.end;
            if shape.indexes.get(n).is_some_and(|i| !i.has(hash.get())) {
                add(&words[..done], wc);
                return None;
            }
        }
        let (mut best, mut refused) = (None::<&Entry<T>>, false);
        for c in shape.slots.candidates(reading, hash.get()) {
            let e = c.entry;
            let better = best.is_none_or(|b| e.priority > b.priority);
            if better && e.visible(version) && self.mask.matches(key, &e.values) {
                if accept(e) {
                    best = Some(e);
                } else {
                    refused = true;
                }
            }
        }
        match (&self.ports, best) {
            (Some(p), None) if !refused => self.add_but_ports(p, key, wc),
            _ => add(words, wc),
        }
        best
    }

    /// No rule matches: only the port bits that exclude all rules' ports count.
    #[cold]
    fn add_but_ports(&self, p: &Ports, key: &FlowKey, wc: &mut FlowMask) {
        let bits = p.trie.lookup(&[ports(key) & p.mask]).bits;
        let tell = p.mask & u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        let mut counted = FlowMask::default();
        add(self.mask.words(), &mut counted);
        let both = FlowMask(FlowKey {
            tp_src: u16::MAX,
            tp_dst: u16::MAX,
            ..FlowKey::default()
        });
        counted.words_mut()[PORTS] &= !both.words()[PORTS];
        #[allow(clippy::cast_possible_truncation)] // the two halves
        let (src, dst) = ((tell >> 16) as u16, tell as u16);
        counted.0.tp_src = src;
        counted.0.tp_dst = dst;
        wc.add(&counted);
    }

    /// The visible entry with exactly these values and this priority.
    pub(crate) fn find(&self, version: u64, values: &[u64], priority: i32) -> Option<Arc<Entry<T>>> {
        let reading = ReadGuard::begin();
        let slots = &self.shape.load(&reading).slots;
        let found = slots.candidates(&reading, self.hash(values)).find(|c| {
            let e = c.entry;
            e.priority == priority && e.visible(version) && *e.values == *values
        });
        found.and_then(|c| c.take())
    }

    fn hash(&self, values: &[u64]) -> u64 {
        let mut h = Hasher::new(self.seed);
        h.values(values);
        h.get()
    }

    /// Calls `f` with the number of each stage that has an index and the hash of `values` up to it.
    fn each_stage(&self, values: &[u64], mut f: impl FnMut(usize, u64)) {
        let mut hash = Hasher::new(self.seed);
        let mut done = 0;
        let indexed = self.stages.len().saturating_sub(1);
        for (n, stage) in self.stages.iter().take(indexed).enumerate() {
            hash.values(values.get(done..stage.end).unwrap_or_default());
            done = stage.end;
            f(n, hash.get());
        }
    }

    pub(crate) fn insert(&self, entry: Arc<Entry<T>>, wide: &FlowKey) {
        // First the indexes and the trie: they let lookups skip the entry.
        self.each_stage(&entry.values, |n, hash| {
            while self
                .shape
                .load(&ReadGuard::begin())
                .indexes
                .get(n)
                .is_some_and(|i| !i.add(hash))
            {
                self.rebuild_index(n);
            }
        });
        if let Some(p) = &self.ports {
            p.trie.insert(&[ports(wide)], p.len);
        }
        if !self.shape.load(&ReadGuard::begin()).slots.has_room(1) {
            self.rebuild_slots(Slots::for_rules(self.len()));
        }
        let hash = self.hash(&entry.values);
        let worn = self.shape.load(&ReadGuard::begin()).slots.insert(hash, entry);
        self.len.fetch_add(1, Ordering::Relaxed);
        if worn {
            self.rebuild_slots(Slots::for_rules(self.len()));
        }
    }

    /// Makes room for `n` more entries.
    pub(crate) fn reserve(&self, n: usize) {
        if !self.shape.load(&ReadGuard::begin()).slots.has_room(n) {
            self.rebuild_slots(Slots::with_room(self.len() + n));
        }
    }

    /// Removes an entry; `false`: it is not there.
    pub(crate) fn remove(&self, gone: &Arc<Entry<T>>, wide: &FlowKey) -> bool {
        let reading = ReadGuard::begin();
        let shape = self.shape.load(&reading);
        if !shape.slots.remove(self.hash(&gone.values), gone) {
            return false;
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        self.each_stage(&gone.values, |n, hash| {
            if let Some(i) = shape.indexes.get(n) {
                i.sub(hash);
            }
        });
        if let Some(p) = &self.ports {
            p.trie.remove(&[ports(wide)], p.len);
        }
        true
    }

    /// Frees memory after many rules have gone. `false`: readers still use some of it.
    pub(crate) fn tidy(&self) -> bool {
        let sparse = self.shape.load(&ReadGuard::begin()).slots.is_sparse(self.len());
        if sparse {
            self.rebuild_slots(Slots::for_rules(self.len()));
            for n in 0..self.stages.len().saturating_sub(1) {
                self.rebuild_index(n);
            }
        }
        let replaced = self.shape.tidy();
        let slots = self.shape.get().slots.clone();
        slots.tidy() && replaced
    }

    fn rebuild_index(&self, n: usize) {
        let shape = self.shape.get();
        let rebuilt = |(i, old): (usize, &Arc<StageIndex>)| {
            if i == n {
                Arc::new(old.rebuilt())
            } else {
                old.clone()
            }
        };
        self.replace(Shape {
            indexes: shape.indexes.iter().enumerate().map(rebuilt).collect(),
            slots: shape.slots.clone(),
        });
    }

    /// Moves all entries to these slots.
    fn rebuild_slots(&self, slots: Slots<T>) {
        let shape = self.shape.get();
        for e in shape.slots.iter(&ReadGuard::begin()) {
            slots.insert(self.hash(&e.values), e);
        }
        self.replace(Shape {
            indexes: shape.indexes.clone(),
            slots: Arc::new(slots),
        });
    }

    fn replace(&self, shape: Shape<T>) {
        self.shape.replace(Arc::new(shape));
    }

    /// Calls `f` for every entry.
    pub(crate) fn for_each(&self, f: &mut dyn FnMut(Candidate<'_, T>)) {
        let reading = ReadGuard::begin();
        self.shape.load(&reading).slots.all(&reading).for_each(f);
    }

    /// Calls `f` for every entry within this match.
    pub(crate) fn for_each_within(&self, loose: &MiniMatch, f: &mut dyn FnMut(Candidate<'_, T>)) {
        if self.mask == loose.mask {
            self.for_each_like(&loose.values, f);
        } else if loose.mask.within(&self.mask) {
            let asked = self.mask.in_common(loose);
            self.for_each(&mut |c| {
                if asked.agrees(&c.entry.values) {
                    f(c);
                }
            });
        }
    }

    /// Whether some packet could match both this match and an entry for which `is` returns `true`.
    pub(crate) fn overlaps(&self, matches: &MiniMatch, is: &dyn Fn(&Entry<T>) -> bool) -> bool {
        let mut found = false;
        if self.mask.within(&matches.mask) {
            let values = self.mask.in_common(matches).values();
            self.for_each_like(&values, &mut |c| found |= is(c.entry));
        } else {
            let asked = self.mask.in_common(matches);
            let reading = ReadGuard::begin();
            let mut all = self.shape.load(&reading).slots.all(&reading);
            found = all.any(|c| is(c.entry) && asked.agrees(&c.entry.values));
        }
        found
    }

    /// Calls `f` for every entry with exactly these values.
    fn for_each_like(&self, values: &[u64], f: &mut dyn FnMut(Candidate<'_, T>)) {
        let reading = ReadGuard::begin();
        let slots = &self.shape.load(&reading).slots;
        let candidates = slots.candidates(&reading, self.hash(values));
        candidates.filter(|c| *c.entry.values == *values).for_each(f);
    }

    /// The wide form of an entry's values.
    pub(crate) fn wide(&self, values: &[u64]) -> FlowKey {
        let mut key = FlowKey::default();
        for ((i, _), v) in self.mask.words().iter().zip(values) {
            key.words_mut()[usize::from(*i)] = *v;
        }
        key
    }
}

/// Sets these bits in a wide mask.
fn add(words: &[(u8, u64)], wc: &mut FlowMask) {
    let w = wc.words_mut();
    for (i, m) in words {
        w[usize::from(*i)] |= m;
    }
}
