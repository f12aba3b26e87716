//! The split layout (virtio 1.2 §2.7), driver side.

use super::slots::{Chain, Slots};
use super::{Buf, Done, DriverError, Place, in_order};
use crate::mem::{GuestMemory, HostRange};
use crate::ring::{F_INDIRECT, F_NEXT, F_WRITE, Features, QueueConfig, RingError, split_event_passed};
use core::sync::atomic::{Ordering, fence};
use std::collections::VecDeque;

const IDX: usize = 2;
const RING: usize = 4;

#[derive(Debug)]
pub(super) struct Split {
    desc: HostRange,
    avail: HostRange,
    used: HostRange,
    size: u16,
    event_idx: bool,
    indirect: bool,
    free: VecDeque<u16>,
    /// Descriptors behind each head, to be freed with it.
    next: Vec<u16>,
    slots: Slots,
    /// The available index as it will be published, and as it was.
    avail_idx: u16,
    published: u16,
    used_idx: u16,
    used_seen: u16,
}

impl Split {
    pub(super) fn new(cfg: &QueueConfig, mem: &GuestMemory) -> Result<Self, RingError> {
        let areas = cfg.areas(mem)?;
        let start = cfg.start.index;
        areas.driver.store16(IDX, start, Ordering::Relaxed);
        areas.device.store16(IDX, start, Ordering::Relaxed);
        Ok(Self {
            desc: areas.desc,
            avail: areas.driver,
            used: areas.device,
            size: cfg.size,
            event_idx: cfg.features.contains(Features::EVENT_IDX),
            indirect: cfg.features.contains(Features::INDIRECT_DESC),
            free: (0..cfg.size).collect(),
            next: vec![0; usize::from(cfg.size)],
            slots: Slots::new(cfg.size, cfg.features.contains(Features::IN_ORDER)),
            avail_idx: start,
            published: start,
            used_idx: start,
            used_seen: start,
        })
    }
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    pub(super) fn add(
        &mut self,
        mem: &GuestMemory,
        readable: &[Buf],
        writable: &[Buf],
        place: Place,
        token: u32,
    ) -> Result<(), DriverError> {
        let count = readable.len() + writable.len();
        if count == 0 || (place == Place::Direct && count > usize::from(self.size)) {
            return Err(DriverError::Chain(count));
        }
        let need = if place == Place::Direct { count } else { 1 };
        if self.free.len() < need {
            return Err(DriverError::Full);
        }
        let head = self.free.front().copied().ok_or(DriverError::Full)?;
        match place {
            Place::Direct => self.direct(readable, writable),
            Place::Indirect(table) => {
                if !self.indirect {
                    return Err(DriverError::Indirect);
                }
                for (i, (buf, write)) in in_order(readable, writable).enumerate() {
                    let more = i + 1 < count;
                    let flags = if more { F_NEXT } else { 0 } | if write { F_WRITE } else { 0 };
                    let next = if more { i as u16 + 1 } else { 0 };
                    let entry = encode(buf, flags, next);
                    mem.write(table + 16 * i as u64, &entry)
                        .map_err(DriverError::Table)?;
                }
                self.free.pop_front();
                let buf = Buf {
                    addr: table,
                    len: 16 * count as u32,
                };
                self.write(head, buf, F_INDIRECT, 0);
            }
        }
        self.slots.put(
            head,
            Chain {
                token,
                slots: need as u16,
                writable: writable.iter().map(|b| b.len).sum(),
            },
        );
        // Relaxed: `publish` orders it before the index.
        self.avail
            .store16(RING + 2 * self.slot(self.avail_idx), head, Ordering::Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        Ok(())
    }

    /// Writes the buffers into free descriptors, linked.
    fn direct(&mut self, readable: &[Buf], writable: &[Buf]) {
        let mut bufs = in_order(readable, writable).peekable();
        while let Some((buf, write)) = bufs.next() {
            let Some(at) = self.free.pop_front() else { return };
            let next = bufs.peek().and_then(|_| self.free.front().copied());
            let flags = if next.is_some() { F_NEXT } else { 0 } | if write { F_WRITE } else { 0 };
            let next = next.unwrap_or(0);
            if let Some(n) = self.next.get_mut(usize::from(at)) {
                *n = next;
            }
            self.write(at, buf, flags, next);
        }
    }
    fn write(&self, at: u16, buf: Buf, flags: u16, next: u16) {
        let off = usize::from(at) * 16;
        self.desc.store64(off, buf.addr);
        let rest = u64::from(buf.len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.desc.store64(off + 8, rest);
    }

    pub(super) fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.avail_idx);
        if old == new {
            return false;
        }
        // Release pairs with the device's acquire of `avail.idx`: descriptors, tables and buffers come first
        // (§2.7.13.3).
        self.avail.store16(IDX, new, Ordering::Release);
        self.published = new;
        // SeqCst pairs with the device's barrier between its wish for kicks and its look at the index
        // (§2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self
                .used
                .load16(RING + 8 * usize::from(self.size), Ordering::Relaxed);
            split_event_passed(event, new, old)
        } else {
            self.used.load16(0, Ordering::Relaxed) & 1 == 0
        }
    }

    fn waiting(&mut self) -> bool {
        if self.used_seen == self.used_idx {
            // Acquire pairs with the device's release of `used.idx`: entries and bytes come first.
            self.used_seen = self.used.load16(IDX, Ordering::Acquire);
        }
        self.used_seen != self.used_idx
    }

    pub(super) fn pop(&mut self) -> Result<Option<Done>, DriverError> {
        if !self.waiting() {
            return Ok(None);
        }
        if self.used_seen.wrapping_sub(self.used_idx) > self.size {
            return Err(DriverError::Device("moved the used index too far"));
        }
        let (head, chain, done) = if self.slots.in_batch() {
            self.slots.next_of_batch()?
        } else {
            let at = RING + 8 * self.slot(self.used_idx);
            let id = self.used.load32(at, Ordering::Relaxed);
            let len = self.used.load32(at + 4, Ordering::Relaxed);
            let id =
                u16::try_from(id).map_err(|_| DriverError::Device("used an identifier beyond the table"))?;
            self.slots.used(id, len)?
        };
        self.used_idx = self.used_idx.wrapping_add(1);
        let mut at = head;
        for _ in 0..chain.slots {
            self.free.push_back(at);
            at = self.next.get(usize::from(at)).copied().unwrap_or(0);
        }
        Ok(Some(done))
    }

    pub(super) fn arm(&mut self) -> bool {
        if self.event_idx {
            let at = RING + 2 * usize::from(self.size);
            self.avail.store16(at, self.used_idx, Ordering::Relaxed);
        } else {
            self.avail.store16(0, 0, Ordering::Relaxed);
        }
        // SeqCst pairs with the device's barrier between `used.idx` and its look at this wish (§2.7.7.1).
        fence(Ordering::SeqCst);
        self.waiting()
    }
    pub(super) fn disarm(&mut self) {
        if self.event_idx {
            // A threshold that the index has just passed.
            let at = RING + 2 * usize::from(self.size);
            self.avail
                .store16(at, self.used_idx.wrapping_sub(1), Ordering::Relaxed);
        } else {
            self.avail.store16(0, 1, Ordering::Relaxed);
        }
    }
}

/// A descriptor of a split ring's table.
fn encode(buf: Buf, flags: u16, next: u16) -> [u8; 16] {
    let mut d = [0; 16];
    d[..8].copy_from_slice(&buf.addr.to_le_bytes());
    d[8..12].copy_from_slice(&buf.len.to_le_bytes());
    d[12..14].copy_from_slice(&flags.to_le_bytes());
    d[14..].copy_from_slice(&next.to_le_bytes());
    d
}
