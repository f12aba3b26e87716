//! Fragments that are tracked: they wait for each other, and are forwarded as they came.

use super::flows::setup;
use super::recirc::under;
use super::{ToyRule, udp};
use heddle_conntrack::{CtAction, CtNat, NatEnd, NatHow, NatRange};
use heddle_datapath_api::{Action, DropKind, Engine, PortNo};
use heddle_flow::key::Match;
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

/// A fragment whose datagram is never complete is dropped by name; a bad fragment continues as invalid.
#[test]
fn what_is_missing_and_what_is_bad() {
    let s = setup(rules(vec![snat(), Action::Recirc(1)]));
    assert!(s.dp.fragments().set_min(false, 400));
    let count = |name: &str| s.dp.coverage().iter().find(|(n, _)| *n == name).unwrap().1;
    let [first, mut second, _] = fragments(1);
    s.a.send([first.clone(), first]);
    s.a.drained();
    assert_eq!((count("ipf_overlap"), count("drop_action_of_pipeline")), (1, 1));
    second[24] ^= 1;
    s.a.send([second]);
    s.a.drained();
    assert_eq!(
        (count("ipf_l3csum_err"), count("drop_action_of_pipeline")),
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
    let s = setup(rules(vec![snat(), Action::Recirc(1)]));
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
