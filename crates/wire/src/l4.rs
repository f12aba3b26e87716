//! TCP (RFC 9293), UDP (RFC 768), SCTP (RFC 9260).

use crate::{Be16, Be32, views};

views! {
    /// The fixed part of the TCP header.
    Tcp {
        /// Source port.
        src: Be16,
        /// Destination port.
        dst: Be16,
        /// Sequence number.
        seq: Be32,
        /// Acknowledgement number.
        ack: Be32,
        /// Data offset in 32-bit words (4 bits), reserved and flags (12 bits).
        ctl: Be16,
        /// Window.
        window: Be16,
        /// Checksum over pseudo header, header and payload.
        csum: Be16,
        /// Urgent pointer.
        urgent: Be16,
    }
    /// The UDP header.
    Udp {
        /// Source port.
        src: Be16,
        /// Destination port.
        dst: Be16,
        /// Bytes of header and payload.
        len: Be16,
        /// Checksum over pseudo header, header and payload; zero for none.
        csum: Be16,
    }
    /// The SCTP common header.
    Sctp {
        /// Source port.
        src: Be16,
        /// Destination port.
        dst: Be16,
        /// Verification tag.
        tag: Be32,
        /// CRC-32C of the packet with this field zero, least significant byte first.
        csum: [u8; 4],
    }
}

impl Tcp {
    /// Flags' bits of `ctl`.
    pub const FLAGS: u16 = 0x0fff;
    /// No more data.
    pub const FIN: u16 = 0x01;
    /// A connection begins.
    pub const SYN: u16 = 0x02;
    /// The connection is reset.
    pub const RST: u16 = 0x04;
    /// Data is to be handed on now.
    pub const PSH: u16 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u16 = 0x10;
    /// The sender's congestion window was reduced (RFC 3168).
    pub const CWR: u16 = 0x80;

    /// Bytes of the header as it claims, 0 to 60.
    pub fn header_len(&self) -> usize {
        usize::from(self.ctl.get() >> 12) * 4
    }
    /// Reserved bits and flags, FIN lowest.
    pub fn flags(&self) -> u16 {
        self.ctl.get() & Self::FLAGS
    }
}
