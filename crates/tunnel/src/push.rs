//! Encapsulation: a template is copied before the packet, and the fields that depend on the packet are filled
//! in.
//!
//! **Costs.** One copy of the template into the headroom. Offsets of the fields, and sums over the fixed
//! bytes, are computed when the template is built ([`crate::template`]).
//!
//! **Checksums.** The IPv4 checksum is the template's, updated by the length. An outer UDP or GRE checksum
//! covers the whole packet. Where the inner checksum is partial, the inner L4 part will sum up to the
//! complement of its checksum field (the pseudo header's sum). So only the inner headers are summed, not the
//! payload. Checksum fields of packets without such metadata are not trusted.
//!
//! **GSO packets** stay GSO packets. Their metadata lists the tunnels ([`Wraps`]), and each segment gets
//! lengths, checksums and numbers of its own when it is cut. If a GSO packet is too long for a length field,
//! the field is zero until then.

#![deny(clippy::indexing_slicing)] // bytes of a packet

mod stt;

use crate::action::{TunnelKind, TunnelPush};
use crate::template::{BLOCK, Fill};
use heddle_flow::hash;
use heddle_packet::{Csum, Gso, GsoKind, Packet, Wrap};
use heddle_wire::checksum::Sum;
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::{split, split_mut};

/// Offsets of the inner packet's headers; `u16::MAX`: it has no such header.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// IP header.
    pub l3: u16,
    /// L4 header, of packets that have one.
    pub l4: u16,
    /// Protocol of the L4 header.
    pub proto: u8,
}

/// The reason why a packet cannot be encapsulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PushError {
    /// No room in front of the packet.
    Headroom,
    /// The outer packet would be too long for its length fields.
    TooLong,
    /// A GSO packet that is in too many tunnels already.
    Gso,
}

/// The hash of addresses, protocol and ports by which Open vSwitch chooses source ports.
#[inline]
pub fn flow_hash(head: &[u8], inner: Inner) -> u32 {
    /// The last word of Open vSwitch's hash.
    const LAST: u32 = 42;
    let word = |at: usize| {
        let bytes = head.get(at..).and_then(|h| h.first_chunk::<4>());
        u32::from_le_bytes(bytes.copied().unwrap_or_default())
    };
    let l3 = usize::from(inner.l3);
    let mut h = match head.get(l3).map(|b| b >> 4) {
        Some(4) => hash::add(hash::add(0, word(l3 + 12)), word(l3 + 16)),
        Some(6) => (0..8).fold(0, |h, i| hash::add(h, word(l3 + 8 + 4 * i))),
        _ => return hash::finish(0, LAST),
    };
    h = hash::add(h, inner.proto.into());
    let l4 = usize::from(inner.l4);
    h = match inner.proto {
        proto::TCP | proto::UDP | proto::SCTP => hash::add(h, word(l4)),
        proto::ICMP | proto::ICMPV6 => {
            // Open vSwitch hashes type and code in the place of ports.
            let w = word(l4);
            hash::add(h, (w & 0xff) << 8 | (w & 0xff00) << 16)
        }
        _ => h,
    };
    hash::finish(h, LAST)
}

fn put16(header: &mut [u8], at: u16, v: u16) {
    if let Some(b) = header
        .get_mut(usize::from(at)..)
        .and_then(|h| h.first_chunk_mut())
    {
        *b = v.to_be_bytes();
    }
}
fn put32(header: &mut [u8], at: u16, v: u32) {
    if let Some(b) = header
        .get_mut(usize::from(at)..)
        .and_then(|h| h.first_chunk_mut())
    {
        *b = v.to_be_bytes();
    }
}

/// The sum of a packet's bytes behind its first `n`.
fn sum_behind(p: &Packet, n: usize) -> Sum {
    // The offsets count from the packet's start, with these `n` bytes.
    if let Csum::Partial { start, offset } = p.offload.csum {
        let head = p.head();
        let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
        let field = head.get(at..).and_then(|h| h.first_chunk::<2>());
        if let (Some(headers), Some(field)) = (head.get(n..start), field)
            && headers.len() % 2 == 0
        {
            return Sum::ZERO.bytes(headers).word(!u16::from_be_bytes(*field));
        }
    }
    if p.segs().is_empty() {
        return Sum::ZERO.bytes(p.head().get(n..).unwrap_or_default());
    }
    let mut sum = Sum::ZERO;
    p.pieces(n, &mut |piece| sum = sum.bytes(piece));
    sum
}

