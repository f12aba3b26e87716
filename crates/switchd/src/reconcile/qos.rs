//! Limits of ports' output (`Port.qos`) and input (`Interface.ingress_policing_*`).

use std::sync::Arc;

use heddle_datapath_api::{MeterConfig, PortNo};

use super::Reconciler;
use super::state::BridgeState;

impl Reconciler {
    /// Applies the rows' limits to the devices of a bridge's ports.
    pub(super) fn limit_rates(&self, state: &mut BridgeState) {
        for iface in state.ifaces.values_mut() {
            let Some((device, no)) = iface.device().map(|(d, no)| (Arc::clone(d), no)) else {
                continue;
            };
            let Some((port, row)) = state.row.interface(&iface.name) else {
                continue;
            };
            // Pretended devices have no rates in Open vSwitch either.
            if !device.port_type().pretended
                && let Err(error) = device.set_qos(port.qos.as_ref())
            {
                let kind = port.qos.as_ref().map_or("", |q| q.kind.as_str());
                log::warn!(target: "bridge", per_min = 1, burst = 10;
                    "interface {}: QoS {kind:?}: {error}", iface.name);
            }
            if iface.policing != row.policing {
                iface.policing.clone_from(&row.policing);
                self.police(&iface.name, no, &row.policing);
            }
        }
    }

    fn police(&self, name: &str, no: PortNo, limits: &[MeterConfig]) {
        if let Err(error) = self.switch.datapath.set_policing(no, limits) {
            log::warn!(target: "bridge", "interface {name}: what it receives is not limited: {error}");
        }
    }
}
