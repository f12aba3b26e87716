//! What has changed in a table lately: so that a cached answer need not be found anew because of rules that have nothing to do with it.
//!
//! **Problem.** One generation per table makes each change of a rule a doubt about every flow that passed through the table. Most
//! changes are about other packets. To see that costs a comparison; to translate again costs a hundred.
//!
//! **Shape.** A [`Log`] keeps, for each of a table's last [`KEPT`] generations, the matches of the rules that came, went or were changed
//! with it, and what all of them have in common. Of sixteen generations in a row it keeps what those have in common, so that a flow that
//! nobody looked at for a while passes by them in one step. Of the last [`SPAN`] or fewer it keeps what they have in common, too: changes that
//! come quickly one after the other are mostly alike.
//!
//! **When a change does not matter** to a cached answer: all packets that the answer is for have, where they are looked up in that table, in
//! one bit another value than the changed rule asks for. Of such packets is known ([`Known`]):
//!
//! * the fields that start as constants ([`constants`]: registers, metadata, the OpenFlow input port): the translation says what they were
//!   at each lookup ([`Override`]);
//! * of what comes from the packet: the bits of the entry's mask, unless an action has changed something in their word before the lookup;
//! * nothing of fields that lookups themselves set (conjunctions).
//!
//! The safe error is to think that a change matters: that costs a translation.
//!
//! **Threads.** One writer at a time (a mutex), any number of readers without locks. A record is stored before the generation is counted
//! up; a reader that finds none of the generation that it looks for (overwritten, or not given) takes it that anything may have changed.

use arc_swap::ArcSwapOption;
use heddle_classifier::MiniMatch;
use heddle_flow::key::FIRST_WORD;
use heddle_flow::{FlowKey, FlowMask};
use parking_lot::Mutex;
use std::sync::{Arc, LazyLock};

/// Generations that are remembered.
const KEPT: u64 = 1024;
/// Generations that are summed up.
const BLOCK: u64 = 16;
/// Generations in a row up to the last one that are summed up.
const SPAN: u64 = 256;
/// Matches that one generation lists; of more, only what they have in common is kept.
const MAX_LISTED: usize = 64;
/// Comparisons after which it is cheaper to translate.
pub(crate) const PATIENCE: usize = 128;

/// A word of the key that a lookup saw otherwise than the entry's key has it. Holds from the dependency `from` on, until another one about
/// the same word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Override {
    /// Index in [`crate::Translation::deps`].
    pub from: u16,
    /// Which word of the key.
    pub word: u8,
    /// Actions have changed what the packet brought, so that the entry's mask says nothing of it.
    pub changed: bool,
    /// The word; only [`constants`] count.
    pub value: u64,
}

/// The bits of a key that are the same constants for all packets when a translation begins, whatever the packet: zero, but for the input
/// port, of which a translation must say what it is.
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

/// Bits that lookups themselves set, or that a translation begins with other values than an entry's key has: never known.
fn unknown() -> &'static FlowMask {
    static UNKNOWN: LazyLock<FlowMask> = LazyLock::new(|| {
        FlowMask(FlowKey {
            conj_id: u32::MAX,
            actset_output: u32::MAX,
            ..FlowKey::default()
        })
    });
    &UNKNOWN
}

/// What all packets of a cached answer have in common at a lookup.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    key: FlowKey,
    mask: FlowMask,
}

impl Known {
    /// At the beginning: all packets agree with `key` in the bits of `mask`.
    pub(crate) fn new(key: &FlowKey, mask: &FlowMask) -> Self {
        let mut known = Self {
            key: *key,
            mask: *mask,
        };
        // Neither is about options of tunnels.
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
        // Nothing is known of it until it is said: a datapath port is no OpenFlow port.
        known.mask.0.in_port = 0;
        known
    }
    /// As a later lookup saw them.
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
    /// Whether none of the packets has these bits.
    fn excludes<'a>(&self, bits: impl Iterator<Item = (usize, &'a u64, &'a u64)>) -> bool {
        let (key, mask) = (self.key.words(), self.mask.words());
        bits.into_iter().any(|(i, m, v)| {
            key.get(i)
                .zip(mask.get(i))
                .is_some_and(|(k, n)| (k ^ v) & m & n != 0)
        })
    }
    /// Whether a change has nothing to do with any of the packets.
    pub(crate) fn passes(&self, c: Changed<'_>) -> bool {
        match c {
            Changed::Rule(m) => self.excludes_match(m),
            Changed::Rules(c) => self.excludes_common(c),
        }
    }
    fn excludes_match(&self, m: &MiniMatch) -> bool {
        let words = m.mask.words().iter().zip(m.values.iter());
        self.excludes(words.map(|((i, m), v)| (usize::from(*i), m, v)))
    }
    fn excludes_common(&self, c: &Common) -> bool {
        self.excludes(c.0.iter().map(|(i, m, v)| (usize::from(*i), m, v)))
    }
}

