//! A device's addresses and routes go to a bridge's own port, and back.
//!
//! **Problem.** The machine is reached through these addresses. Whatever happens on the way, a crash too,
//! they have to be somewhere.
//!
//! **How.** The bridge's port gets the device's MAC address, and its IP addresses while the device still has
//! them. Then routes are replaced one by one. Only then the device loses its addresses. The switch reads the
//! device through a packet socket, so the host's stack sees its packets too: [`quiet`] keeps it from taking
//! them in twice.

use crate::db::Db;
use anyhow::{Context, Result, bail, ensure};
use heddle_sys::NetConfig;
use heddle_sys::net_config::{Change, Device};
use std::path::PathBuf;

/// Files and values that keep the device's packets from the host's stack. The routes use another device, so a
/// strict reverse path filter drops its IPv4 packets. ARP requests get no reply, and IPv6 is off.
pub(crate) fn quiet(nic: &str) -> impl Iterator<Item = (PathBuf, &'static str)> {
    let all = [
        ("ipv4", "rp_filter", "1"),
        ("ipv4", "arp_ignore", "8"),
        ("ipv6", "disable_ipv6", "1"),
    ];
    all.map(|(family, key, value)| (format!("/proc/sys/net/{family}/conf/{nic}/{key}").into(), value))
        .into_iter()
}

/// Whether the addresses are at the bridge.
pub(crate) fn is_moved(db: &mut Db, bridge: &str, nic: &str) -> Result<bool> {
    let net = NetConfig::new(None)?;
    let (Some(device), Some(own)) = (net.device(nic)?, net.device(bridge)?) else {
        return Ok(false);
    };
    let has_none = net.settings(device.ifindex)?.is_empty();
    Ok(db.is_port(bridge, nic)? && has_none && own.up && device.up)
}

fn device(net: &NetConfig, name: &str) -> Result<Device> {
    net.device(name)?
        .with_context(|| format!("there is no device {name}"))
}

/// Moves the addresses to the bridge.
pub(crate) fn there(db: &mut Db, bridge: &str, nic: &str, datapath_type: &str) -> Result<()> {
    let net = NetConfig::new(None)?;
    let from = device(&net, nic)?;
    if let Some(master) = from.master {
        let name = net
            .devices()?
            .into_iter()
            .find(|d| d.ifindex == master)
            .map(|d| d.name);
        bail!("{nic} belongs to {} already", name.unwrap_or_default());
    }
    let mac = from.mac.with_context(|| format!("{nic} is no Ethernet device"))?;
    let up = Change {
        up: Some(true),
        ..Change::default()
    };
    net.change(from.ifindex, &up).with_context(|| nic.to_owned())?;
    db.add_bridge(
        bridge,
        nic,
        datapath_type,
        &mac.map(|b| format!("{b:02x}")).join(":"),
    )?;
    let to = device(&net, bridge)?;
    let like = Change {
        mac: Some(mac),
        mtu_bytes: Some(from.mtu_bytes),
        ..up
    };
    net.change(to.ifindex, &like).with_context(|| bridge.to_owned())?;
    let mut settings = net.settings(from.ifindex)?;
    settings.retain_given();
    if !settings.is_empty() {
        net.restore(to.ifindex, from.ifindex, &settings)
            .with_context(|| format!("giving {bridge} what {nic} has"))?;
    }
    net.remove_addresses(&settings)
        .with_context(|| format!("taking addresses from {nic}"))
}

/// Moves the addresses back, and removes the port, and the bridge if it was made for this.
pub(crate) fn back(db: &mut Db, bridge: &str, nic: &str) -> Result<()> {
    let net = NetConfig::new(None)?;
    let to = device(&net, nic)?;
    if let Some(from) = net.device(bridge)? {
        let mut settings = net.settings(from.ifindex)?;
        settings.retain_given();
        if !settings.is_empty() {
            let up = Change {
                up: Some(true),
                ..Change::default()
            };
            net.change(to.ifindex, &up)?;
            let done = net.restore(to.ifindex, from.ifindex, &settings);
            done.with_context(|| format!("giving {nic} what {bridge} has"))?;
            let has = net.settings(to.ifindex)?.addresses();
            let all = settings.addresses().iter().all(|a| has.contains(a));
            ensure!(
                all,
                "{nic} did not take all addresses of {bridge}, which keeps them"
            );
            net.remove_addresses(&settings)?;
        }
    }
    db.remove_bridge(bridge, nic)
}
