//! Joining segments to GSO packets (generic receive offload, done where packets are sent): the opposite of
//! [`crate::segment`].
//!
//! **Problem.** A guest, a pod or the kernel takes a GSO packet of 64 KiB for the price of a packet. A device
//! that joins nothing delivers packets of one MTU each, and so does a tunnel.
//!
//! **Joined packets.** Neighbours of one flow within one batch of one transmit queue, TCP or UDP. They may
//! differ only in fields that segmentation changes. These are lengths, IP identification (one more each
//! time), checksums, TCP's sequence number, and FIN and PSH of the last one. All are of one size, the last
//! one may be shorter. So segmentation of the joined packet gives the same packets again, byte by byte.
//! Unverified checksums are verified first; a packet with a wrong one is not joined.
//!
//! **Order.** A GSO packet takes the place of its first packet. A packet of the same flow that does not
//! belong to it ends it, so no packet of a flow overtakes another.
//!
//! **Cost.** One copy of each joined packet. Queues whose devices take no GSO packets, and batches without
//! two packets of [`MIN_LEN`], do not come here.

#![deny(clippy::indexing_slicing)] // whatever a packet holds

#[cfg(test)]
mod tests;

use crate::sum::add_bytes;
use arrayvec::ArrayVec;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Packet, Pool, Wraps};
use heddle_wire::checksum::checksum;
use heddle_wire::eth::{Ethernet, ethertype, is_vlan};
use heddle_wire::ip::{Ipv4, Ipv6, proto, pseudo};
use heddle_wire::l4::{Tcp, Udp};
use heddle_wire::{Be16, IntoBytes, split, split_mut};
use std::ops::Range;

/// Minimum length of a GSO packet's first packet: it is cheaper to send shorter ones than to join them.
pub const MIN_LEN: usize = 256;
/// Maximum number of packets of a batch that are looked at.
pub const MAX_BATCH: usize = 64;
/// GSO packets of a batch that may grow at a time, each of a flow.
const OPEN: usize = 8;
/// Longest IP packet, bytes.
const MAX_IP: usize = 65_535;

const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const PSH: u16 = 0x08;
const ACK: u16 = 0x10;
const URG: u16 = 0x20;
const CWR: u16 = 0x80;
/// All flags of TCP.
const FLAGS: u16 = 0xfff;

/// The kinds of GSO packets that a queue's device takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GsoKinds {
    /// TCP over IPv4.
    pub tcp4: bool,
    /// TCP over IPv6.
    pub tcp6: bool,
    /// UDP.
    pub udp: bool,
}

impl GsoKinds {
    /// All of them.
    pub const ALL: Self = Self {
        tcp4: true,
        tcp6: true,
        udp: true,
    };
    /// Whether there are any.
    #[inline]
    pub fn any(self) -> bool {
        self.tcp4 || self.tcp6 || self.udp
    }
    pub(crate) fn takes(self, kind: GsoKind) -> bool {
        match kind {
            GsoKind::Tcp4 => self.tcp4,
            GsoKind::Tcp6 => self.tcp6,
            GsoKind::Udp => self.udp,
            GsoKind::Fragments => false,
        }
    }
}

/// Whether some of these packets may perhaps be joined.
#[inline]
pub fn is_worth_it(packets: &[&Packet]) -> bool {
    packets.iter().filter(|p| p.len() >= MIN_LEN).take(2).count() == 2
}

/// A packet's headers: its flow.
#[derive(Clone, Copy, Debug)]
struct Headers {
    kind: GsoKind,
    l3: usize,
    l4: usize,
    /// Offset of the payload; 0: the packet is not to be joined.
    payload: usize,
}

/// A GSO packet in the making.
#[derive(Clone, Debug)]
struct GsoPacket {
    headers: Headers,
    /// Numbers in the batch.
    members: ArrayVec<u8, MAX_BATCH>,
    /// Bytes of payload of the first, and of all.
    size: usize,
    sent: usize,
}

/// The outcome for a packet of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Became {
    Itself,
    /// The first packet of this GSO packet.
    First(u8),
    /// A later packet of a GSO packet.
    Member,
}

/// A packet that is to be sent, and the packets of the batch that it contains: a range in the order of
/// sending.
pub type Joined<'a> = (&'a Packet, Range<usize>);

/// One worker's state for joining. GSO packets are made in buffers that go back to the pool.
#[derive(Debug, Default)]
pub struct Gro {
    gso_packets: Vec<GsoPacket>,
    became: Vec<Became>,
    made: Vec<Packet>,
    order: Vec<u8>,
}

