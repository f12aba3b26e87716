//! Decapsulation: removes the outer headers and writes their fields into a key.
//!
//! **Checks.** All claims of the headers are checked: versions, flags, protocols and critical options,
//! lengths against the packet's bytes, the checksum of IPv4. An outer UDP or GRE checksum is verified unless
//! it is zero or known to be right. Fragments are refused: the caller reassembles outer packets before. Each
//! refusal has a name ([`PopError`]).
//!
//! **Padding.** Bytes behind the end of the outer UDP datagram are removed. GRE has no length. There the
//! padding stays behind the inner packet, whose own header has the length, as in Open vSwitch.
//!
//! **GSO packets.** A GSO packet that was put into a tunnel as one leaves it as one: its metadata is about
//! headers behind the outer ones. A GSO packet of outer packets is for the caller to cut
//! ([`PopError::OuterGso`]).

#![deny(clippy::indexing_slicing)] // bytes of a packet

mod stt;

pub use stt::Waiting;

use crate::action::{TunnelKind, TunnelPop};
use crate::options::OptionError;
use crate::pop_error::PopError;
use heddle_flow::key::tun_flag;
use heddle_flow::{FlowKey, packet_type};
use heddle_packet::{Csum, GsoKind, Packet};
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::eth::ethertype;
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::Udp;
use heddle_wire::tunnel::{Erspan, Erspan2, Geneve, Gre, Gtpu, GtpuOptional, Srh, Vxlan, gre_proto};
use heddle_wire::{Be32, split};

/// A decapsulated packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Popped {
    /// Type of the inner packet ([`packet_type`]).
    pub packet_type: u32,
    /// Removed bytes before it, at most 65,535.
    pub taken: u16,
}

/// Maximum length of an IP header, bytes: IPv4 with options.
const MAX_IP: usize = 60;
/// Maximum length of all outer headers, bytes: Ethernet with two tags, IP, UDP, Geneve with all its options.
pub const VIEW: usize = 14 + 8 + MAX_IP + Udp::LEN + Geneve::LEN + Geneve::MAX_OPTIONS;

/// The outer IP header.
struct Ip {
    /// Offset of the payload.
    l4: usize,
    end: usize,
    proto: u8,
    /// Sum of the pseudo header without the length.
    pseudo: Sum,
}

/// The tunnel header behind the outer IP header.
pub(crate) struct Shim {
    /// Offset of the inner packet.
    pub(crate) at: usize,
    pub(crate) end: usize,
    pub(crate) packet_type: u32,
}

/// Whether a host accepts packets with these IPv4 options. As in Linux, malformed options and source routes
/// are refused.
fn are_harmless(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    while let [kind, rest @ ..] = options {
        options = match *kind {
            END => return true,
            NO_OPERATION => rest,
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return false,
            _ => match rest.first().map(|len| usize::from(*len)) {
                Some(len) if len >= 2 && len <= options.len() => options.get(len..).unwrap_or_default(),
                _ => return false,
            },
        };
    }
    true
}

impl TunnelPop {
    /// Removes the outer headers of a packet, whose outer IP header is at `l3`. Writes their fields into the
    /// tunnel members of `key`, which must be empty before. Offsets in the packet's metadata move along.
    ///
    /// # Errors
    /// [`PopError`]; packet and key may have changed.
    #[inline]
    pub fn apply(&self, p: &mut Packet, l3: u16, key: &mut FlowKey) -> Result<Popped, PopError> {
        let ip = self.begin(p, l3, key)?;
        let shim = match self.kind {
            TunnelKind::Geneve => self.geneve(p, &ip, key),
            TunnelKind::Vxlan => Self::vxlan(p, &ip, key),
            TunnelKind::Gre => Self::gre(p, &ip, key),
            TunnelKind::Erspan => Self::erspan(p, &ip, key),
            TunnelKind::Gtpu => Self::gtpu(p, &ip, key),
            TunnelKind::Srv6 => Self::srv6(p, &ip),
            TunnelKind::Stt => return self.stt(p, &ip, key, None)?.ok_or(PopError::Part),
        }?;
        self.take_off(p, &shim)?;
        Ok(Popped {
            packet_type: shim.packet_type,
            taken: u16::try_from(shim.at).unwrap_or(u16::MAX),
        })
    }

