//! Drivers that break the protocol: known faults of other back ends, each by name. The queue stops or drops
//! by name; nothing outside the guest's memory is read, nothing panics, and another queue continues. Tables
//! that are replaced under a worker are in `ahead` and `memory`.
//!
//! A control queue's double fetch has no counterpart: this crate has no control queue. With vhost-user the
//! front end serves it, and the session refuses to set up any ring beyond the pairs ("there is no ring N of
//! M").

use super::*;
use crate::mem::MemError;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const NEXT: u16 = F_NEXT;
const WRITE: u16 = F_WRITE;
const INDIRECT: u16 = F_INDIRECT;

/// The outcome of one descriptor table on a split transmit ring of 8.
fn outcome(features: Features, prepare: impl FnOnce(&mut Rig)) -> Option<RingError> {
    let mut rig = Rig::new(features, 8);
    prepare(&mut rig);
    let mut rx = rig.rx();
    assert!(receive(&mut rx).is_empty());
    rx.complete();
    // Stopped for good: a correct descriptor afterwards changes nothing.
    let error = rx.error();
    if error.is_some() {
        rig.send(&pattern(60, 0), 0);
        assert!(receive(&mut rx).is_empty());
        assert!(!rx.arm());
        assert_eq!(rx.error(), error);
    }
    error
}

#[test]
fn avail_index_jumps() {
    for jump in [9_u16, 100, 0x8000, 0xffff] {
        let e = outcome(Features::empty(), |rig| {
            rig.write(rig.cfg.driver + 2, &jump.to_le_bytes())
        });
        assert_eq!(e, Some(RingError::AvailJump { index: jump, used: 0 }));
    }
}

#[test]
fn avail_index_goes_back() {
    let mut rig = Rig::new(Features::empty(), 8);
    let mut rx = rig.rx();
    for i in 0..2 {
        rig.send(&pattern(60, i), i as u32);
    }
    assert_eq!(receive(&mut rx).len(), 2);
    rx.complete();
    rig.write(rig.cfg.driver + 2, &1_u16.to_le_bytes());
    receive(&mut rx);
    assert_eq!(rx.error(), Some(RingError::AvailJump { index: 1, used: 2 }));
}

/// More chains than the ring has, while some are taken and not completed.
#[test]
fn avail_index_overtakes_what_is_in_flight() {
    let mut rig = Rig::new(Features::empty(), 8);
    let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(0), Burst::new());
    for i in 0..4 {
        rig.send(&pattern(60, i), i as u32);
    }
    assert_eq!(rx.rx(&mut pool, &mut burst), 4);
    rig.write(rig.cfg.driver + 2, &9_u16.to_le_bytes());
    assert_eq!(rx.rx(&mut pool, &mut burst), 0);
    assert_eq!(rx.error(), Some(RingError::AvailJump { index: 9, used: 0 }));
    burst.clear();
    rx.complete();
    assert_eq!(rig.done().len(), 4, "what was taken before is given back");
}

#[test]
fn heads_and_next_beyond_the_table() {
    let e = outcome(Features::empty(), |rig| rig.offer(0, 8));
    assert_eq!(e, Some(RingError::Head(8)));
    let e = outcome(Features::empty(), |rig| {
        rig.poke(0, BASE, 100, NEXT, 8);
        rig.offer(0, 0);
    });
    assert_eq!(e, Some(RingError::Next(8)));
}

