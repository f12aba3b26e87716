//! Reading one attribute: a name, and fields or one value in parentheses.

use super::PORT_NONE;
use crate::key::{FlowKey, FlowMask, Nsh, Vlan, frag};
use crate::text::{CT_STATE, FlagNames, PortNumbers, TCP, TUNNEL, parse_flags, parse_int};
use std::net::{Ipv4Addr, Ipv6Addr};

/// An attribute, its values alone in an otherwise empty key.
#[derive(Default)]
pub(super) struct Attr {
    pub(super) key: FlowKey,
    pub(super) mask: FlowMask,
}

/// A value and its mask (`full` where the text has none), or `None` for a malformed value.
type Masked<T> = Option<(T, T)>;

/// `value[/mask]`, unsigned, in C's notations.
fn int(s: &str, n_bytes: u16, full: u128) -> Masked<u128> {
    let (v, rest) = parse_int(s, n_bytes).ok()?;
    match rest.strip_prefix('/') {
        None if rest.is_empty() => Some((v, full)),
        None => None,
        Some(m) => match parse_int(m, n_bytes).ok()? {
            (m, "") => Some((v, m)),
            _ => None,
        },
    }
}

macro_rules! ints {
    ($($name:ident $t:ty, $bytes:literal;)*) => {$(
        fn $name(s: &str, v: &mut $t, m: &mut $t) -> Option<()> {
            let (x, y) = int(s, $bytes, <$t>::MAX.into())?;
            (*v, *m) = (<$t>::try_from(x).ok()?, <$t>::try_from(y).ok()?);
            Some(())
        }
    )*};
}
ints!(u8_ u8, 1; u16_ u16, 2; u32_ u32, 4; u64_ u64, 8;);

fn bits(s: &str, v: &mut u32, m: &mut u32, shift: u32, width: u32) -> Option<()> {
    let all = (1u128 << width) - 1;
    let (x, y) = int(s, 4, all).filter(|(x, y)| x <= &all && y <= &all)?;
    *v |= u32::try_from(x).ok()? << shift;
    *m |= u32::try_from(y).ok()? << shift;
    Some(())
}

fn bits16(s: &str, v: &mut u16, m: &mut u16, shift: u32, width: u32) -> Option<()> {
    let (mut x, mut y) = (u32::from(*v), u32::from(*m));
    // A field given again replaces what was there before.
    let clear = !(((1 << width) - 1) << shift);
    (x, y) = (x & clear, y & clear);
    bits(s, &mut x, &mut y, shift, width)?;
    (*v, *m) = (u16::try_from(x).ok()?, u16::try_from(y).ok()?);
    Some(())
}

fn ip4(s: &str, v: &mut u32, m: &mut u32) -> Option<()> {
    let (a, b) = s.split_once('/').unwrap_or((s, "255.255.255.255"));
    *v = a.parse::<Ipv4Addr>().ok()?.into();
    *m = b.parse::<Ipv4Addr>().ok()?.into();
    Some(())
}

fn ip6(s: &str, v: &mut [u8; 16], m: &mut [u8; 16]) -> Option<()> {
    let (a, b) = s.split_once('/').map_or((s, None), |(a, b)| (a, Some(b)));
    *v = a.parse::<Ipv6Addr>().ok()?.octets();
    *m = b.map_or(Some([0xff; 16]), |b| {
        b.parse::<Ipv6Addr>().ok().map(|b| b.octets())
    })?;
    Some(())
}

fn mac(s: &str, v: &mut [u8; 6], m: &mut [u8; 6]) -> Option<()> {
    let (a, b) = s.split_once('/').map_or((s, None), |(a, b)| (a, Some(b)));
    *v = crate::text::parse_mac(a)?;
    *m = b.map_or(Some([0xff; 6]), crate::text::parse_mac)?;
    Some(())
}

fn frag_(s: &str, v: &mut u8, m: &mut u8) -> Option<()> {
    *v = match s {
        "no" => 0,
        "first" => frag::ANY,
        "later" => frag::MASK,
        _ => return None,
    };
    *m = frag::MASK;
    Some(())
}

fn flags(s: &str, names: FlagNames, allowed: u32) -> Masked<u32> {
    parse_flags(s, names, "", allowed).ok()
}

/// Calls `f` for each `name=value` and each `name(value)` of a list.
fn fields(s: &str, mut f: impl FnMut(&str, &str) -> Option<()>) -> Option<()> {
    let mut rest = s;
    while !rest.is_empty() {
        let end = rest.find(['=', '('])?;
        let (name, after) = rest.split_at(end);
        let (value, next) = if let Some(v) = after.strip_prefix('=') {
            v.split_at(v.find(',').unwrap_or(v.len()))
        } else {
            super::parse::parenthesis(after)?
        };
        f(name.trim(), value.trim())?;
        rest = next.strip_prefix(',').unwrap_or(next);
        if rest.is_empty() && !next.is_empty() || !rest.is_empty() && rest.len() == next.len() {
            return None;
        }
    }
    Some(())
}

