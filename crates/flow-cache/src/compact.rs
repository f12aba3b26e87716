//! The compact key: 64 bytes that say all about a packet's usual headers, and the number of all else.
//!
//! **What it holds.** Ethernet addresses, one VLAN tag, addresses, protocol, ports and what goes with them of
//! IPv4, IPv6 (and ARP, whose addresses and operation stand where IPv4's do). What a key may hold besides
//! stands outside ([`outside`]): what the packet carries (recirculation, tunnel, connection state, mark), and
//! headers that most packets do not have (fragments, a second tag, labels, neighbour discovery, ...). A
//! packet with such headers is *odd*, and its kind says so. In the place of the input port stands a number
//! for port and recirculation id together, the packet's *origin* ([`super::subtable`]); in an entry's key
//! also for what of the outside the entry's mask looks at, its *context* ([`crate::context`]).
//!
//! **Invariant.** Two full keys are equal exactly when their compact keys and what is outside of both are
//! equal.
//!
//! Fields stand as they do on the wire wherever that saves work: [`CompactKey::read`] makes a key of a
//! packet's first bytes with a handful of loads at fixed places, for TCP, UDP and ICMP without anything odd.
//! Layout, by byte (numbers of more than a byte in the machine's order but where "wire" is said):
//!
//! | word | bytes |
//! | --- | --- |
//! | 0 | Ethernet destination (6, wire), source (first 2, wire) |
//! | 1 | source (last 4, wire), origin or context (4) |
//! | 2 | TCI with present bit (2), TCP flags (2, wire), type of service, time to live, protocol, kind |
//! | 3 | L4 source and destination port, or ICMP type and code as such (2 + 2, wire), IPv6 flow label (4) |
//! | 4–7 | source and destination (wire): IPv4 has both in word 4 and zeros behind |

mod again;
mod full;
mod mask;

pub use again::Again;
pub use full::Room;
pub(crate) use full::outside;
use heddle_simd::hash::HashKey;
pub(crate) use mask::CompactMask;

/// See the module's text.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct CompactKey([u64; 8]);

impl PartialEq for CompactKey {
    /// Word by word: the keys compared are often still in registers, and a wide load behind narrow stores
    /// waits for them. What differs between flows comes first.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        let odd = |words: std::ops::Range<usize>| words.fold(0, |odd, i| odd | (a[i] ^ b[i]));
        odd(3..5) == 0 && odd(0..3) | odd(5..8) == 0
    }
}

impl Eq for CompactKey {}

const KIND_V6: u8 = 1;
const KIND_VLAN: u8 = 2;
const KIND_QINQ: u8 = 4;
/// It has headers that stand outside.
const KIND_ODD: u8 = 8;

/// Packets that share no masks with others: by the shape of their compact keys, and whether they are odd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family(u8);

impl Family {
    /// How many there are.
    pub const ALL: usize = 4;
    pub(crate) fn is_v6(self) -> bool {
        self.0 & KIND_V6 != 0
    }
    /// Whether its packets have headers that a compact key has no room for.
    pub fn is_odd(self) -> bool {
        self.0 & KIND_ODD != 0
    }
    /// Its number.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0 & KIND_V6 | (self.0 & KIND_ODD) >> 2)
    }
}

/// The members of a compact key, each in its own representation.
struct Parts {
    macs: [u64; 2],
    context: u32,
    tci: u16,
    flags: u16,
    tos: u8,
    ttl: u8,
    proto: u8,
    kind: u8,
    ports: u32,
    label: u32,
    addrs: [u64; 4],
}

impl Parts {
    #[inline(always)]
    fn key(self) -> CompactKey {
        let w2 = u64::from(self.tci)
            | u64::from(self.flags) << 16
            | u64::from(self.tos) << 32
            | u64::from(self.ttl) << 40
            | u64::from(self.proto) << 48
            | u64::from(self.kind) << 56;
        CompactKey([
            self.macs[0],
            self.macs[1] | u64::from(self.context) << 32,
            w2,
            u64::from(self.ports) | u64::from(self.label) << 32,
            self.addrs[0],
            self.addrs[1],
            self.addrs[2],
            self.addrs[3],
        ])
    }
}

/// Two Ethernet addresses, as the key has them.
fn mac_words(d: &[u8; 6], s: &[u8; 6]) -> [u64; 2] {
    [
        u64::from_ne_bytes([d[0], d[1], d[2], d[3], d[4], d[5], s[0], s[1]]),
        u64::from(u32::from_ne_bytes([s[2], s[3], s[4], s[5]])),
    ]
}

fn port_word(src: u16, dst: u16) -> u32 {
    let (s, d) = (src.to_be_bytes(), dst.to_be_bytes());
    u32::from_ne_bytes([s[0], s[1], d[0], d[1]])
}

fn v4_words(src: u32, dst: u32) -> [u64; 4] {
    let (s, d) = (src.to_be_bytes(), dst.to_be_bytes());
    [
        u64::from_ne_bytes([s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]]),
        0,
        0,
        0,
    ]
}

