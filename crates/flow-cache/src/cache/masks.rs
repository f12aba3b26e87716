//! Lookup of packets without an exact match, under all masks of their origin.
//!
//! Each mask has a filter ([`crate::filter`]), which rules out most masks in some ten cycles each. The
//! remaining masks are looked up in the table, for all packets side by side. A burst begins with the masks
//! that are hit most often, and doubles the number of masks in each step.

use super::Cache;
use super::find::{Level, Scratch};
use crate::burst::{LookupKeys, Sought};
use crate::filter::CHUNK;
use crate::program_table::Program;
use crate::subtable::Use;

/// Masks that the first step tries: those that are hit most often. Each further step doubles the number.
const FIRST: usize = 4;

/// A mask that may have a run's entry.
#[derive(Debug)]
pub(super) struct Probe {
    run: u16,
    /// Index of the mask among those of this step.
    place: usize,
    /// Hash of the masked key.
    hash: u64,
}

/// At most `n` items of a list, from `at` on.
#[inline]
fn part(list: &[Use], at: usize, n: usize) -> &[Use] {
    let rest = list.get(at..).unwrap_or_default();
    &rest[..n.min(rest.len())]
}

impl<P: Program> Cache<P> {
    /// Hash of a packet's key under a mask.
    #[inline]
    pub(super) fn hash_under(&self, sought: Sought<'_>, subtable: u32) -> Option<u64> {
        let hash = self
            .subtables
            .compact(subtable)?
            .hash(sought.key, &self.key, subtable);
        Some(match sought.context {
            None => hash,
            Some(key) => hash ^ self.contexts.hash(key, self.subtables.context_bits(subtable)),
        })
    }
    /// Filters a list of at most [`CHUNK`] masks. Returns those that may have an entry for a packet: the
    /// index in the list, and the hash of the masked key.
    #[inline(always)]
    fn maybe<'a>(&'a self, sought: Sought<'a>, list: &'a [Use]) -> impl Iterator<Item = (usize, u64)> + 'a {
        let mut bits = self.subtables.maybe(sought.key, list);
        std::iter::from_fn(move || {
            let i = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some((i, self.hash_under(sought, list[i].subtable)?))
        })
    }
    /// The slot of the entry for a packet, if the table has it under `hash`, the hash of the masked key.
    #[inline]
    fn in_table(&self, hash: u64, sought: Sought<'_>) -> Option<u32> {
        self.table.candidates(hash)?.find(|slot| self.is(*slot, sought))
    }

    /// Tries the masks for the runs in `todo`, more masks in each step. It looks up only the masks whose
    /// filters may have a packet's entry.
    pub(super) fn find_wildcarded(&mut self, parsed: &impl LookupKeys, s: &mut Scratch) {
        let (mut at, mut some) = (0, FIRST);
        while !s.todo.is_empty() {
            s.probes.clear();
            for &r in &s.todo {
                let Some(sought) = parsed.sought(r.into()) else {
                    continue;
                };
                let list = part(
                    self.subtables.list(sought.key.origin(), sought.key.family()),
                    at,
                    some,
                );
                for (place, hash) in self.maybe(sought, list) {
                    self.table.prefetch(hash);
                    s.probes.push(Probe { run: r, place, hash });
                }
            }
            if s.probes.len() > 1 {
                for p in &s.probes {
                    if let Some(c) = self.table.candidates(p.hash) {
                        c.for_each(|slot| self.fetch(slot));
                    }
                }
            }
            let (found, mut probes) = (&mut s.found, s.probes.iter().peekable());
            s.todo.retain(|&r| {
                let Some(sought) = parsed.sought(r.into()) else {
                    return false;
                };
                let (origin, family) = (sought.key.origin(), sought.key.family());
                let mut hit = None;
                while let Some(p) = probes.next_if(|p| p.run == r) {
                    if hit.is_none() {
                        hit = self.in_table(p.hash, sought).map(|slot| (p.place, slot));
                    }
                }
                let n = self.subtables.list(origin, family).len();
                let Some((place, slot)) = hit else {
                    return at + some < n;
                };
                self.probes += (at + place) as u64 + 1;
                let f = &mut found[usize::from(r)];
                (f.slot, f.level) = (slot, Level::L2);
                self.subtables.hit(origin, family, at + place, 1);
                self.l1.insert(f.hash, slot);
                false
            });
            (at, some) = (at + some, (2 * some).min(CHUNK));
        }
    }

    /// Looks up a packet that missed among the entries stored since then, in the same burst.
    pub fn find_fresh(&mut self, sought: Sought<'_>) -> Option<u32> {
        let masks = self
            .subtables
            .list(sought.key.origin(), sought.key.family())
            .len();
        if masks < self.fresh.len() {
            return self.find_one(sought);
        }
        self.fresh.iter().copied().find(|slot| self.is(*slot, sought))
    }

    /// Looks one packet up in L2 only.
    pub(crate) fn find_one(&mut self, sought: Sought<'_>) -> Option<u32> {
        let (origin, family) = (sought.key.origin(), sought.key.family());
        for at in (0..self.subtables.list(origin, family).len()).step_by(CHUNK) {
            let list = part(self.subtables.list(origin, family), at, CHUNK);
            let mut maybe = self.maybe(sought, list);
            let hit = maybe.find_map(|(i, hash)| Some((i, self.in_table(hash, sought)?)));
            drop(maybe);
            if let Some((i, slot)) = hit {
                self.probes += (at + i) as u64 + 1;
                self.subtables.hit(origin, family, at + i, 1);
                return Some(slot);
            }
        }
        None
    }

    /// Stores the entry's slot in L1 for this packet.
    pub(super) fn remember(&mut self, sought: Sought<'_>, slot: u32) {
        let (origin, family) = (sought.key.origin(), sought.key.family());
        if self.always_l1 || self.subtables.list(origin, family).len() > 1 {
            let bits = self.subtables.all_context_bits(origin, family);
            let more = sought.context.map_or(0, |key| self.contexts.hash(key, bits));
            self.l1.insert(sought.key.hash(&self.key) ^ more, slot);
        }
    }
}
