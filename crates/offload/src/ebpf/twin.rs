//! A plain twin of the program: what it does to a packet by a rule. It reads packets with the switch's own
//! parser, and computes checksums anew where the program adjusts them.

use crate::rule::TCP_UP;
use crate::{Ct, Headers, Op, Rule};
use heddle_conntrack::offloaded::Offloadable;
use heddle_conntrack::{Endpoint, Tuple};
use heddle_flow::FlowKey;
use heddle_flow::extract::{Hint, extract};

/// The Internet checksum over these bytes and a sum to begin with.
pub(super) fn checksum(bytes: &[u8], begin: u32) -> u16 {
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
pub(super) fn finish(frame: &mut [u8]) {
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

/// Whether a packet has what a rule asks for.
fn agrees(rule: &Rule, h: &Headers) -> bool {
    let bytes = |h: &Headers| super::layout::packet(h, 0);
    let (key, mask) = (bytes(&rule.key), bytes(&rule.mask));
    let words = bytes(h).into_iter().zip(key).zip(mask);
    words.into_iter().all(|((have, want), m)| (have ^ want) & m == 0)
}

/// The headers of an untagged frame, as the switch and as rules have them.
pub(super) fn read(frame: &[u8]) -> (FlowKey, Headers) {
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

/// What becomes of an untagged frame by a rule that outputs last: its bytes; `None`: it goes up.
pub(super) fn forward(rule: &Rule, frame: &[u8]) -> Option<Vec<u8>> {
    forward_all(std::slice::from_ref(rule), &[], frame).map(|(out, _)| out)
}

/// What a packet carries between stages.
#[derive(Default)]
struct Carried {
    recirc: u32,
    state: u8,
    zone: u16,
    mark: u32,
    label: u128,
}

/// The packet's tuple as it stands in a frame of TCP or UDP.
pub(super) fn tuple(h: &Headers) -> Tuple {
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
    let of = |c: &&Offloadable| c.zone == ct.zone && (c.orig == t || c.reply == t);
    let conn = conns.iter().find(of)?;
    let reply = conn.orig != t;
    if ct.mark.is_some_and(|(v, m)| conn.mark & m != v) {
        return None;
    }
    *c = Carried {
        recirc: c.recirc,
        state: if reply { 0x2a } else { 0x22 },
        zone: ct.zone,
        mark: conn.mark,
        label: conn.label,
    };
    if ct.nat && (conn.snat || conn.dnat) {
        c.state |= if conn.snat == reply { 0x80 } else { 0x40 };
        // It becomes the reverse of what comes back.
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

/// As [`forward`], by rules of several stages and connections; and which rules it passed.
pub(super) fn forward_all(
    rules: &[Rule],
    conns: &[Offloadable],
    frame: &[u8],
) -> Option<(Vec<u8>, Vec<usize>)> {
    let (key, _) = read(frame);
    let v4 = key.dl_type == 0x0800;
    let options = v4 && frame[14] != 0x45;
    let discovery = key.nw_proto == 58 && (133..=137).contains(&key.tp_src);
    let known = matches!((v4, key.nw_proto), (_, 6 | 17) | (true, 1) | (false, 58));
    if options || discovery || !known || key.nw_frag != 0 || key.tcp_flags & TCP_UP != 0 {
        return None;
    }
    let (mut out, mut c, mut passed) = (frame.to_vec(), Carried::default(), Vec::new());
    let l4 = if v4 { 34 } else { 54 };
    'stages: for _ in 0..4 {
        let (_, mut h) = read(&out);
        (h.recirc, h.ct_state, h.ct_zone) = (c.recirc, c.state, c.zone);
        (h.ct_mark, h.ct_label) = (c.mark, c.label.to_be_bytes());
        let at = rules
            .iter()
            .position(|r| r.key.recirc == c.recirc && agrees(r, &h))?;
        passed.push(at);
        for op in &rules[at].ops {
            match op {
                Op::Output(_) => {}
                Op::EthDst(mac) => out[..6].copy_from_slice(mac),
                Op::EthSrc(mac) => out[6..12].copy_from_slice(mac),
                Op::Ipv4Src(a) => out[26..30].copy_from_slice(a),
                Op::Ipv4Dst(a) => out[30..34].copy_from_slice(a),
                Op::Tos { value, mask } if v4 => out[15] = out[15] & !mask | value,
                Op::Tos { value, mask } => {
                    let tos = (out[14] << 4 | out[15] >> 4) & !mask | value;
                    out[14] = 0x60 | tos >> 4;
                    out[15] = tos << 4 | out[15] & 0xf;
                }
                Op::Ttl(ttl) => out[if v4 { 22 } else { 21 }] = *ttl,
                Op::L4Src(p) => out[l4..l4 + 2].copy_from_slice(&p.to_be_bytes()),
                Op::L4Dst(p) => out[l4 + 2..l4 + 4].copy_from_slice(&p.to_be_bytes()),
                Op::Ct(ct) => track(*ct, conns, &mut out, &mut c)?,
                Op::CtClear => {
                    let recirc = c.recirc;
                    c = Carried {
                        recirc,
                        ..Carried::default()
                    };
                }
                Op::Recirc(id) => {
                    c.recirc = *id;
                    continue 'stages;
                }
                Op::PushVlan(_) | Op::PopVlan => unreachable!("not by this twin"),
            }
        }
        finish(&mut out);
        return Some((out, passed));
    }
    None
}
