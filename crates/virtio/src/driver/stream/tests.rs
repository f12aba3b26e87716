//! Streams against the device side, and against a device that works out of order or lies.

use super::*;
use crate::driver::{Arena, Buf, ChainLocation, Driver};
use crate::mem::SharedMemory;
use crate::ring::{DeviceRx, DeviceTx, Features};
use heddle_packet::{Burst, Packet, Pool};
use proptest::prelude::*;
use std::sync::Arc;

const STRIDE: u32 = 256;

struct Rig {
    cfg: QueueConfig,
    shared: Arc<SharedMemory>,
    stream: Stream,
}

fn rig(features: Features, size: u16, flow: Flow, start: Position) -> Rig {
    let (mem, mut arena) = Arena::private(0x10_0000, 512 << 10).unwrap();
    let mut cfg = arena.queue(features | Features::VERSION_1, size).unwrap();
    cfg.start = start;
    let buffers = Buffers {
        base: arena.take(u64::from(STRIDE) * u64::from(size), 128).unwrap(),
        stride: STRIDE,
        len: STRIDE,
    };
    let stream = Stream::new(&cfg, &mem, flow, buffers).unwrap();
    Rig {
        cfg,
        shared: Arc::new(SharedMemory::new(mem)),
        stream,
    }
}

fn layouts() -> impl Strategy<Value = Features> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(packed, order, event)| {
        let mut f = Features::empty();
        f.set(Features::RING_PACKED, packed);
        f.set(Features::IN_ORDER, order);
        f.set(Features::EVENT_IDX, event);
        f
    })
}

proptest! {
    /// Posted buffers arrive, in order, with their bytes; used buffers come back once; from any start, over
    /// many rounds.
    #[test]
    fn transmit(features in layouts(), log in 0_u32..6, start in any::<u16>(), wrap: bool, steps in prop::collection::vec((0_usize..40, 0_usize..40, 0_usize..40), 1..60)) {
        let size = 1 << log;
        let start = if features.contains(Features::RING_PACKED) {
            Position { index: start % size, wrap }
        } else {
            Position { index: start, wrap: true }
        };
        let mut r = rig(features, size, Flow::ToDevice, start);
        let mut rx = DeviceRx::new(r.cfg, Arc::clone(&r.shared)).unwrap();
        let (mut pool, mut posted, mut received, mut taken) = (Pool::new(64), 0_u64, 0_u64, 0_u64);
        let mut lens = std::collections::VecDeque::new();
        for (post, receive, take) in steps {
            let n = post.min(r.stream.free());
            for k in 0..n {
                let buffer = r.stream.upcoming(k);
                r.stream.write(buffer, 12 + 14, &(posted + k as u64).to_le_bytes());
                let len = 40 + ((posted + k as u64) % 200) as u32;
                r.stream.set_len(buffer, len);
                lens.push_back(len);
            }
            r.stream.post(n);
            posted += n as u64;
            for _ in 0..receive / 8 {
                let mut burst = Burst::new();
                rx.rx(&mut pool, &mut burst);
                for packet in burst.drain(..) {
                    prop_assert_eq!(packet.len() + 12, lens.pop_front().unwrap() as usize);
                    prop_assert_eq!(&packet.head()[14..22], &received.to_le_bytes());
                    received += 1;
                    pool.put(packet);
                }
                rx.complete();
            }
            prop_assert_eq!(rx.error(), None);
            taken += r.stream.take(take, |_, len| assert_eq!(len, 0)).unwrap() as u64;
            prop_assert!(taken <= received);
            prop_assert_eq!(r.stream.free() as u64, u64::from(size) - (posted - taken));
            let at = r.stream.position();
            if r.cfg.packed() {
                let total = u64::from(start.index) + received;
                prop_assert_eq!(u64::from(at.index), total % u64::from(size));
                prop_assert_eq!(at.wrap, start.wrap ^ ((total / u64::from(size)) % 2 == 1));
            } else {
                prop_assert_eq!(at.index, start.index.wrapping_add(received as u16));
            }
        }
    }

    /// The device's packets arrive in order with their lengths, over many rounds.
    #[test]
    fn receive(features in layouts(), log in 0_u32..6, merge: bool, steps in prop::collection::vec((0_usize..20, 0_usize..40), 1..60)) {
        let mut features = features;
        features.set(Features::MRG_RXBUF, merge);
        let mut r = rig(features, 1 << log, Flow::FromDevice, Position::default());
        let mut tx = DeviceTx::new(r.cfg, Arc::clone(&r.shared)).unwrap();
        let (mut sent, mut seen) = (0_u64, 0_u64);
        for (send, take) in steps {
            r.stream.post(r.stream.free());
            let packets: Vec<Packet> = (0..send as u64).map(|k| {
                let mut bytes = vec![0; 14 + 8 + ((sent + k) % 100) as usize];
                bytes[14..22].copy_from_slice(&(sent + k).to_le_bytes());
                Packet::from_bytes(&bytes)
            }).collect();
            let refs: Vec<&Packet> = packets.iter().collect();
            sent += tx.tx(&refs).sent;
            prop_assert_eq!(tx.error(), None);
            let mut got = Vec::new();
            r.stream.take(take, |buffer, len| got.push((buffer, len))).unwrap();
            for (buffer, len) in got {
                let mut bytes = [0; 8];
                r.stream.read(buffer, 12 + 14, &mut bytes);
                prop_assert_eq!(u64::from_le_bytes(bytes), seen);
                prop_assert_eq!(u64::from(len), 12 + 14 + 8 + seen % 100);
                seen += 1;
            }
        }
    }

    /// A device that works out of order: each buffer comes back as often as it was posted, and the ring names
    /// the right addresses.
    #[test]
    fn out_of_order(packed: bool, picks in prop::collection::vec((0_usize..9, 0_usize..9, any::<u16>()), 1..200)) {
        let mut features = Features::empty();
        features.set(Features::RING_PACKED, packed);
        let mut r = rig(features, 8, Flow::ToDevice, Position::default());
        let mut device = Shuffler::new(&r);
        let mut owned = [true; 8];
        for (post, take, pick) in picks {
            let n = post.min(r.stream.free());
            for k in 0..n {
                let b = usize::from(r.stream.upcoming(k));
                prop_assert!(owned[b], "a buffer that the device has is posted");
                owned[b] = false;
            }
            r.stream.post(n);
            device.fetch();
            device.finish(usize::from(pick));
            r.stream.take(take, |b, _| {
                assert!(!owned[usize::from(b)]);
                owned[usize::from(b)] = true;
            }).unwrap();
        }
    }
}

