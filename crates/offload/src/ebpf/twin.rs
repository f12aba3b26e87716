//! A plain twin of the program: applies a rule to a packet. It reads packets with the switch's own parser,
//! and computes checksums anew where the program adjusts them. The workers' code puts packets into tunnels
//! and takes them out.

use crate::more::TCP_UP;
use crate::rule::{TUN_CSUM, TUN_IPV6, TUN_OPTION};
use crate::{Ct, Decap, Headers, Op, Rule};
use heddle_conntrack::offloaded::Offloadable;
use heddle_conntrack::{Endpoint, Tuple};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};
use heddle_flow::field::tlv::{TlvMap, TlvMapping};
use heddle_packet::Packet;
use heddle_tunnel::{Inner, OptionTable, TunnelKind, TunnelPop, TunnelPush};

/// The Internet checksum over these bytes and a sum to begin with.
pub(crate) fn checksum(bytes: &[u8], begin: u32) -> u16 {
    let mut sum = begin;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Writes all checksums of an untagged frame.
pub(crate) fn finish(frame: &mut [u8]) {
    let v4 = frame[12..14] == [8, 0];
    let (addresses, l4, proto) = match v4 {
        true => (26..34, 34, frame[23]),
        false => (22..54, 54, frame[20]),
    };
    if v4 {
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let at = l4
        + match proto {
            6 => 16,
            17 => 6,
            _ => 2,
        };
    frame[at..at + 2].fill(0);
    let len = u32::try_from(frame.len() - l4).unwrap();
    let pseudo = match proto {
        1 => 0,
        _ => u32::from(!checksum(&frame[addresses], 0)) + len + u32::from(proto),
    };
    let sum = match checksum(&frame[l4..], pseudo) {
        0 if proto == 17 => 0xffff,
        sum => sum,
    };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Whether a packet has the fields that a rule matches on.
pub(crate) fn agrees(rule: &Rule, h: &Headers) -> bool {
    let bytes = |h: &Headers| super::layout::packet(h, 0);
    let (key, mask) = (bytes(&rule.key), bytes(&rule.mask));
    let words = bytes(h).into_iter().zip(key).zip(mask);
    words.into_iter().all(|((have, want), m)| (have ^ want) & m == 0)
}

/// The headers of an untagged frame, as the switch and as rules have them.
pub(crate) fn read(frame: &[u8]) -> (FlowKey, Headers) {
    let mut key = FlowKey::default();
    extract(frame, &Hint::ethernet(frame.len()), &mut key);
    let address = |v4: u32, v6: [u8; 16]| match key.dl_type {
        0x0800 => {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&v4.to_be_bytes());
            all
        }
        _ => v6,
    };
    let h = Headers {
        dl_dst: key.dl_dst,
        dl_src: key.dl_src,
        dl_type: key.dl_type,
        vlan: 0,
        nw_proto: key.nw_proto,
        nw_tos: key.nw_tos,
        nw_ttl: key.nw_ttl,
        label: key.ipv6_label,
        tp_src: key.tp_src,
        tp_dst: key.tp_dst,
        src: address(key.nw_src, key.ipv6_src),
        dst: address(key.nw_dst, key.ipv6_dst),
        ..Headers::default()
    };
    (key, h)
}

/// Bytes of an untagged frame after a rule whose last step is an output; `None`: it goes up.
pub(crate) fn forward(rule: &Rule, frame: &[u8]) -> Option<Vec<u8>> {
    forward_all(std::slice::from_ref(rule), &[], frame).map(|(out, _)| out)
}

/// State that a packet carries between stages.
#[derive(Default)]
struct Carried {
    recirc: u32,
    state: u8,
    zone: u16,
    mark: u32,
    label: u128,
    /// Port and fields of the tunnel.
    tunnel: Option<(u32, Headers)>,
}

/// Tuple of a TCP or UDP packet, from its headers.
pub(crate) fn tuple(h: &Headers) -> Tuple {
    let ipv6 = h.dl_type == 0x86dd;
    let end = |a: &[u8; 16], port: u16| Endpoint {
        addr: u128::from_be_bytes(*a) >> if ipv6 { 0 } else { 96 },
        l4: port.into(),
    };
    Tuple {
        src: end(&h.src, h.tp_src),
        dst: end(&h.dst, h.tp_dst),
        proto: h.nw_proto,
        ipv6,
    }
}

/// Tracks a frame. `None`: it goes up.
fn track(ct: Ct, conns: &[Offloadable], out: &mut [u8], c: &mut Carried) -> Option<()> {
    let (_, h) = read(out);
    if c.zone == ct.zone && c.state & 0xc0 != 0 || !matches!(h.nw_proto, 6 | 17) {
        return None;
    }
    let t = tuple(&h);
    let of = |c: &&Offloadable| c.zone == ct.zone && (c.orig == t || c.replied && c.reply == t);
    let conn = conns.iter().find(of)?;
    let reply = conn.orig != t;
    if ct.mark.is_some_and(|(v, m)| conn.mark & m != v) {
        return None;
    }
    *c = Carried {
        recirc: c.recirc,
        state: match (conn.replied, reply) {
            (false, _) => 0x21,
            (true, false) => 0x22,
            (true, true) => 0x2a,
        },
        zone: ct.zone,
        mark: conn.mark,
        label: conn.label,
        tunnel: c.tunnel.take(),
    };
    if ct.nat && (conn.snat || conn.dnat) {
        c.state |= if conn.snat == reply { 0x80 } else { 0x40 };
        // The packet gets the reversed tuple of the other direction.
        let back = if reply { conn.orig } else { conn.reply };
        let (at, n, l4) = if t.ipv6 { (22, 16, 54) } else { (26, 4, 34) };
        for (i, end) in [back.dst, back.src].into_iter().enumerate() {
            let bytes = end.addr.to_be_bytes();
            out[at + i * n..at + (i + 1) * n].copy_from_slice(&bytes[16 - n..]);
            let port = u16::try_from(end.l4).unwrap().to_be_bytes();
            out[l4 + 2 * i..l4 + 2 * i + 2].copy_from_slice(&port);
        }
    }
    Some(())
}

/// An address of a key, as rules have it.
fn address(v4: u32, v6: [u8; 16]) -> [u8; 16] {
    match v6 {
        [0, ..] if v6 == [0; 16] => (u128::from(v4) << 96).to_be_bytes(),
        _ => v6,
    }
}

/// The packet inside a tunnel, and the tunnel's fields. `None`: it goes up.
fn decap(d: Decap, frame: &[u8]) -> Option<(Vec<u8>, Headers)> {
    let mut map = TlvMap::default();
    if let Some((class, ty)) = d.option {
        let (len, index) = (4, 0);
        map.add(
            TlvMapping {
                class,
                ty,
                len,
                index,
            },
            |_| false,
        )
        .unwrap();
    }
    let kind = if d.geneve {
        TunnelKind::Geneve
    } else {
        TunnelKind::Vxlan
    };
    let options = OptionTable::of(&map);
    let (mut p, mut key) = (Packet::from_bytes(frame), FlowKey::default());
    TunnelPop {
        kind,
        port: d.port.0,
        options,
    }
    .apply(&mut p, 14, &mut key)
    .ok()?;
    // Packets that workers take and the program leaves to them: padding, checksums, group policies, control
    // packets, unknown options.
    let csum = key.tun_flags & 4 != 0;
    if csum && !is_exact(p.head()) {
        return None;
    }
    let outer = frame.len() - p.len();
    let v6 = key.tun_ipv6_dst != [0; 16];
    let udp = if v6 { 54 } else { 34 };
    let known = outer - udp == if key.tun_present == 1 { 24 } else { 16 };
    let odd = outer - udp == 24 && frame[udp + 19] != 1;
    let length = u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]);
    if usize::from(length) + udp != frame.len()
        || odd
        || !known
        || key.tun_flags & !4 != 8
        || frame[udp + 8] & 0xf0 != 0
    {
        return None;
    }
    let flag = |has: bool, flag: u8| if has { flag } else { 0 };
    let h = Headers {
        tun_src: address(key.tun_src, key.tun_ipv6_src),
        tun_dst: address(key.tun_dst, key.tun_ipv6_dst),
        tun_id: u32::try_from(key.tun_id).unwrap(),
        tun_opt: key.tun_metadata[..4].try_into().unwrap(),
        tun_tos: key.tun_tos,
        tun_ttl: key.tun_ttl,
        tun_flags: flag(key.tun_present == 1, TUN_OPTION) | flag(csum, TUN_CSUM) | flag(v6, TUN_IPV6),
        ..Headers::default()
    };
    Some((p.to_vec(), h))
}