impl TunnelPush {
    /// Offsets of the outer IP header and of the header behind it.
    #[inline]
    pub fn offsets(&self) -> (u16, u16) {
        (self.plan.l3, self.plan.l4)
    }

    /// Offset and protocol of the header behind IP and a routing header.
    pub fn transport(&self) -> (u16, u8) {
        let at = usize::from(self.plan.l4);
        match (self.kind, self.header.get(at..)) {
            (TunnelKind::Srv6, Some([next, len, ..])) => (self.plan.l4 + 8 + 8 * u16::from(*len), *next),
            _ => (self.plan.l4, self.kind.ip_proto()),
        }
    }

    /// Lowest UDP source port, and the distance to the highest. [`flow_hash`] times the distance, over 2^32,
    /// is added.
    pub fn source_ports(&self) -> (u16, u16) {
        self.plan.ports
    }

    /// Encapsulates the packet; `now_ms` is any clock. Offsets in the packet's metadata move along.
    ///
    /// # Errors
    /// [`PushError`]; the packet is unchanged then, except perhaps its metadata.
    #[inline]
    pub fn apply(&self, p: &mut Packet, inner: Inner, now_ms: u64) -> Result<(), PushError> {
        if let Some(block) = &self.plan.block
            && self.apply_block(block, p, inner).is_some()
        {
            return Ok(());
        }
        self.apply_any(p, inner, now_ms)
    }

    /// Fast path for packets without GSO and templates with a block. `None`: does not apply, the packet is
    /// unchanged.
    #[inline]
    fn apply_block(&self, block: &[u8; BLOCK], p: &mut Packet, inner: Inner) -> Option<()> {
        let (plan, n) = (&self.plan, self.header.len());
        let (l3, l4) = (usize::from(plan.l3), usize::from(plan.l4));
        let odd = match p.offload.csum {
            Csum::Partial { start, .. } => start % 2 != 0,
            Csum::Unknown | Csum::Valid => false,
        };
        if odd || p.offload.gso.is_some() {
            return None;
        }
        // Both length fields have room, even IPv4's, which counts its header.
        let behind = u16::try_from(p.len() + n - l4)
            .ok()
            .filter(|b| *b <= u16::MAX - 20)?;
        let src = plan.port(flow_hash(p.head(), inner));
        let csum = match plan.csum {
            true => self.csum_over(sum_behind(p, 0), behind, src),
            false => 0,
        };
        let headers = p.push_block(block, n)?;
        let ip = headers.get_mut(BLOCK - n + l3..)?;
        if plan.v6 {
            ip.get_mut(4..6)?.copy_from_slice(&behind.to_be_bytes());
        } else {
            const V4: u32 = 20;
            const _: () = assert!(Ipv4::LEN == V4 as usize);
            let len = u32::from(behind) + V4;
            let mut sum = u32::from(plan.ip_sum) + len;
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            ip.get_mut(2..4)?
                .copy_from_slice(&((len & 0xffff) as u16).to_be_bytes());
            ip.get_mut(10..12)?
                .copy_from_slice(&((!sum & 0xffff) as u16).to_be_bytes());
        }
        let udp = headers.get_mut(BLOCK - n + l4..)?;
        udp.get_mut(..2)?.copy_from_slice(&src.to_be_bytes());
        udp.get_mut(4..6)?.copy_from_slice(&behind.to_be_bytes());
        udp.get_mut(6..8)?.copy_from_slice(&csum.to_be_bytes());
        Some(())
    }

