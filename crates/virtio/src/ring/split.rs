//! The split layout (virtio 1.2 §2.7), device side.
//!
//! Shared lines: the available index is read when all that it named last time has been taken; the used ring and its index are
//! written once per burst.

use super::chain::{Direction, Rules, UsedBatch, Window};
use super::config::{Areas, QueueConfig};
use super::desc::{self, F_INDIRECT, F_NEXT, RawDesc};
use super::{Features, RingError, split_event_passed};
use crate::mem::{Claim, DirtyLog, GuestMemory, HostRange};
use core::sync::atomic::{Ordering, fence};

const NO_INTERRUPT: u16 = 1; // avail.flags
const NO_NOTIFY: u16 = 1; // used.flags
const IDX: usize = 2;
const RING: usize = 4;

#[derive(Debug)]
pub(super) struct Split {
    desc: HostRange,
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
}

impl Split {
    pub(super) fn new(cfg: &QueueConfig, areas: Areas, direction: Direction) -> Self {
        let start = cfg.start.index;
        Self {
            desc: areas.desc,
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
        }
    }
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }
    pub(super) fn position(&self) -> u16 {
        self.done
    }
    /// Forgets what was taken and not used.
    pub(super) fn rewind(&mut self) {
        self.fetch = self.done;
        self.seen = self.done;
    }

    /// How many chains wait; looks at the shared index only when none is known.
    fn waiting(&mut self) -> Result<u16, RingError> {
        if self.seen == self.fetch {
            // Acquire pairs with the driver's release of `avail.idx` (§2.7.13.3): the entries and descriptors that it covers
            // are visible to the loads below.
            let index = Claim::new(self.avail.load16(IDX, Ordering::Acquire));
            let taken = self.fetch.wrapping_sub(self.done);
            // §2.7.6: at most `size` chains between used and available, and none taken back.
            let n = index
                .ahead_of(self.fetch, self.size.saturating_sub(taken))
                .map_err(|index| RingError::AvailJump {
                    index,
                    used: self.done,
                })?;
            self.seen = self.fetch.wrapping_add(n);
        }
        Ok(self.seen.wrapping_sub(self.fetch))
    }

    /// Takes up to `max` chains into `window`. What was taken before an error stays.
    pub(super) fn fetch(
        &mut self,
        mem: &GuestMemory,
        max: usize,
        window: &mut Window,
    ) -> Result<(), RingError> {
        let n = usize::from(self.waiting()?).min(max);
        for i in 1..n.min(5) {
            // Entries are usually consecutive; the processor follows by itself after the first lines.
            self.desc
                .prefetch(self.slot(self.fetch.wrapping_add(i as u16)) * desc::SIZE);
        }
        for _ in 0..n {
            if window.is_full() {
                break;
            }
            // Relaxed: ordered by the Acquire load of the index in `waiting`.
            let head = Claim::new(
                self.avail
                    .load16(RING + 2 * self.slot(self.fetch), Ordering::Relaxed),
            );
            let head = head.below(self.size).map_err(RingError::Head)?;
            self.chain(mem, head, window)?;
            self.fetch = self.fetch.wrapping_add(1);
        }
        Ok(())
    }

    #[inline]
    fn chain(&self, mem: &GuestMemory, head: u16, window: &mut Window) -> Result<(), RingError> {
        let mut walk = window.begin(mem, self.rules);
        let mut at = head;
        for _ in 0..self.size {
            let d = RawDesc::load(&self.desc, usize::from(at) * desc::SIZE);
            let flags = d.split_flags();
            if flags & F_INDIRECT != 0 {
                walk.indirect(&d, flags)?;
                walk.finish(head, 1);
                return Ok(());
            }
            walk.buffer(&d, flags)?;
            if flags & F_NEXT == 0 {
                walk.finish(head, 1);
                return Ok(());
            }
            at = d.split_next().below(self.size).map_err(RingError::Next)?;
        }
        Err(RingError::ChainTooLong)
    }

    /// Gives `batch` back to the driver, in order.
    pub(super) fn publish(&mut self, batch: &UsedBatch, log: Option<&DirtyLog>) {
        // §2.7.9: with IN_ORDER one entry, at the batch's first place, names its last chain; the driver takes the others to be used
        // completely, which is true only where the device writes nothing.
        let short = self.in_order && self.rules.direction == Direction::FromGuest;
        let entries = if short {
            batch.get(batch.len().saturating_sub(1)..)
        } else {
            batch.get(..)
        };
        for (i, used) in entries.unwrap_or_default().iter().enumerate() {
            let at = RING + 8 * self.slot(self.done.wrapping_add(i as u16));
            // Relaxed: the Release store of the index below orders both.
            self.used.store32(at, u32::from(used.id), Ordering::Relaxed);
            self.used.store32(at + 4, used.len, Ordering::Relaxed);
            if let Some(log) = log {
                log.mark(self.used.log_addr() + at as u64, 8);
            }
        }
        self.done = self.done.wrapping_add(batch.len() as u16);
        // Release pairs with the driver's acquire of `used.idx` (§2.7.14): who sees the index sees the entries and the bytes
        // that were copied into the buffers.
        self.used.store16(IDX, self.done, Ordering::Release);
        if let Some(log) = log {
            log.mark(self.used.log_addr() + IDX as u64, 2);
        }
    }

    /// Whether the driver wants to hear of what was published.
    pub(super) fn needs_call(&mut self) -> bool {
        // SeqCst pairs with the driver's barrier between writing `used_event` (or the flag) and looking at `used.idx` again
        // (§2.7.7.1): either it sees the index, or this sees its wish.
        fence(Ordering::SeqCst);
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
            None => true, // nothing is known of what the driver saw: the safe error is to notify
        }
    }

    /// Asks for kicks, and looks again. Returns whether chains wait already.
    pub(super) fn arm(&mut self) -> Result<bool, RingError> {
        if self.event_idx {
            let at = RING + 8 * usize::from(self.size);
            self.used.store16(at, self.fetch, Ordering::Relaxed);
        } else {
            self.used.store16(0, 0, Ordering::Relaxed);
        }
        // SeqCst pairs with the driver's barrier between writing `avail.idx` and reading `avail_event` (§2.7.13.4.1).
        fence(Ordering::SeqCst);
        Ok(self.waiting()? > 0)
    }

    /// Asks for no kicks. With EVENT_IDX the threshold that was left behind does that by itself (§2.7.10).
    pub(super) fn disarm(&mut self) {
        if !self.event_idx {
            self.used.store16(0, NO_NOTIFY, Ordering::Relaxed);
        }
    }
}
