//! Facts about a machine that are needed to judge its results.

use std::collections::BTreeMap;
use std::fs;

/// The machine's description, for the first line of results.
pub fn facts() -> BTreeMap<String, String> {
    let read = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().replace('\t', " ")).filter(|t| !t.is_empty())
    };
    let mut facts = BTreeMap::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.insert(name.to_owned(), value);
        }
    };
    for (name, path) in [
        ("host", "/proc/sys/kernel/hostname"),
        ("kernel", "/proc/sys/kernel/osrelease"),
        ("load", "/proc/loadavg"),
        (
            "governor",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        ),
        ("smt", "/sys/devices/system/cpu/smt/control"),
        (
            "rps_sock_flow_entries",
            "/proc/sys/net/core/rps_sock_flow_entries",
        ),
        ("netdev_max_backlog", "/proc/sys/net/core/netdev_max_backlog"),
        (
            "tcp_congestion_control",
            "/proc/sys/net/ipv4/tcp_congestion_control",
        ),
        ("tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem"),
        ("tcp_wmem", "/proc/sys/net/ipv4/tcp_wmem"),
    ] {
        put(name, read(path));
    }
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |key: &str| {
        let line = cpuinfo
            .lines()
            .find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
        line.split_once(':').map(|(_, v)| v.trim().to_owned())
    };
    put("processor", of("model name"));
    let virtual_machine = of("flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor"));
    put("virtual_machine", Some(virtual_machine.to_string()));
    put(
        "processors",
        heddle_sys::cpu::online().ok().map(|c| c.len().to_string()),
    );
    let memory =
        read("/proc/meminfo").and_then(|t| Some(t.lines().next()?.split_once(':')?.1.trim().to_owned()));
    put("memory", memory);
    put("heddle", Some(env!("CARGO_PKG_VERSION").to_owned()));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    put("at_unix_s", now.ok().map(|t| t.as_secs().to_string()));
    facts
}
