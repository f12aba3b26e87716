//! Masks of the fields that a packet has, made from its key; and matches freed of conditions that cannot
//! match.

use crate::field::{dl_type, is_nd};
use crate::key::{FlowKey, FlowMask, Match, Nsh, Vlan, frag};
use heddle_wire::eth::{self, ethertype, is_mpls};
use heddle_wire::ip::proto;

impl FlowMask {
    /// Every bit that a packet with this key can have, for an exact-match entry and for texts. Registers and
    /// metadata, which are the pipeline's, are left out.
    pub fn for_packet(k: &FlowKey) -> FlowMask {
        let mut mask = FlowMask::default();
        let m = &mut mask.0;
        if k.tun_dst != 0 || k.tun_ipv6_dst != [0; 16] {
            const KEY: u16 = 1 << 3;
            m.tun_id = if k.tun_flags & KEY != 0 { u64::MAX } else { 0 };
            m.tun_src = u32::MAX;
            m.tun_dst = u32::MAX;
            m.tun_ipv6_src = [0xff; 16];
            m.tun_ipv6_dst = [0xff; 16];
            m.tun_flags = u16::MAX;
            m.tun_tos = u8::MAX;
            m.tun_ttl = u8::MAX;
            m.tun_gbp_id = u16::MAX;
            m.tun_gbp_flags = u8::MAX;
            m.tun_erspan_ver = u8::MAX;
            m.tun_erspan_idx = u32::MAX;
            m.tun_erspan_dir = u8::MAX;
            m.tun_erspan_hwid = u8::MAX;
            m.tun_gtpu_flags = u8::MAX;
            m.tun_gtpu_msgtype = u8::MAX;
            m.tun_present = u64::MAX;
            m.tun_metadata = [0xff; crate::key::TLV_SPACE];
        } else if k.tun_id != 0 {
            m.tun_id = u64::MAX;
        }
        m.skb_priority = u32::MAX;
        m.pkt_mark = u32::MAX;
        m.ct_state = 0xff;
        m.ct_zone = u16::MAX;
        m.ct_mark = u32::MAX;
        m.ct_label = [0xff; 16];
        m.recirc_id = u32::MAX;
        m.dp_hash = u32::MAX;
        m.in_port = u32::MAX;
        m.packet_type = u32::MAX;
        if k.packet_type == 0 {
            m.dl_dst = [0xff; 6];
            m.dl_src = [0xff; 6];
            m.dl_type = u16::MAX;
            // The absence of a further tag counts too.
            for (tag, tag_mask) in k.vlans.iter().zip(&mut m.vlans) {
                *tag_mask = Vlan {
                    tpid: u16::MAX,
                    tci: u16::MAX,
                };
                if tag.tci == 0 {
                    break;
                }
            }
        }
        let ty = dl_type(k);
        match ty {
            ethertype::IP => {
                m.nw_src = u32::MAX;
                m.nw_dst = u32::MAX;
                m.ct_nw_src = u32::MAX;
                m.ct_nw_dst = u32::MAX;
            }
            ethertype::IPV6 => {
                m.ipv6_src = [0xff; 16];
                m.ipv6_dst = [0xff; 16];
                m.ipv6_label = u32::MAX;
                if is_nd(k) {
                    m.arp_sha = [0xff; 6];
                    m.arp_tha = [0xff; 6];
                    m.nd_target = [0xff; 16];
                } else {
                    m.ct_ipv6_src = [0xff; 16];
                    m.ct_ipv6_dst = [0xff; 16];
                }
            }
            ethertype::ARP | ethertype::RARP => {
                m.nw_src = u32::MAX;
                m.nw_dst = u32::MAX;
                m.nw_proto = u8::MAX;
                m.arp_sha = [0xff; 6];
                m.arp_tha = [0xff; 6];
                return mask;
            }
            // The absence of an IP header behind it counts, too. A key without EtherType is not of a packet,
            // and shows no such header.
            ethertype::NSH if k.dl_type == ty => m.nsh = Nsh::ONES,
            _ => {
                if is_mpls(ty) {
                    for (lse, lse_mask) in k.mpls_lse.iter().zip(&mut m.mpls_lse) {
                        *lse_mask = u32::MAX;
                        if lse & eth::MplsLse::BOS != 0 {
                            break;
                        }
                    }
                }
                return mask;
            }
        }
        m.nw_frag = frag::MASK;
        m.nw_tos = u8::MAX;
        m.nw_ttl = u8::MAX;
        m.nw_proto = u8::MAX;
        m.ct_nw_proto = u8::MAX;
        m.ct_tp_src = u16::MAX;
        m.ct_tp_dst = u16::MAX;
        if k.nw_frag & frag::LATER == 0 && has_l4(k.nw_proto) {
            m.tp_src = u16::MAX;
            m.tp_dst = u16::MAX;
            match k.nw_proto {
                proto::TCP => m.tcp_flags = u16::MAX,
                proto::IGMP => m.igmp_group = u32::MAX,
                _ => {}
            }
        }
        mask
    }
}

/// Whether the key has L4 members for a protocol.
fn has_l4(p: u8) -> bool {
    matches!(
        p,
        proto::ICMP | proto::ICMPV6 | proto::TCP | proto::UDP | proto::SCTP | proto::IGMP
    )
}

impl Match {}
