//! The virtio-net header (virtio 1.2 §5.1.6) and its checked form, [`Offload`].
//!
//! Invariants of a decoded [`Offload`]: the checksum field is within the first `head_len` bytes. A GSO packet
//! has a partial checksum and a segment size above zero. `hdr_len` stays a hint: no code may index with it.
//!
//! Cost: a packet without metadata takes two compares.

#![deny(clippy::indexing_slicing)] // whatever a guest writes

use heddle_packet::{Csum, Gso, GsoKind, Offload, Wrap, Wraps, mark_header};

/// Header length without `num_buffers`: packet sockets.
pub const LEN_LEGACY: usize = 10;
/// Header length with `num_buffers`: virtio 1.x, and tap devices set to it.
pub const LEN: usize = 12;
/// Header length with the fields of GSO packets in tunnels of UDP (virtio 1.4 §5.1.6, behind those of
/// hashes): tap devices.
pub const LEN_TUNNEL: usize = 24;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_UDP: u8 = 3;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// The outer checksum is to be made, too.
const F_TUNNEL_CSUM: u8 = 8;
const GSO_TUNNEL4: u8 = 0x20;
const GSO_TUNNEL6: u8 = 0x40;

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
    /// A GSO packet without a partial checksum.
    GsoWithoutCsum,
    /// A GSO packet of zero-byte segments.
    GsoZeroSize,
    /// The ECN mark on something that is not TCP.
    EcnWithoutTcp,
    /// A GSO packet in a tunnel whose headers are not at the header's offsets, or in an unknown tunnel.
    Tunnel,
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
            Self::Tunnel => "vnet-hdr-tunnel",
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

/// Like [`encode`], with the number of buffers that the packet is spread over (virtio 1.2 §5.1.6.1).
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
/// `hdr_len` is put between the shortest and the longest L4 header. Linux makes that many bytes contiguous,
/// so a claim that is too long would cost it a large allocation. It would refuse a claim beyond the packet.
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
    let kind = |gso: Gso| match gso.kind {
        GsoKind::Tcp4 => Some((GSO_TCPV4, 20, 60)),
        GsoKind::Tcp6 => Some((GSO_TCPV6, 20, 60)),
        GsoKind::Udp => Some((GSO_UDP_L4, 8, 8)),
        GsoKind::Fragments => None,
    };
    if let Some(gso) = offload.gso
        && let Some((kind, min, max)) = kind(gso)
    {
        hdr[1] = if gso.ecn { kind | GSO_ECN } else { kind };
        let bound = |n: u16| csum_start.saturating_add(n);
        let fits = u16::try_from(packet_len).unwrap_or(u16::MAX);
        let hdr_len = gso.hdr_len.clamp(bound(min), bound(max)).min(fits);
        hdr[2..4].copy_from_slice(&hdr_len.to_le_bytes());
        hdr[4..6].copy_from_slice(&gso.size.to_le_bytes());
    }
    hdr
}

/// Offsets of the headers of a GSO packet in a tunnel of UDP, from the packet's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// The outer UDP header.
    pub outer_l4: u16,
    /// The inner network header.
    pub inner_l3: u16,
    /// IPv6 is outside.
    pub v6: bool,
    /// The outer UDP header has a checksum; its field holds the pseudo header's sum.
    pub csum: bool,
}

/// Like [`encode`], for a GSO packet that is in this tunnel.
pub fn encode_tunnel(offload: &Offload, packet_len: usize, tunnel: Option<Tunnel>) -> [u8; LEN_TUNNEL] {
    let mut hdr = [0; LEN_TUNNEL];
    hdr[..LEN].copy_from_slice(&encode(offload, packet_len));
    if let Some(tunnel) = tunnel {
        hdr[0] |= if tunnel.csum { F_TUNNEL_CSUM } else { 0 };
        hdr[1] |= if tunnel.v6 { GSO_TUNNEL6 } else { GSO_TUNNEL4 };
        hdr[20..22].copy_from_slice(&tunnel.outer_l4.to_le_bytes());
        hdr[22..24].copy_from_slice(&tunnel.inner_l3.to_le_bytes());
    }
    hdr
}

