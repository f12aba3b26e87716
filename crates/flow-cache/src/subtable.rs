//! The masks of a worker's entries, and the order in which packets of each origin try them.
//!
//! A [`Subtable`] is one mask, for packets of one [`Family`]. The worker numbers masks, and the number is
//! part of the hash of the entries under the mask. An *origin* is an input port and a recirculation id. It
//! has a number, which is part of packets' keys. Each origin has a list of masks per family, ordered by
//! recent hits, so that one origin's masks cost another one nothing. The origin of packets without
//! recirculation is the number of their port. Other origins are made when a packet comes from there, and
//! freed when they have no entries.
//!
//! **Bound** (CVE-2019-25076 shows the attack without one). A list holds at most `max_masks` masks, and the
//! full one. If a translation would add one mask too many, its entry is stored under a mask of the list that
//! has all its bits. If there is none, it is stored under the full mask, which is right, just narrower.

use crate::compact::{CompactKey, CompactMask, Family, Source};
use crate::context::Bits;
use crate::filter::{CHUNK, Filters};
use crate::guess::Guess;
use crate::hash::Mixer;
use crate::numbered::{Interned, Numbered};
use heddle_flow::FlowMask;
use heddle_simd::hash::HashKey;
use std::hash::Hasher;
use std::sync::Arc;

/// A mask for packets of one family.
#[derive(Debug)]
pub struct Subtable {
    /// The mask, over all fields of a key.
    pub mask: FlowMask,
    /// The family of the packets.
    pub family: Family,
    /// The mask's bits outside of compact keys.
    pub(crate) context_bits: Box<Bits>,
}

/// A mask in an origin's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) subtable: u32,
    /// Hash of the mask.
    hash: u64,
    /// The origin's entries under it.
    entries: u32,
    pub(crate) hits: u32,
}

/// The masks of one family that packets of an origin are looked up under.
#[derive(Debug, Default)]
struct List {
    uses: Vec<Use>,
    /// The union of the masks' bits outside of compact keys.
    all_context_bits: Box<Bits>,
}

/// An input port and a recirculation id, with the masks for their packets.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    pub(crate) in_port: u32,
    pub(crate) recirc_id: u32,
    lists: [List; Family::ALL],
    entries: usize,
    /// Whether packets came from there since the last check, and whether the origin is in `empty`.
    used: bool,
    waits: bool,
    /// Whether the origin is in `hit`: its lists have hits that they are not ordered by yet.
    hit: bool,
    pub(crate) guess: Guess,
}

#[derive(Debug)]
pub(crate) struct Subtables {
    /// Their users are lists.
    masks: Numbered<Arc<Subtable>>,
    /// The compact form of each mask, one line each, for comparisons.
    compact: Vec<CompactMask>,
    filters: Filters,
    /// Origins without recirculation, by port number.
    ports: Vec<Option<Box<Origin>>>,
    /// Origins with recirculation, by number less [`FIRST`].
    others: Numbered<Box<Origin>>,
    /// Origins with recirculation that had no entries: candidates to be freed.
    empty: Vec<u32>,
    /// The last index in `empty` that was checked.
    looked: usize,
    /// Origins with hits.
    hit: Vec<u32>,
    /// Entries by port.
    entries: Vec<u32>,
    /// Origins with recirculation, by port.
    of_port: Vec<usize>,
    /// The last mask that was wanted and existed.
    last: u32,
    max_masks: usize,
    full: FlowMask,
    full_hash: u64,
}

/// Largest port number that has lists; packets of ports beyond are not cached.
pub const MAX_LISTED: u32 = 65_535;
/// The first origin with recirculation.
const FIRST: u32 = MAX_LISTED + 1;
/// Maximum number of origins with recirculation; one port has a quarter at most.
const MAX_ORIGINS: usize = 1 << 18;
/// The origin of packets that are not cached: it has no list.
pub const NOWHERE: u32 = u32::MAX >> 1;
/// Candidates to be freed that one call checks, at least.
const LOOKS: usize = 1024;

