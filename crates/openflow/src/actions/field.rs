//! Fields and subfields inside actions: OXM headers, `ofs_nbits` words, and the checks that both need.

use crate::action::{FieldId, FieldValue, SetTunMetadata, Subfield};
use crate::error::ErrorKind;
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use heddle_flow::field::tlv;
use heddle_flow::{FlowKey, Match};

/// A header as it came: its field if it is known, whether a mask follows, the payload's length in bytes.
pub(crate) struct OxmHeader {
    pub(crate) field: Option<FieldId>,
    /// The field is known, but not with this length.
    pub(crate) bad_length: bool,
    pub(crate) masked: bool,
    pub(crate) payload: usize,
}

/// Reads an OXM header of four bytes, or eight with an experimenter. The field is known only if the header's
/// length is that of its field.
pub(crate) fn pull_any_header(r: &mut Reader<'_>) -> Result<OxmHeader, ErrorKind> {
    let bad = |_| ErrorKind::BadMatchBadLen;
    let head = r.u32().map_err(bad)?;
    let (class, number) = (head.to_be_bytes(), head >> 9 & 0x7f);
    let class = u16::from_be_bytes([class[0], class[1]]);
    let (masked, len) = (head & 0x100 != 0, (head & 0xff) as usize);
    let (experimenter, payload) = if class == 0xffff {
        let e = r.u32().map_err(bad)?;
        (e, len.checked_sub(4).ok_or(ErrorKind::BadMatchBadLen)?)
    } else {
        (0, len)
    };
    let number = u8::try_from(number).expect("seven bits");
    let known = FieldId::by_oxm(class, number, experimenter);
    // The map defines the size of a tunnel's option, whatever number of bytes the header has.
    let fits = |f: &FieldId| {
        matches!(f, FieldId::TunMetadata(_)) || usize::from(f.info().n_bytes) << u8::from(masked) == payload
    };
    let field = known.filter(fits);
    if known.is_none() && tlv::index_of_header(class, number).is_some() {
        return Err(ErrorKind::FlowModFailedInvalidTlvField);
    }
    Ok(OxmHeader {
        field,
        bad_length: payload > 0 && known.is_some() && field.is_none(),
        masked,
        payload,
    })
}

/// Reads the header of a field that an action names; it must not have a mask.
pub(crate) fn pull_header(r: &mut Reader<'_>) -> Result<FieldId, ErrorKind> {
    let h = pull_any_header(r)?;
    let field = h.field.ok_or(ErrorKind::BadMatchBadField)?;
    if h.masked {
        Err(ErrorKind::BadMatchBadMask)
    } else {
        Ok(field)
    }
}

/// A field that an action sets, with its new value.
pub(crate) enum Set {
    Field(FieldId, FieldValue, Option<FieldValue>),
    /// A field with more bits than a [`FieldValue`].
    Wide(SetTunMetadata),
}

/// Reads a whole entry: header, value, and mask if the header announces one.
pub(crate) fn pull_entry(r: &mut Reader<'_>) -> Result<Set, ErrorKind> {
    let h = pull_any_header(r)?;
    let unknown = if h.bad_length {
        ErrorKind::BadActionBadSetLen
    } else {
        ErrorKind::BadActionBadSetType
    };
    let field = h.field.ok_or(unknown)?;
    let payload = r.bytes(h.payload).map_err(|_| ErrorKind::BadMatchBadLen)?;
    let (value, mask) = if h.masked {
        let (v, m) = payload
            .split_at_checked(h.payload / 2)
            .ok_or(ErrorKind::BadMatchBadLen)?;
        if v.iter().zip(m).any(|(v, m)| v & !m != 0) {
            return Err(ErrorKind::BadMatchBadWildcards);
        }
        (v, Some(m))
    } else {
        (payload, None)
    };
    let FieldId::TunMetadata(t) = field else {
        let mask = mask.map(FieldValue::from_bytes);
        return Ok(Set::Field(field, FieldValue::from_bytes(value), mask));
    };
    // Value and mask may be of another length than the field.
    let fitted = |bytes: &[u8]| {
        let mut key = FlowKey::default();
        t.put(&mut key, bytes);
        key
    };
    let (value, mask) = (fitted(value), mask.map(fitted));
    Ok(if t.is_wide() {
        Set::Wide(SetTunMetadata {
            field: t,
            value: t.bytes(&value).to_vec(),
            mask: mask.map_or(vec![0xff; field.info().n_bytes.into()], |m| t.bytes(&m).to_vec()),
        })
    } else {
        Set::Field(field, field.get(&value), mask.map(|m| field.get(&m)))
    })
}

