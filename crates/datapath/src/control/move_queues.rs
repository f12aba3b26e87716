//! Queues move between workers while packets flow.
//!
//! **No packet is lost or reordered.** A worker gives a queue back between two bursts, after all its packets
//! have been sent or dropped. The next worker starts at the same position; meanwhile the packets wait in the
//! queue. Channels carry the hand-over, so the next worker sees all that the first one wrote about the queue
//! (its counters, its index in a ring).
//!
//! A worker polls a new queue at once ([`Control::place_for_now`]). The final assignment is made for all
//! queues together ([`Control::assign`]) when a series of changes is complete.

use super::{Control, WorkerHandle};
use crate::config::DatapathError;
use crate::control::assign::{self, Core, Plan, Queue, Spread};
use crate::counters::WINDOW_MS;
use crate::worker::{Command, Reply, RxSlot, WORKER_TIMEOUT};
use heddle_datapath_api::PortNo;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

/// Changes since the last assignment of queues.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    all: bool,
    ports: BTreeSet<u32>,
}

impl Dirty {
    pub(super) fn port(&mut self, no: u32) {
        self.ports.insert(no);
    }
    pub(super) fn all(&mut self) {
        self.all = true;
    }
}

/// A queue's name: port and number.
type Name = (u32, usize);

impl Control {
    /// Input of the assignment: the queues that take part in it, in order.
    pub(super) fn describe(&self) -> (Vec<Name>, Vec<Queue>) {
        let now_ms = self.shared.clock.now_ms();
        let (mut names, mut queues) = (Vec::new(), Vec::new());
        for (no, p) in self.ports.iter().filter(|(_, p)| p.port.is_pmd()) {
            let pinned = |q| {
                p.config
                    .affinity
                    .iter()
                    .find(|(queue, _)| *queue == q)
                    .map(|(_, core)| *core)
            };
            for r in &p.rx {
                names.push((*no, r.queue));
                queues.push(Queue {
                    port: p.port.name().to_owned(),
                    queue: r.queue,
                    numa: p.config.numa,
                    pinned: pinned(r.queue),
                    cycles: r.shared.usage.sum(now_ms, WINDOW_MS),
                    must: p.port.port_type().kernel,
                });
            }
        }
        (names, queues)
    }

    pub(super) fn cores(&self) -> Vec<Core> {
        let core = |w: &WorkerHandle| Core {
            core: w.core,
            numa: w.numa,
        };
        self.workers.iter().map(core).collect()
    }

    pub(crate) fn set_spread(&mut self, spread: Spread) {
        if self.spread != spread {
            self.spread = spread;
            self.dirty.all();
        }
    }

    /// Assigns all queues anew, if something has changed, and moves those that are elsewhere.
    pub(crate) fn assign(&mut self) -> Result<(), DatapathError> {
        let dirty = std::mem::take(&mut self.dirty);
        if !dirty.all && dirty.ports.is_empty() || self.workers.is_empty() {
            return Ok(());
        }
        self.auto.changed();
        let (names, queues) = self.describe();
        let plan = assign::plan(self.spread, &self.cores(), &queues);
        for (w, isolated) in self.workers.iter_mut().zip(&plan.isolated) {
            w.isolated = *isolated;
        }
        let id = |w: usize| self.workers.get(w).map(|w| w.id);
        let mut places: BTreeMap<Name, Option<usize>> = names
            .iter()
            .zip(&plan.place)
            .map(|(name, place)| (*name, place.and_then(id)))
            .collect();
        let first = self.workers.first().map(|w| w.id);
        for (no, p) in self.ports.iter().filter(|(_, p)| !p.port.is_pmd()) {
            places.extend(p.rx.iter().map(|r| ((*no, r.queue), first)));
        }
        let moved = self.differing(&places);
        log_plan(&plan, |q| {
            dirty.all || dirty.ports.contains(&names[q].0) || moved.iter().any(|(name, _)| *name == names[q])
        });
        self.move_all(&moved)
    }

    /// Assigns all queues anew, whether or not something has changed.
    pub(crate) fn assign_again(&mut self) -> Result<(), DatapathError> {
        self.dirty.all();
        self.assign()
    }

    fn differing(&self, places: &BTreeMap<Name, Option<usize>>) -> Vec<(Name, Option<usize>)> {
        let differs = |((no, queue), to): &(Name, Option<usize>)| {
            let rx = self
                .ports
                .get(no)
                .and_then(|p| p.rx.iter().find(|r| r.queue == *queue));
            rx.is_some_and(|r| r.worker != *to)
        };
        places
            .iter()
            .map(|(name, to)| (*name, *to))
            .filter(differs)
            .collect()
    }

    /// Moves queues to other workers; `None`: the queue is parked without a worker.
    fn move_all(&mut self, moves: &[(Name, Option<usize>)]) -> Result<(), DatapathError> {
        if moves.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        for slot in self.take_back(moves) {
            let to = moves
                .iter()
                .find(|(name, _)| *name == (slot.port, slot.index))
                .and_then(|(_, to)| *to);
            // The remaining queues are still given to their workers.
            failed = self.give(slot, to).err().or(failed);
        }
        failed.map_or_else(|| self.barrier(), Err)
    }

