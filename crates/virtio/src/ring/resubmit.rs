//! Chains that a back end had taken of a split ring and not given back, by number: vhost-user's inflight area
//! ("Inflight I/O tracking", split).
//!
//! **Problem.** A back end may give chains back in another order than it took them. If it dies, the ring's
//! indices do not show which chains are still to be done. Some of those between the used and the available
//! index are done, and others before them are not. The area lists them, by head descriptor, with a counter
//! for the order in which they were taken.
//!
//! **How.** The chains in flight come first, in the order of their counters, in the place of the next entries
//! of the available ring. Behind them the ring continues (the specification's `last_avail_idx = used_idx +
//! inflight_num`). Until all of them are given back, each batch is noted in the area as the specification
//! says. So another death in between loses nothing. From then on this back end's queues are in order and the
//! area stays clear.
//!
//! **Safe error.** Everything in the area is a claim. Heads are bounded by the ring's size and come once each
//! by construction. If there are more of them than the ring has outstanding, they contradict the ring, and
//! the area is not followed.
//!
//! Costs: a look at one field per call; more only while such chains are in flight.

use super::RingError;
use super::config::QueueConfig;
use super::window::Used;
use crate::mem::{GuestMemory, HostRange, MemError};
use core::sync::atomic::{Ordering, compiler_fence};
use heddle_sys::Mapping;
use std::sync::Arc;

const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
/// `struct DescStateSplit`: in flight (a byte, and five of padding), next, counter.
const STATES: usize = 16;
const STATE: usize = 16;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// One split ring's region of the area.
#[derive(Clone, Debug)]
pub struct SplitRecord {
    area: HostRange,
    size: u16,
}

impl SplitRecord {
    /// Bytes of the region of a ring of `size` entries.
    pub const fn len(size: u16) -> u64 {
        STATES as u64 + STATE as u64 * size as u64
    }

    /// The region of a ring of `size` entries at `offset` of `map`.
    ///
    /// # Errors
    /// [`MemError::BeyondMapping`], [`MemError::Misaligned`].
    pub fn new(map: &Arc<Mapping>, offset: u64, size: u16) -> Result<Self, MemError> {
        let area = HostRange::of(Arc::clone(map), offset, Self::len(size), 8)?;
        Ok(Self { area, size })
    }

    /// The chains to be done again of the ring `cfg`, which starts at its used index. A region that was never
    /// used, or that is another ring's, is begun. `None`: no chain is in flight by number.
    ///
    /// # Errors
    /// The errors of setting the queue up.
    pub fn recover(&self, cfg: &QueueConfig, mem: &GuestMemory) -> Result<Option<Resubmit>, RingError> {
        let areas = cfg.areas(mem)?;
        // Relaxed here and below: the writers were another incarnation of the device, which has ended.
        let used = areas.device.load16(2, Ordering::Relaxed);
        let outstanding = areas.driver.load16(2, Ordering::Relaxed).wrapping_sub(used);
        let known = self.load(VERSION) == 1 && self.load(DESC_NUM) == self.size;
        if known {
            self.settle(used);
        } else {
            self.clear();
        }
        let mut heads: Vec<(u64, u16)> = (0..self.size)
            .filter(|&head| self.in_flight(head))
            .map(|head| (self.area.load64(Self::state(head) + COUNTER), head))
            .collect();
        if heads.len() > usize::from(outstanding) {
            self.clear();
            heads.clear();
        }
        self.area.store16(DESC_NUM, self.size, Ordering::Relaxed);
        self.area.store16(USED_IDX, used, Ordering::Relaxed);
        self.area.store16(VERSION, 1, Ordering::Relaxed);
        heads.sort_unstable();
        Ok((!heads.is_empty()).then(|| Resubmit {
            record: self.clone(),
            start: used,
            heads: heads.into_iter().map(|(_, head)| head).collect(),
        }))
    }

    /// The last batch was given back, but perhaps not marked so ("if the value of used_idx does not match":
    /// step 1).
    fn settle(&self, used: u16) {
        let count = used.wrapping_sub(self.load(USED_IDX));
        if count > self.size {
            return; // not of this life of the ring
        }
        let mut head = self.load(LAST_BATCH_HEAD);
        for _ in 0..count {
            if head >= self.size {
                return;
            }
            self.set_in_flight(head, false);
            head = self.area.load16(Self::state(head) + NEXT, Ordering::Relaxed);
        }
    }

    fn clear(&self) {
        for head in 0..self.size {
            self.set_in_flight(head, false);
        }
    }
    fn load(&self, at: usize) -> u16 {
        self.area.load16(at, Ordering::Relaxed)
    }
    fn state(head: u16) -> usize {
        STATES + STATE * usize::from(head)
    }
    fn in_flight(&self, head: u16) -> bool {
        self.load(Self::state(head)) & 0xff == 1
    }
    fn set_in_flight(&self, head: u16, on: bool) {
        self.area
            .store16(Self::state(head), u16::from(on), Ordering::Relaxed);
    }
}

/// Chains that come before the chains of the available ring.
#[derive(Clone, Debug)]
pub struct Resubmit {
    record: SplitRecord,
    /// The used index at which the first of them comes.
    start: u16,
    /// Head descriptors in order, at most as many as the ring has.
    heads: Vec<u16>,
}

impl Resubmit {
    /// The head in the place of available entry `at`, if it is one of these.
    pub(super) fn head(&self, at: u16) -> Option<u16> {
        self.heads.get(usize::from(at.wrapping_sub(self.start))).copied()
    }
    /// Whether all of them are given back when the used index is `done`.
    pub(super) fn is_over(&self, done: u16) -> bool {
        usize::from(done.wrapping_sub(self.start)) >= self.heads.len()
    }
    /// The number of chains.
    pub fn len(&self) -> usize {
        self.heads.len()
    }
    /// Never: then there is no such list.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
    /// `batch` is about to be given back.
    #[cold]
    pub(super) fn begin(&self, batch: impl Iterator<Item = Used>) {
        let r = &self.record;
        for head in batch.map(|u| u.id).filter(|&head| head < r.size) {
            r.area.store16(
                SplitRecord::state(head) + NEXT,
                r.load(LAST_BATCH_HEAD),
                Ordering::Relaxed,
            );
            r.area.store16(LAST_BATCH_HEAD, head, Ordering::Relaxed);
        }
        // The reader is another process, after this one has ended: see [`super::Record::begin`].
        compiler_fence(Ordering::SeqCst);
    }
    /// `batch` is given back; the used index is `done` now.
    #[cold]
    pub(super) fn commit(&self, batch: impl Iterator<Item = Used>, done: u16) {
        compiler_fence(Ordering::SeqCst);
        for head in batch.map(|u| u.id).filter(|&head| head < self.record.size) {
            self.record.set_in_flight(head, false);
        }
        compiler_fence(Ordering::SeqCst);
        self.record.area.store16(USED_IDX, done, Ordering::Relaxed);
    }
}
