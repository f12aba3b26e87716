//! Bundle messages. The bodies are the same in 1.4 and later and in ONF's messages of 1.3.

use super::cursor::{Put, Reader};
use super::types::Type;
use super::{DecodeContext, vendor};
use crate::error::{EncodeError, ErrorKind};
use crate::header::{HEADER_LEN, Header};
use crate::message::{BundleAdd, BundleCommand, BundleControl};
use crate::version::Version;

/// Reads a control message behind its header.
pub(super) fn decode_control(mut r: Reader<'_>) -> Result<BundleControl, ErrorKind> {
    let (id, command, flags) = (r.u32()?, r.u16()?, r.u16()?);
    let command = BundleCommand::ALL
        .get(usize::from(command))
        .copied()
        .ok_or(ErrorKind::BundleFailedBadType)?;
    Ok(BundleControl { id, command, flags })
}

pub(super) fn encode_control(c: &BundleControl, out: &mut Vec<u8>) {
    out.u32(c.id);
    out.u16(c.command as u16);
    out.u16(c.flags);
}

/// Reads an add message behind its header `outer`. The message inside has a header of its own, whose version and
/// transaction id are the outer one's; properties behind it are skipped, as none is defined.
pub(super) fn decode_add(
    outer: &Header,
    mut r: Reader<'_>,
    cx: &DecodeContext,
) -> Result<BundleAdd, ErrorKind> {
    let id = r.u32()?;
    r.skip(2)?;
    let flags = r.u16()?;
    let body = r.rest();
    let inner = Header::parse(body).ok_or(ErrorKind::BundleFailedMsgBadLen)?;
    if inner.version != outer.version {
        return Err(ErrorKind::BundleFailedBadVersion);
    }
    let len = usize::from(inner.length);
    let whole = body
        .get(..len)
        .filter(|_| len >= HEADER_LEN)
        .ok_or(ErrorKind::BundleFailedMsgBadLen)?;
    if inner.xid != outer.xid {
        return Err(ErrorKind::BundleFailedMsgBadXid);
    }
    // Before it is read: a bundle within a bundle would make this recursive.
    if !may_be_in_bundle(&inner, whole) {
        return Err(ErrorKind::BundleFailedMsgUnsup);
    }
    Ok(BundleAdd {
        id,
        flags,
        message: Box::new(super::decode_body(&inner, whole, cx)?),
    })
}

/// Whether a message changes something in a way that can be taken back.
fn may_be_in_bundle(header: &Header, whole: &[u8]) -> bool {
    let Some(ty) = Version::from_wire(header.version).and_then(|v| Type::from_wire(v, header.msg_type))
    else {
        return false;
    };
    match ty {
        Type::FlowMod | Type::GroupMod | Type::PortMod | Type::PacketOut => true,
        Type::Vendor => vendor::is_mod(Reader(whole.get(HEADER_LEN..).unwrap_or(&[]))),
        _ => false,
    }
}

pub(super) fn encode_add(
    version: Version,
    xid: u32,
    add: &BundleAdd,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    out.u32(add.id);
    out.zeros(2);
    out.u16(add.flags);
    for part in super::encode(version, xid, &add.message)? {
        out.put(&part);
    }
    Ok(())
}
