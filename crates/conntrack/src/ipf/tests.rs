mod fuzz;

use super::*;
use crate::Rewrite;
use crate::nat::rewrite::HeaderChange;
use crate::protocol::packet::Subject;
use heddle_wire::checksum::{Sum, checksum};
use proptest::prelude::*;

/// A datagram of UDP with right checksums, without and with a header of options before the payload.
fn datagram(ipv6: bool, options: bool, payload: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(8 + payload.len()).unwrap();
    let mut udp = vec![0x10, 0, 0x20, 0];
    udp.extend(udp_len.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let (src, dst) = ([1; 16], [2; 16]);
    let sum = if ipv6 {
        Sum::ZERO.pseudo_v6(&src, &dst, 17, udp_len.into())
    } else {
        Sum::ZERO.pseudo_v4(0x0101_0101, 0x0202_0202, 17, udp_len.into())
    };
    let sum = sum.bytes(&udp).checksum_nonzero().to_be_bytes();
    udp[6..8].copy_from_slice(&sum);
    let mut ip = Vec::new();
    if ipv6 {
        let before = if options { 8 } else { 0 };
        ip.extend([0x60, 0, 0, 0]);
        ip.extend((udp_len + before).to_be_bytes());
        ip.extend([if options { 0 } else { 17 }, 64]);
        ip.extend(src);
        ip.extend(dst);
        if options {
            ip.extend([17, 0, 5, 2, 0, 0, 1, 0]);
        }
    } else {
        let header: u8 = if options { 24 } else { 20 };
        ip.extend([0x40 | (header / 4), 0]);
        ip.extend((udp_len + u16::from(header)).to_be_bytes());
        ip.extend([0x12, 0x34, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        if options {
            ip.extend([148, 4, 0, 0]);
        }
        let sum = checksum(&ip).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
    }
    ip.extend(udp);
    ip
}

/// Bytes before the fragmented part.
fn header(ipv6: bool, options: bool) -> usize {
    match (ipv6, options) {
        (false, false) => 20,
        (false, true) => 24,
        (true, false) => 40,
        (true, true) => 48,
    }
}

/// A frame with bytes `from..to` of a datagram's payload, `last` or not.
fn cut(whole: &[u8], (ipv6, options): (bool, bool), (from, to): (usize, usize), last: bool) -> Vec<u8> {
    let at = header(ipv6, options);
    let mut f = vec![0; 14];
    f.extend(&whole[..at]);
    let offset = u16::try_from(from / 8).unwrap();
    if ipv6 {
        let next_at = 14 + if options { 40 } else { 6 };
        let next = std::mem::replace(&mut f[next_at], 44);
        f.extend([next, 0]);
        f.extend((offset << 3 | u16::from(!last)).to_be_bytes());
        f.extend([0, 0, 0, 9]);
        let len = u16::try_from(f.len() - 14 - 40 + to - from).unwrap();
        f[18..20].copy_from_slice(&len.to_be_bytes());
    } else {
        f[16..18].copy_from_slice(&u16::try_from(at + to - from).unwrap().to_be_bytes());
        f[20..22].copy_from_slice(&(offset | if last { 0 } else { 0x2000 }).to_be_bytes());
        f[24..26].fill(0);
        let sum = checksum(&f[14..14 + at]).to_be_bytes();
        f[24..26].copy_from_slice(&sum);
    }
    f.extend(&whole[at + from..at + to]);
    f
}

fn offer<T>(ipf: &Ipf<T>, now_ms: u64, frame: &[u8], place: FragmentContext, context: T) -> Offered<T> {
    offer_as(ipf, now_ms, frame, place, context, false)
}

fn offer_as<T>(
    ipf: &Ipf<T>,
    now_ms: u64,
    frame: &[u8],
    place: FragmentContext,
    context: T,
    joins: bool,
) -> Offered<T> {
    let frame_of = Frame {
        head: &frame[..frame.len().min(128)],
        l3: 14,
        len: frame.len(),
        ipv6: frame[14] >> 4 == 6,
        joins,
    };
    ipf.offer(now_ms, frame_of, place, || (frame.into(), context))
}

/// A table that lets small fragments in.
fn small() -> Ipf<u32> {
    let ipf = Ipf::default();
    ipf.min.iter().for_each(|m| m.store(0, Relaxed));
    ipf
}

/// The plain twin: the bytes of one datagram that have come.
struct Twin {
    bytes: Vec<Option<u8>>,
    end: Option<usize>,
}

impl Twin {
    /// Returns whether the fragment was added.
    fn add(&mut self, start: usize, bytes: &[u8], last: bool) -> bool {
        let end = start + bytes.len();
        let taken = self.bytes[start..end].iter().any(Option::is_some);
        let beyond = self.end.is_some_and(|e| last || end > e);
        let cuts = last && self.bytes[end..].iter().any(Option::is_some);
        if taken || beyond || cuts {
            return false;
        }
        for (to, b) in self.bytes[start..].iter_mut().zip(bytes) {
            *to = Some(*b);
        }
        if last {
            self.end = Some(end);
        }
        true
    }
    fn whole(&self) -> Option<Vec<u8>> {
        self.bytes[..self.end?].iter().copied().collect()
    }
}

#[derive(Clone, Debug)]
struct Part {
    from: usize,
    to: usize,
    last: bool,
    /// The last byte differs from the datagram's.
    forged: bool,
}

fn parts(len: usize) -> impl Strategy<Value = Vec<Part>> {
    let units = len / 8;
    let one = (
        0..=units,
        1..=units.max(1),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    );
    let odd = prop::collection::vec(one, 0..12);
    // All parts of one clean cut, mixed with other parts, in any order.
    let cuts = prop::collection::btree_set(1..=units.max(1), 0..6);
    (cuts, odd)
        .prop_map(move |(cuts, odd)| {
            let mut at: Vec<usize> = cuts.into_iter().map(|c| c * 8).filter(|c| *c < len).collect();
            at.insert(0, 0);
            at.push(len);
            let clean = at.windows(2).map(|w| Part {
                from: w[0],
                to: w[1],
                last: w[1] == len,
                forged: false,
            });
            let mut all: Vec<Part> = clean.collect();
            all.extend(odd.into_iter().map(|(from, n, last, forged)| {
                let (from, to) = (from * 8, from * 8 + n * 8);
                let from = from.min(len - 1) / 8 * 8;
                Part {
                    from,
                    to: to.min(len).max(from + 1),
                    last: last || to >= len,
                    forged,
                }
            }));
            all
        })
        .prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Fragments in any order, repeated, overlapping and forged. The table takes the same fragments as the
    /// twin and returns the same datagram. Without forged ones it is the original.
    #[test]
    fn as_the_twin(
        (payload, parts) in (1_usize..400).prop_flat_map(|n| {
            (prop::collection::vec(any::<u8>(), n), parts(n + 8))
        }),
        ipv6: bool, options: bool, forgery: bool,
    ) {
        let shape = (ipv6, options);
        let whole = datagram(ipv6, options, &payload);
        let at = header(ipv6, options);
        let ipf = small();
        let mut twin = Twin { bytes: vec![None; payload.len() + 64], end: None };
        let mut taken = 0;
        // A packet that has the whole datagram is no fragment.
        let fragments = parts.iter().filter(|p| p.from > 0 || !p.last);
        for (n, p) in (0..).zip(fragments) {
            let mut frame = cut(&whole, shape, (p.from, p.to), p.last);
            let forged = p.forged && forgery;
            if forged {
                let end = frame.len() - 1;
                frame[end] ^= 0x55;
            }
            let bytes = &frame[frame.len() - (p.to - p.from)..];
            if !p.last && !bytes.len().is_multiple_of(8) {
                prop_assert!(matches!(
                    offer(&ipf, 0, &frame, FragmentContext::default(), n),
                    Offered::Refused(Refusal::Malformed)
                ));
                continue;
            }
            let has_place = twin.add(p.from, bytes, p.last);
            taken += u32::from(has_place);
            match (offer(&ipf, 0, &frame, FragmentContext::default(), n), twin.whole()) {
                (Offered::Refused(Refusal::Overlap), _) => prop_assert!(!has_place),
                (Offered::Waits, None) => prop_assert!(has_place),
                (Offered::Whole(d), Some(want)) => {
                    prop_assert!(has_place);
                    let l4 = if ipv6 { at + 8 } else { at };
                    prop_assert_eq!(&d.bytes()[l4..], &want[..]);
                    if !forgery && want.len() == payload.len() + 8 {
                        prop_assert_eq!(&want, &whole[at..]);
                        prop_assert!(d.sum_is_right());
                        if !ipv6 {
                            prop_assert_eq!(d.bytes(), &whole[..]);
                        }
                        let subject: Subject = d.packet(&|| d.sum_is_right()).read().unwrap();
                        prop_assert_eq!((subject.tuple.src.l4, subject.tuple.dst.l4), (0x1000, 0x2000));
                    }
                    let list = d.into_fragments();
                    prop_assert_eq!(list.len(), taken as usize);
                    prop_assert!(list.windows(2).all(|w| w[0].piece.end() == w[1].piece.start));
                    // Later fragments belong to a new datagram with the same identification.
                    twin = Twin { bytes: vec![None; payload.len() + 64], end: None };
                    taken = 0;
                }
                (got, want) => prop_assert!(false, "{:?} {:?} {:?}", p, got, want),
            }
            prop_assert!(ipf.is_consistent());
        }
    }

    /// Translated fragments are fragments of the translated datagram.
    #[test]
    fn translated(
        payload in prop::collection::vec(any::<u8>(), 40..300), ipv6: bool, options: bool,
        cut_at in 1_usize..5, addresses in any::<[Option<u32>; 2]>(), ports in any::<Option<(u16, u16)>>(),
    ) {
        let shape = (ipv6, options);
        let whole = datagram(ipv6, options, &payload);
        let len = payload.len() + 8;
        let ipf = small();
        let two = [cut(&whole, shape, (cut_at * 8, len), true), cut(&whole, shape, (0, cut_at * 8), false)];
        prop_assert!(matches!(offer(&ipf, 0, &two[0], FragmentContext::default(), 0), Offered::Waits));
        let Offered::Whole(mut d) = offer(&ipf, 0, &two[1], FragmentContext::default(), 1) else {
            return Err(TestCaseError::fail("not whole"));
        };
        let [src, dst] = addresses.map(|a| a.map(u128::from));
        let rewrite = Rewrite { outer: HeaderChange { src, dst, ports, id: None }, inner: None };
        d.rewrite(&rewrite);
        prop_assert!(d.sum_is_right());
        let want = d.bytes().to_vec();
        let again = small();
        let mut out = None;
        for f in d.into_fragments() {
            match offer(&again, 0, f.bytes(), FragmentContext::default(), f.context) {
                Offered::Whole(d) => out = Some(d),
                Offered::Waits => {}
                Offered::Refused(why) => prop_assert!(false, "{:?}", why),
            }
        }
        let d = out.expect("all fragments are there");
        prop_assert_eq!(d.bytes(), &want[..]);
        let subject = d.packet(&|| d.sum_is_right()).read();
        let none = ports.is_some_and(|(a, b)| a == 0 || b == 0);
        prop_assert_eq!(subject.is_err(), none);
        if let Ok(s) = subject {
            prop_assert!(src.is_none_or(|a| a == s.tuple.src.addr) && dst.is_none_or(|a| a == s.tuple.dst.addr));
        }
    }

    /// No received bytes cause a panic, and counts stay right.
    #[test]
    fn anything(frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 34..120), any::<bool>()), 1..40)) {
        let ipf = small();
        for (mut f, v6) in frames {
            f[14] = if v6 { 0x60 } else { 0x45 };
            if v6 {
                (f[20], f[18]) = (44, 0);
            }
            offer(&ipf, 0, &f, FragmentContext::default(), 0);
            prop_assert!(ipf.is_consistent());
        }
    }
}

