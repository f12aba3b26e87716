//! Actions that put packets into tunnels and take them out.

use super::PortNames;
use crate::action::{Action, TunnelKey};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) fn action(s: &mut String, a: &Action, _names: PortNames<'_>) {
    match a {
        Action::TunnelPop(port) => _ = write!(s, "tnl_pop({})", port.0),
        Action::TunnelPush(_) => s.push_str("tnl_push"),
        Action::SetTunnel(key) => set_tunnel(s, key),
        _ => {}
    }
}

/// As C's `%#x` prints it: zero has no prefix.
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
            let _ = write!(s, ",0x{}", if short.is_empty() { "0" } else { short });
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
