//! Worker threads: which there are, how they start and end.
//!
//! **With a mask** (`pmd-cpu-mask`) there is one worker per processor of it, pinned. The mask may name processors outside of
//! the process's affinity: that is how a daemon is kept off the processors of its workers. One that the system refuses (it is not
//! there, or outside of the process's cpuset) is left out, with a warning.
//!
//! **Without a mask** (or when nothing of it can be had) there are at most [`MOST_DEFAULT`] workers on the processors that the process may use: one per
//! physical core as long as there are some, taken node by node. None is pinned to a processor, since the machine has other work to do
//! and an idle worker sleeps; on a machine with several NUMA nodes each is bound to its node's processors, where its
//! memory is.
//!
//! **Changes.** Workers that are wanted before and after stay as they are, with their caches. New ones start, then queues move
//! ([`super::place`]), then those that are not wanted end; packets wait in their queues meanwhile.

use super::{Control, WorkerHandle, add};
use crate::cache::{Cache, CacheParts, Memory};
use crate::config::DatapathError;
use crate::counters::{WorkerCounters, WorkerNumbers};
use crate::l1::L1;
use crate::note::{self, Horizon};
use crate::perf::PerfNumbers;
use crate::sweep::SweepWorker;
use crate::upcalls::upcall_ring;
use crate::worker::{Command, PATIENCE, Parts, Worker, command_ring};
use heddle_packet::Pool;
use heddle_sync::ring::ring;
use heddle_sys::halting::Halting;
use heddle_sys::{EventFd, clock, cpu};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;

/// Most workers when no processors are named.
const MOST_DEFAULT: usize = 4;

/// How much longer than asked for a worker's pauses may be.
const TIMER_SLACK_NS: u64 = 1000;

/// Where a worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its processor, or the one that it stands for.
    core: usize,
    numa: u32,
    /// Processors that it is bound to; empty: all.
    bound: Vec<usize>,
}

impl Place {
    fn pinned(&self) -> bool {
        self.bound.len() == 1
    }
}

/// A processor, for the choice of default workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpu {
    cpu: usize,
    numa: u32,
    /// Processors with one such number share a physical core; unknown ones share none.
    core: Option<u32>,
}

/// The processors of default workers: at most `most`, one node after the other, hardware threads of a core that is taken last.
fn choose(cpus: &[Cpu], most: usize) -> Vec<Cpu> {
    let mut nodes: BTreeMap<u32, (Vec<Cpu>, Vec<Cpu>)> = BTreeMap::new();
    for cpu in cpus {
        let (first, siblings) = nodes.entry(cpu.numa).or_default();
        match first.iter().any(|f| f.core.is_some() && f.core == cpu.core) {
            true => siblings.push(*cpu),
            false => first.push(*cpu),
        }
    }
    let mut queues: Vec<_> = nodes
        .into_values()
        .map(|(first, siblings)| first.into_iter().chain(siblings))
        .collect();
    let mut chosen = Vec::new();
    let n = most.min(cpus.len());
    while chosen.len() < n {
        for queue in &mut queues {
            chosen.extend(queue.next().filter(|_| chosen.len() < n));
        }
    }
    chosen.sort_by_key(|c| c.cpu);
    chosen
}

fn default_places() -> Vec<Place> {
    let allowed = cpu::allowed().unwrap_or_else(|_| vec![0]);
    let describe = |cpu| Cpu {
        cpu,
        numa: cpu::numa_node(cpu).unwrap_or(0),
        core: cpu::core_id(cpu),
    };
    let cpus: Vec<Cpu> = allowed.into_iter().map(describe).collect();
    let one_node = cpus.iter().all(|c| c.numa == cpus[0].numa);
    let node = |numa| cpus.iter().filter(move |c| c.numa == numa).map(|c| c.cpu);
    let place = |c: Cpu| Place {
        core: c.cpu,
        numa: c.numa,
        bound: if one_node {
            Vec::new()
        } else {
            node(c.numa).collect()
        },
    };
    choose(&cpus, MOST_DEFAULT).into_iter().map(place).collect()
}