/// Reads the body of the attribute `name`; `None` where it is malformed, or there is no such attribute.
pub(super) fn attr(name: &str, s: &str, ports: Option<PortNumbers<'_>>) -> Option<Attr> {
    let mut a = Attr::default();
    let (k, m) = (&mut a.key, &mut a.mask.0);
    match name {
        "skb_priority" => u32_(s, &mut k.skb_priority, &mut m.skb_priority)?,
        "skb_mark" => u32_(s, &mut k.pkt_mark, &mut m.pkt_mark)?,
        "recirc_id" => {
            u32_(s, &mut k.recirc_id, &mut m.recirc_id).filter(|()| !s.contains('/'))?;
        }
        "dp_hash" => u32_(s, &mut k.dp_hash, &mut m.dp_hash)?,
        "ct_state" => (k.ct_state, m.ct_state) = flags(s, CT_STATE, 0xff)?,
        "ct_zone" => u16_(s, &mut k.ct_zone, &mut m.ct_zone)?,
        "ct_mark" => u32_(s, &mut k.ct_mark, &mut m.ct_mark)?,
        "ct_label" => {
            let (v, y) = int(s, 16, u128::MAX)?;
            (k.ct_label, m.ct_label) = (v.to_be_bytes(), y.to_be_bytes());
        }
        "ct_tuple4" => fields(s, |n, v| match n {
            "src" => ip4(v, &mut k.ct_nw_src, &mut m.ct_nw_src),
            "dst" => ip4(v, &mut k.ct_nw_dst, &mut m.ct_nw_dst),
            _ => ct_l4(n, v, k, m),
        })?,
        "ct_tuple6" => fields(s, |n, v| match n {
            "src" => ip6(v, &mut k.ct_ipv6_src, &mut m.ct_ipv6_src),
            "dst" => ip6(v, &mut k.ct_ipv6_dst, &mut m.ct_ipv6_dst),
            _ => ct_l4(n, v, k, m),
        })?,
        "tunnel" => fields(s, |n, v| tunnel(n, v, k, m))?,
        "in_port" => match u32_(s, &mut k.in_port, &mut m.in_port) {
            Some(()) => {}
            None => (k.in_port, m.in_port) = (ports.and_then(|p| p(s))?, PORT_NONE),
        },
        "packet_type" => {
            let (mut ns, mut id) = ((0, 0), (0, 0));
            fields(s, |n, v| match n {
                "ns" => u16_(v, &mut ns.0, &mut ns.1),
                "id" => u16_(v, &mut id.0, &mut id.1),
                _ => None,
            })?;
            k.packet_type = u32::from(ns.0) << 16 | u32::from(id.0);
            m.packet_type = u32::from(ns.1) << 16 | u32::from(id.1);
        }
        "eth" => fields(s, |n, v| match n {
            "src" => mac(v, &mut k.dl_src, &mut m.dl_src),
            "dst" => mac(v, &mut k.dl_dst, &mut m.dl_dst),
            _ => None,
        })?,
        "vlan" => {
            let (t, tm) = (&mut k.vlans[0].tci, &mut m.vlans[0].tci);
            (*t, *tm) = (Vlan::CFI, Vlan::CFI);
            fields(s, |n, v| match n {
                "vid" => bits16(v, t, tm, 0, 12),
                "pcp" => bits16(v, t, tm, 13, 3),
                "cfi" => bits16(v, t, tm, 12, 1),
                _ => None,
            })?;
        }
        "eth_type" => u16_(s, &mut k.dl_type, &mut m.dl_type)?,
        "mpls" => mpls(s, k, m)?,
        "nsh" => fields(s, |n, v| nsh(n, v, &mut k.nsh, &mut m.nsh))?,
        _ => l3(name, s, k, m)?,
    }
    Some(a)
}

fn nsh(n: &str, s: &str, k: &mut Nsh, m: &mut Nsh) -> Option<()> {
    let mut path = |shift: u32, width: u32| {
        let field = u32::MAX >> (32 - width) << shift;
        (k.path, m.path) = (k.path & !field, m.path & !field);
        bits(s, &mut k.path, &mut m.path, shift, width)
    };
    match n {
        "spi" => path(8, 24),
        "si" => path(0, 8),
        "flags" => u8_(s, &mut k.flags, &mut m.flags),
        "ttl" => u8_(s, &mut k.ttl, &mut m.ttl),
        "mdtype" => u8_(s, &mut k.mdtype, &mut m.mdtype),
        "np" => u8_(s, &mut k.np, &mut m.np),
        "c1" => u32_(s, &mut k.c1, &mut m.c1),
        "c2" => u32_(s, &mut k.c2, &mut m.c2),
        "c3" => u32_(s, &mut k.c3, &mut m.c3),
        "c4" => u32_(s, &mut k.c4, &mut m.c4),
        _ => None,
    }
}

