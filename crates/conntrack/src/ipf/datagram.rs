//! The fragments of one datagram, and the datagram when it is whole.

use super::piece::Piece;
use crate::nat::rewrite::{At, HeaderChange, Rewrite};
use crate::protocol::packet::{Checked, Packet, behind_extensions};
use heddle_wire::checksum::{Sum, checksum, update16};
use heddle_wire::ip::{Ipv4, Ipv6, Ipv6Frag, proto, pseudo};
use heddle_wire::{split, split_mut};

/// A fragment that waits.
#[derive(Debug)]
pub struct Fragment<T> {
    pub(crate) piece: Piece,
    /// The packet, from its first byte on.
    bytes: Box<[u8]>,
    l3: usize,
    /// Context that the caller of [`super::Ipf::offer`] gave with the fragment.
    pub context: T,
}

impl<T> Fragment<T> {
    pub(crate) fn new(piece: Piece, bytes: Box<[u8]>, l3: usize, context: T) -> Self {
        Self {
            piece,
            bytes,
            l3,
            context,
        }
    }
    /// The packet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The ECN bits of the IP header (RFC 3168).
    fn ecn(&self, ipv6: bool) -> u8 {
        let second = self.bytes.get(self.l3 + 1).copied().unwrap_or(0);
        if ipv6 { second >> 4 & 3 } else { second & 3 }
    }
    fn payload(&self) -> &[u8] {
        let from = self.l3 + self.piece.at;
        self.bytes.get(from..from + self.piece.len).unwrap_or_default()
    }
}

/// Fragments of a datagram, in the order of their offsets; they do not overlap.
#[derive(Debug)]
pub(crate) struct Pieces<T> {
    list: Vec<Fragment<T>>,
    /// Payload bytes of the whole datagram; `None` before the last fragment has come.
    end: Option<usize>,
    /// Payload bytes that are there.
    have: usize,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            end: None,
            have: 0,
        }
    }
}

impl<T> Pieces<T> {
    /// Returns the fragment's index in `list`. `None`: it overlaps another one, or contradicts it about the
    /// end.
    pub(crate) fn place(&self, p: &Piece) -> Option<usize> {
        let at = self.list.partition_point(|f| f.piece.start < p.start);
        let (before, after) = (at.checked_sub(1), self.list.get(at));
        let clear = before
            .and_then(|i| self.list.get(i))
            .is_none_or(|f| f.piece.end() <= p.start)
            && after.is_none_or(|f| p.end() <= f.piece.start);
        let ends = self.end.is_none_or(|end| p.end() <= end && !p.last) && (!p.last || after.is_none());
        (clear && ends).then_some(at)
    }
    /// Whether one fragment has all bytes of this one.
    pub(crate) fn has_all_of(&self, p: &Piece) -> bool {
        let has = |f: &Fragment<T>| f.piece.start <= p.start && p.end() <= f.piece.end();
        self.list.iter().any(has)
    }
    /// Inserts a fragment at the index from [`Self::place`].
    pub(crate) fn insert(&mut self, at: usize, f: Fragment<T>) {
        if f.piece.last {
            self.end = Some(f.piece.end());
        }
        self.have += f.piece.len;
        self.list.insert(at, f);
    }
    /// Whether all fragments are there.
    pub(crate) fn whole(&self) -> bool {
        self.end == Some(self.have)
    }
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
    /// Returns the memory of all fragments, in bytes as [`cost`] counts them.
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(|f| cost(f.bytes.len())).sum()
    }
    /// Returns Open vSwitch's name of this state.
    pub(crate) fn state(&self) -> &'static str {
        let first = self.list.first().is_some_and(|f| f.piece.start == 0);
        match (first, self.end.is_some()) {
            (true, true) => "first/last frag",
            (true, false) => "first frag",
            (false, true) => "last frag",
            (false, false) => "other frag",
        }
    }
    /// Puts the fragments together. The caller has checked [`Self::whole`].
    pub(crate) fn join(self, ipv6: bool) -> Datagram<T> {
        let (bytes, l4, proto) = assemble(&self.list, ipv6).unwrap_or_default();
        Datagram {
            fragments: self.list,
            bytes,
            l4,
            proto,
            ipv6,
        }
    }
}

