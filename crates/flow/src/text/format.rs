//! A match as text: every member of the mask is destructured and shown, in Open vSwitch's order.

use super::DEFAULT_PRIORITY;
use super::flags::{self, format_flags};
use super::ports::{PortNames, format_port};
use super::write::{AltHex, HexBytes, Items};
use crate::field::tlv;
use crate::field::{dl_type, is_ip_any, is_nd};
use crate::key::{FlowKey, FlowMask, Match, N_MPLS, Nsh, Vlan, frag};
use core::fmt::{self, Write};
use heddle_wire::eth::ethertype;
use heddle_wire::ip::proto;
use heddle_wire::nsh::MD_TYPE_1;

const ALL32: u128 = u32::MAX as u128;

/// A match to be written, see [`Match::text`].
#[derive(Clone, Copy)]
pub struct MatchText<'a> {
    pub(super) m: &'a Match,
    pub(super) names: Option<PortNames<'a>>,
    pub(super) priority: i32,
}

impl fmt::Display for MatchText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Items::new(f);
        if self.priority != DEFAULT_PRIORITY {
            out.show("priority", self.priority)?;
        }
        format(&mut out, &self.m.key, &self.m.mask, self.names)
    }
}

fn format(o: &mut Items<'_>, k: &FlowKey, mask: &FlowMask, names: Option<PortNames<'_>>) -> fmt::Result {
    let FlowKey {
        tun_present,
        tun_metadata: _,
        tun_id,
        tun_src,
        tun_dst,
        tun_ipv6_src,
        tun_ipv6_dst,
        tun_flags,
        tun_tos,
        tun_ttl,
        tun_gbp_id,
        tun_gbp_flags,
        tun_gtpu_msgtype,
        tun_erspan_idx,
        tun_erspan_ver,
        tun_erspan_dir,
        tun_erspan_hwid,
        tun_gtpu_flags,
        metadata,
        regs,
        skb_priority,
        pkt_mark,
        dp_hash,
        in_port,
        recirc_id,
        conj_id,
        ct_state,
        ct_mark,
        ct_label,
        ct_nw_src,
        ct_nw_dst,
        ct_ipv6_src,
        ct_ipv6_dst,
        ct_tp_src,
        ct_tp_dst,
        ct_zone,
        ct_nw_proto,
        _pad1,
        actset_output,
        packet_type,
        dl_dst,
        dl_src,
        dl_type: dl_type_mask,
        _pad2,
        vlans,
        mpls_lse,
        _pad3,
        nw_src,
        nw_dst,
        ipv6_src,
        ipv6_dst,
        ipv6_label,
        nw_proto,
        nw_tos,
        nw_ttl,
        nw_frag,
        nd_target,
        arp_sha,
        arp_tha,
        tcp_flags,
        _pad4,
        nsh: nsh_mask,
        tp_src,
        tp_dst,
        igmp_group,
    } = mask.0;

    o.hex("pkt_mark", k.pkt_mark.into(), pkt_mark.into(), ALL32)?;
    o.hex("recirc_id", k.recirc_id.into(), recirc_id.into(), ALL32)?;
    let is_megaflow = recirc_id != 0;
    o.hex("dp_hash", k.dp_hash.into(), dp_hash.into(), ALL32)?;
    if conj_id != 0 {
        o.show("conj_id", k.conj_id)?;
    }
    if skb_priority != 0 {
        o.hex("skb_priority", k.skb_priority.into(), 1, 1)?;
    }
    if actset_output != 0 {
        port(o, "actset_output", k.actset_output, names)?;
    }
    if ct_state != 0 {
        let w = o.item()?;
        w.write_str("ct_state=")?;
        format_flags(w, flags::CT_STATE, k.ct_state, ct_state, 0xff)?;
    }
    o.dec16("ct_zone", k.ct_zone, ct_zone)?;
    o.hex("ct_mark", k.ct_mark.into(), ct_mark.into(), ALL32)?;
    o.hex(
        "ct_label",
        u128::from_be_bytes(k.ct_label),
        u128::from_be_bytes(ct_label),
        u128::MAX,
    )?;
    o.ip4("ct_nw_src", k.ct_nw_src, ct_nw_src)?;
    o.ip6("ct_ipv6_src", k.ct_ipv6_src, ct_ipv6_src)?;
    o.ip4("ct_nw_dst", k.ct_nw_dst, ct_nw_dst)?;
    o.ip6("ct_ipv6_dst", k.ct_ipv6_dst, ct_ipv6_dst)?;
    if ct_nw_proto != 0 {
        o.show("ct_nw_proto", k.ct_nw_proto)?;
        o.dec16("ct_tp_src", k.ct_tp_src, ct_tp_src)?;
        o.dec16("ct_tp_dst", k.ct_tp_dst, ct_tp_dst)?;
    }

    // The packet's type decides which of the fields that share a place are shown. A megaflow's EtherType
    // shows its value even where the mask has none of it, as long as something of it is left.
    let mut ty = k.dl_type;
    if packet_type != 0 && (k.packet_type != 0 || packet_type != u32::MAX || is_megaflow) {
        packet_type_item(o, k.packet_type, packet_type)?;
        if k.packet_type >> 16 == 1 {
            ty = dl_type(k);
        }
    }
    let (type_shown, proto_shown) = if dl_type_mask != 0 {
        protocol(o, ty, k, nw_proto)?
    } else {
        (false, false)
    };

    for (i, (v, m)) in k.regs.iter().zip(regs).enumerate() {
        if m != 0 {
            o.hex(&format!("reg{i}"), (*v).into(), m.into(), ALL32)?;
        }
    }
    o.hex("tun_id", k.tun_id.into(), tun_id.into(), u64::MAX.into())?;
    o.ip4("tun_src", k.tun_src, tun_src)?;
    o.ip4("tun_dst", k.tun_dst, tun_dst)?;
    o.ip6("tun_ipv6_src", k.tun_ipv6_src, tun_ipv6_src)?;
    o.ip6("tun_ipv6_dst", k.tun_ipv6_dst, tun_ipv6_dst)?;
    o.dec16("tun_gbp_id", k.tun_gbp_id, tun_gbp_id)?;
    if tun_gbp_flags != 0 {
        o.hex("tun_gbp_flags", k.tun_gbp_flags.into(), 1, 1)?;
    }
    if tun_tos != 0 {
        o.show("tun_tos", format_args!("{:x}", k.tun_tos))?;
    }
    if tun_ttl != 0 {
        o.show("tun_ttl", k.tun_ttl)?;
    }
    if tun_erspan_ver != 0 {
        o.show("tun_erspan_ver", k.tun_erspan_ver)?;
    }
    if tun_erspan_idx != 0 && k.tun_erspan_ver == 1 {
        o.show("tun_erspan_idx", AltHex(k.tun_erspan_idx.into()))?;
    }
    if tun_erspan_dir != 0 && k.tun_erspan_ver == 2 {
        o.show("tun_erspan_dir", k.tun_erspan_dir)?;
    }
    if tun_erspan_hwid != 0 && k.tun_erspan_ver == 2 {
        o.show("tun_erspan_hwid", AltHex(k.tun_erspan_hwid.into()))?;
    }
    if tun_gtpu_flags != 0 {
        o.show("gtpu_flags", AltHex(k.tun_gtpu_flags.into()))?;
    }
    if tun_gtpu_msgtype != 0 {
        o.show("gtpu_msgtype", k.tun_gtpu_msgtype)?;
    }
    if tun_flags & 0xf != 0 {
        let w = o.item()?;
        w.write_str("tun_flags=")?;
        format_flags(
            w,
            flags::TUNNEL,
            (k.tun_flags & 0xf).into(),
            (tun_flags & 0xf).into(),
            0xf,
        )?;
    }
    tlv_options(o, k, mask, tun_present)?;
    o.hex("metadata", k.metadata.into(), metadata.into(), u64::MAX.into())?;
    if in_port != 0 {
        port(o, "in_port", k.in_port, names)?;
    }
    for (i, (tag, m)) in k.vlans.iter().zip(vlans).enumerate() {
        if m.tci == 0 {
            break;
        }
        vlan(o, i, tag.tci, m.tci)?;
    }
    o.mac("dl_src", k.dl_src, dl_src)?;
    o.mac("dl_dst", k.dl_dst, dl_dst)?;
    if dl_type_mask != 0 && !type_shown {
        o.show("dl_type", format_args!("{ty:#06x}"))?;
    }

    let arp = matches!(ty, ethertype::ARP | ethertype::RARP);
    if ty == ethertype::IPV6 {
        o.ip6("ipv6_src", k.ipv6_src, ipv6_src)?;
        o.ip6("ipv6_dst", k.ipv6_dst, ipv6_dst)?;
        match ipv6_label {
            0 => {}
            u32::MAX => o.show("ipv6_label", format_args!("{:#07x}", k.ipv6_label))?,
            m => o.show("ipv6_label", format_args!("{:#07x}/{m:#07x}", k.ipv6_label))?,
        }
    } else if ty == ethertype::NSH {
        nsh(o, &k.nsh, &nsh_mask)?;
    } else {
        let (src, dst) = if arp {
            ("arp_spa", "arp_tpa")
        } else {
            ("nw_src", "nw_dst")
        };
        o.ip4(src, k.nw_src, nw_src)?;
        o.ip4(dst, k.nw_dst, nw_dst)?;
    }
    if nw_proto != 0 && !proto_shown {
        o.show(if arp { "arp_op" } else { "nw_proto" }, k.nw_proto)?;
    }
    if arp {
        o.mac("arp_sha", k.arp_sha, arp_sha)?;
        o.mac("arp_tha", k.arp_tha, arp_tha)?;
    }
    if nw_tos & 0xfc != 0 {
        o.show("nw_tos", k.nw_tos & 0xfc)?;
    }
    if nw_tos & 3 != 0 {
        o.show("nw_ecn", k.nw_tos & 3)?;
    }
    if nw_ttl != 0 {
        o.show("nw_ttl", k.nw_ttl)?;
    }
    mpls(o, &k.mpls_lse, &mpls_lse)?;
    fragment(o, k.nw_frag, nw_frag)?;

    if ty == ethertype::IP && k.nw_proto == proto::ICMP {
        o.dec16("icmp_type", k.tp_src, tp_src)?;
        o.dec16("icmp_code", k.tp_dst, tp_dst)?;
    } else if ty == ethertype::IPV6 && k.nw_proto == proto::ICMPV6 {
        o.dec16("icmp_type", k.tp_src, tp_src)?;
        o.dec16("icmp_code", k.tp_dst, tp_dst)?;
        // In other messages they are zero, whatever the mask has.
        if is_nd(k) {
            o.ip6("nd_target", k.nd_target, nd_target)?;
            o.mac("nd_sll", k.arp_sha, arp_sha)?;
            o.mac("nd_tll", k.arp_tha, arp_tha)?;
            o.dec32("nd_reserved", k.igmp_group, igmp_group)?;
            o.dec16("nd_options_type", k.tcp_flags, tcp_flags)?;
        }
    } else {
        o.dec16("tp_src", k.tp_src, tp_src)?;
        o.dec16("tp_dst", k.tp_dst, tp_dst)?;
    }
    if is_ip_any(dl_type(k)) && k.nw_proto == proto::TCP && tcp_flags != 0 {
        let w = o.item()?;
        w.write_str("tcp_flags=")?;
        format_flags(
            w,
            flags::TCP,
            k.tcp_flags.into(),
            (tcp_flags & 0xfff).into(),
            0xfff,
        )?;
    }
    Ok(())
}

