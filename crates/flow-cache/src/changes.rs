//! A log of recent changes in a table. It saves the translation of entries that the changed rules do not
//! concern.
//!
//! **Shape.** A [`Log`] is a ring. For each of a table's last [`KEPT`] generations it has the matches of the
//! rules that came, went or were changed with it.
//!
//! **When a change does not matter.** A cached translation stays valid if all its packets, at the lookup in
//! that table, have one bit that differs from the changed rule's match. This is known of such packets
//! ([`Known`]):
//!
//! * Fields that start as constants ([`constants`]), such as registers, metadata and the OpenFlow input port.
//!   The translation records their values at each lookup ([`Override`]).
//! * Fields of the packet: the bits of the entry's mask. If an action has changed a word before the lookup,
//!   nothing is known of that word.
//! * Fields that lookups themselves set (conjunctions) are never known.
//!
//! The safe error is to take a change as relevant: that costs a translation. [`outlasts`] is the plain form
//! of this rule. Workers apply it to many entries at once ([`crate::watch`]).
//!
//! **Threads.** Any number of writers and readers, without locks: a worker that learns a flow is a writer.
//! Each writer draws a generation of its own, stores its record, and then lifts the generation that readers
//! see to its own at least. So writers may overtake each other. A reader that sees a generation sees the
//! changes of all generations drawn before, and finds either their records or no record. If a reader does not
//! find the record of a generation (not there yet, overwritten, or never written), anything may have changed.

use crate::atomic::AtomicU64;
use crate::generations::{Dep, FIRST, Generations};
use arc_swap::ArcSwapOption;
use heddle_classifier::MiniMatch;
use heddle_flow::key::FIRST_WORD;
use heddle_flow::{FlowKey, FlowMask, Match};
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, LazyLock};

/// The number of generations that a log remembers.
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
    /// Whether an action has changed the word. Then the entry's mask does not apply to it.
    pub changed: bool,
    /// The word's value; only its bits in [`constants`] are used.
    pub value: u64,
}

/// The bits of a key that are constant for all packets when a translation begins. All are zero but the input
/// port, whose value each translation records.
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

/// Bits that are never known: lookups themselves set them, or the translation begins with other values than
/// the entry's key has.
pub(crate) fn unknown() -> &'static FlowMask {
    static UNKNOWN: LazyLock<FlowMask> = LazyLock::new(|| {
        FlowMask(FlowKey {
            conj_id: u32::MAX,
            actset_output: u32::MAX,
            ..FlowKey::default()
        })
    });
    &UNKNOWN
}

/// The bits that are equal for all packets of a cached translation at a lookup, and their values.
#[derive(Clone, Copy)]
pub struct Known {
    key: FlowKey,
    mask: FlowMask,
}

impl Known {
    /// At the beginning of a translation: all packets agree with `key` in the bits of `mask`.
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
        // The input port is unknown until an override sets it: a datapath port is no OpenFlow port.
        known.mask.0.in_port = 0;
        known
    }
    /// Applies an override, to describe the packets at a later lookup.
    pub(crate) fn apply(&mut self, o: &Override) {
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
    /// Whether a rule with this match can match none of the packets.
    pub(crate) fn excludes(&self, m: &MiniMatch) -> bool {
        let (key, mask) = (self.key.words(), self.mask.words());
        let mut words = m.mask.words().iter().zip(m.values.iter());
        words.any(|((i, m), v)| {
            let known = key.get(usize::from(*i)).zip(mask.get(usize::from(*i)));
            known.is_some_and(|(k, n)| (k ^ v) & m & n != 0)
        })
    }
}

/// Whether a translation with these dependencies is still valid for the packets that `known` describes at its
/// beginning. `false` also if the logs are incomplete, or if it would take more than `comparisons`
/// comparisons.
pub(crate) fn outlasts(
    deps: &[Dep],
    overrides: &[Override],
    mut known: Known,
    generations: &Generations,
    mut comparisons: usize,
) -> bool {
    let mut overrides = overrides.iter().peekable();
    (0_u16..).zip(deps).all(|(at, d)| {
        while let Some(o) = overrides.next_if(|o| o.from <= at) {
            known.apply(o);
        }
        let now = generations.read(d.slot).generation;
        let count = usize::try_from(now.saturating_sub(d.generation)).unwrap_or(usize::MAX);
        count == 0
            || count <= comparisons
                && generations.changed(d.slot, d.generation, now, &mut |m| {
                    let goes_on = comparisons > 0;
                    comparisons = comparisons.saturating_sub(1);
                    goes_on && known.excludes(m)
                })
    })
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

/// The bits that all of these matches have, with the same values.
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

/// The changes of one generation.
#[derive(Debug)]
struct Record {
    generation: u64,
    changes: Changes,
}

/// The log of one table; the module's text explains it.
pub(crate) struct Log {
    records: Box<[ArcSwapOption<Record>]>,
    /// The last generation that a writer has drawn.
    drawn: AtomicU64,
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
    /// Records a change. `lift` then raises the generation that readers see to at least its argument.
    pub(crate) fn write(&self, changes: Changes, lift: impl FnOnce(u64)) {
        // Release: a writer that draws a later generation (Acquire), and a reader that sees it, also see this
        // writer's change.
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
    /// Calls `f` with each match that changed after generation `from`, up to `to`, until `f` returns `false`.
    /// Returns `false` if `f` did, or if a record is missing.
    pub(crate) fn tell(&self, from: u64, to: u64, f: &mut dyn FnMut(&MiniMatch) -> bool) -> bool {
        to.saturating_sub(from) <= KEPT
            && (from + 1..=to).all(|generation| {
                let record = self.place(generation).map(ArcSwapOption::load);
                let record = record.as_ref().and_then(|r| r.as_ref());
                record.is_some_and(|r| r.generation == generation && r.changes.0.iter().all(&mut *f))
            })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
