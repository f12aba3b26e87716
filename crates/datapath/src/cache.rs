//! The cache hierarchy of one worker: entries, and the ways to find them.
//!
//! L0: the key of the packets before ([`Parsed`]'s runs, and the last run of the burst before). L1: by hash of the whole key. L2: by
//! hash of the masked key, mask by mask. While one entry has all the packets, it is looked at before anything is hashed. All lead to slots of the same entries, and any entry that matches is right, so a
//! candidate is only ever compared, never trusted. Where a port's packets have one mask, L2 is as quick as L1 and L1 is left out.
//!
//! A burst's lookups are made side by side (`find`), stage by stage, so that their cache misses overlap.
//!
//! Removal is deferred: an entry that was found useless keeps its slot until [`Cache::reap`] has told the sweeper what it had counted.

use crate::changes::{Known, PATIENCE};
use crate::compact::CompactKey;
use crate::entry::{Entry, NewEntry};
use crate::hash::HashKey;
use crate::l1::L1;
use crate::note::{Counted, Findings, Horizon, Note, RESERVE, RING, ROOM, WideKey};
use crate::program::Program;
use crate::sig::Bucket;
use crate::spares::{Maker, Pace};
use crate::store::Store;
use crate::table::Table;
use crate::translate::{Generations, Translation};
use crate::tuple::{Family, MAX_LISTED, Tuple, Tuples};
use crate::verdict::{Member, Verdict, Verdicts};
use crate::watch::{self, Under, Watches};
use heddle_flow::FlowKey;
use heddle_sync::ring::Producer;
use std::collections::HashMap;
use std::sync::Arc;

mod find;
mod masks;

pub(crate) use find::{Level, Moment, NO_BODY};

/// No slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// Comparisons that are made for one of many entries of a verdict, again and again, before it is given one that is up to date.
const PATIENCE_FOR_ONE: usize = 16;

/// The memory of a cache that grows with its entries.
pub(crate) struct Memory {
    store: Store,
    table: Table,
}

impl Memory {
    /// None yet, with where it is made before it is needed; see [`crate::spares`] about `near`.
    pub(crate) fn new(near: bool) -> (Self, Makers) {
        let (store, entries) = Store::with_spares(near);
        let (table, buckets) = Table::with_spares(near);
        let makers = Makers {
            entries,
            buckets,
            pace: Pace::new(),
        };
        (Self { store, table }, makers)
    }
}

/// See [`Memory`].
pub(crate) struct Makers {
    entries: Maker<Entry>,
    buckets: Maker<Bucket>,
    pace: Pace,
}

impl Makers {
    /// Makes what is missing, as far as it is time to.
    pub(crate) fn fill(&mut self) {
        // Of these fewer are needed.
        self.buckets.fill(&mut self.pace);
        self.entries.fill(&mut self.pace);
    }
}

/// What a cache is made of.
pub(crate) struct CacheParts {
    pub(crate) memory: Memory,
    pub(crate) l1: L1,
    pub(crate) max_masks: usize,
    pub(crate) key: HashKey,
    pub(crate) notes: Producer<Note>,
    pub(crate) horizon: Arc<Horizon>,
}

pub(crate) struct Cache {
    store: Store,
    verdicts: Verdicts,
    watches: Watches,
    tuples: Tuples,
    table: Table,
    l1: L1,
    /// Keys of extraordinary packets' entries, by slot.
    wide: HashMap<u32, Arc<WideKey>>,
    notes: Producer<Note>,
    horizon: Arc<Horizon>,
    next_id: u64,
    key: HashKey,
    /// Out of L2, not told of yet.
    doomed: Vec<u32>,
    /// Masks gone through by lookups that found something in L2.
    probes: u64,
    new_mask: bool,
    /// A chunk was taken that the sweeper does not know of yet.
    new_chunk: bool,
    /// Slots that were filled in this burst.
    fresh: Vec<u32>,
    /// L1 is used even where a port has one mask.
    always_l1: bool,
    last: find::Last,
    guess: find::Guess,
    scratch: find::Scratch,
}

