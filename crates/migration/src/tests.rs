mod fuzz;

use super::*;
use crate::connection::{Chunk, Connections};
use heddle_conntrack::tcp::{Peer, Scale, TcpState};
use heddle_conntrack::transfer::{ConnCopy, Expected};
use heddle_conntrack::{CtHelper, Endpoint, NatEnd, Phase, Tuple};
use proptest::prelude::*;

fn header() -> Header {
    Header {
        live: true,
        made_s: 1_700_000_000,
        port: "web-1".into(),
        writer: "heddle 1".into(),
        zones: vec!["web-1".into(), "gw_snat".into()],
    }
}

fn end(addr: u128, l4: u32) -> Endpoint {
    Endpoint { addr, l4 }
}

/// A connection of UDP over IPv4.
fn plain() -> ConnCopy {
    let orig = Tuple {
        src: end(0x0a00_0001, 1000),
        dst: end(0x0a00_0002, 53),
        proto: 17,
        ipv6: false,
    };
    ConnCopy::new(orig, 30_000)
}

fn file(key: Option<&Key>, all: &[ConnCopy]) -> Vec<u8> {
    let (mut writer, mut out) = Writer::new(&header(), key).unwrap();
    let mut chunk = Chunk::default();
    for c in all {
        assert!(chunk.add(1, c));
    }
    out.extend(writer.connections(&chunk.content()).unwrap());
    assert_eq!(
        (writer.len(), writer.is_empty()),
        (all.len() as u64, all.is_empty())
    );
    out.extend(writer.end());
    out
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let key = Key::new(&[7; 16]).unwrap();
    for (key, seal) in [(None, Seal::Digest), (Some(&key), Seal::Keyed)] {
        let bytes = file(key, &[plain()]);
        let read = File::open(&bytes, key).unwrap();
        assert_eq!((&read.header, read.seal, read.connections), (&header(), seal, 1));
        read.check().unwrap();
        let all: Vec<_> = Connections::new(read.chunks[0]).unwrap().collect();
        assert_eq!(all, [Ok((1, plain()))]);
    }
}

#[test]
fn a_doubtful_file_is_refused_as_a_whole() {
    let (key, other) = (Key::new(&[7; 16]).unwrap(), Key::new(&[8; 16]).unwrap());
    let (open, sealed) = (file(None, &[plain()]), file(Some(&key), &[plain()]));
    let why = |bytes: &[u8], key: Option<&Key>| File::open(bytes, key).map(drop).unwrap_err();
    assert_eq!(why(&sealed, None), Error::NeedsKey);
    assert_eq!(why(&open, Some(&key)), Error::HasNoKey);
    assert_eq!(why(&sealed, Some(&other)), Error::Seal);
    assert_eq!(why(b"", None), Error::NotAMigration);
    assert_eq!(why(b"tcp,orig=(src=10.0.0.1", None), Error::NotAMigration);
    // A file without its end, or with a changed byte anywhere.
    for n in 0..open.len() {
        assert!(File::open(&open[..n], None).is_err(), "{n}");
        let mut changed = open.clone();
        changed[n] ^= 1;
        assert!(File::open(&changed, None).is_err(), "{n}");
    }
    assert_eq!(why(&open[..open.len() - 1], None), Error::Truncated);
    assert_eq!(
        why(&[&open[..], &[0]].concat(), None),
        Error::Malformed("bytes behind the end")
    );
    let mut newer = open.clone();
    newer[9] = 2;
    assert_eq!(why(&newer, None), Error::Version(2));
    assert_eq!(
        why(&newer, None).to_string(),
        "the file has format 2, and this version reads 1: export it with the same version of Heddle"
    );
    assert_eq!(
        Key::new(b"secret").map(drop).unwrap_err().to_string(),
        "a key has 16 to 4096 bytes, not 6"
    );
    let mut long = header();
    long.port = "x".repeat(MAX_NAME_BYTES + 1);
    assert_eq!(Writer::new(&long, None).map(drop), Err(Error::TooLarge("a name")));
    let mut many = header();
    many.zones = vec![String::new(); MAX_ZONES + 1];
    assert_eq!(
        Writer::new(&many, None).map(drop),
        Err(Error::TooLarge("the number of zones"))
    );
}

#[test]
fn a_zone_needs_a_name() {
    let (mut writer, mut bytes) = Writer::new(&header(), None).unwrap();
    let mut chunk = Chunk::default();
    chunk.add(2, &plain());
    bytes.extend(writer.connections(&chunk.content()).unwrap());
    bytes.extend(writer.end());
    let read = File::open(&bytes, None).unwrap();
    assert_eq!(read.check(), Err(Error::Malformed("a zone without a name")));
}

