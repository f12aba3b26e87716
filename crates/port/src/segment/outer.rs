//! Headers of tunnels around a GSO packet: their offsets, and the fields that differ in each segment.
//!
//! An outer checksum costs no second pass over a segment. The bytes under the inner checksum add up to a sum
//! that the inner pseudo header determines (Linux: "local checksum offload"). So only the headers in between
//! are summed.

use super::frame::{Begins, L3, be16, network};
use super::{SegmentError, is_v4};
use arrayvec::ArrayVec;
use heddle_packet::{Wrap, Wraps};
use heddle_wire::checksum::Sum;
use heddle_wire::eth::ethertype;
use heddle_wire::ip::{Ipv4, Ipv6, proto};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::tunnel::{Erspan, Erspan2, Geneve, Gre, Gtpu, GtpuOptional, Srh, Stt, Vxlan, gre_proto};
use heddle_wire::{Be16, Be32, split, split_mut};

/// Outer headers of one tunnel. Offsets from the packet's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    wrap: Wrap,
    pub(super) l3: L3,
    pub(super) l3_at: usize,
    pub(super) l4_at: usize,
}

/// The tunnels of a packet, the outermost first.
pub(super) type Outers = ArrayVec<Outer, { Wraps::MOST }>;

/// Finds the outer headers, and the offset and type of the inner packet.
pub(super) fn outers(frame: &[u8], mut wraps: Wraps) -> Result<(Outers, usize, Begins), SegmentError> {
    let (mut all, mut at, mut begins) = (Outers::new(), 0, Begins::Frame);
    while let Some((wrap, inner)) = wraps.split() {
        let (l3, l3_at) = network(frame, at, begins)?;
        let l4_at = l3_at + if is_v4(l3) { Ipv4::LEN } else { Ipv6::LEN };
        let outer = Outer {
            wrap,
            l3,
            l3_at,
            l4_at,
        };
        (at, begins) = outer.inside(frame)?;
        all.try_push(outer).map_err(|_| SegmentError::Mismatch)?;
        wraps = inner;
    }
    Ok((all, at, begins))
}

impl Outer {
    /// Offset and type of the inner packet.
    fn inside(&self, frame: &[u8]) -> Result<(usize, Begins), SegmentError> {
        let l4 = frame.get(self.l4_at..).ok_or(SegmentError::Malformed)?;
        let behind_udp = l4.get(Udp::LEN..).ok_or(SegmentError::Malformed)?;
        let ip = |first: Option<&u8>| match first.map(|b| b >> 4) {
            Some(4) => Ok(Begins::Ip(L3::V4)),
            Some(6) => Ok(Begins::Ip(L3::V6)),
            _ => Err(SegmentError::Mismatch),
        };
        let (len, begins) = match self.wrap {
            Wrap::Vxlan => (Udp::LEN + Vxlan::LEN, Begins::Frame),
            Wrap::Geneve => {
                let (g, _) = split::<Geneve>(behind_udp).ok_or(SegmentError::Malformed)?;
                let options = usize::from(g.ver_len & 0x3f) * 4;
                (Udp::LEN + Geneve::LEN + options, Begins::Frame)
            }
            Wrap::Gre => {
                let (g, _) = split::<Gre>(l4).ok_or(SegmentError::Malformed)?;
                let len = Gre::len_of(g.flags.get());
                let begins = match g.proto.get() {
                    ethertype::TEB => Begins::Frame,
                    _ => ip(l4.get(len))?,
                };
                (len, begins)
            }
            Wrap::Erspan => {
                let (g, _) = split::<Gre>(l4).ok_or(SegmentError::Malformed)?;
                let own = if g.proto.get() == gre_proto::ERSPAN1 {
                    4
                } else {
                    Erspan2::LEN
                };
                (Gre::len_of(Gre::SEQ) + Erspan::LEN + own, Begins::Frame)
            }
            Wrap::Gtpu => {
                let (g, _) = split::<Gtpu>(behind_udp).ok_or(SegmentError::Malformed)?;
                let optional = if g.flags & Gtpu::OPTIONAL != 0 {
                    GtpuOptional::LEN
                } else {
                    0
                };
                let len = Udp::LEN + Gtpu::LEN + optional;
                (len, ip(l4.get(len))?)
            }
            Wrap::Srv6 => {
                let (h, _) = split::<Srh>(l4).ok_or(SegmentError::Malformed)?;
                let len = (usize::from(h.len) + 1) * 8;
                (len, ip(l4.get(len))?)
            }
            Wrap::Stt => {
                let (tcp, _) = split::<Tcp>(l4).ok_or(SegmentError::Malformed)?;
                (tcp.header_len() + Stt::LEN, Begins::Frame)
            }
        };
        Ok((self.l4_at + len, begins))
    }

