//! Prerequisites: whether a field means anything for a packet, and the bits that this depends on.
//!
//! The check reads bits of the key. A decision that depends on it must have these bits in its mask. Otherwise
//! a cached decision is used for packets that it was not made for. So the functions here that work on a
//! packet's key add them to a mask when given one.

use super::Prereq;
use crate::key::packet_type::NS_ETHERTYPE;
use crate::key::{FlowKey, FlowMask, Match, Vlan, frag};
use heddle_wire::eth::ethertype as eth;
use heddle_wire::ip::proto;

/// ICMPv6 type of a neighbour solicitation, as the key holds it.
pub(crate) const ND_SOLICIT: u16 = heddle_wire::icmp::ND_SOLICIT as u16;
/// ICMPv6 type of a neighbour advertisement, as the key holds it.
pub(crate) const ND_ADVERT: u16 = heddle_wire::icmp::ND_ADVERT as u16;

/// The EtherType of the header behind Ethernet: the key's, or the packet type's for a packet without
/// Ethernet.
pub(crate) fn dl_type(key: &FlowKey) -> u16 {
    if key.packet_type == 0 {
        key.dl_type
    } else if key.packet_type >> 16 == NS_ETHERTYPE {
        (key.packet_type & 0xffff) as u16
    } else {
        0x05ff
    }
}

/// Whether this is an EtherType of IPv4 or IPv6.
pub(crate) fn is_ip_any(dl_type: u16) -> bool {
    matches!(dl_type, eth::IP | eth::IPV6)
}

/// Whether the key is that of a neighbour solicitation or advertisement.
pub(crate) fn is_nd(key: &FlowKey) -> bool {
    dl_type(key) == eth::IPV6
        && key.nw_proto == proto::ICMPV6
        && key.tp_dst == 0
        && matches!(key.tp_src, ND_SOLICIT | ND_ADVERT)
}

const CT_NEW: u32 = 1;
const CT_EST: u32 = 2;
const CT_REL: u32 = 4;
const CT_RPL: u32 = 8;
const CT_INV: u32 = 16;
const CT_TRK: u32 = 32;
const CT_SNAT: u32 = 64;
const CT_DNAT: u32 = 128;
/// A tracked packet that is valid has at least one of these.
const CT_VALID: u32 = CT_NEW | CT_EST | CT_RPL;

impl Prereq {
    /// Whether a packet with this key satisfies the prerequisite.
    pub fn ok(self, key: &FlowKey) -> bool {
        let ty = dl_type(key);
        let ip = |p| is_ip_any(ty) && key.nw_proto == p;
        let l4 = |p| ip(p) && key.nw_frag & frag::LATER == 0;
        match self {
            Prereq::None => true,
            Prereq::Ethernet => key.packet_type == 0,
            Prereq::Arp => matches!(ty, eth::ARP | eth::RARP),
            Prereq::Vlan => key.packet_type == 0 && key.vlans[0].present(),
            Prereq::Ipv4 => ty == eth::IP,
            Prereq::Ipv6 => ty == eth::IPV6,
            Prereq::IpAny => is_ip_any(ty),
            Prereq::Mpls => heddle_wire::eth::is_mpls(ty),
            Prereq::Nsh => ty == eth::NSH,
            Prereq::Tcp => l4(proto::TCP),
            Prereq::Udp => l4(proto::UDP),
            Prereq::Sctp => l4(proto::SCTP),
            Prereq::Icmpv4 => ty == eth::IP && key.nw_proto == proto::ICMP,
            Prereq::Icmpv6 => ty == eth::IPV6 && key.nw_proto == proto::ICMPV6,
            Prereq::Nd => is_nd(key),
            Prereq::NdSolicit => is_nd(key) && key.tp_src == ND_SOLICIT,
            Prereq::NdAdvert => is_nd(key) && key.tp_src == ND_ADVERT,
            Prereq::Ct => key.ct_state & CT_VALID != 0,
        }
    }

    /// Whether every packet of the match satisfies the prerequisite. Differs from [`Self::ok`] only for
    /// connection tracking, where a match may also require that the packet is not invalid.
    pub fn ok_for_match(self, m: &Match) -> bool {
        if self != Prereq::Ct {
            return self.ok(&m.key);
        }
        let st = m.key.ct_state;
        st & (CT_NEW | CT_EST | CT_REL | CT_RPL | CT_SNAT | CT_DNAT) != 0
            || (st & CT_TRK != 0 && m.mask.0.ct_state & CT_INV != 0 && st & CT_INV == 0)
    }

    /// Adds to `mask` the bits that [`Self::ok`] looked at in `key`.
    pub fn add_mask(self, key: &FlowKey, mask: &mut FlowMask) {
        let m = &mut mask.0;
        let ty = dl_type(key);
        match self {
            Prereq::None => {}
            Prereq::Ethernet => m.packet_type = u32::MAX,
            Prereq::Vlan => {
                m.packet_type = u32::MAX;
                m.vlans[0].tci |= Vlan::CFI;
            }
            Prereq::Ct => m.ct_state |= CT_VALID,
            Prereq::Arp | Prereq::Ipv4 | Prereq::Ipv6 | Prereq::IpAny | Prereq::Mpls | Prereq::Nsh => {
                m.dl_type = u16::MAX;
                m.packet_type = u32::MAX;
            }
            Prereq::Tcp | Prereq::Udp | Prereq::Sctp => {
                m.dl_type = u16::MAX;
                m.packet_type = u32::MAX;
                if is_ip_any(ty) {
                    m.nw_proto = u8::MAX;
                    m.nw_frag |= frag::LATER;
                }
            }
            Prereq::Icmpv4 | Prereq::Icmpv6 => {
                m.dl_type = u16::MAX;
                m.packet_type = u32::MAX;
                m.nw_proto = u8::MAX;
            }
            Prereq::Nd | Prereq::NdSolicit | Prereq::NdAdvert => {
                m.dl_type = u16::MAX;
                m.packet_type = u32::MAX;
                m.nw_proto = u8::MAX;
                m.tp_src = u16::MAX;
                m.tp_dst = u16::MAX;
            }
        }
    }
}
