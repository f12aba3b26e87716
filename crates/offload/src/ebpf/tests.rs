//! The program in the kernel beside its twin. The kernel runs it on packets that are given to it
//! (`BPF_PROG_TEST_RUN`), which needs root. Without root nothing is tested, and the test prints that.

use super::conns::Live;
use super::flows::{Diverted, State};
use super::{abi, layout, load, twin};
use crate::PortLink;
use crate::miss::MissDevice;
use crate::rule::{TUN_CSUM, TUN_IPV6, TUN_OPTION};
use crate::{ConnUse, Ct, Decap, Headers, Op, Rule};
use aya::programs::{TestRun as _, TestRunOptions};
use heddle_conntrack::offloaded::{ConnId, EndOffload as _, Offloadable};
use heddle_datapath_api::{FlowCounts, PortNo};
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::{Encap, Outer, TunnelPush};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The device of packets that are given to the kernel.
const LOOPBACK: u32 = 1;
/// Verdicts of the program.
const REDIRECT: u32 = 7;
const SHOT: u32 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) v6: bool,
    pub(crate) proto: u8,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// IPv4: begins with options; a fragment. TCP: flags.
    pub(crate) options: bool,
    pub(crate) fragment: bool,
    pub(crate) flags: u8,
    pub(crate) last: [u8; 2],
    pub(crate) ports: [u8; 2],
    pub(crate) payload: usize,
}

pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    let protos = prop_oneof![3 => Just(6), 3 => Just(17), 1 => Just(1), 1 => Just(58), 1 => Just(132)];
    let rare = || prop::bool::weighted(0.1);
    let flags = prop_oneof![4 => Just(0x10), 1 => any::<u8>()];
    (
        (any::<bool>(), protos, any::<u8>(), 1_u8..4, rare(), rare()),
        (flags, [0_u8..2, 0_u8..2], [0_u8..3, 130_u8..136], 0_usize..40),
    )
        .prop_map(
            |((v6, proto, tos, ttl, options, fragment), (flags, last, ports, payload))| Shape {
                v6,
                proto,
                tos,
                ttl,
                options: options && !v6,
                fragment: fragment && !v6,
                flags,
                last,
                ports,
                payload,
            },
        )
}

