//! The state of a bridge's devices: link, MTU, address. It is read about once a second, and when the kernel
//! reports a change.

use heddle_datapath::Datapath;
use heddle_port::PortStatus;

use super::egress::{log_lost_route, tunnel_status};
use super::make::set_queues;
use super::ports::is_gone;
use super::{BridgeReconciler, Iface};
use crate::reconcile::environment::Environment;

/// The results of one reading of all devices.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::reconcile) struct Changes {
    /// A change is to be written to the database.
    pub(in crate::reconcile) write: bool,
    /// The configuration is to be applied again: a device has gone, or a missing one may have come.
    pub(in crate::reconcile) reconfigure: bool,
}

impl BridgeReconciler {
    /// Reads the state of all devices and passes changes on to OpenFlow.
    pub(in crate::reconcile) fn refresh(&mut self, env: &Environment, changes: &mut Changes) {
        if self.read_devices(env, changes) {
            self.follow_mtu(&env.switch.datapath);
            self.push_ports(&env.switch.ofproto);
            changes.write = true;
        }
        changes.write |= self.log_changes_of_standbys();
        // Readers of a mirror's counters see them soon, not at the end of an interval.
        if !self.row.mirrors.is_empty()
            && let Some(packets) = self.bridge.mirrored_packets()
            && std::mem::replace(&mut self.mirrored, packets) != packets
        {
            changes.write = true;
        }
        self.controllers.tick();
    }

    /// Reads all devices. Returns whether a change concerns OpenFlow.
    fn read_devices(&mut self, env: &Environment, changes: &mut Changes) -> bool {
        let mut changed = false;
        for iface in self.ifaces.values_mut() {
            let now = match iface.device() {
                Some((device, _)) => device.status(),
                // Controllers set a patch port's admin state. The call fails instead of waiting if another
                // thread changes the bridge's rules.
                None => match self.bridge.is_admin_up(iface.no) {
                    Some(admin_up) => PortStatus {
                        admin_up,
                        extra: tunnel_status(iface, &env.switch),
                        ..iface.status.clone()
                    },
                    None => continue,
                },
            };
            reopen_if_stale(&self.row.name, iface, &env.switch.datapath);
            if now == iface.status {
                continue;
            }
            log_lost_route(iface, &now);
            if let Some((device, no)) = iface.device() {
                changes.reconfigure |= is_gone(device.as_ref(), &now);
                if now.mtu != iface.status.mtu {
                    // The call cannot fail: the port is there.
                    let _ = env.switch.datapath.set_port_mtu(no, now.mtu);
                }
                if (now.n_rxq, now.numa) != (iface.status.n_rxq, iface.status.numa)
                    && let Some((_, row)) = self.row.interface(&iface.name)
                {
                    set_queues(no, row, &now, &env.switch.datapath);
                }
            }
            changed |= PortStatus {
                rx_dropped: 0,
                ..now.clone()
            } != PortStatus {
                rx_dropped: 0,
                ..iface.status.clone()
            };
            iface.status = now;
        }
        changed
    }
}

/// Reopens the queues of a device that another device of the same name has replaced, or whose options have
/// changed. If that fails, the port is in the datapath no more, and the next call tries again.
fn reopen_if_stale(bridge: &str, iface: &Iface, datapath: &Datapath) {
    let Some((device, no)) = iface.device().filter(|(device, _)| device.stale()) else {
        return;
    };
    if let Err(error) = datapath.replace_port(no, device.clone()) {
        log::warn!(target: "bridge", per_min = 5, burst = 5; "bridge {bridge}: interface {}: {error}", iface.name);
    }
}
