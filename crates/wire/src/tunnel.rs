//! Headers of tunnels:
//!
//! * GRE (RFC 2784, 2890), ERSPAN (draft-foschiano-erspan)
//! * VXLAN (RFC 7348) with group policy and generic protocols, Geneve (RFC 8926)
//! * GTP-U (3GPP TS 29.281), the segment routing header (RFC 8754), STT (draft-davie-stt-08)

use crate::{Be16, Be32, Be64, views};

/// Protocols of tunnels as GRE has them.
pub mod gre_proto {
    /// ERSPAN version 1 (type II).
    pub const ERSPAN1: u16 = 0x88be;
    /// ERSPAN version 2 (type III).
    pub const ERSPAN2: u16 = 0x22eb;
}

views! {
    /// The part of the GRE header that is always there.
    Gre {
        /// Flags for the optional words, and the version.
        flags: Be16,
        /// EtherType of the payload.
        proto: Be16,
    }
    /// VXLAN.
    Vxlan {
        /// Flags (8 bits); with group policy or generic protocols further ones in the next bits.
        flags: Be32,
        /// Network identifier (24 bits), reserved (8 bits).
        vni: Be32,
    }
    /// Geneve without its options.
    Geneve {
        /// Version (2 bits), options' length in 4-byte units (6 bits).
        ver_len: u8,
        /// Control packet (1 bit), critical options (1 bit), reserved.
        flags: u8,
        /// EtherType of the payload.
        proto: Be16,
        /// Network identifier (24 bits), reserved (8 bits).
        vni: Be32,
    }
    /// The start of an option of Geneve.
    GeneveOption {
        /// Class: the namespace of the type.
        class: Be16,
        /// Type; the highest bit means that the option is critical.
        ty: u8,
        /// Reserved (3 bits), length of the value in 4-byte units (5 bits).
        len: u8,
    }
    /// The start that both versions of ERSPAN share.
    Erspan {
        /// Version (4 bits), VLAN (12 bits).
        ver_vlan: Be16,
        /// Class of service, encapsulation, truncation (6 bits), session (10 bits).
        session: Be16,
    }
    /// The part of an ERSPAN version 2 header behind [`Erspan`].
    Erspan2 {
        /// Time of the mirrored packet, in units of 100 microseconds.
        timestamp: Be32,
        /// Security group.
        group: Be16,
        /// Protocol and frame type (6 bits), hardware id (6), direction (1), granularity (2), more (1).
        flags: Be16,
    }
    /// GTP-U without its optional fields.
    Gtpu {
        /// Version (3 bits), protocol type (1), reserved (1), flags of optional fields (3).
        flags: u8,
        /// Message type; 255 for user data.
        message: u8,
        /// Bytes after this header.
        len: Be16,
        /// Tunnel endpoint.
        teid: Be32,
    }
    /// Optional fields of GTP-U, present if any of the three flags is set.
    GtpuOptional {
        /// Sequence number.
        seq: Be16,
        /// N-PDU number.
        npdu: u8,
        /// Type of the extension header that follows; zero for none.
        next: u8,
    }
    /// The segment routing header without its segments.
    Srh {
        /// Protocol of the payload.
        next: u8,
        /// Length in 8-byte units beyond the first.
        len: u8,
        /// Routing type: 4.
        ty: u8,
        /// Segments still to be visited.
        left: u8,
        /// Index of the last segment in the list.
        last: u8,
        /// Flags.
        flags: u8,
        /// Tag.
        tag: Be16,
    }
    /// STT: behind a header of TCP's layout, at the beginning of a frame's first segment.
    Stt {
        /// Zero.
        version: u8,
        /// Flags about the frame inside.
        flags: u8,
        /// Bytes from this header's end to the L4 header inside.
        l4: u8,
        /// Zero.
        reserved: u8,
        /// Payload bytes of each segment if the frame is a TCP GSO packet; otherwise zero.
        mss: Be16,
        /// A VLAN tag of the frame inside: priority (3 bits), whether there is one (1), VLAN (12).
        tci: Be16,
        /// Context: the tunnel's key.
        key: Be64,
        /// Aligns the IP header inside to four bytes.
        padding: Be16,
    }
}

impl Gre {
    /// Checksum present.
    pub const CSUM: u16 = 0x8000;
    /// Key present.
    pub const KEY: u16 = 0x2000;
    /// Sequence number present.
    pub const SEQ: u16 = 0x1000;

    /// Bytes of the header with these flags.
    pub const fn len_of(flags: u16) -> usize {
        4 + 4
            * ((flags & Self::CSUM != 0) as usize
                + (flags & Self::KEY != 0) as usize
                + (flags & Self::SEQ != 0) as usize)
    }
}

impl Vxlan {
    /// The network identifier is valid.
    pub const VNI: u32 = 0x0800_0000;
    /// There is a group policy (draft-smith-vxlan-group-policy).
    pub const GBP: u32 = 0x8000_0000;
    /// Flags of the group policy: don't learn, policy applied.
    pub const GBP_FLAGS: u32 = 0x0048_0000;
    /// The next protocol is present (draft-ietf-nvo3-vxlan-gpe).
    pub const GPE: u32 = 0x0400_0000;
    /// With generic protocols: an operations packet.
    pub const GPE_OAM: u32 = 0x0100_0000;
}

impl Geneve {
    /// A control packet.
    pub const OAM: u8 = 0x80;
    /// There are critical options.
    pub const CRITICAL: u8 = 0x40;
    /// Maximum length of all options, bytes.
    pub const MAX_OPTIONS: usize = 63 * 4;
}

impl GeneveOption {
    /// The option must be understood: a bit of the type.
    pub const CRITICAL: u8 = 0x80;
}

impl Gtpu {
    /// Version 1, GTP and not GTP prime.
    pub const FLAGS: u8 = 0x30;
    /// A sequence number.
    pub const SEQ: u8 = 0x02;
    /// Any of the three flags with which [`GtpuOptional`] follows.
    pub const OPTIONAL: u8 = 0x07;
    /// An extension header.
    pub const EXTENSION: u8 = 0x04;
    /// User data.
    pub const GPDU: u8 = 255;
}

impl Stt {
    /// The inner checksum was found right.
    pub const VERIFIED: u8 = 0x01;
    /// The inner checksum is to be filled in: its field holds the pseudo header's sum.
    pub const PARTIAL: u8 = 0x02;
    /// The frame holds IPv4, not IPv6.
    pub const IPV4: u8 = 0x04;
    /// The frame holds TCP, not UDP.
    pub const TCP: u8 = 0x08;
    /// There is a VLAN tag.
    pub const TAGGED: u16 = 0x1000;
}

impl Srh {
    /// Routing type of segment routing.
    pub const TYPE: u8 = 4;
}
