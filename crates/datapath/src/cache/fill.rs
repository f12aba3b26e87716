//! How entries come, and go on with another verdict.

use super::{Cache, find, wide};
use crate::changes::Override;
use crate::compact::CompactKey;
use crate::entry::NewEntry;
use crate::note::{Note, RESERVE, ROOM, WideKey};
use crate::translate::{Dep, Translation};
use crate::tuple::{Family, MAX_LISTED};
use crate::verdict::Verdict;
use crate::watch::Under;
use heddle_flow::{FlowKey, FlowMask};
use std::sync::{Arc, LazyLock};

impl Cache {
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
            None => wide::wide_hash(self.key, self.tuples.get(tuple)?, tuple, key),
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
        let (watch, stamp) = self.enter(tuple, &t.deps, &t.overrides).unwrap_or_default();
        let (verdict, verdict_is_new) = self.verdicts.intern(t, any);
        let body = self.verdicts.body_of(verdict)?;
        self.verdicts.retain(verdict);
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

    /// The same answer came from a fresh translation, made after `any` was read, with other dependencies or creditors: the
    /// entry goes on with the verdict that says so. Returns the program's number. `None`: no room to say it.
    pub(crate) fn renew(&mut self, slot: u32, t: &mut Translation, any: u64) -> Option<u32> {
        if !self.notes.has_room(ROOM) {
            return None;
        }
        let tuple = self.store.get(slot)?.tuple();
        let entered = self.enter(tuple, &t.deps, &t.overrides).unwrap_or_default();
        let interned = self.verdicts.intern(t, any);
        self.rename(slot, interned, entered);
        self.verdicts.body_of(interned.0)
    }
    /// The watch of an entry under this mask with an answer that depends on this, and its stamp there.
    fn enter(&mut self, tuple: u32, deps: &[Dep], overrides: &[Override]) -> Option<(u16, u32)> {
        let held = self.tuples.get(tuple)?;
        let under = Under {
            tuple,
            mask: &held.mask,
            v6: held.family == Family::V6,
            outside: outside(held.family),
        };
        self.watches.enter(deps, overrides, under)
    }
    /// As [`Cache::renew`], where the sweeper made the translation, of the entry that had this id.
    pub(crate) fn adopt(&mut self, slot: u32, id: u64, verdict: &Arc<Verdict>) {
        let Some(e) = self.store.get(slot).filter(|e| e.id() == id && e.alive()) else {
            return;
        };
        let tuple = e.tuple();
        if !self.notes.has_room(RESERVE) {
            return;
        }
        // Where more is known here than was when the sweeper translated, this side finds out by itself.
        let Some(entered) = self.enter(tuple, verdict.deps(), verdict.overrides()) else {
            return;
        };
        let interned = self.verdicts.adopt(verdict);
        self.rename(slot, interned, entered);
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
            self.verdicts.retain(verdict);
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
}

/// The bits that stand outside of compact keys: of packets that have none, all.
fn outside(family: Family) -> &'static FlowMask {
    static OUTSIDE: LazyLock<[FlowMask; 2]> = LazyLock::new(|| {
        let mut all = FlowMask::default();
        all.words_mut().fill(u64::MAX);
        [FlowMask::default(), all]
    });
    &OUTSIDE[usize::from(family == Family::Wide)]
}
