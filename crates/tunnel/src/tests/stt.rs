//! STT: frames and their metadata arrive, whatever devices do with the segments. Made-up segments hold little
//! memory.

use super::round::complete;
use super::*;
use crate::stt::{Frames, Lost};
use crate::{OptionTable, PopError, TunnelKind, TunnelPop};
use heddle_flow::key::tun_flag;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Pool, Wraps};
use heddle_wire::checksum::checksum;
use proptest::prelude::*;

pub(super) fn stt(key: u64) -> Encap {
    Encap::Stt { port: 7471, key }
}

fn pop() -> TunnelPop {
    TunnelPop {
        kind: TunnelKind::Stt,
        port: 5,
        options: OptionTable::default(),
    }
}

/// One worker of the peer.
struct There {
    pop: TunnelPop,
    frames: Frames,
    pool: Pool,
    now_ms: u64,
    key: FlowKey,
}

impl There {
    fn new() -> Self {
        Self {
            pop: pop(),
            frames: Frames::default(),
            pool: Pool::new(256),
            now_ms: 1000,
            key: FlowKey::default(),
        }
    }
    /// Receives a packet. Returns the inner packet with its metadata.
    fn takes(&mut self, mut p: Packet) -> Result<Option<Packet>, PopError> {
        self.key = FlowKey::default();
        let waiting = (&mut self.frames, &mut self.pool, self.now_ms);
        let done = self.pop.gather(&mut p, 14, &mut self.key, waiting)?;
        Ok(done.map(|_| p))
    }
    fn takes_bytes(&mut self, bytes: &[u8]) -> Result<Option<Packet>, PopError> {
        self.takes(Packet::from_bytes(bytes))
    }
}

/// Corrects lengths and checksums of an outer packet.
fn mend(bytes: &mut [u8]) {
    let v4 = bytes[12] == 8;
    let (l4, n) = if v4 {
        (34, bytes.len() - 14)
    } else {
        (54, bytes.len() - 54)
    };
    let at = if v4 { 16 } else { 18 };
    bytes[at..at + 2].copy_from_slice(&u16::try_from(n).unwrap().to_be_bytes());
    let n = u32::try_from(bytes.len() - l4).unwrap();
    let addr = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let pseudo = if v4 {
        bytes[24..26].fill(0);
        let sum = checksum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        Sum::ZERO.pseudo_v4(addr(bytes, 26), addr(bytes, 30), 6, n)
    } else {
        Sum::ZERO.pseudo_v6(
            bytes[22..38].try_into().unwrap(),
            bytes[38..54].try_into().unwrap(),
            6,
            n,
        )
    };
    bytes[l4 + 16..l4 + 18].fill(0);
    let sum = pseudo.bytes(&bytes[l4..]).checksum();
    bytes[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
}

/// The segments into which a device cuts an outer packet, with `size` bytes of payload each.
fn cut(whole: &[u8], size: usize) -> Vec<Vec<u8>> {
    let l4 = if whole[12] == 8 { 34 } else { 54 };
    let (headers, payload) = whole.split_at(l4 + 20);
    let n = payload.len().div_ceil(size);
    let part = |(i, part): (usize, &[u8])| {
        let mut s = [headers, part].concat();
        let seq = u32::from_be_bytes(s[l4 + 4..l4 + 8].try_into().unwrap());
        let seq = seq + u32::try_from(i * size).unwrap();
        s[l4 + 4..l4 + 8].copy_from_slice(&seq.to_be_bytes());
        if i + 1 < n {
            s[l4 + 13] &= !8;
        }
        mend(&mut s);
        s
    };
    payload.chunks(size).enumerate().map(part).collect()
}

/// A packet with the bytes of `frame`, on request with a partial checksum.
fn datagram(payload: &[u8], partial: bool) -> Packet {
    let mut bytes = frame(payload);
    let len = u32::try_from(bytes.len() - 34).unwrap();
    if partial {
        let seed = Sum::ZERO.pseudo_v4(0xc0a8_0001, 0xc0a8_0002, 17, len).folded();
        bytes[40..42].copy_from_slice(&seed.to_be_bytes());
    }
    let mut p = Packet::from_bytes(&bytes);
    if partial {
        p.offload.csum = Csum::Partial { start: 34, offset: 6 };
    }
    p
}

/// A TCP GSO packet with segments of `size` bytes.
fn gso_packet(payload: &[u8], size: u16) -> Packet {
    let mut bytes = frame(&[&[0; 12], payload].concat());
    (bytes[23], bytes[46]) = (6, 5 << 4);
    bytes[24..26].fill(0);
    let sum = checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut p = Packet::from_bytes(&bytes);
    p.offload = Offload {
        csum: Csum::Partial {
            start: 34,
            offset: 16,
        },
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            ecn: false,
            size,
            hdr_len: 54,
            wraps: Wraps::default(),
        }),
    };
    p
}

