//! The common parts of vhost-user ports and of VDUSE ports.
//!
//! The control thread of either kind starts with the first such port and ends with the last handle. A changed
//! setting (`vhost-sock-dir`, `vhost-iommu-support`) applies only to ports made later, as in Open vSwitch.

use std::io;
use std::sync::{Arc, OnceLock};

use heddle_daemon::dirs;
use heddle_port::{PortError, VduseContext, VhostContext, socket_dir};
use heddle_vduse::System;
use heddle_vhost_user::backend::Control as VhostControl;

use super::desired::InterfaceRow;
use super::globals::Globals;
use crate::switch::Switch;

/// The control threads that have started.
#[derive(Default)]
pub(super) struct Guests {
    vhost: OnceLock<Arc<VhostControl>>,
    vduse: OnceLock<Arc<heddle_vduse::Control>>,
}

impl Guests {
    /// The state that vhost-user port `name` shares with the others.
    pub(super) fn vhost(
        &self,
        name: &str,
        switch: &Switch,
        globals: &Globals,
    ) -> Result<VhostContext, PortError> {
        let rundir = dirs::rundir();
        let socket_dir = socket_dir(&rundir, globals.vhost_sock_dir.as_deref()).unwrap_or_else(|why| {
            log::error!(target: "netdev_dpdk", "{why}");
            rundir.clone()
        });
        let changed = Arc::clone(&switch.ports_changed);
        Ok(VhostContext {
            control: started(&self.vhost, name, VhostControl::start)?,
            changed: Arc::new(move || changed.notify_one()),
            rundir,
            socket_dir,
            iommu: globals.vhost_iommu,
            dummy_numa: switch.options.dummy_numa.is_some(),
        })
    }

    /// The state that VDUSE port `name` shares with the others, and the settings of its `row`.
    pub(super) fn vduse(
        &self,
        name: &str,
        switch: &Switch,
        row: &InterfaceRow,
    ) -> Result<VduseContext, PortError> {
        let changed = Arc::clone(&switch.ports_changed);
        let start = || heddle_vduse::Control::start(Arc::new(System));
        Ok(VduseContext {
            control: started(&self.vduse, name, start)?,
            changed: Arc::new(move || changed.notify_one()),
            rundir: dirs::rundir(),
            // An address that is no unicast address is refused, with an error, when it is set.
            mac: row.mac.filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0),
            mtu: row.mtu_request,
        })
    }

    /// Called when all ports of the configuration exist, and the pipeline has them.
    pub(super) fn settled(&self) {
        if let Some(control) = self.vduse.get() {
            control.settled();
        }
    }
}

/// The control thread, which starts now if it has not; `name`: the port that needs it.
fn started<T>(
    control: &OnceLock<Arc<T>>,
    name: &str,
    start: impl FnOnce() -> io::Result<T>,
) -> Result<Arc<T>, PortError> {
    if let Some(control) = control.get() {
        return Ok(control.clone());
    }
    let made = start().map_err(|e| PortError::open(name, e))?;
    Ok(control.get_or_init(|| Arc::new(made)).clone())
}