    /// Brings the outer headers into the packet's head, and reads and checks its IP header.
    #[inline]
    fn begin(&self, p: &mut Packet, l3: u16, key: &mut FlowKey) -> Result<Ip, PopError> {
        if p.head_len() < VIEW && !p.segs().is_empty() && !self.in_view(p, l3) {
            p.pull_tail(VIEW);
        }
        self.ip(p, usize::from(l3), key)
    }

    /// Whether the head has the outer headers, if these have few options.
    #[inline]
    fn in_view(&self, p: &Packet, l3: u16) -> bool {
        p.head_len() >= usize::from(l3) + 128
    }

    /// Reads and checks the IP header. Sets the members of `key` for addresses, TOS and TTL.
    #[inline]
    fn ip(&self, p: &Packet, l3: usize, key: &mut FlowKey) -> Result<Ip, PopError> {
        let head = p.head();
        let at = head.get(l3..).ok_or(PopError::Header)?;
        match at.first().map(|b| b >> 4) {
            Some(4) => {
                let (ip, _) = split::<Ipv4>(at).ok_or(PopError::Truncated)?;
                let len = ip.header_len();
                let bytes = at.get(..len.max(Ipv4::LEN)).ok_or(PopError::Truncated)?;
                if len < Ipv4::LEN || checksum(bytes) != 0 {
                    return Err(PopError::Header);
                }
                if len > Ipv4::LEN && !are_harmless(bytes.get(Ipv4::LEN..).unwrap_or_default()) {
                    return Err(PopError::IpOptions);
                }
                if ip.is_fragment() {
                    return Err(PopError::Fragment);
                }
                let end = ends_at(p, l3, ip.total_len.get().into(), len)?;
                (key.tun_src, key.tun_dst) = (ip.src.get(), ip.dst.get());
                (key.tun_tos, key.tun_ttl) = (ip.tos, ip.ttl);
                self.check(ip.proto, ip.ttl)?;
                Ok(Ip {
                    l4: l3 + len,
                    end,
                    proto: ip.proto,
                    pseudo: Sum::ZERO.pseudo_v4(ip.src.get(), ip.dst.get(), ip.proto, 0),
                })
            }
            Some(6) => {
                let (ip, _) = split::<Ipv6>(at).ok_or(PopError::Truncated)?;
                let end = ends_at(p, l3 + Ipv6::LEN, ip.payload_len.get().into(), 0)?;
                (key.tun_ipv6_src, key.tun_ipv6_dst) = (ip.src, ip.dst);
                (key.tun_tos, key.tun_ttl) = (ip.traffic_class(), ip.hop_limit);
                if ip.next == proto::FRAGMENT {
                    return Err(PopError::Fragment);
                }
                self.check(ip.next, ip.hop_limit)?;
                Ok(Ip {
                    l4: l3 + Ipv6::LEN,
                    end,
                    proto: ip.next,
                    pseudo: Sum::ZERO.pseudo_v6(&ip.src, &ip.dst, ip.next, 0),
                })
            }
            _ => Err(PopError::Header),
        }
    }

    #[inline]
    fn check(&self, proto: u8, ttl: u8) -> Result<(), PopError> {
        if proto != self.kind.ip_proto() {
            return Err(PopError::Header);
        }
        if ttl == 0 {
            return Err(PopError::Ttl);
        }
        Ok(())
    }

