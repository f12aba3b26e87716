//! Matches and fields on the wire: OXM (OpenFlow 1.5.1, 7.2.3) and Nicira's older NXM, which shares its
//! layout.
//!
//! ```text
//! | class 16 | field 7 | mask? 1 | length 8 | [experimenter 32, class 0xffff only] | value | [mask] |
//! ```
//!
//! A match is a sequence of such entries without padding; the message around it has its length and pads it.
//!
//! **Errors** are those of OpenFlow's `OFPET_BAD_MATCH`, one variant per code. The order of checks follows
//! Open vSwitch, also for wrong lengths that count as an unknown field.

#![deny(clippy::indexing_slicing)] // whatever bytes come

mod put;

#[cfg(test)]
pub(crate) mod tests;

pub use put::{MatchForm, put_cookie, put_field, put_header, put_match};

use crate::field::tlv;
use crate::field::{FieldId, FieldValue, OxmId, Prereq};
use crate::key::Match;
use heddle_wire::{Be32, split};

/// Fault of a match, named as OpenFlow's `OFPBMC_` codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum OxmError {
    /// An entry is longer than the list that holds it.
    #[error("OFPBMC_BAD_LEN")]
    BadLen,
    /// A field that is not known, or not with this length.
    #[error("OFPBMC_BAD_FIELD")]
    BadField,
    /// A value that is not allowed for the field.
    #[error("OFPBMC_BAD_VALUE")]
    BadValue,
    /// A mask that is not allowed for the field.
    #[error("OFPBMC_BAD_MASK")]
    BadMask,
    /// The field's prerequisites are not among the entries before it.
    #[error("OFPBMC_BAD_PREREQ")]
    BadPrereq,
    /// The field is in the match twice.
    #[error("OFPBMC_DUP_FIELD")]
    DupField,
    /// A bit set in a value where its mask has a zero.
    #[error("OFPBMC_BAD_WILDCARDS")]
    BadWildcards,
    /// An option of a tunnel that is not mapped (Nicira's error, [`crate::field::tlv`]).
    #[error("NXFMFC_INVALID_TLV_FIELD")]
    InvalidTlvField,
}

/// The header of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The field that it names, where it is known with this length.
    pub field: Option<FieldId>,
    /// Whether a mask follows the value.
    pub masked: bool,
    /// Bytes of the header: 4, or 8 with an experimenter id.
    pub header_len: usize,
    /// Bytes that follow the header: value and mask.
    pub payload_len: usize,
    /// The first 32 bits.
    pub raw: u32,
}

/// Reads the header of an entry from the start of `b`. An unknown field is no error here.
///
/// # Errors
/// [`OxmError::BadLen`] where there is no whole header; [`OxmError::InvalidTlvField`].
pub fn pull_header(b: &[u8]) -> Result<Header, OxmError> {
    let (raw, rest) = split::<Be32>(b).ok_or(OxmError::BadLen)?;
    let raw = raw.get();
    let [c0, c1, number, length] = raw.to_be_bytes();
    let class = u16::from_be_bytes([c0, c1]);
    let masked = number & 1 != 0;
    let (experimenter, header_len, payload_len) = if class == 0xffff {
        let (e, _) = split::<Be32>(rest).ok_or(OxmError::BadLen)?;
        (
            e.get(),
            8,
            usize::from(length).checked_sub(4).ok_or(OxmError::BadLen)?,
        )
    } else {
        (0, 4, length.into())
    };
    let width = if masked { payload_len / 2 } else { payload_len };
    let known = FieldId::by_oxm(class, number >> 1, experimenter);
    // The map defines the size of a tunnel's option, whatever number of bytes the header has.
    let fits = |f: &FieldId| matches!(f, FieldId::TunMetadata(_)) || usize::from(f.info().n_bytes) == width;
    let field = known.filter(fits);
    if field.is_none() && tlv::index_of_header(class, number >> 1).is_some() {
        return Err(OxmError::InvalidTlvField);
    }
    Ok(Header {
        field,
        masked,
        header_len,
        payload_len,
        raw,
    })
}

/// An entry: a field with a value and perhaps a mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OxmEntry {
    /// The field.
    pub field: FieldId,
    /// Value of the entry.
    pub value: FieldValue,
    /// Mask of the entry; `None` if it has none.
    pub mask: Option<FieldValue>,
    /// Bytes of the entry.
    pub consumed: usize,
}

/// An entry of a field that is known or not; with the entry's length.
type Pulled<'a> = (Option<OxmEntry>, Raw<'a>);

/// An entry's parts, its field left open.
struct Raw<'a> {
    header: Header,
    value: FieldValue,
    mask: Option<FieldValue>,
    consumed: usize,
    /// Value and mask as they came.
    bytes: (&'a [u8], Option<&'a [u8]>),
}

