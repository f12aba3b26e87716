//! The headers of one fragment, which define its position in its datagram.

use heddle_wire::checksum::checksum;
use heddle_wire::ip::{Ipv4, Ipv6, Ipv6Ext, Ipv6Frag, proto};
use heddle_wire::split;

/// Longest datagram: the largest value of a 16-bit length.
const MAX_BYTES: usize = 0xffff;
/// Maximum number of extension headers that are read, with the fragment header.
const MAX_EXTENSIONS: usize = 8;
/// Offset of the next header's number in IPv6's header.
const NEXT_AT: usize = 6;

/// Reason why a fragment cannot be put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// The headers are cut off or contradict themselves, there is no payload, or the datagram is too long. Or
    /// the fragment is not the last, and its length is no multiple of eight bytes.
    Malformed,
    /// The IPv4 header's checksum is wrong.
    Checksum,
}

/// Position of a fragment in its datagram. `at` and `header` are offsets from the IP header on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) src: u128,
    pub(crate) dst: u128,
    /// Identification.
    pub(crate) id: u32,
    /// Protocol of IPv4. 0 for IPv6, where it does not identify a datagram (RFC 8200, 4.5).
    pub(crate) proto: u8,
    /// Offset in the datagram's payload, and number of bytes.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) last: bool,
    /// Offset of the fragment's payload.
    pub(crate) at: usize,
    /// Offset of IPv6's fragment header, and of the field that announces it; 0 for IPv4.
    pub(crate) header: usize,
    pub(crate) next_at: usize,
    /// Bytes of the IP packet.
    pub(crate) size: usize,
}

impl Piece {
    pub(crate) fn end(&self) -> usize {
        self.start + self.len
    }

    /// Reads a fragment. `head` begins at the IP header and has all headers; `avail`: bytes of the packet
    /// from the IP header on.
    pub(crate) fn read(head: &[u8], avail: usize, ipv6: bool) -> Result<Self, Bad> {
        let piece = if ipv6 {
            Self::read6(head).ok_or(Bad::Malformed)?
        } else {
            let (ip, _) = split::<Ipv4>(head).ok_or(Bad::Malformed)?;
            let header = head.get(..ip.header_len()).ok_or(Bad::Malformed)?;
            let piece = Self::read4(ip).ok_or(Bad::Malformed)?;
            if checksum(header) != 0 {
                return Err(Bad::Checksum);
            }
            piece
        };
        let whole = piece.size <= avail && piece.len > 0 && (piece.last || piece.len.is_multiple_of(8));
        // The length includes headers before the payload, except the fragment header and IPv6's own.
        let before = if ipv6 { piece.header - Ipv6::LEN } else { piece.at };
        if whole && before + piece.end() <= MAX_BYTES {
            Ok(piece)
        } else {
            Err(Bad::Malformed)
        }
    }

    fn read4(ip: &Ipv4) -> Option<Self> {
        let at = ip.header_len();
        let size = usize::from(ip.total_len.get());
        let frag = ip.frag.get();
        (ip.version_ihl >> 4 == 4 && at >= Ipv4::LEN && ip.is_fragment()).then_some(())?;
        Some(Self {
            src: ip.src.get().into(),
            dst: ip.dst.get().into(),
            id: ip.id.get().into(),
            proto: ip.proto,
            start: usize::from(frag & Ipv4::OFFSET) * 8,
            len: size.checked_sub(at)?,
            last: frag & Ipv4::MORE == 0,
            at,
            header: 0,
            next_at: 0,
            size,
        })
    }

    pub(super) fn read6(head: &[u8]) -> Option<Self> {
        let (ip, _) = split::<Ipv6>(head)?;
        let size = Ipv6::LEN + usize::from(ip.payload_len.get());
        let (mut next, mut header, mut next_at) = (ip.next, Ipv6::LEN, NEXT_AT);
        for _ in 0..MAX_EXTENSIONS {
            let rest = head.get(header..)?;
            if next == proto::FRAGMENT {
                let (frag, _) = split::<Ipv6Frag>(rest)?;
                let at = header + Ipv6Frag::LEN;
                let offset = frag.offset.get();
                return Some(Self {
                    src: u128::from_be_bytes(ip.src),
                    dst: u128::from_be_bytes(ip.dst),
                    id: frag.id.get(),
                    proto: 0,
                    start: usize::from(offset & Ipv6Frag::OFFSET),
                    len: size.checked_sub(at)?,
                    last: offset & Ipv6Frag::MORE == 0,
                    at,
                    header,
                    next_at,
                    size,
                });
            }
            if !matches!(next, proto::HOPOPTS | proto::ROUTING | proto::DSTOPTS) {
                return None;
            }
            let (ext, _) = split::<Ipv6Ext>(rest)?;
            next_at = header;
            header += (usize::from(ext.len) + 1) * 8;
            next = ext.next;
        }
        None
    }
}
