//! A frame: the text that shows what happened between two samples.

use super::sample::{Sample, Worker};
use std::fmt::Write as _;

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

#[expect(clippy::cast_precision_loss, reason = "numbers for people")]
fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

/// Cycles of the sleep that the worker is in.
fn asleep_yet(w: &Worker, tsc: u64) -> u64 {
    let since = w.counters.get("asleep_since").copied().filter(|t| *t != 0);
    since.map_or(0, |since| tsc.saturating_sub(since))
}

/// The frame; lines end with a newline.
pub(super) fn text(before: &Sample, now: &Sample) -> String {
    let mut s = String::new();
    let cycles = now.tsc.saturating_sub(before.tsc);
    let seconds = ratio(cycles, now.tsc_hz).max(1e-9);
    // Writing to a string cannot fail.
    let _ = writeln!(
        s,
        "heddle top: {} workers, {} receive queues, {} of {} flows\n",
        now.workers.len(),
        now.queues.len(),
        now.flows,
        now.flow_limit
    );
    let _ = write!(
        s,
        "{:>6} {:>4} {:>6} {:>6} {:>8} {:>7}",
        "WORKER", "NUMA", "BUSY%", "SLEEP%", "Mpps", "cyc/pkt"
    );
    for (name, _) in LEVELS {
        let _ = write!(s, " {:>6}", format!("{name}%"));
    }
    for (name, _) in STAGES {
        let _ = write!(s, " {name:>7}");
    }
    s.push('\n');
    let none = Worker::default();
    for w in &now.workers {
        let old = before
            .workers
            .iter()
            .find(|b| (b.id, b.core) == (w.id, w.core))
            .unwrap_or(&none);
        let moved = |name: &str| {
            let read = |w: &Worker| w.counters.get(name).copied().unwrap_or(0);
            read(w).saturating_sub(read(old))
        };
        let packets = moved("packets");
        // A sleep that goes on is in no counter yet.
        let asleep = moved("cycles_asleep") + asleep_yet(w, now.tsc);
        let asleep = asleep.saturating_sub(asleep_yet(old, before.tsc));
        let isolated = if w.isolated { "*" } else { "" };
        let _ = write!(
            s,
            "{:>6} {:>4} {:>6.1} {:>6.1} {:>8.3} {:>7.0}",
            format!("{}{isolated}", w.core),
            w.numa,
            (100.0 * ratio(moved("cycles_busy"), cycles)).min(100.0),
            (100.0 * ratio(asleep, cycles)).min(100.0),
            ratio(packets, 1_000_000) / seconds,
            ratio(moved("cycles_busy"), packets),
        );
        for (_, counter) in LEVELS {
            let _ = write!(s, " {:>6.1}", 100.0 * ratio(moved(counter), packets));
        }
        for (_, counter) in STAGES {
            let _ = write!(s, " {:>7.1}", ratio(moved(counter), packets));
        }
        s.push('\n');
    }
    let _ = writeln!(
        s,
        "\n{:<24} {:>5} {:>6} {:>7}",
        "PORT", "QUEUE", "WORKER", "MINUTE%"
    );
    for q in &now.queues {
        let core = q.core.map_or_else(|| "nobody".to_owned(), |c| c.to_string());
        let percent = q.percent.map_or_else(|| "-".to_owned(), |p| format!("{p:.1}"));
        let _ = writeln!(s, "{:<24} {:>5} {core:>6} {percent:>7}", q.port, q.queue);
    }
    let _ = writeln!(s, "\n{:<40} {:>12} {:>14}", "DROPS", "per second", "all");
    for (name, n) in now.drops.iter().filter(|(_, n)| **n > 0) {
        let more = n.saturating_sub(before.drops.get(name).copied().unwrap_or(0));
        let _ = writeln!(s, "{name:<40} {:>12.1} {n:>14}", ratio(more, 1) / seconds);
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tsc: u64, packets: u64, dropped: u64) -> Sample {
        let text = format!(
            r#"{{"tsc": {tsc}, "tsc_hz": 1000000, "flows": 7, "flow_limit": 100, "drops": {{"tx_full": {dropped}, "none": 0}},
               "workers": [{{"id": 0, "core": 3, "numa": 1, "isolated": true, "counters":
                 {{"packets": {packets}, "cycles_busy": {}, "l1_hits": {packets}, "cycles_lookup": {}}}}}],
               "queues": [{{"port": "p0", "queue": 2, "core": 3, "percent": 12.34}}, {{"port": "p1", "queue": 0, "core": null, "percent": null}}]}}"#,
            packets / 4,
            packets / 10,
        );
        Sample::read(&text).unwrap()
    }

    #[test]
    fn shows_what_happened_in_between() {
        let frame = text(&sample(1_000_000, 100_000, 10), &sample(3_000_000, 4_100_000, 30));
        let lines: Vec<&str> = frame.lines().collect();
        assert_eq!(
            lines[0],
            "heddle top: 1 workers, 2 receive queues, 7 of 100 flows"
        );
        let words: Vec<&str> = lines[3].split_whitespace().collect();
        // Two seconds; a million cycles of two million busy; four million packets.
        assert_eq!(words[..6], ["3*", "1", "50.0", "0.0", "2.000", "0"]);
        assert_eq!(words[6..10], ["0.0", "100.0", "0.0", "0.0"]);
        assert_eq!(words[12], "0.1");
        assert!(frame.contains("p0                           2      3    12.3"));
        assert!(frame.contains("p1                           0 nobody       -"));
        let drops = lines.last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(drops, ["tx_full", "10.0", "30"]);
    }

    /// The share of sleep in a frame from 2 to 4 million, of a worker that has slept `over` cycles in sleeps that are over.
    fn slept(before: (u64, u64), now: (u64, u64)) -> String {
        let at = |tsc, (over, since): (u64, u64)| {
            let mut s = sample(tsc, 0, 0);
            let counters = &mut s.workers[0].counters;
            counters.insert("cycles_asleep".to_owned(), over);
            counters.insert("asleep_since".to_owned(), since);
            s
        };
        let frame = text(&at(2_000_000, before), &at(4_000_000, now));
        let line = frame.lines().nth(3).unwrap().to_owned();
        line.split_whitespace().nth(3).unwrap().to_owned()
    }

    #[test]
    fn sleeps_that_go_on_count() {
        assert_eq!(slept((0, 0), (500_000, 0)), "25.0", "one sleep within");
        assert_eq!(
            slept((7, 1_000_000), (7, 1_000_000)),
            "100.0",
            "asleep all the time"
        );
        assert_eq!(slept((0, 1_500_000), (1_000_000, 0)), "25.0", "woke up");
        assert_eq!(slept((0, 0), (0, 3_000_000)), "50.0", "fell asleep");
        assert_eq!(
            slept((0, 1_500_000), (1_000_000, 3_000_000)),
            "75.0",
            "woke up and fell asleep"
        );
    }

    #[test]
    fn a_daemon_that_started_anew_is_no_nonsense() {
        let frame = text(&sample(9_000_000, 4_000_000, 99), &sample(1_000_000, 5, 3));
        assert!(!frame.contains("NaN") && !frame.contains("inf"));
    }
}
