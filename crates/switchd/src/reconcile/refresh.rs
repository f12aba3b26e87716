//! The state of devices: link, MTU, address. It is read about once a second, and when the kernel reports a
//! change.

use heddle_datapath_api::Engine;
use heddle_port::PortStatus;

use super::Reconciler;
use super::ports::is_gone;
use super::state::{BridgeState, Iface};
use super::tunnels::say_lost_route;

/// The results of one reading.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// A change is to be written to the database.
    pub(super) changed: bool,
    /// The configuration is to be applied again: a device has gone, or a missing one may have come.
    pub(super) reconfigure: bool,
}

impl Reconciler {
    /// Reads the state of all devices and passes changes on to OpenFlow.
    pub(super) fn refresh(&mut self) -> Found {
        let mut found = Found::default();
        for name in self.names() {
            let Some(mut state) = self.bridges.remove(&name) else {
                continue;
            };
            if self.refresh_bridge(&mut state, &mut found) {
                self.follow_mtu(&mut state);
                state.push_ports(&self.switch.ofproto);
                found.changed = true;
            }
            // Readers of a mirror's counters see them soon, not at the end of an interval.
            if !state.row.mirrors.is_empty()
                && let Some(packets) = state.bridge.mirrored_packets()
                && std::mem::replace(&mut state.mirrored, packets) != packets
            {
                found.changed = true;
            }
            state.controllers.tick();
            self.bridges.insert(name, state);
        }
        self.assign_queues();
        self.refresh_offload();
        let tracker = self.switch.datapath.conntrack();
        self.zones.forget_unused(tracker, self.switch.clock.now_ms());
        self.refused.tell(&self.switch.datapath.coverage());
        found
    }

    fn refresh_bridge(&self, state: &mut BridgeState, found: &mut Found) -> bool {
        let mut changed = false;
        for iface in state.ifaces.values_mut() {
            let now = match iface.device() {
                Some((device, _)) => device.status(),
                // Controllers set a patch port's admin state. The call fails instead of waiting if another
                // thread changes the bridge's rules.
                None => match state.bridge.is_admin_up(iface.no) {
                    Some(admin_up) => PortStatus {
                        admin_up,
                        extra: self.tunnel_status(iface),
                        ..iface.status.clone()
                    },
                    None => continue,
                },
            };
            self.reopen_if_stale(&state.row.name, iface);
            if now == iface.status {
                continue;
            }
            say_lost_route(iface, &now);
            if let Some((device, no)) = iface.device() {
                found.reconfigure |= is_gone(device.as_ref(), &now);
                if now.mtu != iface.status.mtu {
                    // The call cannot fail: the port is there.
                    let _ = self.switch.datapath.set_port_mtu(no, now.mtu);
                }
                if (now.n_rxq, now.numa) != (iface.status.n_rxq, iface.status.numa)
                    && let Some((_, row)) = state.row.interface(&iface.name)
                {
                    self.set_queues(no, row, &now);
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

    /// Reopens the queues of a device that another device of the same name has replaced.
    fn reopen_if_stale(&self, bridge: &str, iface: &Iface) {
        let Some((device, no)) = iface.device().filter(|(device, _)| device.stale()) else {
            return;
        };
        let datapath = &self.switch.datapath;
        let again = datapath
            .del_port(no)
            .and_then(|()| datapath.add_port(device.clone(), Some(no)));
        if let Err(error) = again {
            log::warn!(target: "bridge", "bridge {bridge}: interface {}: {error}", iface.name);
        }
    }

    /// Whether an interface waits for its device.
    pub(super) fn is_waiting(&self) -> bool {
        self.bridges.values().any(|b| !b.failures.is_empty())
    }

    /// Whether an interface could not be made for want of descriptors. No event reports free ones.
    pub(super) fn lacks_descriptors(&self) -> bool {
        let lacks = |why: &Option<String>| why.as_ref().is_some_and(|w| w.contains("Too many open files"));
        let mut failures = self.bridges.values().flat_map(|b| b.failures.values());
        failures.any(|f| lacks(&f.why))
    }
}
