//! A packed ring's position, kept where it survives this process.
//!
//! **Problem.** A packed ring does not contain its device's position: a chain that was used leaves
//! descriptors behind that look available. And giving chains back overwrites their descriptors. So a device
//! that dies in the middle can neither take them again nor know which are done.
//!
//! **How.** Before a batch of used chains is written, the batch and both positions are noted; afterwards the
//! new position alone. A device that finds an unfinished batch writes it again: the same bytes once more, or
//! the missing ones. The notes are in shared memory: a file, or vhost-user's inflight area, whose packed
//! layout the fields follow where they mean the same. So a killed process leaves them in the order in which
//! they were written.
//!
//! **Safe error.** A wrong position stops a queue for good or gives a guest buffers twice. So the ring's
//! content is compared with it ([`Record::recover`]), and if they disagree there is no result.
//!
//! Costs: one store per chain and two per batch, to lines that no other process looks at.

use super::config::QueueConfig;
use super::desc::{self, F_AVAIL, F_USED, FLAGS};
use super::limits::WINDOW;
use super::window::{Used, UsedBatch};
use super::{Position, RingError};
use crate::mem::{GuestMemory, HostRange, MemError};
use core::sync::atomic::{Ordering, compiler_fence};
use heddle_sys::Mapping;
use std::sync::Arc;

/// `version`: zero is a record that was never written.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
/// `used_idx`, `old_used_idx`, `used_wrap_counter`, `old_used_wrap_counter` and two bytes of padding, as one
/// word: they change together.
const POSITIONS: usize = 16;
/// In the layout's padding: the slot whose flags were written last, its wrap counter in bit 15, bit 31 set.
pub(super) const LAST: usize = 24;
const KNOWN: u32 = 1 << 31;

/// The layout of the batch behind the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLayout {
    /// vhost-user's `QueueRegionPacked`: in the address fields of its descriptor states, whose in-flight
    /// marks stay clear.
    Inflight,
    /// One after the other, up to the maximum of a batch.
    Dense,
}

impl RecordLayout {
    fn entry(self, i: usize) -> usize {
        match self {
            Self::Inflight => 32 + 32 * i + 24,
            Self::Dense => 32 + 8 * i,
        }
    }
    /// Bytes of the record of a ring of `size` entries.
    pub fn len(self, size: u16) -> u64 {
        match self {
            Self::Inflight => 32 + 32 * u64::from(size),
            Self::Dense => 32 + 8 * (WINDOW as u64).min(u64::from(size)),
        }
    }
}

/// The information of a record about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// There is no record of this ring.
    Nothing,
    /// The ring is here.
    At(Position),
    /// The ring's content is not possible with this record: the driver was reset meanwhile, or it is just
    /// writing to the ring. In the latter case it is right a moment later.
    Contradicted,
}

/// The record of one ring.
#[derive(Clone, Debug)]
pub struct Record {
    pub(super) area: HostRange,
    layout: RecordLayout,
    size: u16,
}

/// The noted positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    /// After the batch.
    pub(super) new: Position,
    /// Before it; equal to `new` when it is finished.
    pub(super) old: Position,
}

impl Record {
    /// The record of a ring of `size` entries, at `offset` of `map`.
    ///
    /// # Errors
    /// [`MemError::BeyondMapping`], [`MemError::Misaligned`].
    pub fn new(map: &Arc<Mapping>, offset: u64, size: u16, layout: RecordLayout) -> Result<Self, MemError> {
        let area = HostRange::of(Arc::clone(map), offset, layout.len(size), 8)?;
        Ok(Self { area, layout, size })
    }

    /// Begins anew: the ring is at `at`.
    pub fn start(&self, at: Position) {
        self.area.store32(LAST, 0, Ordering::Relaxed);
        self.area.store16(DESC_NUM, self.size, Ordering::Relaxed);
        self.note(Noted { new: at, old: at });
        self.area.store16(VERSION, 1, Ordering::Relaxed);
    }
    /// Whether a device began it, for a ring of this size.
    pub fn is_started(&self) -> bool {
        self.area.load16(VERSION, Ordering::Relaxed) == 1
            && self.area.load16(DESC_NUM, Ordering::Relaxed) == self.size
    }

    /// Whether the ring is noted to be at `at`, with nothing unfinished.
    pub fn is_at(&self, at: Position) -> bool {
        self.is_started() && self.noted() == Noted { new: at, old: at }
    }

    /// The position at which the ring `cfg` continues after a device that kept this record died. It is the
    /// start of a queue that is given this record. Looks once; the driver may just be writing to the ring
    /// ([`Recovery::Contradicted`]).
    ///
    /// # Errors
    /// The errors of setting the queue up.
    pub fn recover(&self, cfg: &QueueConfig, mem: &GuestMemory) -> Result<Recovery, RingError> {
        let ring = cfg.areas(mem)?.desc;
        if !self.is_started() || cfg.size != self.size || !cfg.packed() {
            return Ok(Recovery::Nothing);
        }
        let noted = self.noted();
        if noted.new.index >= self.size || noted.old.index >= self.size {
            return Ok(Recovery::Nothing);
        }
        Ok(if self.agrees(&ring, noted) {
            Recovery::At(noted.old)
        } else {
            Recovery::Contradicted
        })
    }