/// Returns the memory charge of a fragment of `bytes`, with a flat share for the structures around it.
pub(crate) fn cost(bytes: usize) -> usize {
    bytes + 256
}

/// "Congestion experienced" in the ECN bits (RFC 3168).
const CE: u8 = 3;

/// ECN bits to set in a packet whose fragments have these: CE if one has it. `None`: some fragments have ECN
/// and others do not, so they are of different packets (RFC 3168, 5.3, as in Linux).
fn joined_ecn(of_fragments: impl Iterator<Item = u8>) -> Option<u8> {
    let (mut some_with, mut some_without, mut joined) = (false, false, 0);
    for ecn in of_fragments {
        some_with |= ecn != 0;
        some_without |= ecn == 0;
        if ecn == CE {
            joined = CE;
        }
    }
    (!(some_with && some_without)).then_some(joined)
}

/// Returns the packet as it was before fragmentation, from its IP header on, the offset of its transport
/// header, and the protocol. An IPv6 packet keeps its fragment header, with offset 0 and no more fragments.
/// `None`: the fragments form no valid packet.
fn assemble<T>(list: &[Fragment<T>], ipv6: bool) -> Option<(Vec<u8>, usize, u8)> {
    let first = list.first()?;
    let headers = first.bytes.get(first.l3..first.l3 + first.piece.at)?;
    let len: usize = list.iter().map(|f| f.piece.len).sum();
    let mut bytes = Vec::with_capacity(headers.len() + len);
    bytes.extend_from_slice(headers);
    list.iter().for_each(|f| bytes.extend_from_slice(f.payload()));
    let put = |bytes: &mut Vec<u8>, at: usize, v: u16| {
        if let Some(place) = bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&v.to_be_bytes());
        }
    };
    if ipv6 {
        let payload = u16::try_from(bytes.len() - Ipv6::LEN).unwrap_or(u16::MAX);
        put(&mut bytes, 4, payload);
        put(&mut bytes, first.piece.header + 2, 0);
        let next = split::<Ipv6>(&bytes)?.0.next;
        let (l4, proto) = behind_extensions(&bytes, next)?;
        return Some((bytes, l4, proto));
    }
    let total = u16::try_from(bytes.len()).ok()?;
    let (ip, _) = split::<Ipv4>(&bytes)?;
    let (flags, proto) = (ip.frag.get() & Ipv4::DONT, ip.proto);
    put(&mut bytes, 2, total);
    put(&mut bytes, 6, flags);
    put(&mut bytes, 10, 0);
    let sum = checksum(bytes.get(..first.piece.at)?);
    put(&mut bytes, 10, sum);
    Some((bytes, first.piece.at, proto))
}

/// A datagram that is whole.
#[derive(Debug)]
pub struct Datagram<T> {
    fragments: Vec<Fragment<T>>,
    bytes: Vec<u8>,
    l4: usize,
    proto: u8,
    ipv6: bool,
}

