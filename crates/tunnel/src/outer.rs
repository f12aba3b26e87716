//! Outer headers as a template of bytes: the tunnel properties that translation knows, in the order of the
//! wire.

use crate::action::{Numbers, TunnelKind, TunnelPush};
use crate::template::{Fill, Plan};
use heddle_wire::eth::{Ethernet, ethertype};
use heddle_wire::ip::{Ipv4, Ipv6};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::tunnel::{Erspan, Erspan2, Geneve, Gre, Gtpu, GtpuOptional, Srh, Stt, Vxlan, gre_proto};
use heddle_wire::{Be16, Be32, Be64, IntoBytes, checksum::checksum};
use std::net::IpAddr;

/// Default range of source ports of UDP and STT tunnels: lowest and highest.
pub const SOURCE_PORTS: (u16, u16) = (32768, 61000);
/// Maximum number of segments of a segment routing header.
pub const MAX_SEGMENTS: usize = 6;

/// A VXLAN group policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gbp {
    /// Group.
    pub id: u16,
    /// Don't learn (0x40), policy applied (0x08).
    pub flags: u8,
}

/// The encapsulation behind the outer IP header, with the values that are the same for all packets.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Encap {
    /// Geneve around an Ethernet frame.
    Geneve {
        /// UDP destination port.
        port: u16,
        /// Network identifier, 24 bits.
        vni: u32,
        /// A control packet.
        oam: bool,
        /// One of the options is critical.
        critical: bool,
        /// At most [`Geneve::MAX_OPTIONS`] bytes, a multiple of 4 (see [`crate::options::write`]).
        options: Vec<u8>,
    },
    /// VXLAN.
    Vxlan {
        /// UDP destination port.
        port: u16,
        /// Network identifier, 24 bits.
        vni: u32,
        /// Group policy, if the tunnel has them.
        gbp: Option<Gbp>,
        /// The next protocol with the generic protocol extension: 1 IPv4, 2 IPv6, 3 Ethernet, 4 NSH.
        gpe: Option<u8>,
    },
    /// GRE.
    Gre {
        /// EtherType of the inner packet ([`ethertype::TEB`] for a frame).
        proto: u16,
        /// Key.
        key: Option<u32>,
        /// Has a sequence number.
        seq: bool,
    },
    /// ERSPAN version 1.
    Erspan1 {
        /// Session, 10 bits.
        session: u16,
        /// Index, 20 bits.
        index: u32,
    },
    /// ERSPAN version 2.
    Erspan2 {
        /// Session, 10 bits.
        session: u16,
        /// Direction.
        egress: bool,
        /// Hardware id, 6 bits.
        hwid: u8,
    },
    /// GTP-U.
    Gtpu {
        /// UDP destination port.
        port: u16,
        /// Flags of the header.
        flags: u8,
        /// Message type.
        message: u8,
        /// Tunnel endpoint.
        teid: u32,
        /// Has a sequence number.
        seq: bool,
    },
    /// Segment routing.
    Srv6 {
        /// The segments in the order in which they are visited: at least one, at most [`MAX_SEGMENTS`]. The
        /// first is the outer destination.
        segments: Vec<[u8; 16]>,
        /// Protocol of the inner packet: 4 for IPv4, 41 for IPv6.
        next: u8,
    },
    /// STT around an Ethernet frame.
    Stt {
        /// Destination port, where TCP has it.
        port: u16,
        /// Context.
        key: u64,
    },
}

/// The reason why headers cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OuterError {
    /// Addresses of two families, or of a family that the encapsulation does not support.
    #[error("the outer addresses are not of one family that the tunnel can have")]
    Family,
    /// Too many options or segments for the header, or options of a wrong length.
    #[error("the options or segments do not fit the header")]
    TooLong,
    /// A value with more bits than the field has.
    #[error("the tunnel's key does not fit the header")]
    Range,
}

/// Outer headers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Outer {
    /// Ethernet source.
    pub eth_src: [u8; 6],
    /// Ethernet destination.
    pub eth_dst: [u8; 6],
    /// IP source.
    pub src: IpAddr,
    /// IP destination.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// IPv4: not to be fragmented.
    pub df: bool,
    /// IPv6: flow label, 20 bits.
    pub label: u32,
    /// Outer packets get a UDP or GRE checksum.
    pub csum: bool,
    /// Range of source ports of UDP and STT: lowest and highest.
    pub source_ports: (u16, u16),
    /// Encapsulation behind the IP header.
    pub encap: Encap,
    /// See [`TunnelPush::tunnel_port`].
    pub tunnel_port: u32,
    /// See [`TunnelPush::out_port`].
    pub out_port: u32,
    /// See [`TunnelPush::mtu`].
    pub mtu: u32,
    /// Numbers that the tunnel gives to its packets.
    pub numbers: Numbers,
}

