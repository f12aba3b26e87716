//! One field's value as text, by the field's [`Style`].

use super::format::packet_type_value;
use super::ports::{PortNames, PortNumbers, format_port, parse_port};
use super::{flags, write};
use crate::field::{FieldId, FieldInfo, FieldValue, Style, port_from_32, port_to_32};
use core::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Names of fragment matches: name, mask, value.
const FRAGS: &[(&str, u8, u8)] = &[
    ("no", 3, 0),
    ("first", 3, 1),
    ("later", 3, 3),
    ("no", 1, 0),
    ("yes", 1, 1),
    ("not_later", 2, 0),
    ("later", 2, 2),
];

/// Reads an integer as C's `strtoull` with base 0 would (0x, 0, decimal), but hexadecimal of any length that
/// fits `n_bytes`. Returns what follows it. `Err(true)`: too large; `Err(false)`: not a number.
pub fn parse_int(s: &str, n_bytes: u16) -> Result<(u128, &str), bool> {
    let (digits, radix) = match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if s.starts_with('0') => (s, 8),
        None => (s, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if digits.is_empty() {
        return if radix == 16 { Ok((0, rest)) } else { Err(false) };
    }
    let v = u128::from_str_radix(digits, radix).map_err(|_| true)?;
    // Only hexadecimal goes beyond 64 bits.
    let n_bytes = if radix == 16 { n_bytes } else { n_bytes.min(8) };
    let max = if n_bytes >= 16 {
        u128::MAX
    } else {
        (1 << (8 * n_bytes)) - 1
    };
    if v > max { Err(true) } else { Ok((v, rest)) }
}

fn integer(s: &str, info: &FieldInfo) -> Result<(u128, u128), String> {
    let (n, name) = (info.n_bytes, info.name);
    let fail = |what: &str, e: bool| {
        if e {
            format!("{s}: {what} too large for {n}-byte field {name}")
        } else {
            format!("{s}: bad syntax for {name} {what}")
        }
    };
    let (v, rest) = parse_int(s, n).map_err(|e| fail("value", e))?;
    if rest.is_empty() {
        return Ok((v, u128::MAX));
    }
    let mask = rest.strip_prefix('/').ok_or_else(|| fail("value", false))?;
    match parse_int(mask, n).map_err(|e| fail("mask", e))? {
        (m, "") => Ok((v, m)),
        _ => Err(fail("mask", false)),
    }
}

/// Reads an Ethernet address.
pub(crate) fn mac(s: &str) -> Option<[u8; 6]> {
    let mut out = [0; 6];
    let mut parts = s.split(':');
    for b in &mut out {
        let p = parts.next().filter(|p| matches!(p.len(), 1 | 2))?;
        *b = u8::from_str_radix(p, 16).ok()?;
    }
    parts.next().is_none().then_some(out)
}

fn ethernet(s: &str) -> Option<(u128, u128)> {
    let num = |m: [u8; 6]| FieldValue::from_mac(m).as_u128();
    match s.split_once('/') {
        Some((v, m)) => Some((num(mac(v)?), num(mac(m)?))),
        None => Some((num(mac(s)?), u128::MAX)),
    }
}

/// Reads an IPv4 address with optional mask: `/n` or `/a.b.c.d`.
pub(crate) fn ipv4(s: &str) -> Result<(u32, u32), String> {
    let bad = || format!("{s}: invalid IP address");
    let addr = |a: &str| a.parse::<Ipv4Addr>().map(u32::from).map_err(|_| bad());
    let Some((a, m)) = s.split_once('/') else {
        return Ok((addr(s)?, u32::MAX));
    };
    let mask = if m.contains('.') {
        addr(m)?
    } else {
        let n: u32 = m.parse().map_err(|_| bad())?;
        let bits = 32u32.checked_sub(n);
        let bits =
            bits.ok_or_else(|| format!("{s}: IPv4 network prefix bits not between 0 and 32, inclusive"))?;
        u32::MAX.checked_shl(bits).unwrap_or(0)
    };
    Ok((addr(a)?, mask))
}

/// Reads an IPv6 address with optional mask: `/n` or `/address`.
pub(crate) fn ipv6(s: &str) -> Result<(u128, u128), String> {
    let bad = || format!("{s}: invalid IPv6 address");
    let addr = |a: &str| a.parse::<Ipv6Addr>().map(u128::from).map_err(|_| bad());
    let Some((a, m)) = s.split_once('/') else {
        return Ok((addr(s)?, u128::MAX));
    };
    let mask = if m.contains(':') {
        addr(m).map_err(|_| format!("{s}: Invalid IPv6 mask"))?
    } else {
        let n: u32 = m.parse().map_err(|_| bad())?;
        let bits = 128u32.checked_sub(n);
        let bits =
            bits.ok_or_else(|| format!("{s}: IPv6 network prefix bits not between 0 and 128, inclusive"))?;
        u128::MAX.checked_shl(bits).unwrap_or(0)
    };
    Ok((addr(a)?, mask))
}

fn packet_type(s: &str) -> Result<u128, String> {
    let fail = |what: &str| format!("{s}: bad syntax for packet type {what}");
    let inner = s.strip_prefix('(').ok_or_else(|| fail("missing '('"))?;
    let (ns, rest) = parse_int(inner, 2).map_err(|_| fail("ns"))?;
    let rest = rest.strip_prefix(',').ok_or_else(|| fail("missing ','"))?;
    let (ty, rest) = parse_int(rest, 2).map_err(|_| fail("ns_type"))?;
    rest.strip_prefix(')').ok_or_else(|| fail("missing ')'"))?;
    Ok(ns << 16 | ty)
}

/// Reads a field's value, with mask where the form has one. The mask covers all of the field's bytes when the
/// value is exact. `*` is a zero mask.
///
/// # Errors
/// A sentence for a person, in Open vSwitch's words.
pub fn parse_value(
    field: FieldId,
    s: &str,
    ports: Option<PortNumbers<'_>>,
) -> Result<(FieldValue, FieldValue), String> {
    let info = field.info();
    if s == "*" {
        return Ok((FieldValue::ZERO, FieldValue::ZERO));
    }
    let wide = |(v, m): (u32, u32)| (u128::from(v), if m == u32::MAX { u128::MAX } else { m.into() });
    let (v, m) = match info.style {
        Style::Decimal | Style::Hex => integer(s, info)?,
        Style::Ethernet => ethernet(s).ok_or_else(|| format!("{s}: invalid Ethernet address"))?,
        Style::Ipv4 => wide(ipv4(s)?),
        Style::Ipv6 => ipv6(s)?,
        Style::OfPort => {
            let p = parse_port(s, ports)
                .ok_or_else(|| format!("{s}: invalid or unknown port for {}", info.name))?;
            (p.into(), u128::MAX)
        }
        Style::OfPort32 => {
            let p = parse_port(s, ports)
                .ok_or_else(|| format!("{s}: port value out of range for {}", info.name))?;
            (port_to_32(p).into(), u128::MAX)
        }
        Style::Frag => {
            let found = FRAGS.iter().find(|(n, ..)| n.eq_ignore_ascii_case(s));
            let (_, m, v) = found.ok_or_else(|| {
                format!(
                    "{s}: unknown fragment type (valid types are \"no\", \"yes\", \"first\", \"later\", \
                     \"not_later\""
                )
            })?;
            (u128::from(*v), if *m == 3 { u128::MAX } else { u128::from(*m) })
        }
        Style::TunFlags => wide(flags::parse_flags(s, flags::TUNNEL, "tunnel", 1)?),
        Style::TcpFlags => wide(flags::parse_flags(s, flags::TCP, "TCP", 0xfff)?),
        Style::CtState => wide(flags::parse_flags(s, flags::CT_STATE, "ct_state", 0xff)?),
        Style::PacketType => (packet_type(s)?, u128::MAX),
    };
    let m = FieldValue::from_u128(m) & FieldValue::low_ones(u32::from(info.n_bytes) * 8);
    if !field.is_mask_valid(m) {
        return Err(format!("{s}: invalid mask for field {}", info.name));
    }
    Ok((FieldValue::from_u128(v), m))
}

/// Writes a field's value with its mask; `None` is an exact mask, and a zero mask is written as `ANY`.
///
/// # Errors
/// The errors of `f`.
pub fn format_value(
    f: &mut dyn Write,
    field: FieldId,
    value: FieldValue,
    mask: Option<FieldValue>,
    names: Option<PortNames<'_>>,
) -> fmt::Result {
    let info = field.info();
    let mask = match mask {
        Some(m) if m.is_zero() => return f.write_str("ANY"),
        Some(m) if field.is_exact(m) => None,
        m => m,
    };
    let v = value.as_u128();
    let m = mask.map_or(u128::MAX, FieldValue::as_u128);
    let low32 = |x: u128| FieldValue::from_u128(x).as_u32();
    match info.style {
        Style::OfPort if mask.is_none() => format_port(f, low32(v), names),
        Style::OfPort32 if mask.is_none() => {
            format_port(f, port_from_32(low32(v)).unwrap_or(low32(v)), names)
        }
        Style::Decimal | Style::Hex | Style::OfPort | Style::OfPort32 => {
            if info.style == Style::Hex {
                write!(f, "{}", write::AltHex(v))?;
            } else {
                write!(f, "{v}")?;
            }
            if mask.is_some() {
                write!(f, "/{}", write::AltHex(m))
            } else {
                Ok(())
            }
        }
        Style::Ethernet => write::mac(f, value.as_mac(), FieldValue::from_u128(m).as_mac()),
        Style::Ipv4 => write::ip4(f, low32(v), low32(m)),
        Style::Ipv6 => write::ip6(f, value.0, m.to_be_bytes()),
        Style::Frag => f.write_str(frag_name(value.as_u64(), FieldValue::from_u128(m).as_u64())),
        Style::TunFlags => flags::format_flags(f, flags::TUNNEL, low32(v), low32(m) & 1, 1),
        Style::TcpFlags => flags::format_flags(f, flags::TCP, low32(v), low32(m) & 0xfff, 0xfff),
        // Open vSwitch compares with a mask of 16 bits here, so exact states too are written with signs.
        Style::CtState => {
            let m = if mask.is_some() { low32(m) } else { u32::MAX };
            flags::format_flags(f, flags::CT_STATE, low32(v), m, 0xffff)
        }
        Style::PacketType => packet_type_value(f, low32(v), low32(m)),
    }
}

fn frag_name(v: u64, m: u64) -> &'static str {
    let (v, m) = (v & m & 3, m & 3);
    let found = FRAGS
        .iter()
        .find(|(_, fm, fv)| u64::from(*fm) == m && u64::from(*fv) == v);
    found.map_or("<error>", |(n, ..)| n)
}
