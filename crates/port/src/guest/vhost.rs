//! `dpdkvhostuser` and `dpdkvhostuserclient` ports: the virtio-net device of a virtual machine, over
//! vhost-user.
//!
//! The session is [`heddle_vhost_user::backend`]. This module has vhost-user's own parts: sockets, options,
//! and the file that keeps positions of packed rings. Options are those of Open vSwitch; nothing of DPDK is
//! needed.

mod settings;
#[cfg(test)]
mod tests;

pub use settings::{VhostContext, socket_dir};

use super::vduse::is_vduse;
use super::{GuestPort, Options, Protocol, journal};
use crate::virtio::{Backing, PortDevice, Shared};
use crate::{Port, PortError};
use heddle_vhost_user::backend::{Role, Socket, SocketId};
use parking_lot::Mutex;
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

/// `Interface.type` of ports that connect.
const CLIENT: &str = "dpdkvhostuserclient";
/// `Interface.type` of ports that listen.
const SERVER: &str = "dpdkvhostuser";

/// vhost-user, for ports of one mode.
struct VhostUser {
    mode: Mode,
    context: VhostContext,
}

/// Opens port `name` of type `kind` (`dpdkvhostuser` or `dpdkvhostuserclient`).
///
/// # Errors
/// [`PortError::Config`]: no path, one that is too long, a name that is none for a file;
/// [`PortError::Sys`]: the socket cannot be made.
pub fn open_vhost(
    kind: &str,
    name: &str,
    options: &Options,
    context: VhostContext,
) -> Result<Arc<dyn Port>, PortError> {
    let (mode, kind, shown) = match kind {
        CLIENT => (Mode::Client, CLIENT, "client"),
        _ => (Mode::Server, SERVER, "server"),
    };
    let backing = |at| Backing {
        mode: shown,
        calls: mode == Mode::Client,
        at: Mutex::new(at),
    };
    let changed = Arc::clone(&context.changed);
    let protocol = VhostUser { mode, context };
    GuestPort::new(kind, name, options, protocol, backing, &changed)?.start(options)
}

impl Protocol for VhostUser {
    /// The socket's path.
    type Settings = PathBuf;
    type Id = SocketId;
    const MOVED: &'static str = "the port was given another socket";
    const STEERS: bool = true;

    fn settings(&self, name: &str, options: &Options, now: Option<&PathBuf>) -> Result<PathBuf, PortError> {
        if now.is_some() && self.mode == Mode::Client && is_vduse(options) {
            return Err(PortError::Config(format!(
                "{name}: a port on a socket moves to a VDUSE device when it is deleted and added again"
            )));
        }
        settings::path(self.mode, name, options, &self.context)
    }

    fn shown(path: &PathBuf) -> String {
        path.display().to_string()
    }

    fn warnings(&self, options: &Options) -> Vec<String> {
        settings::warnings(self.mode, options, &self.context)
    }

    fn tx_retries_max(&self, options: &Options) -> u32 {
        settings::tx_retries_max(self.mode, options)
    }

    fn apply(&self, options: &Options, shared: &Shared) {
        let retries = self.tx_retries_max(options);
        if shared.tx.set_retries_max(retries) {
            let name = &shared.name;
            log::info!(target: "netdev_dpdk", "Max Tx retries for vhost device '{name}' set to {retries}");
        }
        shared.set_pretended_numa(settings::pretended_numa(options, &self.context));
    }

    /// Makes the socket, or begins to call at it.
    fn attach(&self, path: &PathBuf, shared: &Arc<Shared>) -> Result<SocketId, PortError> {
        let (name, shown) = (&shared.name, path.display());
        let failed = |e| {
            PortError::sys(
                format!("could not open socket {shown} of vhost-user port {name}"),
                e,
            )
        };
        let role = match self.mode {
            Mode::Client => Role::Client,
            Mode::Server => {
                settings::probe_directory(path).map_err(failed)?;
                Role::Server
            }
        };
        let socket = Socket {
            path: path.clone(),
            role,
            journal: journal(&self.context.rundir, name),
        };
        let device = PortDevice::new(Arc::clone(shared), self.context.iommu);
        let id = self
            .context
            .control
            .add(socket, Box::new(device))
            .map_err(failed)?;
        match self.mode {
            Mode::Client => log::info!(
                target: "netdev_dpdk",
                "vHost User device '{name}' created in 'client' mode, using client socket '{shown}'"
            ),
            Mode::Server => {
                log::info!(target: "netdev_dpdk", "Socket {shown} created for vhost-user port {name}")
            }
        }
        Ok(id)
    }

    fn detach(&self, id: SocketId, _for_good: bool, why: &'static str) {
        self.context.control.remove(id, why);
    }

    fn rundir(&self) -> &Path {
        &self.context.rundir
    }
}

/// `options:tx-retries-max` of a port that connects.
pub(super) fn tx_retries_max(options: &Options) -> u32 {
    settings::tx_retries_max(Mode::Client, options)
}
