//! The public handle of a running datapath.
//!
//! **Threads.** Any method may be called from any control thread, but none from a worker. So
//! [`Translate::translate`] and [`heddle_datapath_api::Credit::credit`] must not call them: they run under
//! the datapath's locks or on its threads. Methods that change ports or workers wait for the workers, some
//! milliseconds at most. The methods that policy calls are in `engine`.
//!
//! Locks, in the order in which they are taken: control (ports and workers), revalidator (entries), upcalls.

mod engine;
mod expiry_thread;
mod flows;
mod revalidator_thread;
mod slices;
mod text;

use crate::config::{Config, DatapathError, MaxSleep, PortConfig};
use crate::control::assign::Spread;
use crate::control::{AutoLb, Control, UpcallRings};
use crate::exec::fragments::WaitingFragment;
use crate::exec::program::Program;
use crate::exec::upcalls::{Bell, Lanes};
use crate::exec::watch::{CaptureWish, Captured, DropExample};
use crate::perf::SuspectSetting;
use crate::revalidator::Revalidator;
use crate::shared::Shared;
use crate::worker::{Command, CommandTx, Injected, WORKER_TIMEOUT};
use heddle_conntrack::Conntrack;
use heddle_conntrack::ipf::Ipf;
use heddle_datapath_api::{Meter, MeterConfig, NoReply, PortInfo, PortNo, Translate};
use heddle_flow_cache::HashKey;
use heddle_packet::Packet;
use heddle_port::Port;
use heddle_sys::Tsc;
use heddle_sys::awake::Awake;
use heddle_sys::priority::{Refused, Scheduling};
use parking_lot::Mutex;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A running datapath: workers, revalidator, ports. Shared by `ofproto` and `switchd` in an `Arc`.
pub struct Datapath {
    shared: Arc<Shared>,
    control: Mutex<Control>,
    revalidator: Arc<Mutex<Revalidator>>,
    upcalls: Arc<UpcallRings>,
    /// The worker for posted frames, as last known.
    post_box: Mutex<Option<Arc<CommandTx>>>,
    revalidator_thread: Mutex<Option<JoinHandle<()>>>,
    expiry: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Datapath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datapath").finish_non_exhaustive()
    }
}

impl Datapath {
    /// Starts workers and revalidator.
    ///
    /// # Errors
    /// [`DatapathError::Io`] when the system refuses threads or descriptors.
    pub fn new(config: Config, translate: Arc<dyn Translate>) -> Result<Arc<Self>, DatapathError> {
        let shared = Arc::new(Shared {
            name: config.name.clone(),
            translate,
            clock: Arc::clone(&config.clock),
            bells: Lanes {
                packets: Arc::new(Bell::new()?),
                control: Arc::new(Bell::new()?),
                samples: Arc::new(Bell::new()?),
            },
            watched: Arc::default(),
            hash_key: HashKey::random(),
            conntrack: Arc::new(Conntrack::new(heddle_conntrack::Config::default())?),
            fragments: Ipf::default(),
            n_flows: 0.into(),
            flow_limit: config.flow_limit.into(),
            max_idle_ms: config.max_idle_ms.into(),
            vlan_limit: config.vlan_limit.into(),
            spin_cycles: Tsc::from_us(config.spin_us).into(),
            inv_prob: crate::shared::UNSET.into(),
            joins: true.into(),
            perf_metrics: false.into(),
            suspects: SuspectSetting::default(),
            revalidator_wakeup: heddle_sync::Wakeup::default(),
            light_sleep: false.into(),
            paused: false.into(),
            observed: false.into(),
            hurried: false.into(),
            stop: false.into(),
        });
        let revalidator = Arc::new(Mutex::new(Revalidator::new(Arc::clone(&shared))));
        let upcalls = Arc::new(UpcallRings::default());
        let (cpus, interval) = (config.cpus.clone(), config.revalidate_interval_ms);
        let mut control = Control::new(
            Arc::clone(&shared),
            Arc::clone(&revalidator),
            Arc::clone(&upcalls),
            config,
        );
        control.set_workers(cpus.as_deref())?;
        let revalidator_thread = match interval {
            0 => None,
            ms => Some(revalidator_thread::start(
                &shared,
                &revalidator,
                Duration::from_millis(ms),
            )?),
        };
        let expiry = match interval {
            0 => None,
            _ => Some(expiry_thread::start(&shared)?),
        };
        let (control, revalidator_thread) = (Mutex::new(control), Mutex::new(revalidator_thread));
        Ok(Arc::new(Self {
            shared,
            control,
            revalidator,
            upcalls,
            post_box: Mutex::default(),
            revalidator_thread,
            expiry: Mutex::new(expiry),
        }))
    }

