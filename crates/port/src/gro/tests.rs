//! Packets that are joined and then cut are the same as before: byte by byte, each flow in its order.

use super::*;
use crate::segment::finish;
use heddle_wire::checksum::update16;
use proptest::prelude::*;

/// Part of a stream.
#[derive(Clone, Debug)]
struct Part {
    flow: u8,
    kind: GsoKind,
    /// Bytes of payload, which is cut into pieces of `size`.
    payload: usize,
    size: u16,
    flags: u16,
    /// The fault of one of its packets.
    fault: Option<(u8, Fault)>,
    known: bool,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// One byte of the packet is another one; checksums are not mended.
    Byte(u16),
    /// Another time to live.
    Ttl,
    Lost,
    /// Two packets change their places.
    Swapped,
    /// Bytes behind the IP packet.
    Padded,
    /// One byte of its headers is another one, and checksums are right all the same: lengths that lie, flags,
    /// offsets, sequence numbers that overlap, fragments.
    Lies(u8, u8),
    /// The packet comes twice.
    Twice,
    /// The packet's first bytes come again, with other data: a sequence number that overlaps.
    Overlaps,
    /// Without a UDP checksum; TCP: a checksum field of zero.
    NoSum,
    /// IP options, or an extension header of IPv6.
    Options,
}

fn part() -> impl Strategy<Value = Part> {
    let kind = prop_oneof![Just(GsoKind::Tcp4), Just(GsoKind::Tcp6), Just(GsoKind::Udp)];
    let fault = prop_oneof![
        1 => any::<u16>().prop_map(Fault::Byte),
        1 => Just(Fault::Ttl),
        1 => Just(Fault::Lost),
        1 => Just(Fault::Swapped),
        1 => Just(Fault::Padded),
        4 => (0_u8..50, any::<u8>()).prop_map(|(at, v)| Fault::Lies(at, v)),
        1 => Just(Fault::Twice),
        1 => Just(Fault::Overlaps),
        1 => Just(Fault::NoSum),
        1 => Just(Fault::Options),
    ];
    let flags = prop_oneof![6 => Just(ACK), 2 => Just(ACK | PSH), 1 => Just(ACK | FIN), 1 => 0_u16..0x200];
    (
        0_u8..3,
        kind,
        1_usize..6000,
        prop_oneof![Just(1448_u16), 300_u16..1460],
        flags,
        prop::option::weighted(0.4, (any::<u8>(), fault)),
        any::<bool>(),
    )
        .prop_map(|(flow, kind, payload, size, flags, fault, known)| Part {
            flow,
            kind,
            payload,
            size,
            flags,
            fault,
            known,
        })
}

