//! Segments put together again are the GSO packet; every checksum is right.

#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

mod tunnels;

use super::*;
use heddle_packet::{Gso, HEADROOM, Wraps};
use heddle_wire::checksum::checksum;
use proptest::prelude::*;

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// A GSO packet as a sender with these offloads leaves it.
#[derive(Clone, Debug)]
struct GsoPacket {
    kind: GsoKind,
    v6: bool,
    tags: usize,
    ip_options: usize,
    tcp_options: usize,
    payload: Vec<u8>,
    size: u16,
    flags: u8,
    seq: u32,
    id: u16,
}

impl GsoPacket {
    /// Whether it has a header that a switch that joins packets does not look behind.
    fn has_options(&self) -> bool {
        self.tags > 0 || self.ip_options > 0 && !self.v6 || self.tcp() && self.flags & 0x10 == 0
    }
    fn tcp(&self) -> bool {
        self.kind != GsoKind::Udp
    }
    fn l3(&self) -> usize {
        14 + 4 * self.tags
    }
    fn l4(&self) -> usize {
        self.l3() + if self.v6 { 40 } else { 20 + 4 * self.ip_options }
    }
    fn headers(&self) -> usize {
        self.l4() + if self.tcp() { 20 + 4 * self.tcp_options } else { 8 }
    }
    fn build(&self) -> Packet {
        let proto = if self.tcp() { 6 } else { 17 };
        let mut b = MACS.to_vec();
        for i in 0..self.tags {
            b.extend([0x81, 0, 0, 10 + i as u8]);
        }
        let l4_len = self.headers() - self.l4() + self.payload.len();
        let (src, dst) = ([0xfd; 16], [0xfe; 16]);
        if self.v6 {
            b.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            b.extend((l4_len as u16).to_be_bytes());
            b.extend([proto, 64]);
            b.extend(src);
            b.extend(dst);
        } else {
            let ihl = 5 + self.ip_options;
            b.extend([0x08, 0x00, 0x40 | ihl as u8, 0]);
            b.extend(((l4_len + 4 * ihl) as u16).to_be_bytes());
            b.extend(self.id.to_be_bytes());
            b.extend([0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            b.extend(vec![1; 4 * self.ip_options]); // no-operation options
        }
        b.extend([0x12, 0x34, 0x00, 0x50]);
        if self.tcp() {
            b.extend(self.seq.to_be_bytes());
            b.extend([
                0,
                0,
                0,
                9,
                ((5 + self.tcp_options) as u8) << 4,
                self.flags,
                0xff,
                0xff,
                0,
                0,
                0,
                0,
            ]);
            b.extend(vec![1; 4 * self.tcp_options]);
        } else {
            b.extend((l4_len as u16).to_be_bytes());
            b.extend([0, 0]);
        }
        b.extend(&self.payload);
        let mut p = Packet::from_bytes(&b);
        p.in_port = 7;
        let offset = if self.tcp() { 16 } else { 6 };
        p.offload = Offload {
            csum: Csum::Partial {
                start: self.l4() as u16,
                offset,
            },
            gso: Some(Gso {
                kind: self.kind,
                ecn: self.tcp() && self.flags & 0x80 != 0,
                size: self.size,
                hdr_len: 0,
                wraps: Wraps::default(),
            }),
        };
        p
    }
}

fn gso_packet() -> impl Strategy<Value = GsoPacket> {
    let kind = prop_oneof![Just(GsoKind::Tcp4), Just(GsoKind::Tcp6), Just(GsoKind::Udp)];
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        prop::collection::vec(any::<u8>(), 1000..8000),
        Just(vec![0xff; 9000]),
    ];
    (
        kind,
        any::<bool>(),
        0_usize..3,
        0_usize..3,
        0_usize..10,
        payload,
        40_u16..1500,
        any::<u8>(),
        any::<u32>(),
        any::<u16>(),
    )
        .prop_map(
            |(kind, v6, tags, ip_options, tcp_options, payload, size, flags, seq, id)| GsoPacket {
                kind,
                v6: if kind == GsoKind::Udp {
                    v6
                } else {
                    kind == GsoKind::Tcp6
                },
                tags,
                ip_options,
                tcp_options,
                payload,
                size,
                flags,
                seq,
                id,
            },
        )
}

fn pieces(p: &Packet) -> Result<Vec<Vec<u8>>, SegmentError> {
    let mut pool = Pool::new(2);
    let mut out = Vec::new();
    let n = finish(&mut pool, p, &mut |s| {
        assert_eq!(s.in_port, p.in_port);
        assert!(s.offload.gso.is_none() && !matches!(s.offload.csum, Csum::Partial { .. }));
        out.push(s.to_vec());
    })?;
    assert_eq!(n, out.len());
    assert_eq!(pool.grown(), 0);
    // The same by the burst.
    let mut many = Vec::new();
    let n = finish_batches(&mut pool, p, &mut |batch| {
        assert!(!batch.is_empty() && batch.len() <= BURST);
        assert!(many.len().is_multiple_of(BURST), "all but the last are full");
        many.extend(batch.iter().map(|s| s.to_vec()));
    })?;
    assert_eq!(n, many.len());
    assert!(many == out, "others than one by one");
    Ok(out)
}

/// The ones'-complement sum of L4 bytes and pseudo header, computed word by word.
fn l4_checks(t: &GsoPacket, frame: &[u8]) -> bool {
    let l4 = &frame[t.l4()..];
    let addrs = if t.v6 {
        &frame[t.l3() + 8..t.l3() + 40]
    } else {
        &frame[t.l3() + 12..t.l3() + 20]
    };
    let mut sum = l4.len() as u64 + if t.tcp() { 6 } else { 17 };
    for part in [addrs, l4] {
        for w in part.chunks(2) {
            sum += u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

proptest! {
    #[test]
    fn segments_are_the_gso_packet(t in gso_packet()) {
        let whole = t.build();
        let segments = pieces(&whole).unwrap();
        prop_assert_eq!(segments.len(), t.payload.len().div_ceil(usize::from(t.size)).max(1));
        let (mut payload, last) = (Vec::new(), segments.len() - 1);
        for (i, s) in segments.iter().enumerate() {
            let part = &s[t.headers()..];
            prop_assert!(i == last || part.len() == usize::from(t.size));
            prop_assert_eq!(&s[..t.l3()], &whole.head()[..t.l3()]);
            prop_assert!(l4_checks(&t, s), "checksum of segment {}", i);
            if t.v6 {
                prop_assert_eq!(usize::from(be16(s, t.l3() + 4)), s.len() - t.l4());
            } else {
                prop_assert_eq!(usize::from(be16(s, t.l3() + 2)), s.len() - t.l3());
                prop_assert_eq!(checksum(&s[t.l3()..t.l4()]), 0);
                prop_assert_eq!(be16(s, t.l3() + 4), t.id.wrapping_add(i as u16));
            }
            if t.tcp() {
                let seq = u32::from_be_bytes(s[t.l4() + 4..t.l4() + 8].try_into().unwrap());
                prop_assert_eq!(seq, t.seq.wrapping_add(payload.len() as u32));
                let mut flags = t.flags;
                if i != last { flags &= !0x09; }
                if i != 0 { flags &= !0x80; }
                prop_assert_eq!(s[t.l4() + 13], flags);
            } else {
                prop_assert_eq!(usize::from(be16(s, t.l4() + 4)), s.len() - t.l4());
            }
            payload.extend_from_slice(part);
        }
        prop_assert_eq!(payload, t.payload);
    }

    /// For any bytes and metadata, nothing panics, and the output is bounded.
    #[test]
    fn lies_are_refused_or_harmless(
        t in gso_packet(), at in 0_usize..100, byte: u8, start in 0_u16..200, offset in 0_u16..40, cut in 0_usize..120, lie: bool,
    ) {
        let mut p = t.build();
        if let Some(b) = p.head_mut().get_mut(at) { *b = byte; }
        if lie {
            p.offload.csum = Csum::Partial { start, offset };
            p.truncate(cut);
        }
        if let Ok(all) = pieces(&p) {
            prop_assert!(all.len() <= MAX_SEGMENTS);
            prop_assert!(all.iter().all(|s| s.len() <= p.len()));
        }
    }

    #[test]
    fn checksum_alone_is_completed(t in gso_packet()) {
        let mut p = t.build();
        p.offload.gso = None;
        // The field holds the pseudo header's sum, as the sender of a partial checksum leaves it.
        let l4_len = (p.len() - t.l4()) as u32;
        let proto = if t.tcp() { 6 } else { 17 };
        let pseudo = if t.v6 {
            Sum::ZERO.pseudo_v6(&[0xfd; 16], &[0xfe; 16], proto, l4_len)
        } else {
            Sum::ZERO.pseudo_v4(0x0a00_0001, 0x0a00_0002, proto, l4_len)
        };
        let at = t.l4() + if t.tcp() { 16 } else { 6 };
        p.head_mut()[at..at + 2].copy_from_slice(&pseudo.folded().to_be_bytes());
        let out = pieces(&p).unwrap();
        prop_assert_eq!(out.len(), 1);
        prop_assert!(l4_checks(&t, &out[0]));
        prop_assert_ne!(be16(&out[0], at), 0);
    }
}

#[test]
fn wrong_protocols_are_named() {
    let t = GsoPacket {
        kind: GsoKind::Tcp4,
        v6: false,
        tags: 0,
        ip_options: 0,
        tcp_options: 0,
        payload: vec![7; 5000],
        size: 1000,
        flags: 0x18,
        seq: 1,
        id: 1,
    };
    let mut p = t.build();
    p.head_mut()[23] = 17;
    assert_eq!(pieces(&p), Err(SegmentError::Mismatch));
    let mut p = t.build();
    p.offload.gso.as_mut().unwrap().kind = GsoKind::Tcp6;
    assert_eq!(pieces(&p), Err(SegmentError::Mismatch));
    let mut p = t.build();
    p.offload.gso.as_mut().unwrap().size = 2;
    assert_eq!(pieces(&p), Err(SegmentError::TooMany));
    let mut p = t.build();
    p.offload.csum = Csum::Partial {
        start: 60_000,
        offset: 16,
    };
    assert_eq!(pieces(&p), Err(SegmentError::Mismatch));
    let mut p = t.build();
    p.offload.csum = Csum::Unknown;
    assert_eq!(pieces(&p), Err(SegmentError::Malformed));
}

#[test]
fn a_full_gso_packet_fits_a_buffer() {
    let payload = vec![5; 65535 - 20 - 20];
    let t = GsoPacket {
        kind: GsoKind::Tcp4,
        v6: false,
        tags: 2,
        ip_options: 0,
        tcp_options: 0,
        payload,
        size: 1460,
        flags: 0x10,
        seq: u32::MAX - 5,
        id: 0xfff0,
    };
    let p = t.build();
    assert!(p.len() < heddle_packet::BUF_SIZE - HEADROOM);
    let all = pieces(&p).unwrap();
    assert_eq!(all.len(), 45);
    assert!(all.iter().all(|s| l4_checks(&t, s)));
}
