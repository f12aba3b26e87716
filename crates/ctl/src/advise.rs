//! `heddle advise`: an attachment for a workload, and faults of a running switch.

use crate::console;
use anyhow::{Result, bail};
use heddle_measure::advise::live::{judge, observe};
use heddle_measure::advise::workload::{Workload, advise};
use heddle_measure::load::{Pattern, Transport};
use heddle_measure::report::Metric;
use heddle_measure::results::{Case, Results};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(n) if (0.2..=600.0).contains(&n) => Ok(Duration::from_secs_f64(n)),
        _ => Err("not a number of seconds from 0.2 to 600".into()),
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Find faults of a running switch, and the commands that mend them
    #[arg(long)]
    live: bool,
    /// With --live: seconds between the two looks
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// With --live: one JSON object a finding
    #[arg(long, requires = "live")]
    json: bool,
    /// With --live: the run directory of the switch; without it $OVS_RUNDIR, or /var/run/openvswitch
    #[arg(long, value_name = "DIRECTORY")]
    rundir: Option<PathBuf>,
    /// Results of `heddle measure` on this machine
    #[arg(long, value_name = "FILE", conflicts_with = "live")]
    results: Option<PathBuf>,
    /// Pattern of the workload: rr (request and response), write, read
    #[arg(long, default_value = "rr")]
    pattern: String,
    /// Connections of the workload
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Bytes of its requests and responses; the first number is that of a stream's messages
    #[arg(long, value_name = "BYTESxBYTES", default_value = "200x1000")]
    sizes: String,
    /// tcp or udp
    #[arg(long, default_value = "tcp")]
    transport: String,
    /// 4 or 6
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(4..=6))]
    family: u8,
    /// The workload's pods are on two nodes
    #[arg(long)]
    across: bool,
    /// NetworkPolicy has to hold
    #[arg(long)]
    policy: bool,
    /// The workload's virtual machines are migrated while they run
    #[arg(long)]
    migration: bool,
    /// Pods of the workload on a node
    #[arg(long, default_value_t = 2)]
    pods: usize,
    /// Metric to optimize: speed, p50, p99, efficiency
    #[arg(long, default_value = "speed")]
    metric: Metric,
}

impl Args {
    fn workload(&self) -> Result<Workload> {
        let pattern = match self.pattern.as_str() {
            "rr" => Pattern::Rr,
            "write" => Pattern::Write,
            "read" => Pattern::Read,
            other => bail!("{other:?}: patterns are rr, write and read"),
        };
        let transport = match self.transport.as_str() {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            other => bail!("{other:?}: transports are tcp and udp"),
        };
        let (request, response) = self.sizes.split_once('x').unwrap_or((&self.sizes, "0"));
        let (Ok(request), Ok(response)) = (request.parse(), response.parse()) else {
            bail!(
                "{:?}: sizes are bytes of a request and of its response, 200x1000",
                self.sizes
            );
        };
        let case = Case {
            pattern,
            transport,
            family: self.family,
            connections: self.connections,
            request,
            response: if pattern == Pattern::Rr { response } else { 0 },
            rate_per_s: None,
        };
        if let Err(why) = case.load(0).check() {
            bail!("{}: {why}", case.name());
        }
        Ok(Workload {
            case,
            across: self.across,
            policy: self.policy,
            migration: self.migration,
            pods: self.pods,
            metric: self.metric,
        })
    }

    /// The report, and whether it has a fault.
    fn look(&self) -> Result<(String, bool)> {
        let named = self
            .rundir
            .clone()
            .or_else(|| std::env::var_os("OVS_RUNDIR").map(PathBuf::from));
        let dir = named.unwrap_or_else(|| PathBuf::from("/var/run/openvswitch"));
        let seen = observe(&dir, self.seconds)?;
        let found = judge(&seen);
        if self.json {
            let line = |f: &heddle_measure::advise::live::Finding| {
                let object =
                    json!({"rule": f.rule, "evidence": f.evidence, "mend": f.mend, "source": f.source});
                format!("{object}\n")
            };
            return Ok((found.iter().map(line).collect(), !found.is_empty()));
        }
        if found.is_empty() {
            let text = format!(
                "Nothing is wrong by any rule ({} workers, {} interfaces, {:.1} s)\n",
                seen.workers.len(),
                seen.interfaces.len(),
                seen.seconds
            );
            return Ok((text, false));
        }
        let text = |f: &heddle_measure::advise::live::Finding| {
            format!(
                "{}\n  seen: {}\n  mend: {}\n  rule from: {}\n",
                f.rule, f.evidence, f.mend, f.source
            )
        };
        Ok((found.iter().map(text).collect(), true))
    }

    pub(crate) fn run(&self) -> Result<()> {
        let text = if self.live {
            let (text, wrong) = self.look()?;
            console::out(&text)?;
            return if wrong {
                Err(console::Faults.into())
            } else {
                Ok(())
            };
        } else {
            let results = self.results.as_deref().map(Results::read).transpose()?;
            advise(results.as_ref(), &self.workload()?)
        };
        console::out(&text)
    }
}
