//! Bundle messages. The bodies are the same in 1.4 and later and in ONF's messages of 1.3.

use super::types::Type;
use super::{DecodeContext, vendor};
use crate::error::{EncodeError, ErrorKind};
use crate::header::{HEADER_LEN, Header};
use crate::message::{BundleAdd, BundleCommand, BundleControl};
use crate::version::Version;
use crate::wire::cursor::{Put, Reader};

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

/// Reads an add message behind its header `outer`. The message inside has a header of its own, with the outer
/// one's version and transaction id. Properties behind it are skipped, as none is defined.
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
    // Checked before the message is read: a bundle within a bundle would make this recursive.
    if !may_be_in_bundle(&inner, whole) {
        return Err(ErrorKind::BundleFailedMsgUnsup);
    }
    Ok(BundleAdd {
        id,
        flags,
        message: Box::new(super::decode_body(&inner, whole, cx)?),
    })
}

/// Whether a message makes a change that can be undone.
fn may_be_in_bundle(header: &Header, whole: &[u8]) -> bool {
    let Some(ty) = Version::from_wire(header.version).and_then(|v| Type::from_wire(v, header.msg_type))
    else {
        return false;
    };
    let body = whole.get(HEADER_LEN..).unwrap_or(&[]);
    let is_mod = match ty {
        Type::FlowMod | Type::GroupMod | Type::PortMod | Type::PacketOut => true,
        Type::Vendor => vendor::is_mod(Reader(body)),
        _ => false,
    };
    is_mod && has_length(Version::from_wire(header.version), ty, body.len())
}

/// Whether the body of a message in a bundle has a length that its type can have. Open vSwitch takes messages
/// of other lengths for no messages at all.
fn has_length(version: Option<Version>, ty: Type, len: usize) -> bool {
    let v = version.unwrap_or(Version::V10);
    // The fixed part; behind it is a list of bytes, of pieces of eight bytes, or nothing.
    let (fixed, piece) = match ty {
        Type::FlowMod if v == Version::V10 => (64, 8),
        Type::FlowMod => (40, 8),
        Type::GroupMod if v >= Version::V15 => (16, 8),
        Type::GroupMod => (8, 8),
        Type::PortMod if v == Version::V10 => return len == 24,
        Type::PortMod if v < Version::V14 => return len == 32,
        Type::PortMod => (24, 8),
        Type::PacketOut if (Version::V11..=Version::V14).contains(&v) => (16, 1),
        Type::PacketOut => (8, 1),
        // Vendor and subtype come first.
        _ => (8, 8),
    };
    len >= fixed && (len - fixed).is_multiple_of(piece)
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

#[cfg(test)]
mod tests {
    use crate::{DecodeContext, ErrorKind, decode};

    /// The error of an add with such a message inside; `None`: it is accepted.
    fn error(version: u8, ty: u8, body: &[u8]) -> Option<ErrorKind> {
        let message = |ty: u8, body: &[u8]| {
            let len = u16::try_from(8 + body.len()).unwrap().to_be_bytes();
            [&[version, ty, len[0], len[1], 0, 0, 0, 9], body].concat()
        };
        let add = [&[0, 0, 0, 1, 0, 0, 0, 0], &message(ty, body)[..]].concat();
        let decoded = decode(&message(34, &add), &DecodeContext::default());
        decoded.err().map(|e| e.error.kind)
    }

    #[test]
    fn what_is_too_short_to_be_a_message_is_none_that_a_bundle_can_have() {
        for (ty, fixed, piece) in [(14, 40, 8), (15, 8, 8), (16, 24, 8), (13, 16, 1)] {
            let mut lengths: Vec<usize> = (0..fixed).collect();
            lengths.extend(fixed + 1..fixed + piece);
            for len in lengths {
                let body = vec![0; len];
                assert_eq!(
                    error(5, ty, &body),
                    Some(ErrorKind::BundleFailedMsgUnsup),
                    "{ty}: {len}"
                );
            }
            assert_ne!(
                error(5, ty, &vec![0; fixed]),
                Some(ErrorKind::BundleFailedMsgUnsup),
                "{ty}"
            );
        }
    }
}