    /// Lengths, numbers and checksums of segment `index`. `place` is at an even distance behind these
    /// headers, and `sum` is the sum of all bytes from there on. Returns offset and sum for this tunnel's L4
    /// header.
    pub(super) fn fix(
        &self,
        segment: &mut [u8],
        index: usize,
        (place, sum): (usize, Sum),
    ) -> Result<(usize, Sum), SegmentError> {
        super::frame::fix_ip(segment, (self.l3, self.l3_at, self.l4_at), index)?;
        let step = u32::try_from(index).map_err(|_| SegmentError::TooMany)?;
        let proto = if self.wrap == Wrap::Stt {
            proto::TCP
        } else {
            proto::UDP
        };
        let pseudo = self.pseudo(segment, proto)?;
        let l4 = segment.get_mut(self.l4_at..).ok_or(SegmentError::Malformed)?;
        let len = be16(l4.len())?;
        let upto = place.checked_sub(self.l4_at).ok_or(SegmentError::Malformed)?;
        let all = |l4: &[u8]| Some(Sum::ZERO.bytes(l4.get(..upto)?).sum(sum));
        match self.wrap {
            Wrap::Vxlan | Wrap::Geneve | Wrap::Gtpu => {
                if self.wrap == Wrap::Gtpu {
                    fix_gtpu(l4.get_mut(Udp::LEN..).ok_or(SegmentError::Malformed)?, step)?;
                }
                let (udp, _) = split_mut::<Udp>(l4).ok_or(SegmentError::Malformed)?;
                udp.len = len;
                if udp.csum.get() != 0 {
                    udp.csum = Be16::new(0);
                    let sum = all(l4).ok_or(SegmentError::Malformed)?.sum(pseudo);
                    let (udp, _) = split_mut::<Udp>(l4).ok_or(SegmentError::Malformed)?;
                    udp.csum = Be16::new(sum.checksum_nonzero());
                }
            }
            Wrap::Gre | Wrap::Erspan => {
                let (gre, words) = split_mut::<Gre>(l4).ok_or(SegmentError::Malformed)?;
                let flags = gre.flags.get();
                let (words, _) = words.as_chunks_mut::<4>();
                if flags & Gre::SEQ != 0 {
                    let before = usize::from(flags & Gre::CSUM != 0) + usize::from(flags & Gre::KEY != 0);
                    let seq = words.get_mut(before).ok_or(SegmentError::Malformed)?;
                    *seq = u32::from_be_bytes(*seq).wrapping_add(step).to_be_bytes();
                }
                if flags & Gre::CSUM != 0 {
                    *words.first_mut().ok_or(SegmentError::Malformed)? = [0; 4];
                    let csum = all(l4).ok_or(SegmentError::Malformed)?.checksum();
                    let field = l4
                        .get_mut(Gre::LEN..Gre::LEN + 2)
                        .ok_or(SegmentError::Malformed)?;
                    field.copy_from_slice(&csum.to_be_bytes());
                }
            }
            Wrap::Srv6 => {}
            Wrap::Stt => {
                let (tcp, _) = split_mut::<Tcp>(l4).ok_or(SegmentError::Malformed)?;
                // Each segment is a frame, whose length is in the upper half.
                let frame = usize::from(len.get()).checked_sub(tcp.header_len());
                let frame = frame
                    .and_then(|n| u32::try_from(n).ok())
                    .ok_or(SegmentError::Malformed)?;
                tcp.seq = Be32::new(frame << 16);
                tcp.ack = Be32::new(tcp.ack.get().wrapping_add(step));
                tcp.csum = Be16::new(0);
                let sum = all(l4).ok_or(SegmentError::Malformed)?.sum(pseudo);
                let (tcp, _) = split_mut::<Tcp>(l4).ok_or(SegmentError::Malformed)?;
                tcp.csum = Be16::new(sum.checksum());
            }
        }
        let l4 = segment.get(self.l4_at..).ok_or(SegmentError::Malformed)?;
        Ok((self.l4_at, all(l4).ok_or(SegmentError::Malformed)?))
    }

