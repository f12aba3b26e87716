//! Actions that put packets into tunnels and take them out.

use super::PortNames;
use crate::action::{Action, PortNo, TunnelKey};
use heddle_tunnel::{TunnelKind, TunnelPush};
use heddle_wire::eth::Ethernet;
use heddle_wire::ip::{Ipv4, Ipv6};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::split;
use heddle_wire::tunnel::{Erspan, Erspan2, Geneve, Gre, Gtpu, Srh, Stt, Vxlan};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) fn action(s: &mut String, a: &Action, names: PortNames<'_>) {
    match a {
        Action::TunnelPop(pop) => _ = write!(s, "tnl_pop({})", name(pop.port, names)),
        Action::TunnelPush(push) => tnl_push(s, push, names),
        Action::SetTunnel(key) => set_tunnel(s, key),
        _ => {}
    }
}

fn name(port: u32, names: PortNames<'_>) -> String {
    names
        .and_then(|f| f(PortNo(port)))
        .unwrap_or_else(|| port.to_string())
}

fn tnl_push(s: &mut String, push: &TunnelPush, names: PortNames<'_>) {
    let _ = write!(s, "tnl_push(tnl_port({}),", name(push.tunnel_port, names));
    // A template has all the headers of its kind.
    let headers = headers(push).unwrap_or_default();
    let _ = write!(s, "{headers},out_port({}))", name(push.out_port, names));
}

/// Numbers of tunnel types as a kernel's interface has them (`OVS_VPORT_TYPE_*`).
fn kind_number(kind: TunnelKind, v6: bool) -> u32 {
    match (kind, v6) {
        (TunnelKind::Gre, false) => 3,
        (TunnelKind::Vxlan, _) => 4,
        (TunnelKind::Geneve, _) => 5,
        (TunnelKind::Stt, _) => 106,
        (TunnelKind::Erspan, false) => 107,
        (TunnelKind::Erspan, true) => 108,
        (TunnelKind::Gre, true) => 109,
        (TunnelKind::Gtpu, _) => 110,
        (TunnelKind::Srv6, _) => 112,
    }
}

fn headers(push: &TunnelPush) -> Option<String> {
    let (eth, _) = split::<Ethernet>(&push.header)?;
    let (l3, l4) = push.offsets();
    let (l3, l4) = (push.header.get(l3.into()..)?, push.header.get(l4.into()..)?);
    let v6 = l3.first()? >> 4 == 6;
    let mac = |m: [u8; 6]| m.map(|b| format!("{b:02x}")).join(":");
    let ethernet = format!(
        "header(size={},type={},eth(dst={},src={},dl_type={:#06x}),",
        push.header.len(),
        kind_number(push.kind, v6),
        mac(eth.dst),
        mac(eth.src),
        eth.ethertype.get()
    );
    let ip = if v6 {
        let (ip, _) = split::<Ipv6>(l3)?;
        format!(
            "ipv6(src={},dst={},label={},proto={},tclass={:#x},hlimit={}),",
            Ipv6Addr::from(ip.src),
            Ipv6Addr::from(ip.dst),
            ip.label(),
            ip.next,
            ip.traffic_class(),
            ip.hop_limit
        )
    } else {
        let (ip, _) = split::<Ipv4>(l3)?;
        format!(
            "ipv4(src={},dst={},proto={},tos={},ttl={},frag={:#x}),",
            Ipv4Addr::from(ip.src.get()),
            Ipv4Addr::from(ip.dst.get()),
            ip.proto,
            hex(ip.tos),
            ip.ttl,
            ip.frag.get()
        )
    };
    Some(ethernet + &ip + &shim(push, l4)? + ")")
}