impl Encap {
    /// The kind of encapsulation.
    pub fn kind(&self) -> TunnelKind {
        match self {
            Self::Geneve { .. } => TunnelKind::Geneve,
            Self::Vxlan { .. } => TunnelKind::Vxlan,
            Self::Gre { .. } => TunnelKind::Gre,
            Self::Erspan1 { .. } | Self::Erspan2 { .. } => TunnelKind::Erspan,
            Self::Gtpu { .. } => TunnelKind::Gtpu,
            Self::Srv6 { .. } => TunnelKind::Srv6,
            Self::Stt { .. } => TunnelKind::Stt,
        }
    }
}

impl Outer {
    /// The protocol that [`heddle_flow::extract`] finds behind IP: for SRv6, the one behind the routing
    /// header.
    pub fn ip_proto(&self) -> u8 {
        match self.encap {
            Encap::Srv6 { next, .. } => next,
            _ => self.encap.kind().ip_proto(),
        }
    }
    /// Builds the action that writes these headers.
    ///
    /// # Errors
    /// [`OuterError`]: the headers cannot be built.
    pub fn build(&self) -> Result<TunnelPush, OuterError> {
        let mut header = Vec::with_capacity(128);
        let l3 = Ethernet::LEN;
        self.ip(&mut header)?;
        let l4 = header.len();
        let fill = self.encap.write(self.csum, &mut header)?;
        let plan = Plan::new(&header, l3, l4, fill, self.csum, self.source_ports);
        Ok(TunnelPush {
            kind: self.encap.kind(),
            header,
            csum: self.csum,
            csum_optional: false,
            tunnel_port: self.tunnel_port,
            out_port: self.out_port,
            mtu: self.mtu,
            numbers: self.numbers.clone(),
            plan,
        })
    }

    fn ip(&self, to: &mut Vec<u8>) -> Result<(), OuterError> {
        let srv6 = matches!(self.encap, Encap::Srv6 { .. });
        let ethertype = match (self.src, self.dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) if !srv6 => ethertype::IP,
            (IpAddr::V6(_), IpAddr::V6(_)) => ethertype::IPV6,
            _ => return Err(OuterError::Family),
        };
        let eth = Ethernet {
            dst: self.eth_dst,
            src: self.eth_src,
            ethertype: Be16::new(ethertype),
        };
        to.extend_from_slice(eth.as_bytes());
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip = Ipv4 {
                    version_ihl: 0x45,
                    tos: self.tos,
                    frag: Be16::new(if self.df { Ipv4::DONT } else { 0 }),
                    ttl: self.ttl,
                    proto: self.encap.kind().ip_proto(),
                    src: Be32::new(src.to_bits()),
                    dst: Be32::new(dst.to_bits()),
                    ..Ipv4::default()
                };
                ip.csum = Be16::new(checksum(ip.as_bytes()));
                to.extend_from_slice(ip.as_bytes());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6 {
                    flow: Be32::new(6 << 28 | u32::from(self.tos) << 20 | self.label & Ipv6::LABEL),
                    next: self.encap.kind().ip_proto(),
                    hop_limit: self.ttl,
                    src: src.octets(),
                    dst: dst.octets(),
                    ..Ipv6::default()
                };
                to.extend_from_slice(ip.as_bytes());
            }
            _ => return Err(OuterError::Family),
        }
        Ok(())
    }
}

/// `v` in the upper 24 bits of a word.
fn vni(v: u32) -> Result<Be32, OuterError> {
    if v >> 24 != 0 {
        return Err(OuterError::Range);
    }
    Ok(Be32::new(v << 8))
}

fn udp(to: &mut Vec<u8>, port: u16) {
    let udp = Udp {
        dst: Be16::new(port),
        ..Udp::default()
    };
    to.extend_from_slice(udp.as_bytes());
}

/// Offsets are below the header's length, which is a few hundred bytes.
fn here(to: &[u8]) -> u16 {
    u16::try_from(to.len()).unwrap_or(u16::MAX)
}

fn erspan(to: &mut Vec<u8>, version: u16, proto: u16, session: u16) -> Result<u16, OuterError> {
    if session >> 10 != 0 {
        return Err(OuterError::Range);
    }
    let gre = Gre {
        flags: Be16::new(Gre::SEQ),
        proto: Be16::new(proto),
    };
    to.extend_from_slice(gre.as_bytes());
    let seq = here(to);
    to.extend_from_slice(&[0; 4]);
    let header = Erspan {
        ver_vlan: Be16::new(version << 12),
        session: Be16::new(session),
    };
    to.extend_from_slice(header.as_bytes());
    Ok(seq)
}

