//! The split layout (virtio 1.2 §2.7), device side.
//!
//! Shared lines: the available index is read when fewer chains are known than a call may want. Entries, then
//! descriptors are read for a whole burst, so that their lines come at the same time. The used ring and its
//! index are written once per burst.

use super::config::{Areas, QueueConfig};
use super::desc::{F_INDIRECT, F_NEXT, F_WRITE, RawDesc};
use super::limits::{AHEAD, MISSES};
use super::queue::Miss;
use super::resubmit::Resubmit;
use super::walk::{Direction, Rules, Scratch, near_piece};
use super::window::{Used, Window};
use super::{Features, RingError, split_event_passed};
use crate::mem::{Claim, DirtyLog, Fields, GuestMemory, HostRange, Near};
use core::sync::atomic::Ordering;
use heddle_sync::barrier;

const NO_INTERRUPT: u16 = 1; // avail.flags
const NO_NOTIFY: u16 = 1; // used.flags
const IDX: usize = 2;
const RING: usize = 4;
/// Descriptors on a line.
const DESCS_PER_LINE: u16 = 4;
/// Used elements on a line.
const USED_PER_LINE: u16 = 8;

#[derive(Debug)]
pub(super) struct Split {
    desc: Fields<16>,
    heads: Fields<2>,
    elements: Fields<8>,
    avail: HostRange,
    used: HostRange,
    size: u16,
    rules: Rules,
    event_idx: bool,
    in_order: bool,
    notify_on_empty: bool,
    /// Next entry of the available ring to take.
    fetch: u16,
    /// The available index as last read and checked.
    seen: u16,
    /// The used index as last written.
    done: u16,
    /// The used index when the driver was last notified, or decided against; `None` at the start.
    signalled: Option<u16>,
    /// Chains that come before the chains of the available ring.
    resubmit: Option<Box<Resubmit>>,
}

impl Split {
    pub(super) fn new(
        cfg: &QueueConfig,
        areas: Areas,
        direction: Direction,
        resubmit: Option<Resubmit>,
    ) -> Self {
        let start = cfg.start.index;
        Self {
            desc: Fields::new(&areas.desc, 0, cfg.size),
            heads: Fields::new(&areas.driver, RING, cfg.size),
            elements: Fields::new(&areas.device, RING, cfg.size),
            avail: areas.driver,
            used: areas.device,
            size: cfg.size,
            rules: Rules {
                direction,
                indirect: cfg.features.contains(Features::INDIRECT_DESC),
                packed: false,
            },
            event_idx: cfg.features.contains(Features::EVENT_IDX),
            in_order: cfg.features.contains(Features::IN_ORDER),
            notify_on_empty: cfg.features.contains(Features::NOTIFY_ON_EMPTY),
            fetch: start,
            seen: start,
            done: start,
            signalled: None,
            resubmit: resubmit.filter(|r| !r.is_over(start)).map(Box::new),
        }
    }
    /// Whether chains are in flight that a back end before this one had taken.
    pub(super) fn resubmits(&self) -> bool {
        self.resubmit.is_some()
    }
    pub(super) fn position(&self) -> u16 {
        self.done
    }
    /// Forgets the chains that were taken and not used.
    pub(super) fn rewind(&mut self) {
        self.fetch = self.done;
        self.seen = self.done;
    }

    /// The number of chains that are known to wait; looks at the shared index when fewer than `want` are.
    #[inline]
    fn waiting(&mut self, want: u16) -> Result<u16, RingError> {
        if self.seen.wrapping_sub(self.fetch) < want {
            // Acquire pairs with the driver's release of `avail.idx` (§2.7.13.3): the entries and descriptors
            // that it covers are visible to the loads below.
            let index = Claim::new(self.avail.load16(IDX, Ordering::Acquire));
            // §2.7.6: at most `size` chains between used and available, and none taken back.
            let most = self.size.saturating_sub(self.seen.wrapping_sub(self.done));
            let n = index
                .ahead_of(self.seen, most)
                .map_err(|index| RingError::AvailJump {
                    index,
                    used: self.done,
                })?;
            self.seen = self.seen.wrapping_add(n);
        }
        Ok(self.seen.wrapping_sub(self.fetch))
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
        let mut left = usize::from(self.waiting(max.min(usize::from(self.size)) as u16)?)
            .min(max)
            .min(window.room());
        if self.resubmit.is_some() {
            return self.fetch_again(mem, left, window, scratch);
        }
        loop {
            let near = mem.near(scratch.hint, self.rules.direction.access());
            let long_way = !WRITE && scratch.samples(mem);
            let (done, odd) = self.plain::<NEAR, WRITE>(&near, left, long_way, window)?;
            left -= done;
            let Some((head, d)) = odd else { break };
            if d.split_flags() & F_INDIRECT != 0 {
                self.hint_table(self.fetch.wrapping_add(4), &near);
            }
            if window.is_fragmented() || scratch.is_spent() {
                break;
            }
            self.chain(mem, head, d, window, scratch)?;
            window.prefetch_last(NEAR, WRITE);
            self.fetch = self.fetch.wrapping_add(1);
            left -= 1;
        }
        self.hint_next();
        Ok(())
    }

