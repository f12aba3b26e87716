//! Actions and flows as `ovs-appctl dpctl/dump-flows` prints them.
//!
//! The text is an interface: scripts and Open vSwitch's own tests parse it. Masked set actions print only the
//! fields that are written, with `/mask` where not all bits are.

mod ct;
mod encap;
mod tunnel;

use crate::action::{Action, HashAlg, Masked, PortNo};
use heddle_flow::odp::KeyText;
use heddle_flow::{FlowKey, FlowMask, N_VLANS, Vlan};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Returns a port's name, where the user wants names.
pub type PortNames<'a> = Option<&'a dyn Fn(PortNo) -> Option<String>>;

/// A flow's key under its mask; `verbose` (`-m`) also shows bits outside the mask.
pub fn format_key(key: &FlowKey, mask: &FlowMask, verbose: bool, names: PortNames<'_>) -> String {
    let by_number = |no: u32| names.and_then(|n| n(PortNo(no)));
    KeyText {
        key,
        mask: Some(mask),
        verbose,
        names: Some(&by_number),
        vlan_limit: N_VLANS,
    }
    .to_string()
}

/// All of a key.
pub fn format_whole(key: &FlowKey) -> String {
    KeyText {
        key,
        mask: None,
        verbose: false,
        names: None,
        vlan_limit: N_VLANS,
    }
    .to_string()
}

/// The name of a flow: the same for the same key and mask, as `ufid:8-4-4-4-12` digits.
pub fn ufid(key: &FlowKey, mask: &FlowMask) -> String {
    use std::hash::{DefaultHasher, Hasher};
    let half = |seed: u64| {
        let mut h = DefaultHasher::new();
        h.write_u64(seed);
        for (k, m) in key.words().iter().zip(mask.words()) {
            h.write_u64(k & m);
            h.write_u64(*m);
        }
        h.finish()
    };
    let digits = format!("{:016x}{:016x}", half(1), half(2));
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    format!("ufid:{}", parts.join("-"))
}

/// A list of actions; `drop` for an empty one.
pub fn format_actions(actions: &[Action], names: PortNames<'_>) -> String {
    let mut s = String::new();
    // In Open vSwitch no packet waits: in its place it would be dropped, so the action is not shown.
    let shown = actions.iter().filter(|a| !matches!(a, Action::Wait(_)));
    for (i, a) in shown.enumerate() {
        if i > 0 {
            s.push(',');
        }
        action(&mut s, a, names);
    }
    if s.is_empty() {
        s.push_str("drop");
    }
    s
}

/// Appends flags in the form `SFPRU.ECN`.
pub(crate) fn tcp_flags(s: &mut String, flags: u16) {
    const NAMES: [(u16, &str); 12] = [
        (0x002, "S"),
        (0x001, "F"),
        (0x008, "P"),
        (0x004, "R"),
        (0x020, "U"),
        (0x010, "."),
        (0x040, "E"),
        (0x080, "C"),
        (0x100, "N"),
        (0x200, "[200]"),
        (0x400, "[400]"),
        (0x800, "[800]"),
    ];
    for (bit, name) in NAMES {
        if flags & bit != 0 {
            s.push_str(name);
        }
    }
}

/// Collects `name=value/mask` pieces of one set action.
struct Fields(Vec<String>);

impl Fields {
    fn add(&mut self, name: &str, empty: bool, full: bool, value: &str, mask: &str) {
        if !empty {
            self.0.push(if full {
                format!("{name}={value}")
            } else {
                format!("{name}={value}/{mask}")
            });
        }
    }
    fn mac(&mut self, name: &str, m: &Masked<[u8; 6]>) {
        self.add(
            name,
            m.mask == [0; 6],
            m.mask == [0xff; 6],
            &mac(m.value),
            &mac(m.mask),
        );
    }
    fn ip(&mut self, name: &str, m: &Masked<u32>) {
        let (v, k) = (
            Ipv4Addr::from(m.value).to_string(),
            Ipv4Addr::from(m.mask).to_string(),
        );
        self.add(name, m.mask == 0, m.mask == u32::MAX, &v, &k);
    }
    fn ip6(&mut self, name: &str, m: &Masked<[u8; 16]>) {
        let (v, k) = (
            Ipv6Addr::from(m.value).to_string(),
            Ipv6Addr::from(m.mask).to_string(),
        );
        self.add(name, m.mask == [0; 16], m.mask == [0xff; 16], &v, &k);
    }
    fn dec8(&mut self, name: &str, m: &Masked<u8>) {
        self.add(
            name,
            m.mask == 0,
            m.mask == u8::MAX,
            &m.value.to_string(),
            &hex(m.mask.into()),
        );
    }
    fn hex8(&mut self, name: &str, m: &Masked<u8>) {
        self.add(
            name,
            m.mask == 0,
            m.mask == u8::MAX,
            &hex(m.value.into()),
            &hex(m.mask.into()),
        );
    }
    fn dec16(&mut self, name: &str, m: &Masked<u16>) {
        self.add(
            name,
            m.mask == 0,
            m.mask == u16::MAX,
            &m.value.to_string(),
            &hex(m.mask.into()),
        );
    }
    fn put(self, s: &mut String, name: &str) {
        let _ = write!(s, "set({name}({}))", self.0.join(","));
    }
}

