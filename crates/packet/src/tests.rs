//! Compares the packet with a plain vector of bytes.

#![allow(unsafe_code)] // segments point to bytes of the test

use crate::{
    BUF_SIZE, BURST, Csum, Gso, GsoKind, HEAD_SPACE, HEADROOM, Lender, MAX_SEGS, Offload, Packet, Pool, Seg,
    Wraps, mark_header,
};
use core::ptr::NonNull;
use proptest::prelude::*;

/// Appends `bytes`, which the caller keeps alive as long as the packet, as a segment.
fn push(p: &mut Packet, bytes: &[u8], lender: &mut Lender) -> bool {
    // SAFETY: each test keeps `bytes` alive and unchanged while the packet lives.
    unsafe { p.push_seg(NonNull::from(bytes).cast(), bytes.len() as u32, lender) }
}

/// A packet of one byte and a tail.
fn with_tail(pool: &mut Pool, tail: &[u8], lender: &mut Lender) -> Packet {
    let mut p = pool.get();
    p.set_bytes(&[1]);
    assert!(push(&mut p, tail, lender));
    p
}

fn gathered(p: &Packet) -> usize {
    p.iovs().map(|i| i.len()).sum()
}

#[derive(Clone, Debug)]
enum Op {
    Pull(usize),
    Push(usize),
    Truncate(usize),
    PushVlan(u16),
    PopVlan,
    Private,
    PullTail(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0_usize..40).prop_map(Op::Pull),
        (200_usize..700).prop_map(Op::Pull),
        (0_usize..40).prop_map(Op::Push),
        (0_usize..300).prop_map(Op::Truncate),
        any::<u16>().prop_map(Op::PushVlan),
        Just(Op::PopVlan),
        Just(Op::Private),
        (0_usize..400).prop_map(Op::PullTail),
    ]
}

proptest! {
    #[test]
    fn behaves_like_bytes(
        head in prop::collection::vec(any::<u8>(), 0..120),
        tails in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..MAX_SEGS),
        ops in prop::collection::vec(op(), 0..20),
    ) {
        let mut lender = Lender::new();
        let mut p = Packet::from_bytes(&head);
        let mut model = head.clone();
        let mut head_len = head.len();
        for t in &tails {
            prop_assert!(push(&mut p, t, &mut lender));
            model.extend_from_slice(t);
        }
        for op in ops {
            match op {
                Op::Pull(n) => {
                    let ok = n <= head_len;
                    prop_assert_eq!(p.pull_front(n), ok);
                    if ok {
                        model.drain(..n);
                        head_len -= n;
                    }
                }
                Op::Push(n) => {
                    if p.push_front(n) {
                        p.head_mut()[..n].fill(0xa5);
                        model.splice(0..0, vec![0xa5; n]);
                        head_len += n;
                    }
                }
                Op::Truncate(n) => {
                    p.truncate(n);
                    model.truncate(n);
                    head_len = head_len.min(n);
                }
                Op::PushVlan(tci) => {
                    let ok = head_len >= 12;
                    if p.push_vlan(0x8100, tci) {
                        prop_assert!(ok);
                        model.splice(12..12, [0x81, 0, (tci >> 8) as u8, tci as u8]);
                        head_len += 4;
                    }
                }
                Op::PopVlan => {
                    prop_assert_eq!(p.pop_vlan(), head_len >= 16);
                    if head_len >= 16 {
                        model.drain(12..16);
                        head_len -= 4;
                    }
                }
                Op::PullTail(n) => {
                    let longer = p.pull_tail(n);
                    prop_assert_eq!(p.head().len() > head_len, longer);
                    let full = p.space_mut().len() == p.head().len();
                    prop_assert!(p.head().len() == head_len.max(n.min(model.len())) || full);
                    head_len = p.head().len();
                }
                Op::Private => {
                    p.make_private();
                    head_len = model.len();
                    prop_assert!(p.is_big() || model.len() <= HEADROOM + HEAD_SPACE);
                    prop_assert!(p.segs().is_empty());
                }
            }
            prop_assert_eq!(p.head(), &model[..head_len]);
            prop_assert_eq!(p.to_vec(), &model[..]);
            prop_assert_eq!(p.len(), model.len());
            prop_assert_eq!(gathered(&p), model.len());
            prop_assert_eq!(lender.is_whole(), p.segs().is_empty());
        }
        let mut copy = Packet::new();
        p.copy_into(&mut copy);
        prop_assert!(copy.segs().is_empty());
        prop_assert_eq!(copy.head(), &model[..]);
        // A copy that may share the tail has the same bytes. Its head is its own, and the tail exists while
        // either packet does.
        p.share_into(&mut copy);
        prop_assert_eq!(copy.to_vec(), &model[..]);
        prop_assert_eq!((copy.segs().len(), copy.len()), (if p.shares() { p.segs().len() } else { 0 }, p.len()));
        copy.head_mut().fill(0);
        prop_assert_eq!(p.to_vec(), &model[..]);
        let shared = p.shares();
        drop(p);
        prop_assert_eq!(lender.is_whole(), !shared);
        prop_assert_eq!(&copy.to_vec()[copy.head_len()..], &model[copy.head_len()..]);
        drop(copy);
        prop_assert!(lender.is_whole());
    }
}

