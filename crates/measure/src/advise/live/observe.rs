//! Observes a switch and its machine, twice.

use super::{Interface, Queue, Seen, Worker, devices};
use crate::keeper::run;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Share of a processor from which on a process with sockets counts as a reader of a port's packets.
const BUSY: f64 = 0.05;

struct Switch {
    dir: PathBuf,
    ctl: PathBuf,
    pid: u32,
}

impl Switch {
    fn find(dir: &Path) -> Result<Self> {
        let pid = fs::read_to_string(dir.join("ovs-vswitchd.pid")).unwrap_or_default();
        let Ok(pid) = pid.trim().parse::<u32>() else {
            bail!(
                "no switch runs in {} (--rundir names another directory)",
                dir.display()
            );
        };
        let named = dir.join(format!("ovs-vswitchd.{pid}.ctl"));
        let ctl = if named.exists() {
            named
        } else {
            dir.join("ovs-vswitchd.ctl")
        };
        let dir = dir.to_owned();
        Ok(Self { dir, ctl, pid })
    }
    fn appctl(&self, args: &[&str]) -> Result<String> {
        let mut argv = vec![
            "ovs-appctl".to_owned(),
            "--timeout=10".to_owned(),
            "-t".to_owned(),
            self.ctl.display().to_string(),
        ];
        argv.extend(args.iter().map(|a| (*a).to_owned()));
        run(&argv)
    }
    fn stats(&self) -> Result<Value> {
        let text = self
            .appctl(&["heddle/stats"])
            .context("this daemon is not Heddle's, or does not reply")?;
        serde_json::from_str(&text).context("heddle/stats")
    }
    /// Rows of a table, a map of columns each.
    fn rows(&self, table: &str, columns: &str) -> Result<Vec<BTreeMap<String, Value>>> {
        let db = format!("--db=unix:{}", self.dir.join("db.sock").display());
        let columns_ = format!("--columns={columns}");
        let argv = [
            "ovs-vsctl",
            "--timeout=10",
            &db,
            "--format=json",
            &columns_,
            "list",
            table,
        ];
        let text = run(&argv.map(str::to_owned))?;
        let table: Value = serde_json::from_str(&text).context("ovs-vsctl list")?;
        let names: Vec<String> = table["headings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|h| h.as_str().map(str::to_owned))
            .collect();
        let rows = table["data"].as_array().into_iter().flatten();
        Ok(rows
            .map(|r| {
                names
                    .iter()
                    .cloned()
                    .zip(r.as_array().into_iter().flatten().cloned())
                    .collect()
            })
            .collect())
    }
}

/// A string of the database, empty where there is none.
fn text(v: Option<&Value>) -> String {
    v.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A key of a map of the database.
fn key(v: Option<&Value>, key: &str) -> String {
    let pairs = v.and_then(|v| v[1].as_array()).into_iter().flatten();
    let found = pairs.filter(|p| p[0] == key).map(|p| text(Some(&p[1]))).next();
    found.unwrap_or_default()
}

/// Columns of `NET_RX` in /proc/softirqs.
fn received() -> Vec<u64> {
    let text = fs::read_to_string("/proc/softirqs").unwrap_or_default();
    let line = text.lines().find_map(|l| l.trim().strip_prefix("NET_RX:"));
    line.map_or(Vec::new(), |l| {
        l.split_whitespace().filter_map(|n| n.parse().ok()).collect()
    })
}

/// Name of each thread of the switch, and nanoseconds that it waited for a processor.
fn waited(pid: u32) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let wait = read("schedstat")
            .split_whitespace()
            .nth(1)
            .and_then(|n| n.parse().ok());
        if let Some(wait) = wait {
            all.insert(read("comm").trim().to_owned(), wait);
        }
    }
    all
}

/// Ticks used, name and last processor of processes that have sockets.
fn processes(switch: u32) -> BTreeMap<u32, (f64, String, usize)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        // Sum up the threads: one of them reads.
        for task in fs::read_dir(entry.path().join("task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let Some((head, rest)) = text.rsplit_once(") ") else {
                continue;
            };
            let fields: Vec<&str> = rest.split(' ').collect();
            let n = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
            let name = head.split_once(" (").map_or("", |(_, n)| n).to_owned();
            let tid = task.file_name().to_str().and_then(|n| n.parse::<u32>().ok());
            let processor = fields.get(36).and_then(|f| f.parse().ok()).unwrap_or(0);
            if let Some(tid) = tid.filter(|_| pid != switch && pid != std::process::id()) {
                all.insert(tid, (n(11) + n(12), name, processor));
            }
        }
    }
    all
}

