//! The rules, one a row: its name, the source of the knowledge, and the test.
//!
//! A rule reports only faults for which there is evidence. Thresholds are chosen to let ordinary switches
//! pass.

use super::Seen;

/// One fault that a rule has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the rule.
    pub rule: &'static str,
    /// Source of the rule.
    pub source: &'static str,
    /// The measured values that show the fault.
    pub evidence: String,
    /// The command that mends the fault.
    pub mend: String,
}

/// One rule. `test` returns evidence and mending command of each fault.
pub struct Rule {
    /// The fault, in a few words.
    pub name: &'static str,
    /// The document or measurement that the rule is from.
    pub source: &'static str,
    /// Returns evidence and mending command of each fault.
    pub test: fn(&Seen) -> Vec<(String, String)>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rule({})", self.name)
    }
}

/// Busy share of the time above which a worker is at its limit.
const FULL: f64 = 0.9;
/// Busy share of the time below which a worker has time to spare.
const FREE: f64 = 0.2;
/// Smaller shares of the time are ignored.
const SOME: f64 = 0.05;
/// Share of the time spent waiting for a processor above which packets are late.
const MUCH: f64 = 0.1;
/// Packets per second below which a disabled RFS is not reported.
const MIN_PACKETS_PER_S: f64 = 500.0;
/// Share of a limit from which on it counts as nearly reached.
const NEAR: f64 = 0.95;

/// All rules.
#[rustfmt::skip]
pub const RULES: [Rule; 18] = [
    Rule { name: "interface error",        source: "ovs-vswitchd.conf.db(5), Interface:error",          test: interface_error },
    Rule { name: "setting without effect", source: "README, what does not work yet",                    test: without_effect },
    Rule { name: "flows are restored",     source: "ovs-vswitchd.conf.db(5), other_config:flow-restore-wait", test: restoring },
    Rule { name: "device of an earlier switch", source: "docs/internal-ports.md, from Open vSwitch",    test: double },
    Rule { name: "controller unreachable", source: "ovs-vswitchd.conf.db(5), Controller:is_connected",  test: controller },
    Rule { name: "MTU mismatch",           source: "manual: devices of one segment have one MTU",       test: mtu },
    Rule { name: "offload off",            source: "measured: docs/measuring.md, streams without TSO",  test: offload },
    Rule { name: "queue without its core", source: "docs/workers.md, pmd-rxq-affinity",                 test: affinity },
    Rule { name: "queues on one worker",   source: "docs/workers.md, assignment of queues",             test: unbalanced },
    Rule { name: "worker full",            source: "measured: heddle top, busy cycles",                 test: full },
    Rule { name: "over-commitment",        source: "kernel: /proc/PID/task/TID/schedstat, time waited", test: crowded },
    Rule { name: "more workers than processors", source: "docs/workers.md, one worker per processor",   test: too_many },
    Rule { name: "steal",                  source: "kernel: /proc/stat, steal",                         test: steal },
    Rule { name: "RFS off",                source: "kernel: networking/scaling.rst, RFS",               test: rfs },
    Rule { name: "flow limit reached",     source: "ovs-vswitchd.conf.db(5), other_config:flow-limit",  test: flow_limit },
    Rule { name: "masks at the limit",     source: "docs/architecture.md, masks are bounded",           test: masks },
    Rule { name: "ct that no rule needs",  source: "measured: docs/benchmarks.md, cost of ct",          test: needless_ct },
    Rule { name: "MAC table full",         source: "ovs-vswitchd.conf.db(5), other_config:mac-table-size", test: mac_table },
];