/// A packet that came in a tunnel with long headers begins behind the end of the small area. Its copies,
/// which need not be big, used to begin there too, which ended the worker.
#[test]
fn copies_of_what_lost_long_headers() {
    let bytes: Vec<u8> = (0..700).map(|i| (i % 251) as u8).collect();
    let mut p = Packet::new_big();
    p.set_bytes(&bytes);
    assert!(p.pull_front(HEAD_SPACE + 46));
    let mut copy = Packet::new();
    p.copy_into(&mut copy);
    assert_eq!(copy.to_vec(), &bytes[HEAD_SPACE + 46..]);
}

/// Removed headers leave room for the headers behind them.
#[test]
fn the_place_of_old_headers_is_room() {
    let mut lender = Lender::new();
    let tail = [9; 200];
    let mut p = Packet::from_bytes(&[7; HEAD_SPACE]);
    assert!(push(&mut p, &tail, &mut lender));
    assert!(p.pull_front(HEAD_SPACE - 6));
    assert!(p.pull_tail(128));
    assert_eq!((p.head_len(), p.len()), (128, 206));
    assert!(!p.is_big());
}

#[test]
fn offsets_move_with_the_front() {
    let mut p = Packet::from_bytes(&[7; 100]);
    let gso = Gso {
        kind: GsoKind::Tcp4,
        ecn: false,
        size: 1448,
        hdr_len: 66,
        wraps: Wraps::default(),
    };
    p.offload = Offload {
        csum: Csum::Partial {
            start: 34,
            offset: 16,
        },
        gso: Some(gso),
    };
    assert!(p.push_vlan(0x8100, 5));
    assert_eq!(
        p.offload.csum,
        Csum::Partial {
            start: 38,
            offset: 16
        }
    );
    assert_eq!(p.offload.gso.unwrap().hdr_len, 70);
    assert!(p.pop_vlan());
    assert_eq!(
        p.offload.csum,
        Csum::Partial {
            start: 34,
            offset: 16
        }
    );
    assert_eq!(p.head(), [7; 100]);
}

#[test]
fn limits_hold() {
    let big = vec![1; BUF_SIZE + 10];
    let p = Packet::from_bytes(&big);
    assert_eq!(p.len(), BUF_SIZE - HEADROOM);
    let mut p = Packet::new();
    assert!(!p.push_front(BUF_SIZE));
    assert!(p.push_front(HEADROOM));
    assert!(p.push_front(1) && p.is_big());
    let bytes = [0; 4];
    let (mut p, mut lender) = (Packet::new(), Lender::new());
    for _ in 0..MAX_SEGS {
        assert!(push(&mut p, &bytes, &mut lender));
    }
    assert!(!push(&mut p, &bytes, &mut lender));
    assert_eq!(p.len(), 4 * MAX_SEGS);
}

