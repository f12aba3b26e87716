//! Set actions: masked rewrites of header fields, checksums kept right.
//!
//! Each function reads the packet's own bytes before it writes. If a header is missing (or not in the
//! packet's private part), the result is `None`, which the caller counts as a drop. Forwarding the packet
//! unchanged would send a packet that no rule describes. Only an L4 header that does not fit into the IP
//! packet is skipped, as in Open vSwitch.

use super::Meta;
use super::csum::{Part, changed};
use heddle_datapath_api::{Action, Masked};
use heddle_flow::packet_type;
use heddle_packet::Packet;
use heddle_wire::arp::Arp;
use heddle_wire::checksum::{update16, update32};
use heddle_wire::icmp::{ND_OPT_SLL, ND_OPT_TLL};
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::{Be32, crc32c, split_mut};

/// Bytes of an ICMPv6 header that all messages have (RFC 4443, 2.1).
const ICMPV6_LEN: usize = 4;
/// ... and of a neighbour message before its options (RFC 4861, 4.3).
const ND_LEN: usize = 24;
/// ... and of SCTP's common header (RFC 9260, 3.1).
const SCTP_LEN: usize = 12;

macro_rules! masked {
    ($name:ident, $t:ty) => {
        fn $name(old: $t, m: &Masked<$t>) -> $t {
            (old & !m.mask) | (m.value & m.mask)
        }
    };
}
masked!(m8, u8);
masked!(m16, u16);
masked!(m32, u32);

fn bytes<const N: usize>(old: [u8; N], m: &Masked<[u8; N]>) -> [u8; N] {
    std::array::from_fn(|i| (old[i] & !m.mask[i]) | (m.value[i] & m.mask[i]))
}

fn at<const N: usize>(head: &mut [u8], offset: usize) -> Option<&mut [u8; N]> {
    head.get_mut(offset..)?.first_chunk_mut()
}

/// Rewrites bytes at an offset in an L4 header, and its checksum with them.
fn rewrite<const N: usize>(
    p: &mut Packet,
    l4: usize,
    offset: usize,
    proto: u8,
    new: impl FnOnce([u8; N]) -> [u8; N],
) -> Option<()> {
    let offload = p.offload;
    let bytes: &mut [u8; N] = at(p.head_mut(), l4 + offset)?;
    let from = *bytes;
    let to = new(from);
    *bytes = to;
    changed(p.head_mut(), &offload, l4, proto, Part::L4, &from, &to);
    Some(())
}

