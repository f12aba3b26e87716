//! What an origin's last bursts found, to be looked at before anything is hashed.

use super::NO_SLOT;
use crate::compact::CompactKey;

/// What the last bursts of an origin's packets found.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    pub(super) last: Last,
    pub(super) guess: Guess,
}

/// The last run of the burst before, if it carried nothing.
#[derive(Debug, Default)]
pub(super) struct Last {
    pub(super) key: CompactKey,
    pub(super) slot: u32,
    /// Zero: none.
    pub(super) id: u64,
}

/// The entry that the last run of the burst before matched, whatever its key: where many flows have one
/// entry, it is looked at before anything is hashed.
#[derive(Debug, Default)]
pub(super) struct Guess {
    pub(super) slot: u32,
    /// How often it would have been right lately.
    trust: u8,
    /// Runs that it answered, for which its mask is not counted up yet.
    pub(super) hits: u32,
}

impl Guess {
    /// It is looked at from here on. Bursts of one entry count one up, others two down.
    const TRUSTED: u8 = 4;
    const MOST: u8 = 8;

    #[inline]
    pub(super) fn slot(&self) -> Option<u32> {
        (self.trust >= Self::TRUSTED).then_some(self.slot)
    }
    /// The first and the last run of a burst had these entries.
    #[inline]
    pub(super) fn learn(&mut self, first: u32, last: u32) {
        let same = first == last && last != NO_SLOT;
        self.trust = if same {
            (self.trust + 1).min(Self::MOST)
        } else {
            self.trust.saturating_sub(2)
        };
        self.slot = last;
    }
}
