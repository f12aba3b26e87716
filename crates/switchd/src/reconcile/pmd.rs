//! Settings of workers in `Open_vSwitch.other_config`: `pmd-rxq-*`, `pmd-auto-lb*`, `pmd-sleep-max`,
//! `emc-insert-inv-prob`.
//!
//! Values that make no sense become the default. Changes are logged in Open vSwitch's words, since operators
//! and tests look for them.

use std::collections::BTreeMap;

use heddle_datapath::{AutoLb, Datapath, MaxSleep, RxqAssign, Spread};

use super::desired::Smap;
use super::warnings::ConfigWarning;
use crate::priority::Request;

/// Longest interval of automatic load balancing, minutes.
pub(super) const MAX_INTERVAL_MINUTES: u64 = 20_000;
const MINUTE_MS: u64 = 60_000;
/// Longest pause of a worker, microseconds.
const MAX_SLEEP_US: u64 = 10_000;
/// Open vSwitch's default of `emc-insert-inv-prob`.
const INV_PROB: u32 = 100;

/// The settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pmd {
    spread: Spread,
    auto: AutoLb,
    /// `emc-insert-inv-prob`; `None`: the datapath's choice.
    inv_prob: Option<u32>,
    /// `pmd-sleep-max`.
    sleep: MaxSleep,
    /// `heddle-light-sleep`.
    light_sleep: bool,
    /// `heddle-realtime`.
    realtime: bool,
    /// `heddle-priority=false`.
    no_priority: bool,
    /// `heddle-gro=false`.
    no_gro: bool,
}

impl Pmd {
    pub(super) fn read(config: &Smap) -> Pmd {
        let default = AutoLb::default();
        let percent = |key, default| match config.number(key, default) {
            n if n > 100 => default,
            n => n,
        };
        let minutes = match config.number("pmd-auto-lb-rebal-interval", 1) {
            n if n > MAX_INTERVAL_MINUTES => 1,
            n => n.max(1),
        };
        let prob = config.get("emc-insert-inv-prob");
        Pmd {
            spread: spread(config),
            auto: AutoLb {
                enabled: config.bool("pmd-auto-lb", false),
                interval_ms: minutes * MINUTE_MS,
                improvement: percent("pmd-auto-lb-improvement-threshold", default.improvement),
                load: percent("pmd-auto-lb-load-threshold", default.load),
            },
            inv_prob: prob.and_then(|n| n.trim().parse().ok()),
            sleep: sleep(max_sleep(config)).0,
            light_sleep: config.bool("heddle-light-sleep", false),
            realtime: config.bool("heddle-realtime", false),
            no_priority: !config.bool("heddle-priority", true),
            no_gro: !config.bool("heddle-gro", true),
        }
    }

    /// The scheduling to request for the threads that packets wait for.
    pub(super) fn priority(&self) -> Request {
        if self.no_priority {
            Request::Nothing
        } else if self.sleep.default_us == Some(0) || self.sleep.of_core.iter().any(|(_, us)| *us == 0) {
            Request::Slices
        } else {
            Request::All
        }
    }