/// Applies a set action of headers. `None`: the header is not there.
pub(super) fn set(p: &mut Packet, meta: &Meta, action: &Action) -> Option<()> {
    let l3 = usize::from(meta.l3);
    // Offset of an L4 header whose checksum must follow.
    let l4 = (meta.l4 != u16::MAX && !meta.later_fragment).then_some(usize::from(meta.l4));
    let offload = p.offload;
    match action {
        Action::SetEth { .. } if meta.packet_type != packet_type::ETHERNET => return None,
        Action::SetEth { src, dst } => {
            let d: &mut [u8; 6] = at(p.head_mut(), 0)?;
            *d = bytes(*d, dst);
            let s: &mut [u8; 6] = at(p.head_mut(), 6)?;
            *s = bytes(*s, src);
        }
        Action::SetIpv4 { src, dst, tos, ttl } => {
            let (ip, _) = split_mut::<Ipv4>(p.head_mut().get_mut(l3..)?)?;
            let old = *ip;
            ip.src = m32(old.src.get(), src).into();
            ip.dst = m32(old.dst.get(), dst).into();
            ip.tos = m8(old.tos, tos);
            ip.ttl = m8(old.ttl, ttl);
            // Most rewrites leave most fields unchanged.
            let addresses = (ip.src, ip.dst) != (old.src, old.dst);
            let mut c = old.csum.get();
            if addresses {
                c = update32(c, old.src.get(), ip.src.get());
                c = update32(c, old.dst.get(), ip.dst.get());
            }
            if ip.tos != old.tos {
                c = update16(c, old.tos.into(), ip.tos.into());
            }
            if ip.ttl != old.ttl {
                c = update16(c, u16::from(old.ttl) << 8, u16::from(ip.ttl) << 8);
            }
            ip.csum = c.into();
            let new = *ip;
            // ICMPv6 over IPv4 has no pseudo header: its bytes are ordinary payload.
            if let Some(l4) = covering(l4, meta).filter(|_| addresses && meta.proto != proto::ICMPV6) {
                let (from, to) = (pair(old.src, old.dst), pair(new.src, new.dst));
                changed(p.head_mut(), &offload, l4, meta.proto, Part::Address, &from, &to);
            }
        }
        Action::SetIpv6 {
            src,
            dst,
            label,
            tclass,
            hlimit,
        } => {
            let (ip, _) = split_mut::<Ipv6>(p.head_mut().get_mut(l3..)?)?;
            let old = *ip;
            ip.src = bytes(old.src, src);
            ip.dst = bytes(old.dst, dst);
            ip.hop_limit = m8(old.hop_limit, hlimit);
            let (cl, lb) = (
                m8(old.traffic_class(), tclass),
                m32(old.label(), label) & Ipv6::LABEL,
            );
            ip.flow = (old.flow.get() & 0xf000_0000 | u32::from(cl) << 20 | lb).into();
            let new = *ip;
            if let Some(l4) = covering(l4, meta) {
                let pairs = [(old.src, new.src), (old.dst, new.dst)];
                for (from, to) in &pairs[..if meta.routing_header { 1 } else { 2 }] {
                    changed(p.head_mut(), &offload, l4, meta.proto, Part::Address, from, to);
                }
            }
        }
        Action::SetL4 { .. } | Action::SetIcmp { .. } | Action::SetNd { .. } | Action::SetNdExt { .. }
            if !is_whole(p.head(), l4?, meta, action) => {}
        Action::SetL4 {
            proto: proto::SCTP,
            src,
            dst,
        } => set_sctp(p, l4?, meta.l4_end, src, dst)?,
        Action::SetL4 { proto, src, dst } => {
            rewrite(p, l4?, 0, *proto, |ports| set_ports(ports, src, dst))?;
        }
        Action::SetIcmp { v6, ty, code } => {
            let proto = if *v6 { proto::ICMPV6 } else { proto::ICMP };
            rewrite(p, l4?, 0, proto, |[t, c]| [m8(t, ty), m8(c, code)])?;
        }
        Action::SetArp {
            sip,
            tip,
            op,
            sha,
            tha,
        } => {
            let (arp, _) = split_mut::<Arp>(p.head_mut().get_mut(l3..)?)?;
            arp.spa = m32(u32::from_be_bytes(arp.spa), sip).to_be_bytes();
            arp.tpa = m32(u32::from_be_bytes(arp.tpa), tip).to_be_bytes();
            arp.op = m16(arp.op.get(), op).into();
            arp.sha = bytes(arp.sha, sha);
            arp.tha = bytes(arp.tha, tha);
        }
        Action::SetNd { target, sll, tll } => {
            rewrite(p, l4?, 8, proto::ICMPV6, |from| bytes(from, target))?;
            set_nd_options(p, l4?, meta.l4_end, sll, tll);
        }
        Action::SetNdExt { reserved, option } => {
            let (l4, reserved) = (l4?, |r| m32(u32::from_be_bytes(r), reserved).to_be_bytes());
            rewrite(p, l4, 4, proto::ICMPV6, reserved)?;
            if l4 + ND_LEN + 8 <= meta.l4_end {
                // A truncated option stays unchanged.
                let _ = rewrite(p, l4, ND_LEN, proto::ICMPV6, |[ty, len]| [m8(ty, option), len]);
            }
        }
        _ => return None,
    }
    Some(())
}

/// Whether the IP packet holds all of the L4 header that `action` writes to. If not, the packet stays
/// unchanged, as in Open vSwitch: bytes behind its end are padding.
fn is_whole(head: &[u8], l4: usize, meta: &Meta, action: &Action) -> bool {
    let least = match action {
        Action::SetL4 {
            proto: proto::TCP, ..
        } => {
            let said = head.get(l4 + 12).map_or(0, |b| usize::from(b >> 4) * 4);
            if said < Tcp::LEN {
                return false;
            }
            said
        }
        Action::SetL4 {
            proto: proto::SCTP, ..
        } => SCTP_LEN,
        Action::SetNd { .. } | Action::SetNdExt { .. } => ND_LEN,
        _ => Udp::LEN, // ICMP's as well
    };
    l4 + least <= meta.l4_end
}