    /// Stops all threads and closes all ports' queues. Also done on drop; twice does no harm.
    pub fn shutdown(&self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.wake_revalidator();
        let mut control = self.control.lock();
        control.stop_workers();
        control.ports.clear();
        drop(control);
        if self
            .revalidator_thread
            .lock()
            .take()
            .is_some_and(|t| t.join().is_err())
        {
            log::error!("the revalidator_thread ended by a panic");
        }
        if let Some(expiry) = self.expiry.lock().take() {
            expiry.thread().unpark();
            if expiry.join().is_err() {
                log::error!("the connection expiry thread ended by a panic");
            }
        }
    }

    // -- ports

    /// Adds a port under `want`, or under the lowest free number from 1. It has one receive queue until
    /// [`Datapath::configure_port`] changes that.
    ///
    /// # Errors
    /// The port's error when it cannot be opened; [`DatapathError::InUse`]; [`DatapathError::Full`].
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
    /// Opens a port anew under its number and with its configuration. A port that is not there, because an
    /// earlier call failed, is added.
    ///
    /// # Errors
    /// The errors of [`Self::add_port`]; then the port is not there.
    pub fn replace_port(&self, no: PortNo, port: Arc<dyn Port>) -> Result<(), DatapathError> {
        self.control.lock().replace_port(no, port)
    }
    /// Opens a port's receive queues anew with `config`, if that is a change.
    ///
    /// # Errors
    /// [`DatapathError::NoPort`], or the port's error.
    pub fn configure_port(&self, no: PortNo, config: PortConfig) -> Result<(), DatapathError> {
        self.control.lock().configure_port(no, config)
    }
    /// Sets the port's MTU (0: no limit). The first value was read from `Port::status` when the port was
    /// added.
    ///
    /// # Errors
    /// [`DatapathError::NoPort`].
    pub fn set_port_mtu(&self, no: PortNo, mtu: u32) -> Result<(), DatapathError> {
        self.control.lock().set_mtu(no, mtu)
    }
    /// Drops packets of a port above these meters' rates; an empty list: no limit. The meters start full.
    ///
    /// # Errors
    /// [`DatapathError::NoPort`].
    pub fn set_policing(&self, no: PortNo, limits: &[MeterConfig]) -> Result<(), DatapathError> {
        let now_ms = self.shared.clock.now_ms();
        let limits = limits.iter().map(|l| Meter::new(u32::MAX, l, now_ms)).collect();
        self.control.lock().set_policing(no, limits)
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

    // -- workers

    /// Runs one pinned worker per processor of `cpus` (`pmd-cpu-mask`). `None` or empty: one per processor
    /// that the process may use, at most 4. These are not pinned, so that the scheduler can move them away
    /// from other programs. Workers that are wanted before and after stay. Queues of the others move; their
    /// cached flows are credited and dropped.
    ///
    /// # Errors
    /// [`DatapathError::Io`] when the system refuses threads; the port's error when it cannot be opened for a
    /// new worker.
    pub fn set_workers(&self, cpus: Option<&[usize]>) -> Result<(), DatapathError> {
        self.control.lock().set_workers(cpus)
    }
    /// Sets how receive queues are spread over workers (`pmd-rxq-assign`, `pmd-rxq-isolate`); takes effect
    /// with [`Datapath::assign_queues`].
    pub fn set_spread(&self, spread: Spread) {
        self.control.lock().set_spread(spread);
    }
    /// Assigns receive queues to workers, if ports or settings have changed since that was done last. A new
    /// queue is polled before that too, by some worker.
    ///
    /// # Errors
    /// [`DatapathError::Timeout`] when a worker does not reply.
    pub fn assign_queues(&self) -> Result<(), DatapathError> {
        self.control.lock().assign()
    }
    /// Assigns receive queues to workers by their present cost (`dpif-netdev/pmd-rxq-rebalance`).
    ///
    /// # Errors
    /// The errors of [`Datapath::assign_queues`].
    pub fn rebalance(&self) -> Result<(), DatapathError> {
        self.control.lock().assign_again()
    }
    /// Sets automatic load balancing up (`pmd-auto-lb*`).
    pub fn set_auto_lb(&self, settings: AutoLb) {
        self.control.lock().set_auto_lb(settings);
    }
    /// Sets the pauses of workers (`pmd-sleep-max`).
    pub fn set_max_sleep(&self, max: MaxSleep) {
        self.control.lock().set_max_sleep(max);
    }
    /// Sets whether workers have real-time priority (`SCHED_RR`, sched(7); `heddle-realtime`).
    ///
    /// # Errors
    /// [`DatapathError::Io`]: this process may not give priorities. [`DatapathError::Timeout`].
    pub fn set_realtime(&self, on: bool) -> Result<(), DatapathError> {
        self.control.lock().set_realtime(on)
    }
    /// Sets how the kernel schedules workers without real-time priority, new ones too (`heddle-priority`).
    /// Returns the parts that it refused.
    pub fn set_scheduling(&self, scheduling: Scheduling) -> Refused {
        self.control.lock().set_scheduling(scheduling)
    }
    /// Sets whether workers keep the machine's processors from halting while packets come every few
    /// milliseconds (`heddle-light-sleep`).
    ///
    /// # Errors
    /// The system does not let this process do that.
    pub fn set_light_sleep(&self, on: bool) -> std::io::Result<()> {
        self.shared.light_sleep.store(on, Relaxed);
        if on {
            Awake::hold()?;
        }
        Ok(())
    }
    /// Checks the load and moves queues if that is due; to be called about once a second.
    pub fn balance(&self) {
        self.control.lock().balance();
    }
    /// Number of workers.
    pub fn n_workers(&self) -> usize {
        self.control.lock().workers.len()
    }
    /// Sets the number of VLAN tags that are parsed (`vlan-limit`; 0: as many as a key holds).
    pub fn set_vlan_limit(&self, n: u8) {
        let most = u8::try_from(heddle_flow::N_VLANS).unwrap_or(u8::MAX);
        self.shared
            .vlan_limit
            .store(if n == 0 { most } else { n.min(most) }, Relaxed);
    }

    /// Fragments of all workers that wait to be tracked.
    pub fn fragments(&self) -> &Ipf<WaitingFragment> {
        &self.shared.fragments
    }

    // -- packets from the control plane

    /// Treats `packet` as received on `in_port`: counted there, looked up, forwarded. Returns when that is
    /// done.
    ///
    /// # Errors
    /// [`NoReply`] when the worker does not reply within seconds.
    pub fn inject_translate(&self, packet: Packet, in_port: PortNo) -> Result<(), NoReply> {
        let injected = Injected {
            packet,
            packet_type: heddle_flow::packet_type::ETHERNET,
            context: None,
        };
        self.run(injected, in_port, None)
    }
    fn run(
        &self,
        mut injected: Injected,
        in_port: PortNo,
        program: Option<Arc<Program>>,
    ) -> Result<(), NoReply> {
        injected.packet.in_port = in_port.0;
        injected.packet.make_private();
        let (tx, rx) = mpsc::channel();
        let commands = {
            let control = self.control.lock();
            Arc::clone(&control.worker_of(in_port).ok_or(NoReply)?.commands)
        };
        if !commands.send(Command::Run(Box::new(injected), program, tx)) {
            return Err(NoReply);
        }
        rx.recv_timeout(WORKER_TIMEOUT).map(drop).map_err(|_| NoReply)
    }

    // -- packets for the control plane

    /// Readable when packets wait for [`Engine::take_upcalls`](heddle_datapath_api::Engine::take_upcalls);
    /// poll it, do not read it.
    pub fn upcall_fd(&self) -> RawFd {
        self.shared.bells.packets.fd.as_raw_fd()
    }
    /// Readable when frames wait for [`Engine::take_control`](heddle_datapath_api::Engine::take_control), or
    /// after [`Engine::wake_control`](heddle_datapath_api::Engine::wake_control); poll it, do not read it.
    pub fn control_fd(&self) -> RawFd {
        self.shared.bells.control.fd.as_raw_fd()
    }
    /// Readable when samples wait for [`Engine::take_samples`](heddle_datapath_api::Engine::take_samples);
    /// poll it, do not read it.
    pub fn sample_fd(&self) -> RawFd {
        self.shared.bells.samples.fd.as_raw_fd()
    }
}

/// Dropped and captured packets, for inspection.
impl Datapath {
    /// Hands over the waiting examples of dropped packets. If no caller takes them, there are no newer ones
    /// after a while.
    pub fn take_drop_examples(&self, f: &mut dyn FnMut(DropExample)) {
        // Bounded: workers add examples meanwhile.
        for _ in 0..self.shared.watched.examples.len() {
            let Some(example) = self.shared.watched.examples.pop() else {
                return;
            };
            f(example);
        }
    }
    /// Starts a capture with the workers' next bursts, or stops it. There is one capture at a time; packets
    /// of an earlier capture are discarded.
    pub fn capture(&self, wish: Option<CaptureWish>) {
        self.shared.watched.capture(wish);
    }
    /// Hands over up to `max` captured packets.
    pub fn take_captured(&self, max: usize, f: &mut dyn FnMut(Captured)) {
        self.shared.watched.take(max, f);
    }
    /// Number of packets that the capture skipped: there were too many, or no caller took them.
    pub fn capture_missed(&self) -> u64 {
        self.shared.watched.missed()
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.shutdown();
    }
}
