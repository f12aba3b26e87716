//! The packed layout (virtio 1.2 §2.8) of a stream.
//!
//! `order` is the buffer that each slot has, or had last. The device writes a used descriptor over the slot
//! of the oldest chain; the buffer that it names will be posted from that slot next. Only when that is
//! another one is the address written again.

use super::{Buffers, Flow};
use crate::driver::DriverError;
use crate::driver::areas::PackedAreas;
use crate::mem::GuestMemory;
use crate::ring::{F_AVAIL, F_USED, F_WRITE, Features, Position, QueueConfig, RingError};

const REST: usize = 8;
/// Distance of the prefetch, in slots: two lines.
const AHEAD: u32 = 8;

#[derive(Debug)]
pub(super) struct Packed {
    areas: PackedAreas,
    /// IN_ORDER, and the device writes nothing: one used descriptor may stand for many.
    batches: bool,
    write: u16,
    buffers: Buffers,
    lens: Box<[u32]>,
    order: Box<[u16]>,
    held: Option<Box<[bool]>>,
    /// Next slot to post, next slot to take, and their rounds.
    post: u16,
    post_wrap: bool,
    take: u16,
    take_wrap: bool,
    free: u16,
    /// Buffers that a used descriptor covers and that were not taken yet.
    batch: u16,
}

impl Packed {
    pub(super) fn new(
        cfg: &QueueConfig,
        mem: &GuestMemory,
        flow: Flow,
        buffers: Buffers,
    ) -> Result<Self, RingError> {
        let areas = PackedAreas::new(cfg, mem)?;
        let start = cfg.start;
        for slot in 0..cfg.size {
            areas.ring.store64(usize::from(slot) * 16, buffers.addr(slot));
        }
        Ok(Self {
            areas,
            batches: flow == Flow::ToDevice && cfg.features.contains(Features::IN_ORDER),
            write: if flow == Flow::FromDevice { F_WRITE } else { 0 },
            buffers,
            lens: vec![buffers.len; usize::from(cfg.size)].into_boxed_slice(),
            order: (0..cfg.size).collect(),
            held: None,
            post: start.index,
            post_wrap: start.wrap,
            take: start.index,
            take_wrap: start.wrap,
            free: cfg.size,
            batch: 0,
        })
    }
    #[inline]
    fn at(&self, slot: u16) -> u16 {
        self.order.get(usize::from(slot)).copied().unwrap_or(0)
    }
    #[inline]
    fn step(&self, slot: u16, wrap: bool) -> (u16, bool) {
        if slot + 1 == self.areas.size {
            (0, !wrap)
        } else {
            (slot + 1, wrap)
        }
    }
    pub(super) fn free(&self) -> usize {
        usize::from(self.free)
    }
    #[inline]
    pub(super) fn upcoming(&self, k: usize) -> u16 {
        let slot = usize::from(self.post) + k;
        let size = usize::from(self.areas.size);
        self.at((if slot >= size { slot - size } else { slot }) as u16)
    }
    pub(super) fn set_len(&mut self, buffer: u16, len: u32) {
        if let Some(l) = self.lens.get_mut(usize::from(buffer)) {
            *l = len;
        }
    }

    /// The second half of a descriptor: length, identifier, flags.
    #[inline]
    fn rest(&self, slot: u16, wrap: bool) -> u64 {
        let id = self.at(slot);
        let len = self.lens.get(usize::from(id)).copied().unwrap_or(0);
        let flags = self.write | if wrap { F_AVAIL } else { F_USED };
        u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
    }

    pub(super) fn post(&mut self, n: usize) -> bool {
        let (first, first_wrap) = (self.post, self.post_wrap);
        let (mut slot, mut wrap) = self.step(first, first_wrap);
        for _ in 1..n {
            // Release: for a device that looks ahead; the address was written long ago.
            let rest = self.rest(slot, wrap);
            self.areas
                .ring
                .store64_release(usize::from(slot) * 16 + REST, rest);
            (slot, wrap) = self.step(slot, wrap);
        }
        if self.held.is_some() {
            self.hold(n);
        }
        // Release pairs with the device's acquire of the first slot's flags: all that was posted comes first
        // (§2.8.21).
        self.areas
            .ring
            .store64_release(usize::from(first) * 16 + REST, self.rest(first, first_wrap));
        (self.post, self.post_wrap) = (slot, wrap);
        self.free -= n as u16;
        self.areas.wants_kick(slot, wrap, n as u32)
    }

