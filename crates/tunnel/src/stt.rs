//! What an STT header says of the frame behind it (draft-davie-stt-08).
//!
//! **Problem.** Some devices cut TCP and know of no tunnel: network cards of old, taps without offloads for
//! tunnels. STT gives them TCP: behind the outer IP header there is one of TCP's layout, then the STT header,
//! then the frame. The sequence number has the length of all that is behind TCP's header, the *STT frame*, in
//! its upper half, and the place of the segment's first byte in its lower one; the acknowledgement number is
//! the frame's. A device that cuts such a packet as TCP counts the places up by itself, and one that joins
//! TCP joins the segments of one frame, and no two frames.
//!
//! **Metadata.** A train of TCP that goes in comes out as one: the header has its segment size, and what of
//! its checksum is done ([`Said`]). Both ends check that against the frame's own headers.
//!
//! **Deviations.** A segment size of UDP stands for fragments in that draft, not for datagrams: trains of UDP
//! are cut before, and such a size that arrives means nothing. A VLAN tag is left in the frame.
//!
//! Encapsulation: `push/stt.rs`; decapsulation: `pop/stt.rs`; segments wait in [`Frames`].

#![deny(clippy::indexing_slicing)] // whatever a packet holds

mod frames;

pub use frames::{Frames, Lost};
pub(crate) use frames::{Of, Segment};

use crate::pop::PopError;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Packet, Wraps};
use heddle_wire::eth::{Ethernet, ethertype, is_vlan};
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::split;
use heddle_wire::tunnel::Stt;

/// Shortest STT frame: a header and an Ethernet header.
pub(crate) const LEAST: usize = Stt::LEN + Ethernet::LEN;
/// Bytes of a frame in which its headers are looked for: the L4 header is within the first 255.
pub(crate) const VIEW: usize = 255 + 60;
/// Most segments of a train, as ports cut them.
const MAX_SEGMENTS: usize = 512;
/// Tags that are stepped over.
const MAX_TAGS: usize = 2;
const TCP_CSUM_AT: u16 = 16;
const UDP_CSUM_AT: u16 = 6;

/// What is said of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Said {
    flags: u8,
    l4: u8,
    mss: u16,
}

impl Said {
    /// What is to be said of a frame with this metadata; `None`: not all of it can be said.
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

    /// Writes it into a header.
    pub(crate) fn write(self, to: &mut Stt) {
        (to.flags, to.l4, to.mss) = (self.flags, self.l4, self.mss.into());
    }

    /// What a header says.
    pub(crate) fn read(from: &Stt) -> Self {
        Self {
            flags: from.flags,
            l4: from.l4,
            mss: from.mss.get(),
        }
    }

    /// The metadata of a frame of `len` bytes that begins so.
    ///
    /// # Errors
    /// [`PopError::Metadata`]: the frame is not what is said of it.
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

/// What a frame is said to hold.
#[derive(Clone, Copy)]
struct Inside {
    v4: bool,
    tcp: bool,
    l4: u8,
}

/// Whether a frame holds IPv4 and not IPv6, and where.
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
    /// Where the payload of TCP or UDP begins, if the frame that begins so holds what is said.
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
            // Extension headers may lie between; that they lead there is the sender's claim.
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