    #[inline]
    fn geneve(&self, p: &mut Packet, ip: &Ip, key: &mut FlowKey) -> Result<Shim, PopError> {
        let (at, end) = udp(p, ip, key)?;
        let (g, _) = p
            .head()
            .get(at..)
            .and_then(split::<Geneve>)
            .ok_or(PopError::Truncated)?;
        if g.ver_len >> 6 != 0 {
            return Err(PopError::Version);
        }
        if g.proto.get() != ethertype::TEB {
            return Err(PopError::Protocol);
        }
        let (flags, vni) = (g.flags, g.vni);
        let len = usize::from(g.ver_len & 0x3f) * 4;
        let inner = at + Geneve::LEN + len;
        if len > 0 {
            if p.head_len() < inner {
                extend(p, inner);
            }
            let options = p.head().get(at + Geneve::LEN..inner).ok_or(PopError::Truncated)?;
            self.options.read(options, key).map_err(|e| match e {
                OptionError::Length => PopError::Options,
                OptionError::Critical => PopError::Critical,
            })?;
        }
        if flags & Geneve::OAM != 0 {
            key.tun_flags |= tun_flag::OAM;
        }
        set_vni(vni, key);
        Ok(Shim {
            at: inner,
            end,
            packet_type: packet_type::ETHERNET,
        })
    }

    #[inline]
    fn vxlan(p: &Packet, ip: &Ip, key: &mut FlowKey) -> Result<Shim, PopError> {
        let (at, end) = udp(p, ip, key)?;
        let (v, _) = p
            .head()
            .get(at..)
            .and_then(split::<Vxlan>)
            .ok_or(PopError::Truncated)?;
        let (mut flags, mut packet_type) = (v.flags.get(), packet_type::ETHERNET);
        if flags & Vxlan::GPE != 0 {
            if flags & Vxlan::GPE_OAM != 0 {
                return Err(PopError::Flags);
            }
            packet_type = match flags & 0xff {
                1 => packet_type::IPV4,
                2 => packet_type::IPV6,
                3 => packet_type::ETHERNET,
                4 => packet_type::NSH,
                _ => return Err(PopError::Protocol),
            };
            flags &= !(Vxlan::GPE | 0xff);
        } else if flags & Vxlan::GBP != 0 {
            key.tun_gbp_id = (flags & 0xffff) as u16;
            key.tun_gbp_flags = ((flags & Vxlan::GBP_FLAGS) >> 16) as u8;
            flags &= !(Vxlan::GBP | Vxlan::GBP_FLAGS | 0xffff);
        }
        if flags != Vxlan::VNI || v.vni.get() & 0xff != 0 {
            return Err(PopError::Flags);
        }
        set_vni(v.vni, key);
        Ok(Shim {
            at: at + Vxlan::LEN,
            end,
            packet_type,
        })
    }

    fn gre(p: &Packet, ip: &Ip, key: &mut FlowKey) -> Result<Shim, PopError> {
        let (g, rest) = p
            .head()
            .get(ip.l4..)
            .and_then(split::<Gre>)
            .ok_or(PopError::Truncated)?;
        let (flags, proto) = (g.flags.get(), g.proto.get());
        if flags & 7 != 0 {
            return Err(PopError::Version);
        }
        if flags & !(Gre::CSUM | Gre::KEY | Gre::SEQ) != 0 {
            return Err(PopError::Flags);
        }
        let len = Gre::len_of(flags);
        let mut words = rest
            .get(..len - Gre::LEN)
            .ok_or(PopError::Truncated)?
            .as_chunks::<4>()
            .0
            .iter();
        if flags & Gre::CSUM != 0 {
            if !is_known(p, ip.l4) && sum_of(p, ip.l4, ip.end).checksum() != 0 {
                return Err(PopError::Csum);
            }
            key.tun_flags |= tun_flag::CSUM;
            words.next();
        }
        if flags & Gre::KEY != 0 {
            let word = words.next().ok_or(PopError::Truncated)?;
            key.tun_id = u32::from_be_bytes(*word).into();
            key.tun_flags |= tun_flag::KEY;
        }
        let packet_type = match proto {
            ethertype::TEB => packet_type::ETHERNET,
            _ if proto >= ethertype::MIN => packet_type::of_ethertype(proto),
            _ => return Err(PopError::Protocol),
        };
        Ok(Shim {
            at: ip.l4 + len,
            end: p.len(),
            packet_type,
        })
    }

