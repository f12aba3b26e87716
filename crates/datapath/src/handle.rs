//! The public handle of a running datapath.
//!
//! **Threads.** Any method may be called from any control thread, none from a worker, that is, from
//! [`Translate::translate`] or [`crate::Credit::credit`]: those run under the datapath's locks or on its threads.
//! Methods that change ports or workers wait for the workers, some milliseconds at most.
//!
//! Locks, in the order in which they are taken: control (ports and workers), sweep (entries), upcalls.

use crate::action::{Action, PortNo};
use crate::assign::Spread;
use crate::config::{Config, DatapathError, MaxSleep, PortConfig};
use crate::control::{AutoLb, Control, UpcallRings, WorkerHandle};
use crate::drops::DropKind;
use crate::format;
use crate::hash::HashKey;
use crate::perf::{PerfWanted, SuspectLog, SuspectSetting};
use crate::program::Program;
use crate::shared::Shared;
use crate::show;
use crate::sweep::Sweep;
use crate::translate::Translate;
use crate::upcalls::Bell;
use crate::view::{FlowDump, PortInfo, PortStats, Snapshot, Totals, UpcallPacket};
use crate::worker::{Command, PATIENCE};
use heddle_packet::Packet;
use heddle_port::Port;
use heddle_sys::Tsc;
use parking_lot::Mutex;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running datapath: workers, sweeper, ports. Shared by `ofproto` and `switchd` in an `Arc`.
pub struct Datapath {
    shared: Arc<Shared>,
    control: Mutex<Control>,
    sweep: Arc<Mutex<Sweep>>,
    upcalls: Arc<UpcallRings>,
    sweeper: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Datapath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datapath").finish_non_exhaustive()
    }
}

