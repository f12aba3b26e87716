//! Almost good packets: whatever they are, decapsulation answers, and what it lets through lies within them.
//!
//! Packets that went into tunnels are the seeds; there is no corpus, mutants are made anew in each run.

use super::*;
use crate::{OptionTable, TunnelKind, TunnelPop, options};
use heddle_packet::{Csum, Gso, GsoKind, Wraps};
use proptest::prelude::*;

/// Packets in tunnels of all kinds that have an Ethernet frame or an IP packet inside.
fn seeds() -> Vec<(TunnelKind, Vec<u8>)> {
    let mut key = FlowKey::default();
    let map = map();
    map.field(0).unwrap().put(&mut key, &[1, 2, 3, 4]);
    map.field(3).unwrap().put(&mut key, &[5; 8]);
    let (options, _) = options::write(&key, &map).unwrap();
    let vxlan = |gbp, gpe| Encap::Vxlan {
        port: 4789,
        vni: 7,
        gbp,
        gpe,
    };
    let gre = |proto, key, seq| Encap::Gre { proto, key, seq };
    let gtpu = |seq| Encap::Gtpu {
        port: 2152,
        flags: 0x30,
        message: 255,
        teid: 9,
        seq,
    };
    let srv6 = Encap::Srv6 {
        segments: vec![[1; 16], [2; 16]],
        next: 4,
    };
    let session = 5;
    let all = [
        (geneve(options), false),
        (geneve(Vec::new()), false),
        (vxlan(None, None), false),
        (vxlan(Some(Gbp { id: 3, flags: 8 }), None), false),
        (vxlan(None, Some(1)), true),
        (gre(0x6558, Some(1), true), false),
        (gre(0x0800, None, false), true),
        (Encap::Erspan1 { session, index: 8 }, false),
        (
            Encap::Erspan2 {
                session,
                egress: true,
                hwid: 1,
            },
            false,
        ),
        (gtpu(false), true),
        (gtpu(true), true),
        (srv6, true),
    ];
    let mut seeds = Vec::new();
    for (encap, layer3) in all {
        for (v6, csum) in [(false, false), (false, true), (true, true)] {
            let kind = encap.kind();
            let outer = Outer {
                csum,
                ..outer(v6, encap.clone())
            };
            let Ok(template) = outer.build() else { continue };
            let whole = frame(&[3; 90]);
            let mut p = Packet::from_bytes(if layer3 { &whole[14..] } else { &whole });
            let ty = if layer3 {
                packet_type::IPV4
            } else {
                packet_type::ETHERNET
            };
            let inner = inner(&p, ty);
            template.apply(&mut p, inner, 1).unwrap();
            seeds.push((kind, p.to_vec()));
        }
    }
    seeds
}

/// Fixes the IPv4 header's checksum, so that what is behind it is looked at.
fn mend(bytes: &mut [u8]) {
    if let Some(ip) = bytes.get_mut(14..34) {
        ip[10..12].fill(0);
        let csum = heddle_wire::checksum::checksum(ip);
        ip[10..12].copy_from_slice(&csum.to_be_bytes());
    }
}

#[test]
fn seeds_come_out() {
    for (kind, bytes) in seeds() {
        let pop = TunnelPop {
            kind,
            port: 1,
            options: OptionTable::of(&map()),
        };
        let mut p = Packet::from_bytes(&bytes);
        let popped = pop.apply(&mut p, 14, &mut FlowKey::default());
        let inside = frame(&[3; 90]);
        let want = match popped.map(|p| p.packet_type) {
            Ok(packet_type::ETHERNET) => &inside[..],
            Ok(packet_type::IPV4) => &inside[14..],
            other => panic!("{kind:?} {other:?} {bytes:02x?}"),
        };
        assert_eq!(p.to_vec(), want, "{kind:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    /// Changed bytes, cut ends, lying metadata.
    #[test]
    fn mutants_are_answered(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        (whole, csum, l3) in (any::<bool>(), any::<Option<(u16, u16)>>(), prop_oneof![9 => Just(14_u16), 1 => any::<u16>()]),
        train in any::<bool>(),
    ) {
        let seeds = seeds();
        let (kind, mut bytes) = seeds[which.index(seeds.len())].clone();
        for (at, v) in changes {
            let at = at.index(100.min(bytes.len()));
            bytes[at] = v;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if kind != TunnelKind::Srv6 && bytes.get(12) == Some(&8) {
            mend(&mut bytes);
        }
        let len = bytes.len();
        let mut p = Packet::from_bytes(&bytes);
        if let Some((start, offset)) = csum {
            p.offload.csum = Csum::Partial { start: start % 256, offset: offset % 32 };
            if train {
                p.offload.gso = Some(Gso { kind: GsoKind::Udp, ecn: false, size: 1, hdr_len: 0, wraps: Wraps::default() });
            }
        }
        let pop = TunnelPop { kind, port: 1, options: OptionTable::of(&map()) };
        let mut key = FlowKey::default();
        let before = p.to_vec();
        if pop.apply(&mut p, l3, &mut key).is_ok() {
            let after = p.to_vec();
            prop_assert!(after.len() <= len);
            prop_assert!(before.windows(after.len().max(1)).any(|w| w == after) || after.is_empty());
        }
    }
}
