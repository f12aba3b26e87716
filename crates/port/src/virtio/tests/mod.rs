//! The two ways of sharing a ring, against a driver in the same process: no packet is lost, and no thread
//! waits for ever.

mod session;
mod state;
mod transmit;

use super::lease::FromGuest;
use super::takes::Takes;
use super::txset::ToGuest;
use super::*;
use heddle_packet::{Burst, Packet, Pool};
use heddle_sys::{Epoll, EventFd};
use heddle_virtio::device::Interrupt;
use heddle_virtio::driver::{Arena, Buf, ChainLocation, Driver};
use heddle_virtio::ring::{Features, Position, QueueConfig};
use heddle_virtio::{DeviceRx, DeviceTx, GuestMemory, RingError, SharedMemory};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SIZE: u16 = 64;

/// A notification that counts.
#[derive(Clone, Debug, Default)]
struct Bell(Arc<AtomicUsize>);

impl Interrupt for Bell {
    fn raise(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A guest's memory with one ring in it.
struct Ring {
    shared: Arc<SharedMemory>,
    mem: Arc<GuestMemory>,
    cfg: QueueConfig,
    driver: Driver,
    bufs: Vec<Buf>,
}

fn ring(features: Features, size: u16, buf: u32) -> Ring {
    let (mem, mut arena) = Arena::private(0x10_0000, 8 << 20).unwrap();
    let cfg = arena.queue(features | Features::VERSION_1, size).unwrap();
    let driver = Driver::new(&cfg, &mem).unwrap();
    let bufs = (0..size)
        .map(|_| Buf {
            addr: arena.take(u64::from(buf), 8).unwrap(),
            len: buf,
        })
        .collect();
    let shared = Arc::new(SharedMemory::new(mem));
    Ring {
        mem: shared.get(),
        shared,
        cfg,
        driver,
        bufs,
    }
}

impl Ring {
    fn device_rx(&self, start: Position) -> FromGuest {
        let cfg = QueueConfig { start, ..self.cfg };
        FromGuest {
            generation: 0,
            ring: Box::new(DeviceRx::new(cfg, Arc::clone(&self.shared)).unwrap()),
            call: None,
            err: None,
            enabled: true,
            link: None,
        }
    }
    fn device_tx(&self, features: Features) -> ToGuest {
        ToGuest {
            ring: Box::new(DeviceTx::new(self.cfg, Arc::clone(&self.shared)).unwrap()),
            call: None,
            err: None,
            takes: Takes::of(features),
            link: None,
            reported: None,
        }
    }
    /// Makes a frame with this number available; `false`: the ring is full.
    fn send(&mut self, number: u32) -> bool {
        let buf = self.bufs[number as usize % self.bufs.len()];
        let mut bytes = [0_u8; 12 + 60];
        bytes[12 + 12..12 + 14].copy_from_slice(&[0x88, 0xb5]);
        bytes[12 + 14..12 + 18].copy_from_slice(&number.to_be_bytes());
        let used = Buf { len: 12 + 60, ..buf };
        if self.driver.free() == 0 {
            return false;
        }
        self.mem.write(buf.addr, &bytes).unwrap();
        self.driver
            .add(&self.mem, &[used], &[], ChainLocation::Direct, number)
            .unwrap();
        self.driver.publish();
        true
    }
    /// Makes all buffers available for reception.
    fn post(&mut self) {
        for (i, buf) in self.bufs.iter().enumerate() {
            let added = self.driver.add(
                &self.mem,
                &[],
                &[*buf],
                ChainLocation::Direct,
                u32::try_from(i).unwrap(),
            );
            added.unwrap();
        }
        self.driver.publish();
    }
    /// The received headers and frames.
    fn received(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(done) = self.driver.pop().unwrap() {
            let mut bytes = vec![0; done.len as usize];
            self.mem
                .read(self.bufs[done.token as usize].addr, &mut bytes)
                .unwrap();
            let frame = bytes.split_off(12);
            all.push((bytes, frame));
        }
        all
    }
}

fn shared() -> (Arc<Shared>, Arc<AtomicUsize>) {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let changed = move || {
        count.fetch_add(1, Relaxed);
    };
    let backing = Backing {
        mode: "client",
        calls: true,
        at: Mutex::new("/nowhere".into()),
    };
    (Shared::new("vm0", backing, Arc::new(changed), 8), told)
}

fn rx_of(shared: &Arc<Shared>, index: usize) -> VirtioRx {
    let (name, changed) = (Arc::clone(&shared.name), Arc::clone(&shared.changed));
    VirtioRx::new(shared.lease(index).unwrap(), name, index, changed)
}

/// Numbers of the frames of one poll.
fn poll(rx: &mut VirtioRx, pool: &mut Pool) -> Vec<u32> {
    let mut burst = Burst::new();
    if rx.rx(pool, &mut burst) == 0 {
        return Vec::new();
    }
    let numbers = burst.iter().map(|p| {
        let n = p.head()[14..18].try_into().unwrap();
        u32::from_be_bytes(n)
    });
    let numbers = numbers.collect();
    burst.drain(..).for_each(|p| pool.put(p));
    rx.complete();
    numbers
}

#[test]
fn a_ring_comes_and_goes_under_traffic() {
    for features in [Features::empty(), Features::RING_PACKED, Features::EVENT_IDX] {
        let (shared, _) = shared();
        let mut guest = ring(features, SIZE, 128);
        let lease = shared.lease(0).unwrap();
        let mut rx = rx_of(&shared, 0);
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let worker = std::thread::spawn(move || {
            let (mut pool, mut got) = (Pool::new(64), Vec::new());
            let mut epoll = Epoll::new(4).unwrap();
            let fd = rx.wake_fd().unwrap().0;
            epoll.add(fd, 1).unwrap();
            while !ended.load(Relaxed) {
                let n = poll(&mut rx, &mut pool);
                if n.is_empty() && !rx.arm() && epoll.wait(5).unwrap().next().is_some() {
                    rx.woken();
                }
                rx.disarm();
                got.extend(n);
            }
            got.extend(poll(&mut rx, &mut pool));
            got
        });
        // The session restarts the ring at its position, and the guest continues as if nothing had happened.
        let (mut position, mut sent) = (Position::default(), 0_u32);
        for round in 0..40 {
            lease.start(guest.device_rx(position));
            let goal = sent + 50 + round;
            while sent < goal {
                while guest.driver.pop().unwrap().is_some() {}
                if guest.send(sent) {
                    sent += 1;
                } else {
                    std::thread::yield_now();
                }
                if sent == goal - 10 {
                    assert!(lease.with(|r| r.enabled).unwrap());
                }
            }
            position = lease.stop().unwrap().ring.stop();
        }
        lease.start(guest.device_rx(position));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while guest.driver.free() < usize::from(SIZE) {
            lease.wake.ring();
            while guest.driver.pop().unwrap().is_some() {}
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
        let got = worker.join().unwrap();
        assert_eq!(
            got,
            (0..sent).collect::<Vec<_>>(),
            "{features:?}: in order, once each"
        );
        assert!(
            lease.stop().is_some(),
            "a queue that is dropped gives its ring back"
        );
    }
}

#[test]
fn a_sleeper_is_woken_by_kicks_of_the_present_session() {
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), SIZE, 128);
    let lease = shared.lease(0).unwrap();
    let (mut rx, mut pool) = (rx_of(&shared, 0), Pool::new(64));
    let mut epoll = Epoll::new(4).unwrap();
    epoll.add(rx.wake_fd().unwrap().0, 1).unwrap();
    let kick = EventFd::new().unwrap();
    lease.wake.add(std::os::fd::AsFd::as_fd(&kick)).unwrap();
    lease.start(guest.device_rx(Position::default()));
    assert_eq!(epoll.wait(1000).unwrap().count(), 1, "the start wakes it");
    rx.woken();
    assert!(rx.arm(), "there is something to look at");
    assert!(poll(&mut rx, &mut pool).is_empty());
    assert!(!rx.arm());
    assert_eq!(epoll.wait(0).unwrap().count(), 0);
    guest.send(7);
    kick.notify();
    assert_eq!(epoll.wait(1000).unwrap().count(), 1);
    rx.woken();
    rx.disarm();
    assert_eq!(poll(&mut rx, &mut pool), [7]);
    assert_eq!(epoll.wait(0).unwrap().count(), 0, "nothing new");
    guest.send(8);
    assert!(rx.arm(), "what came meanwhile is seen before sleeping");
}

#[test]
fn a_ring_that_is_not_enabled_is_emptied() {
    let (shared, _) = shared();
    let mut guest = ring(Features::empty(), SIZE, 128);
    let lease = shared.lease(0).unwrap();
    let (mut rx, mut pool) = (rx_of(&shared, 0), Pool::new(64));
    let mut r = guest.device_rx(Position::default());
    r.enabled = false;
    lease.start(r);
    (0..5).for_each(|i| assert!(guest.send(i)));
    assert!(poll(&mut rx, &mut pool).is_empty());
    assert_eq!(rx.dropped(), [("ring-disabled", 5)]);
    assert_eq!(
        guest.driver.pop().unwrap().unwrap().token,
        0,
        "the guest has its buffers back"
    );
    // Down is not disabled: the guest's packets wait.
    lease.set_down(true);
    guest.send(5);
    assert!(poll(&mut rx, &mut pool).is_empty());
    lease.with(|r| r.enabled = true);
    lease.set_down(false);
    assert_eq!(poll(&mut rx, &mut pool), [5]);
    lease.announce([2, 0, 0, 0, 0, 9]);
    let mut burst = Burst::new();
    assert_eq!(rx.rx(&mut pool, &mut burst), 1);
    assert_eq!(burst[0].head()[6..14], [2, 0, 0, 0, 0, 9, 0x80, 0x35]);
}

#[test]
fn a_broken_ring_is_reported_once_and_breaks_nothing_else() {
    let (shared, told) = shared();
    let (mut good, bad) = (
        ring(Features::empty(), SIZE, 128),
        ring(Features::empty(), SIZE, 128),
    );
    let (mut rx0, mut rx1, mut pool) = (rx_of(&shared, 0), rx_of(&shared, 1), Pool::new(64));
    let err = Bell::default();
    let mut r = bad.device_rx(Position::default());
    r.err = Some(Box::new(err.clone()));
    shared.lease(0).unwrap().start(r);
    shared
        .lease(1)
        .unwrap()
        .start(good.device_rx(Position::default()));
    // An available index beyond the ring's size.
    bad.mem
        .write(bad.cfg.driver + 2, &5000_u16.to_le_bytes())
        .unwrap();
    for i in 0..10 {
        assert!(poll(&mut rx0, &mut pool).is_empty());
        assert!(good.send(i));
        assert_eq!(poll(&mut rx1, &mut pool), [i]);
        while good.driver.pop().unwrap().is_some() {}
    }
    let lease = shared.known_lease(0).unwrap();
    let jump = RingError::AvailJump { index: 5000, used: 0 };
    assert_eq!(lease.failure(), Some(jump));
    assert_eq!(err.0.load(Relaxed), 1);
    assert_eq!(told.load(Relaxed), 1);
    assert_eq!(lease.counts.broken.get(), 1);
    let broken = shared.statistics();
    assert!(broken.contains(&("rings_broken".to_owned(), 1)));
    assert!(shared.known_lease(1).unwrap().failure().is_none());
    drop(rx0);
    lease.stop();
    assert_eq!(lease.failure(), None);
}

#[test]
fn the_descriptor_to_wait_for_stays() {
    let (shared, _) = shared();
    let rx = rx_of(&shared, 0);
    let fd = rx.wake_fd().unwrap();
    drop(rx);
    assert_eq!(rx_of(&shared, 0).wake_fd().unwrap(), fd);
    assert_eq!(fd.0, shared.lease(0).unwrap().wake.as_raw_fd());
}

/// A worker comes back with a ring that was given up. The ring that was started meanwhile stays, and is the
/// next one to be polled.
#[test]
fn a_ring_that_comes_back_too_late_is_dropped() {
    let (old, new) = (
        ring(Features::empty(), 16, 2048),
        ring(Features::empty(), 32, 2048),
    );
    let lease = super::lease::Lease::new().unwrap();
    lease.start(old.device_rx(Position::default()));
    let held = lease.exchange(&mut None).unwrap().1.ring.unwrap();
    assert_eq!(held.generation, 1);
    // The session did not wait for it.
    lease.start(new.device_rx(Position::default()));
    let next = lease.exchange(&mut Some(held)).unwrap().1.ring.unwrap();
    assert_eq!(next.generation, 2);
    assert_eq!(Arc::strong_count(&old.shared), 1, "the old ring is gone");
    // Also when its worker ends.
    lease.start(old.device_rx(Position::default()));
    lease.give_back(next);
    assert_eq!(lease.stop().unwrap().generation, 3);
}
