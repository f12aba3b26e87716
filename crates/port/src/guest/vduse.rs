//! `vduse` ports: virtio-net devices of pods, which the kernel's own driver uses (VDUSE).
//!
//! The session is [`heddle_vduse`]. This module has VDUSE's own parts: names, options, and the port's
//! settings that the driver gets. A `dpdkvhostuserclient` port whose `vhost-server-path` is in `/dev/vduse`
//! is such a port, as in Open vSwitch.

mod settings;

pub(crate) use settings::is_vduse;

use super::{Change, GuestPort, Options, Protocol};
use crate::virtio::{Backing, Changed, PortDevice, Shared};
use crate::{Port, PortError};
use heddle_vduse::{Control, DeviceId, Spec};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The state that all VDUSE ports of a switch share, and the settings of `Interface` for one.
#[derive(Clone)]
pub struct VduseContext {
    /// The control thread of all devices.
    pub control: Arc<Control>,
    /// Called, from any thread, when a port's status changes.
    pub changed: Changed,
    /// The run directory: positions of packed rings are kept here.
    pub rundir: PathBuf,
    /// `Interface.mac`.
    pub mac: Option<[u8; 6]>,
    /// `Interface.mtu_request`.
    pub mtu: Option<u32>,
}

/// Opens port `name` of type `kind` (`vduse` or `dpdkvhostuserclient`).
///
/// # Errors
/// [`PortError::Config`] for options that make no sense; [`PortError::Sys`] beyond 4096 devices. If the
/// device cannot be made, the reason is in the port's status, and the port tries again.
pub(crate) fn open_vduse(
    kind: &'static str,
    name: &str,
    options: &Options,
    context: VduseContext,
) -> Result<Arc<dyn Port>, PortError> {
    let backing = |at| Backing {
        mode: "vduse",
        calls: false,
        at: Mutex::new(at),
    };
    let changed = Arc::clone(&context.changed);
    let port = GuestPort::new(kind, name, options, context, backing, &changed)?;
    let wanted = port.session.lock().settings.wanted;
    port.shared.set_mac(wanted.mac);
    port.shared.set_mtu(u32::from(wanted.mtu))?;
    port.start(options)
}

impl Protocol for VduseContext {
    type Settings = Spec;
    type Id = DeviceId;
    const MOVED: &'static str = "the port was given another device, or other options";
    const STEERS: bool = false;

    fn settings(&self, name: &str, options: &Options, now: Option<&Spec>) -> Result<Spec, PortError> {
        let spec = settings::spec(name, options, self)?;
        Ok(Spec {
            wanted: now.map_or(spec.wanted, |now| now.wanted),
            ..spec
        })
    }

    fn shown(spec: &Spec) -> String {
        settings::path(spec)
    }

    fn warnings(&self, options: &Options) -> Vec<String> {
        settings::warnings(options)
    }

    fn tx_retries_max(&self, options: &Options) -> u32 {
        super::vhost::tx_retries_max(options)
    }

    fn apply(&self, options: &Options, shared: &Shared) {
        shared.tx.set_retries_max(self.tx_retries_max(options));
    }

    fn attach(&self, spec: &Spec, shared: &Arc<Shared>) -> Result<DeviceId, PortError> {
        let name = &shared.name;
        let device = PortDevice::new(Arc::clone(shared), true);
        let id = self.control.add(spec.clone(), Box::new(device));
        let id = id.map_err(|e| PortError::open(name, e))?;
        log::info!(target: "netdev_dpdk", "port {name} uses VDUSE device {}", settings::path(spec));
        Ok(id)
    }

    fn detach(&self, id: DeviceId, for_good: bool, why: &'static str) {
        self.control.remove(id, for_good, why);
    }

    fn configure(&self, change: Change, spec: &mut Spec, id: Option<DeviceId>) {
        let before = spec.wanted;
        match change {
            Change::Mtu(mtu) => spec.wanted.mtu = u16::try_from(mtu).unwrap_or(before.mtu),
            Change::Mac(mac) => spec.wanted.mac = mac,
            Change::LinkUp(up) => spec.wanted.link_up = up,
        }
        if let Some(id) = id.filter(|_| spec.wanted != before) {
            self.control.configure(id, spec.wanted);
        }
    }

    fn rundir(&self) -> &Path {
        &self.rundir
    }
}
