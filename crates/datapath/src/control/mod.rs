//! The control side of ports and workers: which worker polls which queue, and how that changes while packets
//! flow.
//!
//! All changes are made by commands to the workers, under one lock that workers never take. A change returns
//! when the workers have carried it out. Queues are opened and closed here, not on workers: that may take
//! milliseconds.
//!
//! * [`workers`]: threads come and go;
//! * [`move_queues`]: queues move between them;
//! * [`auto`]: queues move automatically, by load.

pub(crate) mod assign;
mod auto;
mod cpus;
mod move_queues;
pub(crate) mod show;
mod workers;

use crate::config::{Config, DatapathError, MaxSleep, PortConfig};
use crate::control::assign::Spread;
use crate::counters::{PortCounters, Tally, WorkerCounters, WorkerNumbers};
use crate::exec::tx::TxPort;
use crate::exec::upcalls::{Lanes, UpcallInbox};
use crate::perf::PerfNumbers;
use crate::revalidator::Revalidator;
use crate::shared::Shared;
use crate::worker::{Command, CommandTx, Reply, RxShared, RxSlot, WORKER_TIMEOUT};
pub use auto::AutoLb;
use auto::AutoState;
use cpus::WorkerCpus;
use heddle_datapath_api::{Meter, POLICED, PortNo, PortStats};
use heddle_port::{Port, RxQueue};
use heddle_sys::priority::{Refused, Scheduling, ThreadId};
use move_queues::Dirty;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest port number: workers index a table by it.
const MAX_PORT: u32 = 65_533;

/// A receive queue, as the control side knows it.
pub(crate) struct RxInfo {
    pub(crate) queue: usize,
    /// The worker that polls it, by its id.
    pub(crate) worker: Option<usize>,
    pub(crate) shared: Arc<RxShared>,
    /// The queue itself while no worker has it.
    parked: Option<RxSlot>,
}

/// A port.
pub(crate) struct PortState {
    pub(crate) port: Arc<dyn Port>,
    pub(crate) config: PortConfig,
    mtu: Arc<AtomicU32>,
    /// One per worker, with the worker's id.
    counters: Vec<(usize, Arc<PortCounters>)>,
    pub(crate) rx: Vec<RxInfo>,
    /// Meters on received packets.
    policing: Vec<Arc<Meter>>,
    /// Counts of workers and queues that are gone.
    past: PortStats,
}

/// The settings of a port that could not be opened again.
#[derive(Default)]
struct ClosedPort {
    config: PortConfig,
    policing: Vec<Arc<Meter>>,
}

/// A worker thread.
pub(crate) struct WorkerHandle {
    /// The smallest number that was free when it started.
    pub(crate) id: usize,
    pub(crate) commands: Arc<CommandTx>,
    thread: Option<JoinHandle<()>>,
    /// The kernel's number of the thread.
    thread_id: ThreadId,
    place: WorkerCpus,
    /// The processor that it is pinned to, or that represents it in texts.
    pub(crate) core: usize,
    /// That processor's NUMA node.
    pub(crate) numa: u32,
    /// The worker polls queues with an affinity only.
    pub(crate) isolated: bool,
    pub(crate) counters: Arc<WorkerCounters>,
    /// Start time, by the datapath's clock.
    pub(crate) started_ms: u64,
    /// Counts at the last `pmd-stats-clear`.
    pub(crate) base: WorkerNumbers,
    /// Histograms at that time.
    pub(crate) base_perf: PerfNumbers,
    /// Lost upcalls at that time.
    pub(crate) base_lost: u64,
    /// Time of the last `pmd-stats-clear`.
    pub(crate) cleared_ms: u64,
}

impl WorkerHandle {
    /// Whether its thread runs.
    fn lives(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }
    /// Sets whether the worker has real-time priority.
    fn set_realtime(&self, on: bool) -> Result<(), DatapathError> {
        let (reply, done) = mpsc::channel();
        if !self.commands.send(Command::Realtime(on, reply)) {
            return Err(DatapathError::Timeout);
        }
        let done = done.recv_timeout(WORKER_TIMEOUT);
        Ok(done.map_err(|_| DatapathError::Timeout)??)
    }
}

/// Upcall rings of all workers, by kind.
pub(crate) type UpcallRings = Lanes<Mutex<UpcallInbox>>;

