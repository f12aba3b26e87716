//! `dpdkvhostuser` and `dpdkvhostuserclient` ports: the virtio-net device of a virtual machine, over
//! vhost-user.
//!
//! The session ([`heddle_vhost_user::backend`]) runs on the one control thread of all sockets and drives the
//! device that all sessions share ([`crate::virtio`]). This module has vhost-user's own parts: sockets,
//! options, and the file that keeps positions of packed rings. Options are those of Open vSwitch; nothing of
//! DPDK is needed.

mod settings;
#[cfg(test)]
mod tests;

pub use settings::{VhostContext, socket_dir};

use crate::virtio::{Backing, DEFAULT_MTU, PortDevice, Shared};
use crate::{Port, PortError, PortStatus, RxQueue, TxQueue};
use heddle_vhost_user::backend::{Role, Socket, SocketId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The side that owns the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The front end: this side connects, and again whenever the connection ends (`dpdkvhostuserclient`).
    Client,
    /// This side listens (`dpdkvhostuser`).
    Server,
}

/// A port on a virtual machine's device.
pub struct VhostPort {
    shared: Arc<Shared>,
    mode: Mode,
    path: Mutex<PathBuf>,
    context: VhostContext,
    /// The socket; `None` only while it is replaced.
    socket: Mutex<Option<SocketId>>,
    /// Warnings about the options, as logged.
    warnings: Mutex<Vec<String>>,
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
    /// [`PortError::Config`]: no path, one that is too long, a name that is none for a file;
    /// [`PortError::Sys`]: the socket cannot be made.
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
        let backing = Backing {
            mode: match mode {
                Mode::Client => "client",
                Mode::Server => "server",
            },
            calls: mode == Mode::Client,
            at: Mutex::new(path.display().to_string()),
        };
        let retries = settings::tx_retries_max(mode, options);
        let shared = Shared::new(name, backing, Arc::clone(&context.changed), retries);
        shared.set_pretended_numa(settings::pretended_numa(options, &context));
        let port = Self {
            shared,
            mode,
            path: Mutex::new(path),
            context,
            socket: Mutex::new(None),
            warnings: Mutex::default(),
        };
        port.doubt(options);
        port.attach()?;
        Ok(Arc::new(port))
    }

    /// Logs the options that have no effect, once.
    fn doubt(&self, options: &BTreeMap<String, String>) {
        let (mode, name) = (self.mode, &self.shared.name);
        let warnings = settings::warnings(mode, options, &self.context);
        let before = core::mem::replace(&mut *self.warnings.lock(), warnings.clone());
        for text in warnings.iter().filter(|t| !before.contains(t)) {
            log::warn!(target: "netdev_dpdk", "{name}: {text}");
        }
    }

    /// Makes the socket, or begins to call at it.
    fn attach(&self) -> Result<(), PortError> {
        let path = self.path.lock().clone();
        let (name, shown) = (&self.shared.name, path.display().to_string());
        let failed = |e| {
            PortError::sys(
                format!("could not open socket {shown} of vhost-user port {name}"),
                e,
            )
        };
        let role = match self.mode {
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
        let device = PortDevice::new(Arc::clone(&self.shared), self.context.iommu);
        let id = self
            .context
            .control
            .add(socket, Box::new(device))
            .map_err(failed)?;
        *self.socket.lock() = Some(id);
        match self.mode {
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

    /// Ends the session, if there is one, with `why` for people. When it returns no worker has a ring and no
    /// socket is there.
    fn detach(&self, why: &'static str) {
        let id = self.socket.lock().take();
        if let Some(id) = id {
            self.context.control.remove(id, why);
        }
    }

    /// The file that keeps positions of packed rings beyond this process. It is in a directory of its own:
    /// sockets in the run directory have ports' names, which may be anything.
    fn journal(&self) -> Option<PathBuf> {
        journal(&self.context.rundir, &self.shared.name)
    }
}

/// The file that keeps positions of port `name`'s packed rings beyond this process.
pub(crate) fn journal(rundir: &Path, name: &str) -> Option<PathBuf> {
    let plain = !name.contains('/') && !matches!(name, "." | "..");
    plain.then(|| rundir.join(JOURNALS).join(name))
}

/// `options:tx-retries-max`.
pub(crate) fn tx_retries_max(options: &BTreeMap<String, String>) -> u32 {
    settings::tx_retries_max(Mode::Client, options)
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
        match self.mode {
            Mode::Client => CLIENT,
            Mode::Server => SERVER,
        }
    }
    fn open_rx(&self, n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        self.shared.open_rx(n)
    }
    fn open_tx(&self, worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(self.shared.open_tx(worker))
    }
    fn status(&self) -> PortStatus {
        self.shared.status()
    }
    fn statistics(&self) -> Vec<(String, u64)> {
        self.shared.statistics()
    }
    fn rxq_enabled(&self, queue: usize) -> bool {
        self.shared.rxq_enabled(queue)
    }
    fn set_mtu(&self, mtu: u32) -> Result<(), PortError> {
        self.shared.set_mtu(mtu)
    }
    fn default_mtu(&self) -> Option<u32> {
        Some(DEFAULT_MTU)
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        self.shared.set_mac(mac);
        Ok(())
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        self.shared.set_admin(up);
        Ok(())
    }
    fn set_qos(&self, qos: Option<&crate::QosConfig>) -> Result<(), PortError> {
        self.shared.limit.set_qos(&self.shared.name, qos)
    }
    fn set_options(&self, options: &BTreeMap<String, String>) -> Result<(), PortError> {
        if self.mode == Mode::Client && crate::types::is_vduse(options) {
            return Err(PortError::Config(format!(
                "{}: a port on a socket moves to a VDUSE device when it is deleted and added again",
                self.shared.name
            )));
        }
        let path = settings::path(self.mode, &self.shared.name, options, &self.context)?;
        let retries = settings::tx_retries_max(self.mode, options);
        if self.shared.tx.set_retries_max(retries) {
            let name = &self.shared.name;
            log::info!(target: "netdev_dpdk", "Max Tx retries for vhost device '{name}' set to {retries}");
        }
        self.doubt(options);
        self.shared
            .set_pretended_numa(settings::pretended_numa(options, &self.context));
        if *self.path.lock() == path {
            return Ok(());
        }
        // The old connection ends before the new one begins: the device behind both is one.
        self.detach("the port was given another socket");
        *self.shared.backing.at.lock() = path.display().to_string();
        *self.path.lock() = path;
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
