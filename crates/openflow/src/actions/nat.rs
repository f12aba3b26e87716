//! The `nat` action's wire form and text.

use crate::codec::cursor::Reader;
use crate::error::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};

const SRC: u16 = 1 << 0;
const DST: u16 = 1 << 1;
const PERSISTENT: u16 = 1 << 2;
const HASH: u16 = 1 << 3;
const RANDOM: u16 = 1 << 4;

const IPV4_MIN: u16 = 1 << 0;
const IPV4_MAX: u16 = 1 << 1;
const IPV6_MIN: u16 = 1 << 2;
const IPV6_MAX: u16 = 1 << 3;
const PROTO_MIN: u16 = 1 << 4;
const PROTO_MAX: u16 = 1 << 5;

/// Whether an action (all its bytes) changes no address: no flags, no range.
pub(super) fn is_bare(whole: &[u8]) -> bool {
    const ADDRESS: u8 = 0b101;
    // Behind the header and two bytes of padding.
    matches!(whole.get(12..16), Some([0, 0, _, range]) if range & ADDRESS == 0)
}

/// Reads the body; its text.
pub(super) fn text(mut r: Reader<'_>) -> Result<String, ErrorKind> {
    const BAD: ErrorKind = ErrorKind::BadActionBadArgument;
    let bad = |_| BAD;
    r.skip(2).map_err(bad)?;
    let (flags, present) = (r.u16().map_err(bad)?, r.u16().map_err(bad)?);
    let both = |a: u16| flags & a == a;
    if flags & !(SRC | DST | PERSISTENT | HASH | RANDOM) != 0 || both(SRC | DST) || both(HASH | RANDOM) {
        return Err(BAD);
    }
    let has = |bit: u16| present & bit != 0;
    if has(IPV4_MAX) && !has(IPV4_MIN)
        || has(IPV6_MAX) && !has(IPV6_MIN)
        || has(PROTO_MAX) && !has(PROTO_MIN)
        || has(IPV4_MIN) && has(IPV6_MIN)
        || has(PROTO_MIN) && !has(IPV4_MIN) && !has(IPV6_MIN)
    {
        return Err(BAD);
    }
    let mut range = (None, None);
    if has(IPV4_MIN) {
        let min = r.u32().map_err(bad)?;
        let max = if has(IPV4_MAX) { r.u32().map_err(bad)? } else { 0 };
        if min == 0 || has(IPV4_MAX) && max < min {
            return Err(BAD);
        }
        let show = |a: u32| Ipv4Addr::from(a).to_string();
        range = (Some(show(min)), (max != 0 && max != min).then(|| show(max)));
    }
    let mut v6 = None;
    if has(IPV6_MIN) {
        let min = u128::from_be_bytes(r.array().map_err(bad)?);
        let max = if has(IPV6_MAX) {
            u128::from_be_bytes(r.array().map_err(bad)?)
        } else {
            0
        };
        if min == 0 || has(IPV6_MAX) && max < min {
            return Err(BAD);
        }
        v6 = Some((min, max));
    }
    let (mut min_port, mut max_port) = (0, 0);
    if has(PROTO_MIN) {
        min_port = r.u16().map_err(bad)?;
        if min_port == 0 {
            return Err(BAD);
        }
        if has(PROTO_MAX) {
            max_port = r.u16().map_err(bad)?;
            if max_port < min_port {
                return Err(BAD);
            }
        }
    }
    if let Some((min, max)) = v6 {
        let show = |a: u128| {
            let a = Ipv6Addr::from(a);
            if min_port != 0 {
                format!("[{a}]")
            } else {
                a.to_string()
            }
        };
        range = (Some(show(min)), (max != 0 && max != min).then(|| show(max)));
    }

    if flags & (SRC | DST) == 0 {
        return Ok("nat".into());
    }
    let mut head = if flags & SRC != 0 {
        "src".to_owned()
    } else {
        "dst".to_owned()
    };
    if let (Some(min), max) = range {
        head += &format!("={min}");
        if let Some(max) = max {
            head += &format!("-{max}");
        }
        if min_port != 0 {
            head += &format!(":{min_port}");
            if max_port != 0 && max_port != min_port {
                head += &format!("-{max_port}");
            }
        }
        for (bit, name) in [(PERSISTENT, "persistent"), (HASH, "hash"), (RANDOM, "random")] {
            if flags & bit != 0 {
                head += &format!(",{name}");
            }
        }
    }
    Ok(format!("nat({head})"))
}
