//! Decides which interfaces of a bridge are pairs.
//!
//! * `other_config:heddle-standby-for` of an interface names its primary.
//! * Without it, two interfaces with the same `external_ids:iface-id` and `attached-mac` are a pair, if their
//!   devices are of different [`DeviceClass`]es. OVN, libvirt and KubeVirt write both keys.
//!
//! A pair that exists has precedence over one that was configured later.

use std::collections::BTreeMap;

use heddle_ofproto::bridge::{MirrorTarget, PortBundleConfig};

use crate::reconcile::desired::{BridgeRow, InterfaceRow, PortRow};
use crate::reconcile::mac::mac_text;

/// Key of `Interface.other_config` with the name of the primary.
const PRIMARY: &str = "heddle-standby-for";
/// Value of [`PRIMARY`] at either interface: it is in no pair.
const NO_PAIR: &str = "none";

/// Class of a device; of two devices of one guest, the later class is the standby.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum DeviceClass {
    /// The representor of a VF, or any other device of the host.
    Card,
    /// A tap.
    Tap,
    /// A ring of a guest: vhost-user or VDUSE.
    Ring,
}

/// The pairs of a bridge, and what is wrong with their settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Primary of each standby.
    pub(super) primaries: BTreeMap<String, String>,
    /// Faults by interface.
    pub(super) faults: BTreeMap<String, String>,
}

impl Choice {
    fn add_fault(&mut self, interface: &str, fault: &str) {
        let text = self.faults.entry(interface.to_owned()).or_default();
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(fault);
    }
}

/// Chooses the pairs. `class`: of an interface's device; `None`: a tunnel or a patch port. `before`: the
/// standby of each primary so far.
pub(super) fn choose(
    bridge: &BridgeRow,
    class: impl Fn(&InterfaceRow) -> Option<DeviceClass>,
    before: &BTreeMap<String, String>,
) -> Choice {
    let mut choice = Choice::default();
    let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (port, row) in bridge.interfaces() {
        let Some(primary) = row.other_config.get(PRIMARY).filter(|name| *name != NO_PAIR) else {
            continue;
        };
        match refusal(bridge, port, row, primary, &class) {
            Some(why) => {
                let fault = format!("{PRIMARY}={primary}: {why}, so it is a port of its own");
                choice.add_fault(&row.name, &fault);
            }
            None => wanted.entry(primary).or_default().push(&row.name),
        }
    }
    for (primary, standbys) in &wanted {
        let existing = before.get(*primary).map(String::as_str);
        let first = standbys
            .iter()
            .find(|name| Some(**name) == existing)
            .or(standbys.first());
        for name in standbys {
            if Some(name) == first {
                choice.primaries.insert((*name).to_owned(), (*primary).to_owned());
                continue;
            }
            let other = first.copied().unwrap_or_default();
            let fault = format!("{PRIMARY}={primary}: {other} is its standby, so it is a port of its own");
            choice.add_fault(name, &fault);
        }
    }
    recognise(bridge, &class, &mut choice);
    for (standby, primary) in choice.primaries.clone() {
        for (interface, fault) in ignored(bridge, &primary, &standby) {
            choice.add_fault(&interface, &fault);
        }
    }
    choice
}

/// The reason why an interface cannot be the standby of the one of that name.
fn refusal(
    bridge: &BridgeRow,
    port: &PortRow,
    row: &InterfaceRow,
    primary: &str,
    class: &impl Fn(&InterfaceRow) -> Option<DeviceClass>,
) -> Option<&'static str> {
    if primary == row.name || [primary, row.name.as_str()].contains(&bridge.name.as_str()) {
        return Some("neither the interface itself nor the bridge's own port can be that");
    }
    let Some((of_primary, primary)) = bridge.interface(primary) else {
        return Some("the bridge has no such interface");
    };
    let own = primary.other_config.get(PRIMARY);
    if own.is_some_and(|name| name != NO_PAIR) {
        return Some("that interface is a standby, too");
    }
    if of_primary.bond.is_some() || port.bond.is_some() {
        return Some("members of bonds have no standby");
    }
    if class(primary).is_none() || class(row).is_none() {
        return Some("tunnels and patch ports have no device");
    }
    None
}

/// Adds the pairs that have the same logical port and address.
fn recognise(bridge: &BridgeRow, class: &impl Fn(&InterfaceRow) -> Option<DeviceClass>, choice: &mut Choice) {
    type Devices<'a> = Vec<(DeviceClass, &'a str)>;
    let mut guests: BTreeMap<(&str, [u8; 6]), Devices<'_>> = BTreeMap::new();
    for (port, row) in bridge.interfaces() {
        let (Some(id), Some(mac), Some(class)) = (&row.guest.port, row.guest.mac, class(row)) else {
            continue;
        };
        if row.other_config.get(PRIMARY).is_none() && port.bond.is_none() && row.name != bridge.name {
            guests.entry((id, mac)).or_default().push((class, &row.name));
        }
    }
    for devices in guests.values_mut() {
        devices.sort_unstable();
        if let [(one, primary), (other, standby)] = devices[..]
            && one != other
            && !choice
                .primaries
                .values()
                .any(|name| name == primary || name == standby)
        {
            choice.primaries.insert(standby.to_owned(), primary.to_owned());
        }
    }
}

/// Settings of a pair that have no effect, each with its interface.
fn ignored(bridge: &BridgeRow, primary: &str, standby: &str) -> Vec<(String, String)> {
    let (Some((first, primary)), Some((second, standby))) =
        (bridge.interface(primary), bridge.interface(standby))
    else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    let vlans = |b: &PortBundleConfig| PortBundleConfig {
        name: String::new(),
        queue_dscp: Vec::new(),
        bond: None,
        qinq_ethtype: 0,
        ..b.clone()
    };
    let own = vlans(&second.bundle);
    let mut names = Vec::new();
    if own != PortBundleConfig::default() && own != vlans(&first.bundle) {
        names.push("VLANs and other settings of the port".to_owned());
    }
    if second.qos.is_some() && second.qos != first.qos {
        names.push("QoS".to_owned());
    }
    if !standby.policing.is_empty() && standby.policing != primary.policing {
        names.push("ingress_policing".to_owned());
    }
    if !standby.bfd.0.is_empty() {
        names.push("bfd".to_owned());
    }
    for mirror in &bridge.mirrors {
        let target = matches!(&mirror.target, MirrorTarget::Port(name) if *name == second.name);
        let mut selected = mirror.sources.iter().chain(&mirror.destinations);
        if target || selected.any(|name| *name == second.name) {
            names.push(format!("mirror {}", mirror.id));
        }
    }
    if !names.is_empty() {
        let text = format!(
            "it is the standby of {0}, so {1} have no effect: set them at {0}",
            primary.name,
            names.join(", ")
        );
        faults.push((standby.name.clone(), text));
    }
    for row in [primary, standby] {
        if let Some(text) = &row.guest.bad_mac {
            let fault =
                format!("external_ids:attached-mac={text} is no address of a guest: it has no effect");
            faults.push((row.name.clone(), fault));
        }
    }
    if let (Some(mac), Some(other)) = (primary.guest.mac, standby.guest.mac)
        && mac != other
    {
        let text = format!(
            "external_ids:attached-mac={} has no effect: {} has {}",
            mac_text(other),
            primary.name,
            mac_text(mac)
        );
        faults.push((standby.name.clone(), text));
    }
    faults
}

#[cfg(test)]
mod tests;
