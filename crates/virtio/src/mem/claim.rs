//! A value that a guest wrote: a claim until a check turns it into a value.

/// A value read once from shared memory and not checked yet. A caller takes it out only by naming the bound
/// that it must keep. A second read of the memory would give the guest a chance to change it after the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim<T>(T);

impl<T: Copy> Claim<T> {
    /// Wraps a value that was read.
    #[inline]
    pub fn new(value: T) -> Self {
        Self(value)
    }
    /// The value, if `ok` holds for it; else the value again, for an error text.
    ///
    /// # Errors
    /// The refused value.
    #[inline]
    pub fn check(self, ok: impl FnOnce(T) -> bool) -> Result<T, T> {
        if ok(self.0) { Ok(self.0) } else { Err(self.0) }
    }
    /// The value where every value is allowed: an opaque identifier that is handed back, a flag that is
    /// tested, a number for an error text.
    #[inline]
    pub fn any(self) -> T {
        self.0
    }
}

impl Claim<u16> {
    /// An index below `bound`.
    ///
    /// # Errors
    /// The refused value.
    #[inline]
    pub fn below(self, bound: u16) -> Result<u16, u16> {
        self.check(|v| v < bound)
    }
    /// The distance of a free-running index ahead of `from`, at most `max` (virtio 1.2 §2.7.6: indices wrap
    /// at 2^16).
    ///
    /// # Errors
    /// The refused value.
    #[inline]
    pub fn ahead_of(self, from: u16, max: u16) -> Result<u16, u16> {
        let n = self.0.wrapping_sub(from);
        if n <= max { Ok(n) } else { Err(self.0) }
    }
}
