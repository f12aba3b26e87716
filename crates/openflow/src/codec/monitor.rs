//! Flow monitors on the wire: requests, and the entries of replies and notifications.

use super::matches;
use crate::action::{Instruction, InstructionSet, Port};
use crate::actions::{Encoder, decode_instructions, decode_list, encode_instructions};
use crate::error::{EncodeError, ErrorKind};
use crate::message::{
    FlowChange, FlowEvent, FlowMonitorRequest, FlowRemovedReason, FlowUpdate, GROUP_ANY, MonitorCommand,
    MonitorFlags,
};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::{port_from_u16, port_from_u32, port_to_u16};
use heddle_flow::Match;

const BAD_FLAGS: ErrorKind = ErrorKind::FlowMonitorFailedBadFlags;

/// Changes that a monitor can be about: one at least.
const CHANGES: MonitorFlags = MonitorFlags::ADD
    .union(MonitorFlags::REMOVED)
    .union(MonitorFlags::MODIFY);

/// The flags; the extensions have no [`MonitorFlags::ONLY_OWN`].
fn flags(raw: u16, extension: bool) -> Result<MonitorFlags, ErrorKind> {
    let flags = MonitorFlags::from_bits(raw).ok_or(BAD_FLAGS)?;
    let unknown = extension && flags.contains(MonitorFlags::ONLY_OWN);
    if unknown || !flags.intersects(CHANGES) {
        return Err(BAD_FLAGS);
    }
    Ok(flags)
}

/// Reads one monitor of a request.
pub(super) fn pull_request(version: Version, r: &mut Reader<'_>) -> Result<FlowMonitorRequest, ErrorKind> {
    if version >= Version::V14 {
        return pull_request_14(r);
    }
    let mut q = FlowMonitorRequest {
        id: r.u32()?,
        command: MonitorCommand::Add,
        flags: flags(r.u16()?, true)?,
        out_port: Port::NONE,
        out_group: GROUP_ANY,
        table_id: 0xff,
        match_: Match::any(),
    };
    if version == Version::V13 {
        r.skip(2)?; // length of the match, which the match has too
        q.out_port = port_from_u32(r.u32()?)?;
        q.table_id = r.u8()?;
        zeros::<3>(r)?;
        q.match_ = matches::pull(r, true)?;
    } else {
        q.out_port = port_from_u16(r.u16()?);
        let len = r.u16()?;
        q.table_id = r.u8()?;
        zeros::<5>(r)?;
        q.match_ = matches::pull_nx(r, len, true, false)?.0;
    }
    Ok(q)
}

fn zeros<const N: usize>(r: &mut Reader<'_>) -> Result<(), ErrorKind> {
    if r.array::<N>()? == [0; N] {
        Ok(())
    } else {
        Err(ErrorKind::BadRequestMustBeZero)
    }
}

fn pull_request_14(r: &mut Reader<'_>) -> Result<FlowMonitorRequest, ErrorKind> {
    let (id, out_port, out_group) = (r.u32()?, r.u32()?, r.u32()?);
    let (raw_flags, table_id, command) = (r.u16()?, r.u8()?, r.u8()?);
    let command = match command {
        0 => MonitorCommand::Add,
        1 => MonitorCommand::Modify,
        2 => MonitorCommand::Delete,
        _ => return Err(ErrorKind::FlowMonitorFailedBadCommand),
    };
    // A deletion names the monitor; its other fields have no meaning.
    let deletes = command == MonitorCommand::Delete;
    Ok(FlowMonitorRequest {
        id,
        command,
        flags: if deletes {
            MonitorFlags::empty()
        } else {
            flags(raw_flags, false)?
        },
        out_port: if deletes {
            Port::NONE
        } else {
            port_from_u32(out_port)?
        },
        out_group,
        table_id,
        match_: matches::pull(r, true)?,
    })
}

