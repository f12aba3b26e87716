//! `dpdkvhostuser` and `dpdkvhostuserclient` ports: the virtio-net device of a virtual machine, over vhost-user.
//!
//! **Problem.** A virtual machine monitor hands over its guest's memory and rings through a socket, and takes them back whenever
//! it likes; workers move packets by these rings all the time. Neither may wait for the other for longer than a burst, and the
//! fast path shall not pay for what seldom changes.
//!
//! **Parts.** The session ([`heddle_vhost_user::backend`]) runs on the one control thread of all sockets and drives [`device`].
//! Rings from the guest are lent to the worker that polls them ([`lease`]), rings to the guest are locked for a burst by the worker
//! that sends ([`txset`]). What the guest does not take unfinished is segmented and summed in software ([`takes`], [`tx`]).
//!
//! **Names.** Options, keys of `Interface.status` and counters are those of Open vSwitch ([`state`]). Nothing of DPDK is needed.
//!
//! **A broken ring** stops by itself ([`heddle_virtio::RingError`]); it is counted, told once in the log (rate-limited), shown in
//! `Interface.status` and told to the front end. Nobody else notices.

mod counts;
mod device;
mod lease;
mod rarp;
mod rx;
mod settings;
pub(crate) mod spread;
mod state;
mod takes;
#[cfg(test)]
mod tests;
mod tx;
mod txset;

pub use settings::{VhostContext, socket_dir};

use crate::{Port, PortError, PortStatus, RxQueue, TxQueue};
use device::VhostDevice;
use heddle_vhost_user::backend::{MAX_QUEUE_PAIRS, Role, Socket, SocketId};
use lease::Lease;
use parking_lot::Mutex;
use rx::{Changed, VhostRx};
use state::State;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tx::VhostTx;
use txset::TxSet;

/// Who owns the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The front end: this side connects, and again whenever the connection ends (`dpdkvhostuserclient`).
    Client,
    /// This side listens (`dpdkvhostuser`).
    Server,
}

/// What the port, its queues and its session share.
struct Shared {
    name: Arc<str>,
    mode: Mode,
    path: Mutex<PathBuf>,
    changed: Changed,
    tx_retries_max: AtomicU32,
    rx: Mutex<Vec<Arc<Lease>>>,
    tx: TxSet,
    state: Mutex<State>,
}

impl Shared {
    /// Changes the state, and says so to whoever shows it.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let path = self.path.lock().clone();
        let mut state = self.state.lock();
        change(&mut state);
        state.follow_link(&path);
        drop(state);
        (self.changed)();
    }
    /// The place of receive queue `index`, made if need be.
    fn lease(&self, index: usize) -> io::Result<Arc<Lease>> {
        let mut all = self.rx.lock();
        while all.len() <= index {
            let lease = Lease::new()?;
            lease.set_down(!self.state.lock().admin_up);
            all.push(Arc::new(lease));
        }
        Ok(Arc::clone(&all[index]))
    }
    fn known_lease(&self, index: usize) -> Option<Arc<Lease>> {
        self.rx.lock().get(index).cloned()
    }
    fn leases(&self) -> Vec<Arc<Lease>> {
        self.rx.lock().clone()
    }
}

/// A port on a virtual machine's device.
pub struct VhostPort {
    shared: Arc<Shared>,
    context: VhostContext,
    /// The socket; `None` only while it is replaced.
    socket: Mutex<Option<SocketId>>,
    /// What was said about the options.
    doubts: Mutex<Vec<String>>,
}

impl std::fmt::Debug for VhostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostPort")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl VhostPort {
    /// Opens port `name` of type `kind` (`dpdkvhostuser` or `dpdkvhostuserclient`).
    ///
    /// # Errors
    /// [`PortError::Config`]: no path, one that is too long, a name that is none for a file; [`PortError::Sys`]: the socket cannot be
    /// made.
    pub fn open(
        kind: &str,
        name: &str,
        options: &BTreeMap<String, String>,
        context: VhostContext,
    ) -> Result<Arc<Self>, PortError> {
        let mode = if kind == CLIENT {
            Mode::Client
        } else {
            Mode::Server
        };
        let path = settings::path(mode, name, options, &context)?;
        let mut state = State::new(settings::random_mac());
        state.pretended_numa = settings::pretended_numa(options, &context);
        let shared = Arc::new(Shared {
            name: name.into(),
            mode,
            path: Mutex::new(path),
            changed: Arc::clone(&context.changed),
            tx_retries_max: settings::tx_retries_max(mode, options).into(),
            rx: Mutex::default(),
            tx: TxSet::default(),
            state: Mutex::new(state),
        });
        let port = Self {
            shared,
            context,
            socket: Mutex::new(None),
            doubts: Mutex::default(),
        };
        port.doubt(options);
        port.attach()?;
        Ok(Arc::new(port))
    }

    /// Tells the log what of the options does nothing, once.
    fn doubt(&self, options: &BTreeMap<String, String>) {
        let (mode, name) = (self.shared.mode, &self.shared.name);
        let doubts = settings::doubts(mode, options, &self.context);
        let before = core::mem::replace(&mut *self.doubts.lock(), doubts.clone());
        for text in doubts.iter().filter(|t| !before.contains(t)) {
            log::warn!(target: "netdev_dpdk", "{name}: {text}");
        }
    }

    /// Makes the socket, or begins to call at it.
    fn attach(&self) -> Result<(), PortError> {
        let path = self.shared.path.lock().clone();
        let (name, shown) = (&self.shared.name, path.display().to_string());
        let failed = |e| {
            PortError::sys(
                format!("could not open socket {shown} of vhost-user port {name}"),
                e,
            )
        };
        let role = match self.shared.mode {
            Mode::Client => Role::Client,
            Mode::Server => {
                settings::probe_directory(&path).map_err(failed)?;
                Role::Server
            }
        };
        let socket = Socket {
            path,
            role,
            journal: self.journal(),
        };
        let device = VhostDevice::new(Arc::clone(&self.shared), self.context.iommu);
        let id = self
            .context
            .control
            .add(socket, Box::new(device))
            .map_err(failed)?;
        *self.socket.lock() = Some(id);
        match self.shared.mode {
            Mode::Client => log::info!(
                target: "netdev_dpdk",
                "vHost User device '{name}' created in 'client' mode, using client socket '{shown}'"
            ),
            Mode::Server => {
                log::info!(target: "netdev_dpdk", "Socket {shown} created for vhost-user port {name}")
            }
        }
        Ok(())
    }

    /// Ends the session, if there is one, with `why` for people. When it returns no worker has a ring and no socket is there.
    fn detach(&self, why: &'static str) {
        let id = self.socket.lock().take();
        if let Some(id) = id {
            self.context.control.remove(id, why);
        }
    }

    /// Where positions of packed rings outlive this process. A directory of their own: sockets in the run directory have ports' names,
    /// which may be anything.
    fn journal(&self) -> Option<PathBuf> {
        let name = &self.shared.name;
        let plain = !name.contains('/') && !matches!(&**name, "." | "..");
        plain.then(|| self.context.rundir.join(JOURNALS).join(&**name))
    }
}

