//! Instructions on the wire (OpenFlow 1.1 and later; 1.0 has actions only).

use super::decode::{Item, decode_items, decode_list};
use super::encoder::Encoder;
use super::verify::{ListKind, verify_actions, verify_order};
use crate::action::{Action, Instruction, InstructionSet, Port};
use crate::error::{EncodeError, ErrorKind};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use heddle_flow::Match;

const GOTO_TABLE: u16 = 1;
const WRITE_METADATA: u16 = 2;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;
const METER: u16 = 6;
const EXPERIMENTER: u16 = 0xffff;

/// Decodes the instructions (1.0: actions) that fill `bytes`.
pub(crate) fn decode_instructions(version: Version, bytes: &[u8]) -> Result<InstructionSet, ErrorKind> {
    if version == Version::V10 {
        return decode_10(bytes);
    }
    if !bytes.len().is_multiple_of(8) {
        return Err(ErrorKind::BadInstructionBadLen);
    }
    let parts = split(version, bytes)?;
    let body = |ty: u16| parts.iter().find(|p| p.0 == ty).map(|p| Reader(p.1));
    let short = |_| ErrorKind::BadInstructionBadLen;
    let mut set = Vec::new();
    if let Some(mut r) = body(METER) {
        set.push(Instruction::Meter(r.u32().map_err(short)?));
    }
    if let Some(mut r) = body(APPLY_ACTIONS) {
        r.skip(4).map_err(short)?;
        set.extend(apply(version, r.0)?);
    }
    if body(CLEAR_ACTIONS).is_some() {
        set.push(Instruction::Clear);
    }
    if let Some(mut r) = body(WRITE_ACTIONS) {
        r.skip(4).map_err(short)?;
        let actions = decode_list(version, r.0, 0)?;
        verify_actions(&actions, version, ListKind::Set)?;
        set.push(Instruction::Write(actions));
    }
    if let Some(mut r) = body(WRITE_METADATA) {
        r.skip(4).map_err(short)?;
        set.push(Instruction::WriteMetadata {
            value: r.u64().map_err(short)?,
            mask: r.u64().map_err(short)?,
        });
    }
    if let Some(mut r) = body(GOTO_TABLE) {
        set.push(Instruction::Goto(r.u8().map_err(short)?));
    }
    let set = InstructionSet(set);
    verify_order(&set)?;
    Ok(set)
}

/// Splits instructions into types and bodies, each type at most once.
fn split(version: Version, bytes: &[u8]) -> Result<Vec<(u16, &[u8])>, ErrorKind> {
    let bad = |_| ErrorKind::BadInstructionBadLen;
    let mut r = Reader(bytes);
    let mut parts: Vec<(u16, &[u8])> = Vec::new();
    while !r.is_empty() {
        let mut head = r;
        let (ty, len) = (head.u16().map_err(bad)?, head.u16().map_err(bad)?);
        if len < 8 || len % 8 != 0 || usize::from(len) > r.len() {
            return Err(ErrorKind::BadInstructionBadLen);
        }
        let whole = r.bytes(len.into()).map_err(bad)?;
        let right = match ty {
            GOTO_TABLE => len == 8,
            WRITE_METADATA => len == 24,
            WRITE_ACTIONS | APPLY_ACTIONS => len >= 8,
            CLEAR_ACTIONS => len == 8,
            METER => len == 8,
            EXPERIMENTER => return Err(ErrorKind::BadInstructionBadExperimenter),
            _ => return Err(ErrorKind::BadInstructionUnknownInst),
        };
        if !right {
            return Err(ErrorKind::BadInstructionBadLen);
        }
        // 1.5 has an action in the place of the meter instruction. (1.1 and 1.2 lack it, but it does no harm
        // there.)
        if ty == METER && version >= Version::V15 {
            return Err(ErrorKind::BadInstructionUnknownInst);
        }
        if parts.iter().any(|p| p.0 == ty) {
            return Err(ErrorKind::BadInstructionDupInst);
        }
        parts.push((ty, whole.get(4..).unwrap_or(&[])));
    }
    Ok(parts)
}

/// Actions of 1.0, which may end in a metadata action of Nicira's.
fn decode_10(bytes: &[u8]) -> Result<InstructionSet, ErrorKind> {
    if !bytes.len().is_multiple_of(8) {
        return Err(ErrorKind::BadRequestBadLen);
    }
    let set = InstructionSet(apply(Version::V10, bytes)?);
    verify_order(&set)?;
    Ok(set)
}

