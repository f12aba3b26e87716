//! Outputs to a bond that balances by hash ([`LbOutput`]): each packet's bucket.
//!
//! The hash is over IP addresses, protocol and ports, or over Ethernet addresses and the type without IP.
//! Fragments have no ports, so that all of one packet take one link. The packet counts as it is now: behind
//! the outer headers of a tunnel, the tunnel's own addresses and ports do.

use super::{Exec, LiveId, Meta};
use arrayvec::ArrayVec;
use heddle_datapath_api::{BucketChoice, DropKind, LbOutput};
use heddle_packet::Packet;
use std::ops::Range;

/// Protocols with ports in their first four bytes.
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
/// IPv6's fragment header (RFC 8200 §4.5).
const IPV6_FRAGMENT: u8 = 44;
/// More fragments, and the offset, of an IPv4 header.
const IPV4_FRAGMENT: u16 = 0x3fff;

/// Packets of a group at most: there is a bit for each that failed.
const MAX_PACKETS: usize = 64;

/// Odd numbers without structure, which the words are mixed with.
const KEYS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// Finds the buckets of packets with equal [`Meta`].
struct Buckets<'a> {
    meta: &'a Meta,
    basis: u32,
    /// The packets may be usual ones: IPv4 without options, and a protocol with ports.
    usual: bool,
}

impl<'a> Buckets<'a> {
    #[inline]
    fn new(meta: &'a Meta, basis: u32) -> Self {
        let usual = has_ports(meta.proto) && meta.l3.checked_add(20) == Some(meta.l4);
        Self { meta, basis, usual }
    }

    /// The bucket of a packet.
    #[inline]
    fn of(&self, p: &Packet) -> u8 {
        if self.usual
            && let Some((addresses, rest)) = usual_words(p.head(), self.meta)
        {
            return hash(addresses, rest, self.basis);
        }
        any_bucket(p, self.meta, self.basis)
    }
}

/// The addresses, protocol and ports of a usual packet.
#[inline]
fn usual_words(head: &[u8], meta: &Meta) -> Option<(u64, u64)> {
    let ip: &[u8; 24] = head.get(usize::from(meta.l3)..)?.first_chunk()?;
    let [first, second, third, source, destination, ports] =
        std::array::from_fn(|i| u32::from_le_bytes(ip.as_chunks().0[i]));
    let [version_and_length, ..] = first.to_le_bytes();
    let [_, _, f0, f1] = second.to_le_bytes();
    let [_, proto, ..] = third.to_le_bytes();
    let fragment = u16::from_be_bytes([f0, f1]) & IPV4_FRAGMENT != 0;
    (version_and_length == 0x45 && !fragment && proto == meta.proto).then(|| {
        let addresses = u64::from(destination) << 32 | u64::from(source);
        (addresses, words_after_addresses(proto, ports))
    })
}

#[inline]
fn words_after_addresses(proto: u8, ports: u32) -> u64 {
    u64::from(proto) << 32 | u64::from(ports)
}

#[inline]
fn has_ports(proto: u8) -> bool {
    matches!(proto, TCP | UDP | SCTP)
}

#[inline]
fn hash(addresses: u64, rest: u64, basis: u32) -> u8 {
    fold(addresses ^ KEYS[0], rest ^ KEYS[1] ^ u64::from(basis) << 40).to_be_bytes()[0]
}

/// The bucket of any packet.
#[cold]
fn any_bucket(p: &Packet, meta: &Meta, basis: u32) -> u8 {
    let head = p.head();
    let l3 = head.get(usize::from(meta.l3)..).unwrap_or_default();
    let version = l3.first().map_or(0, |b| b >> 4);
    let (addresses, rest) = if version == 4
        && let Some(ip) = l3.first_chunk::<20>()
    {
        let [.., f0, f1, _, proto, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *ip;
        let fragment = u16::from_be_bytes([f0, f1]) & IPV4_FRAGMENT != 0;
        let ports = if fragment { 0 } else { ports(head, meta, proto) };
        let addresses = u64::from_le_bytes([s0, s1, s2, s3, d0, d1, d2, d3]);
        (addresses, words_after_addresses(proto, ports))
    } else if version == 6
        && let Some(ip) = l3.first_chunk::<40>()
    {
        let words = ip[8..].as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w));
        // Source and destination weigh differently, so that both directions differ.
        let addresses = words.fold(0, |all: u64, word| fold(all ^ word, KEYS[1]));
        let ports = match ip[6] {
            IPV6_FRAGMENT => 0,
            _ => ports(head, meta, meta.proto),
        };
        (addresses, words_after_addresses(meta.proto, ports))
    } else if let Some([d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) = head.first_chunk() {
        let addresses = u64::from_le_bytes([*d0, *d1, *d2, *d3, *d4, *d5, *s0, *s1]);
        (
            addresses,
            u64::from_le_bytes([*s2, *s3, *s4, *s5, *t0, *t1, 0, 0]),
        )
    } else {
        (0, 0)
    };
    hash(addresses, rest, basis)
}