    /// Whether the flags of all slots are possible when the device is there.
    fn agrees(&self, ring: &HostRange, noted: Noted) -> bool {
        let flags = |slot: u16| {
            let f = ring.load16(usize::from(slot) * desc::SIZE + FLAGS, Ordering::Relaxed);
            (f & F_AVAIL != 0, f & F_USED != 0)
        };
        let open = noted.old != noted.new;
        let published = open && flags(noted.old.index).1 == noted.old.wrap;
        let at = if published { noted.new } else { noted.old };
        // The slots of a batch that is half written may hold anything.
        let half = if open && !published {
            distance(noted.old, noted.new, self.size)
        } else {
            0
        };
        let last = if published {
            Some(noted.old)
        } else {
            let last = self.area.load32(LAST, Ordering::Relaxed);
            (last & KNOWN != 0).then_some(Position {
                index: (last & 0x7fff) as u16,
                wrap: last & 0x8000 != 0,
            })
        };
        // Used, and perhaps made available again since: its used flag stays as the device wrote it.
        if last.is_some_and(|p| p.index >= self.size || flags(p.index).1 != p.wrap) {
            return false;
        }
        // In order from the position on: slots that are available, then slots that are not (virtio 1.2
        // §2.8.1). No slot has been used in the lap in which the device reaches it next.
        let mut ended = false;
        for i in half..u32::from(self.size) {
            let slot = u32::from(at.index) + i;
            let (slot, lap) = if slot >= u32::from(self.size) {
                (slot - u32::from(self.size), !at.wrap)
            } else {
                (slot, at.wrap)
            };
            let (avail, used) = flags(slot as u16);
            if avail == lap && used == lap {
                return false;
            }
            let available = avail == lap;
            if available && ended {
                return false;
            }
            ended |= !available;
        }
        true
    }

    /// The batch that was not finished when the ring was at `at`.
    pub(super) fn unfinished(&self, at: Position) -> Option<UsedBatch> {
        let noted = self.noted();
        let sound = noted.new.index < self.size && noted.old.index < self.size;
        if noted.old != at || noted.new == at || !sound {
            return None;
        }
        let slots = distance(noted.old, noted.new, self.size);
        let mut batch = UsedBatch::new();
        let mut sum = 0;
        while sum < slots && !batch.is_full() && batch.len() < usize::from(self.size) {
            let e = self.area.load64(self.layout.entry(batch.len()));
            let used = Used {
                id: e as u16,
                slots: ((e >> 16) as u16).clamp(1, self.size),
                len: (e >> 32) as u32,
            };
            sum += u32::from(used.slots);
            batch.push(used);
        }
        (sum == slots).then_some(batch)
    }

    /// `batch` is about to be written; it takes the ring from `old` on by its slots, which `to` places.
    #[inline]
    pub(super) fn begin(
        &self,
        batch: impl Iterator<Item = Used>,
        old: Position,
        to: impl FnOnce(u16) -> Position,
    ) {
        let mut slots = 0_u16; // at most the ring's size in all
        for (i, u) in batch.enumerate() {
            slots = slots.wrapping_add(u.slots);
            let e = u64::from(u.id) | u64::from(u.slots) << 16 | u64::from(u.len) << 32;
            self.area.store64(self.layout.entry(i), e);
        }
        // The reader is another process, after this one has ended: only the order of this thread's stores
        // counts, which the compiler must keep. (A processor's own order does not outlive the kernel's switch
        // away from the thread.)
        compiler_fence(Ordering::SeqCst);
        let new = to(slots);
        self.note(Noted { new, old });
        compiler_fence(Ordering::SeqCst);
    }
    /// The batch is written; the flags of slot `last` were the last of it.
    #[inline]
    pub(super) fn commit(&self, new: Position, last: Position) {
        compiler_fence(Ordering::SeqCst);
        let last = KNOWN | u32::from(last.wrap) << 15 | u32::from(last.index);
        self.area.store32(LAST, last, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.note(Noted { new, old: new });
    }

    pub(super) fn note(&self, n: Noted) {
        let word = u64::from(n.new.index)
            | u64::from(n.old.index) << 16
            | u64::from(n.new.wrap) << 32
            | u64::from(n.old.wrap) << 40;
        self.area.store64(POSITIONS, word);
    }
    pub(super) fn noted(&self) -> Noted {
        let word = self.area.load64(POSITIONS);
        Noted {
            new: Position {
                index: word as u16,
                wrap: word >> 32 & 1 != 0,
            },
            old: Position {
                index: (word >> 16) as u16,
                wrap: word >> 40 & 1 != 0,
            },
        }
    }
}

/// Slots from `from` to `to`, at most one lap.
fn distance(from: Position, to: Position, size: u16) -> u32 {
    let lap = if from.wrap == to.wrap { 0 } else { u32::from(size) };
    (lap + u32::from(to.index)).saturating_sub(u32::from(from.index))
}