/// Findings of all rules.
pub fn judge(seen: &Seen) -> Vec<Finding> {
    let of = |rule: &Rule| {
        let (name, source) = (rule.name, rule.source);
        (rule.test)(seen)
            .into_iter()
            .map(move |(evidence, mend)| Finding {
                rule: name,
                source,
                evidence,
                mend,
            })
            .collect::<Vec<_>>()
    };
    RULES.iter().flat_map(of).collect()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The command, run in the device's namespace.
fn at(netns: &str, command: &str) -> String {
    if netns.is_empty() {
        return command.to_owned();
    }
    format!("nsenter --net={netns} {command}")
}

fn interface_error(seen: &Seen) -> Vec<(String, String)> {
    let wrong = seen.interfaces.iter().filter(|i| !i.error.is_empty());
    wrong
        .map(|i| {
            let evidence = format!("the switch reports for {}: {}", i.name, i.error);
            (
                evidence,
                format!("make the device, or: ovs-vsctl del-port {}", i.name),
            )
        })
        .collect()
}

fn without_effect(seen: &Seen) -> Vec<(String, String)> {
    let one = |(place, setting, effect): &(String, String, String)| {
        let (column, key) = setting.split_once(':').unwrap_or((setting, ""));
        let (table, row) = place.split_once(' ').unwrap_or((place, "."));
        let mend = match table {
            "bridge" | "port" | "interface" | "Open_vSwitch" if key.is_empty() => {
                format!("ovs-vsctl clear {table} {row} {column}")
            }
            "bridge" | "port" | "interface" | "Open_vSwitch" => {
                format!("ovs-vsctl remove {table} {row} {column} {key}")
            }
            _ => format!("take {setting} of {place} away"),
        };
        let mend = match setting.as_str() {
            "stp_enable" | "rstp_enable" => {
                format!("ovs-vsctl set {table} {row} {column}=false")
            }
            "interfaces" => format!("ovs-vsctl del-port {row}, and add one of its interfaces"),
            _ => mend,
        };
        (format!("{place}: {setting} changes nothing: {effect}"), mend)
    };
    seen.without_effect.iter().map(one).collect()
}

fn restoring(seen: &Seen) -> Vec<(String, String)> {
    let wait = seen.restoring.then(|| {
        let evidence =
            "other_config:flow-restore-wait is true: every packet is dropped, and no controller is called";
        let mend = "ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait";
        (evidence.to_owned(), mend.to_owned())
    });
    wait.into_iter().collect()
}

fn double(seen: &Seen) -> Vec<(String, String)> {
    let of = |d: &super::Device| {
        let port = d.port.clone();
        let one = move |netns: &String| {
            let evidence = format!(
                "port {port} has its device in the switch's namespace; another device {port} in {netns} \
                 belongs to no port: an earlier switch left it"
            );
            let mend = format!("nsenter --net={netns} ip link del {port}; ip link set {port} netns {netns}");
            (evidence, mend)
        };
        d.doubles.iter().map(one).collect::<Vec<_>>()
    };
    seen.devices.iter().flat_map(of).collect()
}

fn controller(seen: &Seen) -> Vec<(String, String)> {
    let wrong = seen.controllers.iter().filter(|(_, _, connected, _)| !connected);
    wrong
        .map(|(bridge, target, _, why)| {
            let why = if why.is_empty() {
                String::new()
            } else {
                format!(" ({why})")
            };
            let evidence = format!("{bridge} is not connected to its controller {target}{why}");
            (
                evidence,
                format!("start it, or: ovs-vsctl del-controller {bridge}"),
            )
        })
        .collect()
}

fn mtu(seen: &Seen) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut bridges: Vec<&String> = seen.devices.iter().map(|d| &d.bridge).collect();
    bridges.sort();
    bridges.dedup();
    for bridge in bridges {
        let of: Vec<_> = seen.devices.iter().filter(|d| d.bridge == *bridge).collect();
        // The most frequent MTU; of two that are equally frequent, the smaller one.
        let count = |m: u64| of.iter().filter(|d| d.mtu == m).count();
        let Some(usual) = of
            .iter()
            .map(|d| d.mtu)
            .max_by_key(|m| (count(*m), std::cmp::Reverse(*m)))
        else {
            continue;
        };
        for device in of.iter().filter(|d| d.mtu != usual) {
            found.push((
                format!(
                    "{} of port {} has an MTU of {}, most devices of {bridge} have {usual}",
                    device.name, device.port, device.mtu
                ),
                at(
                    &device.netns,
                    &format!("ip link set dev {} mtu {usual}", device.name),
                ),
            ));
        }
    }
    found
}

fn offload(seen: &Seen) -> Vec<(String, String)> {
    let wrong = seen.devices.iter().filter(|d| !d.off.is_empty());
    wrong
        .map(|d| {
            let words: Vec<String> = d.off.iter().map(|o| format!("{o} on")).collect();
            let evidence = format!("{} of port {} has {} off", d.name, d.port, d.off.join(", "));
            (
                evidence,
                at(&d.netns, &format!("ethtool -K {} {}", d.name, words.join(" "))),
            )
        })
        .collect()
}