/// Whether a new entry is the first one in its list under its mask, and of its origin.
#[derive(Clone, Copy, Default)]
pub(crate) struct FirstUse {
    pub(crate) mask: bool,
    /// Only origins with recirculation count.
    pub(crate) origin: bool,
}

fn hash_of_source(in_port: u32, recirc_id: u32) -> u64 {
    let mut h = Mixer::new(u64::from(in_port) << 32 | u64::from(recirc_id));
    h.write_u64(1);
    h.finish()
}

impl Subtables {
    pub(crate) fn new(max_masks: usize) -> Self {
        let mut full = FlowMask::default();
        full.words_mut().fill(u64::MAX);
        Self {
            full,
            full_hash: fold(&full),
            masks: Numbered::default(),
            compact: Vec::new(),
            filters: Filters::new(HashKey::random_lanes()),
            ports: Vec::new(),
            others: Numbered::default(),
            empty: Vec::new(),
            looked: 0,
            hit: Vec::new(),
            entries: Vec::new(),
            of_port: Vec::new(),
            last: 0,
            max_masks,
        }
    }

    // -- origins

    #[inline]
    pub(crate) fn origin(&self, n: u32) -> Option<&Origin> {
        match n.checked_sub(FIRST) {
            None => self.ports.get(n as usize)?.as_deref(),
            Some(other) => self.others.get(other).map(|o| &**o),
        }
    }
    #[inline]
    pub(crate) fn origin_mut(&mut self, n: u32) -> Option<&mut Origin> {
        origin_in(&mut self.ports, &mut self.others, n)
    }
    /// The port and the recirculation id of an origin.
    pub(crate) fn source(&self, n: u32) -> Source {
        let other = self.origin(n).filter(|_| n >= FIRST);
        Source {
            in_port: other.map_or(n, |o| o.in_port),
            recirc_id: other.map_or(0, |o| o.recirc_id),
        }
    }
    /// The origin of packets of this port with this recirculation id; [`NOWHERE`] if there are too many.
    pub(crate) fn origin_of(&mut self, in_port: u32, recirc_id: u32) -> u32 {
        if in_port > MAX_LISTED {
            return NOWHERE;
        }
        if recirc_id == 0 {
            return in_port;
        }
        let print = hash_of_source(in_port, recirc_id);
        let found = self
            .others
            .find(print, |o| (o.in_port, o.recirc_id) == (in_port, recirc_id));
        if let Some(n) = found {
            if let Some(o) = self.others.get_mut(n) {
                o.used = true;
            }
            return n + FIRST;
        }
        let port = in_port as usize;
        if self.of_port.len() <= port {
            self.of_port.resize(port + 1, 0);
        }
        if self.of_port[port] >= MAX_ORIGINS / 4 || self.others.len() >= MAX_ORIGINS {
            return NOWHERE;
        }
        self.of_port[port] += 1;
        let origin = Box::new(Origin {
            in_port,
            recirc_id,
            used: true,
            waits: true,
            ..Origin::default()
        });
        let n = FIRST + self.others.insert(print, origin);
        self.empty.push(n);
        n
    }
    /// Frees a bounded number of origins without entries and recent packets. `report` reports each to the
    /// revalidator first.
    fn free_origins(&mut self, mut report: impl FnMut(u32) -> bool) {
        // Each is checked some three times before it is freed, so more candidates mean more checks.
        for _ in 0..LOOKS.max(self.empty.len() / 4).min(self.empty.len()) {
            let at = self.looked.min(self.empty.len()).checked_sub(1);
            let at = at.unwrap_or(self.empty.len() - 1);
            self.looked = at;
            let n = self.empty[at];
            let Some(o) = self.origin_mut(n) else {
                self.empty.swap_remove(at);
                continue;
            };
            let port = o.in_port as usize;
            if o.entries > 0 {
                o.waits = false;
                self.empty.swap_remove(at);
            } else if !std::mem::take(&mut o.used) && report(n) {
                self.empty.swap_remove(at);
                self.others.remove(n - FIRST);
                self.of_port[port] -= 1;
            }
        }
    }

