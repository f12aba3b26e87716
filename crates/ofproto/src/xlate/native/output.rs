//! Outer packets leave by a bridge or a device, or inner packets wait for a neighbour.

use super::super::ctx::{Ctx, key_port};
use super::super::recirc::{Frozen, Left};
use super::super::report::Kind;
use super::headers::of_outer;
use super::{Egress, NextHop};
use crate::model::PortView;
use crate::tunnels::Tunnel;
use crate::underlay::Underlay;
use heddle_datapath_api::{Action as DpAction, Credit, DropReason, Wait};
use heddle_openflow::{Action, Port};
use std::sync::Arc;

/// Credit for packets that are longer by their outer headers.
struct Longer {
    who: Arc<dyn Credit>,
    by_bytes: u64,
}

impl Credit for Longer {
    fn credit(&self, packets: u64, bytes: u64, used_ms: u64, tcp_flags: u16) {
        let bytes = bytes + packets * self.by_bytes;
        self.who.credit(packets, bytes, used_ms, tcp_flags);
    }
}

impl<'w> Ctx<'w> {
    /// Outputs the packet, whose tunnel is in `flow`, with outer headers. `true`: it waits for a neighbour,
    /// and was not sent.
    pub(in crate::xlate) fn native_output(&mut self, from: &PortView, tunnel: &Tunnel, last: bool) -> bool {
        let Some(hop) = self.next_hop() else { return false };
        match self.next_mac(&hop) {
            Ok(mac) => self.send_out(from, tunnel, (&hop, mac), last),
            Err(requested) => return requested && self.wait_for(from, &hop),
        }
        false
    }

    /// Makes the packet wait for the next hop, whose address was requested, and be output then. `false`: it
    /// does not wait.
    fn wait_for(&mut self, from: &PortView, hop: &NextHop<'_>) -> bool {
        if self.trace.is_on() {
            return false;
        }
        let thing = self
            .input
            .pipeline
            .underlay
            .neighbours
            .thing(hop.link(), hop.next);
        let slot = Underlay::slot(thing);
        // The generation from before the neighbour was looked up.
        let Some(dep) = self.out.deps.iter().find(|d| d.slot == slot).copied() else {
            return false;
        };
        let port = match key_port(from.no) == self.flow.in_port {
            true => Port::IN_PORT,
            false => from.no,
        };
        let output = match self.out.truncation() {
            Some(max_len) => Action::OutputTrunc { port, max_len },
            None => Action::Output { port, max_len: 0 },
        };
        let metadata = self.kept_metadata();
        let frozen = Frozen {
            table: 0,
            // Mirrors have received the packet already.
            mirrored: u32::MAX,
            steps: vec![Left::Action(output)],
            ..self.frozen(metadata)
        };
        let Some(held) = self.input.pipeline.recircs.take(frozen, self.input.reading) else {
            return false;
        };
        self.out.emit(DpAction::Wait(Wait {
            slot,
            generation: dep.generation,
            recirc: held.id,
        }));
        self.out.credits.push(held);
        true
    }

    fn send_out(
        &mut self,
        from: &PortView,
        tunnel: &Tunnel,
        (hop, mac): (&NextHop<'w>, [u8; 6]),
        last: bool,
    ) {
        let at = self.out.actions.len();
        let text = |mac: [u8; 6]| mac.map(|b| format!("{b:02x}")).join(":");
        self.trace.report(Kind::Detail, || {
            let (from, to) = (text(hop.mac()), text(mac));
            format!("tunneling from {from} {} to {to} {}", hop.route.source, hop.next)
        });
        let outer = self.outer(tunnel, hop, mac);
        let Some((outer, mut push)) = outer.and_then(|o| o.build().ok().map(|push| (o, push))) else {
            self.trace.warn("native tunnel header build failed");
            self.out.drop_hint.get_or_insert(DropReason::TunnelAddress);
            return;
        };
        let (old_flow, old_base) = (self.flow, self.base.clone());
        let (old_mask, old_extra) = (self.out.mask, self.out.extra);
        *self.flow = of_outer(&self.flow, &outer);
        *self.base = of_outer(&self.base, &outer);
        push.csum_optional = tunnel.config.csum_optional;
        let by_bytes = push.header.len() as u64;
        let longest = self.longest_frame(hop, &outer, push.header.len());
        self.out.emit(DpAction::TunnelPush(Arc::new(push)));
        let n_credits = self.out.credits.len();
        match hop.egress {
            Egress::Bridge(bridge, port, _) => self.patch_output(from, bridge.id, port.no, last),
            Egress::Device(port) => self.out.emit(DpAction::Output(port.no)),
        }
        for i in n_credits..self.out.credits.len() {
            if let Some(who) = self.out.credits.get(i).cloned() {
                self.out.credits.put(i, Arc::new(Longer { who, by_bytes }));
            }
        }
        // The outer headers do not come from the packet: only mark and priority are its own.
        let marks = (self.out.mask.0.pkt_mark, self.out.mask.0.skb_priority);
        (self.out.mask, self.out.extra) = (old_mask, old_extra);
        self.out.mask.0.pkt_mark |= marks.0;
        self.out.mask.0.skb_priority |= marks.1;

        let emitted = self.out.actions.len() - at;
        (self.flow, self.base) = (old_flow, old_base);
        if emitted <= 1 {
            self.out.actions.truncate(at);
            return;
        }
        if let Some(len) = longest {
            self.refuse_longer(from, hop, len, at);
        }
        if !last {
            let inner: Vec<_> = self.out.actions.drain(at..).collect();
            self.out.emit(DpAction::Clone(inner));
        }
    }
}
