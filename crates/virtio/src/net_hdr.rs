//! The virtio-net header (virtio 1.2 §5.1.6) and its checked form, [`Offload`].
//!
//! Invariants of a decoded [`Offload`]: the checksum field lies within the first `head_len` bytes; a segment
//! train has a partial checksum and a segment size above zero. `hdr_len` stays a hint: nothing may index with
//! it.
//!
//! Cost: a packet without metadata takes two compares.

#![deny(clippy::indexing_slicing)] // whatever a guest writes

use heddle_packet::{Csum, Gso, GsoKind, Offload, Wraps};

/// Header length without `num_buffers`: packet sockets.
pub const LEN_LEGACY: usize = 10;
/// Header length with `num_buffers`: virtio 1.x, and tap devices asked for it.
pub const LEN: usize = 12;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_UDP: u8 = 3;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Why a header is refused. The text names a drop reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetHdrError {
    /// Fewer bytes than the header has.
    Short,
    /// The checksum field is not within the packet's head.
    CsumRange,
    /// UDP fragmentation offload, which this switch never offers.
    Ufo,
    /// A segmentation type that the standard does not have.
    UnknownGso(u8),
    /// A segment train without a partial checksum.
    GsoWithoutCsum,
    /// A segment train of zero-byte segments.
    GsoZeroSize,
    /// The ECN mark on something that is not TCP.
    EcnWithoutTcp,
}

impl NetHdrError {
    /// A fixed name, for counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "vnet-hdr-short",
            Self::CsumRange => "vnet-hdr-csum-range",
            Self::Ufo => "vnet-hdr-ufo",
            Self::UnknownGso(_) => "vnet-hdr-unknown-gso",
            Self::GsoWithoutCsum => "vnet-hdr-gso-without-csum",
            Self::GsoZeroSize => "vnet-hdr-gso-zero-size",
            Self::EcnWithoutTcp => "vnet-hdr-ecn-without-tcp",
        }
    }
}