/// Writes the options of a tunnel that are matched on, if the thread's map has them.
fn tlv_options(o: &mut Items<'_>, k: &FlowKey, mask: &FlowMask, present: u64) -> fmt::Result {
    if present == 0 {
        return Ok(());
    }
    for f in tlv::fields_of(present) {
        let (value, bits) = (f.bytes(k), f.bytes(&mask.0));
        let name = f.name();
        if !f.is_present(k) {
            // The match is on the absence of the option.
            o.word(&format!("{name}=NP"))?;
        } else if bits.iter().all(|b| *b == 0) {
            o.word(name)?;
        } else if bits.iter().all(|b| *b == 0xff) {
            o.show(name, HexBytes(value))?;
        } else {
            o.show(name, format_args!("{}/{}", HexBytes(value), HexBytes(bits)))?;
        }
    }
    Ok(())
}

fn port(o: &mut Items<'_>, name: &str, port: u32, names: Option<PortNames<'_>>) -> fmt::Result {
    let w = o.item()?;
    write!(w, "{name}=")?;
    format_port(w, port, names)
}

fn packet_type_item(o: &mut Items<'_>, v: u32, m: u32) -> fmt::Result {
    packet_type_value(o.item()?, v, m)
}

/// A packet type: `eth`, or its namespace and type.
pub(super) fn packet_type_value(w: &mut dyn Write, v: u32, m: u32) -> fmt::Result {
    if v == 0 && m == u32::MAX {
        return w.write_str("eth");
    }
    w.write_str("packet_type=(")?;
    packet_type_part(w, v >> 16, m >> 16)?;
    w.write_char(',')?;
    packet_type_part(w, v & 0xffff, m & 0xffff)?;
    w.write_char(')')
}

