//! Packet-ins and packet-outs.

use super::matches;
use crate::action::Port;
use crate::actions::{Encoder, ListKind, decode_list, verify_actions};
use crate::error::{EncodeError, ErrorKind};
use crate::message::{PacketIn, PacketInFormat, PacketInReason, PacketOut};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::{port_from_u16, port_from_u32, port_to_u16};
use crate::wire::property;
use heddle_flow::{FieldId, FieldValue, Match};

/// Properties of `NXT_PACKET_IN2`.
mod pin2 {
    pub(super) const PACKET: u16 = 0;
    pub(super) const FULL_LEN: u16 = 1;
    pub(super) const BUFFER_ID: u16 = 2;
    pub(super) const TABLE_ID: u16 = 3;
    pub(super) const COOKIE: u16 = 4;
    pub(super) const REASON: u16 = 5;
    pub(super) const METADATA: u16 = 6;
    pub(super) const USERDATA: u16 = 7;
    pub(super) const CONTINUATION: u16 = 8;
}

/// The number of a reason in a version: later reasons refine "an action" and "no match".
fn reason_to_wire(r: PacketInReason, version: Version) -> u8 {
    use PacketInReason as R;
    (match r {
        R::NoMatch | R::Action | R::InvalidTtl => r,
        R::ActionSet | R::Group | R::PacketOut if version < Version::V14 => R::Action,
        R::ActionSet | R::Group | R::PacketOut => r,
        R::ExplicitMiss if version < Version::V13 => R::Action,
        R::ExplicitMiss | R::ImplicitMiss => R::NoMatch,
    }) as u8
}

fn reason_from_wire(v: u8) -> Result<PacketInReason, ErrorKind> {
    use PacketInReason as R;
    Ok(match v {
        0 => R::NoMatch,
        1 => R::Action,
        2 => R::InvalidTtl,
        3 => R::ActionSet,
        4 => R::Group,
        5 => R::PacketOut,
        _ => return Err(ErrorKind::BadRequestBadReason),
    })
}

fn buffer(v: u32) -> Option<u32> {
    (v != u32::MAX).then_some(v)
}

/// The input port that a match names; keys hold ports as 1.0 writes them.
fn key_port(m: &Match) -> Port {
    Port(heddle_flow::field::port_to_32(m.key.in_port))
}

fn in_port_match(port: Port) -> Match {
    let mut m = Match::any();
    m.set_field(FieldId::InPortOxm, FieldValue::from_u64(port.0.into()), None);
    m.mask.0.packet_type = u32::MAX;
    m
}

/// Writes the body of the version's own packet-in (`nxt`: of `NXT_PACKET_IN`).
pub(super) fn encode_in(version: Version, nxt: bool, p: &PacketIn, out: &mut Vec<u8>) {
    let reason = reason_to_wire(p.reason, version);
    let total_len = u16::try_from(p.total_len).unwrap_or(u16::MAX);
    out.u32(p.buffer_id.unwrap_or(u32::MAX));
    match version {
        _ if nxt => {
            out.u16(total_len);
            out.u8(reason);
            out.u8(p.table_id);
            out.u64(p.cookie);
            let at = out.end();
            out.zeros(8);
            let len = matches::put_nx(out, &p.metadata, (0, 0));
            out.patch(at, &len.to_be_bytes());
            out.zeros(2);
        }
        Version::V10 => {
            out.u16(total_len);
            out.u16(port_to_u16(key_port(&p.metadata)));
            out.u8(reason);
            out.zeros(1);
        }
        Version::V11 => {
            out.u32(key_port(&p.metadata).0);
            out.u32(key_port(&p.metadata).0);
            out.u16(total_len);
            out.u8(reason);
            out.u8(p.table_id);
        }
        _ => {
            out.u16(total_len);
            out.u8(reason);
            out.u8(p.table_id);
            if version >= Version::V13 {
                out.u64(p.cookie);
            }
            matches::put_oxm(out, version, &p.metadata);
            out.zeros(2);
        }
    }
    out.put(&p.data);
}

