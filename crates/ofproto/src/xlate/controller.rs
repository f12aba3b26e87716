//! Sending the packet to a controller.

use super::ctx::Ctx;
use super::meta::PacketInMeta;
use heddle_datapath::action::{Action, Upcall, UpcallCookie, UpcallKind};
use heddle_flow::FlowKey;
use heddle_openflow::action::ControllerAction;
use heddle_openflow::message::PacketInReason;
use std::sync::Arc;

/// The pipeline's fields of a key; headers are zero.
fn metadata_of(key: &FlowKey) -> FlowKey {
    FlowKey {
        tun_id: key.tun_id,
        tun_src: key.tun_src,
        tun_dst: key.tun_dst,
        tun_ipv6_src: key.tun_ipv6_src,
        tun_ipv6_dst: key.tun_ipv6_dst,
        tun_flags: key.tun_flags,
        tun_tos: key.tun_tos,
        tun_ttl: key.tun_ttl,
        tun_gbp_id: key.tun_gbp_id,
        tun_gbp_flags: key.tun_gbp_flags,
        metadata: key.metadata,
        regs: key.regs,
        in_port: key.in_port,
        ..FlowKey::default()
    }
}

impl Ctx<'_> {
    /// Emits a packet-in.
    pub(super) fn controller(&mut self, action: &ControllerAction, reason: PacketInReason) {
        if action.meter_id.is_some() {
            self.unsupported("controller(meter_id)");
            return;
        }
        self.commit();
        let by_miss_flow = self
            .rule
            .as_ref()
            .is_some_and(|r| r.priority == 0 && r.matches.mask.words().is_empty());
        let reason = match reason {
            PacketInReason::Action if by_miss_flow => PacketInReason::ExplicitMiss,
            r => r,
        };
        self.n_controller += 1;
        let meta = PacketInMeta {
            bridge: self.bridge.id,
            reason,
            cookie: self.cookie,
            table: self.table,
            max_len: action.max_len,
            controller_id: action.controller_id,
            userdata: action.userdata.clone(),
            metadata: Box::new(metadata_of(&self.flow)),
            continuation: false,
            number: self.n_controller,
            dont_send: self.report.is_some() && !self.has_packet,
        };
        self.emit(Action::Userspace(Arc::new(Upcall {
            kind: UpcallKind::Controller,
            max_len: action.max_len,
            cookie: UpcallCookie(Arc::new(meta)),
        })));
    }

    /// The reason of a plain output to the controller.
    pub(super) fn output_reason(&self) -> PacketInReason {
        if self.in_packet_out {
            PacketInReason::PacketOut
        } else if self.in_action_set {
            PacketInReason::ActionSet
        } else {
            PacketInReason::Action
        }
    }
}