/// The pretended processors that workers stand for: those of `cpus` that exist, else the first of each node.
fn pretended(nodes: &[u32], cpus: Option<&[usize]>) -> Vec<Place> {
    let asked = cpus.unwrap_or_default().iter().copied();
    let mut cores: Vec<usize> = asked.filter(|c| *c < nodes.len()).collect();
    if cores.is_empty() {
        let first = |i: &usize| !nodes[..*i].contains(&nodes[*i]);
        cores = (0..nodes.len()).filter(first).collect();
    }
    if cores.is_empty() {
        cores.push(0);
    }
    let place = |core| Place {
        core,
        numa: nodes.get(core).copied().unwrap_or(0),
        bound: Vec::new(),
    };
    cores.into_iter().map(place).collect()
}

/// Those that the machine does not have are told of together: a mask may name any number of them.
fn pinned_places(cpus: &[usize]) -> Vec<Place> {
    let there = cpu::online().ok();
    let (cpus, absent): (Vec<usize>, Vec<usize>) = cpus
        .iter()
        .partition(|c| there.as_ref().is_none_or(|there| there.contains(*c)));
    if let [first, ..] = absent[..] {
        let n = absent.len();
        log::warn!(target: "dpif_netdev", "pmd-cpu-mask names {n} processors that are not there, the first of them is {first}");
    }
    let place = |core| Place {
        core,
        numa: cpu::numa_node(core).unwrap_or(0),
        bound: vec![core],
    };
    cpus.into_iter().map(place).collect()
}

impl Control {
    /// Brings workers to what is wanted; queues move. What a port says that could not be opened for a new worker is returned, when all is done.
    pub(crate) fn set_workers(&mut self, cpus: Option<&[usize]>) -> Result<(), DatapathError> {
        let asked = cpus.filter(|c| !c.is_empty());
        const UNUSABLE: &str =
            "none of the processors that pmd-cpu-mask names can be used: workers run as if it were not set";
        let absent = |nodes: &[u32]| asked.is_some_and(|cpus| cpus.iter().all(|c| *c >= nodes.len()));
        if self.config.dummy_numa.as_deref().is_some_and(absent) {
            log::warn!(target: "dpif_netdev", "{UNUSABLE}");
        }
        let wanted = match (&self.config.dummy_numa, asked) {
            (Some(nodes), _) => pretended(nodes, asked),
            (None, Some(cpus)) => pinned_places(cpus),
            (None, None) => default_places(),
        };
        let mut new = wanted;
        for w in std::mem::take(&mut self.workers) {
            match new.iter().position(|place| *place == w.place) {
                Some(same) => {
                    new.remove(same);
                    self.workers.push(w);
                }
                None => self.leaving.push(w),
            }
        }
        let changed = !(new.is_empty() && self.leaving.is_empty());
        let mut failed = self.start_all(new);
        if self.workers.is_empty() {
            log::warn!(target: "dpif_netdev", "{UNUSABLE}");
            failed = self.start_all(default_places()).or(failed);
        }
        self.workers.sort_by_key(|w| w.core);
        if changed {
            self.tell_workers();
            self.dirty.all();
            let assigned = self.assign();
            failed = failed.or(assigned.err());
        }
        for w in std::mem::take(&mut self.leaving) {
            self.end(w);
        }
        if self.workers.is_empty() {
            return Err(failed.unwrap_or(DatapathError::Timeout));
        }
        match failed {
            // A worker that could not be had is no failure where others do its work.
            Some(e @ DatapathError::Port(_)) => Err(e),
            _ => Ok(()),
        }
    }

    /// Starts workers that can send on every port. Returns the first error.
    fn start_all(&mut self, places: Vec<Place>) -> Option<DatapathError> {
        let mut failed = None;
        for place in places {
            let core = place.core;
            match self.start_worker(place) {
                Ok(w) => {
                    w.commands.send(Command::MaxSleep(self.max_sleep.of(w.core)));
                    let id = w.id;
                    self.workers.push(w);
                    for no in self.ports.keys().copied().collect::<Vec<_>>() {
                        if let Err(e) = self.open_tx_of(no, id) {
                            log::warn!("port {no}: {e}");
                            failed.get_or_insert(e);
                        }
                    }
                }
                Err(e) => {
                    log::warn!(target: "dpif_netdev", "no worker on processor {core}: {e}");
                    failed.get_or_insert(e);
                }
            }
        }
        failed
    }