/// Bits that several matches all ask for, with the same values: word, bits, values. None: anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common(Vec<(u8, u64, u64)>);

/// One thing that a log tells.
#[derive(Clone, Copy)]
pub(crate) enum Changed<'a> {
    /// A rule with this match came, went or does something else.
    Rule(&'a MiniMatch),
    /// Rules that have this in common did.
    Rules(&'a Common),
}

impl Changed<'_> {
    /// The bits that it asks for: word, mask, value.
    pub(crate) fn each(self, mut f: impl FnMut(usize, u64, u64)) {
        match self {
            Self::Rule(m) => {
                let words = m.mask.words().iter().zip(m.values.iter());
                words.for_each(|((i, m), v)| f(usize::from(*i), *m, *v));
            }
            Self::Rules(c) => c.0.iter().for_each(|(i, m, v)| f(usize::from(*i), *m, *v)),
        }
    }
}

impl Common {
    fn of(m: &MiniMatch) -> Self {
        let words = m.mask.words().iter().zip(m.values.iter());
        Self(words.map(|((i, m), v)| (*i, *m, *v)).collect())
    }
    /// What it has in common with bits that `other` gives for a word.
    fn meet(&mut self, other: impl Fn(u8) -> Option<(u64, u64)>) {
        self.0.retain_mut(|(i, mask, value)| {
            let Some((m, v)) = other(*i) else { return false };
            *mask &= m & !(*value ^ v);
            *value &= *mask;
            *mask != 0
        });
    }
    fn meet_match(&mut self, m: &MiniMatch) {
        self.meet(|i| {
            let at = m.mask.words().binary_search_by_key(&i, |(w, _)| *w).ok()?;
            Some((m.mask.words().get(at)?.1, *m.values.get(at)?))
        });
    }
    fn meet_common(&mut self, c: &Common) {
        self.meet(|i| c.0.iter().find(|(w, _, _)| *w == i).map(|(_, m, v)| (*m, *v)));
    }
}

/// Matches of rules that change together.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    common: Option<Common>,
    listed: Vec<MiniMatch>,
    /// More than are listed, or something that is no rule.
    more: bool,
}

impl Changes {
    /// A rule with this match comes, goes, or does something else.
    pub fn add(&mut self, m: &MiniMatch) {
        match &mut self.common {
            None => self.common = Some(Common::of(m)),
            Some(c) => c.meet_match(m),
        }
        if self.listed.len() < MAX_LISTED {
            self.listed.push(m.clone());
        } else {
            self.more = true;
            self.listed = Vec::new();
        }
    }
    /// Anything may be different.
    pub fn anything() -> Self {
        Self {
            common: Some(Common::default()),
            listed: Vec::new(),
            more: true,
        }
    }
}

/// What changed with one generation, or with several in a row.
#[derive(Debug)]
struct Record {
    generation: u64,
    common: Common,
    /// `None`: only what they have in common is known.
    listed: Option<Box<[MiniMatch]>>,
}

/// What the generations from `first` to `last` have in common.
#[derive(Debug)]
struct Span {
    first: u64,
    last: u64,
    common: Common,
}

/// See the module's text.
pub(crate) struct Log {
    records: Box<[ArcSwapOption<Record>]>,
    blocks: Box<[ArcSwapOption<Record>]>,
    recent: ArcSwapOption<Span>,
    /// What the block that is not full yet has in common, from its first generation on.
    block: Mutex<Option<(u64, Common)>>,
}

fn place(list: &[ArcSwapOption<Record>], n: u64) -> Option<&ArcSwapOption<Record>> {
    list.get(usize::try_from(n % list.len() as u64).ok()?)
}

