//! The parts of the switch, put together: clock, bridges, datapath, and the threads between them.
//!
//! * Packets for controllers: a thread waits for the datapath's bell and hands them to the bridges.
//! * Sessions that watch ports: a thread of their own ([`crate::sessions`]).
//! * Time: a thread of its own expires rules and addresses, since crediting cached packets first may take
//!   some milliseconds.
//! * Routes and neighbours: a thread follows the kernel ([`crate::underlay`]).
//! * [`Switch::warp`] moves the clock and does that thread's work at every step, before it returns.
//!
//! The reconciler gives it bridges and ports, the commands read it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use anyhow::Context as _;
use heddle_datapath::{Config, Datapath};
use heddle_datapath_api::Engine;
use heddle_ofproto::Ofproto;
use heddle_stream::Tls;
use heddle_sync::Clock;
use heddle_sys::Epoll;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc;

use crate::cli::Options;
use crate::diagnostics::{Captures, Drops};
use crate::give_back::{GiveBack, Sizes};
use crate::inventory::{Inventory, WithoutEffect, datapath_name};
use crate::migration::Moves;
use crate::mirror_state::KernelConntrack;
use crate::priority::Priority;
use crate::sample_counts::SampleCounts;

/// The interval at which time-outs are checked.
const TICK: Duration = Duration::from_millis(100);
/// The longest wait of the upcall thread before it checks whether to end.
const WAIT_MS: i32 = 100;
/// Packets handed to controllers in one go.
const UPCALL_BATCH: usize = 256;

/// The time that devices may take for messages of sessions while the clock is moved.
const DEVICES: Duration = Duration::from_millis(2);

/// The longest wait of a command for the reconciler.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest wait, at the switch's end, for the threads that close devices. The kernel closes the rest when
/// the process ends, one after the other.
const CLOSING: Duration = Duration::from_secs(5);

/// A request to read devices; the reconciler replies when it is done.
pub(crate) type DeviceReadRequest = std::sync::mpsc::SyncSender<()>;

/// The switch of this process.
pub struct Switch {
    /// The command line.
    pub options: Arc<Options>,
    /// The switch's clock, which tests can move.
    pub clock: Arc<Clock>,
    /// Bridges, rules, controllers' requests.
    pub ofproto: Arc<Ofproto>,
    /// Workers, ports, cached flows.
    pub datapath: Arc<Datapath>,
    /// The offload of cached flows, if that is on.
    pub(crate) offload: RwLock<Option<heddle_offload::Offload>>,
    /// Filters that keep packets of `system` ports from the host's stack, once there was a `system` port.
    pub(crate) ingress: std::sync::OnceLock<Arc<heddle_port::IngressFilters>>,
    /// The mirror of connections in the kernel's table.
    pub(crate) kernel_conntrack: KernelConntrack,
    /// The replica of the database, once the reconciler follows it. For commands that read columns which
    /// configure nothing.
    pub(crate) database: std::sync::OnceLock<heddle_ovsdb::Client>,
    /// Ports whose connections come from another node or go there.
    pub(crate) moves: Moves,
    /// Scheduling of the threads that packets wait for.
    pub(crate) priority: Priority,
    /// Keys of connections to the database and to controllers.
    pub tls: Arc<Tls>,
    /// The interfaces as the database made them, for commands that name them.
    pub inventory: RwLock<Inventory>,
    /// The carrier of the kernel's devices.
    pub(crate) carriers: RwLock<HashMap<Arc<str>, bool>>,
    /// The kernel's routes were read at least once.
    pub(crate) kernel_read: AtomicBool,
    /// Raised when the kernel's routes, addresses or rules have changed.
    pub(crate) routes_changed: tokio::sync::Notify,
    /// Counts changes of the inventory.
    pub(crate) inventory_changes: AtomicU64,
    /// Settings of the database without effect.
    pub(crate) without_effect: Mutex<Vec<WithoutEffect>>,
    /// Raised by ports whose state changes by itself (a virtual machine came or went).
    pub(crate) ports_changed: Arc<tokio::sync::Notify>,
    /// Raised when `Interface.bfd_status` is to be written.
    pub(crate) sessions_changed: Arc<tokio::sync::Notify>,
    /// Numbers of local samples.
    pub(crate) sample_counts: Arc<SampleCounts>,
    /// Examples of dropped packets.
    pub(crate) drops: Drops,
    /// The capture that may be under way.
    pub(crate) captures: Captures,
    /// Requests to read devices now; the reconciler replies to each.
    device_reads: mpsc::UnboundedSender<DeviceReadRequest>,
    device_reads_received: Mutex<Option<mpsc::UnboundedReceiver<DeviceReadRequest>>>,
    /// Held while time passes: by the ticker, or by one `time/warp`.
    ticking: Mutex<()>,
    /// A `time/warp` is under way.
    warping: AtomicBool,
    give_back: Mutex<GiveBack>,
    stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switch").finish_non_exhaustive()
    }
}