pub(crate) fn frame(s: &Shape) -> Vec<u8> {
    let l4: Vec<u8> = match s.proto {
        6 => {
            let mut tcp = vec![
                0, s.ports[0], 0, s.ports[1], 0, 0, 0, 1, 0, 0, 0, 2, 0x50, s.flags,
            ];
            tcp.extend([1, 0, 0, 0, 0, 0]);
            tcp
        }
        17 => {
            let len = u16::try_from(8 + s.payload).unwrap().to_be_bytes();
            vec![0, s.ports[0], 0, s.ports[1], len[0], len[1], 0, 0]
        }
        // The type is now and then one of neighbour discovery.
        _ => vec![s.ports[1], s.ports[0], 0, 0, 0, 0, 0, 7],
    };
    let mut f = vec![2, 0, 0, 0, 0, s.last[1], 2, 0, 0, 0, 0, s.last[0]];
    let n = u16::try_from(l4.len() + s.payload).unwrap();
    if s.v6 {
        f.extend([0x86, 0xdd, 0x60 | s.tos >> 4, s.tos << 4, 0, 5]);
        f.extend(n.to_be_bytes());
        f.extend([s.proto, s.ttl]);
        for last in s.last {
            f.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
    } else {
        let options: &[u8] = if s.options { &[1, 1, 1, 1] } else { &[] };
        let ihl = 5 + u8::from(s.options);
        f.extend([8, 0, 0x40 | ihl, s.tos]);
        f.extend((n + u16::from(ihl) * 4).to_be_bytes());
        f.extend([
            0,
            9,
            if s.fragment { 0x20 } else { 0x40 },
            0,
            s.ttl,
            s.proto,
            0,
            0,
        ]);
        s.last.iter().for_each(|last| f.extend([10, 0, 0, *last]));
        f.extend(options);
    }
    f.extend(l4);
    f.extend((0..s.payload).map(|i| u8::try_from(i).unwrap()));
    if !s.options && matches!(s.proto, 6 | 17 | 1 | 58) {
        twin::finish(&mut f);
    }
    f
}

/// A rule about packets like this one, in some of their fields.
pub(crate) fn rule(s: &Shape, fields: u16, writes: u16, value: u8) -> Rule {
    let has = |bit: u16| fields & 1 << bit != 0;
    let b = |bit, mask| if has(bit) { mask } else { 0 };
    let ports = matches!(s.proto, 6 | 17);
    // A rule that writes ports has matched on the protocol.
    let writes_ports = ports && writes & 0xc0 != 0;
    let mut mask = Headers {
        dl_dst: [b(0, 0xff); 6],
        dl_src: [b(1, 0xff); 6],
        dl_type: 0xffff,
        nw_proto: if writes_ports { 0xff } else { b(2, 0xff) },
        nw_tos: b(3, 0xfc),
        nw_ttl: b(4, 0xff),
        label: u32::from(b(5, 0xff)),
        tp_src: u16::from(b(6, 0xff)),
        tp_dst: u16::from(b(7, 0xff)),
        ..Headers::default()
    };
    let n = if s.v6 { 16 } else { 4 };
    mask.src[..n].fill(b(8, 0xff));
    mask.dst[..n].fill(b(9, 0xff));
    let (_, key) = twin::read(&frame(s));
    let able = [
        (true, Op::EthDst([2, 0, 0, 0, 9, value])),
        (true, Op::EthSrc([2, 0, 0, 0, 8, value])),
        (!s.v6, Op::Ipv4Src([10, 9, value, 1])),
        (!s.v6, Op::Ipv4Dst([10, 8, 1, value])),
        (
            true,
            Op::Tos {
                value: value & 0xfc,
                mask: 0xfc,
            },
        ),
        (true, Op::Ttl(value)),
        (ports, Op::L4Src(0x1000 | u16::from(value))),
        (ports, Op::L4Dst(0x2000 | u16::from(value))),
        (
            s.v6,
            Op::Ipv6Word {
                at: value & 7,
                word: [0xfd, value, 1, 2],
            },
        ),
    ];
    let chosen = able
        .iter()
        .enumerate()
        .filter(|(i, (can, _))| *can && writes & 1 << i != 0);
    let mut ops: Vec<Op> = chosen.map(|(_, (_, op))| *op).collect();
    ops.push(Op::Output(PortNo(1)));
    Rule {
        in_port: PortNo(1),
        key,
        mask,
        ops: ops.into(),
        tunnel: false,
        all_flags: value.is_multiple_of(2),
        outer: None,
        max_frame: None,
        drops: false,
        leaves_out: false,
        more: None,
    }
}

/// A back end whose only port is the loopback device, at which no program is.
fn state() -> Option<State> {
    let loaded = match load::load(0x7e57) {
        Ok(loaded) => loaded,
        Err(why) => {
            assert!(
                !why.contains("processed"),
                "the verifier refuses the program: {why}"
            );
            eprintln!("not tested: {why}");
            return None;
        }
    };
    let mut state = State::new(loaded, 77);
    state.peers = None;
    state.ports.set(&[PortLink {
        no: PortNo(1),
        name: "lo".into(),
        ifindex: LOOPBACK,
        mtu: 1500,
        internal: false,
    }]);
    let slot = state.take_slot().unwrap();
    // Tests run beside each other.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("hdtest{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let tap = heddle_sys::TapOpen::new(&name).open();
    let Ok(tap) = tap else {
        eprintln!("not tested: no tap device can be made");
        return None;
    };
    state.diverted.insert(
        LOOPBACK,
        Diverted {
            direct: false,
            miss: Some(MissDevice {
                tap: tap.into(),
                ifindex: 0,
            }),
            slot,
            peer: None,
            _claim: None,
        },
    );
    state.write_port(LOOPBACK).unwrap();
    Some(state)
}

/// The program's return value for a frame, and the frame as the program leaves it.
fn run(state: &State, frame: &[u8]) -> (u32, Vec<u8>) {
    let mut out = vec![0; 2048];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..TestRunOptions::new()
    };
    let result = state.loaded.program().test_run(options).unwrap();
    let n = result.data_size_out as usize;
    out.truncate(n);
    (result.return_value, out)
}

