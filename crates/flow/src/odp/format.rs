//! Writing. The key is printed as it is, bits that do not count included: with `-m` they are shown.

mod shim;

use crate::field::is_nd;
use crate::key::{FlowKey, FlowMask, Nsh, Vlan, frag};
use crate::text::write::{AltHex, Ip6, Mac};
use crate::text::{CT_STATE, PortNames, TCP, TUNNEL, format_flags};
use core::fmt::{self, Write};
use heddle_wire::eth::{ethertype, is_mpls, is_vlan};
use heddle_wire::ip::proto;
pub use shim::nsh_fields;
use shim::{mpls, nsh};
use std::net::Ipv4Addr;

/// A key to be written, with a mask or as it is.
#[derive(Clone, Copy)]
pub struct KeyText<'a> {
    /// The key.
    pub key: &'a FlowKey,
    /// Bits of the key that count; `None` writes all of the key, without masks.
    pub mask: Option<&'a FlowMask>,
    /// Whether to show fields that do not count, as `-m` does.
    pub verbose: bool,
    /// Names of datapath ports.
    pub names: Option<PortNames<'a>>,
    /// VLAN tags that the parser reads (`other_config:vlan-limit`).
    pub vlan_limit: usize,
}

/// The text of a key with its mask, as `dpctl/dump-flows` prints it.
pub fn format_key(key: &FlowKey, mask: &FlowMask) -> String {
    KeyText {
        key,
        mask: Some(mask),
        verbose: false,
        names: None,
        vlan_limit: crate::key::N_VLANS,
    }
    .to_string()
}

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = FlowMask::default();
        *all.words_mut() = [u64::MAX; crate::key::N_WORDS];
        let mask = self.mask.unwrap_or(&all);
        let verbose = self.verbose || self.mask.is_none();
        let mut w = Writer {
            f,
            verbose,
            first: true,
        };
        metadata(&mut w, self.key, &mask.0, self.names)?;
        l2(&mut w, self.key, &mask.0, self.vlan_limit, self.mask.is_some())
    }
}

/// Attributes, or fields within one: items between commas.
struct Writer<'a> {
    f: &'a mut dyn Write,
    verbose: bool,
    first: bool,
}

impl Writer<'_> {
    fn comma(&mut self) -> fmt::Result {
        if !self.first {
            self.f.write_char(',')?;
        }
        self.first = false;
        Ok(())
    }
    /// Writes an attribute with fields in it, unless none of its bits count.
    fn attr(
        &mut self,
        name: &str,
        counts: bool,
        body: impl FnOnce(&mut Writer<'_>) -> fmt::Result,
    ) -> fmt::Result {
        if !counts && !self.verbose {
            return Ok(());
        }
        self.comma()?;
        write!(self.f, "{name}(")?;
        body(&mut Writer {
            f: self.f,
            verbose: self.verbose,
            first: true,
        })?;
        self.f.write_char(')')
    }
    /// Writes an attribute that is one number: `name(0x1)`, `name(0x1/0x3)`.
    fn number(&mut self, name: &str, v: u128, m: u128, full: u128) -> fmt::Result {
        self.attr(name, m != 0, |w| {
            write!(w.f, "{}", AltHex(v))?;
            if m == full {
                Ok(())
            } else {
                write!(w.f, "/{}", AltHex(m))
            }
        })
    }
    /// Writes a field with this value and mask, unless none of its bits count.
    fn field(
        &mut self,
        name: &str,
        m_zero: bool,
        m_full: bool,
        v: impl fmt::Display,
        m: impl fmt::Display,
    ) -> fmt::Result {
        if m_zero && !self.verbose {
            return Ok(());
        }
        self.comma()?;
        write!(self.f, "{name}={v}")?;
        if m_full { Ok(()) } else { write!(self.f, "/{m}") }
    }
    fn dec8(&mut self, name: &str, v: u8, m: u8) -> fmt::Result {
        self.field(name, m == 0, m == u8::MAX, v, AltHex(m.into()))
    }
    fn hex8(&mut self, name: &str, v: u8, m: u8) -> fmt::Result {
        self.field(name, m == 0, m == u8::MAX, AltHex(v.into()), AltHex(m.into()))
    }
    fn dec16(&mut self, name: &str, v: u16, m: u16) -> fmt::Result {
        self.field(name, m == 0, m == u16::MAX, v, AltHex(m.into()))
    }
    fn ip4(&mut self, name: &str, v: u32, m: u32) -> fmt::Result {
        self.field(name, m == 0, m == u32::MAX, Ipv4Addr::from(v), Ipv4Addr::from(m))
    }
    fn ip6(&mut self, name: &str, v: [u8; 16], m: [u8; 16]) -> fmt::Result {
        self.field(name, m == [0; 16], m == [0xff; 16], Ip6(v), Ip6(m))
    }
    fn mac(&mut self, name: &str, v: [u8; 6], m: [u8; 6]) -> fmt::Result {
        self.field(name, m == [0; 6], m == [0xff; 6], Mac(v), Mac(m))
    }
    /// A fragment's kind is an enumeration to the datapath: all of its bits count, or none.
    fn frag(&mut self, v: u8, m: u8) -> fmt::Result {
        if m & frag::ANY == 0 {
            return Ok(());
        }
        let kind = match (v & frag::ANY != 0, v & frag::LATER != 0) {
            (false, _) => "no",
            (true, false) => "first",
            (true, true) => "later",
        };
        self.field("frag", false, true, kind, 0)
    }
}

