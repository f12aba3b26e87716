//! The data of a sample that only its translation knows: the issuer's part of its upcall.

use heddle_datapath_api::{PortNo, UpcallData};
use heddle_flow::FlowKey;
use heddle_ipfix::{Direction, Tunnel};
use heddle_openflow::action::SampleDirection;
use std::any::Any;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The exporter that a sample is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum WhichExporter {
    /// The bridge's own (`Bridge.ipfix`).
    Bridge,
    /// A row of `Flow_Sample_Collector_Set`, by its `id`.
    Set(u32),
}

/// The tunnel of a sampled packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SampledTunnel {
    /// Number of its type among IPFIX's, see [`Tunnel::kind`].
    pub(crate) kind: u8,
    /// Bytes of its key.
    pub(crate) key_len: u8,
    /// IP protocol of the outer packets.
    pub(crate) proto: u8,
    /// Their destination port, 0: none.
    pub(crate) tp_dst: u16,
    /// Outer source, destination and key of a packet that goes out. `None`: the packet came by the tunnel,
    /// and its own key has them.
    pub(crate) sent: Option<(u32, u32, u64)>,
}

impl SampledTunnel {
    /// The tunnel of a packet that was looked up under `key`; `None`: it is in none.
    pub(crate) fn of(&self, key: &FlowKey) -> Option<Tunnel> {
        let (src, dst, id) = match self.sent {
            Some(sent) => sent,
            None if key.tun_dst == 0 => return None,
            None => (key.tun_src, key.tun_dst, key.tun_id),
        };
        Some(Tunnel {
            src,
            dst,
            proto: self.proto,
            tp_src: 0,
            tp_dst: self.tp_dst,
            kind: self.kind,
            key: id,
            key_len: self.key_len,
        })
    }
}

/// See the module's text.
pub(crate) struct SampleMeta {
    pub(crate) bridge: u64,
    pub(crate) which: WhichExporter,
    /// Sampling probability, as a fraction of 65,535 (of rules) or of 2³²−1 (of bridges).
    pub(crate) probability: u32,
    pub(crate) domain: u32,
    pub(crate) point: u32,
    pub(crate) wanted: SampleDirection,
    /// Group of the local samples, if the set has one (`Flow_Sample_Collector_Set.local_group_id`).
    pub(crate) local_group: Option<u32>,
    /// The output port; [`PortNo::NONE`]: the packet is sampled as it comes in.
    pub(crate) output_port: PortNo,
    /// The tunnel's port, if it goes out by one that the sample is about.
    pub(crate) tunnel_out_port: Option<PortNo>,
    /// Names of the interfaces that it comes in by and goes out by; empty: none that collectors know.
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) tunnel: Option<SampledTunnel>,
    /// Some action of the same translation forwards the packet.
    pub(crate) forwards: AtomicBool,
}

impl SampleMeta {
    /// Number of packets that one sample stands for.
    pub(super) fn each(&self) -> u64 {
        let of = match self.which {
            WhichExporter::Bridge => u32::MAX,
            WhichExporter::Set(_) => u32::from(u16::MAX),
        };
        let p = u64::from(self.probability.max(1));
        (u64::from(of) + p / 2) / p
    }

    pub(super) fn direction(&self) -> Direction {
        match self.wanted {
            SampleDirection::Ingress => Direction::Ingress,
            SampleDirection::Egress => Direction::Egress,
            SampleDirection::Default if self.output_port == PortNo::NONE => Direction::Ingress,
            SampleDirection::Default => Direction::Egress,
        }
    }

    pub(super) fn forwards(&self) -> bool {
        self.forwards.load(Relaxed)
    }
}

impl UpcallData for SampleMeta {
    fn text(&self) -> String {
        let out = self.output_port.0;
        let mut s = match self.which {
            WhichExporter::Bridge => format!("ipfix(output_port={out})"),
            WhichExporter::Set(set) => {
                let direction = match self.wanted {
                    SampleDirection::Default => "",
                    SampleDirection::Ingress => ",ingress",
                    SampleDirection::Egress => ",egress",
                };
                let local = self
                    .local_group
                    .map_or_else(String::new, |group| format!(",local_group_id={group}"));
                format!(
                    "flow_sample(probability={},collector_set_id={set},obs_domain_id={},obs_point_id={},\
                     output_port={out}{direction}{local})",
                    self.probability, self.domain, self.point
                )
            }
        };
        if let Some(port) = self.tunnel_out_port {
            // Writing to a string cannot fail.
            let _ = write!(s, ",tunnel_out_port={}", port.0);
        }
        s
    }
    fn receiver(&self) -> u64 {
        let mut h = DefaultHasher::new();
        (self.bridge, &self.input, &self.output, &self.tunnel).hash(&mut h);
        h.finish()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
