//! The guest's receive rings of one port, shared by all workers.
//!
//! **Problem.** A guest has any number of receive rings, the switch has its own number of workers, and the
//! session changes the rings at any time. Workers that come to one ring at the same time neither wait for
//! each other nor lose packets.
//!
//! **How.** Worker *w* of the switch sends by running ring *w mod n* (the order of the rings). If there are
//! enough rings, each worker has its own, otherwise workers share. The choice is made anew when a ring
//! starts, stops, is enabled or disabled ([`TxSet::turn`] changes then), never per packet. It is made from a
//! snapshot that the session publishes.
//!
//! A worker that finds its ring in use copies its packets into the ring's queue ([`TxCell::handed`]) and
//! continues. The worker that has the ring sends them before it releases it ([`Combining`]). Packets without
//! room in the queue are dropped, as if the guest had none (`ovs_tx_failure_drops`). Only the session waits:
//! for the end of a worker's burst.
//!
//! With `tx-steering=hash` a flow chooses its ring ([`crate::flow_hash`]). So all rings of a guest are
//! used, whatever the number of workers. A burst then takes each ring that one of its packets goes to.
//!
//! **Costs.** Two compare-and-swaps per burst, uncontended unless workers share a ring; a copy of each packet
//! that is handed over.

use super::counts::TxCounts as Counts;
use super::rx::Changed;
use super::takes::Takes;
use super::tx;
use crate::TxCounts;
use crossbeam_queue::ArrayQueue;
use heddle_packet::{BURST, Packet, Pool};
use heddle_sync::{Combining, CombiningGuard, Published};
use heddle_virtio::device::{Call, Link};
use heddle_virtio::{DeviceTx, RingError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Packets that a ring's queue holds for the worker that has the ring: some bursts of each of many workers.
const HANDED: usize = 16 * BURST;

/// A started ring and its notifications.
#[derive(Debug)]
pub(super) struct ToGuest {
    pub(super) ring: Box<DeviceTx>,
    /// Notifications of the guest.
    pub(super) call: Option<Call>,
    /// Notified when the ring breaks.
    pub(super) err: Option<Call>,
    /// Packets that need not be finished in software.
    pub(super) takes: Takes,
    /// For addresses that the memory table does not have yet.
    pub(super) link: Option<Arc<dyn Link>>,
    /// The failure that was reported.
    pub(super) reported: Option<RingError>,
}

/// One ring's place.
#[derive(Debug)]
pub(super) struct TxCell {
    pub(super) ring: Combining<Option<ToGuest>>,
    /// Packets of workers that found the ring in use, each worker's in its order.
    pub(super) handed: ArrayQueue<Packet>,
    /// A copy of [`ToGuest::reported`] for status.
    failure: Mutex<Option<RingError>>,
    /// Written by the worker that has the ring.
    pub(super) counts: Counts,
    /// Times that a worker found the ring in use.
    pub(super) contention: AtomicU64,
    /// Packets dropped because the queue was full.
    pub(super) refused: AtomicU64,
}

impl Default for TxCell {
    fn default() -> Self {
        Self {
            ring: Combining::new(None),
            handed: ArrayQueue::new(HANDED),
            failure: Mutex::default(),
            counts: Counts::default(),
            contention: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl TxCell {
    /// The ring, for the session, which may wait for a burst's end.
    fn wait(&self) -> CombiningGuard<'_, Option<ToGuest>> {
        loop {
            if let Some(guard) = self.ring.try_take() {
                return guard;
            }
            std::thread::yield_now();
        }
    }
    /// Why the ring is stopped, if it is.
    pub(super) fn failure(&self) -> Option<RingError> {
        *self.failure.lock()
    }
    /// Records that the ring broke, or works again. `false`: another thread reads the failure now, and a
    /// worker tries again later.
    pub(super) fn try_set_failure(&self, failure: Option<RingError>) -> bool {
        self.failure.try_lock().map(|mut f| *f = failure).is_some()
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
    /// Packets that the guest takes by the ring that was started last.
    takes: Takes,
}

/// The rings among which workers choose.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// The rings that run, by index.
    pub(super) cells: Vec<Arc<TxCell>>,
    /// A flow decides.
    pub(super) by_flow: bool,
    /// Packets that the guest takes.
    pub(super) takes: Takes,
}

impl Choice {
    /// The ring of worker `worker`. `None`: there is none, or a flow decides.
    pub(super) fn of(&self, worker: usize) -> Option<&Arc<TxCell>> {
        if self.by_flow || self.cells.is_empty() {
            return None;
        }
        self.cells.get(worker % self.cells.len())
    }
}

/// All rings of a port.
pub(crate) struct TxSet {
    turn: AtomicU32,
    choice: Published<Choice>,
    pub(super) retries_max: AtomicU32,
    pub(super) name: Arc<str>,
    pub(super) changed: Changed,
    places: Mutex<Places>,
    /// Outcome of packets that the session sent for workers: the next worker that chooses a ring reports it.
    pending: Mutex<TxCounts>,
}

impl TxSet {
    pub(super) fn new(name: Arc<str>, changed: Changed, retries_max: u32) -> Self {
        Self {
            turn: AtomicU32::new(1),
            choice: Published::default(),
            retries_max: retries_max.into(),
            name,
            changed,
            places: Mutex::default(),
            pending: Mutex::default(),
        }
    }

    // -- the worker's side

    /// Changes when workers are to choose again. Zero is never its value.
    #[inline]
    pub(super) fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire) // pairs with the Release in `next_turn`
    }
    /// The rings to choose from, and the turn that they belong to; and the counts of packets that the session
    /// has sent meanwhile.
    pub(super) fn choice(&self) -> (u32, Arc<Choice>, TxCounts) {
        // The turn first: a choice that is published in between is looked at again.
        let turn = self.turn();
        let pending = self.pending.try_lock().map(|mut o| std::mem::take(&mut *o));
        (turn, self.choice.get(), pending.unwrap_or_default())
    }

    // -- the session's side

    /// Makes workers choose again.
    fn next_turn(&self) {
        // Release pairs with the Acquire in `turn`. Zero is left out, so that a new queue always looks.
        if self.turn.fetch_add(1, Ordering::Release) == u32::MAX {
            self.turn.fetch_add(1, Ordering::Release);
        }
    }
    /// Changes the places, and the workers' choice with them.
    fn change<T>(&self, change: impl FnOnce(&mut Places) -> T) -> T {
        let p = &mut *self.places.lock();
        let value = change(p);
        let running = p.running.iter().filter(|_| !p.down);
        self.choice.store(Choice {
            cells: running.filter_map(|i| p.cells.get(*i)).cloned().collect(),
            by_flow: p.by_flow,
            takes: p.takes,
        });
        self.next_turn();
        value
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
    /// Calls `change` on a ring's place when no worker is in the middle of a burst; sends the packets that
    /// workers handed over meanwhile.
    fn with_place<T>(&self, cell: &TxCell, change: impl FnOnce(&mut Option<ToGuest>) -> T) -> T {
        let mut guard = cell.wait();
        let value = change(&mut guard);
        let mut pool = Pool::default();
        let mut counts = tx::let_go(self, cell, &mut pool, guard, TxCounts::default());
        // The session has no later: it continues, unless a worker does.
        while let Some(left) = cell.ring.take_left() {
            counts = tx::let_go(self, cell, &mut pool, left, counts);
        }
        counts.waits = false;
        if counts != TxCounts::default() {
            *self.pending.lock() += counts;
            self.next_turn();
        }
        value
    }
    /// Calls `change` on a started ring. `None`: there is no ring.
    pub(super) fn with<T>(&self, cell: &TxCell, change: impl FnOnce(&mut ToGuest) -> T) -> Option<T> {
        self.with_place(cell, |place| place.as_mut().map(change))
    }
    /// A ring starts.
    pub(super) fn start(&self, index: usize, mut ring: ToGuest, enabled: bool) {
        // Buffers that the guest adds are found when they are needed.
        ring.ring.disarm();
        let cell = self.cell(index);
        self.places.lock().takes = ring.takes;
        self.with_place(&cell, |place| *place = Some(ring));
        *cell.failure.lock() = None;
        self.enable(index, enabled);
    }
    /// Workers send by a ring, or do no more.
    pub(super) fn enable(&self, index: usize, on: bool) {
        self.change(|p| {
            p.running.retain(|i| *i != index);
            if on {
                p.running.push(index);
                p.running.sort_unstable();
            }
        });
    }
    /// Takes a ring away for good, when no worker is in the middle of a burst.
    pub(super) fn stop(&self, index: usize) -> Option<ToGuest> {
        self.enable(index, false);
        let cell = self.cell(index);
        let ring = self.with_place(&cell, Option::take);
        *cell.failure.lock() = None;
        ring
    }
    /// The port went up or down.
    pub(super) fn set_down(&self, down: bool) {
        self.change(|p| p.down = down);
    }
    /// Whether flows, or workers, choose the ring. Returns whether that is new.
    pub(crate) fn set_by_flow(&self, on: bool) -> bool {
        if self.places.lock().by_flow == on {
            return false;
        }
        self.change(|p| p.by_flow = on);
        true
    }
    /// Sets how often a burst looks again for buffers. Returns whether the number is new.
    pub(crate) fn set_retries_max(&self, n: u32) -> bool {
        self.retries_max.swap(n, Ordering::Relaxed) != n
    }
}
