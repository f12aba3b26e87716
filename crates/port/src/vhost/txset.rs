//! The guest's receive rings of one port, shared by all workers.
//!
//! **Problem.** A guest has as many receive rings as it likes, the switch has its own number of workers, and the session changes
//! the rings at any time.
//!
//! **How.** Worker *w* of the switch sends by running ring *w mod n* (the order of the rings): with as many rings as workers each
//! has its own, with fewer they share. The choice is made anew when a ring starts, stops, is enabled or disabled
//! ([`TxSet::turn`] changes then), never per packet.
//!
//! With `tx-steering=hash` a flow chooses its ring instead ([`super::spread`]), so that a guest with many rings is served by all of them
//! whatever the number of workers; a burst then takes a lock for each ring that it goes to.
//!
//! **Costs.** One lock per burst, uncontended unless workers share a ring. A worker that finds it taken spins for a while and waits
//! [`PATIENCE`] at most: its holder is another worker in the middle of a burst, or the session that swaps a ring; neither waits for
//! a guest.

use super::counts::TxCounts;
use super::takes::Takes;
use heddle_sys::EventFd;
use heddle_vhost_user::backend::Link;
use heddle_virtio::{DeviceTx, RingError};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Looks at a taken lock before waiting for it.
const SPINS: u32 = 2000;
/// Longest wait of a worker for another one.
const PATIENCE: Duration = Duration::from_millis(5);

/// A started ring and what belongs to it.
#[derive(Debug)]
pub(super) struct ToGuest {
    pub(super) ring: Box<DeviceTx>,
    /// Notifications of the guest.
    pub(super) call: Option<EventFd>,
    /// Told when the ring breaks.
    pub(super) err: Option<EventFd>,
    /// What need not be finished in software.
    pub(super) takes: Takes,
    /// For addresses behind an IOMMU.
    pub(super) link: Option<Link>,
    /// The failure that was told.
    pub(super) told: Option<RingError>,
}

/// One ring's place.
#[derive(Debug, Default)]
pub(super) struct TxCell {
    ring: Mutex<Option<ToGuest>>,
    /// A copy of [`ToGuest::told`] for those who must not wait for a worker.
    failure: Mutex<Option<RingError>>,
    pub(super) counts: TxCounts,
    /// Times that a worker found the ring taken by another.
    pub(super) contention: AtomicU64,
}

impl TxCell {
    /// The ring, for one burst. `None`: another worker does not come back.
    #[inline]
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Option<ToGuest>>> {
        match self.ring.try_lock() {
            Some(guard) => Some(guard),
            None => self.wait(),
        }
    }
    #[cold]
    fn wait(&self) -> Option<MutexGuard<'_, Option<ToGuest>>> {
        // Relaxed: a statistic.
        self.contention.fetch_add(1, Ordering::Relaxed);
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if let Some(guard) = self.ring.try_lock() {
                return Some(guard);
            }
        }
        self.ring.try_lock_for(PATIENCE)
    }
    /// Calls `change` on the started ring. `None`: there is no ring.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut ToGuest) -> T) -> Option<T> {
        self.ring.lock().as_mut().map(change)
    }
    /// Why the ring is stopped, if it is.
    pub(super) fn failure(&self) -> Option<RingError> {
        *self.failure.lock()
    }
    /// The ring broke, or works again.
    pub(super) fn set_failure(&self, failure: Option<RingError>) {
        *self.failure.lock() = failure;
    }
}

#[derive(Debug, Default)]
struct Places {
    cells: Vec<Arc<TxCell>>,
    /// Rings that are started and enabled, by index.
    running: Vec<usize>,
    down: bool,
    /// A flow decides which ring its packets take, not the worker.
    by_flow: bool,
}

/// All rings of a port.
#[derive(Debug)]
pub(super) struct TxSet {
    turn: AtomicU32,
    places: Mutex<Places>,
}

impl Default for TxSet {
    fn default() -> Self {
        Self {
            turn: AtomicU32::new(1),
            places: Mutex::default(),
        }
    }
}

impl TxSet {
    // -- the worker's side

    /// Changes when workers are to choose again. Zero is never its value.
    #[inline]
    pub(super) fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire) // pairs with the Release in `changed`
    }
    /// The ring of worker `worker`; returns also the turn that this answers.
    pub(super) fn choose(&self, worker: usize) -> (u32, Option<Arc<TxCell>>) {
        let p = self.places.lock();
        let turn = self.turn();
        if p.down || p.running.is_empty() {
            return (turn, None);
        }
        let cell = p.running.get(worker % p.running.len());
        (turn, cell.and_then(|i| p.cells.get(*i)).cloned())
    }

    /// All rings that run, where packets are spread over them by flow; empty where each worker has its ring.
    pub(super) fn spread(&self) -> Vec<Arc<TxCell>> {
        let p = self.places.lock();
        let running = p
            .running
            .iter()
            .filter(|_| p.by_flow && !p.down && p.running.len() > 1);
        running.filter_map(|i| p.cells.get(*i)).cloned().collect()
    }

    // -- the session's side

    fn changed(&self) {
        // Release pairs with the Acquire in `turn`. Zero is left out, so that a new queue always looks.
        if self.turn.fetch_add(1, Ordering::Release) == u32::MAX {
            self.turn.fetch_add(1, Ordering::Release);
        }
    }
    /// The place of ring `index` (of those to the guest), made if need be.
    pub(super) fn cell(&self, index: usize) -> Arc<TxCell> {
        let mut p = self.places.lock();
        while p.cells.len() <= index {
            p.cells.push(Arc::default());
        }
        Arc::clone(&p.cells[index])
    }
    /// All places that there are.
    pub(super) fn cells(&self) -> Vec<Arc<TxCell>> {
        self.places.lock().cells.clone()
    }
    /// A ring starts.
    pub(super) fn start(&self, index: usize, mut ring: ToGuest, enabled: bool) {
        // Buffers that the guest adds are found when they are needed.
        ring.ring.disarm();
        let cell = self.cell(index);
        *cell.ring.lock() = Some(ring);
        cell.set_failure(None);
        self.enable(index, enabled);
    }
    /// Workers send by a ring, or do no more.
    pub(super) fn enable(&self, index: usize, on: bool) {
        let mut p = self.places.lock();
        p.running.retain(|i| *i != index);
        if on {
            p.running.push(index);
            p.running.sort_unstable();
        }
        drop(p);
        self.changed();
    }
    /// Takes a ring away for good, when no worker is in the middle of a burst.
    pub(super) fn stop(&self, index: usize) -> Option<ToGuest> {
        self.enable(index, false);
        let cell = self.cell(index);
        let ring = cell.ring.lock().take();
        cell.set_failure(None);
        ring
    }
    /// The port went up or down.
    pub(super) fn set_down(&self, down: bool) {
        self.places.lock().down = down;
        self.changed();
    }
    /// Whether flows, or workers, choose the ring. Returns whether that is new.
    pub(super) fn set_by_flow(&self, on: bool) -> bool {
        let new = std::mem::replace(&mut self.places.lock().by_flow, on) != on;
        if new {
            self.changed();
        }
        new
    }
}
