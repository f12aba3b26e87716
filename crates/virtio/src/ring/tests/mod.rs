//! Device against driver.
//!
//! Under miri, which knows anonymous memory but no memfd: `MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly
//! miri test -p heddle-virtio --lib -- ring::tests::hostile ring::tests::memory ring::tests::notify
//! mem::tests`.

mod ahead;
mod fuzz;
mod hostile;
mod memory;
mod notify;
mod random;
mod record;
mod resubmit;
mod twins;

use super::*;
use crate::driver::{Arena, Buf, ChainLocation, Done, Driver, DriverError};
use crate::mem::{GuestMemory, Region, SharedMemory};
use heddle_packet::{Burst, Packet, Pool};
use heddle_sys::Mapping;
use std::sync::Arc;

/// Start of the guest's memory.
const BASE: u64 = 0x10_0000;
/// Length of the guest's memory, bytes.
const LEN: usize = 4 << 20;

/// A guest with one queue, seen from both sides.
struct Rig {
    shared: Arc<SharedMemory>,
    arena: Arena,
    cfg: QueueConfig,
    driver: Driver,
}

impl Rig {
    fn new(features: Features, size: u16) -> Self {
        Self::at(features, size, Position::default())
    }
    fn at(features: Features, size: u16, start: Position) -> Self {
        let (mem, mut arena) = (patchwork(), Arena::new(BASE, LEN as u64));
        let mut cfg = arena.queue(features | Features::VERSION_1, size).unwrap();
        cfg.start = start;
        let driver = Driver::new(&cfg, &mem).unwrap();
        Self {
            shared: Arc::new(SharedMemory::new(mem)),
            arena,
            cfg,
            driver,
        }
    }
    fn rx(&self) -> DeviceRx {
        DeviceRx::new(self.cfg, Arc::clone(&self.shared)).unwrap()
    }
    fn tx(&self) -> DeviceTx {
        DeviceTx::new(self.cfg, Arc::clone(&self.shared)).unwrap()
    }
    /// A buffer with these bytes.
    fn buf(&mut self, bytes: &[u8]) -> Buf {
        let buf = self.room(bytes.len());
        self.write(buf.addr, bytes);
        buf
    }
    /// A buffer of `len` bytes.
    fn room(&mut self, len: usize) -> Buf {
        Buf {
            addr: self.arena.take(len as u64, 1).unwrap(),
            len: len as u32,
        }
    }
    fn write(&self, addr: u64, bytes: &[u8]) {
        self.shared.get().write(addr, bytes).unwrap();
    }
    fn read(&self, buf: Buf) -> Vec<u8> {
        let mut v = vec![0; buf.len as usize];
        self.shared.get().read(buf.addr, &mut v).unwrap();
        v
    }
    fn add(
        &mut self,
        readable: &[Buf],
        writable: &[Buf],
        place: ChainLocation,
        token: u32,
    ) -> Result<(), DriverError> {
        self.driver
            .add(&self.shared.get(), readable, writable, place, token)
    }
    /// Sends one frame behind an empty header, in one buffer.
    fn send(&mut self, frame: &[u8], token: u32) {
        let buf = self.buf(&[&[0; 12], frame].concat());
        self.add(&[buf], &[], ChainLocation::Direct, token).unwrap();
        self.driver.publish();
    }
    fn done(&mut self) -> Vec<Done> {
        std::iter::from_fn(|| self.driver.pop().unwrap()).collect()
    }
    /// Overwrites a direct descriptor of the ring: address, length, and the last two fields.
    fn poke(&self, at: u16, addr: u64, len: u32, third: u16, fourth: u16) {
        let mut d = Vec::new();
        d.extend(addr.to_le_bytes());
        d.extend(len.to_le_bytes());
        d.extend(third.to_le_bytes());
        d.extend(fourth.to_le_bytes());
        self.write(self.cfg.desc + 16 * u64::from(at), &d);
    }
    /// Makes descriptor `head` of a split ring available, as the `nth` since the start at 0.
    fn offer(&self, nth: u16, head: u16) {
        let at = self.cfg.driver + 4 + 2 * u64::from(nth % self.cfg.size);
        self.write(at, &head.to_le_bytes());
        self.write(self.cfg.driver + 2, &(nth + 1).to_le_bytes());
    }
}

/// Memory that is contiguous for the guest only. Rings fit into the first region. The others are small and in
/// reverse order, so that buffers and tables cross borders.
fn patchwork() -> GuestMemory {
    const FIRST: usize = 128 << 10;
    const PART: usize = 8 << 10;
    let map = Arc::new(Mapping::anonymous(LEN).unwrap());
    let part =
        |base: u64, len: usize, offset| Region::part(base, len as u64, 0, Arc::clone(&map), offset).unwrap();
    let mut regions = vec![part(BASE, FIRST, 0)];
    for at in (FIRST..LEN).step_by(PART) {
        regions.push(part(BASE + at as u64, PART, FIRST + LEN - PART - at));
    }
    GuestMemory::new(regions).unwrap()
}

/// Receives one burst; the frames as bytes.
fn receive(rx: &mut DeviceRx) -> Vec<Vec<u8>> {
    let (mut pool, mut burst) = (Pool::new(0), Burst::new());
    rx.rx(&mut pool, &mut burst);
    burst.iter().map(Packet::to_vec).collect()
}

/// Bytes that differ from place to place.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed * 31) as u8).collect()
}

/// Every combination of layout and the features that change the ring's content.
fn combinations() -> impl Iterator<Item = Features> {
    let bits = [
        Features::RING_PACKED,
        Features::INDIRECT_DESC,
        Features::EVENT_IDX,
        Features::IN_ORDER,
        Features::MRG_RXBUF,
    ];
    (0..1_u32 << bits.len()).map(move |n| {
        let on = bits.iter().enumerate().filter(|(i, _)| n >> i & 1 != 0);
        on.fold(Features::empty(), |f, (_, &bit)| f | bit)
    })
}
