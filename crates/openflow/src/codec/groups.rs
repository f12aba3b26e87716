//! Group modifications, descriptions and statistics.
//!
//! 1.1 to 1.4 share one layout; 1.5 has numbered buckets with properties, and Nicira's extension gives the
//! same to 1.0. Bytes that are wrong in several ways get the error that Open vSwitch gives.

use crate::action::Port;
use crate::actions::{Encoder, ListKind, decode_list, pull_field_mask, put_field_mask, verify_actions};
use crate::error::{EncodeError, ErrorKind};
use crate::message::{
    BUCKET_ALL, BUCKET_FIRST, BUCKET_LAST, BUCKET_MAX, Bucket, GROUP_ANY, GroupCommand, GroupDesc, GroupMod,
    GroupStats, GroupType, Selection, SelectionMethod,
};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::port_from_u32;
use crate::wire::property::{self, Property};
use heddle_flow::Match;

/// Netronome's experimenter id, and the id that Open vSwitch 2.4 used in its place.
const NTR_VENDOR: u32 = 0x0000_154d;
const NTR_COMPAT_VENDOR: u32 = 0x0000_1540;
const NTRT_SELECTION_METHOD: u32 = 1;
const EXPERIMENTER: u16 = 0xffff;
/// Bytes of the method's name, the terminating zero included.
const METHOD_LEN: usize = 16;

/// Properties of a bucket (1.5).
const WEIGHT: u16 = 0;
const WATCH_PORT: u16 = 1;
const WATCH_GROUP: u16 = 2;

const BAD_BUCKET: ErrorKind = ErrorKind::GroupModFailedBadBucket;

/// Whether buckets have numbers and properties.
fn numbered(version: Version) -> bool {
    matches!(version, Version::V10 | Version::V15)
}

/// The command of a number. Bucket commands came with 1.5 but are understood everywhere.
fn command(number: u16) -> Option<GroupCommand> {
    Some(match number {
        0 => GroupCommand::Add,
        1 => GroupCommand::Modify,
        2 => GroupCommand::Delete,
        3 => GroupCommand::InsertBucket,
        5 => GroupCommand::RemoveBucket,
        0x8000 => GroupCommand::AddOrModify,
        _ => return None,
    })
}

fn command_number(c: GroupCommand) -> u16 {
    match c {
        GroupCommand::Add => 0,
        GroupCommand::Modify => 1,
        GroupCommand::Delete => 2,
        GroupCommand::InsertBucket => 3,
        GroupCommand::RemoveBucket => 5,
        GroupCommand::AddOrModify => 0x8000,
    }
}

fn group_type(number: u8) -> Option<GroupType> {
    GroupType::ALL.get(usize::from(number)).copied()
}

pub(super) fn decode_mod(version: Version, mut r: Reader<'_>) -> Result<GroupMod, ErrorKind> {
    let number = r.u16()?;
    let (ty_number, _) = (r.u8()?, r.u8()?);
    let group_id = r.u32()?;
    let (command, ty) = (command(number), group_type(ty_number));
    let mut command_bucket_id = BUCKET_ALL;
    let mut selection = None;
    let buckets;
    if numbered(version) {
        let array_len = usize::from(r.u16()?);
        r.skip(2)?;
        command_bucket_id = r.u32()?;
        if !names_bucket(command, command_bucket_id) {
            return Err(BAD_BUCKET);
        }
        buckets = pull_buckets_15(version, ty, Reader(r.bytes(array_len)?))?;
        selection = properties(r, ty, Some(command))?;
    } else {
        buckets = pull_buckets_11(version, r)?;
        // Prescribed since 1.3.5.
        if version >= Version::V13 && command == Some(GroupCommand::Delete) && !buckets.is_empty() {
            return Err(ErrorKind::GroupModFailedInvalidGroup);
        }
    }
    check(command, ty, &buckets)?;
    Ok(GroupMod {
        command: command.ok_or(ErrorKind::GroupModFailedBadCommand)?,
        ty: ty.ok_or(ErrorKind::GroupModFailedBadType)?,
        group_id,
        command_bucket_id,
        buckets,
        selection,
    })
}

/// Whether a command may name this bucket.
fn names_bucket(command: Option<GroupCommand>, id: u32) -> bool {
    let one = id <= BUCKET_MAX || id == BUCKET_FIRST || id == BUCKET_LAST;
    match command {
        Some(GroupCommand::InsertBucket) => one,
        Some(GroupCommand::RemoveBucket) => one || id == BUCKET_ALL,
        _ => id == BUCKET_ALL,
    }
}