/// Whether a process has sockets of TCP or UDP. Others are of packets that no stack receives, or of none.
fn has_sockets(pid: u32) -> bool {
    let open: HashSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| {
            let link = fs::read_link(fd.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    // The tenth column is the inode.
    let is_open = |line: &str| line.split_whitespace().nth(9).is_some_and(|n| open.contains(n));
    let lists = ["tcp", "tcp6", "udp", "udp6"];
    !open.is_empty()
        && lists.iter().any(|list| {
            let text = fs::read_to_string(format!("/proc/{pid}/net/{list}")).unwrap_or_default();
            text.lines().any(is_open)
        })
}

fn inode(path: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).ok().map(|m| m.ino())
}

/// The first flow with `ct`, if no flow uses the result of `ct`.
pub(super) fn needless_ct(flows: &str) -> Option<String> {
    const ASKS: [&str; 6] = ["ct_state", "ct_mark", "ct_label", "ct_zone", "ct_nw_", "ct_tp_"];
    let mut example = None;
    for line in flows.lines() {
        let (head, actions) = line.split_once("actions=").unwrap_or((line, ""));
        // A flow that matches on a result, translates addresses or copies a result needs `ct`.
        if ASKS.iter().any(|a| head.contains(a) || actions.contains(a)) || actions.contains("nat") {
            return None;
        }
        if actions.starts_with("ct(") || actions.contains(",ct(") {
            let fields: Vec<&str> = head.split(',').map(str::trim).collect();
            let shown = fields.iter().filter(|f| {
                !f.is_empty()
                    && !["duration", "n_packets", "n_bytes", "cookie"]
                        .iter()
                        .any(|w| f.starts_with(w))
            });
            let shown: Vec<&str> = shown.copied().collect();
            example.get_or_insert(format!("{},actions={actions}", shown.join(",")));
        }
    }
    example
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

fn list(v: &Value) -> impl Iterator<Item = &Value> {
    v.as_array().into_iter().flatten()
}

/// Observes the switch whose run directory is `dir`, for `time`.
///
/// # Errors
/// No switch runs there, or it is not Heddle.
pub fn observe(dir: &Path, time: Duration) -> Result<Seen> {
    let switch = Switch::find(dir)?;
    let first = switch.stats()?;
    let (waited_before, processes_before, received_before) =
        (waited(switch.pid), processes(switch.pid), received());
    let usage_before = crate::usage::Moment::now();
    let began = Instant::now();
    std::thread::sleep(time);
    let second = switch.stats()?;
    let seconds = began.elapsed().as_secs_f64();
    let (waited_after, processes_after, received_after) =
        (waited(switch.pid), processes(switch.pid), received());
    let usage = crate::usage::Moment::now().since(&usage_before).processor;

    let mut seen = Seen {
        seconds,
        processors: heddle_sys::cpu::online().unwrap_or_default(),
        flows: number(&second["flows"]),
        flow_limit: number(&second["flow_limit"]),
        steal: usage.steal_s / usage.all_s().max(0.01),
        received: received_after
            .iter()
            .zip(&received_before)
            .map(|(a, b)| a.saturating_sub(*b))
            .collect(),
        ..Seen::default()
    };
    for worker in list(&second["workers"]) {
        let core = number(&worker["core"]);
        let before = list(&first["workers"]).find(|w| w["core"] == worker["core"]);
        let counter = |name: &str| {
            let now = number(&worker["counters"][name]);
            now.saturating_sub(before.map_or(now, |b| number(&b["counters"][name])))
        };
        let cycles = (counter("cycles_busy") + counter("cycles_idle") + counter("cycles_asleep")).max(1);
        let clock = number(&second["tsc"])
            .saturating_sub(number(&first["tsc"]))
            .max(cycles);
        // Names of the worker's thread: with a processor of its own, and without.
        let names = [
            format!("pmd-c{core:02}"),
            format!("worker{}", number(&worker["id"])),
        ];
        let wait = names
            .iter()
            .find_map(|n| waited_after.get(n)?.checked_sub(*waited_before.get(n)?));
        let wait = wait.unwrap_or(0);
        seen.workers.push(Worker {
            core,
            busy: counter("cycles_busy") as f64 / clock as f64,
            waiting: wait as f64 / 1e9 / seconds,
            masks: number(&worker["counters"]["masks"]),
            limit_hits: counter("limit_hits"),
            not_cached: counter("not_cached").saturating_sub(counter("limit_hits")),
            packets: counter("packets"),
            isolated: worker["isolated"] == true,
        });
    }
    for queue in list(&second["queues"]) {
        seen.queues.push(Queue {
            port: text(Some(&queue["port"])),
            queue: number(&queue["queue"]),
            core: queue["core"].as_u64(),
        });
    }
    if let (Some(now), Some(before)) = (second["drops"].as_object(), first["drops"].as_object()) {
        for (name, n) in now {
            let more = number(n).saturating_sub(before.get(name).map_or(0, number));
            if more > 0 {
                seen.drops.push((name.clone(), more));
            }
        }
    }
    // A daemon of an earlier version has no such command.
    if let Ok(said) = switch.appctl(&["heddle/without-effect"]) {
        let said: Value = serde_json::from_str(&said).context("heddle/without-effect")?;
        seen.restoring = said["restoring"] == true;
        let word = |s: &Value, key: &str| text(Some(&s[key]));
        let setting = |s: &Value| (word(s, "place"), word(s, "setting"), word(s, "effect"));
        seen.without_effect = list(&said["settings"]).map(setting).collect();
    }
    database(&switch, &mut seen)?;
    // Namespaces in which packets of the switch's ports end.
    let own = "/proc/self/ns/net".to_owned();
    let ends: HashSet<u64> = seen
        .devices
        .iter()
        .filter_map(|d| inode(if d.netns.is_empty() { &own } else { &d.netns }))
        .collect();
    for (pid, (ticks, name, processor)) in &processes_after {
        let before = processes_before.get(pid).map_or(0.0, |(t, ..)| *t);
        let is_busy = (ticks - before) / 100.0 / seconds > BUSY && name != "nsenter";
        let is_there = || inode(&format!("/proc/{pid}/ns/net")).is_some_and(|n| ends.contains(&n));
        if is_busy && is_there() && has_sockets(*pid) {
            seen.readers.push((*pid, name.clone(), *processor));
        }
    }
    let entries = fs::read_to_string("/proc/sys/net/core/rps_sock_flow_entries").unwrap_or_default();
    seen.rfs_entries = entries.trim().parse().unwrap_or(0);
    Ok(seen)
}

/// Reads the database and the bridges.
fn database(switch: &Switch, seen: &mut Seen) -> Result<()> {
    let uuids = |v: Option<&Value>| -> Vec<String> {
        let Some(v) = v else { return Vec::new() };
        if v[0] == "set" {
            return list(&v[1]).map(|u| text(Some(&u[1]))).collect();
        }
        vec![text(Some(&v[1]))]
    };
    let bridges = switch.rows("bridge", "name,ports,controller")?;
    let ports = switch.rows("port", "_uuid,interfaces")?;
    let interfaces = switch.rows("interface", "_uuid,name,type,error,other_config")?;
    let controllers = switch.rows("controller", "_uuid,target,is_connected,status")?;
    let mut port_bridges = BTreeMap::new();
    for row in &interfaces {
        let name = text(row.get("name"));
        let own = uuids(row.get("_uuid"));
        let port = ports
            .iter()
            .find(|p| uuids(p.get("interfaces")).iter().any(|u| own.contains(u)));
        let port = port.map_or(Vec::new(), |p| uuids(p.get("_uuid")));
        let bridge = bridges
            .iter()
            .find(|b| uuids(b.get("ports")).iter().any(|u| port.contains(u)));
        if let Some(bridge) = bridge {
            port_bridges.insert(name.clone(), text(bridge.get("name")));
        }
        seen.interfaces.push(Interface {
            name,
            kind: text(row.get("type")),
            error: text(row.get("error")),
            affinity: key(row.get("other_config"), "pmd-rxq-affinity"),
        });
    }
    for bridge in &bridges {
        let name = text(bridge.get("name"));
        for uuid in uuids(bridge.get("controller")) {
            if let Some(c) = controllers.iter().find(|c| uuids(c.get("_uuid")).contains(&uuid)) {
                let connected = c.get("is_connected") == Some(&Value::Bool(true));
                let why = key(c.get("status"), "last_error");
                seen.controllers
                    .push((name.clone(), text(c.get("target")), connected, why));
            }
        }
        let fdb = switch.appctl(&["fdb/stats-show", &name]).unwrap_or_default();
        let line = fdb
            .lines()
            .find_map(|l| l.trim().strip_prefix("Current/maximum MAC entries in the table:"));
        if let Some((n, most)) = line.and_then(|l| l.trim().split_once('/'))
            && let (Ok(n), Ok(most)) = (n.parse(), most.parse())
        {
            seen.tables.push((name.clone(), n, most));
        }
        let flows = switch.appctl(&["bridge/dump-flows", &name]).unwrap_or_default();
        if let Some(flow) = needless_ct(&flows) {
            seen.needless_ct.push((name, flow));
        }
    }
    // The switch's namespace, by the name that `devices` uses.
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = of(&switch.pid.to_string());
    let mut netns = String::new();
    if own != of("self") {
        let mut mounted = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let inode = |path: &Path| {
            use std::os::unix::fs::MetadataExt as _;
            fs::metadata(path).map(|m| m.ino()).ok()
        };
        let wanted = inode(Path::new(&format!("/proc/{}/ns/net", switch.pid)));
        netns = mounted
            .find(|e| inode(&e.path()) == wanted)
            .map_or(format!("/proc/{}/ns/net", switch.pid), |e| {
                e.path().display().to_string()
            });
    }
    seen.devices = devices::of_ports(&port_bridges, &netns);
    Ok(())
}
