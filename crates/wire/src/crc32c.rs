//! CRC-32C (Castagnoli), SCTP's checksum (RFC 9260, appendix A): reflected polynomial 0x82f63b78.
//!
//! Eight table look-ups per eight bytes ("slicing by 8"). The switch computes the checksum only if it changes
//! a port or makes a packet. SCTP packets that it merely forwards keep theirs.

const POLY: u32 = 0x82f6_3b78;

#[expect(clippy::cast_possible_truncation, reason = "an index below 256")]
#[expect(clippy::indexing_slicing, reason = "the compiler computes it, and would say")]
const fn tables() -> [[u32; 256]; 8] {
    let mut t = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 != 0 { c >> 1 ^ POLY } else { c >> 1 };
            bit += 1;
        }
        t[0][i] = c;
        i += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut i = 0;
        while i < 256 {
            let c = t[n - 1][i];
            t[n][i] = c >> 8 ^ t[0][(c & 0xff) as usize];
            i += 1;
        }
        n += 1;
    }
    t
}

static TABLES: [[u32; 256]; 8] = tables();

/// Continues a CRC over more bytes. Start with [`START`], end with [`finish`].
#[expect(clippy::indexing_slicing, reason = "a byte is an index of a table of 256")]
pub fn update(mut crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    for w in words {
        let x = u64::from_le_bytes(*w) ^ u64::from(crc);
        crc = TABLES
            .iter()
            .rev()
            .zip(x.to_le_bytes())
            .fold(0, |acc, (t, b)| acc ^ t[usize::from(b)]);
    }
    for b in rest {
        crc = crc >> 8 ^ TABLES[0][usize::from(crc.to_le_bytes()[0] ^ b)];
    }
    crc
}

/// Initial value of a CRC.
pub const START: u32 = u32::MAX;

/// The CRC as the four bytes that the SCTP header carries.
pub const fn finish(crc: u32) -> [u8; 4] {
    (!crc).to_le_bytes()
}

/// The CRC of bytes, as the SCTP header carries it; its own field must be zero.
pub fn crc32c(bytes: &[u8]) -> [u8; 4] {
    finish(update(START, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(bytes: &[u8]) -> u32 {
        let mut c = u32::MAX;
        for b in bytes {
            c ^= u32::from(*b);
            for _ in 0..8 {
                c = if c & 1 != 0 { c >> 1 ^ POLY } else { c >> 1 };
            }
        }
        !c
    }

    #[test]
    fn known_values() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa_u32.to_le_bytes());
        assert_eq!(crc32c(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    }

    proptest! {
        #[test]
        fn sliced_equals_plain(a: Vec<u8>, b: Vec<u8>) {
            let all = [a.clone(), b.clone()].concat();
            prop_assert_eq!(finish(update(update(START, &a), &b)), plain(&all).to_le_bytes());
        }
    }
}
