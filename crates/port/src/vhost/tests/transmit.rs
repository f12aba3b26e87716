//! What is sent to guests: by which ring, finished where they do not take it unfinished, dropped where it does not fit.

use super::*;
use heddle_packet::{Csum, Gso, GsoKind, Offload};

#[test]
fn workers_spread_over_the_rings_that_there_are() {
    let (shared, _) = shared();
    let mut rings: Vec<Ring> = (0..3).map(|_| ring(Features::empty(), SIZE, 128)).collect();
    let mut pool = Pool::new(8);
    let mut workers: Vec<VhostTx> = (0..4).map(|w| VhostTx::new(Arc::clone(&shared), w)).collect();
    let packet = Packet::from_bytes(&[7; 60]);
    let mut send = |workers: &mut Vec<VhostTx>| -> Vec<u64> {
        workers
            .iter_mut()
            .map(|w| w.tx(&mut pool, &[&packet]).sent)
            .collect()
    };
    let got =
        |rings: &mut Vec<Ring>| -> Vec<usize> { rings.iter_mut().map(|r| r.received().len()).collect() };
    assert_eq!(send(&mut workers), [0; 4], "nobody is there");
    for (i, r) in rings.iter_mut().enumerate() {
        r.post();
        shared.tx.start(i, r.device_tx(Features::empty()), i != 2);
    }
    assert_eq!((send(&mut workers), got(&mut rings)), (vec![1; 4], vec![2, 2, 0]));
    shared.tx.enable(2, true);
    assert_eq!((send(&mut workers), got(&mut rings)), (vec![1; 4], vec![2, 1, 1]));
    shared.tx.enable(0, false);
    assert_eq!((send(&mut workers), got(&mut rings)), (vec![1; 4], vec![0, 2, 2]));
    assert!(shared.tx.stop(1).is_some());
    shared.tx.set_down(true);
    assert_eq!(send(&mut workers), [0; 4]);
    shared.tx.set_down(false);
    assert_eq!((send(&mut workers), got(&mut rings)), (vec![1; 4], vec![0, 0, 4]));
    assert!(shared.tx.stop(1).is_none());
}

/// A TCP train over IPv4 of `n` payload bytes.
fn train(n: usize, size: u16) -> Packet {
    let mut f = vec![2; 12];
    f.extend([8, 0]);
    let len = u16::try_from(40 + n).unwrap().to_be_bytes();
    f.extend([
        0x45, 0, len[0], len[1], 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    f.extend([0, 80, 0, 90, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    f.extend((0..n).map(|i| u8::try_from(i % 251).unwrap()));
    let mut p = Packet::from_bytes(&f);
    p.offload = Offload {
        csum: Csum::Partial {
            start: 34,
            offset: 16,
        },
        gso: Some(Gso {
            kind: GsoKind::Tcp4,
            ecn: false,
            size,
            hdr_len: 54,
        }),
    };
    p
}

#[test]
fn a_guest_gets_what_it_takes() {
    let all = Features::GUEST_CSUM | Features::GUEST_TSO4;
    for (features, segments) in [(all, 1), (Features::GUEST_CSUM, 3), (Features::empty(), 3)] {
        let (shared, _) = shared();
        let mut guest = ring(features, SIZE, 4096);
        guest.post();
        shared.tx.start(0, guest.device_tx(features), true);
        let (mut tx, mut pool) = (VhostTx::new(Arc::clone(&shared), 0), Pool::new(8));
        let (train, small) = (train(2500, 1000), Packet::from_bytes(&[9; 60]));
        let mut partial = train_head();
        partial.offload.gso = None;
        let counts = tx.tx(&mut pool, &[&small, &train, &partial, &small]);
        assert_eq!(counts.sent, 4, "{features:?}");
        let got = guest.received();
        assert_eq!(got.len(), 3 + segments);
        assert_eq!(
            (&got[0].1[..], &got[got.len() - 1].1[..]),
            (&[9; 60][..], &[9; 60][..]),
            "in their order"
        );
        let payload: Vec<u8> = got[1..=segments]
            .iter()
            .flat_map(|(_, f)| f[54..].to_vec())
            .collect();
        assert_eq!(payload, train.head()[54..], "the same bytes");
        let flags: Vec<u8> = got.iter().map(|(h, _)| h[0]).collect();
        let needs_csum = flags.iter().filter(|f| **f == 1).count();
        let want = match segments {
            1 => 2,
            _ if features.is_empty() => 0,
            _ => 1,
        };
        assert_eq!(needs_csum, want, "{flags:?}");
        if features.is_empty() {
            assert!(
                flags.iter().all(|f| *f == 0),
                "no flags without GUEST_CSUM (virtio 1.2 §5.1.6.4.1)"
            );
        }
        let finished = shared.tx.cell(0).counts.finished.get();
        assert_eq!(finished, [2, 1, 0][want]);
    }
}

fn train_head() -> Packet {
    train(100, 1000)
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), 16, 1526);
    guest.post();
    shared.tx.start(0, guest.device_tx(Features::empty()), true);
    let (mut tx, mut pool) = (VhostTx::new(Arc::clone(&shared), 0), Pool::new(8));
    let (small, long) = (Packet::from_bytes(&[9; 60]), Packet::from_bytes(&[8; 2000]));
    let packets: Vec<&Packet> = std::iter::once(&long)
        .chain(std::iter::repeat_n(&small, 20))
        .collect();
    let counts = tx.tx(&mut pool, &packets);
    assert_eq!((counts.sent, counts.too_long, counts.full), (16, 1, 4));
    let stats = shared.statistics();
    let stat = |name: &str| stats.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!(stat("ovs_tx_failure_drops"), 4);
    assert_eq!(stat("ovs_tx_mtu_exceeded_drops"), 1);
    assert_eq!(stat("ovs_tx_retries"), 1, "it looked again once after progress");
    assert_eq!(stat("tx_q0_good_packets"), 16);
    assert_eq!(guest.received().len(), 16);
}

/// Trains of tiny segments: those of too many are refused, and of a burst of others no more is made than the guest takes.
#[test]
fn segments_are_bounded() {
    use crate::segment::MAX_SEGMENTS;
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), 16, 2048);
    guest.post();
    shared.tx.start(0, guest.device_tx(Features::empty()), true);
    let (mut tx, mut pool) = (VhostTx::new(Arc::clone(&shared), 0), Pool::new(8));
    let tiny = train(MAX_SEGMENTS + 1, 1);
    let counts = tx.tx(&mut pool, &[&tiny]);
    assert_eq!((counts.sent, counts.error), (0, 1), "too many");
    // The first fills the ring; the others are not even begun.
    let long = train(3000, 100);
    let counts = tx.tx(&mut pool, &[&long; 8]);
    assert_eq!((counts.sent, counts.full), (0, 8));
    assert_eq!(shared.tx.cell(0).counts.finished.get(), 2);
    assert_eq!(guest.received().len(), 16);
}
