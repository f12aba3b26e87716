//! A tunnel interface's configuration: `Interface.options` of `ovs-vswitchd.conf.db(5)`, and back.
//!
//! Faults are reported in Open vSwitch's words, which scripts and operators know. Some are tolerated (an
//! unknown option), others are refused, see [`Refused`].

mod number;
mod parse;
mod show;

use crate::TunnelType;
use std::net::{IpAddr, Ipv6Addr};

pub use parse::{Refused, encryption_option, parse};
pub use show::show_datapath_port;

/// Time to live of outer headers, unless configured.
pub const DEFAULT_TTL: u8 = 64;

/// The key of a tunnel's packets: written into sent packets, or required of received ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Key {
    /// Not configured: zero.
    #[default]
    Absent,
    /// This key.
    Is(u64),
    /// The key of the flow.
    Flow,
}

impl Key {
    /// Whether it is the flow's.
    pub fn is_flow(self) -> bool {
        self == Self::Flow
    }
    /// The configured key, or zero.
    pub fn value(self) -> u64 {
        match self {
            Self::Is(value) => value,
            Self::Absent | Self::Flow => 0,
        }
    }
}

/// The local address of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Local {
    /// Any address of this host. Routing chooses the source of sent packets.
    #[default]
    Any,
    /// This address.
    Is(IpAddr),
    /// The address of the flow.
    Flow,
}

/// The type of the packets inside a tunnel, as its port is configured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketMode {
    /// Ethernet frames.
    LegacyL2,
    /// Packets without an Ethernet header. Tables see an Ethernet header of zeros.
    LegacyL3,
    /// Packets of any type, which the flow key has (a packet-type-aware port).
    Aware,
}

impl PacketMode {
    /// The value of `options:packet_type`.
    pub fn text(self) -> &'static str {
        match self {
            Self::LegacyL2 => "legacy_l2",
            Self::LegacyL3 => "legacy_l3",
            Self::Aware => "ptap",
        }
    }
}

/// ERSPAN's fields; `None`: the flow's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Erspan {
    /// Version, 1 or 2; 0 where none is configured.
    pub ver: Option<u8>,
    /// Version 1: index.
    pub idx: Option<u32>,
    /// Version 2: direction.
    pub dir: Option<u8>,
    /// Version 2: hardware id.
    pub hwid: Option<u8>,
}

impl Default for Erspan {
    fn default() -> Self {
        Self {
            ver: Some(0),
            idx: Some(0),
            dir: Some(0),
            hwid: Some(0),
        }
    }
}

/// A tunnel interface's configuration.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TunnelConfig {
    /// Type of the tunnel.
    pub ty: TunnelType,
    /// Remote address; `None`: the flow's.
    pub remote: Option<IpAddr>,
    /// Local address.
    pub local: Local,
    /// The key of packets that are received.
    pub in_key: Key,
    /// The key of packets that are sent.
    pub out_key: Key,
    /// Outer destination port; 0 for types without.
    pub dst_port: u16,
    /// Outer time to live; `None`: that of the inner packet.
    pub ttl: Option<u8>,
    /// Outer DSCP bits, at their place in the type of service; `None`: those of the inner packet.
    pub tos: Option<u8>,
    /// Outer packets must not be fragmented.
    pub df: bool,
    /// Outer packets have a checksum (UDP's, GRE's).
    pub csum: bool,
    /// `csum=false` is configured. Packets over IPv6 get a checksum all the same, but may lack it.
    pub csum_optional: bool,
    /// Outer packets have sequence numbers (GRE).
    pub seq: bool,
    /// Type of the packets inside.
    pub mode: PacketMode,
    /// VXLAN's group policy extension.
    pub gbp: bool,
    /// VXLAN's generic protocol extension.
    pub gpe: bool,
    /// The mark that outer packets are routed with.
    pub egress_pkt_mark: Option<u32>,
    /// ERSPAN's fields.
    pub erspan: Erspan,
    /// EtherType of the inner packets (bareudp); 0: not configured.
    pub payload_ethertype: u16,
    /// SRv6 segments, in the order in which they are visited; empty: only the remote address.
    pub segments: Vec<Ipv6Addr>,
}

impl TunnelConfig {
    /// The default configuration of a type, without a remote address.
    fn of(ty: TunnelType) -> Self {
        Self {
            ty,
            remote: None,
            local: Local::Any,
            in_key: Key::Absent,
            out_key: Key::Absent,
            dst_port: ty.default_dst_port(),
            ttl: Some(DEFAULT_TTL),
            tos: Some(0),
            df: true,
            csum: false,
            csum_optional: false,
            seq: false,
            mode: PacketMode::LegacyL2,
            gbp: false,
            gpe: false,
            egress_pkt_mark: None,
            erspan: Erspan::default(),
            payload_ethertype: 0,
            segments: Vec::new(),
        }
    }
    /// The name of the datapath port, which tunnels of one type and destination port share.
    pub fn port_name(&self) -> String {
        self.ty.port_name(self.dst_port)
    }
    /// Whether the datapath writes headers for it: not for types without an encapsulation, nor for ERSPAN
    /// without a version.
    pub fn writes_headers(&self) -> bool {
        match self.ty {
            TunnelType::Bareudp | TunnelType::Lisp => false,
            TunnelType::Erspan | TunnelType::Ip6erspan => self.erspan.ver != Some(0),
            _ => true,
        }
    }
    /// Whether it can carry Ethernet frames.
    fn carries_l2(&self) -> bool {
        !self.carries_l3() || matches!(self.ty, TunnelType::Gre | TunnelType::Vxlan)
    }
    /// Whether it can carry packets without an Ethernet header.
    fn carries_l3(&self) -> bool {
        match self.ty {
            TunnelType::Lisp
            | TunnelType::Gre
            | TunnelType::Gtpu
            | TunnelType::Bareudp
            | TunnelType::Srv6 => true,
            TunnelType::Vxlan => self.gpe,
            TunnelType::Erspan
            | TunnelType::Geneve
            | TunnelType::Ip6erspan
            | TunnelType::Ip6gre
            | TunnelType::Stt => false,
        }
    }
    /// The type of the packets inside if none is configured.
    fn default_mode(&self) -> PacketMode {
        match self.carries_l2() {
            true => PacketMode::LegacyL2,
            false => PacketMode::LegacyL3,
        }
    }
}

#[cfg(test)]
mod tests;
