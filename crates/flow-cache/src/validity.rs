//! Whether a cached entry is still valid although rules have changed.
//!
//! **Problem.** A thousand rules change in a second beside fifty thousand flows, and none of the changes
//! concerns any of the flows. To find that out for each flow takes fifty million comparisons a second.
//!
//! **Shape.** Entries share a [`ValidityGroup`] if they have the same mask, and their translations looked
//! into the same tables and saw the same registers there. The group does the part of the comparison that is
//! the same for all its entries:
//!
//! 1. The group reads the new records in the logs of its tables ([`heddle_datapath_api::changes`]).
//! 2. The group leaves out a change that cannot concern any of its entries.
//! 3. The group keeps a [`RuleChange`] of any other change: the bits of the changed rule that are in the
//!    mask, and their values.
//!
//! An entry has a stamp, the number of the last change that it was compared with. At its next use it is
//! compared with the later changes. If a change agrees with its key, the entry is translated again. Mostly
//! one word of the key is enough to exclude a change.
//!
//! **In doubt** an entry is translated again. A change without bits concerns all keys. It stands for a change
//! with no bit in the mask, or a change that a log has forgotten. It also stands for a change without a log
//! (of an address, a port).
//!
//! **Bounds.** A group keeps [`MAX_GROUP_CHANGES`] changes. An entry that has missed more is translated
//! again, which by then costs no more. All groups together keep [`MAX_CHANGES`] changes. They take in
//! [`TAKEN_IN_CHANGES`] changes per burst, so that a worker that returns to old flows does not stall. There
//! are [`MAX_GROUPS`] groups. An entry beyond has none, and is translated again when any of its dependencies
//! changes.
//!
//! **Threads.** The groups belong to one worker.

use crate::compact::{CompactKey, CompactMask};
use crate::entry::Membership;
use crate::hash::Mixer;
use hashbrown::HashTable;
use heddle_classifier::MiniMatch;
use heddle_datapath_api::changes::{KnownBits, constants, unknown};
use heddle_datapath_api::{Dep, Generations, Override};
use heddle_flow::FlowMask;
use std::collections::VecDeque;
use std::hash::Hasher;

/// The number of an entry without a group.
pub(crate) const NONE: u16 = 0;
/// Maximum number of groups of a worker.
const MAX_GROUPS: usize = 2048;
/// The entries of one port may begin one part in this number of all groups. Otherwise one sender that makes
/// up registers could use up all of them.
const PORTS: usize = 4;
/// Maximum number of changes of a group, and of comparisons of an entry.
const MAX_GROUP_CHANGES: usize = 256;
/// Maximum number of changes in all groups: some 8 MiB.
const MAX_CHANGES: usize = 1 << 16;
/// Maximum number of changes that all groups together take in per burst.
const TAKEN_IN_CHANGES: usize = 2048;
/// The stamp of an entry that is not known to be valid.
const NEVER: u32 = 0;
/// The end of the numbers of changes: a group that reaches it is given up.
const WORN: u32 = u32::MAX;

/// The words of a compact key have numbers from 0 on, the words of the full key from this one on. The full
/// key serves only for fields that the compact key has no room for.
pub(crate) const CONTEXT_WORDS: u8 = 8;

/// Bits of one word of a key, with their values.
#[derive(Clone, Copy, Default)]
struct Word {
    /// The index of the word.
    at: u8,
    bits: u64,
    value: u64,
}

/// The bits and values of keys that a change concerns.
#[derive(Default)]
struct ChangedWords {
    /// The word with the most bits, which mostly decides. If it has no bits, the change concerns all keys.
    first: Word,
    rest: Box<[Word]>,
}

/// A change of a rule that may concern entries of a group.
struct RuleChange {
    number: u32,
    words: ChangedWords,
}

impl RuleChange {
    #[inline]
    fn is_about(&self, key: &impl Fn(usize) -> u64) -> bool {
        let same = |w: &Word| (key(usize::from(w.at)) ^ w.value) & w.bits == 0;
        same(&self.words.first) && self.words.rest.iter().all(same)
    }
}

/// A group's last changes.
struct RuleChanges {
    kept: VecDeque<RuleChange>,
    /// The number of the last change.
    last: u32,
    /// The number of the last change that was dropped. Entries with smaller stamps cannot be compared.
    forgotten: u32,
}