#[test]
fn the_program_does_what_its_twin_does() {
    let Some(mut state) = state() else { return };
    let mut runner = TestRunner::new(ProptestConfig::with_cases(600));
    // Often a packet of the flow, sometimes another one.
    let other = prop_oneof![2 => Just(None), 1 => shape().prop_map(Some)];
    let all = (shape(), other, 0_u16..1024, 0_u16..512, any::<u8>());
    let mut forwarded = 0;
    let mut seen = std::cell::RefCell::new((&mut state, &mut forwarded));
    runner
        .run(&all, |(of, other, fields, writes, value)| {
            let (state, forwarded) = &mut *seen.borrow_mut();
            let rule = rule(&of, fields, writes, value);
            let packet = frame(other.as_ref().unwrap_or(&of));
            state.install(1, &rule).unwrap();
            let (verdict, bytes) = run(state, &packet);
            let expected = twin::forward(&rule, &packet);
            let counts = state.remove(1);
            prop_assert_eq!(verdict, if expected.is_some() { REDIRECT } else { SHOT });
            prop_assert_eq!(counts.packets, u64::from(expected.is_some()));
            if let Some(expected) = expected {
                **forwarded += 1;
                prop_assert_eq!(bytes, expected);
                prop_assert_eq!(counts.bytes, packet.len() as u64);
            }
            // The flow is gone.
            prop_assert_eq!(run(state, &packet).0, SHOT);
            Ok(())
        })
        .unwrap();
    seen.get_mut();
    assert!(forwarded > 100, "{forwarded} of 600");
}

#[test]
fn one_write_ends_a_ports_flows_and_masks_are_bounded() {
    let Some(mut state) = state() else { return };
    let s = Shape {
        v6: false,
        proto: 17,
        tos: 0,
        ttl: 1,
        options: false,
        fragment: false,
        flags: 0,
        last: [0, 1],
        ports: [1, 2],
        payload: 4,
    };
    let packet = frame(&s);
    let mut refused = 0;
    for (at, fields) in (0..12_u16).enumerate() {
        let done = state.install(u32::try_from(at).unwrap(), &rule(&s, fields, 0, 0));
        refused += u32::from(done == Err(crate::Why::TooManyMasks));
        assert_eq!(done.is_err(), at >= abi::MASKS_PER_PORT, "{at}: {done:?}");
    }
    assert_eq!((refused, run(&state, &packet).0), (4, REDIRECT));
    // Other actions, and the counts of the old ones.
    let (counts, done) = state.change(0, &rule(&s, 0, 1 << 5, 77));
    assert_eq!((counts.packets, done), (1, Ok(())));
    assert_eq!(run(&state, &packet).1[22], 77);
    let slot = state.diverted[&LOOPBACK].slot;
    state.end_slot(slot);
    assert_eq!(run(&state, &packet).0, SHOT);
    for at in 0..12 {
        state.remove(at);
    }
    assert_eq!(state.mask_ids(layout::Origin::port(LOOPBACK)), []);
    assert_eq!(state.loaded.all_flows().len(), 0);
}

/// Ends of tunnels: 10.5.0.1 and 10.5.0.2, or fd00:5::1 and fd00:5::2.
fn ends(v6: bool) -> [std::net::IpAddr; 2] {
    use std::net::{Ipv4Addr, Ipv6Addr};
    [1, 2].map(|last: u8| match v6 {
        true => Ipv6Addr::new(0xfd00, 5, 0, 0, 0, 0, 0, last.into()).into(),
        false => Ipv4Addr::new(10, 5, 0, last).into(),
    })
}

/// Headers of a tunnel between these ends; of Geneve with a word of options, if that has one. Over IPv6 there
/// is a checksum always.
fn outer(geneve: bool, v6: bool, option: Option<(u8, u8)>, vni: u32, csum: bool) -> Arc<TunnelPush> {
    let options = option.map_or(Vec::new(), |(ty, v)| vec![1, 2, ty, 1, 0, v, 0, 9]);
    let encap = match geneve {
        true => Encap::Geneve {
            port: 6081,
            vni,
            oam: false,
            critical: true,
            options,
        },
        false => Encap::Vxlan {
            port: 4789,
            vni,
            gbp: None,
            gpe: None,
        },
    };
    let outer = Outer {
        eth_src: [2, 0, 0, 0, 7, 1],
        eth_dst: [2, 0, 0, 0, 7, 2],
        src: ends(v6)[0],
        dst: ends(v6)[1],
        tos: 4,
        ttl: 63,
        df: true,
        label: 0,
        csum: csum || v6,
        source_ports: SOURCE_PORTS,
        encap,
        tunnel_port: 5,
        out_port: 6,
        mtu: 0,
        numbers: Default::default(),
    };
    Arc::new(outer.build().unwrap())
}