impl Switch {
    /// Starts workers and threads. To be called within the runtime.
    ///
    /// # Errors
    /// The system refuses threads or descriptors.
    pub fn start(options: Arc<Options>) -> anyhow::Result<Arc<Switch>> {
        let clock = Arc::new(Clock::default());
        let ofproto = Ofproto::new(clock.clone());
        let mut config = Config {
            clock: clock.clone(),
            dummy_numa: options.dummy_numa.clone(),
            ..Config::default()
        };
        if options.dummy.is_some() {
            config.name = datapath_name("dummy");
        }
        let datapath =
            Datapath::new(config, ofproto.pipeline().clone()).context("cannot start the datapath")?;
        ofproto.attach(datapath.clone());
        let tls = Arc::new(Tls::default());
        tls.configure(options.ssl.settings());
        if let Some(ciphers) = &options.ssl.ciphers {
            log::warn!(target: "stream_ssl", "--ssl-ciphers={ciphers}: ciphers cannot be chosen, only safe ones are implemented");
        }
        let (device_reads, received) = mpsc::unbounded_channel();
        let switch = Arc::new(Switch {
            options,
            clock,
            ofproto,
            datapath,
            offload: RwLock::default(),
            ingress: std::sync::OnceLock::default(),
            kernel_conntrack: KernelConntrack::default(),
            database: std::sync::OnceLock::default(),
            moves: Moves::default(),
            priority: Priority::default(),
            tls,
            inventory: RwLock::default(),
            carriers: RwLock::default(),
            kernel_read: false.into(),
            routes_changed: tokio::sync::Notify::default(),
            inventory_changes: AtomicU64::default(),
            without_effect: Mutex::default(),
            ports_changed: Arc::default(),
            sessions_changed: Arc::default(),
            sample_counts: Arc::default(),
            drops: Drops::default(),
            captures: Captures::default(),
            device_reads,
            device_reads_received: Mutex::new(Some(received)),
            ticking: Mutex::new(()),
            warping: false.into(),
            give_back: Mutex::default(),
            stop: false.into(),
            threads: Mutex::default(),
        });
        switch.spawn("ticker", Switch::tick_on)?;
        switch.spawn("upcalls", Switch::deliver_on)?;
        switch.spawn("settler", Switch::run_deferred_work)?;
        switch.spawn("routes", Switch::follow_kernel)?;
        switch.spawn("monitor", Switch::run_sessions)?;
        switch.spawn("samples", Switch::count_samples)?;
        Ok(switch)
    }