    fn erspan(p: &Packet, ip: &Ip, key: &mut FlowKey) -> Result<Shim, PopError> {
        let head = p.head();
        let (g, _) = head
            .get(ip.l4..)
            .and_then(split::<Gre>)
            .ok_or(PopError::Truncated)?;
        if !matches!(g.proto.get(), gre_proto::ERSPAN1 | gre_proto::ERSPAN2) {
            return Err(PopError::Protocol);
        }
        if g.flags.get() & !Gre::SEQ != 0 {
            return Err(PopError::Flags);
        }
        let at = ip.l4 + Gre::len_of(Gre::SEQ);
        let (e, rest) = head
            .get(at..)
            .and_then(split::<Erspan>)
            .ok_or(PopError::Truncated)?;
        let version = (e.ver_vlan.get() >> 12) as u8;
        let len = match version {
            1 => {
                let (index, _) = split::<Be32>(rest).ok_or(PopError::Truncated)?;
                key.tun_erspan_idx = index.get() & 0xf_ffff;
                Erspan::LEN + 4
            }
            2 => {
                let (e2, _) = split::<Erspan2>(rest).ok_or(PopError::Truncated)?;
                let flags = e2.flags.get();
                key.tun_erspan_dir = (flags >> 3 & 1) as u8;
                key.tun_erspan_hwid = (flags >> 4 & 0x3f) as u8;
                Erspan::LEN + Erspan2::LEN
            }
            _ => return Err(PopError::Version),
        };
        key.tun_erspan_ver = version;
        key.tun_id = (e.session.get() & 0x3ff).into();
        key.tun_flags |= tun_flag::KEY;
        Ok(Shim {
            at: at + len,
            end: p.len(),
            packet_type: packet_type::ETHERNET,
        })
    }

    fn gtpu(p: &Packet, ip: &Ip, key: &mut FlowKey) -> Result<Shim, PopError> {
        let (at, end) = udp(p, ip, key)?;
        let head = p.head();
        let (g, rest) = head
            .get(at..)
            .and_then(split::<Gtpu>)
            .ok_or(PopError::Truncated)?;
        if g.flags >> 5 != 1 {
            return Err(PopError::Version);
        }
        (key.tun_gtpu_flags, key.tun_gtpu_msgtype) = (g.flags, g.message);
        key.tun_id = g.teid.get().into();
        if g.message != Gtpu::GPDU {
            // The packet keeps its outer headers, for a handler of such messages.
            return Ok(Shim {
                at: 0,
                end,
                packet_type: packet_type::ETHERNET,
            });
        }
        if g.flags & Gtpu::EXTENSION != 0 {
            return Err(PopError::Flags);
        }
        let mut inner = at + Gtpu::LEN;
        let mut first = rest;
        if g.flags & Gtpu::OPTIONAL != 0 {
            (_, first) = split::<GtpuOptional>(rest).ok_or(PopError::Truncated)?;
            inner += GtpuOptional::LEN;
        }
        let packet_type = match first.first().map(|b| b >> 4) {
            Some(4) => packet_type::IPV4,
            Some(6) => packet_type::IPV6,
            _ => return Err(PopError::Protocol),
        };
        Ok(Shim {
            at: inner,
            end,
            packet_type,
        })
    }

    fn srv6(p: &Packet, ip: &Ip) -> Result<Shim, PopError> {
        let (h, _) = p
            .head()
            .get(ip.l4..)
            .and_then(split::<Srh>)
            .ok_or(PopError::Truncated)?;
        if h.ty != Srh::TYPE {
            return Err(PopError::Version);
        }
        let packet_type = match h.next {
            4 => packet_type::IPV4,
            41 => packet_type::IPV6,
            _ => return Err(PopError::Protocol),
        };
        Ok(Shim {
            at: ip.l4 + (usize::from(h.len) + 1) * 8,
            end: ip.end,
            packet_type,
        })
    }