#[test]
#[cfg_attr(miri, ignore = "slow: thousands of pieces")]
fn chain_length_unbounded() {
    // A loop of two.
    let e = outcome(Features::empty(), |rig| {
        rig.poke(0, BASE, 100, NEXT, 1);
        rig.poke(1, BASE, 100, NEXT, 0);
        rig.offer(0, 0);
    });
    assert_eq!(e, Some(RingError::ChainTooLong));
    // A loop in an indirect table.
    let e = outcome(Features::INDIRECT_DESC, |rig| {
        let table = rig.arena.take(32, 16).unwrap();
        rig.write(table, &entry(BASE, 100, NEXT, 1));
        rig.write(table + 16, &entry(BASE, 100, NEXT, 0));
        rig.poke(0, table, 32, INDIRECT, 0);
        rig.offer(0, 0);
    });
    assert_eq!(e, Some(RingError::ChainTooLong));
    // Packed: a chain that never ends.
    let e = outcome(Features::RING_PACKED, |rig| {
        for i in 0..8 {
            rig.poke(i, BASE, 100, 0, F_AVAIL | NEXT);
        }
    });
    assert_eq!(e, Some(RingError::ChainTooLong));
    // 4 GiB of the same 4 MiB.
    let e = outcome(Features::INDIRECT_DESC, |rig| {
        rig.shared = Arc::new(SharedMemory::new(Arena::private(BASE, LEN).unwrap().0));
        let table = rig.arena.take(16 * 1024, 16).unwrap();
        for i in 0..1024_u16 {
            rig.write(
                table + 16 * u64::from(i),
                &entry(BASE, 4 << 20, if i < 1023 { NEXT } else { 0 }, i + 1),
            );
        }
        rig.poke(0, table, 16 * 1024, INDIRECT, 0);
        rig.offer(0, 0);
    });
    assert_eq!(e, Some(RingError::ChainTooLarge));
    // Few buffers, but many regions.
    let e = outcome(Features::INDIRECT_DESC, |rig| {
        let table = rig.arena.take(48, 16).unwrap();
        for i in 0..3_u16 {
            let flags = if i < 2 { NEXT } else { 0 };
            rig.write(table + 16 * u64::from(i), &entry(BASE, LEN as u32, flags, i + 1));
        }
        rig.poke(0, table, 48, INDIRECT, 0);
        rig.offer(0, 0);
    });
    assert_eq!(e, Some(RingError::ChainTooLong));
}

/// A packed driver that makes everything available, also descriptors that the device still has.
#[test]
fn packed_ring_offers_more_than_it_has() {
    let rig = Rig::new(Features::RING_PACKED, 4);
    let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(0), Burst::new());
    for i in 0..4 {
        rig.poke(i, BASE, 100, i, F_AVAIL);
    }
    assert_eq!(rx.rx(&mut pool, &mut burst), 4);
    for i in 0..4 {
        rig.poke(i, BASE, 100, i, F_USED); // available in the next round
    }
    assert_eq!(rx.rx(&mut pool, &mut burst), 0);
    assert_eq!(rx.error(), None);
    burst.clear();
    rx.complete();
}

fn entry(addr: u64, len: u32, third: u16, fourth: u16) -> Vec<u8> {
    let mut d = addr.to_le_bytes().to_vec();
    d.extend(len.to_le_bytes());
    d.extend(third.to_le_bytes());
    d.extend(fourth.to_le_bytes());
    d
}

#[test]
fn indirect_tables_that_make_no_sense() {
    let table = |len: u32, flags: u16, inner: u16| {
        move |rig: &mut Rig| {
            rig.write(BASE + 0x8000, &entry(BASE, 100, inner, 0));
            rig.poke(0, BASE + 0x8000, len, INDIRECT | flags, 1);
            rig.offer(0, 0);
        }
    };
    let on = Features::INDIRECT_DESC;
    assert_eq!(
        outcome(Features::empty(), table(16, 0, 0)),
        Some(RingError::IndirectNotNegotiated)
    );
    for len in [0, 15, 17, 16 * 1025, u32::MAX] {
        assert_eq!(
            outcome(on, table(len, 0, 0)),
            Some(RingError::IndirectLength(len))
        );
    }
    assert_eq!(outcome(on, table(16, NEXT, 0)), Some(RingError::IndirectNested));
    assert_eq!(
        outcome(on, table(16, 0, INDIRECT)),
        Some(RingError::IndirectNested)
    );
    assert_eq!(outcome(on, table(16, 0, WRITE)), Some(RingError::Direction));
    assert_eq!(outcome(on, table(16, 0, NEXT)), Some(RingError::ChainTooLong));
    // Packed: an indirect descriptor in the middle of a chain.
    let e = outcome(on | Features::RING_PACKED, |rig| {
        rig.poke(1, BASE, 16, 0, INDIRECT);
        rig.poke(0, BASE, 100, 0, F_AVAIL | NEXT);
    });
    assert_eq!(e, Some(RingError::IndirectNested));
}

#[test]
fn buffers_outside_the_guest_or_of_the_wrong_direction() {
    let end = BASE + LEN as u64;
    for (addr, len) in [
        (0, 100),
        (end, 100),
        (end - 99, 100),
        (u64::MAX - 50, 100),
        (BASE, u32::MAX),
    ] {
        let e = outcome(Features::empty(), |rig| {
            rig.poke(0, addr, len, 0, 0);
            rig.offer(0, 0);
        });
        assert!(
            matches!(e, Some(RingError::Buffer(MemError::Unmapped { .. }))),
            "{addr:#x}+{len:#x}"
        );
    }
    let e = outcome(Features::empty(), |rig| {
        rig.poke(0, BASE, 100, WRITE, 0);
        rig.offer(0, 0);
    });
    assert_eq!(e, Some(RingError::Direction));
}

