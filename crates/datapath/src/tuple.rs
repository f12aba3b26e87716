//! Masks: which of them a worker's entries have, and in which order each port's packets try them.
//!
//! A [`Tuple`] is one mask, for packets of one [`Family`]. Its number is the worker's, and is part of the hash of the entries
//! under it. Each port has a list per family, ordered by recent hits, so that one port's masks cost another port nothing.
//!
//! **Bound** (CVE-2019-25076 is what happens without one). A list holds at most `max_masks` masks, the full one besides: an answer whose
//! mask would be one too many is stored under a mask that is there and contains it, or else under the full mask, which is right, just
//! narrower.

use crate::compact::{CompactKey, CompactMask};
use crate::filter::{CHUNK, Filters};
use crate::hash::HashKey;
use heddle_flow::{FlowKey, FlowMask};
use std::sync::Arc;

/// Which packets a mask is looked up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    /// Ordinary ones over IPv4.
    V4,
    /// Ordinary ones over IPv6.
    V6,
    /// All others, by their full key.
    Wide,
}

impl Family {
    const ALL: usize = 3;
}

/// A mask.
#[derive(Debug)]
pub(crate) struct Tuple {
    pub(crate) mask: FlowMask,
    pub(crate) family: Family,
    /// (index, bits) of each word of a full key with a bit set, for [`Family::Wide`].
    words: Box<[(u8, u64)]>,
}

impl Tuple {
    fn new(mask: &FlowMask, family: Family) -> Self {
        let words = mask.words().iter().enumerate().filter(|(_, w)| **w != 0);
        let words = words.map(|(i, w)| (u8::try_from(i).expect("a key has fewer than 256 words"), *w));
        Self {
            mask: *mask,
            family,
            words: match family {
                Family::Wide => words.collect(),
                Family::V4 | Family::V6 => Box::default(),
            },
        }
    }
    /// The masked words of a full key.
    #[inline]
    pub(crate) fn of<'a>(&'a self, key: &'a FlowKey) -> impl Iterator<Item = u64> + 'a {
        let key = key.words();
        self.words
            .iter()
            .map(move |&(i, m)| key.get(usize::from(i)).map_or(0, |w| w & m))
    }
    /// (index, bits) of the words of a full key with bits set that this mask leaves out.
    pub(crate) fn rest_of<'a>(&'a self, key: &'a FlowKey) -> impl Iterator<Item = (u8, u64)> + 'a {
        let words = key.words().iter().zip(self.mask.words()).map(|(w, m)| w & !m);
        (0_u8..).zip(words).filter(|(_, w)| *w != 0)
    }
    /// The full key (masked) of which these are the masked words.
    pub(crate) fn key(&self, words: &[u64]) -> FlowKey {
        let mut key = FlowKey::default();
        for (&(i, _), w) in self.words.iter().zip(words) {
            if let Some(dst) = key.words_mut().get_mut(usize::from(i)) {
                *dst = *w;
            }
        }
        key
    }
}

/// A mask in a port's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) tuple: u32,
    /// Of the mask.
    hash: u64,
    /// The port's entries under it.
    entries: u32,
    pub(crate) hits: u32,
}

#[derive(Debug, Default)]
struct PortList {
    lists: [Vec<Use>; Family::ALL],
    entries: usize,
}

#[derive(Debug)]
struct Held {
    tuple: Arc<Tuple>,
    hash: u64,
    /// Lists that have it.
    users: u32,
}

#[derive(Debug)]
pub(crate) struct Tuples {
    held: Vec<Option<Held>>,
    /// The compact form of each, one line each, for comparisons.
    compact: Vec<CompactMask>,
    /// Of the masks of ordinary packets.
    filters: Filters,
    free: Vec<u32>,
    ports: Vec<Option<Box<PortList>>>,
    /// The last mask that was asked for and was there.
    last: u32,
    max_masks: usize,
    full: FlowMask,
    full_hash: u64,
}