    /// Notes that the device has the next `n` buffers.
    #[cold]
    fn hold(&mut self, n: usize) {
        for k in 0..n {
            let id = usize::from(self.upcoming(k));
            if let Some(h) = self.held.as_mut().and_then(|h| h.get_mut(id)) {
                *h = true;
            }
        }
    }

    #[inline]
    pub(super) fn take(&mut self, max: usize, mut each: impl FnMut(u16, u32)) -> Result<usize, DriverError> {
        let mut n = 0;
        while n < max {
            if self.batch == 0
                && (self.free == self.areas.size || !self.areas.is_used(self.take, self.take_wrap))
            {
                break;
            }
            let expected = self.at(self.take);
            let mut got = (expected, 0);
            if self.batch > 0 {
                self.batch -= 1;
            } else {
                if self.take.is_multiple_of(4) {
                    let ahead = (u32::from(self.take) + AHEAD) % u32::from(self.areas.size);
                    self.areas.ring.prefetch(ahead as usize * 16);
                }
                // The same line again; the flags in it are not needed.
                let rest = self.areas.ring.load64(usize::from(self.take) * 16 + REST);
                let (len, id) = (rest as u32, (rest >> 32) as u16);
                if self.batches {
                    self.batch = self.covered(id)?;
                } else {
                    if id != expected || self.held.is_some() {
                        self.out_of_order(id)?;
                    }
                    got = (id, len);
                }
            }
            each(got.0, got.1);
            (self.take, self.take_wrap) = self.step(self.take, self.take_wrap);
            self.free += 1;
            n += 1;
        }
        Ok(n)
    }

    /// With IN_ORDER: how many buffers behind the one at `take` a used descriptor with `id` covers. Slots
    /// keep their buffers then.
    fn covered(&self, id: u16) -> Result<u16, DriverError> {
        let behind = self.distance(self.take, id);
        if id < self.areas.size && behind < self.areas.size - self.free {
            Ok(behind)
        } else {
            Err(DriverError::Device(
                "ended a batch with a buffer that it does not have",
            ))
        }
    }
    /// Slots from `from` on to `to`.
    fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from {
            to - from
        } else {
            to + self.areas.size - from
        }
    }

    #[cold]
    fn out_of_order(&mut self, id: u16) -> Result<(), DriverError> {
        if self.held.is_none() {
            let mut held = vec![false; usize::from(self.areas.size)];
            let (mut slot, mut wrap) = (self.take, self.take_wrap);
            for _ in 0..self.areas.size - self.free {
                held[usize::from(self.at(slot))] = true;
                (slot, wrap) = self.step(slot, wrap);
            }
            self.held = Some(held.into_boxed_slice());
        }
        match self.held.as_mut().and_then(|h| h.get_mut(usize::from(id))) {
            Some(h) if *h => *h = false,
            _ => return Err(DriverError::Device("used a buffer that it does not have")),
        }
        if let Some(o) = self.order.get_mut(usize::from(self.take)) {
            *o = id;
        }
        self.areas
            .ring
            .store64(usize::from(self.take) * 16, self.buffers.addr(id));
        Ok(())
    }

    pub(super) fn arm(&mut self) -> bool {
        self.areas.arm(self.take, self.take_wrap);
        self.free < self.areas.size && (self.batch > 0 || self.areas.is_used(self.take, self.take_wrap))
    }
    pub(super) fn disarm(&self) {
        self.areas.disarm();
    }
    pub(super) fn position(&self) -> Position {
        let (mut slot, mut wrap) = (self.take, self.take_wrap);
        let mut covered = self.batch;
        for _ in 0..self.areas.size - self.free {
            if covered > 0 {
                covered -= 1;
            } else if !self.areas.is_used(slot, wrap) {
                break;
            } else if self.batches {
                let id = (self.areas.ring.load64(usize::from(slot) * 16 + REST) >> 32) as u16;
                covered = self.distance(slot, id.min(self.areas.size - 1));
            }
            (slot, wrap) = self.step(slot, wrap);
        }
        Position { index: slot, wrap }
    }
}
