//! Round trips: encapsulation and decapsulation.

use super::*;
use crate::{OptionTable, PopError, TunnelKind, TunnelPop, options};
use heddle_flow::key::tun_flag;
use heddle_packet::{Csum, Gso, GsoKind, Wrap, Wraps};
use heddle_wire::checksum::checksum;
use proptest::prelude::*;

/// Any encapsulation of a frame, and the tunnel fields of its key.
pub(super) fn any_encap() -> impl Strategy<Value = (Encap, FlowKey)> {
    let vni = 0_u32..1 << 24;
    prop_oneof![
        (vni.clone(), any::<[u8; 12]>(), 0_u8..4, any::<bool>()).prop_map(|(vni, bytes, which, oam)| {
            let map = map();
            let mut key = FlowKey {
                tun_id: vni.into(),
                tun_flags: tun_flag::KEY | if oam { tun_flag::OAM } else { 0 },
                ..FlowKey::default()
            };
            if which & 1 != 0 {
                map.field(0).unwrap().put(&mut key, &bytes[..4]);
            }
            if which & 2 != 0 {
                map.field(3).unwrap().put(&mut key, &bytes[4..]);
            }
            let (options, critical) = options::write(&key, &map).unwrap();
            let port = 6081;
            (
                Encap::Geneve {
                    port,
                    vni,
                    oam,
                    critical,
                    options,
                },
                key,
            )
        }),
        (vni, any::<Option<(u16, u8)>>()).prop_map(|(vni, gbp)| {
            let gbp = gbp.map(|(id, flags)| Gbp {
                id,
                flags: flags & 0x48,
            });
            let key = FlowKey {
                tun_id: vni.into(),
                tun_flags: tun_flag::KEY,
                tun_gbp_id: gbp.map_or(0, |g| g.id),
                tun_gbp_flags: gbp.map_or(0, |g| g.flags),
                ..FlowKey::default()
            };
            (
                Encap::Vxlan {
                    port: 4789,
                    vni,
                    gbp,
                    gpe: None,
                },
                key,
            )
        }),
        (any::<Option<u32>>(), any::<bool>()).prop_map(|(id, seq)| {
            let key = FlowKey {
                tun_id: id.unwrap_or(0).into(),
                tun_flags: id.map_or(0, |_| tun_flag::KEY),
                ..FlowKey::default()
            };
            (
                Encap::Gre {
                    proto: 0x6558,
                    key: id,
                    seq,
                },
                key,
            )
        }),
        (0_u16..1024, 0_u32..1 << 20).prop_map(|(session, index)| {
            let key = FlowKey {
                tun_id: session.into(),
                tun_flags: tun_flag::KEY,
                tun_erspan_ver: 1,
                tun_erspan_idx: index,
                ..FlowKey::default()
            };
            (Encap::Erspan1 { session, index }, key)
        }),
        (0_u16..1024, any::<bool>(), 0_u8..64).prop_map(|(session, egress, hwid)| {
            let key = FlowKey {
                tun_id: session.into(),
                tun_flags: tun_flag::KEY,
                tun_erspan_ver: 2,
                tun_erspan_dir: egress.into(),
                tun_erspan_hwid: hwid,
                ..FlowKey::default()
            };
            (
                Encap::Erspan2 {
                    session,
                    egress,
                    hwid,
                },
                key,
            )
        }),
    ]
}

/// Checks the headers of an outer packet by a plain reading of the standards.
fn verify(f: &[u8], csum: bool) {
    let (l4, len, pseudo) = if f[12] == 8 {
        assert_eq!(checksum(&f[14..34]), 0);
        assert_eq!(usize::from(u16::from_be_bytes([f[16], f[17]])), f.len() - 14);
        let addr = |at: usize| u32::from_be_bytes([f[at], f[at + 1], f[at + 2], f[at + 3]]);
        let len = f.len() - 34;
        (
            34,
            len,
            Sum::ZERO.pseudo_v4(addr(26), addr(30), f[23], u32::try_from(len).unwrap()),
        )
    } else {
        let len = f.len() - 54;
        assert_eq!(usize::from(u16::from_be_bytes([f[18], f[19]])), len);
        let (src, dst) = (f[22..38].try_into().unwrap(), f[38..54].try_into().unwrap());
        (
            54,
            len,
            Sum::ZERO.pseudo_v6(src, dst, f[20], u32::try_from(len).unwrap()),
        )
    };
    let proto = f[if l4 == 34 { 23 } else { 20 }];
    match proto {
        17 => {
            assert_eq!(usize::from(u16::from_be_bytes([f[l4 + 4], f[l4 + 5]])), len);
            if csum {
                assert_ne!(f[l4 + 6..l4 + 8], [0, 0]);
                assert_eq!(pseudo.bytes(&f[l4..]).checksum(), 0);
            } else {
                assert_eq!(f[l4 + 6..l4 + 8], [0, 0]);
            }
        }
        47 if f[l4] & 0x80 != 0 => assert_eq!(checksum(&f[l4..]), 0),
        _ => {}
    }
}

