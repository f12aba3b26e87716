//! The compact key: 64 bytes that hold a packet's usual headers, and a number for everything else.
//!
//! **Contents.** Ethernet addresses, one VLAN tag, and the addresses, protocol, ports and related fields of
//! IPv4 and IPv6. An ARP packet has its addresses and operation in the place of IPv4's. The other bits of a
//! full key are the *context* ([`context_mask`]). It has metadata (recirculation, tunnel, connection state,
//! mark) and rare headers (fragments, a second tag, labels, neighbour discovery, ...). A packet with such
//! headers is *odd*, which is a bit of its kind. A number replaces the input port and the recirculation id:
//! the packet's *origin* ([`super::subtable`]). In an entry's key the number may also be that of a record of
//! the origin and the context bits that the entry requires ([`crate::context`]).
//!
//! **Invariant.** Two full keys are equal exactly when their compact keys and their context bits are equal.
//!
//! Fields are stored as on the wire wherever that saves work. [`CompactKey::read`] makes a key of a packet's
//! first bytes with a few loads at fixed offsets, for ordinary TCP, UDP and ICMP packets. Layout, by byte
//! (numbers of more than a byte are in the machine's order unless marked "wire"):
//!
//! | word | bytes |
//! | --- | --- |
//! | 0 | Ethernet destination (6, wire), source (first 2, wire) |
//! | 1 | source (last 4, wire), origin or number of a context (4) |
//! | 2 | TCI with present bit (2), TCP flags (2, wire), type of service, time to live, protocol, kind |
//! | 3 | L4 source and destination port, or ICMP type and code as such (2 + 2, wire), IPv6 flow label (4) |
//! | 4–7 | source and destination (wire): IPv4 has both in word 4 and zeros behind |

mod again;
mod full;
mod mask;

pub use again::SameKey;
pub(crate) use full::context_mask;
pub use full::{Room, Source};
use heddle_simd::hash::HashKey;
pub(crate) use mask::CompactMask;

/// The compact key of a packet or of an entry.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct CompactKey([u64; 8]);

impl PartialEq for CompactKey {
    /// Word by word: the keys compared are often still in registers, and a wide load behind narrow stores
    /// waits for them. The words that differ most between flows come first.
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
/// The packet has headers outside of the compact key.
const KIND_ODD: u8 = 8;

/// A class of packets that shares no masks with other classes: by the shape of the compact key, and by
/// whether the packet is odd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family(u8);

impl Family {
    /// The number of families.
    pub const ALL: usize = 4;
    pub(crate) fn is_v6(self) -> bool {
        self.0 & KIND_V6 != 0
    }
    /// Whether its packets have headers that a compact key has no room for.
    pub fn is_odd(self) -> bool {
        self.0 & KIND_ODD != 0
    }
    /// The family's number, less than [`Family::ALL`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0 & KIND_V6 | (self.0 & KIND_ODD) >> 2)
    }
}

/// The members of a compact key, each in its own representation.
struct Parts {
    macs: [u64; 2],
    origin: u32,
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
            self.macs[1] | u64::from(self.origin) << 32,
            w2,
            u64::from(self.ports) | u64::from(self.label) << 32,
            self.addrs[0],
            self.addrs[1],
            self.addrs[2],
            self.addrs[3],
        ])
    }
}

/// Two Ethernet addresses as the words of a key.
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
    /// The eight words of the key.
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
    /// The family of the packet.
    pub fn family(&self) -> Family {
        Family(self.kind() & (KIND_V6 | KIND_ODD))
    }
    /// The packet's origin. In an entry's key, the number of a context may replace it.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the upper half
    pub fn origin(&self) -> u32 {
        (self.0[1] >> 32) as u32
    }
    /// The same key with another origin, or with the number of a context in its place.
    #[inline]
    pub fn with_origin(mut self, origin: u32) -> Self {
        self.0[1] = self.0[1] & u64::from(u32::MAX) | u64::from(origin) << 32;
        self
    }
    /// The same key of an IPv4 packet with other addresses (upper halves of the arguments) and ports (lower
    /// halves).
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
    #[allow(clippy::cast_possible_truncation)] // a half of the word
    pub fn tcp_flags(&self) -> u16 {
        u16::from_be((self.0[2] >> 16) as u16)
    }
    /// Whether the headers of both packets are at the same offsets, and of one protocol.
    #[inline]
    pub fn laid_out_as(&self, other: &Self) -> bool {
        (self.proto(), self.kind()) == (other.proto(), other.kind())
    }
    /// The offset of the IP header in a packet that [`CompactKey::read`] has read.
    #[inline]
    pub fn l3(&self) -> u16 {
        if self.kind() & KIND_VLAN != 0 { 18 } else { 14 }
    }
    /// The offset of the L4 header in a packet that [`CompactKey::read`] has read.
    #[inline]
    pub fn l4(&self) -> u16 {
        self.l3() + if self.kind() & KIND_V6 != 0 { 40 } else { 20 }
    }
}

