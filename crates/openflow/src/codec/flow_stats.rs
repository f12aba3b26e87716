//! Flow and aggregate statistics.

use super::flow_mod::{flags_from_reply, flags_to_wire};
use super::flow_removed::unknown_to_zero;
use super::matches;
use super::oxs::{self, Oxs, known};
use crate::action::InstructionSet;
use crate::actions::{decode_instructions, encode_instructions};
use crate::error::{EncodeError, ErrorKind};
use crate::message::{AggregateStats, FlowModFlags, FlowStats, FlowStatsRequest, GROUP_ANY};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::{port_from_u16, port_from_u32, port_to_u16};
use heddle_flow::Match;

/// Reads a request for flows or sums; `nxm` for Nicira's.
pub(super) fn decode_request(
    version: Version,
    nxm: bool,
    mut r: Reader<'_>,
) -> Result<FlowStatsRequest, ErrorKind> {
    let mut q = FlowStatsRequest {
        match_: Match::any(),
        table_id: 0xff,
        out_port: crate::action::Port::NONE,
        out_group: GROUP_ANY,
        cookie: 0,
        cookie_mask: 0,
        nxm,
    };
    if nxm {
        q.out_port = port_from_u16(r.u16()?);
        let len = r.u16()?;
        q.table_id = r.u8()?;
        r.skip(3)?;
        (q.match_, (q.cookie, q.cookie_mask)) = matches::pull_nx(&mut r, len, true, true)?;
    } else if version == Version::V10 {
        q.match_ = matches::pull_10(&mut r)?.0;
        q.table_id = r.u8()?;
        r.skip(1)?;
        q.out_port = port_from_u16(r.u16()?);
    } else {
        q.table_id = r.u8()?;
        r.skip(3)?;
        q.out_port = port_from_u32(r.u32()?)?;
        q.out_group = r.u32()?;
        r.skip(4)?;
        (q.cookie, q.cookie_mask) = (r.u64()?, r.u64()?);
        q.match_ = matches::pull(&mut r, true)?;
    }
    if r.is_empty() {
        Ok(q)
    } else {
        Err(ErrorKind::BadRequestBadLen)
    }
}

pub(super) fn encode_request(version: Version, q: &FlowStatsRequest, out: &mut Vec<u8>) {
    if q.nxm {
        out.u16(port_to_u16(q.out_port));
        let at = out.end();
        out.zeros(2);
        out.u8(q.table_id);
        out.zeros(3);
        let len = matches::put_nx(out, &q.match_, (q.cookie, q.cookie_mask));
        out.patch(at, &len.to_be_bytes());
    } else if version == Version::V10 {
        matches::put_10(out, &q.match_);
        out.u8(q.table_id);
        out.zeros(1);
        out.u16(port_to_u16(q.out_port));
    } else {
        out.u8(q.table_id);
        out.zeros(3);
        out.u32(q.out_port.0);
        out.u32(q.out_group);
        out.zeros(4);
        out.u64(q.cookie);
        out.u64(q.cookie_mask);
        matches::put(out, version, &q.match_);
    }
}

/// An age in Nicira's form: one more than it is, zero meaning unknown.
fn age_to_wire(age: Option<u16>) -> u16 {
    age.map_or(0, |a| a.saturating_add(1))
}

/// Writes one flow.
pub(super) fn put(version: Version, nxm: bool, s: &FlowStats, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.end();
    out.zeros(2);
    let flags = flags_to_wire(s.flags, version);
    if version == Version::V15 {
        out.zeros(2);
        out.u8(s.table_id);
        out.zeros(1);
        out.u16(s.priority);
        out.u16(s.idle_timeout);
        out.u16(s.hard_timeout);
        out.u16(flags);
        out.u16(s.importance);
        out.u64(s.cookie);
        matches::put_oxm(out, version, &s.match_);
        let stats = Oxs {
            duration: Some((s.duration_sec, s.duration_nsec)),
            idle_sec: s.idle_age.map(u32::from),
            packets: known(s.packet_count),
            bytes: known(s.byte_count),
            flows: None,
        };
        oxs::put(out, &stats);
    } else {
        out.u8(s.table_id);
        out.zeros(1);
        let plain_10 = version == Version::V10 && !nxm;
        if plain_10 {
            matches::put_10(out, &s.match_);
        }
        out.u32(s.duration_sec);
        out.u32(s.duration_nsec);
        out.u16(s.priority);
        out.u16(s.idle_timeout);
        out.u16(s.hard_timeout);
        let at = out.end();
        if nxm {
            out.zeros(2);
            out.u16(age_to_wire(s.idle_age));
            out.u16(age_to_wire(s.hard_age));
        } else if plain_10 {
            out.zeros(6);
        } else {
            out.u16(if version >= Version::V13 { flags } else { 0 });
            out.u16(if version >= Version::V14 { s.importance } else { 0 });
            out.zeros(2);
        }
        out.u64(s.cookie);
        let count = |v| if nxm { v } else { unknown_to_zero(v) };
        out.u64(count(s.packet_count));
        out.u64(count(s.byte_count));
        if nxm {
            let len = matches::put_nx(out, &s.match_, (0, 0));
            out.patch(at, &len.to_be_bytes());
        } else if !plain_10 {
            matches::put_oxm(out, version, &s.match_);
        }
    }
    encode_instructions(version, &s.match_, &s.instructions, out)?;
    out.patch_len(start, 0);
    Ok(())
}