/// The first fragment of datagram `id`, of 1,208 bytes.
fn first(id: u16) -> Vec<u8> {
    let mut whole = datagram(false, false, &[7; 2000]);
    whole[4..6].copy_from_slice(&id.to_be_bytes());
    cut(&whole, (false, false), (0, 1208), false)
}

fn at(port: u32) -> FragmentContext {
    FragmentContext {
        port,
        ..FragmentContext::default()
    }
}

#[test]
fn small_bad_and_unwanted_ones_do_not_wait() {
    let ipf = Ipf::default();
    let whole = datagram(false, false, &[7; 2000]);
    let is = |f: &[u8], why| match offer(&ipf, 0, f, at(1), 0) {
        Offered::Refused(w) => assert_eq!(w, why),
        other => panic!("{other:?}"),
    };
    is(&cut(&whole, (false, false), (0, 1176), false), Refusal::TooSmall);
    let mut f = first(1);
    f[24] ^= 1;
    is(&f, Refusal::Checksum);
    is(&first(1)[..1000], Refusal::Malformed);
    let mut f = cut(&whole, (false, false), (0, 1200), true);
    f[20..22].copy_from_slice(&0x1fff_u16.to_be_bytes());
    f[24..26].fill(0);
    let sum = checksum(&f[14..34]).to_be_bytes();
    f[24..26].copy_from_slice(&sum);
    is(&f, Refusal::Malformed);
    ipf.set_enabled(false, false);
    is(&first(1), Refusal::Disabled);
    let s = ipf.status();
    assert_eq!(
        (s.waiting, s.families[0].too_small, s.families[0].enabled),
        (0, 1, false)
    );
    assert!(!ipf.set_min(true, 399) && ipf.set_min(true, 400) && !ipf.set_max(5001) && ipf.set_max(5000));
}

