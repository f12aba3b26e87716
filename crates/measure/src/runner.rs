//! Runs series after series, contenders in turns, until results are precise enough or time is over.
//!
//! **Turns.** In each round, each case is measured once with each contender. The order is reversed from round
//! to round, so changes of the machine (clock, neighbours, heat) hit all contenders. A case is done when the
//! interval of each contender is as narrow as the plan requires. Until then all contenders are measured, so
//! that rounds stay whole.

use crate::agent::Mark;
use crate::load::{Pattern, Transport};
use crate::peer::Peer;
use crate::results::{Case, Latency, Plan, Record, Results, Series, Sink};
use crate::stats::interval;
use crate::usage::{Process, Processor};
use anyhow::{Context as _, Result, bail};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Share of the machines' time taken by other programs, above which a series is doubtful.
pub const NOISY_SHARE: f64 = 0.05;
/// Interval at which a wait checks for a stop.
const SLICE: Duration = Duration::from_millis(50);

/// Two end points.
#[derive(Debug)]
pub struct Ends {
    /// The end that connects.
    pub client: Peer,
    /// The end that accepts connections.
    pub server: Peer,
    /// The server's addresses.
    pub addresses: Vec<IpAddr>,
    /// The server's first port, or 0.
    pub port: u16,
}

impl Ends {
    /// The server's address of a family.
    fn address(&self, family: u8) -> Result<IpAddr> {
        let fits = |a: &&IpAddr| a.is_ipv4() == (family == 4);
        match self.addresses.iter().find(fits) {
            Some(address) => Ok(*address),
            None => bail!(
                "{} has no IPv{family} address (--address names one)",
                self.server.name()
            ),
        }
    }
}

/// One of the configurations that are compared in turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Name, unique in a run.
    pub name: String,
    /// Index of its pair of end points.
    pub ends: usize,
    /// Factors and values that are set before its series.
    pub settings: Vec<(String, String)>,
}

/// The runner's calls into the program: settings, and progress.
pub trait Outside {
    /// Sets the contender's settings.
    ///
    /// # Errors
    /// A setting cannot be set.
    fn set(&mut self, contender: &Contender) -> Result<()>;
    /// Reports that a series is over, and the minimum number of series that are left.
    fn progress(&mut self, text: &str, left: usize, each: Duration);
}

/// Why a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All cases are as precise as the plan requires.
    Precise,
    /// The maximum number of rounds is over, and some cases are less precise than required.
    Rounds,
    /// Time is over.
    Time,
    /// The user interrupted the run.
    Interrupted,
}

/// Sleeps, but no longer than both ends live. Returns false if the run is to stop.
fn pause(seconds: f64, enough: &AtomicBool, ends: &mut Ends) -> bool {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        if enough.load(Relaxed) {
            return false;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || ends.client.has_ended() || ends.server.has_ended() {
            return true;
        }
        std::thread::sleep(left.min(SLICE));
    }
}