    /// Applies the differences from `before` to the datapath (`None`: all settings). Queues move at their
    /// next assignment.
    pub(super) fn apply(&self, before: Option<&Pmd>, datapath: &Datapath) {
        if self.inv_prob != before.and_then(|b| b.inv_prob) {
            match self.inv_prob {
                None => {
                    log::info!(target: "dpif_netdev", "EMC insertion probability changed to {}, where a port's packets have several masks",
                    one_in(INV_PROB))
                }
                Some(0) => log::info!(target: "dpif_netdev", "EMC insertion probability changed to zero"),
                Some(n) => {
                    log::info!(target: "dpif_netdev", "EMC insertion probability changed to {}", one_in(n))
                }
            }
            datapath.set_emc_insert_inv_prob(self.inv_prob);
        }
        let spread_before = before.map_or_else(Spread::default, |b| b.spread);
        if self.spread.assign != spread_before.assign {
            let name = self.spread.assign.name();
            log::info!(target: "dpif_netdev", "Rxq to PMD assignment mode changed to: '{name}'.");
        }
        if self.spread.isolate != spread_before.isolate {
            let does = if self.spread.isolate {
                "isolates"
            } else {
                "does not isolate"
            };
            log::info!(target: "dpif_netdev", "pmd-rxq-affinity {does} PMD core");
        }
        if self.light_sleep != before.is_some_and(|b| b.light_sleep)
            && let Err(e) = datapath.set_light_sleep(self.light_sleep)
        {
            log::warn!(target: "dpif_netdev", "heddle-light-sleep changes nothing, processors cannot be kept from halting: {e}");
        }
        if self.realtime != before.is_some_and(|b| b.realtime)
            && let Err(e) = datapath.set_realtime(self.realtime)
        {
            log::warn!(target: "dpif_netdev", "heddle-realtime: {e}");
        }
        datapath.set_gro(!self.no_gro);
        datapath.set_spread(self.spread);
        self.apply_auto(before.map(|b| b.auto), datapath);
    }

    /// Like [`Pmd::apply`], for settings of single workers, once they are there.
    pub(super) fn apply_sleep(&self, before: Option<&Pmd>, datapath: &Datapath) {
        if before.is_none_or(|b| b.sleep != self.sleep) {
            datapath.set_max_sleep(self.sleep.clone());
        }
    }

    /// Logs the setting of [`Pmd::apply_sleep`], unless `logged` is the same.
    pub(super) fn log_sleep(&self, logged: &mut Option<MaxSleep>, datapath: &Datapath) {
        if logged.as_ref() == Some(&self.sleep) {
            return;
        }
        let workers = datapath.snapshot().workers;
        log_sleep(&self.sleep, |core| workers.iter().any(|w| w.core == core));
        *logged = Some(self.sleep.clone());
    }

    fn apply_auto(&self, before: Option<AutoLb>, datapath: &Datapath) {
        let now = self.auto;
        if before == Some(now) {
            return;
        }
        let minutes = now.interval_ms / MINUTE_MS;
        if before.is_none_or(|b| b.interval_ms != now.interval_ms) {
            log::info!(target: "dpif_netdev", "PMD auto load balance interval set to {minutes} mins");
        }
        if before.is_none_or(|b| b.improvement != now.improvement) {
            let n = now.improvement;
            log::info!(target: "dpif_netdev", "PMD auto load balance improvement threshold set to {n}%");
        }
        if before.is_none_or(|b| b.load != now.load) {
            log::info!(target: "dpif_netdev", "PMD auto load balance load threshold set to {}%", now.load);
        }
        if now.enabled {
            log::info!(target: "dpif_netdev",
                "PMD auto load balance is enabled, interval {minutes} mins, pmd load threshold {}%, improvement threshold {}%.",
                now.load, now.improvement);
        } else {
            log::info!(target: "dpif_netdev", "PMD auto load balance is disabled.");
        }
        datapath.set_auto_lb(now);
    }
}

/// `1/N (~P%)`.
fn one_in(n: u32) -> String {
    format!("1/{n} (~{:.2}%)", 100.0 / f64::from(n))
}

fn assign(config: &Smap) -> Option<RxqAssign> {
    match config.get("pmd-rxq-assign").unwrap_or("cycles") {
        "roundrobin" => Some(RxqAssign::RoundRobin),
        "group" => Some(RxqAssign::Group),
        "cycles" => Some(RxqAssign::Cycles),
        _ => None,
    }
}

fn spread(config: &Smap) -> Spread {
    let assign = assign(config).unwrap_or(RxqAssign::Cycles);
    Spread {
        assign,
        isolate: config.bool("pmd-rxq-isolate", true) || assign != RxqAssign::Group,
    }
}

