//! Extensions with more than a word and a number, as text.

use super::format::{ActionsText, Hex, format_port};
use crate::action::{
    Bundle, Ct, CtZone, Encap, EncapProperty, FieldValue, Learn, LearnDst, LearnSpec, LearnSrc, Multipath,
    Nat, NatAddresses, NatDirection, ObservationId, Port, Sample, SampleDirection, Subfield, packet_type,
};
use core::fmt::{self, Formatter, Write};
use heddle_flow::text::{PortNames, format_value};

type Names<'a> = Option<PortNames<'a>>;

/// Parts with commas between them.
fn joined(f: &mut Formatter<'_>, name: &str, parts: &[String]) -> fmt::Result {
    write!(f, "{name}({})", parts.join(","))
}

pub(super) fn learn(f: &mut Formatter<'_>, l: &Learn) -> fmt::Result {
    let mut parts = vec![format!("table={}", l.table)];
    let mut option = |on: bool, s: String| {
        if on {
            parts.push(s);
        }
    };
    option(l.idle_timeout != 0, format!("idle_timeout={}", l.idle_timeout));
    option(l.hard_timeout != 0, format!("hard_timeout={}", l.hard_timeout));
    option(
        l.fin_idle_timeout != 0,
        format!("fin_idle_timeout={}", l.fin_idle_timeout),
    );
    option(
        l.fin_hard_timeout != 0,
        format!("fin_hard_timeout={}", l.fin_hard_timeout),
    );
    option(l.priority != 0x8000, format!("priority={}", l.priority));
    option(l.send_flow_rem, "send_flow_rem".into());
    option(l.delete_learned, "delete_learned".into());
    option(l.cookie != 0, format!("cookie={:#x}", l.cookie));
    option(l.limit != 0, format!("limit={}", l.limit));
    if let Some(dst) = l.result_dst {
        parts.push(format!("result_dst={}", Bits(dst)));
    }
    parts.extend(l.specs.iter().map(|s| Spec(s).to_string()));
    joined(f, "learn", &parts)
}

struct Spec<'a>(&'a LearnSpec);

impl fmt::Display for Spec<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.0.src, self.0.dst) {
            (LearnSrc::Value(v), LearnDst::Match(d)) if d == Subfield::all(d.field) => {
                write!(f, "{}=", d.field.name())?;
                format_value(f, d.field, v, None, None)
            }
            (LearnSrc::Value(v), LearnDst::Match(d)) => write!(f, "{}={}", Bits(d), Hex128(v)),
            (LearnSrc::Value(v), LearnDst::Load(d)) => write!(f, "load:{}->{}", Hex128(v), Bits(d)),
            (LearnSrc::Field(s), LearnDst::Match(d)) if (s.field, s.ofs) == (d.field, d.ofs) => {
                write!(f, "{}", Bits(d))
            }
            (LearnSrc::Field(s), LearnDst::Match(d)) => write!(f, "{}={}", Bits(d), Bits(s)),
            (LearnSrc::Field(s), LearnDst::Load(d)) => write!(f, "load:{}->{}", Bits(s), Bits(d)),
            (LearnSrc::Field(s), LearnDst::Output) => write!(f, "output:{}", Bits(s)),
            // Neither a peer nor a text can make this combination.
            (LearnSrc::Value(v), LearnDst::Output) => write!(f, "output:{}", Hex128(v)),
        }
    }
}

/// A subfield that may exceed its field, as the check of the action comes later.
struct Bits(Subfield);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Bits(s) = self;
        if s.is_valid() {
            s.fmt(f)
        } else {
            write!(f, "{}[{}+{}]", s.field.name(), s.ofs, s.n_bits)
        }
    }
}

/// A value as one hexadecimal number; `0` for zero.
struct Hex128(FieldValue);

impl fmt::Display for Hex128 {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.as_u128() {
            0 => f.write_char('0'),
            v => write!(f, "{v:#x}"),
        }
    }
}

pub(super) fn multipath(f: &mut Formatter<'_>, m: &Multipath) -> fmt::Result {
    write!(
        f,
        "multipath({},{},{},{},{},{})",
        m.fields.name(),
        m.basis,
        m.algorithm.name(),
        u32::from(m.max_link) + 1,
        m.arg,
        m.dst
    )
}

pub(super) fn bundle(f: &mut Formatter<'_>, b: &Bundle, names: Names<'_>) -> fmt::Result {
    let name = if b.dst.is_some() { "bundle_load" } else { "bundle" };
    write!(
        f,
        "{name}({},{},{},ofport,",
        b.fields.name(),
        b.basis,
        b.algorithm.name()
    )?;
    if let Some(dst) = b.dst {
        write!(f, "{dst},")?;
    }
    f.write_str("members:")?;
    for (n, port) in b.members.iter().enumerate() {
        if n > 0 {
            f.write_char(',')?;
        }
        format_port(f, *port, names)?;
    }
    f.write_char(')')
}