impl Encap {
    /// Appends the headers behind the IP header. Returns the fields that depend on the packet.
    fn write(&self, csum: bool, to: &mut Vec<u8>) -> Result<Fill, OuterError> {
        match self {
            Self::Geneve {
                port,
                vni: id,
                oam,
                critical,
                options,
            } => {
                if options.len() > Geneve::MAX_OPTIONS || options.len() % 4 != 0 {
                    return Err(OuterError::TooLong);
                }
                let flag = |set: bool, bit| if set { bit } else { 0 };
                let header = Geneve {
                    ver_len: u8::try_from(options.len() / 4).map_err(|_| OuterError::TooLong)?,
                    flags: flag(*oam, Geneve::OAM) | flag(*critical, Geneve::CRITICAL),
                    proto: Be16::new(ethertype::TEB),
                    vni: vni(*id)?,
                };
                udp(to, *port);
                to.extend_from_slice(header.as_bytes());
                to.extend_from_slice(options);
                Ok(Fill::Udp)
            }
            Self::Vxlan {
                port,
                vni: id,
                gbp,
                gpe,
            } => {
                let mut flags = Vxlan::VNI;
                if let Some(gbp) = gbp {
                    let policy = u32::from(gbp.flags) << 16 & Vxlan::GBP_FLAGS;
                    flags |= Vxlan::GBP | policy | u32::from(gbp.id);
                }
                if let Some(next) = gpe {
                    flags |= Vxlan::GPE | u32::from(*next);
                }
                let header = Vxlan {
                    flags: Be32::new(flags),
                    vni: vni(*id)?,
                };
                udp(to, *port);
                to.extend_from_slice(header.as_bytes());
                Ok(Fill::Udp)
            }
            Self::Gre { proto, key, seq } => {
                let flag = |set: bool, bit| if set { bit } else { 0 };
                let flags = flag(csum, Gre::CSUM) | flag(key.is_some(), Gre::KEY) | flag(*seq, Gre::SEQ);
                let header = Gre {
                    flags: Be16::new(flags),
                    proto: Be16::new(*proto),
                };
                to.extend_from_slice(header.as_bytes());
                if csum {
                    to.extend_from_slice(&[0; 4]);
                }
                if let Some(key) = key {
                    to.extend_from_slice(&key.to_be_bytes());
                }
                let seq = seq.then(|| here(to));
                if seq.is_some() {
                    to.extend_from_slice(&[0; 4]);
                }
                Ok(Fill::Gre { seq })
            }
            Self::Erspan1 { session, index } => {
                if index >> 20 != 0 {
                    return Err(OuterError::Range);
                }
                let seq = erspan(to, 1, gre_proto::ERSPAN1, *session)?;
                to.extend_from_slice(&index.to_be_bytes());
                Ok(Fill::Erspan { seq, timestamp: None })
            }
            Self::Erspan2 {
                session,
                egress,
                hwid,
            } => {
                if hwid >> 6 != 0 {
                    return Err(OuterError::Range);
                }
                let seq = erspan(to, 2, gre_proto::ERSPAN2, *session)?;
                let timestamp = Some(here(to));
                let header = Erspan2 {
                    flags: Be16::new(u16::from(*hwid) << 4 | u16::from(*egress) << 3),
                    ..Erspan2::default()
                };
                to.extend_from_slice(header.as_bytes());
                Ok(Fill::Erspan { seq, timestamp })
            }
            Self::Gtpu {
                port,
                flags,
                message,
                teid,
                seq,
            } => {
                udp(to, *port);
                let len = here(to) + 2;
                let header = Gtpu {
                    flags: flags | if *seq { Gtpu::SEQ } else { 0 },
                    message: *message,
                    len: Be16::new(0),
                    teid: Be32::new(*teid),
                };
                to.extend_from_slice(header.as_bytes());
                let seq = seq.then(|| here(to));
                if header.flags & Gtpu::OPTIONAL != 0 {
                    to.extend_from_slice(GtpuOptional::default().as_bytes());
                }
                Ok(Fill::Gtpu { len, seq })
            }
            Self::Srv6 { segments, next } => {
                let n = u8::try_from(segments.len())
                    .ok()
                    .filter(|n| *n > 0 && usize::from(*n) <= MAX_SEGMENTS);
                let n = n.ok_or(OuterError::TooLong)?;
                let header = Srh {
                    next: *next,
                    len: 2 * n,
                    ty: Srh::TYPE,
                    left: n - 1,
                    last: n - 1,
                    ..Srh::default()
                };
                to.extend_from_slice(header.as_bytes());
                // The last segment of the path comes first (RFC 8754, 2).
                segments.iter().rev().for_each(|s| to.extend_from_slice(s));
                Ok(Fill::Nothing)
            }
            Self::Stt { port, key } => {
                const HEADER_WORDS: u16 = 5;
                let tcp = Tcp {
                    dst: Be16::new(*port),
                    ctl: Be16::new(HEADER_WORDS << 12 | Tcp::ACK | Tcp::PSH),
                    window: Be16::new(u16::MAX),
                    ..Tcp::default()
                };
                to.extend_from_slice(tcp.as_bytes());
                let header = Stt {
                    key: Be64::new(*key),
                    ..Stt::default()
                };
                to.extend_from_slice(header.as_bytes());
                Ok(Fill::Stt)
            }
        }
    }
}