/// Packets go into a tunnel as workers send them there, to the byte, after other steps too.
#[test]
fn packets_go_into_tunnels_as_in_the_twin() {
    let Some(mut state) = state() else { return };
    let mut runner = TestRunner::new(ProptestConfig::with_cases(600));
    let option = prop::option::of((any::<u8>(), any::<u8>()));
    let all = (
        shape(),
        0_u16..512,
        any::<u8>(),
        any::<[bool; 3]>(),
        option,
        0_u32..1 << 24,
    );
    let mut forwarded = 0;
    let mut seen = std::cell::RefCell::new((&mut state, &mut forwarded));
    runner
        .run(&all, |(of, writes, value, [geneve, v6, csum], option, vni)| {
            let (state, forwarded) = &mut *seen.borrow_mut();
            let mut rule = rule(&of, 0x3ff, writes, value);
            rule.ops = rule.ops[..rule.ops.len() - 1]
                .iter()
                .copied()
                .chain([Op::Encap, Op::Output(PortNo(1))])
                .collect();
            rule.outer = Some(outer(geneve, v6, option, vni, csum));
            let packet = frame(&of);
            state.install(1, &rule).unwrap();
            let (verdict, bytes) = run(state, &packet);
            let expected = twin::forward(&rule, &packet);
            let counts = state.remove(1);
            prop_assert_eq!(verdict, if expected.is_some() { REDIRECT } else { SHOT });
            if let Some(expected) = expected {
                **forwarded += 1;
                prop_assert_eq!(bytes, expected);
                prop_assert_eq!(counts.bytes, packet.len() as u64);
            }
            Ok(())
        })
        .unwrap();
    seen.get_mut();
    assert!(forwarded > 300, "{forwarded} of 600");
}

