//! The `learn` action's wire form and text.

use super::field::{check_dst, check_src, from_nxm, pull_header};
use crate::action::{FieldValue, Subfield};
use crate::codec::cursor::{Reader, Short};
use crate::error::ErrorKind;
use heddle_flow::text::format_value;
use std::fmt::Write;

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
    if pad != 0 || table == 0xff {
        return Err(BAD_ARGUMENT);
    }
    let (mut limit, mut result_ofs) = (0, 0);
    if second {
        limit = r.u32().map_err(short)?;
        result_ofs = r.u16().map_err(short)?;
        if r.u16().map_err(short)? != 0 {
            return Err(ErrorKind::BadActionMustBeZero);
        }
    }
    if flags & !allowed != 0 {
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
                Subfield {
                    field,
                    ofs: result_ofs,
                    n_bits: 1
                }
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
        t += &spec(&mut r, header)?;
    }
    if !r.is_zero() {
        return Err(BAD_ARGUMENT);
    }
    Ok(t + ")")
}

/// A specification behind its first word.
fn spec(r: &mut Reader<'_>, header: u16) -> Result<String, ErrorKind> {
    let n_bits = header & N_BITS;
    let dst_type = header & DST_MASK;
    let immediate = header & SRC_IMMEDIATE != 0;
    if !matches!(dst_type, DST_MATCH | DST_LOAD) && (dst_type != DST_OUTPUT || immediate) {
        return Err(BAD_ARGUMENT);
    }
    let n_bytes = usize::from(n_bits).div_ceil(8);
    let imm = if immediate {
        let raw = r.bytes(2 * usize::from(n_bits).div_ceil(16)).map_err(short)?;
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
    if let Some(s) = src {
        check_src(s, None)?;
    }
    if let Some(d) = dst {
        if dst_type == DST_LOAD {
            check_dst(d, None)?
        } else {
            check_src(d, None)?
        };
    }
    let hex = |b: &[u8]| {
        let all: String = b.iter().map(|b| format!("{b:02x}")).collect();
        let digits = all.trim_start_matches('0');
        if digits.is_empty() {
            "0".to_owned()
        } else {
            format!("0x{digits}")
        }
    };
    Ok(match (imm, src, dst) {
        (Some(imm), _, Some(d)) if dst_type == DST_MATCH && d == Subfield::all(d.field) => {
            let mut t = format!("{}=", d.field.name());
            format_value(&mut t, d.field, FieldValue::from_bytes(imm), None, None)
                .expect("writing to a string");
            t
        }
        (Some(imm), _, Some(d)) if dst_type == DST_MATCH => format!("{d}={}", hex(imm)),
        (Some(imm), _, Some(d)) => format!("load:{}->{d}", hex(imm)),
        (None, Some(s), Some(d)) if dst_type == DST_MATCH => {
            let mut t = d.to_string();
            if (s.field, s.ofs) != (d.field, d.ofs) {
                write!(t, "={s}").expect("writing to a string");
            }
            t
        }
        (None, Some(s), Some(d)) => format!("load:{s}->{d}"),
        (None, Some(s), None) => format!("output:{s}"),
        _ => return Err(BAD_ARGUMENT),
    })
}
