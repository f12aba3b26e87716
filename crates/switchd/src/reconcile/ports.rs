//! Adds, changes and removes interfaces.

use std::sync::Arc;

use heddle_datapath_api::PortNo;
use heddle_openflow::Port as OfPort;
use heddle_port::{Port, PortStatus};
use heddle_sys::LinkCtl;

use super::Reconciler;
use super::apply::port_text;
use super::desired::{InterfaceRow, PortRow, Smap};
use super::make::{patch_peer, request_mtu, steer_tx};
use super::state::{Body, BridgeState, Failure, Iface};

/// The decision about an existing interface.
enum Fate {
    Keep,
    /// The interface gets another number.
    Park,
    Remove,
}

impl Reconciler {
    /// Removes the interfaces of a bridge that are not wanted, or cannot be changed; gives the others their
    /// settings.
    pub(super) fn remove_ports(&mut self, bridge: &str) {
        let Some(mut state) = self.bridges.remove(bridge) else {
            return;
        };
        let names: Vec<String> = state.ifaces.keys().cloned().collect();
        for name in names {
            // An interface whose number another one requests is parked already.
            let Some(mut iface) = state.ifaces.remove(&name) else {
                continue;
            };
            match self.fate(&mut state, &mut iface) {
                Fate::Keep => {
                    state.ifaces.insert(name, iface);
                }
                Fate::Park => {
                    state.numbers.give_back(iface.no, self.switch.clock.now_ms());
                    state.parked.insert(name, iface);
                }
                Fate::Remove => self.remove_iface(&mut state, iface),
            }
        }
        self.bridges.insert(bridge.to_owned(), state);
    }

    fn fate(&self, state: &mut BridgeState, iface: &mut Iface) -> Fate {
        let Some((port, row)) = state.row.interface(&iface.name) else {
            return Fate::Remove;
        };
        let Ok(kind) = self.kind_of(&state.row, row) else {
            return Fate::Remove;
        };
        let same = match &mut iface.body {
            Body::Patch(peer) if kind.is_patch() => match patch_peer(row) {
                Ok(new) => {
                    *peer = new;
                    true
                }
                Err(_) => false,
            },
            Body::Device(device, no) => {
                let known = device.kind() == kind.open.name && iface.shown == kind.shown;
                let present = !is_gone(device.as_ref(), &iface.status);
                let stays = known && present && self.reconfigure_device(device, *no, &iface.options, row);
                if stays {
                    iface.mtu_refused = request_mtu(device.as_ref(), row);
                }
                stays
            }
            Body::Tunnel(tunnel) if kind.tunnel() == Some(tunnel.config.ty) => {
                let same = row.options == iface.options && self.clear_in_spite_of(row).is_none();
                same || self.change_tunnel(&state.row, row, tunnel).is_ok()
            }
            Body::Patch(_) | Body::Tunnel(_) => false,
        };
        if !same {
            return Fate::Remove;
        }
        iface.uuid = row.uuid;
        iface.port.clone_from(&port.name);
        iface.kind = kind.asked;
        iface.options.clone_from(&row.options);
        iface.mtu_released |= iface.mtu_request.is_some() && row.mtu_request.is_none();
        iface.mtu_request = row.mtu_request;
        let wish = row
            .ofport_request
            .filter(|wish| *wish != iface.no && !iface.is_local());
        match wish.and_then(|wish| state.by_number(wish).map(|victim| (wish, victim))) {
            None if wish.is_some() => Fate::Park,
            None => Fate::Keep,
            // Both request the number: its owner keeps it.
            Some((wish, victim))
                if state.row_of(&victim.name).and_then(|r| r.ofport_request) == Some(wish) =>
            {
                Fate::Keep
            }
            Some((_, victim)) => {
                let name = victim.name.clone();
                if let Some(victim) = state.ifaces.remove(&name) {
                    state.numbers.give_back(victim.no, self.switch.clock.now_ms());
                    state.parked.insert(name, victim);
                }
                Fate::Park
            }
        }
    }

