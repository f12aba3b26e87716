//! Joins a GSO packet of outer datagrams into a GSO packet inside of one outer datagram.
//!
//! **Problem.** A device that cuts datagrams, and knows no tunnels, gets a GSO packet of outer datagrams,
//! each with one segment of an inner GSO packet. It arrives here uncut. As single packets, 64 KiB would be
//! some 45 packets; joined they are one.
//!
//! **Conditions.** The bytes behind the outer UDP header must be the same in all datagrams, except the fields
//! that differ between segments. These are lengths, IP identification, checksums, TCP's sequence numbers,
//! flags of the first and the last segment. Any other packet is left as it is. Inner checksums are not
//! verified: the outer ones cover them, and are right or still to be filled in by this machine.

#![deny(clippy::indexing_slicing)] // bytes of a packet

use crate::TunnelKind;
use heddle_packet::{Csum, Gso, GsoKind, Packet, Wrap, Wraps};
use heddle_wire::checksum::checksum;
use heddle_wire::eth::{Ethernet, ethertype};
use heddle_wire::ip::{Ipv4, Ipv6, proto, pseudo};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::tunnel::{Geneve, Vxlan};
use heddle_wire::{Be16, IntoBytes, split, split_mut};

const FIN: u16 = 0x01;
const PSH: u16 = 0x08;
const ACK: u16 = 0x10;
const CWR: u16 = 0x80;
/// Mask of TCP's flags.
const FLAGS: u16 = 0xfff;

/// Whether a packet is a GSO packet of datagrams whose L4 header is at `l4`.
#[inline]
pub fn is_datagrams(p: &Packet, l4: u16) -> bool {
    p.offload
        .gso
        .is_some_and(|g| g.kind == GsoKind::Udp && g.wraps.is_empty())
        && matches!(p.offload.csum, Csum::Partial { start, .. } if start == l4)
}

/// Offsets of the inner headers in a datagram's payload.
struct Layout {
    v6: bool,
    l3: usize,
    l4: usize,
    /// Offset of a segment's payload.
    payload: usize,
    proto: u8,
    /// FIN and PSH flags of the last segment.
    ends_with: u16,
}

/// Joins such a GSO packet, whose outer headers are at `l3` and `l4`. `false`: it cannot be joined, and is
/// unchanged.
pub fn join(p: &mut Packet, kind: TunnelKind, (l3, l4): (u16, u16)) -> bool {
    p.make_private();
    let Some((layout, csum, gso)) = check(p, kind, l4) else {
        return false;
    };
    let first = usize::from(l4) + Udp::LEN;
    let size = layout.payload + usize::from(gso.size);
    let end = {
        let bytes = p.head_mut();
        let (mut to, mut from) = (first + size, first + size);
        while from < bytes.len() {
            let upto = bytes.len().min(from + size);
            let part = from + layout.payload..upto;
            let n = part.len();
            bytes.copy_within(part, to);
            (to, from) = (to + n, upto);
        }
        to
    };
    p.truncate(end);
    (p.offload.csum, p.offload.gso) = (csum, Some(gso));
    finish(p.head_mut(), &layout, (l3.into(), l4.into()), first).is_some()
}

/// Checks whether the packet can be joined. Returns its layout, and its metadata once it is joined.
fn check(p: &Packet, kind: TunnelKind, l4: u16) -> Option<(Layout, Csum, Gso)> {
    let gso = p.offload.gso?;
    let first = usize::from(l4) + Udp::LEN;
    let all = p.head().get(first..)?;
    let size = usize::from(gso.size).max(1);
    let mut datagrams = all.chunks(size);
    let one = datagrams.next()?;
    let (wrap, inner) = match kind {
        TunnelKind::Vxlan => (Wrap::Vxlan, Vxlan::LEN),
        TunnelKind::Geneve => {
            let (g, _) = split::<Geneve>(one)?;
            (Wrap::Geneve, Geneve::LEN + usize::from(g.ver_len & 0x3f) * 4)
        }
        _ => return None,
    };
    let mut layout = Layout::of(one, inner)?;
    let segment = u16::try_from(size.checked_sub(layout.payload)?)
        .ok()
        .filter(|n| *n > 0)?;
    let (mut last, mut sent) = (one, usize::from(segment));
    for next in datagrams {
        // Only the last one is shorter: the device cuts datagrams of equal length.
        layout.follows(one, last, next, sent)?;
        (last, sent) = (next, sent + usize::from(segment));
    }
    let at = |n: usize| u16::try_from(first + n).ok();
    let csum = Csum::Partial {
        start: at(layout.l4)?,
        offset: if layout.proto == proto::TCP { 16 } else { 6 },
    };
    let gso = Gso {
        kind: match (layout.proto, layout.v6) {
            (proto::TCP, false) => GsoKind::Tcp4,
            (proto::TCP, true) => GsoKind::Tcp6,
            _ => GsoKind::Udp,
        },
        ecn: layout.flags(one)? & CWR != 0,
        size: segment,
        hdr_len: at(layout.payload)?,
        wraps: Wraps::default().with(wrap)?,
    };
    layout.ends_with = layout.flags(last)? & (FIN | PSH);
    Some((layout, csum, gso))
}

