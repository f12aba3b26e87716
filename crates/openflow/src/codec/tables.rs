//! Table modification, features, descriptions and counters.
//!
//! The features of a table are the fields and actions that this crate and [`heddle_flow`] can carry in the
//! version. They are derived here from the table of fields, the same for every table.

use crate::error::ErrorKind;
use crate::message::{
    TableDesc, TableFeatures, TableFeaturesCommand, TableMiss, TableMod, TableReason, TableStats, TableStatus,
};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::property;
use heddle_flow::FieldId;
use heddle_flow::field::Maskable;
use heddle_flow::field::tlv::{N_TLV, TlvField};

const NAME_LEN: usize = 32;
const EVICTION: u32 = 1 << 2;
const VACANCY: u32 = 1 << 3;

/// Properties of table modifications and descriptions.
const PROP_EVICTION: u16 = 2;
const PROP_VACANCY: u16 = 3;

pub(super) fn decode_mod(version: Version, mut r: Reader<'_>) -> Result<TableMod, ErrorKind> {
    let table_id = r.u8()?;
    r.skip(3)?;
    let config = r.u32()?;
    let mut m = TableMod {
        table_id,
        miss: None,
        eviction: None,
        eviction_flags: None,
        vacancy: None,
        vacancy_limits: None,
    };
    if version <= Version::V12 {
        m.miss = match config & 3 {
            0 => Some(TableMiss::Controller),
            1 => Some(TableMiss::Continue),
            2 => Some(TableMiss::Drop),
            _ => return Err(ErrorKind::TableModFailedBadConfig),
        };
    }
    if version >= Version::V14 {
        m.eviction = Some(config & EVICTION != 0);
        m.vacancy = Some(config & VACANCY != 0);
        while !r.is_empty() {
            let p = property::pull(&mut r)?;
            match p.standard()? {
                PROP_EVICTION => m.eviction_flags = Some(p.u32()?),
                PROP_VACANCY => {
                    let [down, up, vacancy, _] = p.u32()?.to_be_bytes();
                    if vacancy != 0 || down > up {
                        return Err(ErrorKind::BadPropertyBadValue);
                    }
                    m.vacancy_limits = Some((down, up));
                }
                _ => return Err(ErrorKind::BadRequestBadType),
            }
        }
    }
    Ok(m)
}

pub(super) fn encode_mod(version: Version, m: &TableMod, out: &mut Vec<u8>) {
    out.u8(m.table_id);
    out.zeros(3);
    let mut config = 0;
    if version <= Version::V12 {
        config = match m.miss {
            None | Some(TableMiss::Controller) => 0,
            Some(TableMiss::Continue) => 1,
            Some(TableMiss::Drop) => 2,
        };
    }
    if version >= Version::V14 {
        config = flags(m.eviction == Some(true), m.vacancy == Some(true));
    }
    out.u32(config);
    if let (Some(flags), true) = (m.eviction_flags, version >= Version::V14) {
        property::put(out, PROP_EVICTION, &flags.to_be_bytes());
    }
    if let (Some((down, up)), true) = (m.vacancy_limits, version >= Version::V14) {
        property::put(out, PROP_VACANCY, &[down, up, 0, 0]);
    }
}

fn flags(eviction: bool, vacancy: bool) -> u32 {
    (if eviction { EVICTION } else { 0 }) | if vacancy { VACANCY } else { 0 }
}

pub(super) fn put_desc(d: &TableDesc, out: &mut Vec<u8>) {
    let start = out.end();
    out.zeros(2);
    out.u8(d.table_id);
    out.zeros(1);
    out.u32(flags(d.eviction, d.vacancy));
    property::put(out, PROP_EVICTION, &d.eviction_flags.to_be_bytes());
    let (down, up, now) = d.vacancy_limits;
    if d.vacancy {
        property::put(out, PROP_VACANCY, &[down, up, now, 0]);
    }
    out.patch_len(start, 0);
}

