//! Batches beside a list; queues that keep packets.

use super::*;
use crate::tests::FakePort;
use heddle_packet::{Gso, Wraps};
use heddle_port::{Port, Released};
use heddle_virtio::driver::{Arena, Buf, ChainLocation, Driver};
use heddle_virtio::{DeviceRx, Features, SharedMemory};
use proptest::prelude::*;

proptest! {
    /// Beside the plain twin, a list of numbers.
    #[test]
    fn a_batch_has_what_was_put_in_in_this_order(all in prop::collection::vec((0_u16..40, 0_u16..6), 0..80)) {
        let (mut batch, mut plain) = (Batch::default(), Vec::new());
        for (first, n) in all {
            // Packets of the burst, or copies.
            let most = if usize::from(first) < BURST { BURST } else { BURST + 16 };
            let end = (first + n).min(LiveId::try_from(most).unwrap());
            let end = end.min(first + LiveId::try_from(batch.room()).unwrap());
            batch.push(first..end);
            plain.extend(first..end);
            prop_assert_eq!(batch.room(), TX_BATCH - plain.len());
            let one_side = |r: &Range<LiveId>| (usize::from(r.start) < BURST) == (usize::from(r.end) <= BURST);
            prop_assert!(batch.ranges.iter().all(one_side));
        }
        let ids: Vec<_> = batch.ranges.iter().flat_map(Clone::clone).collect();
        prop_assert_eq!(ids, plain);
        batch.clear();
        prop_assert_eq!(batch.room(), TX_BATCH);
    }
}

/// Sends packets `ids` of the burst by each of these ports, and ends the burst.
fn send_all(
    table: &mut TxTable,
    pool: &mut Pool,
    live: &mut Live,
    to: impl IntoIterator<Item = (u32, Range<LiveId>)>,
) {
    let drops = Drops::default();
    for (no, mut ids) in to {
        assert_eq!(table.push(no, &mut ids, 1500, live, &drops), Ok(false));
    }
    table.finish(live, pool, &drops);
    pool.put_all(live.burst.drain(..));
}

#[test]
fn a_queue_that_keeps_packets_holds_up_no_guest() {
    let (mem, mut arena) = Arena::private(1 << 30, 1 << 20).unwrap();
    let cfg = arena.queue(Features::VERSION_1, 64).unwrap();
    let mut driver = Driver::new(&cfg, &mem).unwrap();
    let frames: Vec<Vec<u8>> = [(60, 1), (1500, 2), (60, 3), (1500, 4)]
        .map(|(len, byte)| vec![byte; len])
        .into();
    for frame in &frames {
        let bytes = [&[0; 12][..], frame].concat();
        let len = u32::try_from(bytes.len()).unwrap();
        let addr = arena.take(len.into(), 64).unwrap();
        mem.write(addr, &bytes).unwrap();
        driver
            .add(&mem, &[Buf { addr, len }], &[], ChainLocation::Direct, 0)
            .unwrap();
    }
    driver.publish();
    let mut rx = DeviceRx::new(cfg, Arc::new(SharedMemory::new(mem))).unwrap();
    let ports = ["shaper", "shaper", "borrows"].map(FakePort::new);
    let mut table = TxTable::default();
    for (no, port) in (0..).zip(&ports) {
        let queue = port.open_tx(0, 1).unwrap();
        table.insert(no, TxPort::new(queue, Arc::default(), Arc::default()));
    }
    let (mut pool, mut live) = (Pool::new(64), Live::default());
    assert_eq!(rx.rx(&mut pool, &mut live.burst), frames.len());
    let tails: Vec<usize> = live.burst.iter().map(|p| p.segs().len()).collect();
    assert_eq!(tails, [0, 1, 0, 1]);
    send_all(
        &mut table,
        &mut pool,
        &mut live,
        [(0, 0..4), (1, 1..4), (2, 0..4)],
    );
    rx.complete();
    let mut back = 0;
    while driver.pop().unwrap().is_some() {
        back += 1;
    }
    assert_eq!(back, frames.len(), "the guest has all of its buffers");
    assert_eq!(ports[2].take(), frames);
    assert!(ports[0].take().is_empty() && ports[1].take().is_empty());
    // The other packets are sent when the next ones come.
    live.burst.push(Packet::from_bytes(&[5; 60]));
    send_all(&mut table, &mut pool, &mut live, [(0, 0..1), (1, 0..1)]);
    assert_eq!(ports[0].take(), frames);
    assert_eq!(ports[1].take(), frames[1..]);
    assert_eq!((table.batches, table.sent), (5, 13));
    assert_eq!(pool.grown(), 0);
}

