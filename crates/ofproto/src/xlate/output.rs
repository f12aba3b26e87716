//! Output actions.

use super::ctx::{Ctx, key_port, of_port};
use super::mask::{DSCP_MASK, is_ip_any};
use super::report::Kind;
use super::resubmit::{Lookup, Run};
use super::table::OnMiss;
use crate::features::Feature;
use crate::model::{Binding, PortView, port_config};
use crate::parts::Part;
use heddle_datapath_api::{Action as DpAction, LbOutput, PortNo};
use heddle_flow::{Subfield, packet_type};
use heddle_openflow::Port;
use heddle_openflow::action::ControllerAction;
use heddle_tunnel::config::PacketMode;
use std::sync::Arc;

impl Ctx<'_> {
    /// `output:port`. `may_packet_in` counts for TABLE only.
    pub(super) fn output(&mut self, port: Port, max_len: u16, may_packet_in: bool, last: bool) {
        match port {
            Port::IN_PORT => self.output_to(of_port(self.flow.in_port), last),
            Port::TABLE => self.table_action(Lookup {
                in_port: self.flow.in_port,
                table: 0,
                on_miss: OnMiss {
                    may_packet_in,
                    honor_config: true,
                },
                ct_orig: false,
                last: false,
                run: Run::Here,
            }),
            Port::NORMAL => self.normal(),
            Port::FLOOD => self.flood(false, last),
            Port::ALL => self.flood(true, last),
            Port::CONTROLLER => {
                let action = ControllerAction {
                    max_len,
                    ..ControllerAction::default()
                };
                let reason = self.output_reason();
                self.controller(&action, reason);
            }
            Port::NONE => {}
            port if key_port(port) == self.flow.in_port => self.report_info("skipping output to input port"),
            port => self.output_to(port, last),
        }
    }

    /// `output(port=PORT,max_len=BYTES)`: the truncation holds for this output alone, so there must be one
    /// port only.
    pub(super) fn output_trunc(&mut self, port: Port, max_len: u32, last: bool) {
        let to = match port {
            Port::IN_PORT => of_port(self.flow.in_port),
            Port::TABLE | Port::NORMAL | Port::FLOOD | Port::ALL | Port::CONTROLLER | Port::NONE => {
                self.trace.report(Kind::Warn, || {
                    format!("output_trunc does not support port: {port}")
                });
                return;
            }
            port if key_port(port) == self.flow.in_port => {
                self.report_info("skipping output to input port");
                return;
            }
            port => port,
        };
        let binding = self.port(to).map(|p| &p.binding);
        if !matches!(binding, Some(Binding::Datapath(_) | Binding::Tunnel(_))) {
            self.trace.report(Kind::Warn, || {
                format!("output_trunc does not support patch port {to}")
            });
            return;
        }
        let into_tunnel = matches!(binding, Some(Binding::Tunnel(_)));
        let mark = self.mark();
        let at = self.out.actions.len();
        self.out.emit(DpAction::Trunc(max_len));
        // The truncation and the tunnel's output run on a copy. Otherwise the truncation would hold for the
        // next output.
        self.output_to(to, last || into_tunnel);
        if into_tunnel && self.out.actions.len() == at + 1 {
            // The tunnel has no route: there is nothing to truncate.
            self.out.actions.pop();
        }
        if into_tunnel {
            self.isolate_changes(mark, last);
        }
        self.slow_without_trunc();
    }

    /// `output:reg0[0..15]`: the number is in its 16-bit form.
    pub(super) fn output_reg(&mut self, src: Subfield, max_len: u16, last: bool) {
        let value = src.get(&self.flow).as_u64();
        match u16::try_from(value) {
            Ok(port) => {
                self.trace
                    .report(Kind::Detail, || format!("output port is {port}"));
                src.add_mask(&mut self.out.mask);
                self.output(of_port(port.into()), max_len, false, last);
            }
            Err(_) => {
                src.add_mask(self.out.extra());
                self.trace
                    .report(Kind::Warn, || format!("output port {value} is out of range"));
            }
        }
    }

    /// `enqueue:port:queue`.
    pub(super) fn enqueue(&mut self, port: Port, queue: u32, last: bool) {
        self.out.mask.0.skb_priority = u32::MAX;
        let port = match port {
            Port::IN_PORT => of_port(self.flow.in_port),
            port if key_port(port) == self.flow.in_port => return,
            port => port,
        };
        let old = std::mem::replace(&mut self.flow.skb_priority, queue);
        self.output_to(port, last);
        self.flow.skb_priority = old;
    }

    /// Outputs the packet as it is on a port of this bridge.
    pub(super) fn output_to(&mut self, port: Port, last: bool) {
        self.output_by(port, None, last);
    }

    /// Outputs the packet as it is on a port of this bridge. With the buckets of a bond, of which the port is
    /// a member, the datapath chooses the member.
    pub(super) fn output_by(&mut self, port: Port, table: Option<Arc<LbOutput>>, last: bool) {
        if !self.step() {
            return;
        }
        let Some(port) = self.port(port) else {
            self.trace.warn("Nonexistent output port");
            return;
        };
        if port.config & port_config::NO_FWD != 0 {
            self.trace.detail("OFPPC_NO_FWD set, skipping output");
            return;
        }
        if self.at.mirror_snaplen != 0 && !matches!(port.binding, Binding::Datapath(_)) {
            // The datapath truncates only for its own ports.
            self.trace.warn("Mirror truncate to ODPP_NONE, skipping output");
            return;
        }
        if self.is_between_protected(port) {
            self.trace
                .warn("Flow is between protected ports, skipping output.");
            return;
        }
        let mode = port.tunnel().map(|t| t.config.mode);
        // Mirrors get the packet as it leaves, after its output.
        let last = last && self.at.bridge.mirrors.is_empty();
        match &port.binding {
            // Devices take frames only; other bridges take anything.
            Binding::Datapath(_) | Binding::Tunnel(_)
                if self.flow.packet_type != packet_type::ETHERNET
                    && !matches!(mode, Some(PacketMode::Aware | PacketMode::LegacyL3)) =>
            {
                self.trace
                    .warn("Trying to send non-Ethernet packet through legacy L2 port. Dropping packet.");
            }
            Binding::Tunnel(tunnel) => {
                let tos = self.flow.nw_tos;
                self.mark_for_queue(port);
                self.tunnel_output(port, tunnel, last);
                self.flow.nw_tos = tos;
                self.mirror_egress(port.bundle);
            }
            Binding::Datapath(no) => {
                let no = self.device_of(port, *no);
                let tos = self.flow.nw_tos;
                self.mark_for_queue(port);
                self.commit();
                self.flow.nw_tos = tos;
                let pop = self.ends_tunnel(port);
                if pop.is_none() {
                    self.sample_egress(port, no);
                }
                if !matches!(self.at.mirror_snaplen, 0 | u16::MAX) {
                    self.out.emit(DpAction::Trunc(self.at.mirror_snaplen.into()));
                    self.slow_without_trunc();
                }
                if let Some(pop) = pop {
                    self.meet_sender();
                    self.out.emit(DpAction::TunnelPop(pop));
                } else {
                    self.snoop(port);
                    self.out
                        .emit(table.map_or(DpAction::Output(no), DpAction::LbOutput));
                }
                self.mirror_egress(port.bundle);
            }
            Binding::Patch(Some((bridge, peer))) => self.patch_output(port, *bridge, *peer, last),
            Binding::Patch(None) | Binding::Unbound => {}
        }
    }

    /// The datapath port that packets to a port leave by: the active device, if it is a pair. A packet that
    /// came from one of its devices returns by that device, never by the other.
    fn device_of(&mut self, port: &PortView, no: PortNo) -> PortNo {
        match &port.standby {
            Some(pair) => {
                let from = PortNo(self.input.key.in_port);
                if pair.has(from) {
                    return from;
                }
                self.out.depend_on(Part::FailoverPair(pair.id()));
                pair.active()
            }
            None => no,
        }
    }

    fn slow_without_trunc(&mut self) {
        if !self.at.bridge.features.has(Feature::Trunc) {
            self.out.slow();
        }
    }

    /// Gives an IP packet the DSCP of its queue on a port (`Queue.dscp`).
    fn mark_for_queue(&mut self, port: &PortView) {
        let bundle = self.at.bridge.bundles.get(&port.bundle);
        let Some(queues) = bundle.map(|b| &b.queue_dscp).filter(|q| !q.is_empty()) else {
            return;
        };
        self.out.mask.0.skb_priority = u32::MAX;
        let own = queues.iter().find(|(queue, _)| *queue == self.flow.skb_priority);
        if let Some((_, dscp)) = own
            && is_ip_any(&self.flow)
        {
            self.out.mask.0.nw_tos |= DSCP_MASK;
            self.flow.nw_tos = self.flow.nw_tos & !DSCP_MASK | dscp << 2;
        }
    }

    fn is_between_protected(&mut self, out: &PortView) -> bool {
        let bridge = self.at.bridge;
        let protected = |p: &PortView| bridge.bundles.get(&p.bundle).is_some_and(|b| b.protected);
        protected(out) && self.in_port().is_some_and(|p| protected(p))
    }
}
