//! Adds, changes and removes interfaces.

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_datapath_api::PortNo;
use heddle_openflow::Port as OfPort;
use heddle_port::{Port, PortStatus};

use super::make::{XDP_PASS, make, patch_peer, request_mtu, set_queues, steer_tx};

use super::{Body, BridgeReconciler, Failure, Iface, InterfaceError};
use crate::inventory::port_text;
use crate::reconcile::desired::{InterfaceRow, PortRow, Smap};
use crate::reconcile::environment::Environment;
use crate::reconcile::tunnels::{Tunnels, encryption_wish};

/// The decision about an existing interface.
enum Fate {
    Keep,
    /// The interface gets another number.
    Park,
    Remove,
}

impl BridgeReconciler {
    /// Removes the interfaces that are not wanted, or cannot be changed; gives the others their settings.
    pub(in crate::reconcile) fn remove_ports(&mut self, env: &Environment, tunnels: &mut Tunnels) {
        let names: Vec<String> = self.ifaces.keys().cloned().collect();
        for name in names {
            // An interface whose number another one requests is parked already.
            let Some(mut iface) = self.ifaces.remove(&name) else {
                continue;
            };
            match self.fate(&mut iface, env, tunnels) {
                Fate::Keep => {
                    self.ifaces.insert(name, iface);
                }
                Fate::Park => self.park(iface, env),
                Fate::Remove => self.remove_iface(iface, env, tunnels),
            }
        }
    }

    fn park(&mut self, iface: Iface, env: &Environment) {
        self.numbers.give_back(iface.no, env.now_ms());
        self.parked.insert(iface.name.clone(), iface);
    }

