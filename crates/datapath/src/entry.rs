//! A cached flow: what the worker that owns it and the control side share.
//!
//! **Who writes what.** The counters: only the owning worker. `validated`: the worker, and the sweeper after it has
//! re-checked; both store a value of [`Generations::any`] that was read *before* the dependencies were found to hold,
//! so a late store of an old value only causes another check. `deps`: whoever re-translated with the same
//! outcome. `dead`: set once, by either, never cleared; a worker never uses an entry it has seen dead.
//!
//! All accesses but `deps` are relaxed: each is a hint or a count. `deps` is published (Release, Acquire).
//!
//! The hot fields share the first cache line; the owner's counter stores go to the same line that a hit reads anyway.

use crate::action::Action;
use crate::program::Program;
use crate::translate::{Credit, Dep, Generations};
use heddle_flow::{FlowKey, FlowMask};
use heddle_sync::{Counter, Published};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The words that a mask uses: what a tuple of the wildcarded cache, and its entries, share.
#[derive(Debug)]
pub(crate) struct TupleMask {
    pub(crate) mask: FlowMask,
    /// (index, bits) of each word with a bit set.
    pub(crate) words: Box<[(u8, u64)]>,
}

impl TupleMask {
    pub(crate) fn new(mask: &FlowMask) -> Self {
        let words = mask.words().iter().enumerate().filter(|(_, w)| **w != 0);
        let words = words.map(|(i, w)| (u8::try_from(i).expect("a key has fewer than 256 words"), *w));
        Self {
            mask: *mask,
            words: words.collect(),
        }
    }
    /// The masked words of a key.
    #[inline]
    pub(crate) fn of<'a>(&'a self, key: &'a FlowKey) -> impl Iterator<Item = u64> + 'a {
        let key = key.words();
        self.words
            .iter()
            .map(move |&(i, m)| key.get(usize::from(i)).map_or(0, |w| w & m))
    }
}

/// A cached flow.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    validated: AtomicU64,
    pub(crate) packets: Counter,
    pub(crate) bytes: Counter,
    pub(crate) used_ms: Counter,
    pub(crate) tcp_flags: Counter,
    dead: AtomicBool,
    pub(crate) program: Program,
    // -- not touched by a hit in the exact-match cache
    pub(crate) id: u64,
    pub(crate) tuple: Arc<TupleMask>,
    pub(crate) hash: u64,
    pub(crate) words: Box<[u64]>,
    pub(crate) deps: Published<Vec<Dep>>,
    pub(crate) actions: Arc<[Action]>,
    pub(crate) created_ms: u64,
}

/// What an entry is made of.
pub(crate) struct NewEntry<'a> {
    pub(crate) id: u64,
    pub(crate) key: &'a FlowKey,
    pub(crate) tuple: Arc<TupleMask>,
    pub(crate) hash: u64,
    pub(crate) actions: Vec<Action>,
    pub(crate) program: Program,
    pub(crate) deps: Vec<Dep>,
    pub(crate) validated: u64,
    pub(crate) now_ms: u64,
}

impl Entry {
    pub(crate) fn new(n: NewEntry<'_>) -> Self {
        Self {
            validated: AtomicU64::new(n.validated),
            packets: Counter::default(),
            bytes: Counter::default(),
            used_ms: Counter::default(),
            tcp_flags: Counter::default(),
            dead: AtomicBool::new(false),
            program: n.program,
            id: n.id,
            words: n.tuple.of(n.key).collect(),
            tuple: n.tuple,
            hash: n.hash,
            deps: Published::new(n.deps),
            actions: n.actions.into(),
            created_ms: n.now_ms,
        }
    }
    /// Whether it may be used as far as generation `any` is known.
    #[inline]
    pub(crate) fn valid_at(&self, any: u64) -> bool {
        self.validated.load(Relaxed) == any && !self.is_dead()
    }
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }
    pub(crate) fn kill(&self) {
        self.dead.store(true, Relaxed);
    }
    /// Looks at the dependencies; if all hold, remembers that they did at `any` (read before this call).
    pub(crate) fn recheck(&self, any: u64, generations: &Generations) -> bool {
        let hold = generations.hold(&self.deps.load());
        if hold {
            self.validated.store(any, Relaxed);
        }
        hold
    }
    /// The same answer came from a fresh translation made after `any` was read.
    pub(crate) fn renew(&self, deps: Vec<Dep>, any: u64) {
        self.deps.store(deps);
        self.validated.store(any, Relaxed);
    }
    /// Whether a packet with this key is the entry's.
    #[inline]
    pub(crate) fn matches(&self, key: &FlowKey) -> bool {
        self.tuple.of(key).zip(self.words.iter()).all(|(a, b)| a == *b)
    }
    /// The masked key, in full.
    pub(crate) fn key(&self) -> FlowKey {
        let mut key = FlowKey::default();
        for (&(i, _), w) in self.tuple.words.iter().zip(self.words.iter()) {
            if let Some(dst) = key.words_mut().get_mut(usize::from(i)) {
                *dst = *w;
            }
        }
        key
    }
    /// Whether a translation of this entry's key says the same as it does.
    pub(crate) fn agrees(&self, mask: &FlowMask, actions: &[Action]) -> bool {
        self.tuple.mask.contains(mask) && *self.actions == *actions
    }
    /// Counts a run of packets. Owner only.
    #[inline]
    pub(crate) fn count(&self, packets: u64, bytes: u64, now_ms: u64, tcp_flags: u16) {
        self.packets.add(packets);
        self.bytes.add(bytes);
        self.used_ms.set(now_ms);
        self.tcp_flags.set(self.tcp_flags.get() | u64::from(tcp_flags));
    }
}

/// From a worker to the sweeper: an entry is new, or was re-translated with the same outcome.
pub(crate) struct Handover {
    pub(crate) entry: Arc<Entry>,
    pub(crate) slot: u32,
    pub(crate) credits: Vec<Arc<dyn Credit>>,
    /// [`Generations::any`] as it was before the translation.
    pub(crate) any: u64,
    /// Counts up to which the earlier credits (if any) are due.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}