/// Packets come out of tunnels, and the packets inside are looked up and rewritten, as in the twin. Packets
/// that are odd outside or inside go up untouched.
#[test]
fn packets_come_out_of_tunnels_as_in_the_twin() {
    let Some(mut state) = state() else { return };
    let mut runner = TestRunner::new(ProptestConfig::with_cases(1500));
    // The option that is known has type 0x80.
    let option = prop::option::of((prop_oneof![4 => Just(0x80), 1 => 0x7e_u8..0x83], 0_u8..3));
    // A byte of the outer headers is another one.
    let broken = prop::option::weighted(0.3, (14_usize..78, any::<u8>(), any::<bool>()));
    let matches = (
        any::<[bool; 3]>(),
        prop::bool::weighted(0.8),
        prop::option::weighted(0.3, any::<bool>()),
    );
    let all = (
        (shape(), 0_u16..1024, 0_u16..512, any::<u8>()),
        (any::<[bool; 3]>(), option, 1_u32..4),
        matches,
        broken,
    );
    let mut forwarded = [0; 3];
    let mut seen = std::cell::RefCell::new((&mut state, &mut forwarded));
    runner
        .run(
            &all,
            |((of, fields, writes, value), ([geneve, v6, csum], option, vni), (wants, same, nat), broken)| {
                let (state, forwarded) = &mut *seen.borrow_mut();
                let (plain, csum) = (frame(&of), csum || v6);
                let mut packet = twin::encap(&outer(geneve, v6, option, vni, csum), &plain);
                if let Some((at, xor, mends)) = broken {
                    let at = if v6 { at } else { 14 + (at - 14) % 44 };
                    packet[at] ^= xor;
                    if mends && packet[12..15] == [8, 0, 0x45] {
                        packet[24..26].fill(0);
                        let sum = twin::checksum(&packet[14..34], 0);
                        packet[24..26].copy_from_slice(&sum.to_be_bytes());
                    }
                }
                let (_, key) = twin::read(&packet);
                let mut first = rule(&of, 0, 0, 0);
                (first.key, first.mask) = (
                    key,
                    Headers {
                        dl_type: u16::MAX,
                        nw_proto: u8::MAX,
                        ..Headers::default()
                    },
                );
                first.ops = Box::new([Op::Decap(Decap {
                    port: PortNo(5),
                    geneve,
                    option: geneve.then_some((0x0102, 0x80)),
                })]);
                // Inside, now and then in two stages.
                let mut inside = rule(&of, fields, writes, value);
                inside.tunnel = true;
                inside.in_port = PortNo(5);
                let m = &mut inside.mask;
                m.tun_id = if wants[0] { u32::MAX } else { 0 };
                (m.tun_src, m.tun_dst) = ([0xff; 16], [0xff; 16]);
                (m.tun_opt, m.tun_flags) = if wants[1] {
                    ([0xff; 4], TUN_OPTION | TUN_CSUM | TUN_IPV6)
                } else {
                    ([0; 4], TUN_IPV6)
                };
                (m.tun_tos, m.tun_ttl) = if wants[2] { (u8::MAX, u8::MAX) } else { (0, 0) };
                let k = &mut inside.key;
                [k.tun_src, k.tun_dst] = ends(v6).map(|end| match end {
                    std::net::IpAddr::V4(a) => (u128::from(a.to_bits()) << 96).to_be_bytes(),
                    std::net::IpAddr::V6(a) => a.octets(),
                });
                (k.tun_id, k.tun_tos, k.tun_ttl) = (if same { vni } else { 2 }, 4, 63);
                k.tun_flags = if csum { TUN_CSUM } else { 0 } | if v6 { TUN_IPV6 } else { 0 };
                if let Some((_, v)) = option.filter(|_| geneve) {
                    k.tun_flags |= TUN_OPTION;
                    k.tun_opt = [0, if same { v } else { 1 }, 0, 9];
                }
                let mut rules = vec![first, inside];
                let mut conns = Vec::new();
                if let Some(nat) = nat.filter(|_| matches!(of.proto, 6 | 17)) {
                    conns.push(connection(&of, 0, Some(nat), false));
                    let mut last = rules[1].clone();
                    rules[1].ops = Box::new([
                        Op::Ct(Ct {
                            zone: 5,
                            nat: true,
                            mark: None,
                        }),
                        Op::Recirc(1),
                    ]);
                    last.mask = Headers {
                        recirc: u32::MAX,
                        tun_id: u32::MAX,
                        dl_type: u16::MAX,
                        nw_proto: u8::MAX,
                        ..Headers::default()
                    };
                    last.key.recirc = 1;
                    rules.push(last);
                }
                for (at, rule) in (0..).zip(&rules) {
                    state.install(at, rule).unwrap();
                }
                for c in &conns {
                    state.install_conn(c).unwrap();
                }
                let (verdict, bytes) = run(state, &packet);
                let expected = twin::forward_all(&rules, &conns, &packet);
                state.remove_conns(&conns.iter().map(|c| c.id).collect::<Vec<_>>());
                let at = 0..u32::try_from(rules.len()).unwrap();
                let counts: Vec<FlowCounts> = at.map(|at| state.remove(at)).collect();
                prop_assert_eq!(verdict, if expected.is_some() { REDIRECT } else { SHOT });
                let Some((expected, passed)) = expected else {
                    prop_assert!(counts.iter().all(|n| n.packets == 0));
                    prop_assert_eq!(bytes, packet);
                    return Ok(());
                };
                forwarded[passed.len() - 1] += 1;
                prop_assert_eq!(bytes, expected);
                prop_assert!(counts.iter().all(|n| n.packets == 1));
                prop_assert_eq!(
                    (counts[0].bytes, counts[1].bytes),
                    (packet.len() as u64, plain.len() as u64)
                );
                Ok(())
            },
        )
        .unwrap();
    seen.get_mut();
    assert!(forwarded[1] > 100 && forwarded[2] > 20, "{forwarded:?}");
}

/// A stage behind the first: its matches on connections, its writes, and whether it tracks again.
#[derive(Clone, Debug)]
pub(crate) struct Behind {
    fields: u8,
    writes: u16,
    ct: Option<(u16, bool, bool)>,
    clears: bool,
}

pub(crate) fn behind() -> impl Strategy<Value = Behind> {
    let ct = prop::option::of((5_u16..8, any::<bool>(), prop::bool::weighted(0.2)));
    (any::<u8>(), 0_u16..256, ct, prop::bool::weighted(0.2)).prop_map(|(fields, writes, ct, clears)| Behind {
        fields,
        writes,
        ct,
        clears,
    })
}