/// A device that finishes chains in any order, written against the specification's text and not for speed.
struct Shuffler {
    mem: Arc<GuestMemory>,
    cfg: QueueConfig,
    base: u64,
    fetched: u32,
    used: u32,
    has: Vec<u16>,
}

impl Shuffler {
    fn new(r: &Rig) -> Self {
        let mem = r.shared.get();
        let mut first = [0; 8];
        mem.read(r.cfg.desc, &mut first).unwrap();
        Self {
            mem,
            cfg: r.cfg,
            base: u64::from_le_bytes(first),
            fetched: 0,
            used: 0,
            has: Vec::new(),
        }
    }
    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut b = [0; N];
        self.mem.read(at, &mut b).unwrap();
        b
    }
    fn get16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at))
    }
    /// Slot and wrap counter of the `n`th descriptor.
    fn slot(&self, n: u32) -> (u64, bool) {
        let size = u32::from(self.cfg.size);
        (u64::from(n % size), (n / size).is_multiple_of(2))
    }
    fn fetch(&mut self) {
        let size = u64::from(self.cfg.size);
        loop {
            let (slot, wrap) = self.slot(self.fetched);
            let (desc, id) = if self.cfg.packed() {
                let d = self.cfg.desc + 16 * slot;
                let flags = self.get16(d + 14);
                if (flags >> 7 & 1 == 1) != wrap || (flags >> 15 & 1 == 1) == wrap {
                    return;
                }
                (d, self.get16(d + 12))
            } else {
                if self.fetched as u16 == self.get16(self.cfg.driver + 2) {
                    return;
                }
                let id = self.get16(self.cfg.driver + 4 + 2 * (u64::from(self.fetched) % size));
                (self.cfg.desc + 16 * u64::from(id), id)
            };
            let addr = u64::from_le_bytes(self.get(desc));
            assert_eq!(addr, self.base + u64::from(STRIDE) * u64::from(id));
            assert!(!self.has.contains(&id));
            self.has.push(id);
            self.fetched += 1;
        }
    }
    fn finish(&mut self, pick: usize) {
        for _ in 0..pick % 4 {
            if self.has.is_empty() {
                return;
            }
            let id = self.has.swap_remove(pick % self.has.len());
            let (slot, wrap) = self.slot(self.used);
            self.used += 1;
            if self.cfg.packed() {
                let d = self.cfg.desc + 16 * slot;
                self.mem.write(d + 8, &[0; 4]).unwrap();
                self.mem.write(d + 12, &id.to_le_bytes()).unwrap();
                let flags = if wrap { 0x8080_u16 } else { 0 };
                self.mem.write(d + 14, &flags.to_le_bytes()).unwrap();
            } else {
                let at = self.cfg.device + 4 + 8 * slot;
                self.mem.write(at, &u64::from(id).to_le_bytes()).unwrap();
                self.mem
                    .write(self.cfg.device + 2, &(self.used as u16).to_le_bytes())
                    .unwrap();
            }
        }
    }
}

