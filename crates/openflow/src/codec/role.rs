//! Roles and asynchronous configuration.

use crate::error::{EncodeError, ErrorKind};
use crate::message::{AsyncConfig, AsyncType, PacketInReason, Role, RoleReason, RoleRequest, RoleStatus};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};
use crate::wire::property;

fn role_from_wire(v: u32) -> Result<Role, ErrorKind> {
    Ok(match v {
        0 => Role::NoChange,
        1 => Role::Equal,
        2 => Role::Primary,
        3 => Role::Secondary,
        _ => return Err(ErrorKind::RoleRequestFailedBadRole),
    })
}

fn role_to_wire(r: Role) -> u32 {
    match r {
        Role::NoChange => 0,
        Role::Equal => 1,
        Role::Primary => 2,
        Role::Secondary => 3,
    }
}

/// Reads a role request (or reply) of 1.2 and later. A request has a generation id unless its role is
/// `NoChange`, a reply unless the id is all ones.
pub(super) fn decode_role(mut r: Reader<'_>, is_reply: bool) -> Result<RoleRequest, ErrorKind> {
    let role = role_from_wire(r.u32()?)?;
    r.skip(4)?;
    let id = r.u64()?;
    let has = if is_reply {
        id != u64::MAX
    } else {
        role != Role::NoChange
    };
    Ok(RoleRequest {
        role,
        generation_id: has.then_some(id),
    })
}

pub(super) fn encode_role(q: &RoleRequest, out: &mut Vec<u8>) {
    out.u32(role_to_wire(q.role));
    out.zeros(4);
    out.u64(q.generation_id.unwrap_or(u64::MAX));
}

/// Reads Nicira's role request or reply, which counts from "other".
pub(super) fn decode_nx_role(mut r: Reader<'_>) -> Result<RoleRequest, ErrorKind> {
    let v = r.u32()?;
    let role = role_from_wire(v.saturating_add(1))?;
    Ok(RoleRequest {
        role,
        generation_id: None,
    })
}

pub(super) fn encode_nx_role(
    q: &RoleRequest,
    version: Version,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let v = role_to_wire(q.role)
        .checked_sub(1)
        .ok_or(EncodeError::NotInVersion {
            what: "role NOCHANGE",
            version,
        })?;
    out.u32(v);
    Ok(())
}

pub(super) fn encode_status(s: &RoleStatus, out: &mut Vec<u8>) {
    out.u32(role_to_wire(s.role));
    out.u8(s.reason as u8);
    out.zeros(3);
    out.u64(s.generation_id);
}

pub(super) fn decode_status(mut r: Reader<'_>) -> Result<RoleStatus, ErrorKind> {
    let role = role_from_wire(r.u32()?)?;
    let reason = match r.u8()? {
        0 => RoleReason::PrimaryRequest,
        1 => RoleReason::Config,
        2 => RoleReason::Experimenter,
        _ => return Err(ErrorKind::BadRequestBadReason),
    };
    r.skip(3)?;
    Ok(RoleStatus {
        role,
        reason,
        generation_id: r.u64()?,
    })
}

const TYPES: [AsyncType; 6] = [
    AsyncType::PacketIn,
    AsyncType::PortStatus,
    AsyncType::FlowRemoved,
    AsyncType::RoleStatus,
    AsyncType::TableStatus,
    AsyncType::RequestForward,
];

/// Bits of a type's reasons that a version has.
fn allowed(ty: AsyncType, version: Version) -> u32 {
    match ty {
        AsyncType::PacketIn if version >= Version::V14 => 0x3f,
        AsyncType::PacketIn | AsyncType::PortStatus | AsyncType::RoleStatus => 0x07,
        AsyncType::FlowRemoved => 0x3f,
        AsyncType::TableStatus => 0x18,
        AsyncType::RequestForward => 0x03,
    }
}

/// A mask from the wire, without unknown bits and with all reasons that a reason of the wire stands for.
fn from_wire(raw: u32, ty: AsyncType, version: Version) -> u32 {
    use PacketInReason as R;
    let bit = |reason: R| 1 << reason as u32;
    let mut mask = raw & allowed(ty, version);
    if ty != AsyncType::PacketIn {
        return mask;
    }
    if mask & bit(R::NoMatch) != 0 {
        mask |= bit(R::ExplicitMiss);
        if version < Version::V13 {
            mask |= bit(R::ImplicitMiss);
        }
    }
    // Reasons that are distinct since 1.4 were all "action" before.
    if version < Version::V14 && mask & bit(R::Action) != 0 {
        mask |= bit(R::ActionSet) | bit(R::Group) | bit(R::PacketOut);
    }
    mask
}

/// Reads the fixed form: packet-in, port status, flow removed, each for primary and secondary. The other
/// types are off.
#[expect(clippy::indexing_slicing, reason = "the arrays have a place for each type")]
pub(super) fn decode_async(version: Version, mut r: Reader<'_>) -> Result<AsyncConfig, ErrorKind> {
    let mut c = AsyncConfig {
        named: 0x3f3f,
        ..AsyncConfig::default()
    };
    for ty in TYPES.into_iter().take(3) {
        let i = ty as usize;
        c.primary[i] = from_wire(r.u32()?, ty, version);
        c.secondary[i] = from_wire(r.u32()?, ty, version);
    }
    Ok(c)
}

#[expect(clippy::indexing_slicing, reason = "the arrays have a place for each type")]
pub(super) fn encode_async(version: Version, c: &AsyncConfig, out: &mut Vec<u8>) {
    for ty in TYPES.into_iter().take(3) {
        let i = ty as usize;
        out.u32(c.primary[i] & allowed(ty, version));
        out.u32(c.secondary[i] & allowed(ty, version));
    }
}

/// Reads the form of 1.4 and later (and Nicira's second): a property per type and role.
#[expect(clippy::indexing_slicing, reason = "`TYPES.get` has checked it")]
pub(super) fn decode_async_props(version: Version, mut r: Reader<'_>) -> Result<AsyncConfig, ErrorKind> {
    let mut c = AsyncConfig::default();
    while !r.is_empty() {
        let p = property::pull_with(&mut r, 8, 0xfffe)?;
        let ty = usize::from(p.standard()?);
        let Some(kind) = TYPES.get(ty / 2).copied() else {
            return Err(ErrorKind::AsyncConfigFailedUnsupported);
        };
        let raw = p.u32()?;
        if raw & !allowed(kind, version) != 0 {
            return Err(ErrorKind::AsyncConfigFailedInvalid);
        }
        let mask = from_wire(raw, kind, version);
        // Even types are for the secondary role, odd types for primary and equal.
        if ty % 2 == 0 {
            c.secondary[ty / 2] = mask;
            c.named |= 0x100 << (ty / 2);
        } else {
            c.primary[ty / 2] = mask;
            c.named |= 1 << (ty / 2);
        }
    }
    Ok(c)
}

#[expect(clippy::indexing_slicing, reason = "the arrays are as long as `TYPES`")]
pub(super) fn encode_async_props(version: Version, c: &AsyncConfig, out: &mut Vec<u8>) {
    for (i, kind) in TYPES.into_iter().enumerate() {
        let number = u16::try_from(i).expect("six types") * 2;
        let bits = allowed(kind, version);
        property::put(out, number, &(c.secondary[i] & bits).to_be_bytes());
        property::put(out, number + 1, &(c.primary[i] & bits).to_be_bytes());
    }
}
