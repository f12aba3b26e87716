//! The log of recent changes of a table. It saves translating cached flows again that a changed rule does not
//! concern.
//!
//! **Shape.** A [`Log`] is a ring. For each of a table's last [`KEPT`] generations it has the matches of the
//! rules that came, went or were changed with it.
//!
//! **Changes that do not matter.** A changed rule does not concern a cached translation if a known bit
//! contradicts its match. The bit must be the same in all packets of the translation at the lookup in that
//! table. These bits are known ([`KnownBits`]):
//!
//! * Fields that start as constants ([`constants`]), which are registers, metadata, the OpenFlow input port:
//!   the translation has their values at each lookup ([`Override`]).
//! * Fields of the packet: the bits of the entry's mask. If an action has changed a word before the
//!   lookup, nothing of that word.
//! * Fields that lookups themselves set (conjunctions): nothing.
//!
//! The safe error is to think that a change matters: that costs a translation.
//! [`Generations::outlasts`](crate::Generations::outlasts) does this in a few lines. Workers do the
//! same for many entries at once (`flow-cache/src/validity.rs`).
//!
//! **Threads.** Any number of writers and readers, without locks: a worker that learns a flow is a writer.
//! Each writer draws a generation of its own, stores its record, and then lifts the generation that readers
//! see to its own at least. So writers may overtake each other. A reader of a generation sees the changes of
//! all that were drawn before. It finds either their records or no record. If a reader does not find the
//! record of a generation (not there yet, overwritten, or not given), anything may have changed.

use crate::atomic::AtomicU64;
use arc_swap::ArcSwapOption;
use heddle_classifier::MiniMatch;
use heddle_flow::key::FIRST_WORD;
use heddle_flow::{FlowKey, FlowMask, Match};
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, LazyLock};

/// The generation of all things at first.
pub(crate) const FIRST: u64 = 1;
/// Generations that are remembered.
const KEPT: u64 = 1024;
/// Maximum number of matches in one record. More are merged into the bits that they have in common.
const MAX_LISTED: usize = 64;

/// A word of the key that a lookup saw other than the entry's key has it. It holds from the dependency `from`
/// on, until another override of the same word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Override {
    /// Index in [`crate::Translation::deps`].
    pub from: u16,
    /// Index of the word in the key.
    pub word: u8,
    /// Actions have changed what the packet brought, so that the entry's mask shows nothing of it.
    pub changed: bool,
    /// The word's value; only its bits in [`constants`] are used.
    pub value: u64,
}

/// The bits of a key that are the same constants for all packets when a translation begins. They are zero,
/// except for the input port: a translation has an [`Override`] with its value.
pub fn constants() -> &'static FlowMask {
    static CONSTANTS: LazyLock<FlowMask> = LazyLock::new(|| {
        FlowMask(FlowKey {
            metadata: u64::MAX,
            regs: [u32::MAX; 16],
            in_port: u32::MAX,
            ..FlowKey::default()
        })
    });
    &CONSTANTS
}

/// Clears all [`constants`] of a key.
pub fn clear_constants(key: &mut FlowKey) {
    (key.metadata, key.regs, key.in_port) = (0, [0; 16], 0);
}

/// Bits that lookups themselves set, or that a translation begins with other values than an entry's key
/// has: never known.
pub fn unknown() -> &'static FlowMask {
    static UNKNOWN: LazyLock<FlowMask> = LazyLock::new(|| {
        FlowMask(FlowKey {
            conj_id: u32::MAX,
            actset_output: u32::MAX,
            ..FlowKey::default()
        })
    });
    &UNKNOWN
}

/// The bits that all packets of a cached translation have in common at a lookup.
#[derive(Clone, Copy)]
pub struct KnownBits {
    key: FlowKey,
    mask: FlowMask,
}

