//! Cutting a datagram into IP fragments (RFC 791, 3.2; RFC 8200, 4.5).

use super::frame::{L3, be16, write_checksum};
use super::{SegmentError, is_v4};
use heddle_wire::checksum::Sum;
use heddle_wire::ip::{Ipv4, Ipv6, Ipv6Ext, Ipv6Frag, proto};
use heddle_wire::{Be16, Be32, split, split_mut};
use std::hash::{BuildHasher, RandomState};

/// Maximum number of IPv6 extension headers before the fragment header.
const MAX_EXTENSIONS: usize = 8;

/// The headers of a datagram that each of its fragments repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragments {
    l3: L3,
    l3_at: usize,
    /// Offset of the bytes that are cut.
    pub(super) payload: usize,
    /// The field that names the header at `payload`; IPv6 only.
    next_at: usize,
    /// Identification of IPv6's fragments. Those of IPv4 have the datagram's.
    id: u32,
}

impl Fragments {
    /// Finds the headers of the datagram whose IP header is at `l3_at`. It is cut into fragments of `size`
    /// bytes of payload, a multiple of eight.
    pub(super) fn of(frame: &[u8], (l3, l3_at): (L3, usize), size: u16) -> Result<Self, SegmentError> {
        let ip = frame.get(l3_at..).ok_or(SegmentError::Malformed)?;
        if size == 0 || !size.is_multiple_of(8) {
            return Err(SegmentError::Malformed);
        }
        let (len, next) = match l3 {
            L3::V4 => {
                let (ip, _) = split::<Ipv4>(ip).ok_or(SegmentError::Malformed)?;
                (ip.header_len(), 0)
            }
            L3::V6 => unfragmentable(ip).ok_or(SegmentError::Malformed)?,
        };
        if len < Ipv4::LEN || len > ip.len() {
            return Err(SegmentError::Malformed);
        }
        Ok(Self {
            l3,
            l3_at,
            payload: l3_at + len,
            next_at: l3_at + next,
            id: random_id(),
        })
    }

    /// Bytes of the fragment header that IPv6 adds.
    pub(super) fn added(&self) -> usize {
        if is_v4(self.l3) { 0 } else { Ipv6Frag::LEN }
    }

    /// Writes the headers of the fragment `frame`, whose payload starts `from` bytes into the datagram's. It
    /// begins with the datagram's headers, and has room for a fragment header of IPv6 behind them.
    pub(super) fn fix(&self, frame: &mut [u8], from: usize, last: bool) -> Result<(), SegmentError> {
        if is_v4(self.l3) {
            self.fix_v4(frame, from, last)
        } else {
            self.fix_v6(frame, from, last)
        }
    }

    fn fix_v4(&self, frame: &mut [u8], from: usize, last: bool) -> Result<(), SegmentError> {
        let ip = frame.get_mut(self.l3_at..).ok_or(SegmentError::Malformed)?;
        let len = be16(ip.len())?;
        let offset = be16(from / 8)?.get();
        let header = ip
            .get_mut(..self.payload - self.l3_at)
            .ok_or(SegmentError::Malformed)?;
        if from > 0 {
            drop_options(header.get_mut(Ipv4::LEN..).unwrap_or_default());
        }
        let (ip, _) = split_mut::<Ipv4>(header).ok_or(SegmentError::Malformed)?;
        let more = if last { 0 } else { Ipv4::MORE };
        ip.total_len = len;
        ip.frag = Be16::new(ip.frag.get() & Ipv4::DONT | more | offset);
        write_checksum(header)
    }

    fn fix_v6(&self, frame: &mut [u8], from: usize, last: bool) -> Result<(), SegmentError> {
        let next = frame.get_mut(self.next_at).ok_or(SegmentError::Malformed)?;
        let fragmented = std::mem::replace(next, proto::FRAGMENT);
        let ip = frame.get_mut(self.l3_at..).ok_or(SegmentError::Malformed)?;
        let len = be16(ip.len().checked_sub(Ipv6::LEN).ok_or(SegmentError::Malformed)?)?;
        let (header, _) = split_mut::<Ipv6>(ip).ok_or(SegmentError::Malformed)?;
        header.payload_len = len;
        let behind = ip
            .get_mut(self.payload - self.l3_at..)
            .ok_or(SegmentError::Malformed)?;
        let (frag, _) = split_mut::<Ipv6Frag>(behind).ok_or(SegmentError::Malformed)?;
        let more = if last { 0 } else { Ipv6Frag::MORE };
        frag.next = fragmented;
        frag.reserved = 0;
        frag.offset = Be16::new(be16(from)?.get() | more);
        frag.id = Be32::new(self.id);
        Ok(())
    }

    /// The IP header's offset in a finished fragment, and the sum of all bytes from there on.
    pub(super) fn sum_behind(&self, fragment: &[u8]) -> Result<(usize, Sum), SegmentError> {
        let ip = fragment.get(self.l3_at..).ok_or(SegmentError::Malformed)?;
        Ok((self.l3_at, Sum::ZERO.bytes(ip)))
    }
}

/// Bytes of the headers that each fragment of an IPv6 packet repeats: those that routers on the way read. And
/// the offset of the field that names the first header behind them.
fn unfragmentable(ip: &[u8]) -> Option<(usize, usize)> {
    const NEXT_AT: usize = 6;
    let (header, _) = split::<Ipv6>(ip)?;
    let (mut next, mut next_at, mut at) = (header.next, NEXT_AT, Ipv6::LEN);
    let mut found = (at, next_at);
    for _ in 0..MAX_EXTENSIONS {
        if !matches!(next, proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS) {
            break;
        }
        let (ext, _) = split::<Ipv6Ext>(ip.get(at..)?)?;
        // Destination options are for routers only before a routing header.
        let repeated = next != proto::DSTOPTS;
        (next, next_at) = (ext.next, at);
        at += (usize::from(ext.len) + 1) * 8;
        if repeated {
            found = (at, next_at);
        }
    }
    Some(found)
}

/// Overwrites the options that only the first fragment has (RFC 791, 3.1: without the copied flag).
fn drop_options(mut options: &mut [u8]) {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const COPIED: u8 = 0x80;
    while let [kind, rest @ ..] = options {
        let len = match (*kind, rest.first()) {
            (END, _) => return,
            (NOP, _) => 1,
            (_, Some(len)) => usize::from(*len).max(2),
            (_, None) => return,
        };
        let Some((option, behind)) = options.split_at_mut_checked(len) else {
            return;
        };
        if option.first().is_some_and(|kind| kind & COPIED == 0) {
            option.fill(NOP);
        }
        options = behind;
    }
}

/// An identification that other hosts cannot predict (RFC 7739); not zero.
#[allow(clippy::cast_possible_truncation)] // any bits will do
fn random_id() -> u32 {
    (RandomState::new().hash_one(()) as u32).max(1)
}

#[cfg(test)]
mod tests;