#[test]
fn segments_split() {
    let bytes = *b"abcdef";
    let mut s = Seg::new(NonNull::from(&bytes).cast(), 6);
    s.advance(2);
    let mut out = [0; 9];
    assert_eq!(s.copy_to(&mut out), 4);
    assert_eq!(&out[..4], b"cdef");
    s.truncate(1);
    assert_eq!(s.len(), 1);
    s.advance(99);
    assert!(s.is_empty());
}

#[test]
fn memory_is_lent_until_no_packet_refers_to_it() {
    let tail = [7; 300];
    let (mut pool, mut lender, mut other) = (Pool::new(8), Lender::new(), Lender::new());
    assert!(lender.is_whole());
    // Each way to end a tail.
    let ends: [fn(&mut Pool, Packet); 7] = [
        |pool, p| pool.put(p),
        |pool, p| pool.put_all([p]),
        |_, p| drop(p),
        |pool, mut p| {
            p.make_private();
            assert_eq!(p.head()[1..], [7; 300]);
            pool.put(p);
        },
        |pool, mut p| {
            p.reset();
            pool.put(p);
        },
        |pool, mut p| {
            p.truncate(1);
            pool.put(p);
        },
        |_, p| std::thread::spawn(|| drop(p)).join().unwrap(),
    ];
    for end in ends {
        let p = with_tail(&mut pool, &tail, &mut lender);
        let kept = with_tail(&mut pool, &tail, &mut lender);
        end(&mut pool, p);
        assert!(!lender.is_whole(), "one is kept");
        end(&mut pool, kept);
        assert!(lender.is_whole());
    }
    // Tails of two queues, mixed, and a packet without a tail.
    let burst = [&mut lender, &mut other, &mut Lender::new()].map(|l| with_tail(&mut pool, &tail, l));
    let more = [&mut other, &mut lender].map(|l| with_tail(&mut pool, &tail, l));
    let plain = pool.get();
    pool.put_all(burst.into_iter().chain([plain]).chain(more));
    assert!(lender.is_whole() && other.is_whole());
    assert!((0..8).all(|_| pool.get().is_empty()), "the pool cleans up");
}

/// A lender that is dropped first leaves its count to the packets.
#[test]
#[cfg_attr(miri, ignore = "leaks the count")]
fn a_lender_may_go_before_its_packets() {
    let tail = [7; 300];
    let (mut pool, mut lender) = (Pool::new(2), Lender::new());
    let p = with_tail(&mut pool, &tail, &mut lender);
    drop(lender);
    pool.put(p);
}

#[test]
#[should_panic(expected = "a packet is of one queue")]
fn a_packet_has_one_lender() {
    let tail = [7; 300];
    let (mut one, mut other) = (Lender::new(), Lender::new());
    let mut p = with_tail(&mut Pool::new(1), &tail, &mut one);
    push(&mut p, &tail, &mut other);
}

#[test]
fn pool_counts_growth_and_cleans() {
    let mut pool = Pool::new(1);
    let mut a = pool.get();
    a.set_bytes(b"left over");
    a.in_port = 9;
    let b = pool.get();
    assert_eq!(pool.grown(), 1);
    pool.put(a);
    pool.put(b);
    let c = pool.get();
    assert!(c.is_empty() && c.in_port == 0 && pool.grown() == 1);
}

#[test]
fn small_packets_grow_when_asked_and_keep_their_bytes() {
    let mut p = Packet::from_bytes(&[3; HEAD_SPACE]);
    assert!(!p.is_big());
    assert!(p.push_front(8));
    p.head_mut()[..8].fill(4);
    p.reserve(HEAD_SPACE + 8);
    assert!(!p.is_big(), "the headroom that was used counts");
    p.reserve(HEAD_SPACE + 9);
    assert!(p.is_big());
    assert_eq!(p.head()[..9], [4, 4, 4, 4, 4, 4, 4, 4, 3]);
    assert_eq!(p.len(), HEAD_SPACE + 8);
    assert_eq!(p.space_mut().len(), BUF_SIZE - HEADROOM + 8);
    let tail = [9; 1000];
    let (mut q, mut lender) = (Packet::from_bytes(&[1; 100]), Lender::new());
    assert!(push(&mut q, &tail, &mut lender));
    q.make_private();
    assert!(q.is_big());
    assert_eq!(q.head().len(), 1100);
    q.reset();
    assert_eq!(q.head_space().len(), HEAD_SPACE);
}

