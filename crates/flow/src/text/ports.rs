//! OpenFlow port numbers and names. Numbers are the key's: 16 bits, reserved ones from 0xff00.

use core::fmt::{self, Write};

/// Finds the name of a port.
pub type PortNames<'a> = &'a dyn Fn(u32) -> Option<String>;
/// Finds the number of a port.
pub type PortNumbers<'a> = &'a dyn Fn(&str) -> Option<u32>;

const RESERVED: &[(&str, u32)] = &[
    ("IN_PORT", 0xfff8),
    ("TABLE", 0xfff9),
    ("NORMAL", 0xfffa),
    ("FLOOD", 0xfffb),
    ("ALL", 0xfffc),
    ("CONTROLLER", 0xfffd),
    ("LOCAL", 0xfffe),
    ("ANY", 0xffff),
    ("UNSET", 0xfff7),
];

/// The name of a reserved port.
pub fn reserved_port_name(port: u32) -> Option<&'static str> {
    RESERVED.iter().find(|(_, p)| *p == port).map(|(n, _)| *n)
}

/// Writes a port: its reserved name, its own name, or its number.
///
/// # Errors
/// The errors of `f`.
pub fn format_port(f: &mut dyn Write, port: u32, names: Option<PortNames<'_>>) -> fmt::Result {
    if let Some(name) = reserved_port_name(port) {
        return f.write_str(name);
    }
    match names.and_then(|n| n(port)) {
        Some(name) => put_name(f, &name),
        None => write!(f, "{port}"),
    }
}

/// Writes a name, in quotes (with JSON's escapes) unless it is a letter followed by letters and digits.
fn put_name(f: &mut dyn Write, name: &str) -> fmt::Result {
    let ok = |(i, c): (usize, char)| c.is_ascii_alphabetic() || (i > 0 && c.is_ascii_digit());
    if !name.is_empty() && name.char_indices().all(ok) {
        return f.write_str(name);
    }
    f.write_char('"')?;
    for c in name.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{c}' => f.write_str("\\f")?,
            c if u32::from(c) < 32 => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

/// Reads a port: a number (OpenFlow 1.0's or 1.1's reserved ones too), a reserved name in any case, or a name
/// that `ports` knows. `None` for anything else.
pub fn parse_port(s: &str, ports: Option<PortNumbers<'_>>) -> Option<u32> {
    if let Ok(n) = s.parse::<u32>() {
        return match n {
            0..=0xffff => Some(n),
            _ => crate::field::port_from_32(n).filter(|p| *p <= 0xffff),
        };
    }
    let s_any = if s.eq_ignore_ascii_case("NONE") { "ANY" } else { s };
    if let Some((_, p)) = RESERVED.iter().find(|(n, _)| n.eq_ignore_ascii_case(s_any)) {
        return Some(*p);
    }
    let bare = s.strip_prefix('"').and_then(|s| s.strip_suffix('"')).unwrap_or(s);
    ports.and_then(|f| f(bare))
}