/// Whether the program recognises a frame, and its checksums are right for its bytes.
fn is_exact(frame: &[u8]) -> bool {
    if !is_known(frame) {
        return false;
    }
    let mut right = frame.to_vec();
    finish(&mut right);
    right == frame
}

/// A frame in a tunnel.
pub(crate) fn encap(push: &TunnelPush, frame: &[u8]) -> Vec<u8> {
    let mut key = FlowKey::default();
    let at = extract(frame, &Hint::ethernet(frame.len()), &mut key);
    let inner = Inner {
        l3: at.l3,
        l4: at.l4,
        proto: key.nw_proto,
    };
    let mut p = Packet::from_bytes(frame);
    push.apply(&mut p, inner, 0).unwrap();
    p.to_vec()
}

/// Whether the program recognises a frame.
fn is_known(frame: &[u8]) -> bool {
    let (key, _) = read(frame);
    let v4 = key.dl_type == 0x0800;
    let options = v4 && frame[14] != 0x45;
    let discovery = key.nw_proto == 58 && (133..=137).contains(&key.tp_src);
    let known = matches!((v4, key.nw_proto), (_, 6 | 17) | (true, 1) | (false, 58));
    !options && !discovery && known && key.nw_frag == 0
}

/// Rewrites a field of an untagged frame; checksums stay as they are.
pub(crate) fn write(op: &Op, out: &mut [u8]) {
    let v4 = out[12..14] == [8, 0];
    let l4 = if v4 { 34 } else { 54 };
    match op {
        Op::EthDst(mac) => out[..6].copy_from_slice(mac),
        Op::EthSrc(mac) => out[6..12].copy_from_slice(mac),
        Op::Ipv4Src(a) => out[26..30].copy_from_slice(a),
        Op::Ipv4Dst(a) => out[30..34].copy_from_slice(a),
        Op::Ipv6Word { at, word } => {
            let at = 22 + 4 * usize::from(*at);
            out[at..at + 4].copy_from_slice(word);
        }
        Op::Tos { value, mask } if v4 => out[15] = out[15] & !mask | value,
        Op::Tos { value, mask } => {
            let tos = (out[14] << 4 | out[15] >> 4) & !mask | value;
            out[14] = 0x60 | tos >> 4;
            out[15] = tos << 4 | out[15] & 0xf;
        }
        Op::Ttl(ttl) => out[if v4 { 22 } else { 21 }] = *ttl,
        Op::L4Src(p) => out[l4..l4 + 2].copy_from_slice(&p.to_be_bytes()),
        Op::L4Dst(p) => out[l4 + 2..l4 + 4].copy_from_slice(&p.to_be_bytes()),
        _ => unreachable!("no step of this twin"),
    }
}