fn metadata(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey, names: Option<PortNames<'_>>) -> fmt::Result {
    const ALL: u128 = u32::MAX as u128;
    w.number("skb_priority", k.skb_priority.into(), m.skb_priority.into(), ALL)?;
    if k.tun_dst != 0 || k.tun_ipv6_dst != [0; 16] || k.tun_src != 0 || k.tun_ipv6_src != [0; 16] {
        w.attr("tunnel", true, |w| tunnel(w, k, m))?;
    }
    w.number("skb_mark", k.pkt_mark.into(), m.pkt_mark.into(), ALL)?;
    if w.verbose {
        w.number("ct_state", k.ct_state.into(), m.ct_state.into(), ALL)?;
    } else {
        w.attr("ct_state", m.ct_state != 0, |w| {
            format_flags(w.f, CT_STATE, k.ct_state, m.ct_state, u32::MAX)
        })?;
    }
    w.number("ct_zone", k.ct_zone.into(), m.ct_zone.into(), u16::MAX.into())?;
    w.number("ct_mark", k.ct_mark.into(), m.ct_mark.into(), ALL)?;
    let label = u128::from_be_bytes;
    w.number("ct_label", label(k.ct_label), label(m.ct_label), u128::MAX)?;
    ct_tuple(w, k, m)?;
    w.number("recirc_id", k.recirc_id.into(), m.recirc_id.into(), ALL)?;
    w.number("dp_hash", k.dp_hash.into(), m.dp_hash.into(), ALL)?;
    // A packet made by the switch has no port; the mask has the member all the same.
    if k.in_port != super::PORT_NONE {
        w.attr("in_port", m.in_port != 0, |w| {
            match names.and_then(|n| n(k.in_port)) {
                Some(name) if m.in_port == u32::MAX => w.f.write_str(&name),
                _ if m.in_port == u32::MAX => write!(w.f, "{}", k.in_port),
                _ => write!(w.f, "{}/{}", k.in_port, AltHex(m.in_port.into())),
            }
        })?;
    }
    let half = |x: u32| ((x >> 16) as u16, (x & 0xffff) as u16);
    let ((ns, id), (ns_m, id_m)) = (half(k.packet_type), half(m.packet_type));
    w.attr("packet_type", m.packet_type != 0, |w| {
        w.dec16("ns", ns, ns_m)?;
        w.field(
            "id",
            id_m == 0,
            id_m == u16::MAX,
            AltHex(id.into()),
            AltHex(id_m.into()),
        )
    })
}

fn ct_tuple(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey) -> fmt::Result {
    if k.ct_nw_proto == 0 {
        return Ok(());
    }
    let l4 = m.ct_nw_proto != 0 || m.ct_tp_src | m.ct_tp_dst != 0;
    match k.dl_type {
        ethertype::IP => w.attr("ct_tuple4", l4 || m.ct_nw_src | m.ct_nw_dst != 0, |w| {
            w.ip4("src", k.ct_nw_src, m.ct_nw_src)?;
            w.ip4("dst", k.ct_nw_dst, m.ct_nw_dst)?;
            w.dec8("proto", k.ct_nw_proto, m.ct_nw_proto)?;
            w.dec16("tp_src", k.ct_tp_src, m.ct_tp_src)?;
            w.dec16("tp_dst", k.ct_tp_dst, m.ct_tp_dst)
        }),
        ethertype::IPV6 => {
            let l3 = m.ct_ipv6_src != [0; 16] || m.ct_ipv6_dst != [0; 16];
            w.attr("ct_tuple6", l3 || l4, |w| {
                w.ip6("src", k.ct_ipv6_src, m.ct_ipv6_src)?;
                w.ip6("dst", k.ct_ipv6_dst, m.ct_ipv6_dst)?;
                w.dec8("proto", k.ct_nw_proto, m.ct_nw_proto)?;
                w.dec16("src_port", k.ct_tp_src, m.ct_tp_src)?;
                w.dec16("dst_port", k.ct_tp_dst, m.ct_tp_dst)
            })
        }
        _ => Ok(()),
    }
}

