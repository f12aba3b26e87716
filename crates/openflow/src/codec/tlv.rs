//! `NXT_TLV_TABLE_MOD` and `NXT_TLV_TABLE_REPLY` behind their headers.
//!
//! ```text
//! mod:   | command 16 | zero 48 | mapping ... |
//! reply: | most bytes 32 | most fields 16 | zero 80 | mapping ... |
//! mapping: | class 16 | type 8 | length 8 | field 16 | zero 16 |
//! ```

use crate::error::ErrorKind;
use crate::message::{TlvCommand, TlvTable, TlvTableMod};
use crate::wire::cursor::{Put, Reader};
use heddle_flow::field::tlv::{MAX_TLV_LEN, N_TLV, TlvMapping};

pub(super) fn decode_mod(mut r: Reader<'_>) -> Result<TlvTableMod, ErrorKind> {
    let command = r.u16()?;
    r.skip(6)?;
    well_framed(&r)?;
    let command = match command {
        0 => TlvCommand::Add,
        1 => TlvCommand::Delete,
        2 => TlvCommand::Clear,
        _ => return Err(ErrorKind::TlvTableModFailedBadCommand),
    };
    let mappings = decode_mappings(r, N_TLV)?;
    Ok(TlvTableMod { command, mappings })
}

pub(super) fn decode_table(mut r: Reader<'_>) -> Result<TlvTable, ErrorKind> {
    let (max_option_space, max_fields) = (r.u32()?, r.u16()?);
    r.skip(10)?;
    well_framed(&r)?;
    Ok(TlvTable {
        max_option_space,
        max_fields,
        mappings: decode_mappings(r, max_fields.into())?,
    })
}

/// Checks that the rest is a list of mappings of eight bytes each.
fn well_framed(r: &Reader<'_>) -> Result<(), ErrorKind> {
    if r.len().is_multiple_of(8) {
        Ok(())
    } else {
        Err(ErrorKind::BadRequestBadLen)
    }
}

fn decode_mappings(mut r: Reader<'_>, max_fields: usize) -> Result<Vec<TlvMapping>, ErrorKind> {
    let mut all = Vec::with_capacity(r.len() / 8);
    while !r.is_empty() {
        let (class, ty, len, index) = (r.u16()?, r.u8()?, r.u8()?, r.u16()?);
        r.skip(2)?;
        if len % 4 != 0 || len > MAX_TLV_LEN {
            return Err(ErrorKind::TlvTableModFailedBadOptLen);
        }
        let index = u8::try_from(index).ok().filter(|i| usize::from(*i) < max_fields);
        all.push(TlvMapping {
            class,
            ty,
            len,
            index: index.ok_or(ErrorKind::TlvTableModFailedBadFieldIdx)?,
        });
    }
    Ok(all)
}

pub(super) fn encode_mod(m: &TlvTableMod, out: &mut Vec<u8>) {
    out.u16(match m.command {
        TlvCommand::Add => 0,
        TlvCommand::Delete => 1,
        TlvCommand::Clear => 2,
    });
    out.zeros(6);
    encode_mappings(&m.mappings, out);
}

pub(super) fn encode_table(t: &TlvTable, out: &mut Vec<u8>) {
    out.u32(t.max_option_space);
    out.u16(t.max_fields);
    out.zeros(10);
    encode_mappings(&t.mappings, out);
}

fn encode_mappings(mappings: &[TlvMapping], out: &mut Vec<u8>) {
    for m in mappings {
        out.u16(m.class);
        out.put(&[m.ty, m.len]);
        out.u16(m.index.into());
        out.zeros(2);
    }
}
