//! Packets go into tunnels and come out of them, with other actions before and after.

use super::flows::setup;
use super::{FakePort, ToyRule, udp};
use heddle_datapath_api::{Action, DropKind, Engine, PortNo, format_actions};
use heddle_flow::key::Match;
use heddle_tunnel::outer::SOURCE_PORTS;
use heddle_tunnel::{Encap, OptionTable, Outer, TunnelKind, TunnelPop};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The datapath port of the tunnel.
const TUNNEL: u32 = 9;
/// Bytes of outer headers.
const OUTER: usize = 14 + 20 + 8 + 8;

fn outer(encap: Encap, csum: bool) -> Outer {
    Outer {
        eth_src: [2, 0, 0, 0, 0, 1],
        eth_dst: [2, 0, 0, 0, 0, 2],
        src: Ipv4Addr::new(10, 0, 0, 1).into(),
        dst: Ipv4Addr::new(10, 0, 0, 2).into(),
        tos: 0,
        ttl: 64,
        df: true,
        label: 0,
        csum,
        source_ports: SOURCE_PORTS,
        encap,
        tunnel_port: TUNNEL,
        out_port: 100,
        mtu: 0,
        numbers: Default::default(),
    }
}

pub(super) fn push(vni: u32, csum: bool) -> Action {
    let encap = Encap::Geneve {
        port: 6081,
        vni,
        oam: false,
        critical: false,
        options: Vec::new(),
    };
    Action::TunnelPush(Arc::new(outer(encap, csum).build().unwrap()))
}

fn pop() -> Action {
    Action::TunnelPop(Arc::new(TunnelPop {
        kind: TunnelKind::Geneve,
        port: TUNNEL,
        options: OptionTable::default(),
    }))
}

fn out(no: u32) -> Action {
    Action::Output(PortNo(no))
}

/// Matches packets from a port.
fn from(no: u32) -> Match {
    let mut m = Match::any();
    (m.key.in_port, m.mask.0.in_port) = (no, u32::MAX);
    m
}

/// Matches packets from the tunnel of a network.
fn of_network(vni: u64) -> Match {
    let mut m = from(TUNNEL);
    (m.key.tun_id, m.mask.0.tun_id) = (vni, u64::MAX);
    m
}

fn frames(n: u16) -> Vec<Vec<u8>> {
    (0..n).map(|i| udp(1, 2, i / 4, 80)).collect()
}

/// Port 1's packets leave by port 2 in a tunnel.
fn encapsulated(actions: Vec<Action>, n: u16) -> Vec<Vec<u8>> {
    let s = setup(vec![ToyRule::new(from(1), actions)]);
    s.a.send(frames(n));
    s.b.wait(n.into())
}

#[test]
fn what_went_in_comes_out() {
    for csum in [false, true] {
        let outer = encapsulated(vec![push(7, csum), out(2)], 40);
        assert!(outer.iter().all(|f| f.len() == udp(1, 2, 3, 4).len() + OUTER));
        // Outer source ports: equal within a flow, different between flows.
        assert_eq!(outer[0][34..36], outer[1][34..36]);
        assert_ne!(outer[0][34..36], outer[4][34..36]);
        let rules = vec![
            ToyRule::new(from(1), vec![pop()]),
            ToyRule::new(of_network(8), vec![]),
            ToyRule::new(of_network(7), vec![out(2)]),
        ];
        let s = setup(rules);
        s.a.send(outer);
        assert_eq!(s.b.wait(40), frames(40));
        s.dp.flush_stats();
        let mut flows: Vec<(u32, u64)> =
            s.dp.flows()
                .iter()
                .map(|f| (f.key.in_port, f.key.tun_id))
                .collect();
        flows.sort_unstable();
        assert_eq!(
            flows,
            [(1, 0), (TUNNEL, 7)],
            "an entry each, whatever ports they have outside"
        );
    }
}