impl RuleChanges {
    /// Adds a change; `in_all` counts the changes of all groups.
    fn add(&mut self, words: ChangedWords, in_all: &mut usize) {
        self.last = self.last.saturating_add(1);
        if self.last == WORN {
            self.forgotten = WORN;
            return;
        }
        let number = self.last;
        self.kept.push_back(RuleChange { number, words });
        *in_all += 1;
        if self.kept.len() > MAX_GROUP_CHANGES || *in_all > MAX_CHANGES {
            self.forgotten = self.kept.pop_front().map_or(number, |change| change.number);
            *in_all -= 1;
        }
    }
}

/// The membership of an entry without a group: there are too many groups.
const NO_MEMBER: Membership = Membership {
    group: NONE,
    stamp: NEVER,
};

/// The properties that entries of one group share, and the port of the entry at hand.
#[derive(Clone, Copy)]
pub(crate) struct Under<'a> {
    /// The number of their mask.
    pub(crate) subtable: u32,
    pub(crate) mask: &'a FlowMask,
    /// The input port of the entry at hand.
    pub(crate) in_port: u32,
    /// Whether their compact keys have the shape of IPv6.
    pub(crate) v6: bool,
    /// The bits outside of compact keys that differ between entries. Any other bit that compact keys have no
    /// room for is equal in all packets.
    pub(crate) context_mask: &'static FlowMask,
}

/// A group of entries that are checked together; the module's text explains it.
struct ValidityGroup {
    /// The value of [`Generations::any`] up to which changes are known.
    any: u64,
    changes: RuleChanges,
    subtable: u32,
    /// Port of the first entry.
    in_port: u32,
    slots: Box<[u16]>,
    /// The generation of each slot up to which changes are known.
    seen: Box<[u64]>,
    overrides: Box<[Override]>,
    fingerprint: u64,
    users: u32,
    /// The packets at the first lookup.
    scope: Box<Scope>,
}

impl ValidityGroup {
    fn new(deps: &[Dep], overrides: &[Override], under: Under<'_>, fingerprint: u64) -> Self {
        Self {
            any: 0,
            changes: RuleChanges {
                kept: VecDeque::new(),
                last: NEVER + 1,
                forgotten: NEVER + 1,
            },
            subtable: under.subtable,
            in_port: under.in_port,
            slots: deps.iter().map(|d| d.slot).collect(),
            seen: deps.iter().map(|d| d.generation).collect(),
            overrides: overrides.into(),
            fingerprint,
            users: 1,
            scope: Box::new(Scope::new(under)),
        }
    }
    /// Takes in at most `takes_in` changes of the logs.
    fn catch_up(&mut self, generations: &Generations, takes_in: &mut usize, in_all: &mut usize) {
        let now = |slot: u16| generations.read(slot).generation;
        if self
            .slots
            .iter()
            .zip(&self.seen)
            .all(|(slot, seen)| now(*slot) == *seen)
        {
            return;
        }
        let mut scope = self.scope.clone();
        let (changes, mut overrides) = (&mut self.changes, self.overrides.iter().peekable());
        for ((at, slot), seen) in (0_u16..).zip(&self.slots).zip(&mut self.seen) {
            while let Some(o) = overrides.next_if(|o| o.from <= at) {
                scope.apply(o);
            }
            let (before, now) = (*seen, now(*slot));
            *seen = now;
            if before == now {
                continue;
            }
            let told = generations.changed(*slot, before, now, &mut |m| {
                let goes_on = *takes_in > 0;
                *takes_in = takes_in.saturating_sub(1);
                if goes_on && !scope.known.excludes(m) {
                    changes.add(scope.words(m), in_all);
                }
                goes_on
            });
            if !told {
                // A change without bits: the entry may miss a change.
                changes.add(ChangedWords::default(), in_all);
            }
        }
    }
}

/// A worker's groups, by number.
pub(crate) struct ValidityGroups {
    all: Vec<ValidityGroup>,
    free: Vec<u16>,
    index: HashTable<u16>,
    /// The group that `enter` returned last, while it is in the index.
    last: u16,
    n_changes: usize,
    /// ValidityGroups by port of their first entries.
    of_port: Vec<usize>,
    /// The number of changes that this burst may still take in.
    takes_in: usize,
}