/// Reads a header without mask and its value, which is meant as a mask of the field.
pub(crate) fn pull_field_mask(r: &mut Reader<'_>) -> Result<(FieldId, FieldValue), ErrorKind> {
    let field = pull_header(r)?;
    let n = usize::from(field.info().n_bytes);
    let mask = FieldValue::from_bytes(r.bytes(n).map_err(|_| ErrorKind::BadMatchBadLen)?);
    if field.is_mask_valid(mask) {
        Ok((field, mask))
    } else {
        Err(ErrorKind::BadMatchBadMask)
    }
}

/// Writes the header and mask that [`pull_field_mask`] reads. A field without header is left out.
pub(crate) fn put_field_mask(out: &mut Vec<u8>, version: Version, field: FieldId, mask: FieldValue) {
    if put_header(out, field, Headers::Oxm(version), false) {
        out.put(mask.bytes(usize::from(field.info().n_bytes)));
    }
}

/// The field of a Nicira action's 32-bit header, whether the header announces a mask or not.
pub(crate) fn from_nxm(header: u32) -> Result<FieldId, ErrorKind> {
    let bytes = header.to_be_bytes();
    match pull_any_header(&mut Reader(&bytes)) {
        Ok(OxmHeader { field: Some(f), .. }) => Ok(f),
        Err(e @ ErrorKind::FlowModFailedInvalidTlvField) => Err(e),
        _ => Err(ErrorKind::BadActionBadSetType),
    }
}

/// A subfield from `ofs_nbits` and a 32-bit header. Not checked yet.
pub(crate) fn from_nxm_ofs(ofs_nbits: u16, header: u32) -> Result<Subfield, ErrorKind> {
    Ok(Subfield {
        field: from_nxm(header)?,
        ofs: ofs_nbits >> 6,
        n_bits: (ofs_nbits & 0x3f) + 1,
    })
}

/// `ofs_nbits` of a subfield of at most 64 bits.
pub(crate) fn ofs_nbits(s: Subfield) -> u16 {
    s.ofs << 6 | (s.n_bits.wrapping_sub(1) & 0x3f)
}

/// The 32-bit header of a field, if it has one without an experimenter.
pub(crate) fn nxm(field: FieldId) -> Option<u32> {
    field
        .header(0)
        .filter(|h| h.class != 0xffff)
        .map(|h| h.header(false))
}

/// Kind of headers to write: Nicira's where there are any, or those of a version.
#[derive(Clone, Copy)]
pub(crate) enum Headers {
    Nxm,
    Oxm(Version),
}

impl Headers {
    fn wire(self) -> u8 {
        match self {
            Headers::Nxm => 0,
            Headers::Oxm(v) => v.wire(),
        }
    }
}

/// Writes a field's header. A field that has none writes nothing and gives `false`.
pub(crate) fn put_header(out: &mut Vec<u8>, field: FieldId, which: Headers, masked: bool) -> bool {
    let Some(h) = field.header(which.wire()) else {
        return false;
    };
    out.u32(h.header(masked));
    if h.class == 0xffff {
        out.u32(h.experimenter);
    }
    true
}

/// Writes a field's header and value, with its mask unless that is full.
pub(crate) fn put_entry(
    out: &mut Vec<u8>,
    field: FieldId,
    which: Headers,
    v: FieldValue,
    m: FieldValue,
) -> bool {
    let n = usize::from(field.info().n_bytes);
    let exact = field.is_exact(m);
    if !put_header(out, field, which, !exact) {
        return false;
    }
    out.put(v.bytes(n));
    if !exact {
        out.put(m.bytes(n));
    }
    true
}

/// Checks a subfield that is read: it must be within its field, whose prerequisites must hold.
pub(crate) fn check_src(s: Subfield, m: Option<&Match>) -> Result<(), ErrorKind> {
    let width = s.field.info().n_bits;
    if s.n_bits == 0 || s.ofs >= width || u32::from(s.ofs) + u32::from(s.n_bits) > u32::from(width) {
        return Err(ErrorKind::BadActionBadSetLen);
    }
    match m {
        Some(m) if !s.field.info().prereq.ok_for_match(m) => Err(ErrorKind::BadActionMatchInconsistent),
        _ => Ok(()),
    }
}

/// A subfield that is kept as a value, which has 128 bits.
pub(crate) fn check_value(s: Subfield) -> Result<(), ErrorKind> {
    if s.n_bits > 128 {
        Err(ErrorKind::BadActionBadSetLen)
    } else {
        Ok(())
    }
}

/// A subfield that is written: as [`check_src`], and writable.
pub(crate) fn check_dst(s: Subfield, m: Option<&Match>) -> Result<(), ErrorKind> {
    check_src(s, m)?;
    if s.field.info().writable {
        Ok(())
    } else {
        Err(ErrorKind::BadActionBadSetArgument)
    }
}
