//! Tuple and zone of a connection or a packet, as words that are compared at once.

use crate::table::hash::{Hash, Keys, halves};
use crate::tuple::{Endpoint, Tuple};

/// Flag of a [`Head`]: IPv6.
pub(crate) const IPV6: u64 = 1;

/// Zone (16 bits), protocol (8), flags (8) and generation (32) in one word, the zone in the highest bits.
///
/// The head of a [`Key`] has no generation, and no flag but [`IPV6`]. The other flags are those of a
/// [`crate::table::record::Record`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Head(pub(crate) u64);

impl Head {
    const GENERATION: u64 = 0xffff_ffff;
    const FLAGS: u64 = 0xff;
    const FLAGS_SHIFT: u32 = 32;
    const PROTO_SHIFT: u32 = 40;
    const ZONE_SHIFT: u32 = 48;
    /// Bits of zone, protocol and [`IPV6`].
    const KEY: u64 = !(Self::GENERATION | Self::FLAGS << Self::FLAGS_SHIFT) | IPV6 << Self::FLAGS_SHIFT;

    #[inline]
    pub(crate) fn new(zone: u16, proto: u8, flags: u64) -> Self {
        let zone = u64::from(zone) << Self::ZONE_SHIFT;
        Self(zone | u64::from(proto) << Self::PROTO_SHIFT | (flags & Self::FLAGS) << Self::FLAGS_SHIFT)
    }
    #[inline]
    #[must_use]
    pub(crate) fn with_zone(self, zone: u16) -> Self {
        Self(self.0 & !(0xffff << Self::ZONE_SHIFT) | u64::from(zone) << Self::ZONE_SHIFT)
    }
    /// Adds flags and a generation.
    #[must_use]
    pub(crate) fn of_record(self, flags: u64, generation: u32) -> Self {
        Self(self.0 | (flags & Self::FLAGS) << Self::FLAGS_SHIFT | u64::from(generation))
    }
    #[inline]
    pub(crate) fn zone(self) -> u16 {
        (self.0 >> Self::ZONE_SHIFT) as u16
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // eight bits
    pub(crate) fn proto(self) -> u8 {
        (self.0 >> Self::PROTO_SHIFT) as u8
    }
    #[inline]
    pub(crate) fn flags(self) -> u64 {
        self.0 >> Self::FLAGS_SHIFT & Self::FLAGS
    }
    #[inline]
    pub(crate) fn is_v6(self) -> bool {
        self.flags() & IPV6 != 0
    }
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the low half
    pub(crate) fn generation(self) -> u32 {
        self.0 as u32
    }
    /// Whether both have the same zone, protocol and IP version, and the same of these flags.
    #[inline]
    pub(crate) fn is_same(self, other: Self, flags: u64) -> bool {
        (self.0 ^ other.0) & (Self::KEY | flags << Self::FLAGS_SHIFT) == 0
    }
}

/// A tuple and its zone as words to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Key {
    pub(crate) head: Head,
    /// Port or ICMP identifier of the source (upper half) and the destination.
    pub(crate) ports: u64,
    /// IPv6: the source address. IPv4: [`pair4`], and 0.
    pub(crate) src: [u64; 2],
    /// IPv6: the destination address. IPv4: 0.
    pub(crate) dst: [u64; 2],
    pub(crate) ipv6: bool,
}

