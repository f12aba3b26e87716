//! IPv4, IPv6, ARP, neighbour discovery.

use super::super::emit::Output;
use super::super::flow::Base;
use super::{diff, same};
use heddle_datapath_api::{Action, Masked};
use heddle_flow::FlowKey;
use heddle_wire::eth::ethertype as eth;
use heddle_wire::ip::proto;

fn l3_differs(a: &FlowKey, b: &FlowKey) -> bool {
    let l3 = |k: &FlowKey| {
        let ip = (k.nw_src, k.nw_dst, k.nw_tos, k.nw_ttl, k.nw_proto);
        let ipv6 = (k.ipv6_src, k.ipv6_dst, k.ipv6_label);
        let nd = (k.nd_target, k.arp_sha, k.arp_tha, k.igmp_group, k.tcp_flags);
        (ip, ipv6, nd)
    };
    l3(a) != l3(b)
}

impl Base<'_> {
    pub(super) fn commit_l3(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let has_l3 = |k: &FlowKey| matches!(k.dl_type, eth::IP | eth::IPV6 | eth::ARP);
        if has_l3(flow) && has_l3(self) && l3_differs(flow, self) {
            // The translation depends on the protocol: whether it is zero, and whether it has an ND header
            // behind it.
            out.extra().0.nw_proto = u8::MAX;
        }
        // Without a protocol there is no L3 header to write: a malformed packet, or one behind a new label.
        // An opcode of ARP that an action has made zero is written, but not one that a new label hides.
        let is_arp = self.dl_type == eth::ARP && flow.dl_type == eth::ARP;
        let opcode_goes = is_arp && self.nw_proto != 0;
        if flow.nw_proto == 0 && !opcode_goes {
            return;
        }
        match self.dl_type {
            eth::IP => self.commit_ipv4(flow, out),
            eth::IPV6 => {
                self.commit_ipv6(flow, out);
                if self.nw_proto == proto::ICMPV6 {
                    self.commit_nd(flow, out);
                }
            }
            eth::ARP => self.commit_arp(flow, out),
            _ => {}
        }
    }

    fn commit_ipv4(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let (f, b, m) = (flow, &mut *self, &mut out.mask.0);
        let src = diff(f.nw_src, &mut b.nw_src, &mut m.nw_src);
        let dst = diff(f.nw_dst, &mut b.nw_dst, &mut m.nw_dst);
        let tos = diff(f.nw_tos, &mut b.nw_tos, &mut m.nw_tos);
        let ttl = diff(f.nw_ttl, &mut b.nw_ttl, &mut m.nw_ttl);
        if !(same(&src) && same(&dst) && same(&tos) && same(&ttl)) {
            out.emit(Action::SetIpv4 { src, dst, tos, ttl });
        }
    }

    fn commit_ipv6(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let (f, b, m) = (flow, &mut *self, &mut out.mask.0);
        let src = diff(f.ipv6_src, &mut b.ipv6_src, &mut m.ipv6_src);
        let dst = diff(f.ipv6_dst, &mut b.ipv6_dst, &mut m.ipv6_dst);
        let mut label_mask = m.ipv6_label & 0xf_ffff;
        let label = diff(f.ipv6_label, &mut b.ipv6_label, &mut label_mask);
        m.ipv6_label |= label_mask;
        let tclass = diff(f.nw_tos, &mut b.nw_tos, &mut m.nw_tos);
        let hlimit = diff(f.nw_ttl, &mut b.nw_ttl, &mut m.nw_ttl);
        if !(same(&src) && same(&dst) && same(&label) && same(&tclass) && same(&hlimit)) {
            out.emit(Action::SetIpv6 {
                src,
                dst,
                label,
                tclass,
                hlimit,
            });
        }
    }

    /// The option's type is written first: it decides which address is written.
    fn commit_nd(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let (f, b, m) = (flow, &mut *self, &mut out.mask.0);
        let reserved = diff(f.igmp_group, &mut b.igmp_group, &mut m.igmp_group);
        let option = diff(f.tcp_flags, &mut b.tcp_flags, &mut m.tcp_flags);
        if !(same(&reserved) && same(&option)) {
            let low = |v: u16| v.to_be_bytes()[1];
            let option = Masked {
                value: low(option.value),
                mask: low(option.mask),
            };
            out.emit(Action::SetNdExt { reserved, option });
        }
        let (f, b, m) = (flow, &mut *self, &mut out.mask.0);
        let target = diff(f.nd_target, &mut b.nd_target, &mut m.nd_target);
        let sll = diff(f.arp_sha, &mut b.arp_sha, &mut m.arp_sha);
        let tll = diff(f.arp_tha, &mut b.arp_tha, &mut m.arp_tha);
        if !(same(&target) && same(&sll) && same(&tll)) {
            out.emit(Action::SetNd { target, sll, tll });
        }
    }

    fn commit_arp(&mut self, flow: &FlowKey, out: &mut Output<'_>) {
        let (f, b, m) = (flow, &mut *self, &mut out.mask.0);
        let sip = diff(f.nw_src, &mut b.nw_src, &mut m.nw_src);
        let tip = diff(f.nw_dst, &mut b.nw_dst, &mut m.nw_dst);
        let op = diff(f.nw_proto, &mut b.nw_proto, &mut m.nw_proto);
        let sha = diff(f.arp_sha, &mut b.arp_sha, &mut m.arp_sha);
        let tha = diff(f.arp_tha, &mut b.arp_tha, &mut m.arp_tha);
        if same(&sip) && same(&tip) && same(&op) && same(&sha) && same(&tha) {
            return;
        }
        // The key holds the opcode's low byte; if all bits of it are written, the whole opcode is.
        let mask = if op.mask == u8::MAX {
            u16::MAX
        } else {
            u16::from(op.mask)
        };
        let op = Masked {
            value: u16::from(op.value),
            mask,
        };
        out.emit(Action::SetArp {
            sip,
            tip,
            op,
            sha,
            tha,
        });
    }
}