fn tunnel(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey) -> fmt::Result {
    const KEY: u16 = 1 << 3;
    let has_key = k.tun_id != 0 || k.tun_flags & KEY != 0;
    if has_key {
        let hex = |x: u64| format!("{x:#x}");
        w.field(
            "tun_id",
            m.tun_id == 0,
            m.tun_id == u64::MAX,
            hex(k.tun_id),
            hex(m.tun_id),
        )?;
    }
    if k.tun_src != 0 {
        w.ip4("src", k.tun_src, m.tun_src)?;
    }
    if k.tun_dst != 0 {
        w.ip4("dst", k.tun_dst, m.tun_dst)?;
    }
    if k.tun_ipv6_src != [0; 16] {
        w.ip6("ipv6_src", k.tun_ipv6_src, m.tun_ipv6_src)?;
    }
    if k.tun_ipv6_dst != [0; 16] {
        w.ip6("ipv6_dst", k.tun_ipv6_dst, m.tun_ipv6_dst)?;
    }
    if k.tun_tos != 0 {
        w.hex8("tos", k.tun_tos, m.tun_tos)?;
    }
    w.dec8("ttl", k.tun_ttl, m.tun_ttl)?;
    if k.tun_gbp_id != 0 || k.tun_gbp_flags != 0 {
        w.comma()?;
        w.f.write_str("vxlan(gbp(")?;
        let mut inner = Writer {
            f: w.f,
            verbose: w.verbose,
            first: true,
        };
        inner.dec16("id", k.tun_gbp_id, m.tun_gbp_id)?;
        inner.hex8("flags", k.tun_gbp_flags, m.tun_gbp_flags)?;
        w.f.write_str("))")?;
    }
    if k.tun_present != 0 {
        w.comma()?;
        w.f.write_str("geneve(")?;
        for (class, ty, field) in crate::field::tlv::mapped_options(k.tun_present) {
            let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
            let short = |bytes: &[u8]| match hex(bytes).trim_start_matches('0') {
                "" => "0x0".to_owned(),
                digits => format!("0x{digits}"),
            };
            let (value, mask) = (field.bytes(k), field.bytes(m));
            let (class, ty) = (AltHex(class.into()), AltHex(ty.into()));
            write!(w.f, "{{class={class},type={ty},len={}", value.len())?;
            if w.verbose && !value.is_empty() || mask.iter().any(|b| *b != 0) {
                write!(w.f, ",{}", short(value))?;
                if mask.iter().any(|b| *b != u8::MAX) {
                    write!(w.f, "/{}", short(mask))?;
                }
            }
            w.f.write_char('}')?;
        }
        w.f.write_char(')')?;
    }
    match k.tun_erspan_ver {
        1 => w.attr("erspan", true, |w| {
            w.dec8("ver", k.tun_erspan_ver, m.tun_erspan_ver)?;
            w.comma()?;
            let (idx, mask) = (AltHex(k.tun_erspan_idx.into()), AltHex(m.tun_erspan_idx.into()));
            write!(w.f, "idx={idx}/{mask}")
        })?,
        2 => w.attr("erspan", true, |w| {
            w.dec8("ver", k.tun_erspan_ver, m.tun_erspan_ver)?;
            w.dec8("dir", k.tun_erspan_dir, m.tun_erspan_dir)?;
            w.hex8("hwid", k.tun_erspan_hwid, m.tun_erspan_hwid)
        })?,
        _ => {}
    }
    if k.tun_gtpu_flags != 0 || k.tun_gtpu_msgtype != 0 {
        w.attr("gtpu", true, |w| {
            w.hex8("flags", k.tun_gtpu_flags, m.tun_gtpu_flags)?;
            w.dec8("msgtype", k.tun_gtpu_msgtype, m.tun_gtpu_msgtype)
        })?;
    }
    let key_bit = if has_key { KEY } else { 0 };
    let mask = (m.tun_flags & 0x7) | key_bit;
    let full = m.tun_flags == u16::MAX;
    if w.verbose || mask != 0 {
        let flags = (k.tun_flags & 0x7) | key_bit;
        w.comma()?;
        w.f.write_str("flags(")?;
        let (all, mask) = if full { (0xf, 0xf) } else { (0xf, mask.into()) };
        format_flags(w.f, TUNNEL, flags.into(), mask, all)?;
        w.f.write_char(')')?;
    }
    Ok(())
}

