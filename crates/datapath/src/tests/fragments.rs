//! Fragments that are tracked: they wait for each other. Then all continue, or the whole packet in their
//! place, which leaves in fragments again.

use super::flows::setup;
use super::recirc::under;
use super::{ToyRule, udp};
use heddle_conntrack::{CtAction, CtNat, NatEnd, NatHow, NatRange};
use heddle_datapath_api::{Action, DropKind, Engine, PortNo};
use heddle_flow::key::{Match, frag};
use heddle_wire::checksum::{Sum, checksum};
use std::sync::Arc;

const PAYLOAD: usize = 2000;

/// A datagram of UDP with right checksums in frames that hold `PAYLOAD` in three parts; `id` is its number.
fn fragments(id: u16) -> [Vec<u8>; 3] {
    let cut = [(0, 800), (800, 1600), (1600, PAYLOAD + 8)];
    cut_at(id, PAYLOAD, &cut).try_into().unwrap()
}

/// Fragments like those of [`fragments`], with `payload` bytes, cut at these offsets of the datagram.
fn cut_at(id: u16, payload: usize, cut: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let model = udp(0x0a00_0001, 0x0a00_0002, 1000, 2000);
    let mut l4 = model[34..42].to_vec();
    l4.extend((0..payload).map(|i| u8::try_from(i % 251).unwrap()));
    let len = u16::try_from(l4.len()).unwrap();
    l4[4..6].copy_from_slice(&len.to_be_bytes());
    let sum = Sum::ZERO
        .pseudo_v4(0x0a00_0001, 0x0a00_0002, 17, len.into())
        .bytes(&l4);
    l4[6..8].copy_from_slice(&sum.checksum_nonzero().to_be_bytes());
    let frame = |&(from, to): &(usize, usize)| {
        let mut f = model[..34].to_vec();
        let more = if to == l4.len() { 0 } else { 0x2000 };
        f[16..18].copy_from_slice(&u16::try_from(20 + to - from).unwrap().to_be_bytes());
        f[18..20].copy_from_slice(&id.to_be_bytes());
        f[20..22].copy_from_slice(&(u16::try_from(from / 8).unwrap() | more).to_be_bytes());
        f[24..26].fill(0);
        let sum = checksum(&f[14..34]).to_be_bytes();
        f[24..26].copy_from_slice(&sum);
        f.extend(&l4[from..to]);
        f
    };
    cut.iter().map(frame).collect()
}

/// Tracks, commits and translates the source address.
fn snat() -> Action {
    let one = "10.0.0.9".parse().unwrap();
    Action::Ct(Arc::new(CtAction {
        commit: true,
        nat: Some(CtNat {
            new: Some(NatRange {
                end: NatEnd::Src,
                addresses: Some((one, one)),
                ports: Some((5000, 5000)),
                how: NatHow::Any,
                persistent: false,
            }),
        }),
        ..CtAction::default()
    }))
}

/// Rules: packets with state +trk+new go to port 2; other packets are tracked by the actions `first`.
fn rules(first: Vec<Action>) -> Vec<ToyRule> {
    let mut new = under(1);
    (new.key.ct_state, new.mask.0.ct_state) = (0x21, 0x31);
    vec![
        ToyRule::new(new, vec![Action::Output(PortNo(2))]),
        ToyRule::new(under(1), Vec::new()),
        ToyRule::any(first),
    ]
}

/// Reassembles the frames as a receiver does, if they are right: source address, ports, payload.
fn received(frames: &[Vec<u8>]) -> (u32, [u8; 4], Vec<u8>) {
    let mut l4 = Vec::new();
    for f in frames {
        assert_eq!(checksum(&f[14..34]), 0);
        let offset = usize::from(u16::from_be_bytes([f[20], f[21]]) & 0x1fff) * 8;
        assert_eq!(offset, l4.len(), "in order");
        l4.extend(&f[34..]);
    }
    let addr = |at: usize| u32::from_be_bytes(frames[0][at..at + 4].try_into().unwrap());
    let len = u32::try_from(l4.len()).unwrap();
    let sum = Sum::ZERO.pseudo_v4(addr(26), addr(30), 17, len).bytes(&l4);
    assert_eq!(sum.checksum(), 0);
    (addr(26), l4[..4].try_into().unwrap(), l4.split_off(8))
}

