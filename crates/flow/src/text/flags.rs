//! Sets of named flags: `syn|ack`, `+trk-new`, `0x12`, `0x2/0x12`.

use core::fmt::{self, Write};

/// Names of flags: each bit's number and name, in rising order.
pub type FlagNames = &'static [(u8, &'static str)];

/// Bits of `ct_state`.
pub const CT_STATE: FlagNames = &[
    (0, "new"),
    (1, "est"),
    (2, "rel"),
    (3, "rpl"),
    (4, "inv"),
    (5, "trk"),
    (6, "snat"),
    (7, "dnat"),
];

/// Bits of `tcp_flags` (RFC 9293, RFC 3168, RFC 3540; three have no name).
pub const TCP: FlagNames = &[
    (0, "fin"),
    (1, "syn"),
    (2, "rst"),
    (3, "psh"),
    (4, "ack"),
    (5, "urg"),
    (6, "ece"),
    (7, "cwr"),
    (8, "ns"),
    (9, "[200]"),
    (10, "[400]"),
    (11, "[800]"),
];

/// Bits of a tunnel's flags. Only `oam` is for matches; the others are the datapath's.
pub const TUNNEL: FlagNames = &[(0, "oam"), (1, "df"), (2, "csum"), (3, "key")];

fn name_of(names: FlagNames, bit: u32) -> Option<&'static str> {
    names.iter().find(|(n, _)| u32::from(*n) == bit).map(|(_, s)| *s)
}

fn bits(x: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |b| x >> b & 1 != 0)
}

/// Writes flags: set ones joined by `|` where the mask is `full`, else `+` or `-` before each that counts.
///
/// # Errors
/// The errors of `f`.
pub fn format_flags(f: &mut dyn Write, names: FlagNames, flags: u32, mask: u32, full: u32) -> fmt::Result {
    if mask == full {
        return joined(f, names, flags, '|');
    }
    if mask == 0 {
        return f.write_str("0/0");
    }
    for b in bits(mask) {
        let sign = if flags >> b & 1 != 0 { '+' } else { '-' };
        write!(f, "{sign}{}", name_of(names, b).unwrap_or("[Unknown]"))?;
    }
    Ok(())
}

/// Writes the set flags joined by `sep`, unknown ones last as one number; `0` for none.
pub(crate) fn joined(f: &mut dyn Write, names: FlagNames, flags: u32, sep: char) -> fmt::Result {
    let mut unknown = 0;
    let mut first = true;
    for b in bits(flags) {
        match name_of(names, b) {
            Some(s) => {
                if !first {
                    f.write_char(sep)?;
                }
                first = false;
                f.write_str(s)?;
            }
            None => unknown |= 1 << b,
        }
    }
    match (first, unknown) {
        (true, 0) => f.write_char('0'),
        (_, 0) => Ok(()),
        (true, u) => write!(f, "{u:#x}"),
        (false, u) => write!(f, "{sep}{u:#x}"),
    }
}

fn number(s: &str) -> Option<u32> {
    let (digits, radix) = match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if s.len() > 1 && s.starts_with('0') => (s, 8),
        None => (s, 10),
    };
    u32::from_str_radix(digits, radix).ok()
}

/// Reads flags in any of the three forms; returns value and mask (all bits for an exact value). `what` names
/// the field in errors, `allowed` are the bits that may be named.
///
/// # Errors
/// A sentence for a person, in Open vSwitch's words.
pub fn parse_flags(s: &str, names: FlagNames, what: &str, allowed: u32) -> Result<(u32, u32), String> {
    let unknown = |s: &str| format!("{s}: unknown {what} flag(s)");
    if let Some((v, m)) = s.split_once('/')
        && let (Some(v), Some(m)) = (number(v), number(m))
    {
        return if (v | m) & !allowed == 0 {
            Ok((v, m))
        } else {
            Err(unknown(s))
        };
    }
    if s.starts_with(['+', '-']) {
        return signed(s, names, what, allowed);
    }
    let mut flags = 0;
    let words = s.strip_suffix('|').unwrap_or(s);
    for word in words.split('|').filter(|_| !words.is_empty()) {
        let by_name = || names.iter().find(|(_, n)| *n == word).map(|(b, _)| 1 << b);
        let bit = number(word).or_else(by_name).filter(|b| b & !allowed == 0);
        flags |= bit.ok_or_else(|| unknown(s))?;
    }
    Ok((flags, u32::MAX))
}

/// `+a-b`.
fn signed(s: &str, names: FlagNames, what: &str, allowed: u32) -> Result<(u32, u32), String> {
    let (mut flags, mut mask) = (0, 0);
    let mut rest = s;
    while !rest.is_empty() {
        let set = match rest.as_bytes().first() {
            Some(b'+') => true,
            Some(b'-') => false,
            _ => {
                return Err(format!(
                    "{rest}: {what} must be preceded by '+' (for SET) or '-' (NOT SET)"
                ));
            }
        };
        let body = rest.get(1..).unwrap_or("");
        let (name, next) = body.split_at(body.find(['+', '-']).unwrap_or(body.len()));
        let bit = names.iter().find(|(_, n)| *n == name).map(|(b, _)| 1u32 << b);
        let bit = bit
            .filter(|b| b & !allowed == 0)
            .ok_or_else(|| format!("{body}: unknown {what} flag(s)"))?;
        if mask & bit != 0 {
            return Err(format!("{body}: Each {what} flag can be specified only once"));
        }
        mask |= bit;
        flags |= if set { bit } else { 0 };
        rest = next;
    }
    Ok((flags, mask))
}
