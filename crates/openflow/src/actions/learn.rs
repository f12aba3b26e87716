//! The `learn` action's wire form and text.

use super::field::{check_dst, check_src, from_nxm, pull_header};
use crate::action::{FieldValue, Subfield};
use crate::codec::cursor::{Reader, Short};
use crate::error::ErrorKind;
use core::fmt;
use heddle_flow::Match;
use heddle_flow::text::format_value;

const SEND_FLOW_REM: u16 = 1 << 0;
const DELETE_LEARNED: u16 = 1 << 1;
const WRITE_RESULT: u16 = 1 << 2;

/// Parts of a specification's first word.
const N_BITS: u16 = 0x03ff;
const SRC_IMMEDIATE: u16 = 1 << 13;
const DST_MASK: u16 = 3 << 11;
const DST_MATCH: u16 = 0;
const DST_LOAD: u16 = 1 << 11;
const DST_OUTPUT: u16 = 2 << 11;

const BAD_ARGUMENT: ErrorKind = ErrorKind::BadActionBadArgument;

fn short(_: Short) -> ErrorKind {
    ErrorKind::BadActionBadLen
}

/// Reads the body; its text. `second` is the longer form with a limit and a result.
pub(super) fn text(mut r: Reader<'_>, second: bool) -> Result<String, ErrorKind> {
    let (idle, hard) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let priority = r.u16().map_err(short)?;
    let cookie = r.u64().map_err(short)?;
    let flags = r.u16().map_err(short)?;
    let (table, pad) = (r.u8().map_err(short)?, r.u8().map_err(short)?);
    let (fin_idle, fin_hard) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let allowed = SEND_FLOW_REM | DELETE_LEARNED | if second { WRITE_RESULT } else { 0 };
    let (mut limit, mut result_ofs) = (0, 0);
    if second {
        limit = r.u32().map_err(short)?;
        result_ofs = r.u16().map_err(short)?;
        if r.u16().map_err(short)? != 0 {
            return Err(ErrorKind::BadActionMustBeZero);
        }
    }
    if pad != 0 || table == 0xff || flags & !allowed != 0 {
        return Err(BAD_ARGUMENT);
    }
    let mut t = format!("learn(table={table}");
    let mut option = |on: bool, s: String| {
        if on {
            t.push(',');
            t += &s;
        }
    };
    option(idle != 0, format!("idle_timeout={idle}"));
    option(hard != 0, format!("hard_timeout={hard}"));
    option(fin_idle != 0, format!("fin_idle_timeout={fin_idle}"));
    option(fin_hard != 0, format!("fin_hard_timeout={fin_hard}"));
    option(priority != 0x8000, format!("priority={priority}"));
    option(flags & SEND_FLOW_REM != 0, "send_flow_rem".into());
    option(flags & DELETE_LEARNED != 0, "delete_learned".into());
    option(cookie != 0, format!("cookie={cookie:#x}"));
    option(limit != 0, format!("limit={limit}"));
    if flags & WRITE_RESULT != 0 {
        let field = pull_header(&mut r)?;
        if !field.info().writable {
            return Err(ErrorKind::BadActionBadSetArgument);
        }
        option(
            true,
            format!(
                "result_dst={}",
                Bits(Subfield {
                    field,
                    ofs: result_ofs,
                    n_bits: 1
                })
            ),
        );
    } else if result_ofs != 0 {
        return Err(BAD_ARGUMENT);
    }
    while r.len() >= 2 {
        let header = r.u16().map_err(short)?;
        if header == 0 {
            break;
        }
        t.push(',');
        t += &pull_spec(&mut r, header)?.to_string();
    }
    if !r.is_zero() {
        return Err(BAD_ARGUMENT);
    }
    Ok(t + ")")
}

/// One specification: where the new flow's match or action gets its bits from.
struct Spec<'a> {
    dst_type: u16,
    /// Bytes of an immediate source.
    imm: Option<&'a [u8]>,
    src: Option<Subfield>,
    /// Nothing for an output.
    dst: Option<Subfield>,
}

