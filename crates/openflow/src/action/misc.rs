//! Smaller extensions: sampling, encapsulation, length checks, conjunctions.

use super::{Port, Subfield};

/// Packet types: namespace in the upper half, type in the lower (OpenFlow 1.5 §7.2.3.11).
pub mod packet_type {
    /// An Ethernet frame.
    pub const ETHERNET: u32 = 0;
    /// A network service header (RFC 8300).
    pub const NSH: u32 = 1 << 16 | 0x894f;
    /// A label stack.
    pub const MPLS: u32 = 1 << 16 | 0x8847;
    /// A multicast label stack.
    pub const MPLS_MC: u32 = 1 << 16 | 0x8848;
    /// In `decap`: the type that the header names for the next one.
    pub const NEXT: u32 = 0xfffe;
}

/// One part of a conjunctive match.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conjunction {
    /// Conjunction id; the flow with the conjunction's actions matches on it.
    pub id: u32,
    /// Index of the clause, from 0.
    pub clause: u8,
    /// Number of clauses of the conjunction, 2 to 64.
    pub n_clauses: u8,
}

/// Side of a port at which packets are sampled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum SampleDirection {
    /// Not specified.
    #[default]
    Default = 0,
    /// When they come in.
    Ingress = 1,
    /// When they go out.
    Egress = 2,
}

/// Width of the numbers that samples carry.
pub const MAX_OBSERVATION_BITS: u16 = 32;

/// A number that samples carry: a constant of the action, or the value of a field of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObservationId {
    /// A constant.
    Value(u32),
    /// The value of a subfield of at most 32 bits.
    Field(Subfield),
}

/// Samples packets for IPFIX collectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sample {
    /// Sampling probability, as a fraction of 65,535; not 0.
    pub probability: u16,
    /// Set of collectors.
    pub collector_set_id: u32,
    /// IPFIX observation domain.
    pub obs_domain_id: ObservationId,
    /// IPFIX observation point.
    pub obs_point_id: ObservationId,
    /// The port that the sample is about, `Port::NONE` for the input port.
    pub sampling_port: Port,
    /// Side of the port.
    pub direction: SampleDirection,
    /// Form of the action on the wire, from 1 to 4; it is sent back in the same form.
    pub form: u8,
}

/// Property of a header that is pushed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EncapProperty {
    /// Type of a network service header's metadata, 1 or 2.
    NshMdType(u8),
    /// Variable metadata of a network service header.
    NshTlv {
        /// Class.
        class: u16,
        /// Type.
        ty: u8,
        /// Value.
        data: Vec<u8>,
    },
}

/// Pushes a header.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Encap {
    /// Packet type after the action, see [`packet_type`].
    pub packet_type: u32,
    /// A claim about the header's size, kept as it came.
    pub hdr_size: u16,
    /// Properties of the header.
    pub properties: Vec<EncapProperty>,
}

/// Writes whether the packet is longer than this.
#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub struct CheckPktLarger {
    /// Bytes.
    pub pkt_len: u16,
    /// Subfield of one bit that gets the result.
    pub dst: Subfield,
}

/// A wide option of a tunnel that is set, in whole or in part.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SetTunMetadata {
    /// Option field to write.
    pub field: heddle_flow::field::tlv::TlvField,
    /// New value, of the option's length.
    pub value: Vec<u8>,
    /// Bits of the option that are written.
    pub mask: Vec<u8>,
}