impl ValidityGroups {
    pub(crate) fn new() -> Self {
        let mut groups = Self {
            all: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            last: NONE,
            n_changes: 0,
            of_port: Vec::new(),
            takes_in: TAKEN_IN_CHANGES,
        };
        // Number 0 is `NONE`: no entry has this group.
        let nothing = Under {
            subtable: 0,
            in_port: 0,
            mask: &FlowMask::default(),
            v6: false,
            context_mask: constants(),
        };
        groups.all.push(ValidityGroup::new(&[], &[], nothing, 0));
        groups
    }
    /// Begins another burst.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.takes_in = TAKEN_IN_CHANGES;
    }

    /// Puts an entry under the group for these dependencies and overrides; under [`NONE`] if there are too
    /// many groups. `None`: the translation is older than the changes that the group knows, so it must not be
    /// used.
    pub(crate) fn enter(
        &mut self,
        deps: &[Dep],
        overrides: &[Override],
        under: Under<'_>,
    ) -> Option<Membership> {
        let is = |w: &ValidityGroup| {
            w.subtable == under.subtable
                && *w.overrides == *overrides
                && w.slots.iter().eq(deps.iter().map(|d| &d.slot))
        };
        let (all, index) = (&self.all, &self.index);
        let at = |n: u16| &all[usize::from(n)];
        // Many entries in a row mostly have the same group.
        let last = (self.last != NONE && is(at(self.last))).then_some(self.last);
        let print = last.map_or_else(|| fingerprint(deps, overrides, under.subtable), |_| 0);
        let same = |n: &u16| at(*n).fingerprint == print && is(at(*n));
        if let Some(n) = last.or_else(|| index.find(print, same).copied()) {
            self.last = n;
            let w = &mut self.all[usize::from(n)];
            if deps.iter().zip(&w.seen).any(|(d, seen)| d.generation < *seen) {
                return None;
            }
            w.users += 1;
            return Some(Membership {
                group: n,
                stamp: w.changes.last,
            });
        }
        let port = under.in_port as usize;
        if self.of_port.len() <= port {
            self.of_port.resize(port + 1, 0);
        }
        if self.of_port[port] >= MAX_GROUPS / PORTS {
            return Some(NO_MEMBER);
        }
        let group = ValidityGroup::new(deps, overrides, under, print);
        let stamp = group.changes.last;
        let n = match self.free.pop() {
            Some(n) => {
                self.all[usize::from(n)] = group;
                n
            }
            None if self.all.len() > MAX_GROUPS => return Some(NO_MEMBER),
            None => {
                self.all.push(group);
                u16::try_from(self.all.len() - 1).expect("MAX_GROUPS is less than 2^16")
            }
        };
        self.of_port[port] += 1;
        let all = &self.all;
        self.index
            .insert_unique(print, n, |n| all[usize::from(*n)].fingerprint);
        Some(Membership { group: n, stamp })
    }
    /// Takes an entry out of its group.
    pub(crate) fn leave(&mut self, n: u16) {
        if n == NONE {
            return;
        }
        let w = &mut self.all[usize::from(n)];
        w.users -= 1;
        if w.users == 0 {
            self.n_changes -= std::mem::take(&mut w.changes.kept).len();
            self.of_port[w.in_port as usize] -= 1;
            self.unlist(n);
            self.free.push(n);
        }
    }
    fn unlist(&mut self, n: u16) {
        if self.last == n {
            self.last = NONE;
        }
        let print = self.all[usize::from(n)].fingerprint;
        if let Ok(found) = self.index.find_entry(print, |m| *m == n) {
            found.remove();
        }
    }

    /// Whether an entry is known to be valid at `any`. `false`: the caller has to call
    /// [`ValidityGroups::look`].
    #[inline]
    pub(crate) fn holds(&self, entry: Membership, any: u64) -> bool {
        let w = self.all.get(usize::from(entry.group));
        w.is_some_and(|w| w.any == any && w.changes.last == entry.stamp)
    }
    /// Checks an entry that was valid at its stamp. `key` returns the words of its key, and `any` was read
    /// before. Returns its new stamp, or `None` if the entry may be stale.
    #[inline]
    pub(crate) fn look(
        &mut self,
        Membership { group, stamp }: Membership,
        any: u64,
        generations: &Generations,
        key: impl Fn(usize) -> u64,
    ) -> Option<u32> {
        if self.all.get(usize::from(group))?.any != any {
            self.catch_up(group, any, generations);
        }
        let changes = &self.all.get(usize::from(group))?.changes;
        let mut later = changes
            .kept
            .iter()
            .rev()
            .take_while(|change| change.number > stamp);
        (stamp >= changes.forgotten && !later.any(|change| change.is_about(&key))).then_some(changes.last)
    }

    /// Takes in the changes since the last call.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self, n: u16, any: u64, generations: &Generations) {
        let w = &mut self.all[usize::from(n)];
        w.catch_up(generations, &mut self.takes_in, &mut self.n_changes);
        w.any = any;
        if w.changes.last == WORN {
            // The entries are translated again, and get another group.
            self.unlist(n);
        }
    }
}