/// A connection of packets like this one in a zone.
fn connection(s: &Shape, number: u32, nat: Option<bool>, reversed: bool) -> Offloadable {
    let (_, h) = twin::read(&frame(s));
    let mut orig = twin::tuple(&h);
    if reversed {
        orig = orig.reversed();
    }
    let mut reply = orig.reversed();
    match nat {
        Some(true) => (reply.dst.addr, reply.dst.l4) = (reply.dst.addr + 0x0100, 777),
        Some(false) => (reply.src.addr, reply.src.l4) = (reply.src.addr + 0x0200, 888),
        None => {}
    }
    Offloadable {
        id: ConnId {
            number,
            generation: 9,
        },
        zone: 5 + u16::try_from(number).unwrap() % 3,
        replied: s.proto == 6 || !s.ports[0].is_multiple_of(3),
        orig,
        reply,
        snat: nat == Some(true),
        dnat: nat == Some(false),
        mark: 0x12,
        label: u128::from(number) << 96 | 7,
    }
}

/// Connections of packets like this one, each in its zone: translated or not, in this direction or the other.
pub(crate) fn connections(of: &Shape, all: &[(Option<bool>, bool)]) -> Vec<Offloadable> {
    (0..)
        .zip(all)
        .map(|(n, (nat, reversed))| connection(of, n, *nat, *reversed))
        .collect()
}

/// A pipeline for packets like this one: `first`, which tracks (with translation, with a mark), and the
/// stages behind it.
pub(crate) fn pipeline(
    of: &Shape,
    mut first: Rule,
    (nat, marks): (bool, bool),
    value: u8,
    behind: &[Behind],
    conns: &[Offloadable],
) -> Vec<Rule> {
    let packet = frame(of);
    let ct = |zone, nat, marks: bool| {
        Op::Ct(Ct {
            zone,
            nat,
            mark: marks.then_some((2, 0x0f)),
        })
    };
    let mut ops = first.ops[..first.ops.len() - 1].to_vec();
    ops.extend([ct(5, nat, marks), Op::Recirc(1)]);
    first.ops = ops.into();
    let mut rules = vec![first];
    for (n, b) in (1_u32..).zip(behind) {
        // The packet as the stages so far have made it, as far as they go.
        let mut probe = rules.clone();
        let mut all = rule(of, 0, 0, 0);
        (all.key, all.mask) = (Headers::default(), Headers::default());
        (all.key.recirc, all.mask.recirc) = (n, u32::MAX);
        probe.push(all);
        let Some((now, _)) = twin::forward_all(&probe, conns, &packet) else {
            break;
        };
        let (_, mut h) = twin::read(&now);
        h.recirc = n;
        let m = |bit: u8, mask: u8| if b.fields & 1 << bit != 0 { mask } else { 0 };
        let mut r = rule(of, 0, b.writes & if of.v6 { 0xf3 } else { 0xff }, value);
        r.mask = Headers {
            recirc: u32::MAX,
            dl_type: u16::MAX,
            dl_src: [m(0, 0xff); 6],
            src: [m(1, 0xff); 16],
            dst: [m(2, 0xff); 16],
            tp_src: u16::from_be_bytes([m(3, 0xff); 2]),
            nw_ttl: m(4, 0xff),
            ct_state: m(5, 0x2a),
            ct_mark: u32::from(m(6, 0xff)),
            ct_zone: u16::from(m(7, 0xff)),
            ..Headers::default()
        };
        if !of.v6 {
            r.mask.src[4..].fill(0);
            r.mask.dst[4..].fill(0);
        }
        r.key = h;
        // Most often the state that `ct` gave; else a flow of another connection.
        (r.key.ct_state, r.key.ct_mark, r.key.ct_zone) = (0x22, 0x12, 5);
        let mut ops = r.ops[..r.ops.len() - 1].to_vec();
        ops.extend(b.clears.then_some(Op::CtClear));
        match b.ct {
            Some((zone, nat, marks)) => ops.extend([ct(zone, nat, marks), Op::Recirc(n + 1)]),
            None => ops.push(Op::Output(PortNo(1))),
        }
        r.ops = ops.into();
        rules.push(r);
        if b.ct.is_none() {
            break;
        }
    }
    rules
}

