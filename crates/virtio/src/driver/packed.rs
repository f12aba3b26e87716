//! The packed layout (virtio 1.2 §2.8), driver side.

use super::areas::{FLAGS, PackedAreas};
use super::slots::{Chain, Slots};
use super::{Buf, ChainLocation, Done, DriverError, Ring, in_order};
use crate::mem::GuestMemory;
use crate::ring::{F_AVAIL, F_INDIRECT, F_NEXT, F_USED, F_WRITE, Features, QueueConfig, RingError};
use core::sync::atomic::Ordering;
use std::collections::VecDeque;

const LEN: usize = 8;
const ID: usize = 12;

/// The first head that was added and not published: its flags are written last.
#[derive(Clone, Copy, Debug)]
struct Unpublished {
    at: u16,
    flags: u16,
}

#[derive(Debug)]
pub(super) struct Packed {
    areas: PackedAreas,
    indirect: bool,
    /// Next free slot.
    at: u16,
    wrap: bool,
    /// Next slot to be used.
    used: u16,
    used_wrap: bool,
    free: usize,
    ids: VecDeque<u16>,
    slots: Slots,
    head: Option<Unpublished>,
    /// Slots added since the last publication.
    added: u32,
}

impl Packed {
    pub(super) fn new(cfg: &QueueConfig, mem: &GuestMemory) -> Result<Self, RingError> {
        let start = cfg.start;
        Ok(Self {
            areas: PackedAreas::new(cfg, mem)?,
            indirect: cfg.features.contains(Features::INDIRECT_DESC),
            at: start.index,
            wrap: start.wrap,
            used: start.index,
            used_wrap: start.wrap,
            free: usize::from(cfg.size),
            ids: (0..cfg.size).collect(),
            slots: Slots::new(cfg.size, cfg.features.contains(Features::IN_ORDER)),
            head: None,
            added: 0,
        })
    }

    /// Fills the next slot, its flags only if it is not a head; returns the flags.
    fn write(&mut self, buf: Buf, flags: u16, id: u16, head: bool) -> u16 {
        let off = usize::from(self.at) * 16;
        self.areas.ring.store64(off, buf.addr);
        self.areas.ring.store32(off + LEN, buf.len, Ordering::Relaxed);
        self.areas.ring.store16(off + ID, id, Ordering::Relaxed);
        let flags = flags | if self.wrap { F_AVAIL } else { F_USED };
        if !head {
            self.areas.ring.store16(off + FLAGS, flags, Ordering::Relaxed);
        }
        (self.at, self.wrap) = self.advance(self.at, self.wrap, 1);
        flags
    }
    fn advance(&self, at: u16, wrap: bool, n: u16) -> (u16, bool) {
        let to = u32::from(at) + u32::from(n);
        if to >= u32::from(self.areas.size) {
            ((to - u32::from(self.areas.size)) as u16, !wrap)
        } else {
            (to as u16, wrap)
        }
    }

    fn waiting(&self) -> bool {
        self.areas.is_used(self.used, self.used_wrap) && self.free < usize::from(self.areas.size)
    }
}

impl Ring for Packed {
    fn free(&self) -> usize {
        self.free
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
        if self.free < need {
            return Err(DriverError::Full);
        }
        if place != ChainLocation::Direct && !self.indirect {
            return Err(DriverError::Indirect);
        }
        let id = self.ids.front().copied().ok_or(DriverError::Full)?;
        let head_at = self.at;
        let mut head_flags = 0;
        if let ChainLocation::Indirect(table) = place {
            for (i, (buf, write)) in in_order(readable, writable).enumerate() {
                let mut d = [0; 16];
                d[..8].copy_from_slice(&buf.addr.to_le_bytes());
                d[8..12].copy_from_slice(&buf.len.to_le_bytes());
                let flags = if write { F_WRITE } else { 0 };
                d[14..].copy_from_slice(&flags.to_le_bytes());
                mem.write(table + 16 * i as u64, &d).map_err(DriverError::Table)?;
            }
            let buf = Buf {
                addr: table,
                len: 16 * count as u32,
            };
            head_flags = self.write(buf, F_INDIRECT, id, true);
        } else {
            for (i, (buf, write)) in in_order(readable, writable).enumerate() {
                let flags = if i + 1 < count { F_NEXT } else { 0 } | if write { F_WRITE } else { 0 };
                let flags = self.write(buf, flags, id, i == 0);
                if i == 0 {
                    head_flags = flags;
                }
            }
        }
        self.ids.pop_front();
        self.free -= need;
        self.added += need as u32;
        let chain = Chain {
            token,
            slots: need as u16,
            writable: writable.iter().map(|b| b.len).sum(),
        };
        self.slots.put(id, chain);
        if self.head.is_none() {
            self.head = Some(Unpublished {
                at: head_at,
                flags: head_flags,
            });
        } else {
            // Behind an unpublished head the device does not look yet; the Release is for a device that looks
            // ahead.
            self.areas
                .ring
                .store16(usize::from(head_at) * 16 + FLAGS, head_flags, Ordering::Release);
        }
        Ok(())
    }

    fn publish(&mut self) -> bool {
        let Some(head) = self.head.take() else {
            return false;
        };
        // Release pairs with the device's acquire of the head's flags: all that was added comes first
        // (§2.8.21).
        self.areas
            .ring
            .store16(usize::from(head.at) * 16 + FLAGS, head.flags, Ordering::Release);
        let added = core::mem::take(&mut self.added);
        self.areas.wants_kick(self.at, self.wrap, added)
    }

    fn pop(&mut self) -> Result<Option<Done>, DriverError> {
        let (id, chain, done) = if self.slots.in_batch() {
            self.slots.next_of_batch()?
        } else if self.waiting() {
            let off = usize::from(self.used) * 16;
            let len = self.areas.ring.load32(off + LEN, Ordering::Relaxed);
            let id = self.areas.ring.load16(off + ID, Ordering::Relaxed);
            self.slots.used(id, len)?
        } else {
            return Ok(None);
        };
        (self.used, self.used_wrap) = self.advance(self.used, self.used_wrap, chain.slots);
        self.free += usize::from(chain.slots);
        self.ids.push_back(id);
        Ok(Some(done))
    }

    fn arm(&mut self) -> bool {
        self.areas.arm(self.used, self.used_wrap);
        self.waiting()
    }
    fn disarm(&mut self) {
        self.areas.disarm();
    }
}
