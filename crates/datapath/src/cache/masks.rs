//! Going through a port's masks, for ordinary packets that have no exact match.
//!
//! Each mask has a filter ([`crate::filter`]), which says of most masks, in some ten cycles, that they have nothing for a packet. The others are looked up in the
//! table, of all packets side by side. A burst begins with the masks that are hit most often, and goes on with twice as many each time.

use super::Cache;
use super::find::{Level, Scratch, family};
use crate::compact::CompactKey;
use crate::filter::CHUNK;
use crate::parse::Parsed;
use crate::tuple::Use;

/// Masks whose filters are asked first: those that are hit most often. Then twice as many each time.
const FIRST: usize = 4;

/// A mask that may have a run's entry.
#[derive(Debug)]
pub(super) struct Probe {
    run: u16,
    /// Of the mask, among those that are asked now.
    place: usize,
    /// Of the masked key.
    hash: u64,
}

/// At most `n` of a list from `at` on.
#[inline]
fn part(list: &[Use], at: usize, n: usize) -> &[Use] {
    let rest = list.get(at..).unwrap_or_default();
    &rest[..n.min(rest.len())]
}

impl Cache {
    /// Goes through the masks for the runs that are left, more of them each time: those whose filters say that they may have a packet's entry are
    /// looked up.
    pub(super) fn find_wildcarded(&mut self, parsed: &Parsed, s: &mut Scratch) {
        let (mut at, mut some) = (0, FIRST);
        while !s.todo.is_empty() {
            s.probes.clear();
            for &r in &s.todo {
                let Some(key) = parsed.key(r.into()) else { continue };
                let list = part(self.tuples.list(key.in_port(), family(Some(key))), at, some);
                let mut maybe = self.tuples.maybe(key, list);
                while maybe != 0 {
                    let i = maybe.trailing_zeros() as usize;
                    maybe &= maybe - 1;
                    let Some(mask) = self.tuples.compact(list[i].tuple) else {
                        continue;
                    };
                    let hash = mask.hash(key, &self.key, list[i].tuple);
                    self.table.prefetch(hash);
                    s.probes.push(Probe {
                        run: r,
                        place: i,
                        hash,
                    });
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
                let Some(key) = parsed.key(r.into()) else {
                    return false;
                };
                let (port, family) = (key.in_port(), family(Some(key)));
                let mut hit = None;
                while let Some(p) = probes.next_if(|p| p.run == r) {
                    if hit.is_none() {
                        let slot = self.table.candidates(p.hash);
                        let slot = slot.and_then(|mut c| c.find(|slot| self.is(*slot, key)));
                        hit = slot.map(|slot| (p.place, slot));
                    }
                }
                let n = self.tuples.list(port, family).len();
                let Some((place, slot)) = hit else {
                    self.probes += n.saturating_sub(at).min(some) as u64;
                    return at + some < n;
                };
                self.probes += place as u64 + 1;
                let f = &mut found[usize::from(r)];
                (f.slot, f.level) = (slot, Level::L2);
                self.tuples.hit(port, family, at + place, 1);
                self.l1.insert(f.hash, slot);
                false
            });
            (at, some) = (at + some, (2 * some).min(CHUNK));
        }
    }

    /// Looks one ordinary packet's key up that was not found, among what was stored since, in the same burst.
    pub(crate) fn find_fresh(&mut self, key: &CompactKey) -> Option<u32> {
        let masks = self.tuples.list(key.in_port(), family(Some(key))).len();
        if masks < self.fresh.len() {
            return self.find_one(key);
        }
        self.fresh.iter().copied().find(|slot| self.is(*slot, key))
    }

    /// Looks one ordinary packet's key up, in L2 only.
    pub(crate) fn find_one(&mut self, key: &CompactKey) -> Option<u32> {
        let (port, family) = (key.in_port(), family(Some(key)));
        for at in (0..self.tuples.list(port, family).len()).step_by(CHUNK) {
            let list = part(self.tuples.list(port, family), at, CHUNK);
            let mut maybe = self.tuples.maybe(key, list);
            while maybe != 0 {
                let i = maybe.trailing_zeros() as usize;
                maybe &= maybe - 1;
                let tuple = list[i].tuple;
                let Some(mask) = self.tuples.compact(tuple) else {
                    continue;
                };
                let candidates = self.table.candidates(mask.hash(key, &self.key, tuple));
                let found = candidates.and_then(|mut c| c.find(|slot| self.is(*slot, key)));
                if found.is_some() {
                    self.probes += i as u64 + 1;
                    self.tuples.hit(port, family, at + i, 1);
                    return found;
                }
            }
            self.probes += list.len() as u64;
        }
        None
    }
}