/// Ports and workers.
pub(crate) struct Control {
    pub(crate) shared: Arc<Shared>,
    revalidator: Arc<Mutex<Revalidator>>,
    upcalls: Arc<UpcallRings>,
    config: Config,
    pub(crate) ports: BTreeMap<u32, PortState>,
    /// Ports that could not be opened again. Their owner still has their numbers, so no other port gets
    /// these.
    closed: BTreeMap<u32, ClosedPort>,
    /// Ascending by processor.
    pub(crate) workers: Vec<WorkerHandle>,
    /// Workers that are about to end, while their queues move.
    leaving: Vec<WorkerHandle>,
    spread: Spread,
    /// Changes since the last assignment of queues.
    dirty: Dirty,
    auto: AutoState,
    pub(crate) max_sleep: MaxSleep,
    /// Workers have real-time priority.
    realtime: bool,
    /// Scheduling of workers without real-time priority; `None`: as the process began.
    scheduling: Option<Scheduling>,
    /// Counters of ended workers that are not shown per worker: drops.
    pub(crate) past_drops: Vec<u64>,
    /// ... and of connection tracking.
    pub(crate) past_tracked: Tally,
    pub(crate) past: WorkerNumbers,
}

impl Control {
    pub(crate) fn new(
        shared: Arc<Shared>,
        revalidator: Arc<Mutex<Revalidator>>,
        upcalls: Arc<UpcallRings>,
        config: Config,
    ) -> Self {
        Self {
            shared,
            revalidator,
            upcalls,
            config,
            ports: BTreeMap::new(),
            closed: BTreeMap::new(),
            workers: Vec::new(),
            leaving: Vec::new(),
            spread: Spread::default(),
            dirty: Dirty::default(),
            auto: AutoState::default(),
            max_sleep: MaxSleep::default(),
            realtime: false,
            scheduling: None,
            past_tracked: Tally::default(),
            past_drops: vec![0; heddle_datapath_api::DropKind::ALL.len()],
            past: WorkerNumbers::default(),
        }
    }

    /// Sets the pauses of workers.
    pub(crate) fn set_max_sleep(&mut self, max: MaxSleep) {
        self.max_sleep = max;
        for w in &self.workers {
            w.commands.send(Command::MaxSleep(self.max_sleep.of(w.core)));
        }
    }

    /// Sets whether workers have real-time priority. `Err`: a command failed for some worker.
    pub(crate) fn set_realtime(&mut self, on: bool) -> Result<(), DatapathError> {
        self.realtime = on;
        let told = self.workers.iter().map(|w| w.set_realtime(on));
        let told = told.fold(Ok(()), Result::and);
        if let Some(scheduling) = self.scheduling.filter(|_| !on) {
            // Real-time threads take no slices.
            self.set_scheduling(scheduling);
        }
        told
    }

    /// Sets how the kernel schedules workers. Returns the parts that it refused.
    pub(crate) fn set_scheduling(&mut self, scheduling: Scheduling) -> Refused {
        self.scheduling = Some(scheduling);
        let applied = self.workers.iter().map(|w| scheduling.apply(w.thread_id));
        applied.fold(Refused::default(), Refused::or)
    }

    // -- requests to workers

    /// Waits until every worker has done all earlier commands.
    fn barrier(&self) -> Result<(), DatapathError> {
        self.request_all(Command::Barrier).map(|_| ())
    }

    /// Waits until every worker had a round without packets in its queues (a bounded time).
    pub(crate) fn sync(&self, patience: Duration) -> Result<(), DatapathError> {
        self.request_within(patience, Command::Sync).map(|_| ())
    }

    fn request_all(
        &self,
        command: impl Fn(mpsc::Sender<Reply>) -> Command,
    ) -> Result<Vec<Reply>, DatapathError> {
        self.request_within(WORKER_TIMEOUT, command)
    }

