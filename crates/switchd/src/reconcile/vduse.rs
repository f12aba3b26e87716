//! The common part of VDUSE ports.
//!
//! The thread of all devices starts with the first such port and ends with the last handle.

use std::sync::{Arc, OnceLock};

use heddle_port::PortError;
use heddle_port::VduseContext;
use heddle_vduse::{Control, System};

use super::desired::InterfaceRow;
use crate::switch::Switch;
use heddle_daemon::dirs;

/// State that all VDUSE ports share.
#[derive(Default)]
pub(super) struct Vduse {
    control: OnceLock<Arc<Control>>,
}

impl Vduse {
    /// The state that port `name` shares with the others, and the settings of its `row`.
    pub(super) fn context(
        &self,
        name: &str,
        switch: &Switch,
        row: &InterfaceRow,
    ) -> Result<VduseContext, PortError> {
        let changed = Arc::clone(&switch.ports_changed);
        Ok(VduseContext {
            control: self.control(name)?,
            changed: Arc::new(move || changed.notify_one()),
            rundir: dirs::rundir(),
            // An address that is no unicast address is refused, with an error, when it is set.
            mac: row.mac.filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0),
            mtu: row.mtu_request,
        })
    }

    /// Called when all ports of the configuration exist, and the pipeline has them.
    pub(super) fn settled(&self) {
        if let Some(control) = self.control.get() {
            control.settled();
        }
    }

    fn control(&self, name: &str) -> Result<Arc<Control>, PortError> {
        if let Some(control) = self.control.get() {
            return Ok(control.clone());
        }
        let made = Control::start(Arc::new(System)).map_err(|e| PortError::open(name, e))?;
        Ok(self.control.get_or_init(|| Arc::new(made)).clone())
    }
}