/// Warnings about these settings, except numbers and switches.
pub(super) fn warnings(config: &Smap) -> Vec<ConfigWarning> {
    let warning = |keys: &[&'static str], text: String| ConfigWarning {
        keys: keys.to_vec(),
        module: "dpif_netdev",
        text,
    };
    let mut warnings = Vec::new();
    if assign(config).is_none() {
        let text = "Unsupported rx queue to PMD assignment mode in pmd-rxq-assign. Defaulting to 'cycles'.";
        warnings.push(warning(&["pmd-rxq-assign"], text.to_owned()));
    }
    if !config.bool("pmd-rxq-isolate", true) && assign(config) != Some(RxqAssign::Group) {
        let text = "pmd-rxq-isolate can only be set false when using pmd-rxq-assign=group";
        warnings.push(warning(&["pmd-rxq-assign", "pmd-rxq-isolate"], text.to_owned()));
    }
    let parts = sleep(max_sleep(config)).1;
    warnings.extend(parts.into_iter().map(|part| {
        let text = format!("pmd-sleep-max: '{part}' is not understood and counts as not set");
        warning(&["pmd-sleep-max", "pmd-maxsleep"], text)
    }));
    warnings
}

/// `pmd-sleep-max`, by its newer name or its older one.
fn max_sleep(config: &Smap) -> Option<&str> {
    config.get("pmd-sleep-max").or(config.get("pmd-maxsleep"))
}

/// Logs how workers without packets sleep from now on, then Open vSwitch's words for it, which scripts wait
/// for at the log's end.
fn log_sleep(sleep: &MaxSleep, has_worker: impl Fn(usize) -> bool) {
    let does = |max: Option<u64>| match max {
        None => "sleep until they are woken".to_owned(),
        Some(0) => "never sleep".to_owned(),
        Some(us) => format!("pause for {us} usecs, twice, before they sleep until they are woken"),
    };
    log::info!(target: "dpif_netdev", "PMD threads without packets {}.", does(sleep.default_us));
    for (core, us) in &sleep.of_core {
        if has_worker(*core) {
            log::info!(target: "dpif_netdev", "PMD threads without packets on core {core} {}.", does(Some(*us)));
        } else {
            log::info!(target: "dpif_netdev", "pmd-sleep-max names core {core}, which has no PMD thread now.");
        }
    }
    let us = sleep.default_us.unwrap_or(0);
    log::info!(target: "dpif_netdev", "PMD max sleep request is {us} usecs.");
    // Open vSwitch's kind of sleep: a pause of limited length, without a wake-up.
    let are = if us > 0 { "enabled" } else { "disabled" };
    log::info!(target: "dpif_netdev", "PMD load based sleeps are {are}.");
}

/// Parses `MAX`, `CORE:MAX` or a list of them: microseconds, for all workers or one. The second value has the
/// items that are none of these.
fn sleep(text: Option<&str>) -> (MaxSleep, Vec<&str>) {
    let (mut sleep, mut strange) = (MaxSleep::default(), Vec::new());
    let micros = |text: &str| {
        let us = text.trim().parse::<u64>().ok()?;
        if us > MAX_SLEEP_US {
            log::debug!(target: "dpif_netdev", "pmd-sleep-max: {us} usecs is too long, {MAX_SLEEP_US} is taken");
        }
        Some(us.min(MAX_SLEEP_US))
    };
    for part in text
        .unwrap_or_default()
        .split(',')
        .filter(|p| !p.trim().is_empty())
    {
        let understood = match part.split_once(':') {
            None => micros(part).map(|us| sleep.default_us = Some(us)),
            Some((core, us)) => {
                let both = core.trim().parse().ok().zip(micros(us));
                // If a processor has several values, the first counts.
                both.map(|(core, us)| {
                    if !sleep.of_core.iter().any(|(c, _)| *c == core) {
                        sleep.of_core.push((core, us));
                    }
                })
            }
        };
        if understood.is_none() {
            strange.push(part);
        }
    }
    (sleep, strange)
}