impl Datapath {
    /// Starts workers and sweeper.
    ///
    /// # Errors
    /// [`DatapathError::Io`] when the system refuses threads or descriptors.
    pub fn new(config: Config, translate: Arc<dyn Translate>) -> Result<Arc<Self>, DatapathError> {
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            translate,
            clock: Arc::clone(&config.clock),
            bell: Arc::new(Bell::new()?),
            hash_key: HashKey::random(),
            n_flows: 0.into(),
            flow_limit: config.flow_limit.into(),
            max_idle_ms: config.max_idle_ms.into(),
            vlan_limit: config.vlan_limit.into(),
            spin_cycles: Tsc::from_us(config.spin_us).into(),
            inv_prob: crate::shared::UNSET.into(),
            perf_metrics: false.into(),
            suspects: SuspectSetting::default(),
            sweeper: std::sync::OnceLock::new(),
            light_sleep: true.into(),
            paused: false.into(),
            stop: false.into(),
        });
        if let Some(notes) = &config.notes {
            heddle_sys::halting::put_back(notes);
        }
        let sweep = Arc::new(Mutex::new(Sweep::new(Arc::clone(&shared))));
        let upcalls = Arc::new(UpcallRings::default());
        let (cpus, interval) = (config.cpus.clone(), config.sweep_interval_ms);
        let mut control = Control::new(
            Arc::clone(&shared),
            Arc::clone(&sweep),
            Arc::clone(&upcalls),
            config,
        );
        control.set_workers(cpus.as_deref())?;
        let sweeper = match interval {
            0 => None,
            ms => Some(start_sweeper(&shared, &sweep, Duration::from_millis(ms))?),
        };
        let (control, sweeper) = (Mutex::new(control), Mutex::new(sweeper));
        Ok(Arc::new(Self {
            shared,
            control,
            sweep,
            upcalls,
            sweeper,
        }))
    }

    /// Stops all threads and closes all ports' queues. Also done on drop; twice does no harm.
    pub fn shutdown(&self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.wake_sweeper();
        let mut control = self.control.lock();
        control.stop_workers();
        control.ports.clear();
        drop(control);
        if self.sweeper.lock().take().is_some_and(|t| t.join().is_err()) {
            log::error!("the sweeper ended by a panic");
        }
    }

    // -- ports

    /// Adds a port under `want`, or under the lowest free number from 1. It has one receive queue until
    /// [`Datapath::configure_port`] says otherwise.
    ///
    /// # Errors
    /// What the port says when it cannot be opened; [`DatapathError::InUse`]; [`DatapathError::Full`].
    pub fn add_port(&self, port: Arc<dyn Port>, want: Option<PortNo>) -> Result<PortNo, DatapathError> {
        self.control.lock().add_port(port, want)
    }
    /// Removes a port; when it returns, no worker uses it any more and its queues are closed.
    ///
    /// # Errors
    /// [`DatapathError::NoPort`].
    pub fn del_port(&self, no: PortNo) -> Result<(), DatapathError> {
        self.control.lock().del_port(no)
    }
    /// Opens a port's receive queues anew as told, if that is a change.
    ///
    /// # Errors
    /// [`DatapathError::NoPort`], or what the port says.
    pub fn configure_port(&self, no: PortNo, config: PortConfig) -> Result<(), DatapathError> {
        self.control.lock().configure_port(no, config)
    }
    /// Says that the port's MTU is now this (0: no limit). It was read from `Port::status` when the port was added.
    ///
    /// # Errors
    /// [`DatapathError::NoPort`].
    pub fn set_port_mtu(&self, no: PortNo, mtu: u32) -> Result<(), DatapathError> {
        self.control.lock().set_mtu(no, mtu)
    }
    /// All ports, by number.
    pub fn ports(&self) -> Vec<PortInfo> {
        let control = self.control.lock();
        let info = |(no, p): (&u32, &crate::control::PortState)| PortInfo {
            no: PortNo(*no),
            name: p.port.name().to_owned(),
            kind: p.port.kind(),
            n_rxq: p.rx.len(),
            is_pmd: p.port.is_pmd(),
        };
        control.ports.iter().map(info).collect()
    }
    /// A port's own handle.
    pub fn port(&self, no: PortNo) -> Option<Arc<dyn Port>> {
        self.control.lock().ports.get(&no.0).map(|p| Arc::clone(&p.port))
    }
    /// The number of the port of this name.
    pub fn port_by_name(&self, name: &str) -> Option<PortNo> {
        self.control
            .lock()
            .ports
            .iter()
            .find(|(_, p)| p.port.name() == name)
            .map(|(no, _)| PortNo(*no))
    }
    /// A port's counters.
    pub fn port_stats(&self, no: PortNo) -> Option<PortStats> {
        self.control.lock().port_stats(no)
    }

    // -- workers

    /// One pinned worker per processor of `cpus` (`pmd-cpu-mask`). `None` or empty: one per processor that the
    /// process may use, at most 4, not pinned: on a machine that has other work to do, the scheduler moves them
    /// out of its way. Workers that are wanted before and after stay; queues of the others move, and what those have cached is credited and dropped.
    ///
    /// # Errors
    /// [`DatapathError::Io`] when the system refuses threads; what a port says that cannot be opened for a new worker.
    pub fn set_workers(&self, cpus: Option<&[usize]>) -> Result<(), DatapathError> {
        self.control.lock().set_workers(cpus)
    }
    /// How receive queues are spread over workers (`pmd-rxq-assign`, `pmd-rxq-isolate`); takes effect with
    /// [`Datapath::assign_queues`].
    pub fn set_spread(&self, spread: Spread) {
        self.control.lock().set_spread(spread);
    }
    /// Assigns receive queues to workers, if ports or settings have changed since that was done last. A new queue is polled before that
    /// too, by some worker.
    ///
    /// # Errors
    /// [`DatapathError::Timeout`] when a worker does not answer.
    pub fn assign_queues(&self) -> Result<(), DatapathError> {
        self.control.lock().assign()
    }
    /// Assigns receive queues to workers by what they cost now (`dpif-netdev/pmd-rxq-rebalance`).
    ///
    /// # Errors
    /// As [`Datapath::assign_queues`].
    pub fn rebalance(&self) -> Result<(), DatapathError> {
        self.control.lock().assign_again()
    }
    /// Sets automatic load balancing up (`pmd-auto-lb*`).
    pub fn set_auto_lb(&self, settings: AutoLb) {
        self.control.lock().set_auto_lb(settings);
    }
    /// Sets how long workers pause at most (`pmd-sleep-max`).
    pub fn set_max_sleep(&self, max: MaxSleep) {
        self.control.lock().set_max_sleep(max);
    }
    /// Lets workers keep their processors from halting while packets come every few milliseconds, or not (`heddle-light-sleep`).
    pub fn set_light_sleep(&self, on: bool) {
        self.shared.light_sleep.store(on, Relaxed);
    }
    /// Lets automatic load balancing do what is due; to be called about once a second.
    pub fn balance(&self) {
        self.control.lock().balance();
    }
    /// How many workers there are.
    pub fn n_workers(&self) -> usize {
        self.control.lock().workers.len()
    }
    /// How many VLAN tags are parsed (`vlan-limit`; 0: as many as a key holds).
    pub fn set_vlan_limit(&self, n: u8) {
        let most = u8::try_from(heddle_flow::N_VLANS).unwrap_or(u8::MAX);
        self.shared
            .vlan_limit
            .store(if n == 0 { most } else { n.min(most) }, Relaxed);
    }

    // -- packets from the control plane

    /// Runs `actions` on `packet`, which is of a type ([`heddle_flow::packet_type`]), on a worker; returns when they have run and the
    /// outputs were handed to the ports.
    ///
    /// # Errors
    /// [`DatapathError::Timeout`] when the worker does not answer within seconds.
    pub fn inject(
        &self,
        packet: Packet,
        packet_type: u32,
        in_port: PortNo,
        actions: Vec<Action>,
    ) -> Result<(), DatapathError> {
        let program = Arc::new(Program::compile(&actions));
        self.run(packet, packet_type, in_port, Some(program))
    }
    /// Treats `packet` as received on `in_port`: counted there, looked up, forwarded. Returns when that is done.
    ///
    /// # Errors
    /// [`DatapathError::Timeout`] when the worker does not answer within seconds.
    pub fn inject_translate(&self, packet: Packet, in_port: PortNo) -> Result<(), DatapathError> {
        self.run(packet, heddle_flow::packet_type::ETHERNET, in_port, None)
    }
    fn run(
        &self,
        mut packet: Packet,
        packet_type: u32,
        in_port: PortNo,
        program: Option<Arc<Program>>,
    ) -> Result<(), DatapathError> {
        packet.in_port = in_port.0;
        packet.make_private();
        let (tx, rx) = mpsc::channel();
        let commands = {
            let control = self.control.lock();
            Arc::clone(&control.worker_of(in_port).ok_or(DatapathError::Timeout)?.commands)
        };
        if !commands.send(Command::Run(Box::new(packet), packet_type, program, tx)) {
            return Err(DatapathError::Timeout);
        }
        rx.recv_timeout(PATIENCE)
            .map(drop)
            .map_err(|_| DatapathError::Timeout)
    }

    // -- packets for the control plane

    /// Readable when packets wait for [`Datapath::take_upcalls`]; poll it, do not read it.
    pub fn upcall_fd(&self) -> RawFd {
        self.shared.bell.fd.as_raw_fd()
    }
    /// Hands over up to `max` waiting packets, returns how many. The callback may call [`Datapath::inject`].
    pub fn take_upcalls(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize {
        self.shared.bell.silence();
        let mut got = Vec::new();
        let mut rings = self.upcalls.lock();
        // Round robin, so that one worker's flood leaves room for the others.
        loop {
            let before = got.len();
            for ring in rings.iter_mut() {
                if got.len() < max {
                    got.extend(ring.pop());
                }
            }
            if got.len() == before {
                break;
            }
        }
        if rings.iter_mut().any(|r| !r.is_empty()) {
            self.shared.bell.ring();
        }
        drop(rings);
        let n = got.len();
        got.into_iter().for_each(f);
        n
    }

    // -- cached flows

    /// Credits everything counted so far: after it, rule statistics hold all packets that were received before
    /// the call.
    pub fn flush_stats(&self) {
        // A busy worker answers after a bounded number of rounds. Only one that gets no processor time lets the limit
        // pass: then what is counted so far is credited.
        if let Err(e) = self.control.lock().sync(Duration::from_secs(1)) {
            log::debug!("statistics flushed without waiting for a worker: {e}");
        }
        self.sweep.lock().credit();
    }
    /// One full pass of the sweeper now: credits, translates again what depends on changed things, evicts idle entries. Nothing while it is paused.
    pub fn tick(&self) {
        if !self.shared.paused.load(Relaxed) {
            self.sweep.lock().pass();
        }
    }
    /// Has the sweeper leave entries alone, or look at them again (`revalidator/pause`, `revalidator/resume`). A pass that is under way ends
    /// first. Workers look at what they use all the same.
    pub fn pause_sweeper(&self, paused: bool) {
        self.shared.paused.store(paused, Relaxed);
        drop(self.sweep.lock());
    }
    /// Removes all cached flows, crediting them (`revalidator/purge`, `dpctl/del-flows`).
    pub fn purge(&self) {
        self.flush_stats();
        self.sweep.lock().purge();
    }
    /// All cached flows, oldest first. The same flow may be cached by several workers.
    pub fn flows(&self) -> Vec<FlowDump> {
        self.sweep.lock().flows()
    }
    /// Most cached flows.
    pub fn flow_limit(&self) -> usize {
        self.shared.flow_limit.load(Relaxed)
    }
    /// Sets the most cached flows (`flow-limit`).
    pub fn set_flow_limit(&self, n: usize) {
        self.shared.flow_limit.store(n, Relaxed);
    }
    /// Sets how long a flow may be idle (`max-idle`).
    pub fn set_max_idle_ms(&self, ms: u64) {
        self.shared.max_idle_ms.store(ms, Relaxed);
    }
    /// `emc-insert-inv-prob`: one in so many insertions into a full part of the exact-match cache succeeds; 0 switches that cache off. `None`,
    /// the default: the datapath chooses, and leaves the cache out where it gains nothing.
    pub fn set_emc_insert_inv_prob(&self, n: Option<u32>) {
        let n = n.map_or(crate::shared::UNSET, |n| n.min(crate::shared::UNSET - 1));
        self.shared.inv_prob.store(n, Relaxed);
    }
    /// Sets which iterations workers tell of in the log, while they keep histograms (`dpif-netdev/pmd-perf-log-set`).
    pub fn set_suspect_log(&self, log: &SuspectLog) {
        self.shared.suspects.set(log);
    }
    /// Sets whether workers keep histograms of their iterations (`pmd-perf-metrics`).
    pub fn set_perf_metrics(&self, on: bool) {
        self.shared.perf_metrics.store(on, Relaxed);
    }
    /// Sets for how long a worker polls on without packets, at most.
    pub fn set_spin_us(&self, us: u64) {
        self.shared.spin_cycles.store(Tsc::from_us(us), Relaxed);
    }

    // -- text

    /// `dpctl/dump-flows`, without a header: one line per flow that `filter` takes; flows that several workers cache are added up.
    pub fn dump_flows_text(
        &self,
        filter: &dyn Fn(&FlowDump) -> bool,
        names: format::PortNames<'_>,
    ) -> String {
        let now_ms = self.shared.clock.now_ms();
        let merged = FlowDump::merged(self.flows().into_iter().filter(filter));
        merged.iter().map(|f| f.text(now_ms, names) + "\n").collect()
    }
    /// `dpif-netdev/pmd-stats-show`, of the worker of processor `core` or of all.
    pub fn pmd_stats_show(&self, core: Option<usize>) -> String {
        show::pmd_stats(&self.control.lock(), core)
    }
    /// `dpif-netdev/pmd-stats-clear`.
    pub fn pmd_stats_clear(&self, core: Option<usize>) {
        let now_ms = self.shared.clock.now_ms();
        let mut control = self.control.lock();
        let chosen = |w: &&mut WorkerHandle| core.is_none_or(|core| core == w.core);
        for w in control.workers.iter_mut().filter(chosen) {
            w.base = w.counters.read();
            w.base_perf = w.counters.perf.read();
            w.counters.perf.clear();
            w.base_lost = w.counters.drops.get(DropKind::Upcall);
            w.cleared_ms = now_ms;
        }
    }
    /// `dpif-netdev/pmd-rxq-show`: usage over the last `secs` seconds (0: a minute).
    pub fn pmd_rxq_show(&self, core: Option<usize>, secs: u64) -> String {
        show::pmd_rxq(&self.control.lock(), core, secs)
    }
    /// `dpif-netdev/pmd-sleep-show`.
    pub fn pmd_sleep_show(&self) -> String {
        show::pmd_sleep(&self.control.lock())
    }
    /// What workers and queues have counted.
    pub fn snapshot(&self) -> Snapshot {
        show::snapshot(&self.control.lock())
    }
    /// `dpif-netdev/pmd-perf-show`; `time` is the wall clock as `HH:MM:SS.mmm`.
    pub fn pmd_perf_show(&self, core: Option<usize>, time: &str, wanted: PerfWanted) -> String {
        show::pmd_perf(&self.control.lock(), core, time, wanted)
    }
    /// The lines of `upcall/show` below the datapath's name.
    pub fn upcall_show(&self) -> String {
        let counts = self.sweep.lock().counts;
        show::upcalls(&self.control.lock(), &counts)
    }
    /// Named drops since the start, as `coverage/show` and `coverage/read-counter` name them.
    pub fn coverage(&self) -> Vec<(&'static str, u64)> {
        let control = self.control.lock();
        let kinds = DropKind::ALL.iter().zip(&control.past_drops);
        kinds
            .map(|(kind, past)| {
                let now: u64 = control.workers.iter().map(|w| w.counters.drops.get(*kind)).sum();
                (kind.name(), past + now)
            })
            .collect()
    }
    /// Totals over all workers since the start.
    pub fn totals(&self) -> Totals {
        let control = self.control.lock();
        let mut t = Totals::default();
        let lost = DropKind::ALL.iter().position(|k| *k == DropKind::Upcall);
        t.lost = lost.and_then(|i| control.past_drops.get(i)).copied().unwrap_or(0);
        for n in control
            .workers
            .iter()
            .map(|w| w.counters.read())
            .chain([control.past])
        {
            t.packets += n.packets;
            t.l0_hits += n.l0_hits;
            t.l1_hits += n.l1_hits;
            t.l2_hits += n.l2_hits;
            t.misses += n.misses;
            t.limit_hits += n.limit_hits;
            t.l2_masks_probed += n.l2_probes;
            t.masks = t.masks.max(n.masks);
        }
        t.lost += control
            .workers
            .iter()
            .map(|w| w.counters.drops.get(DropKind::Upcall))
            .sum::<u64>();
        t.flows = self.shared.n_flows.load(Relaxed) as u64;
        t
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Rests between two pieces of the sweeper's work, in multiples of what a piece took.
const RESTS: u32 = 3;

/// Works piece by piece, so that others get the lock, and the processor, in between; until `piece` says that there is no more. Returns the time worked.
fn in_slices(shared: &Shared, mut piece: impl FnMut() -> bool) -> Duration {
    let mut worked = Duration::ZERO;
    loop {
        let begin = Instant::now();
        let more = piece();
        let took = begin.elapsed();
        worked += took;
        if !more || shared.stop.load(Relaxed) {
            return worked;
        }
        std::thread::sleep(took * RESTS);
    }
}

fn start_sweeper(
    shared: &Arc<Shared>,
    sweep: &Arc<Mutex<Sweep>>,
    interval: Duration,
) -> Result<JoinHandle<()>, DatapathError> {
    let (shared2, sweep) = (Arc::clone(shared), Arc::clone(sweep));
    let thread = std::thread::Builder::new()
        .name("sweeper".into())
        .spawn(move || {
            let mut next = Instant::now() + interval;
            while !shared2.stop.load(Relaxed) {
                std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
                let started = Instant::now();
                if started < next {
                    // Woken because a worker's ring fills up.
                    in_slices(&shared2, || sweep.lock().drain());
                    continue;
                }
                in_slices(&shared2, || sweep.lock().drain());
                let worked = in_slices(&shared2, || !shared2.paused.load(Relaxed) && sweep.lock().step());
                // At most a twentieth of a processor, however many flows there are.
                next = started + interval.max(worked * 20);
            }
        })?;
    // Set once, here.
    let _ = shared.sweeper.set(thread.thread().clone());
    Ok(thread)
}