/// Largest port number that has lists; packets of ports beyond are not cached.
pub(crate) const MAX_LISTED: u32 = 65_535;

impl Tuples {
    pub(crate) fn new(max_masks: usize) -> Self {
        let mut full = FlowMask::default();
        full.words_mut().fill(u64::MAX);
        Self {
            full,
            full_hash: fold(&full),
            held: Vec::new(),
            compact: Vec::new(),
            filters: Filters::new(HashKey::random_lanes()),
            free: Vec::new(),
            ports: Vec::new(),
            last: 0,
            max_masks,
        }
    }
    /// The compact form of a mask, as long as it is held.
    #[inline]
    pub(crate) fn compact(&self, tuple: u32) -> Option<&CompactMask> {
        self.compact.get(tuple as usize)
    }
    pub(crate) fn get(&self, tuple: u32) -> Option<&Arc<Tuple>> {
        Some(&self.held.get(tuple as usize)?.as_ref()?.tuple)
    }
    /// A port's masks of one family, the most hit first.
    #[inline]
    pub(crate) fn list(&self, port: u32, family: Family) -> &[Use] {
        match self.ports.get(port as usize) {
            Some(Some(p)) => &p.lists[family as usize],
            _ => &[],
        }
    }
    /// Which of these masks, at most [`CHUNK`] of a list, may have an entry for an ordinary packet: a bit each.
    #[inline]
    pub(crate) fn maybe(&self, key: &CompactKey, list: &[Use]) -> u32 {
        debug_assert!(list.len() <= CHUNK);
        let masks = list
            .iter()
            .filter_map(|u| Some((u.tuple, self.compact(u.tuple)?)));
        self.filters.maybe(key, masks)
    }
    /// The table has an entry of an ordinary packet under this mask.
    pub(crate) fn entered(&mut self, tuple: u32, key: &CompactKey) {
        if let Some(mask) = self.compact.get(tuple as usize) {
            self.filters.add(tuple, mask, key);
        }
    }
    /// The table has it no longer.
    pub(crate) fn left(&mut self, tuple: u32, key: &CompactKey) {
        if let Some(mask) = self.compact.get(tuple as usize) {
            self.filters.remove(tuple, mask, key);
        }
    }
    /// Counts a hit of the mask at this place of a list.
    #[inline]
    pub(crate) fn hit(&mut self, port: u32, family: Family, at: usize, n: u32) {
        if let Some(Some(p)) = self.ports.get_mut(port as usize)
            && let Some(u) = p.lists[family as usize].get_mut(at)
        {
            u.hits = u.hits.saturating_add(n);
        }
    }
    /// As [`Tuples::hit`], wherever in the list the mask is.
    pub(crate) fn hit_mask(&mut self, port: u32, family: Family, tuple: u32, n: u32) {
        let list = self.list(port, family);
        if let Some(at) = list.iter().position(|u| u.tuple == tuple) {
            self.hit(port, family, at, n);
        }
    }
    /// The mask to store an answer of mask `want` under, for a packet of this port. It is new if the flag says so; it must then be made
    /// known, and used by [`Tuples::add`] before the next call.
    pub(crate) fn mask_for(&mut self, want: &FlowMask, port: u32, family: Family) -> (u32, bool) {
        let list = self.list(port, family);
        // New flows come by thousands, and mostly one mask is for all of them.
        let again = self.get(self.last).is_some_and(|t| t.mask == *want);
        if again && list.iter().any(|u| u.tuple == self.last) {
            return (self.last, false);
        }
        let hash = fold(want);
        let is = |u: &&Use| u.hash == hash && self.get(u.tuple).is_some_and(|t| t.mask == *want);
        if let Some(tuple) = list.iter().find(is).map(|u| u.tuple) {
            self.last = tuple;
            return (tuple, false);
        }
        // The full mask is over and above the bound.
        let n = list.iter().filter(|u| u.hash != self.full_hash).count();
        if n < self.max_masks {
            return self.intern(want, hash, family);
        }
        let wider = |u: &&Use| self.get(u.tuple).is_some_and(|t| t.mask.contains(want));
        match list.iter().find(wider) {
            Some(u) => (u.tuple, false),
            None => self.intern(&self.full.clone(), self.full_hash, family),
        }
    }
    fn intern(&mut self, mask: &FlowMask, hash: u64, family: Family) -> (u32, bool) {
        let same = |h: &Option<Held>| {
            h.as_ref()
                .is_some_and(|h| h.hash == hash && h.tuple.family == family && h.tuple.mask == *mask)
        };
        if let Some(at) = self.held.iter().position(same) {
            return (u32::try_from(at).unwrap_or(u32::MAX), false);
        }
        let held = Some(Held {
            tuple: Arc::new(Tuple::new(mask, family)),
            hash,
            users: 0,
        });
        let compact = match family {
            Family::Wide => CompactMask::NEVER,
            _ => CompactMask::of(mask, family == Family::V6),
        };
        let n = match self.free.pop() {
            Some(n) => {
                self.held[n as usize] = held;
                self.compact[n as usize] = compact;
                n
            }
            None => {
                self.held.push(held);
                self.compact.push(compact);
                u32::try_from(self.held.len() - 1).expect("ports and masks per port are bounded")
            }
        };
        if family != Family::Wide {
            self.filters.open(n);
        }
        (n, true)
    }
    /// A port has one more entry under a mask. Returns whether the mask is new in its list.
    pub(crate) fn add(&mut self, tuple: u32, port: u32) -> bool {
        let Some(Some(held)) = self.held.get_mut(tuple as usize) else {
            return false;
        };
        let at = port as usize;
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        let p = self.ports[at].get_or_insert_default();
        p.entries += 1;
        let list = &mut p.lists[held.tuple.family as usize];
        match list.iter_mut().find(|u| u.tuple == tuple) {
            Some(u) => {
                u.entries += 1;
                false
            }
            None => {
                list.push(Use {
                    tuple,
                    hash: held.hash,
                    entries: 1,
                    hits: 0,
                });
                held.users += 1;
                true
            }
        }
    }
    /// A port has one entry less under a mask. Returns whether the mask is now held by nobody and forgotten: its number may be given to
    /// another one.
    pub(crate) fn remove(&mut self, tuple: u32, port: u32) -> bool {
        let Some(slot) = self.held.get_mut(tuple as usize) else {
            return false;
        };
        let (Some(held), Some(Some(p))) = (slot.as_mut(), self.ports.get_mut(port as usize)) else {
            return false;
        };
        p.entries -= 1;
        let list = &mut p.lists[held.tuple.family as usize];
        let Some(at) = list.iter().position(|u| u.tuple == tuple) else {
            return false;
        };
        list[at].entries -= 1;
        if list[at].entries > 0 {
            return false;
        }
        list.remove(at);
        if p.entries == 0 {
            self.ports[port as usize] = None;
        }
        held.users -= 1;
        if held.users > 0 {
            return false;
        }
        *slot = None;
        self.filters.close(tuple);
        self.free.push(tuple);
        true
    }
    /// Puts often hit masks first and halves the counts. Called now and then, not per packet.
    pub(crate) fn sort(&mut self) {
        for list in self.ports.iter_mut().flatten().flat_map(|p| &mut p.lists) {
            list.sort_by_key(|u| std::cmp::Reverse(u.hits));
            list.iter_mut().for_each(|u| u.hits /= 2);
        }
    }
    /// How many entries a port has.
    pub(crate) fn entries_of(&self, port: u32) -> usize {
        match self.ports.get(port as usize) {
            Some(Some(p)) => p.entries,
            _ => 0,
        }
    }
    /// The most masks that any port has.
    pub(crate) fn most(&self) -> usize {
        let of = |p: &PortList| p.lists.iter().map(Vec::len).sum();
        self.ports.iter().flatten().map(|p| of(p)).max().unwrap_or(0)
    }
}

/// A hash of a mask, in four lanes. Not keyed: nobody outside chooses masks at will.
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
