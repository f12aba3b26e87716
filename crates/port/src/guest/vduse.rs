//! `vduse` ports: virtio-net devices of pods, which the kernel's own driver uses (VDUSE).
//!
//! The session ([`heddle_vduse`]) runs on the one control thread of all such devices and drives the device
//! that all sessions share ([`crate::virtio`]). This module has VDUSE's own parts: names, options, and the
//! port's settings that the driver gets. A `dpdkvhostuserclient` port whose `vhost-server-path` is in
//! `/dev/vduse` is such a port, as in Open vSwitch.

mod settings;

pub(crate) use settings::is_vduse;

use crate::virtio::{Backing, Changed, DEFAULT_MTU, PortDevice, Shared};
use crate::{Port, PortError, PortStatus, RxQueue, TxQueue};
use heddle_vduse::{Control, DeviceId, Spec, Wanted};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
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

/// A port on a VDUSE device.
pub struct VdusePort {
    kind: &'static str,
    shared: Arc<Shared>,
    context: VduseContext,
    state: Mutex<State>,
}

struct State {
    spec: Spec,
    id: Option<DeviceId>,
    /// Warnings about the options, as logged.
    warnings: Vec<String>,
}

impl std::fmt::Debug for VdusePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VdusePort")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl VdusePort {
    /// Opens port `name` of type `kind` (`vduse` or `dpdkvhostuserclient`).
    ///
    /// # Errors
    /// [`PortError::Config`] for options that make no sense; [`PortError::Sys`] beyond 4096 devices. If the
    /// device cannot be made, the reason is in the port's status, and the port tries again.
    pub fn open(
        kind: &'static str,
        name: &str,
        options: &BTreeMap<String, String>,
        context: VduseContext,
    ) -> Result<Arc<Self>, PortError> {
        let spec = settings::spec(name, options, &context)?;
        let backing = Backing {
            mode: "vduse",
            calls: false,
            at: Mutex::new(settings::path(&spec)),
        };
        let retries = crate::vhost::tx_retries_max(options);
        let shared = Shared::new(name, backing, Arc::clone(&context.changed), retries);
        shared.set_mac(spec.wanted.mac);
        shared.set_mtu(u32::from(spec.wanted.mtu))?;
        let port = Self {
            kind,
            shared,
            context,
            state: Mutex::new(State {
                spec,
                id: None,
                warnings: Vec::new(),
            }),
        };
        port.doubt(options);
        port.attach()?;
        Ok(Arc::new(port))
    }

    /// Logs the options that have no effect, once.
    fn doubt(&self, options: &BTreeMap<String, String>) {
        let warnings = settings::warnings(options);
        let before = core::mem::replace(&mut self.state.lock().warnings, warnings.clone());
        for text in warnings.iter().filter(|t| !before.contains(t)) {
            log::warn!(target: "netdev_dpdk", "{}: {text}", self.shared.name);
        }
    }

    fn attach(&self) -> Result<(), PortError> {
        let device = PortDevice::new(Arc::clone(&self.shared), true);
        let mut state = self.state.lock();
        let name = &self.shared.name;
        let id = self.context.control.add(state.spec.clone(), Box::new(device));
        state.id = Some(id.map_err(|e| PortError::open(name, e))?);
        log::info!(target: "netdev_dpdk", "port {name} uses VDUSE device {}", settings::path(&state.spec));
        Ok(())
    }

    fn detach(&self, for_good: bool, why: &'static str) {
        let id = self.state.lock().id.take();
        if let Some(id) = id {
            self.context.control.remove(id, for_good, why);
        }
    }

    /// Changes the settings that the driver gets.
    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        let mut state = self.state.lock();
        let before = state.spec.wanted;
        change(&mut state.spec.wanted);
        let wanted = state.spec.wanted;
        if let Some(id) = state.id.filter(|_| wanted != before) {
            self.context.control.configure(id, wanted);
        }
    }
}

impl Drop for VdusePort {
    fn drop(&mut self) {
        self.detach(false, REMOVED);
    }
}

/// Why a session ends with its port.
const REMOVED: &str = "the port was removed";

impl Port for VdusePort {
    fn name(&self) -> &str {
        &self.shared.name
    }
    fn kind(&self) -> &'static str {
        self.kind
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
        self.shared.set_mtu(mtu)?;
        self.want(|w| w.mtu = u16::try_from(mtu).unwrap_or(w.mtu));
        Ok(())
    }
    fn default_mtu(&self) -> Option<u32> {
        Some(DEFAULT_MTU)
    }
    fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        self.shared.set_mac(mac);
        self.want(|w| w.mac = mac);
        Ok(())
    }
    fn set_admin(&self, up: bool) -> Result<(), PortError> {
        self.shared.set_admin(up);
        self.want(|w| w.link_up = up);
        Ok(())
    }
    fn set_qos(&self, qos: Option<&crate::QosConfig>) -> Result<(), PortError> {
        self.shared.limit.set_qos(&self.shared.name, qos)
    }
    fn set_options(&self, options: &BTreeMap<String, String>) -> Result<(), PortError> {
        let mut new = settings::spec(&self.shared.name, options, &self.context)?;
        self.shared
            .tx
            .set_retries_max(crate::vhost::tx_retries_max(options));
        self.doubt(options);
        let before = {
            let state = self.state.lock();
            new.wanted = state.spec.wanted;
            state.spec.clone()
        };
        if before == new {
            return Ok(());
        }
        // Settings that a device is made with change only with a new device.
        self.detach(true, "the port was given another device, or other options");
        *self.shared.backing.at.lock() = settings::path(&new);
        self.state.lock().spec = new;
        self.attach()
    }
    fn forget(&self) {
        self.detach(true, REMOVED);
        if let Some(path) = &self.state.lock().spec.journal {
            // A port that never had packed rings has none.
            let _ = std::fs::remove_file(path);
        }
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