fn pull_raw(b: &[u8]) -> Result<Pulled<'_>, OxmError> {
    let header = pull_header(b)?;
    let consumed = header.header_len + header.payload_len;
    let payload = b.get(header.header_len..consumed).ok_or(OxmError::BadLen)?;
    let bytes = if header.masked {
        // An odd length has a byte too many at the end, which is ignored.
        let width = payload.len() / 2;
        let (v, m) = payload.split_at(width);
        let m = m.get(..width).unwrap_or(m);
        if v.iter().zip(m).any(|(v, m)| v & !m != 0) {
            return Err(OxmError::BadWildcards);
        }
        (v, Some(m))
    } else {
        (payload, None)
    };
    let (value, mask) = (
        FieldValue::from_bytes(bytes.0),
        bytes.1.map(FieldValue::from_bytes),
    );
    let entry = header.field.map(|field| OxmEntry {
        field,
        value,
        mask,
        consumed,
    });
    Ok((
        entry,
        Raw {
            header,
            value,
            mask,
            consumed,
            bytes,
        },
    ))
}

/// Whether value and mask are ones that the field can have.
///
/// # Errors
/// [`OxmError::BadMask`], [`OxmError::BadValue`].
pub fn check(e: &OxmEntry) -> Result<(), OxmError> {
    if !e.mask.is_none_or(|m| e.field.is_mask_valid(m)) {
        return Err(OxmError::BadMask);
    }
    if e.field.is_value_valid(e.value) {
        Ok(())
    } else {
        Err(OxmError::BadValue)
    }
}

/// Nicira's pseudo field that selects flows by cookie.
const COOKIE: OxmId = OxmId {
    name: "NXM_NX_COOKIE",
    class: 1,
    field: 30,
    length: 8,
    experimenter: 0,
    version: 0,
};

/// Reads a whole match. Unless `strict`, unknown fields are skipped and prerequisites are not checked (for
/// metadata of packets, whose headers are elsewhere).
///
/// # Errors
/// The first fault found, in the order of entries.
pub fn pull_match(b: &[u8], strict: bool) -> Result<Match, OxmError> {
    let mut m = Match::any();
    pull_match_into(b, strict, &mut m)?;
    Ok(m)
}

/// Like [`pull_match`], but adds to `m`, a match of anything, so that a large match is not copied. After an
/// error `m` has some of the entries.
///
/// # Errors
/// The same as those of [`pull_match`].
pub fn pull_match_into(b: &[u8], strict: bool, m: &mut Match) -> Result<(), OxmError> {
    pull_entries(b, strict, None, m)
}

/// Reads a whole match that may hold a cookie; returns it with cookie and mask (0 and 0 for none).
///
/// # Errors
/// The same as those of [`pull_match`].
pub fn pull_match_cookie(b: &[u8], strict: bool) -> Result<(Match, u64, u64), OxmError> {
    let (mut m, mut cookie) = (Match::any(), (0, 0));
    pull_entries(b, strict, Some(&mut cookie), &mut m)?;
    Ok((m, cookie.0, cookie.1))
}

fn pull_entries(
    mut b: &[u8],
    strict: bool,
    mut cookie: Option<&mut (u64, u64)>,
    m: &mut Match,
) -> Result<(), OxmError> {
    while !b.is_empty() {
        let (entry, raw) = pull_raw(b)?;
        b = b.get(raw.consumed..).unwrap_or(&[]);
        let Some(e) = entry else {
            let is_cookie = raw.header.raw == COOKIE.header(raw.header.masked);
            match &mut cookie {
                Some((_, mask)) if is_cookie && *mask != 0 => return Err(OxmError::DupField),
                Some(c) if is_cookie => {
                    **c = (raw.value.as_u64(), raw.mask.map_or(u64::MAX, FieldValue::as_u64));
                }
                _ if strict => return Err(OxmError::BadField),
                _ => {}
            }
            continue;
        };
        check(&e)?;
        let prereq = e.field.info().prereq;
        if strict && !prereq.ok_for_match(m) {
            return Err(OxmError::BadPrereq);
        }
        if m.has_field(e.field) {
            return Err(OxmError::DupField);
        }
        match e.field {
            FieldId::TunMetadata(t) => {
                t.put(&mut m.key, raw.bytes.0);
                match raw.bytes.1 {
                    Some(mask) => t.put(&mut m.mask.0, mask),
                    None => t.set_exact(&mut m.mask.0),
                }
            }
            field => m.set_field(field, e.value, e.mask),
        }
        // A match on a header implies that the packet has an Ethernet header.
        if prereq != Prereq::None && m.mask.0.packet_type == 0 {
            m.key.packet_type = 0;
            m.mask.0.packet_type = u32::MAX;
        }
    }
    Ok(())
}
