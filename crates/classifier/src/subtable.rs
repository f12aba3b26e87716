//! Rules that share a mask: stages that can end a lookup early, and a hash table whose buckets are replaced, never changed in
//! place.
//!
//! A reader that holds a bucket keeps it alive (reference counted by `arc_swap`), so a writer may replace it at
//! any time. The bucket array itself is replaced when it has grown full.

use crate::mini::{Hasher, MiniMask};
use crate::prefix::{N_FIELDS, PrefixField, Tries};
use crate::stage::StageIndex;
use crate::trie::Trie;
use arc_swap::{ArcSwap, ArcSwapOption};
use core::mem::offset_of;
use heddle_flow::{FlowKey, FlowMask, N_WORDS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Never removed.
pub(crate) const FOREVER: u64 = u64::MAX;

/// First words of the second and later stages: L2, L3, L4; the first stage is what is known without parsing.
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

/// One rule in a classifier.
#[derive(Debug)]
pub struct Entry<T> {
    /// Masked words, in the order of the subtable's mask.
    pub values: Arc<[u64]>,
    /// Higher wins.
    pub priority: i32,
    /// First version that sees it.
    pub added: u64,
    pub(crate) removed: AtomicU64,
    /// The caller's rule.
    pub data: T,
}

impl<T> Entry<T> {
    /// Whether lookups at `version` see it.
    pub fn visible(&self, version: u64) -> bool {
        // Relaxed: a reader that races with a removal may see either, and both are states of `version`; the
        // generation that the remover bumps afterwards decides what may be cached.
        self.added <= version && version < self.removed.load(Ordering::Relaxed)
    }
}

type Bucket<T> = Box<[Arc<Entry<T>>]>;
type Buckets<T> = Box<[ArcSwapOption<Bucket<T>>]>;

/// A part of the mask that is looked at before the next.
struct Stage {
    /// Its end in the mask's list of words.
    end: usize,
    /// The words of the key that it covers.
    covers: core::ops::Range<u8>,
    /// What rules have up to its end; the last stage needs none.
    index: Option<StageIndex>,
}

/// Which L4 ports rules ask for, so that a packet with others is told from them by few bits.
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
    /// By field: the length of the prefix that the mask asks for.
    pub(crate) prefixes: [u8; N_FIELDS],
    ports: Option<Box<Ports>>,
    buckets: ArcSwap<Buckets<T>>,
    len: AtomicUsize,
}

