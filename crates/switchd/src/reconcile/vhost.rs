//! The common part of vhost-user ports.
//!
//! The thread of all sockets starts with the first such port and ends with the last handle. A changed setting
//! (`vhost-sock-dir`, `vhost-iommu-support`) applies only to ports made later, as in Open vSwitch.

use std::sync::{Arc, OnceLock};

use heddle_port::{PortError, VhostContext, socket_dir};
use heddle_vhost_user::backend::Control;

use super::globals::Globals;
use crate::switch::Switch;
use heddle_daemon::dirs;

/// State that all vhost-user ports share.
#[derive(Default)]
pub(super) struct Vhost {
    control: OnceLock<Arc<Control>>,
}

impl Vhost {
    /// The state that port `name` shares with the others.
    pub(super) fn context(
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
            control: self.control(name)?,
            changed: Arc::new(move || changed.notify_one()),
            rundir,
            socket_dir,
            iommu: globals.vhost_iommu,
            dummy_numa: switch.options.dummy_numa.is_some(),
        })
    }

    fn control(&self, name: &str) -> Result<Arc<Control>, PortError> {
        if let Some(control) = self.control.get() {
            return Ok(control.clone());
        }
        let made = Control::start().map_err(|e| PortError::open(name, e))?;
        Ok(self.control.get_or_init(|| Arc::new(made)).clone())
    }
}