impl Key {
    #[inline]
    pub(crate) fn new(t: &Tuple, zone: u16) -> Self {
        Self {
            head: Head::new(zone, t.proto, if t.ipv6 { IPV6 } else { 0 }),
            ports: ports(t),
            src: if t.ipv6 { halves(t.src.addr) } else { [pair4(t), 0] },
            dst: if t.ipv6 { halves(t.dst.addr) } else { [0; 2] },
            ipv6: t.ipv6,
        }
    }
    /// A key of IPv4 in zone 0. `addrs`: as [`pair4`].
    #[inline]
    pub(crate) fn of4(proto: u8, addrs: u64, src: u16, dst: u16) -> Self {
        Self {
            head: Head::new(0, proto, 0),
            ports: u64::from(src) << 32 | u64::from(dst),
            src: [addrs, 0],
            dst: [0; 2],
            ipv6: false,
        }
    }
    /// A key of IPv6 in zone 0.
    #[inline]
    pub(crate) fn of6(proto: u8, [a, b, c, d]: [u64; 4], src: u16, dst: u16) -> Self {
        Self {
            head: Head::new(0, proto, IPV6),
            ports: u64::from(src) << 32 | u64::from(dst),
            src: [a, b],
            dst: [c, d],
            ipv6: true,
        }
    }
    #[inline]
    pub(crate) fn in_zone(mut self, zone: u16) -> Self {
        self.head = self.head.with_zone(zone);
        self
    }
    pub(crate) fn is_v6(&self) -> bool {
        self.ipv6
    }
    #[inline]
    pub(crate) fn proto(&self) -> u8 {
        self.head.proto()
    }
    /// The same as [`Keys::hash`] of the tuple.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    pub(crate) fn hash(&self, keys: &Keys, zone: u16) -> Hash {
        if self.ipv6 {
            let (src, dst) = ((self.ports >> 32) as u32, self.ports as u32);
            return keys.hash6((self.src, src), (self.dst, dst), self.proto(), zone);
        }
        let TranslatedEnds4 { src, dst } = self.ends4();
        keys.hash4(src, dst, self.proto(), zone)
    }
    /// Both endpoints of a key of IPv4.
    #[inline]
    pub(crate) fn ends4(&self) -> TranslatedEnds4 {
        TranslatedEnds4::of_words(self.src[0], self.ports)
    }
    pub(crate) fn tuple(&self) -> Tuple {
        let addrs = if self.ipv6 {
            [self.src, self.dst]
        } else {
            addrs4(self.src[0])
        };
        tuple(self.head, self.ports, addrs)
    }
}

/// Both endpoints of an IPv4 packet: the address in the upper half of each, the port in the lower half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TranslatedEnds4 {
    /// Source.
    pub src: u64,
    /// Destination.
    pub dst: u64,
}

impl TranslatedEnds4 {
    /// From the words of a [`Key`]. `addrs`: as [`pair4`].
    #[inline]
    fn of_words(addrs: u64, ports: u64) -> Self {
        Self {
            src: addrs & !0xffff_ffff | ports >> 32,
            dst: addrs << 32 | ports & 0xffff_ffff,
        }
    }
    /// The endpoints of the opposite direction, from the words of a [`Key`].
    #[inline]
    pub(crate) fn of_reversed_words(addrs: u64, ports: u64) -> Self {
        let Self { src, dst } = Self::of_words(addrs, ports);
        Self { src: dst, dst: src }
    }
}

/// Both ports or ICMP identifiers of a tuple, the source's in the upper half.
#[inline]
pub(crate) fn ports(t: &Tuple) -> u64 {
    u64::from(t.src.l4) << 32 | u64::from(t.dst.l4)
}

/// Both addresses of a tuple of IPv4, the source in the upper half.
#[inline]
#[allow(clippy::cast_possible_truncation)] // IPv4
pub(crate) fn pair4(t: &Tuple) -> u64 {
    u64::from(t.src.addr as u32) << 32 | u64::from(t.dst.addr as u32)
}

/// Source and destination of a [`pair4`], each as two halves of 128 bits.
pub(crate) fn addrs4(pair: u64) -> [[u64; 2]; 2] {
    [[0, pair >> 32], [0, pair & 0xffff_ffff]]
}

/// The tuple with these ports and addresses, and the protocol and IP version of `head`.
pub(crate) fn tuple(head: Head, ports: u64, [src, dst]: [[u64; 2]; 2]) -> Tuple {
    let end = |[hi, lo]: [u64; 2], port: u64| Endpoint {
        addr: u128::from(hi) << 64 | u128::from(lo),
        l4: (port & 0xffff_ffff) as u32,
    };
    Tuple {
        src: end(src, ports >> 32),
        dst: end(dst, ports),
        proto: head.proto(),
        ipv6: head.is_v6(),
    }
}