fn l2(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey, vlan_limit: usize, masked: bool) -> fmt::Result {
    if k.packet_type == 0 {
        let counts = m.dl_src != [0; 6] || m.dl_dst != [0; 6];
        w.attr("eth", counts, |w| {
            w.mac("src", k.dl_src, m.dl_src)?;
            w.mac("dst", k.dl_dst, m.dl_dst)
        })?;
        if !counts && !w.verbose && m.packet_type == 0 {
            w.comma()?;
            w.f.write_str("eth()")?;
        }
        return vlan(w, k, m, 0, vlan_limit, masked);
    }
    l2_5(w, k, m, masked)
}

/// Writes the tag at `i` and all headers behind it, or the headers behind the last tag.
fn vlan(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey, i: usize, limit: usize, masked: bool) -> fmt::Result {
    let (Some(tag), Some(tag_m)) = (k.vlans.get(i).filter(|_| i < limit), m.vlans.get(i)) else {
        return l2_5(w, k, m, masked && i == 0);
    };
    // A tag that was cut off left its EtherType in the key.
    let cut = tag.tci == 0 && is_vlan(k.dl_type);
    if tag.tci == 0 && !cut {
        return l2_5(w, k, m, masked && i == 0);
    }
    let tpid = if cut { k.dl_type } else { tag.tpid };
    w.attr("eth_type", true, |w| write!(w.f, "{tpid:#06x}"))?;
    w.attr("vlan", tag_m.tci != 0, |w| tci(w, tag.tci, tag_m.tci))?;
    w.attr("encap", true, |w| {
        if cut {
            Ok(())
        } else {
            vlan(w, k, m, i + 1, limit, masked)
        }
    })
}

fn tci(w: &mut Writer<'_>, v: u16, m: u16) -> fmt::Result {
    let (vid, vid_m) = (v & Vlan::VID_MASK, m & Vlan::VID_MASK);
    let (pcp, pcp_m) = (v >> 13, m >> 13);
    let mask = |m: u16| format!("{m:#x}");
    w.field("vid", vid | vid_m == 0, vid_m == Vlan::VID_MASK, vid, mask(vid_m))?;
    w.field("pcp", pcp | pcp_m == 0, pcp_m == 7, pcp, mask(pcp_m))?;
    if v & Vlan::CFI == 0 {
        w.comma()?;
        w.f.write_str("cfi=0")?;
    }
    Ok(())
}

fn l2_5(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey, masked: bool) -> fmt::Result {
    if k.dl_type < ethertype::MIN {
        // A mask without a value means that a frame has no EtherType.
        if masked {
            w.comma()?;
            w.f.write_str("eth_type(0/0xffff)")?;
        }
        return Ok(());
    }
    w.attr("eth_type", m.dl_type != 0, |w| {
        write!(w.f, "{:#06x}", k.dl_type)?;
        if m.dl_type == u16::MAX {
            Ok(())
        } else {
            write!(w.f, "/{:#06x}", m.dl_type)
        }
    })?;
    match k.dl_type {
        ethertype::IP => w.attr(
            "ipv4",
            m.nw_src | m.nw_dst != 0 || m.nw_proto | m.nw_tos | m.nw_ttl | (m.nw_frag & frag::ANY) != 0,
            |w| {
                w.ip4("src", k.nw_src, m.nw_src)?;
                w.ip4("dst", k.nw_dst, m.nw_dst)?;
                w.dec8("proto", k.nw_proto, m.nw_proto)?;
                w.hex8("tos", k.nw_tos, m.nw_tos)?;
                w.dec8("ttl", k.nw_ttl, m.nw_ttl)?;
                w.frag(k.nw_frag, m.nw_frag)
            },
        )?,
        ethertype::IPV6 => ipv6(w, k, m)?,
        ethertype::ARP | ethertype::RARP => {
            // All ones of the key's eight bits are all ones of the opcode's sixteen, in the value as in the
            // mask.
            let wide = |x: u8| if x == u8::MAX { u16::MAX } else { x.into() };
            let op_m = wide(m.nw_proto);
            let counts = m.nw_src | m.nw_dst != 0 || op_m != 0 || m.arp_sha != [0; 6] || m.arp_tha != [0; 6];
            w.attr("arp", counts, |w| {
                w.ip4("sip", k.nw_src, m.nw_src)?;
                w.ip4("tip", k.nw_dst, m.nw_dst)?;
                w.dec16("op", wide(k.nw_proto), op_m)?;
                w.mac("sha", k.arp_sha, m.arp_sha)?;
                w.mac("tha", k.arp_tha, m.arp_tha)
            })?;
        }
        t if is_mpls(t) => mpls(w, k, m)?,
        ethertype::NSH => w.attr("nsh", m.nsh != Nsh::default(), |w| nsh(w, &k.nsh, &m.nsh))?,
        _ => {}
    }
    l4(w, k, m)
}