/// Pipelines with connections: as the twin has it, to the byte and the counter.
#[test]
fn stages_and_connections_are_as_in_the_twin() {
    let Some(mut state) = state() else { return };
    let mut runner = TestRunner::new(ProptestConfig::with_cases(1500));
    let flags = |s: Shape| Shape {
        flags: 0x10,
        options: false,
        fragment: false,
        proto: if s.proto == 6 { 6 } else { 17 },
        ..s
    };
    let conns = prop::collection::vec((any::<Option<bool>>(), any::<bool>()), 1..4);
    let all = (
        (shape().prop_map(flags), 0_u16..1024, any::<u8>()),
        (0_u16..256, any::<bool>(), prop::bool::weighted(0.2)),
        prop::collection::vec(behind(), 1..4),
        conns,
    );
    let mut depths = [0; 5];
    let seen = std::cell::RefCell::new((&mut state, &mut depths));
    runner
        .run(
            &all,
            |((of, fields, value), (writes, nat, marks), behind, conns)| {
                let (state, depths) = &mut *seen.borrow_mut();
                let packet = frame(&of);
                let conns = connections(&of, &conns);
                let first = rule(&of, fields, writes & 0x30, value);
                let rules = pipeline(&of, first, (nat, marks), value, &behind, &conns);
                for (at, rule) in (0..).zip(&rules) {
                    state.install(at, rule).unwrap();
                }
                for c in &conns {
                    state.install_conn(c).unwrap();
                }
                let expected = twin::forward_all(&rules, &conns, &packet);
                let (verdict, bytes) = run(state, &packet);
                let used: Vec<_> = conns.iter().map(|c| state.conn_use(c.id)).collect();
                let again = expected.is_some().then(|| {
                    // Ended by the tracker: nothing passes any more.
                    Live(std::sync::Arc::clone(&state.loaded.live)).end(conns[0].id.number);
                    run(state, &packet).0
                });
                let ids: Vec<_> = conns.iter().map(|c| c.id).collect();
                state.remove_conns(&ids);
                let without = run(state, &packet).0;
                let at = 0..u32::try_from(rules.len()).unwrap();
                let counts: Vec<u64> = at.map(|at| state.remove(at).packets).collect();
                prop_assert_eq!(state.loaded.conns.keys().count(), 0);
                prop_assert_eq!(state.loaded.stages.keys().count(), 0);
                prop_assert_eq!(verdict, if expected.is_some() { REDIRECT } else { SHOT });
                prop_assert_eq!(without, SHOT);
                let Some((expected, passed)) = expected else {
                    prop_assert!(counts.iter().all(|n| *n == 0));
                    return Ok(());
                };
                depths[passed.len()] += 1;
                prop_assert_eq!(again, Some(SHOT), "the first stage is of the first connection");
                prop_assert_eq!(used[0], ConnUse::Used);
                prop_assert_eq!(bytes, expected);
                for (at, n) in counts.iter().enumerate() {
                    prop_assert_eq!(*n, u64::from(passed.contains(&at)));
                }
                Ok(())
            },
        )
        .unwrap();
    // Third stages are seldom reached: their number is not checked.
    assert!(depths[2] > 50, "{depths:?}");
}

/// The next process finds the connections that are alive: whole, of both families, translated ones too. A
/// connection that it installs itself replaces one that was left, and leaves no word behind.
#[test]
fn connections_outlive_their_process() {
    let Some(mut state) = state() else { return };
    let mut all = Vec::new();
    for (number, (v6, proto, nat)) in (0..).zip([
        (false, 6, None),
        (false, 17, Some(true)),
        (true, 6, Some(false)),
        (true, 17, None),
        (false, 6, Some(false)),
    ]) {
        let s = Shape {
            v6,
            proto,
            tos: 0,
            ttl: 1,
            options: false,
            fragment: false,
            flags: 0x10,
            last: [0, 1],
            ports: [u8::try_from(number).unwrap(), 2],
            payload: 0,
        };
        all.push(connection(&s, number, nat, number == 1));
        state.install_conn(&all[all.len() - 1]).unwrap();
    }
    let over = all.pop().unwrap();
    Live(Arc::clone(&state.loaded.live)).end(over.id.number);
    // The process ends, and the next one begins.
    state.conns.clear();
    state.adopt();
    let mut found = state.adopted_conns();
    found.sort_by_key(|c| c.id.number);
    assert_eq!(found, all);
    let again = Offloadable {
        id: ConnId {
            number: 77,
            generation: 1,
        },
        ..all[0]
    };
    state.install_conn(&again).unwrap();
    assert_eq!(state.adopted_conns().len(), 3);
    state.drop_adopted();
    assert_eq!(state.loaded.conns.keys().count(), 2);
    state.remove_conns(&[again.id]);
    let words = (0..abi::MAX_CONNS).filter(|at| state.loaded.live.load(at * layout::LIVE_WORDS) != 0);
    assert_eq!(words.count(), 0);
}

