//! STT (draft-davie-stt-08): frames, segments, and the metadata of a frame in its STT header.
//!
//! **Problem.** Some devices cut TCP but know no tunnels: old network cards, taps without tunnel offloads.
//! STT packets look like TCP to them. Behind the outer IP header there is a header of TCP's layout, then the
//! STT header, then the frame. The upper half of the sequence number is the length of the *STT frame*, which
//! is everything behind TCP's header. The lower half is the offset of the segment's first byte in it. The
//! acknowledgement number identifies the frame. A device that cuts such a packet as TCP increments the
//! offsets by itself. A device that joins TCP segments joins segments of one frame only.
//!
//! **Metadata.** A TCP GSO packet leaves the tunnel as a GSO packet: the STT header has its segment size and
//! the state of its checksum ([`FrameMeta`]). Both ends check these against the frame's own headers.
//!
//! **Deviations.** In the draft a segment size of UDP means fragments, not datagrams. So the datagrams of a
//! UDP GSO packet become frames of their own, and a received segment size of UDP is ignored. A VLAN tag stays
//! in the frame.
//!
//! Encapsulation: `push/stt.rs`; decapsulation: `pop/stt.rs`; segments wait in [`Frames`].

#![deny(clippy::indexing_slicing)] // bytes of a packet

mod frames;

pub(crate) use frames::{FrameId, Segment};
pub use frames::{Frames, Lost};

use crate::pop_error::PopError;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Packet, Wraps};
use heddle_wire::eth::{Ethernet, ethertype, is_vlan};
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::split;
use heddle_wire::tunnel::Stt;

/// Shortest STT frame, bytes: an STT header and an Ethernet header.
pub(crate) const MIN_FRAME_BYTES: usize = Stt::LEN + Ethernet::LEN;
/// Bytes of a frame within which its headers end: the L4 header begins within the first 255.
pub(crate) const VIEW: usize = 255 + 60;
/// Maximum number of segments that ports cut a GSO packet into.
const MAX_SEGMENTS: usize = 512;
/// Maximum number of VLAN tags that are skipped.
const MAX_TAGS: usize = 2;
const TCP_CSUM_AT: u16 = 16;
const UDP_CSUM_AT: u16 = 6;

/// Metadata of a frame, as the STT header has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FrameMeta {
    flags: u8,
    l4: u8,
    mss: u16,
}

impl FrameMeta {
    /// The metadata of this packet. `None`: the STT header cannot carry it.
    pub(crate) fn of(p: &Packet) -> Option<Self> {
        let gso = p.offload.gso;
        let (start, offset) = match p.offload.csum {
            Csum::Unknown if gso.is_none() => return Some(Self::default()),
            Csum::Valid if gso.is_none() => {
                return Some(Self {
                    flags: Stt::VERIFIED,
                    ..Self::default()
                });
            }
            Csum::Unknown | Csum::Valid => return None,
            Csum::Partial { start, offset } => (start, offset),
        };
        let inside = Inside {
            v4: network(p.head())?.0,
            tcp: match offset {
                TCP_CSUM_AT => true,
                UDP_CSUM_AT => false,
                _ => return None,
            },
            l4: u8::try_from(start).ok()?,
        };
        inside.payload(p.head())?;
        let kind = if inside.v4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
        let mss = match gso {
            None => 0,
            Some(g) if inside.tcp && g.kind == kind && g.wraps.is_empty() => g.size,
            Some(_) => return None,
        };
        let flag = |set: bool, bit| if set { bit } else { 0 };
        let flags = Stt::PARTIAL | flag(inside.v4, Stt::IPV4) | flag(inside.tcp, Stt::TCP);
        Some(Self {
            flags,
            l4: inside.l4,
            mss,
        })
    }

    /// Writes the metadata into a header.
    pub(crate) fn write(self, to: &mut Stt) {
        (to.flags, to.l4, to.mss) = (self.flags, self.l4, self.mss.into());
    }