/// Runs one series; `None`: the run was interrupted.
///
/// # Errors
/// An end point has gone, no data arrives, a port is in use.
pub fn series(
    ends: &mut Ends,
    case: &Case,
    plan: &Plan,
    threads: usize,
    enough: &AtomicBool,
) -> Result<Option<Series>> {
    let load = case.load(threads);
    let to = ends.address(case.family)?;
    let ports = ends.server.listen(&load, to, ends.port)?;
    ends.client.connect(&load, to, ports)?;
    ends.server.go()?;
    ends.client.go()?;
    let at_unix_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |t| t.as_secs_f64());
    if !pause(plan.warmup_s, enough, ends) {
        return Ok(None);
    }
    let before = [ends.client.mark(true)?, ends.server.mark(true)?];
    if !pause(plan.seconds, enough, ends) {
        return Ok(None);
    }
    let after = [ends.client.mark(false)?, ends.server.mark(false)?];
    let (client, server) = (ends.client.stop()?, ends.server.stop()?);
    for (peer, outcome, mark) in [
        (&ends.client, &client, &after[0]),
        (&ends.server, &server, &after[1]),
    ] {
        if let Some(fault) = outcome.faults.first() {
            bail!("{}: {fault}", peer.name());
        }
        if mark.is_broken {
            bail!("{}: its connections ended early", peer.name());
        }
    }
    // Bytes and messages are counted at the receiving end.
    let at = usize::from(case.pattern == Pattern::Write);
    let seconds = (after[at].at_ns - before[at].at_ns) as f64 / 1e9;
    let counted = |end: usize, what: fn(&Mark) -> u64| what(&after[end]).saturating_sub(what(&before[end]));
    let bytes = counted(at, |m| m.totals.bytes);
    let transactions = match (case.pattern, case.transport) {
        (Pattern::Rr, _) | (_, Transport::Udp) => counted(at, |m| m.totals.transactions) as f64,
        _ => bytes as f64 / case.request as f64,
    };
    if bytes == 0 {
        bail!(
            "nothing came through from {} to {} in {seconds:.1} s",
            ends.client.name(),
            ends.server.name()
        );
    }
    let lost = match (case.pattern, case.transport) {
        (Pattern::Rr, _) => counted(0, |m| m.totals.lost),
        (_, Transport::Udp) => {
            counted(1 - at, |m| m.totals.transactions).saturating_sub(counted(at, |m| m.totals.transactions))
        }
        _ => 0,
    };
    let mut processor = Processor::default();
    let mut processes: Vec<Process> = Vec::new();
    let same_machine = ends.client.hello().boot == ends.server.hello().boot;
    for mark in after.iter().take(if same_machine { 1 } else { 2 }) {
        processor.add(&mark.usage.processor);
        processes.extend(mark.usage.processes.iter().cloned());
    }
    let own: f64 = counted(0, |m| m.own_ns) as f64 + counted(1, |m| m.own_ns) as f64;
    let busy_s = processor.busy_s().max(1e-3);
    let all_s = processor.all_s().max(1e-3);
    let mib = bytes as f64 / f64::from(1 << 20);
    Ok(Some(Series {
        contender: String::new(),
        case: case.clone(),
        round: 0,
        at_unix_s,
        seconds,
        transactions_per_s: transactions / seconds,
        mib_per_s: mib / seconds,
        latency: Latency::of(&client.latency),
        lag_p99_us: Latency::of(&client.lag).map(|l| l.p99_us),
        lost,
        retransmitted: counted(0, |m| m.totals.retransmitted) + counted(1, |m| m.totals.retransmitted),
        processor,
        agents_s: own / 1e9,
        others_share: others_s(&processes) / all_s,
        processes,
        mib_per_cpu_s: mib / busy_s,
        transactions_per_cpu_s: transactions / busy_s,
        steal_share: processor.steal_s / all_s,
    }))
}

/// Seconds of unrelated processes: neither agents, switches and guests, nor the kernel's threads.
fn others_s(processes: &[Process]) -> f64 {
    const CONCERNED: [&str; 11] = [
        "heddle",
        "heddled",
        "ovs-vswitchd",
        "ovsdb-server",
        "ksoftirqd",
        "kworker",
        "napi",
        "vhost",
        "qemu",
        "rcu",
        "ssh",
    ];
    let other = |p: &&Process| !CONCERNED.iter().any(|c| p.name.starts_with(c));
    processes
        .iter()
        .filter(other)
        .map(|p| p.user_s + p.system_s)
        .sum()
}

/// Whether the interval of each contender without a fault is as narrow as the plan requires.
fn is_precise(results: &Results, plan: &Plan, case: &Case, contenders: &[Contender]) -> bool {
    contenders.iter().all(|c| {
        let values = results.headlines(&c.name, case);
        is_given_up(results, &c.name, case)
            || (values.len() >= plan.least_rounds as usize
                && interval(&values, plan.confidence).relative() <= plan.precision)
    })
}

/// A case is given up after two failures of a contender.
fn is_given_up(results: &Results, contender: &str, case: &Case) -> bool {
    let name = case.name();
    results
        .faults
        .iter()
        .filter(|(c, n, _)| c == contender && *n == name)
        .count()
        >= 2
}

