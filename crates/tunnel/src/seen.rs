//! Packets of a peer one after another: outer headers like the last packet's tell the same.
//!
//! **Problem.** Most of what comes out of a tunnel came from the same end as the packet before. Its outer
//! headers differ in lengths, the IP identification, the source port and checksums, none of which tells
//! anything of the tunnel; to read them in full again is most of the work of decapsulation.
//!
//! **Shape.** [`Seen`] keeps the outer headers of a packet that came out, and the bits of them that tell
//! something. A packet whose headers agree in these has the same tunnel members of the key. Its own lengths
//! and checksums are checked as [`TunnelPop::apply`] checks them; whatever is not as it should be is left to
//! that, which has the names for it.
//!
//! **Bounds.** Geneve and VXLAN, plain packets, headers of [`VIEW`] bytes from the IP header on.

#![deny(clippy::indexing_slicing)] // whatever a packet holds

use crate::action::{TunnelKind, TunnelPop};
use crate::pop::{Popped, Shim, is_known, sum_of};
use heddle_packet::Packet;
use heddle_wire::checksum::{Sum, checksum};
use heddle_wire::ip::{Ipv4, Ipv6, proto, pseudo};
use heddle_wire::l4::Udp;

/// Bytes from the IP header on that are compared at most.
pub const VIEW: usize = 64;
const WORDS: usize = VIEW / 8;

/// The first bytes from the outer IP header on.
#[derive(Clone, Copy, Debug)]
pub struct View([u64; WORDS]);

/// The outer headers of a packet that came out of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    words: [u64; WORDS],
    /// The bits of them that tell something.
    mask: [u64; WORDS],
    l3: u16,
    /// Where the inner packet begins, from the IP header on.
    len: u16,
    /// Of the IP header.
    ip: usize,
    /// There was a UDP checksum.
    csum: bool,
    /// Sum of its pseudo header without the length.
    pseudo: Sum,
}

/// Bits of the headers that tell something; words as [`View`] has them. Silent are: lengths; the
/// identification and checksum of IPv4, the flow label of IPv6; of UDP all but the port that it was sent to.
#[expect(clippy::indexing_slicing, reason = "while it is compiled")]
const fn telling(ip: usize, silent: &[usize]) -> [u64; WORDS] {
    let (mut words, mut i) = ([u64::MAX; WORDS], 0);
    while i < silent.len() {
        words[silent[i] / 8] &= !(0xff << (silent[i] % 8 * 8));
        i += 1;
    }
    if ip == Ipv6::LEN {
        words[0] &= !0x0f00;
    }
    words
}

const TELLING4: [u64; WORDS] = telling(20, &[2, 3, 4, 5, 10, 11, 20, 21, 24, 25, 26, 27]);
const TELLING6: [u64; WORDS] = telling(40, &[2, 3, 4, 5, 40, 41, 44, 45, 46, 47]);

impl View {
    /// Of the packet whose IP header is at `l3`, if its head has them, and it is no train.
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

impl Seen {
    /// After [`TunnelPop::apply`] has taken headers off that began so.
    pub fn new(pop: &TunnelPop, view: View, l3: u16, popped: &Popped) -> Option<Self> {
        if !matches!(pop.kind, TunnelKind::Geneve | TunnelKind::Vxlan) {
            return None;
        }
        let len = popped.taken.checked_sub(l3).filter(|n| usize::from(*n) <= VIEW)?;
        let v4 = view.0.first()? & 0xf0 == 0x40;
        let (ip, telling) = if v4 {
            (Ipv4::LEN, &TELLING4)
        } else {
            (Ipv6::LEN, &TELLING6)
        };
        let mut left = u32::from(len) * 8;
        let mask = telling.map(|bits| {
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

    /// Takes a packet out of the tunnel that has such headers, its IP header at `l3`: the key's members are
    /// those of the packet that they were seen of. `false`: it has not, or something is wrong, and the packet
    /// is as it was.
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

    /// Where the UDP datagram ends, if its lengths and checksums are right.
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
