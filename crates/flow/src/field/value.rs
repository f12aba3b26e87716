//! A field's value: up to 128 bits, right-aligned.

use core::fmt;

/// The value (or mask) of any field, or of a subfield: its bits are the low bits of a 128-bit big-endian
/// integer.
///
/// An Ethernet address is in the last six bytes, a port in the last two; the bytes before them are zero.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldValue(pub [u8; 16]);

impl FieldValue {
    /// All bits zero.
    pub const ZERO: Self = Self([0; 16]);
    /// All 128 bits set.
    pub const ONES: Self = Self([0xff; 16]);

    /// From an integer.
    pub const fn from_u128(v: u128) -> Self {
        Self(v.to_be_bytes())
    }
    /// The value as an integer.
    pub const fn as_u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }
    /// The value of an integer.
    pub const fn from_u64(v: u64) -> Self {
        Self::from_u128(v as u128)
    }
    /// The low 64 bits.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are what is asked for"
    )]
    pub const fn as_u64(self) -> u64 {
        self.as_u128() as u64
    }
    /// The low 32 bits.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are what is asked for"
    )]
    pub const fn as_u32(self) -> u32 {
        self.as_u128() as u32
    }
    /// From bytes in network order, at most 16 (further leading ones are ignored).
    pub fn from_bytes(b: &[u8]) -> Self {
        Self::from_u128(b.iter().fold(0, |acc, x| acc << 8 | u128::from(*x)))
    }
    /// The last `n` bytes, in network order: the value of an `n`-byte field (`n` at most 16).
    pub fn bytes(&self, n: usize) -> &[u8] {
        self.0.get(16usize.saturating_sub(n)..).unwrap_or(&[])
    }
    /// An Ethernet address.
    pub fn from_mac(mac: [u8; 6]) -> Self {
        Self::from_bytes(&mac)
    }
    /// The last six bytes.
    pub fn as_mac(self) -> [u8; 6] {
        core::array::from_fn(|i| self.0[10 + i])
    }
    /// Whether every bit is zero.
    pub fn is_zero(self) -> bool {
        self.as_u128() == 0
    }
    /// The low `n` bits set.
    pub const fn low_ones(n: u32) -> Self {
        Self::from_u128(ones(n))
    }
}

/// The `n` low bits set.
pub(super) const fn ones(n: u32) -> u128 {
    if n >= 128 { u128::MAX } else { (1 << n) - 1 }
}

impl core::ops::BitAnd for FieldValue {
    type Output = Self;
    fn bitand(self, o: Self) -> Self {
        Self::from_u128(self.as_u128() & o.as_u128())
    }
}
impl core::ops::BitOr for FieldValue {
    type Output = Self;
    fn bitor(self, o: Self) -> Self {
        Self::from_u128(self.as_u128() | o.as_u128())
    }
}
impl core::ops::Not for FieldValue {
    type Output = Self;
    fn not(self) -> Self {
        Self::from_u128(!self.as_u128())
    }
}
impl fmt::Debug for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.as_u128())
    }
}