    /// Whether the device accepts its changed settings.
    fn reconfigure_device(
        &self,
        device: &Arc<dyn Port>,
        no: PortNo,
        options: &Smap,
        row: &InterfaceRow,
    ) -> bool {
        // A pretended device reopens its capture files at each configuration: tests remove them in between.
        if (row.options != *options || device.port_type().pretended)
            && let Err(error) = device.set_options(&row.options.0)
        {
            log::warn!(target: "netdev", "{}: could not set configuration ({error})", row.name);
            return false;
        }
        self.set_queues(no, row, &device.status());
        steer_tx(device.as_ref(), row);
        true
    }

    /// Adds the interfaces of a bridge that are missing. First come those that request a number; of two with
    /// the same request, the one that has it is first. Then come those that had a number, so that no other
    /// port takes it.
    pub(super) fn add_ports(&mut self, bridge: &str) {
        let Some(mut state) = self.bridges.remove(bridge) else {
            return;
        };
        let row = state.row.clone();
        let mut missing: Vec<(&PortRow, &InterfaceRow)> = row
            .ports
            .values()
            .flat_map(|p| p.interfaces.iter().map(move |i| (p, i)))
            .collect();
        missing.sort_by_key(|(_, i)| {
            (
                i.ofport_request.is_none(),
                i.ofport_request != i.ofport,
                i.ofport.is_none(),
            )
        });
        for (port, wanted) in missing {
            if !state.ifaces.contains_key(&wanted.name) {
                self.add_port(&mut state, port, wanted);
            }
        }
        self.bridges.insert(bridge.to_owned(), state);
    }

    /// Makes the receiving sockets of all devices that will become ports at once: one by one they would take
    /// the kernel long.
    pub(super) fn prepare_receivers(&self) {
        if self.offloading.divert().is_some() {
            return;
        }
        let is_system = |bridge: &BridgeState, row: &InterfaceRow| {
            let kind = self.kind_of(&bridge.row, row);
            kind.is_ok_and(|kind| kind.open.kernel && !kind.open.persists)
        };
        let mut missing = Vec::new();
        for bridge in self.bridges.values() {
            let rows = bridge.row.ports.values().flat_map(|port| &port.interfaces);
            let rows = rows.filter(|row| {
                let here = bridge.ifaces.contains_key(&row.name) || bridge.parked.contains_key(&row.name);
                !here && is_system(bridge, row)
            });
            missing.extend(rows.map(|row| row.name.as_str()));
        }
        if missing.len() < 2 {
            return;
        }
        let Ok(links) = LinkCtl::new() else { return };
        let n = missing.iter().filter(|name| links.ifindex(name).is_ok()).count();
        if n > 1 {
            self.receivers.prepare(n);
        }
    }

    fn add_port(&self, state: &mut BridgeState, port: &PortRow, row: &InterfaceRow) {
        let made = match state.parked.remove(&row.name) {
            Some(iface) => Ok(iface),
            None => self.make(&state.row, port, row),
        };
        let bridge = &state.row.name;
        let mut iface = match made {
            Ok(iface) => iface,
            Err(why) => {
                if let Some(uuid) = row.uuid {
                    state.failures.insert(row.name.clone(), Failure { uuid, why });
                }
                return;
            }
        };
        let number = if row.name == *bridge {
            Some(OfPort::LOCAL)
        } else {
            state
                .numbers
                .take(&[row.ofport_request, row.ofport], self.switch.clock.now_ms())
        };
        let Some(number) = number else {
            let why = format!(
                "could not add network device {} to ofproto (No buffer space available)",
                row.name
            );
            log::warn!(target: "bridge", "{why}");
            if let Some(uuid) = row.uuid {
                state
                    .failures
                    .insert(row.name.clone(), Failure { uuid, why: Some(why) });
            }
            self.remove_iface(state, iface);
            return;
        };
        iface.no = number;
        log::info!(
            target: "bridge",
            "bridge {bridge}: added interface {} on port {}", row.name, port_text(number)
        );
        state.ifaces.insert(row.name.clone(), iface);
    }
}

/// Whether a port's device has disappeared: then the port is removed too, and returns with the device.
pub(super) fn is_gone(device: &dyn Port, status: &PortStatus) -> bool {
    device.port_type().kernel && status.ifindex == 0
}