pub(super) fn pull_desc(r: &mut Reader<'_>) -> Result<TableDesc, ErrorKind> {
    let len = { *r }.u16()?;
    let mut body = Reader(r.bytes(len.into())?);
    body.skip(2)?;
    let mut d = TableDesc {
        table_id: body.u8()?,
        ..TableDesc::default()
    };
    body.skip(1)?;
    let config = body.u32()?;
    (d.eviction, d.vacancy) = (config & EVICTION != 0, config & VACANCY != 0);
    while !body.is_empty() {
        let p = property::pull(&mut body)?;
        match p.ty {
            PROP_EVICTION => d.eviction_flags = p.u32()?,
            PROP_VACANCY => {
                let [down, up, now, _] = p.u32()?.to_be_bytes();
                d.vacancy_limits = (down, up, now);
            }
            _ => {}
        }
    }
    Ok(d)
}

pub(super) fn encode_status(s: &TableStatus, out: &mut Vec<u8>) {
    out.u8(s.reason as u8);
    out.zeros(7);
    put_desc(&s.desc, out);
}

pub(super) fn decode_status(mut r: Reader<'_>) -> Result<TableStatus, ErrorKind> {
    let reason = match r.u8()? {
        3 => TableReason::VacancyDown,
        4 => TableReason::VacancyUp,
        _ => return Err(ErrorKind::BadRequestBadReason),
    };
    r.skip(7)?;
    let desc = pull_desc(&mut r)?;
    Ok(TableStatus { reason, desc })
}

/// Types of table feature properties; each but match and wildcards has a twin for table misses, one higher.
mod prop {
    pub(super) const INSTRUCTIONS: u16 = 0;
    pub(super) const NEXT_TABLES: u16 = 2;
    pub(super) const WRITE_ACTIONS: u16 = 4;
    pub(super) const APPLY_ACTIONS: u16 = 6;
    pub(super) const MATCH: u16 = 8;
    pub(super) const WILDCARDS: u16 = 10;
    pub(super) const WRITE_SETFIELD: u16 = 12;
    pub(super) const APPLY_SETFIELD: u16 = 14;
}

/// Bits of the standard instructions of a version; no goto from the last table.
fn instructions(version: Version, last_table: bool) -> u32 {
    let meter = if matches!(version, Version::V13 | Version::V14) {
        1 << 6
    } else {
        0
    };
    let goto = if last_table { 0 } else { 1 << 1 };
    0b11_1100 | goto | meter
}

/// Bits of the standard actions of a version, without 11 and 12 (copying of TTLs between headers) and 26 and
/// 27 (PBB).
fn actions(version: Version) -> u32 {
    match version {
        Version::V10 => 0xfff,
        Version::V11 => 0x01ff_e7ff,
        _ => 0x03ff_8001,
    }
}

fn has_header(f: &FieldId) -> bool {
    f.header(0).is_some()
}

fn put_fields(out: &mut Vec<u8>, ty: u16, version: Version, fields: impl Iterator<Item = (FieldId, bool)>) {
    let start = property::begin(out, ty);
    let form = heddle_flow::oxm::MatchForm::Oxm(version.wire());
    for (field, masked) in fields {
        heddle_flow::oxm::put_header(field, masked, form, out);
    }
    property::finish(out, start);
}

/// A list of types (of instructions, of actions), each with the length of a bare header.
fn put_types(out: &mut Vec<u8>, ty: u16, bits: u32) {
    let start = property::begin(out, ty);
    for n in (0..32).filter(|n| bits >> n & 1 != 0) {
        out.u16(n);
        out.u16(4);
    }
    property::finish(out, start);
}

/// All fields that have a header. Options of tunnels have the length that they have without a map.
fn matchable() -> impl Iterator<Item = FieldId> {
    let options = (0u8..)
        .take(N_TLV)
        .map(|i| FieldId::TunMetadata(TlvField::unmapped(i)));
    FieldId::ALL.iter().copied().filter(has_header).chain(options)
}

fn writable() -> impl Iterator<Item = (FieldId, bool)> {
    matchable().filter(|f| f.info().writable).map(|f| (f, false))
}

