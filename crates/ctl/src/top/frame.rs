//! A frame: the lines that show what happened between two samples.

use super::cells;
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

/// Columns of the workers' table in front of those of levels and stages.
const WORKER: &str = "WORKER NUMA  BUSY% SLEEP%     Mpps cyc/pkt";
/// Cells of a level's column, and of a stage's.
const LEVEL: usize = 7;
const STAGE: usize = 8;
/// Cells of the columns beside a port's name, and the least for the name.
const QUEUE: usize = 21;
const NAME: usize = 24;
/// Cells of a drop's name.
const DROP: usize = 36;

/// So many of these.
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The first line, and the lines below it, for a terminal of so many columns. Tables that are wider stay as
/// wide as they are.
pub(super) fn lines(before: &Sample, now: &Sample, columns: usize) -> (String, Vec<String>) {
    let head = format!(
        "heddle top: {}, {}, {} of {} flows",
        counted(now.workers.len(), "worker"),
        counted(now.queues.len(), "receive queue"),
        now.flows,
        now.flow_limit
    );
    let mut lines = Vec::new();
    workers(&mut lines, before, now, columns);
    lines.push(String::new());
    drops(&mut lines, before, now);
    lines.push(String::new());
    queues(&mut lines, now, columns);
    (head, lines)
}

/// A worker's counts between two samples.
struct Moved<'a> {
    worker: &'a Worker,
    old: &'a Worker,
}

impl Moved<'_> {
    fn of(&self, name: &str) -> u64 {
        let read = |w: &Worker| w.counters.get(name).copied().unwrap_or(0);
        read(self.worker).saturating_sub(read(self.old))
    }
    fn number(&self) -> String {
        format!(
            "{}{}",
            self.worker.core,
            if self.worker.isolated { "*" } else { "" }
        )
    }
}

fn workers(lines: &mut Vec<String>, before: &Sample, now: &Sample, columns: usize) {
    let none = Worker::default();
    let old = |w: &Worker| {
        let same = |b: &&Worker| (b.id, b.core) == (w.id, w.core);
        before.workers.iter().find(same).unwrap_or(&none)
    };
    let all: Vec<Moved<'_>> = now
        .workers
        .iter()
        .map(|w| Moved {
            worker: w,
            old: old(w),
        })
        .collect();
    let levels: String = LEVELS
        .iter()
        .map(|(name, _)| format!("{:>LEVEL$}", format!("{name}%")))
        .collect();
    let stages: String = STAGES.iter().map(|(name, _)| format!("{name:>STAGE$}")).collect();
    let staged = |m: &Moved<'_>| -> String {
        let packets = m.of("packets");
        STAGES
            .iter()
            .map(|(_, counter)| format!("{:>STAGE$.1}", ratio(m.of(counter), packets)))
            .collect()
    };
    // Side by side where there is room, else one below the other.
    let apart = WORKER.len() + levels.len() + stages.len() > columns;
    lines.push(format!("{WORKER}{levels}{}", if apart { "" } else { &stages }));
    for m in &all {
        let mut line = worker(m, before, now);
        if !apart {
            line += &staged(m);
        }
        lines.push(line);
    }
    if apart {
        lines.push(String::new());
        lines.push(format!("WORKER{stages}   cycles per packet"));
        lines.extend(all.iter().map(|m| format!("{:>6}{}", m.number(), staged(m))));
    }
}

/// A worker's line up to the levels of the cache.
fn worker(m: &Moved<'_>, before: &Sample, now: &Sample) -> String {
    let cycles = now.tsc.saturating_sub(before.tsc);
    let packets = m.of("packets");
    // A sleep that goes on is in no counter yet.
    let asleep = m.of("cycles_asleep") + asleep_yet(m.worker, now.tsc);
    let asleep = asleep.saturating_sub(asleep_yet(m.old, before.tsc));
    let mut line = format!(
        "{:>6} {:>4} {:>6.1} {:>6.1} {:>8.3} {:>7.0}",
        m.number(),
        m.worker.numa,
        (100.0 * ratio(m.of("cycles_busy"), cycles)).min(100.0),
        (100.0 * ratio(asleep, cycles)).min(100.0),
        ratio(packets, 1_000_000) / seconds(before, now),
        ratio(m.of("cycles_busy"), packets),
    );
    for (_, counter) in LEVELS {
        // Writing to a string cannot fail.
        let _ = write!(
            line,
            "{:>LEVEL$.1}",
            100.0 * ratio(m.of(counter), packets + m.of("recirculated"))
        );
    }
    line
}

fn seconds(before: &Sample, now: &Sample) -> f64 {
    ratio(now.tsc.saturating_sub(before.tsc), now.tsc_hz).max(1e-9)
}