/// Rules that do not depend on the groups that exist.
fn check(command: Option<GroupCommand>, ty: Option<GroupType>, buckets: &[Bucket]) -> Result<(), ErrorKind> {
    let Some(ty) = ty else {
        return Err(ErrorKind::GroupModFailedBadType);
    };
    if ty == GroupType::Indirect && command != Some(GroupCommand::Delete) && buckets.len() != 1 {
        return Err(ErrorKind::GroupModFailedInvalidGroup);
    }
    match command {
        None => return Err(ErrorKind::GroupModFailedBadCommand),
        Some(GroupCommand::RemoveBucket) if !buckets.is_empty() => return Err(BAD_BUCKET),
        _ => {}
    }
    for b in buckets {
        if b.weight != 0 && ty != GroupType::Select && command != Some(GroupCommand::InsertBucket) {
            return Err(ErrorKind::GroupModFailedInvalidGroup);
        }
        match ty {
            GroupType::All | GroupType::Indirect if b.has_liveness() => {
                return Err(ErrorKind::GroupModFailedWatchUnsupported);
            }
            GroupType::FastFailover if !b.has_liveness() => {
                return Err(ErrorKind::GroupModFailedInvalidGroup);
            }
            _ => {}
        }
    }
    Ok(())
}

fn pull_actions(version: Version, bytes: &[u8]) -> Result<Vec<crate::Action>, ErrorKind> {
    if !bytes.len().is_multiple_of(8) {
        return Err(ErrorKind::BadRequestBadLen);
    }
    let actions = decode_list(version, bytes, 0)?;
    verify_actions(&actions, version, ListKind::Top)?;
    Ok(actions)
}

fn pull_watch_port(number: u32) -> Result<Port, ErrorKind> {
    port_from_u32(number).map_err(|_| ErrorKind::GroupModFailedBadWatch)
}

fn pull_buckets_11(version: Version, mut r: Reader<'_>) -> Result<Vec<Bucket>, ErrorKind> {
    const HEAD: usize = 16;
    let bad = |_| BAD_BUCKET;
    let mut all: Vec<Bucket> = Vec::new();
    while !r.is_empty() {
        let mut head = r;
        let len = usize::from(head.u16().map_err(bad)?);
        if len < HEAD {
            return Err(BAD_BUCKET);
        }
        let mut b = Reader(r.bytes(len).map_err(bad)?);
        b.skip(2).map_err(bad)?;
        let weight = b.u16().map_err(bad)?;
        let (watch_port, watch_group) = (b.u32().map_err(bad)?, b.u32().map_err(bad)?);
        b.skip(4).map_err(bad)?;
        let actions = pull_actions(version, b.0)?;
        all.push(Bucket {
            id: u32::try_from(all.len()).map_err(|_| BAD_BUCKET)?,
            weight,
            watch_port: pull_watch_port(watch_port)?,
            watch_group,
            actions,
        });
    }
    Ok(all)
}

fn pull_buckets_15(
    version: Version,
    ty: Option<GroupType>,
    mut r: Reader<'_>,
) -> Result<Vec<Bucket>, ErrorKind> {
    const HEAD: usize = 8;
    let bad = |_| BAD_BUCKET;
    let mut all: Vec<Bucket> = Vec::new();
    while !r.is_empty() {
        let mut head = r;
        let (len, actions_len) = (head.u16().map_err(bad)?, head.u16().map_err(bad)?);
        let id = head.u32().map_err(bad)?;
        let (len, actions_len) = (usize::from(len), usize::from(actions_len));
        if len < HEAD {
            return Err(BAD_BUCKET);
        }
        let mut b = Reader(r.bytes(len).map_err(bad)?);
        b.skip(HEAD).map_err(bad)?;
        let actions = pull_actions(version, b.bytes(actions_len).map_err(bad)?)?;
        let mut weight = u16::from(ty == Some(GroupType::Select));
        let (mut watch_port, mut watch_group) = (Port::NONE.0, GROUP_ANY);
        while !b.is_empty() {
            let p = property::pull(&mut b)?;
            match p.standard()? {
                WEIGHT => weight = p.u16()?,
                WATCH_PORT => watch_port = p.u32()?,
                WATCH_GROUP => watch_group = p.u32()?,
                _ => return Err(ErrorKind::BadPropertyBadType),
            }
        }
        let watch_port = pull_watch_port(watch_port)?;
        if id > BUCKET_MAX {
            return Err(BAD_BUCKET);
        }
        all.push(Bucket {
            id,
            weight,
            watch_port,
            watch_group,
            actions,
        });
    }
    let mut ids: Vec<u32> = all.iter().map(|b| b.id).collect();
    ids.sort_unstable();
    if ids.windows(2).any(|w| matches!(w, [a, b] if a == b)) {
        return Err(BAD_BUCKET);
    }
    Ok(all)
}

