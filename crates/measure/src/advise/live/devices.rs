//! Devices behind ports, in any network namespace. Namespaces are found in `/proc`, properties by `ip` and
//! `ethtool`.

use super::Device;
use crate::keeper::run;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Offloads that are expensive to miss, as `ethtool -k` and `ethtool -K` name them.
const OFFLOADS: [(&str, &str); 3] = [
    ("tx-checksumming", "tx"),
    ("tcp-segmentation-offload", "tso"),
    ("generic-segmentation-offload", "gso"),
];

/// One device of one namespace.
struct HostDevice {
    netns: String,
    name: String,
    index: u64,
    peer: u64,
    /// The peer's namespace, as this one numbers it.
    peer_ns: Option<i64>,
    mtu: u64,
    /// Whether a switch made it: a tap device, or one of Open vSwitch's kernel datapath.
    of_switch: bool,
    /// Whether no process reads it: a tap device without a carrier, or one of a kernel datapath.
    left: bool,
}

/// A name for `nsenter`: the path at which a namespace is mounted, or that of a process in it.
fn name_of(ns: &OwnedFd) -> Option<String> {
    let id = heddle_sys::netns::id(ns).ok()?;
    let own = heddle_sys::netns::own()
        .ok()
        .and_then(|o| heddle_sys::netns::id(&o).ok());
    if own == Some(id) {
        return Some(String::new());
    }
    let same = |path: &std::path::Path| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(path).is_ok_and(|m| m.ino() == id)
    };
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        if same(&entry.path()) {
            return Some(entry.path().display().to_string());
        }
    }
    if let Some(path) = heddle_sys::netns::of_processes().find(|path| same(path)) {
        return Some(path.display().to_string());
    }
    Some(format!("/proc/{}/fd/{}", std::process::id(), ns.as_raw_fd()))
}

fn inside(netns: &str, command: &str) -> Option<String> {
    let mut argv = Vec::new();
    if !netns.is_empty() {
        argv.extend(["nsenter".to_owned(), format!("--net={netns}")]);
    }
    argv.extend(command.split_whitespace().map(str::to_owned));
    run(&argv).ok()
}

fn links(netns: &str) -> Vec<HostDevice> {
    let text = inside(netns, "ip -j -d link").unwrap_or_default();
    let links: Value = serde_json::from_str(&text).unwrap_or_default();
    let one = |l: &Value| {
        let kind = l["linkinfo"]["info_kind"].as_str();
        let has_carrier = l["flags"]
            .as_array()
            .is_some_and(|f| f.iter().any(|f| f == "LOWER_UP"));
        Some(HostDevice {
            netns: netns.to_owned(),
            name: l["ifname"].as_str()?.to_owned(),
            index: l["ifindex"].as_u64()?,
            peer: l["link_index"].as_u64().unwrap_or(0),
            peer_ns: l["link_netnsid"].as_i64(),
            mtu: l["mtu"].as_u64()?,
            of_switch: matches!(kind, Some("tun" | "openvswitch")),
            left: kind == Some("openvswitch") || kind == Some("tun") && !has_carrier,
        })
    };
    links.as_array().into_iter().flatten().filter_map(one).collect()
}

/// The file of the namespace with this number in `netns`; `None`: it has no name.
fn numbered(netns: &str, number: i64) -> Option<String> {
    let text = inside(netns, "ip -j netns list-id")?;
    let all: Value = serde_json::from_str(&text).ok()?;
    let of = |v: &Value| v["nsid"].as_i64() == Some(number);
    let name = all.as_array()?.iter().find(|v| of(v))?["name"]
        .as_str()?
        .to_owned();
    Some(format!("/run/netns/{name}"))
}

/// Offloads that are off and could be on.
fn off(netns: &str, name: &str) -> Vec<String> {
    let text = inside(netns, &format!("ethtool -k {name}")).unwrap_or_default();
    let is_off = |feature: &str| {
        let line = text
            .lines()
            .find_map(|l| l.trim().strip_prefix(feature)?.strip_prefix(':'));
        line.is_some_and(|v| v.trim() == "off")
    };
    let all = OFFLOADS.iter().filter(|(feature, _)| is_off(feature));
    all.map(|(_, word)| (*word).to_owned()).collect()
}

/// The devices of a namespace that have RFS. One query for all of them, since each query starts processes.
fn with_rfs(netns: &str) -> BTreeSet<String> {
    let mut argv = Vec::new();
    if !netns.is_empty() {
        argv.extend(["nsenter".to_owned(), format!("--net={netns}")]);
    }
    let script =
        "mount -t sysfs s /sys && { grep -Hv '^0$' /sys/class/net/*/queues/rx-*/rps_flow_cnt; true; }";
    argv.extend(["unshare", "-m", "sh", "-c", script].map(str::to_owned));
    let text = run(&argv).unwrap_or_default();
    let name = |line: &str| {
        Some(
            line.strip_prefix("/sys/class/net/")?
                .split_once('/')?
                .0
                .to_owned(),
        )
    };
    text.lines().filter_map(name).collect()
}

/// The devices of ports. `ports`: name, bridge. `switch`: the switch's namespace.
pub(super) fn of_ports(ports: &BTreeMap<String, String>, switch: &str) -> Vec<Device> {
    // Kept open, since names of namespaces may lead through this process.
    let open = heddle_sys::netns::all();
    let mut all: Vec<HostDevice> = Vec::new();
    for ns in &open {
        if let Some(name) = name_of(ns) {
            all.extend(links(&name));
        }
    }
    let mut devices = Vec::new();
    let mut rfs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut seen = Vec::new();
    let mut add = |port: &String, bridge: &String, f: &HostDevice, doubles: Vec<String>| {
        let key = (f.netns.clone(), f.index);
        if seen.contains(&key) {
            return;
        }
        seen.push(key);
        let have_rfs = rfs.entry(f.netns.clone()).or_insert_with(|| with_rfs(&f.netns));
        devices.push(Device {
            port: port.clone(),
            bridge: bridge.clone(),
            name: f.name.clone(),
            netns: f.netns.clone(),
            mtu: f.mtu,
            off: off(&f.netns, &f.name),
            rfs: have_rfs.contains(&f.name),
            doubles,
        });
    };
    for (port, bridge) in ports {
        let mut candidates: Vec<&HostDevice> = all.iter().filter(|f| f.name == *port).collect();
        // The switch's own namespace has it, unless it was moved into a pod.
        let mut doubles = Vec::new();
        if let Some(own) = candidates.iter().find(|f| f.netns == switch)
            && own.of_switch
        {
            let others = candidates.iter().filter(|f| f.netns != switch && f.left);
            doubles = others.map(|f| f.netns.clone()).collect();
        }
        if let Some(own) = candidates.iter().position(|f| f.netns == switch) {
            candidates = vec![candidates[own]];
        }
        // Pods have two devices of that name, and the port's own cannot be distinguished.
        let [own] = candidates.as_slice() else { continue };
        if port != bridge {
            add(port, bridge, own, doubles);
        }
        // Namespaces number their devices alike, so that the pair of numbers is met in many of them.
        let where_ = own.peer_ns.and_then(|n| numbered(&own.netns, n));
        let peers: Vec<&HostDevice> = all
            .iter()
            .filter(|f| own.peer != 0 && f.index == own.peer && f.peer == own.index && f.netns != own.netns)
            .filter(|f| where_.as_ref().is_none_or(|w| *w == f.netns))
            .collect();
        if let [peer] = peers.as_slice() {
            add(port, bridge, peer, Vec::new());
        }
    }
    devices
}