impl Default for Log {
    fn default() -> Self {
        let empty = |n: u64| (0..n).map(|_| ArcSwapOption::empty()).collect();
        Self {
            records: empty(KEPT),
            blocks: empty(KEPT / BLOCK),
            recent: ArcSwapOption::empty(),
            block: Mutex::new(None),
        }
    }
}

impl Log {
    /// Notes what changes with the generation that `count_up` will bring; `current` gives the one before. Only the holder of this log
    /// counts up.
    pub(crate) fn write(&self, changes: Changes, current: impl FnOnce() -> u64, count_up: impl FnOnce()) {
        let mut block = self.block.lock();
        let generation = current() + 1;
        let common = changes.common.unwrap_or_default();
        let sum = match block.take() {
            _ if generation.is_multiple_of(BLOCK) => Some((generation, common.clone())),
            Some((first, mut sum)) => {
                sum.meet_common(&common);
                Some((first, sum))
            }
            // Began in the middle of a block: that one has no sum.
            None => None,
        };
        if let Some((first, sum)) = &sum
            && generation == first + BLOCK - 1
            && let Some(at) = place(&self.blocks, first / BLOCK)
        {
            at.store(Some(Arc::new(Record {
                generation: first / BLOCK,
                common: sum.clone(),
                listed: None,
            })));
        }
        *block = sum;
        self.recent.store(Some(Arc::new(self.span(generation, &common))));
        if let Some(at) = place(&self.records, generation) {
            at.store(Some(Arc::new(Record {
                generation,
                common,
                listed: (!changes.more).then(|| changes.listed.into()),
            })));
        }
        // After the records: who sees the generation sees them.
        count_up();
    }

    /// What is in common up to this generation, which comes next.
    fn span(&self, generation: u64, common: &Common) -> Span {
        if let Some(before) = self.recent.load().as_ref()
            && before.last + 1 == generation
            && generation - before.first < SPAN
        {
            let mut met = before.common.clone();
            met.meet_common(common);
            // Nothing in common would help nobody.
            if !met.0.is_empty() {
                return Span {
                    first: before.first,
                    last: generation,
                    common: met,
                };
            }
        }
        Span {
            first: generation,
            last: generation,
            common: common.clone(),
        }
    }

    /// Tells what changed after generation `from`, up to `to`, until `f` says that it need not know more. `false`: not all was told.
    pub(crate) fn tell(&self, from: u64, to: u64, f: &mut dyn FnMut(Changed<'_>) -> bool) -> bool {
        to.saturating_sub(from) <= KEPT
            && (from + 1..=to).all(|generation| {
                let record = place(&self.records, generation).map(|at| at.load());
                let record = record.as_ref().and_then(|r| r.as_ref());
                let Some(r) = record.filter(|r| r.generation == generation) else {
                    return false;
                };
                match &r.listed {
                    Some(listed) => listed.iter().all(|m| f(Changed::Rule(m))),
                    None => f(Changed::Rules(&r.common)),
                }
            })
    }

    /// Whether none of what changed after generation `from`, up to `to`, is about these packets. `patience` is counted down by
    /// comparisons.
    pub(crate) fn pass_by(&self, from: u64, to: u64, known: &Known, patience: &mut usize) -> bool {
        if to.saturating_sub(from) > KEPT {
            return false;
        }
        // It may be about later changes, too; the safe error.
        if self
            .recent
            .load()
            .as_ref()
            .is_some_and(|s| s.first <= from + 1 && to <= s.last && known.excludes_common(&s.common))
        {
            return true;
        }
        let mut next = from + 1;
        while next <= to {
            if *patience == 0 {
                return false;
            }
            *patience -= 1;
            if next.is_multiple_of(BLOCK)
                && next + BLOCK - 1 <= to
                && let Some(at) = place(&self.blocks, next / BLOCK)
                && at
                    .load()
                    .as_ref()
                    .is_some_and(|b| b.generation == next / BLOCK && known.excludes_common(&b.common))
            {
                next += BLOCK;
                continue;
            }
            let Some(at) = place(&self.records, next) else {
                return false;
            };
            let record = at.load();
            let Some(r) = record.as_ref().filter(|r| r.generation == next) else {
                return false;
            };
            if !known.excludes_common(&r.common) {
                let Some(listed) = &r.listed else { return false };
                *patience = patience.saturating_sub(listed.len());
                if !listed.iter().all(|m| known.excludes_match(m)) {
                    return false;
                }
            }
            next += 1;
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
