//! Flow mods: 1.0's, Nicira's, and those of 1.1 and later.

use super::{DecodeContext, matches};
use crate::action::InstructionSet;
use crate::actions::{decode_instructions, encode_instructions};
use crate::error::{EncodeError, ErrorKind};
use crate::message::{FlowMod, FlowModCommand, FlowModFlags, GROUP_ANY};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::port::{port_from_u16, port_from_u32, port_to_u16};
use heddle_flow::Match;

/// All tables.
const TABLE_ALL: u8 = 0xff;
/// "Do not change the cookie."
const COOKIE_KEEP: u64 = u64::MAX;
/// 1.0's emergency flow.
const EMERG: u16 = 1 << 2;

fn command(v: u8) -> Result<FlowModCommand, ErrorKind> {
    Ok(match v {
        0 => FlowModCommand::Add,
        1 => FlowModCommand::Modify,
        2 => FlowModCommand::ModifyStrict,
        3 => FlowModCommand::Delete,
        4 => FlowModCommand::DeleteStrict,
        _ => return Err(ErrorKind::FlowModFailedBadCommand),
    })
}

fn is_delete(c: FlowModCommand) -> bool {
    matches!(c, FlowModCommand::Delete | FlowModCommand::DeleteStrict)
}

/// The flags that a version has.
fn flags_in(version: Version) -> FlowModFlags {
    let mut all = FlowModFlags::SEND_FLOW_REM | FlowModFlags::CHECK_OVERLAP;
    if version >= Version::V12 {
        all |= FlowModFlags::RESET_COUNTS;
    }
    if version >= Version::V13 {
        all |= FlowModFlags::NO_PKT_COUNTS | FlowModFlags::NO_BYT_COUNTS;
    }
    all
}

/// Flags as a version writes them.
pub(super) fn flags_to_wire(flags: FlowModFlags, version: Version) -> u16 {
    (flags & flags_in(version)).bits()
}

/// Flags in a reply, where unknown ones do no harm.
pub(super) fn flags_from_reply(raw: u16, version: Version) -> FlowModFlags {
    FlowModFlags::from_bits_truncate(raw) & flags_in(version)
}

/// Fills in the flags, and refuses those that the version lacks.
fn set_flags(fm: &mut FlowMod, raw: u16, version: Version) -> Result<(), ErrorKind> {
    let emergency = version == Version::V10 && raw & EMERG != 0;
    let raw = if emergency { raw & !EMERG } else { raw };
    if raw & !flags_in(version).bits() != 0 {
        return Err(ErrorKind::FlowModFailedBadFlags);
    }
    if emergency {
        // 1.0 §4.6: such flows have no timeouts. There is no table for them here.
        return Err(if fm.hard_timeout != 0 || fm.idle_timeout != 0 {
            ErrorKind::FlowModFailedBadEmergTimeout
        } else {
            ErrorKind::FlowModFailedTableFull
        });
    }
    fm.flags = FlowModFlags::from_bits_truncate(raw);
    // 1.0 and 1.1: adding a flow always starts its counters anew.
    if version <= Version::V11 && fm.command == FlowModCommand::Add {
        fm.flags |= FlowModFlags::RESET_COUNTS;
    }
    Ok(())
}

/// Original-direction addresses of a connection must be of the match's own kind.
fn check_ct_addresses(m: &Match) -> Result<(), ErrorKind> {
    let x = &m.mask.0;
    let v4 = x.ct_nw_src != 0 || x.ct_nw_dst != 0;
    let v6 = x.ct_ipv6_src != [0; 16] || x.ct_ipv6_dst != [0; 16];
    if v4 && m.key.dl_type != 0x0800 || v6 && m.key.dl_type != 0x86dd {
        return Err(ErrorKind::BadActionMatchInconsistent);
    }
    Ok(())
}

fn finish(fm: &mut FlowMod, version: Version, raw_flags: u16, rest: &[u8]) -> Result<(), ErrorKind> {
    check_ct_addresses(&fm.match_)?;
    fm.instructions = decode_instructions(version, rest)?;
    set_flags(fm, raw_flags, version)
}

fn buffer(v: u32) -> Option<u32> {
    (v != u32::MAX).then_some(v)
}

/// Splits 1.0's command into command and table, if the peer has enabled tables there.
fn set_tid(fm: &mut FlowMod, raw: u16, cx: &DecodeContext) -> Result<(), ErrorKind> {
    let [table, low] = raw.to_be_bytes();
    if cx.flow_mod_table_id {
        fm.table_id = table;
        fm.command = command(low)?;
    } else {
        fm.table_id = TABLE_ALL;
        fm.command = command(if table == 0 { low } else { u8::MAX })?;
    }
    Ok(())
}

fn empty() -> Box<FlowMod> {
    Box::new(FlowMod::new(
        FlowModCommand::Add,
        Match::any(),
        0,
        InstructionSet::default(),
    ))
}

/// 1.0's body.
pub(super) fn decode_10(mut r: Reader<'_>, cx: &DecodeContext) -> Result<Box<FlowMod>, ErrorKind> {
    let mut fm = empty();
    let exact;
    (fm.match_, exact) = matches::pull_10(&mut r)?;
    fm.new_cookie = r.u64()?;
    fm.modify_cookie = fm.new_cookie != COOKIE_KEEP;
    let raw_command = r.u16()?;
    (fm.idle_timeout, fm.hard_timeout) = (r.u16()?, r.u16()?);
    let priority = r.u16()?;
    fm.priority = if exact { u16::MAX } else { priority };
    fm.buffer_id = buffer(r.u32()?);
    fm.out_port = port_from_u16(r.u16()?);
    let flags = r.u16()?;
    set_tid(&mut fm, raw_command, cx)?;
    finish(&mut fm, Version::V10, flags, r.0)?;
    Ok(fm)
}

