//! Who talks to whom: the addresses and ports by which packets and connections are recognised.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heddle_wire::ip::proto;

/// One end of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Endpoint {
    /// Address; one of IPv4 in the low 32 bits.
    pub addr: u128,
    /// Port; of ICMP the identifier (16 bits), type (8) and code (8), where the type of the other end is that
    /// of the answer; zero where the protocol has none.
    pub l4: u32,
}

/// Both ends, as they stand in a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tuple {
    /// Who sends it.
    pub src: Endpoint,
    /// Who receives it.
    pub dst: Endpoint,
    /// Protocol (IPv6: behind the extension headers).
    pub proto: u8,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
}

impl Tuple {
    /// The one of the answer.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            ..self
        }
    }
    /// Whether the ends have ICMP identifiers and types instead of ports.
    pub const fn is_icmp(&self) -> bool {
        is_icmp(self.proto, self.ipv6)
    }
    /// Source as an address.
    pub fn src_ip(&self) -> IpAddr {
        ip(self.src.addr, self.ipv6)
    }
    /// Destination as an address.
    pub fn dst_ip(&self) -> IpAddr {
        ip(self.dst.addr, self.ipv6)
    }
    /// Both ends of ICMP, from the identifier, the type and the code of one packet. `None`: nothing answers
    /// messages of this type.
    pub fn with_icmp(mut self, id: u16, kind: u8, code: u8) -> Option<Self> {
        let end = |kind: u8| u32::from(id) << 16 | u32::from(kind) << 8 | u32::from(code);
        self.src.l4 = end(kind);
        self.dst.l4 = end(answer(kind, self.ipv6)?);
        Some(self)
    }
    /// An ICMP tuple with another identifier at both ends.
    #[must_use]
    pub(crate) const fn with_icmp_id(mut self, id: u32) -> Self {
        self.src.l4 = self.src.l4 & 0xffff | id << 16;
        self.dst.l4 = self.dst.l4 & 0xffff | id << 16;
        self
    }
    /// What `ct_tp_src` and `ct_tp_dst` show of it: ports, or ICMP type and code.
    #[allow(clippy::cast_possible_truncation)] // bits are picked on purpose
    pub fn tp(&self) -> (u16, u16) {
        if self.is_icmp() {
            let l4 = self.src.l4;
            (l4 as u16 >> 8, l4 as u16 & 0xff)
        } else {
            (self.src.l4 as u16, self.dst.l4 as u16)
        }
    }
}

pub(crate) const fn is_icmp(proto: u8, ipv6: bool) -> bool {
    matches!((proto, ipv6), (proto::ICMP, false) | (proto::ICMPV6, true))
}

/// An address of a tuple as `std` has it.
#[allow(clippy::cast_possible_truncation)] // IPv4 has 32 bits
pub fn ip(addr: u128, ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::from_bits(addr).into()
    } else {
        Ipv4Addr::from_bits(addr as u32).into()
    }
}

/// An address as tuples have it.
pub fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => a.to_bits().into(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// The type of the message that answers this one, which may be an answer itself (RFC 792, RFC 4443).
pub(crate) fn answer(kind: u8, ipv6: bool) -> Option<u8> {
    Some(match (ipv6, kind) {
        (false, 8) => 0,
        (false, 0) => 8,
        (false, 13) => 14,
        (false, 14) => 13,
        (false, 15) => 16,
        (false, 16) => 15,
        (true, 128) => 129,
        (true, 129) => 128,
        _ => return None,
    })
}

/// Whether a message of this type begins a conversation.
pub(crate) fn asks(kind: u8, ipv6: bool) -> bool {
    matches!((ipv6, kind), (false, 8 | 13 | 15) | (true, 128))
}
