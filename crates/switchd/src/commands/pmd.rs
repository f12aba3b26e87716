//! `dpif-netdev/pmd-*`: what workers do.

use super::{Commands, dpctl};
use crate::reconcile::datapath_name;
use crate::switch::Switch;
use serde_json::json;

/// There is one way to look at packets, which goes by the name of the one that any processor can do.
const IMPLEMENTATION: &str = "dpif_scalar";

pub(super) fn register(c: &Commands<'_>) {
    const ANY: usize = usize::MAX;
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
    c.add("dpif-netdev/pmd-rxq-rebalance", "[dp]", (0, 1), |s, args| {
        Wanted::parse(s, args)?;
        s.datapath.rebalance().map_err(|e| e.to_string())?;
        Ok("pmd rxq rebalance requested.\n".into())
    });
    let usage = "[-nh] [-it iter-history-len] [-ms ms-history-len] [-pmd core] [dp]";
    c.add("dpif-netdev/pmd-perf-show", usage, (0, ANY), |s, args| {
        let wanted = Wanted::parse(s, args)?;
        let now = chrono::Local::now().format("%H:%M:%S%.3f").to_string();
        Ok(s.datapath.pmd_perf_show(wanted.core, &now, !wanted.brief))
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
    // Iterations are not kept one by one, so there is nothing to log: accepted for scripts that set it.
    let usage = "on|off [-b before] [-a after] [-e|-ne] [-us usec] [-q qlen]";
    c.add("dpif-netdev/pmd-perf-log-set", usage, (0, 10), |_, _| {
        Ok(String::new())
    });
}

/// What workers have counted, in JSON, for `heddle top` and monitoring.
fn stats(switch: &Switch) -> String {
    let now = switch.datapath.snapshot();
    let map = |pairs: &[(&'static str, u64)]| -> serde_json::Value {
        pairs
            .iter()
            .map(|(name, n)| ((*name).to_owned(), (*n).into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let worker = |w: &heddle_datapath::WorkerView| json!({"id": w.id, "core": w.core, "numa": w.numa, "isolated": w.isolated, "counters": map(&w.counters)});
    let queue = |q: &heddle_datapath::QueueView| json!({"port": q.port, "queue": q.queue, "core": q.core, "percent": q.percent});
    let answer = json!({
        "tsc": now.tsc,
        "tsc_hz": now.tsc_hz,
        "flows": switch.datapath.totals().flows,
        "flow_limit": switch.datapath.flow_limit(),
        "workers": now.workers.iter().map(worker).collect::<Vec<_>>(),
        "queues": now.queues.iter().map(queue).collect::<Vec<_>>(),
        "drops": map(&switch.datapath.coverage()),
    });
    format!("{answer}\n")
}

/// What is wanted of whom.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted<'a> {
    /// `-pmd`: the worker of this processor.
    core: Option<usize>,
    /// `-secs`.
    secs: u64,
    /// `-nh`: no histograms.
    brief: bool,
    /// The datapath.
    named: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    fn parse(switch: &Switch, args: &[&'a str]) -> Result<Wanted<'a>, String> {
        let wanted = Wanted::read(args);
        let all = dpctl::types(switch);
        let known = |name: &str| {
            all.iter()
                .any(|t| name == format!("ovs-{t}") || name == datapath_name(t))
        };
        if all.is_empty() || wanted.named.is_some_and(|name| !known(name)) {
            return Err("please specify an existing datapath".into());
        }
        Ok(wanted)
    }

    /// Numbers that are none count as not given.
    fn read(args: &[&'a str]) -> Wanted<'a> {
        let mut wanted = Wanted::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "-pmd" => wanted.core = args.next().and_then(|core| core.parse().ok()),
                "-secs" => wanted.secs = args.next().and_then(|s| s.parse().ok()).unwrap_or(0),
                "-it" | "-ms" => drop(args.next()),
                "-nh" => wanted.brief = true,
                name => wanted.named = Some(name),
            }
        }
        wanted
    }
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
            brief: true,
            named: Some("ovs-netdev"),
        };
        assert_eq!(read("-pmd 11 -secs 7 -nh ovs-netdev"), want);
        assert_eq!(read("-it 5 -ms 9 -nh -secs 7 -pmd 11 ovs-netdev"), want);
        assert_eq!(read("-pmd x -secs y").core, None);
    }
}
