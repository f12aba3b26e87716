//! Effects of a trace that the datapath has: packet-ins and samples of the traced packet.
//!
//! The actions of each translation run on the packet, without those that would send or recirculate it. Open
//! vSwitch does the same. Tracking is left out, too: a trace changes no connection.

use super::{Traced, TracedActions};
use crate::Ofproto;
use heddle_datapath_api::{Action, PortNo};
use heddle_packet::Packet;

impl Traced {
    /// Sends the packet-ins of a trace that was given a packet. Waits for a worker.
    pub fn carry_out(&self, of: &Ofproto) {
        let (Some(bytes), Some(bridge), Some(dp)) = (&self.packet, of.bridge_by_id(self.bridge), of.engine())
        else {
            return;
        };
        for TracedActions { key, actions } in &self.runs {
            let actions = without_outputs(actions);
            if !has_upcall(&actions) {
                continue;
            }
            let from = bridge
                .dp_port(crate::xlate::of_port(key.in_port))
                .unwrap_or(PortNo::NONE);
            if let Err(e) = dp.inject(Packet::from_bytes(bytes), key, from, actions) {
                log::warn!(target: "ofproto", "{}: a trace's packet-ins were not sent: {e}", bridge.name);
            }
        }
    }
}

fn has_upcall(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::Userspace(_) => true,
        Action::Clone(inner) | Action::Sample { actions: inner, .. } => has_upcall(inner),
        Action::CheckPktLen {
            greater, less_equal, ..
        } => has_upcall(greater) || has_upcall(less_equal),
        _ => false,
    })
}

fn without_outputs(actions: &[Action]) -> Vec<Action> {
    let kept = actions.iter().filter_map(|action| match action {
        Action::Output(_)
        | Action::Recirc(_)
        | Action::Ct(_)
        | Action::TunnelPush(_)
        | Action::TunnelPop(_)
        | Action::Wait(_)
        | Action::TooBig { .. } => None,
        Action::Clone(inner) => Some(Action::Clone(without_outputs(inner))),
        Action::Sample { probability, actions } => Some(Action::Sample {
            probability: *probability,
            actions: without_outputs(actions),
        }),
        Action::CheckPktLen {
            len,
            greater,
            less_equal,
        } => Some(Action::CheckPktLen {
            len: *len,
            greater: without_outputs(greater),
            less_equal: without_outputs(less_equal),
        }),
        other => Some(other.clone()),
    });
    kept.collect()
}
