//! Samples for IPFIX collectors and local readers: of all packets of a bridge, and of packets of rules with
//! the action `sample`.

use super::ctx::Ctx;
use super::emit::Output;
use crate::meter;
use crate::model::{Binding, PortView};
use crate::sampling::{MAX_LOCAL_SAMPLE_BYTES, SampleMeta, SampledTunnel, WhichExporter};
use crate::versioned::LATEST;
use heddle_datapath_api::{Action as DpAction, PortNo, Upcall, UpcallCookie, UpcallKind};
use heddle_openflow::Port;
use heddle_openflow::action::{ObservationId, Sample, SampleDirection};
use heddle_openflow::message::METER_SLOWPATH;
use heddle_tunnel::{TunnelConfig, TunnelType};
use heddle_wire::ip::proto;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

impl Output<'_> {
    /// At the end of the translation, records in the samples whether the packet is forwarded.
    pub(super) fn finish_samples(&mut self) {
        if !self.samples.is_empty() && self.actions.iter().any(sends) {
            self.samples.iter().for_each(|s| s.forwards.store(true, Relaxed));
        }
    }
}

impl Ctx<'_> {
    /// Samples the packet as it came, for the bridge's own exporter.
    pub(super) fn sample_ingress(&mut self) {
        let Some(ipfix) = self.at.bridge.ipfix.as_ref().and_then(|i| i.bridge.as_ref()) else {
            return;
        };
        if ipfix.input && super::ctx::of_port(self.flow.in_port) != Port::NONE {
            self.sample_bridge(PortNo::NONE, None);
        }
    }

    /// Samples the packet as it leaves by a port, for the bridge's own exporter.
    pub(super) fn sample_egress(&mut self, port: &PortView, no: PortNo) {
        let ipfix = self.at.bridge.ipfix.as_ref().and_then(|i| i.bridge.as_ref());
        if ipfix.is_some_and(|i| i.output) {
            self.sample_bridge(no, Some(port));
        }
    }

    fn sample_bridge(&mut self, output_port: PortNo, output: Option<&PortView>) {
        let Some(ipfix) = self.at.bridge.ipfix.as_ref().and_then(|i| i.bridge.as_ref()) else {
            return;
        };
        let probability = ipfix.probability();
        let came_by = self.tunnel_that_it_came_by();
        let meta = SampleMeta {
            bridge: self.at.bridge.id,
            which: WhichExporter::Bridge,
            probability,
            domain: ipfix.domain,
            point: ipfix.point,
            wanted: SampleDirection::Default,
            local_group: None,
            output_port,
            tunnel_out_port: None,
            input: self.input_name(),
            output: output.map_or_else(String::new, |p| p.name.clone()),
            tunnel: came_by.filter(|_| output_port == PortNo::NONE),
            forwards: AtomicBool::new(false),
        };
        self.emit_sample(probability, meta);
    }

    /// The action `sample`.
    pub(super) fn sample(&mut self, s: &Sample) {
        let Some(ipfix) = self.at.bridge.ipfix.clone() else {
            return;
        };
        let mut output_port = PortNo::NONE;
        let (mut output, mut sent_by) = (None, None);
        if s.sampling_port != Port::NONE && super::ctx::key_port(s.sampling_port) != self.flow.in_port {
            output = self.port(s.sampling_port);
            let tunnel = output.and_then(|p| p.tunnel());
            let no = output.and_then(|p| match &p.binding {
                Binding::Datapath(no) => Some(*no),
                Binding::Tunnel(t) => Some(t.dp),
                Binding::Patch(_) | Binding::Unbound => None,
            });
            let Some(no) = no else {
                self.report_error(|| {
                    format!("can't use unknown port {} in flow sample action", s.sampling_port)
                });
                return;
            };
            output_port = no;
            let wants_tunnels = ipfix.sets.get(&s.collector_set_id).is_some_and(|c| c.tunnels);
            sent_by = tunnel.filter(|t| wants_tunnels && kind_of(&t.config).is_some());
        }
        self.commit();
        let before = *self.flow;
        let tunnel = match sent_by {
            Some(t) => {
                self.fill_tunnel(&t.config);
                let sent = (self.flow.tun_src, self.flow.tun_dst, self.flow.tun_id);
                kind_of(&t.config).map(|k| SampledTunnel {
                    sent: Some(sent),
                    ..k
                })
            }
            None if output_port == PortNo::NONE => self.tunnel_that_it_came_by(),
            None => None,
        };
        let meta = SampleMeta {
            bridge: self.at.bridge.id,
            which: WhichExporter::Set(s.collector_set_id),
            probability: s.probability.into(),
            domain: self.observation_id(s.obs_domain_id),
            point: self.observation_id(s.obs_point_id),
            wanted: s.direction,
            local_group: ipfix.local_groups.get(&s.collector_set_id).copied(),
            output_port,
            tunnel_out_port: sent_by.map(|t| t.dp),
            input: self.input_name(),
            output: output.map_or_else(String::new, |p| p.name.clone()),
            tunnel,
            forwards: AtomicBool::new(false),
        };
        self.flow.copy_tunnel(&before);
        // The same probability in 32 bits.
        self.emit_sample(u32::from(s.probability) << 16 | u32::from(s.probability), meta);
    }

    fn observation_id(&mut self, id: ObservationId) -> u32 {
        match id {
            ObservationId::Value(value) => value,
            ObservationId::Field(src) => {
                src.add_mask(&mut self.out.mask);
                u32::try_from(src.get(&self.flow).as_u64()).expect("at most 32 bits")
            }
        }
    }

    fn emit_sample(&mut self, probability: u32, meta: SampleMeta) {
        if probability == 0 {
            return;
        }
        let max_len = meta.local_group.map_or(u16::MAX, |_| MAX_LOCAL_SAMPLE_BYTES);
        let meta = Arc::new(meta);
        self.out.samples.push(meta.clone());
        let upcall = DpAction::Userspace(Arc::new(Upcall {
            kind: UpcallKind::Sample,
            max_len,
            cookie: UpcallCookie(meta),
        }));
        self.out.depend(meter::slot(self.at.bridge.id, METER_SLOWPATH));
        let meter = self
            .at
            .bridge
            .meters
            .get(METER_SLOWPATH, LATEST)
            .map(|m| m.data.dp.clone());
        if meter.is_none() && probability == u32::MAX {
            return self.out.emit(upcall);
        }
        let actions = meter.map(DpAction::Meter).into_iter().chain([upcall]).collect();
        self.out.emit(DpAction::Sample { probability, actions });
    }

    /// The interface that the packet came in by. Behind a patch port there is none.
    fn input_name(&mut self) -> String {
        match self.in_port() {
            Some(p) if matches!(p.binding, Binding::Datapath(_) | Binding::Tunnel(_)) => p.name.clone(),
            _ => String::new(),
        }
    }

    fn tunnel_that_it_came_by(&mut self) -> Option<SampledTunnel> {
        let tunnel = self.in_port().and_then(|p| p.tunnel())?;
        kind_of(&tunnel.config)
    }
}

/// Tunnels that IPFIX has numbers for.
fn kind_of(config: &TunnelConfig) -> Option<SampledTunnel> {
    let (kind, key_len, proto) = match config.ty {
        TunnelType::Vxlan => (1, 3, proto::UDP),
        TunnelType::Gre => (2, 4, proto::GRE),
        TunnelType::Geneve => (7, 3, proto::UDP),
        TunnelType::Lisp => (3, 3, proto::UDP),
        TunnelType::Stt => (4, 8, proto::TCP),
        _ => return None,
    };
    Some(SampledTunnel {
        kind,
        key_len,
        proto,
        tp_dst: config.dst_port,
        sent: None,
    })
}

/// Whether an action forwards the packet, or recirculates it, which may forward it.
fn sends(action: &DpAction) -> bool {
    match action {
        DpAction::Output(_) | DpAction::TunnelPush(_) | DpAction::TunnelPop(_) | DpAction::Recirc(_) => true,
        DpAction::Clone(list) | DpAction::Sample { actions: list, .. } => list.iter().any(sends),
        DpAction::CheckPktLen {
            greater, less_equal, ..
        } => greater.iter().chain(less_equal).any(sends),
        _ => false,
    }
}