    // -- masks

    /// The compact form of a mask, valid while the mask is in use.
    #[inline]
    pub(crate) fn compact(&self, subtable: u32) -> Option<&CompactMask> {
        self.compact.get(subtable as usize)
    }
    #[inline]
    pub(crate) fn get(&self, subtable: u32) -> Option<&Arc<Subtable>> {
        self.masks.get(subtable)
    }
    /// A mask's bits outside of compact keys.
    #[inline]
    pub(crate) fn context_bits(&self, subtable: u32) -> &Bits {
        self.get(subtable).map_or(&[], |t| &t.context_bits)
    }
    /// An origin's masks of one family, the most hit first.
    #[inline]
    pub(crate) fn list(&self, origin: u32, family: Family) -> &[Use] {
        self.origin(origin).map_or(&[], |o| &o.lists[family.index()].uses)
    }
    /// The union of these masks' bits outside of compact keys.
    #[inline]
    pub(crate) fn all_context_bits(&self, origin: u32, family: Family) -> &Bits {
        self.origin(origin)
            .map_or(&[], |o| &o.lists[family.index()].all_context_bits)
    }
    /// Filters at most [`CHUNK`] masks of a list. Returns a bit for each mask that may have an entry for a
    /// packet.
    #[inline]
    pub(crate) fn maybe(&self, key: &CompactKey, list: &[Use]) -> u32 {
        debug_assert!(list.len() <= CHUNK);
        let masks = list
            .iter()
            .filter_map(|u| Some((u.subtable, self.compact(u.subtable)?)));
        self.filters.maybe(key, masks)
    }
    /// Counts a new entry of the table in its mask's filter. `key` has the origin, not the context.
    pub(crate) fn entered(&mut self, subtable: u32, key: &CompactKey) {
        if let Some(mask) = self.compact.get(subtable as usize) {
            self.filters.add(subtable, mask, key);
        }
    }
    /// Takes an entry that left the table out of its mask's filter.
    pub(crate) fn left(&mut self, subtable: u32, key: &CompactKey) {
        if let Some(mask) = self.compact.get(subtable as usize) {
            self.filters.remove(subtable, mask, key);
        }
    }
    /// Counts `n` hits of the mask at index `at` of a list.
    #[inline]
    pub(crate) fn hit(&mut self, origin: u32, family: Family, at: usize, n: u32) {
        let Some(o) = self.origin_mut(origin) else { return };
        if let Some(u) = o.lists[family.index()].uses.get_mut(at) {
            u.hits = u.hits.saturating_add(n);
            self.list_hit(origin);
        }
    }
    /// Marks an origin whose lists have hits, or will have.
    #[inline]
    pub(crate) fn list_hit(&mut self, origin: u32) {
        if let Some(o) = self.origin_mut(origin)
            && !std::mem::replace(&mut o.hit, true)
        {
            self.hit.push(origin);
        }
    }
    /// Number `at` of the origins with hits.
    pub(crate) fn hit_origin(&self, at: usize) -> Option<u32> {
        self.hit.get(at).copied()
    }
    /// Like [`Subtables::hit`], for a mask anywhere in the list.
    pub(crate) fn hit_mask(&mut self, origin: u32, family: Family, subtable: u32, n: u32) {
        let list = self.list(origin, family);
        if let Some(at) = list.iter().position(|u| u.subtable == subtable) {
            self.hit(origin, family, at, n);
        }
    }
    /// The mask under which to store a translation with mask `want`, for a packet of this origin. If
    /// the mask is new, the caller must report it, and use it with [`Subtables::add`] before the next call.
    pub(crate) fn mask_for(&mut self, want: &FlowMask, origin: u32, family: Family) -> Interned {
        let list = self.list(origin, family);
        // New flows often come by thousands under one mask.
        let again = self.get(self.last).is_some_and(|t| t.mask == *want);
        if again && list.iter().any(|u| u.subtable == self.last) {
            return Interned::known(self.last);
        }
        let hash = fold(want);
        let is = |u: &&Use| u.hash == hash && self.get(u.subtable).is_some_and(|t| t.mask == *want);
        if let Some(subtable) = list.iter().find(is).map(|u| u.subtable) {
            self.last = subtable;
            return Interned::known(subtable);
        }
        // The bound does not count the full mask.
        let n = list.iter().filter(|u| u.hash != self.full_hash).count();
        if n < self.max_masks {
            return self.intern(want, hash, family);
        }
        let wider = |u: &&Use| self.get(u.subtable).is_some_and(|t| t.mask.contains(want));
        match list.iter().find(wider) {
            Some(u) => Interned::known(u.subtable),
            None => self.intern(&self.full.clone(), self.full_hash, family),
        }
    }
    fn intern(&mut self, mask: &FlowMask, hash: u64, family: Family) -> Interned {
        let same = |t: &Arc<Subtable>| t.family == family && t.mask == *mask;
        if let Some(n) = self.masks.find(hash, same) {
            return Interned::known(n);
        }
        let new = Subtable {
            mask: *mask,
            family,
            context_bits: CompactMask::rest(mask, family).collect(),
        };
        let n = self.masks.insert(hash, Arc::new(new));
        let compact = CompactMask::of(mask, family.is_v6());
        match self.compact.get_mut(n as usize) {
            Some(free) => *free = compact,
            None => self.compact.push(compact),
        }
        self.filters.open(n);
        Interned::new(n)
    }
    /// Counts one more entry of an origin under a mask.
    pub(crate) fn add(&mut self, subtable: u32, origin: u32) -> FirstUse {
        if origin < FIRST {
            let at = origin as usize;
            if self.ports.len() <= at {
                self.ports.resize_with(at + 1, || None);
            }
            self.ports[at].get_or_insert_default().in_port = origin;
        }
        let (Some(mask), Some(o)) = (
            self.masks.get(subtable),
            origin_in(&mut self.ports, &mut self.others, origin),
        ) else {
            return FirstUse::default();
        };
        o.entries += 1;
        let at = o.in_port as usize;
        if self.entries.len() <= at {
            self.entries.resize(at + 1, 0);
        }
        self.entries[at] += 1;
        let new_origin = o.entries == 1 && origin >= FIRST;
        let list = &mut o.lists[mask.family.index()];
        if let Some(u) = list.uses.iter_mut().find(|u| u.subtable == subtable) {
            u.entries += 1;
            return FirstUse {
                mask: false,
                origin: new_origin,
            };
        }
        list.uses.push(Use {
            subtable,
            hash: fold(&mask.mask),
            entries: 1,
            hits: 0,
        });
        if !mask.context_bits.is_empty() {
            list.all_context_bits = union(&list.all_context_bits, &mask.context_bits);
        }
        self.masks.retain(subtable);
        FirstUse {
            mask: true,
            origin: new_origin,
        }
    }
    /// Counts one entry less of an origin under a mask. Returns whether the mask has no entry in any list and
    /// is freed now. Its number may then be reused.
    pub(crate) fn remove(&mut self, subtable: u32, origin: u32) -> bool {
        let (Some(mask), Some(o)) = (
            self.masks.get(subtable),
            origin_in(&mut self.ports, &mut self.others, origin),
        ) else {
            return false;
        };
        o.entries -= 1;
        if let Some(n) = self.entries.get_mut(o.in_port as usize) {
            *n -= 1;
        }
        let list = &mut o.lists[mask.family.index()];
        let Some(at) = list.uses.iter().position(|u| u.subtable == subtable) else {
            return false;
        };
        list.uses[at].entries -= 1;
        let gone = list.uses[at].entries == 0;
        if gone {
            list.uses.remove(at);
            if !mask.context_bits.is_empty() {
                let rest = list.uses.iter().filter_map(|u| self.masks.get(u.subtable));
                list.all_context_bits = rest.fold(Box::default(), |all, t| union(&all, &t.context_bits));
            }
        }
        if o.entries == 0 {
            if origin < FIRST {
                self.ports[origin as usize] = None;
            } else if !std::mem::replace(&mut o.waits, true) {
                self.empty.push(origin);
            }
        }
        let unused = gone && self.masks.release(subtable);
        if unused {
            self.masks.remove(subtable);
            self.filters.close(subtable);
        }
        unused
    }
    /// Housekeeping between bursts: in lists with hits, sorts the masks by hits and halves the counts. Frees
    /// unused origins; `report` reports each to the revalidator first.
    pub(crate) fn tidy(&mut self, report: impl FnMut(u32) -> bool) {
        for n in std::mem::take(&mut self.hit) {
            let Some(o) = self.origin_mut(n) else { continue };
            o.hit = false;
            for list in &mut o.lists {
                list.uses.sort_by_key(|u| std::cmp::Reverse(u.hits));
                list.uses.iter_mut().for_each(|u| u.hits /= 2);
            }
        }
        self.free_origins(report);
    }
    /// The number of entries of a port.
    pub(crate) fn entries_of(&self, port: u32) -> usize {
        self.entries.get(port as usize).map_or(0, |n| *n as usize)
    }
    /// The number of masks.
    pub(crate) fn len(&self) -> usize {
        self.masks.len()
    }
}