/// Properties of a group. `command` is `None` in a description, `Some` in a group mod (`Some(None)`: an
/// unknown command).
fn properties(
    mut r: Reader<'_>,
    ty: Option<GroupType>,
    command: Option<Option<GroupCommand>>,
) -> Result<Option<Selection>, ErrorKind> {
    let mut selection = None;
    while !r.is_empty() {
        let p = property::pull(&mut r)?;
        match p.experimenter {
            Some((NTR_VENDOR | NTR_COMPAT_VENDOR, NTRT_SELECTION_METHOD)) => {
                selection = Some(selection_method(&p, ty, command)?);
            }
            Some(_) => return Err(ErrorKind::BadPropertyBadExpType),
            None => return Err(ErrorKind::BadPropertyBadType),
        }
    }
    Ok(selection)
}

fn selection_method(
    p: &Property<'_>,
    ty: Option<GroupType>,
    command: Option<Option<GroupCommand>>,
) -> Result<Selection, ErrorKind> {
    const BAD_VALUE: ErrorKind = ErrorKind::BadPropertyBadValue;
    let bad_len = |_| ErrorKind::BadPropertyBadLen;
    match ty {
        Some(GroupType::Select) => {}
        Some(_) => return Err(BAD_VALUE),
        None => return Err(ErrorKind::GroupModFailedBadType),
    }
    match command {
        None | Some(Some(GroupCommand::Add | GroupCommand::Modify | GroupCommand::AddOrModify)) => {}
        Some(Some(_)) => return Err(BAD_VALUE),
        Some(None) => return Err(ErrorKind::GroupModFailedBadCommand),
    }
    let mut r = Reader(p.body);
    r.skip(4).map_err(bad_len)?;
    let name: [u8; METHOD_LEN] = r.array().map_err(bad_len)?;
    let param = r.u64().map_err(bad_len)?;
    let end = name.iter().position(|b| *b == 0).ok_or(BAD_VALUE)?;
    let named = |m: &SelectionMethod| name.get(..end) == Some(m.name().as_bytes());
    let method = [SelectionMethod::Hash, SelectionMethod::DpHash]
        .into_iter()
        .find(named)
        .ok_or(BAD_VALUE)?;
    if method == SelectionMethod::DpHash && !r.is_empty() {
        return Err(BAD_VALUE);
    }
    let mut fields = Vec::new();
    while !r.is_empty() {
        let (field, mask) = pull_field_mask(&mut r)?;
        if fields.iter().any(|(f, _)| *f == field) {
            return Err(ErrorKind::BadMatchDupField);
        }
        fields.push((field, mask));
    }
    fields.sort_by_key(|(f, _)| *f);
    Ok(Selection {
        method,
        param,
        fields,
    })
}

pub(super) fn encode_mod(version: Version, m: &GroupMod, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let bucket_command = matches!(m.command, GroupCommand::InsertBucket | GroupCommand::RemoveBucket);
    if bucket_command && !numbered(version) {
        return Err(EncodeError::NotInVersion {
            what: "bucket command",
            version,
        });
    }
    out.u16(command_number(m.command));
    out.put(&[m.ty as u8, 0]);
    out.u32(m.group_id);
    if !numbered(version) {
        return m.buckets.iter().try_for_each(|b| put_bucket_11(version, b, out));
    }
    let len_at = out.end();
    out.zeros(4);
    out.u32(m.command_bucket_id);
    put_buckets_15(version, m.ty, &m.buckets, len_at, out)?;
    put_selection(version, m.selection.as_ref(), out);
    Ok(())
}

fn put_bucket_11(version: Version, b: &Bucket, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.end();
    out.u16(0);
    out.u16(b.weight);
    out.u32(b.watch_port.0);
    out.u32(b.watch_group);
    out.zeros(4);
    Encoder::new(version, &Match::any()).list(&b.actions, out)?;
    out.patch_len(start, 0);
    Ok(())
}