    /// Removes the outer headers and the bytes behind the packet's end.
    #[inline]
    pub(crate) fn take_off(&self, p: &mut Packet, shim: &Shim) -> Result<(), PopError> {
        if shim.at > shim.end {
            return Err(PopError::Truncated);
        }
        if shim.at == 0 {
            return Ok(());
        }
        let inside = match (p.offload.csum, p.offload.gso) {
            (Csum::Partial { start, .. }, _) => usize::from(start) >= shim.at,
            // Fragments in a tunnel of this switch.
            (_, Some(gso)) => gso.kind == GsoKind::Fragments && !gso.wraps.is_empty(),
            (_, None) => false,
        };
        if let Some(gso) = &mut p.offload.gso {
            if !inside {
                return Err(PopError::OuterGso);
            }
            if let Some((_, within)) = gso.wraps.split() {
                gso.wraps = within;
            }
        }
        if !inside {
            // The metadata was about the outer headers.
            p.offload.csum = Csum::Unknown;
        }
        if shim.end < p.len() {
            p.truncate(shim.end);
        }
        if p.head_len() < shim.at {
            extend(p, shim.at);
        }
        if p.pull_front(shim.at) {
            Ok(())
        } else {
            Err(PopError::Truncated)
        }
    }
}

/// Extends the head to `n` bytes, if the packet has them.
#[cold]
fn extend(p: &mut Packet, n: usize) {
    if p.len() >= n {
        p.reserve(n);
        p.pull_tail(n);
    }
}

/// The end of an IP packet whose length field is `len`, counted from `l3`. At least `least` bytes must be
/// there.
#[inline]
fn ends_at(p: &Packet, l3: usize, len: usize, least: usize) -> Result<usize, PopError> {
    if len == 0 && p.offload.gso.is_some() {
        // A GSO packet of this switch, longer than the length field can hold.
        return Ok(p.len());
    }
    if len < least || l3 + len > p.len() {
        return Err(PopError::Length);
    }
    Ok(l3 + len)
}

#[inline]
fn set_vni(vni: Be32, key: &mut FlowKey) {
    key.tun_id = (vni.get() >> 8).into();
    key.tun_flags |= tun_flag::KEY;
}

/// Whether the checksum of the header at `l4` need not be verified. Either a device has verified it, or this
/// machine made the packet and a checksum at or behind `l4` is still to be filled in.
#[inline]
pub(crate) fn is_known(p: &Packet, l4: usize) -> bool {
    match p.offload.csum {
        Csum::Unknown => false,
        Csum::Valid => true,
        Csum::Partial { start, .. } => usize::from(start) >= l4,
    }
}

/// The sum of a packet's bytes between two offsets. There may be padding behind `to`.
#[inline]
pub(crate) fn sum_of(p: &Packet, from: usize, to: usize) -> Sum {
    if let Some(all) = p.head().get(from..to) {
        return Sum::ZERO.bytes(all);
    }
    let mut left = to.saturating_sub(from);
    let mut sum = Sum::ZERO;
    p.pieces(from, &mut |piece| {
        let piece = piece.get(..left).unwrap_or(piece);
        sum = sum.bytes(piece);
        left -= piece.len();
    });
    sum
}

/// Checks a UDP header. Returns begin and end of its payload.
#[inline]
fn udp(p: &Packet, ip: &Ip, key: &mut FlowKey) -> Result<(usize, usize), PopError> {
    let (udp, _) = p
        .head()
        .get(ip.l4..)
        .and_then(split::<Udp>)
        .ok_or(PopError::Truncated)?;
    let (len, there) = (usize::from(udp.len.get()), ip.end.saturating_sub(ip.l4));
    let len = if len == 0 && p.offload.gso.is_some() {
        there
    } else {
        len
    };
    if len < Udp::LEN || len > there {
        return Err(PopError::Length);
    }
    let end = ip.l4 + len;
    // Zero: no checksum, which RFC 6935 allows to tunnels over IPv6 too.
    if udp.csum.get() != 0 {
        if !is_known(p, ip.l4) {
            let n = u32::try_from(len).map_err(|_| PopError::Length)?;
            if ip.pseudo.word32(n).sum(sum_of(p, ip.l4, end)).checksum() != 0 {
                return Err(PopError::Csum);
            }
        }
        key.tun_flags |= tun_flag::CSUM;
    }
    debug_assert_eq!(ip.proto, proto::UDP);
    Ok((ip.l4 + Udp::LEN, end))
}
