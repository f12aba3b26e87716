//! Ethernet (IEEE 802.3), VLAN tags (802.1Q), LLC and SNAP (802.2), MPLS label stack entries (RFC 3032).

use crate::{Be16, Be32, split, views};

/// EtherTypes.
pub mod ethertype {
    /// IPv4.
    pub const IP: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Trans-Ether bridging: an Ethernet frame inside GRE.
    pub const TEB: u16 = 0x6558;
    /// Reverse ARP.
    pub const RARP: u16 = 0x8035;
    /// 802.1Q VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MPLS.
    pub const MPLS: u16 = 0x8847;
    /// MPLS, multicast.
    pub const MPLS_MCAST: u16 = 0x8848;
    /// 802.1ad service tag.
    pub const QINQ: u16 = 0x88a8;
    /// Network service header.
    pub const NSH: u16 = 0x894f;
    /// Least value that is an EtherType and not a length.
    pub const MIN: u16 = 0x0600;
}

views! {
    /// The Ethernet header. The EtherType is where a VLAN tag's would be too.
    Ethernet {
        /// Destination address.
        dst: [u8; 6],
        /// Source address.
        src: [u8; 6],
        /// EtherType, or the length of an 802.2 frame.
        ethertype: Be16,
    }
    /// A VLAN tag, between the addresses and the EtherType.
    VlanTag {
        /// 0x8100 or 0x88a8.
        tpid: Be16,
        /// Priority, DEI, VLAN id.
        tci: Be16,
    }
    /// 802.2 LLC with SNAP.
    LlcSnap {
        /// Destination service access point.
        dsap: u8,
        /// Source service access point.
        ssap: u8,
        /// Control.
        control: u8,
        /// Organisation.
        org: [u8; 3],
        /// EtherType, where the organisation is 00-00-00.
        ethertype: Be16,
    }
    /// One MPLS label stack entry.
    MplsLse {
        /// Label (20 bits), traffic class (3), bottom of stack (1), time to live (8).
        lse: Be32,
    }
}

impl LlcSnap {
    /// Whether the header announces an EtherType.
    pub fn is_ethernet_snap(&self) -> bool {
        (self.dsap, self.ssap, self.control, self.org) == (0xaa, 0xaa, 0x03, [0; 3])
    }
}

impl MplsLse {
    /// Bottom of stack.
    pub const BOS: u32 = 0x100;
    /// Whether no further entry follows.
    pub fn bottom(&self) -> bool {
        self.lse.get() & Self::BOS != 0
    }
}

/// Whether an EtherType announces a VLAN tag.
pub const fn is_vlan(ethertype: u16) -> bool {
    matches!(ethertype, ethertype::VLAN | ethertype::QINQ)
}

/// Maximum number of VLAN tags that [`payload`] skips.
const MAX_TAGS: usize = 4;

/// The EtherType of an Ethernet frame behind its VLAN tags, and the bytes behind it. `None`: the frame is too
/// short. With more than four tags, the EtherType is a tag's.
pub fn payload(frame: &[u8]) -> Option<(u16, &[u8])> {
    let (eth, mut rest) = split::<Ethernet>(frame)?;
    let mut ty = eth.ethertype.get();
    for _ in 0..MAX_TAGS {
        if !is_vlan(ty) {
            break;
        }
        let (_tci, behind) = split::<Be16>(rest)?;
        let (inner, behind) = split::<Be16>(behind)?;
        (ty, rest) = (inner.get(), behind);
    }
    Some((ty, rest))
}

/// Whether an EtherType announces an MPLS label stack.
pub const fn is_mpls(ethertype: u16) -> bool {
    matches!(ethertype, ethertype::MPLS | ethertype::MPLS_MCAST)
}
