//! The network service header (RFC 8300).

use crate::{Be16, Be32, views};

views! {
    /// The first words of every header (RFC 8300, 2.2 and 2.3).
    NshBase {
        /// Version (2 bits), flags (2), time to live (6), length in words of four bytes (6).
        first: Be16,
        /// Metadata type; the upper four bits are reserved.
        md_type: u8,
        /// Type of the packet behind the header, see [`next`].
        next: u8,
        /// Service path (24 bits) and service index (8).
        path: Be32,
    }
    /// Metadata of type 1: four words (RFC 8300, 2.4).
    NshContext {
        /// The first.
        c1: Be32,
        /// The second.
        c2: Be32,
        /// The third.
        c3: Be32,
        /// The fourth.
        c4: Be32,
    }
}

/// Types of packets behind the header (RFC 8300, 9.1.5).
pub mod next {
    /// An IPv4 packet.
    pub const IPV4: u8 = 1;
    /// An IPv6 packet.
    pub const IPV6: u8 = 2;
    /// An Ethernet frame.
    pub const ETHERNET: u8 = 3;
    /// Another network service header.
    pub const NSH: u8 = 4;
}

/// Metadata type of a header with an [`NshContext`].
pub const MD_TYPE_1: u8 = 1;
/// Metadata type of a header with any number of options.
pub const MD_TYPE_2: u8 = 2;
/// Longest metadata: the header's length has six bits, for words of four bytes.
pub const MAX_METADATA: usize = 0x3f * 4 - NshBase::LEN;

impl NshBase {
    /// The first two bytes of a header of version 0 with metadata of `metadata` bytes, a multiple of four up
    /// to [`MAX_METADATA`].
    pub fn first_of(flags: u8, ttl: u8, metadata: usize) -> u16 {
        let words = u16::try_from((Self::LEN + metadata) / 4).unwrap_or(0x3f) & 0x3f;
        u16::from(flags & 3) << 12 | u16::from(ttl & 0x3f) << 6 | words
    }
    /// Version; only 0 is known.
    pub fn version(&self) -> u8 {
        (self.first.get() >> 14) as u8
    }
    /// Flags.
    pub fn flags(&self) -> u8 {
        (self.first.get() >> 12 & 3) as u8
    }
    /// Time to live.
    pub fn ttl(&self) -> u8 {
        (self.first.get() >> 6 & 0x3f) as u8
    }
    /// Bytes of the header with its metadata.
    pub fn header_len(&self) -> usize {
        usize::from(self.first.get() & 0x3f) * 4
    }
}