#[test]
fn a_chunk_has_room_for_thousands() {
    let (mut chunk, mut n) = (Chunk::default(), 0_u32);
    assert!(chunk.is_empty());
    while chunk.add(0, &plain()) {
        n += 1;
    }
    assert!(chunk.is_full() && chunk.len() == n && n > 40_000, "{n}");
    let mut bad = plain();
    bad.reply.src.l4 = 54;
    assert!(!Chunk::default().add(0, &bad));
    assert!(chunk.content().len() <= MAX_SECTION_BYTES);
}

fn peer() -> impl Strategy<Value = Peer> {
    use TcpState::*;
    let scale = prop_oneof![
        Just(Scale::None),
        Just(Scale::Unknown),
        (0_u8..=14).prop_map(Scale::Known)
    ];
    let state = prop::sample::select(vec![Closed, SynSent, Established, Closing, FinWait2, TimeWait]);
    (any::<u32>(), any::<u32>(), any::<u16>(), scale, state).prop_map(|(lo, hi, window, scale, state)| Peer {
        lo,
        hi,
        window,
        scale,
        state,
    })
}

fn address(ipv6: bool) -> BoxedStrategy<u128> {
    match ipv6 {
        true => any::<u128>().boxed(),
        false => any::<u32>().prop_map(Into::into).boxed(),
    }
}

fn tuple(ipv6: bool, proto: u8) -> impl Strategy<Value = Tuple> {
    let ends = (address(ipv6), address(ipv6), any::<u16>(), any::<u16>());
    ends.prop_map(move |(src, dst, a, b)| {
        let t = Tuple {
            src: end(src, a.into()),
            dst: end(dst, b.into()),
            proto,
            ipv6,
        };
        let kind = if ipv6 { 128 } else { 8 };
        if t.is_icmp() {
            t.with_icmp(a, kind, 0).unwrap()
        } else {
            t
        }
    })
}

fn copy() -> impl Strategy<Value = ConnCopy> {
    let kind = (
        any::<bool>(),
        prop::sample::select(vec![1_u8, 58, 6, 17, 132, 47]),
    );
    let of_kind = |(ipv6, proto): (bool, u8)| {
        let tuples = (
            tuple(ipv6, proto),
            prop::option::of(tuple(ipv6, proto)),
            address(ipv6),
            any::<u16>(),
        );
        let words = (any::<u32>(), any::<u128>(), any::<u32>(), any::<[u64; 2]>());
        let nat = prop::sample::select(vec![None, Some(NatEnd::Src), Some(NatEnd::Dst)]);
        let phase = prop::sample::select(vec![Phase::First, Phase::Single, Phase::Both]);
        let expected = (any::<bool>(), any::<u16>(), prop::option::of(any::<u16>())).prop_map(
            |(reply, port, own_port)| Expected {
                reply,
                port,
                own_port,
            },
        );
        let expected = prop::collection::vec(expected, 0..=8);
        let helper = prop::sample::select(vec![None, Some(CtHelper::Ftp), Some(CtHelper::Tftp)]);
        let more = (
            nat,
            phase,
            expected,
            helper,
            [peer(), peer()],
            any::<(bool, bool)>(),
        );
        (tuples, words, more)
    };
    kind.prop_flat_map(of_kind).prop_map(
        |(
            (mut orig, parent, addr, port),
            (mark, label, left, skews),
            (nat, phase, expected, helper, peers, (loose, ftp)),
        )| {
            let tcp = (orig.proto == 6).then_some(peers);
            if ftp && tcp.is_some() {
                orig.dst.l4 = 21;
            }
            let mut reply = orig.reversed();
            let changed = match nat {
                None => None,
                Some(NatEnd::Src) => Some(&mut reply.dst),
                Some(NatEnd::Dst) => Some(&mut reply.src),
            };
            if let Some(changed) = changed {
                changed.addr = addr;
                if !orig.is_icmp() {
                    changed.l4 = port.into();
                }
            }
            let mut c = ConnCopy {
                orig,
                reply,
                nat,
                parent,
                helper,
                mark,
                label,
                left_ms: left.into(),
                tcp,
                loose: loose && tcp.is_some(),
                phase,
                skews,
                expected,
            };
            if c.orig.is_icmp() {
                c.parent = None;
            }
            if c.check().is_err() {
                // Only a helper's control connection has these.
                (c.skews, c.expected) = ([0; 2], Vec::new());
            }
            c
        },
    )
}

proptest! {
    #[test]
    fn connections_survive_the_file(all in prop::collection::vec((0_u16..2, copy()), 0..20)) {
        let mut chunk = Chunk::default();
        for (zone, c) in &all {
            prop_assert_eq!(c.check(), Ok(()));
            prop_assert!(chunk.add(*zone, c));
        }
        let content = chunk.content();
        let read: Result<Vec<_>, _> = Connections::new(&content).unwrap().collect();
        prop_assert_eq!(read, Ok(all));
        for n in 0..content.len() {
            let part: Result<Vec<_>, _> = Connections::new(&content[..n]).and_then(Iterator::collect);
            prop_assert!(part.is_err());
        }
    }
}