    /// Takes up to `n` chains of one plain descriptor in the region `near`. Returns how many, and the head
    /// and first descriptor of the one behind them, where that is another kind of chain, or `long_way`.
    #[inline(always)]
    fn plain<const NEAR: usize, const WRITE: bool>(
        &mut self,
        near: &Near,
        n: usize,
        long_way: bool,
        window: &mut Window,
    ) -> Result<(usize, Option<(u16, RawDesc)>), RingError> {
        let (heads, desc, size, from) = (self.heads.view(), self.desc.view(), self.size, self.fetch);
        let plain = if WRITE { F_WRITE } else { 0 };
        let (mut odd, mut wrong) = (None, None);
        let done = window.push_singles(n, |i| {
            // Unordered: comes after the Acquire load of the index in `waiting`.
            let head = Claim::new(heads.load(from.wrapping_add(i as u16)));
            let head = match head.below(size) {
                Ok(head) => head,
                Err(head) => {
                    wrong = Some(head);
                    return None;
                }
            };
            let d = RawDesc::from_words(desc.load(head));
            match near_piece::<WRITE>(near, &d) {
                Some(piece) if !long_way && d.split_flags() & (F_NEXT | F_INDIRECT | F_WRITE) == plain => {
                    piece.prefetch(NEAR, WRITE);
                    Some((piece, head))
                }
                _ => {
                    odd = Some((head, d));
                    None
                }
            }
        });
        self.fetch = from.wrapping_add(done as u16);
        match wrong {
            None => Ok((done, odd)),
            Some(head) => Err(RingError::Head(head)),
        }
    }

    /// Like [`Split::fetch`] of `n` chains that wait, while some of them do not come from the available ring.
    #[cold]
    fn fetch_again(
        &mut self,
        mem: &GuestMemory,
        n: usize,
        window: &mut Window,
        scratch: &mut Scratch,
    ) -> Result<(), RingError> {
        for _ in 0..n {
            let again = self.resubmit.as_ref().and_then(|r| r.head(self.fetch));
            let head = Claim::new(again.unwrap_or_else(|| self.heads.view().load(self.fetch)));
            let head = head.below(self.size).map_err(RingError::Head)?;
            if window.is_fragmented() || scratch.is_spent() {
                break;
            }
            let first = RawDesc::from_words(self.desc.view().load(head));
            self.chain(mem, head, first, window, scratch)?;
            self.fetch = self.fetch.wrapping_add(1);
        }
        Ok(())
    }

    /// Prefetches the descriptors of the known chains that the next calls will take, and the entries of the
    /// available ring behind them. Drivers mostly hand descriptors out in order, so one of each line's worth
    /// is enough.
    #[inline]
    fn hint_next(&self) {
        let known = self.seen.wrapping_sub(self.fetch);
        let (heads, desc) = (self.heads.view(), self.desc.view());
        let mut i = 0;
        while i < known.min(AHEAD as u16) {
            desc.prefetch(heads.load(self.fetch.wrapping_add(i)));
            i += DESCS_PER_LINE;
        }
        if known > 2 * AHEAD as u16 {
            heads.prefetch(self.fetch.wrapping_add(2 * AHEAD as u16));
        }
    }

    /// Prefetches an indirect table that will be read soon: the table of available entry `at`, if it is known
    /// to wait. No decision depends on the values read here.
    fn hint_table(&self, at: u16, near: &Near) {
        if at.wrapping_sub(self.fetch) < self.seen.wrapping_sub(self.fetch) {
            let d = RawDesc::from_words(self.desc.view().load(self.heads.view().load(at)));
            if let Some(piece) = near.piece(d.addr, d.len) {
                piece.prefetch(1, false);
            }
        }
    }

    /// Adds the unreachable addresses of the chains behind the next one that are known to wait.
    #[cold]
    pub(super) fn look_ahead(&self, mem: &GuestMemory, misses: &mut Vec<Miss>) {
        let known = self.seen.wrapping_sub(self.fetch);
        for i in 1..known.min(MISSES) {
            let head = self.heads.view().load(self.fetch.wrapping_add(i));
            if head < self.size {
                let d = RawDesc::from_words(self.desc.view().load(head));
                misses.extend(Miss::of(mem, &d, d.split_flags(), self.rules.direction));
            }
        }
    }