fn v6_words(src: &[u8; 16], dst: &[u8; 16]) -> [u64; 4] {
    let half = |a: &[u8; 16], i: usize| {
        let mut b = [0; 8];
        b.copy_from_slice(&a[i..i + 8]);
        u64::from_ne_bytes(b)
    };
    [half(src, 0), half(src, 8), half(dst, 0), half(dst, 8)]
}

impl CompactKey {
    #[inline]
    /// Its words.
    pub fn words(&self) -> &[u64; 8] {
        &self.0
    }
    pub(crate) fn from_words(words: [u64; 8]) -> Self {
        Self(words)
    }
    /// Keyed hash.
    #[inline]
    pub fn hash(&self, k: &HashKey) -> u64 {
        k.key(|i| self.0[i], self.is_v6(), 0)
    }
    /// Equal for packets of the same origin and the same family.
    #[inline]
    pub(crate) fn class(&self) -> u64 {
        self.0[1] >> 32 << 8 | u64::from(self.family().0)
    }
    #[inline]
    /// Which headers it has room for.
    pub fn family(&self) -> Family {
        Family(self.kind() & (KIND_V6 | KIND_ODD))
    }
    /// The packet's origin, or the entry's context.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the upper half
    pub fn context(&self) -> u32 {
        (self.0[1] >> 32) as u32
    }
    /// The same key with another origin or context.
    #[inline]
    pub fn with_context(mut self, context: u32) -> Self {
        self.0[1] = self.0[1] & u64::from(u32::MAX) | u64::from(context) << 32;
        self
    }
    /// The same key of a packet of IPv4 with other addresses (high halves) and ports.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    pub fn with_ends4(mut self, src: u64, dst: u64) -> Self {
        self.0[3] = self.0[3] & !u64::from(u32::MAX) | u64::from(port_word(src as u16, dst as u16));
        self.0[4] = v4_words((src >> 32) as u32, (dst >> 32) as u32)[0];
        self
    }
    #[inline]
    fn kind(&self) -> u8 {
        self.byte(7)
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // one byte of the word is wanted
    fn byte(&self, i: u32) -> u8 {
        (self.0[2] >> (8 * i)) as u8
    }
    /// The IP protocol.
    #[inline]
    pub fn proto(&self) -> u8 {
        self.byte(6)
    }
    /// The TCP flags.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // as above
    pub fn tcp_flags(&self) -> u16 {
        u16::from_be((self.0[2] >> 16) as u16)
    }
    /// Whether the headers are at the same places, and of one protocol.
    #[inline]
    pub fn laid_out_as(&self, other: &Self) -> bool {
        (self.proto(), self.kind()) == (other.proto(), other.kind())
    }
    /// Where the IP header is in a packet that [`CompactKey::read`] has read.
    #[inline]
    pub fn l3(&self) -> u16 {
        if self.kind() & KIND_VLAN != 0 { 18 } else { 14 }
    }
    /// Where the L4 header is, as above.
    #[inline]
    pub fn l4(&self) -> u16 {
        self.l3() + if self.kind() & KIND_V6 != 0 { 40 } else { 20 }
    }
}

// -- from bytes

/// How many bytes of a packet [`CompactKey::read`] looks at: Ethernet, a tag, IPv6, TCP.
pub const VIEW: usize = 80;

/// What is known of a packet besides its first bytes.
#[derive(Clone, Copy)]
pub struct Frame {
    /// How many of the bytes shown are the packet's; what lies behind them means nothing.
    pub head: usize,
    /// Length of the packet.
    pub total: usize,
    /// Its origin: the input port of one that was not recirculated.
    pub origin: u32,
    /// Whether tags are looked behind.
    pub vlan: bool,
}

/// `N` bytes at a fixed place. Inlined with constants: no check is left.
#[inline(always)]
fn at<const N: usize>(b: &[u8; VIEW], i: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[i..i + N]);
    out
}

const IPV4: u16 = 0x0800;

#[inline(always)]
fn be16(b: &[u8; VIEW], i: usize) -> u16 {
    u16::from_be_bytes(at(b, i))
}

#[inline(always)]
fn be64(b: &[u8; VIEW], i: usize) -> u64 {
    u64::from_be_bytes(at(b, i))
}

impl CompactKey {
    /// The compact key of an ordinary packet with its headers in the usual places; `None`: parse it the long
    /// way. That is the answer for all odd packets, for other protocols, and for those with IPv4 options.
    ///
    /// Equal to [`CompactKey::of`] the packet's full key (a test holds it to that).
    #[inline(always)]
    pub fn read(b: &[u8; VIEW], f: Frame) -> Option<Self> {
        match be16(b, 12) {
            IPV4 => ipv4::<14>(b, f, 0, 0),
            0x86dd => ipv6::<14>(b, f, 0, 0),
            tpid @ (0x8100 | 0x88a8) => tagged(b, f, tpid),
            _ => None,
        }
    }
}

