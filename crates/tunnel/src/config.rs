//! A tunnel interface's configuration: `Interface.options` of `ovs-vswitchd.conf.db(5)`, and back.
//!
//! What is odd is said in the words of Open vSwitch, as scripts and people know them. Some oddities are
//! survived (an unknown option), others are refused; see [`Refused`].

mod number;
mod parse;
mod show;

use crate::TunnelType;
use std::net::{IpAddr, Ipv6Addr};

pub use parse::{Refused, asks_for_encryption, parse};
pub use show::show_datapath_port;

/// Time to live of outer headers, unless configured.
pub const DEFAULT_TTL: u8 = 64;

/// The key that a tunnel's packets have, or that tells which packets are a tunnel's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Key {
    /// None is configured: it is zero.
    #[default]
    Absent,
    /// This one.
    Is(u64),
    /// That of the flow.
    Flow,
}

impl Key {
    /// Whether it is the flow's.
    pub fn is_flow(self) -> bool {
        self == Self::Flow
    }
    /// Its value where it is configured, else zero.
    pub fn value(self) -> u64 {
        match self {
            Self::Is(value) => value,
            Self::Absent | Self::Flow => 0,
        }
    }
}

/// A tunnel's address on this side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Local {
    /// Any that this host has; what is sent has the one that routing chooses.
    #[default]
    Any,
    /// This one.
    Is(IpAddr),
    /// That of the flow.
    Flow,
}

/// What begins the packets inside, as far as a port is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketMode {
    /// Ethernet frames.
    LegacyL2,
    /// What comes behind an Ethernet header; tables see an Ethernet header of zeros.
    LegacyL3,
    /// Whatever the packet's type says.
    Aware,
}

impl PacketMode {
    /// As `options:packet_type` says it.
    pub fn text(self) -> &'static str {
        match self {
            Self::LegacyL2 => "legacy_l2",
            Self::LegacyL3 => "legacy_l3",
            Self::Aware => "ptap",
        }
    }
}

/// ERSPAN's fields; `None`: that of the flow.
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
    /// Its type.
    pub ty: TunnelType,
    /// The other end; `None`: that of the flow.
    pub remote: Option<IpAddr>,
    /// This end.
    pub local: Local,
    /// The key of packets that are received.
    pub in_key: Key,
    /// The key of packets that are sent.
    pub out_key: Key,
    /// Outer destination port; 0 for types without.
    pub dst_port: u16,
    /// Outer time to live; `None`: that of the packet inside.
    pub ttl: Option<u8>,
    /// Outer DSCP bits, in their place in the type of service; `None`: those of the packet inside.
    pub tos: Option<u8>,
    /// Outer packets must not be fragmented.
    pub df: bool,
    /// Outer packets have a checksum (UDP's, GRE's).
    pub csum: bool,
    /// `csum=false` was said, so those that have one all the same (IPv6) may lack it.
    pub csum_optional: bool,
    /// Outer packets have sequence numbers (GRE).
    pub seq: bool,
    /// What begins the packets inside.
    pub mode: PacketMode,
    /// VXLAN's group policy extension.
    pub gbp: bool,
    /// VXLAN's generic protocol extension.
    pub gpe: bool,
    /// The mark that outer packets are routed with.
    pub egress_pkt_mark: Option<u32>,
    /// ERSPAN's fields.
    pub erspan: Erspan,
    /// The EtherType of what is inside (bareudp); 0: none is configured.
    pub payload_ethertype: u16,
    /// SRv6: the segments, in the order in which they are visited; empty: the remote end alone.
    pub segments: Vec<Ipv6Addr>,
}

impl TunnelConfig {
    /// What its type is without any option, and without another end.
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
    /// The name of the datapath port that it shares with its like.
    pub fn port_name(&self) -> String {
        self.ty.port_name(self.dst_port)
    }
    /// Whether there are headers for it to write: not for types that are there in name only, nor for ERSPAN
    /// of no version.
    pub fn writes_headers(&self) -> bool {
        match self.ty {
            TunnelType::Bareudp | TunnelType::Lisp => false,
            TunnelType::Erspan | TunnelType::Ip6erspan => self.erspan.ver != Some(0),
            _ => true,
        }
    }
    /// Whether frames can be inside.
    fn carries_l2(&self) -> bool {
        !self.carries_l3() || matches!(self.ty, TunnelType::Gre | TunnelType::Vxlan)
    }
    /// Whether packets without an Ethernet header can be inside.
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
    /// What begins the packets inside, unless it is configured.
    fn default_mode(&self) -> PacketMode {
        match self.carries_l2() {
            true => PacketMode::LegacyL2,
            false => PacketMode::LegacyL3,
        }
    }
}

#[cfg(test)]
mod tests;