// -- from bytes

/// The number of bytes of a packet that [`CompactKey::read`] reads: Ethernet, a tag, IPv6, TCP.
pub const VIEW: usize = 80;

/// Length and origin of a packet, besides its first bytes.
#[derive(Clone, Copy)]
pub struct Frame {
    /// The number of valid bytes in the view. The bytes behind them are undefined.
    pub head: usize,
    /// Length of the packet, in bytes.
    pub total: usize,
    /// The packet's origin. Without recirculation this is its input port.
    pub origin: u32,
    /// Whether VLAN tags are parsed.
    pub vlan: bool,
}

/// `N` bytes at offset `i`. Inlined with constants, so no bounds check is left.
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
    /// The compact key of an ordinary packet with its headers at the usual offsets. `None`: the packet needs
    /// the full parser. That is so for all odd packets, for other protocols, and for IPv4 with options.
    ///
    /// The result equals [`CompactKey::of`] of the packet's full key; a test compares them.
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
    // One load from the EtherType to the identification, one from the flags to the first half of the source:
    // few loads for many fields.
    let (first, second) = (be64(b, L3 - 2), be64(b, L3 + 6));
    #[allow(clippy::cast_possible_truncation)] // fields are taken out of words
    let (len, tos, ttl, proto) = (
        usize::from((first >> 16) as u16),
        (first >> 32) as u8,
        (second >> 40) as u8,
        (second >> 32) as u8,
    );
    // Version 4 without options; not a fragment; not longer than the packet; the packet's length fits 16
    // bits.
    let sound = (first >> 40 == u64::from(IPV4) << 8 | 0x45)
        & (second & 0x3fff << 48 == 0)
        & (len + L3 <= f.total)
        & (f.total <= usize::from(u16::MAX));
    // An IP length below 20 also makes a packet odd. Without this check the subtraction below would
    // underflow.
    if !sound || len < 20 || proto == 58 {
        return None;
    }
    let (ports, flags) = l4(b, L3 + 20, f.head, len - 20, proto)?;
    let parts = Parts {
        macs: macs(b),
        origin: f.origin,
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
    // ICMPv4 in IPv6 is odd. Neighbour discovery has fields that a compact key has no room for.
    if proto == 1 || proto == 58 && matches!(b[L3 + 40], 135 | 136) && b[L3 + 41] == 0 {
        return None;
    }
    let (ports, flags) = l4(b, L3 + 40, f.head, len, proto)?;
    #[allow(clippy::cast_possible_truncation)] // a byte is wanted
    let tos = (flow >> 20) as u8;
    let word = |i: usize| u64::from_ne_bytes(at(b, L3 + 8 + 8 * i));
    let parts = Parts {
        macs: macs(b),
        origin: f.origin,
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

/// Ports and TCP flags. `left`: payload bytes by the IP header.
#[inline(always)]
fn l4(b: &[u8; VIEW], l4: usize, head: usize, left: usize, proto: u8) -> Option<(u32, u16)> {
    let (tcp, udp) = (proto == 6, proto == 17);
    if !(tcp || udp) {
        // ICMP of either version: type and code as ports.
        let icmp = matches!(proto, 1 | 58) && left >= 8 && head >= l4 + 8;
        return icmp.then(|| (u32::from_ne_bytes([0, b[l4], 0, b[l4 + 1]]), 0));
    }
    // Chosen without a branch: bursts often mix both protocols.
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