/// Runs the whole plan, or the remaining part.
///
/// # Errors
/// An end point has gone; settings or results cannot be written. Earlier results are kept.
#[expect(
    clippy::too_many_arguments,
    reason = "one caller, and a structure would only be taken apart"
)]
pub fn run(
    plan: &Plan,
    contenders: &[Contender],
    ends: &mut [Ends],
    results: &mut Results,
    sink: &mut Sink,
    threads: usize,
    time: Option<Duration>,
    enough: &AtomicBool,
    outside: &mut dyn Outside,
) -> Result<End> {
    let over = time.map(|t| Instant::now() + t);
    let mut each = Duration::from_secs_f64(plan.seconds + plan.warmup_s + 0.1);
    for round in 1..=plan.most_rounds {
        for case in &plan.cases {
            if is_precise(results, plan, case, contenders) {
                continue;
            }
            let mut order: Vec<&Contender> = contenders.iter().collect();
            if round % 2 == 0 {
                order.reverse();
            }
            for contender in order {
                let done = results.of(&contender.name, case).iter().any(|s| s.round == round);
                if done || is_given_up(results, &contender.name, case) {
                    continue;
                }
                if enough.load(Relaxed) {
                    return Ok(End::Interrupted);
                }
                if over.is_some_and(|over| Instant::now() + each > over) {
                    return Ok(End::Time);
                }
                let began = Instant::now();
                outside.set(contender)?;
                let ends = ends
                    .get_mut(contender.ends)
                    .context("a contender without end points")?;
                let text = match series(ends, case, plan, threads, enough) {
                    Ok(None) => return Ok(End::Interrupted),
                    Ok(Some(mut s)) => {
                        s.contender.clone_from(&contender.name);
                        s.round = round;
                        sink.write(&Record::Series(Box::new(s.clone())))?;
                        let text = line(&s);
                        results.series.push(s);
                        text
                    }
                    Err(e) => {
                        // An end that no longer replies ends the run; otherwise only this contender may be
                        // unable.
                        let first = format!("{e:#}");
                        if ends.client.stop().is_err() || ends.server.stop().is_err() {
                            return Err(e);
                        }
                        let fault = Record::Fault {
                            contender: contender.name.clone(),
                            case: case.name(),
                            why: first.clone(),
                        };
                        sink.write(&fault)?;
                        results
                            .faults
                            .push((contender.name.clone(), case.name(), first.clone()));
                        if results.series.is_empty() && contenders.len() == 1 {
                            return Err(e);
                        }
                        format!("{} {}: {first}", contender.name, case.name())
                    }
                };
                each = (each * 7 + began.elapsed()) / 8;
                outside.progress(&text, left(plan, contenders, results), each);
            }
        }
        if plan
            .cases
            .iter()
            .all(|c| is_precise(results, plan, c, contenders))
        {
            return Ok(End::Precise);
        }
    }
    Ok(End::Rounds)
}

/// Minimum number of series that are left.
fn left(plan: &Plan, contenders: &[Contender], results: &Results) -> usize {
    let missing = |case: &Case, c: &Contender| {
        if is_given_up(results, &c.name, case) {
            return 0;
        }
        (plan.least_rounds as usize).saturating_sub(results.of(&c.name, case).len())
    };
    let all = plan.cases.iter();
    all.map(|case| contenders.iter().map(|c| missing(case, c)).sum::<usize>())
        .sum()
}

/// A series in one line.
fn line(s: &Series) -> String {
    let figure = match s.case.pattern {
        Pattern::Rr => format!("{:.0} transactions/s", s.transactions_per_s),
        _ => format!("{:.1} MiB/s", s.mib_per_s),
    };
    let latency = s.latency.as_ref().map_or(String::new(), |l| {
        format!(", p50 {:.1} us, p99 {:.1} us", l.p50_us, l.p99_us)
    });
    let mut noise = String::new();
    if s.others_share > NOISY_SHARE {
        noise += &format!(", other programs took {:.0} %", s.others_share * 100.0);
    }
    if s.steal_share > NOISY_SHARE {
        noise += &format!(", steal {:.0} %", s.steal_share * 100.0);
    }
    format!("{} {}: {figure}{latency}{noise}", s.contender, s.case.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{case, series as made_up};

    fn plan() -> Plan {
        Plan {
            contenders: vec!["a".into(), "b".into()],
            cases: vec![case(1)],
            seconds: 1.0,
            warmup_s: 0.0,
            least_rounds: 3,
            most_rounds: 10,
            confidence: 0.95,
            precision: 0.05,
        }
    }

    fn contenders() -> Vec<Contender> {
        let one = |name: &str| Contender {
            name: name.into(),
            ends: 0,
            settings: Vec::new(),
        };
        vec![one("a"), one("b")]
    }

    #[test]
    fn a_case_goes_on_until_all_are_precise() {
        let mut results = Results::default();
        let (plan, both) = (plan(), contenders());
        assert_eq!(left(&plan, &both, &results), 6);
        for round in 1..=3 {
            results.series.push(made_up("a", &case(1), round, 100.0));
            let noisy = if round == 2 { 150.0 } else { 100.0 };
            results.series.push(made_up("b", &case(1), round, noisy));
        }
        assert_eq!(left(&plan, &both, &results), 0);
        assert!(is_precise(&results, &plan, &case(1), &both[..1]));
        assert!(!is_precise(&results, &plan, &case(1), &both));
        // A contender that cannot be measured does not delay the others.
        for _ in 0..2 {
            results.faults.push(("b".into(), case(1).name(), "why".into()));
        }
        assert!(is_precise(&results, &plan, &case(1), &both));
    }

    #[test]
    fn others_are_told_from_those_concerned() {
        let p = |name: &str| Process {
            pid: 1,
            name: name.into(),
            user_s: 1.0,
            system_s: 0.5,
        };
        assert_eq!(others_s(&[p("heddled"), p("rustc"), p("ksoftirqd/0")]), 1.5);
    }
}
