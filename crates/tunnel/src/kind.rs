//! The types of tunnel interfaces, and the fixed properties of each.

use crate::TunnelKind;

/// `Interface.type` of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TunnelType {
    /// Plain layer 3 packets in UDP (RFC 7510 for MPLS).
    Bareudp,
    /// ERSPAN over IPv4.
    Erspan,
    /// RFC 8926.
    Geneve,
    /// GRE over IPv4.
    Gre,
    /// GTP-U.
    Gtpu,
    /// ERSPAN over IPv6.
    Ip6erspan,
    /// GRE over IPv6.
    Ip6gre,
    /// LISP. Its ports exist; packets for it are dropped, as in Open vSwitch's userspace datapath.
    Lisp,
    /// Segment routing over IPv6.
    Srv6,
    /// Stateless transport tunnelling (draft-davie-stt-08).
    Stt,
    /// RFC 7348.
    Vxlan,
}

/// IP protocol numbers of outer headers.
pub mod proto {
    /// IPv4 within IP.
    pub const IPIP: u8 = 4;
    /// IPv6 within IP.
    pub const IPV6: u8 = 41;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// GRE.
    pub const GRE: u8 = 47;
    /// IPv6's routing header.
    pub const ROUTING: u8 = 43;
}

impl TunnelType {
    /// All types, in the order of their names.
    pub const ALL: [Self; 11] = [
        Self::Bareudp,
        Self::Erspan,
        Self::Geneve,
        Self::Gre,
        Self::Gtpu,
        Self::Ip6erspan,
        Self::Ip6gre,
        Self::Lisp,
        Self::Srv6,
        Self::Stt,
        Self::Vxlan,
    ];

    /// The name in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bareudp => "bareudp",
            Self::Erspan => "erspan",
            Self::Geneve => "geneve",
            Self::Gre => "gre",
            Self::Gtpu => "gtpu",
            Self::Ip6erspan => "ip6erspan",
            Self::Ip6gre => "ip6gre",
            Self::Lisp => "lisp",
            Self::Srv6 => "srv6",
            Self::Stt => "stt",
            Self::Vxlan => "vxlan",
        }
    }
    /// The type of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }
    /// The prefix of its datapath port's name.
    fn port_prefix(self) -> &'static str {
        match self {
            Self::Bareudp => "udp_sys",
            Self::Erspan => "erspan_sys",
            Self::Geneve => "genev_sys",
            Self::Gre => "gre_sys",
            Self::Gtpu => "gtpu_sys",
            Self::Ip6erspan => "ip6erspan_sys",
            Self::Ip6gre => "ip6gre_sys",
            Self::Lisp => "lisp_sys",
            Self::Srv6 => "srv6_sys",
            Self::Stt => "stt_sys",
            Self::Vxlan => "vxlan_sys",
        }
    }
    /// Whether `name` begins like the name of a tunnel's datapath port.
    pub fn has_name(name: &str) -> bool {
        Self::ALL.into_iter().any(|t| name.starts_with(t.port_prefix()))
    }
    /// The name of the datapath port that all tunnels of the type and of that transport port share.
    pub fn port_name(self, dst_port: u16) -> String {
        match self.has_dst_port() {
            true => format!("{}_{dst_port}", self.port_prefix()),
            false => self.port_prefix().to_owned(),
        }
    }
    /// The largest key for which the type's headers have room.
    pub fn max_key(self) -> u64 {
        match self {
            Self::Geneve | Self::Vxlan | Self::Lisp => 0xff_ffff,
            Self::Gre | Self::Ip6gre | Self::Gtpu => u32::MAX.into(),
            Self::Erspan | Self::Ip6erspan => 0x3ff,
            // Bareudp and SRv6 have no key in their headers.
            Self::Stt | Self::Bareudp | Self::Srv6 => u64::MAX,
        }
    }
    /// Whether outer packets have a destination port.
    pub fn has_dst_port(self) -> bool {
        matches!(
            self,
            Self::Geneve | Self::Vxlan | Self::Lisp | Self::Stt | Self::Gtpu | Self::Bareudp
        )
    }
    /// The destination port of outer packets if none is configured; 0 for types without one.
    pub fn default_dst_port(self) -> u16 {
        match self {
            Self::Geneve => 6081,
            Self::Vxlan => 4789,
            Self::Lisp => 4341,
            Self::Stt => 7471,
            Self::Gtpu => 2152,
            Self::Bareudp | Self::Erspan | Self::Gre | Self::Ip6erspan | Self::Ip6gre | Self::Srv6 => 0,
        }
    }
    /// The protocols in the outer IP header that identify packets of this type. Empty: the datapath does not
    /// decapsulate this type.
    pub fn protocols(self) -> &'static [u8] {
        match self {
            Self::Geneve | Self::Vxlan | Self::Gtpu => &[proto::UDP],
            Self::Gre | Self::Erspan | Self::Ip6erspan | Self::Ip6gre => &[proto::GRE],
            Self::Srv6 => &[proto::IPIP, proto::IPV6],
            Self::Stt => &[proto::TCP],
            Self::Bareudp | Self::Lisp => &[],
        }
    }
    /// The encapsulation. `None`: the datapath has none for this type.
    pub fn kind(self) -> Option<TunnelKind> {
        Some(match self {
            Self::Geneve => TunnelKind::Geneve,
            Self::Vxlan => TunnelKind::Vxlan,
            Self::Gre | Self::Ip6gre => TunnelKind::Gre,
            Self::Erspan | Self::Ip6erspan => TunnelKind::Erspan,
            Self::Gtpu => TunnelKind::Gtpu,
            Self::Srv6 => TunnelKind::Srv6,
            Self::Stt => TunnelKind::Stt,
            Self::Bareudp | Self::Lisp => return None,
        })
    }
    /// Whether the type has `options:csum`.
    pub(crate) fn has_csum(self) -> bool {
        matches!(
            self,
            Self::Gre | Self::Ip6gre | Self::Geneve | Self::Stt | Self::Vxlan
        )
    }
    /// Whether the type has `options:seq`.
    pub(crate) fn has_seq(self) -> bool {
        matches!(self, Self::Gre | Self::Ip6gre)
    }
    /// Whether it is one of the two ERSPAN types.
    pub fn is_erspan(self) -> bool {
        matches!(self, Self::Erspan | Self::Ip6erspan)
    }
}