/// Whether an entry is known to be right by now, for a packet with this key, which it matches.
#[inline(always)]
fn is_current(
    e: &Entry,
    watches: &mut Watches,
    verdicts: &Verdicts,
    key: Option<&CompactKey>,
    moment: &Moment<'_>,
) -> bool {
    let (watch, stamp) = e.watch();
    if watch == watch::NONE {
        return verdicts.get(e.verdict()).is_some_and(|v| v.valid_at(moment.any));
    }
    watches.holds(watch, stamp, moment.any) || look(e, watches, key, moment)
}

/// Whether nothing that changed since an entry was stamped has to do with a packet with this key, as its watch knows.
#[inline(never)]
fn look(e: &Entry, watches: &mut Watches, key: Option<&CompactKey>, moment: &Moment<'_>) -> bool {
    let (watch, stamp) = e.watch();
    let Some(stamp) = key.and_then(|key| watches.look(watch, key, stamp, moment.any, moment.generations))
    else {
        return false;
    };
    e.set_stamp(stamp);
    true
}

impl Cache {
    pub(crate) fn new(p: CacheParts) -> Self {
        Self {
            store: p.memory.store,
            verdicts: Verdicts::default(),
            watches: Watches::new(),
            tuples: Tuples::new(p.max_masks),
            table: p.memory.table,
            l1: p.l1,
            wide: HashMap::new(),
            notes: p.notes,
            horizon: p.horizon,
            next_id: 1,
            key: p.key,
            doomed: Vec::new(),
            probes: 0,
            new_mask: false,
            new_chunk: false,
            fresh: Vec::new(),
            always_l1: false,
            last: find::Last::default(),
            guess: find::Guess::default(),
            scratch: find::Scratch::default(),
        }
    }
    /// The entry in a slot that was found just now.
    #[inline]
    pub(crate) fn entry(&self, slot: u32) -> Option<&Entry> {
        self.store.get(slot)
    }
    /// A verdict of this burst.
    #[inline]
    pub(crate) fn verdict(&self, n: u32) -> Option<&Arc<Verdict>> {
        self.verdicts.get(n)
    }
    /// A program of this burst.
    #[inline]
    pub(crate) fn program(&self, n: u32) -> Option<&Program> {
        Some(&self.verdicts.body(n)?.program)
    }
    /// The mask of an entry.
    pub(crate) fn tuple(&self, e: &Entry) -> Option<&Arc<Tuple>> {
        self.tuples.get(e.tuple())
    }
    /// Whether so many notes wait that the sweeper should take them soon, or it should make another chunk.
    pub(crate) fn wants_sweeper(&mut self) -> bool {
        std::mem::take(&mut self.new_chunk) || !self.notes.has_room(RING - RESERVE / 2)
    }

    fn push(&mut self, note: Note) {
        let full = self.notes.push(note).is_err();
        debug_assert!(!full, "the caller has looked whether there is room");
    }

