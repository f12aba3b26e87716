//! Finishing packets in software: GSO packets cut into segments, checksums filled in. A GSO packet in tunnels
//! is cut after it went into them: each segment gets its outer headers. Segments may be IP fragments
//! ([`GsoKind::Fragments`]).
//!
//! Used for destinations without these offloads. The packet's metadata defines the work, its bytes give the
//! offsets. Both come from a sender that may lie, so each offset is checked against the bytes. A GSO packet
//! that does not look like its metadata is refused ([`SegmentError`]), never sent half.
//!
//! Cost: each segment is copied once, behind a copy of the headers, and summed once; no allocation beyond the
//! pool's.

mod fragments;
mod frame;
mod outer;
#[cfg(test)]
mod tests;
mod whole;

use arrayvec::ArrayVec;
use fragments::Fragments;
use frame::{L3, Layout};
use heddle_packet::{BURST, Csum, Gso, GsoKind, Offload, Packet, Pool, Wrap, Wraps};
use heddle_wire::checksum::Sum;
use heddle_wire::l4::Udp;
use outer::{Outer, Outers};
use std::ops::Range;
pub use whole::{Whole, whole};

/// Maximum number of segments of one GSO packet. A sender of more (tiny segments of a huge packet) is
/// refused: each costs about as much as a packet. The longest GSO packet may have segments of 128 bytes.
pub const MAX_SEGMENTS: usize = 512;

/// Maximum number of datagrams of one GSO packet that Linux takes (`UDP_MAX_SEGMENTS`), before version 6.9
/// and since.
const MAX_DATAGRAMS: [usize; 2] = [64, 128];
/// Error number: the kernel does not take such a GSO packet.
const EINVAL: i32 = 22;
/// Bytes up to the end of an outer UDP header at most: tags, IPv6.
const MAX_OUTER_BYTES: usize = 14 + 4 * 4 + 40 + 8;
/// Offset of UDP's checksum in its header.
const UDP_CSUM_AT: u16 = 6;

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

/// Calls `each` with finished packets that together are `packet`, and returns their number. They are the
/// packet itself if nothing is open, a copy with its checksum filled in, or the segments of the GSO packet in
/// order.
///
/// # Errors
/// [`SegmentError`]; `each` has not been called then.
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

/// Like [`finish`], as long as `each` returns true: no further segments are made then.
///
/// # Errors
/// The errors of [`finish`].
pub fn finish_while(
    pool: &mut Pool,
    packet: &Packet,
    each: &mut dyn FnMut(&Packet) -> bool,
) -> Result<usize, SegmentError> {
    if packet.offload.gso.is_none() && !matches!(packet.offload.csum, Csum::Partial { .. }) {
        each(packet);
        return Ok(1);
    }
    if packet.offload.gso.is_none() {
        let mut whole = private(pool, packet);
        let done = complete_csum(&mut whole).map(|()| {
            each(&whole);
            1
        });
        pool.put(whole);
        return done;
    }
    with_headers(pool, packet, &mut |pool, packet| {
        let cut = Cut::of(packet)?;
        let mut piece = pool.get_big();
        let done = cut.all(packet, &mut piece, each);
        pool.put(piece);
        done
    })
}

/// Like [`finish`], with up to [`BURST`] pieces at a time: one system call takes that number.
///
/// # Errors
/// The errors of [`finish`].
pub fn finish_batches(
    pool: &mut Pool,
    packet: &Packet,
    each: &mut dyn FnMut(&[&Packet]),
) -> Result<usize, SegmentError> {
    if packet.offload.gso.is_none() {
        return finish(pool, packet, &mut |p| each(&[p]));
    }
    with_headers(pool, packet, &mut |pool, packet| {
        let cut = Cut::of(packet)?;
        let mut pieces: ArrayVec<Packet, BURST> = ArrayVec::new();
        let mut done = Ok(cut.count);
        for from in (0..cut.count).step_by(BURST) {
            let upto = cut.count.min(from + BURST);
            pieces.extend((from..upto).map(|_| pool.get_big()));
            done = (from..upto)
                .zip(&mut pieces)
                .try_for_each(|(i, piece)| cut.piece(packet, i, piece))
                .and(done);
            if done.is_ok() {
                let refs: ArrayVec<&Packet, BURST> = pieces.iter().collect();
                each(&refs);
            }
            pool.put_all(pieces.drain(..));
            if done.is_err() {
                break;
            }
        }
        done
    })
}