/// A port that floods loses its own fragments; the datagram of another port becomes whole.
#[test]
fn who_floods_makes_room() {
    let ipf: Ipf<u32> = Ipf::default();
    ipf.set_max(20);
    let whole = datagram(false, false, &[7; 2000]);
    assert!(matches!(offer(&ipf, 0, &first(1), at(2), 0), Offered::Waits));
    for id in 0..500 {
        assert!(matches!(offer(&ipf, 0, &first(id), at(1), 0), Offered::Waits));
        assert!(ipf.is_consistent() && ipf.status().waiting <= 20);
    }
    assert_eq!(ipf.status().families[0].purged, 481);
    let mut last = cut(&whole, (false, false), (1208, 2008), true);
    last[18..20].copy_from_slice(&1_u16.to_be_bytes());
    last[24..26].fill(0);
    let sum = checksum(&last[14..34]).to_be_bytes();
    last[24..26].copy_from_slice(&sum);
    assert!(matches!(offer(&ipf, 0, &last, at(2), 0), Offered::Whole(_)));
    ipf.set_max(0);
    assert!(matches!(
        offer(&ipf, 0, &first(9), at(2), 0),
        Offered::Refused(Refusal::Full)
    ));
    assert_eq!(ipf.status().waiting, 0);
}

/// A datagram waits for fifteen seconds, and is shown meanwhile.
#[test]
fn time_is_over() {
    let ipf: Ipf<u32> = Ipf::default();
    offer(&ipf, 1000, &first(1), at(1), 0);
    offer(&ipf, 2000, &first(2), at(1), 0);
    let shown = |id| {
        format!(
            "(src=1.1.1.1,dst=2.2.2.2,recirc_id=0,ip_id={id},dl_type=0x800,zone=0,nw_proto=17,\
             num_fragments=1,state=first frag)"
        )
    };
    assert_eq!(ipf.lists(), [shown(1), shown(2)]);
    assert!(ipf.sweep(15_999) && ipf.status().waiting == 2);
    assert!(ipf.sweep(16_000));
    assert_eq!((ipf.lists(), ipf.dropped()), (vec![shown(2)], (1, 0)));
    // A new fragment also expires old datagrams.
    offer(&ipf, 17_000, &first(3), at(1), 0);
    assert_eq!(ipf.lists(), [shown(3)]);
}

