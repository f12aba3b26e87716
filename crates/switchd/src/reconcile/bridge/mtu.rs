//! The MTU of internal ports: as long as the user has not set it, the smallest of the bridge's other ports.
//!
//! Hosts behind the bridge then send packets that every port can carry. If the bridge has no other ports,
//! internal ones keep their MTU.

use heddle_datapath::Datapath;

use super::{BridgeReconciler, Iface};

/// The MTU of internal ports after the last other port has gone.
const DEFAULT: u32 = 1500;

impl BridgeReconciler {
    /// Gives internal ports their MTU, and the datapath the MTU of each port.
    pub(super) fn follow_mtu(&mut self, datapath: &Datapath) {
        let leads = |i: &&Iface| i.device().is_some() && !i.follows_mtu() && i.status.mtu != 0;
        let lead = self.ifaces.values().filter(leads).map(|i| i.status.mtu).min();
        let min = lead.or(self.min_mtu.map(|_| DEFAULT));
        let moved = min != self.min_mtu;
        self.min_mtu = min;
        for iface in self.ifaces.values_mut() {
            let is_new = std::mem::take(&mut iface.is_new);
            let released = std::mem::take(&mut iface.mtu_released);
            let Some(mtu) = min
                .or(released.then_some(DEFAULT))
                .filter(|_| iface.follows_mtu())
            else {
                continue;
            };
            let due = if moved || released {
                iface.status.mtu != mtu
            } else {
                is_new && iface.status.mtu > mtu
            };
            let Some((device, no)) = iface.device().filter(|_| due) else {
                continue;
            };
            match device.set_mtu(mtu) {
                Ok(()) => {
                    // The call cannot fail: the port is there.
                    let _ = datapath.set_port_mtu(no, mtu);
                    iface.status.mtu = mtu;
                }
                Err(error) => {
                    log::warn!(target: "netdev", "failed to set MTU for network device {}: {error}", iface.name);
                }
            }
        }
    }
}