/// Like [`decode`], for a header of [`LEN_TUNNEL`] bytes; `frame` is the packet's head.
///
/// The header does not name the tunnel; the offset of the inner packet shows it.
///
/// # Errors
/// Names the claim that does not hold.
pub fn decode_tunnel(hdr: &[u8], frame: &[u8]) -> Result<Offload, NetHdrError> {
    let claim = hdr.get(1).ok_or(NetHdrError::Short)? & (GSO_TUNNEL4 | GSO_TUNNEL6);
    if claim == 0 {
        return decode(hdr, frame.len());
    }
    let mut own: [u8; LEN_TUNNEL] = *hdr.first_chunk().ok_or(NetHdrError::Short)?;
    own[1] &= !claim;
    let mut offload = decode(&own, frame.len())?;
    let (Some(gso), Csum::Partial { start, .. }) = (&mut offload.gso, offload.csum) else {
        return Err(NetHdrError::Tunnel);
    };
    let outer_l4 = usize::from(u16::from_le_bytes([own[20], own[21]]));
    let inner_l3 = usize::from(u16::from_le_bytes([own[22], own[23]]));
    if claim == GSO_TUNNEL4 | GSO_TUNNEL6 || usize::from(start) < inner_l3 {
        return Err(NetHdrError::Tunnel);
    }
    let wrap = outer_udp(frame).and_then(|at| match at.checked_sub(outer_l4)? {
        0 => wrap_of(frame, at, inner_l3),
        // Linux keeps a tag beside the packet and writes it into the packet that is read. It counts it for
        // the checksum, not for these (`virtio_net_hdr_tnl_from_skb`, 6.17).
        TAG_LEN if is_tagged(frame) => wrap_of(frame, at, inner_l3 + TAG_LEN),
        _ => None,
    });
    let wraps = wrap.and_then(|w| Wraps::default().with(w));
    gso.wraps = wraps.ok_or(NetHdrError::Tunnel)?;
    Ok(offload)
}

/// Offset of a frame's type.
const ETHERTYPE: usize = 12;
const TAG: [u8; 2] = [0x81, 0x00];
const SERVICE_TAG: [u8; 2] = [0x88, 0xa8];
const TAG_LEN: usize = 4;

fn is_tagged(frame: &[u8]) -> bool {
    let kind = frame.get(ETHERTYPE..).and_then(|f| f.first_chunk());
    matches!(kind, Some(&(TAG | SERVICE_TAG)))
}

/// Offset of the UDP header of an IP packet without options.
fn outer_udp(frame: &[u8]) -> Option<usize> {
    const V4: (u8, usize, usize) = (0x45, 9, 20);
    const V6: (usize, usize) = (6, 40);
    const UDP: u8 = 17;
    let l3 = network_at(frame, 0)?;
    let (proto, len) = match *frame.get(l3)? {
        first if first == V4.0 => (V4.1, V4.2),
        first if first >> 4 == 6 => V6,
        _ => return None,
    };
    (*frame.get(l3 + proto)? == UDP).then_some(l3 + len)
}

/// The tunnel whose UDP header is at `outer_l4`, with a frame inside whose network header is at `inner_l3`.
fn wrap_of(frame: &[u8], outer_l4: usize, inner_l3: usize) -> Option<Wrap> {
    const UDP_LEN: usize = 8;
    /// VXLAN's header, and Geneve's without options.
    const SHIM_LEN: usize = 8;
    const VXLAN_HAS_VNI: u8 = 8;
    let shim = outer_l4 + UDP_LEN;
    let first = *frame.get(shim)?;
    let inside = shim + SHIM_LEN;
    // With that bit a Geneve header has options of 32 bytes or more, so the two differ in their lengths.
    if first & VXLAN_HAS_VNI != 0 && network_at(frame, inside) == Some(inner_l3) {
        return Some(Wrap::Vxlan);
    }
    let options = usize::from(first & 0x3f) * 4;
    (network_at(frame, inside + options) == Some(inner_l3)).then_some(Wrap::Geneve)
}

