//! The `nat` action on the wire.

use super::encoder::{Encoded, Encoder, end};
use super::raw::Raw;
use crate::action::{Action, Nat, NatAddresses, NatDirection};
use crate::error::ErrorKind;
use crate::wire::cursor::{Put, Reader};
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

/// Whether an action changes no address: no flags, no range.
pub(super) fn is_bare(a: &Action) -> bool {
    matches!(a, Action::Nat(n) if **n == Nat::default())
}

/// Reads the body.
pub(super) fn decode(mut r: Reader<'_>) -> Result<Action, ErrorKind> {
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
    let mut nat = Nat {
        direction: match (both(SRC), both(DST)) {
            (true, _) => Some(NatDirection::Src),
            (_, true) => Some(NatDirection::Dst),
            _ => None,
        },
        persistent: both(PERSISTENT),
        hash: both(HASH),
        random: both(RANDOM),
        ..Nat::default()
    };
    if has(IPV4_MIN) {
        let min = r.u32().map_err(bad)?;
        let max = if has(IPV4_MAX) { r.u32().map_err(bad)? } else { 0 };
        if min == 0 || has(IPV4_MAX) && max < min {
            return Err(BAD);
        }
        nat.addresses = NatAddresses::V4(min.into(), (max != 0).then(|| Ipv4Addr::from(max)));
    }
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
        nat.addresses = NatAddresses::V6(min.into(), (max != 0).then(|| Ipv6Addr::from(max)));
    }
    if has(PROTO_MIN) {
        let min = r.u16().map_err(bad)?;
        if min == 0 {
            return Err(BAD);
        }
        let max = if has(PROTO_MAX) {
            Some(r.u16().map_err(bad)?)
        } else {
            None
        };
        if max.is_some_and(|max| max < min) {
            return Err(BAD);
        }
        nat.ports = Some((min, max));
    }
    Ok(Action::Nat(Box::new(nat)))
}

impl Encoder {
    pub(super) fn nat(&self, n: &Nat, out: &mut Vec<u8>) -> Encoded {
        let start = self.begin(Raw::Nat, "nat", out)?;
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        out.zeros(2);
        out.u16(
            flag(n.direction == Some(NatDirection::Src), SRC)
                | flag(n.direction == Some(NatDirection::Dst), DST)
                | flag(n.persistent, PERSISTENT)
                | flag(n.hash, HASH)
                | flag(n.random, RANDOM),
        );
        let present_at = out.end();
        out.u16(0);
        let mut present = match n.addresses {
            NatAddresses::None => 0,
            NatAddresses::V4(min, max) => {
                out.put(&min.octets());
                max.iter().for_each(|a| out.put(&a.octets()));
                IPV4_MIN | flag(max.is_some(), IPV4_MAX)
            }
            NatAddresses::V6(min, max) => {
                out.put(&min.octets());
                max.iter().for_each(|a| out.put(&a.octets()));
                IPV6_MIN | flag(max.is_some(), IPV6_MAX)
            }
        };
        if let (Some((min, max)), true) = (n.ports, present != 0) {
            out.u16(min);
            max.iter().for_each(|p| out.u16(*p));
            present |= PROTO_MIN | flag(max.is_some(), PROTO_MAX);
        }
        out.patch(present_at, &present.to_be_bytes());
        end(out, start);
        Ok(())
    }
}