/// The length of an indirect table changes while the device reads it (TOCTOU): the value that it read is the
/// one that it checks.
#[test]
#[cfg_attr(miri, ignore = "a race on purpose: the guest's side writes without atomics")]
fn indirect_table_length_is_read_once() {
    let mut rig = Rig::new(Features::INDIRECT_DESC, 8);
    let table = rig.arena.take(32, 16).unwrap();
    let data = rig.buf(&[0; 200]);
    rig.write(table, &entry(data.addr, 100, 0, 0));
    rig.write(table + 16, &entry(0xdead_beef_0000, u32::MAX, 0, 0));
    rig.poke(0, table, 16, INDIRECT, 0);
    let stop = Arc::new(AtomicBool::new(false));
    let (s, shared, at) = (Arc::clone(&stop), Arc::clone(&rig.shared), rig.cfg.desc + 8);
    let (inner, addr) = (table, data.addr);
    let attacker = std::thread::spawn(move || {
        let mem = shared.get();
        while !s.load(Relaxed) {
            for len in [16_u32, u32::MAX, 0, 32] {
                mem.write(at, &len.to_le_bytes()).unwrap();
                mem.write(inner, &u64::to_le_bytes(if len == 16 { addr } else { 1 }))
                    .unwrap();
            }
        }
    });
    let (mut frames, mut refused) = (0, 0);
    for _ in 0..20_000 {
        rig.write(rig.cfg.driver + 2, &0_u16.to_le_bytes());
        rig.write(rig.cfg.device + 2, &0_u16.to_le_bytes());
        rig.offer(0, 0);
        let mut rx = rig.rx();
        for f in receive(&mut rx) {
            assert_eq!(f.len(), 88);
            frames += 1;
        }
        refused += u32::from(rx.error().is_some());
        rx.complete();
    }
    stop.store(true, Relaxed);
    attacker.join().unwrap();
    assert_eq!(frames + refused, 20_000);
}

/// The guest rewrites header and headers after they were decided on: the packet stays as it was.
#[test]
fn csum_start_is_read_once() {
    let mut rig = Rig::new(Features::empty(), 8);
    let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(0), Burst::new());
    let mut hdr = [0; 12];
    hdr[0] = 1;
    hdr[6] = 34;
    hdr[8] = 16;
    let frame = pattern(1500, 1);
    let buf = rig.buf(&[&hdr[..], &frame].concat());
    rig.add(&[buf], &[], ChainLocation::Direct, 0).unwrap();
    rig.driver.publish();
    assert_eq!(rx.rx(&mut pool, &mut burst), 1);
    let offload = burst[0].offload;
    rig.write(buf.addr, &[0xff; 12 + limits::HEAD]);
    assert_eq!(burst[0].offload, offload);
    assert_eq!(burst[0].to_vec(), frame);
    burst.clear();
    rx.complete();
}

/// A checksum field behind the private head, and one behind the packet.
#[test]
fn csum_start_beyond_the_head() {
    for (start, ok) in [(1000_u16, true), (1490, false), (0xfff0, false)] {
        let mut rig = Rig::new(Features::empty(), 8);
        let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(0), Burst::new());
        let mut hdr = [0; 12];
        hdr[0] = 1;
        hdr[6..8].copy_from_slice(&start.to_le_bytes());
        hdr[8] = 16;
        let buf = rig.buf(&[&hdr[..], &pattern(1500, 1)].concat());
        rig.add(&[buf], &[], ChainLocation::Direct, 0).unwrap();
        rig.driver.publish();
        assert_eq!(rx.rx(&mut pool, &mut burst), usize::from(ok));
        assert_eq!(rx.drops().header, u64::from(!ok));
        assert_eq!(rx.error(), None);
        for p in &burst {
            assert!(
                p.head().len() > usize::from(start),
                "what is to be rewritten is private"
            );
        }
        burst.clear();
        rx.complete();
    }
}

