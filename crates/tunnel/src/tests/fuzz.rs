//! Mutants of good packets: decapsulation never panics, and its output is a part of the input.
//!
//! Encapsulated packets are the seeds. There is no corpus: each run makes new mutants.

use super::round::complete;
use super::stt::stt;
use super::*;
use crate::join;
use crate::stt::Frames;
use crate::{OptionTable, TunnelKind, TunnelPop, options};
use heddle_fuzz::{Dice, rounds};
use heddle_packet::{Csum, Gso, GsoKind, Pool, Wraps};
use proptest::prelude::*;

/// Packets in tunnels of all kinds, with an Ethernet frame or an IP packet inside.
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
        (stt(7), false),
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
            let mut bytes = p.to_vec();
            complete(&mut bytes, p.offload.csum);
            seeds.push((kind, bytes));
        }
    }
    seeds
}

/// Fixes the IPv4 header's checksum, so that the headers behind it are read.
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

/// Metadata of a packet.
#[derive(Clone, Copy, Debug)]
struct Claims {
    csum: Option<(u16, u16)>,
    /// Segment size of a GSO packet, bytes.
    gso: Option<u16>,
    l3: u16,
}

/// Decapsulates a packet, which is joined before if it is a GSO packet. There is no panic, and the output is
/// a part of the input.
fn check(kind: TunnelKind, bytes: &[u8], claims: Claims) {
    let len = bytes.len();
    let mut p = Packet::new_big();
    p.set_bytes(bytes);
    if let Some((start, offset)) = claims.csum {
        let (start, offset) = (start % 256, offset % 32);
        p.offload.csum = Csum::Partial { start, offset };
        p.offload.gso = claims.gso.map(|size| Gso {
            kind: GsoKind::Udp,
            ecn: false,
            size,
            hdr_len: 0,
            wraps: Wraps::default(),
        });
        if join::is_datagrams(&p, start) && join::join(&mut p, kind, (claims.l3, start)) {
            assert!(p.len() <= len, "longer than it was");
        }
    }
    let pop = TunnelPop {
        kind,
        port: 1,
        options: OptionTable::of(&map()),
    };
    let before = p.to_vec();
    let (mut frames, mut pool) = (Frames::default(), Pool::new(1));
    let waiting = (&mut frames, &mut pool, 0);
    if let Ok(Some(_)) = pop.gather(&mut p, claims.l3, &mut FlowKey::default(), waiting) {
        let mut after = p.to_vec();
        assert!(after.len() <= len);
        if kind == TunnelKind::Stt && after.get(12..14) == Some(&[0x81, 0]) {
            // The VLAN tag comes from the STT header.
            after.drain(12..16);
        }
        assert!(after.is_empty() || before.windows(after.len()).any(|w| w == after));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]
    /// Changed bytes, cut ends, wrong metadata.
    #[test]
    fn mutants_are_handled(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        (whole, csum, l3) in (
            any::<bool>(),
            prop_oneof![any::<Option<(u16, u16)>>(), Just(Some((34, 6))), Just(Some((54, 6)))],
            prop_oneof![9 => Just(14_u16), 1 => any::<u16>()],
        ),
        gso in prop::option::of(prop_oneof![any::<u16>(), 60_u16..140]),
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
        check(kind, &bytes, Claims { csum, gso, l3 });
    }
}

/// Mutants for as long as `heddle_fuzz` runs.
#[test]
#[ignore = "make fuzz"]
fn explore() {
    let seeds = seeds();
    let packets: Vec<Vec<u8>> = seeds.iter().map(|(_, bytes)| bytes.clone()).collect();
    let (runs, slowest) = rounds("headers", |dice, script| {
        *script = dice.mutant(&packets, 2000);
        let kind = seeds[dice.roll(seeds.len())].0;
        if dice.roll(4) > 0 {
            mend(script);
        }
        let pick = |dice: &mut Dice, of: [u16; 4]| of[dice.roll(4)];
        let claims = Claims {
            csum: (dice.roll(2) > 0).then(|| (pick(dice, [34, 54, 14, 84]), pick(dice, [6, 16, 0, 31]))),
            gso: (dice.roll(2) > 0).then(|| u16::from(dice.byte()) + pick(dice, [0, 60, 1400, 1])),
            l3: if dice.roll(10) > 0 { 14 } else { dice.byte().into() },
        };
        check(kind, script, claims);
    });
    println!("{runs} packets, the slowest took {slowest:?}");
}