/// Fills an inner checksum in, as a device would.
pub(super) fn complete(f: &mut [u8], csum: Csum) {
    if let Csum::Partial { start, offset } = csum {
        let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
        let sum = Sum::ZERO.bytes(&f[start..]).checksum_nonzero();
        f[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

proptest! {
    /// Bytes and metadata of the packet are unchanged, and the key has the fields of the headers. Checksums
    /// and lengths are right, whether the inner checksum is complete or partial.
    #[test]
    fn push_and_pop(
        (encap, want) in any_encap(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        (v6, csum, partial, padding) in (any::<bool>(), any::<bool>(), any::<bool>(), 0_usize..8),
        (tos, ttl) in (any::<u8>(), 1_u8..=255),
    ) {
        let erspan = matches!(encap, Encap::Erspan1 { .. } | Encap::Erspan2 { .. });
        let kind = encap.kind();
        let outer = Outer { csum, tos, ttl, ..outer(v6, encap) };
        let template = outer.build().unwrap();
        let mut bytes = frame(&payload);
        let mut p = Packet::new();
        if partial {
            let len = u32::try_from(bytes.len() - 34).unwrap();
            let seed = Sum::ZERO.pseudo_v4(0xc0a8_0001, 0xc0a8_0002, 17, len).folded();
            bytes[40..42].copy_from_slice(&seed.to_be_bytes());
        }
        p.set_bytes(&bytes);
        if partial {
            p.offload.csum = Csum::Partial { start: 34, offset: 6 };
        }
        let offload = p.offload;
        push(&template, &mut p);
        let mut on_the_wire = p.to_vec();
        complete(&mut on_the_wire, p.offload.csum);
        verify(&on_the_wire, csum);

        // The packet itself, and its bytes on the wire with padding.
        on_the_wire.resize(on_the_wire.len() + padding, 0x5a);
        let received = Packet::from_bytes(&on_the_wire);
        let pop = TunnelPop { kind, port: 5, options: OptionTable::of(&map()) };
        for (mut p, as_it_was) in [(p, true), (received, false)] {
            let mut key = FlowKey::default();
            let popped = pop.apply(&mut p, 14, &mut key).unwrap();
            prop_assert_eq!(popped.packet_type, packet_type::ETHERNET);
            if as_it_was {
                prop_assert_eq!(p.offload, offload);
                prop_assert_eq!(p.to_vec(), bytes.clone());
            } else {
                let mut whole = bytes.clone();
                complete(&mut whole, offload.csum);
                if matches!(kind, TunnelKind::Gre | TunnelKind::Erspan) {
                    // GRE has no length, so the padding stays.
                    whole.resize(whole.len() + padding, 0x5a);
                }
                prop_assert_eq!(p.to_vec(), whole);
            }
            let mut want = FlowKey { tun_tos: tos, tun_ttl: ttl, ..want };
            if v6 {
                want.tun_ipv6_src = template.header[22..38].try_into().unwrap();
                want.tun_ipv6_dst = template.header[38..54].try_into().unwrap();
            } else {
                (want.tun_src, want.tun_dst) = (0x0a00_0001, 0x0a00_0002);
            }
            if csum && !erspan {
                want.tun_flags |= tun_flag::CSUM;
            }
            prop_assert_eq!(key, want);
        }
    }

    /// A changed bit anywhere in an outer packet with a checksum is detected.
    #[test]
    fn a_changed_bit_is_found(at in 14_usize..100, bit in 0_u8..8) {
        let outer = Outer { csum: true, ..outer(false, geneve(Vec::new())) };
        let mut p = Packet::from_bytes(&frame(&[7; 60]));
        push(&outer.build().unwrap(), &mut p);
        p.head_mut()[at] ^= 1 << bit;
        let pop = TunnelPop { kind: TunnelKind::Geneve, port: 5, options: OptionTable::default() };
        prop_assert!(pop.apply(&mut p, 14, &mut FlowKey::default()).is_err());
    }
}

/// A GSO packet stays one, its metadata lists its tunnels, and it may be longer than a length field can hold.
#[test]
fn gso_packets_stay_gso_packets() {
    let mut bytes = frame(&vec![1; 64_000]);
    bytes[23] = 6; // TCP
    bytes[46] = 5 << 4;
    let mut p = Packet::new();
    p.set_bytes(&bytes);
    p.offload.csum = Csum::Partial {
        start: 34,
        offset: 16,
    };
    let gso = Gso {
        kind: GsoKind::Tcp4,
        ecn: false,
        size: 1448,
        hdr_len: 54,
        wraps: Wraps::default(),
    };
    p.offload.gso = Some(gso);
    let before = (p.offload, p.to_vec());
    let outer = Outer {
        csum: true,
        mtu: 1600,
        ..outer(false, geneve(vec![0; 252]))
    };
    let template = outer.build().unwrap();
    for i in 1..=Wraps::MOST {
        push(&template, &mut p);
        let gso = p.offload.gso.unwrap();
        // Outer headers 20 + 8 + 8 + 252, inner ones 14 + 20 + 20.
        assert_eq!(usize::from(gso.size), 1600 - i * (288 + 14) + 14 - 54, "{i}");
        assert_eq!(gso.wraps.split().unwrap().0, Wrap::Geneve);
        let len = u16::from_be_bytes([p.head()[16], p.head()[17]]);
        assert_eq!(
            usize::from(len),
            if p.len() - 14 > 65535 { 0 } else { p.len() - 14 }
        );
        if i == Wraps::MOST {
            let mut key = inner(&p, 0);
            key.l3 = 14;
            assert_eq!(template.apply(&mut p, key, 0), Err(crate::PushError::Gso));
        }
    }
    let pop = TunnelPop {
        kind: TunnelKind::Geneve,
        port: 5,
        options: OptionTable::default(),
    };
    for _ in 0..Wraps::MOST {
        pop.apply(&mut p, 14, &mut FlowKey::default()).unwrap();
    }
    let mut after = p.offload;
    after.gso.as_mut().unwrap().size = 1448;
    assert_eq!((after, p.to_vec()), before);
}

/// Outer packets may have IPv4 options, except source routes and malformed ones.
#[test]
fn outer_packets_may_have_options() {
    let bytes = frame(&[7; 60]);
    let with = |options: &[u8], total: usize| {
        let mut p = Packet::from_bytes(&bytes);
        push(&outer(false, geneve(Vec::new())).build().unwrap(), &mut p);
        let mut whole = p.to_vec();
        whole.splice(34..34, options.iter().copied());
        whole[14] = 0x45 + u8::try_from(options.len() / 4).unwrap();
        whole[16..18].copy_from_slice(&u16::try_from(total + options.len()).unwrap().to_be_bytes());
        whole[24..26].fill(0);
        let sum = heddle_wire::checksum::checksum(&whole[14..34 + options.len()]);
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
        let mut p = Packet::from_bytes(&whole);
        let pop = TunnelPop {
            kind: TunnelKind::Geneve,
            port: 5,
            options: OptionTable::default(),
        };
        let mut key = FlowKey::default();
        let popped = pop.apply(&mut p, 14, &mut key)?;
        Ok((usize::from(popped.taken), p.to_vec(), key.tun_src))
    };
    let total = bytes.len() + 20 + 8 + 8;
    let headers = 14 + 20 + 8 + 8;
    let router_alert = [148, 4, 0, 0];
    let record_route = [7, 39, 4].into_iter().chain([0; 37]).collect::<Vec<u8>>();
    for options in [&router_alert[..], &[1, 1, 1, 0], &[0, 9, 9, 9], &record_route] {
        let expected = (headers + options.len(), bytes.clone(), 0x0a00_0001);
        assert_eq!(with(options, total), Ok(expected), "{options:?}");
    }
    for options in [
        [131, 3, 4, 0],
        [137, 3, 4, 0],
        [148, 5, 0, 0],
        [148, 1, 0, 0],
        [1, 1, 1, 148],
    ] {
        assert_eq!(with(&options, total), Err(PopError::IpOptions), "{options:?}");
    }
    assert_eq!(with(&router_alert, 19), Err(PopError::Length));
}
