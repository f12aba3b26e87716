//! The Internet checksum (RFC 1071), its incremental update (RFC 1624), pseudo headers.
//!
//! Sums are ones'-complement sums of 16-bit words and may be added in any order and any width (RFC 1071, 2),
//! so the loop adds 64-bit words and folds at the end. They are kept unfolded in a [`Sum`].
//!
//! Zero has two representations. [`Sum::checksum`] never returns 0xffff where the words sum to zero in the
//! positive form only; UDP, in whose header 0 means "none", asks for [`Sum::checksum_nonzero`] (RFC 768).

/// A running ones'-complement sum. The order of additions does not matter; each slice but the last must
/// have an even number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

#[expect(
    clippy::cast_possible_truncation,
    reason = "folded into 16 bits by the lines before"
)]
const fn fold(mut s: u64) -> u16 {
    s = (s & 0xffff_ffff) + (s >> 32);
    s = (s & 0xffff_ffff) + (s >> 32);
    s = (s & 0xffff) + (s >> 16);
    s = (s & 0xffff) + (s >> 16);
    s as u16
}

#[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
const fn fold_wide(s: u128) -> u16 {
    fold(add(s as u64, (s >> 64) as u64))
}

/// Adds with end-around carry.
const fn add(a: u64, b: u64) -> u64 {
    let (s, carry) = a.overflowing_add(b);
    s + carry as u64
}

impl Sum {
    /// Nothing summed.
    pub const ZERO: Self = Self(0);

    /// Adds bytes; an odd last byte is the high half of a word whose low half is zero.
    #[must_use]
    pub fn bytes(self, b: &[u8]) -> Self {
        let (words, rest) = b.as_chunks::<8>();
        let word = |b: &[u8; 8]| u128::from(u64::from_ne_bytes(*b));
        // In the processor's byte order: words may be swapped before they are added or after it (RFC 1071,
        // 2). Two sums side by side, so that one addition need not wait for the other's carry.
        let (mut even, mut odd) = (0, 0);
        let (pairs, last) = words.as_chunks::<2>();
        for [x, y] in pairs {
            even += word(x);
            odd += word(y);
        }
        for x in last {
            even += word(x);
        }
        let (fours, rest) = rest.as_chunks::<4>();
        for x in fours {
            even += u128::from(u32::from_ne_bytes(*x));
        }
        let (twos, rest) = rest.as_chunks::<2>();
        for x in twos {
            odd += u128::from(u16::from_ne_bytes(*x));
        }
        if let [x] = rest {
            odd += u128::from(u16::from_ne_bytes([*x, 0]));
        }
        Self(add(self.0, u16::from_be(fold_wide(even + odd)).into()))
    }
    /// Adds one 16-bit word.
    #[must_use]
    pub const fn word(self, w: u16) -> Self {
        Self(add(self.0, w as u64))
    }
    /// Adds two 16-bit words.
    #[must_use]
    pub const fn word32(self, w: u32) -> Self {
        Self(add(self.0, w as u64))
    }
    /// Adds another sum.
    #[must_use]
    pub const fn sum(self, other: Sum) -> Self {
        Self(add(self.0, other.0))
    }
    /// The IPv4 pseudo header of an L4 packet of `len` bytes.
    #[must_use]
    pub const fn pseudo_v4(self, src: u32, dst: u32, proto: u8, len: u32) -> Self {
        self.word32(src).word32(dst).word(proto as u16).word32(len)
    }
    /// The IPv6 pseudo header of an L4 packet of `len` bytes (RFC 8200, 8.1).
    #[must_use]
    pub fn pseudo_v6(self, src: &[u8; 16], dst: &[u8; 16], proto: u8, len: u32) -> Self {
        self.bytes(src).bytes(dst).word(u16::from(proto)).word32(len)
    }
    /// The sum in 16 bits, not complemented: what a pseudo header's partial checksum is.
    pub const fn folded(self) -> u16 {
        fold(self.0)
    }
    /// The checksum: the complement of the sum.
    pub const fn checksum(self) -> u16 {
        !fold(self.0)
    }
    /// The checksum, with 0xffff for 0: for UDP, where 0 means that there is none.
    pub const fn checksum_nonzero(self) -> u16 {
        match !fold(self.0) {
            0 => 0xffff,
            c => c,
        }
    }
}

/// The checksum of bytes. A header with a right checksum in it gives 0.
pub fn checksum(b: &[u8]) -> u16 {
    Sum::ZERO.bytes(b).checksum()
}

/// The checksum `old` of a header in which the 16-bit word `from` becomes `to` (RFC 1624, equation 3).
pub const fn update16(old: u16, from: u16, to: u16) -> u16 {
    !fold(!old as u64 + !from as u64 + to as u64)
}

/// The checksum `old` of a header in which the 32-bit word `from` becomes `to`.
pub const fn update32(old: u16, from: u32, to: u32) -> u16 {
    let s = (!old) as u64 + (!from >> 16) as u64 + (!from & 0xffff) as u64;
    !fold(s + (to >> 16) as u64 + (to & 0xffff) as u64)
}

#[cfg(test)]
mod tests;