pub(super) fn put_features(version: Version, t: &TableFeatures, out: &mut Vec<u8>) {
    let start = out.end();
    out.zeros(2);
    out.u8(t.table_id);
    out.u8(if version >= Version::V15 {
        t.command as u8
    } else {
        0
    });
    out.zeros(4);
    out.text(&t.name, NAME_LEN);
    out.u64(t.metadata_match);
    out.u64(t.metadata_write);
    out.u32(if version >= Version::V14 {
        flags(t.eviction, t.vacancy)
    } else {
        0
    });
    out.u32(t.max_entries);
    if t.any_properties {
        for miss in [0, 1] {
            put_types(
                out,
                prop::INSTRUCTIONS + miss,
                instructions(version, t.next.is_empty()),
            );
            property::put(out, prop::NEXT_TABLES + miss, &t.next);
            put_types(out, prop::WRITE_ACTIONS + miss, actions(version));
            put_fields(out, prop::WRITE_SETFIELD + miss, version, writable());
            put_types(out, prop::APPLY_ACTIONS + miss, actions(version));
            put_fields(out, prop::APPLY_SETFIELD + miss, version, writable());
        }
        let masked = |f: FieldId| (f, f.info().maskable == Maskable::Any);
        put_fields(out, prop::MATCH, version, matchable().map(masked));
        put_fields(out, prop::WILDCARDS, version, matchable().map(|f| (f, false)));
    }
    out.patch_len(start, 0);
}

/// Whether a list of types (of instructions, of actions) has only these.
fn known_types(list: &[u8], bits: u32) -> Result<bool, ErrorKind> {
    let mut r = Reader(list);
    let mut all = true;
    while !r.is_empty() {
        let p = property::pull_with(&mut r, 1, 0xffff)?;
        all &= p.experimenter.is_none() && 1u32.checked_shl(p.ty.into()).unwrap_or(0) & bits != 0;
    }
    Ok(all)
}

/// Whether a list of OXM headers has only fields that are known.
fn known_fields(list: &[u8]) -> Result<bool, ErrorKind> {
    let mut r = Reader(list);
    let mut all = true;
    while !r.is_empty() {
        let short = |_| ErrorKind::BadPropertyBadLen;
        let (class, field) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
        let experimenter = if class == 0xffff {
            r.u32().map_err(short)?
        } else {
            0
        };
        let number = u8::try_from(field >> 9).expect("seven bits");
        all &= FieldId::by_oxm(class, number, experimenter).is_some()
            || heddle_flow::field::tlv::index_of_header(class, number).is_some();
    }
    Ok(all)
}

pub(super) fn pull_features(version: Version, r: &mut Reader<'_>) -> Result<TableFeatures, ErrorKind> {
    /// Properties that must be there, where there must be any: all but those for misses.
    const REQUIRED: u32 = 1 << prop::INSTRUCTIONS
        | 1 << prop::NEXT_TABLES
        | 1 << prop::WRITE_ACTIONS
        | 1 << prop::APPLY_ACTIONS
        | 1 << prop::MATCH
        | 1 << prop::WILDCARDS
        | 1 << prop::WRITE_SETFIELD
        | 1 << prop::APPLY_SETFIELD;
    let bad_len = |_| ErrorKind::BadPropertyBadLen;
    let len = { *r }.u16().map_err(bad_len)?;
    if len % 8 != 0 {
        return Err(ErrorKind::BadPropertyBadLen);
    }
    let mut body = Reader(r.bytes(len.into()).map_err(bad_len)?);
    body.skip(2).map_err(bad_len)?;
    let mut t = TableFeatures {
        table_id: body.u8().map_err(bad_len)?,
        ..TableFeatures::default()
    };
    let command = body.u8().map_err(bad_len)?;
    body.skip(4).map_err(bad_len)?;
    t.name = body.text(NAME_LEN).map_err(bad_len)?;
    t.metadata_match = body.u64().map_err(bad_len)?;
    t.metadata_write = body.u64().map_err(bad_len)?;
    let caps = body.u32().map_err(bad_len)?;
    t.max_entries = body.u32().map_err(bad_len)?;
    if version >= Version::V15 {
        t.command = match command {
            0 => TableFeaturesCommand::Replace,
            1 => TableFeaturesCommand::Modify,
            2 => TableFeaturesCommand::Enable,
            3 => TableFeaturesCommand::Disable,
            _ => return Err(ErrorKind::TableFeaturesFailedBadCommand),
        };
    }
    if t.table_id == 0xff {
        return Err(ErrorKind::TableFeaturesFailedBadTable);
    }
    if version >= Version::V14 {
        (t.eviction, t.vacancy) = (caps & EVICTION != 0, caps & VACANCY != 0);
    }
    t.any_properties = !body.is_empty();
    let mut seen = 0u32;
    while !body.is_empty() {
        let p = property::pull_with(&mut body, 8, 0xfffe)?;
        let ty = p.standard()?;
        let bit = 1u32.checked_shl(ty.into()).unwrap_or(0);
        if seen & bit != 0 {
            return Err(ErrorKind::TableFeaturesFailedBadFeatures);
        }
        seen |= bit;
        // A property for misses is its twin's number plus one; match and wildcards (8, 10) have no twins (9,
        // 11).
        match ty & !1 {
            prop::NEXT_TABLES if ty == prop::NEXT_TABLES => t.next = p.body.to_vec(),
            prop::NEXT_TABLES => {}
            prop::INSTRUCTIONS => t.unknown |= !known_types(p.body, instructions(version, false))?,
            prop::WRITE_ACTIONS | prop::APPLY_ACTIONS => t.unknown |= !known_types(p.body, actions(version))?,
            prop::MATCH | prop::WILDCARDS if ty % 2 == 0 => t.unknown |= !known_fields(p.body)?,
            prop::WRITE_SETFIELD | prop::APPLY_SETFIELD => t.unknown |= !known_fields(p.body)?,
            _ => return Err(ErrorKind::BadPropertyBadType),
        }
    }
    let must = t.any_properties || version < Version::V15;
    if must && seen & REQUIRED != REQUIRED {
        return Err(ErrorKind::TableFeaturesFailedBadFeatures);
    }
    Ok(t)
}