impl Drop for VhostPort {
    fn drop(&mut self) {
        self.detach(REMOVED);
    }
}

/// Why a session ends with its port.
const REMOVED: &str = "the port was removed";
/// The directory of journals in the run directory.
const JOURNALS: &str = ".vrings";

/// `Interface.type` of ports that connect.
const CLIENT: &str = "dpdkvhostuserclient";
/// `Interface.type` of ports that listen.
const SERVER: &str = "dpdkvhostuser";

impl Port for VhostPort {
    fn name(&self) -> &str {
        &self.shared.name
    }
    fn kind(&self) -> &'static str {
        match self.shared.mode {
            Mode::Client => CLIENT,
            Mode::Server => SERVER,
        }
    }
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        let n = n.clamp(1, usize::from(MAX_QUEUE_PAIRS));
        let mut queues: Vec<Box<dyn RxQueue>> = Vec::with_capacity(n);
        for i in 0..n {
            let lease = self
                .shared
                .lease(i)
                .map_err(|e| PortError::open(&self.shared.name, e))?;
            let (name, changed) = (Arc::clone(&self.shared.name), Arc::clone(&self.shared.changed));
            queues.push(Box::new(VhostRx::new(lease, name, i, changed)));
        }
        Ok(queues)
    }
    fn open_tx(&self, worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(VhostTx::new(Arc::clone(&self.shared), worker)))
    }
    fn status(&self) -> PortStatus {
        self.shared.status()
    }
    fn statistics(&self) -> Vec<(String, u64)> {
        self.shared.statistics()
    }
    fn rxq_enabled(&self, queue: usize) -> bool {
        self.shared.state.lock().session.polls(queue)
    }
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        let name = &self.shared.name;
        let refused = !(u32::from(device::MIN_MTU)..=settings::MAX_MTU).contains(&mtu);
        let before = {
            let s = self.shared.state.lock();
            (s.mtu, s.refused_mtu)
        };
        if !refused && before != (mtu, None) {
            self.shared.update(|s| (s.mtu, s.refused_mtu) = (mtu, None));
        }
        if refused && before.1 != Some(mtu) {
            log::warn!(target: "netdev_dpdk", "{name}: unsupported MTU {mtu}");
            self.shared.update(|s| s.refused_mtu = Some(mtu));
        }
        if refused {
            return Err(PortError::sys(
                format!("could not set MTU of {name} to {mtu}"),
                io::Error::from_raw_os_error(settings::EINVAL),
            ));
        }
        Ok(())
    }
    fn default_mtu(&self) -> Option<u32> {
        Some(settings::DEFAULT_MTU)
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        self.shared.update(|s| s.mac = mac);
        Ok(())
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        self.shared.update(|s| s.admin_up = up);
        for lease in self.shared.leases() {
            lease.set_down(!up);
        }
        self.shared.tx.set_down(!up);
        Ok(())
    }
    fn set_options(&self, options: &BTreeMap<String, String>) -> Result<(), PortError> {
        let path = settings::path(self.shared.mode, &self.shared.name, options, &self.context)?;
        let retries = settings::tx_retries_max(self.shared.mode, options);
        if self.shared.tx_retries_max.swap(retries, Relaxed) != retries {
            let name = &self.shared.name;
            log::info!(target: "netdev_dpdk", "Max Tx retries for vhost device '{name}' set to {retries}");
        }
        self.doubt(options);
        let numa = settings::pretended_numa(options, &self.context);
        if self.shared.state.lock().pretended_numa != numa {
            self.shared.update(|s| s.pretended_numa = numa);
        }
        if *self.shared.path.lock() == path {
            return Ok(());
        }
        // The old connection ends before the new one begins: the device behind both is one.
        self.detach("the port was given another socket");
        *self.shared.path.lock() = path;
        self.attach()
    }
    fn forget(&self) {
        self.detach(REMOVED);
        if let Some(path) = self.journal() {
            // A port that never had a session has none.
            let _ = std::fs::remove_file(path);
        }
    }
    fn set_tx_steering(&self, by_flow: bool) {
        if self.shared.tx.set_by_flow(by_flow) {
            let mode = if by_flow { "hash" } else { "thread" };
            let name = &self.shared.name;
            log::info!(target: "dpif_netdev", "{name}: Tx packet steering mode has been set to '{mode}'.");
        }
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