    /// Reads the metadata of a header.
    pub(crate) fn read(from: &Stt) -> Self {
        Self {
            flags: from.flags,
            l4: from.l4,
            mss: from.mss.get(),
        }
    }

    /// Converts the metadata for a frame of `len` bytes that begins with `head`.
    ///
    /// # Errors
    /// [`PopError::Metadata`]: the metadata does not match the frame.
    pub(crate) fn offload(self, head: &[u8], len: usize) -> Result<Offload, PopError> {
        if self.flags & Stt::PARTIAL == 0 {
            let csum = match self.flags & Stt::VERIFIED {
                0 => Csum::Unknown,
                _ => Csum::Valid,
            };
            return Ok(Offload { csum, gso: None });
        }
        let inside = Inside {
            v4: self.flags & Stt::IPV4 != 0,
            tcp: self.flags & Stt::TCP != 0,
            l4: self.l4,
        };
        let payload = inside.payload(head).ok_or(PopError::Metadata)?;
        let csum = Csum::Partial {
            start: self.l4.into(),
            offset: if inside.tcp { TCP_CSUM_AT } else { UDP_CSUM_AT },
        };
        let (bytes, size) = (len.saturating_sub(payload), usize::from(self.mss));
        if !inside.tcp || size == 0 {
            return Ok(Offload { csum, gso: None });
        }
        if bytes.div_ceil(size) > MAX_SEGMENTS {
            return Err(PopError::Metadata);
        }
        let tcp = head.get(usize::from(self.l4)..).and_then(split::<Tcp>);
        let gso = Gso {
            kind: if inside.v4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 },
            ecn: tcp.is_some_and(|(tcp, _)| tcp.flags() & Tcp::CWR != 0),
            size: self.mss,
            hdr_len: u16::try_from(payload).map_err(|_| PopError::Metadata)?,
            wraps: Wraps::default(),
        };
        Ok(Offload { csum, gso: Some(gso) })
    }
}

/// Protocols of a frame and its L4 offset, as the metadata claims them.
#[derive(Clone, Copy)]
struct Inside {
    v4: bool,
    tcp: bool,
    l4: u8,
}

/// Whether a frame holds IPv4 (not IPv6), and the offset of its IP header. `None`: it holds neither.
fn network(head: &[u8]) -> Option<(bool, usize)> {
    let be16 = |at: usize| head.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b));
    let mut at = Ethernet::LEN - 2;
    for _ in 0..MAX_TAGS {
        if !is_vlan(be16(at)?) {
            break;
        }
        at += 4;
    }
    match be16(at)? {
        ethertype::IP => Some((true, at + 2)),
        ethertype::IPV6 => Some((false, at + 2)),
        _ => None,
    }
}

impl Inside {
    /// Offset of the payload of TCP or UDP, if the frame matches the claims.
    fn payload(&self, head: &[u8]) -> Option<usize> {
        let (v4, l3) = network(head)?;
        let (rest, l4) = (head.get(l3..)?, usize::from(self.l4));
        let wanted = if self.tcp { proto::TCP } else { proto::UDP };
        let right = if v4 {
            let (ip, _) = split::<Ipv4>(rest)?;
            let len = ip.header_len();
            len >= Ipv4::LEN && l3 + len == l4 && ip.proto == wanted && !ip.is_fragment()
        } else {
            let (ip, _) = split::<Ipv6>(rest)?;
            // Extension headers may be between; that they lead to L4 is an unchecked claim of the sender.
            let direct = matches!(ip.next, proto::TCP | proto::UDP);
            match l4.cmp(&(l3 + Ipv6::LEN)) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Equal => ip.next == wanted,
                std::cmp::Ordering::Greater => !direct,
            }
        };
        let header = head.get(l4..)?;
        let len = match self.tcp {
            true => split::<Tcp>(header)?.0.header_len(),
            false => split::<Udp>(header).map(|_| Udp::LEN)?,
        };
        let least = if self.tcp { Tcp::LEN } else { Udp::LEN };
        (right && v4 == self.v4 && len >= least && l4 + len <= head.len()).then_some(l4 + len)
    }
}