/// The header behind the IP header.
fn shim(push: &TunnelPush, l4: &[u8]) -> Option<String> {
    let udp = |behind: &dyn Fn(&[u8]) -> Option<String>| {
        let (udp, rest) = split::<Udp>(l4)?;
        // Zero means that there is none.
        let csum = if push.csum { 0xffff } else { 0 };
        let behind = behind(rest)?;
        Some(format!(
            "udp(src=0,dst={},csum={csum:#x}),{behind}",
            udp.dst.get()
        ))
    };
    match push.kind {
        TunnelKind::Vxlan => udp(&|rest| {
            let (v, _) = split::<Vxlan>(rest)?;
            Some(format!(
                "vxlan(flags={:#x},vni={:#x})",
                v.flags.get(),
                v.vni.get() >> 8
            ))
        }),
        TunnelKind::Geneve => udp(&|rest| {
            let (g, options) = split::<Geneve>(rest)?;
            let flag = |bit, text| if g.flags & bit != 0 { text } else { "" };
            let oam = flag(Geneve::OAM, "oam,");
            let critical = flag(Geneve::CRITICAL, "crit,");
            let options = match options {
                [] => String::new(),
                options => format!(",options({})", geneve_options(options)),
            };
            Some(format!(
                "geneve({oam}{critical}vni={:#x}{options})",
                g.vni.get() >> 8
            ))
        }),
        TunnelKind::Gtpu => udp(&|rest| {
            let (g, _) = split::<Gtpu>(rest)?;
            let teid = g.teid.get();
            Some(format!(
                "gtpu(flags={:#x},msgtype={},teid={teid:#x})",
                g.flags, g.message
            ))
        }),
        TunnelKind::Gre => {
            let (g, rest) = split::<Gre>(l4)?;
            let (flags, mut words) = (g.flags.get(), rest.as_chunks::<4>().0.iter());
            let mut s = format!("gre((flags={flags:#x},proto={:#x})", g.proto.get());
            for (bit, name) in [(Gre::CSUM, "csum"), (Gre::KEY, "key"), (Gre::SEQ, "seq")] {
                if flags & bit != 0 {
                    let _ = write!(s, ",{name}={:#x}", u32::from_be_bytes(*words.next()?));
                }
            }
            Some(s + ")")
        }
        TunnelKind::Erspan => {
            let (e, rest) = split::<Erspan>(l4.get(Gre::len_of(Gre::SEQ)..)?)?;
            let sid = e.session.get() & 0x3ff;
            Some(match e.ver_vlan.get() >> 12 {
                1 => {
                    let index = u32::from_be_bytes(*rest.first_chunk()?);
                    format!("erspan(ver=1,sid={sid:#x},idx={index:#x})")
                }
                _ => {
                    let flags = split::<Erspan2>(rest)?.0.flags.get();
                    let (dir, hwid) = (flags >> 3 & 1, flags >> 4 & 0x3f);
                    format!("erspan(ver=2,sid={sid:#x},dir={dir},hwid={hwid:#x})")
                }
            })
        }
        TunnelKind::Srv6 => {
            let (h, rest) = split::<Srh>(l4)?;
            let segments: Vec<String> = rest
                .as_chunks::<16>()
                .0
                .iter()
                .map(|s| Ipv6Addr::from(*s).to_string())
                .collect();
            let segments = segments.join(",");
            Some(format!("srv6(segments_left={},segs({segments}))", h.left))
        }
        TunnelKind::Stt => {
            let (tcp, rest) = split::<Tcp>(l4)?;
            let (stt, _) = split::<Stt>(rest)?;
            let (src, dst) = (tcp.src.get(), tcp.dst.get());
            Some(format!("tcp(src={src},dst={dst}),stt(key={:#x})", stt.key.get()))
        }
    }
}

/// The number as C's `%#x` prints it: zero has no prefix.
fn hex(v: impl Into<u64>) -> String {
    match v.into() {
        0 => "0".to_owned(),
        v => format!("{v:#x}"),
    }
}

