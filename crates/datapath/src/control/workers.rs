//! Worker threads: their number, start and end.
//!
//! **Changes.** A worker whose processor is wanted before and after stays, with its caches. If the processor
//! was a default and is now in the mask, its thread is pinned to it; in the opposite case it is unpinned. New
//! workers start first. Then queues move ([`super::place`]), then unwanted workers end; meanwhile packets
//! wait in their queues. Processors are chosen by [`super::cpus`].

use super::cpus::{WorkerCpus, default_places, pinned_places, pretended};
use super::{Control, WorkerHandle, add};
use crate::config::DatapathError;
use crate::counters::{WorkerCounters, WorkerNumbers};
use crate::exec::upcalls::upcall_ring;
use crate::flow_cache::Cache;
use crate::perf::PerfNumbers;
use crate::revalidator::WorkerRecords;
use crate::worker::{Binding, Command, Parts, WORKER_TIMEOUT, Worker, command_ring};
use heddle_flow_cache::CacheParts;
use heddle_packet::Pool;
use heddle_sys::priority::ThreadId;
use heddle_sys::{EventFd, clock, cpu};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;

/// Maximum extra length of a worker's pauses.
const TIMER_SLACK_NS: u64 = 1000;

impl Control {
    /// Starts, keeps and ends workers according to `cpus`; queues move. Returns the first error of a port
    /// that could not be opened for a new worker, after all is done.
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
        let ids = |workers: &[WorkerHandle]| workers.iter().map(|w| w.id).collect::<Vec<_>>();
        let before = ids(&self.workers);
        self.leaving = std::mem::take(&mut self.workers);
        let mut failed = self.bring(wanted);
        if self.workers.is_empty() {
            log::warn!(target: "dpif_netdev", "{UNUSABLE}");
            failed = self.bring(default_places()).or(failed);
        }
        self.workers.sort_by_key(|w| w.core);
        if ids(&self.workers) != before {
            self.announce_workers();
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
            // A worker that could not be started is no failure if others do its work.
            Some(e @ DatapathError::Port(_)) => Err(e),
            _ => Ok(()),
        }
    }

    /// Makes workers for these places: leaving ones that fit, or can be bound there, and new ones. Returns
    /// the first error.
    fn bring(&mut self, places: Vec<WorkerCpus>) -> Option<DatapathError> {
        let mut failed = None;
        for place in places {
            let same = |w: &WorkerHandle| (w.core, w.numa) == (place.core, place.numa);
            let done = match self.leaving.iter().position(same) {
                Some(at) => self.keep(at, &place),
                None => self.start(&place),
            };
            failed = failed.or(done.err());
        }
        failed
    }

    /// Keeps the leaving worker at `at`, whose processor is that of `place`, with its queues and caches. If
    /// necessary, it is pinned or unpinned.
    fn keep(&mut self, at: usize, place: &WorkerCpus) -> Result<(), DatapathError> {
        if self.leaving[at].place != *place
            && let Err(e) = self.bind(at, place)
        {
            log_no_worker(place, &e);
            return Err(e);
        }
        let w = self.leaving.remove(at);
        self.workers.push(w);
        Ok(())
    }

    fn bind(&mut self, at: usize, place: &WorkerCpus) -> Result<(), DatapathError> {
        let w = &mut self.leaving[at];
        let binding = Binding {
            name: place.thread_name(w.id),
            cpus: place.cpus()?,
            pinned: place.pinned(),
        };
        let (reply, done) = mpsc::channel();
        if !w.commands.send(Command::Bind(Box::new(binding), reply)) {
            return Err(DatapathError::Timeout);
        }
        done.recv_timeout(WORKER_TIMEOUT)
            .map_err(|_| DatapathError::Timeout)??;
        w.place = place.clone();
        Ok(())
    }

    /// Starts a worker that can send on every port.
    fn start(&mut self, place: &WorkerCpus) -> Result<(), DatapathError> {
        let w = self
            .start_worker(place)
            .inspect_err(|e| log_no_worker(place, e))?;
        w.commands.send(Command::MaxSleep(self.max_sleep.of(w.core)));
        if let Some(scheduling) = self.scheduling {
            // The kernel refuses what it refused to the first workers, and the log has that.
            let _ = scheduling.apply(w.thread_id);
        }
        if self.realtime
            && let Err(e) = w.set_realtime(true)
        {
            log::warn!(target: "dpif_netdev", "PMD thread on core {} has no real-time priority: {e}", w.core);
        }
        let id = w.id;
        self.workers.push(w);
        let mut failed = None;
        for no in self.ports.keys().copied().collect::<Vec<_>>() {
            if let Err(e) = self.open_tx_of(no, id) {
                log::warn!("port {no}: {e}");
                failed.get_or_insert(e);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn announce_workers(&self) {
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

    fn start_worker(&self, place: &WorkerCpus) -> Result<WorkerHandle, DatapathError> {
        let used = |id: &usize| self.workers.iter().chain(&self.leaving).any(|w| w.id == *id);
        let id = (0..).find(|id| !used(id)).unwrap_or(usize::MAX);
        let bell = Arc::new(EventFd::new()?);
        let (commands, command_rx) = command_ring(Arc::clone(&bell));
        let commands = Arc::new(commands);
        let (cache, records) = CacheParts::new(one_node(), self.config.max_masks, self.shared.hash_key);
        let (upcall_tx, upcall_rx) = upcall_ring(self.config.upcall_ring, &self.shared.bells);
        let counters = Arc::new(WorkerCounters::default());
        let (started_tx, started) = mpsc::channel();
        let (shared, config) = (Arc::clone(&self.shared), self.config.clone());
        let worker_counters = Arc::clone(&counters);
        let pinned = place.pinned();
        let name = place.thread_name(id);
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
                // Without this, pauses of `pmd-sleep-max` would be longer than configured.
                .and_then(|()| clock::set_timer_slack_ns(TIMER_SLACK_NS))
                .and_then(|()| Cache::new(cache, config.l1_entries, config.max_l1_entries))
                .and_then(|cache| {
                    Worker::new(Parts {
                        number: id,
                        pool: Pool::new(config.pool_packets),
                        cache,
                        shared,
                        counters: worker_counters,
                        upcalls: upcall_tx,
                        commands: command_rx,
                        bell,
                        pinned,
                    })
                });
            match worker {
                Ok(mut w) => {
                    let _ = started_tx.send(Ok(ThreadId::current()));
                    w.run();
                }
                Err(e) => drop(started_tx.send(Err(e))),
            }
        })?;
        let thread_id = started
            .recv_timeout(WORKER_TIMEOUT)
            .map_err(|_| DatapathError::Timeout)??;
        self.revalidator.lock().workers.push(WorkerRecords::new(
            id,
            place.core,
            Arc::clone(&counters),
            records,
            Arc::clone(&commands),
        ));
        self.upcalls.packets.lock().add(upcall_rx.packets);
        self.upcalls.control.lock().add(upcall_rx.control);
        self.upcalls.samples.lock().add(upcall_rx.samples);
        log::info!(target: "dpif_netdev", "PMD thread on numa_id: {}, core id: {:2} created.", place.numa, place.core);
        let now_ms = self.shared.clock.now_ms();
        Ok(WorkerHandle {
            id,
            commands,
            thread: Some(thread),
            thread_id,
            core: place.core,
            numa: place.numa,
            place: place.clone(),
            isolated: false,
            counters,
            started_ms: now_ms,
            base: WorkerNumbers::default(),
            base_perf: PerfNumbers::default(),
            base_lost: 0,
            cleared_ms: now_ms,
        })
    }

    /// Ends a worker; its counts are kept.
    fn end(&mut self, mut w: WorkerHandle) {
        w.commands.send(Command::Stop);
        if w.thread.take().is_some_and(|t| t.join().is_err()) {
            log::error!("worker {} ended by a panic", w.id);
        }
        for (past, kind) in self.past_drops.iter_mut().zip(heddle_datapath_api::DropKind::ALL) {
            *past += w.counters.drops.get(*kind);
        }
        crate::counters::add_all(&mut self.past_tracked, w.counters.ct.get());
        let n = w.counters.read();
        self.past.packets += n.packets;
        self.past.l0_hits += n.l0_hits;
        self.past.l1_hits += n.l1_hits;
        self.past.l2_hits += n.l2_hits;
        self.past.l2_probes += n.l2_probes;
        self.past.misses += n.misses;
        self.past.limit_hits += n.limit_hits;
        self.revalidator.lock().retire(w.id);
        for state in self.ports.values_mut() {
            let past = &mut state.past;
            state.counters.retain(|(id, c)| {
                if *id == w.id {
                    add(past, c);
                }
                *id != w.id
            });
        }
        for inbox in self.upcalls.each() {
            inbox.lock().tidy();
        }
    }

    /// Ends all workers.
    pub(crate) fn stop_workers(&mut self) {
        for w in std::mem::take(&mut self.workers) {
            self.end(w);
        }
    }
}

fn log_no_worker(place: &WorkerCpus, e: &DatapathError) {
    log::warn!(target: "dpif_netdev", "no worker on processor {}: {e}", place.core);
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
