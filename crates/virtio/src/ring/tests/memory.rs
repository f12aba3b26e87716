//! Tables replaced under a queue, addresses that come later, the dirty log, stopping and continuing.

use super::*;
use crate::mem::{DirtyLog, GuestMemory, MemError, Region};
use heddle_sys::Mapping;
use heddle_sys::mmap::{Pages, memfd};
use std::os::fd::AsFd;

/// A table over one memfd, mapped afresh at each call as a front end's message causes it.
fn mapped(fd: &std::os::fd::OwnedFd) -> GuestMemory {
    let map = Arc::new(Mapping::of_fd(fd.as_fd(), 0, LEN as u64).unwrap());
    GuestMemory::new(vec![Region::new(BASE, 0, map).unwrap()]).unwrap()
}

/// SET_MEM_TABLE while a worker holds packets. Their memory stays mapped until they are gone, then is
/// unmapped, and the queue continues in the new table.
#[test]
#[cfg_attr(miri, ignore = "needs memfd")]
fn no_use_after_unmap_when_the_table_is_replaced() {
    for features in [Features::empty(), Features::RING_PACKED] {
        let fd = memfd("guest", LEN as u64, Pages::Normal).unwrap();
        let mut rig = Rig::new(features, 16);
        rig.shared = Arc::new(SharedMemory::new(mapped(&fd)));
        rig.driver = Driver::new(&rig.cfg, &rig.shared.get()).unwrap();
        let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(0), Burst::new());
        let frame = pattern(3000, 1);
        rig.send(&frame, 1);
        assert_eq!(rx.rx(&mut pool, &mut burst), 1);
        let old = Arc::downgrade(&rig.shared.replace(mapped(&fd)));
        assert_eq!(rx.rx(&mut pool, &mut burst), 0);
        assert!(old.upgrade().is_some(), "a packet points into it");
        assert_eq!(burst[0].to_vec(), frame);
        burst.clear();
        rx.complete();
        let next = pattern(2000, 2);
        // The driver's ring was the old mapping of the same bytes.
        rig.send(&next, 2);
        assert_eq!(receive(&mut rx), [next]);
        rx.complete();
        assert!(old.upgrade().is_none(), "nobody needs it");
        assert_eq!(rig.done().len(), 2);
    }
}

/// A worker reports too early that it is done. The guest gets no buffer back, and no other table is taken,
/// until no packet refers to the guest's memory any more.
#[test]
fn what_a_packet_refers_to_is_not_given_back() {
    for features in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(features, 16);
        let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(4), Burst::new());
        for i in 0..3 {
            rig.send(&pattern(1000, i), i as u32);
        }
        rig.send(&pattern(60, 3), 3);
        assert_eq!(rx.rx(&mut pool, &mut burst), 4);
        let old = Arc::downgrade(&rig.shared.get());
        rig.shared.replace(rig.shared.get().with_log(None));
        pool.put_all(burst.drain(2..));
        assert!(!rx.complete());
        let mut kept = burst.pop().unwrap();
        pool.put(burst.pop().unwrap());
        assert!(!rx.complete());
        assert!(rig.done().is_empty());
        assert_eq!(kept.to_vec(), pattern(1000, 1));
        assert_eq!(rx.rx(&mut pool, &mut burst), 0);
        assert!(old.upgrade().is_some(), "a packet points into it");
        kept.make_private();
        // The worker does not report again that it is done: the next look finds out, and reports that the
        // guest wants a notification.
        assert_eq!(rx.rx(&mut pool, &mut burst), 0);
        assert!(rx.take_call());
        assert_eq!(rig.done().len(), 4);
        rx.rx(&mut pool, &mut burst);
        assert!(old.upgrade().is_none(), "nobody needs it");
        assert_eq!(kept.head(), pattern(1000, 1));
    }
}

/// A queue that is dropped too early keeps its memory instead of pulling it away.
#[test]
fn a_dropped_queue_does_not_unmap_under_packets() {
    let mut rig = Rig::new(Features::empty(), 16);
    let (mut rx, mut pool, mut burst) = (rig.rx(), Pool::new(0), Burst::new());
    let frame = pattern(1000, 3);
    rig.send(&frame, 1);
    rx.rx(&mut pool, &mut burst);
    drop(rx);
    drop(rig);
    assert_eq!(burst[0].to_vec(), frame);
}

#[test]
fn buffers_that_were_looked_at_are_found_again_in_a_new_table() {
    for features in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(features | Features::MRG_RXBUF, 16);
        let mut tx = rig.tx();
        let bufs: Vec<Buf> = (0..4).map(|_| rig.room(200)).collect();
        for (i, &b) in bufs.iter().enumerate() {
            rig.add(&[], &[b], ChainLocation::Direct, i as u32).unwrap();
        }
        rig.driver.publish();
        let p = Packet::from_bytes(&pattern(100, 0));
        assert_eq!(tx.tx(&[&p]).sent, 1);
        // The same regions at the same place: a table after hotplug elsewhere.
        let again = rig.shared.get().with_log(None);
        rig.shared.replace(again);
        assert_eq!(tx.tx(&[&p, &p, &p]).sent, 3);
        assert_eq!(tx.tx(&[&p]).full, 1);
        let tokens: Vec<u32> = rig.done().iter().map(|d| d.token).collect();
        assert_eq!(tokens, [0, 1, 2, 3]);
    }
}