    /// Stores what a translation said of a packet, `compact` being its key if it is ordinary; `any` was read before. It is found from
    /// now on. Returns the program's number; `None`: no room for it.
    pub(crate) fn insert(
        &mut self,
        key: &FlowKey,
        compact: Option<&CompactKey>,
        t: &mut Translation,
        any: u64,
        now_ms: u64,
    ) -> Option<u32> {
        let port = key.in_port;
        if port > MAX_LISTED || !self.notes.has_room(ROOM) {
            return None;
        }
        let taken = self.store.take()?;
        let slot = taken.slot;
        let family = find::family(compact);
        // Masks are per port.
        t.mask.0.in_port = u32::MAX;
        let (tuple, tuple_is_new) = self.tuples.mask_for(&t.mask, port, family);
        self.new_mask |= self.tuples.add(tuple, port);
        let hash = match compact {
            Some(c) => self.tuples.compact(tuple)?.hash(c, &self.key, tuple),
            None => find::wide_hash(self.key, self.tuples.get(tuple)?, tuple, key),
        };
        if !self.table.insert(hash, slot) {
            self.tuples.remove(tuple, port);
            // The chunk, if it is new, is the last one and stays with nothing in it until it is used.
            self.store.free(slot);
            return None;
        }
        if let Some(c) = compact {
            self.tuples.entered(tuple, c);
        }
        let (watch, stamp) = self.enter(tuple, t).unwrap_or_default();
        let (verdict, verdict_is_new) = self.verdicts.intern(t, any);
        let body = self.verdicts.body_of(verdict)?;
        let member = Member {
            slot,
            key: compact.map(|c| (*c, tuple)),
        };
        self.join(verdict, member);
        if let Some((n, mem)) = taken.chunk {
            self.new_chunk = true;
            self.push(Note::Chunk(n, mem));
        }
        // Of most entries nobody else is told, and so nothing is counted.
        if tuple_is_new && let Some(held) = self.tuples.get(tuple).map(Arc::clone) {
            self.push(Note::Tuple(tuple, held));
        }
        if verdict_is_new && let Some(v) = self.verdicts.get(verdict).map(Arc::clone) {
            self.push(Note::Verdict(verdict, v));
        }
        let id = self.take_id();
        if compact.is_none()
            && let Some(held) = self.tuples.get(tuple).map(Arc::clone)
        {
            let (words, rest) = (held.of(key).collect(), held.rest_of(key).collect());
            let wide = Arc::new(WideKey {
                id,
                port,
                tuple: held,
                words,
                rest,
            });
            self.wide.insert(slot, Arc::clone(&wide));
            self.push(Note::Wide(slot, wide));
        }
        if let Some(e) = self.store.get(slot) {
            e.publish(&NewEntry {
                id,
                key: compact.copied().unwrap_or(CompactKey::NONE),
                verdict,
                tuple,
                body,
                now_ms,
                watch,
                stamp,
            });
        }
        self.horizon.set(self.next_id);
        self.fresh.push(slot);
        self.remember(key, compact, slot);
        Some(body)
    }
    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
    fn counted(e: &Entry) -> Counted {
        // The owner's own entry does not change while the owner looks.
        let s = e.read();
        s.map_or(Counted::default(), |s| Counted {
            packets: s.packets,
            bytes: s.bytes,
            used_ms: s.used_ms,
            tcp_flags: s.tcp_flags,
        })
    }