/// Bits of OXM fields of the basic class, as 1.2's table counters have them.
fn oxm_bits(fields: impl Iterator<Item = FieldId>) -> u64 {
    fields
        .filter_map(|f| f.header(Version::V12.wire()))
        .filter(|h| h.class == 0x8000 && h.field < 64)
        .fold(0, |bits, h| bits | 1 << h.field)
}

pub(super) fn put_stats(version: Version, t: &TableStats, last: bool, out: &mut Vec<u8>) {
    out.u8(t.table_id);
    match version {
        Version::V10 => {
            out.zeros(3);
            out.text(&t.name, NAME_LEN);
            out.u32((1 << 22) - 1);
            out.u32(t.max_entries);
        }
        Version::V11 => {
            /// All fields of the standard match (bit 10, its type, is none).
            const FIELDS: u32 = 0xfbff;
            out.zeros(7);
            out.text(&t.name, NAME_LEN);
            out.u32(FIELDS);
            out.u32(FIELDS);
            out.u32(instructions(version, last));
            out.u32(actions(version));
            out.u32(actions(version));
            out.u32(0);
            out.u32(t.max_entries);
        }
        Version::V12 => {
            out.zeros(7);
            out.text(&t.name, NAME_LEN);
            out.u64(oxm_bits(matchable()));
            out.u64(oxm_bits(matchable()));
            out.u32(actions(version));
            out.u32(actions(version));
            out.u64(oxm_bits(writable().map(|f| f.0)));
            out.u64(oxm_bits(writable().map(|f| f.0)));
            out.u64(u64::MAX);
            out.u64(u64::MAX);
            out.u32(instructions(version, last));
            out.u32(0);
            out.u32(t.max_entries);
        }
        Version::V13 | Version::V14 | Version::V15 => out.zeros(3),
    }
    out.u32(t.active_count);
    out.u64(t.lookup_count);
    out.u64(t.matched_count);
}

pub(super) fn pull_stats(version: Version, r: &mut Reader<'_>) -> Result<TableStats, ErrorKind> {
    let mut t = TableStats {
        table_id: r.u8()?,
        ..TableStats::default()
    };
    match version {
        Version::V10 => {
            r.skip(3)?;
            t.name = r.text(NAME_LEN)?;
            r.skip(4)?;
            t.max_entries = r.u32()?;
        }
        Version::V11 => {
            r.skip(7)?;
            t.name = r.text(NAME_LEN)?;
            r.skip(24)?;
            t.max_entries = r.u32()?;
        }
        Version::V12 => {
            r.skip(7)?;
            t.name = r.text(NAME_LEN)?;
            r.skip(64)?;
            t.max_entries = r.u32()?;
        }
        Version::V13 | Version::V14 | Version::V15 => r.skip(3)?,
    }
    t.active_count = r.u32()?;
    (t.lookup_count, t.matched_count) = (r.u64()?, r.u64()?);
    Ok(t)
}
