use super::*;
use heddle_wire::checksum::{Sum, checksum};
use proptest::prelude::*;

/// A packet without Ethernet header, with right checksums.
fn packet(ipv6: bool, proto: u8, payload: &[u8]) -> (Vec<u8>, At) {
    let l4_len = u16::try_from(payload.len()).unwrap();
    let mut p = if ipv6 {
        let mut h = vec![0x60, 0, 0, 0];
        h.extend(l4_len.to_be_bytes());
        h.extend([proto, 64]);
        h.extend((1..=32).map(|n| n * 3));
        h
    } else {
        let mut h = vec![0x45, 0];
        h.extend((l4_len + 20).to_be_bytes());
        h.extend([1, 2, 0, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = checksum(&h);
        h[10..12].copy_from_slice(&sum.to_be_bytes());
        h
    };
    let l4 = p.len();
    p.extend(payload);
    let at = At {
        l3: 0,
        l4,
        ipv6,
        proto,
        partial: false,
        l4_len: usize::from(l4_len),
    };
    if let Some(c) = checksum_at(proto, ipv6) {
        p[l4 + c..l4 + c + 2].fill(0);
        // A checksum of 0 would mean that UDP has none.
        let sum = match l4_sum(&p, at) {
            0 if proto == proto::UDP => 0xffff,
            sum => sum,
        };
        p[l4 + c..l4 + c + 2].copy_from_slice(&sum.to_be_bytes());
    }
    (p, at)
}

fn pseudo(p: &[u8], at: At) -> Sum {
    let len = u16::try_from(p.len() - at.l4).unwrap();
    let addrs = if at.ipv6 { 8..40 } else { 12..20 };
    match at.proto {
        proto::ICMP => Sum::ZERO,
        proto => Sum::ZERO.bytes(&p[addrs]).word(u16::from(proto)).word(len),
    }
}

/// The checksum over the packet with its checksum field: 0 if that is right.
fn l4_sum(p: &[u8], at: At) -> u16 {
    pseudo(p, at).bytes(&p[at.l4..]).checksum()
}

fn is_right(p: &[u8], at: At) -> bool {
    (at.ipv6 || checksum(&p[..20]) == 0) && (checksum_at(at.proto, at.ipv6).is_none() || l4_sum(p, at) == 0)
}

fn ends() -> impl Strategy<Value = HeaderChange> {
    let addr = || proptest::option::of(any::<u128>());
    (addr(), addr(), proptest::option::of(any::<(u16, u16)>())).prop_map(|(src, dst, ports)| HeaderChange {
        src,
        dst,
        ports,
        id: None,
    })
}

proptest! {
    #[test]
    fn checksums_stay_right(
        ipv6: bool,
        tcp: bool,
        ends in ends(),
        payload in proptest::collection::vec(any::<u8>(), 20..90),
    ) {
        let proto = if tcp { proto::TCP } else { proto::UDP };
        let (mut p, at) = packet(ipv6, proto, &payload);
        prop_assert!(is_right(&p, at));
        Rewrite { outer: ends, inner: None }.apply(&mut p, at);
        prop_assert!(is_right(&p, at));
        if let Some((src, dst)) = ends.ports {
            prop_assert_eq!((word(&p, at.l4), word(&p, at.l4 + 2)), (Some(src), Some(dst)));
        }
        // Partial: the pseudo header's sum, before and after.
        let (mut p, mut at) = packet(ipv6, proto, &payload);
        at.partial = true;
        let place = at.l4 + checksum_at(proto, ipv6).unwrap();
        let sum = pseudo(&p, at).folded();
        p[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        Rewrite { outer: ends, inner: None }.apply(&mut p, at);
        let sum = pseudo(&p, at).folded();
        let now = word(&p, place).unwrap();
        prop_assert!(now == sum || now.abs_diff(sum) == 0xffff, "{now:x} {sum:x}");
    }

    #[test]
    fn errors_and_what_they_quote_stay_right(
        ipv6: bool,
        tcp: bool,
        outer in ends(),
        inner in ends(),
        payload in proptest::collection::vec(1u8.., 20..60),
    ) {
        let proto = if tcp { proto::TCP } else { proto::UDP };
        let (quote, quoted_at) = packet(ipv6, proto, &payload);
        let (kind, icmp) = if ipv6 { (1, proto::ICMPV6) } else { (3, proto::ICMP) };
        let mut error = vec![kind, 1, 0, 0, 0, 0, 0, 0];
        error.extend(quote);
        let (mut p, at) = packet(ipv6, icmp, &error);
        prop_assert!(is_right(&p, at));
        let outer = HeaderChange { ports: None, ..outer };
        Rewrite { outer, inner: Some(inner) }.apply(&mut p, at);
        prop_assert!(is_right(&p, at));
        prop_assert!(is_right(&p[at.l4 + 8..], quoted_at));
    }

    /// No bytes and no offsets are a fault.
    #[test]
    fn anything_is_survived(mut p: Vec<u8>, l3 in 0usize..60, l4 in 0usize..90, ipv6: bool, proto: u8) {
        let ends = HeaderChange { src: Some(1), dst: Some(2), ports: Some((3, 4)), id: Some(5) };
        let at = At { l3, l4, ipv6, proto, partial: false, l4_len: 9 * l4 };
        Rewrite { outer: ends, inner: Some(ends) }.apply(&mut p, at);
    }
}

#[test]
fn no_checksum_stays_none() {
    let (mut p, at) = packet(false, proto::UDP, &[0; 12]);
    p[at.l4 + 6..at.l4 + 8].fill(0);
    let ends = HeaderChange {
        src: Some(7),
        ..HeaderChange::default()
    };
    Rewrite {
        outer: ends,
        inner: None,
    }
    .apply(&mut p, at);
    assert_eq!(word(&p, at.l4 + 6), Some(0));
    assert_eq!(checksum(&p[..20]), 0);
}

/// UDP whose words sum up to 0xffff has the checksum 0xffff, also in what an error quotes.
#[test]
fn checksums_of_all_ones_stay_right() {
    let mut payload = vec![0; 20];
    let (p, at) = packet(true, proto::UDP, &payload);
    payload[8..10].copy_from_slice(&p[at.l4 + 6..at.l4 + 8]);
    let (quote, quoted_at) = packet(true, proto::UDP, &payload);
    assert_eq!(word(&quote, quoted_at.l4 + 6), Some(0xffff));
    let ends = HeaderChange {
        ports: Some((0, 0)),
        ..HeaderChange::default()
    };
    let mut p = [&[1, 1, 0, 0, 0, 0, 0, 0][..], &quote].concat();
    let at;
    (p, at) = packet(true, proto::ICMPV6, &p);
    Rewrite {
        outer: HeaderChange::default(),
        inner: Some(ends),
    }
    .apply(&mut p, at);
    assert!(is_right(&p, at) && is_right(&p[at.l4 + 8..], quoted_at));
}
