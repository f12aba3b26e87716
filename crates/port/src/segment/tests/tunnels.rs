//! A GSO packet that went into a tunnel is cut into the segments that would have gone into it one by one.

use super::*;
use heddle_flow::FlowKey;
use heddle_tunnel::join;
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::stt::Frames;
use heddle_tunnel::{Encap, Inner, OptionTable, Outer, TunnelKind, TunnelPop};
use heddle_virtio::net_hdr;
use heddle_wire::eth::ethertype;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn encap() -> impl Strategy<Value = Encap> {
    let options = prop::collection::vec(any::<u8>(), 0..8).prop_map(|values| {
        values
            .iter()
            .flat_map(|v| [1, 2, 0x10, 1, 0, 0, 0, *v])
            .collect::<Vec<u8>>()
    });
    prop_oneof![
        options.prop_map(|options| Encap::Geneve {
            port: 6081,
            vni: 7,
            oam: false,
            critical: false,
            options,
        }),
        Just(Encap::Vxlan {
            port: 4789,
            vni: 0xff_ffff,
            gbp: None,
            gpe: None,
        }),
        (any::<Option<u32>>(), any::<bool>()).prop_map(|(key, seq)| Encap::Gre {
            proto: ethertype::TEB,
            key,
            seq,
        }),
        Just(Encap::Erspan1 { session: 9, index: 3 }),
        Just(Encap::Erspan2 {
            session: 9,
            egress: true,
            hwid: 5,
        }),
    ]
}

fn outer(encap: Encap, v6: bool, csum: bool) -> Outer {
    let (src, dst): (IpAddr, IpAddr) = match v6 {
        false => (
            Ipv4Addr::new(10, 1, 0, 1).into(),
            Ipv4Addr::new(10, 1, 0, 2).into(),
        ),
        true => (
            Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1).into(),
            Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2).into(),
        ),
    };
    Outer {
        eth_src: [2, 0, 0, 0, 0, 3],
        eth_dst: [2, 0, 0, 0, 0, 4],
        src,
        dst,
        tos: 0,
        ttl: 64,
        df: true,
        label: 0,
        csum,
        source_ports: SOURCE_PORTS,
        encap,
        tunnel_port: 1,
        out_port: 2,
        mtu: 0,
        numbers: Default::default(),
    }
}

/// Puts a packet into a tunnel.
fn push(outer: &Outer, t: &GsoPacket, p: &mut Packet) {
    let inner = Inner {
        l3: t.l3() as u16,
        l4: t.l4() as u16,
        proto: if t.tcp() { 6 } else { 17 },
    };
    outer.build().unwrap().apply(p, inner, 0).unwrap();
}

/// An older kernel takes fewer datagrams of a GSO packet, which is found out once; a kernel that refuses all
/// gets segments.
#[test]
fn gso_packets_have_the_number_of_datagrams_that_the_kernel_takes() {
    let t = GsoPacket {
        kind: GsoKind::Udp,
        v6: false,
        tags: 0,
        ip_options: 0,
        tcp_options: 0,
        payload: vec![7; 20_000],
        size: 100,
        flags: 0,
        seq: 0,
        id: 1,
    };
    let encap = Encap::Vxlan {
        port: 4789,
        vni: 5,
        gbp: None,
        gpe: None,
    };
    let mut whole = t.build();
    push(&outer(encap, false, true), &t, &mut whole);
    let (mut pool, mut datagrams) = (Pool::new(4), Datagrams::default());
    let mut send = |takes: usize| {
        let (mut tried, mut taken) = (0, Vec::new());
        let done = datagrams.send(&mut pool, &whole, &mut |gso_packet| {
            let n = pieces(gso_packet).unwrap().len();
            tried += 1;
            if n > takes {
                return Err(22);
            }
            taken.push(n);
            Ok(())
        });
        (done, tried, taken)
    };
    assert_eq!(send(128), (Some(Ok(())), 2, vec![128, 72]));
    assert_eq!(send(1), (None, 2, vec![]));
    assert_eq!(send(64), (Some(Ok(())), 5, vec![64, 64, 64, 8]));
    assert_eq!(send(64), (Some(Ok(())), 4, vec![64, 64, 64, 8]));
}

