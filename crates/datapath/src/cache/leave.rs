//! How entries go.

use super::{Cache, wide};
use crate::entry::Entry;
use crate::note::{Counted, Note, RESERVE};

impl Cache {
    pub(super) fn counted(e: &Entry) -> Counted {
        // The owner's own entry does not change while the owner looks.
        let s = e.read();
        s.map_or(Counted::default(), |s| Counted {
            packets: s.packets,
            bytes: s.bytes,
            used_ms: s.used_ms,
            tcp_flags: s.tcp_flags,
        })
    }

    /// Takes an entry out of the lookups now and out of its slot at the next [`Cache::reap`].
    pub(crate) fn forget(&mut self, slot: u32) {
        let Some(e) = self.store.get(slot) else { return };
        e.condemn(e.id());
        let n = e.tuple();
        let hash = match self.wide.get(&slot) {
            Some(w) => wide::wide_hash_of(self.key, n, w.words.iter().copied()),
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
}
