//! Notifications: which side gets one, which does not, and that no thread sleeps over work.

use super::*;
use heddle_sys::{Epoll, EventFd};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn layouts() -> [Features; 4] {
    let p = Features::RING_PACKED;
    [Features::empty(), Features::EVENT_IDX, p, p | Features::EVENT_IDX]
}

#[test]
fn a_polling_driver_is_not_called_and_a_waiting_one_is() {
    for features in layouts() {
        let mut rig = Rig::new(features, 16);
        let mut rx = rig.rx();
        rx.disarm();
        rig.driver.disarm();
        rig.send(&pattern(60, 0), 0);
        assert_eq!(receive(&mut rx).len(), 1);
        rx.complete(); // the first one may notify: nothing is known of the driver yet
        rig.done();
        for round in 0..40 {
            let armed = round % 2 == 0;
            if armed {
                assert!(!rig.driver.arm());
            } else {
                rig.driver.disarm();
            }
            rig.send(&pattern(60, round), 0);
            assert_eq!(receive(&mut rx).len(), 1);
            assert_eq!(rx.complete(), armed, "{features:?} round {round}");
            assert_eq!(rig.done().len(), 1);
        }
    }
}

#[test]
fn a_polling_device_is_not_kicked_and_a_waiting_one_is() {
    for features in layouts() {
        let mut rig = Rig::new(features, 16);
        let mut rx = rig.rx();
        for round in 0..40 {
            let armed = round % 2 == 0;
            if armed {
                assert!(!rx.arm());
            } else {
                rx.disarm();
            }
            let buf = rig.buf(&[0; 72]);
            rig.add(&[buf], &[], ChainLocation::Direct, 0).unwrap();
            assert_eq!(rig.driver.publish(), armed, "{features:?} round {round}");
            assert_eq!(receive(&mut rx).len(), 1);
            rx.complete();
            rig.done();
        }
    }
}

#[test]
fn work_that_came_before_arming_is_seen() {
    for features in layouts() {
        let mut rig = Rig::new(features, 16);
        let mut rx = rig.rx();
        rig.send(&pattern(60, 0), 0);
        assert!(rx.arm());
        assert_eq!(receive(&mut rx).len(), 1);
        rx.complete();
        assert!(rig.driver.arm());
    }
}

#[test]
fn chains_that_are_all_dropped_are_given_back_by_themselves() {
    for features in layouts() {
        let mut rig = Rig::new(features, 16);
        let mut rx = rig.rx();
        assert!(!rig.driver.arm());
        rig.send(&[1; 13], 7);
        assert!(receive(&mut rx).is_empty());
        assert_eq!(rx.drops().runt, 1);
        assert!(rx.take_call());
        assert!(!rx.take_call());
        assert_eq!(rig.done()[0].token, 7);
    }
}

/// Two threads that sleep whenever they find nothing: no wake-up is lost, all frames arrive in order.
#[test]
#[cfg_attr(miri, ignore = "20,000 frames, eventfd")]
fn two_threads_that_sleep_lose_no_wakeup() {
    const FRAMES: u32 = 20_000;
    for features in layouts() {
        let mut rig = Rig::new(features, 8);
        let mut rx = rig.rx();
        let (kick, call) = (
            Arc::new(EventFd::new().unwrap()),
            Arc::new(EventFd::new().unwrap()),
        );
        let failed = Arc::new(AtomicBool::new(false));
        let (k, c, f) = (Arc::clone(&kick), Arc::clone(&call), Arc::clone(&failed));
        let device = std::thread::spawn(move || {
            let mut ep = Epoll::new(1).unwrap();
            ep.add(k.as_raw_fd(), 0).unwrap();
            let (mut pool, mut burst, mut next) = (Pool::new(8), Burst::new(), 0_u32);
            while next < FRAMES && !f.load(SeqCst) {
                let n = rx.rx(&mut pool, &mut burst);
                for p in burst.drain(..) {
                    assert_eq!(p.head()[..4], next.to_le_bytes());
                    next += 1;
                    pool.put(p);
                }
                if rx.complete() {
                    c.notify();
                }
                if n == 0 && !rx.arm() {
                    if ep.wait(5000).unwrap().count() == 0 {
                        f.store(true, SeqCst);
                    }
                    k.drain();
                }
            }
            assert_eq!(rx.error(), None);
            next
        });
        let mut ep = Epoll::new(1).unwrap();
        ep.add(call.as_raw_fd(), 0).unwrap();
        let bufs: Vec<Buf> = (0..8).map(|_| rig.room(76)).collect();
        let (mut next, mut done) = (0_u32, 0_u32);
        while done < FRAMES && !failed.load(SeqCst) {
            while next < FRAMES && rig.driver.free() > 0 {
                let buf = bufs[next as usize % 8];
                rig.write(buf.addr + 12, &next.to_le_bytes());
                rig.add(&[buf], &[], ChainLocation::Direct, next).unwrap();
                next += 1;
            }
            if rig.driver.publish() {
                kick.notify();
            }
            let n = rig.done().len() as u32;
            done += n;
            if n == 0 && !rig.driver.arm() {
                if ep.wait(5000).unwrap().count() == 0 {
                    failed.store(true, SeqCst);
                }
                call.drain();
            }
        }
        kick.notify();
        assert_eq!(device.join().unwrap(), FRAMES, "{features:?}");
        assert!(!failed.load(SeqCst), "a side slept over work: {features:?}");
    }
}