fn private(pool: &mut Pool, packet: &Packet) -> Packet {
    let mut whole = pool.get_for(packet.len());
    packet.copy_into(&mut whole);
    whole
}

/// Runs `f` on a GSO packet whose headers are in its head: usually the packet itself, otherwise a copy.
fn with_headers<T>(
    pool: &mut Pool,
    packet: &Packet,
    f: &mut dyn FnMut(&mut Pool, &Packet) -> Result<T, SegmentError>,
) -> Result<T, SegmentError> {
    match f(pool, packet) {
        Err(SegmentError::Malformed) if !packet.segs().is_empty() => {
            let whole = private(pool, packet);
            let done = f(pool, &whole);
            pool.put(whole);
            done
        }
        done => done,
    }
}

/// Puts a GSO packet that is in one tunnel of UDP into GSO packets of outer datagrams, each with a segment in
/// it. They are for devices that cut datagrams and know nothing of tunnels. Mostly the result is one. It is
/// two if the outer headers lift a long GSO packet over the maximum length of an IP header. All outer
/// datagrams have a checksum then. Calls `each` with them as long as it returns true, each of `max`
/// datagrams at most. `false`: the packet is not in such a tunnel.
///
/// # Errors
/// [`SegmentError`].
pub fn as_datagrams(
    pool: &mut Pool,
    packet: &Packet,
    max: usize,
    each: &mut dyn FnMut(&Packet) -> bool,
) -> Result<bool, SegmentError> {
    let one_of_udp = |wraps: Wraps| match wraps.split() {
        Some((Wrap::Vxlan | Wrap::Geneve, inner)) => inner.is_empty(),
        _ => false,
    };
    let fits = |g: Gso| one_of_udp(g.wraps) && g.kind.is_for_devices();
    if !packet.offload.gso.is_some_and(fits) {
        return Ok(false);
    }
    with_headers(pool, packet, &mut |pool, packet| {
        let cut = Cut::of(packet)?;
        let mut train = pool.get_big();
        let done = cut.all_datagrams(packet, &mut train, max, each);
        pool.put(train);
        done.map(|()| true)
    })
}

/// The number of datagrams of one GSO packet that the kernel takes, as far as it was tried.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams {
    max: usize,
}

impl Default for Datagrams {
    fn default() -> Self {
        let [.., max] = MAX_DATAGRAMS;
        Self { max }
    }
}

impl Datagrams {
    /// Sends a GSO packet that is in a tunnel as datagrams ([`as_datagrams`]). `send` gives the kernel one
    /// GSO packet and returns the kernel's error number. `None`: nothing was sent, and the caller has to send
    /// segments.
    pub fn send(
        &mut self,
        pool: &mut Pool,
        packet: &Packet,
        send: &mut dyn FnMut(&Packet) -> Result<(), i32>,
    ) -> Option<Result<(), i32>> {
        let [fewer, max] = MAX_DATAGRAMS;
        loop {
            let (mut done, mut sent) = (Ok(()), 0);
            let tried = as_datagrams(pool, packet, self.max, &mut |train| {
                done = send(train);
                sent += u32::from(done.is_ok());
                done.is_ok()
            });
            match (tried, done) {
                (Ok(true), Err(EINVAL)) if sent == 0 && self.max > fewer => self.max = fewer,
                (Ok(true), Err(EINVAL)) if sent == 0 => {
                    // The number of datagrams was not the reason.
                    self.max = max;
                    return None;
                }
                (Ok(true), done) => return Some(done),
                _ => return None,
            }
        }
    }
}