/// Segments an outer packet of STT as a device does, into `size` bytes each, but without TCP's checksum.
fn cut(outer: &[u8], size: usize) -> Vec<Vec<u8>> {
    let (headers, frame) = outer.split_at(54);
    let part = |(i, part): (usize, &[u8])| {
        let mut s = [headers, part].concat();
        let len = u16::try_from(s.len() - 14).unwrap();
        s[16..18].copy_from_slice(&len.to_be_bytes());
        s[24..26].fill(0);
        let sum = heddle_wire::checksum::checksum(&s[14..34]);
        s[24..26].copy_from_slice(&sum.to_be_bytes());
        s[40..42].copy_from_slice(&u16::try_from(i * size).unwrap().to_be_bytes());
        s
    };
    frame.chunks(size).enumerate().map(part).collect()
}

/// STT: frames come in segments, of which some come late, twice or never.
#[test]
fn frames_of_stt_wait_for_their_segments() {
    let encap = Encap::Stt {
        port: 7471,
        key: u64::MAX,
    };
    let push = Action::TunnelPush(Arc::new(outer(encap, false).build().unwrap()));
    let text = format_actions(std::slice::from_ref(&push), None);
    assert!(text.contains("header(size=72,type=106,"), "{text}");
    assert!(
        text.contains("proto=6,tos=0,ttl=64,frag=0x4000),tcp(src=0,dst=7471),stt(key=0xffffffffffffffff)),"),
        "{text}"
    );
    let pop = Action::TunnelPop(Arc::new(TunnelPop {
        kind: TunnelKind::Stt,
        port: TUNNEL,
        options: OptionTable::default(),
    }));
    let outer = encapsulated(vec![push, out(2)], 5);
    let rules = vec![
        ToyRule::new(from(1), vec![pop]),
        ToyRule::new(of_network(u64::MAX), vec![out(2)]),
    ];
    let s = setup(rules);
    s.a.set_checked(true);
    let mut all: Vec<Vec<Vec<u8>>> = outer.iter().map(|o| cut(o, 30)).collect();
    assert!(all.iter().all(|segments| segments.len() == 3));
    // One frame has a late segment and a repeated one. Another frame lacks a segment.
    let late = all[1].pop();
    all[2].pop();
    let again = all[1][0].clone();
    all[4].reverse();
    s.a.send(all.into_iter().flatten().chain([again]));
    s.a.drained();
    s.a.send(late);
    let mut got = s.b.wait(4);
    s.a.drained();
    assert!(s.b.take().is_empty());
    let mut want = frames(5);
    want.remove(2);
    got.sort();
    want.sort();
    assert_eq!(got, want);
    s.dp.flush_stats();
    let n = |kind: DropKind| {
        let all = s.dp.coverage();
        all.iter().find(|c| c.0 == kind.name()).map_or(0, |c| c.1)
    };
    assert_eq!(
        (n(DropKind::SegmentDuplicate), n(DropKind::SegmentTimeout)),
        (1, 0)
    );
    // A frame whose segments time out is given up, although no more packets come.
    s.clock.warp(500);
    let deadline = Instant::now() + Duration::from_secs(60);
    while n(DropKind::SegmentTimeout) == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(n(DropKind::SegmentTimeout), 2);
}

/// A packet that was sent, or is needed unchanged, does not get outer headers.
#[test]
fn copies_go_into_tunnels() {
    let plain = frames(1).remove(0);
    let two = vec![
        out(2),
        Action::Clone(vec![push(7, false), out(2)]),
        Action::Clone(vec![push(8, false), out(2)]),
        out(2),
    ];
    let s = setup(vec![ToyRule::new(from(1), two)]);
    s.a.send(frames(1));
    let mut got = s.b.wait(4);
    got.sort_by_key(Vec::len);
    assert_eq!(got[..2], [plain.clone(), plain.clone()]);
    let mut networks: Vec<u8> = got[2..].iter().map(|f| f[OUTER - 2]).collect();
    networks.sort_unstable();
    assert_eq!(networks, [7, 8]);
    assert!(got[2..].iter().all(|f| f[OUTER..] == plain));
}

