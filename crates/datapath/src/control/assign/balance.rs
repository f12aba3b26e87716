//! Automatic rebalancing: would another assignment even out the load, and by enough? (`pmd-auto-lb*`)
//!
//! The measure is Open vSwitch's: the variance of the workers' busy percentages, per NUMA node and without
//! isolated workers. A dry run estimates it for the assignment that [`plan`] would make now. Beyond Open
//! vSwitch's condition (one node improves by the threshold) no node may get worse, unless the threshold is 0,
//! which always allows.

use super::{Core, Plan, Queue, RxqAssign, Spread, plan};

/// Settings of automatic rebalancing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Balance {
    /// Required improvement of the variance, percent.
    pub(crate) improvement: u64,
    /// The assignment's settings.
    pub(crate) spread: Spread,
}

/// Result of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DryRun {
    /// Sentences for the log (debug).
    pub(crate) lines: Vec<String>,
    /// There was something to estimate.
    pub(crate) sensible: bool,
    /// Rebalance.
    pub(crate) go: bool,
}

/// The reason why there is nothing to estimate, if there is one.
pub(super) fn nothing_to_do(spread: Spread, now: &Plan) -> Option<&'static str> {
    if spread.assign == RxqAssign::RoundRobin {
        return Some(
            "PMD auto load balance nothing to do, pmd-rxq-assign=roundrobin assignment type configured.",
        );
    }
    let free: Vec<usize> = (0..now.isolated.len()).filter(|w| !now.isolated[*w]).collect();
    let polls = |w: usize| now.place.iter().filter(|p| **p == Some(w)).count();
    if free.len() < 2 || free.iter().all(|w| polls(*w) < 2) {
        return Some("PMD auto load balance nothing to do, not enough non-isolated PMDs or RxQs.");
    }
    None
}

/// Compares the assignment `now` with a new one. `minute` is the number of cycles in the time over which
/// queues' cycles were counted.
pub(crate) fn dry_run(balance: Balance, cores: &[Core], queues: &[Queue], now: &Plan, minute: u64) -> DryRun {
    let mut run = DryRun::default();
    if let Some(why) = nothing_to_do(balance.spread, now) {
        run.lines.push(why.to_owned());
        return run;
    }
    run.sensible = true;
    run.lines
        .push("PMD auto load balance performing dry run.".to_owned());
    let then = plan(balance.spread, cores, queues);
    let mut nodes: Vec<u32> = cores.iter().map(|c| c.numa).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() > 1 && crosses(cores, queues, &then) {
        run.lines.push(
            "PMD auto load balance detected cross-numa polling with multiple numa nodes. Unable to accurately estimate."
                .to_owned(),
        );
        return run;
    }
    let (mut met, mut worse) = (false, false);
    for numa in nodes {
        let current = node_variance(cores, queues, now, numa, minute);
        let estimate = node_variance(cores, queues, &then, numa, minute);
        let better = match current.checked_sub(estimate) {
            Some(less) => (less * 100).checked_div(current).unwrap_or(0),
            None => 0,
        };
        worse |= estimate > current;
        met |= better >= balance.improvement;
        run.lines.push(format!(
            "Numa node {numa}. Current variance {current} Estimated variance {estimate}. Variance improvement {better}%."
        ));
    }
    run.go = met && (!worse || balance.improvement == 0);
    run.lines.push(format!(
        "PMD load variance improvement threshold {}% is {}.",
        balance.improvement,
        if run.go { "met" } else { "not met" }
    ));
    run
}

/// Whether some queue without an affinity would be polled from another node than its memory's.
fn crosses(cores: &[Core], queues: &[Queue], plan: &Plan) -> bool {
    queues.iter().zip(&plan.place).any(|(queue, place)| {
        let there = place.and_then(|w| Some((w, cores.get(w)?.numa)));
        queue.pinned.is_none()
            && there.is_some_and(|(w, node)| !plan.isolated[w] && queue.numa.is_some_and(|n| n != node))
    })
}

pub(super) fn node_variance(cores: &[Core], queues: &[Queue], plan: &Plan, numa: u32, minute: u64) -> u64 {
    let busy = |w: usize| -> u64 {
        let own = queues.iter().zip(&plan.place).filter(|(_, p)| **p == Some(w));
        own.map(|(q, _)| q.cycles).sum()
    };
    let percent: Vec<u64> = (0..cores.len())
        .filter(|w| cores[*w].numa == numa && !plan.isolated[*w])
        .map(|w| busy(w).saturating_mul(100).checked_div(minute).unwrap_or(0))
        .collect();
    variance(&percent)
}

/// In whole numbers, rounded down.
pub(super) fn variance(values: &[u64]) -> u64 {
    let n = values.len() as u64;
    let mean = values.iter().sum::<u64>().checked_div(n).unwrap_or(0);
    let squares = values.iter().fold(0_u64, |sum, v| {
        sum.saturating_add(v.abs_diff(mean).saturating_pow(2))
    });
    squares.checked_div(n).unwrap_or(0)
}
