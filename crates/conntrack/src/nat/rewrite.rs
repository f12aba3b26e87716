//! Translated addresses and ports are written into a packet, and its checksums are updated.
//!
//! A checksum is updated by the changed bytes (RFC 1624), so a wrong one stays wrong. A partial checksum,
//! which a device completes, is the sum of the pseudo header: it contains addresses but no ports. A UDP
//! checksum of zero stays zero. An ICMP error quotes the translated packet in its payload. The quoted headers
//! are translated, too, and all of these changes count in the checksum of the error.

use crate::protocol::packet::quoted;
use crate::table::key::{Key, TranslatedEnds4};
use crate::tuple::is_icmp;
use heddle_wire::crc32c;
use heddle_wire::ip::{Ipv4, proto};

/// New addresses and ports of one header pair; `None`: unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeaderChange {
    /// Source address, as in [`crate::Endpoint`].
    pub src: Option<u128>,
    /// Destination address.
    pub dst: Option<u128>,
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    /// Identifier of ICMP.
    pub id: Option<u16>,
}

/// The changes of a packet by the translation of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rewrite {
    /// Changes of the packet itself.
    pub outer: HeaderChange,
    /// Changes of the packet that an ICMP error quotes.
    pub inner: Option<HeaderChange>,
}

/// Offsets of the headers of a packet.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The IP header.
    pub l3: usize,
    /// The header after IP and its extensions.
    pub l4: usize,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// Protocol at `l4`.
    pub proto: u8,
    /// The checksum at `l4` is the pseudo header's sum.
    pub partial: bool,
    /// Bytes from `l4` to the end of the packet, over which SCTP's checksum is computed; 0: unknown.
    pub l4_len: usize,
}

/// The sum of changed words, for updates of a checksum.
#[derive(Clone, Copy)]
struct Change(u64);

impl Change {
    fn bytes(&mut self, from: &[u8], to: &[u8]) {
        for (f, t) in from.chunks_exact(2).zip(to.chunks_exact(2)) {
            if let (&[a, b], &[c, d]) = (f, t) {
                self.0 += u64::from(!u16::from_be_bytes([a, b])) + u64::from(u16::from_be_bytes([c, d]));
            }
        }
    }
    #[allow(clippy::cast_possible_truncation)] // folded
    fn fold(mut v: u64) -> u16 {
        while v > 0xffff {
            v = (v & 0xffff) + (v >> 16);
        }
        v as u16
    }
    /// Updates a complete checksum.
    fn complete(self, old: u16) -> u16 {
        !Self::fold(u64::from(!old) + self.0)
    }
    /// Updates a partial sum, which a device completes.
    fn sum(self, old: u16) -> u16 {
        Self::fold(u64::from(old) + self.0)
    }
}

/// Replaces bytes, and adds the change to the sums that cover them.
fn put(head: &mut [u8], at: usize, to: &[u8], sums: &mut [&mut Change]) {
    let Some(place) = head.get_mut(at..at + to.len()) else {
        return;
    };
    for s in sums {
        s.bytes(place, to);
    }
    place.copy_from_slice(to);
}

fn word(head: &[u8], at: usize) -> Option<u16> {
    let b = head.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*b))
}

/// Offset of the checksum in a transport header.
fn checksum_at(proto: u8, ipv6: bool) -> Option<usize> {
    match (proto, ipv6) {
        (proto::TCP, _) => Some(16),
        (proto::UDP, _) => Some(6),
        (proto::ICMP, false) | (proto::ICMPV6, true) => Some(2),
        _ => None,
    }
}

/// SCTP's checksum is a CRC over the whole packet (RFC 9260, appendix A). A CRC is linear: it changes by the
/// CRC of the changed ports and of zeros for the rest. So the rest of the packet is not read.
#[cold]
fn sctp(head: &mut [u8], at: At, ports_change: [u8; 4], all: &mut Change) {
    const ZEROS: [u8; 256] = [0; 256];
    /// Length of the common header, and offset of its checksum.
    const LEN: usize = 12;
    const PLACE: usize = 8;
    let Some(old) = head.get(at.l4 + PLACE..).and_then(|b| b.first_chunk::<4>()) else {
        return;
    };
    if at.l4_len < LEN {
        return;
    }
    let mut crc = crc32c::update(0, &ports_change);
    let mut left = at.l4_len - ports_change.len();
    while left > 0 {
        let n = left.min(ZEROS.len());
        crc = crc32c::update(crc, ZEROS.get(..n).unwrap_or(&[]));
        left -= n;
    }
    let change = crc.to_le_bytes();
    let new: [u8; 4] = std::array::from_fn(|i| old[i] ^ change[i]);
    put(head, at.l4 + PLACE, &new, &mut [all]);
}