    /// The same answer came from a fresh translation, made after `any` was read, with other dependencies or creditors: the
    /// entry goes on with the verdict that says so. Returns the program's number. `None`: no room to say it.
    pub(crate) fn renew(&mut self, slot: u32, t: &mut Translation, any: u64) -> Option<u32> {
        if !self.notes.has_room(ROOM) {
            return None;
        }
        let tuple = self.store.get(slot)?.tuple();
        let entered = self.enter(tuple, t).unwrap_or_default();
        let interned = self.verdicts.intern(t, any);
        self.rename(slot, interned, entered);
        self.verdicts.body_of(interned.0)
    }
    /// The watch of an entry under this mask with that answer, and its stamp there.
    fn enter(&mut self, tuple: u32, t: &Translation) -> Option<(u16, u32)> {
        let under = Self::under(&self.tuples, tuple)?;
        self.watches.enter(t.deps.iter().copied(), &t.overrides, under)
    }
    /// Of an ordinary packet's mask.
    fn under(tuples: &Tuples, tuple: u32) -> Option<Under<'_>> {
        let held = tuples.get(tuple).filter(|t| t.family != Family::Wide)?;
        Some(Under {
            tuple,
            mask: &held.mask,
            v6: held.family == Family::V6,
        })
    }
    /// As [`Cache::renew`], where the sweeper made the translation, of the entry that had this id.
    pub(crate) fn adopt(&mut self, slot: u32, id: u64, verdict: &Arc<Verdict>) {
        let Some(e) = self.store.get(slot).filter(|e| e.id() == id && e.alive()) else {
            return;
        };
        // One that has moved on did so for other packets than this entry's.
        if verdict.moved() || !self.notes.has_room(RESERVE) {
            return;
        }
        let entered = match Self::under(&self.tuples, e.tuple()) {
            // Where more is known here than was when the sweeper translated, this side finds out by itself.
            Some(under) => match self.watches.enter(verdict.deps(), verdict.overrides(), under) {
                Some(entered) => entered,
                None => return,
            },
            None => Default::default(),
        };
        let interned = self.verdicts.adopt(verdict);
        self.rename(slot, interned, entered);
    }
    /// The program of the entry in `slot`, which a packet with this key was found to match, if the entry is known to be right by now.
    #[inline]
    pub(crate) fn current(
        &mut self,
        slot: u32,
        key: Option<&CompactKey>,
        moment: &Moment<'_>,
    ) -> Option<u32> {
        let e = self.store.get(slot)?;
        is_current(e, &mut self.watches, &self.verdicts, key, moment).then(|| e.body())
    }
    /// Whether the entry in `slot` has a watch, which is all that can tell whether it is right.
    pub(crate) fn is_watched(&self, slot: u32) -> bool {
        self.store.get(slot).is_some_and(|e| e.watch().0 != watch::NONE)
    }
    /// The entry in `slot`, if it is one of verdict `n`.
    fn member(&self, slot: u32, n: u32) -> Option<Member> {
        let e = self.store.get(slot).filter(|e| e.id() != 0 && e.verdict() == n)?;
        let ordinary = self.tuples.get(e.tuple())?.family != Family::Wide;
        Some(Member {
            slot,
            key: ordinary.then(|| (e.key(), e.tuple())),
        })
    }
    /// An entry refers to verdict `n` from now on.
    fn join(&mut self, n: u32, member: Member) {
        let only = self.verdicts.only(n).and_then(|slot| self.member(slot, n));
        let tuples = &self.tuples;
        self.verdicts.retain(n, member, only, |t| tuples.compact(t));
    }
    /// What is known of the packets of an entry of an ordinary packet.
    fn known(&self, e: &Entry) -> Option<Known> {
        let tuple = self.tuples.get(e.tuple()).filter(|t| t.family != Family::Wide)?;
        Some(Known::new(&e.key().expand(&tuple.mask), &tuple.mask))
    }
    /// The verdict of the entry in `slot` has dependencies that have moved: whether the entry may be used all the same, because what changed
    /// has nothing to do with its packets. If it has nothing to do with any of the verdict's, that is remembered. `any` was read before.
    pub(crate) fn passes_by(&self, slot: u32, any: u64, generations: &Generations) -> bool {
        let Some(e) = self.store.get(slot) else {
            return false;
        };
        let n = e.verdict();
        let Some(verdict) = self.verdicts.get(n) else {
            return false;
        };
        let alone = self.verdicts.users(n) == 1;
        let all = if alone {
            self.known(e)
        } else {
            self.verdicts.agreement(n).and_then(|(key, bits, tuple)| {
                let mask = bits.restrict(&self.tuples.get(tuple)?.mask);
                Some(Known::new(&key.expand(&mask), &mask))
            })
        };
        if all.is_some_and(|mut known| verdict.passes_by(&mut known, PATIENCE, Some(any), generations)) {
            return true;
        }
        !alone
            && self
                .known(e)
                .is_some_and(|mut known| verdict.passes_by(&mut known, PATIENCE_FOR_ONE, None, generations))
    }
    fn rename(&mut self, slot: u32, (verdict, is_new): (u32, bool), (watch, stamp): (u16, u32)) {
        if let Some(e) = self.store.get(slot) {
            let (left, _) = e.watch();
            e.set_watch(watch, stamp);
            self.watches.leave(left);
        }
        if is_new && let Some(v) = self.verdicts.get(verdict).map(Arc::clone) {
            self.push(Note::Verdict(verdict, v));
        }
        let new = self.take_id();
        if let Some(e) = self.store.get(slot) {
            let (id, old, counted) = (e.id(), e.verdict(), Self::counted(e));
            if old == verdict {
                return;
            }
            let member = self.member(slot, old);
            self.join(verdict, member.unwrap_or(Member { slot, key: None }));
            let Some(e) = self.store.get(slot) else { return };
            e.rename(new, verdict, self.verdicts.body_of(verdict).unwrap_or_default());
            self.verdicts.release(old);
            self.push(Note::Renamed(slot, id, old, counted, new));
        }
        if let Some(w) = self.wide.get_mut(&slot) {
            let named = WideKey {
                id: new,
                port: w.port,
                tuple: Arc::clone(&w.tuple),
                words: w.words.clone(),
                rest: w.rest.clone(),
            };
            *w = Arc::new(named);
            let note = Note::Wide(slot, Arc::clone(w));
            self.push(note);
        }
        self.horizon.set(self.next_id);
    }

    /// Takes an entry out of the lookups now and out of its slot at the next [`Cache::reap`].
    pub(crate) fn forget(&mut self, slot: u32) {
        let Some(e) = self.store.get(slot) else { return };
        e.condemn(e.id());
        let n = e.tuple();
        let hash = match self.wide.get(&slot) {
            Some(w) => find::wide_hash_of(self.key, n, w.words.iter().copied()),
            None => match self.tuples.compact(n) {
                Some(mask) => mask.hash(&e.key(), &self.key, n),
                None => return,
            },
        };
        if self.table.remove(hash, slot) {
            if !self.wide.contains_key(&slot) {
                self.tuples.left(n, &e.key());
            }
            self.doomed.push(slot);
        }
    }
    /// Forgets the entry with this id, if it still has this slot.
    pub(crate) fn evict(&mut self, slot: u32, id: u64) {
        if self.store.get(slot).is_some_and(|e| e.id() == id) {
            self.forget(slot);
        }
    }
    /// Frees the slots of forgotten entries, and verdicts that nobody uses, between bursts, at most so many of each, and as far as the sweeper can
    /// be told; returns how many entries.
    pub(crate) fn reap(&mut self, most: usize) -> usize {
        let mut n = 0;
        self.fresh.clear();
        while n < most && self.notes.has_room(RESERVE) {
            let Some(slot) = self.doomed.pop() else { break };
            let Some(e) = self.store.get(slot) else { continue };
            let (id, verdict, tuple, counted) = (e.id(), e.verdict(), e.tuple(), Self::counted(e));
            self.watches.leave(e.watch().0);
            let port = match self.wide.remove(&slot) {
                Some(w) => w.port,
                None => e.key().in_port(),
            };
            e.retire();
            self.push(Note::Gone(slot, id, verdict, counted));
            self.verdicts.release(verdict);
            if self.tuples.remove(tuple, port) {
                self.push(Note::TupleGone(tuple));
            }
            if let Some(chunk) = self.store.free(slot) {
                self.push(Note::ChunkGone(chunk));
            }
            n += 1;
        }
        let notes = &mut self.notes;
        self.verdicts.reap(most, |v| {
            notes.has_room(RESERVE) && notes.push(Note::VerdictGone(v)).is_ok()
        });
        if n > 0 {
            self.table.tidy();
        }
        n
    }
    /// Whether there are entries to be reaped.
    pub(crate) fn has_doomed(&self) -> bool {
        !self.doomed.is_empty()
    }
    /// Gives an empty list back to the sweeper.
    pub(crate) fn give_back(&mut self, list: Findings) {
        if self.notes.has_room(RESERVE) {
            self.push(Note::Spent(list));
        }
    }
    /// Once a second: orders the masks by hits, looks whether L1 has the right size.
    pub(crate) fn tidy(&mut self) {
        self.count_guesses();
        self.tuples.sort();
        self.store.tidy();
        self.l1.tidy(self.store.len());
    }
    /// `emc-insert-inv-prob`, where it was given: how many insertions into a full part of L1 one succeeds of; 0: L1 is not used.
    pub(crate) fn set_inv_prob(&mut self, n: Option<u32>) {
        self.l1.set_inv_prob(n.unwrap_or(crate::l1::INV_PROB));
        self.always_l1 = n.is_some_and(|n| n > 0);
    }
    /// How many entries a port has.
    pub(crate) fn entries_of(&self, port: u32) -> usize {
        self.tuples.entries_of(port)
    }
    /// The most masks of any port.
    pub(crate) fn n_masks(&self) -> usize {
        self.tuples.most()
    }
    /// Entries held, doomed ones included.
    pub(crate) fn len(&self) -> usize {
        self.store.len()
    }
    /// Whether a mask was added since the last call.
    pub(crate) fn take_new_mask(&mut self) -> bool {
        std::mem::take(&mut self.new_mask)
    }
    /// Masks probed since the last call.
    pub(crate) fn take_probes(&mut self) -> u64 {
        std::mem::take(&mut self.probes)
    }
}
