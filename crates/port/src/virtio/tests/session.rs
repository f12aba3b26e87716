//! A session without a socket drives the port as a VDUSE device does. A function notifies the driver, the
//! packets' memory appears when it is missed, and a reset clears everything.

use super::*;
use heddle_sys::mmap::{Mapping, Pages, memfd};
use heddle_virtio::device::{Device, Link, Queue, RingSetup};
use heddle_virtio::mem::Region;
use heddle_virtio::ring::Miss;
use std::os::fd::AsFd;

const BASE: u64 = 0x4000_0000;
/// Bytes of the region of the rings, and of the one behind it for packets.
const RINGS: u64 = 256 << 10;
const PACKETS: u64 = 512 << 10;
const LEN: u32 = 72;

/// Addresses that workers missed.
#[derive(Debug, Default)]
struct Misses(Mutex<Vec<Miss>>);

impl Link for Misses {
    fn miss(&self, miss: Miss) {
        self.0.lock().push(miss);
    }
}

/// The session's other side: a driver with its memory, and the settings that a kernel would send.
struct Double {
    device: PortDevice,
    misses: Arc<Misses>,
    memory: Arc<SharedMemory>,
    map: Arc<Mapping>,
    features: Features,
    /// Interrupts of ring 0 and ring 1.
    bells: [Bell; 2],
    kick: EventFd,
}

impl Double {
    fn new(shared: &Arc<Shared>, features: Features) -> Self {
        let file = memfd("driver", RINGS + PACKETS, Pages::Normal).unwrap();
        let map = Mapping::of_fd(file.as_fd(), 0, RINGS + PACKETS).unwrap();
        Self {
            device: PortDevice::new(Arc::clone(shared), true),
            misses: Arc::default(),
            memory: Arc::new(SharedMemory::new(GuestMemory::default())),
            map: Arc::new(map),
            features,
            bells: Default::default(),
            kick: EventFd::new().unwrap(),
        }
    }
    /// The first of these bytes from `BASE` on are mapped from now on.
    fn publish(&mut self, regions: &[(u64, u64)]) {
        let regions = regions.iter().map(|&(at, len)| {
            let offset = usize::try_from(at).unwrap();
            Region::part(BASE + at, len, 0, Arc::clone(&self.map), offset).unwrap()
        });
        let table = GuestMemory::new(regions.collect()).unwrap();
        let old = self.memory.replace(table);
        self.device.refresh_memory();
        drop(old);
    }
    /// DRIVER_OK: all settings are sent anew.
    fn start(&mut self, rings: &[QueueConfig; 2], at: [Position; 2]) {
        self.publish(&[(0, RINGS)]);
        self.device.negotiated(self.features);
        for (index, (cfg, start)) in (0..).zip(rings.iter().zip(at)) {
            let config = QueueConfig {
                start,
                wait_for_miss: true,
                ..*cfg
            };
            let memory = Arc::clone(&self.memory);
            let queue = match index {
                0 => Queue::ToGuest(DeviceTx::new(config, Arc::clone(&memory)).unwrap()),
                _ => Queue::FromGuest(DeviceRx::new(config, Arc::clone(&memory)).unwrap()),
            };
            let setup = RingSetup {
                index,
                config,
                queue,
                memory,
                kick: Some(self.kick.as_fd().try_clone_to_owned().unwrap()),
                call: Some(Box::new(self.bells[usize::from(index)].clone())),
                err: None,
                enabled: true,
            };
            self.device.start(setup).unwrap();
        }
    }
    fn reset(&mut self) -> [Position; 2] {
        let at = [self.device.stop(0), self.device.stop(1)];
        self.publish(&[]);
        at
    }
    fn interrupts(&self) -> [usize; 2] {
        [0, 1].map(|i| self.bells[i].0.load(Relaxed))
    }
}

#[test]
fn any_session_drives_the_port() {
    for layout in [Features::empty(), Features::RING_PACKED] {
        let features = Features::VERSION_1 | Features::ACCESS_PLATFORM | layout;
        let (shared, _) = shared();
        let mut session = Double::new(&shared, features);
        assert!(session.device.offer().features.contains(features));
        session
            .device
            .connected(Arc::clone(&session.misses) as Arc<dyn Link>);
        session.device.set_mtu(1400).unwrap();

        // The driver sees all of its memory.
        let all = Region::new(BASE, 0, Arc::clone(&session.map)).unwrap();
        let mem = GuestMemory::new(vec![all]).unwrap();
        let (mut rings, mut packets) = (Arena::new(BASE, RINGS), Arena::new(BASE + RINGS, PACKETS));
        let cfg = [0, 1].map(|_| rings.queue(features, SIZE).unwrap());
        let mut drivers = [0, 1].map(|i: usize| Driver::new(&cfg[i], &mem).unwrap());
        let mut post = |driver: &mut Driver, token: u32| {
            let addr = packets.take(u64::from(LEN), 8).unwrap();
            let buf = [Buf { addr, len: LEN }];
            let (out, into): (&[Buf], &[Buf]) = if token == 1 { (&buf, &[]) } else { (&[], &buf) };
            driver.add(&mem, out, into, ChainLocation::Direct, token).unwrap();
            driver.publish();
        };

        let mut rx = shared.open_rx(1).unwrap().remove(0);
        let (mut tx, mut pool, mut burst) = (shared.open_tx(0), Pool::new(8), Burst::new());
        let frame = Packet::from_bytes(&[3; 60]);
        let mut at = [Position::default(); 2];
        for round in 1..=2 {
            session.start(&cfg, at);
            assert!(shared.status().link_up);
            post(&mut drivers[0], 0);
            post(&mut drivers[1], 1);
            // The packets' memory appears when it is missed.
            assert_eq!(rx.rx(&mut pool, &mut burst), 0);
            assert_eq!(tx.tx(&mut pool, &[&frame]).full, 1);
            let misses = core::mem::take(&mut *session.misses.0.lock());
            assert_eq!(misses.iter().map(|m| m.write).collect::<Vec<_>>(), [false, true]);
            assert!(misses.iter().all(|m| m.addr >= BASE + RINGS));
            session.publish(&[(0, RINGS), (RINGS, PACKETS)]);
            assert_eq!(rx.rx(&mut pool, &mut burst), 1);
            burst.drain(..).for_each(|p| pool.put(p));
            rx.complete();
            assert_eq!(tx.tx(&mut pool, &[&frame]).sent, 1);
            assert!(drivers.iter_mut().all(|d| d.pop().unwrap().is_some()));
            assert_eq!(session.interrupts(), [round; 2], "one of each ring");
            // A worker that polls hands a ring back at its next look.
            at = std::thread::scope(|s| {
                let reset = s.spawn(|| session.reset());
                while !reset.is_finished() {
                    rx.rx(&mut pool, &mut burst);
                }
                reset.join().unwrap()
            });
            let index = u16::try_from(round).unwrap();
            assert_eq!(at, [Position { index, wrap: true }; 2]);
            assert!(!shared.status().link_up);
            assert_eq!(tx.tx(&mut pool, &[&frame]).down, 1);
        }

        session.device.trouble("the device is broken");
        session.device.disconnected("the device was destroyed");
        let status = shared.status().extra;
        let has = |key: &str, value: &str| status.contains(&(key.into(), value.into()));
        assert!(has("socket_error", "the device is broken"));
        assert!(has("disconnect_reason", "the device was destroyed"));
        drop((drivers, mem));
        assert_eq!(Arc::strong_count(&session.map), 1, "nobody else has the memory");
    }
}
