//! Packets to guests: the choice of the ring, finishing in software for guests that need it, drops for want
//! of room.

use super::*;
use heddle_packet::{Csum, Gso, GsoKind, Offload, Wraps};

#[test]
fn workers_spread_over_the_rings_that_there_are() {
    let (shared, _) = shared();
    let mut rings: Vec<Ring> = (0..3).map(|_| ring(Features::empty(), SIZE, 128)).collect();
    let mut pool = Pool::new(8);
    let mut workers: Vec<VirtioTx> = (0..4).map(|w| VirtioTx::new(Arc::clone(&shared), w)).collect();
    let packet = Packet::from_bytes(&[7; 60]);
    let mut send = |workers: &mut Vec<VirtioTx>| -> Vec<u64> {
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

/// A TCP GSO packet over IPv4 of `n` payload bytes.
fn gso_packet(n: usize, size: u16) -> Packet {
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
            wraps: Wraps::default(),
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
        let (mut tx, mut pool) = (VirtioTx::new(Arc::clone(&shared), 0), Pool::new(8));
        let (gso_packet, small) = (gso_packet(2500, 1000), Packet::from_bytes(&[9; 60]));
        let mut partial = gso_head();
        partial.offload.gso = None;
        let counts = tx.tx(&mut pool, &[&small, &gso_packet, &partial, &small]);
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
        assert_eq!(payload, gso_packet.head()[54..], "the same bytes");
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

fn gso_head() -> Packet {
    gso_packet(100, 1000)
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), 16, 1526);
    guest.post();
    shared.tx.start(0, guest.device_tx(Features::empty()), true);
    let (mut tx, mut pool) = (VirtioTx::new(Arc::clone(&shared), 0), Pool::new(8));
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

/// GSO packets of tiny segments: one with too many is refused. In a burst of others, no more segments are
/// made than the guest takes.
#[test]
fn segments_are_bounded() {
    use crate::segment::MAX_SEGMENTS;
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), 16, 2048);
    guest.post();
    shared.tx.start(0, guest.device_tx(Features::empty()), true);
    let (mut tx, mut pool) = (VirtioTx::new(Arc::clone(&shared), 0), Pool::new(8));
    let tiny = gso_packet(MAX_SEGMENTS + 1, 1);
    let counts = tx.tx(&mut pool, &[&tiny]);
    assert_eq!((counts.sent, counts.error), (0, 1), "too many");
    // The first fills the ring; the others are not even begun.
    let long = gso_packet(3000, 100);
    let counts = tx.tx(&mut pool, &[&long; 8]);
    assert_eq!((counts.sent, counts.full), (0, 8));
    assert_eq!(shared.tx.cell(0).counts.finished.get(), 2);
    assert_eq!(guest.received().len(), 16);
}

/// The number in a frame, and the worker that sent it.
fn numbered(worker: u8, number: u32) -> Packet {
    let mut bytes = [worker; 60];
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    Packet::from_bytes(&bytes)
}
fn number(frame: &[u8]) -> (u8, u32) {
    (frame[20], u32::from_be_bytes(frame[14..18].try_into().unwrap()))
}