/// Origin `n` of these.
#[inline]
fn origin_in<'a>(
    ports: &'a mut [Option<Box<Origin>>],
    others: &'a mut Numbered<Box<Origin>>,
    n: u32,
) -> Option<&'a mut Origin> {
    match n.checked_sub(FIRST) {
        None => ports.get_mut(n as usize)?.as_deref_mut(),
        Some(other) => others.get_mut(other).map(|o| &mut **o),
    }
}

/// The union of both lists of bits.
fn union(a: &Bits, b: &Bits) -> Box<Bits> {
    let mut all: Vec<(u8, u64)> = a.to_vec();
    for (i, bits) in b {
        match all.binary_search_by_key(i, |(i, _)| *i) {
            Ok(at) => all[at].1 |= bits,
            Err(at) => all.insert(at, (*i, *bits)),
        }
    }
    all.into()
}

/// A hash of a mask, in four lanes. It has no key, since packets and peers cannot choose masks freely.
fn fold(mask: &FlowMask) -> u64 {
    let mut lanes = [0_u64; 4];
    for words in mask.0.used().chunks(4) {
        for (lane, w) in lanes.iter_mut().zip(words) {
            *lane = (lane.rotate_left(5) ^ w).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }
    lanes.iter().fold(0, |h: u64, l| {
        (h.rotate_left(9) ^ l).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets may make up thousands of recirculation ids a second, each with an entry for ten seconds. The
    /// origins' numbers do not run out.
    #[test]
    fn origins_that_come_and_go_do_not_run_out() {
        let mut s = Subtables::new(128);
        let family = CompactKey::default().family();
        let mut held = std::collections::VecDeque::new();
        for second in 0..120_u32 {
            let mut own = Vec::new();
            for n in 0..2000 {
                let origin = s.origin_of(1, 1 + second * 2000 + n);
                assert_ne!(origin, NOWHERE, "after {second} seconds");
                let at = s.mask_for(&FlowMask::default(), origin, family).number;
                s.add(at, origin);
                own.push((at, origin));
            }
            held.push_back(own);
            if held.len() > 10 {
                for (at, origin) in held.pop_front().unwrap() {
                    s.remove(at, origin);
                }
            }
            s.tidy(|_| true);
        }
    }

    /// Origins with packets but without entries do not keep other origins from being freed.
    #[test]
    fn origins_without_entries_do_not_hold_others_up() {
        let mut s = Subtables::new(128);
        for second in 0..200_u32 {
            for n in 0..2000 {
                assert_ne!(s.origin_of(1, 1 + n), NOWHERE, "after {second} seconds");
            }
            for n in 0..400 {
                assert_ne!(
                    s.origin_of(1, 3000 + second * 400 + n),
                    NOWHERE,
                    "after {second} seconds"
                );
            }
            s.tidy(|_| true);
        }
    }
}