#[test]
fn pool_keeps_big_buffers_for_those_who_need_them() {
    let cap = 5 * BURST;
    let mut pool = Pool::new(cap);
    let mut all: Vec<Packet> = (0..cap).map(|_| pool.get_big()).collect();
    assert_eq!(pool.grown(), 0);
    assert!(all.iter().all(Packet::is_big));
    all.drain(..).for_each(|p| pool.put(p));
    assert!(pool.get_for(HEAD_SPACE + 1).is_big());
    let small: Vec<Packet> = (0..4 * BURST).map(|_| pool.get()).collect();
    assert!(!small.iter().any(Packet::is_big));
    assert!(pool.get().is_big(), "better than allocating");
    assert_eq!(pool.grown(), 0);
}

proptest! {
    /// Pieces from any offset, one after the other, are the packet's bytes from there. A header longer than
    /// the headroom moves the head and nothing else.
    #[test]
    fn pieces_are_the_bytes(
        (head, tail, cut) in (prop::collection::vec(any::<u8>(), 0..HEAD_SPACE), prop::collection::vec(any::<u8>(), 0..5000), any::<u16>()),
        (from, more) in (0_usize..6000, 0_usize..2000),
    ) {
        let mut lender = Lender::new();
        let mut p = Packet::from_bytes(&head);
        let (a, b) = tail.split_at(usize::from(cut) % (tail.len() + 1));
        prop_assert!(push(&mut p, a, &mut lender) && push(&mut p, b, &mut lender));
        let all = p.to_vec();
        let (mut seen, mut odd) = (Vec::new(), false);
        p.pieces(from, &mut |piece| {
            assert!(!odd || piece.is_empty(), "only the last one may be odd");
            odd = piece.len() % 2 != 0;
            seen.extend_from_slice(piece);
        });
        prop_assert_eq!(&seen[..], all.get(from..).unwrap_or_default());
        prop_assert!(p.push_front(more));
        prop_assert_eq!(&p.to_vec()[more..], &all[..]);
        prop_assert!(p.pull_front(more));
        prop_assert_eq!(p.to_vec(), all);
        drop(p);
    }
}

