//! The packed layout (virtio 1.2 §2.8), device side.
//!
//! Used descriptors of a burst are written from the second on, the first one's flags last, so that the driver sees the burst at
//! once and the line does not travel in between.

use super::chain::{Direction, Rules, UsedBatch, Window};
use super::config::{Areas, QueueConfig};
use super::desc::{
    self, AREA_DESC, AREA_DISABLE, AREA_ENABLE, F_AVAIL, F_INDIRECT, F_NEXT, F_USED, F_WRITE, FLAGS, RawDesc,
};
use super::{Features, Position, Record, RingError, packed_event_passed};
use crate::mem::{DirtyLog, GuestMemory, HostRange};
use core::sync::atomic::{Ordering, fence};

const ID: usize = 12;
const LEN: usize = 8;

/// A slot and the wrap counter there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    at: u16,
    wrap: bool,
}

impl From<Cursor> for Position {
    fn from(c: Cursor) -> Self {
        Self {
            index: c.at,
            wrap: c.wrap,
        }
    }
}

impl Cursor {
    /// `n` slots (at most the ring's size) further.
    fn advance(self, n: u16, size: u16) -> Self {
        let to = u32::from(self.at) + u32::from(n);
        if to >= u32::from(size) {
            Self {
                at: (to - u32::from(size)) as u16,
                wrap: !self.wrap,
            }
        } else {
            Self {
                at: to as u16,
                wrap: self.wrap,
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Packed {
    ring: HostRange,
    /// The driver's wishes for notifications.
    driver: HostRange,
    /// The device's.
    device: HostRange,
    size: u16,
    rules: Rules,
    event_idx: bool,
    in_order: bool,
    /// Next slot to take.
    fetch: Cursor,
    /// Next slot to give back.
    used: Cursor,
    /// Slots taken and not given back.
    held: u16,
    /// Slots given back since the driver's wish was last looked at; `None` at the start.
    unsignalled: Option<u32>,
    /// Where the position is kept.
    record: Option<Record>,
}

impl Packed {
    /// Sets the ring up, and finishes what the record says was not.
    pub(super) fn new(
        cfg: &QueueConfig,
        areas: Areas,
        direction: Direction,
        record: Option<Record>,
        log: Option<&DirtyLog>,
    ) -> Result<Self, RingError> {
        if cfg.start.index >= cfg.size {
            return Err(RingError::Head(cfg.start.index));
        }
        let start = Cursor {
            at: cfg.start.index,
            wrap: cfg.start.wrap,
        };
        let unfinished = record.as_ref().and_then(|r| r.unfinished(cfg.start));
        let mut ring = Self {
            ring: areas.desc,
            driver: areas.driver,
            device: areas.device,
            size: cfg.size,
            rules: Rules {
                direction,
                indirect: cfg.features.contains(Features::INDIRECT_DESC),
                packed: true,
            },
            event_idx: cfg.features.contains(Features::EVENT_IDX),
            in_order: cfg.features.contains(Features::IN_ORDER),
            fetch: start,
            used: start,
            held: 0,
            unsignalled: None,
            record,
        };
        if let Some(batch) = unfinished {
            ring.publish(&batch, log);
            ring.fetch = ring.used;
        }
        Ok(ring)
    }
    pub(super) fn position(&self) -> Position {
        self.used.into()
    }
    /// Forgets what was taken and not used.
    pub(super) fn rewind(&mut self) {
        self.fetch = self.used;
        self.held = 0;
    }

    /// Whether the descriptor at `fetch` is available (§2.8.1).
    #[inline]
    fn ready(&self) -> Option<u16> {
        // Acquire pairs with the driver's release of the head's flags (§2.8.21): the rest of the chain, direct or indirect, is
        // visible to the loads that follow.
        let flags = self
            .ring
            .load16(usize::from(self.fetch.at) * desc::SIZE + FLAGS, Ordering::Acquire);
        let (avail, used) = (flags & F_AVAIL != 0, flags & F_USED != 0);
        (avail == self.fetch.wrap && used != self.fetch.wrap && self.held < self.size).then_some(flags)
    }

    /// Takes up to `max` chains into `window`. What was taken before an error stays.
    pub(super) fn fetch(
        &mut self,
        mem: &GuestMemory,
        max: usize,
        window: &mut Window,
    ) -> Result<(), RingError> {
        for _ in 0..max {
            if window.is_full() {
                break;
            }
            let Some(flags) = self.ready() else { break };
            let slots = self.chain(mem, flags, window)?;
            self.fetch = self.fetch.advance(slots, self.size);
            self.held += slots;
        }
        Ok(())
    }

    /// Takes the chain whose head has `flags`; returns how many slots it has.
    #[inline]
    fn chain(&self, mem: &GuestMemory, flags: u16, window: &mut Window) -> Result<u16, RingError> {
        let mut walk = window.begin(mem, self.rules);
        let (mut at, mut flags) = (self.fetch, flags);
        for slots in 1..=self.size - self.held {
            let off = usize::from(at.at) * desc::SIZE;
            let d = RawDesc::load(&self.ring, off);
            if slots > 1 {
                // Only the head's flags are ordered; the others were written before them.
                flags = d.packed_flags();
            }
            if flags & F_INDIRECT != 0 {
                if slots > 1 {
                    return Err(RingError::IndirectNested);
                }
                walk.indirect(&d, flags)?;
                walk.finish(d.packed_id(), 1);
                return Ok(1);
            }
            walk.buffer(&d, flags)?;
            if flags & F_NEXT == 0 {
                // §2.8.7: the identifier is in the chain's last descriptor.
                walk.finish(d.packed_id(), slots);
                return Ok(slots);
            }
            at = at.advance(1, self.size);
        }
        Err(RingError::ChainTooLong)
    }

    /// Gives `batch` back to the driver, in order.
    pub(super) fn publish(&mut self, batch: &UsedBatch, log: Option<&DirtyLog>) {
        let Some(last) = batch.last() else { return };
        let total: u32 = batch.iter().map(|u| u32::from(u.slots)).sum();
        let first = self.used;
        let mut next = first;
        for u in batch {
            next = next.advance(u.slots, self.size);
        }
        if let Some(record) = &self.record {
            record.begin(batch, first.into(), next.into());
        }
        // §2.8.9: with IN_ORDER one descriptor, at the batch's first place, names its last chain; right only where the device
        // writes nothing, see the split layout.
        if self.in_order && self.rules.direction == Direction::FromGuest {
            self.write(first, last.id, last.len, log);
            self.write_flags(first, last.len, Ordering::Release);
        } else {
            let mut at = first;
            for (i, u) in batch.iter().enumerate() {
                self.write(at, u.id, u.len, log);
                if i > 0 {
                    self.write_flags(at, u.len, Ordering::Relaxed);
                }
                at = at.advance(u.slots, self.size);
            }
            // Release pairs with the driver's acquire of these flags: the driver reads in order, so behind them it sees all of the
            // burst's descriptors and the bytes that were copied into the buffers.
            let len = batch.first().map_or(0, |u| u.len);
            self.write_flags(first, len, Ordering::Release);
        }
        self.used = next;
        if let Some(record) = &self.record {
            record.commit(next.into(), first.into());
        }
        self.held = self.held.saturating_sub(total as u16);
        self.unsignalled = self.unsignalled.map(|n| n.saturating_add(total));
    }

    #[inline]
    fn write(&self, at: Cursor, id: u16, len: u32, log: Option<&DirtyLog>) {
        let off = usize::from(at.at) * desc::SIZE;
        self.ring.store16(off + ID, id, Ordering::Relaxed);
        self.ring.store32(off + LEN, len, Ordering::Relaxed);
        if let Some(log) = log {
            log.mark(self.ring.log_addr() + off as u64, desc::SIZE as u64);
        }
    }
    #[inline]
    fn write_flags(&self, at: Cursor, len: u32, order: Ordering) {
        let write = if len > 0 { F_WRITE } else { 0 };
        let flags = if at.wrap { F_AVAIL | F_USED | write } else { write };
        self.ring
            .store16(usize::from(at.at) * desc::SIZE + FLAGS, flags, order);
    }

    /// Whether the driver wants to hear of what was published.
    pub(super) fn needs_call(&mut self) -> bool {
        // SeqCst pairs with the driver's barrier between writing its event area and looking at the ring again (§2.8.21.3.1).
        fence(Ordering::SeqCst);
        // Both halves in one load, so that they belong together.
        let area = self.driver.load32(0, Ordering::Relaxed);
        let (off_wrap, flags) = (area as u16, (area >> 16) as u16 & 3);
        let since = self.unsignalled.replace(0);
        match flags {
            AREA_DISABLE => false,
            AREA_DESC if self.event_idx => since.is_none_or(|count| {
                packed_event_passed(off_wrap, self.used.at, self.used.wrap, count, self.size)
            }),
            _ => true,
        }
    }

    /// Asks for kicks, and looks again. Returns whether chains wait already.
    pub(super) fn arm(&mut self) -> bool {
        let area = if self.event_idx {
            u32::from(self.fetch.at) | u32::from(self.fetch.wrap) << 15 | u32::from(AREA_DESC) << 16
        } else {
            u32::from(AREA_ENABLE) << 16
        };
        self.device.store32(0, area, Ordering::Relaxed);
        // SeqCst pairs with the driver's barrier between its descriptor flags and its look at this area (§2.8.21.3.1).
        fence(Ordering::SeqCst);
        self.ready().is_some()
    }

    /// Asks for no kicks.
    pub(super) fn disarm(&mut self) {
        self.device
            .store32(0, u32::from(AREA_DISABLE) << 16, Ordering::Relaxed);
    }
}