/// In any order, alone and among other packets: all fragments are sent, translated, with the checksums of the
/// whole datagram.
#[test]
fn fragments_are_translated_as_the_datagram_is() {
    let s = setup(rules(vec![snat(), Action::Recirc(1)]));
    assert!(s.dp.fragments().set_min(false, 400));
    for (id, order) in (0..).zip([[0, 1, 2], [2, 1, 0], [1, 2, 0]]) {
        let parts = fragments(id);
        s.a.send(order.map(|i| parts[i].clone()));
        let got = s.b.wait(3);
        assert_eq!(got.len(), 3);
        let (src, ports, payload) = received(&got);
        assert_eq!((src, ports), (0x0a00_0009, [0x13, 0x88, 0x07, 0xd0]));
        let sent: Vec<u8> = parts.iter().flat_map(|f| f[34..].to_vec()).skip(8).collect();
        assert_eq!(payload, sent);
        assert_eq!(s.dp.fragments().status().waiting, 0);
        s.dp.conntrack()
            .flush_all(0, &heddle_conntrack::dump::Filter::default());
    }
    // Fragments and whole packets with the same addresses in one burst. The whole packets have another
    // connection.
    let parts = fragments(9);
    let other = |i| udp(0x0a00_0003, 0x0a00_0002, 7, i);
    s.a.send([
        parts[0].clone(),
        other(1),
        parts[1].clone(),
        other(1),
        parts[2].clone(),
    ]);
    let got = s.b.wait(4);
    let is = |f: &&Vec<u8>| f.len() > 60;
    assert_eq!(
        received(&got.iter().filter(is).cloned().collect::<Vec<_>>()).0,
        0x0a00_0009
    );
}

/// One packet is looked up again, with ports and without fragments. Its length is that of the longest
/// fragment that came.
#[test]
fn the_whole_packet_is_looked_up_again() {
    let ct = || Action::Ct(Arc::new(CtAction::default()));
    let check = |len| Action::CheckPktLen {
        len,
        greater: vec![],
        less_equal: vec![Action::Output(PortNo(2))],
    };
    // The longest fragment has 820 bytes behind 14 of Ethernet.
    for (len, fits) in [(833, false), (834, true)] {
        let mut whole = under(1);
        (whole.key.nw_frag, whole.mask.0.nw_frag) = (0, frag::ANY | frag::LATER);
        (whole.key.tp_dst, whole.mask.0.tp_dst) = (2000, 0xffff);
        let rule = ToyRule::new(whole, vec![check(len)]);
        let tally = Arc::clone(&rule.tally);
        let s = setup(vec![
            rule,
            ToyRule::new(under(1), vec![Action::Output(PortNo(1))]),
            ToyRule::any(vec![ct(), Action::Recirc(1)]),
        ]);
        assert!(s.dp.fragments().set_min(false, 400));
        for id in [7, 8] {
            let parts = fragments(id);
            s.a.send(parts.clone());
            s.a.drained();
            if fits {
                assert_eq!(s.b.wait(3), parts, "cut as they came");
            }
        }
        s.dp.flush_stats();
        s.dp.tick();
        assert_eq!(
            super::flows::count(&tally),
            (2, 2 * 2042),
            "datagrams, not fragments"
        );
        assert!(s.a.take().is_empty() && s.b.take().is_empty());
    }
}