/// Half of a packet type: hexadecimal from ten on.
fn packet_type_part(w: &mut dyn Write, v: u32, m: u32) -> fmt::Result {
    if m == 0 {
        return w.write_char('*');
    }
    if v > 9 {
        write!(w, "{v:#x}")?
    } else {
        write!(w, "{v}")?
    }
    if m == 0xffff { Ok(()) } else { write!(w, "/{m:#x}") }
}

/// Writes the word for EtherType and protocol. Returns whether it covers all of each.
fn protocol(o: &mut Items<'_>, ty: u16, k: &FlowKey, nw_proto: u8) -> Result<(bool, bool), fmt::Error> {
    let known = |name: Option<&'static str>| name.filter(|_| nw_proto != 0);
    let (l3, l4) = match ty {
        ethertype::IP => (
            "ip",
            known(match k.nw_proto {
                proto::ICMP => Some("icmp"),
                proto::TCP => Some("tcp"),
                proto::UDP => Some("udp"),
                proto::SCTP => Some("sctp"),
                _ => None,
            }),
        ),
        ethertype::IPV6 => (
            "ipv6",
            known(match k.nw_proto {
                proto::ICMPV6 => Some("icmp6"),
                proto::TCP => Some("tcp6"),
                proto::UDP => Some("udp6"),
                proto::SCTP => Some("sctp6"),
                _ => None,
            }),
        ),
        ethertype::ARP => ("arp", None),
        ethertype::RARP => ("rarp", None),
        ethertype::MPLS => ("mpls", None),
        ethertype::MPLS_MCAST => ("mplsm", None),
        _ => return Ok((false, false)),
    };
    o.word(l4.unwrap_or(l3))?;
    Ok((true, l4.is_some()))
}