/// Offset of the network header of the frame at `at`, behind a [`mark_header`] and up to two tags.
fn network_at(frame: &[u8], at: usize) -> Option<usize> {
    let mut kind = at + ETHERTYPE;
    if at == 0 && mark_header::is_in(frame) {
        kind += mark_header::LEN;
    }
    for _ in 0..2 {
        match *frame.get(kind..)?.first_chunk()? {
            TAG | SERVICE_TAG => kind += TAG_LEN,
            _ => break,
        }
    }
    Some(kind + 2)
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

    /// A frame with UDP at 34, this shim, and a frame behind it; and a header that describes it.
    fn tunnelled(shim: &[u8], v6: bool, csum: bool) -> ([u8; LEN_TUNNEL], Vec<u8>) {
        let mut frame = vec![0; if v6 { 62 } else { 42 }];
        (frame[14], frame[if v6 { 20 } else { 23 }]) = (if v6 { 0x60 } else { 0x45 }, 17);
        let outer_l4 = frame.len() as u16 - 8;
        frame.extend(shim);
        let inner_l3 = frame.len() as u16 + 14;
        frame.extend([0; 12]);
        frame.extend([8, 0]);
        frame.extend([0; 3000]);
        let start = inner_l3 + 20;
        let gso = Gso {
            kind: GsoKind::Tcp4,
            ecn: true,
            size: 1400,
            hdr_len: start + 20,
            wraps: Wraps::default(),
        };
        let offload = Offload {
            csum: Csum::Partial { start, offset: 16 },
            gso: Some(gso),
        };
        let tunnel = Tunnel {
            outer_l4,
            inner_l3,
            v6,
            csum,
        };
        (encode_tunnel(&offload, frame.len(), Some(tunnel)), frame)
    }

    #[test]
    fn gso_packets_in_tunnels() {
        let vxlan = [8, 0, 0, 0, 0, 0, 77, 0];
        let mut options = [0; 40];
        options[0] = 8; // in units of four bytes: the bit that VXLAN's header has, too
        for (shim, wrap) in [
            (&vxlan[..], Wrap::Vxlan),
            (&[0, 0, 0x65, 0x58, 0, 0, 77, 0], Wrap::Geneve),
            (&options, Wrap::Geneve),
        ] {
            for (v6, csum) in [(false, false), (true, true)] {
                let (hdr, frame) = tunnelled(shim, v6, csum);
                assert_eq!(hdr[0], if csum { 9 } else { 1 });
                assert_eq!(hdr[1], 0x81 | if v6 { 0x40 } else { 0x20 });
                assert_eq!(hdr[20..22], [if v6 { 54 } else { 34 }, 0]);
                let gso = decode_tunnel(&hdr, &frame).unwrap().gso.unwrap();
                assert_eq!((gso.kind, gso.ecn, gso.size), (GsoKind::Tcp4, true, 1400));
                assert_eq!(gso.wraps.split(), Some((wrap, Wraps::default())));
            }
        }
        // A tag in front of all, which Linux has counted for the checksum and not for the rest.
        let (mut hdr, mut frame) = tunnelled(&vxlan, false, true);
        frame.splice(12..12, [0x81, 0, 0, 10]);
        hdr[6] += 4;
        let gso = decode_tunnel(&hdr, &frame).unwrap().gso.unwrap();
        assert_eq!(gso.wraps.split(), Some((Wrap::Vxlan, Wraps::default())));
        hdr[20] += 4;
        hdr[22] += 4;
        assert!(decode_tunnel(&hdr, &frame).is_ok());
        // Guests have not been offered it.
        let (hdr, frame) = tunnelled(&vxlan, false, false);
        assert_eq!(decode(&hdr, frame.len()), Err(NetHdrError::UnknownGso(0xa1)));
        for (at, value) in [(1, 0x61), (1, 0x20), (20, 33), (22, 65), (22, 0xff)] {
            let mut wrong = hdr;
            wrong[at] = value;
            assert_eq!(
                decode_tunnel(&wrong, &frame),
                Err(NetHdrError::Tunnel),
                "{at}: {value:#x}"
            );
        }
        assert_eq!(decode_tunnel(&hdr[..LEN], &frame), Err(NetHdrError::Short));
    }

    proptest! {
        /// For any claims and any bytes, a decoded packet is in one tunnel or in none.
        #[test]
        fn tunnels_are_checked(h in any::<[u8; LEN_TUNNEL]>(), frame in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Offload { gso: Some(gso), .. }) = decode_tunnel(&h, &frame) {
                prop_assert_eq!(h[1] & 0x60 != 0, !gso.wraps.is_empty());
            }
        }

        /// For any header, a decoded value keeps the invariants, and survives another round.
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
