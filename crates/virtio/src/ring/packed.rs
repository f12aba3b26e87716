//! The packed layout (virtio 1.2 §2.8), device side.
//!
//! Used descriptors of a burst are written from the second on, the first one last. So the driver sees the
//! burst at once and the line does not travel in between. Length, identifier and flags are neighbours, and
//! are read and written as one word.

use super::config::{Areas, QueueConfig};
use super::desc::{
    self, AREA_DESC, AREA_DISABLE, AREA_ENABLE, F_AVAIL, F_INDIRECT, F_NEXT, F_USED, F_WRITE, FLAGS, RawDesc,
};
use super::limits::MISSES;
use super::queue::Miss;
use super::walk::{Direction, Rules, Scratch, near_piece};
use super::window::{Used, Window};
use super::{Features, Position, Record, RingError, packed_event_passed};
use crate::mem::{DirtyLog, GuestMemory, HostRange, Near, Table, TableView};
use core::sync::atomic::Ordering;
use heddle_sync::barrier;

const DESCS_PER_LINE: u16 = 4;
/// Position of the flags in a descriptor's second word, in bits.
const FLAGS_SHIFT: usize = 8 * (FLAGS - 8);

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
    /// The next slot.
    #[inline(always)]
    fn next(self, size: u16) -> Self {
        let to = self.at + 1;
        if to >= size {
            Self {
                at: 0,
                wrap: !self.wrap,
            }
        } else {
            Self { at: to, ..self }
        }
    }
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

/// The descriptor at `at` if it is available (§2.8.1).
#[inline(always)]
fn ready(ring: TableView<'_>, at: Cursor) -> Option<RawDesc> {
    const BOTH: u64 = ((F_AVAIL | F_USED) as u64) << FLAGS_SHIFT;
    let wanted = u64::from(if at.wrap { F_AVAIL } else { F_USED }) << FLAGS_SHIFT;
    // The Acquire there pairs with the driver's release of the head's flags (§2.8.21). So the rest of the
    // chain, direct or indirect, is visible to the loads that follow. The other fields of the same word were
    // written before.
    let words = ring.load_if(at.at, |word| word & BOTH == wanted);
    words.map(RawDesc::from_words)
}

/// The bits that mark a descriptor as used in a lap with that wrap counter (§2.8.1), in its second word.
#[inline(always)]
fn used_flags(wrap: bool) -> u64 {
    u64::from(if wrap { F_AVAIL | F_USED } else { 0 }) << FLAGS_SHIFT
}

/// Length, identifier and flags of a used descriptor.
#[inline(always)]
fn used_word(u: Used, flags: u64) -> u64 {
    let write = u64::from(u.len > 0) * (u64::from(F_WRITE) << FLAGS_SHIFT);
    u64::from(u.len) | u64::from(u.id) << 32 | flags | write
}

#[derive(Debug)]
pub(super) struct Packed {
    ring: Table,
    /// The ring's address for dirty logging.
    log_ring: u64,
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
    /// The record of the position.
    record: Option<Record>,
}

