//! The 1.0 and 1.1 forms of setting headers, and decrementing the TTL.

use super::ctx::Ctx;
use super::flow::Flow;
use super::mask::{DSCP_MASK, ECN_MASK, is_ip_any};
use super::report::Kind;
use heddle_flow::FlowMask;
use heddle_flow::key::frag;
use heddle_openflow::Action;
use heddle_openflow::action::ControllerAction;
use heddle_openflow::message::PacketInReason;
use heddle_wire::eth::ethertype as eth;

impl Flow {
    /// `SetEthSrc` to `SetL4Dst`; no change if the packet has no such header.
    pub(super) fn set_header(&mut self, mask: &mut FlowMask, action: &Action) {
        let (ip, v4) = (is_ip_any(self), self.dl_type == eth::IP);
        let l4 = ip && self.nw_frag & frag::LATER == 0;
        let (f, m) = (&mut **self, &mut mask.0);
        match action {
            Action::SetEthSrc(mac) => (f.dl_src, m.dl_src) = (*mac, [0xff; 6]),
            Action::SetEthDst(mac) => (f.dl_dst, m.dl_dst) = (*mac, [0xff; 6]),
            Action::SetIpv4Src(a) if v4 => (f.nw_src, m.nw_src, m.nw_proto) = (*a, u32::MAX, u8::MAX),
            Action::SetIpv4Dst(a) if v4 => (f.nw_dst, m.nw_dst, m.nw_proto) = (*a, u32::MAX, u8::MAX),
            Action::SetIpDscp(tos) if ip => {
                m.nw_proto = u8::MAX;
                m.nw_tos |= DSCP_MASK;
                f.nw_tos = f.nw_tos & !DSCP_MASK | tos & DSCP_MASK;
            }
            Action::SetIpEcn(ecn) if ip => {
                m.nw_proto = u8::MAX;
                m.nw_tos |= ECN_MASK;
                f.nw_tos = f.nw_tos & !ECN_MASK | ecn & ECN_MASK;
            }
            Action::SetIpTtl(ttl) if ip => (f.nw_ttl, m.nw_ttl, m.nw_proto) = (*ttl, u8::MAX, u8::MAX),
            Action::SetL4Src(p) if l4 => (f.tp_src, m.tp_src, m.nw_proto) = (*p, u16::MAX, u8::MAX),
            Action::SetL4Dst(p) if l4 => (f.tp_dst, m.tp_dst, m.nw_proto) = (*p, u16::MAX, u8::MAX),
            _ => {}
        }
    }
}

impl Ctx<'_> {
    /// Decrements the TTL. `false`: it ran out, packet-ins are emitted, and the list of actions ends.
    pub(super) fn dec_ttl(&mut self, controllers: &[u16]) -> bool {
        self.out.mask.0.nw_ttl = u8::MAX;
        self.out.mask.0.nw_proto = u8::MAX;
        if !is_ip_any(&self.flow) {
            return true;
        }
        if self.flow.nw_ttl > 1 {
            self.flow.nw_ttl -= 1;
            return true;
        }
        for id in controllers {
            self.ttl_exception(*id);
        }
        let version = if self.flow.dl_type == eth::IP { 4 } else { 6 };
        self.trace
            .report(Kind::Warn, || format!("IPv{version} decrement TTL exception"));
        false
    }

    /// Emits a packet-in for a TTL that ran out.
    pub(super) fn ttl_exception(&mut self, controller_id: u16) {
        let action = ControllerAction {
            max_len: u16::MAX,
            controller_id,
            reason: PacketInReason::InvalidTtl as u8,
            ..ControllerAction::default()
        };
        self.controller(&action, PacketInReason::InvalidTtl);
    }
}