/// A receive buffer shorter than the header: lengths must not go below zero.
#[test]
fn runt_receive_descriptor_underflow() {
    for (features, len) in [
        (Features::MRG_RXBUF, 11_usize),
        (Features::MRG_RXBUF, 1),
        (Features::empty(), 11),
    ] {
        let mut rig = Rig::new(features, 8);
        let mut tx = rig.tx();
        let b = rig.room(len);
        rig.add(&[], &[b], ChainLocation::Direct, 0).unwrap();
        rig.driver.publish();
        let p = Packet::from_bytes(&pattern(60, 0));
        let out = tx.tx(&[&p, &p]);
        assert_eq!((out.sent, out.down), (0, 2));
        assert_eq!(tx.error(), Some(RingError::RuntBuffer(len as u32)));
    }
    // Runts that the guest sends: dropped, and the next one is fine.
    let mut rig = Rig::new(Features::empty(), 8);
    let mut rx = rig.rx();
    for len in [0_u32, 1, 11, 12, 25] {
        let b = Buf { addr: BASE, len };
        rig.add(&[b], &[], ChainLocation::Direct, 0).unwrap();
    }
    rig.send(&pattern(14, 0), 1);
    assert_eq!(receive(&mut rx), [pattern(14, 0)]);
    rx.complete();
    assert_eq!(rx.drops().runt, 5);
    assert_eq!(rig.done().len(), 6);
}

/// A packet that a mergeable guest could only take in too many tiny buffers, and one without end.
#[test]
fn buffers_per_packet_are_bounded() {
    let mut rig = Rig::new(Features::MRG_RXBUF, 256);
    let mut tx = rig.tx();
    for i in 0..200 {
        let b = rig.room(12);
        rig.add(&[], &[b], ChainLocation::Direct, i).unwrap();
    }
    rig.driver.publish();
    let (long, short) = (
        Packet::from_bytes(&pattern(2000, 0)),
        Packet::from_bytes(&pattern(60, 1)),
    );
    let out = tx.tx(&[&long, &short]);
    assert_eq!((out.too_long, out.sent), (1, 1));
    assert_eq!(rig.done().len(), 6);
    let mut rig = Rig::new(Features::INDIRECT_DESC, 8);
    let mut rx = rig.rx();
    let table = rig.arena.take(32, 16).unwrap();
    let huge: Vec<Buf> = (0..2)
        .map(|_| Buf {
            addr: BASE,
            len: 1 << 20,
        })
        .collect();
    rig.add(&huge, &[], ChainLocation::Indirect(table), 0).unwrap();
    rig.driver.publish();
    assert!(receive(&mut rx).is_empty());
    assert_eq!((rx.drops().too_long, rx.error()), (1, None));
}

/// One buffer posted for both directions: the copy is from itself to itself.
#[test]
fn a_buffer_posted_in_both_directions_is_no_overlapping_copy() {
    let mut rig = Rig::new(Features::MRG_RXBUF, 8);
    let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(0), Burst::new());
    let frame = pattern(4000, 5);
    rig.send(&frame, 0);
    assert_eq!(rx.rx(&mut pool, &mut burst), 1);
    let mem = rig.shared.get();
    let cfg = rig.arena.queue(rig.cfg.features, 8).unwrap();
    let mut other = Driver::new(&cfg, &mem).unwrap();
    let mut tx = DeviceTx::new(cfg, Arc::clone(&rig.shared)).unwrap();
    let mut sent = [0; 16];
    mem.read(rig.cfg.desc, &mut sent).unwrap();
    let addr = u64::from_le_bytes(sent[..8].try_into().unwrap());
    other
        .add(
            &mem,
            &[],
            &[Buf {
                addr: addr + 8,
                len: 5000,
            }],
            ChainLocation::Direct,
            0,
        )
        .unwrap();
    other.publish();
    assert_eq!(tx.tx(&[&burst[0]]).sent, 1);
    // The head was private, so at least that much arrived as it was.
    let got = rig.read(Buf {
        addr: addr + 20,
        len: limits::HEAD as u32,
    });
    assert_eq!(got, frame[..limits::HEAD]);
    burst.clear();
    rx.complete();
}

/// Chains that wait in the window stay as they were read, whatever the guest writes afterwards.
#[test]
fn receive_descriptors_are_read_once() {
    let mut rig = Rig::new(Features::MRG_RXBUF, 8);
    let mut tx = rig.tx();
    let b: Vec<Buf> = (0..2).map(|_| rig.room(200)).collect();
    for (i, &b) in b.iter().enumerate() {
        rig.add(&[], &[b], ChainLocation::Direct, i as u32).unwrap();
    }
    rig.driver.publish();
    let p = Packet::from_bytes(&pattern(60, 7));
    assert_eq!(tx.tx(&[&p]).sent, 1);
    rig.poke(1, 0xdead_0000, u32::MAX, WRITE | NEXT | INDIRECT, 77);
    assert_eq!(tx.tx(&[&p]).sent, 1);
    assert_eq!(tx.error(), None);
    assert_eq!(
        rig.read(Buf {
            addr: b[1].addr + 12,
            len: 60
        }),
        pattern(60, 7)
    );
}

