//! The packet against a plain vector of bytes.

use crate::{
    BUF_SIZE, BURST, Csum, Gso, GsoKind, HEAD_SPACE, HEADROOM, MAX_SEGS, Offload, Packet, Pool, Seg,
};
use core::ptr::NonNull;
use proptest::prelude::*;

/// A segment over `bytes`, which the caller keeps alive as long as the packet.
fn seg(bytes: &[u8]) -> Seg {
    // SAFETY: each test keeps `bytes` alive and unchanged while the packet lives.
    unsafe { Seg::new(NonNull::from(bytes).cast(), bytes.len() as u32) }
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
        let mut p = Packet::from_bytes(&head);
        let mut model = head.clone();
        let mut head_len = head.len();
        for t in &tails {
            prop_assert!(p.push_seg(seg(t)));
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
        }
        let mut copy = Packet::new();
        p.copy_into(&mut copy);
        prop_assert!(copy.segs().is_empty());
        prop_assert_eq!(copy.head(), &model[..]);
    }
}

#[test]
fn offsets_move_with_the_front() {
    let mut p = Packet::from_bytes(&[7; 100]);
    let gso = Gso {
        kind: GsoKind::Tcp4,
        ecn: false,
        size: 1448,
        hdr_len: 66,
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
    assert!(!p.push_front(HEADROOM + 1));
    assert!(p.push_front(HEADROOM));
    assert!(!p.push_front(1));
    let bytes = [0; 4];
    let mut p = Packet::new();
    for _ in 0..MAX_SEGS {
        assert!(p.push_seg(seg(&bytes)));
    }
    assert!(!p.push_seg(seg(&bytes)));
    assert_eq!(p.len(), 4 * MAX_SEGS);
}

#[test]
fn segments_split() {
    let bytes = *b"abcdef";
    let mut s = seg(&bytes);
    s.advance(2);
    let mut out = [0; 9];
    assert_eq!(s.copy_to(&mut out), 4);
    assert_eq!(&out[..4], b"cdef");
    assert_eq!(s.prefix(1).len(), 1);
    s.advance(99);
    assert!(s.is_empty());
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
    let mut q = Packet::from_bytes(&[1; 100]);
    assert!(q.push_seg(seg(&tail)));
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
