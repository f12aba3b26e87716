//! Flow-removed messages: 1.0's, Nicira's, 1.1's to 1.4's, and 1.5's.

use super::matches;
use super::oxs::{self, Oxs, known};
use crate::error::ErrorKind;
use crate::message::{FlowRemoved, FlowRemovedReason};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use heddle_flow::Match;

/// Bytes from the cookie to the byte count.
const FIXED_LEN: usize = 40;

/// The number of a reason in a version; a reason without a number becomes a deletion.
fn reason_to_wire(r: FlowRemovedReason, version: Version) -> u8 {
    let least = match r {
        FlowRemovedReason::IdleTimeout | FlowRemovedReason::HardTimeout | FlowRemovedReason::Delete => {
            Version::V10
        }
        FlowRemovedReason::GroupDelete => Version::V11,
        FlowRemovedReason::MeterDelete | FlowRemovedReason::Eviction => Version::V14,
    };
    if version >= least {
        r as u8
    } else {
        FlowRemovedReason::Delete as u8
    }
}

fn reason_from_wire(v: u8) -> Result<FlowRemovedReason, ErrorKind> {
    Ok(match v {
        0 => FlowRemovedReason::IdleTimeout,
        1 => FlowRemovedReason::HardTimeout,
        2 => FlowRemovedReason::Delete,
        3 => FlowRemovedReason::GroupDelete,
        4 => FlowRemovedReason::MeterDelete,
        5 => FlowRemovedReason::Eviction,
        _ => return Err(ErrorKind::BadRequestBadReason),
    })
}

/// Zero for an unknown counter, in versions that have no value for unknown.
pub(super) fn unknown_to_zero(v: u64) -> u64 {
    if v == u64::MAX { 0 } else { v }
}

pub(super) fn encode(version: Version, f: &FlowRemoved, out: &mut Vec<u8>) {
    let reason = reason_to_wire(f.reason, version);
    if version == Version::V15 {
        out.u8(f.table_id.unwrap_or(0xff));
        out.u8(reason);
        out.u16(f.priority);
        out.u16(f.idle_timeout);
        out.u16(f.hard_timeout);
        out.u64(f.cookie);
        matches::put_oxm(out, version, &f.match_);
        let stats = Oxs {
            duration: Some((f.duration_sec, f.duration_nsec)),
            packets: known(f.packet_count),
            bytes: known(f.byte_count),
            ..Oxs::default()
        };
        oxs::put(out, &stats);
        return;
    }
    let plain_10 = version == Version::V10 && !f.nxm;
    if plain_10 {
        matches::put_10(out, &f.match_);
    }
    out.u64(f.cookie);
    out.u16(f.priority);
    out.u8(reason);
    out.u8(match f.table_id {
        _ if plain_10 => 0,
        // Nicira's message counts tables from one; zero means unknown.
        t if f.nxm => t.map_or(0, |t| t.wrapping_add(1)),
        t => t.unwrap_or(0xff),
    });
    out.u32(f.duration_sec);
    out.u32(f.duration_nsec);
    out.u16(f.idle_timeout);
    let at = out.end();
    out.u16(if plain_10 || f.nxm { 0 } else { f.hard_timeout });
    if f.nxm {
        out.u64(f.packet_count);
        out.u64(f.byte_count);
        let len = matches::put_nx(out, &f.match_, (0, 0));
        out.patch(at, &len.to_be_bytes());
        return;
    }
    out.u64(unknown_to_zero(f.packet_count));
    out.u64(unknown_to_zero(f.byte_count));
    if !plain_10 {
        matches::put(out, version, &f.match_);
    }
}

fn empty() -> FlowRemoved {
    FlowRemoved {
        match_: Match::any(),
        priority: 0,
        cookie: 0,
        reason: FlowRemovedReason::Delete,
        table_id: None,
        duration_sec: 0,
        duration_nsec: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        packet_count: u64::MAX,
        byte_count: u64::MAX,
        nxm: false,
    }
}

/// Reads a body; `nxm` for Nicira's.
pub(super) fn decode(version: Version, nxm: bool, mut r: Reader<'_>) -> Result<FlowRemoved, ErrorKind> {
    let mut f = FlowRemoved { nxm, ..empty() };
    if version == Version::V15 && !nxm {
        f.table_id = Some(r.u8()?);
        f.reason = reason_from_wire(r.u8()?)?;
        f.priority = r.u16()?;
        (f.idle_timeout, f.hard_timeout) = (r.u16()?, r.u16()?);
        f.cookie = r.u64()?;
        f.match_ = matches::pull(&mut r, false)?;
        let s = oxs::pull(&mut r)?;
        (f.duration_sec, f.duration_nsec) = s.duration.unwrap_or_default();
        f.packet_count = s.packets.unwrap_or(u64::MAX);
        f.byte_count = s.bytes.unwrap_or(u64::MAX);
        return Ok(f);
    }
    let plain_10 = version == Version::V10 && !nxm;
    if plain_10 {
        f.match_ = matches::pull_10(&mut r)?.0;
    }
    // A truncated message gets this error before any other.
    if r.len() < FIXED_LEN {
        return Err(ErrorKind::BadRequestBadLen);
    }
    f.cookie = r.u64()?;
    f.priority = r.u16()?;
    f.reason = reason_from_wire(r.u8()?)?;
    let table = r.u8()?;
    f.table_id = match table {
        _ if plain_10 => None,
        t if nxm => t.checked_sub(1),
        t => Some(t),
    };
    (f.duration_sec, f.duration_nsec) = (r.u32()?, r.u32()?);
    f.idle_timeout = r.u16()?;
    let other = r.u16()?;
    (f.packet_count, f.byte_count) = (r.u64()?, r.u64()?);
    if nxm {
        f.match_ = matches::pull_nx(&mut r, other, false, false)?.0;
    } else if !plain_10 {
        f.hard_timeout = other;
        f.match_ = matches::pull(&mut r, false)?;
    }
    Ok(f)
}
