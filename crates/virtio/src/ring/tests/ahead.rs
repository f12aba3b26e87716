//! Chains that were read ahead are unchanged when they are taken, none is lost, and no thread sleeps over
//! them.

use super::*;
use crate::mem::GuestMemory;
use heddle_packet::BURST;
use heddle_sys::mmap::{Pages, memfd};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MORE: usize = 8;

fn layouts() -> [Features; 2] {
    [Features::empty(), Features::RING_PACKED]
}

/// A ring with a burst and [`MORE`] frames, of which the burst was received.
fn rig(features: Features) -> (Rig, DeviceRx, Vec<Vec<u8>>) {
    let mut rig = Rig::new(features, 64);
    let mut rx = rig.rx();
    let frames: Vec<Vec<u8>> = (0..BURST + MORE).map(|i| pattern(60 + i, i)).collect();
    for (i, f) in frames.iter().enumerate() {
        let buf = rig.buf(&[&[0; 12], &f[..]].concat());
        rig.add(&[buf], &[], ChainLocation::Direct, i as u32).unwrap();
    }
    rig.driver.publish();
    assert_eq!(receive(&mut rx), frames[..BURST]);
    rx.complete();
    (rig, rx, frames)
}

/// The guest rewrites descriptors that it has made available: the values that were read and checked are used.
#[test]
fn descriptors_read_ahead_are_read_once() {
    for features in layouts() {
        let (rig, mut rx, frames) = rig(features);
        for i in BURST..BURST + MORE {
            rig.poke(i as u16, 0xdead_0000, u32::MAX, F_WRITE, F_WRITE | F_NEXT);
        }
        assert_eq!(receive(&mut rx), frames[BURST..]);
        assert_eq!(rx.error(), None);
    }
}

#[test]
fn a_device_with_chains_at_hand_does_not_sleep() {
    for features in layouts() {
        let (_rig, mut rx, frames) = rig(features);
        assert!(rx.arm());
        assert_eq!(receive(&mut rx), frames[BURST..]);
        rx.complete();
        assert!(!rx.arm());
    }
}

/// A broken later chain takes nothing from those before it.
#[test]
fn a_broken_chain_behind_a_burst_does_not_spoil_it() {
    let (mut rig, mut rx, frames) = {
        let mut rig = Rig::new(Features::empty(), 64);
        let rx = rig.rx();
        let frames: Vec<Vec<u8>> = (0..BURST + 2).map(|i| pattern(60, i)).collect();
        for (i, f) in frames.iter().enumerate() {
            rig.send(f, i as u32);
        }
        rig.offer((BURST + 2) as u16, 64);
        (rig, rx, frames)
    };
    assert_eq!(receive(&mut rx), frames[..BURST]);
    rx.complete();
    assert_eq!(receive(&mut rx), frames[BURST..]);
    rx.complete();
    assert!(receive(&mut rx).is_empty());
    assert_eq!(rx.error(), Some(RingError::Head(64)));
    assert_eq!(rig.done().len(), BURST + 2);
}

#[test]
fn chains_read_ahead_are_found_again_in_a_new_table() {
    for features in layouts() {
        let (mut rig, mut rx, frames) = rig(features);
        let again = rig.shared.get().with_log(None);
        let old = Arc::downgrade(&rig.shared.replace(again));
        assert_eq!(receive(&mut rx), frames[BURST..]);
        rx.complete();
        assert!(old.upgrade().is_none());
        assert_eq!(rig.done().len(), BURST + MORE);
    }
}

/// A stopped queue's position leaves them to the next one.
#[test]
fn a_queue_that_stops_gives_back_what_it_only_looked_at() {
    for features in layouts() {
        let (mut rig, rx, frames) = rig(features);
        let packed = rig.cfg.packed();
        rig.cfg.start = Position::from_base(rx.stop().to_base(packed), packed);
        assert_eq!(usize::from(rig.cfg.start.index), BURST);
        let mut next = rig.rx();
        assert_eq!(receive(&mut next), frames[BURST..]);
        next.complete();
        assert_eq!(rig.done().len(), BURST + MORE);
    }
}

/// SET_MEM_TABLE again and again while a worker forwards. No byte is read through an unmapped table, no frame
/// is lost or changed, and each old table is dropped.
#[test]
#[cfg_attr(miri, ignore = "needs memfd")]
fn use_after_unmap_on_table_swap_while_a_worker_runs() {
    const ROUNDS: usize = 300;
    for features in layouts() {
        let fd = memfd("guest", LEN as u64, Pages::Normal).unwrap();
        let table = || {
            let map = Arc::new(Mapping::of_fd(fd.as_fd(), 0, LEN as u64).unwrap());
            GuestMemory::new(vec![Region::new(BASE, 0, map).unwrap()]).unwrap()
        };
        let mut rig = Rig::new(features, 64);
        rig.shared = Arc::new(SharedMemory::new(table()));
        rig.driver = Driver::new(&rig.cfg, &rig.shared.get()).unwrap();
        let mut rx = rig.rx();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let worker = std::thread::spawn(move || {
            let (mut pool, mut burst, mut seen) = (Pool::new(2 * BURST), Burst::new(), 0_usize);
            loop {
                let ending = stopped.load(Relaxed);
                let n = rx.rx(&mut pool, &mut burst);
                for p in burst.drain(..) {
                    let bytes = p.to_vec();
                    assert_eq!(bytes, pattern(600, seen));
                    seen += 1;
                    pool.put(p);
                }
                rx.complete();
                if n == 0 && ending {
                    assert_eq!(rx.error(), None);
                    return seen;
                }
            }
        });
        let bufs: Vec<Buf> = (0..64).map(|_| rig.room(612)).collect();
        let (mut sent, mut tables) = (0, Vec::new());
        for _ in 0..ROUNDS {
            while rig.driver.free() > 0 {
                let buf = bufs[sent % bufs.len()];
                rig.write(buf.addr, &[&[0; 12], &pattern(600, sent)[..]].concat());
                rig.add(&[buf], &[], ChainLocation::Direct, sent as u32).unwrap();
                sent += 1;
            }
            rig.driver.publish();
            tables.push(Arc::downgrade(&rig.shared.replace(table())));
            rig.done();
        }
        stop.store(true, Relaxed);
        assert_eq!(worker.join().unwrap(), sent, "{features:?}");
        assert!(
            tables.iter().all(|t| t.upgrade().is_none()),
            "an old table is held"
        );
    }
}
