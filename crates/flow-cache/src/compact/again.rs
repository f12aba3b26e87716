//! Whether a packet has the key of the one before it, told from its bytes as they are.
//!
//! Packets of a flow often come in a row, and their headers differ in few bytes. To compare the others takes
//! a third of what it takes to make a key and to compare that. For TCP and UDP over IPv4 without a tag; of
//! other packets nothing is said.
//!
//! **Invariant.** `true` means: [`super::CompactKey::read`] gives this packet the key that it gave the one
//! before. `false` means nothing.

use super::{Frame, IPV4, VIEW, at, be16};

/// Words of a packet that are compared: Ethernet, IPv4, and TCP up to its flags.
const WORDS: usize = 6;

/// Bytes that count, those of the last word without TCP's: addresses, EtherType, version and length of the
/// header and type of service; time to live and protocol; addresses and ports.
const MASK: [u64; WORDS] = mask(&[(0, 16), (22, 2), (26, 12)]);
/// Of TCP besides: length of the header, and flags.
const TCP: u64 = mask(&[(46, 2)])[WORDS - 1];
/// What is set in fragments: an offset, or more to follow.
const FRAGMENT: u64 = (0x3fff_u64 << 16).to_be();

/// A mask of these bytes: first one, and how many. In the machine's order, as the packet's words are
/// compared.
const fn mask(parts: &[(usize, usize)]) -> [u64; WORDS] {
    let mut words = [0_u64; WORDS];
    let mut p = 0;
    while p < parts.len() {
        let (first, n) = parts[p];
        let mut i = first;
        while i < first + n {
            words[i / 8] |= (0xff_u64 << (56 - i % 8 * 8)).to_be();
            i += 1;
        }
        p += 1;
    }
    words
}

#[inline(always)]
fn word(b: &[u8; VIEW], i: usize) -> u64 {
    u64::from_ne_bytes(at(b, 8 * i))
}

/// What the packet before looked like.
#[derive(Clone, Copy, Debug)]
pub struct Again {
    words: [u64; WORDS],
    /// Bits of the last word that count.
    last: u64,
    origin: u32,
    /// Lengths of IPv4's header and of the L4 header together.
    headers: usize,
    /// How many bytes of the packet have to be shown.
    head: usize,
}

impl Again {
    /// Of an ordinary packet; `None`: it is none of those that this is for.
    pub fn of(b: &[u8; VIEW], f: Frame) -> Option<Self> {
        if be16(b, 12) != IPV4 {
            return None;
        }
        let (last, l4, need) = match b[23] {
            6 => (TCP, usize::from(b[46] >> 4) * 4, 20),
            17 => (0, 8, 8),
            _ => return None,
        };
        Some(Self {
            words: std::array::from_fn(|i| word(b, i)),
            last,
            origin: f.origin,
            headers: 20 + l4,
            head: 34 + need,
        })
    }
    /// Whether a packet has the same key. `false`: perhaps it has.
    #[inline(always)]
    pub fn is(&self, b: &[u8; VIEW], f: Frame) -> bool {
        let len = usize::from(be16(b, 16));
        let differ = |i: usize| word(b, i) ^ self.words[i];
        let odd = (0..WORDS - 1).fold(0, |odd, i| odd | differ(i) & MASK[i]) | differ(WORDS - 1) & self.last;
        (odd | word(b, 2) & FRAGMENT == 0)
            & (f.origin == self.origin)
            & (len >= self.headers)
            & (len + 14 <= f.total)
            & (f.total <= usize::from(u16::MAX))
            & (f.head >= self.head)
    }
}
