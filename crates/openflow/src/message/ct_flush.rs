//! Selection of tracked connections by `NXT_CT_FLUSH`.

use std::net::IpAddr;

/// Connections to be forgotten; a condition of `None` is not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtFlush {
    /// Protocol; 0: any.
    pub ip_proto: u8,
    /// Zone.
    pub zone: Option<u16>,
    /// Parts of the tuple of the first packet.
    pub orig: CtTuple,
    /// Tuple of the reply direction.
    pub reply: CtTuple,
    /// Mark: value and mask.
    pub mark: Option<(u32, u32)>,
    /// Label: value and mask.
    pub label: Option<(u128, u128)>,
}

/// Parts of a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtTuple {
    /// Source.
    pub src: Option<IpAddr>,
    /// Destination.
    pub dst: Option<IpAddr>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// ICMP identifier.
    pub icmp_id: Option<u16>,
    /// ICMP type.
    pub icmp_type: Option<u8>,
    /// ICMP code.
    pub icmp_code: Option<u8>,
}