impl KnownBits {
    /// At the beginning: all packets agree with `key` in the bits of `mask`.
    pub fn new(key: &FlowKey, mask: &FlowMask) -> Self {
        let mut known = Self {
            key: *key,
            mask: *mask,
        };
        // Tunnel options have no bits in either mask.
        let (constants, unknown) = (
            &constants().words()[FIRST_WORD..],
            &unknown().words()[FIRST_WORD..],
        );
        let keys = known.key.words_mut()[FIRST_WORD..].iter_mut();
        let words = keys.zip(&mut known.mask.words_mut()[FIRST_WORD..]);
        for ((k, m), (c, u)) in words.zip(constants.iter().zip(unknown)) {
            *k &= !c;
            *m = (*m | c) & !u;
        }
        // The input port is known from the first override: a datapath port number is not an OpenFlow port
        // number.
        known.mask.0.in_port = 0;
        known
    }
    /// Changes them to the bits that a later lookup saw.
    pub fn apply(&mut self, o: &Override) {
        let at = usize::from(o.word);
        let (Some(c), Some(u)) = (constants().words().get(at), unknown().words().get(at)) else {
            return;
        };
        if let Some(k) = self.key.words_mut().get_mut(at) {
            *k = *k & !c | o.value & c;
        }
        if let Some(m) = self.mask.words_mut().get_mut(at) {
            *m = if o.changed { *c } else { *m | c } & !u;
        }
    }
    /// Whether a rule with this match has nothing to do with any of the packets.
    pub fn excludes(&self, m: &MiniMatch) -> bool {
        let (key, mask) = (self.key.words(), self.mask.words());
        let mut words = m.mask.words().iter().zip(m.values.iter());
        words.any(|((i, m), v)| {
            let known = key.get(usize::from(*i)).zip(mask.get(usize::from(*i)));
            known.is_some_and(|(k, n)| (k ^ v) & m & n != 0)
        })
    }
}

/// Matches of rules that change together.
#[derive(Clone, Debug, Default)]
pub struct Changes(Vec<MiniMatch>);

impl Changes {
    /// A rule with this match comes, goes, or changes its actions.
    pub fn add(&mut self, m: &MiniMatch) {
        self.0.push(m.clone());
        if self.0.len() > MAX_LISTED {
            self.0 = vec![in_common(&self.0)];
        }
    }
    /// A change that may concern any packet.
    pub fn anything() -> Self {
        Self(vec![MiniMatch::default()])
    }
}

/// The bits that all of them match, with the same values.
fn in_common(list: &[MiniMatch]) -> MiniMatch {
    let mut common = Match::default();
    if let Some((first, others)) = list.split_first() {
        for ((i, mask), value) in first.mask.words().iter().zip(first.values.iter()) {
            let meet = |bits, other: &MiniMatch| {
                let (m, v) = other.word(*i);
                bits & m & !(value ^ v)
            };
            let bits = others.iter().fold(*mask, meet);
            common.mask.words_mut()[usize::from(*i)] = bits;
            common.key.words_mut()[usize::from(*i)] = value & bits;
        }
    }
    MiniMatch::new(&common)
}

/// The rules that changed with one generation.
#[derive(Debug)]
struct Record {
    generation: u64,
    changes: Changes,
}

/// The log of one table; the module's text explains it.
pub(crate) struct Log {
    records: Box<[ArcSwapOption<Record>]>,
    /// The last generation that a writer has drawn.
    pub(crate) drawn: AtomicU64,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            records: (0..KEPT).map(|_| ArcSwapOption::empty()).collect(),
            drawn: AtomicU64::new(FIRST),
        }
    }
}

impl Log {
    /// Notes what has changed; `lift` makes the generation that readers see at least as high as its argument.
    pub(crate) fn write(&self, changes: Changes, lift: impl FnOnce(u64)) {
        // Release: a writer that draws a later one (Acquire) has this writer's change behind it, and so has
        // a reader that sees the later generation.
        let generation = self.drawn.fetch_add(1, AcqRel) + 1;
        if let Some(at) = self.place(generation) {
            at.store(Some(Arc::new(Record { generation, changes })));
        }
        // After the record: a reader that sees this generation, and no later one, finds the record.
        lift(generation);
    }
    fn place(&self, generation: u64) -> Option<&ArcSwapOption<Record>> {
        self.records.get(usize::try_from(generation % KEPT).ok()?)
    }
    /// Gives `f` the matches that changed after generation `from`, up to `to`, while it returns `true`.
    /// `false`: `f` did not get all.
    pub(crate) fn visit(&self, from: u64, to: u64, f: &mut dyn FnMut(&MiniMatch) -> bool) -> bool {
        to.saturating_sub(from) <= KEPT
            && (from + 1..=to).all(|generation| {
                let record = self.place(generation).map(ArcSwapOption::load);
                let record = record.as_ref().and_then(|r| r.as_ref());
                record.is_some_and(|r| r.generation == generation && r.changes.0.iter().all(&mut *f))
            })
    }
}

#[cfg(all(test, not(loom)))]
#[path = "changes/tests.rs"] // the model checker includes this file from elsewhere
mod tests;
