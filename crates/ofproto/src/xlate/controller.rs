//! Sending the packet to a controller.

use super::ctx::Ctx;
use super::meta::PacketInMeta;
use super::recirc::{Frozen, Recirculation};
use crate::meter;
use crate::versioned::LATEST;
use heddle_datapath_api::{Action, Meter, Upcall, UpcallCookie, UpcallKind};
use heddle_openflow::action::ControllerAction;
use heddle_openflow::message::{METER_CONTROLLER, PacketInReason};
use std::sync::Arc;

impl Ctx<'_> {
    /// Emits a packet-in.
    pub(super) fn controller(&mut self, action: &ControllerAction, reason: PacketInReason) {
        self.commit();
        let by_miss_flow = self
            .at
            .rule
            .is_some_and(|r| r.priority == 0 && r.matches.mask.words().is_empty());
        let reason = match reason {
            PacketInReason::Action if by_miss_flow => PacketInReason::ExplicitMiss,
            r => r,
        };
        let metadata = self.kept_metadata();
        let here = Frozen {
            stack: self.at.stack.clone(),
            userdata: action.userdata.clone(),
            ..self.frozen(metadata)
        };
        let Some(held) = self.take_recirculation(here) else {
            return;
        };
        let upcall = self.upcall(action, reason, held, false);
        self.emit_metered(action, upcall);
    }

    /// Emits a packet-in whose controller decides when the frozen pipeline `held` continues.
    pub(super) fn continue_at_controller(&mut self, action: &ControllerAction, held: Arc<Recirculation>) {
        if self.trace.is_on() && !self.input.has_packet() {
            return;
        }
        let reason = super::actions::reason_of(action.reason);
        let upcall = self.upcall(action, reason, held, true);
        self.emit_metered(action, upcall);
    }

    /// Emits a packet-in, after the meter that applies to `action`, if there is one.
    fn emit_metered(&mut self, action: &ControllerAction, upcall: Action) {
        match self.packet_in_meter(action.meter_id) {
            Some(meter) => self.out.emit(Action::Sample {
                probability: u32::MAX,
                actions: vec![Action::Meter(meter), upcall],
            }),
            None => self.out.emit(upcall),
        }
    }

    fn upcall(
        &mut self,
        action: &ControllerAction,
        reason: PacketInReason,
        held: Arc<Recirculation>,
        continuation: bool,
    ) -> Action {
        self.out.credits.push(held.clone());
        let meta = PacketInMeta {
            reason,
            cookie: self.at.cookie,
            table: self.at.table,
            max_len: action.max_len,
            controller_id: action.controller_id,
            userdata: action.userdata.clone(),
            continuation,
            dont_send: self.trace.is_on() && !self.input.has_packet(),
            held,
        };
        Action::Userspace(Arc::new(Upcall {
            kind: UpcallKind::Controller,
            // Packets are not buffered: the controller would lose the part that is cut off.
            max_len: u16::MAX,
            cookie: UpcallCookie(Arc::new(meta)),
        }))
    }

    /// The meter of an action. If it names none, or one that does not exist, the meter of all packet-ins.
    fn packet_in_meter(&mut self, id: Option<u32>) -> Option<Arc<Meter>> {
        let own = id.and_then(|id| self.existing_meter(id));
        own.or_else(|| self.existing_meter(METER_CONTROLLER))
    }

    fn existing_meter(&mut self, id: u32) -> Option<Arc<Meter>> {
        self.out.depend(meter::slot(self.at.bridge.id, id));
        Some(self.at.bridge.meters.get(id, LATEST)?.data.dp.clone())
    }

    /// The reason of a plain output to the controller.
    pub(super) fn output_reason(&self) -> PacketInReason {
        if self.input.is_packet_out() {
            PacketInReason::PacketOut
        } else if self.at.in_bucket {
            PacketInReason::Group
        } else if self.at.in_action_set {
            PacketInReason::ActionSet
        } else {
            PacketInReason::Action
        }
    }
}