/// Logs which processors there are; `pretended`: the NUMA nodes of `--dummy-numa`.
pub(crate) fn log_processors(pretended: Option<&[u32]>) {
    let nodes: Vec<u32> = match pretended {
        Some(nodes) => nodes.to_vec(),
        None => {
            let online = heddle_sys::cpu::online().unwrap_or_default();
            let node = |cpu: &usize| heddle_sys::cpu::numa_node(*cpu).unwrap_or(0);
            online.iter().map(node).collect()
        }
    };
    let mut each: BTreeMap<u32, usize> = BTreeMap::new();
    for node in &nodes {
        *each.entry(*node).or_default() += 1;
    }
    for (node, cores) in &each {
        log::info!(target: "ovs_numa", "Discovered {cores} CPU cores on NUMA node {node}");
    }
    log::info!(target: "ovs_numa", "Discovered {} NUMA nodes and {} CPU cores", each.len(), nodes.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Pmd {
        let map = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Pmd::read(&Smap(map.collect()))
    }

    #[test]
    fn defaults_and_nonsense() {
        let auto = |key, value| read(&[(key, value)]).auto;
        assert_eq!(read(&[]), Pmd::default());
        for (text, minutes) in [
            ("10", 10),
            ("20000", 20_000),
            ("20001", 1),
            ("0", 1),
            ("-1", 1),
            ("x", 1),
        ] {
            assert_eq!(
                auto("pmd-auto-lb-rebal-interval", text).interval_ms,
                minutes * 60_000,
                "{text}"
            );
        }
        for (text, percent) in [("0", 0), ("100", 100), ("101", 95), ("-1", 95)] {
            assert_eq!(auto("pmd-auto-lb-load-threshold", text).load, percent, "{text}");
        }
        assert_eq!(auto("pmd-auto-lb-improvement-threshold", "101").improvement, 25);
        assert!(auto("pmd-auto-lb", "true").enabled);
    }

    #[test]
    fn only_group_shares_a_pinned_worker() {
        let of = |assign, isolate| read(&[("pmd-rxq-assign", assign), ("pmd-rxq-isolate", isolate)]).spread;
        assert!(!of("group", "false").isolate);
        assert!(of("group", "x").isolate);
        assert!(of("cycles", "false").isolate);
        assert_eq!(of("what", "true").assign, RxqAssign::Cycles);
        assert_eq!(of("roundrobin", "true").assign, RxqAssign::RoundRobin);
    }

    #[test]
    fn pauses_of_all_and_of_one() {
        let of = |text| read(&[("pmd-sleep-max", text)]).sleep;
        assert_eq!(of("50").default_us, Some(50));
        assert_eq!(of("10001").default_us, Some(10_000));
        assert_eq!(of("0").default_us, Some(0));
        let both = of("50, 1:30,3:0,x,2:");
        assert_eq!((both.default_us, both.of_core), (Some(50), vec![(1, 30), (3, 0)]));
        assert_eq!(of("1:5,1:6,1:5").of_core, [(1, 5)]);
        assert_eq!(
            read(&[("pmd-maxsleep", "7")]).sleep.default_us,
            Some(7),
            "the key of Open vSwitch 3.1"
        );
        assert_eq!(read(&[]).sleep, MaxSleep::default());
    }

    #[test]
    fn threads_that_never_sleep_get_slices_only() {
        let of = |pairs: &[(&str, &str)]| read(pairs).priority();
        assert_eq!(of(&[]), Request::All);
        assert_eq!(
            of(&[("heddle-priority", "x"), ("pmd-sleep-max", "50")]),
            Request::All
        );
        assert_eq!(of(&[("pmd-sleep-max", "0")]), Request::Slices);
        assert_eq!(of(&[("pmd-sleep-max", "50,1:0")]), Request::Slices);
        assert_eq!(
            of(&[("heddle-priority", "false"), ("pmd-sleep-max", "0")]),
            Request::Nothing
        );
    }

    #[test]
    fn insertion_probability() {
        assert_eq!(read(&[("emc-insert-inv-prob", "1")]).inv_prob, Some(1));
        for nonsense in ["99999999999", "-1", "x"] {
            assert_eq!(
                read(&[("emc-insert-inv-prob", nonsense)]),
                read(&[]),
                "{nonsense}"
            );
        }
    }
}
