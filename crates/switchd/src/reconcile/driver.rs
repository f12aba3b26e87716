//! Decides when work is due: follows the database, devices and time, and sends changes to the database.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use heddle_ovsdb::{Batch, Client, LockState, MonitorSpec, Options, PendingTxn, Txn, TxnError};
use tokio::time::{Instant, MissedTickBehavior};

use super::reconciler::{Due, Reconciler};
use super::{links, writeback};
use crate::context::Context;
use crate::metrics::EndPoints;
use crate::switch::{DeviceReadRequest, Switch};
use heddle_daemon::dirs;

/// The interval at which devices are read without a notice.
const REFRESH: Duration = Duration::from_secs(1);
/// The wait before a transaction that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Follows the database until the daemon's end is requested.
///
/// # Errors
/// The database's address makes no sense, or the reconciler failed by a mistake of its own.
pub(crate) async fn run(ctx: &Context, switch: Arc<Switch>, metrics: Arc<EndPoints>) -> anyhow::Result<()> {
    let mut driver = Driver::new(ctx, switch, metrics)?;
    let result = tokio::select! {
        _ = ctx.exit.requested() => Ok(()),
        result = driver.follow() => result,
    };
    // Sockets close, and controllers notice it, before the ports are removed.
    driver.reconciler = None;
    result
}

struct Driver<'a> {
    ctx: &'a Context,
    client: Client,
    /// `None` only while a blocking thread has it.
    reconciler: Option<Reconciler>,
    pending: Option<PendingTxn>,
    due: Due,
    configured: bool,
    /// The time is the switch's clock, which tests move.
    next_counters_ms: u64,
    /// Between two updates of counters.
    interval_ms: u64,
    switch: Arc<Switch>,
    /// The earliest time of the next transaction after a failure.
    not_before: Instant,
    disabled: bool,
}

fn monitor() -> MonitorSpec {
    [
        "Open_vSwitch",
        "Bridge",
        "Port",
        "Interface",
        "Controller",
        "Flow_Sample_Collector_Set",
        "Flow_Table",
        "IPFIX",
        "Mirror",
        "QoS",
        "Queue",
        "SSL",
        "Datapath",
        "CT_Zone",
        "CT_Timeout_Policy",
    ]
    .into_iter()
    .fold(MonitorSpec::new(), MonitorSpec::whole_table)
}

/// The database's address, with relative names of sockets made absolute.
fn database(remote: &str) -> String {
    let absolute = |one: &str| match one.strip_prefix("unix:") {
        Some(path) => format!("unix:{}", dirs::inside(&dirs::rundir(), path).display()),
        None => one.to_owned(),
    };
    remote.split(',').map(absolute).collect::<Vec<_>>().join(",")
}

impl<'a> Driver<'a> {
    fn new(ctx: &'a Context, switch: Arc<Switch>, metrics: Arc<EndPoints>) -> anyhow::Result<Driver<'a>> {
        let options = Options {
            lock: Some("ovs_vswitchd".into()),
            tls: switch.tls.clone(),
            ..Options::default()
        };
        let remote = database(&ctx.options.database);
        // The client's messages name the remote.
        let client = Client::spawn(&remote, "Open_vSwitch", monitor(), options)?;
        // Only the first one counts, and there is one.
        let _ = switch.database.set(client.clone());
        Ok(Driver {
            ctx,
            client,
            reconciler: Some(Reconciler::new(switch.clone(), metrics)),
            pending: None,
            due: Due::default(),
            configured: false,
            next_counters_ms: 0,
            interval_ms: 0,
            switch,
            not_before: Instant::now(),
            disabled: false,
        })
    }

    async fn follow(&mut self) -> anyhow::Result<()> {
        let switch = self.switch.clone();
        let filters = switch.clone();
        let released = move |ifindex| {
            if let Some(filters) = filters.ingress.get() {
                filters.put_back(ifindex);
            }
        };
        // A bond does not wait for the devices to be read.
        let bonds = switch.clone();
        let carrier = move |name: &str, up| bonds.ofproto.bonds().set_carrier(name, up);
        let mut links = links::watch_links(released, carrier);
        let mut requests = self.switch.take_device_reads().context("two reconcilers")?;
        let mut waiting_callers: Vec<DeviceReadRequest> = Vec::new();
        let mut refresh = tokio::time::interval(REFRESH);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let waiting = self.pending.is_none() && (self.due.write || self.due.counters);
            tokio::select! {
                changed = self.client.changed() => changed?,
                () = changed(&mut links) => (self.due.refresh, self.due.links) = (true, true),
                _ = refresh.tick() => self.due.refresh = true,
                () = switch.ports_changed.notified() => self.due.refresh = true,
                () = switch.routes_changed.notified() => self.due.routes = true,
                // Due sessions are found below.
                () = switch.sessions_changed.notified() => {}
                Some(request) = requests.recv() => {
                    self.due.refresh = true;
                    waiting_callers.push(request);
                }
                result = finished(&mut self.pending) => self.sent(result),
                () = tokio::time::sleep_until(self.not_before), if waiting => {}
            }
            let batch = self.client.poll();
            if self.may_configure(&batch).await? {
                self.step(batch).await?;
            }
            // The send fails if the caller has stopped waiting.
            for request in waiting_callers.drain(..) {
                let _ = request.try_send(());
            }
        }
    }

