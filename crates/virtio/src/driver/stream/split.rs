//! The split layout (virtio 1.2 §2.7) of a stream.
//!
//! `order` is the content of the available ring: entry `k` (modulo the size) is the buffer of the `k`th post.
//! When entry `u` of the used ring is taken, its buffer will be posted as number `u + size`, which is the
//! same entry. If the device works in order, that entry has the buffer's identifier already, and nothing is
//! written. The device has read the entry before, because it used at least that many buffers.

use super::{Buffers, Flow};
use crate::driver::DriverError;
use crate::driver::areas::{RING, SplitAreas};
use crate::mem::GuestMemory;
use crate::ring::{F_WRITE, Features, Position, QueueConfig, RingError};
use core::sync::atomic::Ordering;

/// Used entries per line of 64 bytes.
const PER_LINE: u16 = 8;

#[derive(Debug)]
pub(super) struct Split {
    areas: SplitAreas,
    /// IN_ORDER, and the device writes nothing: the used index is sufficient.
    count_only: bool,
    order: Box<[u16]>,
    /// Once the device has worked out of order: which buffers it has.
    held: Option<Box<[bool]>>,
    posted: u16,
    taken: u16,
    /// The used index as last read.
    seen: u16,
}

impl Split {
    pub(super) fn new(
        cfg: &QueueConfig,
        mem: &GuestMemory,
        flow: Flow,
        buffers: Buffers,
    ) -> Result<Self, RingError> {
        let areas = SplitAreas::new(cfg, mem)?;
        let start = cfg.start.index;
        let flags = if flow == Flow::FromDevice { F_WRITE } else { 0 };
        for id in 0..cfg.size {
            let off = usize::from(id) * 16;
            areas.desc.store64(off, buffers.addr(id));
            areas
                .desc
                .store64(off + 8, u64::from(buffers.len) | u64::from(flags) << 32);
            areas
                .avail
                .store16(RING + 2 * usize::from(id), id, Ordering::Relaxed);
        }
        Ok(Self {
            areas,
            count_only: flow == Flow::ToDevice && cfg.features.contains(Features::IN_ORDER),
            order: (0..cfg.size).collect(),
            held: None,
            posted: start,
            taken: start,
            seen: start,
        })
    }
    #[inline]
    fn at(&self, index: u16) -> u16 {
        self.order.get(self.areas.slot(index)).copied().unwrap_or(0)
    }
    pub(super) fn free(&self) -> usize {
        usize::from(self.areas.size - self.posted.wrapping_sub(self.taken))
    }
    #[inline]
    pub(super) fn upcoming(&self, k: usize) -> u16 {
        self.at(self.posted.wrapping_add(k as u16))
    }
    pub(super) fn set_len(&mut self, buffer: u16, len: u32) {
        if buffer < self.areas.size {
            self.areas
                .desc
                .store32(usize::from(buffer) * 16 + 8, len, Ordering::Relaxed);
        }
    }

    pub(super) fn post(&mut self, n: usize) -> bool {
        let old = self.posted;
        let new = old.wrapping_add(n as u16);
        if self.held.is_some() {
            self.hold(n);
        }
        self.posted = new;
        self.areas.publish(new, old)
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

    /// The number of buffers that wait to be taken; looks at the shared index only when none is known.
    fn waiting(&mut self) -> Result<u16, DriverError> {
        if self.seen == self.taken {
            self.seen = self.areas.used_idx();
            let n = self.seen.wrapping_sub(self.taken);
            if n > self.posted.wrapping_sub(self.taken) {
                self.seen = self.taken;
                return Err(DriverError::Device("moved the used index too far"));
            }
            if !self.count_only {
                // The lines come from another core: prefetch all of them at once.
                for k in (0..n).step_by(usize::from(PER_LINE)) {
                    self.areas
                        .used
                        .prefetch(RING + 8 * self.areas.slot(self.taken.wrapping_add(k)));
                }
            }
        }
        Ok(self.seen.wrapping_sub(self.taken))
    }

    #[inline]
    pub(super) fn take(&mut self, max: usize, mut each: impl FnMut(u16, u32)) -> Result<usize, DriverError> {
        let n = usize::from(self.waiting()?).min(max);
        for _ in 0..n {
            let expected = self.at(self.taken);
            if self.count_only {
                each(expected, 0);
            } else {
                let off = RING + 8 * self.areas.slot(self.taken);
                // Relaxed: ordered by the acquire of the index.
                let id = self.areas.used.load32(off, Ordering::Relaxed);
                let len = self.areas.used.load32(off + 4, Ordering::Relaxed);
                if id != u32::from(expected) || self.held.is_some() {
                    self.out_of_order(id)?;
                }
                each(id as u16, len);
            }
            self.taken = self.taken.wrapping_add(1);
        }
        Ok(n)
    }

    /// Files buffer `id`, which another one was expected before.
    #[cold]
    fn out_of_order(&mut self, id: u32) -> Result<(), DriverError> {
        if self.held.is_none() {
            let mut held = vec![false; usize::from(self.areas.size)];
            for k in 0..self.posted.wrapping_sub(self.taken) {
                held[usize::from(self.at(self.taken.wrapping_add(k)))] = true;
            }
            self.held = Some(held.into_boxed_slice());
        }
        let held = self.held.as_mut().and_then(|h| h.get_mut(id as usize));
        match held {
            Some(h) if *h => *h = false,
            _ => return Err(DriverError::Device("used a buffer that it does not have")),
        }
        let slot = self.areas.slot(self.taken);
        if let Some(o) = self.order.get_mut(slot) {
            *o = id as u16;
        }
        // Relaxed: ordered by the release of the index that covers this entry.
        self.areas
            .avail
            .store16(RING + 2 * slot, id as u16, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn arm(&mut self) -> bool {
        self.areas.arm(self.taken);
        self.waiting().map_or(true, |n| n > 0)
    }
    pub(super) fn disarm(&self) {
        self.areas.disarm(self.taken);
    }
    pub(super) fn position(&self) -> Position {
        Position {
            index: self.areas.used_idx(),
            wrap: true,
        }
    }
}