#[test]
fn a_ring_in_use_is_not_waited_for() {
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), 512, 128);
    guest.post();
    shared.tx.start(0, guest.device_tx(Features::empty()), true);
    let mut workers: Vec<VirtioTx> = (0..2).map(|w| VirtioTx::new(Arc::clone(&shared), w)).collect();
    let mut pool = Pool::new(600);
    let cell = shared.tx.cell(0);
    let mut send = |worker: usize, numbers: std::ops::Range<u32>| {
        let packets: Vec<Packet> = numbers
            .map(|n| numbered(u8::try_from(worker).unwrap(), n))
            .collect();
        workers[worker].tx(&mut pool, &packets.iter().collect::<Vec<_>>())
    };
    assert_eq!(send(0, 0..2).sent, 2);
    let held = cell.ring.try_take().unwrap();
    assert_eq!(
        send(1, 0..4),
        crate::TxCounts::default(),
        "whoever has the ring counts them"
    );
    assert_eq!(send(0, 2..3), crate::TxCounts::default());
    // The holder releases the ring without a check: the next worker sends them first.
    drop(held);
    assert_eq!(send(0, 3..5).sent, 7);
    let order: Vec<_> = guest.received().iter().map(|(_, f)| number(f)).collect();
    let one = |n| (1, n);
    assert_eq!(order[..2], [(0, 0), (0, 1)]);
    assert_eq!(order[2..6], [0, 1, 2, 3].map(one));
    assert_eq!(order[6..], [(0, 2), (0, 3), (0, 4)]);
    // No more than the queue holds; the worker that has the ring sends them, and counts their outcome.
    let held = cell.ring.try_take().unwrap();
    let most = u32::try_from(cell.handed.capacity()).unwrap();
    assert_eq!(send(1, 0..most + 5).full, 5);
    let none = crate::TxCounts::default();
    let counts = super::super::tx::let_go(&shared.tx, &cell, &mut Pool::new(0), held, none);
    assert_eq!((counts.sent, counts.full), (512 - 9, 9), "the guest's buffers");
    let stats = shared.statistics();
    let stat = |name: &str| stats.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!((stat("tx_contention"), stat("ovs_tx_failure_drops")), (3, 14));
    assert_eq!(stat("tx_q0_good_packets"), 512);
    // Packets that are handed over to a ring that goes away have nowhere to go.
    let held = cell.ring.try_take().unwrap();
    send(0, 0..3);
    drop(held);
    assert!(shared.tx.stop(0).is_some());
    assert_eq!(send(1, 0..1).down, 4);
}

/// Three workers and a session at one ring: each worker's packets come in order, each once, and each is
/// counted once.
#[test]
fn workers_share_a_ring_without_loss_of_order() {
    const EACH: u32 = 20_000;
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), 256, 128);
    guest.post();
    shared.tx.start(0, guest.device_tx(Features::empty()), true);
    let mut next = [0; 3];
    let mut got = 0;
    let mut sum = std::thread::scope(|s| {
        let workers: Vec<_> = (0..3)
            .map(|w| {
                let mut tx = VirtioTx::new(Arc::clone(&shared), usize::from(w));
                s.spawn(move || {
                    let (mut pool, mut sum) = (Pool::new(64), crate::TxCounts::default());
                    for n in (0..EACH).step_by(8) {
                        let packets: Vec<Packet> = (n..n + 8).map(|n| numbered(w, n)).collect();
                        sum += tx.tx(&mut pool, &packets.iter().collect::<Vec<_>>());
                    }
                    while std::mem::take(&mut sum.waits) {
                        sum += tx.release(&mut pool).counts;
                    }
                    sum
                })
            })
            .collect();
        let cell = shared.tx.cell(0);
        let mut look = |guest: &mut Ring| {
            while let Some(done) = guest.driver.pop().unwrap() {
                let buf = guest.bufs[done.token as usize];
                let mut frame = [0; 60];
                guest.mem.read(buf.addr + 12, &mut frame).unwrap();
                let (w, n) = number(&frame);
                assert!(n >= next[usize::from(w)], "worker {w}: {n} again or too late");
                next[usize::from(w)] = n + 1;
                got += 1;
                let added = guest
                    .driver
                    .add(&guest.mem, &[], &[buf], ChainLocation::Direct, done.token);
                added.unwrap();
            }
            guest.driver.publish();
        };
        while workers.iter().any(|w| !w.is_finished()) {
            look(&mut guest);
            shared.tx.with(&cell, |r| r.ring.refresh());
        }
        look(&mut guest);
        let mut sum = crate::TxCounts::default();
        workers.into_iter().for_each(|w| sum += w.join().unwrap());
        sum
    });
    sum += shared.tx.choice().2;
    assert_eq!(sum.sent, got);
    assert_eq!(sum.sent + sum.full, 3 * u64::from(EACH), "{sum:?}");
    assert!(shared.tx.cell(0).handed.is_empty());
}