fn affinity(seen: &Seen) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for interface in &seen.interfaces {
        for (queue, core) in interface
            .affinity
            .split(',')
            .filter_map(|p| p.trim().split_once(':'))
        {
            let Ok(core) = core.trim().parse::<u64>() else {
                continue;
            };
            if !seen.workers.iter().any(|w| w.core == core) {
                let cores: Vec<String> = seen.workers.iter().map(|w| w.core.to_string()).collect();
                found.push((
                    format!(
                        "queue {} of {} is to be polled on core {core}, workers are on {}",
                        queue.trim(),
                        interface.name,
                        cores.join(", ")
                    ),
                    format!(
                        "ovs-vsctl remove interface {} other_config pmd-rxq-affinity",
                        interface.name
                    ),
                ));
            }
        }
    }
    found
}

fn unbalanced(seen: &Seen) -> Vec<(String, String)> {
    let ports = |core: u64| -> Vec<&str> {
        let mut all: Vec<&str> = seen
            .queues
            .iter()
            .filter(|q| q.core == Some(core))
            .map(|q| q.port.as_str())
            .collect();
        all.dedup();
        all
    };
    let Some(free) = seen.workers.iter().find(|w| w.busy < FREE) else {
        return Vec::new();
    };
    // A worker that waits for its processor is crowded, too.
    let crowded = |w: &&super::Worker| w.busy > FREE && w.busy + w.waiting > 0.5 && ports(w.core).len() > 1;
    let Some(full) = seen.workers.iter().find(crowded) else {
        return Vec::new();
    };
    let pinned: Vec<&str> = seen
        .interfaces
        .iter()
        .filter(|i| !i.affinity.is_empty() && ports(full.core).contains(&i.name.as_str()))
        .map(|i| i.name.as_str())
        .collect();
    let mend = match pinned.first() {
        Some(port) => format!("ovs-vsctl remove interface {port} other_config pmd-rxq-affinity"),
        None => "ovs-appctl dpif-netdev/pmd-rxq-rebalance".to_owned(),
    };
    vec![(
        format!(
            "the worker on core {} is busy for {} with {}, that on core {} for {}",
            full.core,
            percent(full.busy),
            ports(full.core).join(", "),
            free.core,
            percent(free.busy)
        ),
        mend,
    )]
}

fn full(seen: &Seen) -> Vec<(String, String)> {
    let free: Vec<_> = seen
        .processors
        .iter()
        .filter(|p| !seen.workers.iter().any(|w| w.core == **p as u64))
        .collect();
    let mend = match free.first() {
        Some(core) => {
            let mask = seen.workers.iter().fold(1_u128 << **core, |m, w| m | 1_u128.checked_shl(u32::try_from(w.core).unwrap_or(0)).unwrap_or(0));
            format!("ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-mask={mask:#x}")
        }
        None => "heddle top shows which port sends; all processors have workers: fewer packets, or more processors".into(),
    };
    let wrong = seen
        .workers
        .iter()
        .filter(|w| w.busy + w.waiting > FULL && w.busy > 0.3);
    wrong
        .map(|w| {
            let waited = if w.waiting > SOME {
                format!(", and waited {} for its processor", percent(w.waiting))
            } else {
                String::new()
            };
            let evidence = format!(
                "the worker on core {} handled packets {} of the time{waited}: {:.0} packets/s",
                w.core,
                percent(w.busy),
                w.packets as f64 / seen.seconds.max(0.1)
            );
            (evidence, mend.clone())
        })
        .collect()
}

fn crowded(seen: &Seen) -> Vec<(String, String)> {
    let wrong = seen.workers.iter().filter(|w| w.waiting > MUCH);
    wrong
        .map(|w| {
            let evidence = format!(
                "the worker on core {} was ready to run for {} of the time while others had its processor",
                w.core,
                percent(w.waiting)
            );
            (
                evidence,
                format!(
                    "keep others away from processor {} (isolcpus, cpusets, or nice them)",
                    w.core
                ),
            )
        })
        .collect()
}

fn too_many(seen: &Seen) -> Vec<(String, String)> {
    if seen.processors.is_empty() || seen.workers.len() <= seen.processors.len() {
        return Vec::new();
    }
    let evidence = format!(
        "{} workers on {} processors",
        seen.workers.len(),
        seen.processors.len()
    );
    vec![(
        evidence,
        "ovs-vsctl remove Open_vSwitch . other_config pmd-cpu-mask".into(),
    )]
}