/// Sharing the payload does not change a long packet. Copies have private heads. The buffer is reused when
/// all packets are gone.
#[test]
fn long_packets_share_their_payload() {
    let bytes: Vec<u8> = (0..60_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let mut pool = Pool::new(16);
    for round in 0..100 {
        let mut p = pool.get_big();
        p.set_bytes(&bytes);
        p.in_port = 7;
        assert!(p.is_long());
        pool.share(&mut p);
        assert_eq!((p.to_vec(), p.in_port, p.is_long()), (bytes.clone(), 7, false));
        let mut copies: Vec<Packet> = (0..8)
            .map(|i| {
                let mut c = pool.get_for(p.head_len());
                p.share_into(&mut c);
                assert!(c.push_front(50));
                c.head_mut()[..50].fill(i);
                c
            })
            .collect();
        p.head_mut()[0] ^= 0xff;
        // The last one outlives the packet itself.
        let last = copies.pop().unwrap();
        for c in copies.drain(..) {
            assert_eq!((c.len(), c.head_len()), (50 + bytes.len(), 50 + HEAD_SPACE));
            assert_eq!(c.to_vec()[50..], bytes);
            pool.put(c);
        }
        pool.put(p);
        let mut other = pool.get_big();
        other.set_bytes(&vec![round; 60_000]);
        assert_eq!(last.to_vec()[50..], bytes);
        assert_eq!(last.to_vec()[..50], [7; 50]);
        pool.put_all([last, other]);
    }
    // Packets without a buffer, or with a tail, stay as they are.
    let mut short = Packet::from_bytes(&bytes[..100]);
    pool.share(&mut short);
    assert_eq!((short.to_vec(), short.segs().len()), (bytes[..100].to_vec(), 0));
    // Packets without a free place are not shared, and lose nothing; nor do packets that outlive the pool.
    let all: Vec<Packet> = (0..70)
        .map(|_| {
            let mut p = Packet::from_bytes(&bytes);
            pool.share(&mut p);
            p
        })
        .collect();
    assert_eq!(all.iter().filter(|p| p.segs().is_empty()).count(), 70 - 64);
    drop(pool);
    assert!(all.iter().all(|p| p.to_vec() == bytes));
}

/// A frame with a header of a mark is the frame without it, once the header is taken.
#[test]
fn a_trusted_header_is_taken_once() {
    let frame: Vec<u8> = (0..60).collect();
    let with = |header: &[u8]| [&frame[..12], header, &frame[12..]].concat();
    let header = mark_header::with(0x0102_0304);
    assert_eq!(header, [8, 0, 0xf1, 1, 1, 2, 3, 4]);
    let mut p = Packet::from_bytes(&with(&header));
    p.offload = Offload {
        csum: Csum::Partial { start: 42, offset: 6 },
        gso: None,
    };
    assert!(mark_header::is_in(p.head()) && !p.take_header() && p.mark() == 0);
    p.trust_header();
    assert_eq!(p.header_len(), 8);
    let mut copy = Packet::new();
    p.copy_into(&mut copy);
    for mut p in [p, copy] {
        assert!(p.take_header() && !p.take_header());
        assert_eq!((p.head(), p.mark(), p.header_len()), (&frame[..], 0x0102_0304, 0));
        assert!(matches!(p.offload.csum, Csum::Partial { start: 34, .. }));
        assert_eq!(
            mark_header::offload(&p.offload).csum,
            Csum::Partial { start: 42, offset: 6 }
        );
        p.reset();
        assert!(p.mark() == 0 && !p.has_rare());
    }
}

#[test]
fn other_frames_have_no_header() {
    let addresses = [2; 12];
    for (rest, is_in) in [
        (&[8, 0, 0xf1, 1, 0, 0, 0, 1, 8][..], true),
        (&[8, 0, 0xf1, 2, 0, 0, 0, 1, 8, 0], true),
        (&[8, 0, 0x45, 1, 0, 0, 0, 1, 8, 0], false),
        (&[8, 6, 0xf1, 1, 0, 0, 0, 1, 8, 0], false),
        (&[8, 0, 0xf1], false),
        (&[], false),
    ] {
        let frame = [&addresses, rest].concat();
        assert_eq!(mark_header::is_in(&frame), is_in, "{rest:?}");
        assert_eq!(mark_header::read(&frame), None, "{rest:?}");
        // Trust in a header that is not there changes nothing.
        let mut p = Packet::from_bytes(&frame);
        p.trust_header();
        assert!(!p.take_header() && p.head() == frame);
    }
}

#[test]
fn a_gso_packet_is_its_segments_on_the_wire() {
    let mut frame = vec![0; 14 + 20 + 32 + 2500];
    frame[34 + 12] = 8 << 4;
    let mut packet = Packet::from_bytes(&frame);
    assert_eq!((packet.on_wire().packets, packet.on_wire().bytes), (1, 2566));
    packet.offload.csum = Csum::Partial {
        start: 34,
        offset: 16,
    };
    let gso = |kind, size| {
        Some(Gso {
            kind,
            ecn: false,
            size,
            hdr_len: 60,
            wraps: Wraps::default(),
        })
    };
    packet.offload.gso = gso(GsoKind::Tcp4, 1000);
    assert_eq!(
        (packet.on_wire().packets, packet.on_wire().bytes),
        (3, 2566 + 2 * 66)
    );
    packet.offload.gso = gso(GsoKind::Udp, 2524);
    assert_eq!((packet.on_wire().packets, packet.on_wire().bytes), (1, 2566));
    // Metadata of a sender that lies.
    packet.offload.gso = gso(GsoKind::Tcp6, 0);
    packet.offload.csum = Csum::Partial {
        start: 60_000,
        offset: 16,
    };
    assert_eq!((packet.on_wire().packets, packet.on_wire().bytes), (1, 2566));
}