#[inline]
fn tagged(b: &[u8; VIEW], f: Frame, tpid: u16) -> Option<CompactKey> {
    if !f.vlan {
        return None;
    }
    let tci = be16(b, 14) | heddle_flow::Vlan::CFI;
    let kind = if tpid == 0x8100 {
        KIND_VLAN
    } else {
        KIND_VLAN | KIND_QINQ
    };
    match be16(b, 16) {
        IPV4 => ipv4::<18>(b, f, tci, kind),
        0x86dd => ipv6::<18>(b, f, tci, kind),
        _ => None,
    }
}

#[inline(always)]
fn ipv4<const L3: usize>(b: &[u8; VIEW], f: Frame, tci: u16, kind: u8) -> Option<CompactKey> {
    // From the EtherType to the identification, and from the flags to the first half of the source: few loads
    // for many fields.
    let (first, second) = (be64(b, L3 - 2), be64(b, L3 + 6));
    #[allow(clippy::cast_possible_truncation)] // fields are taken out of words
    let (len, tos, ttl, proto) = (
        usize::from((first >> 16) as u16),
        (first >> 32) as u8,
        (second >> 40) as u8,
        (second >> 32) as u8,
    );
    // Version 4 without options; not a fragment; no longer than the packet, which has no more padding than
    // can be told.
    let sound = (first >> 40 == u64::from(IPV4) << 8 | 0x45)
        & (second & 0x3fff << 48 == 0)
        & (len + L3 <= f.total)
        & (f.total <= usize::from(u16::MAX));
    // Shorter than its own header is no less odd: the least length of L4 says so too.
    if !sound || len < 20 || proto == 58 {
        return None;
    }
    let (ports, flags) = l4(b, L3 + 20, f.head, len - 20, proto)?;
    let parts = Parts {
        macs: macs(b),
        context: f.origin,
        tci,
        flags,
        tos,
        ttl,
        proto,
        kind,
        ports,
        label: 0,
        addrs: [u64::from_ne_bytes(at(b, L3 + 12)), 0, 0, 0],
    };
    Some(parts.key())
}

#[inline]
fn ipv6<const L3: usize>(b: &[u8; VIEW], f: Frame, tci: u16, kind: u8) -> Option<CompactKey> {
    let len = usize::from(be16(b, L3 + 4));
    let flow = u32::from_be_bytes(at(b, L3));
    let sound = flow >> 28 == 6 && len + L3 + 40 <= f.total && f.total <= usize::from(u16::MAX);
    if !sound {
        return None;
    }
    let proto = b[L3 + 6];
    // ICMP in IPv6 is no usual thing; neighbour discovery says more than a compact key can.
    if proto == 1 || proto == 58 && matches!(b[L3 + 40], 135 | 136) && b[L3 + 41] == 0 {
        return None;
    }
    let (ports, flags) = l4(b, L3 + 40, f.head, len, proto)?;
    #[allow(clippy::cast_possible_truncation)] // a byte is wanted
    let tos = (flow >> 20) as u8;
    let word = |i: usize| u64::from_ne_bytes(at(b, L3 + 8 + 8 * i));
    let parts = Parts {
        macs: macs(b),
        context: f.origin,
        tci,
        flags,
        tos,
        ttl: b[L3 + 7],
        proto,
        kind: kind | KIND_V6,
        ports,
        label: flow & 0xf_ffff,
        addrs: [word(0), word(1), word(2), word(3)],
    };
    Some(parts.key())
}

#[inline(always)]
fn macs(b: &[u8; VIEW]) -> [u64; 2] {
    [
        u64::from_ne_bytes(at(b, 0)),
        u64::from(u32::from_ne_bytes(at(b, 8))),
    ]
}

/// Ports and TCP flags. `left`: bytes that the IP header says are its payload.
#[inline(always)]
fn l4(b: &[u8; VIEW], l4: usize, head: usize, left: usize, proto: u8) -> Option<(u32, u16)> {
    let (tcp, udp) = (proto == 6, proto == 17);
    if !(tcp || udp) {
        // ICMP of either version: type and code as ports.
        let icmp = matches!(proto, 1 | 58) && left >= 8 && head >= l4 + 8;
        return icmp.then(|| (u32::from_ne_bytes([0, b[l4], 0, b[l4 + 1]]), 0));
    }
    // Chosen without a branch: both protocols in one burst are no rarity.
    let ctl: [u8; 2] = at(b, l4 + 12);
    let need = if tcp { 20 } else { 8 };
    let header = if tcp { usize::from(ctl[0] >> 4) * 4 } else { 8 };
    let flags = if tcp {
        u16::from_ne_bytes([ctl[0] & 0x0f, ctl[1]])
    } else {
        0
    };
    if (header < need) | (left < header) | (head < l4 + need) {
        return None;
    }
    Some((u32::from_ne_bytes(at(b, l4)), flags))
}
