//! IPv4 (RFC 791) and IPv6 with its extension headers (RFC 8200, RFC 4302).

use crate::checksum::Sum;
use crate::{Be16, Be32, split, views};

/// IP protocol numbers.
pub mod proto {
    /// IPv6 hop-by-hop options.
    pub const HOPOPTS: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// GRE.
    pub const GRE: u8 = 47;
    /// Authentication header.
    pub const AH: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NONE: u8 = 59;
    /// IPv6 destination options.
    pub const DSTOPTS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

views! {
    /// The fixed part of the IPv4 header.
    Ipv4 {
        /// Version (4 bits), header length in 32-bit words (4 bits).
        version_ihl: u8,
        /// DSCP and ECN.
        tos: u8,
        /// Bytes of header and payload.
        total_len: Be16,
        /// Identification.
        id: Be16,
        /// Flags (3 bits), fragment offset in units of 8 bytes (13 bits).
        frag: Be16,
        /// Time to live.
        ttl: u8,
        /// Protocol of the payload.
        proto: u8,
        /// Checksum of the header.
        csum: Be16,
        /// Source.
        src: Be32,
        /// Destination.
        dst: Be32,
    }
    /// The IPv6 header.
    Ipv6 {
        /// Version (4 bits), traffic class (8), flow label (20).
        flow: Be32,
        /// Bytes after this header.
        payload_len: Be16,
        /// Protocol of the next header.
        next: u8,
        /// Hop limit.
        hop_limit: u8,
        /// Source.
        src: [u8; 16],
        /// Destination.
        dst: [u8; 16],
    }
    /// The common part of all IPv6 extension headers, as long as the smallest one.
    Ipv6Ext {
        /// Protocol of the next header.
        next: u8,
        /// Length in 8-byte units beyond the first; of AH in 4-byte units, less 2.
        len: u8,
        /// The rest of the smallest header.
        data: [u8; 6],
    }
    /// The IPv6 fragment header.
    Ipv6Frag {
        /// Protocol of the next header.
        next: u8,
        /// Zero.
        reserved: u8,
        /// Offset in units of 8 bytes (13 bits), reserved (2), more fragments (1).
        offset: Be16,
        /// Identification.
        id: Be32,
    }
}

impl Ipv4 {
    /// "More fragments" in `frag`.
    pub const MORE: u16 = 0x2000;
    /// "Don't fragment" in `frag`.
    pub const DONT: u16 = 0x4000;
    /// The offset in `frag`.
    pub const OFFSET: u16 = 0x1fff;

    /// Bytes of the header as it claims, 0 to 60.
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }
    /// Whether the packet is a fragment.
    pub fn is_fragment(&self) -> bool {
        self.frag.get() & (Self::MORE | Self::OFFSET) != 0
    }
    /// Whether it is a fragment other than the first.
    pub fn is_later_fragment(&self) -> bool {
        self.frag.get() & Self::OFFSET != 0
    }
}

impl Ipv6 {
    /// The flow label's bits of `flow`.
    pub const LABEL: u32 = 0x000f_ffff;

    /// DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        (self.flow.get() >> 20 & 0xff) as u8
    }
    /// The flow label.
    pub fn label(&self) -> u32 {
        self.flow.get() & Self::LABEL
    }
}

/// The sum of the pseudo header (RFC 8200, 8.1) for `len` bytes of this protocol behind the IP header
/// `header`. `None`: the header is cut off.
pub fn pseudo(header: &[u8], v6: bool, proto: u8, len: u32) -> Option<Sum> {
    Some(if v6 {
        let (ip, _) = split::<Ipv6>(header)?;
        Sum::ZERO.pseudo_v6(&ip.src, &ip.dst, proto, len)
    } else {
        let (ip, _) = split::<Ipv4>(header)?;
        Sum::ZERO.pseudo_v4(ip.src.get(), ip.dst.get(), proto, len)
    })
}

impl Ipv6Frag {
    /// The offset in `offset`.
    pub const OFFSET: u16 = 0xfff8;
    /// The bit of `offset` for more fragments.
    pub const MORE: u16 = 1;
}