/// A long packet is flooded whole to every tunnel, although its bytes are stored once.
#[test]
fn a_long_packet_floods_to_many_tunnels() {
    let long: Vec<u8> = [
        &udp(1, 2, 3, 80)[..34],
        &(0..40_000_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>(),
    ]
    .concat();
    let mut flood: Vec<Action> = (0..8)
        .map(|vni| Action::Clone(vec![push(vni, false), out(3)]))
        .collect();
    flood.push(out(3));
    let s = setup(vec![ToyRule::new(from(1), flood)]);
    let wide = FakePort::with_mtu("wide", 65_535);
    s.dp.add_port(Arc::clone(&wide) as _, Some(PortNo(3))).unwrap();
    for _ in 0..3 {
        s.a.send([long.clone()]);
        let mut got = wide.wait(9);
        got.sort_by_key(Vec::len);
        assert_eq!(got.remove(0), long);
        let mut networks: Vec<u8> = got.iter().map(|f| f[OUTER - 2]).collect();
        networks.sort_unstable();
        assert_eq!(networks, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(got.iter().all(|f| f[OUTER..] == long));
    }
}

/// The outer length is that of the truncated packet.
#[test]
fn a_cut_comes_before_outer_headers() {
    let got = encapsulated(vec![Action::Trunc(30), push(7, true), out(2)], 1).remove(0);
    assert_eq!(got.len(), 30 + OUTER);
    assert_eq!(got[16..18], (30_u16 + 36).to_be_bytes());
    let s = setup(vec![ToyRule::new(from(1), vec![pop()]), ToyRule::output(2)]);
    s.a.send([got]);
    assert_eq!(s.b.wait(1), [frames(1)[0][..30].to_vec()]);
}

/// Packets with wrong outer headers are dropped by name.
#[test]
fn what_cannot_come_out_is_dropped_by_name() {
    let good = encapsulated(vec![push(7, true), out(2)], 1).remove(0);
    let with = |at: usize, v: u8, fix: bool| {
        let mut f = good.clone();
        f[at] = v;
        if fix {
            let sum = heddle_wire::checksum::checksum(&[&f[14..24], &[0, 0], &f[26..34]].concat());
            f[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        f
    };
    let cases = [
        (with(24, good[24] ^ 1, false), DropKind::TunnelPop),
        (with(17, 0, true), DropKind::TunnelPop),
        (with(20, 0x20, true), DropKind::TunnelFragment),
        (with(22, 0, true), DropKind::TunnelTtl),
        (with(60, good[60] ^ 1, false), DropKind::TunnelCsum),
        (with(42, 0xc0, false), DropKind::TunnelCsum),
        (good[..40].to_vec(), DropKind::TunnelPop),
    ];
    for (frame, kind) in cases {
        let s = setup(vec![ToyRule::new(from(1), vec![pop()]), ToyRule::output(2)]);
        s.a.send([frame]);
        s.a.drained();
        s.dp.flush_stats();
        assert!(s.b.take().is_empty(), "{kind:?}");
        let all = s.dp.coverage();
        assert!(all.contains(&(kind.name(), 1)), "{kind:?}: {all:?}");
    }
}

/// A packet that goes from a tunnel back into it is dropped in the end.
#[test]
fn loops_through_tunnels_end() {
    let rules = vec![
        ToyRule::new(from(TUNNEL), vec![push(7, false), pop()]),
        ToyRule::any(vec![pop()]),
    ];
    let good = encapsulated(vec![push(7, true), out(2)], 3);
    let s = setup(rules);
    s.a.send(good);
    s.a.drained();
    s.dp.flush_stats();
    let all = s.dp.coverage();
    assert!(all.contains(&(DropKind::Recirc.name(), 3)), "{all:?}");
}

#[test]
fn texts_are_those_of_open_vswitch() {
    let text = format_actions(&[push(0x1c7, true), out(1)], None);
    assert_eq!(
        text,
        "tnl_push(tnl_port(9),header(size=50,type=5,eth(dst=02:00:00:00:00:02,src=02:00:00:00:00:01,\
         dl_type=0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=0x4000),\
         udp(src=0,dst=6081,csum=0xffff),geneve(vni=0x1c7)),out_port(100)),1"
    );
    assert_eq!(format_actions(&[pop()], None), "tnl_pop(9)");
}
