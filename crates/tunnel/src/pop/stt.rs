//! STT decapsulation. Only whole frames leave the tunnel; segments wait for the rest of their frame.
//!
//! A device below may have joined segments, or may never have cut the frame. Only the range of the frame's
//! bytes in a packet counts, whether it is one segment or a GSO packet of TCP. A frame whose bytes are all in
//! one packet is not copied.

use super::{Ip, PopError, Popped, Shim, extend, is_known, sum_of};
use crate::action::TunnelPop;
use crate::stt::{FrameId, FrameMeta, Frames, MIN_FRAME_BYTES, Segment, VIEW};
use heddle_flow::key::tun_flag;
use heddle_flow::{FlowKey, packet_type};
use heddle_packet::{Csum, Offload, Packet, Pool, Wrap};
use heddle_wire::eth::ethertype;
use heddle_wire::l4::Tcp;
use heddle_wire::split;
use heddle_wire::tunnel::Stt;

/// Buffer of waiting segments, pool for its packets, and the time in milliseconds.
pub type Waiting<'a> = (&'a mut Frames, &'a mut Pool, u64);

impl TunnelPop {
    /// Does the work of [`TunnelPop::apply`] for all tunnels, and lets STT segments wait for the rest of
    /// their frame. `None`: the packet is a segment that waits, and `p` is no longer needed. The segment that
    /// completes its frame becomes the frame.
    ///
    /// # Errors
    /// [`PopError`], as of [`TunnelPop::apply`].
    #[inline]
    pub fn gather(
        &self,
        p: &mut Packet,
        l3: u16,
        key: &mut FlowKey,
        waiting: Waiting<'_>,
    ) -> Result<Option<Popped>, PopError> {
        match self.kind {
            crate::TunnelKind::Stt => {
                let ip = self.begin(p, l3, key)?;
                self.stt(p, &ip, key, Some(waiting))
            }
            _ => self.apply(p, l3, key).map(Some),
        }
    }

    /// `None`: a segment that waits. Without `waiting` a segment is refused.
    pub(super) fn stt(
        &self,
        p: &mut Packet,
        ip: &Ip,
        key: &mut FlowKey,
        waiting: Option<Waiting<'_>>,
    ) -> Result<Option<Popped>, PopError> {
        key.tun_flags |= tun_flag::KEY | tun_flag::CSUM;
        let s = segment(p, ip)?;
        let wrap = p.offload.gso.and_then(|g| g.wraps.split());
        if wrap.is_some_and(|(wrap, _)| wrap == Wrap::Stt) {
            // A GSO packet of this switch: each of its segments is to be a frame.
            let shim = Shim {
                at: s.at + Stt::LEN,
                end: ip.end,
                packet_type: packet_type::ETHERNET,
            };
            key.tun_id = header(p, s.at)?.key.get();
            self.take_off(p, &shim)?;
            return Ok(Some(popped(shim.at)));
        }
        s.check()?;
        // Offloads of the outer headers are done with. No others are known: the STT header has those of the
        // frame.
        let outer = matches!(p.offload.csum, Csum::Partial { start, .. } if usize::from(start) == ip.l4);
        if p.offload.gso.is_some() && !outer {
            return Err(PopError::OuterGso);
        }
        p.offload = Offload::default();
        if s.is_whole() {
            return self.stt_frame(p, (s.at, s.end), key).map(Some);
        }
        let Some((frames, pool, now_ms)) = waiting else {
            return Err(PopError::Part);
        };
        let id = FrameId::new(key, p.in_port, &s);
        let Some(tos) = frames.add(p, &s, &id, key.tun_tos, pool, now_ms)? else {
            return Ok(None);
        };
        key.tun_tos = tos;
        let end = p.len();
        self.stt_frame(p, (0, end), key).map(Some)
    }

    /// Reduces the packet, which holds an STT frame between two offsets, to the inner frame.
    fn stt_frame(
        &self,
        p: &mut Packet,
        (at, end): (usize, usize),
        key: &mut FlowKey,
    ) -> Result<Popped, PopError> {
        let inner = at + Stt::LEN;
        if p.head_len() < end.min(inner + VIEW) {
            extend(p, end.min(inner + VIEW));
        }
        let h = header(p, at)?;
        if h.version != 0 {
            return Err(PopError::Version);
        }
        key.tun_id = h.key.get();
        let head = p.head();
        let head = head.get(inner..end.min(head.len())).ok_or(PopError::Truncated)?;
        let offload = FrameMeta::read(&h).offload(head, end - inner)?;
        let shim = Shim {
            at: inner,
            end,
            packet_type: packet_type::ETHERNET,
        };
        self.take_off(p, &shim)?;
        p.offload = offload;
        let tci = h.tci.get();
        if tci & Stt::TAGGED != 0 && !p.push_vlan(ethertype::VLAN, tci & !Stt::TAGGED) {
            return Err(PopError::Truncated);
        }
        Ok(popped(inner))
    }
}

fn popped(taken: usize) -> Popped {
    Popped {
        packet_type: packet_type::ETHERNET,
        taken: u16::try_from(taken).unwrap_or(u16::MAX),
    }
}

fn header(p: &Packet, at: usize) -> Result<Stt, PopError> {
    let head = p.head().get(at..).and_then(split::<Stt>);
    head.map(|(h, _)| *h).ok_or(PopError::Truncated)
}

/// Reads the TCP-like header, and verifies its checksum.
fn segment(p: &Packet, ip: &Ip) -> Result<Segment, PopError> {
    let (tcp, _) = p
        .head()
        .get(ip.l4..)
        .and_then(split::<Tcp>)
        .ok_or(PopError::Truncated)?;
    if tcp.header_len() < Tcp::LEN || ip.l4 + tcp.header_len() > ip.end {
        return Err(PopError::Length);
    }
    // STT has no connections to open or close.
    if tcp.flags() & (Tcp::SYN | Tcp::FIN | Tcp::RST) != 0 {
        return Err(PopError::Flags);
    }
    if !is_known(p, ip.l4) {
        let n = u32::try_from(ip.end - ip.l4).map_err(|_| PopError::Length)?;
        if ip.pseudo.word32(n).sum(sum_of(p, ip.l4, ip.end)).checksum() != 0 {
            return Err(PopError::Csum);
        }
    }
    let seq = tcp.seq.get();
    Ok(Segment {
        at: ip.l4 + tcp.header_len(),
        end: ip.end,
        len: (seq >> 16) as u16,
        from: (seq & 0xffff) as u16,
        frame: tcp.ack.get(),
        ports: u32::from(tcp.src.get()) << 16 | u32::from(tcp.dst.get()),
    })
}

impl Segment {
    /// Checks that the segment is within its frame.
    fn check(&self) -> Result<(), PopError> {
        if usize::from(self.len) < MIN_FRAME_BYTES {
            return Err(PopError::Length);
        }
        if self.at >= self.end {
            return Err(PopError::Truncated);
        }
        if usize::from(self.from) + (self.end - self.at) > usize::from(self.len) {
            return Err(PopError::Beyond);
        }
        Ok(())
    }
}