/// The packet that comes out of the tunnel: each length and checksum is checked.
fn pop(kind: TunnelKind, bytes: &[u8]) -> Vec<u8> {
    let pop = TunnelPop {
        kind,
        port: 1,
        options: OptionTable::default(),
    };
    let mut p = Packet::from_bytes(bytes);
    pop.apply(&mut p, 14, &mut FlowKey::default()).unwrap();
    p.to_vec()
}

/// The packet that comes out of the tunnel, all of it at once; `None`: it cannot.
fn joined(one: &Packet, kind: TunnelKind, v6: bool, odd: bool) -> Option<Packet> {
    let mut gso_packet = Packet::new_big();
    one.copy_into(&mut gso_packet);
    let l4 = 14 + if v6 { 40 } else { 20 };
    if !join::is_datagrams(&gso_packet, l4) {
        // But one segment.
        assert!(gso_packet.offload.gso.is_none());
        complete_csum(&mut gso_packet).unwrap();
        let bytes = pop(kind, gso_packet.head());
        return Some(Packet::from_bytes(&bytes));
    }
    let before = gso_packet.to_vec();
    if !join::join(&mut gso_packet, kind, (14, l4)) {
        assert!(odd && gso_packet.to_vec() == before);
        return None;
    }
    let pop = TunnelPop {
        kind,
        port: 1,
        options: OptionTable::default(),
    };
    pop.apply(&mut gso_packet, 14, &mut FlowKey::default()).unwrap();
    Some(gso_packet)
}

/// The packets that a port with joining makes of `packets`, with their checksums filled in.
fn joined_by_gro(pool: &mut Pool, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let packets: Vec<Packet> = packets.iter().map(|b| Packet::from_bytes(b)).collect();
    let mut all = Vec::new();
    for batch in packets.chunks(crate::gro::MAX_BATCH) {
        let batch: Vec<&Packet> = batch.iter().collect();
        let mut gro = crate::gro::Gro::default();
        if !gro.join(pool, &batch, crate::gro::GsoKinds::ALL) {
            all.extend(batch.iter().map(|p| p.to_vec()));
            continue;
        }
        for (p, _) in gro.result(&batch).0 {
            let mut whole = Packet::new_big();
            p.copy_into(&mut whole);
            complete_csum(&mut whole).unwrap();
            all.push(whole.to_vec());
        }
        gro.done(pool);
    }
    all
}