/// Writes one monitor of a request.
pub(super) fn put_request(version: Version, q: &FlowMonitorRequest, out: &mut Vec<u8>) {
    out.u32(q.id);
    if version >= Version::V14 {
        out.u32(q.out_port.0);
        out.u32(q.out_group);
        out.u16(q.flags.bits());
        out.u8(q.table_id);
        out.u8(q.command as u8);
        matches::put_oxm(out, version, &q.match_);
        return;
    }
    let mut flags = q.flags;
    if flags.contains(MonitorFlags::ONLY_OWN) {
        flags.remove(MonitorFlags::ONLY_OWN);
        flags.insert(MonitorFlags::NO_ABBREV);
    }
    out.u16(flags.bits());
    if version == Version::V13 {
        let at = out.end();
        out.zeros(2);
        out.u32(q.out_port.0);
        out.u8(q.table_id);
        out.zeros(3);
        let start = out.end();
        matches::put_oxm(out, version, &q.match_);
        patch_match_len(out, at, start);
    } else {
        out.u16(port_to_u16(q.out_port));
        let at = out.end();
        out.zeros(2);
        out.u8(q.table_id);
        out.zeros(5);
        let len = matches::put_nx(out, &q.match_, (0, 0));
        out.patch(at, &len.to_be_bytes());
    }
}

/// Copies the length of the match at `start`, from its header, to `at`.
fn patch_match_len(out: &mut Vec<u8>, at: usize, start: usize) {
    let len = out.get(start + 2..start + 4).map(<[u8]>::to_vec);
    out.patch(at, &len.unwrap_or_default());
}

const PAUSED: u16 = 5;
const RESUMED: u16 = 6;

/// Numbers of events: those of 1.4, and the extensions', which have no "initial".
fn event_to_wire(version: Version, e: FlowEvent) -> (u16, u8) {
    let old = version < Version::V14;
    match e {
        FlowEvent::Initial => (0, 0),
        FlowEvent::Added => (if old { 0 } else { 1 }, 0),
        FlowEvent::Removed(reason) => (if old { 1 } else { 2 }, reason as u8),
        FlowEvent::Modified => (if old { 2 } else { 3 }, 0),
    }
}

fn abbrev(version: Version) -> u16 {
    if version < Version::V14 { 3 } else { 4 }
}

fn event_from_wire(version: Version, number: u16, reason: u8) -> Result<FlowEvent, ErrorKind> {
    let standard = if version < Version::V14 {
        number + 1
    } else {
        number
    };
    Ok(match standard {
        0 => FlowEvent::Initial,
        1 => FlowEvent::Added,
        2 => FlowEvent::Removed(match reason {
            0 => FlowRemovedReason::IdleTimeout,
            1 => FlowRemovedReason::HardTimeout,
            2 => FlowRemovedReason::Delete,
            3 => FlowRemovedReason::GroupDelete,
            4 => FlowRemovedReason::MeterDelete,
            5 => FlowRemovedReason::Eviction,
            _ => return Err(ErrorKind::BadRequestBadReason),
        }),
        3 => FlowEvent::Modified,
        _ => return Err(ErrorKind::BadRequestFmBadEvent),
    })
}

