//! Properties: the type-length-value parts that newer messages and some actions end in (OpenFlow 1.4 §7.2.1).
//!
//! Sixteen bits of type, sixteen of length without padding, and, for types 0xffff (and 0xfffe in some lists),
//! the experimenter and its own type. Each is padded to eight bytes.

use super::cursor::{Put, Reader};
use crate::error::ErrorKind;

/// One property. Errors of its accessors are `OFPBPC_BAD_LEN`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Property<'a> {
    pub(crate) ty: u16,
    /// Experimenter and its type, if it has them.
    pub(crate) experimenter: Option<(u32, u32)>,
    /// Bytes behind the header.
    pub(crate) body: &'a [u8],
}

/// Splits a property off the front.
pub(crate) fn pull<'a>(r: &mut Reader<'a>) -> Result<Property<'a>, ErrorKind> {
    pull_with(r, 8, 0xffff)
}

/// Like [`pull`], with another alignment, and another first type that has an experimenter.
pub(crate) fn pull_with<'a>(
    r: &mut Reader<'a>,
    align: usize,
    min_exp: u16,
) -> Result<Property<'a>, ErrorKind> {
    let bad = |_| ErrorKind::BadPropertyBadLen;
    let mut head = *r;
    let (ty, len) = (head.u16().map_err(bad)?, usize::from(head.u16().map_err(bad)?));
    if len < 4 {
        return Err(ErrorKind::BadPropertyBadLen);
    }
    let padded = r.bytes(len.next_multiple_of(align)).map_err(bad)?;
    let mut body = Reader(padded.get(4..len).unwrap_or(&[]));
    let experimenter = if ty >= min_exp {
        let e = (body.u32().map_err(bad)?, body.u32().map_err(bad)?);
        if e.0 == 0 {
            return Err(ErrorKind::BadPropertyBadExperimenter);
        }
        Some(e)
    } else {
        None
    };
    Ok(Property {
        ty,
        experimenter,
        body: body.0,
    })
}

impl Property<'_> {
    /// The property's type, if it is not an experimenter's.
    pub(crate) fn standard(&self) -> Result<u16, ErrorKind> {
        if self.experimenter.is_some() {
            Err(ErrorKind::BadPropertyBadExpType)
        } else {
            Ok(self.ty)
        }
    }
    /// A byte; more may follow.
    pub(crate) fn u8(&self) -> Result<u8, ErrorKind> {
        self.body.first().copied().ok_or(ErrorKind::BadPropertyBadLen)
    }
    /// Two bytes; more may follow.
    pub(crate) fn u16(&self) -> Result<u16, ErrorKind> {
        Reader(self.body).u16().map_err(|_| ErrorKind::BadPropertyBadLen)
    }
    /// Four bytes.
    pub(crate) fn u32(&self) -> Result<u32, ErrorKind> {
        let b = <[u8; 4]>::try_from(self.body).map_err(|_| ErrorKind::BadPropertyBadLen)?;
        Ok(u32::from_be_bytes(b))
    }
    /// Eight bytes, aligned.
    pub(crate) fn u64(&self) -> Result<u64, ErrorKind> {
        let b = <[u8; 8]>::try_from(self.nested()?).map_err(|_| ErrorKind::BadPropertyBadLen)?;
        Ok(u64::from_be_bytes(b))
    }
    /// Bytes behind the header's padding to eight bytes.
    pub(crate) fn nested(&self) -> Result<&[u8], ErrorKind> {
        self.body.get(4..).ok_or(ErrorKind::BadPropertyBadLen)
    }
}

/// Writes a property of these bytes.
pub(crate) fn put(out: &mut Vec<u8>, ty: u16, body: &[u8]) {
    let start = begin(out, ty);
    out.put(body);
    finish(out, start);
}

/// Starts a property; [`finish`] ends it.
pub(crate) fn begin(out: &mut Vec<u8>, ty: u16) -> usize {
    let start = out.end();
    out.u16(ty);
    out.u16(0);
    start
}

/// Ends a property: fills its length in and pads it.
pub(crate) fn finish(out: &mut Vec<u8>, start: usize) {
    out.patch_len(start, 2);
    out.pad8(start);
}
