//! `dpif-netdev/pmd-*`: the work of workers.

use heddle_datapath::{PerfWanted, SuspectLog};
use heddle_datapath_api::Engine;
use parking_lot::Mutex;

use super::dpctl::{UNKNOWN, is_known};
use super::{Commands, dpctl};
use crate::switch::Switch;
use serde_json::json;

/// The only implementation, with the name of Open vSwitch's one for any processor.
const IMPLEMENTATION: &str = "dpif_scalar";

pub(super) fn register(c: &Commands<'_>) {
    c.add(
        "dpif-netdev/pmd-stats-show",
        "[-pmd core] [dp]",
        (0, 3),
        |s, args| Ok(s.datapath.pmd_stats_show(Wanted::parse(s, args)?.core)),
    );
    c.add(
        "dpif-netdev/pmd-stats-clear",
        "[-pmd core] [dp]",
        (0, 3),
        |s, args| {
            s.datapath.pmd_stats_clear(Wanted::parse(s, args)?.core);
            Ok(String::new())
        },
    );
    c.add(
        "dpif-netdev/pmd-rxq-show",
        "[-pmd core] [-secs secs] [dp]",
        (0, 5),
        |s, args| {
            let wanted = Wanted::parse(s, args)?;
            Ok(s.datapath.pmd_rxq_show(wanted.core, wanted.secs))
        },
    );
    c.add("dpif-netdev/pmd-sleep-show", "[dp]", (0, 1), |s, args| {
        Wanted::parse(s, args)?;
        Ok(s.datapath.pmd_sleep_show())
    });
    c.add("heddle/stats", "", (0, 0), |s, _| Ok(stats(s)));
    c.add("heddle/without-effect", "", (0, 0), |s, _| Ok(without_effect(s)));
    c.add("dpif-netdev/pmd-rxq-rebalance", "[dp]", (0, 1), |s, args| {
        // This command requires a right name.
        if args.first().is_some_and(|name| !is_known(s, name)) {
            return Err(UNKNOWN.into());
        }
        Wanted::parse(s, args)?;
        s.datapath.rebalance().map_err(|e| e.to_string())?;
        Ok("pmd rxq rebalance requested.\n".into())
    });
    let usage = "[-nh] [-it iter-history-len] [-ms ms-history-len] [-pmd core] [dp]";
    c.add("dpif-netdev/pmd-perf-show", usage, (0, 8), |s, args| {
        let wanted = Wanted::parse(s, args)?;
        let now = chrono::Local::now().format("%H:%M:%S%.3f").to_string();
        Ok(s.datapath.pmd_perf_show(wanted.core, &now, wanted.perf))
    });
    c.add("dpif-netdev/dpif-impl-get", "", (0, 0), |s, _| {
        let cores = s
            .datapath
            .snapshot()
            .workers
            .into_iter()
            .map(|w| w.core.to_string());
        Ok(format!(
            "Available DPIF implementations:\n  {IMPLEMENTATION} (pmds: {})\n",
            cores.collect::<Vec<_>>().join(",")
        ))
    });
    c.add(
        "dpif-netdev/dpif-impl-set",
        "dpif_implementation_name",
        (1, 1),
        |_, args| match args.first().copied().unwrap_or_default() {
            IMPLEMENTATION => Ok(format!("DPIF implementation set to {IMPLEMENTATION}.\n")),
            other => Err(format!(
                "DPIF implementation not available: Unknown DPIF implementation {other}.\n"
            )),
        },
    );
    let usage = "on|off [-b before] [-a after] [-e|-ne] [-us usec] [-q qlen]";
    let log = Mutex::new(SuspectLog::default());
    c.add("dpif-netdev/pmd-perf-log-set", usage, (0, 10), move |s, args| {
        let mut log = log.lock();
        *log = suspect_log(*log, args).ok_or(
            "Usage: ovs-appctl dpif-netdev/pmd-perf-log-set [on|off] [-b before] [-a after] [-e|-ne] [-us usec] [-q qlen]",
        )?;
        log::info!(target: "pmd_perf", "pmd-perf-log-set: {}, before={}, after={}, extend={}, us_thr={}, q_thr={}",
            if log.on { "on" } else { "off" }, log.before, log.after, log.extend, log.us, log.qlen);
        s.datapath.set_suspect_log(&log);
        Ok(String::new())
    });
}

/// The setting after a command with these arguments.
fn suspect_log(mut log: SuspectLog, args: &[&str]) -> Option<SuspectLog> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || args.next()?.parse::<u32>().ok().map(u64::from);
        match *arg {
            "on" => log.on = true,
            "off" => log.on = false,
            "-e" => log.extend = true,
            "-ne" => log.extend = false,
            "-b" => log.before = number()?,
            "-a" => log.after = number()?,
            "-us" => log.us = number()?,
            "-q" => log.qlen = number()?,
            _ => return None,
        }
    }
    Some(log.bounded())
}

/// Settings that change nothing, and whether `flow-restore-wait` holds all packets, as JSON.
fn without_effect(switch: &Switch) -> String {
    let known = switch.without_effect.lock();
    let setting = |s: &crate::inventory::WithoutEffect| json!({"place": s.place, "setting": s.setting, "effect": s.effect});
    let settings: Vec<_> = known.iter().map(setting).collect();
    json!({"settings": settings, "restoring": switch.ofproto.pipeline().is_restoring()}).to_string()
}