#[test]
fn private_packets_move_and_are_copied_for_all_but_the_last_who_want_them() {
    let (mut pool, mut given) = (Pool::new(4), Given::default());
    let mut packet = Packet::from_bytes(&[1; 60]);
    let at = packet.head().as_ptr();
    given.want.push(2);
    given.give(&mut packet, 0, &mut pool);
    given.give(&mut packet, 0, &mut pool);
    let same: Vec<bool> = given.packets.iter().map(|p| p.head().as_ptr() == at).collect();
    assert_eq!(same, [false, true]);
    assert!(given.packets.iter().all(|p| p.head() == [1; 60]));
}

/// A queue whose device takes GSO packets, and at most this number of packets at once.
struct Few(usize, Arc<std::sync::Mutex<Vec<Packet>>>);

impl TxQueue for Few {
    fn tx(&mut self, _: &mut Pool, packets: &[&Packet]) -> TxCounts {
        let n = packets.len().min(self.0);
        for p in &packets[..n] {
            let mut copy = Packet::from_bytes(&p.to_vec());
            copy.offload = p.offload;
            self.1.lock().unwrap().push(copy);
        }
        TxCounts {
            sent: n as u64,
            bytes: packets[..n].iter().map(|p| p.len() as u64).sum(),
            full: (packets.len() - n) as u64,
            ..TxCounts::default()
        }
    }
    fn gso_support(&self) -> gro::GsoKinds {
        gro::GsoKinds::ALL
    }
}

#[test]
fn what_is_counted_is_what_was_joined() {
    // Two datagrams of one flow, something else, three of another flow.
    let datagram = |port: u16, id: u16| {
        let mut f = crate::tests::udp(1, 2, port, 9);
        f.resize(14 + 20 + 8 + 600, 7);
        f[16..18].copy_from_slice(&628_u16.to_be_bytes());
        f[18..20].copy_from_slice(&id.to_be_bytes());
        f[38..40].copy_from_slice(&608_u16.to_be_bytes());
        // Not verified: the packet is marked as right.
        f[40..42].copy_from_slice(&[1, 1]);
        f[24..26].fill(0);
        let sum = heddle_wire::checksum::checksum(&f[14..34]);
        f[24..26].copy_from_slice(&sum.to_be_bytes());
        let mut p = Packet::from_bytes(&f);
        p.offload.csum = heddle_packet::Csum::Valid;
        p
    };
    let frames = [(1, 1), (1, 2), (3, 1), (2, 5), (2, 6), (2, 7)];
    let sent = |most: usize, joins: bool| {
        let (mut pool, mut live) = (Pool::new(64), Live::default());
        frames
            .iter()
            .for_each(|(port, id)| live.burst.push(datagram(*port, *id)));
        let (took, counters) = (Arc::default(), Arc::<PortCounters>::default());
        let queue = Box::new(Few(most, Arc::clone(&took)));
        let mut table = TxTable {
            joins,
            ..TxTable::default()
        };
        table.insert(0, TxPort::new(queue, Arc::default(), Arc::clone(&counters)));
        send_all(&mut table, &mut pool, &mut live, [(0, 0..6)]);
        let lens: Vec<usize> = took.lock().unwrap().iter().map(Packet::len).collect();
        let c = &counters;
        (lens, (c.tx_packets.get(), c.tx_bytes.get(), c.tx_dropped.get()))
    };
    let one = 642;
    assert_eq!(
        sent(9, true),
        (vec![one + 600, one, one + 1200], (6, 6 * one as u64, 0))
    );
    assert_eq!(sent(1, true), (vec![one + 600], (2, 2 * one as u64, 4)));
    assert_eq!(sent(9, false), (vec![one; 6], (6, 6 * one as u64, 0)));
}