/// Fragments that are longer than the output's MTU are dropped under a name. Shorter ones leave, even if the
/// whole packet is longer.
#[test]
fn a_datagram_leaves_if_its_fragments_fit() {
    let s = setup(rules(vec![snat(), Action::Recirc(1)]));
    assert!(s.dp.fragments().set_min(false, 400));
    let too_long = || {
        let all = s.dp.coverage();
        all.iter()
            .find(|(n, _)| *n == DropKind::TxTooLong.name())
            .unwrap()
            .1
    };
    // 1,020 bytes of IP; the port's MTU is 1,000, behind at most one tag.
    s.a.send(cut_at(1, 1600, &[(0, 1000), (1000, 1608)]));
    s.a.drained();
    assert_eq!((too_long(), s.b.take().len()), (1, 0));
    let n = 60_000_usize.div_ceil(976);
    let cut: Vec<_> = (0..n).map(|i| (i * 976, ((i + 1) * 976).min(60_008))).collect();
    s.a.send(cut_at(2, 60_000, &cut));
    assert_eq!(received(&s.b.wait(n)).2.len(), 60_000);
    assert_eq!(too_long(), 1);
}

/// A tunnel carries the fragments, not the whole packet.
#[test]
fn a_tunnel_carries_fragments() {
    let (ct, push) = (Action::Ct(Arc::default()), super::tunnels::push(5, true));
    let s = setup(vec![
        ToyRule::new(under(1), vec![push, Action::Output(PortNo(2))]),
        ToyRule::any(vec![ct, Action::Recirc(1)]),
    ]);
    assert!(s.dp.fragments().set_min(false, 400));
    let parts = fragments(1);
    s.a.send(parts.clone());
    let got = s.b.wait(3);
    for (outer, inner) in got.iter().zip(&parts) {
        assert!(outer.ends_with(inner));
        let (ip, udp) = (&outer[14..34], &outer[34..]);
        assert_eq!(checksum(ip), 0);
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), outer.len() - 14);
        let addr = |at: usize| u32::from_be_bytes(ip[at..at + 4].try_into().unwrap());
        let len = u32::try_from(udp.len()).unwrap();
        assert_ne!(&udp[6..8], [0, 0]);
        let sum = Sum::ZERO.pseudo_v4(addr(12), addr(16), 17, len).bytes(udp);
        assert_eq!(sum.checksum(), 0);
    }
}

/// A datagram of IPv6 in frames that hold its UDP header and `payload` in parts of `size` bytes.
fn fragments6(payload: usize, size: usize) -> Vec<Vec<u8>> {
    let addrs = [[0xfd; 16], [0xfe; 16]];
    let mut l4 = vec![3, 0xe8, 7, 0xd0, 0, 0, 0, 0];
    l4.extend((0..payload).map(|i| u8::try_from(i % 251).unwrap()));
    let len = u16::try_from(l4.len()).unwrap();
    l4[4..6].copy_from_slice(&len.to_be_bytes());
    let sum = Sum::ZERO
        .pseudo_v6(&addrs[0], &addrs[1], 17, len.into())
        .bytes(&l4);
    l4[6..8].copy_from_slice(&sum.checksum_nonzero().to_be_bytes());
    let n = l4.len().div_ceil(size);
    let frame = |(i, part): (usize, &[u8])| {
        let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0];
        f.extend(u16::try_from(8 + part.len()).unwrap().to_be_bytes());
        f.extend([44, 64]);
        f.extend(addrs.concat());
        let offset = u16::try_from(i * size).unwrap() | u16::from(i + 1 < n);
        f.extend([17, 0]);
        f.extend(offset.to_be_bytes());
        f.extend([0, 0, 0, 9]);
        f.extend(part);
        f
    };
    l4.chunks(size).enumerate().map(frame).collect()
}

/// Fragments of IPv6 leave with an identification of their own.
#[test]
fn fragments_of_ipv6_leave_as_they_came() {
    let s = setup(rules(vec![Action::Ct(Arc::default()), Action::Recirc(1)]));
    assert!(s.dp.fragments().set_min(true, 400));
    let parts = fragments6(2000, 800);
    s.a.send([parts[2].clone(), parts[0].clone(), parts[1].clone()]);
    let mut got = s.b.wait(3);
    let id = got[0][58..62].to_vec();
    for f in &mut got {
        assert_eq!(f[58..62], id);
        f[58..62].copy_from_slice(&[0, 0, 0, 9]);
    }
    assert_eq!(got, parts);
}