impl HeaderChange {
    /// Rewrites one pair of headers. `all` sums every changed byte, for the checksum of an enclosing packet.
    #[allow(clippy::cast_possible_truncation)] // IPv4
    fn apply(&self, head: &mut [u8], at: At, all: &mut Change) {
        let (mut ip_sum, mut pseudo, mut l4_sum) = (Change(0), Change(0), Change(0));
        for (addr, v4, v6) in [(self.src, 12, 8), (self.dst, 16, 24)] {
            let Some(a) = addr else { continue };
            if at.ipv6 {
                put(head, at.l3 + v6, &a.to_be_bytes(), &mut [&mut pseudo, all]);
            } else {
                put(
                    head,
                    at.l3 + v4,
                    &(a as u32).to_be_bytes(),
                    &mut [&mut ip_sum, &mut pseudo, all],
                );
            }
        }
        if !at.ipv6
            && let Some(old) = word(head, at.l3 + 10)
        {
            put(head, at.l3 + 10, &ip_sum.complete(old).to_be_bytes(), &mut [all]);
        }
        let mut ports_change = [0; 4];
        if let Some((src, dst)) = self.ports {
            if let Some(old) = head.get(at.l4..).and_then(|b| b.first_chunk::<4>()) {
                let [a, b, c, d] = *old;
                let ([e, f], [g, h]) = (src.to_be_bytes(), dst.to_be_bytes());
                ports_change = [a ^ e, b ^ f, c ^ g, d ^ h];
            }
            put(head, at.l4, &src.to_be_bytes(), &mut [&mut l4_sum, all]);
            put(head, at.l4 + 2, &dst.to_be_bytes(), &mut [&mut l4_sum, all]);
        }
        if let Some(id) = self.id {
            put(head, at.l4 + 4, &id.to_be_bytes(), &mut [&mut l4_sum, all]);
        }
        if at.proto == proto::SCTP && ports_change != [0; 4] {
            return sctp(head, at, ports_change, all);
        }
        let Some(place) = checksum_at(at.proto, at.ipv6) else {
            return;
        };
        // A quoted packet may be cut off before the checksum.
        let Some(old) = word(head, at.l4 + place) else {
            return;
        };
        let udp = at.proto == proto::UDP;
        if udp && old == 0 && !at.partial {
            return;
        }
        // ICMP over IPv4 has no pseudo header.
        let pseudo = if at.proto == proto::ICMP {
            Change(0)
        } else {
            pseudo
        };
        let new = if at.partial {
            pseudo.sum(old)
        } else {
            match Change(pseudo.0 + l4_sum.0).complete(old) {
                0 if udp => 0xffff,
                new => new,
            }
        };
        put(head, at.l4 + place, &new.to_be_bytes(), &mut [all]);
    }
}

impl TranslatedEnds4 {
    /// Writes these endpoints into a packet of UDP or TCP that has the endpoints of `old`. `h` begins at the
    /// IP header, which has no options. `partial`: see [`At::partial`].
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // halves
    pub(crate) fn write(self, h: &mut [u8], old: &Key, partial: bool) {
        let Some((ip, l4)) = h.split_first_chunk_mut::<{ Ipv4::LEN }>() else {
            return;
        };
        let (proto, old) = (old.proto(), old.ends4());
        let l4_sum_at = if proto == proto::TCP { 16 } else { 6 };
        let Some(sum) = l4.get(l4_sum_at..).and_then(|b| b.first_chunk::<2>()) else {
            return;
        };
        let old_sum = u16::from_be_bytes(*sum);
        let other = |from: u64, to: u64| (!from & 0xffff_ffff) + to;
        let addrs = other(old.src >> 32, self.src >> 32) + other(old.dst >> 32, self.dst >> 32);
        let ports = other(old.src & 0xffff_ffff, self.src & 0xffff_ffff)
            + other(old.dst & 0xffff_ffff, self.dst & 0xffff_ffff);
        let ip_sum = Change(addrs).complete(u16::from_be_bytes([ip[10], ip[11]]));
        ip[10..12].copy_from_slice(&ip_sum.to_be_bytes());
        ip[12..16].copy_from_slice(&((self.src >> 32) as u32).to_be_bytes());
        ip[16..20].copy_from_slice(&((self.dst >> 32) as u32).to_be_bytes());
        l4[..2].copy_from_slice(&(self.src as u16).to_be_bytes());
        l4[2..4].copy_from_slice(&(self.dst as u16).to_be_bytes());
        let udp = proto == proto::UDP;
        let new = match (partial, old_sum) {
            (true, _) => Change(addrs).sum(old_sum),
            (false, 0) if udp => 0,
            _ => match Change(addrs + ports).complete(old_sum) {
                0 if udp => 0xffff,
                new => new,
            },
        };
        l4[l4_sum_at..l4_sum_at + 2].copy_from_slice(&new.to_be_bytes());
    }
}

impl Rewrite {
    /// Rewrites a packet. The offsets of `at` are offsets into `head`. Bytes beyond the end of `head` are
    /// skipped.
    pub fn apply(&self, head: &mut [u8], at: At) {
        self.outer.apply(head, at, &mut Change(0));
        let Some(inner) = self.inner.filter(|_| is_icmp(at.proto, at.ipv6)) else {
            return;
        };
        let l3 = at.l4 + 8;
        let Some((offset, tuple)) = head.get(l3..).and_then(|b| quoted(at.ipv6, b)) else {
            return;
        };
        let mut all = Change(0);
        let quote = At {
            l3,
            l4: l3 + offset,
            ipv6: at.ipv6,
            proto: tuple.proto,
            partial: false,
            // The quoted packet is cut off.
            l4_len: 0,
        };
        inner.apply(head, quote, &mut all);
        if let Some(old) = word(head, at.l4 + 2)
            && !at.partial
        {
            put(head, at.l4 + 2, &all.complete(old).to_be_bytes(), &mut []);
        }
    }
}

#[cfg(test)]
mod tests;