/// Counters of workers, in JSON, for `heddle top` and monitoring.
fn stats(switch: &Switch) -> String {
    let now = switch.datapath.snapshot();
    let map = |pairs: &[(&'static str, u64)]| -> serde_json::Value {
        pairs
            .iter()
            .map(|(name, n)| ((*name).to_owned(), (*n).into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let worker = |w: &heddle_datapath_api::WorkerView| json!({"id": w.id, "core": w.core, "numa": w.numa, "isolated": w.isolated, "counters": map(&w.counters)});
    let queue = |q: &heddle_datapath_api::QueueView| json!({"port": q.port, "queue": q.queue, "core": q.core, "percent": q.percent, "numa": q.numa});
    let reply = json!({
        "tsc": now.tsc,
        "tsc_hz": now.tsc_hz,
        "flows": switch.datapath.totals().flows,
        "flow_limit": switch.datapath.flow_limit(),
        "workers": now.workers.iter().map(worker).collect::<Vec<_>>(),
        "queues": now.queues.iter().map(queue).collect::<Vec<_>>(),
        "drops": map(&switch.datapath.coverage()),
        "ports": ports(switch),
    });
    format!("{reply}\n")
}

/// Parsed arguments: which workers, which numbers, for how long.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted<'a> {
    /// `-pmd`: the worker of this processor.
    core: Option<usize>,
    /// `-secs`.
    secs: u64,
    /// `-nh`, `-it`, `-ms`.
    perf: PerfWanted,
    /// The datapath.
    named: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    /// If there is one datapath, an unknown name counts as not given, as in Open vSwitch.
    fn parse(switch: &Switch, args: &[&'a str]) -> Result<Wanted<'a>, String> {
        let wanted = Wanted::read(args);
        match wanted.named.filter(|name| !is_known(switch, name)) {
            Some(_) if dpctl::types(switch).len() == 1 => Ok(wanted),
            None if !dpctl::types(switch).is_empty() => Ok(wanted),
            _ => Err(UNKNOWN.into()),
        }
    }

    /// A number that cannot be parsed counts as not given.
    fn read(args: &[&'a str]) -> Wanted<'a> {
        let mut wanted = Wanted::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "-pmd" => wanted.core = args.next().and_then(|core| core.parse().ok()),
                "-secs" => wanted.secs = args.next().and_then(|s| s.parse().ok()).unwrap_or(0),
                "-it" => wanted.perf.iterations = args.next().and_then(|n| n.parse().ok()).unwrap_or(0),
                "-ms" => wanted.perf.milliseconds = args.next().and_then(|n| n.parse().ok()).unwrap_or(0),
                "-nh" => wanted.perf.brief = true,
                name => wanted.named = Some(name),
            }
        }
        wanted
    }
}

/// Ports with their counts, and with the known drops of packets that came in by them.
fn ports(switch: &Switch) -> Vec<serde_json::Value> {
    let mut drops = switch.drops.by_port(&switch.datapath);
    let all = switch.datapath.ports().into_iter();
    all.filter_map(|p| {
        let stats = switch.datapath.port_stats(p.no)?;
        Some(json!({
            "port": p.name,
            "rx_packets": stats.rx_packets,
            "rx_bytes": stats.rx_bytes,
            "tx_packets": stats.tx_packets,
            "tx_bytes": stats.tx_bytes,
            "drops": drops.remove(&p.no.0).unwrap_or_default(),
        }))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_in_any_order() {
        let read = |text: &'static str| Wanted::read(&text.split(' ').collect::<Vec<_>>());
        let want = Wanted {
            core: Some(11),
            secs: 7,
            perf: PerfWanted {
                brief: true,
                ..PerfWanted::default()
            },
            named: Some("ovs-netdev"),
        };
        assert_eq!(read("-pmd 11 -secs 7 -nh ovs-netdev"), want);
        let last = read("-it 5 -ms 9 -nh -secs 7 -pmd 11 ovs-netdev");
        assert_eq!(
            (last.perf.iterations, last.perf.milliseconds, last.core),
            (5, 9, Some(11))
        );
        assert_eq!(read("-pmd x -secs y").core, None);
    }

    #[test]
    fn lines_for_the_log() {
        let set = |text: &str| {
            suspect_log(
                SuspectLog::default(),
                &text.split_whitespace().collect::<Vec<_>>(),
            )
        };
        let all = set("on -b 3 -a 2 -e -us 100 -q 5").unwrap();
        assert_eq!(
            (all.on, all.extend, all.before, all.after, all.us, all.qlen),
            (true, true, 3, 2, 100, 5)
        );
        assert_eq!(set(""), Some(SuspectLog::default()));
        assert_eq!(set("-b 2000").map(|l| (l.before, l.after)), Some((998, 0)));
        for wrong in ["maybe", "-us x", "-q", "-b -1", "on -a"] {
            assert_eq!(set(wrong), None, "{wrong}");
        }
    }
}