proptest! {
    #[test]
    fn segments_come_out_as_they_would_have_gone_in(
        t in gso_packet(), encap in encap(), v6: bool, csum: bool, second in prop::option::of(encap()),
    ) {
        let plain = pieces(&t.build()).unwrap();
        let mut whole = t.build();
        push(&outer(encap.clone(), v6, csum), &t, &mut whole);
        let mut kinds = vec![encap.kind()];
        if let Some(second) = &second {
            // A tunnel in a tunnel: there is no flow to choose a port by.
            let none = Inner { l3: u16::MAX, l4: u16::MAX, proto: 0 };
            outer(second.clone(), !v6, csum).build().unwrap().apply(&mut whole, none, 0).unwrap();
            kinds.insert(0, second.kind());
        }
        let cut = pieces(&whole).unwrap();
        prop_assert_eq!(cut.len(), plain.len());
        for (cut, plain) in cut.iter().zip(&plain) {
            let out = kinds.iter().fold(cut.clone(), |bytes, kind| pop(*kind, &bytes));
            prop_assert_eq!(&out, plain);
        }
    }

    /// A GSO packet that a tap takes as it is, read from a tap, is cut into the same segments. For any change
    /// of header or bytes, the decoder returns.
    #[test]
    fn a_tap_gives_back_what_it_took(
        t in gso_packet(), encap in encap(), v6: bool, csum: bool, tagged: bool,
        changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..8),
    ) {
        let mut before = t.build();
        push(&outer(encap.clone(), v6, csum), &t, &mut before);
        let of_udp = matches!(encap.kind(), TunnelKind::Geneve | TunnelKind::Vxlan);
        let Some(w) = whole(&before) else {
            prop_assert!(!of_udp);
            return Ok(());
        };
        let mut hdr = net_hdr::encode_tunnel(&before.offload, before.len(), Some(w.tunnel));
        let mut frame = w.outer.to_vec();
        frame.extend(before.to_vec().get(w.outer.len()..).unwrap());
        let mut want = pieces(&before).unwrap();
        if tagged {
            // The format that Linux writes.
            frame.splice(12..12, [0x81, 0, 0, 10]);
            let start = u16::from_le_bytes([hdr[6], hdr[7]]) + 4;
            hdr[6..8].copy_from_slice(&start.to_le_bytes());
            for s in &mut want {
                s.splice(12..12, [0x81, 0, 0, 10]);
            }
        }
        let mut p = Packet::from_bytes(&frame);
        p.offload = net_hdr::decode_tunnel(&hdr, &frame).unwrap();
        prop_assert_eq!(pieces(&p).unwrap(), want);
        let most = frame.len().min(160);
        for (at, value) in changes {
            match usize::from(at) % 200 {
                at if at < hdr.len() => hdr[at] = value,
                at => frame[(at - hdr.len()) % most] = value,
            }
        }
        let Ok(offload) = net_hdr::decode_tunnel(&hdr, &frame) else { return Ok(()) };
        let mut pool = Pool::new(4);
        let mut p = Packet::from_bytes(&frame);
        p.offload = offload;
        let _ = pieces(&p);
        let _ = whole(&p);
        let _ = as_datagrams(&mut pool, &p, 128, &mut |gso_packet| pieces(gso_packet).is_ok());
        for kind in [TunnelKind::Geneve, TunnelKind::Vxlan, TunnelKind::Gre, TunnelKind::Stt] {
            let mut p = Packet::from_bytes(&frame);
            p.offload = offload;
            let pop = TunnelPop { kind, port: 1, options: OptionTable::default() };
            if pop.apply(&mut p, 14 + 4 * u16::from(tagged), &mut FlowKey::default()).is_ok() {
                let _ = pieces(&p);
            }
        }
    }

    #[test]
    fn datagrams_hold_the_segments(t in gso_packet(), encap in encap(), v6: bool) {
        let plain = pieces(&t.build()).unwrap();
        let mut whole = t.build();
        push(&outer(encap.clone(), v6, true), &t, &mut whole);
        let mut pool = Pool::new(4);
        let (mut out, mut together) = (Vec::new(), Vec::new());
        let done = as_datagrams(&mut pool, &whole, 128, &mut |gso_packet| {
            let cut = pieces(gso_packet).unwrap();
            out.extend(cut.iter().map(|bytes| pop(encap.kind(), bytes)));
            if let Some(joined) = joined(gso_packet, encap.kind(), v6, t.has_options()) {
                together.extend(pieces(&joined).unwrap());
            }
            true
        });
        let of_udp = matches!(encap.kind(), TunnelKind::Geneve | TunnelKind::Vxlan);
        prop_assert_eq!(done, Ok(of_udp));
        if of_udp {
            prop_assert_eq!(&out, &plain);
            prop_assert!(t.has_options() || together == plain);
        }
    }

    /// A GSO packet in STT is cut as a port cuts it, and shuffled. It comes out whole if it is TCP's, and as
    /// its datagrams if it is UDP's. The same holds if segments were joined on their way.
    #[test]
    fn stt_gives_the_gso_packet_back(
        t in gso_packet(), v6: bool, joined: bool, mtu in 600_u32..4000,
        order in prop::collection::vec(any::<u16>(), 64),
    ) {
        let plain = pieces(&t.build()).unwrap();
        let mut whole = t.build();
        let encap = Encap::Stt { port: 7471, key: 7 };
        push(&Outer { mtu, ..outer(encap, v6, false) }, &t, &mut whole);
        let mut segments = pieces(&whole).unwrap();
        if t.tcp() {
            prop_assert!(segments.iter().all(|s| s.len() <= 14 + mtu as usize));
        }
        let mut pool = Pool::new(64);
        if joined {
            segments = joined_by_gro(&mut pool, &segments);
        }
        let mut place = order.iter().cycle();
        segments.sort_by_cached_key(|_| place.next());
        let pop = TunnelPop { kind: TunnelKind::Stt, port: 1, options: OptionTable::default() };
        let (mut frames, mut out) = (Frames::default(), Vec::new());
        for s in &segments {
            let mut p = Packet::from_bytes(s);
            let waiting = (&mut frames, &mut pool, 0);
            if pop.gather(&mut p, 14, &mut FlowKey::default(), waiting).unwrap().is_some() {
                out.extend(pieces(&p).unwrap());
            }
        }
        let mut plain = plain;
        if !t.tcp() {
            // Their order was changed.
            plain.sort();
            out.sort();
        }
        prop_assert_eq!(out, plain);
        prop_assert!(frames.is_empty());
    }
}