fn ct_l4(n: &str, v: &str, k: &mut FlowKey, m: &mut FlowKey) -> Option<()> {
    match n {
        "proto" => u8_(v, &mut k.ct_nw_proto, &mut m.ct_nw_proto),
        "tp_src" | "src_port" => u16_(v, &mut k.ct_tp_src, &mut m.ct_tp_src),
        "tp_dst" | "dst_port" => u16_(v, &mut k.ct_tp_dst, &mut m.ct_tp_dst),
        _ => None,
    }
}

fn tunnel(n: &str, v: &str, k: &mut FlowKey, m: &mut FlowKey) -> Option<()> {
    match n {
        "tun_id" => {
            u64_(v, &mut k.tun_id, &mut m.tun_id)?;
            k.tun_flags |= 1 << 3;
            m.tun_flags |= 1 << 3;
            Some(())
        }
        "src" => ip4(v, &mut k.tun_src, &mut m.tun_src),
        "dst" => ip4(v, &mut k.tun_dst, &mut m.tun_dst),
        "ipv6_src" => ip6(v, &mut k.tun_ipv6_src, &mut m.tun_ipv6_src),
        "ipv6_dst" => ip6(v, &mut k.tun_ipv6_dst, &mut m.tun_ipv6_dst),
        "tos" => u8_(v, &mut k.tun_tos, &mut m.tun_tos),
        "ttl" => u8_(v, &mut k.tun_ttl, &mut m.tun_ttl),
        "vxlan" => {
            let (inner, rest) = super::parse::parenthesis(v.strip_prefix("gbp")?)?;
            fields(inner, |n, v| match n {
                "id" => u16_(v, &mut k.tun_gbp_id, &mut m.tun_gbp_id),
                "flags" => u8_(v, &mut k.tun_gbp_flags, &mut m.tun_gbp_flags),
                _ => None,
            })?;
            rest.is_empty().then_some(())
        }
        "erspan" => fields(v, |n, v| match n {
            "ver" => u8_(v, &mut k.tun_erspan_ver, &mut m.tun_erspan_ver),
            "idx" => u32_(v, &mut k.tun_erspan_idx, &mut m.tun_erspan_idx),
            "dir" => u8_(v, &mut k.tun_erspan_dir, &mut m.tun_erspan_dir),
            "hwid" => u8_(v, &mut k.tun_erspan_hwid, &mut m.tun_erspan_hwid),
            _ => None,
        }),
        "gtpu" => fields(v, |n, v| match n {
            "flags" => u8_(v, &mut k.tun_gtpu_flags, &mut m.tun_gtpu_flags),
            "msgtype" => u8_(v, &mut k.tun_gtpu_msgtype, &mut m.tun_gtpu_msgtype),
            _ => None,
        }),
        "geneve" => geneve(v, k, m),
        // Read, and then ignored: keys have no such field.
        "tp_src" | "tp_dst" => u16_(v, &mut 0, &mut 0),
        "flags" => {
            let (f, fm) = flags(v, TUNNEL, 0xf)?;
            k.tun_flags |= (f & 0xf) as u16;
            m.tun_flags |= (fm & 0xffff) as u16;
            Some(())
        }
        _ => None,
    }
}

/// Options in braces. The thread's map gives their fields; options that it lacks are read and ignored.
fn geneve(s: &str, k: &mut FlowKey, m: &mut FlowKey) -> Option<()> {
    let mut rest = s;
    while let Some(inner) = rest.strip_prefix('{') {
        let (body, next) = inner.split_once('}')?;
        let (mut class, mut ty, mut len) = (0_u16, 0_u8, 0_u8);
        let (mut value, mut mask) = (0_u128, u128::MAX);
        for part in body.split(',') {
            match part.trim().split_once('=') {
                Some(("class", v)) => u16_(v, &mut class, &mut 0)?,
                Some(("type", v)) => u8_(v, &mut ty, &mut 0)?,
                Some(("len", v)) => u8_(v, &mut len, &mut 0)?,
                Some(_) => return None,
                None => (value, mask) = int(part.trim(), 16, u128::MAX)?,
            }
        }
        if let Some(field) =
            crate::field::tlv::mapped_option(class, ty).filter(|f| f.bytes(k).len() == len.into())
        {
            field.set(k, value);
            field.set(m, mask);
        }
        rest = next;
    }
    rest.is_empty().then_some(())
}

