//! The two ways of sharing a ring, against a driver in the same process: nothing is lost, nobody waits for ever.

use super::lease::FromGuest;
use super::state::State;
use super::takes::Takes;
use super::txset::ToGuest;
use super::*;
use heddle_packet::{Burst, Csum, Gso, GsoKind, Offload, Packet, Pool};
use heddle_sys::{Epoll, EventFd};
use heddle_virtio::driver::{Arena, Buf, Driver, Place};
use heddle_virtio::ring::{Features, Position, QueueConfig};
use heddle_virtio::{DeviceRx, DeviceTx, GuestMemory, RingError, SharedMemory};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SIZE: u16 = 64;

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
            told: None,
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
            .add(&self.mem, &[used], &[], Place::Direct, number)
            .unwrap();
        self.driver.publish();
        true
    }
    /// Makes all buffers available for reception.
    fn post(&mut self) {
        for (i, buf) in self.bufs.iter().enumerate() {
            let added = self
                .driver
                .add(&self.mem, &[], &[*buf], Place::Direct, u32::try_from(i).unwrap());
            added.unwrap();
        }
        self.driver.publish();
    }
    /// What has been received: headers and frames.
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
    let shared = Shared {
        name: "vm0".into(),
        mode: Mode::Client,
        path: Mutex::new("/nowhere".into()),
        changed: Arc::new(move || {
            count.fetch_add(1, Relaxed);
        }),
        tx_retries_max: 8.into(),
        rx: Mutex::default(),
        tx: TxSet::default(),
        state: Mutex::new(State::new([2, 0, 0, 0, 0, 1])),
    };
    (Arc::new(shared), told)
}

fn rx_of(shared: &Arc<Shared>, index: usize) -> VhostRx {
    let (name, changed) = (Arc::clone(&shared.name), Arc::clone(&shared.changed));
    VhostRx::new(shared.lease(index).unwrap(), name, index, changed)
}

/// Numbers of the frames of one poll.
fn poll(rx: &mut VhostRx, pool: &mut Pool) -> Vec<u32> {
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
        // The session restarts the ring where it was, the guest goes on as if nothing had happened.
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
    // Down is not disabled: what the guest sends waits.
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
fn a_broken_ring_is_told_once_and_breaks_nothing_else() {
    let (shared, told) = shared();
    let (mut good, bad) = (
        ring(Features::empty(), SIZE, 128),
        ring(Features::empty(), SIZE, 128),
    );
    let (mut rx0, mut rx1, mut pool) = (rx_of(&shared, 0), rx_of(&shared, 1), Pool::new(64));
    let err = EventFd::new().unwrap();
    let mut r = bad.device_rx(Position::default());
    let twin = std::os::fd::AsFd::as_fd(&err).try_clone_to_owned().unwrap();
    r.err = Some(twin.into());
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
    assert_eq!(err.drain(), 1);
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

#[test]
fn status_has_the_keys_that_people_know() {
    let (shared, told) = shared();
    let get = |key: &str| {
        let all = shared.status().extra;
        all.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    };
    assert_eq!(
        (get("mode"), get("status")),
        (Some("client".into()), Some("disconnected".into()))
    );
    assert_eq!(shared.status().extra.len(), 2);
    shared.update(|s| {
        s.connected();
        s.session.features = Features::VERSION_1 | Features::MRG_RXBUF;
        for i in 0..4 {
            s.session.start(i, 256, i < 2);
        }
        s.session.numa = Some(1);
    });
    assert_eq!(told.load(Relaxed), 1);
    let status = shared.status();
    assert!(status.link_up);
    assert_eq!(
        (status.n_rxq, status.numa, status.link_resets),
        (Some(2), Some(1), 1)
    );
    for (key, value) in [
        ("status", "connected"),
        ("socket", "/nowhere"),
        ("features", "0x0000000100008000"),
        ("numa", "1"),
        ("num_of_vrings", "4"),
        ("vring_3_size", "256"),
    ] {
        assert_eq!(get(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(get("mtu"), None);
    assert!(shared.state.lock().session.polls(0) && !shared.state.lock().session.polls(1));
    shared.update(|s| s.disconnected("it was switched off"));
    let status = shared.status();
    assert!(!status.link_up);
    assert_eq!((status.n_rxq, status.numa), (Some(1), None));
    assert_eq!(get("disconnect_reason").as_deref(), Some("it was switched off"));
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

/// A worker comes back with a ring that was given up: the ring that was started meanwhile stays, and is the next one to be polled.
#[test]
fn a_ring_that_comes_back_too_late_is_dropped() {
    let (old, new) = (
        ring(Features::empty(), 16, 2048),
        ring(Features::empty(), 32, 2048),
    );
    let lease = super::lease::Lease::new().unwrap();
    lease.start(old.device_rx(Position::default()));
    let held = lease.exchange(None).1.ring.unwrap();
    assert_eq!(held.generation, 1);
    // The session did not wait for it.
    lease.start(new.device_rx(Position::default()));
    let next = lease.exchange(Some(held)).1.ring.unwrap();
    assert_eq!(next.generation, 2);
    assert_eq!(Arc::strong_count(&old.shared), 1, "the old ring is gone");
    // Also when its worker ends.
    lease.start(old.device_rx(Position::default()));
    lease.give_back(next);
    assert_eq!(lease.stop().unwrap().generation, 3);
}