pub(super) fn fin_timeout(f: &mut Formatter<'_>, idle: u16, hard: u16) -> fmt::Result {
    let mut parts = Vec::new();
    if idle != 0 {
        parts.push(format!("idle_timeout={idle}"));
    }
    if hard != 0 {
        parts.push(format!("hard_timeout={hard}"));
    }
    joined(f, "fin_timeout", &parts)
}

pub(super) fn sample(f: &mut Formatter<'_>, s: &Sample, names: Names<'_>) -> fmt::Result {
    write!(
        f,
        "sample(probability={},collector_set_id={}",
        s.probability, s.collector_set_id
    )?;
    for (key, id) in [("domain", s.obs_domain_id), ("point", s.obs_point_id)] {
        match id {
            ObservationId::Value(value) => write!(f, ",obs_{key}_id={value}")?,
            ObservationId::Field(src) => write!(f, ",obs_{key}_id={src}")?,
        }
    }
    if s.sampling_port != Port::NONE {
        f.write_str(",sampling_port=")?;
        format_port(f, s.sampling_port, names)?;
    }
    f.write_str(match s.direction {
        SampleDirection::Default => ")",
        SampleDirection::Ingress => ",ingress)",
        SampleDirection::Egress => ",egress)",
    })
}

pub(super) fn encap(f: &mut Formatter<'_>, e: &Encap) -> fmt::Result {
    f.write_str(match e.packet_type {
        packet_type::ETHERNET => "encap(ethernet",
        packet_type::NSH => "encap(nsh",
        packet_type::MPLS => "encap(mpls",
        _ => "encap(mpls_mc",
    })?;
    for (n, p) in e.properties.iter().enumerate() {
        f.write_char(if n == 0 { '(' } else { ',' })?;
        match p {
            EncapProperty::NshMdType(ty) => write!(f, "md_type={ty}")?,
            EncapProperty::NshTlv { class, ty, data } => {
                let hex: String = data.iter().map(|b| format!("{b:02x}")).collect();
                match hex.trim_start_matches('0') {
                    "" => write!(f, "tlv(0x{class:04x},{ty},0)")?,
                    digits => write!(f, "tlv(0x{class:04x},{ty},0x{digits})")?,
                }
            }
        }
    }
    f.write_str(if e.properties.is_empty() { ")" } else { "))" })
}

pub(super) fn decap(f: &mut Formatter<'_>, ty: u32) -> fmt::Result {
    if ty == packet_type::NEXT {
        return f.write_str("decap()");
    }
    write!(
        f,
        "decap(packet_type(ns={},type={}))",
        ty >> 16,
        Hex((ty & 0xffff).into())
    )
}

pub(super) fn ct(f: &mut Formatter<'_>, ct: &Ct, names: Names<'_>) -> fmt::Result {
    let mut parts = Vec::new();
    if ct.commit {
        parts.push("commit".to_owned());
    }
    if ct.force {
        parts.push("force".to_owned());
    }
    if let Some(table) = ct.table {
        parts.push(format!("table={table}"));
    }
    match ct.zone {
        CtZone::Number(0) => {}
        CtZone::Number(n) => parts.push(format!("zone={n}")),
        CtZone::Field(src) => parts.push(format!("zone={src}")),
    }
    let exec = match ct.actions.split_first() {
        Some((nat @ crate::Action::Nat(_), rest)) => {
            parts.push(nat.to_string());
            rest
        }
        _ => &ct.actions,
    };
    if !exec.is_empty() {
        parts.push(format!("exec({})", ActionsText { actions: exec, names }));
    }
    match ct.alg {
        0 => {}
        21 => parts.push("alg=ftp".to_owned()),
        69 => parts.push("alg=tftp".to_owned()),
        n => parts.push(format!("alg={n}")),
    }
    joined(f, "ct", &parts)
}

pub(super) fn nat(f: &mut Formatter<'_>, n: &Nat) -> fmt::Result {
    let Some(direction) = n.direction else {
        return f.write_str("nat");
    };
    f.write_str(match direction {
        NatDirection::Src => "nat(src",
        NatDirection::Dst => "nat(dst",
    })?;
    let has_port = n.ports.is_some();
    match n.addresses {
        NatAddresses::None => return f.write_char(')'),
        NatAddresses::V4(min, max) => {
            write!(f, "={min}")?;
            if let Some(max) = max.filter(|max| *max != min) {
                write!(f, "-{max}")?;
            }
        }
        NatAddresses::V6(min, max) => {
            let (open, close) = if has_port { ("[", "]") } else { ("", "") };
            write!(f, "={open}{min}{close}")?;
            if let Some(max) = max.filter(|max| *max != min) {
                write!(f, "-{open}{max}{close}")?;
            }
        }
    }
    if let Some((min, max)) = n.ports {
        write!(f, ":{min}")?;
        if let Some(max) = max.filter(|max| *max != 0 && *max != min) {
            write!(f, "-{max}")?;
        }
    }
    for (on, name) in [
        (n.persistent, "persistent"),
        (n.hash, "hash"),
        (n.random, "random"),
    ] {
        if on {
            write!(f, ",{name}")?;
        }
    }
    f.write_char(')')
}
