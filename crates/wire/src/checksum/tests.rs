use super::*;
use proptest::prelude::*;

/// RFC 1071's own loop: the plain twin.
fn plain(b: &[u8]) -> u16 {
    let mut s = 0u32;
    for w in b.chunks(2) {
        s += u32::from(w[0]) << 8 | w.get(1).copied().map_or(0, u32::from);
        s = (s & 0xffff) + (s >> 16);
    }
    !u16::try_from(s).expect("folded")
}

#[test]
fn rfc_1071_example() {
    assert_eq!(
        Sum::ZERO
            .bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])
            .folded(),
        0xddf2
    );
}

#[test]
fn rfc_1624_example() {
    // Section 4: the header's checksum must not become 0xffff.
    assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn udp_never_sends_zero() {
    let s = Sum::ZERO.word(0xffff);
    assert_eq!((s.checksum(), s.checksum_nonzero()), (0, 0xffff));
}

proptest! {
    #[test]
    fn wide_equals_plain(b: Vec<u8>) {
        prop_assert_eq!(checksum(&b), plain(&b));
    }

    #[test]
    fn sums_add_up(a in proptest::collection::vec(any::<[u8; 2]>(), 0..40), b: Vec<u8>) {
        let a = a.concat();
        let all = [a.clone(), b.clone()].concat();
        prop_assert_eq!(Sum::ZERO.bytes(&a).bytes(&b).checksum(), checksum(&all));
        prop_assert_eq!(Sum::ZERO.bytes(&b).sum(Sum::ZERO.bytes(&a)).checksum(), checksum(&all));
    }

    #[test]
    fn incremental_equals_full(mut b in proptest::collection::vec(any::<u8>(), 40), i in 0usize..10, to: [u8; 16]) {
        // A header is never all zero, which is the one case where both forms of zero can differ.
        b[0] = 0x45;
        let at = 2 + i * 2;
        let old = checksum(&b);
        let (o16, n16) = (u16::from_be_bytes([b[at], b[at + 1]]), u16::from_be_bytes([to[0], to[1]]));
        let mut c = b.clone();
        c[at..at + 2].copy_from_slice(&to[..2]);
        prop_assert_eq!(update16(old, o16, n16), checksum(&c));

        let mut c = b.clone();
        let o32 = u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        c[at..at + 4].copy_from_slice(&to[..4]);
        prop_assert_eq!(update32(old, o32, u32::from_be_bytes([to[0], to[1], to[2], to[3]])), checksum(&c));
    }

    #[test]
    fn pseudo_headers(src: u32, dst: u32, s6: [u8; 16], d6: [u8; 16], proto: u8, len: u16) {
        let l = len.to_be_bytes();
        let v4 = [&src.to_be_bytes()[..], &dst.to_be_bytes(), &[0, proto], &l].concat();
        prop_assert_eq!(Sum::ZERO.pseudo_v4(src, dst, proto, len.into()).checksum(), plain(&v4));
        let v6 = [&s6[..], &d6, &[0, 0], &l, &[0, 0, 0, proto]].concat();
        prop_assert_eq!(Sum::ZERO.pseudo_v6(&s6, &d6, proto, len.into()).checksum(), plain(&v6));
    }
}