    fn tell_workers(&self) {
        for w in &self.leaving {
            log::info!(target: "dpif_netdev", "PMD thread on numa_id: {}, core id: {:2} destroyed.", w.numa, w.core);
        }
        let mut nodes: BTreeMap<u32, usize> = BTreeMap::new();
        for w in &self.workers {
            *nodes.entry(w.numa).or_default() += 1;
        }
        for (numa, n) in nodes {
            log::info!(target: "dpif_netdev", "There are {n} pmd threads on numa node {numa}");
        }
    }

    /// Of the processor that a worker has for itself, where the system lets it be asked for that.
    fn halting(&self, place: &Place) -> Option<Halting> {
        let notes = self.config.notes.as_ref().filter(|_| place.pinned())?;
        Halting::of(place.core, notes)
            .inspect_err(
                |e| log::debug!(target: "dpif_netdev", "core {} halts whenever it is idle: {e}", place.core),
            )
            .ok()
    }

    fn start_worker(&self, place: Place) -> Result<WorkerHandle, DatapathError> {
        let used = |id: &usize| self.workers.iter().chain(&self.leaving).any(|w| w.id == *id);
        let id = (0..).find(|id| !used(id)).unwrap_or(usize::MAX);
        let bell = Arc::new(EventFd::new()?);
        let (commands, command_rx) = command_ring(Arc::clone(&bell));
        let commands = Arc::new(commands);
        let (notes, notes_rx) = ring(note::RING);
        let (memory, makers) = Memory::new(one_node());
        let horizon = Arc::new(Horizon::default());
        let worker_horizon = Arc::clone(&horizon);
        let (upcall_tx, upcall_rx) = upcall_ring(self.config.upcall_ring, Arc::clone(&self.shared.bell));
        let counters = Arc::new(WorkerCounters::default());
        let (started_tx, started) = mpsc::channel();
        let (shared, config) = (Arc::clone(&self.shared), self.config.clone());
        let worker_counters = Arc::clone(&counters);
        let pinned = place.pinned();
        let name = if pinned {
            format!("pmd-c{:02}", place.core)
        } else {
            format!("worker{id}")
        };
        let halting = self.halting(&place);
        let bound = place.bound.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let bind = || {
                if bound.is_empty() {
                    Ok(())
                } else {
                    cpu::pin(&bound)
                }
            };
            let worker = bind()
                // A pause of `pmd-sleep-max` lasts as long as it says.
                .and_then(|()| clock::set_timer_slack_ns(TIMER_SLACK_NS))
                .and_then(|()| L1::new(config.l1_entries, config.l1_most))
                .and_then(|l1| {
                    let cache = CacheParts {
                        memory,
                        l1,
                        max_masks: config.max_masks,
                        key: shared.hash_key,
                        notes,
                        horizon: worker_horizon,
                    };
                    Worker::new(Parts {
                        pool: Pool::new(config.pool_packets),
                        cache: Cache::new(cache),
                        shared,
                        counters: worker_counters,
                        upcalls: upcall_tx,
                        commands: command_rx,
                        bell,
                        pinned,
                        halting,
                    })
                });
            match worker {
                Ok(mut w) => {
                    let _ = started_tx.send(Ok(()));
                    w.run();
                }
                Err(e) => drop(started_tx.send(Err(e))),
            }
        })?;
        started
            .recv_timeout(PATIENCE)
            .map_err(|_| DatapathError::Timeout)??;
        // A worker that is pinned, or pretends to be, is named by its processor.
        let named = pinned || self.config.dummy_numa.is_some();
        self.sweep.lock().workers.push(SweepWorker::new(
            id,
            named.then_some(place.core),
            notes_rx,
            horizon,
            makers,
            Arc::clone(&commands),
        ));
        self.upcalls.lock().push(upcall_rx);
        log::info!(target: "dpif_netdev", "PMD thread on numa_id: {}, core id: {:2} created.", place.numa, place.core);
        let now_ms = self.shared.clock.now_ms();
        Ok(WorkerHandle {
            id,
            commands,
            thread: Some(thread),
            core: place.core,
            numa: place.numa,
            place,
            isolated: false,
            counters,
            started_ms: now_ms,
            base: WorkerNumbers::default(),
            base_perf: PerfNumbers::default(),
            base_lost: 0,
            cleared_ms: now_ms,
        })
    }

    /// Ends a worker; what it counted is kept.
    fn end(&mut self, mut w: WorkerHandle) {
        w.commands.send(Command::Stop);
        if w.thread.take().is_some_and(|t| t.join().is_err()) {
            log::error!("worker {} ended by a panic", w.id);
        }
        for (past, kind) in self.past_drops.iter_mut().zip(crate::drops::DropKind::ALL) {
            *past += w.counters.drops.get(*kind);
        }
        let n = w.counters.read();
        self.past.packets += n.packets;
        self.past.l0_hits += n.l0_hits;
        self.past.l1_hits += n.l1_hits;
        self.past.l2_hits += n.l2_hits;
        self.past.l2_probes += n.l2_probes;
        self.past.misses += n.misses;
        self.sweep.lock().retire(w.id);
        for state in self.ports.values_mut() {
            let past = &mut state.past;
            state.counters.retain(|(id, c)| {
                if *id == w.id {
                    add(past, c);
                }
                *id != w.id
            });
        }
        let mut rings = self.upcalls.lock();
        // Those of ended workers, once all was taken from them.
        rings.retain_mut(|r| !r.is_empty() || !r.is_abandoned());
    }

    /// Ends all workers.
    pub(crate) fn stop_workers(&mut self) {
        for w in std::mem::take(&mut self.workers) {
            self.end(w);
        }
    }
}