#[test]
fn a_ring_without_memory_waits_for_a_table() {
    let mut rig = Rig::new(Features::empty(), 16);
    let mut rx = rig.rx();
    rig.send(&pattern(64, 0), 0);
    let old = rig.shared.replace(GuestMemory::default());
    assert!(receive(&mut rx).is_empty());
    assert!(matches!(
        rx.error(),
        Some(RingError::Area(MemError::Unmapped { .. }))
    ));
    assert!(!rx.arm());
    rig.shared.replace(old.with_log(None));
    assert_eq!(receive(&mut rx), [pattern(64, 0)]);
    assert_eq!(rx.error(), None);
}

/// IOTLB: a buffer that is not mapped yet is a miss, and is taken when its entry is there; chains before it
/// are not lost.
#[test]
fn a_missing_address_is_a_miss_not_an_error_behind_an_iommu() {
    for features in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(features, 16);
        rig.cfg.wait_for_miss = true;
        let mut rx = rig.rx();
        rig.send(&pattern(64, 0), 0);
        let far = Buf {
            addr: BASE + LEN as u64,
            len: 80,
        };
        rig.add(&[far], &[], ChainLocation::Direct, 1).unwrap();
        rig.driver.publish();
        assert_eq!(receive(&mut rx), [pattern(64, 0)]);
        rx.complete();
        let miss = Miss {
            addr: far.addr,
            len: 80,
            write: false,
        };
        assert_eq!(rx.take_miss(), Some(miss));
        assert!(receive(&mut rx).is_empty());
        assert_eq!(rx.error(), None);
        let more = Region::new(far.addr, 0, Arc::new(Mapping::anonymous(4096).unwrap())).unwrap();
        let regions = [rig.shared.get().regions(), &[more]].concat();
        rig.shared.replace(GuestMemory::new(regions).unwrap());
        assert_eq!(receive(&mut rx), [vec![0; 68]]);
        rx.complete();
        assert_eq!(rig.done().len(), 2);
    }
}

#[test]
fn live_migration_sees_each_page_that_was_written() {
    for features in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(features | Features::MRG_RXBUF, 16);
        let mut tx = rig.tx();
        let bits = Mapping::anonymous((BASE as usize + LEN) / 4096 / 8).unwrap();
        let log = Arc::new(DirtyLog::new(bits).unwrap());
        let logged = rig.shared.get().with_log(Some(Arc::clone(&log)));
        rig.shared.replace(logged);
        let bufs: Vec<Buf> = (0..2)
            .map(|_| Buf {
                addr: rig.arena.take(8192, 4096).unwrap(),
                len: 5000,
            })
            .collect();
        for &b in &bufs {
            rig.add(&[], &[b], ChainLocation::Direct, 0).unwrap();
        }
        rig.driver.publish();
        let p = Packet::from_bytes(&pattern(6000, 0));
        assert_eq!(tx.tx(&[&p]).sent, 1);
        let ring = if features.is_empty() {
            rig.cfg.device
        } else {
            rig.cfg.desc
        };
        // 5000 bytes in the first, 1012 in the second.
        let want: std::collections::BTreeSet<u64> = [
            ring / 4096,
            bufs[0].addr / 4096,
            bufs[0].addr / 4096 + 1,
            bufs[1].addr / 4096,
        ]
        .into();
        let got = (0..(BASE + LEN as u64) / 4096)
            .filter(|page| log.is_marked(page * 4096))
            .collect();
        assert_eq!(want, got);
    }
}

/// Back end stopped and started (GET_VRING_BASE, SET_VRING_BASE), also with buffers looked at but unused.
#[test]
fn a_stopped_queue_continues_at_its_position() {
    for features in [Features::empty(), Features::RING_PACKED] {
        let mut rig = Rig::new(features | Features::MRG_RXBUF, 8);
        for round in 0..20 {
            let b: Vec<Buf> = (0..3).map(|_| rig.room(500)).collect();
            for &b in &b {
                rig.add(&[], &[b], ChainLocation::Direct, round).unwrap();
            }
            rig.driver.publish();
            let packed = rig.cfg.packed();
            for _ in 0..3 {
                let mut tx = rig.tx();
                let p = Packet::from_bytes(&pattern(100, 0));
                assert_eq!(tx.tx(&[&p]).sent, 1);
                let base = tx.stop().to_base(packed);
                rig.cfg.start = Position::from_base(base, packed);
                if !packed {
                    assert_eq!(
                        rig.cfg.used_index(&rig.shared.get()).unwrap(),
                        rig.cfg.start.index
                    );
                }
            }
            assert_eq!(rig.done().len(), 3);
        }
    }
}