/// The packets of a part of a stream that has come so far.
fn packets(part: &Part, sent: &mut usize, id: &mut u16) -> Vec<Packet> {
    let (v6, tcp) = (part.kind == GsoKind::Tcp6, part.kind != GsoKind::Udp);
    let mut b = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, part.flow];
    let l4_len = part.payload + if tcp { 20 } else { 8 };
    let next = if tcp { 6 } else { 17 };
    if v6 {
        b.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        b.extend(u16::try_from(l4_len).unwrap().to_be_bytes());
        b.extend([next, 64]);
        b.extend([0xfd; 16]);
        b.extend([0xfe; 16]);
    } else {
        b.extend([8, 0, 0x45, 0]);
        b.extend(u16::try_from(l4_len + 20).unwrap().to_be_bytes());
        b.extend(id.to_be_bytes());
        b.extend([0x40, 0, 64, next, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let l4 = b.len();
    b.extend([0x12, 0x34, 0, part.flow]);
    if tcp {
        b.extend(u32::try_from(*sent).unwrap().to_be_bytes());
        b.extend([0, 0, 0, 9]);
        b.extend((0x5000 | part.flags).to_be_bytes());
        b.extend([0xff, 0xff, 0, 0, 0, 0]);
    } else {
        b.extend(u16::try_from(l4_len).unwrap().to_be_bytes());
        b.extend([0, 0]);
    }
    b.extend((0..part.payload).map(|i| u8::try_from((i * 7 + *sent) % 251).unwrap()));
    let mut train = Packet::from_bytes(&b);
    train.offload = Offload {
        csum: Csum::Partial {
            start: u16::try_from(l4).unwrap(),
            offset: if tcp { 16 } else { 6 },
        },
        gso: Some(Gso {
            kind: part.kind,
            ecn: false,
            size: part.size,
            hdr_len: 0,
            wraps: Wraps::default(),
        }),
    };
    *sent += part.payload;
    let mut all = Vec::new();
    let mut pool = Pool::new(4);
    finish(&mut pool, &train, &mut |p| {
        all.push(Packet::from_bytes(&p.to_vec()))
    })
    .unwrap();
    *id = id.wrapping_add(u16::try_from(all.len()).unwrap());
    for p in &mut all {
        p.offload.csum = if part.known { Csum::Valid } else { Csum::Unknown };
    }
    if let Some((which, fault)) = part.fault {
        let at = usize::from(which) % all.len();
        match fault {
            Fault::Byte(i) => {
                let bytes = all[at].head_mut();
                let i = usize::from(i) % bytes.len();
                bytes[i] ^= 0x55;
                all[at].offload.csum = Csum::Unknown;
            }
            Fault::Ttl if !v6 => {
                let h = all[at].head_mut();
                let word = |h: &[u8], i: usize| u16::from_be_bytes([h[i], h[i + 1]]);
                let before = word(h, 22);
                h[22] = 63;
                let sum = update16(word(h, 24), before, word(h, 22));
                h[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            Fault::Ttl => all[at].head_mut()[21] = 63,
            Fault::Lost => drop(all.remove(at)),
            Fault::Swapped => {
                let last = all.len() - 1;
                all.swap(at, last);
            }
            Fault::Padded => {
                let mut bytes = all[at].to_vec();
                bytes.extend([0; 3]);
                let csum = all[at].offload.csum;
                all[at] = Packet::from_bytes(&bytes);
                all[at].offload.csum = csum;
            }
            Fault::Lies(i, v) => {
                let bytes = all[at].head_mut();
                let i = (14 + usize::from(i)).min(bytes.len() - 1);
                bytes[i] = v;
                mend(bytes, l4, tcp);
                if i < l4 {
                    // The field may be another header's checksum now.
                    all[at].offload.csum = Csum::Unknown;
                }
            }
            Fault::Twice => all.insert(at, copy_of(&all[at])),
            Fault::Overlaps => {
                let mut again = copy_of(&all[at]);
                let bytes = again.head_mut();
                let last = bytes.len() - 1;
                bytes[last] ^= 0xff;
                mend(bytes, l4, tcp);
                all.insert(at + 1, again);
            }
            Fault::NoSum => {
                let sum = l4 + if tcp { 16 } else { 6 };
                all[at].head_mut()[sum..sum + 2].fill(0);
                all[at].offload.csum = Csum::Unknown;
            }
            Fault::Options => {
                let mut bytes = all[at].to_vec();
                if v6 {
                    let next = std::mem::replace(&mut bytes[20], 0);
                    bytes.splice(l4..l4, [next, 0, 1, 4, 0, 0, 0, 0]);
                } else {
                    bytes[14] = 0x46;
                    bytes.splice(l4..l4, [1, 1, 1, 1]);
                }
                let (length, more) = if v6 { (18, 8) } else { (16, 4) };
                let n = u16::from_be_bytes([bytes[length], bytes[length + 1]]) + more;
                bytes[length..length + 2].copy_from_slice(&n.to_be_bytes());
                let known = all[at].offload.csum;
                all[at] = Packet::from_bytes(&bytes);
                all[at].offload.csum = known;
                mend(all[at].head_mut(), l4 + usize::from(more), tcp);
            }
        }
    }
    all
}

fn copy_of(p: &Packet) -> Packet {
    let mut copy = Packet::from_bytes(&p.to_vec());
    copy.offload = p.offload;
    copy
}

/// Makes the checksums right for a header at `l4` of `bytes`, whatever its other fields hold.
fn mend(bytes: &mut [u8], l4: usize, tcp: bool) {
    if bytes[14] >> 4 == 4 {
        let end = (14 + usize::from(bytes[14] & 15) * 4).clamp(34, bytes.len());
        bytes[24..26].fill(0);
        let sum = checksum(&bytes[14..end]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let at = l4 + if tcp { 16 } else { 6 };
    if bytes.len() < at + 2 {
        return;
    }
    bytes[at..at + 2].fill(0);
    let n = u32::try_from(bytes.len() - l4).unwrap();
    let v6 = bytes[14] >> 4 == 6;
    if let Some(sum) = pseudo(&bytes[14..], v6, if tcp { 6 } else { 17 }, n) {
        let sum = sum.bytes(&bytes[l4..]).checksum_nonzero();
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Packets of each flow, in their order.
fn flows(all: impl Iterator<Item = Vec<u8>>) -> Vec<(u8, Vec<Vec<u8>>)> {
    let mut flows: Vec<(u8, Vec<Vec<u8>>)> = Vec::new();
    for p in all {
        match flows.iter_mut().find(|(f, _)| *f == p[11]) {
            Some((_, list)) => list.push(p),
            None => flows.push((p[11], vec![p])),
        }
    }
    flows.sort();
    flows
}

/// Joins a batch and cuts the result; returns the cut packets, and the number of packets that were sent.
fn there_and_back(gro: &mut Gro, batch: &[Packet], kinds: GsoKinds) -> (Vec<Vec<u8>>, usize) {
    let mut pool = Pool::new(8);
    let refs: Vec<&Packet> = batch.iter().collect();
    if !gro.join(&mut pool, &refs, kinds) {
        gro.done(&mut pool);
        return (batch.iter().map(Packet::to_vec).collect(), batch.len());
    }
    let (result, order) = gro.result(&refs);
    let mut numbers = order.to_vec();
    numbers.sort_unstable();
    assert!(numbers.iter().map(|n| usize::from(*n)).eq(0..batch.len()));
    let (mut all, n) = (Vec::new(), result.len());
    for (p, range) in result {
        let before = all.len();
        if p.offload.gso.is_some() {
            let mut pool = Pool::new(4);
            finish(&mut pool, p, &mut |p| all.push(p.to_vec())).unwrap();
        } else {
            all.push(p.to_vec());
        }
        assert_eq!(all.len() - before, range.len());
    }
    gro.done(&mut pool);
    (all, n)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, ..ProptestConfig::default() })]
    #[test]
    fn what_is_joined_is_cut_to_what_it_was(
        parts in prop::collection::vec(part(), 1..8),
        order in prop::collection::vec(any::<prop::sample::Index>(), MAX_BATCH),
    ) {
        let (mut sent, mut id) = ([0; 9], [0_u16; 9]);
        // Packets of one flow come one after the other; packets of different flows are mixed.
        let mut queues: Vec<std::collections::VecDeque<Packet>> = (0..9).map(|_| Default::default()).collect();
        for part in &parts {
            let kind = match part.kind { GsoKind::Tcp4 => 0, GsoKind::Tcp6 => 1, _ => 2 };
            let n = usize::from(part.flow) * 3 + kind;
            let mut part = part.clone();
            part.flow = u8::try_from(n).unwrap();
            queues[n].extend(packets(&part, &mut sent[n], &mut id[n]));
        }
        let mut batch = Vec::new();
        for i in order {
            let full: Vec<usize> = (0..9).filter(|n| !queues[*n].is_empty()).collect();
            if !full.is_empty() {
                batch.extend(queues[full[i.index(full.len())]].pop_front());
            }
        }
        let mut gro = Gro::default();
        let (all, n) = there_and_back(&mut gro, &batch, GsoKinds::ALL);
        prop_assert!(n <= batch.len());
        prop_assert_eq!(flows(all.into_iter()), flows(batch.iter().map(Packet::to_vec)));
    }
}

fn stream(kind: GsoKind, payload: usize) -> Vec<Packet> {
    let part = Part {
        flow: 1,
        kind,
        payload,
        size: 1448,
        flags: ACK | PSH,
        fault: None,
        known: true,
    };
    packets(&part, &mut 0, &mut 7)
}

#[test]
fn a_stream_becomes_a_gso_packet() {
    for kind in [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp] {
        let batch = stream(kind, 20_000);
        assert_eq!(batch.len(), 14);
        let (all, n) = there_and_back(&mut Gro::default(), &batch, GsoKinds::ALL);
        assert_eq!((all.len(), n), (14, 1), "{kind:?}");
        let (_, n) = there_and_back(&mut Gro::default(), &batch, GsoKinds::default());
        assert_eq!(n, 14, "the device takes none");
    }
}

#[test]
fn no_gso_packet_is_longer_than_an_ip_packet() {
    let mut batch = stream(GsoKind::Tcp4, 60_000);
    let (mut sent, mut id) = (60_000, 7 + u16::try_from(batch.len()).unwrap());
    let part = Part {
        flow: 1,
        kind: GsoKind::Tcp4,
        payload: 20_000,
        size: 1448,
        flags: ACK,
        fault: None,
        known: true,
    };
    // The last packet of the first part ends its GSO packet.
    batch.pop();
    sent -= 60_000 % 1448;
    id -= 1;
    batch.extend(packets(&part, &mut sent, &mut id));
    let (all, n) = there_and_back(&mut Gro::default(), &batch, GsoKinds::ALL);
    assert_eq!((all.len(), n), (batch.len(), 2));
}