/// A list of actions as instructions: the actions, and Nicira's metadata action as `WriteMetadata`.
fn apply(version: Version, bytes: &[u8]) -> Result<Vec<Instruction>, ErrorKind> {
    let mut actions: Vec<Action> = Vec::new();
    let mut metadata = Vec::new();
    for item in decode_items(version, bytes, 0)? {
        match item {
            Item::Action(_) if !metadata.is_empty() => return Err(ErrorKind::BadActionUnsupportedOrder),
            Item::Action(a) => actions.push(a),
            Item::WriteMetadata { value, mask } => {
                metadata.push(Instruction::WriteMetadata { value, mask });
            }
        }
    }
    verify_actions(&actions, version, ListKind::Top)?;
    let mut set = Vec::new();
    if !actions.is_empty() || metadata.is_empty() {
        set.push(Instruction::Apply(actions));
    }
    set.append(&mut metadata);
    Ok(set)
}

/// Appends the instructions (1.0: as actions, as far as they can be) of a flow with this match.
pub(crate) fn encode_instructions(
    version: Version,
    m: &Match,
    set: &InstructionSet,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let mut encoder = Encoder::new(version, m);
    // A meter is an action in 1.5 and an instruction in 1.3 and 1.4, which have one per rule.
    if matches!(version, Version::V13 | Version::V14)
        && !set.0.iter().any(|i| matches!(i, Instruction::Meter(_)))
        && let Some(id) = first_meter(set)
    {
        out.u16(METER);
        out.u16(8);
        out.u32(id);
    }
    for i in &set.0 {
        if version == Version::V10 {
            encode_10(&mut encoder, i, out)?;
            continue;
        }
        let start = out.end();
        let begin = |ty: u16, out: &mut Vec<u8>| {
            out.u16(ty);
            out.u16(0);
        };
        match i {
            // 1.5 has a meter action, which goes first in the list of actions.
            Instruction::Meter(id) if version >= Version::V15 => {
                begin(APPLY_ACTIONS, out);
                out.zeros(4);
                encoder.list(&[Action::Meter(*id)], out)?;
                if let Some(Instruction::Apply(actions)) =
                    set.0.iter().find(|i| matches!(i, Instruction::Apply(_)))
                {
                    encoder.list(actions, out)?;
                }
            }
            Instruction::Apply(_)
                if version >= Version::V15 && set.0.iter().any(|i| matches!(i, Instruction::Meter(_))) =>
            {
                continue;
            }
            // Left out in versions without meters, as Open vSwitch does: the flow must still be seen.
            Instruction::Meter(_) if version < Version::V13 => continue,
            Instruction::Meter(id) => {
                begin(METER, out);
                out.u32(*id);
            }
            // No action at all needs no instruction; before 1.5 a meter is none.
            Instruction::Apply(actions)
                if actions
                    .iter()
                    .all(|a| version < Version::V15 && matches!(a, Action::Meter(_))) =>
            {
                continue;
            }
            Instruction::Apply(actions) => {
                begin(APPLY_ACTIONS, out);
                out.zeros(4);
                encoder.list(actions, out)?;
            }
            Instruction::Clear => {
                begin(CLEAR_ACTIONS, out);
                out.zeros(4);
            }
            Instruction::Write(actions) => {
                begin(WRITE_ACTIONS, out);
                out.zeros(4);
                encoder.list(actions, out)?;
            }
            Instruction::WriteMetadata { value, mask } => {
                begin(WRITE_METADATA, out);
                out.zeros(4);
                out.u64(*value);
                out.u64(*mask);
            }
            Instruction::Goto(table) => {
                begin(GOTO_TABLE, out);
                out.u8(*table);
                out.zeros(3);
            }
        }
        out.patch_len(start, 2);
    }
    Ok(())
}

/// The first meter among the actions that are applied.
fn first_meter(set: &InstructionSet) -> Option<u32> {
    let applied = set.0.iter().filter_map(|i| match i {
        Instruction::Apply(actions) => Some(actions),
        _ => None,
    });
    applied.flatten().find_map(|a| match a {
        Action::Meter(id) => Some(*id),
        _ => None,
    })
}

/// 1.0 has no instructions: goto is a resubmit, metadata an action of Nicira's. The action set, clearing it
/// and meters are left out, as in Open vSwitch.
fn encode_10(encoder: &mut Encoder, i: &Instruction, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match i {
        Instruction::Apply(actions) => encoder.list(actions, out),
        Instruction::WriteMetadata { value, mask } => encoder.write_metadata(*value, *mask, out),
        Instruction::Goto(table) => {
            let goto = Action::Resubmit {
                port: Port::IN_PORT,
                table: Some(*table),
                with_ct_orig: false,
            };
            encoder.list(&[goto], out)
        }
        Instruction::Meter(_) | Instruction::Clear | Instruction::Write(_) => Ok(()),
    }
}
