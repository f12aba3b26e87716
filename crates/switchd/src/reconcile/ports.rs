//! Interfaces come, stay with other settings, and go.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_datapath::{DatapathError, PortConfig as QueueConfig, PortNo};
use heddle_openflow::Port as OfPort;
use heddle_port::{Port, PortStatus, errno_text};

use super::apply::port_text;
use super::desired::{BridgeRow, InterfaceRow, PortRow, Smap};
use super::kinds::{self, Kind};
use super::state::{Body, BridgeState, Failure, Iface};
use super::{Reconciler, mac};

/// Names that the datapaths themselves have.
const RESERVED: [&str; 3] = ["ovs-netdev", "ovs-dummy", "ovs-system"];

/// What becomes of an interface that is there.
enum Fate {
    Keep,
    /// It gets another number.
    Park,
    Remove,
}

impl Reconciler {
    /// Removes the interfaces of a bridge that are not wanted, or not as they are; gives the others their settings.
    pub(super) fn remove_ports(&mut self, bridge: &str) {
        let Some(mut state) = self.bridges.remove(bridge) else { return };
        let names: Vec<String> = state.ifaces.keys().cloned().collect();
        for name in names {
            // A victim of another's wish for its number is parked already.
            let Some(mut iface) = state.ifaces.remove(&name) else { continue };
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
        let Some((port, row)) = state.row.interface(&iface.name) else { return Fate::Remove };
        let kind = self.kind_of(&state.row, row);
        let same = match (&mut iface.body, kind) {
            (Body::Patch(peer), Ok(Kind::Patch)) => match patch_peer(row) {
                Ok(new) => {
                    *peer = new;
                    true
                }
                Err(_) => false,
            },
            (Body::Device(device, no), Ok(Kind::Device { open, shown })) => {
                let known = device.kind() == open && iface.shown == shown;
                let present = !is_gone(device.as_ref(), &iface.status);
                known && present && self.reconfigure_device(device, *no, &iface.options, row)
            }
            _ => false,
        };
        if !same {
            return Fate::Remove;
        }
        iface.uuid = row.uuid;
        iface.port.clone_from(&port.name);
        iface.kind.clone_from(&row.kind);
        iface.options.clone_from(&row.options);
        iface.mtu_request = row.mtu_request;
        let wish = row.ofport_request.filter(|wish| *wish != iface.no && !iface.is_local());
        match wish.and_then(|wish| state.by_number(wish).map(|victim| (wish, victim))) {
            None if wish.is_some() => Fate::Park,
            None => Fate::Keep,
            // Both want the number: who has it keeps it.
            Some((wish, victim)) if state.row_of(&victim.name).and_then(|r| r.ofport_request) == Some(wish) => Fate::Keep,
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

    /// Whether the device takes its changed settings.
    fn reconfigure_device(&self, device: &Arc<dyn Port>, no: PortNo, options: &Smap, row: &InterfaceRow) -> bool {
        if row.options != *options {
            if let Err(error) = device.set_options(&row.options.0) {
                log::warn!(target: "netdev", "{}: could not set configuration ({error})", row.name);
                return false;
            }
        }
        self.set_queues(no, row);
        request_mtu(device.as_ref(), row);
        true
    }

    fn set_queues(&self, no: PortNo, row: &InterfaceRow) {
        let n_rxq = usize::try_from(row.options.number("n_rxq", 1)).unwrap_or(1).clamp(1, 1024);
        let affinity = row.other_config.get("pmd-rxq-affinity").map(affinity).unwrap_or_default();
        if let Err(error) = self.switch.datapath.configure_port(no, QueueConfig { n_rxq, affinity }) {
            log::warn!(target: "dpif_netdev", "{}: {error}", row.name);
        }
    }

    fn kind_of(&self, bridge: &BridgeRow, row: &InterfaceRow) -> Result<Kind, kinds::Unknown> {
        // The bridge's own port is what it is, whatever the row says.
        let kind = if row.name == bridge.name { "internal" } else { row.kind.as_str() };
        kinds::interface_kind(&self.switch.options, &bridge.datapath_type, kind)
    }

    /// Adds the interfaces of a bridge that are missing: first those that ask for a number, then those that had one, so
    /// that nobody takes it from them.
    pub(super) fn add_ports(&mut self, bridge: &str) {
        let Some(mut state) = self.bridges.remove(bridge) else { return };
        let row = state.row.clone();
        let mut missing: Vec<(&PortRow, &InterfaceRow)> =
            row.ports.values().flat_map(|p| p.interfaces.iter().map(move |i| (p, i))).collect();
        missing.sort_by_key(|(_, i)| (i.ofport_request.is_none(), i.ofport.is_none()));
        for (port, wanted) in missing {
            if !state.ifaces.contains_key(&wanted.name) {
                self.add_port(&mut state, port, wanted);
            }
        }
        self.bridges.insert(bridge.to_owned(), state);
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
            state.numbers.take(row.preferred(), self.switch.clock.now_ms())
        };
        let Some(number) = number else {
            let why = format!("could not add network device {} to ofproto (No buffer space available)", row.name);
            log::warn!(target: "bridge", "{why}");
            if let Some(uuid) = row.uuid {
                state.failures.insert(row.name.clone(), Failure { uuid, why: Some(why) });
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

    /// Makes an interface that has no number yet.
    fn make(&self, bridge: &BridgeRow, port: &PortRow, row: &InterfaceRow) -> Result<Iface, Option<String>> {
        let name = &row.name;
        if RESERVED.contains(&name.as_str()) {
            log::warn!(target: "bridge", "could not create interface {name}, name is reserved");
            return Err(None);
        }
        let cannot_open = |why: &str| {
            let text = format!("could not open network device {name} ({why})");
            log::warn!(target: "bridge", "{text}");
            Some(text)
        };
        if name.is_empty() {
            return Err(cannot_open("Invalid argument"));
        }
        let taken = self.bridges.values().any(|b| b.ifaces.contains_key(name) || b.parked.contains_key(name));
        if taken {
            let text = format!("could not add network device {name} to ofproto (File exists)");
            log::warn!(target: "bridge", "{text}");
            return Err(Some(text));
        }
        let Ok(kind) = self.kind_of(bridge, row) else {
            log::warn!(target: "netdev", "could not create netdev {name} of unknown type {}", row.kind);
            return Err(cannot_open("Address family not supported by protocol"));
        };
        let (body, status, shown) = match kind {
            Kind::Patch => {
                let peer = patch_peer(row).inspect_err(|why| {
                    log::error!(target: "netdev_vport", "{why}");
                    log::warn!(target: "netdev", "{name}: could not set configuration (Invalid argument)");
                });
                (Body::Patch(peer.map_err(Some)?), patch_status(), "patch")
            }
            Kind::Device { open, shown } => {
                let (device, no) = self.open(bridge, row, open)?;
                (Body::Device(device.clone(), no), device.status(), shown)
            }
        };
        Ok(Iface {
            name: name.clone(),
            uuid: row.uuid,
            port: port.name.clone(),
            kind: row.kind.clone(),
            shown,
            no: OfPort::NONE,
            body,
            status,
            options: row.options.clone(),
            mtu_request: row.mtu_request,
            is_new: true,
        })
    }

    fn open(&self, bridge: &BridgeRow, row: &InterfaceRow, kind: &str) -> Result<(Arc<dyn Port>, PortNo), Option<String>> {
        let failed = |text: String| {
            log::warn!(target: "bridge", "{text}");
            Some(text)
        };
        let device = heddle_port::open(kind, &row.name, &row.options.0).map_err(|e| failed(e.to_string()))?;
        request_mtu(device.as_ref(), row);
        let datapath = &self.switch.datapath;
        let wish = if kinds::is_dummy_datapath(&self.switch.options, &bridge.datapath_type) {
            self.easy_number(&row.name)
        } else {
            None
        };
        let no = datapath.add_port(device.clone(), wish).map_err(|error| {
            failed(match error {
                DatapathError::Port(error) => error.to_string(),
                DatapathError::Io(error) => format!(
                    "could not add network device {} to ofproto ({})",
                    row.name,
                    errno_text(&error)
                ),
                other => format!("could not add network device {} to ofproto ({other})", row.name),
            })
        })?;
        self.set_queues(no, row);
        Ok((device, no))
    }

    /// In a pretended datapath a port's number is the first number in its name, plus 100 for a bridge, if that is free:
    /// tests are easier to write so.
    fn easy_number(&self, name: &str) -> Option<PortNo> {
        let digits: String = name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        let base = if name.starts_with("br") { 100 } else { 0 };
        let number = digits.parse::<u32>().ok()?.checked_add(base)?;
        let free = number > 0 && number < 65_534 && self.switch.datapath.port(PortNo(number)).is_none();
        free.then_some(PortNo(number))
    }

    /// Gives bridges and internal ports their addresses.
    pub(super) fn set_addresses(&self, state: &mut BridgeState) {
        let own = mac::bridge_mac(&state.row, &state.ifaces);
        state.mac = own;
        let mut wishes: BTreeMap<String, [u8; 6]> = BTreeMap::new();
        for iface in state.ifaces.values() {
            let Some((port, row)) = state.row.interface(&iface.name) else { continue };
            let wish = match row.mac {
                None if port.fake_bridge => mac::lent_mac(&state.row, &state.ifaces, port.bundle.tag),
                wish => wish,
            };
            match wish {
                _ if iface.is_local() => {
                    if wish.is_some() {
                        log::error!(
                            target: "bridge",
                            "interface {}: ignoring mac in Interface record (use Bridge record to set local port's mac)",
                            iface.name
                        );
                    }
                    wishes.insert(iface.name.clone(), own);
                }
                Some(mac) if row.kind == "internal" => match mac {
                    [0, 0, 0, 0, 0, 0] => {
                        log::error!(target: "bridge", "interface {}: cannot set MAC to all zero address", iface.name);
                    }
                    [first, ..] if first & 1 != 0 => {
                        log::error!(target: "bridge", "interface {}: cannot set MAC to multicast address", iface.name);
                    }
                    mac => drop(wishes.insert(iface.name.clone(), mac)),
                },
                _ => {}
            }
        }
        for (name, wish) in wishes {
            let Some(iface) = state.ifaces.get_mut(&name).filter(|i| i.status.mac != wish) else { continue };
            let done = match iface.device() {
                Some((device, _)) => device.set_mac(wish),
                None => Ok(()),
            };
            match done {
                Ok(()) => iface.status.mac = wish,
                Err(error) => log::error!(target: "bridge", "interface {name}: setting MAC failed ({error})"),
            }
        }
    }
}

/// Whether a port's device has left: then the port goes too, and comes back with the device.
pub(super) fn is_gone(device: &dyn Port, status: &PortStatus) -> bool {
    device.kind() == "system" && status.ifindex == 0
}

fn request_mtu(device: &dyn Port, row: &InterfaceRow) {
    let Some(wish) = row.mtu_request.filter(|wish| device.status().mtu != *wish) else { return };
    if let Err(error) = device.set_mtu(wish) {
        log::warn!(target: "netdev", "failed to set MTU for network device {}: {error}", row.name);
    }
}

/// The other end, or what is wrong with the options.
fn patch_peer(row: &InterfaceRow) -> Result<String, String> {
    let name = &row.name;
    match row.options.get("peer") {
        None => Err(format!("{name}: patch type requires valid 'peer' argument")),
        Some(_) if row.options.0.len() > 1 => Err(format!("{name}: patch type takes only a 'peer' argument")),
        Some(peer) if peer == name => Err(format!("{name}: patch peer must not be self")),
        Some(peer) => Ok(peer.to_owned()),
    }
}

fn patch_status() -> PortStatus {
    PortStatus { mac: mac::random_mac(), admin_up: true, link_up: true, ..PortStatus::default() }
}

/// `queue:processor` pairs.
fn affinity(text: &str) -> Vec<(usize, usize)> {
    let pairs = text.split(',').filter_map(|pair| {
        let (queue, core) = pair.split_once(':')?;
        Some((queue.trim().parse().ok()?, core.trim().parse().ok()?))
    });
    pairs.collect()
}
