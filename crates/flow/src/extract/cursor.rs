//! A place in a packet of which only the first part may be at hand.

use crate::extract::NO_OFFSET;
use heddle_wire::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Reasons why a header is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// The packet (or the layer that contains the header) ends before it does.
    End,
    /// The packet continues, but the bytes given end.
    BeyondView,
}

/// Invariant: `view` is the rest of the bytes given, `left` the length of the layer's rest; either may be the
/// longer.
pub(super) struct Cursor<'a> {
    view: &'a [u8],
    left: usize,
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], total: usize) -> Self {
        Self {
            view: bytes,
            left: total.max(bytes.len()),
            pos: 0,
        }
    }
    /// Bytes left of the layer.
    pub(super) fn left(&self) -> usize {
        self.left
    }
    /// Offset of the cursor, [`NO_OFFSET`] if it does not fit.
    pub(super) fn offset(&self) -> u16 {
        u16::try_from(self.pos).unwrap_or(NO_OFFSET)
    }
    /// The layer ends `n` bytes from here, if it does not end before.
    pub(super) fn limit(&mut self, n: usize) {
        self.left = self.left.min(n);
    }
    /// The header at the cursor.
    pub(super) fn peek<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> Result<&'a T, Stop> {
        if self.left < size_of::<T>() {
            return Err(Stop::End);
        }
        heddle_wire::split(self.view)
            .map(|(t, _)| t)
            .ok_or(Stop::BeyondView)
    }
    /// Moves on; past the view's end it stays there, and the next header is beyond the view.
    pub(super) fn skip(&mut self, n: usize) {
        self.view = self.view.get(n..).unwrap_or(&[]);
        self.left = self.left.saturating_sub(n);
        self.pos = self.pos.saturating_add(n);
    }
    /// Returns the header at the cursor, and moves behind it.
    pub(super) fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(&mut self) -> Result<&'a T, Stop> {
        let t = self.peek()?;
        self.skip(size_of::<T>());
        Ok(t)
    }
}