    fn request_within(
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
        let is_taken = |no: &u32| self.ports.contains_key(no) || self.closed.contains_key(no);
        let no = match want {
            Some(no) if is_taken(&no.0) => return Err(DatapathError::InUse(no)),
            Some(no) if no.0 > MAX_PORT => return Err(DatapathError::Full),
            Some(no) => no.0,
            None => (1..=MAX_PORT).find(|n| !is_taken(n)).ok_or(DatapathError::Full)?,
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
                policing: Vec::new(),
                past,
            },
        );
        if let Err(e) = self.open_tx(no).and_then(|()| self.open_rx(no)) {
            // The port's own error is returned.
            let _ = self.close(no);
            self.ports.remove(&no);
            return Err(e);
        }
        Ok(PortNo(no))
    }

    pub(crate) fn del_port(&mut self, no: PortNo) -> Result<(), DatapathError> {
        if self.closed.remove(&no.0).is_some() {
            return Ok(());
        }
        if !self.ports.contains_key(&no.0) {
            return Err(DatapathError::NoPort(no));
        }
        let closed = self.close(no.0);
        self.ports.remove(&no.0);
        closed
    }

    /// Takes a port's queues away from all workers and closes them.
    fn close(&self, no: u32) -> Result<(), DatapathError> {
        self.request_all(|reply| Command::DelPort(no, reply)).map(drop)
    }

    /// Opens a port again, also one that was not opened the last time. If that fails, the number stays the
    /// port's until [`Control::del_port`].
    pub(crate) fn replace_port(&mut self, no: PortNo, port: Arc<dyn Port>) -> Result<(), DatapathError> {
        let settings = match self.ports.get(&no.0) {
            Some(state) => ClosedPort {
                config: state.config.clone(),
                policing: state.policing.clone(),
            },
            None => self.closed.remove(&no.0).unwrap_or_default(),
        };
        let opened = match self.del_port(no) {
            Ok(()) | Err(DatapathError::NoPort(_)) => self.add_port(port, Some(no)),
            Err(error) => Err(error),
        };
        if let Err(error) = opened {
            self.closed.insert(no.0, settings);
            return Err(error);
        }
        self.set_policing(no, settings.policing)?;
        self.configure_port(no, settings.config)
    }

    pub(crate) fn configure_port(&mut self, no: PortNo, config: PortConfig) -> Result<(), DatapathError> {
        if let Some(kept) = self.closed.get_mut(&no.0) {
            kept.config = config;
            return Ok(());
        }
        let state = self.ports.get_mut(&no.0).ok_or(DatapathError::NoPort(no))?;
        if state.config == config {
            return Ok(());
        }
        let same_queues = state.config.n_rxq == config.n_rxq;
        state.config = config;
        self.dirty.port(no.0);
        if same_queues {
            return Ok(());
        }
        self.reopen_rx(no)?.or_else(|why| {
            // The wanted number of queues cannot be opened. One can, as before, so the port still receives.
            if let Some(state) = self.ports.get_mut(&no.0) {
                state.config = PortConfig::default();
            }
            self.reopen_rx(no)??;
            Err(why)
        })
    }

    /// Closes the receive queues and opens the configured number. The inner result is that of opening them.
    fn reopen_rx(&mut self, no: PortNo) -> Result<Result<(), DatapathError>, DatapathError> {
        let state = self.ports.get(&no.0).ok_or(DatapathError::NoPort(no))?;
        let (port, n) = (Arc::clone(&state.port), state.config.n_rxq.max(1));
        let new = port.takes_over().then(|| port.open_rx(n));
        if matches!(new, Some(Ok(_))) {
            // Packets in the old queues are forwarded before those in the new queues.
            let _ = self.sync(WORKER_TIMEOUT);
        }
        let old = self.request_all(|reply| Command::DelRx(no.0, reply))?;
        self.keep_counts(no.0);
        let (opened, old) = match new {
            Some(Ok(queues)) => (Ok(queues), Some(old)),
            // Old and new queues together may have been too many.
            _ => {
                drop(old);
                (port.open_rx(n), None)
            }
        };
        let opened = opened.map_err(DatapathError::from);
        let opened = opened.and_then(|queues| self.add_rx(no.0, queues));
        // Closing them may take the kernel tens of milliseconds; meanwhile the new ones are polled.
        drop(old);
        Ok(opened)
    }

    pub(crate) fn set_mtu(&self, no: PortNo, mtu: u32) -> Result<(), DatapathError> {
        self.ports
            .get(&no.0)
            .ok_or(DatapathError::NoPort(no))?
            .mtu
            .store(mtu, Relaxed);
        Ok(())
    }

    /// Limits the packets that a port receives; an empty list: no limit.
    pub(crate) fn set_policing(&mut self, no: PortNo, limits: Vec<Arc<Meter>>) -> Result<(), DatapathError> {
        if let Some(kept) = self.closed.get_mut(&no.0) {
            kept.policing = limits;
            return Ok(());
        }
        let state = self.ports.get_mut(&no.0).ok_or(DatapathError::NoPort(no))?;
        for r in &state.rx {
            r.shared.policing.set(limits.clone());
        }
        state.policing = limits;
        Ok(())
    }

    /// Opens the port for sending on every worker, before any worker receives from it.
    fn open_tx(&mut self, no: u32) -> Result<(), DatapathError> {
        let ids: Vec<usize> = self.workers.iter().map(|w| w.id).collect();
        ids.into_iter().try_for_each(|id| self.open_tx_of(no, id))?;
        self.barrier()
    }

    /// Opens a port's transmit queue for worker `id`.
    fn open_tx_of(&mut self, no: u32, id: usize) -> Result<(), DatapathError> {
        let w = self
            .workers
            .iter()
            .find(|w| w.id == id)
            .ok_or(DatapathError::Timeout)?;
        let state = self.ports.get_mut(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        let counters = Arc::new(PortCounters::default());
        state.counters.push((id, Arc::clone(&counters)));
        let queue = state.port.open_tx(id, self.workers.len())?;
        let port = TxPort::new(queue, Arc::clone(&state.mtu), counters);
        if w.commands.send(Command::AddTx(no, port)) {
            Ok(())
        } else {
            Err(DatapathError::Timeout)
        }
    }

    fn open_rx(&mut self, no: u32) -> Result<(), DatapathError> {
        let state = self.ports.get(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        let queues = state.port.open_rx(state.config.n_rxq.max(1))?;
        self.add_rx(no, queues)
    }

    /// Has workers poll these queues of a port.
    fn add_rx(&mut self, no: u32, queues: Vec<Box<dyn RxQueue>>) -> Result<(), DatapathError> {
        let state = self.ports.get_mut(&no).ok_or(DatapathError::NoPort(PortNo(no)))?;
        for (i, queue) in queues.into_iter().enumerate() {
            let shared = Arc::new(RxShared::default());
            shared.policing.set(state.policing.clone());
            let slot = RxSlot::new(queue, no, i, Arc::clone(&shared));
            state.rx.push(RxInfo {
                queue: i,
                worker: None,
                shared,
                parked: Some(slot),
            });
        }
        self.dirty.port(no);
        self.place_for_now(no)
    }

    /// Keeps the counts of a port's queues before they are closed.
    fn keep_counts(&mut self, no: u32) {
        if let Some(state) = self.ports.get_mut(&no) {
            for r in state.rx.drain(..) {
                add_reasons(&mut state.past, &r.shared);
            }
        }
    }

    /// Packets that a rule drops and that no worker received.
    pub(crate) fn dropped_without_worker(&self) -> u64 {
        self.revalidator.lock().dropped()
    }

    pub(crate) fn port_stats(&self, no: PortNo) -> Option<PortStats> {
        let state = self.ports.get(&no.0)?;
        let mut sum = state.past.clone();
        for (_, c) in &state.counters {
            add(&mut sum, c);
        }
        for r in &state.rx {
            add_reasons(&mut sum, &r.shared);
        }
        let without = self.revalidator.lock().port_counts(no);
        sum.rx_packets += without.rx_packets;
        sum.rx_bytes += without.rx_bytes;
        sum.tx_packets += without.tx_packets;
        sum.tx_bytes += without.tx_bytes;
        Some(sum)
    }

    /// The worker that receives from a port, or the first.
    pub(crate) fn worker_of(&self, no: PortNo) -> Option<&WorkerHandle> {
        let id = self.ports.get(&no.0).and_then(|p| p.rx.first()?.worker);
        let own = id.and_then(|id| self.workers.iter().find(|w| w.id == id));
        own.or(self.workers.first())
    }
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
    let policed = Some((POLICED, r.policing.dropped.load(Relaxed))).filter(|(_, n)| *n != 0);
    let own = r.dropped.lock().clone();
    for (name, n) in own.iter().copied().chain(policed) {
        to.rx_dropped += n;
        match to.rx_reasons.iter_mut().find(|(have, _)| *have == name) {
            Some((_, sum)) => *sum += n,
            None => to.rx_reasons.push((name, n)),
        }
    }
}
