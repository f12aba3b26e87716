//! Packets leave a tunnel as they entered it. Their checksums are compared with those of a plain computation.

mod fuzz;
mod outer_cache;
mod round;
mod stt;

use crate::outer::SOURCE_PORTS;
use crate::{Encap, Gbp, Inner, Outer, TunnelPush};
use heddle_flow::extract::{Hint, extract};
use heddle_flow::field::tlv::{TlvMap, TlvMapping};
use heddle_flow::{FlowKey, packet_type};
use heddle_packet::Packet;
use heddle_wire::checksum::Sum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Outer headers around `encap`.
fn outer(v6: bool, encap: Encap) -> Outer {
    let (src, dst) = match v6 {
        false => (
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            Ipv4Addr::new(10, 0, 0, 2).into(),
        ),
        true => {
            let to = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
            (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(), to.into())
        }
    };
    Outer {
        eth_src: [2, 0, 0, 0, 0, 1],
        eth_dst: [2, 0, 0, 0, 0, 2],
        src,
        dst,
        tos: 0x28,
        ttl: 64,
        df: true,
        label: 0,
        csum: false,
        source_ports: SOURCE_PORTS,
        encap,
        tunnel_port: 5,
        out_port: 6,
        mtu: 0,
        numbers: Default::default(),
    }
}

fn geneve(options: Vec<u8>) -> Encap {
    Encap::Geneve {
        port: 6081,
        vni: 0x12_3456,
        oam: false,
        critical: false,
        options,
    }
}

/// A map of two options: class 0x0102 type 0x80 of 4 bytes, and class 0xffff type 1 of 8.
fn map() -> TlvMap {
    let mut map = TlvMap::default();
    for (class, ty, len, index) in [(0x0102, 0x80, 4, 0), (0xffff, 1, 8, 3)] {
        let m = TlvMapping {
            class,
            ty,
            len,
            index,
        };
        map.add(m, |_| false).unwrap();
    }
    map
}

/// Offsets of a packet's headers.
fn inner(p: &Packet, packet_type: u32) -> Inner {
    let mut key = FlowKey::default();
    let hint = Hint {
        total_len: p.len(),
        packet_type,
        vlan_limit: 2,
    };
    let layers = extract(p.head(), &hint, &mut key);
    Inner {
        l3: layers.l3,
        l4: layers.l4,
        proto: key.nw_proto,
    }
}

fn push(push: &TunnelPush, p: &mut Packet) {
    let inner = inner(p, packet_type::ETHERNET);
    push.apply(p, inner, 7).unwrap();
}

/// A frame with a datagram of these payload bytes, whose checksum is right.
fn frame(payload: &[u8]) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 2, 8, 0];
    let len = u16::try_from(28 + payload.len()).unwrap();
    let mut ip = vec![
        0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2,
    ];
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let csum = heddle_wire::checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&csum.to_be_bytes());
    f.extend_from_slice(&ip);
    let mut udp = vec![0x30, 0x39, 0, 53, 0, 0, 0, 0];
    udp[4..6].copy_from_slice(&(len - 20).to_be_bytes());
    udp.extend_from_slice(payload);
    let pseudo = Sum::ZERO.pseudo_v4(0xc0a8_0001, 0xc0a8_0002, 17, u32::from(len) - 20);
    let csum = pseudo.bytes(&udp).checksum_nonzero();
    udp[6..8].copy_from_slice(&csum.to_be_bytes());
    f.extend_from_slice(&udp);
    f
}

/// The headers have the bytes that the standards require.
#[test]
fn templates_are_what_the_standards_say() {
    let t = outer(false, geneve(vec![1, 2, 0x80, 1, 9, 9, 9, 9]))
        .build()
        .unwrap();
    let want = [
        &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..],
        &[
            0x45,
            0x28,
            0,
            0,
            0,
            0,
            0x40,
            0,
            64,
            17,
            0x26,
            0x99 + 0x0a,
            10,
            0,
            0,
            1,
            10,
            0,
            0,
            2,
        ],
        &[0, 0, 0x17, 0xc1, 0, 0, 0, 0],
        &[2, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0],
        &[1, 2, 0x80, 1, 9, 9, 9, 9],
    ]
    .concat();
    assert_eq!(heddle_wire::checksum::checksum(&t.header[14..34]), 0);
    assert_eq!([&t.header[..24], &t.header[26..]], [&want[..24], &want[26..]]);
    let gbp = Some(Gbp {
        id: 0x1234,
        flags: 0x48,
    });
    let vxlan = Encap::Vxlan {
        port: 4789,
        vni: 7,
        gbp,
        gpe: None,
    };
    let t = outer(true, vxlan).build().unwrap();
    assert_eq!(
        t.header[54..],
        [0, 0, 0x12, 0xb5, 0, 0, 0, 0, 0x88, 0x48, 0x12, 0x34, 0, 0, 7, 0]
    );
    let gre = Encap::Gre {
        proto: 0x6558,
        key: Some(0x01c8),
        seq: true,
    };
    let t = Outer {
        csum: true,
        ..outer(false, gre)
    };
    let t = t.build().unwrap();
    let want = [0xb0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 1, 0xc8, 0, 0, 0, 0];
    assert_eq!(t.header[34..], want);
    let erspan = Encap::Erspan2 {
        session: 0x3ff,
        egress: true,
        hwid: 0x2a,
    };
    let t = outer(false, erspan).build().unwrap();
    let want = [
        0x10, 0, 0x22, 0xeb, 0, 0, 0, 0, 0x20, 0, 3, 0xff, 0, 0, 0, 0, 0, 0, 2, 0xa8,
    ];
    assert_eq!(t.header[34..], want);
    let segments = vec![[1; 16], [2; 16]];
    let t = outer(true, Encap::Srv6 { segments, next: 4 }).build().unwrap();
    let want = [&[4, 4, 4, 1, 1, 0, 0, 0][..], &[2; 16], &[1; 16]].concat();
    assert_eq!((t.header[20], &t.header[54..]), (43, &want[..]));
}

#[test]
fn values_beyond_the_headers_are_refused() {
    use crate::OuterError::*;
    let erspan = |session, index| outer(false, Encap::Erspan1 { session, index }).build().err();
    assert_eq!(erspan(1023, 0xf_ffff), None);
    assert_eq!((erspan(1024, 0), erspan(0, 1 << 20)), (Some(Range), Some(Range)));
    let too_long = outer(false, geneve(vec![0; 256])).build();
    assert_eq!(too_long.err(), Some(TooLong));
    let srv6 = |n, v6| {
        outer(
            v6,
            Encap::Srv6 {
                segments: vec![[1; 16]; n],
                next: 41,
            },
        )
        .build()
        .err()
    };
    assert_eq!(
        (srv6(0, true), srv6(6, true), srv6(7, true)),
        (Some(TooLong), None, Some(TooLong))
    );
    assert_eq!(srv6(1, false), Some(Family));
}

/// The source port is Open vSwitch's for the same flow, so that paths do not change with the switch.
#[test]
fn source_ports_are_chosen_as_by_the_reference() {
    let t = outer(false, geneve(Vec::new())).build().unwrap();
    let mut p = Packet::from_bytes(&frame(b"hello"));
    let mut key = FlowKey::default();
    extract(p.head(), &Hint::ethernet(p.len()), &mut key);
    let hash = u64::from(heddle_flow::hash::five_tuple(&key, 0));
    push(&t, &mut p);
    let port = u16::from_be_bytes([p.head()[34], p.head()[35]]);
    assert_eq!(u64::from(port), ((hash * (61000 - 32768)) >> 32) + 32768);
}