fn steal(seen: &Seen) -> Vec<(String, String)> {
    if seen.steal <= SOME {
        return Vec::new();
    }
    let evidence = format!(
        "the hypervisor gave {} of this machine's time to others",
        percent(seen.steal)
    );
    vec![(
        evidence,
        "give this machine processors of its own (pinned, not over-committed)".into(),
    )]
}

fn rfs(seen: &Seen) -> Vec<(String, String)> {
    let is_on = seen.rfs_entries > 0 && seen.devices.iter().any(|d| d.rfs);
    let all: u64 = seen.received.iter().sum();
    let ours: u64 = seen.workers.iter().map(|w| w.packets).sum();
    // The machine may be busy with packets that do not pass the switch.
    if is_on || (all.min(ours) as f64) < MIN_PACKETS_PER_S * seen.seconds {
        return Vec::new();
    }
    // The processor that receives packets is not that of the process which reads them.
    let far = seen.readers.iter().find(|(_, _, processor)| {
        let here = seen.received.get(*processor).copied().unwrap_or(0);
        (all - here) as f64 > 0.5 * all as f64
    });
    let Some((pid, name, processor)) = far else {
        return Vec::new();
    };
    let most = seen
        .received
        .iter()
        .enumerate()
        .max_by_key(|(_, n)| **n)
        .map_or(0, |(i, _)| i);
    let mut mend = "sysctl -w net.core.rps_sock_flow_entries=32768".to_owned();
    if let Some(d) = seen.devices.iter().find(|d| !d.netns.is_empty()) {
        let script = format!(
            "mount -t sysfs s /sys; for q in /sys/class/net/{}/queues/rx-*; do echo 32768 > $q/rps_flow_cnt; done",
            d.name
        );
        mend += &format!(
            "; {}",
            at(
                &d.netns,
                &format!("unshare -m sh -c '{script}' (and so on for other pods)")
            )
        );
    }
    vec![(
        format!(
            "RFS is off, {name} ({pid}) runs on processor {processor}, and packets are received on processor {most} \
             ({:.0}/s)",
            seen.received.get(most).copied().unwrap_or(0) as f64 / seen.seconds.max(0.1)
        ),
        mend,
    )]
}

fn flow_limit(seen: &Seen) -> Vec<(String, String)> {
    let hits: u64 = seen.workers.iter().map(|w| w.limit_hits).sum();
    let near = seen.flow_limit > 0 && seen.flows as f64 >= NEAR * seen.flow_limit as f64;
    if hits == 0 && !near {
        return Vec::new();
    }
    let evidence = format!(
        "{} of at most {} flows are cached; {hits} were turned away in {:.1} s",
        seen.flows, seen.flow_limit, seen.seconds
    );
    let more = seen.flow_limit.saturating_mul(4).max(200_000);
    vec![(
        evidence,
        format!("ovs-vsctl set Open_vSwitch . other_config:flow-limit={more}"),
    )]
}

fn masks(seen: &Seen) -> Vec<(String, String)> {
    let refused: u64 = seen.workers.iter().map(|w| w.not_cached).sum();
    let most = seen.workers.iter().map(|w| w.masks).max().unwrap_or(0);
    if (refused as f64) < 10.0 * seen.seconds.max(0.1) {
        return Vec::new();
    }
    vec![(
        format!("{refused} flows were not cached in {:.1} s, a worker has {most} masks", seen.seconds),
        "rules that match on many fields, or parts of them, make masks: ovs-appctl dpctl/dump-flows shows them".into(),
    )]
}

fn needless_ct(seen: &Seen) -> Vec<(String, String)> {
    let one = |(bridge, flow): &(String, String)| {
        (
            format!("{bridge} tracks connections, and no rule matches on their state: {flow}"),
            format!("ovs-ofctl mod-flows {bridge} 'MATCH,actions=...' without ct, or rules with ct_state"),
        )
    };
    seen.needless_ct.iter().map(one).collect()
}

fn mac_table(seen: &Seen) -> Vec<(String, String)> {
    let wrong = seen
        .tables
        .iter()
        .filter(|(_, n, most)| *most > 0 && *n as f64 >= NEAR * *most as f64);
    wrong
        .map(|(bridge, n, most)| {
            let evidence =
                format!("{bridge} has learned {n} of at most {most} addresses: others are flooded");
            let more = most.saturating_mul(4).max(8192);
            (
                evidence,
                format!("ovs-vsctl set bridge {bridge} other_config:mac-table-size={more}"),
            )
        })
        .collect()
}