/// The ports of a packet of this protocol; 0 without.
#[inline]
fn ports(head: &[u8], meta: &Meta, proto: u8) -> u32 {
    let l4 = head.get(usize::from(meta.l4)..).and_then(|l4| l4.first_chunk());
    match l4 {
        Some(ports) if has_ports(proto) => u32::from_le_bytes(*ports),
        _ => 0,
    }
}

/// Both halves of a product.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    #[allow(clippy::cast_possible_truncation)] // the halves are wanted
    let (low, high) = (product as u64, (product >> 64) as u64);
    low ^ high
}

impl Exec<'_> {
    /// Sends packets by the ports of their buckets; `failed` has a bit for each packet that is left out. No
    /// packet is longer than `longest`. Neighbours for one port are sent together.
    pub(super) fn balance_all(
        &mut self,
        table: &LbOutput,
        ids: Range<LiveId>,
        failed: u64,
        longest: u32,
        meta: &Meta,
    ) {
        let buckets = Buckets::new(meta, table.basis());
        let counts = table.counters(self.tx.worker);
        let failed_at = |at: usize| failed >> at & 1 != 0;
        let mut moved = false;
        let packets = self.live.all(&ids).iter().enumerate();
        let choices: ArrayVec<BucketChoice, MAX_PACKETS> = packets
            .map(|(at, p)| {
                let bucket = buckets.of(p);
                let choice = table.choice(bucket);
                if !failed_at(at) {
                    counts[usize::from(bucket)].add(p.len() as u64);
                    moved |= self.has_moved(choice);
                }
                choice
            })
            .collect();
        if failed == 0 && !moved {
            let mut ids = ids;
            for run in choices.chunk_by(|a, b| a.has_port_of(*b)) {
                let from = ids.start;
                _ = ids.nth(run.len() - 1);
                self.send(run[0].port(), from..ids.start, longest);
            }
            return;
        }
        for ((at, choice), id) in choices.iter().enumerate().zip(ids) {
            if failed_at(at) {
                continue;
            }
            if self.has_moved(*choice) {
                self.send_before_move(*choice);
            }
            self.send(choice.port(), id..id + 1, longest);
        }
    }

    /// Sends the first bytes of a packet by the port of its bucket.
    pub(super) fn balance_one(&mut self, table: &LbOutput, cut: u32, id: LiveId, meta: &Meta) {
        if cut == u32::MAX {
            let len = u32::try_from(self.live.get(id).len()).unwrap_or(u32::MAX);
            return self.balance_all(table, id..id + 1, 0, len, meta);
        }
        let p = self.live.get(id);
        let bucket = Buckets::new(meta, table.basis()).of(p);
        let len = p.len().min(usize::try_from(cut).unwrap_or(usize::MAX));
        table.counters(self.tx.worker)[usize::from(bucket)].add(len as u64);
        let choice = table.choice(bucket);
        if self.has_moved(choice) {
            self.send_before_move(choice);
        }
        match choice.port() {
            None => self.lost(DropKind::NoBondMember, id..id + 1),
            Some(port) => self.output_trunc(port, cut, id),
        }
    }

    /// Whether a bucket has moved since this worker last sent its queued packets for a move.
    #[inline]
    fn has_moved(&self, choice: BucketChoice) -> bool {
        choice.moved().wrapping_sub(self.tx.moves_seen).cast_signed() > 0
    }

    /// Sends all queued packets: the queue of a bucket's old port may have packets of the same flow.
    #[cold]
    fn send_before_move(&mut self, choice: BucketChoice) {
        self.tx.moves_seen = choice.moved();
        self.tx.flush(self.live, self.pool, self.drops);
    }

    fn send(&mut self, port: Option<u32>, ids: Range<LiveId>, longest: u32) {
        match port {
            None => self.lost(DropKind::NoBondMember, ids),
            Some(port) => self.output_all(port, ids, longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A UDP packet between two hosts.
    fn packet(version: u8, src: u8, port: u16, fragment: bool) -> (Packet, Meta) {
        let mut bytes = vec![2; 12];
        let (l3, l4, address) = match version {
            4 => (14, 34, 14 + 15),
            _ => (14, 54, 14 + 23),
        };
        bytes.extend([0, 0]);
        bytes.resize(l4 + 8, 0);
        bytes[l3] = version << 4 | 5;
        if version == 4 {
            bytes[l3 + 9] = UDP;
            bytes[l3 + 6] = u8::from(fragment) << 5;
        } else {
            bytes[l3 + 6] = if fragment { IPV6_FRAGMENT } else { UDP };
        }
        bytes[address] = src;
        bytes[l4..l4 + 2].copy_from_slice(&port.to_be_bytes());
        let meta = Meta {
            l3: 14,
            l4: u16::try_from(l4).unwrap(),
            proto: UDP,
            ..Meta::default()
        };
        (Packet::from_bytes(&bytes), meta)
    }

    fn buckets(version: u8, fragment: bool, basis: u32) -> Vec<u8> {
        let all = (0..4096).map(|n| packet(version, 1, n, fragment));
        all.map(|(p, meta)| Buckets::new(&meta, basis).of(&p)).collect()
    }

    /// Many connections between two hosts fill all buckets about equally.
    #[test]
    fn connections_spread_over_all_buckets() {
        for version in [4, 6] {
            let mut n = [0; 256];
            buckets(version, false, 0)
                .iter()
                .for_each(|b| n[usize::from(*b)] += 1);
            let (least, most) = (n.iter().min().unwrap(), n.iter().max().unwrap());
            assert!(
                *least >= 2 && *most <= 40,
                "IPv{version}: {least} to {most} of 16"
            );
        }
    }

    #[test]
    fn fragments_of_a_packet_stay_together_and_hosts_differ() {
        for version in [4, 6] {
            let all = buckets(version, true, 0);
            assert!(all.iter().all(|b| *b == all[0]));
            let hosts: std::collections::BTreeSet<u8> = (0..64)
                .map(|src| packet(version, src, 7, true))
                .map(|(p, meta)| Buckets::new(&meta, 0).of(&p))
                .collect();
            assert!(hosts.len() > 32, "{}", hosts.len());
        }
    }

    proptest! {
        /// The short way to a usual packet's bucket is right wherever it is taken.
        #[test]
        fn usual_packets_have_the_bucket_of_any(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            l3 in 0_u16..30,
            l4 in 0_u16..50,
            proto in prop::sample::select(vec![TCP, UDP, SCTP, 1]),
            usual in any::<bool>(),
            basis in any::<u32>(),
        ) {
            let mut bytes = bytes;
            let at = usize::from(l3);
            let l4 = if usual { l3 + 20 } else { l4 };
            if usual && bytes.len() >= at + 10 {
                let flags = bytes[at + 6] & 0x40;
                bytes[at] = 0x45;
                bytes[at + 6..at + 10].copy_from_slice(&[flags, 0, 64, proto]);
            }
            let meta = Meta { l3, l4, proto, ..Meta::default() };
            let p = Packet::from_bytes(&bytes);
            prop_assert_eq!(Buckets::new(&meta, basis).of(&p), any_bucket(&p, &meta, basis));
        }
    }

    #[test]
    fn the_basis_changes_the_choice() {
        let (a, b) = (buckets(4, false, 0), buckets(4, false, 1));
        let same = a.iter().zip(&b).filter(|(a, b)| a == b).count();
        assert!(same < 200, "{same} of 4096");
    }

    #[test]
    fn frames_without_ip_and_short_ones_have_a_bucket() {
        let none = Meta {
            l3: u16::MAX,
            l4: u16::MAX,
            ..Meta::default()
        };
        let frames: Vec<[u8; 60]> = (0..64)
            .map(|n| std::array::from_fn(|i| if i == 11 { n } else { 1 }))
            .collect();
        let of = |f: &[u8]| Buckets::new(&none, 0).of(&Packet::from_bytes(f));
        let hosts: std::collections::BTreeSet<u8> = frames.iter().map(|f| of(f)).collect();
        assert!(hosts.len() > 32, "{}", hosts.len());
        (0..60).for_each(|n| _ = of(&frames[0][..n]));
    }
}
