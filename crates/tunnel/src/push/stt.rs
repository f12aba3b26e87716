//! Into STT: the packet becomes a train of TCP by its outer headers, or is as long as the way takes.
//!
//! What is known of the frame (a checksum to be filled in, a train's segment size) is said in the STT
//! header, and the other end knows it then. What that header cannot say is done before: a checksum is
//! filled in, and a train stays one of its own kind ([`Wrap::Stt`](heddle_packet::Wrap::Stt)), each segment
//! of which gets an outer packet when it is cut. These are trains of UDP, those in further tunnels, and
//! those that the outer headers would make too long.

use super::{Fill, Inner, LEAST_SIZE, PushError, fill_in, flow_hash};
use crate::action::TunnelPush;
use crate::stt::Said;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Packet, Wraps};
use heddle_wire::checksum::Sum;
use heddle_wire::ip::{Ipv4, Ipv6};
use heddle_wire::l4::Tcp;
use heddle_wire::split_mut;
use heddle_wire::tunnel::Stt;

/// Longest outer IP packet where the way does not say it, bytes.
const USUAL_MTU: u32 = 1500;
/// Where TCP's checksum is in its header.
const TCP_CSUM_AT: u16 = 16;

impl TunnelPush {
    /// As [`TunnelPush::apply`].
    pub(super) fn apply_stt(&self, p: &mut Packet, inner: Inner) -> Result<(), PushError> {
        debug_assert_eq!(self.plan.fill, Fill::Stt);
        let src = self.plan.port(flow_hash(p.head(), inner));
        let room = usize::from(u16::MAX) - Tcp::LEN - if self.plan.v6 { 0 } else { Ipv4::LEN };
        let frame = p.len() + Stt::LEN;
        let fits = frame <= room;
        match Said::of(p) {
            Some(said) if fits => self.write_stt(p, src, said),
            _ if p.offload.gso.is_some() => self.wrap_stt(p, src),
            _ if !fits => Err(PushError::TooLong),
            _ => {
                if let Csum::Partial { start, offset } = p.offload.csum {
                    fill_in(p, start.into(), offset.into());
                }
                self.write_stt(p, src, Said::default())
            }
        }
    }

    /// The headers of a frame of which `said` is all that is to be known.
    fn write_stt(&self, p: &mut Packet, src: u16, said: Said) -> Result<(), PushError> {
        let frame = u16::try_from(p.len() + Stt::LEN).map_err(|_| PushError::TooLong)?;
        p.offload = Offload::default();
        let id = self.numbers.next();
        let len = self.stt_headers(p, (src, frame, id), said)?;
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
            gso: self.train_of(len),
        };
        Ok(())
    }

    /// The headers of a train whose segments are to be frames of their own.
    fn wrap_stt(&self, p: &mut Packet, src: u16) -> Result<(), PushError> {
        self.prepare(p, false)?;
        let id = self.take_numbers(p);
        self.stt_headers(p, (src, 0, id), Said::default())?;
        Ok(())
    }

    /// Writes the headers, without TCP's checksum. Returns the bytes from TCP's header on; zero if there are
    /// more than can be said, which a train may have.
    fn stt_headers(
        &self,
        p: &mut Packet,
        (src, frame, id): (u16, u16, u32),
        said: Said,
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
                said.write(stt);
            }
        }
        Ok(self.l4_len(len))
    }

    fn behind_ip<'p>(&self, p: &'p mut Packet) -> &'p mut [u8] {
        p.head_mut()
            .get_mut(usize::from(self.plan.l4)..)
            .unwrap_or_default()
    }

    /// The train that a packet with `len` bytes from TCP's header on is, if the way does not take it whole.
    fn train_of(&self, len: u16) -> Option<Gso> {
        let mtu = if self.mtu == 0 { USUAL_MTU } else { self.mtu };
        let before = usize::from(self.plan.l4 - self.plan.l3);
        let room = usize::try_from(mtu).unwrap_or(usize::MAX).saturating_sub(before);
        // A way that takes next to nothing: left for the port to drop.
        let size = u16::try_from(room)
            .ok()?
            .checked_sub(TCP_LEN)
            .filter(|n| *n >= LEAST_SIZE)?;
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
