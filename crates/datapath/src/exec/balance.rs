//! Outputs to a bond that balances by hash ([`LbOutput`]): each packet's bucket.
//!
//! The hash is over IP addresses, protocol and ports, or over Ethernet addresses and the type without IP.
//! Fragments have no ports, so that all of one packet take one link. The packet counts as it is now: behind
//! the outer headers of a tunnel, the tunnel's own addresses and ports do.

use super::{Exec, LiveId, Meta};
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

/// Odd numbers without structure, which the words are mixed with.
const KEYS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// The bucket of a packet.
#[inline]
fn bucket(p: &Packet, meta: &Meta, basis: u32) -> u8 {
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
        (addresses, u64::from(proto) << 32 | u64::from(ports))
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
        (addresses, u64::from(meta.proto) << 32 | u64::from(ports))
    } else if let Some([d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1]) = head.first_chunk() {
        let addresses = u64::from_le_bytes([*d0, *d1, *d2, *d3, *d4, *d5, *s0, *s1]);
        (
            addresses,
            u64::from_le_bytes([*s2, *s3, *s4, *s5, *t0, *t1, 0, 0]),
        )
    } else {
        (0, 0)
    };
    let hash = fold(addresses ^ KEYS[0], rest ^ KEYS[1] ^ u64::from(basis) << 40);
    hash.to_be_bytes()[0]
}

/// The ports of a packet of this protocol; 0 without.
#[inline]
fn ports(head: &[u8], meta: &Meta, proto: u8) -> u32 {
    let l4 = head.get(usize::from(meta.l4)..).and_then(|l4| l4.first_chunk());
    match l4 {
        Some(ports) if matches!(proto, TCP | UDP | SCTP) => u32::from_le_bytes(*ports),
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
    /// Sends packets by the ports of their buckets; `failed` has a bit for each packet that is left out.
    /// Neighbours for one port are sent together.
    pub(super) fn balance_all(&mut self, table: &LbOutput, ids: Range<LiveId>, failed: u64, meta: &Meta) {
        let (basis, worker) = (table.basis(), self.tx.worker);
        let mut run = ids.start..ids.start;
        let mut run_port = None;
        let mut longest = 0;
        for (id, at) in ids.zip(0..) {
            if failed >> at & 1 != 0 {
                continue;
            }
            let p = self.live.get(id);
            let bucket = bucket(p, meta, basis);
            table.count(worker, bucket, p.len() as u64);
            let (choice, len) = (table.choice(bucket), u32::try_from(p.len()).unwrap_or(u32::MAX));
            let port = choice.port;
            if self.has_moved(choice) {
                self.send_run(run_port, std::mem::replace(&mut run, id..id), longest);
                self.send_before_move(choice);
            }
            if port == run_port && run.end == id && !run.is_empty() {
                run.end = id + 1;
                longest = longest.max(len);
            } else {
                self.send_run(run_port, run, longest);
                (run, run_port, longest) = (id..id + 1, port, len);
            }
        }
        self.send_run(run_port, run, longest);
    }

    /// Sends the first bytes of a packet by the port of its bucket.
    pub(super) fn balance_one(&mut self, table: &LbOutput, cut: u32, id: LiveId, meta: &Meta) {
        if cut == u32::MAX {
            return self.balance_all(table, id..id + 1, 0, meta);
        }
        let p = self.live.get(id);
        let bucket = bucket(p, meta, table.basis());
        let len = p.len().min(usize::try_from(cut).unwrap_or(usize::MAX));
        table.count(self.tx.worker, bucket, len as u64);
        let choice = table.choice(bucket);
        if self.has_moved(choice) {
            self.send_before_move(choice);
        }
        match choice.port {
            None => self.lost(DropKind::NoBondMember, id..id + 1),
            Some(port) => self.output_trunc(port, cut, id),
        }
    }

    /// Whether a bucket has moved since this worker last sent its queued packets for a move.
    #[inline]
    fn has_moved(&self, choice: BucketChoice) -> bool {
        choice.moved.wrapping_sub(self.tx.moves_seen).cast_signed() > 0
    }

    /// Sends all queued packets: the queue of a bucket's old port may have packets of the same flow.
    #[cold]
    fn send_before_move(&mut self, choice: BucketChoice) {
        self.tx.moves_seen = choice.moved;
        self.tx.flush(self.live, self.pool, self.drops);
    }

    fn send_run(&mut self, port: Option<u32>, run: Range<LiveId>, longest: u32) {
        match port {
            _ if run.is_empty() => {}
            None => self.lost(DropKind::NoBondMember, run),
            Some(port) => self.output_all(port, run, longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        all.map(|(p, meta)| bucket(&p, &meta, basis)).collect()
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
                .map(|(p, meta)| bucket(&p, &meta, 0))
                .collect();
            assert!(hosts.len() > 32, "{}", hosts.len());
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
        let of = |f: &[u8]| bucket(&Packet::from_bytes(f), &none, 0);
        let hosts: std::collections::BTreeSet<u8> = frames.iter().map(|f| of(f)).collect();
        assert!(hosts.len() > 32, "{}", hosts.len());
        (0..60).for_each(|n| _ = of(&frames[0][..n]));
    }
}