/// The program limits the packets that a port sends up: a flood does not fill the processor of their reader.
#[test]
fn a_flood_of_misses_is_limited() {
    let Some(state) = state() else { return };
    let limited = |state: &State| {
        let all = state.stats();
        all.into_iter().find(|(name, _)| name == "limited").unwrap().1
    };
    let packet = [0; 60];
    for _ in 0..100 {
        run(&state, &packet);
    }
    assert_eq!(limited(&state), 0);
    let flood = 1 << 20;
    let options = TestRunOptions {
        data_in: Some(&packet),
        repeat: flood,
        ..TestRunOptions::new()
    };
    let before = std::time::Instant::now();
    state.loaded.program().test_run(options).unwrap();
    // Windows of 17 ms that it may have met.
    let windows = before.elapsed().as_millis() / 16 + 2;
    let passed = u128::from(flood) - u128::from(limited(&state));
    assert!(passed <= windows * 8192, "{passed} of {flood} went up");
}

/// Runs the program as [`run`] does, on a GSO packet with segments of this size.
fn run_train(state: &State, frame: &[u8], segment: u32) -> u32 {
    // struct __sk_buff, of which this field counts.
    let mut context = [0; 192];
    context[176..180].copy_from_slice(&segment.to_ne_bytes());
    let options = TestRunOptions {
        data_in: Some(frame),
        ctx_in: Some(&context),
        ..TestRunOptions::new()
    };
    state.loaded.program().test_run(options).unwrap().return_value
}

/// A GSO packet over IPv6 whose last segment is shorter has no outer checksum that is right for all of its
/// segments. It goes up, and nothing of its flow overtakes it. Other GSO packets do not go up, nor those over
/// IPv4, nor any for which checksums are optional.
#[test]
fn uneven_trains_over_ipv6_go_up_and_are_not_overtaken() {
    let Some(mut state) = state() else { return };
    let s = Shape {
        v6: false,
        proto: 6,
        tos: 0,
        ttl: 1,
        options: false,
        fragment: false,
        flags: 0x10,
        last: [0, 1],
        ports: [1, 2],
        payload: 30,
    };
    let packet = frame(&s);
    for (v6, optional, held) in [(true, false, true), (true, true, false), (false, false, false)] {
        let mut rule = rule(&s, 0x3ff, 0, 0);
        rule.ops = Box::new([Op::Encap, Op::Output(PortNo(1))]);
        let mut push = (*outer(true, v6, None, 7, true)).clone();
        push.csum_optional = optional;
        rule.outer = Some(Arc::new(push));
        state.install(1, &rule).unwrap();
        let kept = |state: &State| {
            let all = state.stats();
            all.into_iter()
                .find(|(name, _)| name == "up-uneven-train")
                .unwrap()
                .1
        };
        let before = kept(&state);
        assert_eq!(run(&state, &packet).0, REDIRECT);
        // Fifteen bytes twice; the kernel adds no room in GSO packets that a test gives to it.
        run_train(&state, &packet, 15);
        assert_eq!(kept(&state), before, "IPv6 {v6}, optional {optional}");
        // Twenty bytes and ten; then the next packet.
        run_train(&state, &packet, 20);
        let now = std::time::Instant::now();
        let next = run(&state, &packet).0;
        // A process that is kept waiting may let it rest too long.
        if now.elapsed().as_millis() < 60 {
            assert_eq!(
                next,
                if held { SHOT } else { REDIRECT },
                "IPv6 {v6}, optional {optional}"
            );
            assert_eq!(kept(&state) - before, if held { 2 } else { 0 });
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(run(&state, &packet).0, REDIRECT);
        state.remove(1);
    }
}