/// Reads one flow.
pub(super) fn pull(version: Version, nxm: bool, r: &mut Reader<'_>) -> Result<FlowStats, ErrorKind> {
    let len = { *r }.u16()?;
    let mut r = Reader(r.bytes(len.into())?);
    r.skip(2)?;
    let mut s = FlowStats {
        table_id: 0,
        match_: Match::any(),
        priority: 0,
        cookie: 0,
        duration_sec: 0,
        duration_nsec: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        idle_age: None,
        hard_age: None,
        flags: FlowModFlags::empty(),
        importance: 0,
        packet_count: u64::MAX,
        byte_count: u64::MAX,
        instructions: InstructionSet::default(),
    };
    if version == Version::V15 {
        r.skip(2)?;
        s.table_id = r.u8()?;
        r.skip(1)?;
        s.priority = r.u16()?;
        (s.idle_timeout, s.hard_timeout) = (r.u16()?, r.u16()?);
        s.flags = flags_from_reply(r.u16()?, version);
        s.importance = r.u16()?;
        s.cookie = r.u64()?;
        s.match_ = matches::pull(&mut r, false)?;
        let o = oxs::pull(&mut r)?;
        (s.duration_sec, s.duration_nsec) = o.duration.unwrap_or_default();
        s.idle_age = o.idle_sec.map(|v| u16::try_from(v).unwrap_or(u16::MAX));
        s.packet_count = o.packets.unwrap_or(u64::MAX);
        s.byte_count = o.bytes.unwrap_or(u64::MAX);
    } else {
        s.table_id = r.u8()?;
        r.skip(1)?;
        let plain_10 = version == Version::V10 && !nxm;
        if plain_10 {
            s.match_ = matches::pull_10(&mut r)?.0;
        }
        (s.duration_sec, s.duration_nsec) = (r.u32()?, r.u32()?);
        s.priority = r.u16()?;
        (s.idle_timeout, s.hard_timeout) = (r.u16()?, r.u16()?);
        let (a, b, c) = (r.u16()?, r.u16()?, r.u16()?);
        s.cookie = r.u64()?;
        (s.packet_count, s.byte_count) = (r.u64()?, r.u64()?);
        if nxm {
            (s.idle_age, s.hard_age) = (b.checked_sub(1), c.checked_sub(1));
            s.match_ = matches::pull_nx(&mut r, a, false, false)?.0;
        } else if !plain_10 {
            s.flags = flags_from_reply(a, version);
            s.importance = if version >= Version::V14 { b } else { 0 };
            s.match_ = matches::pull(&mut r, false)?;
        }
    }
    s.instructions = decode_instructions(version, r.0)?;
    Ok(s)
}

/// Writes sums.
pub(super) fn put_aggregate(version: Version, s: &AggregateStats, out: &mut Vec<u8>) {
    if version == Version::V15 {
        let stats = Oxs {
            packets: known(s.packet_count),
            bytes: known(s.byte_count),
            flows: Some(s.flow_count),
            ..Oxs::default()
        };
        oxs::put(out, &stats);
        return;
    }
    out.u64(unknown_to_zero(s.packet_count));
    out.u64(unknown_to_zero(s.byte_count));
    out.u32(s.flow_count);
    out.zeros(4);
}

/// Reads sums.
pub(super) fn pull_aggregate(version: Version, r: &mut Reader<'_>) -> Result<AggregateStats, ErrorKind> {
    if version == Version::V15 {
        let o = oxs::pull(r)?;
        return Ok(AggregateStats {
            packet_count: o.packets.unwrap_or(u64::MAX),
            byte_count: o.bytes.unwrap_or(u64::MAX),
            flow_count: o.flows.unwrap_or(0),
        });
    }
    let s = AggregateStats {
        packet_count: r.u64()?,
        byte_count: r.u64()?,
        flow_count: r.u32()?,
    };
    r.skip(4)?;
    Ok(s)
}