impl Layout {
    /// Layout of a datagram's payload with a frame at `at`: IP without options, TCP or UDP.
    fn of(one: &[u8], at: usize) -> Option<Self> {
        let (eth, rest) = split::<Ethernet>(one.get(at..)?)?;
        let l3 = at + Ethernet::LEN;
        let (v6, proto, l4) = match eth.ethertype.get() {
            ethertype::IP => {
                let (ip, _) = split::<Ipv4>(rest)?;
                let plain = ip.header_len() == Ipv4::LEN && !ip.is_fragment();
                (false, ip.proto, plain.then_some(l3 + Ipv4::LEN)?)
            }
            ethertype::IPV6 => (true, split::<Ipv6>(rest)?.0.next, l3 + Ipv6::LEN),
            _ => return None,
        };
        let header = one.get(l4..)?;
        let len = match proto {
            proto::TCP => split::<Tcp>(header)?.0.header_len(),
            proto::UDP => Udp::LEN,
            _ => return None,
        };
        (len >= Udp::LEN && l4 + len <= one.len()).then_some(Self {
            v6,
            l3,
            l4,
            payload: l4 + len,
            proto,
            ends_with: 0,
        })
    }

    /// Flags of TCP; 0 for UDP.
    fn flags(&self, datagram: &[u8]) -> Option<u16> {
        match self.proto {
            proto::TCP => Some(split::<Tcp>(datagram.get(self.l4..)?)?.0.ctl.get() & FLAGS),
            _ => Some(0),
        }
    }

    /// `Some` if `next` follows `last` in the segments that begin with `one`, of which `sent` bytes came
    /// before.
    fn follows(&self, one: &[u8], last: &[u8], next: &[u8], sent: usize) -> Option<()> {
        // At least one byte of payload.
        let headers = next.get(..self.payload).filter(|_| next.len() > self.payload)?;
        let mut want = [0; MAX_HEADER_BYTES];
        let want = want.get_mut(..self.payload)?;
        want.copy_from_slice(one.get(..self.payload)?);
        let l3 = self.l3;
        // Ignores a field that differs from segment to segment.
        let mut take = |at: usize, n: usize| {
            want.get_mut(at..at + n)?
                .copy_from_slice(headers.get(at..at + n)?);
            Some(())
        };
        match self.v6 {
            true => take(l3 + 4, 2)?,
            false => [(2, 4), (10, 2)]
                .into_iter()
                .try_for_each(|(at, n)| take(l3 + at, n))?,
        }
        match self.proto {
            // Ignores checksum and flags. The sequence number has to be the next one.
            proto::TCP => {
                take(self.l4 + 13, 1)?;
                take(self.l4 + 16, 2)?;
                let (tcp, _) = split_mut::<Tcp>(want.get_mut(self.l4..)?)?;
                let sent = u32::try_from(sent).ok()?;
                tcp.seq = tcp.seq.get().wrapping_add(sent).into();
            }
            _ => take(self.l4 + 4, 4)?,
        }
        let (first, last, this) = (self.flags(one)?, self.flags(last)?, self.flags(next)?);
        let fits = self.proto != proto::TCP
            || first & ACK != 0
                && last & (FIN | PSH) == 0
                && this & CWR == 0
                && this & !(FIN | PSH) == first & !(CWR | FIN | PSH);
        (fits && *headers == *want).then_some(())
    }
}

/// Maximum length from a datagram's payload to a segment's: Geneve options, Ethernet, IPv6, TCP with options.
const MAX_HEADER_BYTES: usize = Geneve::LEN + Geneve::MAX_OPTIONS + Ethernet::LEN + Ipv6::LEN + 60;

/// Sets lengths and checksums of the joined packet; `first` is the offset of the outer datagram's payload.
fn finish(bytes: &mut [u8], layout: &Layout, (l3, l4): (usize, usize), first: usize) -> Option<()> {
    fix_ip(bytes, l3, l4 == l3 + Ipv4::LEN)?;
    let len = be16(bytes.len() - l4)?;
    let (udp, _) = split_mut::<Udp>(bytes.get_mut(l4..)?)?;
    udp.len = len;
    let inner = first + layout.l3;
    fix_ip(bytes, inner, !layout.v6)?;
    let (start, total) = (first + layout.l4, bytes.len());
    let n = u32::try_from(total - start).ok()?;
    let pseudo = pseudo(bytes.get(inner..)?, layout.v6, layout.proto, n)?;
    let header = bytes.get_mut(start..)?;
    if layout.proto == proto::TCP {
        let (tcp, _) = split_mut::<Tcp>(header)?;
        tcp.ctl = (tcp.ctl.get() | layout.ends_with).into();
        tcp.csum = Be16::new(pseudo.folded());
    } else {
        let (udp, _) = split_mut::<Udp>(header)?;
        (udp.len, udp.csum) = (be16(total - start)?, Be16::new(pseudo.folded()));
    }
    Some(())
}

/// Sets length and checksum of an IP header.
fn fix_ip(bytes: &mut [u8], at: usize, v4: bool) -> Option<()> {
    let header = bytes.get_mut(at..)?;
    let len = header.len();
    if v4 {
        let (ip, _) = split_mut::<Ipv4>(header)?;
        (ip.total_len, ip.csum) = (be16(len)?, Be16::new(0));
        let csum = checksum(ip.as_bytes());
        ip.csum = csum.into();
    } else {
        split_mut::<Ipv6>(header)?.0.payload_len = be16(len.checked_sub(Ipv6::LEN)?)?;
    }
    Some(())
}

fn be16(n: usize) -> Option<Be16> {
    u16::try_from(n).ok().map(Be16::new)
}
