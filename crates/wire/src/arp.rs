//! ARP and RARP for IPv4 over Ethernet (RFC 826, RFC 903).

use crate::{Be16, views};

views! {
    /// ARP for IPv4 over Ethernet.
    Arp {
        /// Hardware type; 1 is Ethernet.
        hardware: Be16,
        /// Protocol type; 0x0800 is IPv4.
        protocol: Be16,
        /// Bytes of a hardware address.
        hardware_len: u8,
        /// Bytes of a protocol address.
        protocol_len: u8,
        /// 1 request, 2 reply.
        op: Be16,
        /// Sender's hardware address.
        sha: [u8; 6],
        /// Sender's protocol address.
        spa: [u8; 4],
        /// Target's hardware address.
        tha: [u8; 6],
        /// Target's protocol address.
        tpa: [u8; 4],
    }
}

impl Arp {
    /// An operation on Ethernet and IPv4, its addresses zero.
    pub fn new(op: u16) -> Self {
        Self {
            hardware: 1.into(),
            protocol: crate::eth::ethertype::IP.into(),
            hardware_len: 6,
            protocol_len: 4,
            op: op.into(),
            ..Self::default()
        }
    }
    /// Whether the addresses are those of Ethernet and IPv4.
    pub fn is_ethernet_ipv4(&self) -> bool {
        self.hardware.get() == 1
            && self.protocol.get() == crate::eth::ethertype::IP
            && self.hardware_len == 6
            && self.protocol_len == 4
    }
}
