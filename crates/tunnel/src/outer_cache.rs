//! Cache of the last outer headers: a shortcut for consecutive packets of one peer.
//!
//! **Problem.** Most packets that leave a tunnel came from the same peer as the packet before. Their outer
//! headers differ in lengths, the IP identification, the source port and checksums, which are no fields of
//! the key. Parsing them in full again is most of the work of decapsulation.
//!
//! **Shape.** [`OuterHeaderCache`] keeps the outer headers of one packet and a mask of the bits that become
//! fields of the key. A packet whose headers agree in these bits has the same tunnel fields. The lengths and
//! checksums of each packet are checked as [`TunnelPop::apply`] checks them. If a check fails, the packet is
//! left to that function, which names the error.
//!
//! **Bounds.** Geneve and VXLAN, no GSO packets, outer headers of at most [`VIEW`] bytes from the IP header
//! on.

#![deny(clippy::indexing_slicing)] // bytes of a packet

use crate::action::{TunnelKind, TunnelPop};
use crate::pop::{Popped, Shim, is_known, sum_of};
use heddle_packet::Packet;
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::ip::{Ipv4, Ipv6, proto, pseudo};
use heddle_wire::l4::Udp;

/// First byte of an IPv4 header without options.
const NO_OPTIONS: u64 = 0x45;
/// Maximum number of compared bytes, from the outer IP header on.
pub const VIEW: usize = 64;
const WORDS: usize = VIEW / 8;

/// The first bytes from the outer IP header on.
#[derive(Clone, Copy, Debug)]
pub struct View([u64; WORDS]);

/// The outer headers of a packet that came out of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct OuterHeaderCache {
    words: [u64; WORDS],
    /// Bits that become fields of the key.
    mask: [u64; WORDS],
    l3: u16,
    /// Offset of the inner packet from the outer IP header.
    len: u16,
    /// Length of the outer IP header, bytes.
    ip: usize,
    /// The packet had a UDP checksum.
    csum: bool,
    /// Sum of the pseudo header without the length.
    pseudo: Sum,
}

/// Mask of the bits that become fields of the key, in the words of [`View`]. Not compared: lengths; the
/// identification and checksum of IPv4, the flow label of IPv6; of UDP all but the destination port.
#[expect(clippy::indexing_slicing, reason = "while it is compiled")]
const fn compared(ip: usize, ignored: &[usize]) -> [u64; WORDS] {
    let (mut words, mut i) = ([u64::MAX; WORDS], 0);
    while i < ignored.len() {
        words[ignored[i] / 8] &= !(0xff << (ignored[i] % 8 * 8));
        i += 1;
    }
    if ip == Ipv6::LEN {
        words[0] &= !0x0f00;
    }
    words
}

const COMPARED_V4: [u64; WORDS] = compared(20, &[2, 3, 4, 5, 10, 11, 20, 21, 24, 25, 26, 27]);
const COMPARED_V6: [u64; WORDS] = compared(40, &[2, 3, 4, 5, 40, 41, 44, 45, 46, 47]);

impl View {
    /// The headers of the packet whose outer IP header is at `l3`. `None`: they are not in its head, or it is
    /// a GSO packet.
    #[inline]
    pub fn of(p: &Packet, l3: u16) -> Option<Self> {
        let bytes: &[u8; VIEW] = p.head().get(usize::from(l3)..)?.first_chunk()?;
        if p.offload.gso.is_some() {
            return None;
        }
        let words: &[[u8; 8]; WORDS] = bytes.as_chunks().0.try_into().ok()?;
        Some(Self(words.map(u64::from_le_bytes)))
    }
}

impl OuterHeaderCache {
    /// The cache after [`TunnelPop::apply`] has removed headers that began with `view`.
    pub fn new(pop: &TunnelPop, view: View, l3: u16, popped: &Popped) -> Option<Self> {
        if !matches!(pop.kind, TunnelKind::Geneve | TunnelKind::Vxlan) {
            return None;
        }
        let len = popped.taken.checked_sub(l3).filter(|n| usize::from(*n) <= VIEW)?;
        let first = view.0.first()? & 0xff;
        let v4 = first & 0xf0 == 0x40;
        // Options come seldom.
        if v4 && first != NO_OPTIONS {
            return None;
        }
        let (ip, compared) = if v4 {
            (Ipv4::LEN, &COMPARED_V4)
        } else {
            (Ipv6::LEN, &COMPARED_V6)
        };
        let mut left = u32::from(len) * 8;
        let mask = compared.map(|bits| {
            let here = left.min(64);
            left -= here;
            bits & u64::MAX.checked_shr(64 - here).unwrap_or(0)
        });
        let csum = view.0.get((ip + 6) / 8)? >> ((ip + 6) % 8 * 8) & 0xffff;
        let bytes = view.0.map(u64::to_le_bytes);
        Some(Self {
            words: view.0,
            mask,
            l3,
            len,
            ip,
            csum: csum != 0,
            pseudo: pseudo(bytes.as_flattened(), !v4, proto::UDP, 0)?,
        })
    }

    /// Removes the outer headers, which begin at `l3`, from a packet that agrees with the cached ones. The
    /// tunnel fields of the key are those of the cached packet. `false`: the headers differ or a check
    /// failed, and the packet is unchanged.
    #[inline]
    pub fn apply(&self, pop: &TunnelPop, p: &mut Packet, view: &View, l3: u16) -> bool {
        let words = self.words.iter().zip(&view.0).zip(&self.mask);
        let odd = words.fold(0, |odd, ((a, b), m)| odd | (a ^ b) & m);
        if odd != 0 || l3 != self.l3 {
            return false;
        }
        let Some(end) = self.end(p, l3) else {
            return false;
        };
        pop.take_off(
            p,
            &Shim {
                at: usize::from(l3 + self.len),
                end,
                packet_type: 0,
            },
        )
        .is_ok()
    }

    /// The end of the UDP datagram, if its lengths and checksums are right.
    #[inline]
    fn end(&self, p: &Packet, l3: u16) -> Option<usize> {
        let (l3, ip) = (usize::from(l3), self.ip);
        let bytes: &[u8; VIEW] = p.head().get(l3..)?.first_chunk()?;
        let at = |i: usize| Some(u16::from_be_bytes([*bytes.get(i)?, *bytes.get(i + 1)?]));
        let there = if ip == Ipv4::LEN {
            if checksum(bytes.get(..Ipv4::LEN)?) != 0 {
                return None;
            }
            usize::from(at(2)?)
        } else {
            ip + usize::from(at(4)?)
        };
        let (len, csum) = (at(ip + 4)?, at(ip + 6)? != 0);
        let (l4, n) = (l3 + ip, usize::from(len));
        let fits = l3 + there <= p.len() && n >= Udp::LEN && ip + n <= there && ip + n >= self.len.into();
        let right = || self.pseudo.word(len).sum(sum_of(p, l4, l4 + n)).checksum() == 0;
        (fits && csum == self.csum && (!csum || is_known(p, l4) || right())).then_some(l4 + n)
    }
}