    #[inline(never)]
    fn apply_any(&self, p: &mut Packet, inner: Inner, now_ms: u64) -> Result<(), PushError> {
        if self.plan.fill == Fill::Stt {
            return self.apply_stt(p, inner);
        }
        let (plan, n) = (&self.plan, self.header.len());
        let src = match plan.chooses_port() {
            true => plan.port(flow_hash(p.head(), inner)),
            false => 0,
        };
        let is_gso = p.offload.gso.is_some();
        // Sums are over words, so a checksum that begins at an odd offset is filled in now.
        let odd = matches!(p.offload.csum, Csum::Partial { start, .. } if start % 2 != 0);
        if is_gso || odd {
            self.prepare(p, odd)?;
        }
        let len = p.len() + n - usize::from(plan.l3);
        let len = len - if plan.v6 { Ipv6::LEN } else { 0 };
        let len = match u16::try_from(len) {
            Ok(len) => len,
            Err(_) if is_gso => 0,
            Err(_) => return Err(PushError::TooLong),
        };
        if !p.push_front(n) {
            return Err(PushError::Headroom);
        }
        let header = p.head_mut().get_mut(..n).ok_or(PushError::Headroom)?;
        header.copy_from_slice(&self.header);
        self.fill_ip(header, len);
        match plan.fill {
            Fill::Udp => self.fill_udp(p, n, len, src),
            Fill::Nothing => {}
            _ => self.fill_other(p, n, len, src, now_ms),
        }
        Ok(())
    }

    #[inline]
    fn fill_ip(&self, header: &mut [u8], len: u16) {
        let plan = &self.plan;
        let l3 = header.get_mut(usize::from(plan.l3)..).unwrap_or_default();
        if plan.v6 {
            if let Some((ip, _)) = split_mut::<Ipv6>(l3) {
                ip.payload_len = len.into();
            }
        } else if let Some((ip, _)) = split_mut::<Ipv4>(l3) {
            ip.total_len = len.into();
            let mut sum = u32::from(plan.ip_sum) + u32::from(len);
            if plan.numbered {
                let id = (self.numbers.next() & 0xffff) as u16;
                ip.id = id.into();
                sum += u32::from(id);
            }
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            ip.csum = ((!sum & 0xffff) as u16).into();
        }
    }

    /// Bytes from the outer L4 header on, by the IP header's length field; zero if that is zero.
    #[inline]
    fn l4_len(&self, len: u16) -> u16 {
        const V4: u16 = 20;
        const _: () = assert!(Ipv4::LEN == V4 as usize);
        len.saturating_sub(if self.plan.v6 { 0 } else { V4 })
    }

    #[inline]
    fn fill_udp(&self, p: &mut Packet, n: usize, len: u16, src: u16) {
        let plan = &self.plan;
        let len = self.l4_len(len);
        let csum = match plan.csum {
            true => self.udp_csum(p, n, len, src),
            false => 0,
        };
        let l4 = p.head_mut().get_mut(usize::from(plan.l4)..).unwrap_or_default();
        if let Some((udp, _)) = split_mut::<Udp>(l4) {
            (udp.src, udp.len, udp.csum) = (src.into(), len.into(), csum.into());
        }
    }
    #[inline(never)]
    fn udp_csum(&self, p: &Packet, n: usize, len: u16, src: u16) -> u16 {
        if p.offload.gso.is_some() {
            // Not zero: each segment gets a checksum when it is cut.
            return 0xffff;
        }
        self.csum_over(sum_behind(p, n), len, src)
    }
    /// The checksum of a UDP header; `behind` is the sum of the bytes behind the template.
    #[inline]
    fn csum_over(&self, behind: Sum, len: u16, src: u16) -> u16 {
        let fixed = Sum::ZERO.word(self.plan.rest_sum).word(len).word(len).word(src);
        fixed.sum(behind).checksum_nonzero()
    }

    #[inline(never)]
    fn fill_other(&self, p: &mut Packet, n: usize, len: u16, src: u16, now_ms: u64) {
        match self.plan.fill {
            Fill::Udp | Fill::Stt | Fill::Nothing => {}
            Fill::Gtpu { len: len_at, seq } => {
                let header = p.head_mut();
                let behind = (usize::from(len_at) + 6).saturating_sub(usize::from(self.plan.l4));
                let behind = u16::try_from(behind).unwrap_or(0);
                put16(header, len_at, self.l4_len(len).saturating_sub(behind));
                let mut extra = Sum::ZERO.word(self.l4_len(len).saturating_sub(behind));
                if let Some(at) = seq {
                    let seq = (self.take_numbers(p) & 0xffff) as u16;
                    put16(p.head_mut(), at, seq);
                    extra = extra.word(seq);
                }
                self.fill_udp(p, n, len, src);
                self.add_to_csum(p, extra);
            }
            Fill::Gre { seq } => {
                if let Some(at) = seq {
                    let seq = self.take_numbers(p);
                    put32(p.head_mut(), at, seq);
                }
                if self.plan.csum && p.offload.gso.is_none() {
                    let l4 = usize::from(self.plan.l4);
                    let header = Sum::ZERO.bytes(p.head().get(l4..n).unwrap_or_default());
                    let csum = header.sum(sum_behind(p, n)).checksum();
                    put16(p.head_mut(), self.plan.l4 + 4, csum);
                }
            }
            Fill::Erspan { seq, timestamp } => {
                let number = self.take_numbers(p);
                put32(p.head_mut(), seq, number);
                if let Some(at) = timestamp {
                    // Units of 100 microseconds, with wrap-around.
                    put32(p.head_mut(), at, (now_ms.wrapping_mul(10) & 0xffff_ffff) as u32);
                }
            }
        }
    }