/// Writes one entry of a reply or notification.
pub(super) fn put_update(version: Version, u: &FlowUpdate, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.end();
    let short = |out: &mut Vec<u8>, event: u16, word: u32| {
        out.u16(8);
        out.u16(event);
        out.u32(word);
        Ok(())
    };
    let change = match u {
        FlowUpdate::Full(change) => change,
        FlowUpdate::Abbrev(xid) => return short(out, abbrev(version), *xid),
        FlowUpdate::Paused | FlowUpdate::Resumed if version < Version::V14 => {
            return Err(EncodeError::NotInVersion {
                what: "a pause among flow updates",
                version,
            });
        }
        FlowUpdate::Paused => return short(out, PAUSED, 0),
        FlowUpdate::Resumed => return short(out, RESUMED, 0),
    };
    let (event, reason) = event_to_wire(version, change.event);
    out.zeros(2);
    out.u16(event);
    if version >= Version::V14 {
        out.u8(change.table_id);
        out.u8(reason);
        out.u16(change.idle_timeout);
        out.u16(change.hard_timeout);
        out.u16(change.priority);
        out.zeros(4);
        out.u64(change.cookie);
        matches::put_oxm(out, version, &change.match_);
    } else {
        out.u16(reason.into());
        out.u16(change.priority);
        out.u16(change.idle_timeout);
        out.u16(change.hard_timeout);
        let at = out.end();
        out.zeros(2);
        out.u8(change.table_id);
        out.zeros(1);
        out.u64(change.cookie);
        if version == Version::V13 {
            let match_at = out.end();
            matches::put_oxm(out, version, &change.match_);
            patch_match_len(out, at, match_at);
        } else {
            let len = matches::put_nx(out, &change.match_, (0, 0));
            out.patch(at, &len.to_be_bytes());
        }
    }
    encode_body(version, change, out)?;
    out.patch_len(start, 0);
    Ok(())
}

fn encode_body(version: Version, change: &FlowChange, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if change.instructions.0.is_empty() {
        return Ok(());
    }
    if lists_actions(version) {
        let mut encoder = Encoder::new(version, &change.match_);
        return change.instructions.0.iter().try_for_each(|i| match i {
            Instruction::Apply(actions) => encoder.list(actions, out),
            _ => Ok(()),
        });
    }
    encode_instructions(version, &change.match_, &change.instructions, out)
}

/// Nicira's form has actions in 1.1 and 1.2 too, where flows have instructions: other instructions have no
/// form.
fn lists_actions(version: Version) -> bool {
    matches!(version, Version::V11 | Version::V12)
}

/// Reads one entry of a reply or notification.
pub(super) fn pull_update(version: Version, r: &mut Reader<'_>) -> Result<FlowUpdate, ErrorKind> {
    let len = { *r }.u16()?;
    if len % 8 != 0 {
        return Err(ErrorKind::BadRequestBadLen);
    }
    let mut r = Reader(r.bytes(len.into())?);
    r.skip(2)?;
    let event = r.u16()?;
    if event == abbrev(version) {
        return Ok(FlowUpdate::Abbrev(r.u32()?));
    }
    if version >= Version::V14 && matches!(event, PAUSED | RESUMED) {
        return Ok(if event == PAUSED {
            FlowUpdate::Paused
        } else {
            FlowUpdate::Resumed
        });
    }
    let mut change = FlowChange {
        event: FlowEvent::Added,
        table_id: 0,
        priority: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        cookie: 0,
        match_: Match::any(),
        instructions: InstructionSet::default(),
    };
    if version >= Version::V14 {
        change.table_id = r.u8()?;
        change.event = event_from_wire(version, event, r.u8()?)?;
        (change.idle_timeout, change.hard_timeout) = (r.u16()?, r.u16()?);
        change.priority = r.u16()?;
        r.skip(4)?;
        change.cookie = r.u64()?;
        change.match_ = matches::pull(&mut r, false)?;
    } else {
        let reason = u8::try_from(r.u16()?).unwrap_or(u8::MAX);
        change.event = event_from_wire(version, event, reason)?;
        change.priority = r.u16()?;
        (change.idle_timeout, change.hard_timeout) = (r.u16()?, r.u16()?);
        let match_len = r.u16()?;
        change.table_id = r.u8()?;
        r.skip(1)?;
        change.cookie = r.u64()?;
        change.match_ = if version == Version::V13 {
            matches::pull(&mut r, false)?
        } else {
            matches::pull_nx(&mut r, match_len, false, false)?.0
        };
    }
    if !r.is_empty() {
        change.instructions = if lists_actions(version) {
            InstructionSet(vec![Instruction::Apply(decode_list(version, r.0, 0)?)])
        } else {
            decode_instructions(version, r.0)?
        };
    }
    Ok(FlowUpdate::Full(Box::new(change)))
}
