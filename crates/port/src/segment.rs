//! Finishing packets in software: segment trains cut into segments, checksums filled in.
//!
//! Used for destinations without these offloads. The packet's metadata says what to do, its bytes say where:
//! both come from a sender that may lie, so each offset is checked against the bytes and a train that does
//! not look like what it claims is refused ([`SegmentError`]), never sent half.
//!
//! Cost: one copy of the packet, one pass over it for the checksum; no allocation beyond the pool's.

mod frame;
#[cfg(test)]
mod tests;

use frame::{L3, Layout};
use heddle_packet::{Csum, GsoKind, Offload, Packet, Pool};
use heddle_wire::checksum::Sum;

/// Most segments of one train; a sender that asks for more (tiny segments of a huge packet) is refused: each
/// costs about as much as a packet. The longest train may have segments of 128 bytes.
pub const MAX_SEGMENTS: usize = 512;

/// Why a packet cannot be finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SegmentError {
    /// Headers end early, or the metadata points outside the packet.
    #[error("headers and metadata do not fit the packet")]
    Malformed,
    /// The headers are not of the protocol that the metadata names.
    #[error("headers are not of the protocol that the segmentation type names")]
    Mismatch,
    /// More than [`MAX_SEGMENTS`] segments.
    #[error("too many segments")]
    TooMany,
}

/// Fills in the checksum that `packet` leaves open, in its private bytes (a foreign tail is summed as it is
/// read).
///
/// # Errors
/// [`SegmentError::Malformed`] when the field is not in the head.
pub fn complete_csum(packet: &mut Packet) -> Result<(), SegmentError> {
    let Csum::Partial { start, offset } = packet.offload.csum else {
        return Ok(());
    };
    packet.make_private();
    fill_csum(packet.head_mut(), usize::from(start), usize::from(offset))?;
    packet.offload.csum = Csum::Valid;
    Ok(())
}

/// Sums `frame` from `start` on (the field holds the pseudo header's sum) and stores the checksum.
fn fill_csum(frame: &mut [u8], start: usize, offset: usize) -> Result<(), SegmentError> {
    let l4 = frame.get_mut(start..).ok_or(SegmentError::Malformed)?;
    // A computed zero is sent as 0xffff: for UDP zero means "none" (RFC 768), for others both mean the same.
    let sum = Sum::ZERO.bytes(l4).checksum_nonzero();
    let field = l4.get_mut(offset..offset + 2).ok_or(SegmentError::Malformed)?;
    field.copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Calls `each` with finished packets that together are `packet`: itself if nothing is open, a copy with its
/// checksum filled in, or the segments of the train in order. Returns how many.
///
/// # Errors
/// As [`SegmentError`] says; `each` has not been called then.
pub fn finish(
    pool: &mut Pool,
    packet: &Packet,
    each: &mut dyn FnMut(&Packet),
) -> Result<usize, SegmentError> {
    finish_while(pool, packet, &mut |p| {
        each(p);
        true
    })
}

/// As [`finish`], as long as `each` says to go on: segments that nobody takes are not made.
///
/// # Errors
/// As [`finish`].
pub fn finish_while(
    pool: &mut Pool,
    packet: &Packet,
    each: &mut dyn FnMut(&Packet) -> bool,
) -> Result<usize, SegmentError> {
    if packet.offload.gso.is_none() && !matches!(packet.offload.csum, Csum::Partial { .. }) {
        each(packet);
        return Ok(1);
    }
    let mut whole = pool.get_for(packet.len());
    packet.copy_into(&mut whole);
    let done = if packet.offload.gso.is_none() {
        complete_csum(&mut whole).map(|()| {
            each(&whole);
            1
        })
    } else {
        let mut piece = pool.get_big();
        let done = cut(&whole, &mut piece, each);
        pool.put(piece);
        done
    };
    pool.put(whole);
    done
}

/// Cuts the train `whole` (all head) into segments, each built in `piece`.
fn cut(
    whole: &Packet,
    piece: &mut Packet,
    each: &mut dyn FnMut(&Packet) -> bool,
) -> Result<usize, SegmentError> {
    let frame = whole.head();
    let Offload {
        csum: Csum::Partial { start, .. },
        gso: Some(gso),
    } = whole.offload
    else {
        return Err(SegmentError::Malformed);
    };
    if !gso.wraps.is_empty() {
        // Headers of tunnels are not cut yet.
        return Err(SegmentError::Mismatch);
    }
    let layout = Layout::of(frame, usize::from(start), gso.kind)?;
    let (headers, payload) = frame
        .split_at_checked(layout.payload)
        .ok_or(SegmentError::Malformed)?;
    let size = usize::from(gso.size).max(1);
    let count = payload.len().div_ceil(size).max(1);
    if count > MAX_SEGMENTS {
        return Err(SegmentError::TooMany);
    }
    for i in 0..count {
        let from = i * size;
        let part = payload
            .get(from..payload.len().min(from + size))
            .unwrap_or_default();
        piece.reset();
        piece.in_port = whole.in_port;
        let len = headers.len() + part.len();
        let space = piece.space_mut().get_mut(..len).ok_or(SegmentError::Malformed)?;
        let (h, p) = space.split_at_mut(headers.len());
        h.copy_from_slice(headers);
        p.copy_from_slice(part);
        layout.fix_ip(space, i)?;
        match gso.kind {
            GsoKind::Tcp4 | GsoKind::Tcp6 => layout.fix_tcp(space, from, i == 0, i + 1 == count)?,
            GsoKind::Udp => layout.fix_udp(space)?,
        }
        piece.set_head_len(len);
        piece.offload = Offload {
            csum: Csum::Valid,
            gso: None,
        };
        if !each(piece) {
            return Ok(i + 1);
        }
    }
    Ok(count)
}

/// Whether the train's network protocol is IPv4.
fn is_v4(l3: L3) -> bool {
    matches!(l3, L3::V4)
}