/// Applies rules of several stages, and connections, to a frame. Returns its bytes and the rules that it
/// passed.
pub(crate) fn forward_all(
    rules: &[Rule],
    conns: &[Offloadable],
    frame: &[u8],
) -> Option<(Vec<u8>, Vec<usize>)> {
    let (mut out, mut c, mut passed) = (frame.to_vec(), Carried::default(), Vec::new());
    'stages: for _ in 0..4 {
        if !is_known(&out) {
            return None;
        }
        let (key, mut h) = read(&out);
        let port = c.tunnel.as_ref().map(|(port, tun)| {
            h = Headers {
                tun_src: tun.tun_src,
                tun_dst: tun.tun_dst,
                tun_id: tun.tun_id,
                tun_opt: tun.tun_opt,
                tun_tos: tun.tun_tos,
                tun_ttl: tun.tun_ttl,
                tun_flags: tun.tun_flags,
                ..h
            };
            *port
        });
        (h.recirc, h.ct_state, h.ct_zone) = (c.recirc, c.state, c.zone);
        (h.ct_mark, h.ct_label) = (c.mark, c.label.to_be_bytes());
        let at = rules.iter().position(|r| {
            r.tunnel.then_some(r.in_port.0) == port && r.key.recirc == c.recirc && agrees(r, &h)
        })?;
        let is_edge = key.tcp_flags & TCP_UP != 0;
        let tracks = rules[at].ops.iter().any(|op| matches!(op, Op::Ct(_)));
        if is_edge && (tracks || !rules[at].all_flags) {
            return None;
        }
        passed.push(at);
        for op in &rules[at].ops {
            match op {
                Op::Output(_) => {}
                Op::Ct(ct) => track(*ct, conns, &mut out, &mut c)?,
                Op::CtClear => {
                    c = Carried {
                        recirc: c.recirc,
                        tunnel: c.tunnel.take(),
                        ..Carried::default()
                    };
                }
                Op::Recirc(id) => {
                    c.recirc = *id;
                    continue 'stages;
                }
                Op::Decap(d) => {
                    let (inner, tun) = decap(*d, &out)?;
                    out = inner;
                    c.tunnel = Some((d.port.0, tun));
                    continue 'stages;
                }
                Op::Encap => {
                    finish(&mut out);
                    let push = rules[at].outer.as_ref().expect("the rule has them");
                    return Some((encap(push, &out), passed));
                }
                other => write(other, &mut out),
            }
        }
        finish(&mut out);
        return Some((out, passed));
    }
    None
}
