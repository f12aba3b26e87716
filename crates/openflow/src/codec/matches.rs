//! Matches on the wire: `ofp_match` of 1.1 and later, and the bare entries of Nicira's messages.
//!
//! [`heddle_flow::oxm`] has the entries themselves. This module has the frame around them: type, length and
//! padding, and the fixed forms of 1.0 and 1.1.

use super::{match10, match11};
use crate::error::ErrorKind;
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use heddle_flow::Match;
use heddle_flow::oxm::{self, MatchForm, OxmError};

/// `ofp_match` types.
const STANDARD: u16 = 0;
const OXM: u16 = 1;
/// Length of 1.1's standard match.
const STANDARD_LEN: u16 = 88;

impl From<OxmError> for ErrorKind {
    fn from(e: OxmError) -> ErrorKind {
        match e {
            OxmError::BadLen => ErrorKind::BadMatchBadLen,
            OxmError::BadField => ErrorKind::BadMatchBadField,
            OxmError::BadValue => ErrorKind::BadMatchBadValue,
            OxmError::BadMask => ErrorKind::BadMatchBadMask,
            OxmError::BadPrereq => ErrorKind::BadMatchBadPrereq,
            OxmError::DupField => ErrorKind::BadMatchDupField,
            OxmError::BadWildcards => ErrorKind::BadMatchBadWildcards,
            OxmError::InvalidTlvField => ErrorKind::FlowModFailedInvalidTlvField,
        }
    }
}

/// Reads an `ofp_match` with its padding. `strict`: unknown fields are an error (else they are left out,
/// as requests for statistics allow).
pub(crate) fn pull(r: &mut Reader<'_>, strict: bool) -> Result<Match, ErrorKind> {
    let mut m = Match::any();
    pull_into(r, strict, &mut m)?;
    Ok(m)
}

/// Like [`pull`], but adds to `m`, a match of anything.
pub(crate) fn pull_into(r: &mut Reader<'_>, strict: bool, m: &mut Match) -> Result<(), ErrorKind> {
    let bad = |_| ErrorKind::BadMatchBadLen;
    let mut head = *r;
    let (ty, len) = (head.u16().map_err(bad)?, head.u16().map_err(bad)?);
    match ty {
        STANDARD if len == STANDARD_LEN => {
            let mut body = Reader(r.bytes(len.into()).map_err(bad)?);
            body.skip(4).map_err(bad)?;
            *m = match11::decode(body)?;
            Ok(())
        }
        OXM if len >= 4 => {
            let padded = r.bytes(usize::from(len).next_multiple_of(8)).map_err(bad)?;
            let entries = padded.get(4..len.into()).unwrap_or(&[]);
            Ok(oxm::pull_match_into(entries, strict, m)?)
        }
        STANDARD | OXM => Err(ErrorKind::BadMatchBadLen),
        _ => Err(ErrorKind::BadMatchBadType),
    }
}

/// Writes an `ofp_match` with its padding, in the form that a version (1.1 or later) prefers.
pub(crate) fn put(out: &mut Vec<u8>, version: Version, m: &Match) {
    if version == Version::V11 {
        out.u16(STANDARD);
        out.u16(STANDARD_LEN);
        match11::encode(m, out);
    } else {
        put_oxm(out, version, m);
    }
}

/// Writes an `ofp_match` of OXM entries with its padding.
pub(crate) fn put_oxm(out: &mut Vec<u8>, version: Version, m: &Match) {
    let start = out.end();
    out.u16(OXM);
    out.u16(0);
    oxm::put_match(m, MatchForm::Oxm(version.wire()), out);
    out.patch_len(start, 2);
    out.pad8(start);
}

/// Cookie condition in Nicira's match entries: value and mask.
pub(crate) type Cookie = (u64, u64);

/// Reads `len` bytes of bare entries and their padding, with the cookie if `cookie` allows one.
pub(crate) fn pull_nx(
    r: &mut Reader<'_>,
    len: u16,
    strict: bool,
    cookie: bool,
) -> Result<(Match, Cookie), ErrorKind> {
    let padded = r
        .bytes(usize::from(len).next_multiple_of(8))
        .map_err(|_| ErrorKind::BadMatchBadLen)?;
    let entries = padded.get(..usize::from(len)).unwrap_or(padded);
    if cookie {
        let (m, cookie, mask) = oxm::pull_match_cookie(entries, strict)?;
        Ok((m, (cookie, mask)))
    } else {
        Ok((oxm::pull_match(entries, strict)?, (0, 0)))
    }
}

/// Writes bare entries and their padding; gives their length without it.
pub(crate) fn put_nx(out: &mut Vec<u8>, m: &Match, cookie: Cookie) -> u16 {
    let start = out.end();
    oxm::put_match(m, MatchForm::Nxm, out);
    oxm::put_cookie(cookie.0, cookie.1, out);
    let len = u16::try_from(out.end() - start).unwrap_or(u16::MAX);
    out.pad8(start);
    len
}

/// Reads the 40 bytes of a 1.0 match; `true` if it leaves nothing open.
pub(crate) fn pull_10(r: &mut Reader<'_>) -> Result<(Match, bool), ErrorKind> {
    match10::decode(r)
}

/// Writes the 40 bytes of a 1.0 match; conditions that 1.0 lacks are left out.
pub(crate) fn put_10(out: &mut Vec<u8>, m: &Match) {
    match10::encode(m, out);
}