fn vlan(o: &mut Items<'_>, i: usize, tci: u16, m: u16) -> fmt::Result {
    let n = if i == 0 { String::new() } else { i.to_string() };
    let (vid, pcp) = (m & Vlan::VID_MASK, m & Vlan::PCP_MASK);
    let whole = |x, all| x == 0 || x == all;
    if m & tci & Vlan::CFI != 0 && whole(vid, Vlan::VID_MASK) && whole(pcp, Vlan::PCP_MASK) && vid | pcp != 0
    {
        if vid != 0 {
            o.show(&format!("dl_vlan{n}"), tci & Vlan::VID_MASK)?;
        }
        if pcp != 0 {
            o.show(&format!("dl_vlan_pcp{n}"), tci >> 13)?;
        }
        Ok(())
    } else if m == u16::MAX {
        o.show(&format!("vlan_tci{n}"), format_args!("{tci:#06x}"))
    } else {
        o.show(&format!("vlan_tci{n}"), format_args!("{tci:#06x}/{m:#06x}"))
    }
}

fn mpls(o: &mut Items<'_>, lse: &[u32; N_MPLS], m: &[u32; N_MPLS]) -> fmt::Result {
    let (v, m0) = (lse[0], m[0]);
    if m0 >> 12 != 0 {
        o.show("mpls_label", v >> 12)?;
    }
    if m0 >> 9 & 7 != 0 {
        o.show("mpls_tc", v >> 9 & 7)?;
    }
    if m0 & 0xff != 0 {
        o.show("mpls_ttl", v & 0xff)?;
    }
    if m0 & 0x100 != 0 {
        o.show("mpls_bos", v >> 8 & 1)?;
    }
    o.dec32("mpls_lse1", lse[1], m[1])?;
    o.dec32("mpls_lse2", lse[2], m[2])
}