impl Gro {
    /// Joins packets of a batch of at most [`MAX_BATCH`] packets. `false`: none could be joined.
    pub fn join(&mut self, pool: &mut Pool, packets: &[&Packet], kinds: GsoKinds) -> bool {
        self.gso_packets.clear();
        self.became.clear();
        if packets.len() > MAX_BATCH {
            return false;
        }
        let mut open: ArrayVec<usize, OPEN> = ArrayVec::new();
        for (i, p) in (0_u8..).zip(packets) {
            let became = self.add(i, p, packets, kinds, &mut open);
            self.became.push(became);
        }
        if self.gso_packets.iter().all(|t| t.members.len() < 2) {
            return false;
        }
        for t in &self.gso_packets {
            let mut big = pool.get_big();
            // A GSO packet that cannot be built should have been refused before; its packets are sent as they
            // are.
            if t.members.len() < 2 || build(t, packets, &mut big).is_none() {
                big.reset();
            }
            self.made.push(big);
        }
        true
    }
    /// The batch as it is to be sent, after [`Gro::join`] has returned true, and the numbers of its packets
    /// in the order of the ranges.
    pub fn result<'a>(&'a mut self, packets: &[&'a Packet]) -> (ArrayVec<Joined<'a>, MAX_BATCH>, &'a [u8]) {
        let mut all = ArrayVec::new();
        self.order.clear();
        for ((i, p), became) in (0_u8..).zip(packets).zip(&self.became) {
            let from = self.order.len();
            let train = match became {
                Became::Member => continue,
                Became::Itself => None,
                Became::First(n) => self
                    .gso_packets
                    .get(usize::from(*n))
                    .zip(self.made.get(usize::from(*n))),
            };
            match train {
                Some((t, made)) if !made.is_empty() => {
                    self.order.extend(&t.members);
                    all.push((made, from..self.order.len()));
                }
                _ => {
                    self.order.push(i);
                    all.push((*p, from..self.order.len()));
                }
            }
        }
        (all, &self.order)
    }
    /// The GSO packets were sent.
    pub fn done(&mut self, pool: &mut Pool) {
        pool.put_all(self.made.drain(..));
    }

    /// Puts a packet into a GSO packet, or begins one with it.
    fn add(
        &mut self,
        i: u8,
        p: &Packet,
        packets: &[&Packet],
        kinds: GsoKinds,
        open: &mut ArrayVec<usize, OPEN>,
    ) -> Became {
        let Some(h) = Headers::of(p) else {
            // The packet's flow is not known.
            if is_ip(p) {
                open.clear();
            }
            return Became::Itself;
        };
        let same = |n: &usize| self.gso_packets.get(*n).is_some_and(|t| t.is_of(p, &h, packets));
        let at = open.iter().position(same);
        // A packet for a queue of its own leaves by itself, since queues count frames. A joined packet would
        // have no mark.
        let alone = p.has_rare() || p.offload.gso.is_some();
        let joins = h.payload > 0 && kinds.takes(h.kind) && !alone;
        if let Some(n) = at.and_then(|at| open.get(at).copied())
            && joins
            && let Some(t) = self.gso_packets.get_mut(n)
            && let Some(ends) = t.takes(p, &h, packets)
        {
            t.members.push(i);
            t.sent += p.len() - h.payload;
            if ends && let Some(at) = at {
                open.swap_remove(at);
            }
            return Became::Member;
        }
        if let Some(at) = at {
            open.swap_remove(at);
        }
        if !joins || p.len() < MIN_LEN || h.ends(p) || !is_right(p, &h) {
            return Became::Itself;
        }
        if open.is_full() {
            open.remove(0);
        }
        let n = self.gso_packets.len();
        let size = p.len() - h.payload;
        let members = [i].into_iter().collect();
        self.gso_packets.push(GsoPacket {
            headers: h,
            members,
            size,
            sent: size,
        });
        open.push(n);
        u8::try_from(n).map_or(Became::Itself, Became::First)
    }
}

/// Whether it is an IP packet, by its type or by that behind its tags.
fn is_ip(p: &Packet) -> bool {
    network(p.head()).is_some()
}

/// Whether IPv6, and where the IP header is.
fn network(head: &[u8]) -> Option<(bool, usize)> {
    const TAG: usize = 4;
    let be16 = |at: usize| head.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b));
    let (mut at, mut tags) = (Ethernet::LEN - 2, 0);
    while is_vlan(be16(at)?) && tags < 2 {
        (at, tags) = (at + TAG, tags + 1);
    }
    match be16(at)? {
        ethertype::IP => Some((false, at + 2)),
        ethertype::IPV6 => Some((true, at + 2)),
        _ => None,
    }
}

