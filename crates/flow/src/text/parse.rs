//! Texts read: `name=value` and `name` items, separated by commas and blanks.

use super::ports::PortNumbers;
use super::value::{parse_int, parse_value};
use crate::field::{FieldId, FieldValue, Prereq, Subfield};
use crate::key::{FlowKey, Match};

/// A word that stands for an EtherType and perhaps an IP protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protocol {
    /// The word.
    pub name: &'static str,
    /// EtherType.
    pub dl_type: u16,
    /// IP protocol; 0 for any.
    pub nw_proto: u8,
}

const fn p(name: &'static str, dl_type: u16, nw_proto: u8) -> Protocol {
    Protocol {
        name,
        dl_type,
        nw_proto,
    }
}

/// The words that stand for protocols.
pub const PROTOCOLS: &[Protocol] = &[
    p("ip", 0x0800, 0),
    p("ipv4", 0x0800, 0),
    p("ip4", 0x0800, 0),
    p("arp", 0x0806, 0),
    p("icmp", 0x0800, 1),
    p("tcp", 0x0800, 6),
    p("udp", 0x0800, 17),
    p("sctp", 0x0800, 132),
    p("ipv6", 0x86dd, 0),
    p("ip6", 0x86dd, 0),
    p("icmp6", 0x86dd, 58),
    p("tcp6", 0x86dd, 6),
    p("udp6", 0x86dd, 17),
    p("sctp6", 0x86dd, 132),
    p("rarp", 0x8035, 0),
    p("mpls", 0x8847, 0),
    p("mplsm", 0x8848, 0),
];

impl Protocol {
    /// The protocol that a word stands for.
    pub fn by_name(name: &str) -> Option<&'static Protocol> {
        PROTOCOLS.iter().find(|p| p.name == name)
    }
}

/// Splits a text into keys and values. A value ends at a comma or blank outside parentheses; `key(value)`
/// ends at the parenthesis that closes it. An item without value has an empty one. Also splits actions
/// (`key:value`).
pub fn key_values(s: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = s;
    core::iter::from_fn(move || {
        const BLANK: &[char] = &[',', ' ', '\t', '\r', '\n'];
        rest = rest.trim_start_matches(BLANK);
        if rest.is_empty() {
            return None;
        }
        let end = rest
            .find([':', '=', '(', ',', ' ', '\t', '\r', '\n'])
            .unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        let mut chars = after.chars();
        let delimiter = chars.next();
        rest = chars.as_str();
        let (value, next) = match delimiter {
            Some(':' | '=') => value(rest, |c| BLANK.contains(&c)),
            Some('(') => {
                let (v, next) = value(rest, |c| c == ')');
                // `(x)->y` is one value, `x)->y`.
                if next.starts_with(")->") {
                    let (more, _) = value(next, |c| BLANK.contains(&c));
                    rest.split_at(v.len() + more.len())
                } else {
                    (v, next)
                }
            }
            _ => ("", rest),
        };
        rest = if value.is_empty() && !matches!(delimiter, Some(':' | '=' | '(')) {
            next
        } else {
            // The delimiter that ended the value is not part of the next item.
            let mut chars = next.chars();
            chars.next();
            chars.as_str()
        };
        Some((key, value))
    })
}

/// The text up to a delimiter outside parentheses, and the rest from the delimiter on.
fn value(s: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    let mut level = 0usize;
    for (i, c) in s.char_indices() {
        if level == 0 && is_end(c) {
            return s.split_at(i);
        }
        match c {
            '(' => level += 1,
            ')' => level = level.saturating_sub(1),
            _ => {}
        }
    }
    (s, "")
}

/// A rule on a header of the packet implies that the packet is an Ethernet frame.
fn imply_ethernet(m: &mut Match, prereq: Prereq) {
    if prereq != Prereq::None && m.mask.0.packet_type == 0 {
        m.key.packet_type = 0;
        m.mask.0.packet_type = u32::MAX;
    }
}

pub(super) fn parse_match(s: &str, ports: Option<PortNumbers<'_>>) -> Result<Match, String> {
    let mut m = Match::any();
    for (name, value) in key_values(s) {
        if let Some(p) = Protocol::by_name(name) {
            m.set_field(FieldId::EthType, FieldValue::from_u64(p.dl_type.into()), None);
            if p.nw_proto != 0 {
                m.set_field(FieldId::IpProto, FieldValue::from_u64(p.nw_proto.into()), None);
            }
            imply_ethernet(&mut m, Prereq::Ethernet);
        } else if name == "eth" {
            m.key.packet_type = 0;
            m.mask.0.packet_type = u32::MAX;
        } else if let Some(field) = FieldId::by_name(name) {
            let (v, mask) = parse_value(field, if value.is_empty() { "0/0" } else { value }, ports)?;
            m.set_field(field, v, Some(mask));
            imply_ethernet(&mut m, field.info().prereq);
        } else if name.contains('[') {
            subfield(&mut m, name, value)?;
        } else if value.is_empty() {
            return Err(format!("field {name} missing value"));
        } else {
            return Err(format!("unknown keyword {name}"));
        }
    }
    Ok(m)
}

/// `reg0[3..5]=7`.
fn subfield(m: &mut Match, name: &str, text: &str) -> Result<(), String> {
    let sf: Subfield = name.parse()?;
    let info = sf.field.info();
    let Ok((v, "")) = parse_int(text, info.n_bytes) else {
        return Err(format!("{name}: cannot parse integer value: {text}"));
    };
    let v = FieldValue::from_u128(v);
    if !(v & !FieldValue::low_ones(sf.n_bits.into())).is_zero() {
        let mut shown = String::new();
        super::format_value(&mut shown, sf.field, v, None, None).map_err(|e| e.to_string())?;
        return Err(format!(
            "{name}: value {shown} does not fit into {} bits",
            sf.n_bits
        ));
    }
    sf.set_match(m, v);
    imply_ethernet(m, info.prereq);
    Ok(())
}

pub(super) fn parse_key(s: &str, ports: Option<PortNumbers<'_>>) -> Result<FlowKey, String> {
    let mut key = FlowKey::default();
    for (name, value) in key_values(s) {
        if let Some(p) = Protocol::by_name(name) {
            if key.dl_type != 0 {
                return Err(format!("{s}: Ethernet type set multiple times"));
            }
            key.dl_type = p.dl_type;
            if p.nw_proto != 0 {
                if key.nw_proto != 0 {
                    return Err(format!("{s}: network protocol set multiple times"));
                }
                key.nw_proto = p.nw_proto;
            }
            continue;
        }
        let field = FieldId::by_name(name).ok_or_else(|| format!("{s}: unknown field {name}"))?;
        if !field.prereqs_ok(&key) {
            return Err(format!("{s}: prerequisites not met for setting {name}"));
        }
        if !field.get(&key).is_zero() {
            return Err(format!("{s}: field {name} set multiple times"));
        }
        let bad = |e| format!("{s}: bad value for {name} ({e})");
        let (v, mask) = parse_value(field, value, ports).map_err(bad)?;
        if mask != FieldValue::low_ones(u32::from(field.info().n_bytes) * 8) {
            return Err(bad(format!("{value}: wildcards not allowed here")));
        }
        field.set(&mut key, v);
    }
    if key.in_port == 0 {
        key.in_port = 0xffff;
    }
    Ok(key)
}
