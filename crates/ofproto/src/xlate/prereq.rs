//! Prerequisites of fields that actions touch: whether the packet has the field, and the bits that decide it.
//!
//! EtherType, packet type and fragment bits are in every mask ([`super::mask`]); only the others are added
//! here.

use super::ctx::Ctx;
use super::mask::is_ip_any;
use heddle_flow::field::Prereq;
use heddle_flow::{FieldId, FlowKey, FlowMask, Vlan, key::frag};
use heddle_wire::eth::{ethertype as eth, is_mpls};
use heddle_wire::icmp::{ND_ADVERT, ND_SOLICIT};
use heddle_wire::ip::proto;

/// ICMPv6 types of neighbour discovery.
const ND_TYPES: [u16; 2] = [ND_SOLICIT as u16, ND_ADVERT as u16];

fn l4(flow: &FlowKey, wc: &mut FlowMask, wanted: u8) -> bool {
    if !is_ip_any(flow) {
        return false;
    }
    wc.0.nw_proto = u8::MAX;
    flow.nw_proto == wanted && flow.nw_frag & frag::LATER == 0
}

fn icmp(flow: &FlowKey, wc: &mut FlowMask, dl_type: u16, wanted: u8) -> bool {
    if flow.dl_type != dl_type {
        return false;
    }
    wc.0.nw_proto = u8::MAX;
    flow.nw_proto == wanted
}

fn nd(flow: &FlowKey, wc: &mut FlowMask, types: &[u16]) -> bool {
    if !icmp(flow, wc, eth::IPV6, proto::ICMPV6) {
        return false;
    }
    wc.0.tp_dst = u16::MAX;
    if flow.tp_dst != 0 {
        return false;
    }
    wc.0.tp_src = u16::MAX;
    types.contains(&flow.tp_src)
}

/// Whether a packet like `flow` has `field`.
pub(super) fn ok(field: FieldId, flow: &FlowKey, wc: &mut FlowMask) -> bool {
    match field.info().prereq {
        Prereq::None => true,
        Prereq::Ethernet => flow.packet_type == 0,
        Prereq::Vlan => {
            wc.0.vlans[0].tci |= Vlan::CFI;
            flow.packet_type == 0 && flow.vlans[0].present()
        }
        Prereq::Mpls => is_mpls(flow.dl_type),
        Prereq::Tcp => l4(flow, wc, proto::TCP),
        Prereq::Udp => l4(flow, wc, proto::UDP),
        Prereq::Sctp => l4(flow, wc, proto::SCTP),
        Prereq::Icmpv4 => icmp(flow, wc, eth::IP, proto::ICMP),
        Prereq::Icmpv6 => icmp(flow, wc, eth::IPV6, proto::ICMPV6),
        Prereq::Nd => nd(flow, wc, &ND_TYPES),
        Prereq::NdSolicit => nd(flow, wc, &ND_TYPES) && flow.tp_src == ND_TYPES[0],
        Prereq::NdAdvert => nd(flow, wc, &ND_TYPES) && flow.tp_src == ND_TYPES[1],
        Prereq::Arp | Prereq::Ipv4 | Prereq::Ipv6 | Prereq::IpAny | Prereq::Nsh => field.prereqs_ok(flow),
        Prereq::Ct => {
            field.add_prereq_mask(flow, wc);
            field.prereqs_ok(flow)
        }
    }
}

impl Ctx<'_> {
    /// Whether the packet has `field`.
    #[inline]
    pub(super) fn has_field(&mut self, field: FieldId) -> bool {
        if field.info().prereq == Prereq::None {
            return true;
        }
        ok(field, &self.flow, &mut self.out.mask)
    }

    /// Adds the protocol to the mask: the datapath writes an IP or ARP header only if it knows the protocol.
    pub(super) fn mask_l3_prereqs(&mut self, field: FieldId) {
        use FieldId::*;
        let ip = matches!(
            field,
            Ipv4Src | Ipv4Dst | Ipv6Src | Ipv6Dst | Ipv6Label | IpDscp | IpEcn | IpTtl
        );
        let arp = matches!(field, ArpOp | ArpSha | ArpTha | ArpSpa | ArpTpa);
        if ip && is_ip_any(&self.flow) || arp && self.flow.dl_type == eth::ARP {
            self.out.mask.0.nw_proto = u8::MAX;
        }
    }
}