impl Packed {
    /// Sets the ring up, and finishes the batch that the record shows as unfinished.
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
            ring: Table::new(&areas.desc, cfg.size),
            log_ring: areas.desc.log_addr(),
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
            ring.publish(batch.iter().copied(), log);
            ring.fetch = ring.used;
        }
        Ok(ring)
    }
    pub(super) fn position(&self) -> Position {
        self.used.into()
    }
    /// Forgets the chains that were taken and not used.
    pub(super) fn rewind(&mut self) {
        self.fetch = self.used;
        self.held = 0;
    }

    /// Whether the descriptor at `fetch` is available.
    #[inline]
    fn waiting(&self) -> bool {
        self.held < self.size && ready(self.ring.view(), self.fetch).is_some()
    }

    /// Takes up to `max` chains into `window` and prefetches the lines of their first `NEAR` bytes. Chains
    /// that were taken before an error stay.
    pub(super) fn fetch<const NEAR: usize, const WRITE: bool>(
        &mut self,
        mem: &GuestMemory,
        max: usize,
        window: &mut Window,
        scratch: &mut Scratch,
    ) -> Result<(), RingError> {
        let mut left = max.min(window.room());
        loop {
            let near = mem.near(scratch.hint, self.rules.direction.access());
            let long_way = !WRITE && scratch.samples(mem);
            let (done, odd) = self.plain::<NEAR, WRITE>(&near, left, long_way, window);
            left -= done;
            let Some(d) = odd else { break };
            if window.is_fragmented() || scratch.is_spent() {
                break;
            }
            let slots = self.chain(mem, d, window, scratch)?;
            window.prefetch_last(NEAR, WRITE);
            self.fetch = self.fetch.advance(slots, self.size);
            self.held += slots;
            left -= 1;
        }
        Ok(())
    }

    /// Takes up to `n` chains of one plain descriptor in the region `near`. Returns how many, and the first
    /// descriptor of the one behind them, where that is another kind of chain, or `long_way`.
    #[inline(always)]
    fn plain<const NEAR: usize, const WRITE: bool>(
        &mut self,
        near: &Near,
        n: usize,
        long_way: bool,
        window: &mut Window,
    ) -> (usize, Option<RawDesc>) {
        let plain = if WRITE { F_WRITE } else { 0 };
        let (ring, size) = (self.ring.view(), self.size);
        let mut at = self.fetch;
        let mut odd = None;
        let done = window.push_singles(n.min(usize::from(self.size - self.held)), |_| {
            let d = ready(ring, at)?;
            match near_piece::<WRITE>(near, &d) {
                Some(piece) if !long_way && d.packed_flags() & (F_NEXT | F_INDIRECT | F_WRITE) == plain => {
                    piece.prefetch(NEAR, WRITE);
                    at = at.next(size);
                    Some((piece, d.packed_id()))
                }
                _ => {
                    odd = Some(d);
                    None
                }
            }
        });
        self.fetch = at;
        self.held += done as u16;
        (done, odd)
    }

    /// Adds the unreachable addresses of the available descriptors behind the next one.
    #[cold]
    pub(super) fn look_ahead(&self, mem: &GuestMemory, misses: &mut Vec<Miss>) {
        let mut at = self.fetch;
        for _ in 1..MISSES.min(self.size) {
            at = at.advance(1, self.size);
            let d = RawDesc::from_words(self.ring.view().load(at.at));
            let flags = d.packed_flags();
            if (flags & F_AVAIL != 0) != at.wrap || (flags & F_USED != 0) == at.wrap {
                break;
            }
            misses.extend(Miss::of(mem, &d, flags, self.rules.direction));
        }
    }

    /// Takes the chain whose head is `first`; returns how many slots it has.
    fn chain(
        &self,
        mem: &GuestMemory,
        first: RawDesc,
        window: &mut Window,
        scratch: &mut Scratch,
    ) -> Result<u16, RingError> {
        let mut walk = scratch.begin(mem, self.rules);
        let (mut at, mut d) = (self.fetch, first);
        for slots in 1..=self.size - self.held {
            // Only the head's flags are ordered; the others were written before them.
            let flags = d.packed_flags();
            if flags & F_INDIRECT != 0 {
                if slots > 1 {
                    return Err(RingError::IndirectNested);
                }
                walk.indirect(&d, flags)?;
                walk.finish(window, d.packed_id(), 1);
                return Ok(1);
            }
            walk.buffer(&d, flags)?;
            if flags & F_NEXT == 0 {
                // §2.8.7: the identifier is in the chain's last descriptor.
                walk.finish(window, d.packed_id(), slots);
                return Ok(slots);
            }
            at = at.advance(1, self.size);
            d = RawDesc::from_words(self.ring.view().load(at.at));
        }
        Err(RingError::ChainTooLong)
    }

    /// Prefetches the lines that giving `n` chains back will write.
    #[inline]
    pub(super) fn prepare(&self, n: usize) {
        let mut at = self.used;
        for _ in 0..(n as u16).min(self.size).div_ceil(DESCS_PER_LINE) {
            self.ring.prefetch_write(at.at);
            at = at.advance(DESCS_PER_LINE.min(self.size), self.size);
        }
    }

    /// Gives used chains back to the driver, in order.
    #[inline]
    pub(super) fn publish(
        &mut self,
        given: impl ExactSizeIterator<Item = Used> + Clone,
        log: Option<&DirtyLog>,
    ) {
        let (first, ring, size) = (self.used, self.ring.view(), self.size);
        if let Some(record) = &self.record {
            record.begin(given.clone(), first.into(), |slots| {
                first.advance(slots, size).into()
            });
        }
        let mut rest = given.clone();
        let Some(mut head) = rest.next() else { return };
        let mut at = first.advance(head.slots, size);
        let mut total = u32::from(head.slots);
        // §2.8.9: with IN_ORDER one descriptor, at the batch's first place, names its last chain; right only
        // where the device writes nothing, see the split layout.
        if self.in_order && self.rules.direction == Direction::FromGuest {
            for u in rest {
                head = u;
                total += u32::from(u.slots);
                at = at.advance(u.slots, size);
            }
        } else {
            let mut flags = used_flags(at.wrap);
            let mut index = u32::from(at.at);
            for u in rest {
                ring.store_second(index as u16, used_word(u, flags), Ordering::Relaxed);
                total += u32::from(u.slots);
                index += u32::from(u.slots);
                if index >= size.into() {
                    index -= u32::from(size);
                    flags ^= used_flags(true);
                }
            }
            at = Cursor {
                at: index as u16, // below the size
                wrap: flags != 0,
            };
        }
        // Release pairs with the driver's acquire of these flags. The driver reads in order, so behind them
        // it sees all of the burst's descriptors and the bytes that were copied into the buffers.
        ring.store_second(
            first.at,
            used_word(head, used_flags(first.wrap)),
            Ordering::Release,
        );
        self.used = at;
        if let Some(record) = &self.record {
            record.commit(at.into(), first.into());
        }
        if let Some(log) = log {
            self.mark(log, first, given);
        }
        self.held = self.held.saturating_sub(total as u16);
        self.unsignalled = self.unsignalled.map(|n| n.saturating_add(total));
    }

    /// Tells the dirty log of the used descriptors from `at` on.
    #[cold]
    fn mark(&self, log: &DirtyLog, at: Cursor, given: impl Iterator<Item = Used>) {
        let mut at = at;
        for u in given {
            let off = usize::from(at.at) * desc::SIZE;
            log.mark(self.log_ring + off as u64, desc::SIZE as u64);
            at = at.advance(u.slots, self.size);
        }
    }

    /// Whether the driver wants a notification of the published chains.
    pub(super) fn needs_call(&mut self) -> bool {
        // A full barrier pairs with the driver's barrier between writing its event area and looking at the
        // ring again (§2.8.21.3.1).
        barrier::full();
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

    /// Enables kicks, and looks again. Returns whether chains wait already.
    pub(super) fn arm(&mut self, log: Option<&DirtyLog>) -> bool {
        let area = if self.event_idx {
            u32::from(self.fetch.at) | u32::from(self.fetch.wrap) << 15 | u32::from(AREA_DESC) << 16
        } else {
            u32::from(AREA_ENABLE) << 16
        };
        self.device.store32(0, area, Ordering::Relaxed);
        if let Some(log) = log {
            log.mark(self.device.log_addr(), 4);
        }
        // A full barrier pairs with the driver's barrier between its descriptor flags and its look at this
        // area (§2.8.21.3.1).
        barrier::full();
        self.waiting()
    }

    /// Disables kicks.
    pub(super) fn disarm(&mut self, log: Option<&DirtyLog>) {
        self.device
            .store32(0, u32::from(AREA_DISABLE) << 16, Ordering::Relaxed);
        if let Some(log) = log {
            log.mark(self.device.log_addr(), 4);
        }
    }
}
