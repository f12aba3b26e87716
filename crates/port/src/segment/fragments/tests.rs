//! Fragments put together again are the datagram; each but the last is as long as allowed.

#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

use super::super::{finish, longest_piece};
use super::*;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Packet, Pool, Wraps};
use heddle_wire::checksum::checksum;
use proptest::prelude::*;

/// A datagram of IPv4 with these options, or of IPv6 with these extension headers.
fn datagram(v6: bool, between: &[u8], next: u8, payload: &[u8]) -> Vec<u8> {
    let mut b = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let len = (between.len() + payload.len()) as u16;
    if v6 {
        b.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        b.extend(len.to_be_bytes());
        b.extend([next, 64]);
        b.extend([0xfd; 32]);
    } else {
        b.extend([8, 0, 0x45 + (between.len() / 4) as u8, 0]);
        b.extend((20 + len).to_be_bytes());
        b.extend([
            0x12,
            0x34,
            0x40,
            0,
            64,
            proto::UDP,
            0,
            0,
            10,
            0,
            0,
            1,
            10,
            0,
            0,
            2,
        ]);
    }
    b.extend(between);
    b.extend(payload);
    b
}

/// The pieces that a packet with such fragments is cut into.
fn cut(frame: &[u8], size: u16) -> Vec<Vec<u8>> {
    let mut p = Packet::new();
    p.set_bytes(frame);
    p.offload = Offload {
        csum: Csum::Valid,
        gso: Some(Gso {
            kind: GsoKind::Fragments,
            ecn: false,
            size,
            hdr_len: 0,
            wraps: Wraps::default(),
        }),
    };
    let mut all = Vec::new();
    let mut pool = Pool::new(4);
    let n = finish(&mut pool, &p, &mut |p| all.push(p.to_vec())).unwrap();
    assert_eq!(n, all.len());
    let longest = all.iter().map(Vec::len).max().unwrap();
    assert_eq!(longest_piece(&p), Ok(longest));
    all
}

/// The payload of IPv4's fragments, whose headers are checked.
fn join4(all: &[Vec<u8>], header: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    for (i, f) in all.iter().enumerate() {
        let (ip, _) = split::<Ipv4>(&f[14..]).unwrap();
        assert_eq!(checksum(&f[14..14 + header]), 0);
        assert_eq!(usize::from(ip.total_len.get()), f.len() - 14);
        assert_eq!((ip.id.get(), ip.frag.get() & Ipv4::DONT), (0x1234, Ipv4::DONT));
        assert_eq!(usize::from(ip.frag.get() & Ipv4::OFFSET) * 8, payload.len());
        assert_eq!(ip.frag.get() & Ipv4::MORE != 0, i + 1 < all.len());
        payload.extend(&f[14 + header..]);
    }
    payload
}

/// The payload of IPv6's fragments, whose fragment header is at `at` and is announced at `next_at`.
fn join6(all: &[Vec<u8>], (next_at, at): (usize, usize), next: u8) -> Vec<u8> {
    let mut payload = Vec::new();
    for (i, f) in all.iter().enumerate() {
        let (ip, _) = split::<Ipv6>(&f[14..]).unwrap();
        assert_eq!(usize::from(ip.payload_len.get()), f.len() - 54);
        assert_eq!(f[next_at], proto::FRAGMENT);
        let (frag, _) = split::<Ipv6Frag>(&f[at..]).unwrap();
        let (first, _) = split::<Ipv6Frag>(&all[0][at..]).unwrap();
        assert_eq!((frag.next, frag.id.get()), (next, first.id.get()));
        assert_eq!(usize::from(frag.offset.get() & Ipv6Frag::OFFSET), payload.len());
        assert_eq!(frag.offset.get() & Ipv6Frag::MORE != 0, i + 1 < all.len());
        payload.extend(&f[at + Ipv6Frag::LEN..]);
    }
    payload
}

proptest! {
    #[test]
    fn fragments_are_the_datagram(v6: bool, payload in prop::collection::vec(any::<u8>(), 1..9000), units in 1_u16..200) {
        let size = units * 8;
        prop_assume!(payload.len().div_ceil(size.into()) <= super::super::MAX_SEGMENTS);
        let all = cut(&datagram(v6, &[], proto::UDP, &payload), size);
        let joined = if v6 { join6(&all, (20, 54), proto::UDP) } else { join4(&all, 20) };
        prop_assert!(joined == payload);
        let headers = if v6 { 62 } else { 34 };
        for f in &all[..all.len() - 1] {
            prop_assert_eq!(f.len(), headers + usize::from(size));
        }
    }

    /// Any bytes: an error or pieces, no panic.
    #[test]
    fn any_bytes_are_cut_or_refused(bytes in prop::collection::vec(any::<u8>(), 14..200), v6: bool, size: u16) {
        let mut frame = bytes;
        frame[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        let mut p = Packet::new();
        p.set_bytes(&frame);
        p.offload.gso = Some(Gso {
            kind: GsoKind::Fragments,
            ecn: false,
            size,
            hdr_len: 0,
            wraps: Wraps::default(),
        });
        let mut pool = Pool::new(4);
        let mut n = 0;
        let done = finish(&mut pool, &p, &mut |_| n += 1);
        prop_assert_eq!(done.unwrap_or(0), n);
    }
}

/// The first fragment has all options, the others those with the copied flag.
#[test]
fn options_that_are_not_copied_are_in_the_first_fragment() {
    let record_route = [7, 7, 4, 9, 9, 9, 9];
    let router_alert = [0x94, 4, 0, 0];
    let options = [&record_route[..], &router_alert, &[0]].concat();
    let all = cut(&datagram(false, &options, 0, &[5; 100]), 64);
    assert_eq!(join4(&all, 32), [5; 100]);
    assert_eq!(all[0][34..46], options);
    assert_eq!(all[1][34..46], [&[1; 7][..], &router_alert, &[0]].concat());
}

/// Routers read hop-by-hop options, and destination options only before a routing header.
#[test]
fn the_fragment_header_is_behind_what_routers_read() {
    let ext = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let payload = [5; 100];
    let hop = datagram(
        true,
        &ext(proto::DSTOPTS),
        proto::HOPOPTS,
        &[&ext(proto::UDP)[..], &payload].concat(),
    );
    let all = cut(&hop, 64);
    let joined = join6(&all, (54, 62), proto::DSTOPTS);
    assert_eq!(joined, [&ext(proto::UDP)[..], &payload].concat());
    let routed = [ext(proto::ROUTING), ext(proto::UDP)].concat();
    let all = cut(&datagram(true, &routed, proto::DSTOPTS, &payload), 64);
    assert_eq!(join6(&all, (62, 70), proto::UDP), payload);
}