    /// Takes a chain that begins with `first` and may have any shape.
    fn chain(
        &self,
        mem: &GuestMemory,
        head: u16,
        first: RawDesc,
        window: &mut Window,
        scratch: &mut Scratch,
    ) -> Result<(), RingError> {
        let mut walk = scratch.begin(mem, self.rules);
        let mut d = first;
        for _ in 0..self.size {
            let flags = d.split_flags();
            if flags & F_INDIRECT != 0 {
                walk.indirect(&d, flags)?;
                walk.finish(window, head, 1);
                return Ok(());
            }
            walk.buffer(&d, flags)?;
            if flags & F_NEXT == 0 {
                walk.finish(window, head, 1);
                return Ok(());
            }
            let next = d.split_next().below(self.size).map_err(RingError::Next)?;
            d = RawDesc::from_words(self.desc.view().load(next));
        }
        Err(RingError::ChainTooLong)
    }

    /// Prefetches the lines that giving `n` chains back will write, and the index that the next look will
    /// read.
    #[inline]
    pub(super) fn prepare(&self, n: usize) {
        self.used.prefetch_write(IDX);
        let mut at = 0;
        while at < n as u16 {
            self.elements.prefetch_write(self.done.wrapping_add(at));
            at += USED_PER_LINE;
        }
    }

    /// Gives used chains back to the driver, in order.
    #[inline]
    pub(super) fn publish(
        &mut self,
        given: impl ExactSizeIterator<Item = Used> + Clone,
        log: Option<&DirtyLog>,
    ) {
        let n = given.len() as u16;
        if let Some(r) = &self.resubmit {
            r.begin(given.clone());
        }
        let batch = given.clone();
        // §2.7.9: with IN_ORDER one entry, at the batch's first place, names its last chain. The driver takes
        // the others to be used completely, which is true only where the device writes nothing.
        let (elements, mut at) = (self.elements.view(), self.done);
        let mut put = |used: Used| {
            elements.put(at, used.id.into(), used.len);
            at = at.wrapping_add(1);
        };
        if self.in_order && self.rules.direction == Direction::FromGuest {
            given.last().into_iter().for_each(put);
        } else {
            given.for_each(&mut put);
        }
        if log.is_some() {
            self.mark_elements(log, at);
        }
        self.done = self.done.wrapping_add(n);
        // Release pairs with the driver's acquire of `used.idx` (§2.7.14). A driver that sees the index sees
        // the entries and the bytes that were copied into the buffers.
        self.used.store16(IDX, self.done, Ordering::Release);
        self.mark(log, IDX, 2);
        if let Some(r) = &self.resubmit {
            r.commit(batch, self.done);
            if r.is_over(self.done) {
                self.resubmit = None;
            }
        }
    }

    /// Whether the driver wants a notification of the published chains.
    pub(super) fn needs_call(&mut self) -> bool {
        // A full barrier pairs with the driver's barrier between writing `used_event` (or the flag) and
        // looking at `used.idx` again (§2.7.7.1). Either the driver sees the index, or this sees its wish.
        barrier::full();
        let new = self.done;
        if self.notify_on_empty && self.fetch == new && self.avail.load16(IDX, Ordering::Relaxed) == new {
            self.signalled = Some(new);
            return true;
        }
        if !self.event_idx {
            return self.avail.load16(0, Ordering::Relaxed) & NO_INTERRUPT == 0;
        }
        let event = self
            .avail
            .load16(RING + 2 * usize::from(self.size), Ordering::Relaxed);
        match self.signalled.replace(new) {
            Some(old) => split_event_passed(event, new, old),
            None => true, // the driver's state is unknown: the safe error is to notify
        }
    }

    /// Enables kicks, and looks again. Returns whether chains wait already.
    pub(super) fn arm(&mut self, log: Option<&DirtyLog>) -> Result<bool, RingError> {
        if self.event_idx {
            let at = RING + 8 * usize::from(self.size);
            self.used.store16(at, self.fetch, Ordering::Relaxed);
            self.mark(log, at, 2);
        } else {
            self.used.store16(0, 0, Ordering::Relaxed);
            self.mark(log, 0, 2);
        }
        // A full barrier pairs with the driver's barrier between writing `avail.idx` and reading
        // `avail_event` (§2.7.13.4.1).
        barrier::full();
        Ok(self.waiting(1)? > 0)
    }

    /// Disables kicks. With EVENT_IDX the old threshold does that by itself (§2.7.10).
    pub(super) fn disarm(&mut self, log: Option<&DirtyLog>) {
        if !self.event_idx {
            self.used.store16(0, NO_NOTIFY, Ordering::Relaxed);
            self.mark(log, 0, 2);
        }
    }

    /// Tells the dirty log of the used elements from `done` up to `end`.
    #[cold]
    fn mark_elements(&self, log: Option<&DirtyLog>, end: u16) {
        let mut at = self.done;
        while at != end {
            self.mark(log, RING + self.elements.offset(at), 8);
            at = at.wrapping_add(1);
        }
    }
    /// Marks `len` bytes at `off` of the used ring in the dirty log.
    fn mark(&self, log: Option<&DirtyLog>, off: usize, len: u64) {
        if let Some(log) = log {
            log.mark(self.used.log_addr() + off as u64, len);
        }
    }
}
