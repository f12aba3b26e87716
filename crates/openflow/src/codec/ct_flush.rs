//! Contents of `NXT_CT_FLUSH`: a selection of tracked connections to forget.

use crate::error::ErrorKind;
use crate::message::{CtFlush, CtTuple};
use crate::wire::cursor::Reader;
use crate::wire::property;
use std::net::{IpAddr, Ipv6Addr};

const ORIG_TUPLE: u16 = 0;
const REPLY_TUPLE: u16 = 1;
const ZONE_ID: u16 = 2;
const MARK: u16 = 3;
const MARK_MASK: u16 = 4;
const LABELS: u16 = 5;
const LABELS_MASK: u16 = 6;

const SRC: u16 = 0;
const DST: u16 = 1;
const SRC_PORT: u16 = 2;
const DST_PORT: u16 = 3;
const ICMP_ID: u16 = 4;
const ICMP_TYPE: u16 = 5;
const ICMP_CODE: u16 = 6;

/// Reads the message's protocol and properties. Unknown properties are skipped, as in Open vSwitch.
///
/// # Errors
/// The fault of the protocol or properties.
pub fn decode_ct_flush(ip_proto: u8, properties: &[u8]) -> Result<CtFlush, ErrorKind> {
    let mut flush = CtFlush {
        ip_proto,
        ..CtFlush::default()
    };
    let (mut mark, mut label) = (Masked::default(), Masked::default());
    let mut r = Reader(properties);
    while !r.is_empty() {
        let p = property::pull(&mut r)?;
        match p.standard()? {
            ORIG_TUPLE => tuple(p.nested()?, &mut flush.orig)?,
            REPLY_TUPLE => tuple(p.nested()?, &mut flush.reply)?,
            ZONE_ID => flush.zone = Some(p.u16()?),
            MARK => mark.value = Some(p.u32()?),
            MARK_MASK => mark.mask = Some(p.u32()?),
            LABELS => label.value = Some(wide(p.body)?),
            LABELS_MASK => label.mask = Some(wide(p.body)?),
            _ => {}
        }
    }
    // A mask without bits restricts nothing.
    flush.mark = mark.with_default(0, u32::MAX).filter(|(_, mask)| *mask != 0);
    flush.label = label.with_default(0, u128::MAX).filter(|(_, mask)| *mask != 0);
    let addresses = [flush.orig.src, flush.orig.dst, flush.reply.src, flush.reply.dst];
    let mut known = addresses.into_iter().flatten();
    let first = known.next();
    if first.is_some_and(|first| known.any(|other| other.is_ipv4() != first.is_ipv4())) {
        return Err(ErrorKind::BadPropertyBadValue);
    }
    Ok(flush)
}

/// A value and its mask, of which one may be missing.
#[derive(Default)]
struct Masked<T> {
    value: Option<T>,
    mask: Option<T>,
}

impl<T> Masked<T> {
    /// Value and mask; a missing one is zero, or all ones for a mask. `None` if both are missing.
    fn with_default(self, zero: T, ones: T) -> Option<(T, T)> {
        let is_given = self.value.is_some() || self.mask.is_some();
        is_given.then(|| (self.value.unwrap_or(zero), self.mask.unwrap_or(ones)))
    }
}

/// The last 16 bytes, behind padding where there is some.
fn wide(body: &[u8]) -> Result<u128, ErrorKind> {
    let last = body.last_chunk::<16>().filter(|_| matches!(body.len(), 16 | 20));
    last.map(|b| u128::from_be_bytes(*b))
        .ok_or(ErrorKind::BadPropertyBadLen)
}

