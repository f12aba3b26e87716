//! Who speaks OpenFlow with a bridge: controllers that it calls, and whoever calls at `RUNDIR/BRIDGE.mgmt`.

use heddle_ofproto::conn::Listener;

use super::Reconciler;
use super::state::BridgeState;
use crate::cli::dirs;

impl Reconciler {
    /// Opens the bridge's socket and calls its controllers, where that is not so already.
    pub(super) fn set_remotes(&self, state: &mut BridgeState) {
        let name = &state.row.name;
        let rundir = dirs::rundir();
        if state.listener.is_none() {
            let path = rundir.join(format!("{name}.mgmt"));
            match Listener::bind(state.controllers.manager().clone(), &path) {
                Ok(listener) => {
                    log::info!(
                        target: "connmgr",
                        "{name}: added service controller \"punix:{}\"", path.display()
                    );
                    state.listener = Some(listener);
                }
                // The next change of the configuration tries again.
                Err(error) => log::error!(target: "connmgr", "{name}: failed to listen: {error}"),
            }
        }
        let mut wanted = Vec::new();
        if !self.globals.restore_wait {
            for controller in &state.row.controllers {
                match controller.config(name, &rundir, self.switch.options.self_confinement) {
                    Ok(config) => wanted.push(config),
                    Err(why) => log::error!(target: "bridge", "{why}"),
                }
            }
        }
        state.controllers.set(wanted);
    }
}
