//! The difference between two samples, as numbers of workers, ports and drops.
//!
//! Both the screen and the JSON of scripts are made of a [`Frame`]. Counters that went back, since the daemon
//! or a port started anew, give rates of zero, never nonsense. No number here is NaN or infinite.

use super::sample::{self, Queue, Sample};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Stages and the counters of their cycles.
const STAGES: [(&str, &str); 6] = [
    ("rx", "cycles_rx"),
    ("parse", "cycles_parse"),
    ("lookup", "cycles_lookup"),
    ("transl", "cycles_translate"),
    ("actions", "cycles_exec"),
    ("tx", "cycles_tx"),
];
/// Cache levels and the counters of their hits.
const LEVELS: [(&str, &str); 4] = [
    ("L0", "l0_hits"),
    ("L1", "l1_hits"),
    ("L2", "l2_hits"),
    ("miss", "misses"),
];
/// Reasons that are no loss: rules and protocols that drop on purpose, and devices that are down, to which
/// bridges flood.
const MEANT: [&str; 3] = [
    "drop_action_of_pipeline",
    "drop_action_forwarding_disabled",
    "datapath_drop_tx_down",
];

/// Whether packets dropped for this reason are no loss.
pub(super) fn is_meant(reason: &str) -> bool {
    MEANT.contains(&reason)
}

/// Numbers by name, in the order of columns.
pub(super) type Named = Vec<(&'static str, f64)>;

fn as_map<S: Serializer>(named: &Named, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(named.iter().copied())
}

/// The difference between two samples.
#[derive(Debug, Serialize)]
pub(super) struct Frame {
    pub(super) seconds: f64,
    pub(super) flows: u64,
    pub(super) flow_limit: u64,
    pub(super) workers: Vec<Worker>,
    pub(super) ports: Vec<Port>,
    /// Drops that may be a loss, by name.
    pub(super) lost: BTreeMap<String, Drops>,
    /// Drops that are no loss, by name.
    pub(super) dropped: BTreeMap<String, Drops>,
    pub(super) queues: Vec<Queue>,
}

/// Packets that were dropped for one reason.
#[derive(Debug, Serialize)]
pub(super) struct Drops {
    pub(super) per_second: f64,
    /// Number of packets since the daemon started.
    pub(super) all: u64,
}

/// A worker.
#[derive(Debug, Serialize)]
pub(super) struct Worker {
    /// Number of the worker, unique among those that run.
    pub(super) id: u64,
    pub(super) core: u64,
    pub(super) numa: u64,
    pub(super) isolated: bool,
    pub(super) busy_percent: f64,
    pub(super) sleep_percent: f64,
    pub(super) packets_per_second: f64,
    pub(super) cycles_per_packet: f64,
    /// Average size of the packets received by the ports that it polls.
    pub(super) bytes_per_packet: f64,
    #[serde(serialize_with = "as_map")]
    pub(super) hits_percent: Named,
    #[serde(serialize_with = "as_map")]
    pub(super) stages_cycles_per_packet: Named,
}

/// Rates of a port.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    pub(super) port: String,
    pub(super) rx_packets_per_second: f64,
    pub(super) rx_bits_per_second: f64,
    pub(super) tx_packets_per_second: f64,
    pub(super) tx_bits_per_second: f64,
    /// Packets that came in by it and were dropped, by name; names of drops in this frame alone.
    pub(super) drops_per_second: BTreeMap<String, f64>,
}

