//! Detects from the raw bytes that a packet has the same key as the packet before it.
//!
//! Packets of a flow often come in a row, and their headers differ in few bytes. Comparing the other bytes
//! takes a third of the time of making a key and comparing it. This covers TCP and UDP over IPv4 without a
//! tag.
//!
//! **Invariant.** `true` means that [`super::CompactKey::read`] gives this packet the same key as the one
//! before. `false` means nothing.

use super::{Frame, IPV4, VIEW, at, be16};

/// The number of words that are compared: Ethernet, IPv4, and TCP up to its flags.
const WORDS: usize = 6;

/// The bytes that count, without TCP's part of the last word. These are Ethernet addresses, EtherType,
/// version, header length and type of service; time to live and protocol; IP addresses and ports.
const MASK: [u64; WORDS] = mask(&[(0, 16), (22, 2), (26, 12)]);
/// The bytes of the last word that count for TCP: header length and flags.
const TCP: u64 = mask(&[(46, 2)])[WORDS - 1];
/// The fragment bits: the offset, and "more fragments".
const FRAGMENT: u64 = (0x3fff_u64 << 16).to_be();

/// A mask of byte ranges, each with its first byte and its length. In the machine's order, as the packet's
/// words are compared.
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

/// The headers of the packet before, for comparison with the next one.
#[derive(Clone, Copy, Debug)]
pub struct SameKey {
    words: [u64; WORDS],
    /// Bits of the last word that count.
    last: u64,
    origin: u32,
    /// Minimum total length: IPv4's header and the L4 header together.
    headers: usize,
    /// The number of packet bytes that the view must have.
    head: usize,
}

impl SameKey {
    /// Remembers an ordinary packet. `None`: the packet is not TCP or UDP over untagged IPv4.
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
    /// Whether a packet has the same key. `false` proves nothing.
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