impl Headers {
    /// `None`: no TCP or UDP right behind an IP header without options, or a fragment.
    fn of(p: &Packet) -> Option<Self> {
        let head = p.head();
        let (v6, l3) = network(head)?;
        let rest = head.get(l3..)?;
        let (next, l4, end) = if v6 {
            let (ip, _) = split::<Ipv6>(rest)?;
            (
                ip.next,
                l3 + Ipv6::LEN,
                l3 + Ipv6::LEN + usize::from(ip.payload_len.get()),
            )
        } else {
            let (ip, _) = split::<Ipv4>(rest)?;
            if ip.header_len() != Ipv4::LEN || ip.is_fragment() {
                return None;
            }
            (ip.proto, l3 + Ipv4::LEN, l3 + usize::from(ip.total_len.get()))
        };
        let (kind, payload) = match next {
            proto::TCP => {
                let (tcp, _) = split::<Tcp>(head.get(l4..)?)?;
                let flags = tcp.ctl.get() & FLAGS;
                let usual = flags & (SYN | RST | URG | CWR | ACK) == ACK && tcp.header_len() >= Tcp::LEN;
                let kind = if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
                (kind, if usual { l4 + tcp.header_len() } else { 0 })
            }
            proto::UDP => {
                let (udp, _) = split::<Udp>(head.get(l4..)?)?;
                let usual = l4 + usize::from(udp.len.get()) == end && udp.csum.get() != 0;
                (GsoKind::Udp, if usual { l4 + Udp::LEN } else { 0 })
            }
            _ => return None,
        };
        // No byte may follow the IP packet, and its payload may not be empty.
        let whole = end == p.len() && payload < end && payload <= head.len();
        Some(Self {
            kind,
            l3,
            l4,
            payload: if whole { payload } else { 0 },
        })
    }
    fn v6(&self) -> bool {
        self.l4 - self.l3 == Ipv6::LEN
    }
    fn tcp(&self) -> bool {
        self.kind != GsoKind::Udp
    }
    fn proto(&self) -> u8 {
        if self.tcp() { proto::TCP } else { proto::UDP }
    }
    /// Addresses and ports.
    fn ends_of(&self) -> Range<usize> {
        let addresses = if self.v6() { 8 } else { 12 };
        self.l3 + addresses..self.l4 + 4
    }
    /// Whether this packet has to be the last of a GSO packet.
    fn ends(&self, p: &Packet) -> bool {
        self.tcp() && flags(p, self).is_none_or(|f| f & (FIN | PSH) != 0)
    }
}

fn flags(p: &Packet, h: &Headers) -> Option<u16> {
    Some(split::<Tcp>(p.head().get(h.l4..)?)?.0.ctl.get() & FLAGS)
}

impl GsoPacket {
    /// Whether a packet is of its flow.
    fn is_of(&self, p: &Packet, h: &Headers, packets: &[&Packet]) -> bool {
        let (own, range) = (&self.headers, h.ends_of());
        let first = self.members.first().and_then(|i| packets.get(usize::from(*i)));
        (own.kind, own.l3, own.l4) == (h.kind, h.l3, h.l4)
            && first.is_some_and(|f| p.head().get(range.clone()) == f.head().get(range))
    }
    /// Whether a packet of the flow is the next one of the GSO packet; and if so, whether it is its last.
    fn takes(&self, p: &Packet, h: &Headers, packets: &[&Packet]) -> Option<bool> {
        let first = packets.get(usize::from(*self.members.first()?))?;
        let len = p.len() - h.payload;
        let ip_len = first.len() - self.headers.l3 - self.size + self.sent + len;
        let fits = h.payload == self.headers.payload && len <= self.size && ip_len <= MAX_IP;
        if !fits || self.members.is_full() || !self.continues(p.head(), first.head()) || !is_right(p, h) {
            return None;
        }
        Some(len < self.size || h.ends(p))
    }
    /// Whether headers are those that segmentation would make of the first one's.
    fn continues(&self, this: &[u8], first: &[u8]) -> bool {
        let Headers { l3, l4, payload, .. } = self.headers;
        let same =
            |r: Range<usize>| matches!((this.get(r.clone()), first.get(r)), (Some(a), Some(b)) if a == b);
        let ip = if self.headers.v6() {
            // Payload length.
            same(0..l3 + 4) && same(l3 + 6..l4)
        } else {
            // Length and identification, checksum.
            let id = |b: &[u8]| Some(split::<Ipv4>(b.get(l3..)?)?.0.id.get());
            let next = || Some(id(first)?.wrapping_add(u16::try_from(self.members.len()).ok()?));
            same(0..l3 + 2) && same(l3 + 6..l3 + 10) && same(l3 + 12..l4) && id(this) == next()
        };
        if !ip || !same(l4..l4 + 4) {
            return false;
        }
        if !self.headers.tcp() {
            return true;
        }
        let tcp = |b: &[u8]| {
            let (t, _) = split::<Tcp>(b.get(l4..)?)?;
            Some((t.seq.get(), t.ctl.get()))
        };
        let (Some((seq, ctl)), Some((from, begun))) = (tcp(this), tcp(first)) else {
            return false;
        };
        let sent = u32::try_from(self.sent).unwrap_or(u32::MAX);
        // Acknowledgement, window, urgent pointer and options are the same.
        seq == from.wrapping_add(sent)
            && (ctl ^ begun) & !(FIN | PSH) == 0
            && same(l4 + 8..l4 + 12)
            && same(l4 + 14..l4 + 16)
            && same(l4 + 18..payload)
    }
}

