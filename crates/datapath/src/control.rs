//! The control side of ports and workers: who polls what, and how that changes while packets flow.
//!
//! All changes are made under one lock (workers never take it) by commands to the workers; a change returns when the workers
//! have carried it out. Queues are opened and closed here, not on workers: that may take milliseconds.

use crate::action::PortNo;
use crate::cache::{Cache, CacheParts};
use crate::config::{Config, DatapathError, PortConfig};
use crate::counters::{PortCounters, WorkerCounters, WorkerNumbers};
use crate::l1::L1;
use crate::note::{self, Horizon};
use crate::shared::Shared;
use crate::sweep::{Sweep, SweepWorker};
use crate::tx::TxPort;
use crate::upcalls::upcall_ring;
use crate::view::{PortStats, UpcallPacket};
use crate::worker::{Command, CommandTx, PATIENCE, Parts, Reply, RxShared, RxSlot, Worker, command_ring};
use heddle_packet::Pool;
use heddle_port::{Port, RxQueue};
use heddle_sync::ring::{Consumer, ring};
use heddle_sys::{EventFd, cpu};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest port number: workers index a table by it.
const MAX_PORT: u32 = 65_533;
/// Workers when no processors are named.
const MAX_DEFAULT_WORKERS: usize = 4;

/// A receive queue, as the control side knows it.
pub(crate) struct RxInfo {
    pub(crate) queue: usize,
    pub(crate) worker: usize,
    pub(crate) shared: Arc<RxShared>,
}

/// A port.
pub(crate) struct PortState {
    pub(crate) port: Arc<dyn Port>,
    pub(crate) config: PortConfig,
    mtu: Arc<AtomicU32>,
    /// One per worker.
    counters: Vec<Arc<PortCounters>>,
    pub(crate) rx: Vec<RxInfo>,
    /// What workers and queues that are gone have counted.
    past: PortStats,
}

/// A worker thread.
pub(crate) struct WorkerHandle {
    pub(crate) commands: Arc<CommandTx>,
    thread: Option<JoinHandle<()>>,
    /// The processor that it is pinned to, or that it stands for in texts.
    pub(crate) core: usize,
    /// That processor's NUMA node.
    pub(crate) numa: u32,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) started: std::time::Instant,
    /// Counts at the last `pmd-stats-clear`.
    pub(crate) base: WorkerNumbers,
    /// Lost upcalls then.
    pub(crate) base_lost: u64,
    /// When that was.
    pub(crate) cleared_ms: u64,
}

/// Upcall rings, one per worker; those of ended workers until they are empty.
pub(crate) type UpcallRings = Mutex<Vec<Consumer<UpcallPacket>>>;

/// Ports and workers.
pub(crate) struct Control {
    pub(crate) shared: Arc<Shared>,
    sweep: Arc<Mutex<Sweep>>,
    upcalls: Arc<UpcallRings>,
    config: Config,
    pub(crate) ports: BTreeMap<u32, PortState>,
    pub(crate) workers: Vec<WorkerHandle>,
    /// Counters of ended workers that are not shown per worker: drops.
    pub(crate) past_drops: Vec<u64>,
    pub(crate) past: WorkerNumbers,
}

impl Control {
    pub(crate) fn new(
        shared: Arc<Shared>,
        sweep: Arc<Mutex<Sweep>>,
        upcalls: Arc<UpcallRings>,
        config: Config,
    ) -> Self {
        Self {
            shared,
            sweep,
            upcalls,
            config,
            ports: BTreeMap::new(),
            workers: Vec::new(),
            past_drops: vec![0; crate::drops::DropKind::ALL.len()],
            past: WorkerNumbers::default(),
        }
    }

    // -- workers