fn ipv6(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey) -> fmt::Result {
    let counts = m.ipv6_src != [0; 16]
        || m.ipv6_dst != [0; 16]
        || m.ipv6_label & 0xf_ffff != 0
        || m.nw_proto | m.nw_tos | m.nw_ttl | (m.nw_frag & frag::ANY) != 0;
    w.attr("ipv6", counts, |w| {
        w.ip6("src", k.ipv6_src, m.ipv6_src)?;
        w.ip6("dst", k.ipv6_dst, m.ipv6_dst)?;
        let full = m.ipv6_label & 0xf_ffff == 0xf_ffff;
        let hex = |x: u32| AltHex(x.into());
        w.field(
            "label",
            m.ipv6_label == 0,
            full,
            hex(k.ipv6_label),
            hex(m.ipv6_label),
        )?;
        w.dec8("proto", k.nw_proto, m.nw_proto)?;
        w.hex8("tclass", k.nw_tos, m.nw_tos)?;
        w.dec8("hlimit", k.nw_ttl, m.nw_ttl)?;
        w.frag(k.nw_frag, m.nw_frag)
    })
}

fn l4(w: &mut Writer<'_>, k: &FlowKey, m: &FlowKey) -> fmt::Result {
    let ip = matches!(k.dl_type, ethertype::IP | ethertype::IPV6);
    if !ip || k.nw_frag & frag::LATER != 0 {
        return Ok(());
    }
    let ports = m.tp_src | m.tp_dst != 0;
    let both = |w: &mut Writer<'_>| {
        w.dec16("src", k.tp_src, m.tp_src)?;
        w.dec16("dst", k.tp_dst, m.tp_dst)
    };
    // Types and codes have eight bits; masks of the pipeline may have more.
    let low = |x: u16| (x & 0xff) as u8;
    let icmp = |w: &mut Writer<'_>| {
        w.dec8("type", low(k.tp_src), low(m.tp_src))?;
        w.dec8("code", low(k.tp_dst), low(m.tp_dst))
    };
    match (k.dl_type, k.nw_proto) {
        (_, proto::TCP) => {
            w.attr("tcp", ports, both)?;
            let flags_m = u32::from(m.tcp_flags & 0xfff);
            if k.tcp_flags == 0 && flags_m == 0 {
                return Ok(());
            }
            w.attr("tcp_flags", flags_m != 0, |w| {
                format_flags(w.f, TCP, k.tcp_flags.into(), flags_m, 0xfff)
            })
        }
        (_, proto::UDP) => w.attr("udp", ports, both),
        (_, proto::SCTP) => w.attr("sctp", ports, both),
        (ethertype::IP, proto::ICMP) => w.attr("icmp", ports, icmp),
        (ethertype::IPV6, proto::ICMPV6) => {
            w.attr("icmpv6", ports, icmp)?;
            if !is_nd(k) {
                return Ok(());
            }
            // Fields of neighbour discovery count only where the mask has the whole type.
            let none = FlowKey::default();
            let m = if low(m.tp_src) == 0xff { m } else { &none };
            let counts = m.nd_target != [0; 16] || m.arp_sha != [0; 6] || m.arp_tha != [0; 6];
            w.attr("nd", counts, |w| {
                w.ip6("target", k.nd_target, m.nd_target)?;
                w.mac("sll", k.arp_sha, m.arp_sha)?;
                w.mac("tll", k.arp_tha, m.arp_tha)
            })?;
            // Most messages have neither of these fields: a whole key shows them only if they are not zero.
            let is_there = k.igmp_group != 0 || k.tcp_flags != 0;
            let counts = m.igmp_group != 0 || m.tcp_flags != 0;
            if counts && (is_there || !w.verbose) {
                w.attr("nd_ext", true, |w| {
                    let hex = |x: u32| format!("{x:#x}");
                    let (k32, m32) = (k.igmp_group, m.igmp_group);
                    w.field("nd_reserved", m32 == 0, m32 == u32::MAX, hex(k32), hex(m32))?;
                    w.dec8("nd_options_type", low(k.tcp_flags), low(m.tcp_flags))
                })?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