    /// Starts a thread that works until the switch ends.
    pub(crate) fn spawn(self: &Arc<Self>, name: &str, work: fn(&Switch)) -> anyhow::Result<Thread> {
        let own = self.clone();
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || work(&own))
            .context("cannot start a thread")?;
        let thread = handle.thread().clone();
        self.threads.lock().push(handle);
        Ok(thread)
    }

    fn tick_on(&self) {
        while !self.stop.load(Relaxed) {
            self.tick();
            std::thread::park_timeout(TICK);
        }
    }

    fn deliver_on(&self) {
        self.priority.join();
        let mut bell = match Epoll::new(1).and_then(|e| e.add(self.datapath.upcall_fd(), 0).map(|()| e)) {
            Ok(bell) => bell,
            Err(error) => {
                let why = heddle_daemon::vlog::errno_text(&error);
                log::error!(target: "ofproto_dpif_upcall", "cannot wait for packets, looking for them instead ({why})");
                while !self.stop.load(Relaxed) {
                    self.ofproto.deliver_upcalls(UPCALL_BATCH);
                    std::thread::park_timeout(Duration::from_millis(1));
                }
                return;
            }
        };
        while !self.stop.load(Relaxed) {
            // The datapath wakes the thread; the time-out lets it check whether to end.
            if bell.wait(WAIT_MS).is_ok_and(|mut ready| ready.next().is_some()) {
                self.ofproto.deliver_upcalls(UPCALL_BATCH);
            }
        }
    }

    /// Does the work that workers handed over.
    fn run_deferred_work(&self) {
        self.priority.join();
        while !self.stop.load(Relaxed) {
            self.ofproto.do_deferred_work();
            self.probe_neighbours();
            self.ofproto.wait_for_deferred_work();
        }
    }

    /// Gives memory back when much was freed.
    fn give_back(&self) {
        let Some(rules) = self.ofproto.n_rules() else {
            return;
        };
        let sizes = Sizes {
            flows: self.datapath.totals().flows,
            connections: self.datapath.conntrack().n_conns().into(),
            bundled: heddle_ofproto::bundled_bytes(),
            rules,
            freed: heddle_ofproto::freed_rules(),
        };
        if self.give_back.lock().tick(sizes) {
            heddle_sys::memory::trim();
            self.datapath.conntrack().begin_giving_back();
        }
    }

    /// Whether a `time/warp` moves the clock now.
    pub(crate) fn is_warping(&self) -> bool {
        self.warping.load(Relaxed)
    }

    /// Whether threads are to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Has workers forward all packets for now, since a capture sees no others; or ends that.
    pub(crate) fn pause_offload(&self, pause: bool) {
        if let Some(offload) = self.offload.read().clone() {
            offload.set_paused(pause);
        }
    }

    /// Does the work that is due now.
    pub fn tick(&self) {
        let _alone = self.ticking.lock();
        self.give_back();
        self.drops.gather(&self.datapath);
        if self.captures.tick(&self.datapath) {
            self.pause_offload(false);
        }
        self.datapath.balance();
        self.ofproto.tick();
    }

    /// Moves the clock by `total_ms` in steps of `step_ms`, doing at each step what is due then, cached flows
    /// included. `false`: another caller moves the clock. It ends early when the switch does.
    pub fn warp(&self, total_ms: u64, step_ms: u64) -> bool {
        if self.warping.swap(true, Relaxed) {
            return false;
        }
        {
            let _alone = self.ticking.lock();
            let mut left = total_ms;
            while left > 0 && !self.stop.load(Relaxed) {
                let step = left.min(step_ms.max(1));
                self.clock.warp(step);
                self.datapath.tick();
                self.datapath.balance();
                self.ofproto.tick();
                let monitor = self.ofproto.monitor();
                monitor.run(true);
                if monitor.has_devices() {
                    // Messages over devices arrive in real time.
                    std::thread::sleep(DEVICES);
                    monitor.run(true);
                }
                left -= step;
            }
            self.ofproto.report_links();
        }
        self.warping.store(false, Relaxed);
        // Statistics may have become due.
        self.look_at_devices();
        true
    }

    /// Has the reconciler read all devices, and waits until it has. For commands that change a device.
    pub fn look_at_devices(&self) {
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        if self.device_reads.send(done).is_ok() {
            // After the time-out, the next reading, within a second, sees the change.
            let _ = wait.recv_timeout(SETTLE_TIMEOUT);
        }
    }

    /// The receiver of [`Switch::look_at_devices`]'s requests; only the first call gets it.
    pub(crate) fn take_device_reads(&self) -> Option<mpsc::UnboundedReceiver<DeviceReadRequest>> {
        self.device_reads_received.lock().take()
    }

    /// Ends all threads and closes all ports. With `cleanup` the devices of internal ports go too.
    pub fn shutdown(&self, cleanup: bool) {
        self.stop.store(true, Relaxed);
        self.ofproto.wake_deferred_work();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!(target: "vswitchd", "a thread ended by a panic");
            }
        }
        let inventory = std::mem::take(&mut *self.inventory.write());
        let devices = inventory
            .interfaces
            .values()
            .filter_map(|item| item.device.as_ref());
        // Cards get back the settings that the switch has changed.
        let goes =
            |d: &Arc<dyn heddle_port::Port>| d.port_type().restores || cleanup && d.port_type().persists;
        for device in devices.filter(|d| goes(d)) {
            device.forget();
        }
        if let Some(offload) = &*self.offload.read() {
            offload.remove_devices();
        }
        self.datapath.shutdown();
        if !heddle_sys::aside::wait_closed(CLOSING) {
            log::warn!(target: "vswitchd", "the kernel is slow to close devices");
        }
        let offload = self.offload.write().take();
        if let Some(offload) = offload.filter(|_| cleanup) {
            offload.shutdown();
        }
        if let Some(filters) = self.ingress.get().filter(|_| cleanup) {
            filters.keep_only(|_| false, true);
        }
    }
}