fn drops(lines: &mut Vec<String>, before: &Sample, now: &Sample) {
    lines.push(format!("{:<DROP$} {:>12} {:>14}", "DROPS", "per second", "all"));
    for (name, n) in now.drops.iter().filter(|(_, n)| **n > 0) {
        let more = n.saturating_sub(before.drops.get(name).copied().unwrap_or(0));
        lines.push(format!(
            "{name:<DROP$} {:>12.1} {n:>14}",
            ratio(more, 1) / seconds(before, now)
        ));
    }
}

fn queues(lines: &mut Vec<String>, now: &Sample, columns: usize) {
    let longest = now
        .queues
        .iter()
        .map(|q| cells::width(&q.port))
        .max()
        .unwrap_or(0);
    let name = longest.min(columns.saturating_sub(QUEUE)).max(NAME);
    lines.push(format!(
        "{:<name$} {:>5} {:>6} {:>7}",
        "PORT", "QUEUE", "WORKER", "MINUTE%"
    ));
    for q in &now.queues {
        let core = q.core.map_or_else(|| "nobody".to_owned(), |c| c.to_string());
        let percent = q.percent.map_or_else(|| "-".to_owned(), |p| format!("{p:.1}"));
        lines.push(format!(
            "{} {:>5} {core:>6} {percent:>7}",
            cells::exactly(&q.port, name),
            q.queue
        ));
    }
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

    fn frame(before: &Sample, now: &Sample, columns: usize) -> Vec<String> {
        lines(before, now, columns).1
    }

    #[test]
    fn shows_what_happened_in_between() {
        let (before, now) = (sample(1_000_000, 100_000, 10), sample(3_000_000, 4_100_000, 30));
        let (head, lines) = lines(&before, &now, 200);
        assert_eq!(head, "heddle top: 1 worker, 2 receive queues, 7 of 100 flows");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        // Two seconds; a million cycles of two million busy; four million packets.
        assert_eq!(words[..6], ["3*", "1", "50.0", "0.0", "2.000", "0"]);
        assert_eq!(words[6..10], ["0.0", "100.0", "0.0", "0.0"]);
        assert_eq!(words[12], "0.1");
        let drops = lines[4].split_whitespace().collect::<Vec<_>>();
        assert_eq!(drops, ["tx_full", "10.0", "30"]);
        assert_eq!(lines[7], "p0                           2      3    12.3");
        assert_eq!(lines[8], "p1                           0 nobody       -");
    }

    #[test]
    fn stages_stand_below_where_there_is_no_room_beside() {
        let (before, now) = (sample(1_000_000, 100_000, 10), sample(3_000_000, 4_100_000, 30));
        let at = |columns| frame(&before, &now, columns);
        let (wide, narrow) = (at(118), at(117));
        assert_eq!(narrow.len(), wide.len() + 3);
        for (line, of) in [(0, 3), (1, 4)] {
            let whole = format!("{}{}", narrow[line], &narrow[of][6..54]);
            assert_eq!(wide[line], whole);
        }
        let most = at(80).iter().map(|l| cells::width(l)).max();
        assert!(most <= Some(80), "{most:?}");
    }

    #[test]
    fn long_names_are_cut_where_the_terminal_ends() {
        let mut now = sample(1, 0, 0);
        now.queues[0].port = "端口".repeat(15);
        let row = |columns| {
            frame(&sample(0, 0, 0), &now, columns)
                .iter()
                .find(|l| l.starts_with('端'))
                .cloned()
        };
        assert!(row(200).unwrap().starts_with(&("端口".repeat(15) + "     2")));
        let cut = row(60).unwrap();
        assert_eq!(cells::width(&cut), 60);
        assert!(
            cut.contains('~') && cut.ends_with("     2      3    12.3"),
            "{cut}"
        );
        assert_eq!(cells::width(&row(40).unwrap()), NAME + QUEUE);
    }

    /// The share of sleep in a frame from 2 to 4 million, of a worker that has slept `over` cycles in sleeps
    /// that are over.
    fn slept(before: (u64, u64), now: (u64, u64)) -> String {
        let at = |tsc, (over, since): (u64, u64)| {
            let mut s = sample(tsc, 0, 0);
            let counters = &mut s.workers[0].counters;
            counters.insert("cycles_asleep".to_owned(), over);
            counters.insert("asleep_since".to_owned(), since);
            s
        };
        let frame = frame(&at(2_000_000, before), &at(4_000_000, now), 200);
        frame[1].split_whitespace().nth(3).unwrap().to_owned()
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
        let frame = frame(&sample(9_000_000, 4_000_000, 99), &sample(1_000_000, 5, 3), 80).join("\n");
        assert!(!frame.contains("NaN") && !frame.contains("inf"));
    }
}
