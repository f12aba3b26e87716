//! OXS statistics (OpenFlow 1.5 §7.2.4): a list of tagged counters.

use crate::error::ErrorKind;
use crate::wire::cursor::{Put, Reader, Short};

const CLASS: u16 = 0x8002;
const DURATION: u8 = 0;
const IDLE_TIME: u8 = 1;
const FLOW_COUNT: u8 = 3;
const PACKET_COUNT: u8 = 4;
const BYTE_COUNT: u8 = 5;

/// The counters; `None` where one is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Oxs {
    /// Seconds and nanoseconds.
    pub(super) duration: Option<(u32, u32)>,
    pub(super) idle_sec: Option<u32>,
    pub(super) flows: Option<u32>,
    pub(super) packets: Option<u64>,
    pub(super) bytes: Option<u64>,
}

/// A counter whose value is known: all ones means that it is not.
pub(super) fn known(v: u64) -> Option<u64> {
    (v != u64::MAX).then_some(v)
}

fn header(field: u8, len: u8) -> [u8; 4] {
    let [hi, lo] = CLASS.to_be_bytes();
    [hi, lo, field << 1, len]
}

pub(super) fn put(out: &mut Vec<u8>, s: &Oxs) {
    let start = out.end();
    out.zeros(4);
    if let Some((sec, nsec)) = s.duration {
        out.put(&header(DURATION, 8));
        out.u32(sec);
        out.u32(nsec);
    }
    if let Some(sec) = s.idle_sec {
        out.put(&header(IDLE_TIME, 8));
        out.u32(sec);
        out.u32(0);
    }
    if let Some(n) = s.packets {
        out.put(&header(PACKET_COUNT, 8));
        out.u64(n);
    }
    if let Some(n) = s.bytes {
        out.put(&header(BYTE_COUNT, 8));
        out.u64(n);
    }
    if let Some(n) = s.flows {
        out.put(&header(FLOW_COUNT, 4));
        out.u32(n);
    }
    out.patch_len(start, 2);
    out.pad8(start);
}

/// Reads a list with its padding. Unknown counters are left out.
pub(super) fn pull(r: &mut Reader<'_>) -> Result<Oxs, ErrorKind> {
    let bad = |_: Short| ErrorKind::BadMatchBadLen;
    let mut head = *r;
    head.skip(2).map_err(bad)?;
    let len = usize::from(head.u16().map_err(bad)?);
    let padded = r.bytes(len.next_multiple_of(8)).map_err(bad)?;
    let mut list = Reader(padded.get(4..len).ok_or(ErrorKind::BadMatchBadLen)?);
    let mut s = Oxs::default();
    while !list.is_empty() {
        let [c0, c1, field, len] = list.array().map_err(bad)?;
        let mut body = Reader(list.bytes(len.into()).map_err(bad)?);
        if u16::from_be_bytes([c0, c1]) != CLASS {
            continue;
        }
        match (field >> 1, len) {
            (DURATION, 8) => s.duration = Some((body.u32().map_err(bad)?, body.u32().map_err(bad)?)),
            (IDLE_TIME, 8) => s.idle_sec = Some(body.u32().map_err(bad)?),
            (FLOW_COUNT, 4) => s.flows = Some(body.u32().map_err(bad)?),
            (PACKET_COUNT, 8) => s.packets = Some(body.u64().map_err(bad)?),
            (BYTE_COUNT, 8) => s.bytes = Some(body.u64().map_err(bad)?),
            (DURATION | IDLE_TIME | FLOW_COUNT | PACKET_COUNT | BYTE_COUNT, _) => {
                return Err(ErrorKind::BadMatchBadLen);
            }
            _ => {}
        }
    }
    Ok(s)
}