fn new_buckets<T>(n: usize) -> Buckets<T> {
    (0..n).map(|_| ArcSwapOption::empty()).collect()
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
                index: Some(StageIndex::default()),
            });
            (done, begin) = (end, border);
        }
    }
    if let Some(last) = all.last_mut() {
        last.index = None;
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
        Self {
            seed,
            stages: stages(&mask),
            prefixes: PrefixField::ALL.map(|f| f.length(&wide)),
            ports: (ports != 0).then(|| {
                Box::new(Ports {
                    mask: ports,
                    len: 32 - ports.trailing_zeros(),
                    trie: Trie::default(),
                })
            }),
            mask,
            buckets: ArcSwap::from_pointee(new_buckets(4)),
            len: AtomicUsize::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The entry of highest priority that matches `key` and is visible. Adds the bits that the answer depends on to `wc`.
    pub(crate) fn lookup(
        &self,
        version: u64,
        key: &FlowKey,
        tries: &mut Tries<'_>,
        wc: &mut FlowMask,
    ) -> Option<Arc<Entry<T>>> {
        let words = self.mask.words();
        let mut hash = Hasher::new(self.seed);
        let mut done = 0;
        for stage in &self.stages {
            if tries.rule_out(&self.prefixes, stage.covers.clone(), key, wc) {
                add(&words[..done], wc);
                return None;
            }
            hash.key(key, &words[done..stage.end]);
            done = stage.end;
            if stage.index.as_ref().is_some_and(|i| !i.has(hash.get())) {
                add(&words[..done], wc);
                return None;
            }
        }
        let buckets = self.buckets.load();
        let bucket = buckets[index(hash.get(), buckets.len())].load();
        // Entries of a bucket are kept by falling priority.
        let found = bucket.as_ref().and_then(|b| {
            b.iter()
                .find(|e| e.visible(version) && self.mask.matches(key, &e.values))
        });
        match (&self.ports, found) {
            (Some(p), None) => self.add_but_ports(p, key, wc),
            _ => add(words, wc),
        }
        found.cloned()
    }

    /// Nothing matches: of the ports only those bits count that tell them from all rules' ports.
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

    /// All entries with exactly these values, whatever their priority and version.
    pub(crate) fn with_values(&self, values: &[u64]) -> Vec<Arc<Entry<T>>> {
        let buckets = self.buckets.load();
        let bucket = buckets[index(self.hash(values), buckets.len())].load();
        bucket.as_ref().map_or_else(Vec::new, |b| {
            b.iter().filter(|e| *e.values == *values).cloned().collect()
        })
    }

    fn hash(&self, values: &[u64]) -> u64 {
        let mut h = Hasher::new(self.seed);
        h.values(values);
        h.get()
    }

    /// Calls `f` with the index of each stage that has one and the hash of `values` up to it.
    fn each_stage(&self, values: &[u64], f: impl Fn(&StageIndex, u64)) {
        let mut hash = Hasher::new(self.seed);
        let mut done = 0;
        for stage in &self.stages {
            hash.values(values.get(done..stage.end).unwrap_or_default());
            done = stage.end;
            if let Some(i) = &stage.index {
                f(i, hash.get());
            }
        }
    }

    pub(crate) fn insert(&self, entry: Arc<Entry<T>>, wide: &FlowKey) {
        if self.len() >= self.buckets.load().len() {
            self.grow();
        }
        // What lets lookups pass the entry by goes first.
        self.each_stage(&entry.values, StageIndex::add);
        if let Some(p) = &self.ports {
            p.trie.insert(&[ports(wide)], p.len);
        }
        self.insert_into(&self.buckets.load(), entry);
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    /// `false` if it is not there.
    pub(crate) fn remove(&self, gone: &Arc<Entry<T>>, wide: &FlowKey) -> bool {
        let buckets = self.buckets.load();
        let slot = &buckets[index(self.hash(&gone.values), buckets.len())];
        let Some(old) = slot.load_full() else { return false };
        let kept: Bucket<T> = old.iter().filter(|e| !Arc::ptr_eq(e, gone)).cloned().collect();
        if kept.len() == old.len() {
            return false;
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        slot.store((!kept.is_empty()).then(|| Arc::new(kept)));
        self.each_stage(&gone.values, StageIndex::sub);
        if let Some(p) = &self.ports {
            p.trie.remove(&[ports(wide)], p.len);
        }
        true
    }

    pub(crate) fn for_each(&self, f: &mut dyn FnMut(&Arc<Entry<T>>)) {
        for slot in self.buckets.load().iter() {
            if let Some(bucket) = slot.load().as_ref() {
                bucket.iter().for_each(&mut *f);
            }
        }
    }

    /// The wide form of an entry's values.
    pub(crate) fn wide(&self, values: &[u64]) -> FlowKey {
        let mut key = FlowKey::default();
        for ((i, _), v) in self.mask.words().iter().zip(values) {
            key.words_mut()[usize::from(*i)] = *v;
        }
        key
    }

    fn grow(&self) {
        let bigger = new_buckets(self.buckets.load().len() * 2);
        self.for_each(&mut |e| self.insert_into(&bigger, e.clone()));
        self.buckets.store(Arc::new(bigger));
    }

    fn insert_into(&self, buckets: &Buckets<T>, entry: Arc<Entry<T>>) {
        let slot = &buckets[index(self.hash(&entry.values), buckets.len())];
        let old = slot.load_full();
        let old: &[Arc<Entry<T>>] = old.as_ref().map_or(&[], |b| b);
        let at = old.partition_point(|e| e.priority >= entry.priority);
        let new: Bucket<T> = old[..at]
            .iter()
            .cloned()
            .chain([entry])
            .chain(old[at..].iter().cloned())
            .collect();
        slot.store(Some(Arc::new(new)));
    }
}

/// Sets these bits in a wide mask.
fn add(words: &[(u8, u64)], wc: &mut FlowMask) {
    let w = wc.words_mut();
    for (i, m) in words {
        w[usize::from(*i)] |= m;
    }
}

fn index(hash: u64, n: usize) -> usize {
    // `n` is a power of two.
    #[allow(clippy::cast_possible_truncation)]
    let h = hash as usize;
    h & (n - 1)
}