/// The packets of a group's entries, as a lookup sees them.
#[derive(Clone)]
struct Scope {
    /// The bits that are equal in all of them, and their values.
    known: KnownBits,
    /// The bits that each entry has a value of its own for.
    own: FlowMask,
    v6: bool,
    context_mask: &'static FlowMask,
}

impl Scope {
    /// At the beginning of a translation.
    fn new(under: Under<'_>) -> Self {
        // All packets have the values there that the expansion of any key has.
        let mut fixed = CompactMask::beyond(under.mask);
        clear(&mut fixed, under.context_mask);
        let mut own = *under.mask;
        // The origin is unknown: entries of several origins may share a group.
        (fixed.0.recirc_id, own.0.recirc_id) = (0, 0);
        for not in [&fixed, constants(), unknown()] {
            clear(&mut own, not);
        }
        Self {
            known: KnownBits::new(&CompactKey::of_family(under.v6).expand(&fixed), &fixed),
            own,
            v6: under.v6,
            context_mask: under.context_mask,
        }
    }
    /// Applies an override, to describe the packets at a later lookup.
    fn apply(&mut self, o: &Override) {
        self.known.apply(o);
        if o.changed
            && let Some(w) = self.own.words_mut().get_mut(usize::from(o.word))
        {
            *w = 0;
        }
    }
    /// The words of keys that a change concerns, the word with the most bits first.
    fn words(&self, m: &MiniMatch) -> ChangedWords {
        let (mut words, mut mask, mut value) = (Vec::new(), FlowMask::default(), FlowMask::default());
        for ((i, bits), v) in m.mask.words().iter().zip(m.values.iter()) {
            let at = usize::from(*i);
            let (bits, context) = (bits & self.own.words()[at], self.context_mask.words()[at]);
            words.push(Word {
                at: i + CONTEXT_WORDS,
                bits: bits & context,
                value: *v,
            });
            (mask.words_mut()[at], value.words_mut()[at]) = (bits & !context, v & bits & !context);
        }
        let compact = |fields: &FlowMask| *CompactMask::of_fields(fields, self.v6).words();
        let compact = compact(&mask).into_iter().zip(compact(&value));
        words.extend(
            (0..)
                .zip(compact)
                .map(|(at, (bits, value))| Word { at, bits, value }),
        );
        words.retain(|w| w.bits != 0);
        words.sort_by_key(|w| std::cmp::Reverse(w.bits.count_ones()));
        let mut words = words.into_iter();
        ChangedWords {
            first: words.next().unwrap_or_default(),
            rest: words.collect(),
        }
    }
}

fn clear(mask: &mut FlowMask, bits: &FlowMask) {
    let words = mask.words_mut().iter_mut().zip(bits.words());
    words.for_each(|(w, bits)| *w &= !bits);
}

fn fingerprint(deps: &[Dep], overrides: &[Override], subtable: u32) -> u64 {
    let mut h = Mixer::new(subtable.into());
    deps.iter().for_each(|d| h.write_u16(d.slot));
    for o in overrides {
        h.write_u64(u64::from(o.from) << 16 | u64::from(o.word) << 1 | u64::from(o.changed));
        h.write_u64(o.value);
    }
    h.finish()
}

#[cfg(test)]
mod tests;