    /// Replaces all workers; ports are opened again for the new ones.
    pub(crate) fn set_workers(&mut self, cpus: Option<&[usize]>) -> Result<(), DatapathError> {
        self.stop_workers();
        let allowed = cpu::allowed().unwrap_or_else(|_| vec![0]);
        let (cores, pinned): (Vec<usize>, bool) = match cpus {
            Some(cpus) if !cpus.is_empty() => (cpus.to_vec(), true),
            _ => (allowed.into_iter().take(MAX_DEFAULT_WORKERS).collect(), false),
        };
        let (cores, pinned) = match &self.config.dummy_numa {
            Some(nodes) => (pretended(nodes, cpus), false),
            None => (cores, pinned),
        };
        for (index, core) in cores.into_iter().enumerate() {
            let w = self.start_worker(index, core, pinned)?;
            self.workers.push(w);
        }
        let mut failed = None;
        for no in self.ports.keys().copied().collect::<Vec<_>>() {
            if let Err(e) = self.open_tx(no).and_then(|()| self.open_rx(no)) {
                log::warn!("port {no}: {e}");
                failed.get_or_insert(e);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn start_worker(&self, index: usize, core: usize, pinned: bool) -> Result<WorkerHandle, DatapathError> {
        let bell = Arc::new(EventFd::new()?);
        let (commands, command_rx) = command_ring(Arc::clone(&bell));
        let commands = Arc::new(commands);
        let (notes, notes_rx) = ring(note::RING);
        let horizon = Arc::new(Horizon::default());
        let worker_horizon = Arc::clone(&horizon);
        let (upcall_tx, upcall_rx) = upcall_ring(self.config.upcall_ring, Arc::clone(&self.shared.bell));
        let counters = Arc::new(WorkerCounters::default());
        let (started_tx, started) = mpsc::channel();
        let (shared, config) = (Arc::clone(&self.shared), self.config.clone());
        let worker_counters = Arc::clone(&counters);
        let name = if pinned {
            format!("pmd-c{core:02}")
        } else {
            format!("worker{index}")
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            if pinned && cpu::pin(&[core]).is_err() {
                log::warn!("cannot bind a worker to processor {core}");
            }
            let worker = L1::new(config.l1_entries, config.l1_most).and_then(|l1| {
                let cache = CacheParts {
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
        self.sweep.lock().workers.push(SweepWorker::new(
            index,
            pinned.then_some(core),
            notes_rx,
            horizon,
            Arc::clone(&commands),
        ));
        self.upcalls.lock().push(upcall_rx);
        let thread = Some(thread);
        let numa = match &self.config.dummy_numa {
            Some(nodes) => nodes.get(core).copied(),
            None => cpu::numa_node(core),
        };
        Ok(WorkerHandle {
            commands,
            thread,
            core,
            numa: numa.unwrap_or(0),
            counters,
            started: std::time::Instant::now(),
            base: WorkerNumbers::default(),
            base_lost: 0,
            cleared_ms: self.shared.clock.now_ms(),
        })
    }

    /// Ends all workers; their counts are kept.
    pub(crate) fn stop_workers(&mut self) {
        for (index, mut w) in std::mem::take(&mut self.workers).into_iter().enumerate() {
            w.commands.send(Command::Stop);
            if w.thread.take().is_some_and(|t| t.join().is_err()) {
                log::error!("worker {index} ended by a panic");
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
            self.sweep.lock().retire(index);
        }
        for no in self.ports.keys().copied().collect::<Vec<_>>() {
            self.keep_counts(no, true);
        }
        let mut rings = self.upcalls.lock();
        rings.retain_mut(|r| !r.is_empty());
    }

    /// Waits until every worker has done what it was told so far.
    fn barrier(&self) -> Result<(), DatapathError> {
        self.ask_all(Command::Barrier).map(|_| ())
    }

    /// Waits until every worker had a round without packets in its queues (a bounded time).
    pub(crate) fn sync(&self, patience: Duration) -> Result<(), DatapathError> {
        self.ask_within(patience, Command::Sync).map(|_| ())
    }

    fn ask_all(&self, command: impl Fn(mpsc::Sender<Reply>) -> Command) -> Result<Vec<Reply>, DatapathError> {
        self.ask_within(PATIENCE, command)
    }

    fn ask_within(
        &self,
        patience: Duration,
        command: impl Fn(mpsc::Sender<Reply>) -> Command,
    ) -> Result<Vec<Reply>, DatapathError> {
        let (tx, rx) = mpsc::channel();
        let mut n = 0;
        for w in &self.workers {
            n += usize::from(w.commands.send(command(tx.clone())));
        }
        drop(tx);
        let deadline = std::time::Instant::now() + patience;
        let mut replies = Vec::with_capacity(n);
        for _ in 0..n {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            replies.push(rx.recv_timeout(left).map_err(|_| DatapathError::Timeout)?);
        }
        Ok(replies)
    }

    // -- ports

    pub(crate) fn add_port(
        &mut self,
        port: Arc<dyn Port>,
        want: Option<PortNo>,
    ) -> Result<PortNo, DatapathError> {
        let no = match want {
            Some(no) if self.ports.contains_key(&no.0) => return Err(DatapathError::InUse(no)),
            Some(no) if no.0 > MAX_PORT => return Err(DatapathError::Full),
            Some(no) => no.0,
            None => (1..=MAX_PORT)
                .find(|n| !self.ports.contains_key(n))
                .ok_or(DatapathError::Full)?,
        };
        let mtu = Arc::new(AtomicU32::new(port.status().mtu));
        let config = PortConfig::default();
        let past = PortStats::default();
        self.ports.insert(
            no,
            PortState {
                port,
                config,
                mtu,
                counters: Vec::new(),
                rx: Vec::new(),
                past,
            },
        );
        if let Err(e) = self.open_tx(no).and_then(|()| self.open_rx(no)) {
            // The error that matters is the one that the port gave.
            let _ = self.close(no);
            self.ports.remove(&no);
            return Err(e);
        }
        Ok(PortNo(no))
    }

    pub(crate) fn del_port(&mut self, no: PortNo) -> Result<(), DatapathError> {
        if !self.ports.contains_key(&no.0) {
            return Err(DatapathError::NoPort(no));
        }
        let closed = self.close(no.0);
        self.ports.remove(&no.0);
        closed
    }

    /// Takes a port's queues away from all workers and closes them.
    fn close(&self, no: u32) -> Result<(), DatapathError> {
        self.ask_all(|reply| Command::DelPort(no, reply)).map(drop)
    }

    pub(crate) fn configure_port(&mut self, no: PortNo, config: PortConfig) -> Result<(), DatapathError> {
        let state = self.ports.get_mut(&no.0).ok_or(DatapathError::NoPort(no))?;
        if state.config == config {
            return Ok(());
        }
        state.config = config;
        self.reopen_rx(no)?.or_else(|why| {
            // As many queues as were asked for cannot be had. One can, as before: the port is not left deaf.
            if let Some(state) = self.ports.get_mut(&no.0) {
                state.config = PortConfig::default();
            }
            self.reopen_rx(no)??;
            Err(why)
        })
    }

    /// Closes the receive queues and opens those that are configured. The inner result is that of the opening.
    fn reopen_rx(&mut self, no: PortNo) -> Result<Result<(), DatapathError>, DatapathError> {
        self.ask_all(|reply| Command::DelRx(no.0, reply))?;
        self.keep_counts(no.0, false);
        Ok(self.open_rx(no.0))
    }

    pub(crate) fn set_mtu(&self, no: PortNo, mtu: u32) -> Result<(), DatapathError> {
        self.ports
            .get(&no.0)
            .ok_or(DatapathError::NoPort(no))?
            .mtu
            .store(mtu, Relaxed);
        Ok(())
    }

    fn open_tx(&mut self, no: u32) -> Result<(), DatapathError> {
        let n = self.workers.len();
        let state = self.ports.get_mut(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        state.counters.clear();
        for (i, w) in self.workers.iter().enumerate() {
            let counters = Arc::new(PortCounters::default());
            state.counters.push(Arc::clone(&counters));
            let queue = state.port.open_tx(i, n)?;
            let port = TxPort::new(queue, Arc::clone(&state.mtu), counters);
            if !w.commands.send(Command::AddTx(no, port)) {
                return Err(DatapathError::Timeout);
            }
        }
        // Every worker can send on it before any receives from it.
        self.barrier()
    }

    fn open_rx(&mut self, no: u32) -> Result<(), DatapathError> {
        let state = self.ports.get(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        let queues = state.port.open_rx(state.config.n_rxq.max(1))?;
        for (i, queue) in queues.into_iter().enumerate() {
            self.place(no, i, queue)?;
        }
        self.barrier()
    }

    /// Gives a receive queue to the worker of its affinity; else, of the workers on the port's NUMA node (of all, if none is
    /// there), to the one with the fewest queues.
    fn place(&mut self, no: u32, i: usize, queue: Box<dyn RxQueue>) -> Result<(), DatapathError> {
        let load = |w: usize| {
            self.ports
                .values()
                .flat_map(|p| &p.rx)
                .filter(|r| r.worker == w)
                .count()
        };
        let node = self.ports.get(&no).and_then(|p| p.config.numa);
        let away = |w: &WorkerHandle| node.is_some_and(|n| n != w.numa);
        let workers = self.workers.iter().enumerate();
        let fewest = workers
            .min_by_key(|(i, w)| (away(w), load(*i)))
            .map(|(i, _)| i)
            .ok_or(DatapathError::Timeout)?;
        let state = self.ports.get_mut(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        let wanted = state
            .config
            .affinity
            .iter()
            .find(|(q, _)| *q == i)
            .map(|(_, core)| *core);
        let wanted = wanted.and_then(|core| self.workers.iter().position(|w| w.core == core));
        let worker = wanted.unwrap_or(fewest);
        let shared = Arc::new(RxShared::default());
        state.rx.push(RxInfo {
            queue: i,
            worker,
            shared: Arc::clone(&shared),
        });
        let (Some(counters), Some(w)) = (state.counters.get(worker), self.workers.get(worker)) else {
            return Err(DatapathError::Timeout);
        };
        let counters = Arc::clone(counters);
        let slot = RxSlot {
            queue,
            port: no,
            counters,
            shared,
            dropped_seen: 0,
            watched: None,
        };
        if w.commands.send(Command::AddRx(slot)) {
            Ok(())
        } else {
            Err(DatapathError::Timeout)
        }
    }

    /// Before queues (and, with `workers`, the workers' counters) go: keeps what they have counted.
    fn keep_counts(&mut self, no: u32, workers: bool) {
        let Some(state) = self.ports.get_mut(&no) else {
            return;
        };
        for r in state.rx.drain(..) {
            add_reasons(&mut state.past, &r.shared);
        }
        if workers {
            for c in state.counters.drain(..) {
                add(&mut state.past, &c);
            }
        }
    }

    pub(crate) fn port_stats(&self, no: PortNo) -> Option<PortStats> {
        let state = self.ports.get(&no.0)?;
        let mut sum = state.past.clone();
        for c in &state.counters {
            add(&mut sum, c);
        }
        for r in &state.rx {
            add_reasons(&mut sum, &r.shared);
        }
        Some(sum)
    }

    /// The worker that receives from a port, or the first.
    pub(crate) fn worker_of(&self, no: PortNo) -> Option<&WorkerHandle> {
        let at = self
            .ports
            .get(&no.0)
            .and_then(|p| p.rx.first())
            .map_or(0, |r| r.worker);
        self.workers.get(at)
    }
}

/// The pretended processors that workers stand for: those of `cpus` that exist, else the first of each node.
fn pretended(nodes: &[u32], cpus: Option<&[usize]>) -> Vec<usize> {
    let asked = cpus.unwrap_or_default().iter().copied();
    let asked: Vec<usize> = asked.filter(|c| *c < nodes.len()).collect();
    if !asked.is_empty() {
        return asked;
    }
    let first = |i: &usize| nodes.get(..*i).is_none_or(|before| !before.contains(&nodes[*i]));
    (0..nodes.len().max(1))
        .filter(|i| nodes.is_empty() || first(i))
        .collect()
}

fn add(to: &mut PortStats, c: &PortCounters) {
    to.rx_packets += c.rx_packets.get();
    to.rx_bytes += c.rx_bytes.get();
    to.rx_errors += c.rx_errors.get();
    to.tx_packets += c.tx_packets.get();
    to.tx_bytes += c.tx_bytes.get();
    to.tx_dropped += c.tx_dropped.get();
    to.tx_errors += c.tx_errors.get();
}

fn add_reasons(to: &mut PortStats, r: &RxShared) {
    for (name, n) in r.dropped.lock().iter() {
        to.rx_dropped += n;
        match to.rx_reasons.iter_mut().find(|(have, _)| have == name) {
            Some((_, sum)) => *sum += n,
            None => to.rx_reasons.push((name, *n)),
        }
    }
}
