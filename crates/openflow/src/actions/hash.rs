//! `multipath`, `bundle` and `bundle_load` on the wire.

use super::encoder::{Encoded, Encoder, end};
use super::field::{check_dst, from_nxm_ofs, nxm, ofs_nbits};
use super::raw::Raw;
use crate::action::{
    Action, Bundle, BundleAlgorithm, HashFields, Multipath, MultipathAlgorithm, Port, Subfield,
};
use crate::error::{EncodeError, ErrorKind};
use crate::wire::cursor::{Put, Reader, Short};
use crate::wire::port::{is_output_port, port_from_u16, port_to_u16};

const BAD_ARGUMENT: ErrorKind = ErrorKind::BadActionBadArgument;
/// `NXM_OF_IN_PORT`: members are ports.
const MEMBER_TYPE: u32 = 2;
const MAX_MEMBERS: u16 = 2048;

fn short(_: Short) -> ErrorKind {
    ErrorKind::BadActionBadLen
}

fn nth<T: Copy>(all: &[T], n: u16) -> Result<T, ErrorKind> {
    all.get(usize::from(n)).copied().ok_or(BAD_ARGUMENT)
}

pub(super) fn decode_multipath(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
    let (fields, basis) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    r.skip(2).map_err(short)?;
    let (algorithm, max_link) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let arg = r.u32().map_err(short)?;
    r.skip(2).map_err(short)?;
    let ofs_nbits = r.u16().map_err(short)?;
    let dst = from_nxm_ofs(ofs_nbits, r.u32().map_err(short)?)?;
    let fields = nth(&HashFields::ALL, fields)?;
    let algorithm = nth(&MultipathAlgorithm::ALL, algorithm)?;
    if dst.n_bits < 16 && u32::from(max_link) + 1 > 1 << dst.n_bits {
        return Err(BAD_ARGUMENT);
    }
    check_dst(dst, None)?;
    Ok(Action::Multipath(Box::new(Multipath {
        fields,
        basis,
        algorithm,
        max_link,
        arg,
        dst,
    })))
}

pub(super) fn decode_bundle(mut r: Reader<'_>, load: bool) -> Result<Action, ErrorKind> {
    let algorithm = r.u16().map_err(short)?;
    let (fields, basis) = (r.u16().map_err(short)?, r.u16().map_err(short)?);
    let member_type = r.u32().map_err(short)?;
    let n = r.u16().map_err(short)?;
    let (ofs_nbits, header) = (r.u16().map_err(short)?, r.u32().map_err(short)?);
    let zero = r.u32().map_err(short)?;
    let short_list = r.len() < 2 * usize::from(n);
    let mut dst = None;
    if load {
        let to = from_nxm_ofs(ofs_nbits, header)?;
        if to.n_bits < 16 && !short_list {
            return Err(BAD_ARGUMENT);
        }
        check_dst(to, None)?;
        dst = Some(to);
    } else if short_list {
        return Err(ErrorKind::BadActionBadLen);
    } else if ofs_nbits != 0 || header != 0 {
        return Err(BAD_ARGUMENT);
    }
    let fields = nth(&HashFields::ALL, fields)?;
    let algorithm = nth(&BundleAlgorithm::ALL, algorithm)?;
    if n > MAX_MEMBERS || member_type != MEMBER_TYPE || zero != 0 {
        return Err(BAD_ARGUMENT);
    }
    let mut members = Vec::with_capacity(n.into());
    for _ in 0..n {
        let port = port_from_u16(r.u16().map_err(short)?);
        if port != Port::NONE && (!is_output_port(port, Port::MAX) || port == Port::CONTROLLER) {
            return Err(ErrorKind::BadActionBadOutPort);
        }
        members.push(port);
    }
    Ok(Action::Bundle(Box::new(Bundle {
        fields,
        basis,
        algorithm,
        members,
        dst,
    })))
}

impl Encoder {
    fn put_dst(&self, dst: Subfield, out: &mut Vec<u8>) -> Encoded {
        out.u16(ofs_nbits(dst));
        out.u32(nxm(dst.field).ok_or(self.missing("an experimenter's field"))?);
        Ok(())
    }

    pub(super) fn multipath(&self, m: &Multipath, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::Multipath, "multipath", out)?;
        out.u16(m.fields as u16);
        out.u16(m.basis);
        out.u16(0);
        out.u16(m.algorithm as u16);
        out.u16(m.max_link);
        out.u32(m.arg);
        out.u16(0);
        self.put_dst(m.dst, out)?;
        end(out, start);
        Ok(())
    }

    pub(super) fn bundle(&self, b: &Bundle, out: &mut Vec<u8>) -> Encoded {
        let raw = if b.dst.is_some() {
            Raw::BundleLoad
        } else {
            Raw::Bundle
        };
        let start = self.begin(raw, "bundle", out)?;
        out.u16(b.algorithm as u16);
        out.u16(b.fields as u16);
        out.u16(b.basis);
        out.u32(MEMBER_TYPE);
        out.u16(u16::try_from(b.members.len()).map_err(|_| EncodeError::TooLong("bundle"))?);
        match b.dst {
            Some(dst) => self.put_dst(dst, out)?,
            None => out.zeros(6),
        }
        out.u32(0);
        b.members.iter().for_each(|p| out.u16(port_to_u16(*p)));
        end(out, start);
        Ok(())
    }
}
