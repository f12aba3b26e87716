//! Samples for readers on this machine (local sampling of Open vSwitch 3.4).

use super::SampleMeta;
use heddle_datapath_api::{PortNo, UpcallPacket};

/// Maximum length of the packet in a local sample, bytes: longer ones, as GSO packets are, are cut.
pub const MAX_LOCAL_SAMPLE_BYTES: u16 = 2048;

/// One packet that a rule sampled for a collector set with a local group.
#[derive(Clone, Copy, Debug)]
pub struct LocalSample<'a> {
    /// `local_group_id` of the set.
    pub group: u32,
    /// Observation domain.
    pub domain: u32,
    /// Observation point.
    pub point: u32,
    /// Sampling probability, as a fraction of 65,535.
    pub probability: u32,
    /// Interface that the packet came into the bridge by. Behind a patch port it is empty.
    pub input: &'a str,
    /// Datapath port that the packet came in by.
    pub in_port: PortNo,
    /// Type of the packet's first header ([`heddle_flow::packet_type`]).
    pub packet_type: u32,
    /// Length of the whole packet, bytes.
    pub total_len: usize,
    /// The packet, or its first [`MAX_LOCAL_SAMPLE_BYTES`].
    pub bytes: &'a [u8],
}

impl<'a> LocalSample<'a> {
    /// `None`: the sample is for exporters alone.
    pub(super) fn of(upcall: &'a UpcallPacket) -> Option<Self> {
        let meta: &SampleMeta = upcall.upcall.cookie.0.as_any().downcast_ref()?;
        Some(Self {
            group: meta.local_group?,
            domain: meta.domain,
            point: meta.point,
            probability: meta.probability,
            input: &meta.input,
            in_port: upcall.in_port,
            packet_type: upcall.packet_type,
            total_len: upcall.total_len,
            bytes: &upcall.bytes,
        })
    }

    /// Domain and point in network byte order: the cookie of the kernel's samples.
    #[must_use]
    pub fn cookie(&self) -> [u8; 8] {
        (u64::from(self.domain) << 32 | u64::from(self.point)).to_be_bytes()
    }
}
