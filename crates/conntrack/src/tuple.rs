//! Tuples: the addresses and ports that identify packets and connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heddle_wire::ip::proto;

/// One endpoint of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Endpoint {
    /// Address; one of IPv4 in the low 32 bits.
    pub addr: u128,
    /// Port; zero if the protocol has none. ICMP: identifier (16 bits), type (8) and code (8), where the
    /// other endpoint has the type of the reply.
    pub l4: u32,
}

/// Both endpoints, as a packet has them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tuple {
    /// Sender.
    pub src: Endpoint,
    /// Receiver.
    pub dst: Endpoint,
    /// Protocol (IPv6: behind the extension headers).
    pub proto: u8,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
}

impl Tuple {
    /// The tuple of the opposite direction.
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
    /// Sets both endpoints of ICMP from the identifier, the type and the code of one packet. `None`: messages
    /// of this type have no reply.
    pub fn with_icmp(mut self, id: u16, kind: u8, code: u8) -> Option<Self> {
        let end = |kind: u8| u32::from(id) << 16 | u32::from(kind) << 8 | u32::from(code);
        self.src.l4 = end(kind);
        self.dst.l4 = end(reply_type(kind, self.ipv6)?);
        Some(self)
    }
    /// An ICMP tuple with another identifier at both ends.
    #[must_use]
    pub(crate) const fn with_icmp_id(mut self, id: u32) -> Self {
        self.src.l4 = self.src.l4 & 0xffff | id << 16;
        self.dst.l4 = self.dst.l4 & 0xffff | id << 16;
        self
    }
    /// The values of `ct_tp_src` and `ct_tp_dst`: ports, or ICMP type and code.
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

/// An address of a tuple as a type of `std`.
#[allow(clippy::cast_possible_truncation)] // IPv4 has 32 bits
pub fn ip(addr: u128, ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::from_bits(addr).into()
    } else {
        Ipv4Addr::from_bits(addr as u32).into()
    }
}

/// An address in the form that tuples have.
pub fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => a.to_bits().into(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// The type of the opposite message: the reply of a request, or the request of a reply (RFC 792, RFC 4443).
pub(crate) fn reply_type(kind: u8, ipv6: bool) -> Option<u8> {
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
pub(crate) fn is_request(kind: u8, ipv6: bool) -> bool {
    matches!((ipv6, kind), (false, 8 | 13 | 15) | (true, 128))
}