/// Reads a specification behind its first word. Its subfields are not checked yet.
fn pull_spec<'a>(r: &mut Reader<'a>, header: u16) -> Result<Spec<'a>, ErrorKind> {
    let n_bits = header & N_BITS;
    let dst_type = header & DST_MASK;
    let immediate = header & SRC_IMMEDIATE != 0;
    if !matches!(dst_type, DST_MATCH | DST_LOAD) && (dst_type != DST_OUTPUT || immediate) {
        return Err(BAD_ARGUMENT);
    }
    // The lengths of source and destination follow from the first word alone.
    let imm_len = if immediate {
        2 * usize::from(n_bits).div_ceil(16)
    } else {
        0
    };
    let subfields = usize::from(!immediate) + usize::from(dst_type != DST_OUTPUT);
    if r.len() < imm_len + 6 * subfields {
        return Err(ErrorKind::BadActionBadLen);
    }
    let imm = if immediate {
        let raw = r.bytes(imm_len).map_err(short)?;
        let n_bytes = usize::from(n_bits).div_ceil(8);
        Some(raw.get(raw.len() - n_bytes..).unwrap_or(raw))
    } else {
        None
    };
    let subfield = |r: &mut Reader<'_>| -> Result<Subfield, ErrorKind> {
        let field = from_nxm(r.u32().map_err(short)?)?;
        Ok(Subfield {
            field,
            ofs: r.u16().map_err(short)?,
            n_bits,
        })
    };
    let src = if immediate { None } else { Some(subfield(r)?) };
    let dst = if dst_type == DST_OUTPUT {
        None
    } else {
        Some(subfield(r)?)
    };
    Ok(Spec {
        dst_type,
        imm,
        src,
        dst,
    })
}

impl fmt::Display for Spec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_match = self.dst_type == DST_MATCH;
        let shown = |s: Option<Subfield>| s.map(Bits);
        match (self.imm, shown(self.src), shown(self.dst)) {
            (Some(imm), _, Some(d)) if is_match && d.0 == Subfield::all(d.0.field) => {
                write!(f, "{}=", d.0.field.name())?;
                format_value(f, d.0.field, FieldValue::from_bytes(imm), None, None)
            }
            (Some(imm), _, Some(d)) if is_match => write!(f, "{d}={}", Hex(imm)),
            (Some(imm), _, Some(d)) => write!(f, "load:{}->{d}", Hex(imm)),
            (None, Some(s), Some(d)) if is_match && (s.0.field, s.0.ofs) == (d.0.field, d.0.ofs) => {
                write!(f, "{d}")
            }
            (None, Some(s), Some(d)) if is_match => write!(f, "{d}={s}"),
            (None, Some(s), Some(d)) => write!(f, "load:{s}->{d}"),
            (_, Some(s), None) => write!(f, "output:{s}"),
            (_, None, _) => Ok(()),
        }
    }
}

/// A subfield that may not lie within its field: that is found out only when the action is checked.
struct Bits(Subfield);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bits(s) = self;
        if s.is_valid() {
            s.fmt(f)
        } else {
            write!(f, "{}[{}+{}]", s.field.name(), s.ofs, s.n_bits)
        }
    }
}

/// Bytes as one hexadecimal number; `0` for zero.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        match all.trim_start_matches('0') {
            "" => f.write_str("0"),
            digits => write!(f, "0x{digits}"),
        }
    }
}

/// Checks the subfields of a learn action (all its bytes) that runs on packets that match `m`: sources against that
/// match, destinations against the match that the new flow gets.
pub(super) fn check(whole: &[u8], m: &Match) -> Result<(), ErrorKind> {
    /// Bytes of the two forms up to their specifications, and the longer one's subtype.
    const FIXED: [usize; 2] = [32, 40];
    const SECOND: [u8; 2] = [0, 45];
    let second = whole.get(8..10) == Some(&SECOND);
    let mut r = Reader(whole.get(FIXED[usize::from(second)]..).unwrap_or(&[]));
    let flags = whole.get(24..26).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    if second && flags & WRITE_RESULT != 0 {
        pull_header(&mut r)?;
    }
    let mut made = Match::any();
    while r.len() >= 2 {
        let header = r.u16().map_err(short)?;
        if header == 0 {
            break;
        }
        let spec = pull_spec(&mut r, header)?;
        if let Some(s) = spec.src {
            check_src(s, Some(m))?;
        }
        match spec.dst {
            Some(d) if spec.dst_type == DST_LOAD => check_dst(d, Some(&made))?,
            Some(d) => {
                check_src(d, Some(&made))?;
                if let Some(imm) = spec.imm {
                    d.set_match(&mut made, FieldValue::from_bytes(imm));
                }
            }
            None => {}
        }
    }
    Ok(())
}