/// Length of the longest piece that a GSO packet is cut into, with all headers.
///
/// # Errors
/// [`SegmentError`].
pub fn longest_piece(packet: &Packet) -> Result<usize, SegmentError> {
    let cut = Cut::of(packet)?;
    let longest = cut.inner.headers() + usize::from(cut.gso.size);
    Ok(longest.min(packet.len() + cut.inner.added()))
}

/// The innermost headers of a GSO packet.
enum Inner {
    /// Headers of TCP or UDP: each segment is a packet.
    Segments(Layout),
    /// Headers of a datagram that is cut into fragments.
    Fragments(Fragments),
}

impl Inner {
    /// Offset of the bytes that are cut.
    fn payload(&self) -> usize {
        match self {
            Self::Segments(layout) => layout.payload,
            Self::Fragments(fragments) => fragments.payload,
        }
    }
    /// Bytes of headers that each segment has and the GSO packet has not.
    fn added(&self) -> usize {
        match self {
            Self::Segments(_) => 0,
            Self::Fragments(fragments) => fragments.added(),
        }
    }
    /// Bytes before the payload of each segment.
    fn headers(&self) -> usize {
        self.payload() + self.added()
    }
}

/// The description of how a GSO packet is cut.
struct Cut {
    outers: Outers,
    inner: Inner,
    /// Offset of the innermost network header.
    inner_l3: usize,
    gso: Gso,
    count: usize,
}

impl Cut {
    fn of(packet: &Packet) -> Result<Self, SegmentError> {
        let frame = packet.head();
        let gso = packet.offload.gso.ok_or(SegmentError::Malformed)?;
        let (outers, at, begins) = outer::outers(frame, gso.wraps)?;
        let (l3, inner_l3) = frame::network(packet.head(), at, begins)?;
        let inner = match (gso.kind, packet.offload.csum) {
            (GsoKind::Fragments, _) => Inner::Fragments(Fragments::of(frame, (l3, inner_l3), gso.size)?),
            (kind, Csum::Partial { start, .. }) => {
                Inner::Segments(Layout::of(frame, (at, begins), usize::from(start), kind)?)
            }
            _ => return Err(SegmentError::Malformed),
        };
        let count = (packet.len() - inner.payload())
            .div_ceil(usize::from(gso.size).max(1))
            .max(1);
        if count > MAX_SEGMENTS {
            return Err(SegmentError::TooMany);
        }
        Ok(Self {
            outers,
            inner,
            inner_l3,
            gso,
            count,
        })
    }

    /// Writes segment `i` of `whole` into `space`; the tunnels' headers are copied as they are. Returns its
    /// length.
    fn segment(&self, whole: &Packet, i: usize, space: &mut [u8]) -> Result<usize, SegmentError> {
        let headers = whole
            .head()
            .get(..self.inner.payload())
            .ok_or(SegmentError::Malformed)?;
        let size = usize::from(self.gso.size).max(1);
        let (from, last) = (i * size, i + 1 == self.count);
        let payload = size.min((whole.len() - headers.len()).saturating_sub(from));
        let len = self.inner.headers() + payload;
        let space = space.get_mut(..len).ok_or(SegmentError::Malformed)?;
        let (h, p) = space.split_at_mut(self.inner.headers());
        h.get_mut(..headers.len())
            .ok_or(SegmentError::Malformed)?
            .copy_from_slice(headers);
        whole.copy_from(headers.len() + from, p);
        match &self.inner {
            Inner::Fragments(fragments) => fragments.fix(space, from, last)?,
            Inner::Segments(layout) => {
                layout.fix_ip(space, i)?;
                match self.gso.kind {
                    GsoKind::Udp => layout.fix_udp(space)?,
                    _ => layout.fix_tcp(space, from, i == 0, last)?,
                }
            }
        }
        Ok(len)
    }