/// Sixteen threads share the table: each datagram comes out once, with all its fragments.
#[test]
fn threads_put_together_what_each_has_a_part_of() {
    let ipf = small();
    let whole = datagram(false, false, &[7; 392]);
    let done = AtomicU32::new(0);
    std::thread::scope(|s| {
        for t in 0..16_usize {
            let (ipf, whole, done) = (&ipf, &whole, &done);
            s.spawn(move || {
                // Every thread has one fragment of each datagram.
                for id in 0..40_u16 {
                    let mut mine = whole.clone();
                    mine[4..6].copy_from_slice(&id.to_be_bytes());
                    let (from, to) = (t * 24, if t == 15 { 400 } else { t * 24 + 24 });
                    let f = cut(&mine, (false, false), (from, to), t == 15);
                    match offer(ipf, 0, &f, at(1), 0) {
                        Offered::Whole(d) => {
                            assert_eq!(d.into_fragments().len(), 16);
                            done.fetch_add(1, Relaxed);
                        }
                        Offered::Waits => {}
                        Offered::Refused(why) => panic!("{why:?}"),
                    }
                }
            });
        }
    });
    assert_eq!((done.load(Relaxed), ipf.status().waiting), (40, 0));
}

/// If the whole packet continues, Linux' rules apply. Small fragments wait until the user sets a minimum. A
/// copy is refused alone, and an overlap ends the datagram.
#[test]
fn fragments_that_are_joined() {
    let ipf: Ipf<u32> = Ipf::default();
    let whole = datagram(false, false, &[7; 400]);
    let part = |from, to| cut(&whole, (false, false), (from, to), false);
    let join = |f: &[u8]| offer_as(&ipf, 0, f, at(1), 0, true);
    assert!(matches!(
        offer(&ipf, 0, &part(0, 80), at(1), 0),
        Offered::Refused(Refusal::TooSmall)
    ));
    assert!(matches!(join(&part(0, 80)), Offered::Waits));
    assert!(matches!(join(&part(0, 80)), Offered::Refused(Refusal::Overlap)));
    assert!(matches!(join(&part(16, 64)), Offered::Refused(Refusal::Overlap)));
    assert_eq!(ipf.status().waiting, 1, "copies");
    assert!(matches!(join(&part(80, 160)), Offered::Waits));
    assert!(matches!(join(&part(72, 96)), Offered::Refused(Refusal::Overlap)));
    assert_eq!((ipf.status().waiting, ipf.status().families[0].overlap), (0, 5));
    assert!(ipf.is_consistent());
    assert!(ipf.set_min(false, 400));
    assert!(matches!(join(&part(0, 80)), Offered::Refused(Refusal::TooSmall)));
}