impl core::fmt::Display for NetHdrError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::UnknownGso(kind) => write!(f, "{} {kind:#04x}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

impl core::error::Error for NetHdrError {}

/// Checks the header `hdr` of a packet whose first `head_len` bytes can be read (and rewritten).
///
/// # Errors
/// Names the claim that does not hold.
pub fn decode(hdr: &[u8], head_len: usize) -> Result<Offload, NetHdrError> {
    let &[flags, gso, h0, h1, s0, s1, c0, c1, o0, o1, ..] = hdr else {
        return Err(NetHdrError::Short);
    };
    if flags & F_NEEDS_CSUM == 0 && gso == GSO_NONE {
        let csum = if flags & F_DATA_VALID != 0 {
            Csum::Valid
        } else {
            Csum::Unknown
        };
        return Ok(Offload { csum, gso: None });
    }
    let le = |a, b| u16::from_le_bytes([a, b]);
    let csum = if flags & F_NEEDS_CSUM != 0 {
        let (start, offset) = (le(c0, c1), le(o0, o1));
        if usize::from(start) + usize::from(offset) + 2 > head_len {
            return Err(NetHdrError::CsumRange);
        }
        Csum::Partial { start, offset }
    } else {
        Csum::Unknown
    };
    let ecn = gso & GSO_ECN != 0;
    let kind = match gso & !GSO_ECN {
        GSO_NONE if ecn => return Err(NetHdrError::EcnWithoutTcp),
        GSO_NONE => return Ok(Offload { csum, gso: None }),
        GSO_TCPV4 => GsoKind::Tcp4,
        GSO_TCPV6 => GsoKind::Tcp6,
        GSO_UDP_L4 if ecn => return Err(NetHdrError::EcnWithoutTcp),
        GSO_UDP_L4 => GsoKind::Udp,
        GSO_UDP => return Err(NetHdrError::Ufo),
        _ => return Err(NetHdrError::UnknownGso(gso)),
    };
    if csum == Csum::Unknown {
        return Err(NetHdrError::GsoWithoutCsum);
    }
    let size = le(s0, s1);
    if size == 0 {
        return Err(NetHdrError::GsoZeroSize);
    }
    Ok(Offload {
        csum,
        gso: Some(Gso {
            kind,
            ecn,
            size,
            hdr_len: le(h0, h1),
            wraps: Wraps::default(),
        }),
    })
}

/// As [`encode`], with the number of buffers that the packet is spread over (virtio 1.2 §5.1.6.1).
#[inline]
pub fn header(offload: &Offload, packet_len: usize, num_buffers: u16) -> [u8; LEN] {
    let mut hdr = if offload.is_plain() {
        [0; LEN]
    } else {
        encode(offload, packet_len)
    };
    hdr[LEN_LEGACY..].copy_from_slice(&num_buffers.to_le_bytes());
    hdr
}

/// Writes the header for a packet of `packet_len` bytes; a packet socket takes the first [`LEN_LEGACY`]
/// bytes.
///
/// `hdr_len` is put between the shortest and the longest L4 header: Linux makes that many bytes contiguous,
/// so a claim that is too long would cost it a large allocation, and one beyond the packet would be refused.
pub fn encode(offload: &Offload, packet_len: usize) -> [u8; LEN] {
    let mut hdr = [0; LEN];
    let mut csum_start = 0;
    match offload.csum {
        Csum::Unknown => {}
        Csum::Valid => hdr[0] = F_DATA_VALID,
        Csum::Partial { start, offset } => {
            csum_start = start;
            hdr[0] = F_NEEDS_CSUM;
            hdr[6..8].copy_from_slice(&start.to_le_bytes());
            hdr[8..10].copy_from_slice(&offset.to_le_bytes());
        }
    }
    if let Some(gso) = offload.gso {
        let (kind, min, max) = match gso.kind {
            GsoKind::Tcp4 => (GSO_TCPV4, 20, 60),
            GsoKind::Tcp6 => (GSO_TCPV6, 20, 60),
            GsoKind::Udp => (GSO_UDP_L4, 8, 8),
        };
        hdr[1] = if gso.ecn { kind | GSO_ECN } else { kind };
        let bound = |n: u16| csum_start.saturating_add(n);
        let fits = u16::try_from(packet_len).unwrap_or(u16::MAX);
        let hdr_len = gso.hdr_len.clamp(bound(min), bound(max)).min(fits);
        hdr[2..4].copy_from_slice(&hdr_len.to_le_bytes());
        hdr[4..6].copy_from_slice(&gso.size.to_le_bytes());
    }
    hdr
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hdr(flags: u8, gso: u8, hdr_len: u16, size: u16, start: u16, offset: u16) -> [u8; LEN] {
        let mut h = [0; LEN];
        h[0] = flags;
        h[1] = gso;
        for (at, v) in [(2, hdr_len), (4, size), (6, start), (8, offset)] {
            h[at..at + 2].copy_from_slice(&v.to_le_bytes());
        }
        h
    }

    #[test]
    fn refusals_are_named() {
        for (h, len, why) in [
            (hdr(1, 0, 0, 0, 34, 16), 51, NetHdrError::CsumRange),
            (hdr(1, 0, 0, 0, 0xffff, 0xffff), 65536, NetHdrError::CsumRange),
            (hdr(1, 3, 0, 1400, 34, 6), 2000, NetHdrError::Ufo),
            (hdr(1, 2, 0, 1400, 34, 6), 2000, NetHdrError::UnknownGso(2)),
            (hdr(1, 0x7f, 0, 1400, 34, 6), 2000, NetHdrError::UnknownGso(0x7f)),
            (hdr(0, 1, 66, 1448, 34, 16), 2000, NetHdrError::GsoWithoutCsum),
            (hdr(2, 4, 66, 1448, 34, 16), 2000, NetHdrError::GsoWithoutCsum),
            (hdr(1, 1, 66, 0, 34, 16), 2000, NetHdrError::GsoZeroSize),
            (hdr(1, 0x80, 66, 9, 34, 16), 2000, NetHdrError::EcnWithoutTcp),
            (hdr(1, 0x85, 66, 9, 34, 16), 2000, NetHdrError::EcnWithoutTcp),
        ] {
            assert_eq!(decode(&h, len), Err(why));
        }
        assert_eq!(decode(&[0; 9], 100), Err(NetHdrError::Short));
        assert_eq!(
            decode(&hdr(1, 0, 0, 0, 34, 16), 52).unwrap().csum,
            Csum::Partial {
                start: 34,
                offset: 16
            }
        );
        assert_eq!(decode(&hdr(2, 0, 0, 0, 0, 0), 0).unwrap().csum, Csum::Valid);
    }

    proptest! {
        /// Whatever the header claims, what passes keeps the invariants, and survives another round.
        #[test]
        fn passed_claims_hold(h in any::<[u8; LEN]>(), gso in 0_u8..8, len in 0_usize..70_000, plain: bool) {
            let mut h = h;
            if plain {
                h[1] = gso;
                h[0] |= 1;
                h[7] = 0;
                h[9] = 0;
            }
            let Ok(off) = decode(&h, len) else { return Ok(()) };
            if let Csum::Partial { start, offset } = off.csum {
                prop_assert!(usize::from(start) + usize::from(offset) + 2 <= len);
            }
            if let Some(g) = off.gso {
                let partial = matches!(off.csum, Csum::Partial { .. });
                prop_assert!(g.size > 0 && partial);
            }
            let again = encode(&off, len);
            let back = decode(&again, len).unwrap();
            prop_assert_eq!(back.csum, off.csum);
            prop_assert_eq!(back.gso.map(|g| (g.kind, g.ecn, g.size)), off.gso.map(|g| (g.kind, g.ecn, g.size)));
            prop_assert!(usize::from(u16::from_le_bytes([again[2], again[3]])) <= len);
        }
    }
}
