//! OpenFlow peers of a bridge: controllers that it calls, and callers at `RUNDIR/BRIDGE.mgmt` and other
//! configured sockets.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_ofproto::conn::Listener;
use heddle_stream::Passive;

use super::BridgeReconciler;
use crate::reconcile::desired::Remote;
use crate::reconcile::environment::Environment;
use heddle_daemon::dirs;

/// Silence after which the switch probes a caller at `BRIDGE.mgmt`.
const PROBE: Duration = Duration::from_secs(60);

impl BridgeReconciler {
    /// Opens the bridge's sockets and calls its controllers, unless it has done so.
    pub(super) fn set_remotes(&mut self, env: &Environment) {
        let name = &self.row.name;
        let rundir = dirs::rundir();
        let management = Passive::Unix(rundir.join(format!("{name}.mgmt")));
        let mut sockets = BTreeMap::from([(management, Some(PROBE))]);
        let mut wanted = Vec::new();
        let rows = self.row.controllers.iter().filter(|_| !env.globals.restore_wait);
        for controller in rows {
            match controller.remote(name, &rundir, env.switch.options.self_confinement) {
                Ok(Remote::Call(config)) => wanted.push(config),
                Ok(Remote::Listen(at, probe)) => {
                    sockets.insert(at, probe);
                }
                Err(why) => log::error!(target: "bridge", "{why}"),
            }
        }
        self.listeners
            .retain(|at, listener| sockets.get(at) == Some(&listener.probe()));
        for (at, probe) in sockets {
            if self.listeners.contains_key(&at) {
                continue;
            }
            match Listener::bind(self.controllers.manager().clone(), &at, probe) {
                Ok(listener) => {
                    log::info!(
                        target: "connmgr",
                        "{name}: added service controller \"{at}\""
                    );
                    self.listeners.insert(at, listener);
                }
                // The next change of the configuration tries again.
                Err(error) => log::error!(target: "connmgr", "{name}: failed to listen: {error}"),
            }
        }
        self.controllers.set(wanted);
    }
}