/// One guest's broken ring is its own: another queue of the same memory continues.
#[test]
fn a_broken_queue_disturbs_no_other() {
    let mut rig = Rig::new(Features::empty(), 8);
    let mem = rig.shared.get();
    let cfg = rig.arena.queue(rig.cfg.features, 8).unwrap();
    let mut bad = DeviceRx::new(cfg, Arc::clone(&rig.shared)).unwrap();
    mem.write(cfg.driver + 2, &500_u16.to_le_bytes()).unwrap();
    let mut rx = rig.rx();
    for i in 0..100 {
        rig.send(&pattern(64, i), 0);
        assert!(receive(&mut bad).is_empty());
        assert_eq!(receive(&mut rx), [pattern(64, i)]);
        rx.complete();
        rig.done();
    }
    assert_eq!(bad.error().map(RingError::name), Some("ring-avail-jump"));
    assert!(bad.error().is_some_and(|e| !e.may_recover()));
}

#[test]
fn ring_sizes_and_areas_are_checked() {
    let rig = Rig::new(Features::empty(), 8);
    let open = |change: &dyn Fn(&mut QueueConfig)| {
        let mut cfg = rig.cfg;
        change(&mut cfg);
        DeviceRx::new(cfg, Arc::clone(&rig.shared)).err()
    };
    for size in [0, 3, 6, 0x8001, u16::MAX] {
        assert_eq!(open(&|c| c.size = size), Some(RingError::Size(size)));
    }
    let end = BASE + LEN as u64;
    assert!(matches!(
        open(&|c| c.desc = end - 16),
        Some(RingError::Area(MemError::Crosses { .. }))
    ));
    assert!(matches!(
        open(&|c| c.device = end),
        Some(RingError::Area(MemError::Unmapped { .. }))
    ));
    assert!(matches!(
        open(&|c| c.driver += 1),
        Some(RingError::Area(MemError::Misaligned { .. }))
    ));
    let packed = |c: &mut QueueConfig| {
        c.features |= Features::RING_PACKED;
        c.start.index = 8;
    };
    assert_eq!(open(&packed), Some(RingError::Head(8)));
}

/// Chains of nothing but empty buffers, up to the ring's size: their descriptors are bounded like all others,
/// per chain and per call.
#[test]
fn empty_buffers_are_bounded_too() {
    use crate::ring::limits::{DESCS, MAX_INDIRECT};
    const BIG: u16 = 2048;
    // Longer than a chain may be, without a byte in it.
    for features in [Features::empty(), Features::RING_PACKED] {
        let rig = Rig::new(features, BIG);
        for i in 0..BIG {
            let (third, fourth) = if rig.cfg.packed() {
                (0, F_AVAIL | NEXT)
            } else {
                (NEXT, (i + 1) % BIG)
            };
            rig.poke(i, BASE, 0, third, fourth);
        }
        if !rig.cfg.packed() {
            rig.offer(0, 0);
        }
        let mut dev = rig.rx();
        assert!(receive(&mut dev).is_empty());
        assert_eq!(dev.error(), Some(RingError::ChainTooLong), "{features:?}");
    }
    // The longest possible chain, the same one again and again: a call takes few of them, and the next
    // continues.
    let rig = Rig::new(Features::empty(), BIG);
    let chain = MAX_INDIRECT as u16;
    for i in 0..chain {
        let last = i + 1 == chain;
        rig.poke(
            i,
            BASE,
            if last { 100 } else { 0 },
            if last { 0 } else { NEXT },
            i + 1,
        );
    }
    for n in 0..64 {
        rig.offer(n, 0);
    }
    let mut dev = rig.rx();
    let mut calls = 0;
    let mut got = 0;
    while got < 64 {
        let n = receive(&mut dev).len();
        dev.complete();
        assert!(
            n <= 2 * DESCS as usize / usize::from(chain) + 1,
            "{n} chains in a call"
        );
        got += n;
        calls += 1;
        assert!(calls < 200, "{got} received: {:?}", dev.error());
    }
    assert_eq!(dev.error(), None);
}