    /// Makes `piece` segment `i`, with the headers of the tunnels that it is in.
    fn piece(&self, whole: &Packet, i: usize, piece: &mut Packet) -> Result<(), SegmentError> {
        piece.reset();
        piece.in_port = whole.in_port;
        let len = self.segment(whole, i, piece.space_mut())?;
        piece.set_head_len(len);
        let space = piece.head_mut();
        let mut behind = match &self.inner {
            Inner::Segments(layout) => layout.sum_behind(space)?,
            Inner::Fragments(fragments) => fragments.sum_behind(space)?,
        };
        for outer in self.outers.iter().rev() {
            behind = outer.fix(space, i, behind)?;
        }
        piece.offload = Offload {
            csum: match &self.inner {
                Inner::Segments(_) => Csum::Valid,
                Inner::Fragments(_) => whole.offload.csum,
            },
            gso: None,
        };
        Ok(())
    }

    /// Segments, each built in `piece`.
    fn all(
        &self,
        whole: &Packet,
        piece: &mut Packet,
        each: &mut dyn FnMut(&Packet) -> bool,
    ) -> Result<usize, SegmentError> {
        for i in 0..self.count {
            self.piece(whole, i, piece)?;
            if !each(piece) {
                return Ok(i + 1);
            }
        }
        Ok(self.count)
    }

    /// All segments, as many as possible behind one outer header each time, built in `train`.
    fn all_datagrams(
        &self,
        whole: &Packet,
        train: &mut Packet,
        max: usize,
        each: &mut dyn FnMut(&Packet) -> bool,
    ) -> Result<(), SegmentError> {
        let outer = self.outers.first().ok_or(SegmentError::Mismatch)?;
        let inside = outer.l4_at + Udp::LEN;
        let datagram = self.inner.headers() - inside + usize::from(self.gso.size);
        let room = usize::from(u16::MAX).saturating_sub(inside - outer.l3_at);
        let max = (room / datagram).clamp(1, max);
        for from in (0..self.count).step_by(max) {
            let upto = self.count.min(from + max);
            self.datagrams(outer, whole, from..upto, train)?;
            if !each(train) {
                break;
            }
        }
        Ok(())
    }

    /// These segments behind one outer header.
    fn datagrams(
        &self,
        outer: &Outer,
        whole: &Packet,
        segments: Range<usize>,
        train: &mut Packet,
    ) -> Result<(), SegmentError> {
        train.reset();
        let inside = outer.l4_at + Udp::LEN;
        let per_segment = self.inner.headers() - inside;
        // Each segment is written with its outer headers, in the place of the last bytes of the one before.
        let (mut end, count) = (inside, segments.len());
        let space = train.space_mut();
        for i in segments {
            let at = end - inside;
            let space = space.get_mut(at..).ok_or(SegmentError::Malformed)?;
            let mut before = [0; MAX_OUTER_BYTES];
            let before = before.get_mut(..inside).ok_or(SegmentError::Mismatch)?;
            before.copy_from_slice(space.get(..inside).ok_or(SegmentError::Malformed)?);
            end = at + self.segment(whole, i, space)?;
            if at > 0 {
                let own = space.get_mut(..inside).ok_or(SegmentError::Malformed)?;
                own.copy_from_slice(before);
            }
        }
        train.set_head_len(end);
        train.in_port = whole.in_port;
        outer.begin_datagrams(train.head_mut())?;
        let at = |n: usize| u16::try_from(n).map_err(|_| SegmentError::Malformed);
        let gso = Gso {
            kind: GsoKind::Udp,
            ecn: false,
            size: at(per_segment + usize::from(self.gso.size))?,
            hdr_len: at(inside)?,
            wraps: Wraps::default(),
        };
        train.offload = Offload {
            csum: Csum::Partial {
                start: at(outer.l4_at)?,
                offset: UDP_CSUM_AT,
            },
            gso: (count > 1).then_some(gso),
        };
        Ok(())
    }
}

/// Whether the train's network protocol is IPv4.
fn is_v4(l3: L3) -> bool {
    matches!(l3, L3::V4)
}
