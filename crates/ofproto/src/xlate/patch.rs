//! Output to a patch port: the translation continues in the bridge of its peer.
//!
//! The packet arrives there as it is, except for the state of the pipeline: metadata, registers, tunnel,
//! stack and action set start empty. All of it is restored afterwards; only the emitted actions stay.

use super::ctx::{Ctx, key_port};
use super::flow::Flow;
use super::report::Kind;
use super::resubmit::{Lookup, Run};
use super::table::OnMiss;
use crate::model::{PortView, port_config};
use heddle_flow::FlowKey;
use heddle_openflow::Port;

/// Destination address of spanning tree packets (IEEE 802.1D, 7.12.3).
const STP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];

impl Flow {
    /// Clears the pipeline's fields, for another bridge.
    fn enter_bridge(&mut self, in_port: Port) {
        self.in_port = key_port(in_port);
        self.metadata = 0;
        self.regs = [0; 16];
        self.actset_output = key_port(Port::UNSET);
        self.copy_tunnel(&FlowKey::default());
        self.forget_connection();
    }
}

impl Ctx<'_> {
    pub(super) fn patch_output(&mut self, from: &PortView, bridge: u64, peer: Port, last: bool) {
        let found = self.other_bridge(bridge);
        let to = found.and_then(|b| Some((b, self.port_of(b, peer)?)));
        let Some((bridge, to)) = to else { return };
        let old_flow = self.flow;
        let old_bridge = (self.at.bridge, self.at.version);
        let old_stack = std::mem::take(&mut self.at.stack);
        let old_set = std::mem::take(&mut self.at.action_set);
        // Each bridge has its own mirrors.
        let old_mirrored = self.at.mirrored;
        if bridge.id != self.at.bridge.id {
            self.at.mirrored = 0;
        }
        let old_wc = self.out.mask;

        self.flow.enter_bridge(to.no);
        let line = self
            .trace
            .report(Kind::Bridge, || format!("bridge(\"{}\")", bridge.name));
        let parent = self.trace.under(line);
        self.at.enter(bridge);
        if !self.is_special(to) && self.may_receive(to) {
            self.table_action(Lookup {
                in_port: self.flow.in_port,
                table: 0,
                on_miss: OnMiss::FULL,
                ct_orig: false,
                last,
                run: Run::OnCopy,
            });
            self.end_pipeline();
        }
        self.trace.under(parent);
        self.out.torn |= self.at.is_torn();

        // The connection state of the other bridge is not known here.
        self.flow = old_flow;
        (self.at.bridge, self.at.version) = old_bridge;
        self.at.stack = old_stack;
        self.at.action_set = old_set;
        if bridge.id != self.at.bridge.id {
            self.at.mirrored = old_mirrored;
        }
        // The other bridge looked at tunnel fields that it had set itself.
        self.out.mask.0.copy_tunnel(&old_wc.0);
        // An exit or an error of the other bridge's pipeline does not end this one. The error is the drop
        // reason if nothing else is done.
        self.rest.exit = false;
        if let Some(error) = self.out.error.take() {
            self.out.drop_hint.get_or_insert(error.drop_reason());
        }
        self.out.credit(&from.patch_tx);
        self.out.credit(&to.patch_rx);
    }

    /// Whether the port takes packets (`no-receive`, `no-receive-stp`).
    pub(super) fn may_receive(&mut self, port: &PortView) -> bool {
        let both = port_config::NO_RECV | port_config::NO_RECV_STP;
        if port.config & both == 0 {
            return true;
        }
        self.out.mask.0.dl_dst = [0xff; 6];
        let bit = if self.flow.dl_dst == STP {
            port_config::NO_RECV_STP
        } else {
            port_config::NO_RECV
        };
        port.config & bit == 0
    }
}
