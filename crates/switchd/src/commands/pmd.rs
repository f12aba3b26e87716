//! `dpif-netdev/pmd-*`: what workers do.

use super::{Commands, dpctl};
use crate::reconcile::datapath_name;
use crate::switch::Switch;

pub(super) fn register(c: &Commands<'_>) {
    const ANY: usize = usize::MAX;
    c.add(
        "dpif-netdev/pmd-stats-show",
        "[-pmd core] [dp]",
        (0, 3),
        |s, args| {
            let core = Wanted::parse(s, args)?;
            Ok(core.filter(&s.datapath.pmd_stats_show()))
        },
    );
    c.add(
        "dpif-netdev/pmd-stats-clear",
        "[-pmd core] [dp]",
        (0, 3),
        |s, args| {
            Wanted::parse(s, args)?;
            s.datapath.pmd_stats_clear();
            Ok(String::new())
        },
    );
    c.add(
        "dpif-netdev/pmd-rxq-show",
        "[-pmd core] [-secs secs] [dp]",
        (0, 5),
        |s, args| {
            let core = Wanted::parse(s, args)?;
            Ok(core.filter(&s.datapath.pmd_rxq_show()))
        },
    );
    let usage = "[-nh] [-it iter-history-len] [-ms ms-history-len] [-pmd core] [dp]";
    c.add("dpif-netdev/pmd-perf-show", usage, (0, ANY), |s, args| {
        let core = Wanted::parse(s, args)?;
        let now = chrono::Local::now().format("%H:%M:%S%.3f").to_string();
        Ok(core.filter(&s.datapath.pmd_perf_show(&now)))
    });
}

/// Which worker's text is wanted.
struct Wanted(Option<String>);

impl Wanted {
    fn parse(switch: &Switch, args: &[&str]) -> Result<Wanted, String> {
        let mut wanted = Wanted(None);
        let mut named = None;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "-pmd" => wanted.0 = args.next().map(|core| (*core).to_owned()),
                "-secs" | "-it" | "-ms" => drop(args.next()),
                "-nh" => {}
                name => named = Some(name),
            }
        }
        let all = dpctl::types(switch);
        let known = |name: &str| {
            all.iter()
                .any(|t| name == format!("ovs-{t}") || name == datapath_name(t))
        };
        if all.is_empty() || named.is_some_and(|name| !known(name)) {
            return Err("please specify an existing datapath".into());
        }
        Ok(wanted)
    }

    /// Of a text in blocks that begin with a worker's line, those of the wanted worker.
    fn filter(&self, text: &str) -> String {
        let Some(core) = &self.0 else {
            return text.to_owned();
        };
        let end = format!(" core_id {core}:");
        let mut inside = true;
        let wanted = |line: &&str| {
            if line.starts_with("pmd thread") {
                inside = line.ends_with(&end);
            }
            inside
        };
        text.lines()
            .filter(wanted)
            .map(|line| format!("{line}\n"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_of_several() {
        let text =
            "Displaying\npmd thread numa_id 0 core_id 1:\n  a\npmd thread numa_id 0 core_id 11:\n  b\n";
        let only = Wanted(Some("1".into())).filter(text);
        assert_eq!(only, "Displaying\npmd thread numa_id 0 core_id 1:\n  a\n");
        assert_eq!(Wanted(None).filter(text), text);
    }
}