/// Writes the body of `NXT_PACKET_IN2`.
pub(super) fn encode_in2(version: Version, p: &PacketIn, out: &mut Vec<u8>) {
    property::put(out, pin2::PACKET, &p.data);
    if usize::try_from(p.total_len) != Ok(p.data.len()) {
        property::put(out, pin2::FULL_LEN, &p.total_len.to_be_bytes());
    }
    if let Some(id) = p.buffer_id {
        property::put(out, pin2::BUFFER_ID, &id.to_be_bytes());
    }
    property::put(out, pin2::TABLE_ID, &[p.table_id]);
    if p.cookie != u64::MAX {
        let start = property::begin(out, pin2::COOKIE);
        out.zeros(4);
        out.u64(p.cookie);
        property::finish(out, start);
    }
    property::put(out, pin2::REASON, &[reason_to_wire(p.reason, version)]);
    let start = property::begin(out, pin2::METADATA);
    let form = heddle_flow::oxm::MatchForm::Oxm(version.wire());
    heddle_flow::oxm::put_match(&p.metadata, form, out);
    property::finish(out, start);
    if !p.userdata.is_empty() {
        property::put(out, pin2::USERDATA, &p.userdata);
    }
    if !p.continuation.is_empty() {
        // Nested properties start on a multiple of eight bytes.
        let start = property::begin(out, pin2::CONTINUATION);
        out.zeros(4);
        out.put(&p.continuation);
        property::finish(out, start);
    }
}

fn empty_in(format: PacketInFormat) -> PacketIn {
    PacketIn {
        format,
        data: Vec::new(),
        total_len: 0,
        buffer_id: None,
        reason: PacketInReason::Action,
        table_id: 0,
        cookie: u64::MAX,
        metadata: Match::any(),
        userdata: Vec::new(),
        continuation: Vec::new(),
    }
}

/// Reads the body of the version's own packet-in (`nxt`: of `NXT_PACKET_IN`).
pub(super) fn decode_in(version: Version, nxt: bool, mut r: Reader<'_>) -> Result<PacketIn, ErrorKind> {
    let mut p = empty_in(if nxt {
        PacketInFormat::Nxt
    } else {
        PacketInFormat::Standard
    });
    p.buffer_id = buffer(r.u32()?);
    if version == Version::V11 && !nxt {
        p.metadata = in_port_match(port_from_u32(r.u32()?)?);
        r.skip(4)?;
    }
    p.total_len = r.u16()?.into();
    if version == Version::V10 && !nxt {
        p.metadata = in_port_match(port_from_u16(r.u16()?));
    }
    p.reason = reason_from_wire(r.u8()?)?;
    p.table_id = r.u8()?;
    if nxt || version >= Version::V13 {
        p.cookie = r.u64()?;
    }
    if nxt {
        let len = r.u16()?;
        r.skip(6)?;
        p.metadata = matches::pull_nx(&mut r, len, false, false)?.0;
        r.skip(2)?;
    } else if version >= Version::V12 {
        p.metadata = matches::pull(&mut r, false)?;
        r.skip(2)?;
    }
    p.data = r.rest().to_vec();
    Ok(p)
}

/// Reads the body of `NXT_PACKET_IN2`.
pub(super) fn decode_in2(mut r: Reader<'_>) -> Result<PacketIn, ErrorKind> {
    let mut p = empty_in(PacketInFormat::Nxt2);
    let mut full_len = None;
    while !r.is_empty() {
        let prop = property::pull(&mut r)?;
        match prop.standard()? {
            pin2::PACKET => p.data = prop.body.to_vec(),
            pin2::FULL_LEN => full_len = Some(prop.u32()?),
            pin2::BUFFER_ID => p.buffer_id = buffer(prop.u32()?),
            pin2::TABLE_ID => p.table_id = prop.u8()?,
            pin2::COOKIE => p.cookie = prop.u64()?,
            pin2::REASON => p.reason = reason_from_wire(prop.u8()?)?,
            pin2::METADATA => p.metadata = heddle_flow::oxm::pull_match(prop.body, false)?,
            pin2::USERDATA => p.userdata = prop.body.to_vec(),
            pin2::CONTINUATION => p.continuation = prop.nested()?.to_vec(),
            _ => return Err(ErrorKind::BadPropertyBadType),
        }
    }
    let have = u32::try_from(p.data.len()).unwrap_or(u32::MAX);
    p.total_len = full_len.unwrap_or(have);
    Ok(p)
}

