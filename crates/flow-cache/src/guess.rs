//! The entry that the last burst of an origin matched. A burst is compared with it before anything is hashed.

use crate::store::NO_SLOT;

/// The entry that the last run of the burst before matched, whatever its key. It helps when many flows share
/// one entry.
#[derive(Debug, Default)]
pub(crate) struct Guess {
    pub(crate) slot: u32,
    /// Confidence that the guess is right, from 0 to `MAX_TRUST`.
    trust: u8,
    /// Runs that the guess matched and that are not counted as hits of its mask yet.
    pub(crate) hits: u32,
}

impl Guess {
    /// The guess is tried from this confidence on. A burst of one entry adds one, any other burst subtracts
    /// two.
    const TRUSTED: u8 = 4;
    const MAX_TRUST: u8 = 8;

    #[inline]
    pub(crate) fn slot(&self) -> Option<u32> {
        (self.trust >= Self::TRUSTED).then_some(self.slot)
    }
    /// Updates the guess from the slots of the first and the last run of a burst. The guess is trusted where
    /// bursts match one entry, the same as the burst before.
    #[inline]
    pub(crate) fn learn(&mut self, first: u32, last: u32) {
        let same = first == last && last == self.slot && last != NO_SLOT;
        self.trust = if same {
            (self.trust + 1).min(Self::MAX_TRUST)
        } else {
            self.trust.saturating_sub(2)
        };
        self.slot = last;
    }
}
