//! Continuations: the state of a paused pipeline, which a controller sends back to resume it
//! (`NXPINT_CONTINUATION`).
//!
//! The bytes are the switch's own business, but `ovs-ofctl` shows them, so their layout is that of Open
//! vSwitch. Parts that this layout lacks (instructions, actions that the connection's version lacks) have
//! properties of their own, which other readers skip. Everything is checked again when it comes back: a
//! controller may send anything.

use crate::actions::{
    Encoder, ListKind, decode_instructions, decode_list, encode_instructions, verify_actions,
};
use crate::error::{EncodeError, ErrorKind};
use crate::message::{Continuation, ContinuationStep, StackValue};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::property;
use crate::{Action, Instruction, InstructionSet};
use heddle_flow::Match;

const BRIDGE: u16 = 0x8000;
const STACK: u16 = 0x8001;
const MIRRORS: u16 = 0x8002;
const CONNTRACKED: u16 = 0x8003;
const TABLE_ID: u16 = 0x8004;
const COOKIE: u16 = 0x8005;
const ACTIONS: u16 = 0x8006;
const ACTION_SET: u16 = 0x8007;
const ODP_PORT: u16 = 0x8008;
/// Ours: instructions as 1.5 writes them; actions behind a version that has them.
const INSTRUCTION: u16 = 0x8100;
const OTHER_ACTIONS: u16 = 0x8101;
const OTHER_ACTION_SET: u16 = 0x8102;

/// Maximum length of a value on the stack, bytes: the widest option of a tunnel.
const MAX_VALUE: usize = 124;

/// A continuation's bytes on a connection of this version.
///
/// # Errors
/// [`EncodeError`]: no version has one of the actions.
pub fn encode_continuation(version: Version, c: &Continuation) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    let aligned = |out: &mut Vec<u8>, ty, body: &[u8]| {
        let start = property::begin(out, ty);
        out.zeros(4);
        out.put(body);
        property::finish(out, start);
    };
    property::put(&mut out, BRIDGE, &c.bridge);
    // From the top down.
    for value in c.stack.iter().rev() {
        property::put(&mut out, STACK, value.bytes());
    }
    if c.mirrors != 0 {
        property::put(&mut out, MIRRORS, &c.mirrors.to_be_bytes());
    }
    if c.conntracked {
        property::put(&mut out, CONNTRACKED, &[]);
    }
    let (mut table, mut cookie) = (0, 0);
    for step in &c.steps {
        match step {
            ContinuationStep::Actions {
                table: t,
                cookie: k,
                actions,
            } => {
                if table != *t {
                    table = *t;
                    property::put(&mut out, TABLE_ID, &[table]);
                }
                if cookie != *k {
                    cookie = *k;
                    aligned(&mut out, COOKIE, &cookie.to_be_bytes());
                }
                put_actions(version, (ACTIONS, OTHER_ACTIONS), actions, &mut out)?;
            }
            ContinuationStep::Instruction(i) => {
                let set = InstructionSet(vec![i.clone()]);
                let start = property::begin(&mut out, INSTRUCTION);
                out.zeros(4);
                encode_instructions(Version::V15, &Match::any(), &set, &mut out)?;
                property::finish(&mut out, start);
            }
        }
    }
    if !c.action_set.is_empty() {
        put_actions(version, (ACTION_SET, OTHER_ACTION_SET), &c.action_set, &mut out)?;
    }
    if c.odp_port != 0 {
        property::put(&mut out, ODP_PORT, &c.odp_port.to_be_bytes());
    }
    Ok(out)
}

/// Writes actions in the form of the version, or else in that of another.
fn put_actions(
    version: Version,
    (own, other): (u16, u16),
    actions: &[Action],
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let mut bytes = Vec::new();
    if Encoder::new(version, &Match::any())
        .list(actions, &mut bytes)
        .is_ok()
    {
        let start = property::begin(out, own);
        out.zeros(4);
        out.put(&bytes);
        property::finish(out, start);
        return Ok(());
    }
    let mut last = Ok(());
    for v in [Version::V15, Version::V13, Version::V10] {
        bytes.clear();
        last = Encoder::new(v, &Match::any()).list(actions, &mut bytes);
        if last.is_ok() {
            let start = property::begin(out, other);
            out.put(&[v.wire(), 0, 0, 0]);
            out.put(&bytes);
            property::finish(out, start);
            break;
        }
    }
    last
}

/// Reads a continuation's bytes.
///
/// # Errors
/// The fault of the bytes.
pub fn decode_continuation(version: Version, bytes: &[u8]) -> Result<Continuation, ErrorKind> {
    let mut c = Continuation::default();
    let (mut table, mut cookie) = (0, 0);
    let mut r = Reader(bytes);
    while !r.is_empty() {
        let p = property::pull(&mut r)?;
        let mut own = |version, bytes: &[u8]| {
            let actions = read_actions(version, bytes)?;
            c.steps.push(ContinuationStep::Actions {
                table,
                cookie,
                actions,
            });
            Ok::<(), ErrorKind>(())
        };
        match p.standard()? {
            BRIDGE => {
                c.bridge = p.body.try_into().map_err(|_| ErrorKind::BadPropertyBadLen)?;
            }
            STACK => {
                if p.body.is_empty() || p.body.len() > MAX_VALUE {
                    return Err(ErrorKind::BadPropertyBadLen);
                }
                // From the top down: each value goes below the earlier ones.
                c.stack.insert(0, StackValue::from_bytes(p.body));
            }
            MIRRORS => c.mirrors = p.u32()?,
            CONNTRACKED => c.conntracked = true,
            TABLE_ID => table = p.u8()?,
            COOKIE => cookie = p.u64()?,
            ACTIONS => own(version, p.nested()?)?,
            OTHER_ACTIONS => own(other_version(p.body)?, p.nested()?)?,
            INSTRUCTION => {
                let set = decode_instructions(Version::V15, p.nested()?)?;
                c.steps.extend(set.0.into_iter().map(|i| match i {
                    Instruction::Apply(actions) => ContinuationStep::Actions {
                        table,
                        cookie,
                        actions,
                    },
                    other => ContinuationStep::Instruction(other),
                }));
            }
            ACTION_SET => c.action_set = read_actions(version, p.nested()?)?,
            OTHER_ACTION_SET => c.action_set = read_actions(other_version(p.body)?, p.nested()?)?,
            ODP_PORT => c.odp_port = p.u32()?,
            _ => return Err(ErrorKind::BadPropertyBadType),
        }
    }
    Ok(c)
}

fn other_version(body: &[u8]) -> Result<Version, ErrorKind> {
    let wire = body.first().copied().unwrap_or(0);
    Version::from_wire(wire).ok_or(ErrorKind::BadPropertyBadValue)
}

fn read_actions(version: Version, bytes: &[u8]) -> Result<Vec<Action>, ErrorKind> {
    let actions = decode_list(version, bytes, 0)?;
    verify_actions(&actions, version, ListKind::Top)?;
    Ok(actions)
}
