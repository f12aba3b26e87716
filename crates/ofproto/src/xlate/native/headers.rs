//! The outer headers of a packet.

use super::super::ctx::Ctx;
use super::super::tunnel::fields;
use super::NextHop;
use crate::tunnels::{Tunnel, address};
use heddle_flow::key::tun_flag;
use heddle_flow::{FlowKey, packet_type};
use heddle_tunnel::config::Key;
use heddle_tunnel::{Encap, Gbp, Outer, TunnelConfig, TunnelType};
use heddle_wire::eth::ethertype;
use heddle_wire::tunnel::Gtpu;
use std::net::Ipv6Addr;

/// The bits of a tunnel's key that VXLAN and Geneve send as their VNI.
const VNI_BITS: u64 = 0xff_ffff;

/// GTP-U's first byte: version 1, GTP.
const GTPU_FLAGS: u8 = 0x30;

impl Ctx<'_> {
    /// The outer headers for the tunnel fields of `flow`; `None`: they cannot be made.
    pub(super) fn outer(&self, tunnel: &Tunnel, hop: &NextHop<'_>, mac: [u8; 6]) -> Option<Outer> {
        let f = &self.flow;
        let dst = address(f.tun_dst, f.tun_ipv6_dst);
        let flag = |bit: u16| f.tun_flags & bit != 0;
        Some(Outer {
            eth_src: hop.mac(),
            eth_dst: mac,
            src: hop.route.source,
            dst,
            tos: f.tun_tos,
            ttl: f.tun_ttl,
            df: flag(tun_flag::DF),
            label: 0,
            // UDP over IPv6 has a checksum by its standard; Open vSwitch always writes one.
            csum: flag(tun_flag::CSUM) || dst.is_ipv6() && tunnel.config.ty.has_dst_port(),
            source_ports: self.input.pipeline.underlay.source_ports(),
            encap: self.encapsulation(&tunnel.config)?,
            tunnel_port: tunnel.dp.0,
            out_port: hop.dp().0,
            mtu: hop.mtu(),
            numbers: tunnel.numbers.clone(),
        })
    }

    fn encapsulation(&self, config: &TunnelConfig) -> Option<Encap> {
        let f = &self.flow;
        let port = config.dst_port;
        let vni = u32::try_from(f.tun_id & VNI_BITS).ok()?;
        let word = u32::try_from(f.tun_id & u64::from(u32::MAX)).ok()?;
        let ethertype = match f.packet_type {
            packet_type::ETHERNET => Some(ethertype::TEB),
            ty if ty >> 16 == packet_type::NS_ETHERTYPE => u16::try_from(ty & 0xffff).ok(),
            _ => None,
        };
        Some(match config.ty {
            TunnelType::Geneve => {
                let map = self.at.bridge.tlv.as_ref();
                let written = map.map_or(Some((Vec::new(), false)), |m| heddle_tunnel::options::write(f, m));
                let (options, critical) = written?;
                let oam = f.tun_flags & tun_flag::OAM != 0;
                Encap::Geneve {
                    port,
                    vni,
                    oam,
                    critical,
                    options,
                }
            }
            TunnelType::Vxlan => Encap::Vxlan {
                port,
                vni,
                // A group policy that is zero is left out, as in Open vSwitch and Linux.
                gbp: (config.gbp && (f.tun_gbp_id, f.tun_gbp_flags) != (0, 0)).then_some(Gbp {
                    id: f.tun_gbp_id,
                    flags: f.tun_gbp_flags,
                }),
                gpe: match config.gpe {
                    true => Some(next_protocol(ethertype?)?),
                    false => None,
                },
            },
            TunnelType::Gre | TunnelType::Ip6gre => Encap::Gre {
                proto: ethertype?,
                key: (config.out_key != Key::Absent).then_some(word),
                seq: config.seq,
            },
            TunnelType::Erspan | TunnelType::Ip6erspan => {
                let session = u16::try_from(f.tun_id).ok()?;
                match f.tun_erspan_ver {
                    1 => Encap::Erspan1 {
                        session,
                        index: f.tun_erspan_idx,
                    },
                    2 => Encap::Erspan2 {
                        session,
                        egress: f.tun_erspan_dir != 0,
                        hwid: f.tun_erspan_hwid,
                    },
                    _ => return None,
                }
            }
            TunnelType::Gtpu => Encap::Gtpu {
                port,
                flags: if f.tun_gtpu_flags == 0 {
                    GTPU_FLAGS
                } else {
                    f.tun_gtpu_flags
                },
                message: if f.tun_gtpu_msgtype == 0 {
                    Gtpu::GPDU
                } else {
                    f.tun_gtpu_msgtype
                },
                teid: word,
                seq: config.seq,
            },
            TunnelType::Srv6 => Encap::Srv6 {
                segments: segments(config, f),
                next: match ethertype? {
                    ethertype::IP => 4,
                    ethertype::IPV6 => 41,
                    _ => return None,
                },
            },
            TunnelType::Stt => Encap::Stt { port, key: f.tun_id },
            TunnelType::Bareudp | TunnelType::Lisp => return None,
        })
    }
}

/// The next protocol of a VXLAN-GPE header.
fn next_protocol(ty: u16) -> Option<u8> {
    Some(match ty {
        ethertype::IP => 1,
        ethertype::IPV6 => 2,
        ethertype::TEB => 3,
        ethertype::NSH => 4,
        _ => return None,
    })
}

/// Segments of segment routing: the configured ones, or the remote address alone.
fn segments(config: &TunnelConfig, f: &FlowKey) -> Vec<[u8; 16]> {
    match config.segments.is_empty() {
        true => vec![f.tun_ipv6_dst],
        false => config.segments.iter().map(Ipv6Addr::octets).collect(),
    }
}

/// The key of a packet with these outer headers. Its metadata is that of `inner`.
pub(super) fn of_outer(inner: &FlowKey, outer: &Outer) -> FlowKey {
    let mut key = FlowKey::default();
    key.copy_context(inner);
    (key.in_port, key.recirc_id) = (inner.in_port, inner.recirc_id);
    (key.dl_src, key.dl_dst) = (outer.eth_src, outer.eth_dst);
    (key.nw_src, key.ipv6_src) = fields(outer.src);
    (key.nw_dst, key.ipv6_dst) = fields(outer.dst);
    key.dl_type = if outer.dst.is_ipv4() {
        ethertype::IP
    } else {
        ethertype::IPV6
    };
    (key.nw_tos, key.nw_ttl) = (outer.tos, outer.ttl);
    key.nw_proto = outer.ip_proto();
    key.tp_dst = match outer.encap {
        Encap::Geneve { port, .. }
        | Encap::Vxlan { port, .. }
        | Encap::Gtpu { port, .. }
        | Encap::Stt { port, .. } => port,
        Encap::Gre { .. } | Encap::Erspan1 { .. } | Encap::Erspan2 { .. } | Encap::Srv6 { .. } => 0,
    };
    key
}