/// Label stack entries one after the other: a repeated field starts the next entry.
fn mpls(s: &str, k: &mut FlowKey, m: &mut FlowKey) -> Option<()> {
    let (mut i, mut seen) = (0, 0u8);
    fields(s, |n, v| {
        let (shift, width, bit) = match n {
            "label" => (12, 20, 1),
            "tc" => (9, 3, 2),
            "ttl" => (0, 8, 4),
            "bos" => (8, 1, 8),
            _ => return None,
        };
        if seen & bit != 0 {
            (i, seen) = (i + 1, 0);
        }
        seen |= bit;
        bits(v, k.mpls_lse.get_mut(i)?, m.mpls_lse.get_mut(i)?, shift, width)
    })
}

fn l3(name: &str, s: &str, k: &mut FlowKey, m: &mut FlowKey) -> Option<()> {
    match name {
        "ipv4" => fields(s, |n, v| match n {
            "src" => ip4(v, &mut k.nw_src, &mut m.nw_src),
            "dst" => ip4(v, &mut k.nw_dst, &mut m.nw_dst),
            "tos" => u8_(v, &mut k.nw_tos, &mut m.nw_tos),
            "ttl" => u8_(v, &mut k.nw_ttl, &mut m.nw_ttl),
            "proto" => u8_(v, &mut k.nw_proto, &mut m.nw_proto),
            "frag" => frag_(v, &mut k.nw_frag, &mut m.nw_frag),
            _ => None,
        }),
        "ipv6" => fields(s, |n, v| match n {
            "src" => ip6(v, &mut k.ipv6_src, &mut m.ipv6_src),
            "dst" => ip6(v, &mut k.ipv6_dst, &mut m.ipv6_dst),
            "label" => {
                (k.ipv6_label, m.ipv6_label) = (0, 0);
                bits(v, &mut k.ipv6_label, &mut m.ipv6_label, 0, 20)
            }
            "tclass" => u8_(v, &mut k.nw_tos, &mut m.nw_tos),
            "hlimit" => u8_(v, &mut k.nw_ttl, &mut m.nw_ttl),
            "proto" => u8_(v, &mut k.nw_proto, &mut m.nw_proto),
            "frag" => frag_(v, &mut k.nw_frag, &mut m.nw_frag),
            _ => None,
        }),
        "arp" => fields(s, |n, v| match n {
            "sip" => ip4(v, &mut k.nw_src, &mut m.nw_src),
            "tip" => ip4(v, &mut k.nw_dst, &mut m.nw_dst),
            "op" => {
                let (mut op, mut op_m) = (0u16, 0u16);
                u16_(v, &mut op, &mut op_m)?;
                // Only opcodes of one byte can be told apart.
                (k.nw_proto, m.nw_proto) = (u8::try_from(op).ok()?, (op_m & 0xff) as u8);
                Some(())
            }
            "sha" => mac(v, &mut k.arp_sha, &mut m.arp_sha),
            "tha" => mac(v, &mut k.arp_tha, &mut m.arp_tha),
            _ => None,
        }),
        "tcp" | "udp" | "sctp" => fields(s, |n, v| match n {
            "src" => u16_(v, &mut k.tp_src, &mut m.tp_src),
            "dst" => u16_(v, &mut k.tp_dst, &mut m.tp_dst),
            _ => None,
        }),
        "tcp_flags" => {
            let (f, fm) = flags(s, TCP, 0xfff)?;
            (k.tcp_flags, m.tcp_flags) = ((f & 0xfff) as u16, (fm & 0xffff) as u16);
            Some(())
        }
        "icmp" | "icmpv6" => {
            let (mut ty, mut code) = ((0, 0), (0, 0));
            fields(s, |n, v| match n {
                "type" => u8_(v, &mut ty.0, &mut ty.1),
                "code" => u8_(v, &mut code.0, &mut code.1),
                _ => None,
            })?;
            (k.tp_src, m.tp_src) = (ty.0.into(), ty.1.into());
            (k.tp_dst, m.tp_dst) = (code.0.into(), code.1.into());
            Some(())
        }
        "nd" => fields(s, |n, v| match n {
            "target" => ip6(v, &mut k.nd_target, &mut m.nd_target),
            "sll" => mac(v, &mut k.arp_sha, &mut m.arp_sha),
            "tll" => mac(v, &mut k.arp_tha, &mut m.arp_tha),
            _ => None,
        }),
        "nd_ext" => fields(s, |n, v| match n {
            "nd_reserved" => u32_(v, &mut k.igmp_group, &mut m.igmp_group),
            "nd_options_type" => {
                let (mut t, mut tm) = (0u8, 0u8);
                u8_(v, &mut t, &mut tm)?;
                (k.tcp_flags, m.tcp_flags) = (t.into(), tm.into());
                Some(())
            }
            _ => None,
        }),
        _ => None,
    }
}
