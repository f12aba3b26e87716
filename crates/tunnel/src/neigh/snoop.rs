//! Neighbours that packets advertise.

use heddle_flow::{FlowKey, FlowMask};
use heddle_wire::eth::ethertype;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// ARP: a reply.
const ARP_REPLY: u8 = 2;
/// The protocol of ICMPv6 messages.
const ICMPV6: u8 = 58;
/// ICMPv6: a neighbour advertisement.
const NEIGHBOUR_ADVERTISEMENT: u16 = 136;

/// A neighbour's address on its link.
pub type Mac = [u8; 6];

/// The neighbour that a packet advertises: in an ARP reply, a gratuitous ARP request, or a neighbour
/// advertisement with a target link-layer address. `mask` gets the bits of the key that were read.
pub fn advertised(key: &FlowKey, mask: &mut FlowMask) -> Option<(IpAddr, Mac)> {
    mask.0.dl_type = !0;
    let (ip, mac) = match key.dl_type {
        ethertype::ARP => arp(key, mask)?,
        ethertype::IPV6 => advertisement(key, mask)?,
        _ => return None,
    };
    (mac != [0; 6] && !ip.is_unspecified() && !ip.is_multicast()).then_some((ip, mac))
}

fn arp(key: &FlowKey, mask: &mut FlowMask) -> Option<(IpAddr, Mac)> {
    (mask.0.nw_src, mask.0.nw_dst) = (!0, !0);
    if key.nw_src != key.nw_dst {
        mask.0.nw_proto = !0;
        if key.nw_proto != ARP_REPLY {
            return None;
        }
    }
    mask.0.arp_sha = [!0; 6];
    Some((Ipv4Addr::from_bits(key.nw_src).into(), key.arp_sha))
}

fn advertisement(key: &FlowKey, mask: &mut FlowMask) -> Option<(IpAddr, Mac)> {
    mask.0.nw_proto = !0;
    if key.nw_proto != ICMPV6 {
        return None;
    }
    // Only the first fragment of a packet has the message's header.
    mask.0.nw_frag = heddle_flow::key::frag::MASK;
    (mask.0.tp_src, mask.0.tp_dst) = (!0, !0);
    let whole = key.nw_frag & heddle_flow::key::frag::LATER == 0;
    if !whole || (key.tp_src, key.tp_dst) != (NEIGHBOUR_ADVERTISEMENT, 0) {
        return None;
    }
    mask.0.arp_tha = [!0; 6];
    mask.0.nd_target = [!0; 16];
    Some((Ipv6Addr::from(key.nd_target).into(), key.arp_tha))
}
