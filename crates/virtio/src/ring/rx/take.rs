//! Makes a packet of a chain: the header to private memory and decoded there, then the first bytes to the
//! head, the rest by reference. Exits: a packet, or a name for why not.

use crate::mem::Piece;
use crate::net_hdr::{self, NetHdrError};
use crate::ring::limits::{HEAD, MAX_FRAME};
use crate::ring::window::{Chain, Window};
use heddle_packet::{HEAD_SPACE, Lender, Offload, Packet, Pool};

/// Shortest frame: two addresses and a type.
const ETH_HEADER: usize = 14;

/// Why a chain made no packet.
pub(super) enum Dropped {
    Runt,
    TooLong,
    Header(NetHdrError),
}

/// Makes a packet of a chain.
#[inline(always)]
pub(super) fn take(
    chain: &Chain,
    window: &Window,
    header_len: usize,
    pool: &mut Pool,
    lender: &mut Lender,
) -> Result<Packet, Dropped> {
    let len = (chain.len as usize).wrapping_sub(header_len);
    // One compare for both bounds: a chain shorter than the header has a huge `len` here.
    if len.wrapping_sub(ETH_HEADER) > MAX_FRAME - ETH_HEADER {
        return Err(bad_length(chain, header_len));
    }
    let head = len.min(HEAD);
    let mut packet = pool.get_head(head);
    if let Some(piece) = chain.single()
        && piece.read_head(header_len, head, packet.head_space())
    {
        // A piece with a header and 16 bytes has 12.
        let hdr: [u8; net_hdr::LEN] = piece.first();
        if len > head {
            piece.lend(header_len + head, &mut packet, lender);
        }
        if u16::from_ne_bytes([hdr[0], hdr[1]]) == 0 {
            return Ok(packet);
        }
        return finish(packet, &hdr, pool);
    }
    gather(packet, window.pieces(chain), head, header_len, pool, lender)
}

#[cold]
fn bad_length(chain: &Chain, header_len: usize) -> Dropped {
    if (chain.len as usize) < header_len + ETH_HEADER {
        Dropped::Runt
    } else {
        Dropped::TooLong
    }
}

/// Sets the packet's metadata from its header, or gives it back to the pool.
#[inline(never)]
fn finish(mut packet: Packet, hdr: &[u8; net_hdr::LEN], pool: &mut Pool) -> Result<Packet, Dropped> {
    match metadata(&mut packet, hdr) {
        Ok(offload) => {
            packet.offload = offload;
            Ok(packet)
        }
        Err(e) => {
            pool.put(packet);
            Err(Dropped::Header(e))
        }
    }
}

/// Checks the header. Offsets are checked against the head, the only part that can be rewritten. A checksum
/// field behind it is rare enough to lengthen the head for.
fn metadata(packet: &mut Packet, hdr: &[u8; net_hdr::LEN]) -> Result<Offload, NetHdrError> {
    let mut decoded = net_hdr::decode(hdr, packet.head().len());
    if decoded == Err(NetHdrError::CsumRange) && packet.pull_tail(HEAD_SPACE) {
        decoded = net_hdr::decode(hdr, packet.head().len());
    }
    if decoded == Err(NetHdrError::CsumRange) && !packet.segs().is_empty() {
        packet.make_private();
        decoded = net_hdr::decode(hdr, packet.head().len());
    }
    decoded
}

/// Like [`take`], for any pieces: header and packet may be spread over the buffers in any way (virtio 1.2
/// §2.7.4.1).
#[expect(clippy::indexing_slicing, reason = "lengths that no guest chooses")]
#[inline(never)]
fn gather(
    mut packet: Packet,
    pieces: &[Piece],
    head: usize,
    header_len: usize,
    pool: &mut Pool,
    lender: &mut Lender,
) -> Result<Packet, Dropped> {
    let mut hdr = [0; net_hdr::LEN];
    let mut source = Source::new(pieces);
    source.copy(&mut hdr[..header_len]);
    source.copy(&mut packet.head_space()[..head]);
    while let Some((piece, at)) = source.next_piece() {
        if !piece.lend(at, &mut packet, lender) {
            packet.make_private();
            piece.lend(at, &mut packet, lender);
        }
    }
    finish(packet, &hdr, pool)
}

/// Reads a chain's pieces from the front.
struct Source<'a> {
    pieces: core::slice::Iter<'a, Piece>,
    current: Option<(&'a Piece, usize)>,
}

impl<'a> Source<'a> {
    fn new(pieces: &'a [Piece]) -> Self {
        let mut pieces = pieces.iter();
        let current = pieces.next().map(|p| (p, 0));
        Self { pieces, current }
    }
    /// Fills `dst`; the chain was found to have enough.
    #[expect(clippy::indexing_slicing, reason = "below the loop's bound")]
    fn copy(&mut self, dst: &mut [u8]) {
        let mut done = 0;
        while done < dst.len() {
            let Some((piece, at)) = &mut self.current else {
                return;
            };
            let n = piece.read(*at, &mut dst[done..]);
            done += n;
            *at += n;
            if *at == piece.len() {
                self.current = self.pieces.next().map(|p| (p, 0));
            }
        }
    }
    /// The rest of the current piece.
    fn next_piece(&mut self) -> Option<(&'a Piece, usize)> {
        let rest = self.current.take();
        self.current = self.pieces.next().map(|p| (p, 0));
        rest
    }
}
