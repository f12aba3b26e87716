//! Who speaks OpenFlow with a bridge: controllers that it calls, and whoever calls at `RUNDIR/BRIDGE.mgmt`
//! and other sockets that are configured.

use heddle_ofproto::conn::Listener;

use super::Reconciler;
use super::desired::Remote;
use super::state::BridgeState;
use crate::cli::dirs;

impl Reconciler {
    /// Opens the bridge's sockets and calls its controllers, where that is not so already.
    pub(super) fn set_remotes(&self, state: &mut BridgeState) {
        let name = &state.row.name;
        let rundir = dirs::rundir();
        let mut sockets = vec![rundir.join(format!("{name}.mgmt"))];
        let mut wanted = Vec::new();
        let rows = state
            .row
            .controllers
            .iter()
            .filter(|_| !self.globals.restore_wait);
        for controller in rows {
            match controller.remote(name, &rundir, self.switch.options.self_confinement) {
                Ok(Remote::Call(config)) => wanted.push(config),
                Ok(Remote::Listen(path)) => sockets.push(path),
                Err(why) => log::error!(target: "bridge", "{why}"),
            }
        }
        state.listeners.retain(|path, _| sockets.contains(path));
        for path in sockets {
            if state.listeners.contains_key(&path) {
                continue;
            }
            match Listener::bind(state.controllers.manager().clone(), &path) {
                Ok(listener) => {
                    log::info!(
                        target: "connmgr",
                        "{name}: added service controller \"punix:{}\"", path.display()
                    );
                    state.listeners.insert(path, listener);
                }
                // The next change of the configuration tries again.
                Err(error) => log::error!(target: "connmgr", "{name}: failed to listen: {error}"),
            }
        }
        state.controllers.set(wanted);
    }
}