impl<T> Datagram<T> {
    /// The packet as it was before fragmentation, from its IP header on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Returns the packet in the tracker's form; `verify` is [`Datagram::sum_is_right`].
    pub fn packet<'a>(&'a self, verify: &'a dyn Fn() -> bool) -> Packet<'a> {
        Packet {
            head: &self.bytes,
            l3: 0,
            l4: self.l4,
            end: self.bytes.len(),
            ipv6: self.ipv6,
            proto: self.proto,
            fragment: false,
            // [`assemble`] computed it.
            l3_sum: Checked::Good,
            l4_sum: Checked::Unknown,
            verify,
        }
    }
    /// Whether the checksum of TCP, UDP or ICMP is right.
    pub fn sum_is_right(&self) -> bool {
        let right = || {
            let l4 = self.bytes.get(self.l4..)?;
            let len = u32::try_from(l4.len()).ok()?;
            let sum = match (self.ipv6, self.proto) {
                (false, proto::ICMP) => Sum::ZERO,
                (ipv6, proto) => pseudo(&self.bytes, ipv6, proto, len)?,
            };
            Some(sum.bytes(l4).checksum() == 0)
        };
        right().unwrap_or(false)
    }
    /// Translates addresses and ports in the whole packet, then in its fragments. Each fragment gets new
    /// addresses in its header, and a copy of its part of the new payload.
    pub fn rewrite(&mut self, rewrite: &Rewrite) {
        let at = At {
            l3: 0,
            l4: self.l4,
            ipv6: self.ipv6,
            proto: self.proto,
            partial: false,
            l4_len: self.bytes.len().saturating_sub(self.l4),
        };
        rewrite.apply(&mut self.bytes, at);
        // Only the addresses: the payload is copied below.
        let addresses = Rewrite {
            outer: HeaderChange {
                ports: None,
                id: None,
                ..rewrite.outer
            },
            inner: None,
        };
        let Some(first) = self.fragments.first().map(|f| f.piece.at) else {
            return;
        };
        for f in &mut self.fragments {
            let at = At {
                l3: f.l3,
                l4: f.l3 + f.piece.at,
                proto: NO_CHECKSUM,
                ..at
            };
            addresses.apply(&mut f.bytes, at);
            let (from, to) = (first + f.piece.start, f.l3 + f.piece.at);
            if let (Some(new), Some(place)) = (
                self.bytes.get(from..from + f.piece.len),
                f.bytes.get_mut(to..to + f.piece.len),
            ) {
                place.copy_from_slice(new);
            }
        }
    }
    /// The packet as it was before fragmentation, to continue in place of the fragments. `None`: the
    /// fragments form no valid packet.
    pub fn whole(&self) -> Option<WholeDatagram> {
        let first = self.fragments.first()?;
        let (l3, at) = (first.l3, first.piece.at);
        let ecn = joined_ecn(self.fragments.iter().map(|f| f.ecn(self.ipv6)))?;
        let longest = self.fragments.iter().map(|f| f.piece.size).max()?;
        let mut frame = first.bytes.get(..l3)?.to_vec();
        frame.extend_from_slice(&self.bytes);
        let mut l4 = l3 + self.l4;
        if self.ipv6 {
            let header = l3 + first.piece.header;
            let next = *frame.get(header)?;
            *frame.get_mut(l3 + first.piece.next_at)? = next;
            frame.drain(header..header + Ipv6Frag::LEN);
            l4 -= Ipv6Frag::LEN;
            let len = u16::try_from(frame.len() - l3 - Ipv6::LEN).ok()?;
            frame.get_mut(l3 + 4..l3 + 6)?.copy_from_slice(&len.to_be_bytes());
            *frame.get_mut(l3 + 1)? |= ecn << 4;
            if Piece::read6(frame.get(l3..)?).is_some() {
                return None; // a fragment in fragments
            }
        } else {
            let (ip, _) = split_mut::<Ipv4>(frame.get_mut(l3..)?)?;
            let old = u16::from_be_bytes([ip.version_ihl, ip.tos]);
            ip.tos |= ecn;
            let new = u16::from_be_bytes([ip.version_ihl, ip.tos]);
            ip.csum = update16(ip.csum.get(), old, new).into();
        }
        Some(WholeDatagram {
            l3,
            l4,
            proto: self.proto,
            fragment_payload: u16::try_from(longest.checked_sub(at)? & !7).ok()?,
            frame,
        })
    }
    /// The fragments, in the order of their offsets.
    pub fn into_fragments(self) -> Vec<Fragment<T>> {
        self.fragments
    }
}

/// A packet that came in fragments, with their link layer header. Offsets from its start.
#[derive(Debug)]
pub struct WholeDatagram {
    /// The packet. It has no fragment header.
    pub frame: Vec<u8>,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header.
    pub l4: usize,
    /// IP protocol.
    pub proto: u8,
    /// Payload bytes of fragments that are as long as the longest one that came. A multiple of eight.
    pub fragment_payload: u16,
}

/// A protocol whose header has no checksum over addresses.
const NO_CHECKSUM: u8 = proto::HOPOPTS;