/// The bytes on the wire if no device cuts the packet.
fn on_the_wire(encap: Encap, v6: bool, p: &mut Packet) -> Vec<u8> {
    push(&outer(v6, encap).build().unwrap(), p);
    let mut bytes = p.to_vec();
    complete(&mut bytes, p.offload.csum);
    bytes
}

#[test]
fn headers_are_those_of_the_draft() {
    let t = outer(false, stt(0x0102_0304_0506_0708)).build().unwrap();
    let mut p = gso_packet(&[7; 3000], 1000);
    push(&t, &mut p);
    let b = p.head();
    assert_eq!(b[34 + 2..38], [0x1d, 0x2f]);
    // STT header 18, Ethernet 14, IP 20, TCP 20, payload 3000.
    assert_eq!(b[38..42], [0x0c, 0x00, 0, 0]);
    assert_eq!(b[46..50], [0x50, 0x18, 0xff, 0xff]);
    let metadata = [0, 0x02 | 0x04 | 0x08, 34, 0, 0x03, 0xe8, 0, 0];
    assert_eq!(b[54..62], metadata);
    assert_eq!(b[62..72], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    assert_eq!(
        p.offload.csum,
        Csum::Partial {
            start: 34,
            offset: 16
        }
    );
    let gso = p.offload.gso.unwrap();
    assert_eq!((gso.kind, gso.size, gso.hdr_len), (GsoKind::Tcp4, 1460, 54));
    assert!(gso.wraps.is_empty());
    // A packet within the path's MTU needs no GSO, and each frame has a number of its own.
    let first = b[42..46].to_vec();
    let mut small = datagram(b"hello", false);
    push(&t, &mut small);
    assert!(small.offload.gso.is_none());
    assert_ne!(small.head()[42..46], first);
}

proptest! {
    /// Two frames whose segments are cut, mixed, partly duplicated and padded. Both arrive with their bytes
    /// and metadata.
    #[test]
    fn segments_make_the_frame(
        (one, two) in (prop::collection::vec(any::<u8>(), 1..30_000), prop::collection::vec(any::<u8>(), 1..4000)),
        (v6, key, partial, padding) in (any::<bool>(), any::<u64>(), any::<bool>(), 0_usize..6),
        size in prop_oneof![Just(1448_usize), 1000_usize..9000],
        order in prop::collection::vec(any::<u16>(), 64),
        twice in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let before = [gso_packet(&one, 1200), datagram(&two, partial)];
        let t = outer(v6, stt(key)).build().unwrap();
        let mut all = Vec::new();
        for p in &before {
            let mut p = Packet::from_bytes(&p.to_vec());
            p.offload = before[all.len().min(1)].offload;
            push(&t, &mut p);
            all.push((cut(&p.to_vec(), size), p));
        }
        let mut segments: Vec<(usize, Vec<u8>)> = Vec::new();
        for (i, (cut, _)) in all.iter().enumerate() {
            segments.extend(cut.iter().map(|s| (i, s.clone())));
        }
        if let Some(which) = twice {
            let again = segments[which.index(segments.len())].clone();
            segments.push(again);
        }
        let mut place = order.iter().cycle();
        segments.sort_by_cached_key(|_| place.next());
        let mut there = There::new();
        let mut out = [None, None];
        for (i, mut s) in segments {
            s.resize(s.len() + padding, 0x5a);
            match there.takes_bytes(&s) {
                Ok(None) => {}
                Ok(Some(p)) => {
                    prop_assert_eq!(there.key.tun_id, key);
                    prop_assert_eq!(there.key.tun_flags, tun_flag::KEY | tun_flag::CSUM);
                    out[i] = Some(p);
                }
                Err(e) => prop_assert!(e == PopError::Duplicate && twice.is_some(), "{e:?}"),
            }
        }
        for (out, before) in out.iter().zip(&before) {
            let out = out.as_ref().unwrap();
            prop_assert_eq!(out.to_vec(), before.to_vec());
            prop_assert_eq!(out.offload, before.offload);
        }
        // A duplicate of a whole frame does not wait.
        prop_assert!(there.frames.len() <= 1);
    }

    /// Headers of segments are changed at random: there is no panic, and memory is bounded.
    #[test]
    fn mutants_are_handled(
        payload in 0_usize..6000,
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..200),
        size in 16_usize..2000,
    ) {
        let mut p = gso_packet(&vec![3; payload], 700);
        push(&outer(false, stt(9)).build().unwrap(), &mut p);
        let segments = cut(&p.to_vec(), size);
        let mut there = There::new();
        for (i, (which, at, v)) in changes.into_iter().enumerate() {
            let mut s = segments[which.index(segments.len())].clone();
            // Any byte behind the IP header, the frame's own headers too.
            let at = 34 + at.index(s.len().min(140) - 34);
            s[at] = v;
            mend(&mut s);
            let len = s.len();
            if let Ok(Some(out)) = there.takes_bytes(&s) {
                prop_assert!(out.len() <= usize::from(u16::MAX) + 4);
                if let Some(gso) = out.offload.gso {
                    prop_assert!(gso.size > 0 && out.len().div_ceil(gso.size.into()) <= 1024, "{len}");
                }
            }
            there.now_ms += u64::try_from(i % 3).unwrap();
            prop_assert!(there.frames.len() <= 32);
        }
        there.now_ms += 500;
        there.frames.expire(&mut there.pool, there.now_ms);
        prop_assert!(there.frames.is_empty());
    }

    /// A changed bit of a segment is detected.
    #[test]
    fn a_changed_bit_is_found(at in 34_usize..100, bit in 0_u8..8) {
        let mut bytes = on_the_wire(stt(7), false, &mut datagram(&[7; 60], false));
        bytes[at] ^= 1 << bit;
        prop_assert!(There::new().takes_bytes(&bytes).is_err());
    }
}