fn tuple(bytes: &[u8], t: &mut CtTuple) -> Result<(), ErrorKind> {
    let mut r = Reader(bytes);
    while !r.is_empty() {
        let p = property::pull(&mut r)?;
        match p.standard()? {
            SRC => t.src = address(p.body)?,
            DST => t.dst = address(p.body)?,
            SRC_PORT => t.src_port = Some(p.u16()?).filter(|n| *n != 0),
            DST_PORT => t.dst_port = Some(p.u16()?).filter(|n| *n != 0),
            ICMP_ID => t.icmp_id = Some(p.u16()?),
            ICMP_TYPE => t.icmp_type = Some(p.u8()?),
            ICMP_CODE => t.icmp_code = Some(p.u8()?),
            _ => {}
        }
    }
    Ok(())
}

/// An address of IPv6, or one of IPv4 within it; `None`: zero, which is any.
fn address(body: &[u8]) -> Result<Option<IpAddr>, ErrorKind> {
    let bytes = body.first_chunk::<16>().ok_or(ErrorKind::BadPropertyBadLen)?;
    let wide = Ipv6Addr::from(*bytes);
    let narrow = wide.to_ipv4_mapped().map_or(IpAddr::V6(wide), IpAddr::V4);
    Ok((!wide.is_unspecified()).then_some(narrow))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut Vec<u8>, ty: u16, body: &[u8]) {
        property::put(out, ty, body);
    }
    fn nested(ty: u16, parts: &[(u16, &[u8])]) -> Vec<u8> {
        let (mut inner, mut out) = (vec![0; 4], Vec::new());
        let mut list = Vec::new();
        parts.iter().for_each(|(ty, body)| put(&mut list, *ty, body));
        inner.extend(list);
        put(&mut out, ty, &inner);
        out
    }

    #[test]
    fn all_of_it() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let mut bytes = nested(
            ORIG_TUPLE,
            &[(SRC, &mapped), (DST, &[0; 16]), (SRC_PORT, &[0, 80])],
        );
        put(&mut bytes, ZONE_ID, &[0, 5]);
        put(&mut bytes, MARK, &[0, 0, 0, 1]);
        put(&mut bytes, MARK_MASK, &[0, 0, 0, 3]);
        put(&mut bytes, LABELS, &[1; 16]);
        let f = decode_ct_flush(6, &bytes).unwrap();
        assert_eq!(f.orig.src, Some([10, 0, 0, 1].into()));
        assert_eq!((f.orig.dst, f.orig.src_port), (None, Some(80)));
        assert_eq!((f.zone, f.mark), (Some(5), Some((1, 3))));
        assert_eq!(f.label, Some((u128::from_be_bytes([1; 16]), u128::MAX)));
    }

    #[test]
    fn a_mask_alone_is_one_of_zero() {
        let mut bytes = Vec::new();
        put(&mut bytes, LABELS_MASK, &[[0; 8], [0xff; 8]].concat());
        let f = decode_ct_flush(0, &bytes).unwrap();
        assert_eq!((f.mark, f.label), (None, Some((0, u128::from(u64::MAX)))));
    }

    #[test]
    fn a_mask_of_no_bits_selects_nothing() {
        let mut bytes = Vec::new();
        put(&mut bytes, MARK, &[0, 0, 0, 30]);
        put(&mut bytes, MARK_MASK, &[0; 4]);
        put(&mut bytes, LABELS, &[1; 16]);
        put(&mut bytes, LABELS_MASK, &[0; 16]);
        assert_eq!(decode_ct_flush(0, &bytes), Ok(CtFlush::default()));
    }

    #[test]
    fn addresses_of_two_kinds_do_not_go_together() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let mut bytes = nested(ORIG_TUPLE, &[(SRC, &mapped)]);
        bytes.extend(nested(REPLY_TUPLE, &[(DST, &[7; 16])]));
        assert_eq!(decode_ct_flush(0, &bytes), Err(ErrorKind::BadPropertyBadValue));
        let short = nested(ORIG_TUPLE, &[(SRC, &[1; 4])]);
        assert_eq!(decode_ct_flush(0, &short), Err(ErrorKind::BadPropertyBadLen));
    }
}