    /// Takes queues back from their workers.
    fn take_back(&mut self, moves: &[(Name, Option<usize>)]) -> Vec<RxSlot> {
        let mut slots = Vec::new();
        let mut from: BTreeMap<usize, Vec<Name>> = BTreeMap::new();
        for (name, _) in moves {
            let state = self.ports.get_mut(&name.0);
            let Some(rx) = state.and_then(|p| p.rx.iter_mut().find(|r| r.queue == name.1)) else {
                continue;
            };
            slots.extend(rx.parked.take());
            if let Some(id) = rx.worker.take() {
                from.entry(id).or_default().push(*name);
            }
        }
        for (id, names) in from {
            let Some(worker) = self.workers.iter().chain(&self.leaving).find(|w| w.id == id) else {
                continue;
            };
            // Each worker replies by a channel of its own: if it ends, only its queues are lost.
            let (tx, answer) = mpsc::channel();
            if worker.commands.send(Command::TakeRx(names.clone(), tx)) {
                slots.extend(from_worker(worker, &answer));
                continue;
            }
            // The worker takes no commands now, and continues to poll its queues.
            for (no, queue) in names {
                let rx = self
                    .ports
                    .get_mut(&no)
                    .and_then(|p| p.rx.iter_mut().find(|r| r.queue == queue));
                if let Some(rx) = rx {
                    rx.worker = Some(id);
                }
            }
        }
        slots
    }

    /// Gives a queue to worker `to`, or parks it.
    fn give(&mut self, mut slot: RxSlot, to: Option<usize>) -> Result<(), DatapathError> {
        let no = slot.port;
        let state = self.ports.get_mut(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        let counters = to.and_then(|to| state.counters.iter().find(|(id, _)| *id == to));
        let worker = to.and_then(|to| self.workers.iter().find(|w| w.id == to));
        let rx = state.rx.iter_mut().find(|r| r.queue == slot.index);
        let Some(rx) = rx else { return Ok(()) };
        let (Some((_, counters)), Some(worker)) = (counters, worker) else {
            rx.parked = Some(slot);
            return Ok(());
        };
        slot.counters = Arc::clone(counters);
        rx.worker = to;
        if worker.commands.send(Command::AddRx(slot)) {
            Ok(())
        } else {
            Err(DatapathError::Timeout)
        }
    }

    /// Gives a port's new queues to workers at once. A queue with an affinity goes to that worker. Others go
    /// to the worker with the fewest queues: if there is one, on the port's NUMA node and not isolated.
    pub(super) fn place_for_now(&mut self, no: u32) -> Result<(), DatapathError> {
        let state = self.ports.get_mut(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        let slots: Vec<RxSlot> = state.rx.iter_mut().filter_map(|r| r.parked.take()).collect();
        let (affinity, node) = (state.config.affinity.clone(), state.config.numa);
        for slot in slots {
            let polls = |id| {
                let rx = self.ports.values().flat_map(|p| &p.rx);
                rx.filter(|r| r.worker == Some(id)).count()
            };
            let wanted = affinity
                .iter()
                .find(|(q, _)| *q == slot.index)
                .map(|(_, core)| *core);
            let key = |w: &&WorkerHandle| {
                let away = node.is_some_and(|n| n != w.numa);
                (wanted != Some(w.core), w.isolated, away, polls(w.id))
            };
            let to = self.workers.iter().min_by_key(key).map(|w| w.id);
            self.give(slot, to)?;
        }
        self.barrier()
    }
}

/// The queues that a worker gives back, however late. Another program may have its processor for a while, or
/// the whole process may have been stopped. If this thread did not wait, no worker would poll these queues
/// any more.
fn from_worker(worker: &WorkerHandle, answer: &Receiver<Reply>) -> Vec<RxSlot> {
    loop {
        match answer.recv_timeout(WORKER_TIMEOUT) {
            Ok(Reply::Slots(slots)) => return slots,
            Err(RecvTimeoutError::Timeout) if worker.lives() => {
                log::warn!(target: "dpif_netdev", "the worker of processor {} has not replied for {} s: its queues wait", worker.core, WORKER_TIMEOUT.as_secs());
            }
            // The queues are lost with their worker.
            _ => return Vec::new(),
        }
    }
}

/// Writes the sentences of a plan to the log that are about queues for which `concerned` is true. General
/// sentences are written if there are any such queues.
fn log_plan(plan: &Plan, concerned: impl Fn(usize) -> bool) {
    let own: Vec<bool> = plan
        .notes
        .iter()
        .map(|n| n.queue.is_some_and(&concerned))
        .collect();
    if !own.contains(&true) {
        return;
    }
    for (note, own) in plan.notes.iter().zip(own) {
        match (own || note.queue.is_none(), note.warning) {
            (true, true) => log::warn!(target: "dpif_netdev", "{}", note.text),
            (true, false) => log::info!(target: "dpif_netdev", "{}", note.text),
            (false, _) => {}
        }
    }
}