/// An uncut frame, as a GSO packet or as one packet with a checksum, does not wait and is not copied.
#[test]
fn whole_frames_do_not_wait() {
    for v6 in [false, true] {
        let mut there = There::new();
        let before = gso_packet(&[5; 20_000], 1200);
        let (bytes, offload) = (before.to_vec(), before.offload);
        let mut p = before;
        let wire = on_the_wire(stt(3), v6, &mut p);
        for p in [p, Packet::from_bytes(&wire)] {
            let out = there.takes(p).unwrap().unwrap();
            assert_eq!((out.to_vec(), out.offload), (bytes.clone(), offload));
            assert!(there.frames.is_empty());
        }
        let mut p = datagram(b"verified", false);
        let bytes = p.to_vec();
        p.offload.csum = Csum::Valid;
        let wire = on_the_wire(stt(3), v6, &mut p);
        let out = there.takes_bytes(&wire).unwrap().unwrap();
        assert_eq!((out.to_vec(), out.offload.csum), (bytes, Csum::Valid));
    }
}

/// Metadata that the header cannot carry is resolved before, or the GSO packet keeps its own kind.
#[test]
fn metadata_beyond_the_header_is_resolved() {
    let t = outer(false, stt(3)).build().unwrap();
    // A checksum at an offset that neither TCP nor UDP has.
    let mut p = datagram(b"datagram", false);
    p.offload.csum = Csum::Partial {
        start: 36,
        offset: 10,
    };
    push(&t, &mut p);
    let out = There::new().takes(p).unwrap().unwrap();
    assert!(out.offload.is_plain());
    let mut filled = datagram(b"datagram", false).to_vec();
    complete(
        &mut filled,
        Csum::Partial {
            start: 36,
            offset: 10,
        },
    );
    assert_eq!(out.to_vec(), filled);
    // Too long with an STT header.
    let mut long = gso_packet(&vec![1; 65_440], 1400);
    push(&t, &mut long);
    let gso = long.offload.gso.unwrap();
    assert_eq!(gso.wraps.split().unwrap().0, heddle_packet::Wrap::Stt);
    let before = gso_packet(&vec![1; 65_440], 1400);
    let out = There::new().takes(long).unwrap().unwrap();
    assert_eq!((out.to_vec(), out.offload), (before.to_vec(), before.offload));
    let mut too_long = Packet::new_big();
    too_long.set_bytes(&vec![0; 65_480]);
    let inner = inner(&too_long, packet_type::ETHERNET);
    assert_eq!(t.apply(&mut too_long, inner, 0), Err(crate::PushError::TooLong));
}