/// Actions behind `ct` run once for each fragment. Those within the clone run when the datagram is complete;
/// those behind the clone run when the fragment comes.
#[test]
fn fragments_in_clones_go_their_way_to_its_end() {
    let ct = || {
        Action::Ct(Arc::new(CtAction {
            commit: true,
            ..CtAction::default()
        }))
    };
    let inner = Action::Clone(vec![ct(), Action::Output(PortNo(1))]);
    let s = setup(vec![ToyRule::new(
        Match::any(),
        vec![inner, Action::Output(PortNo(2))],
    )]);
    assert!(s.dp.fragments().set_min(false, 400));
    let parts = fragments(1);
    s.a.send([parts[0].clone()]);
    assert_eq!((s.b.wait(1).len(), s.a.take().len()), (1, 0), "the clone waits");
    s.a.send([parts[2].clone(), parts[1].clone()]);
    assert_eq!(
        s.b.wait(2),
        [parts[2].clone(), parts[1].clone()],
        "in the order of coming"
    );
    assert_eq!(s.a.wait(3), parts, "in the order of places");
    assert_eq!(s.dp.conntrack().n_conns(), 1);
}

/// A fragment whose datagram is never complete is dropped by name, and so is a bad one.
#[test]
fn what_is_missing_and_what_is_bad() {
    let s = setup(rules(vec![snat(), Action::Recirc(1)]));
    assert!(s.dp.fragments().set_min(false, 400));
    let count = |name: &str| s.dp.coverage().iter().find(|(n, _)| *n == name).unwrap().1;
    let [first, mut second, _] = fragments(1);
    s.a.send([first.clone(), first]);
    s.a.drained();
    assert_eq!(
        (count("ipf_overlap"), count(DropKind::FragmentRefused.name())),
        (1, 1)
    );
    second[24] ^= 1;
    s.a.send([second]);
    s.a.drained();
    assert_eq!(
        (count("ipf_l3csum_err"), count(DropKind::FragmentRefused.name())),
        (1, 2)
    );
    assert_eq!(s.dp.fragments().status().waiting, 1);
    s.clock.warp(15_000);
    s.dp.tick();
    assert_eq!(
        (
            s.dp.fragments().status().waiting,
            count(DropKind::FragmentTimeout.name())
        ),
        (0, 1)
    );
}

/// Fragments that do not fit into one burst are forwarded together, in order. They are counted under the name
/// that Open vSwitch's tests read at every stop.
#[test]
fn more_fragments_than_a_burst_holds() {
    const STEP: usize = 400;
    let s = setup(vec![ToyRule::any(vec![snat(), Action::Output(PortNo(2))])]);
    assert!(s.dp.fragments().set_min(false, 400));
    let count = || {
        let all = s.dp.coverage();
        all.iter()
            .find(|(n, _)| *n == "dp_packet_batch_grow")
            .map(|c| c.1)
    };
    assert_eq!(count(), Some(0), "named from the start");
    for (n, id) in [(32, 1), (33, 2)] {
        let cut: Vec<_> = (0..n).map(|i| (i * STEP, (i + 1) * STEP)).collect();
        let parts = cut_at(id, n * STEP - 8, &cut);
        s.a.send(parts.clone());
        let got = s.b.wait(n);
        let sent: Vec<u8> = parts.iter().flat_map(|f| f[34..].to_vec()).skip(8).collect();
        assert_eq!(received(&got).2, sent);
        assert_eq!(count(), Some(u64::from(n > 32)));
        s.dp.conntrack()
            .flush_all(0, &heddle_conntrack::dump::Filter::default());
    }
}