    /// Whether this process may configure the switch now.
    async fn may_configure(&mut self, batch: &Batch) -> anyhow::Result<bool> {
        if batch.status.lock == LockState::Contended {
            if !self.disabled {
                log::error!(
                    target: "bridge",
                    "another ovs-vswitchd process is running, disabling this process (pid {}) until it goes away",
                    std::process::id()
                );
                self.disabled = true;
                self.blocking(|reconciler| reconciler.clear()).await?;
            }
            // Everything is read again when the lock comes, whatever has changed meanwhile.
            self.due = Due {
                reconfigure: true,
                ..Due::default()
            };
            return Ok(false);
        }
        let news = batch.resync
            || batch
                .changes
                .iter()
                .any(|c| c.touches_other_than(writeback::not_config(&c.table)));
        let ids = |r: &Reconciler| batch.changes.iter().any(|c| r.concerns_guest_ids(&batch.db, c));
        let news = news || self.reconciler.as_ref().is_some_and(ids);
        self.due.reconfigure |= news;
        if batch.db.is_loaded() && batch.status.has_lock() {
            self.due.reconfigure |= self.disabled || !self.configured;
            self.disabled = false;
            return Ok(true);
        }
        // The server is away: devices are still refreshed.
        if self.configured && std::mem::take(&mut self.due.refresh) {
            self.due.write |= self.blocking(Reconciler::refresh).await?.write;
        }
        Ok(false)
    }

    async fn step(&mut self, batch: Batch) -> anyhow::Result<()> {
        let now = Instant::now();
        let clock_ms = self.switch.clock.now_ms();
        if clock_ms >= self.next_counters_ms {
            self.due.counters = true;
        }
        self.due.write |= self.switch.ofproto.monitor().take_status_changed();
        let due = self.due;
        if due.reconfigure || due.refresh || due.routes {
            let db = batch.db;
            self.due = Due {
                reconfigure: false,
                refresh: false,
                routes: false,
                links: false,
                ..due
            };
            let (changes, interval_ms) = self
                .blocking(move |r| (r.work(&db, due), r.stats_interval_ms()))
                .await?;
            if interval_ms != self.interval_ms {
                // Another interval begins now.
                self.interval_ms = interval_ms;
                self.due.counters = true;
            }
            self.due.write |= changes.write;
            self.due.write |= self.switch.ofproto.monitor().take_status_changed();
        }
        if self.pending.is_some() || now < self.not_before || !(self.due.write || self.due.counters) {
            return Ok(());
        }
        let counters = self.due.counters;
        let db = self.client.snapshot();
        let txn = self.blocking(move |r| r.describe(&db, counters)).await?;
        self.due.write = false;
        if counters {
            self.due.counters = false;
            self.next_counters_ms = clock_ms + self.interval_ms;
        }
        self.send(txn);
        Ok(())
    }

    fn send(&mut self, txn: Txn) {
        if txn.is_empty() {
            self.configured();
            return;
        }
        match self.client.submit(txn) {
            Ok(pending) => self.pending = Some(pending),
            Err(error) => self.failed(&error),
        }
    }

    fn sent(&mut self, result: Result<(), TxnError>) {
        self.pending = None;
        match result {
            Ok(()) => self.configured(),
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &TxnError) {
        if error.is_retriable() {
            log::debug!(target: "bridge", "status not written: {error}");
        } else {
            log::warn!(target: "bridge", "status not written: {error}");
            // The database would refuse it again. The configuration is in force all the same.
            self.configured();
        }
        self.due.write = true;
        self.not_before = Instant::now() + RETRY;
    }

    /// Notes that the first configuration is in force and the database has it.
    fn configured(&mut self) {
        if self.reconciler.as_ref().is_some_and(|r| r.is_configured())
            && !std::mem::replace(&mut self.configured, true)
        {
            self.ctx.daemon.ready();
            let version = crate::cli::COMPATIBLE_VERSION;
            log::info!(target: "bridge", "{} (Open vSwitch) {version}", self.ctx.options.names.program);
        }
    }

    /// Runs `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Reconciler) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let mut reconciler = self.reconciler.take().context("the reconciler is busy")?;
        let (reconciler, result) = tokio::task::spawn_blocking(move || {
            let result = work(&mut reconciler);
            (reconciler, result)
        })
        .await
        .context("the reconciler failed")?;
        self.reconciler = Some(reconciler);
        Ok(result)
    }
}

/// Waits for a notice; for ever when there will be none.
async fn changed(links: &mut tokio::sync::watch::Receiver<()>) {
    if links.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits for the end of a transaction; for ever without one.
async fn finished(pending: &mut Option<PendingTxn>) -> Result<(), TxnError> {
    match pending {
        Some(pending) => pending.await.map(drop),
        None => std::future::pending().await,
    }
}