/// Offset of the header at `l4`, if the IP packet holds all of it. Bytes behind the packet's end are padding,
/// even if they look like a header.
fn covering(l4: Option<usize>, meta: &Meta) -> Option<usize> {
    let least = match meta.proto {
        proto::TCP => Tcp::LEN,
        proto::UDP => Udp::LEN,
        _ => ICMPV6_LEN,
    };
    l4.filter(|at| at + least <= meta.l4_end)
}

/// Raises the drop precedence of an IP packet by `steps`; other packets stay unchanged.
pub(super) fn remark(p: &mut Packet, meta: &Meta, steps: u8) {
    let l3 = usize::from(meta.l3);
    let Some(b) = p.head().get(l3..).and_then(|h| h.first_chunk::<2>()).copied() else {
        return;
    };
    let whole = |value: u8| Masked { value, mask: u8::MAX };
    let keep = Masked::default();
    let action = match b[0] >> 4 {
        4 => Action::SetIpv4 {
            src: Masked::default(),
            dst: Masked::default(),
            tos: whole(heddle_datapath_api::meter::remark(b[1], steps)),
            ttl: keep,
        },
        6 => Action::SetIpv6 {
            src: Masked::default(),
            dst: Masked::default(),
            label: Masked::default(),
            tclass: whole(heddle_datapath_api::meter::remark(b[0] << 4 | b[1] >> 4, steps)),
            hlimit: keep,
        },
        _ => return,
    };
    // A truncated header stays unchanged.
    let _ = set(p, meta, &action);
}

fn pair(a: Be32, b: Be32) -> [u8; 8] {
    (u64::from(a.get()) << 32 | u64::from(b.get())).to_be_bytes()
}

fn set_ports(old: [u8; 4], src: &Masked<u16>, dst: &Masked<u16>) -> [u8; 4] {
    let s = m16(u16::from_be_bytes([old[0], old[1]]), src).to_be_bytes();
    let d = m16(u16::from_be_bytes([old[2], old[3]]), dst).to_be_bytes();
    [s[0], s[1], d[0], d[1]]
}

/// SCTP's checksum is a CRC over the whole packet (RFC 9260, appendix A). The difference of the right
/// checksums before and after is applied, so that a wrong checksum stays wrong.
fn set_sctp(p: &mut Packet, l4: usize, end: usize, src: &Masked<u16>, dst: &Masked<u16>) -> Option<()> {
    p.make_private();
    let covered = p.head_mut().get_mut(l4..)?;
    let n = covered.len().min(end.saturating_sub(l4));
    let covered = &mut covered[..n];
    let field: &mut [u8; 4] = at(covered, 8)?;
    let was = std::mem::take(field);
    let right_before = crc32c::crc32c(covered);
    let ports: &mut [u8; 4] = at(covered, 0)?;
    *ports = set_ports(*ports, src, dst);
    let right_after = crc32c::crc32c(covered);
    let field: &mut [u8; 4] = at(covered, 8)?;
    *field = std::array::from_fn(|i| was[i] ^ right_before[i] ^ right_after[i]);
    Some(())
}

/// Rewrites the source and target link-layer address options (RFC 4861, 4.6.1). Missing options are not
/// added.
fn set_nd_options(p: &mut Packet, l4: usize, end: usize, sll: &Masked<[u8; 6]>, tll: &Masked<[u8; 6]>) {
    let mut offset = ND_LEN;
    while l4 + offset + 8 <= end {
        let Some([ty, len]) = at(p.head_mut(), l4 + offset).copied() else {
            return;
        };
        let m = match ty {
            ND_OPT_SLL => Some(sll),
            ND_OPT_TLL => Some(tll),
            _ => None,
        };
        if let (Some(m), 1) = (m, len) {
            // A truncated option stays unchanged.
            let _ = rewrite(p, l4, offset + 2, proto::ICMPV6, |mac| bytes(mac, m));
        }
        if len == 0 {
            return;
        }
        offset += usize::from(len) * 8;
    }
}