/// Datagrams of a GSO packet are compared with the MTU one by one; TCP is segmented elsewhere.
#[test]
fn a_gso_packet_of_datagrams_is_as_long_as_one_of_them() {
    const IN_TUNNEL: u16 = 50 + 34;
    let train = |kind, size: u16, len: usize| {
        let mut p = Packet::from_bytes(&vec![0; len]);
        p.offload.csum = Csum::Partial {
            start: IN_TUNNEL,
            offset: 6,
        };
        p.offload.gso = Some(Gso {
            kind,
            size,
            hdr_len: IN_TUNNEL + 8,
            ecn: false,
            wraps: Wraps::default(),
        });
        p
    };
    let fits = 1514 - IN_TUNNEL - 8;
    assert!(!is_too_long(&train(GsoKind::Udp, fits, 30_000), 1514));
    assert!(is_too_long(&train(GsoKind::Udp, fits + 1, 30_000), 1514));
    // A datagram shorter than the segment size.
    assert!(!is_too_long(&train(GsoKind::Udp, 9000, 1514), 1514));
    assert!(!is_too_long(&train(GsoKind::Tcp4, fits + 1, 30_000), 1514));
    let plain = |len: usize| Packet::from_bytes(&vec![0; len]);
    assert!(!is_too_long(&plain(1514), 1514) && is_too_long(&plain(1515), 1514));
}

/// A queue in which packets wait until a time.
struct WaitingQueue {
    waiting: u64,
    due: u64,
}

impl TxQueue for WaitingQueue {
    fn tx(&mut self, _pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        self.waiting += packets.len() as u64;
        TxCounts {
            waits: true,
            ..TxCounts::default()
        }
    }
    fn release(&mut self, _pool: &mut Pool) -> Released {
        let mut released = Released::default();
        // One packet at a time, each ten cycles after the one before; every other one is lost.
        self.waiting -= 1;
        self.due += 10;
        released.next = (self.waiting > 0).then_some(self.due);
        if self.waiting.is_multiple_of(2) {
            (released.counts.sent, released.counts.bytes) = (1, 100);
        } else {
            released.counts.full = 1;
        }
        released
    }
}

#[test]
fn packets_that_wait_are_released_in_time() {
    let mut table = TxTable::default();
    let counters: [Arc<PortCounters>; 2] = Default::default();
    for (no, counters) in (0..).zip(&counters) {
        let queue = WaitingQueue { waiting: 0, due: 100 };
        table.insert(
            no,
            TxPort::new(Box::new(queue), Arc::default(), Arc::clone(counters)),
        );
    }
    let (mut pool, mut live, drops) = (Pool::new(8), Live::default(), Drops::default());
    assert!(!table.has_waiting() && table.next_due() == NEVER);
    for n in [3, 1] {
        live.burst.extend((0..n).map(|_| Packet::from_bytes(&[0; 100])));
        send_all(&mut table, &mut pool, &mut live, [(1, 0..n)]);
    }
    assert!(table.has_waiting() && table.next_due() == 0);
    // The first call is at once, the others when they are due.
    for (now, due) in [(5, 110), (109, 110), (110, 120), (125, 130)] {
        table.release(now, &mut pool, &drops);
        assert_eq!(table.next_due(), due);
    }
    table.release(1000, &mut pool, &drops);
    assert!(!table.has_waiting() && table.next_due() == NEVER);
    let c = &counters[1];
    assert_eq!(
        (c.tx_packets.get(), c.tx_bytes.get(), c.tx_dropped.get()),
        (2, 200, 2)
    );
    assert_eq!(counters[0].tx_packets.get(), 0);
    // A port that goes takes its time with it.
    live.burst.push(Packet::from_bytes(&[0; 100]));
    send_all(&mut table, &mut pool, &mut live, [(1, 0..1)]);
    assert!(table.has_waiting());
    table.remove(1);
    assert!(!table.has_waiting());
}
