//! ICMP (RFC 792), IGMP (RFC 2236), ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861).

use crate::{Be16, Be32, views};

/// ICMP type and code of "fragmentation needed" (RFC 1191): its last 16 bits are the MTU.
pub const ICMP_TOO_BIG: (u8, u8) = (3, 4);
/// ICMPv6 type of "packet too big": its last 32 bits are the MTU.
pub const ICMPV6_TOO_BIG: u8 = 2;
/// ICMPv6 type of a redirect.
const ICMPV6_REDIRECT: u8 = 137;

/// Whether an ICMP message of this type is an error. No error is sent for one (RFC 1122, 3.2.2).
pub fn is_icmp_error(ty: u8) -> bool {
    matches!(ty, 3 | 4 | 5 | 11 | 12)
}
/// Whether an ICMPv6 message of this type is an error or a redirect. No error is sent for one (RFC 4443,
/// 2.4).
pub fn is_icmpv6_error(ty: u8) -> bool {
    ty < 128 || ty == ICMPV6_REDIRECT
}

/// ICMPv6 type of a neighbour solicitation.
pub const ND_SOLICIT: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub const ND_ADVERT: u8 = 136;
/// Neighbour discovery option: source link-layer address.
pub const ND_OPT_SLL: u8 = 1;
/// Neighbour discovery option: target link-layer address.
pub const ND_OPT_TLL: u8 = 2;

views! {
    /// ICMP, and ICMPv6 up to where its body starts.
    Icmp {
        /// Type.
        ty: u8,
        /// Code.
        code: u8,
        /// Checksum (ICMPv6: with pseudo header).
        csum: Be16,
        /// Depends on the type: echo identifier and sequence; neighbour discovery flags.
        rest: Be32,
    }
    /// IGMP.
    Igmp {
        /// Type.
        ty: u8,
        /// Maximum response time.
        code: u8,
        /// Checksum.
        csum: Be16,
        /// Group address.
        group: Be32,
    }
    /// A neighbour discovery option with an Ethernet address, which is also the least size of an option.
    NdLla {
        /// Type.
        ty: u8,
        /// Length in units of 8 bytes, never 0.
        len: u8,
        /// The address.
        mac: [u8; 6],
    }
}