    /// Updates a checksum after `extra` was added to the bytes that it covers.
    fn add_to_csum(&self, p: &mut Packet, extra: Sum) {
        if p.offload.gso.is_some() {
            return;
        }
        let l4 = p
            .head_mut()
            .get_mut(usize::from(self.plan.l4)..)
            .unwrap_or_default();
        if let Some((udp, _)) = split_mut::<Udp>(l4) {
            udp.csum = extra.word(!udp.csum.get()).checksum_nonzero().into();
        }
    }

    /// Takes a number for each segment. Returns the first.
    fn take_numbers(&self, p: &Packet) -> u32 {
        match p.offload.gso {
            None => self.numbers.next(),
            Some(gso) => {
                let segments = p.len().div_ceil(usize::from(gso.size).max(1));
                self.numbers.take(u32::try_from(segments).unwrap_or(u32::MAX))
            }
        }
    }

    /// Prepares the metadata: adds the tunnel to a GSO packet, fills in a checksum at an odd offset.
    #[cold]
    fn prepare(&self, p: &mut Packet, odd: bool) -> Result<(), PushError> {
        if let Some(mut gso) = p.offload.gso {
            let wrap = match self.kind {
                TunnelKind::Geneve => Wrap::Geneve,
                TunnelKind::Vxlan => Wrap::Vxlan,
                TunnelKind::Gre => Wrap::Gre,
                TunnelKind::Erspan => Wrap::Erspan,
                TunnelKind::Gtpu => Wrap::Gtpu,
                TunnelKind::Srv6 => Wrap::Srv6,
                TunnelKind::Stt => Wrap::Stt,
            };
            gso.wraps = gso.wraps.with(wrap).ok_or(PushError::Gso)?;
            gso.size = self.size_that_fits(p, gso);
            p.offload.gso = Some(gso);
        } else if odd && let Csum::Partial { start, offset } = p.offload.csum {
            fill_in(p, start.into(), offset.into());
        }
        Ok(())
    }

    /// Segment size for the path's MTU. TCP takes smaller segments; datagrams and fragments keep
    /// their length.
    fn size_that_fits(&self, p: &Packet, gso: Gso) -> u16 {
        let Csum::Partial { start, .. } = p.offload.csum else {
            return gso.size;
        };
        if self.mtu == 0 || matches!(gso.kind, GsoKind::Udp | GsoKind::Fragments) {
            return gso.size;
        }
        let tcp = p.head().get(usize::from(start)..).and_then(split::<Tcp>);
        let tcp = tcp.map_or(Tcp::LEN, |(tcp, _)| tcp.header_len());
        let before = self.header.len() - usize::from(self.plan.l3) + usize::from(start) + tcp;
        let room = usize::try_from(self.mtu)
            .unwrap_or(usize::MAX)
            .saturating_sub(before);
        match u16::try_from(room) {
            // An unusably small MTU: the packet is left for the port to drop.
            Ok(room) if room >= MIN_SEGMENT_BYTES => gso.size.min(room),
            _ => gso.size,
        }
    }
}

/// Smallest segment into which a GSO packet is cut for the path's MTU, bytes.
const MIN_SEGMENT_BYTES: u16 = 256;

/// Fills a partial checksum in.
fn fill_in(p: &mut Packet, start: usize, offset: usize) {
    let mut sum = Sum::ZERO;
    p.pieces(start, &mut |piece| sum = sum.bytes(piece));
    let field = p
        .head_mut()
        .get_mut(start + offset..)
        .and_then(|h| h.first_chunk_mut());
    if let Some(field) = field {
        *field = sum.checksum_nonzero().to_be_bytes();
    }
    p.offload.csum = Csum::Unknown;
}