/// Writes buckets; the 16 bits at `len_at` get their length.
fn put_buckets_15(
    version: Version,
    ty: GroupType,
    buckets: &[Bucket],
    len_at: usize,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let start_all = out.end();
    for b in buckets {
        let start = out.end();
        out.zeros(4);
        out.u32(b.id);
        let actions = out.end();
        Encoder::new(version, &Match::any()).list(&b.actions, out)?;
        let actions_len = u16::try_from(out.end() - actions).map_err(|_| EncodeError::TooLong("a bucket"))?;
        if ty == GroupType::Select || b.weight != 0 {
            // Two bytes, but the specification says eight for the whole property.
            property::put(out, WEIGHT, &(u32::from(b.weight) << 16).to_be_bytes());
        }
        if b.watch_port != Port::NONE {
            property::put(out, WATCH_PORT, &b.watch_port.0.to_be_bytes());
        }
        if b.watch_group != GROUP_ANY {
            property::put(out, WATCH_GROUP, &b.watch_group.to_be_bytes());
        }
        out.patch_len(start, 0);
        out.patch(start + 2, &actions_len.to_be_bytes());
    }
    let len = u16::try_from(out.end() - start_all).map_err(|_| EncodeError::TooLong("a group"))?;
    out.patch(len_at, &len.to_be_bytes());
    Ok(())
}

fn put_selection(version: Version, selection: Option<&Selection>, out: &mut Vec<u8>) {
    let Some(s) = selection else { return };
    let start = property::begin(out, EXPERIMENTER);
    out.u32(NTR_VENDOR);
    out.u32(NTRT_SELECTION_METHOD);
    out.zeros(4);
    out.text(s.method.name(), METHOD_LEN);
    out.u64(s.param);
    for (field, mask) in &s.fields {
        put_field_mask(out, version, *field, *mask);
    }
    property::finish(out, start);
}

pub(super) fn put_desc(version: Version, d: &GroupDesc, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.end();
    out.u16(0);
    out.put(&[d.ty as u8, 0]);
    out.u32(d.group_id);
    if numbered(version) {
        let len_at = out.end();
        out.zeros(8);
        put_buckets_15(version, d.ty, &d.buckets, len_at, out)?;
        put_selection(version, d.selection.as_ref(), out);
    } else {
        d.buckets
            .iter()
            .try_for_each(|b| put_bucket_11(version, b, out))?;
    }
    out.patch_len(start, 0);
    Ok(())
}

pub(super) fn pull_desc(version: Version, r: &mut Reader<'_>) -> Result<GroupDesc, ErrorKind> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut d = Reader(r.bytes(len)?);
    d.skip(2)?;
    let [ty, _] = d.array()?;
    let group_id = d.u32()?;
    let ty = group_type(ty);
    let (buckets, selection) = if numbered(version) {
        let array_len = usize::from(d.u16()?);
        d.skip(6)?;
        let buckets = pull_buckets_15(version, ty, Reader(d.bytes(array_len)?))?;
        (buckets, properties(d, ty, None)?)
    } else {
        (pull_buckets_11(version, d)?, None)
    };
    Ok(GroupDesc {
        group_id,
        ty: ty.ok_or(ErrorKind::GroupModFailedBadType)?,
        buckets,
        selection,
    })
}

/// Whether statistics have the age of a group.
fn has_age(version: Version) -> bool {
    !matches!(version, Version::V11 | Version::V12)
}

pub(super) fn put_stats(version: Version, s: &GroupStats, out: &mut Vec<u8>) {
    let start = out.end();
    out.zeros(4);
    out.u32(s.group_id);
    out.u32(s.ref_count);
    out.zeros(4);
    out.u64(s.packet_count);
    out.u64(s.byte_count);
    if has_age(version) {
        out.u32(s.duration_sec);
        out.u32(s.duration_nsec);
    }
    for (packets, bytes) in &s.buckets {
        out.u64(*packets);
        out.u64(*bytes);
    }
    out.patch_len(start, 0);
}

pub(super) fn pull_stats(version: Version, r: &mut Reader<'_>) -> Result<GroupStats, ErrorKind> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut d = Reader(r.bytes(len)?);
    d.skip(4)?;
    let (group_id, ref_count) = (d.u32()?, d.u32()?);
    d.skip(4)?;
    let (packet_count, byte_count) = (d.u64()?, d.u64()?);
    let (duration_sec, duration_nsec) = if has_age(version) {
        (d.u32()?, d.u32()?)
    } else {
        (u32::MAX, u32::MAX)
    };
    let mut buckets = Vec::new();
    while !d.is_empty() {
        buckets.push((d.u64()?, d.u64()?));
    }
    Ok(GroupStats {
        group_id,
        ref_count,
        packet_count,
        byte_count,
        duration_sec,
        duration_nsec,
        buckets,
    })
}