/// A device that gives back a buffer that it does not have is an error, in both layouts.
#[test]
fn lies_are_named() {
    for features in [Features::empty(), Features::RING_PACKED] {
        let mut r = rig(features, 8, Flow::ToDevice, Position::default());
        let mem = r.shared.get();
        r.stream.post(2);
        let lie = |id: u16, at: u64| {
            if r.cfg.packed() {
                let d = r.cfg.desc + 16 * at;
                mem.write(d + 12, &id.to_le_bytes()).unwrap();
                mem.write(d + 14, &0x8080_u16.to_le_bytes()).unwrap();
            } else {
                mem.write(r.cfg.device + 4 + 8 * at, &u64::from(id).to_le_bytes())
                    .unwrap();
                mem.write(r.cfg.device + 2, &(at as u16 + 1).to_le_bytes())
                    .unwrap();
            }
        };
        lie(1, 0);
        assert_eq!(r.stream.take(9, |b, _| assert_eq!(b, 1)), Ok(1));
        lie(1, 1);
        assert!(matches!(r.stream.take(9, |_, _| ()), Err(DriverError::Device(_))));
    }
    let mut r = rig(Features::empty(), 8, Flow::ToDevice, Position::default());
    r.stream.post(2);
    r.shared.get().write(r.cfg.device + 2, &[3, 0]).unwrap();
    assert!(r.stream.take(9, |_, _| ()).is_err());
}

/// The stream and the general driver agree on when a kick is due.
#[test]
fn kicks_as_the_general_driver() {
    for features in [
        Features::empty(),
        Features::EVENT_IDX,
        Features::RING_PACKED,
        Features::RING_PACKED | Features::EVENT_IDX,
    ] {
        let mut r = rig(features, 8, Flow::ToDevice, Position::default());
        let (mem, mut arena) = Arena::private(0x10_0000, 1 << 20).unwrap();
        let cfg = arena.queue(features | Features::VERSION_1, 8).unwrap();
        let mut general = Driver::new(&cfg, &mem).unwrap();
        let shared = Arc::new(SharedMemory::new(mem));
        let mut devices = [
            DeviceRx::new(r.cfg, Arc::clone(&r.shared)).unwrap(),
            DeviceRx::new(cfg, Arc::clone(&shared)).unwrap(),
        ];
        let buf = Buf {
            addr: arena.take(64, 64).unwrap(),
            len: 64,
        };
        let mut kicks = 0;
        for round in 0..200_usize {
            if round % 3 == 0 {
                devices.iter_mut().for_each(|d| {
                    d.arm();
                });
            } else if round % 7 == 0 {
                devices.iter_mut().for_each(DeviceRx::disarm);
            }
            let n = 1 + round % 3;
            for _ in 0..n {
                general
                    .add(&shared.get(), &[buf], &[], ChainLocation::Direct, 0)
                    .unwrap();
            }
            let kick = general.publish();
            assert_eq!(r.stream.post(n), kick, "{features:?} {round}");
            kicks += usize::from(kick);
            for d in &mut devices {
                let mut burst = Burst::new();
                d.rx(&mut Pool::new(8), &mut burst);
                drop(burst);
                d.complete();
            }
            while general.pop().unwrap().is_some() {}
            r.stream.take(9, |_, _| ()).unwrap();
        }
        assert!(kicks > 10 && kicks < 200, "{kicks}");
    }
}
