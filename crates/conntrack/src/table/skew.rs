//! The shift of sequence numbers in one direction of a TCP connection whose text a helper has replaced.
//!
//! Bytes sent before the last replacement are shifted by the earlier replacements only. So a retransmitted
//! segment is shifted and rewritten as it was the first time. A shift is one word, so that it changes at
//! once.

/// The shift of one direction; zero if no text was replaced.
///
/// * 32 bits: the sequence number, as sent, of the segment that was rewritten last.
/// * 8 bits: the change of length by that segment.
/// * 24 bits: the sum of all changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Skew(pub(crate) u64);

/// Largest sum of changes, bytes.
const MAX_SUM: i32 = (1 << 23) - 1;

/// Serial number arithmetic (RFC 1982): whether `a` is behind `b`.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

impl Skew {
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    fn parts(self) -> (u32, i32, i32) {
        let (pos, last, sum) = (self.0 >> 32, (self.0 >> 24) as u8, self.0 as u32);
        (
            pos as u32,
            last.cast_signed().into(),
            (sum << 8).cast_signed() >> 8,
        )
    }
    /// The shift of a sequence number as it was sent.
    pub(crate) fn of_sent(self, seq: u32) -> i32 {
        let (pos, last, sum) = self.parts();
        if self.0 == 0 || after(seq, pos) {
            sum
        } else {
            sum - last
        }
    }
    /// The shift, to be added, that turns a sequence number seen by the receiver into the one that was sent.
    pub(crate) fn of_received(self, seq: u32) -> i32 {
        let (pos, last, sum) = self.parts();
        let before = sum - last;
        if self.0 == 0 || after(seq.wrapping_add_signed(-before), pos) {
            -sum
        } else {
            -before
        }
    }
    /// The segment at `seq` has become longer by `n` bytes. `None`: the change or the sum is too large.
    pub(crate) fn with(self, seq: u32, n: i32) -> Option<Self> {
        let (pos, _, sum) = self.parts();
        if n == 0 || self.0 != 0 && !after(seq, pos) {
            return Some(self);
        }
        let (last, sum) = (i8::try_from(n).ok()?, sum + n);
        (sum.abs() <= MAX_SUM).then_some(())?;
        let low = u64::from(last.cast_unsigned()) << 24 | u64::from(sum.cast_unsigned() & 0xff_ffff);
        Some(Self(u64::from(seq) << 32 | low))
    }
}