fn set_tunnel(s: &mut String, t: &TunnelKey) {
    const DF: u16 = 1 << 1;
    const CSUM: u16 = 1 << 2;
    const KEY: u16 = 1 << 3;
    let k = &t.key;
    let mut all: Vec<String> = Vec::new();
    if k.tun_id != 0 || k.tun_flags & KEY != 0 {
        all.push(format!("tun_id={:#x}", k.tun_id));
    }
    for (name, ip) in [("src", k.tun_src), ("dst", k.tun_dst)] {
        if ip != 0 {
            all.push(format!("{name}={}", Ipv4Addr::from(ip)));
        }
    }
    for (name, ip) in [("ipv6_src", k.tun_ipv6_src), ("ipv6_dst", k.tun_ipv6_dst)] {
        if ip != [0; 16] {
            all.push(format!("{name}={}", Ipv6Addr::from(ip)));
        }
    }
    if k.tun_tos != 0 {
        all.push(format!("tos={}", hex(k.tun_tos)));
    }
    all.push(format!("ttl={}", k.tun_ttl));
    if t.tp_dst != 0 {
        all.push(format!("tp_dst={}", t.tp_dst));
    }
    if k.tun_gbp_id != 0 || k.tun_gbp_flags != 0 {
        all.push(format!(
            "vxlan(gbp(id={},flags={}))",
            k.tun_gbp_id,
            hex(k.tun_gbp_flags)
        ));
    }
    if !t.options.is_empty() {
        all.push(format!("geneve({})", geneve_options(&t.options)));
    }
    match k.tun_erspan_ver {
        1 => all.push(format!("erspan(ver=1,idx={})", hex(k.tun_erspan_idx))),
        2 => all.push(format!(
            "erspan(ver=2,dir={},hwid={})",
            k.tun_erspan_dir,
            hex(k.tun_erspan_hwid)
        )),
        _ => {}
    }
    if k.tun_gtpu_flags != 0 || k.tun_gtpu_msgtype != 0 {
        all.push(format!(
            "gtpu(flags={},msgtype={})",
            hex(k.tun_gtpu_flags),
            k.tun_gtpu_msgtype
        ));
    }
    let flags = [(DF, "df"), (CSUM, "csum"), (KEY, "key")];
    let set: Vec<&str> = flags
        .iter()
        .filter(|(bit, _)| k.tun_flags & bit != 0)
        .map(|(_, n)| *n)
        .collect();
    all.push(format!("flags({})", set.join("|")));
    let _ = write!(s, "set(tunnel({}))", all.join(","));
}

/// Options of Geneve (RFC 8926, 3.5), each in braces.
fn geneve_options(mut bytes: &[u8]) -> String {
    let mut s = String::new();
    while let [c0, c1, ty, words, rest @ ..] = bytes {
        let class = u16::from_be_bytes([*c0, *c1]);
        let len = usize::from(words & 0x1f) * 4;
        let (value, next) = rest.split_at(len.min(rest.len()));
        let _ = write!(s, "{{class={},type={},len={len}", hex(class), hex(*ty));
        if len != 0 {
            let digits: String = value.iter().map(|b| format!("{b:02x}")).collect();
            let short = digits.trim_start_matches('0');
            let prefix = if short.is_empty() { "0" } else { "0x" };
            let _ = write!(s, ",{prefix}{short}");
        }
        s.push('}');
        bytes = next;
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_flow::FlowKey;
    use std::sync::Arc;

    fn text(key: FlowKey, tp_dst: u16, options: &[u8]) -> String {
        let options = options.to_vec();
        let action = Action::SetTunnel(Arc::new(TunnelKey { key, tp_dst, options }));
        crate::format::format_actions(&[action], None)
    }

    #[test]
    fn a_tunnel_is_shown_as_open_vswitch_shows_it() {
        let plain = FlowKey {
            tun_dst: 0x0101_0101,
            tun_ttl: 64,
            tun_flags: 2,
            ..FlowKey::default()
        };
        assert_eq!(text(plain, 0, &[]), "set(tunnel(dst=1.1.1.1,ttl=64,flags(df)))");
        let erspan = FlowKey {
            tun_id: 1,
            tun_flags: 10,
            tun_erspan_ver: 1,
            tun_erspan_idx: 7,
            ..plain
        };
        assert_eq!(
            text(erspan, 0, &[]),
            "set(tunnel(tun_id=0x1,dst=1.1.1.1,ttl=64,erspan(ver=1,idx=0x7),flags(df|key)))"
        );
        let options = [0xff, 0xff, 0, 1, 0x11, 0x11, 0x22, 0x22, 0xff, 0xff, 1, 0];
        assert_eq!(
            text(plain, 6081, &options),
            "set(tunnel(dst=1.1.1.1,ttl=64,tp_dst=6081,\
             geneve({class=0xffff,type=0,len=4,0x11112222}{class=0xffff,type=0x1,len=0}),flags(df)))"
        );
    }
}
