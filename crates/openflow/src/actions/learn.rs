//! The `learn` action on the wire, and its check.

use super::encoder::{Encoded, Encoder, end};
use super::field::{Headers, check_dst, check_src, check_value, from_nxm, nxm, pull_header, put_header};
use super::raw::Raw;
use crate::action::{Action, FieldId, FieldValue, Learn, LearnDst, LearnSpec, LearnSrc, Subfield};
use crate::error::{EncodeError, ErrorKind};
use crate::wire::cursor::{Put, Reader, Short};
use heddle_flow::Match;

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

/// Reads the body. `second` is the longer form with a limit and a result.
pub(super) fn decode(mut r: Reader<'_>, second: bool) -> Result<Action, ErrorKind> {
    let mut learn = Learn {
        idle_timeout: r.u16().map_err(short)?,
        hard_timeout: r.u16().map_err(short)?,
        priority: r.u16().map_err(short)?,
        cookie: r.u64().map_err(short)?,
        ..Learn::default()
    };
    let flags = r.u16().map_err(short)?;
    learn.table = r.u8().map_err(short)?;
    let pad = r.u8().map_err(short)?;
    learn.fin_idle_timeout = r.u16().map_err(short)?;
    learn.fin_hard_timeout = r.u16().map_err(short)?;
    let allowed = SEND_FLOW_REM | DELETE_LEARNED | if second { WRITE_RESULT } else { 0 };
    let mut result_ofs = 0;
    if second {
        learn.limit = r.u32().map_err(short)?;
        result_ofs = r.u16().map_err(short)?;
        if r.u16().map_err(short)? != 0 {
            return Err(ErrorKind::BadActionMustBeZero);
        }
    }
    if pad != 0 || learn.table == 0xff || flags & !allowed != 0 {
        return Err(BAD_ARGUMENT);
    }
    learn.send_flow_rem = flags & SEND_FLOW_REM != 0;
    learn.delete_learned = flags & DELETE_LEARNED != 0;
    if flags & WRITE_RESULT != 0 {
        let field = pull_header(&mut r)?;
        if !field.info().writable {
            return Err(ErrorKind::BadActionBadSetArgument);
        }
        learn.result_dst = Some(Subfield {
            field,
            ofs: result_ofs,
            n_bits: 1,
        });
    } else if result_ofs != 0 {
        return Err(BAD_ARGUMENT);
    }
    while r.len() >= 2 {
        let header = r.u16().map_err(short)?;
        if header == 0 {
            break;
        }
        learn.specs.push(pull_spec(&mut r, header)?);
    }
    if !r.is_zero() {
        return Err(BAD_ARGUMENT);
    }
    Ok(Action::Learn(Box::new(learn)))
}

/// Reads a specification behind its first word. Its subfields are not checked yet.
fn pull_spec(r: &mut Reader<'_>, header: u16) -> Result<LearnSpec, ErrorKind> {
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
    let subfield = |r: &mut Reader<'_>| -> Result<Subfield, ErrorKind> {
        let s = Subfield {
            field: from_nxm(r.u32().map_err(short)?)?,
            ofs: r.u16().map_err(short)?,
            n_bits,
        };
        // Values that are written in the action have 128 bits. (Open vSwitch has no such limit for options of
        // tunnels.)
        if immediate && matches!(s.field, FieldId::TunMetadata(_)) {
            check_value(s)?;
        }
        Ok(s)
    };
    let src = if immediate {
        let raw = r.bytes(imm_len).map_err(short)?;
        let n_bytes = usize::from(n_bits).div_ceil(8);
        LearnSrc::Value(FieldValue::from_bytes(
            raw.get(raw.len() - n_bytes..).unwrap_or(raw),
        ))
    } else {
        LearnSrc::Field(subfield(r)?)
    };
    let dst = match dst_type {
        DST_OUTPUT => LearnDst::Output,
        DST_LOAD => LearnDst::Load(subfield(r)?),
        _ => LearnDst::Match(subfield(r)?),
    };
    // Written again, the first word of such a specification could be zero, which ends the list.
    if n_bits == 0 {
        return Err(ErrorKind::BadActionBadSetLen);
    }
    Ok(LearnSpec { src, dst })
}

/// Checks the subfields of a learn action on packets that match `m`. Sources are checked against that match,
/// destinations against the match of the new flow.
pub(super) fn check(learn: &Learn, m: &Match) -> Result<(), ErrorKind> {
    let mut made = Match::any();
    for spec in &learn.specs {
        if let LearnSrc::Field(s) = spec.src {
            check_src(s, Some(m))?;
        }
        match spec.dst {
            LearnDst::Load(d) => check_dst(d, Some(&made))?,
            LearnDst::Match(d) => {
                check_src(d, Some(&made))?;
                if let LearnSrc::Value(imm) = spec.src {
                    d.set_match(&mut made, imm);
                }
            }
            LearnDst::Output => {}
        }
    }
    Ok(())
}

impl Encoder {
    pub(super) fn learn(&self, l: &Learn, out: &mut Vec<u8>) -> Encoded {
        let second = l.limit != 0 || l.result_dst.is_some();
        let start = self.begin(if second { Raw::Learn2 } else { Raw::Learn }, "learn", out)?;
        out.u16(l.idle_timeout);
        out.u16(l.hard_timeout);
        out.u16(l.priority);
        out.u64(l.cookie);
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        out.u16(
            flag(l.send_flow_rem, SEND_FLOW_REM)
                | flag(l.delete_learned, DELETE_LEARNED)
                | flag(l.result_dst.is_some(), WRITE_RESULT),
        );
        out.u8(l.table);
        out.u8(0);
        out.u16(l.fin_idle_timeout);
        out.u16(l.fin_hard_timeout);
        if second {
            out.u32(l.limit);
            out.u16(l.result_dst.map_or(0, |d| d.ofs));
            out.u16(0);
            if let Some(d) = l.result_dst
                && !put_header(out, d.field, Headers::Nxm, false)
            {
                return Err(self.missing("learn with a field without header"));
            }
        }
        for s in &l.specs {
            self.put_spec(s, out)?;
        }
        end(out, start);
        Ok(())
    }

    fn put_spec(&self, s: &LearnSpec, out: &mut Vec<u8>) -> Encoded {
        let (dst_type, dst) = match s.dst {
            LearnDst::Match(d) => (DST_MATCH, Some(d)),
            LearnDst::Load(d) => (DST_LOAD, Some(d)),
            LearnDst::Output => (DST_OUTPUT, None),
        };
        let (immediate, n_bits) = match (s.src, dst) {
            (LearnSrc::Field(f), _) => (0, f.n_bits),
            (LearnSrc::Value(_), Some(d)) => (SRC_IMMEDIATE, d.n_bits),
            (LearnSrc::Value(_), None) => return Err(EncodeError::TooLong("learn: an output of a value")),
        };
        out.u16(immediate | dst_type | n_bits & N_BITS);
        let subfield = |f: Subfield, out: &mut Vec<u8>| -> Encoded {
            out.u32(nxm(f.field).ok_or(self.missing("learn with an experimenter's field"))?);
            out.u16(f.ofs);
            Ok(())
        };
        match s.src {
            LearnSrc::Field(f) => subfield(f, out)?,
            LearnSrc::Value(v) => {
                let n = usize::from(n_bits).div_ceil(8);
                out.zeros(n % 2);
                // More bytes than a value has can only come from an action that its check refuses.
                let held = n.min(v.0.len());
                out.zeros(n - held);
                out.put(v.bytes(held));
            }
        }
        dst.map_or(Ok(()), |d| subfield(d, out))
    }
}