    /// Sets this tunnel's headers for all of `frame`, whose checksum a device makes: the lengths, and the
    /// pseudo header's sum.
    pub(super) fn begin_datagrams(&self, frame: &mut [u8]) -> Result<(), SegmentError> {
        super::frame::fix_ip(frame, (self.l3, self.l3_at, self.l4_at), 0)?;
        let pseudo = self.pseudo(frame, proto::UDP)?;
        let l4 = frame.get_mut(self.l4_at..).ok_or(SegmentError::Malformed)?;
        let len = be16(l4.len())?;
        let (udp, _) = split_mut::<Udp>(l4).ok_or(SegmentError::Malformed)?;
        (udp.len, udp.csum) = (len, Be16::new(pseudo.folded()));
        Ok(())
    }

    /// The value in UDP's checksum field while a device still has to make the checksum, of a packet of `len`
    /// bytes.
    pub(super) fn open_csum(&self, head: &[u8], len: usize) -> Option<u16> {
        let len = u32::try_from(len.checked_sub(self.l4_at)?).ok()?;
        let sum = pseudo_sum(head.get(self.l3_at..)?, self.l3, proto::UDP, len);
        Some(sum.ok()?.folded())
    }

    /// The sum of the pseudo header of UDP or TCP, of a packet that ends with `segment`.
    fn pseudo(&self, segment: &[u8], proto: u8) -> Result<Sum, SegmentError> {
        let l3 = segment.get(self.l3_at..).ok_or(SegmentError::Malformed)?;
        let len = segment
            .len()
            .checked_sub(self.l4_at)
            .ok_or(SegmentError::Malformed)?;
        let len = u32::try_from(len).map_err(|_| SegmentError::Malformed)?;
        pseudo_sum(l3, self.l3, proto, len)
    }
}

/// The sum of the pseudo header of the IP header that `l3` begins with.
pub(super) fn pseudo_sum(l3: &[u8], kind: L3, proto: u8, len: u32) -> Result<Sum, SegmentError> {
    heddle_wire::ip::pseudo(l3, !is_v4(kind), proto, len).ok_or(SegmentError::Malformed)
}

/// Length and sequence number of GTP-U's header, which `gtpu` begins with.
fn fix_gtpu(gtpu: &mut [u8], step: u32) -> Result<(), SegmentError> {
    let behind = gtpu.len().checked_sub(Gtpu::LEN).ok_or(SegmentError::Malformed)?;
    let (g, rest) = split_mut::<Gtpu>(gtpu).ok_or(SegmentError::Malformed)?;
    g.len = be16(behind)?;
    if g.flags & Gtpu::SEQ != 0 {
        let (seq, _) = split_mut::<Be16>(rest).ok_or(SegmentError::Malformed)?;
        *seq = Be16::new(seq.get().wrapping_add((step & 0xffff) as u16));
    }
    Ok(())
}