impl Port {
    pub(super) fn packets_per_second(&self) -> f64 {
        self.rx_packets_per_second + self.tx_packets_per_second
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers for people")]
fn number(n: u64) -> f64 {
    n as f64
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { number(a) / number(b) }
}

/// Cycles of the sleep that the worker is in now.
fn asleep_yet(w: &sample::Worker, tsc: u64) -> u64 {
    let since = w.counters.get("asleep_since").copied().filter(|t| *t != 0);
    since.map_or(0, |since| tsc.saturating_sub(since))
}

impl Frame {
    pub(super) fn between(before: &Sample, now: &Sample) -> Frame {
        let cycles = now.tsc.saturating_sub(before.tsc);
        let seconds = ratio(cycles, now.tsc_hz).max(1e-9);
        let ports: Vec<Moved<'_>> = moved(before, now);
        let bytes = bytes_per_packet(now, &ports);
        let none = sample::Worker::default();
        let workers = now.workers.iter().map(|w| {
            let same = |b: &&sample::Worker| (b.id, b.core) == (w.id, w.core);
            let old = before.workers.iter().find(same).unwrap_or(&none);
            let bytes = bytes.get(&w.core).copied().unwrap_or(0.0);
            worker(old, w, (before.tsc, now.tsc), seconds, bytes)
        });
        let drops = |meant: bool| {
            let wanted = now
                .drops
                .iter()
                .filter(|(name, n)| **n > 0 && is_meant(name) == meant);
            let drops = wanted.map(|(name, n)| {
                let old = before.drops.get(name).copied().unwrap_or(0);
                let per_second = number(n.saturating_sub(old)) / seconds;
                (name.clone(), Drops { per_second, all: *n })
            });
            drops.collect()
        };
        Frame {
            seconds,
            flows: now.flows,
            flow_limit: now.flow_limit,
            workers: workers.collect(),
            ports: ports.iter().map(|p| p.rates(seconds)).collect(),
            lost: drops(false),
            dropped: drops(true),
            queues: now.queues.clone(),
        }
    }
}

fn worker(
    old: &sample::Worker,
    now: &sample::Worker,
    (then, tsc): (u64, u64),
    seconds: f64,
    bytes_per_packet: f64,
) -> Worker {
    let of = |name: &str| {
        let read = |w: &sample::Worker| w.counters.get(name).copied().unwrap_or(0);
        read(now).saturating_sub(read(old))
    };
    let (cycles, packets) = (tsc.saturating_sub(then), of("packets"));
    // A sleep that has not ended is in no counter yet.
    let asleep = of("cycles_asleep") + asleep_yet(now, tsc);
    let asleep = asleep.saturating_sub(asleep_yet(old, then));
    let percent = |n| (100.0 * ratio(n, cycles)).min(100.0);
    let looked_up = packets + of("recirculated");
    Worker {
        id: now.id,
        core: now.core,
        numa: now.numa,
        isolated: now.isolated,
        busy_percent: percent(of("cycles_busy")),
        sleep_percent: percent(asleep),
        packets_per_second: number(packets) / seconds,
        cycles_per_packet: ratio(of("cycles_busy"), packets),
        bytes_per_packet: if packets == 0 { 0.0 } else { bytes_per_packet },
        hits_percent: LEVELS
            .map(|(name, counter)| (name, 100.0 * ratio(of(counter), looked_up)))
            .into(),
        stages_cycles_per_packet: STAGES
            .map(|(name, counter)| (name, ratio(of(counter), packets)))
            .into(),
    }
}

/// A port's counts in two samples.
struct Moved<'a> {
    old: Option<&'a sample::Port>,
    now: &'a sample::Port,
}

fn moved<'a>(before: &'a Sample, now: &'a Sample) -> Vec<Moved<'a>> {
    let old: BTreeMap<&str, _> = before.ports.iter().map(|p| (p.port.as_str(), p)).collect();
    let with_old = |p: &'a sample::Port| Moved {
        old: old.get(p.port.as_str()).copied(),
        now: p,
    };
    now.ports.iter().map(with_old).collect()
}

impl Moved<'_> {
    /// A port that was added in between has no rate yet.
    fn of(&self, count: impl Fn(&sample::Port) -> u64) -> u64 {
        self.old
            .map_or(0, |old| count(self.now).saturating_sub(count(old)))
    }
    fn rates(&self, seconds: f64) -> Port {
        let rate = |n: u64| number(n) / seconds;
        let drops = self.now.drops.keys().filter_map(|name| {
            let more = self.of(|p| p.drops.get(name).copied().unwrap_or(0));
            (more > 0).then(|| (name.clone(), rate(more)))
        });
        Port {
            port: self.now.port.clone(),
            rx_packets_per_second: rate(self.of(|p| p.rx_packets)),
            rx_bits_per_second: 8.0 * rate(self.of(|p| p.rx_bytes)),
            tx_packets_per_second: rate(self.of(|p| p.tx_packets)),
            tx_bits_per_second: 8.0 * rate(self.of(|p| p.tx_bytes)),
            drops_per_second: drops.collect(),
        }
    }
}