/// The number as C's `%#x` prints it: zero has no prefix.
fn hex(v: u32) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

fn mac(m: [u8; 6]) -> String {
    let [a, b, c, d, e, f] = m;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

fn lse(s: &mut String, l: u32) {
    let _ = write!(
        s,
        "label={},tc={},ttl={},bos={}",
        l >> 12,
        l >> 9 & 7,
        l & 0xff,
        l >> 8 & 1
    );
}

fn metadata(s: &mut String, name: &str, m: &Masked<u32>) {
    let _ = match m.mask {
        u32::MAX => write!(s, "set({name}({}))", hex(m.value)),
        k => write!(s, "set({name}({}/{}))", hex(m.value), hex(k)),
    };
}

fn action(s: &mut String, a: &Action, names: PortNames<'_>) {
    let mut f = Fields(Vec::new());
    match a {
        Action::Output(no) => match names.and_then(|n| n(*no)) {
            Some(name) => s.push_str(&name),
            None => _ = write!(s, "{}", no.0),
        },
        Action::Userspace(up) => _ = write!(s, "userspace(pid=0,{})", up.cookie.0.text()),
        Action::SetEth { src, dst } => {
            f.mac("src", src);
            f.mac("dst", dst);
            f.put(s, "eth");
        }
        Action::SetIpv4 { src, dst, tos, ttl } => {
            f.ip("src", src);
            f.ip("dst", dst);
            f.hex8("tos", tos);
            f.dec8("ttl", ttl);
            f.put(s, "ipv4");
        }
        Action::SetIpv6 {
            src,
            dst,
            label,
            tclass,
            hlimit,
        } => {
            f.ip6("src", src);
            f.ip6("dst", dst);
            let (v, k) = (hex(label.value), hex(label.mask));
            f.add(
                "label",
                label.mask == 0,
                label.mask & 0xf_ffff == 0xf_ffff,
                &v,
                &k,
            );
            f.hex8("tclass", tclass);
            f.dec8("hlimit", hlimit);
            f.put(s, "ipv6");
        }
        Action::SetL4 { proto, src, dst } => {
            f.dec16("src", src);
            f.dec16("dst", dst);
            f.put(
                s,
                match proto {
                    17 => "udp",
                    132 => "sctp",
                    _ => "tcp",
                },
            );
        }
        Action::SetIcmp { v6, ty, code } => {
            f.dec8("type", ty);
            f.dec8("code", code);
            f.put(s, if *v6 { "icmpv6" } else { "icmp" });
        }
        Action::SetArp {
            sip,
            tip,
            op,
            sha,
            tha,
        } => {
            f.ip("sip", sip);
            f.ip("tip", tip);
            f.dec16("op", op);
            f.mac("sha", sha);
            f.mac("tha", tha);
            f.put(s, "arp");
        }
        Action::SetNd { target, sll, tll } => {
            f.ip6("target", target);
            f.mac("sll", sll);
            f.mac("tll", tll);
            f.put(s, "nd");
        }
        Action::SetNdExt { reserved, option } => {
            f.add(
                "nd_reserved",
                reserved.mask == 0,
                reserved.mask == u32::MAX,
                &format!("{:#x}", reserved.value),
                &format!("{:#x}", reserved.mask),
            );
            f.dec8("nd_options_type", option);
            f.put(s, "nd_ext");
        }
        Action::SetPriority(m) => metadata(s, "skb_priority", m),
        Action::SetMark(m) => metadata(s, "skb_mark", m),
        Action::PushVlan { tpid, tci } => {
            s.push_str("push_vlan(");
            if *tpid != 0x8100 {
                let _ = write!(s, "tpid=0x{tpid:04x},");
            }
            let v = Vlan {
                tpid: *tpid,
                tci: *tci,
            };
            let _ = write!(s, "vid={},pcp={}", v.vid(), v.pcp());
            s.push_str(if v.present() { ")" } else { ",cfi=0)" });
        }
        Action::PopVlan => s.push_str("pop_vlan"),
        Action::PushMpls { lse: l, ethertype } => {
            s.push_str("push_mpls(");
            lse(s, *l);
            let _ = write!(s, ",eth_type=0x{ethertype:x})");
        }
        Action::PopMpls { ethertype } => _ = write!(s, "pop_mpls(eth_type=0x{ethertype:x})"),
        Action::SetMpls(m) if m.mask == u32::MAX => {
            s.push_str("set(mpls(");
            lse(s, m.value);
            s.push_str("))");
        }
        Action::SetMpls(Masked { value: v, mask: k }) => {
            let part = |x: &u32| (x >> 12, x >> 9 & 7, x & 0xff, x >> 8 & 1);
            let ((l, c, t, b), (lm, cm, tm, bm)) = (part(v), part(k));
            let _ = write!(
                s,
                "set(mpls(label={l}/{lm:#x},tc={c}/{cm:x},ttl={t}/{tm:#x},bos={b}/{bm:x}))"
            );
        }
        Action::AddMpls { .. }
        | Action::PushEth { .. }
        | Action::PopEth
        | Action::PushNsh(_)
        | Action::PopNsh
        | Action::SetNsh(_) => encap::action(s, a),
        Action::Trunc(n) => _ = write!(s, "trunc({n})"),
        Action::Clone(inner) => {
            s.push_str("clone(");
            s.push_str(&format_actions(inner, names));
            s.push(')');
        }
        Action::Sample { probability, actions } => {
            let percent = 100.0 * f64::from(*probability) / f64::from(u32::MAX);
            let _ = write!(s, "sample(sample={percent:.1}%,actions(");
            s.push_str(&format_actions(actions, names));
            s.push_str("))");
        }
        Action::Meter(m) => _ = write!(s, "meter({})", m.id),
        Action::Hash { alg, basis } => {
            let name = match alg {
                HashAlg::L4 => "l4",
                HashAlg::SymL4 => "sym_l4",
            };
            let _ = write!(s, "hash({name}({basis}))");
        }
        Action::LbOutput(table) => _ = write!(s, "lb_output({})", table.id),
        Action::Recirc(id) => _ = write!(s, "recirc({})", hex(*id)),
        Action::CheckPktLen {
            len,
            greater,
            less_equal,
        } => {
            let _ = write!(s, "check_pkt_len(size={len},gt(");
            s.push_str(&format_actions(greater, names));
            s.push_str("),le(");
            s.push_str(&format_actions(less_equal, names));
            s.push_str("))");
        }
        Action::Ct(_) | Action::CtClear => ct::action(s, a),
        Action::TunnelPush(_) | Action::TunnelPop(_) | Action::SetTunnel(_) => tunnel::action(s, a, names),
        Action::Wait(_) => {}
        Action::TooBig { frame_len } => _ = write!(s, "icmp_too_big(size={frame_len})"),
        Action::Drop(_) => s.push_str("drop"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full<T: Copy>(value: T, mask: T) -> Masked<T> {
        Masked { value, mask }
    }

    #[test]
    fn a_name_is_of_what_counts() {
        let mut mask = FlowMask::default();
        mask.0.nw_src = 0xff00;
        let name = |nw_src| {
            ufid(
                &FlowKey {
                    nw_src,
                    ..FlowKey::default()
                },
                &mask,
            )
        };
        assert_eq!(name(0x1234), name(0x1299));
        assert_ne!(name(0x1234), name(0x2234));
        assert_eq!(
            name(0).split('-').map(str::len).collect::<Vec<_>>(),
            [13, 4, 4, 4, 12]
        );
    }

    #[test]
    fn as_open_vswitch_prints_them() {
        let none = Masked::default();
        let cases: Vec<(Vec<Action>, &str)> = vec![
            (vec![], "drop"),
            (
                vec![
                    Action::SetIpv4 {
                        src: full(0x0102_0304, u32::MAX),
                        dst: none,
                        tos: full(0, 0xfc),
                        ttl: full(63, 255),
                    },
                    Action::PushVlan {
                        tpid: 0x8100,
                        tci: 0x1005,
                    },
                    Action::Output(PortNo(2)),
                ],
                "set(ipv4(src=1.2.3.4,tos=0/0xfc,ttl=63)),push_vlan(vid=5,pcp=0),2",
            ),
            (
                vec![Action::PushVlan {
                    tpid: 0x88a8,
                    tci: 0xf007,
                }],
                "push_vlan(tpid=0x88a8,vid=7,pcp=7)",
            ),
            (
                vec![Action::Trunc(100), Action::Output(PortNo(3))],
                "trunc(100),3",
            ),
            (
                vec![Action::Clone(vec![Action::PopVlan, Action::Output(PortNo(1))])],
                "clone(pop_vlan,1)",
            ),
            (
                vec![Action::SetEth {
                    src: full([0xaa; 6], [0xff; 6]),
                    dst: full([1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]),
                }],
                "set(eth(src=aa:aa:aa:aa:aa:aa,dst=01:00:00:00:00:00/01:00:00:00:00:00))",
            ),
            (
                vec![Action::SetL4 {
                    proto: 17,
                    src: Masked::default(),
                    dst: full(53, 0xffff),
                }],
                "set(udp(dst=53))",
            ),
            (
                vec![Action::PushMpls {
                    lse: (10 << 12) | (1 << 8) | 64,
                    ethertype: 0x8847,
                }],
                "push_mpls(label=10,tc=0,ttl=64,bos=1,eth_type=0x8847)",
            ),
            (
                vec![
                    Action::SetMark(full(5, u32::MAX)),
                    Action::SetPriority(full(0x10, 0xf0)),
                ],
                "set(skb_mark(0x5)),set(skb_priority(0x10/0xf0))",
            ),
        ];
        for (actions, text) in cases {
            assert_eq!(format_actions(&actions, None), text);
        }
    }
}