    fn fate(&mut self, iface: &mut Iface, env: &Environment, tunnels: &mut Tunnels) -> Fate {
        let bridge = Arc::clone(&self.row);
        let Some((port, row)) = bridge.interface(&iface.name) else {
            return Fate::Remove;
        };
        let Ok(kind) = bridge.kind_of(row, &env.switch.options) else {
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
                let stays = known && present && reconfigure_device(device, *no, &iface.options, row, env);
                if stays {
                    iface.mtu_refused = request_mtu(device.as_ref(), row);
                    iface.status.error = device.status().error;
                }
                stays
            }
            Body::Tunnel(tunnel) if kind.tunnel() == Some(tunnel.config.ty) => {
                let same = row.options == iface.options && encryption_wish(row, &env.globals).is_none();
                same || tunnels.change(&bridge, row, tunnel, env).is_ok()
            }
            Body::Patch(_) | Body::Tunnel(_) => false,
        };
        if !same {
            return Fate::Remove;
        }
        iface.uuid = row.uuid;
        iface.port.clone_from(&port.name);
        iface.kind = kind.requested;
        iface.options.clone_from(&row.options);
        iface.mtu_released |= iface.mtu_request.is_some() && row.mtu_request.is_none();
        iface.mtu_request = row.mtu_request;
        let wish = row
            .ofport_request
            .filter(|wish| *wish != iface.no && !iface.is_local());
        match wish.and_then(|wish| self.by_number(wish).map(|victim| (wish, victim))) {
            None if wish.is_some() => Fate::Park,
            None => Fate::Keep,
            // Both request the number: its owner keeps it.
            Some((wish, victim))
                if self.row_of(&victim.name).and_then(|r| r.ofport_request) == Some(wish) =>
            {
                Fate::Keep
            }
            Some((_, victim)) => {
                let name = victim.name.clone();
                if let Some(victim) = self.ifaces.remove(&name) {
                    self.park(victim, env);
                }
                Fate::Park
            }
        }
    }

    /// Removes an interface from the datapath for good; its number and its name are free then.
    pub(super) fn remove_iface(&mut self, iface: Iface, env: &Environment, tunnels: &mut Tunnels) {
        if let Some((device, _)) = iface.device() {
            device.forget();
        }
        self.take_iface_down(&iface, env, tunnels);
    }

    /// Takes an interface out of the datapath.
    pub(super) fn take_iface_down(&mut self, iface: &Iface, env: &Environment, tunnels: &mut Tunnels) {
        let switch = &env.switch;
        // The device ends with its last handle, and commands may hold one.
        switch.inventory.write().interfaces.remove(&iface.name);
        switch.ofproto.monitor().remove(&iface.name);
        let underlay = switch.ofproto.pipeline().underlay();
        underlay.routes.remove_addresses(&iface.name);
        if let Some((_, no)) = iface.device()
            && let Err(error) = switch.datapath.del_port(no)
        {
            log::warn!(target: "bridge", "bridge {}: interface {}: {error}", self.row.name, iface.name);
        }
        if let Body::Tunnel(_) = iface.body {
            tunnels.remove(&iface.name, &switch.datapath);
        }
        self.numbers.give_back(iface.no, env.now_ms());
        log::info!(
            target: "bridge",
            "bridge {}: deleted interface {} on port {}", self.row.name, iface.name, port_text(iface.no)
        );
    }

    /// Adds the interfaces that are missing; `taken`: names that another bridge has.
    ///
    /// First come those that request a number; of two with the same request, the one that has it is first.
    /// Then come those that had a number, so that no other port takes it.
    pub(in crate::reconcile) fn add_ports(
        &mut self,
        taken: &BTreeSet<String>,
        env: &Environment,
        tunnels: &mut Tunnels,
    ) {
        let row = Arc::clone(&self.row);
        let mut missing: Vec<(&PortRow, &InterfaceRow)> = row.interfaces().collect();
        missing.sort_by_key(|(_, i)| {
            (
                i.ofport_request.is_none(),
                i.ofport_request.is_some() && i.ofport_request != i.ofport,
                i.ofport.is_none(),
            )
        });
        for (port, wanted) in missing {
            if !self.ifaces.contains_key(&wanted.name) {
                let made = match self.parked.remove(&wanted.name) {
                    Some(iface) => Ok(iface),
                    None => make(&row, port, wanted, taken, env, tunnels),
                };
                let added = made.and_then(|iface| self.add_iface(iface, wanted, env, tunnels));
                if let (Err(error), Some(uuid)) = (added, wanted.uuid) {
                    self.failures.insert(wanted.name.clone(), Failure { uuid, error });
                }
            }
        }
    }

    /// Gives an interface its number. An error is returned for `Interface.error`.
    fn add_iface(
        &mut self,
        mut iface: Iface,
        row: &InterfaceRow,
        env: &Environment,
        tunnels: &mut Tunnels,
    ) -> Result<(), InterfaceError> {
        let number = if row.name == self.row.name {
            Some(OfPort::LOCAL)
        } else {
            self.numbers.take(&[row.ofport_request, row.ofport], env.now_ms())
        };
        let Some(number) = number else {
            let why = format!(
                "could not add network device {} to ofproto (No buffer space available)",
                row.name
            );
            log::warn!(target: "bridge", "{why}");
            self.remove_iface(iface, env, tunnels);
            return Err(why.into());
        };
        iface.no = number;
        log::info!(
            target: "bridge",
            "bridge {}: added interface {} on port {}", self.row.name, row.name, port_text(number)
        );
        self.ifaces.insert(row.name.clone(), iface);
        Ok(())
    }
}

/// Whether the device accepts its changed settings.
fn reconfigure_device(
    device: &Arc<dyn Port>,
    no: PortNo,
    options: &Smap,
    row: &InterfaceRow,
    env: &Environment,
) -> bool {
    // A pretended device reopens its capture files at each configuration: tests remove them in between.
    if (row.options != *options || device.port_type().pretended)
        && let Err(error) = device.set_options(&row.options.0)
    {
        log::warn!(target: "netdev", "{}: could not set configuration ({error})", row.name);
        return false;
    }
    // Reopened here, so that the row has the outcome when the configuration is done. Other reasons to reopen
    // a device are found when its state is read.
    if row.options != *options
        && device.stale()
        && let Err(error) = env.switch.datapath.replace_port(no, Arc::clone(device))
    {
        log::warn!(target: "netdev", "{}: could not set configuration ({error})", row.name);
    }
    device.set_xdp_pass(row.other_config.get(XDP_PASS));
    set_queues(no, row, &device.status(), &env.switch.datapath);
    steer_tx(device.as_ref(), row);
    true
}

/// Whether a port's device has disappeared: then the port is removed too, and returns with the device.
pub(super) fn is_gone(device: &dyn Port, status: &PortStatus) -> bool {
    device.port_type().kernel && status.ifindex == 0
}
