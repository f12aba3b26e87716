//! Following a link from a connection to the entry that its last packets matched ([`crate::links`]).

use super::{Cache, LookupContext, is_current};
use crate::compact::CompactKey;
use crate::links::Target;
use crate::program_table::{NO_PROGRAM, Program, ProgramId};
use heddle_conntrack::ConnSummary;

/// The number of entries that a processor's cache holds after some bursts.
const MAX_NEAR_ENTRIES: usize = 256;

impl<P: Program> Cache<P> {
    /// Prefetches the links of a connection, which [`Cache::follow`] reads.
    #[inline]
    pub fn fetch_links(&self, number: u32) {
        self.links.prefetch(number);
    }
    /// Prefetches the entries that packets of a connection will probably match.
    #[inline]
    pub fn fetch_linked(&self, number: u32) {
        self.links.guess(number).for_each(|slot| self.fetch(slot));
    }
    /// Whether there are too many entries for the processor's cache.
    #[inline]
    pub fn has_many(&self) -> bool {
        self.store.len() > MAX_NEAR_ENTRIES
    }
    /// Follows the link of a packet's connection. `key` has the packet's origin. Returns the program of the
    /// linked entry if the entry matches and is known to be valid, and counts the packet there.
    #[inline]
    pub fn follow(
        &mut self,
        b: &ConnSummary,
        key: &CompactKey,
        bytes: u64,
        lookup: &LookupContext<'_>,
    ) -> Option<ProgramId> {
        let to = self.links.find(b, key.origin())?;
        let e = self.store.get(to.slot)?;
        let mask = self.subtables.compact(e.subtable())?;
        // The link has already checked the words that the context holds. The context replaces the origin in
        // the key.
        let own = key.with_origin(e.key().origin());
        if e.id() != to.id || !e.alive() || !mask.same(|i| e.word(i), &own) {
            return None;
        }
        if !is_current(
            e,
            &mut self.groups,
            &self.translations,
            &self.subtables,
            &self.contexts,
            lookup,
        ) {
            return None;
        }
        e.count(1, bytes, lookup.now_ms, key.tcp_flags());
        Some(e.program())
    }
    /// Links the connection `b` to the entry that the last lookup found for run `r`. After a miss nothing is
    /// linked; the link comes with the first hit.
    pub fn link(&mut self, b: &ConnSummary, key: &CompactKey, r: usize) {
        let Some(found) = self.scratch.found.get(r).filter(|f| f.program != NO_PROGRAM) else {
            return;
        };
        if let Some(e) = self.store.get(found.slot) {
            let to = Target {
                slot: found.slot,
                id: e.id(),
            };
            self.links.learn(b, key.origin(), to);
        }
    }
}
