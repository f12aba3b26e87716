//! The entries that the last bursts of an origin matched. They are compared before anything is hashed.

use super::NO_SLOT;
use crate::compact::CompactKey;

/// Shortcuts to the entries that the last bursts of an origin matched.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    pub(super) last: Last,
    pub(super) guess: Guess,
}

/// The last run of the burst before, if it had nothing outside of its compact key.
#[derive(Debug, Default)]
pub(super) struct Last {
    pub(super) key: CompactKey,
    pub(super) slot: u32,
    /// Id of the entry; zero: none.
    pub(super) id: u64,
}

/// The entry that the last run of the burst before matched, whatever its key. It helps when many flows share
/// one entry.
#[derive(Debug, Default)]
pub(super) struct Guess {
    pub(super) slot: u32,
    /// Confidence that the guess is right, from 0 to `MOST`.
    trust: u8,
    /// Runs that the guess matched and that are not counted as hits of its mask yet.
    pub(super) hits: u32,
}

impl Guess {
    /// The guess is tried from this confidence on. A burst of one entry adds one, any other burst subtracts
    /// two.
    const TRUSTED: u8 = 4;
    const MOST: u8 = 8;

    #[inline]
    pub(super) fn slot(&self) -> Option<u32> {
        (self.trust >= Self::TRUSTED).then_some(self.slot)
    }
    /// Updates the guess from the slots of the first and the last run of a burst.
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