/// Whether all memory is equally near.
fn one_node() -> bool {
    let nodes: std::collections::BTreeSet<_> = cpu::online()
        .unwrap_or_default()
        .into_iter()
        .filter_map(cpu::numa_node)
        .collect();
    nodes.len() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &[(usize, u32, u32)]) -> Vec<Cpu> {
        let one = |&(cpu, numa, core)| Cpu {
            cpu,
            numa,
            core: Some(core),
        };
        list.iter().map(one).collect()
    }
    fn numbers(chosen: Vec<Cpu>) -> Vec<usize> {
        chosen.into_iter().map(|c| c.cpu).collect()
    }

    #[test]
    fn default_workers_take_cores_before_their_siblings_and_all_nodes() {
        let one = cpus(&[(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 1)]);
        assert_eq!(numbers(choose(&one, 2)), [0, 2]);
        assert_eq!(numbers(choose(&one, 3)), [0, 1, 2]);
        assert_eq!(numbers(choose(&one, 9)), [0, 1, 2, 3]);
        let two = cpus(&[(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1)]);
        assert_eq!(numbers(choose(&two, 4)), [0, 1, 3, 4]);
        assert_eq!(numbers(choose(&two[..4], 4)), [0, 1, 2, 3]);
        let unknown = [3, 5].map(|cpu| Cpu {
            cpu,
            numa: 0,
            core: None,
        });
        assert_eq!(numbers(choose(&unknown, 4)), [3, 5]);
        assert!(choose(&[], 4).is_empty());
    }

    #[test]
    fn processors_that_are_not_there_get_no_threads() {
        let online = cpu::online().unwrap();
        let named: Vec<usize> = (0..80_000).collect();
        let cores: Vec<usize> = pinned_places(&named).iter().map(|p| p.core).collect();
        assert_eq!(cores, online);
    }

    #[test]
    fn pretended_processors() {
        let cores = |nodes: &[u32], asked: Option<&[usize]>| -> Vec<(usize, u32)> {
            pretended(nodes, asked).iter().map(|p| (p.core, p.numa)).collect()
        };
        assert_eq!(cores(&[1, 1, 0, 0], None), [(0, 1), (2, 0)]);
        assert_eq!(cores(&[1, 1, 0, 0], Some(&[1, 2, 9])), [(1, 1), (2, 0)]);
        assert_eq!(cores(&[0], Some(&[9])), [(0, 0)]);
        assert_eq!(cores(&[], None), [(0, 0)]);
    }
}
