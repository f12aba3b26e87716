//! STT encapsulation. A frame that is too long for the path becomes a GSO packet by its outer TCP header.
//!
//! The STT header carries the frame's metadata (partial checksum, segment size) to the peer. The rest is done
//! before. A checksum is filled in. A GSO packet keeps its own kind
//! ([`Wrap::Stt`](heddle_packet::Wrap::Stt)), and each of its segments gets an outer packet when it is cut.
//! This concerns UDP, further tunnels inside, and packets that would become too long.

use super::{Fill, Inner, MIN_SEGMENT_BYTES, PushError, fill_in, flow_hash};
use crate::action::TunnelPush;
use crate::stt::FrameMeta;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Packet, Wraps};
use heddle_wire::checksum::Sum;
use heddle_wire::ip::{Ipv4, Ipv6};
use heddle_wire::l4::Tcp;
use heddle_wire::split_mut;
use heddle_wire::tunnel::Stt;

/// Longest outer IP packet where the path's MTU is not known, bytes.
const USUAL_MTU: u32 = 1500;
/// Offset of the checksum in TCP's header.
const TCP_CSUM_AT: u16 = 16;

impl TunnelPush {
    /// Encapsulates the packet in STT, see [`TunnelPush::apply`].
    pub(super) fn apply_stt(&self, p: &mut Packet, inner: Inner) -> Result<(), PushError> {
        debug_assert_eq!(self.plan.fill, Fill::Stt);
        let src = self.plan.port(flow_hash(p.head(), inner));
        let room = usize::from(u16::MAX) - Tcp::LEN - if self.plan.v6 { 0 } else { Ipv4::LEN };
        let frame = p.len() + Stt::LEN;
        let fits = frame <= room;
        match FrameMeta::of(p) {
            Some(meta) if fits => self.write_stt(p, src, meta),
            _ if p.offload.gso.is_some() => self.wrap_stt(p, src),
            _ if !fits => Err(PushError::TooLong),
            _ => {
                if let Csum::Partial { start, offset } = p.offload.csum {
                    fill_in(p, start.into(), offset.into());
                }
                self.write_stt(p, src, FrameMeta::default())
            }
        }
    }

    /// Writes the headers of one frame whose metadata is `meta`.
    fn write_stt(&self, p: &mut Packet, src: u16, meta: FrameMeta) -> Result<(), PushError> {
        let frame = u16::try_from(p.len() + Stt::LEN).map_err(|_| PushError::TooLong)?;
        p.offload = Offload::default();
        let id = self.numbers.next();
        let len = self.stt_headers(p, (src, frame, id), meta)?;
        let csum = Sum::ZERO.word(self.plan.rest_sum).word(len).folded();
        if let Some((tcp, _)) = split_mut::<Tcp>(self.behind_ip(p)) {
            tcp.csum = csum.into();
        }
        let csum = Csum::Partial {
            start: self.plan.l4,
            offset: TCP_CSUM_AT,
        };
        p.offload = Offload {
            csum,
            gso: self.gso_of(len),
        };
        Ok(())
    }

    /// Writes the headers of a GSO packet whose segments are to be frames of their own.
    fn wrap_stt(&self, p: &mut Packet, src: u16) -> Result<(), PushError> {
        self.prepare(p, false)?;
        let id = self.take_numbers(p);
        self.stt_headers(p, (src, 0, id), FrameMeta::default())?;
        Ok(())
    }

    /// Writes the headers, without TCP's checksum. Returns the number of bytes from TCP's header on; zero if
    /// a GSO packet is too long for the length field.
    fn stt_headers(
        &self,
        p: &mut Packet,
        (src, frame, id): (u16, u16, u32),
        meta: FrameMeta,
    ) -> Result<u16, PushError> {
        let n = self.header.len();
        let before = if self.plan.v6 { Ipv6::LEN } else { 0 };
        let len = u16::try_from(p.len() + n - usize::from(self.plan.l3) - before).unwrap_or(0);
        if !p.push_front(n) {
            return Err(PushError::Headroom);
        }
        let header = p.head_mut().get_mut(..n).ok_or(PushError::Headroom)?;
        header.copy_from_slice(&self.header);
        self.fill_ip(header, len);
        if let Some((tcp, rest)) = split_mut::<Tcp>(self.behind_ip(p)) {
            (tcp.src, tcp.seq, tcp.ack) = (src.into(), (u32::from(frame) << 16).into(), id.into());
            if let Some((stt, _)) = split_mut::<Stt>(rest) {
                meta.write(stt);
            }
        }
        Ok(self.l4_len(len))
    }

    fn behind_ip<'p>(&self, p: &'p mut Packet) -> &'p mut [u8] {
        p.head_mut()
            .get_mut(usize::from(self.plan.l4)..)
            .unwrap_or_default()
    }

    /// GSO metadata for a packet with `len` bytes from TCP's header on, if it is longer than the path's MTU.
    fn gso_of(&self, len: u16) -> Option<Gso> {
        let mtu = if self.mtu == 0 { USUAL_MTU } else { self.mtu };
        let before = usize::from(self.plan.l4 - self.plan.l3);
        let room = usize::try_from(mtu).unwrap_or(usize::MAX).saturating_sub(before);
        // An unusably small MTU: the packet is left for the port to drop.
        let size = u16::try_from(room)
            .ok()?
            .checked_sub(TCP_LEN)
            .filter(|n| *n >= MIN_SEGMENT_BYTES)?;
        (usize::from(len) > room).then(|| Gso {
            kind: if self.plan.v6 {
                GsoKind::Tcp6
            } else {
                GsoKind::Tcp4
            },
            ecn: false,
            size,
            hdr_len: self.plan.l4 + TCP_LEN,
            wraps: Wraps::default(),
        })
    }
}

const TCP_LEN: u16 = 20;
const _: () = assert!(Tcp::LEN == TCP_LEN as usize);