/// A VLAN tag in the STT header becomes the frame's.
#[test]
fn tags_of_the_header_are_the_frames() {
    let mut bytes = on_the_wire(stt(3), false, &mut datagram(b"tagged", true));
    bytes[60..62].copy_from_slice(&0xb007_u16.to_be_bytes());
    mend(&mut bytes);
    let out = There::new().takes_bytes(&bytes).unwrap().unwrap();
    let plain = datagram(b"tagged", true).to_vec();
    assert_eq!(
        out.to_vec(),
        [&plain[..12], &[0x81, 0, 0xa0, 7], &plain[12..]].concat()
    );
    assert_eq!(out.offload.csum, Csum::Partial { start: 38, offset: 6 });
    // Without the bit for a tag there is none.
    bytes[60..62].copy_from_slice(&0xa007_u16.to_be_bytes());
    mend(&mut bytes);
    assert_eq!(There::new().takes_bytes(&bytes).unwrap().unwrap().to_vec(), plain);
}

#[test]
fn lies_have_names() {
    let good = on_the_wire(stt(3), false, &mut gso_packet(&[1; 900], 300));
    let with = |at: usize, v: &[u8]| {
        let mut b = good.clone();
        b[at..at + v.len()].copy_from_slice(v);
        mend(&mut b);
        There::new().takes_bytes(&b).err()
    };
    assert_eq!(with(38, &good[38..40]), None);
    assert_eq!(
        with(38, &[0, 31]),
        Some(PopError::Length),
        "shorter than any frame"
    );
    assert_eq!(
        with(38, &[3, 0]),
        Some(PopError::Beyond),
        "more than the frame has"
    );
    assert_eq!(
        with(41, &[1]),
        Some(PopError::Beyond),
        "an offset that leads out of it"
    );
    assert_eq!(with(38, &[0xff, 0xff]), None, "a segment");
    assert_eq!(with(46, &[0x40]), Some(PopError::Length), "half a TCP header");
    assert_eq!(with(46, &[0xf0]), None, "options");
    for flags in [0x12, 0x11, 0x14] {
        assert_eq!(with(47, &[flags]), Some(PopError::Flags));
    }
    assert_eq!(with(54, &[1]), Some(PopError::Version));
    // IPv6, UDP, other offsets of TCP's header, segments of one byte.
    let lies: [(usize, &[u8]); 5] = [
        (55, &[0x0a]),
        (55, &[0x06]),
        (56, &[33]),
        (56, &[255]),
        (58, &[0, 1]),
    ];
    for (at, v) in lies {
        assert_eq!(with(at, v), Some(PopError::Metadata), "{at} {v:?}");
    }
    let mut cut = good.clone();
    cut.truncate(54);
    mend(&mut cut);
    assert_eq!(There::new().takes_bytes(&cut).err(), Some(PopError::Truncated));
}

