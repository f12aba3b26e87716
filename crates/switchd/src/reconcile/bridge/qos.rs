//! Limits of ports' output (`Port.qos`) and input (`Interface.ingress_policing_*`).

use std::sync::Arc;

use heddle_datapath::Datapath;

use super::BridgeReconciler;

impl BridgeReconciler {
    /// Applies the rows' limits to the devices of the bridge's ports.
    pub(super) fn limit_rates(&mut self, datapath: &Datapath) {
        for iface in self.ifaces.values_mut() {
            let Some((device, no)) = iface.device().map(|(d, no)| (Arc::clone(d), no)) else {
                continue;
            };
            let Some((mut port, mut row)) = self.row.interface(&iface.name) else {
                continue;
            };
            // A standby has the limits of its primary.
            if let Some(primary) = self.primaries.get(&iface.name)
                && let Some(of_primary) = self.row.interface(primary)
            {
                (port, row) = of_primary;
            }
            // Pretended devices have no rates in Open vSwitch either.
            if !device.port_type().pretended {
                let refused = device
                    .set_qos(port.qos.as_ref())
                    .err()
                    .map(|error| error.to_string());
                iface.qos_refused = port.qos.as_ref().and_then(|qos| {
                    let mut faults = qos.faults(device.kind() == "system");
                    faults.splice(0..0, refused);
                    let all = format!("QoS {:?}: {}", qos.kind, faults.join("; "));
                    (!faults.is_empty()).then_some(all)
                });
            }
            if let Some(refused) = &iface.qos_refused {
                log::warn!(target: "bridge", per_min = 1, burst = 10; "interface {}: {refused}", iface.name);
            }
            if iface.policing != row.policing {
                iface.policing.clone_from(&row.policing);
                if let Err(error) = datapath.set_policing(no, &row.policing) {
                    log::warn!(target: "bridge", "interface {}: what it receives is not limited: {error}", iface.name);
                }
            }
        }
    }
}
