//! From a connection to the entry that its packets had before ([`crate::links`]).

use super::find::NO_BODY;
use super::{Asked, Cache, Moment, is_current};
use crate::compact::CompactKey;
use crate::links::Target;
use crate::program_table::Program;
use heddle_conntrack::Brief;

/// Entries that are near after some bursts.
const FEW: usize = 256;

impl<P: Program> Cache<P> {
    /// Fetches what [`Cache::follow`] reads of a connection.
    #[inline]
    pub fn fetch_links(&self, number: u32) {
        self.links.prefetch(number);
    }
    /// Fetches the entries that packets of a connection will probably be led to.
    #[inline]
    pub fn fetch_linked(&self, number: u32) {
        self.links.guess(number).for_each(|slot| self.fetch(slot));
    }
    /// Whether entries are so many that not all of them are near.
    #[inline]
    pub fn has_many(&self) -> bool {
        self.store.len() > FEW
    }
    /// The program of a packet with this key and its origin, of whose connection this is known, if that is
    /// known from before, and the entry is known to be right; then it has counted the packet.
    #[inline]
    pub fn follow(&mut self, b: &Brief, key: &CompactKey, bytes: u64, moment: &Moment<'_>) -> Option<u32> {
        let to = self.links.find(b, key.context())?;
        let e = self.store.get(to.slot)?;
        let mask = self.subtables.compact(e.subtable())?;
        // What the context asks for, the link has told; it stands where the origin does.
        let own = key.with_context(e.key().context());
        if e.id() != to.id || !e.alive() || !mask.same(|i| e.word(i), &own) {
            return None;
        }
        let asked = Asked {
            subtables: &self.subtables,
            contexts: &self.contexts,
        };
        if !is_current(e, &mut self.watches, &self.translations, &asked, moment) {
            return None;
        }
        e.count(1, bytes, moment.now_ms, key.tcp_flags());
        Some(e.body())
    }
    /// Remembers that run `r` of the last lookup, of whose connection this is known, has the entry that was
    /// found for it.
    pub fn link(&mut self, b: &Brief, key: &CompactKey, r: usize) {
        let Some(found) = self.scratch.found.get(r).filter(|f| f.body != NO_BODY) else {
            return;
        };
        if let Some(e) = self.store.get(found.slot) {
            let to = Target {
                slot: found.slot,
                id: e.id(),
            };
            self.links.learn(b, key.context(), to);
        }
    }
}