/// Reads a packet-out.
pub(super) fn decode_out(version: Version, mut r: Reader<'_>) -> Result<PacketOut, ErrorKind> {
    let buffer_id = buffer(r.u32()?);
    let (metadata, actions_len) = match version {
        Version::V10 => {
            let port = port_from_u16(r.u16()?);
            (in_port_match(port), r.u16()?)
        }
        Version::V15 => {
            let len = r.u16()?;
            r.skip(2)?;
            (pipeline_match(&mut r)?, len)
        }
        _ => {
            let port = port_from_u32(r.u32()?)?;
            let len = r.u16()?;
            r.skip(6)?;
            (in_port_match(port), len)
        }
    };
    if actions_len % 8 != 0 {
        return Err(ErrorKind::BadRequestBadLen);
    }
    let actions = decode_list(version, r.bytes(actions_len.into())?, 0)?;
    verify_actions(&actions, version, ListKind::Top)?;
    let in_port = key_port(&metadata);
    if in_port > Port::MAX && !matches!(in_port, Port::LOCAL | Port::NONE | Port::CONTROLLER) {
        return Err(ErrorKind::BadRequestBadPort);
    }
    let data = if buffer_id.is_none() {
        r.rest().to_vec()
    } else {
        Vec::new()
    };
    Ok(PacketOut {
        metadata,
        buffer_id,
        actions,
        data,
    })
}

/// 1.5: a match on pipeline fields only, with the packet's state, and nothing about its headers.
fn pipeline_match(r: &mut Reader<'_>) -> Result<Match, ErrorKind> {
    let m = matches::pull(r, false)?;
    if m.mask.0.in_port == 0 {
        return Err(ErrorKind::BadRequestBadPort);
    }
    let headers = FieldId::ALL.iter().filter(|f| !is_pipeline(**f));
    if headers.into_iter().any(|f| m.has_field(*f)) {
        return Err(ErrorKind::BadRequestPipelineFieldsOnly);
    }
    Ok(m)
}

/// Whether a field is one that a packet-out may set (OpenFlow 1.5 §7.2.3.9, with Nicira's registers).
fn is_pipeline(f: FieldId) -> bool {
    use FieldId::{InPort, InPortOxm, Metadata, PacketType, Reg0, Xxreg3};
    let tunnel = f.name().starts_with("tun_") && !matches!(f, FieldId::TunTtl | FieldId::TunTos);
    tunnel || matches!(f, InPort | InPortOxm | Metadata | PacketType) || (Reg0..=Xxreg3).contains(&f)
}

/// Writes a packet-out.
pub(super) fn encode_out(version: Version, p: &PacketOut, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    out.u32(p.buffer_id.unwrap_or(u32::MAX));
    let in_port = p.in_port();
    let len_at;
    match version {
        Version::V10 => {
            out.u16(port_to_u16(in_port));
            len_at = out.end();
            out.zeros(2);
        }
        Version::V15 => {
            len_at = out.end();
            out.zeros(4);
            matches::put_oxm(out, version, &p.metadata);
        }
        _ => {
            out.u32(in_port.0);
            len_at = out.end();
            out.zeros(8);
        }
    }
    let start = out.end();
    Encoder::new(version, &Match::any()).list(&p.actions, out)?;
    let len = u16::try_from(out.end() - start).map_err(|_| EncodeError::TooLong("packet-out"))?;
    out.patch(len_at, &len.to_be_bytes());
    out.put(&p.data);
    Ok(())
}