/// Average size of the packets received by the ports that a processor polls, by processor.
fn bytes_per_packet(now: &Sample, ports: &[Moved<'_>]) -> BTreeMap<u64, f64> {
    let by_name: BTreeMap<&str, &Moved<'_>> = ports.iter().map(|p| (p.now.port.as_str(), p)).collect();
    // Count a port with several queues once for each worker.
    let mut polled: BTreeMap<u64, BTreeMap<&str, &Moved<'_>>> = BTreeMap::new();
    for q in &now.queues {
        if let (Some(core), Some(port)) = (q.core, by_name.get(q.port.as_str())) {
            polled.entry(core).or_default().insert(&q.port, port);
        }
    }
    let average = |ports: BTreeMap<&str, &Moved<'_>>| {
        let sum = |of: &dyn Fn(&Moved<'_>) -> u64| ports.values().map(|p| of(p)).sum();
        ratio(sum(&|p| p.of(|p| p.rx_bytes)), sum(&|p| p.of(|p| p.rx_packets)))
    };
    polled
        .into_iter()
        .map(|(core, ports)| (core, average(ports)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tsc: u64, rx: u64, dropped: u64) -> Sample {
        let text = format!(
            r#"{{"tsc": {tsc}, "tsc_hz": 1000, "flows": 7, "flow_limit": 100, "workers": [{{"id": 0, "core": 3, "numa": 0,
            "isolated": false, "counters": {{"cycles_busy": {}, "packets": {rx}}}}}],
            "queues": [{{"port": "p0", "queue": 0, "core": 3, "percent": null}}, {{"port": "p0", "queue": 1, "core": 3, "percent": null}}],
            "drops": {{"datapath_drop_tx_full": {dropped}, "drop_action_of_pipeline": {dropped}, "conntrack_full": 9}},
            "ports": [{{"port": "p0", "rx_packets": {rx}, "rx_bytes": {}, "tx_packets": 0, "tx_bytes": 0,
            "drops": {{"datapath_drop_tx_full": {dropped}}}}}]}}"#,
            tsc / 2,
            rx * 100
        );
        Sample::read(&text).unwrap()
    }

    #[test]
    fn rates_of_ports_and_workers() {
        let frame = Frame::between(&sample(1000, 10, 0), &sample(3000, 2010, 4));
        let (p, w) = (&frame.ports[0], &frame.workers[0]);
        assert_eq!(
            (p.rx_packets_per_second, p.rx_bits_per_second),
            (1000.0, 800_000.0)
        );
        assert_eq!(p.drops_per_second["datapath_drop_tx_full"], 2.0);
        assert_eq!(
            (w.bytes_per_packet, w.cycles_per_packet, w.busy_percent),
            (100.0, 0.5, 50.0)
        );
        assert_eq!(frame.lost.keys().collect::<Vec<_>>(), ["datapath_drop_tx_full"]);
        assert_eq!(frame.lost["datapath_drop_tx_full"].per_second, 2.0);
        assert_eq!(frame.dropped["drop_action_of_pipeline"].all, 4);
    }

    #[test]
    fn scripts_read_it() {
        let frame = Frame::between(&sample(1000, 10, 0), &sample(3000, 2010, 4));
        let frame = serde_json::to_value(&frame).unwrap();
        assert_eq!(frame["workers"][0]["busy_percent"], 50.0);
        assert_eq!(frame["workers"][0]["hits_percent"]["miss"], 0.0);
        assert_eq!(frame["ports"][0]["rx_packets_per_second"], 1000.0);
        assert_eq!(frame["queues"][1]["queue"], 1);
    }

    #[test]
    fn what_started_anew_has_no_rates() {
        let frame = Frame::between(&sample(9000, 2010, 4), &sample(10, 1, 1));
        let p = &frame.ports[0];
        assert_eq!(
            (p.rx_packets_per_second, p.drops_per_second.len()),
            (0.0, 0),
            "{p:?}"
        );
        let text = serde_json::to_string(&frame).unwrap();
        // Only of a queue may a value be unknown.
        let (rates, _) = text.split_once("\"queues\"").unwrap();
        assert!(!rates.contains("null") && !text.contains("-0.0"), "{text}");
        // A port that was added in between.
        let none = Sample {
            ports: Vec::new(),
            ..sample(1000, 0, 0)
        };
        let frame = Frame::between(&none, &sample(3000, 7, 7));
        assert_eq!(frame.ports[0].rx_packets_per_second, 0.0);
    }

    /// The share of sleep in a frame from 2 to 4 million cycles, of a worker whose finished sleeps took
    /// `over` cycles.
    fn slept(before: (u64, u64), now: (u64, u64)) -> f64 {
        let at = |tsc, (over, since): (u64, u64)| {
            let mut s = sample(tsc, 0, 0);
            let counters = &mut s.workers[0].counters;
            counters.insert("cycles_asleep".to_owned(), over);
            counters.insert("asleep_since".to_owned(), since);
            s
        };
        let frame = Frame::between(&at(2_000_000, before), &at(4_000_000, now));
        frame.workers[0].sleep_percent
    }

    #[test]
    fn unfinished_sleeps_count() {
        assert_eq!(slept((0, 0), (500_000, 0)), 25.0, "one sleep within");
        assert_eq!(
            slept((7, 1_000_000), (7, 1_000_000)),
            100.0,
            "asleep all the time"
        );
        assert_eq!(slept((0, 1_500_000), (1_000_000, 0)), 25.0, "woke up");
        assert_eq!(slept((0, 0), (0, 3_000_000)), 50.0, "fell asleep");
        let both = slept((0, 1_500_000), (1_000_000, 3_000_000));
        assert_eq!(both, 75.0, "woke up and fell asleep");
    }
}