fn nsh(o: &mut Items<'_>, v: &Nsh, m: &Nsh) -> fmt::Result {
    o.dec8("nsh_flags", v.flags, m.flags)?;
    o.dec8("nsh_ttl", v.ttl, m.ttl)?;
    o.dec8("nsh_mdtype", v.mdtype, m.mdtype)?;
    o.dec8("nsh_np", v.np, m.np)?;
    let spi_mask = if m.spi() == u32::MAX >> 8 {
        u32::MAX
    } else {
        m.spi()
    };
    o.plain_hex32("nsh_spi", v.spi(), spi_mask)?;
    o.dec8("nsh_si", v.si(), m.si())?;
    // Metadata of other types has no context words.
    if m.mdtype == u8::MAX && v.mdtype == MD_TYPE_1 {
        let names = ["nsh_c1", "nsh_c2", "nsh_c3", "nsh_c4"];
        for (name, (v, m)) in names.into_iter().zip(v.context().into_iter().zip(m.context())) {
            o.plain_hex32(name, v, m)?;
        }
    }
    Ok(())
}

fn fragment(o: &mut Items<'_>, v: u8, m: u8) -> fmt::Result {
    let (any, later) = (v & frag::ANY != 0, v & frag::LATER != 0);
    let word = match m & frag::MASK {
        0 => return Ok(()),
        frag::ANY if any => "yes",
        frag::ANY => "no",
        frag::LATER if later => "later",
        frag::LATER => "not_later",
        _ => match (any, later) {
            (true, true) => "later",
            (true, false) => "first",
            (false, true) => "<error>",
            (false, false) => "no",
        },
    };
    o.show("nw_frag", word)
}

/// See [`FlowKey::shown`].
pub(super) fn shown(k: &FlowKey) -> Match {
    let mut mask = FlowMask::for_packet(k);
    let m = &mut mask.0;
    // Pipeline fields that are zero are left out.
    let some = |x: u32| if x == 0 { 0 } else { u32::MAX };
    m.in_port = some(k.in_port);
    m.skb_priority = some(k.skb_priority);
    m.pkt_mark = some(k.pkt_mark);
    m.recirc_id = some(k.recirc_id);
    m.dp_hash = some(k.dp_hash);
    m.ct_state = if k.ct_state == 0 { 0 } else { 0xff };
    m.ct_zone = if k.ct_zone == 0 { 0 } else { u16::MAX };
    m.ct_mark = some(k.ct_mark);
    m.ct_label = if k.ct_label == [0; 16] {
        [0; 16]
    } else {
        [0xff; 16]
    };
    m.regs = k.regs.map(some);
    m.metadata = if k.metadata == 0 { 0 } else { u64::MAX };
    if !crate::field::Prereq::Ct.ok_for_match(&Match {
        key: *k,
        mask: FlowMask(*m),
    }) || k.ct_nw_proto == 0
    {
        m.ct_nw_proto = 0;
        m.ct_tp_src = 0;
        m.ct_tp_dst = 0;
        m.ct_nw_src = 0;
        m.ct_nw_dst = 0;
        m.ct_ipv6_src = [0; 16];
        m.ct_ipv6_dst = [0; 16];
    }
    Match { key: *k, mask }
}