/// Nicira's body.
pub(super) fn decode_nx(
    mut r: Reader<'_>,
    version: Version,
    cx: &DecodeContext,
) -> Result<Box<FlowMod>, ErrorKind> {
    let mut fm = empty();
    fm.nxm = true;
    fm.new_cookie = r.u64()?;
    fm.modify_cookie = fm.new_cookie != COOKIE_KEEP;
    let raw_command = r.u16()?;
    (fm.idle_timeout, fm.hard_timeout) = (r.u16()?, r.u16()?);
    fm.priority = r.u16()?;
    fm.buffer_id = buffer(r.u32()?);
    fm.out_port = port_from_u16(r.u16()?);
    let flags = r.u16()?;
    let match_len = r.u16()?;
    r.skip(6)?;
    (fm.match_, (fm.cookie, fm.cookie_mask)) = matches::pull_nx(&mut r, match_len, true, true)?;
    if raw_command & 0xff == 0 && fm.cookie_mask != 0 {
        // Adding a flow cannot look at cookies.
        return Err(ErrorKind::BadRequestNxmInvalid);
    }
    set_tid(&mut fm, raw_command, cx)?;
    finish(&mut fm, version, flags, r.0)?;
    Ok(fm)
}

/// The body of 1.1 and later.
pub(super) fn decode_11(mut r: Reader<'_>, version: Version) -> Result<Box<FlowMod>, ErrorKind> {
    let mut fm = empty();
    let (cookie, cookie_mask) = (r.u64()?, r.u64()?);
    let (table_id, raw_command) = (r.u8()?, r.u8()?);
    (fm.idle_timeout, fm.hard_timeout) = (r.u16()?, r.u16()?);
    fm.priority = r.u16()?;
    fm.buffer_id = buffer(r.u32()?);
    let (out_port, out_group) = (r.u32()?, r.u32()?);
    let (flags, importance) = (r.u16()?, r.u16()?);
    matches::pull_into(&mut r, true, &mut fm.match_)?;
    fm.table_id = table_id;
    let deletes = matches!(raw_command, 3 | 4);
    if table_id == TABLE_ALL && (version == Version::V11 || !deletes) {
        return Err(ErrorKind::FlowModFailedBadTableId);
    }
    fm.out_port = port_from_u32(out_port)?;
    check_ct_addresses(&fm.match_)?;
    fm.command = command(raw_command)?;
    // 1.1 only: a modification without a cookie mask adds a missing flow, and gives it the cookie.
    let adds = fm.command == FlowModCommand::Add
        || version == Version::V11 && !is_delete(fm.command) && cookie_mask == 0;
    if adds {
        fm.new_cookie = cookie;
    } else {
        (fm.cookie, fm.cookie_mask) = (cookie, cookie_mask);
        fm.new_cookie = COOKIE_KEEP;
    }
    if version >= Version::V14 && fm.command == FlowModCommand::Add {
        fm.importance = importance;
    }
    if deletes {
        fm.out_group = out_group;
    }
    finish(&mut fm, version, flags, r.0)?;
    Ok(fm)
}

/// 1.0's command with the table in its upper byte, where the flow mod names one.
fn tid_command(fm: &FlowMod) -> u16 {
    let table = if fm.table_id == TABLE_ALL { 0 } else { fm.table_id };
    u16::from_be_bytes([table, fm.command as u8])
}

/// Writes a body. The caller selects the message by version and `nxm`.
pub(super) fn encode(version: Version, fm: &FlowMod, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let flags = flags_to_wire(fm.flags, version);
    let buffer = fm.buffer_id.unwrap_or(u32::MAX);
    if version >= Version::V11 {
        let adds = fm.command == FlowModCommand::Add
            || version == Version::V11 && !is_delete(fm.command) && fm.cookie_mask == 0;
        out.u64(if adds {
            fm.new_cookie
        } else {
            fm.cookie & fm.cookie_mask
        });
        out.u64(fm.cookie_mask);
        let may_be_all = version != Version::V11 && is_delete(fm.command);
        out.u8(if fm.table_id == TABLE_ALL && !may_be_all {
            0
        } else {
            fm.table_id
        });
        out.u8(fm.command as u8);
        out.u16(fm.idle_timeout);
        out.u16(fm.hard_timeout);
        out.u16(fm.priority);
        out.u32(buffer);
        out.u32(fm.out_port.0);
        out.u32(fm.out_group);
        out.u16(flags);
        let has_importance = version >= Version::V14 && fm.command == FlowModCommand::Add;
        out.u16(if has_importance { fm.importance } else { 0 });
        matches::put(out, version, &fm.match_);
        return encode_instructions(version, &fm.match_, &fm.instructions, out);
    }
    if fm.out_group != GROUP_ANY {
        return Err(EncodeError::NotInVersion {
            what: "out_group",
            version,
        });
    }
    if fm.nxm {
        out.u64(fm.new_cookie);
    } else {
        matches::put_10(out, &fm.match_);
        out.u64(fm.new_cookie);
    }
    out.u16(tid_command(fm));
    out.u16(fm.idle_timeout);
    out.u16(fm.hard_timeout);
    out.u16(fm.priority);
    out.u32(buffer);
    out.u16(port_to_u16(fm.out_port));
    out.u16(flags);
    if fm.nxm {
        let at = out.end();
        out.zeros(8);
        let len = matches::put_nx(out, &fm.match_, (fm.cookie, fm.cookie_mask));
        out.patch(at, &len.to_be_bytes());
    }
    encode_instructions(version, &fm.match_, &fm.instructions, out)
}