/// The whole packet has CE if a fragment has it. Fragments with and without ECN form no packet.
#[test]
fn congestion_in_one_fragment_is_the_packets() {
    for ipv6 in [false, true] {
        let whole = datagram(ipv6, false, &[7; 60]);
        let shape = (ipv6, false);
        let joined = |marks: [u8; 2]| {
            let mut two = [
                cut(&whole, shape, (0, 40), false),
                cut(&whole, shape, (40, 68), true),
            ];
            for (f, ecn) in two.iter_mut().zip(marks) {
                if ipv6 {
                    f[15] |= ecn << 4;
                } else {
                    f[15] |= ecn;
                    f[24..26].fill(0);
                    let sum = checksum(&f[14..34]).to_be_bytes();
                    f[24..26].copy_from_slice(&sum);
                }
            }
            let ipf = small();
            let first = offer_as(&ipf, 0, &two[0], FragmentContext::default(), 0, true);
            assert!(matches!(first, Offered::Waits));
            let Offered::Whole(d) = offer_as(&ipf, 0, &two[1], FragmentContext::default(), 1, true) else {
                panic!("not whole");
            };
            let frame = d.whole()?.frame;
            assert!(ipv6 || checksum(&frame[14..34]) == 0);
            Some(if ipv6 { frame[15] >> 4 } else { frame[15] & 3 })
        };
        assert_eq!(joined([2, 3]), Some(3));
        assert_eq!(joined([3, 2]), Some(3));
        assert_eq!(joined([2, 2]), Some(2));
        assert_eq!(joined([0, 0]), Some(0));
        assert_eq!((joined([0, 3]), joined([2, 0])), (None, None));
    }
}