/// Each segment that does not fit is dropped by name, and its frame waits for the right one.
#[test]
fn segments_that_do_not_fit_have_names() {
    let before = gso_packet(&[9; 8000], 1000);
    let mut p = Packet::from_bytes(&before.to_vec());
    p.offload = before.offload;
    push(&outer(false, stt(3)).build().unwrap(), &mut p);
    let segments = cut(&p.to_vec(), 1000);
    let changed = |i: usize, at: usize, v: [u8; 2]| {
        let mut s: Vec<u8> = segments[i].clone();
        s[at..at + 2].copy_from_slice(&v);
        mend(&mut s);
        s
    };
    let mut there = There::new();
    assert!(there.takes_bytes(&segments[3]).unwrap().is_none());
    assert!(there.takes_bytes(&segments[1]).unwrap().is_none());
    let place = |n: u16| n.to_be_bytes();
    for (s, name) in [
        (segments[3].clone(), PopError::Duplicate),
        (changed(1, 40, place(500)), PopError::Overlap),
        (changed(2, 40, place(2500)), PopError::Overlap),
        (changed(2, 38, place(9000)), PopError::Frame),
        (changed(2, 40, place(65_000)), PopError::Beyond),
    ] {
        assert_eq!(there.takes_bytes(&s).err(), Some(name));
    }
    let mut out = None;
    for i in [0, 2, 4, 5, 6, 7, 8] {
        assert!(out.is_none(), "{i}");
        out = there.takes_bytes(&segments[i]).unwrap();
    }
    let out = out.unwrap();
    assert_eq!((out.to_vec(), out.offload), (before.to_vec(), before.offload));
    assert_eq!(there.frames.take_lost(), Lost::default());
}

/// Segments of frames that are never completed: a few wait, for a while, and evict those of the same peer.
#[test]
fn incomplete_frames_are_bounded() {
    let mut p = gso_packet(&[9; 3000], 1000);
    push(&outer(false, stt(3)).build().unwrap(), &mut p);
    // The first segment is missing.
    let segment = cut(&p.to_vec(), 1000).remove(1);
    let mut there = There::new();
    let send = |there: &mut There, source: u8, frame: u16| {
        let mut s = segment.clone();
        s[29] = source;
        s[44..46].copy_from_slice(&frame.to_be_bytes());
        mend(&mut s);
        assert!(there.takes_bytes(&s).unwrap().is_none());
    };
    send(&mut there, 1, 0);
    for i in 0..100 {
        send(&mut there, 2, i);
    }
    assert_eq!(there.frames.len(), 1 + 32);
    assert_eq!(
        there.frames.take_lost(),
        Lost {
            timeout: 0,
            evicted: 68
        }
    );
    // A hundred senders: the oldest frames are evicted.
    for source in 3..103 {
        send(&mut there, source, 7);
    }
    assert_eq!(there.frames.len(), 64);
    assert_eq!(there.frames.take_lost().evicted, 33 + 36);
    there.now_ms += 499;
    there.frames.expire(&mut there.pool, there.now_ms);
    assert_eq!(there.frames.len(), 64);
    there.now_ms += 1;
    send(&mut there, 200, 7);
    assert_eq!(there.frames.len(), 1);
    assert_eq!(
        there.frames.take_lost(),
        Lost {
            timeout: 64,
            evicted: 0
        }
    );
    // Single bytes with gaps: up to the maximum number of ranges is kept.
    let mut scattered = There::new();
    let refused = (0_u16..200).filter(|i| {
        let mut s = segment[..34 + 20 + 1].to_vec();
        s[40..42].copy_from_slice(&(2 * i).to_be_bytes());
        mend(&mut s);
        scattered.takes_bytes(&s).err() == Some(PopError::Scattered)
    });
    assert_eq!(refused.count(), 200 - 32);
}

/// Congestion that one segment met is that of the frame.
#[test]
fn congestion_of_a_segment_is_the_frames() {
    let mut p = gso_packet(&[9; 3000], 1000);
    push(&outer(false, stt(3)).build().unwrap(), &mut p);
    let mut segments = cut(&p.to_vec(), 1000);
    segments[1][15] |= 3;
    mend(&mut segments[1]);
    let mut there = There::new();
    for s in &segments {
        there.takes_bytes(s).unwrap();
    }
    assert_eq!(there.key.tun_tos, 0x28 | 3);
}
