//! Bits of the key that always matter, and the mask that is left at the end.

use super::emit::Output;
use crate::tunnels::is_tunnelled;
use heddle_flow::{FlowKey, FlowMask, Vlan, key::frag};
use heddle_wire::eth::{ethertype as eth, is_mpls, is_vlan};
use heddle_wire::ip::proto;

pub(super) fn is_ip_any(key: &FlowKey) -> bool {
    matches!(key.dl_type, eth::IP | eth::IPV6)
}

impl Output<'_> {
    /// Adds the bits that every translation depends on.
    pub(super) fn init_mask(&mut self, flow: &FlowKey, orig: &FlowKey) {
        let m = &mut self.mask.0;
        m.packet_type = u32::MAX;
        m.in_port = u32::MAX;
        m.recirc_id = u32::MAX;
        m.dl_type = u16::MAX;
        if is_ip_any(flow) {
            m.nw_frag = frag::MASK;
        }
        if is_tunnelled(orig) {
            let m = &mut self.mask;
            if orig.tun_dst != 0 {
                (m.0.tun_src, m.0.tun_dst) = (u32::MAX, u32::MAX);
            } else {
                (m.0.tun_ipv6_src, m.0.tun_ipv6_dst) = ([0xff; 16], [0xff; 16]);
            }
            m.0.tun_id = u64::MAX;
            m.0.tun_flags = tun_flags::DATAPATH;
            m.0.tun_tos = u8::MAX;
            if is_ip_any(flow) && orig.tun_tos & ECN_MASK == ECN_MASK {
                m.0.nw_tos |= ECN_MASK;
            }
            of_tunnel(self.extra());
        }
    }

    /// Completes the mask of the translation of `orig`.
    pub(super) fn finish_mask(&mut self, orig: &FlowKey) {
        if let Some(extra) = &self.extra {
            self.translation.mask.add(extra);
        }
        trim(&mut self.mask, orig);
    }
}

/// Bits of a key's `tun_flags`.
pub(super) mod tun_flags {
    /// Not to be fragmented.
    pub(in crate::xlate) const DF: u16 = 1 << 1;
    /// With a checksum.
    pub(in crate::xlate) const CSUM: u16 = 1 << 2;
    /// With a key.
    pub(in crate::xlate) const KEY: u16 = 1 << 3;
    /// Flags that a tunnel's configuration decides.
    pub(in crate::xlate) const DATAPATH: u16 = DF | CSUM | KEY;
}

/// The bits of an IP header's second byte that are DSCP (RFC 2474).
pub(super) const DSCP_MASK: u8 = 0xfc;
/// The bits of an IP header's second byte that are ECN (RFC 3168); all set: congestion was met.
pub(super) const ECN_MASK: u8 = 3;

/// Adds the fields that show whether a packet came from a tunnel, and from which.
pub(super) fn of_tunnel(mask: &mut FlowMask) {
    let m = &mut mask.0;
    m.tun_id = u64::MAX;
    (m.tun_src, m.tun_dst) = (u32::MAX, u32::MAX);
    (m.tun_ipv6_src, m.tun_ipv6_dst) = ([0xff; 16], [0xff; 16]);
}

/// The mask as a trace shows it: without bits of headers that the packet does not have.
pub(crate) fn shown(wc: &FlowMask, orig: &FlowKey) -> FlowMask {
    let inner = wc.0.vlans[1];
    let mut wc = cached(wc, orig);
    let m = &mut wc.0;
    if inner == Vlan::default() {
        m.vlans[1] = inner;
    }
    for (mask, tag) in m.vlans.iter_mut().zip(&orig.vlans) {
        if !is_vlan(tag.tpid) {
            *mask = Vlan::default();
        }
    }
    if !is_tunnelled(orig) {
        m.copy_tunnel(&FlowKey::default());
    }
    wc
}

/// The mask to cache by.
fn cached(wc: &FlowMask, orig: &FlowKey) -> FlowMask {
    let mut wc = *wc;
    trim(&mut wc, orig);
    wc
}

/// Makes a mask one to cache by. Pipeline fields, which are constant at the start, are removed, and so are
/// bits that follow from other bits.
pub(super) fn trim(wc: &mut FlowMask, orig: &FlowKey) {
    let m = &mut wc.0;
    m.metadata = 0;
    m.regs = [0; 16];
    m.actset_output = 0;
    m.conj_id = 0;
    if orig.packet_type != 0 {
        m.dl_dst = [0; 6];
        m.dl_src = [0; 6];
    }
    let icmp = matches!(
        (orig.dl_type, orig.nw_proto),
        (eth::IP, proto::ICMP) | (eth::IPV6, proto::ICMPV6)
    );
    if icmp {
        // Type and code have eight bits each; the other bits are zero.
        m.tp_src &= 0xff;
        m.tp_dst &= 0xff;
    }
    if orig.nw_frag & frag::LATER != 0 {
        m.tp_src = 0;
        m.tp_dst = 0;
    }
    if !is_mpls(orig.dl_type) {
        m.mpls_lse = Default::default();
    }
    if m.vlans[0] != Vlan::default() && orig.vlans[0].present() {
        // Tags are counted whenever one is pushed or popped.
        m.vlans[1].tci |= Vlan::CFI;
    }
    for (mask, tag) in m.vlans.iter_mut().zip(&orig.vlans) {
        if mask.tci != 0 {
            mask.tci |= Vlan::CFI;
        }
        if !tag.present() && *mask != Vlan::default() {
            // Zero follows from its absence.
            *mask = Vlan {
                tpid: 0,
                tci: Vlan::CFI,
            };
        }
    }
}

/// A mask for packets whose headers are equal in every bit.
pub(super) fn exact(key: &FlowKey) -> FlowMask {
    cached(&FlowMask::for_packet(key), key)
}
