//! The split layout (virtio 1.2 §2.7), driver side.

use super::areas::{RING, SplitAreas};
use super::slots::{Chain, Slots};
use super::{Buf, ChainLocation, Done, DriverError, Ring, in_order};
use crate::mem::GuestMemory;
use crate::ring::{F_INDIRECT, F_NEXT, F_WRITE, Features, QueueConfig, RingError};
use core::sync::atomic::Ordering;
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Split {
    areas: SplitAreas,
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
        let start = cfg.start.index;
        Ok(Self {
            areas: SplitAreas::new(cfg, mem)?,
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
        self.areas.desc.store64(off, buf.addr);
        let rest = u64::from(buf.len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.areas.desc.store64(off + 8, rest);
    }

    fn waiting(&mut self) -> bool {
        if self.used_seen == self.used_idx {
            self.used_seen = self.areas.used_idx();
        }
        self.used_seen != self.used_idx
    }
}

impl Ring for Split {
    fn free(&self) -> usize {
        self.free.len()
    }

    fn add(
        &mut self,
        mem: &GuestMemory,
        readable: &[Buf],
        writable: &[Buf],
        place: ChainLocation,
        token: u32,
    ) -> Result<(), DriverError> {
        let count = readable.len() + writable.len();
        if count == 0 || (place == ChainLocation::Direct && count > usize::from(self.areas.size)) {
            return Err(DriverError::Chain(count));
        }
        let need = if place == ChainLocation::Direct { count } else { 1 };
        if self.free.len() < need {
            return Err(DriverError::Full);
        }
        let head = self.free.front().copied().ok_or(DriverError::Full)?;
        match place {
            ChainLocation::Direct => self.direct(readable, writable),
            ChainLocation::Indirect(table) => {
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
        self.areas.avail.store16(
            RING + 2 * self.areas.slot(self.avail_idx),
            head,
            Ordering::Relaxed,
        );
        self.avail_idx = self.avail_idx.wrapping_add(1);
        Ok(())
    }

    fn publish(&mut self) -> bool {
        let old = core::mem::replace(&mut self.published, self.avail_idx);
        old != self.avail_idx && self.areas.publish(self.avail_idx, old)
    }

    fn pop(&mut self) -> Result<Option<Done>, DriverError> {
        if !self.waiting() {
            return Ok(None);
        }
        if self.used_seen.wrapping_sub(self.used_idx) > self.areas.size {
            return Err(DriverError::Device("moved the used index too far"));
        }
        let (head, chain, done) = if self.slots.in_batch() {
            self.slots.next_of_batch()?
        } else {
            let at = RING + 8 * self.areas.slot(self.used_idx);
            let id = self.areas.used.load32(at, Ordering::Relaxed);
            let len = self.areas.used.load32(at + 4, Ordering::Relaxed);
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

    fn arm(&mut self) -> bool {
        self.areas.arm(self.used_idx);
        self.waiting()
    }
    fn disarm(&mut self) {
        self.areas.disarm(self.used_idx);
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