/// Whether the checksums are right, or left to a device.
fn is_right(p: &Packet, h: &Headers) -> bool {
    let ip_is_right = || {
        let header = p.head().get(h.l3..h.l4);
        h.v6() || header.is_some_and(|h| checksum(h) == 0)
    };
    let sum_is_right = || {
        let n = p.len() - h.l4;
        let sum = pseudo(p.head().get(h.l3..)?, h.v6(), h.proto(), u32::try_from(n).ok()?)?;
        Some(add_bytes(sum, p, h.l4, n)?.checksum() == 0)
    };
    let known = match p.offload.csum {
        Csum::Valid => true,
        Csum::Partial { start, .. } => usize::from(start) == h.l4,
        Csum::Unknown => sum_is_right().unwrap_or(false),
    };
    known && ip_is_right()
}

/// Builds a GSO packet in an empty packet with room for it.
fn build(t: &GsoPacket, packets: &[&Packet], to: &mut Packet) -> Option<()> {
    let Headers {
        l3,
        l4,
        payload,
        kind,
    } = t.headers;
    let members = || t.members.iter().filter_map(|i| packets.get(usize::from(*i)));
    let (first, last) = (members().next()?, members().next_back()?);
    let total = payload + t.sent;
    let space = to.space_mut().get_mut(..total)?;
    first.copy_from(0, space.get_mut(..payload)?);
    let mut at = payload;
    for p in members() {
        let n = p.len() - payload;
        p.copy_from(payload, space.get_mut(at..at + n)?);
        at += n;
    }
    let v6 = t.headers.v6();
    let be16 = |n: usize| u16::try_from(n).ok().map(Be16::new);
    let ip = space.get_mut(l3..)?;
    if v6 {
        split_mut::<Ipv6>(ip)?.0.payload_len = be16(total - l4)?;
    } else {
        let (ip, _) = split_mut::<Ipv4>(ip)?;
        (ip.total_len, ip.csum) = (be16(total - l3)?, Be16::new(0));
        ip.csum = checksum(ip.as_bytes()).into();
    }
    let sum = pseudo(
        space.get(l3..)?,
        v6,
        t.headers.proto(),
        u32::try_from(total - l4).ok()?,
    )?;
    let header = space.get_mut(l4..)?;
    if t.headers.tcp() {
        let (tcp, _) = split_mut::<Tcp>(header)?;
        tcp.ctl = (tcp.ctl.get() | flags(last, &t.headers)? & (FIN | PSH)).into();
        tcp.csum = sum.folded().into();
    } else {
        let (udp, _) = split_mut::<Udp>(header)?;
        (udp.len, udp.csum) = (be16(total - l4)?, sum.folded().into());
    }
    to.set_head_len(total);
    to.in_port = first.in_port;
    let narrow = |n: usize| u16::try_from(n).ok();
    to.offload = Offload {
        csum: Csum::Partial {
            start: narrow(l4)?,
            offset: if t.headers.tcp() { 16 } else { 6 },
        },
        gso: Some(Gso {
            kind,
            ecn: false,
            size: narrow(t.size)?,
            hdr_len: narrow(payload)?,
            wraps: Wraps::default(),
        }),
    };
    Some(())
}
