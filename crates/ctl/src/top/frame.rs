//! The lines that show a frame: tables as wide as the terminal has room, with important values coloured.
//!
//! Red is for losses that happen now, and for nothing else. Packets that rules drop, and those for a device
//! that is down, are counted without a colour.

use super::cells;
use super::history::{FRAMES, History};
use super::rates::{Drops, Frame, Port, Worker, is_meant};
use super::sample::Queue;
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use std::collections::BTreeMap;

/// Columns of the workers' table in front of those of levels and stages.
const WORKER: &str = "WORKER NUMA  BUSY% SLEEP%     Mpps cyc/pkt  B/pkt";
/// A queue's worker is on another NUMA node than the port's device.
const CROSSING: &str = "  port on node";
/// Columns of the queues' table beside the port's name, and of that of ports.
const QUEUES: &str = " QUEUE WORKER MINUTE%";
const PORTS: &str = "  IN kpps   Gbit/s OUT kpps   Gbit/s    DROPS/s";
/// Width of a level's column, and of a stage's, in cells.
const LEVEL: usize = 7;
const STAGE: usize = 8;
/// Minimum width of a port's name in the queues' table, and in that of ports, which has more columns.
const NAME: usize = 24;
const PORT_NAME: usize = 10;
/// Cells of a drop's name.
const DROP: usize = 36;
/// Blanks in front of bars, and of a reason.
const GAP: usize = 2;
/// The minimum number of cells for the reason of drops, and the number that most reasons take.
const MIN_REASON_COLUMNS: usize = 6;
const REASON: usize = 16;

/// A number with its noun, singular or plural.
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn heading(text: String) -> Line<'static> {
    Line::from(text.bold())
}

/// The style of a rate of losses: red if it is above zero.
fn loss(per_second: f64) -> Style {
    match per_second > 0.0 {
        true => Style::new().fg(Color::Red).bold(),
        false => Style::new(),
    }
}

/// All possible columns.
#[cfg(test)]
pub(super) fn columns() -> impl Iterator<Item = &'static str> {
    let words = [WORKER, QUEUES, PORTS, "LOST DROPPED L0% L1% L2% miss%"];
    let stages = "rx parse lookup transl actions tx";
    words.into_iter().chain([stages]).flat_map(str::split_whitespace)
}

/// The first line.
pub(super) fn head(frame: &Frame) -> String {
    format!(
        "heddle top: {}, {}, {} of {} flows",
        counted(frame.workers.len(), "worker"),
        counted(frame.queues.len(), "receive queue"),
        frame.flows,
        frame.flow_limit
    )
}

/// The lines below the first one, for a terminal of `columns` columns. Wider tables are not cut.
pub(super) fn lines(frame: &Frame, history: &History, columns: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    workers(&mut lines, frame, history, columns);
    lines.push(Line::default());
    drops(&mut lines, "LOST", &frame.lost, true);
    drops(
        &mut lines,
        "DROPPED by rules, or device is down",
        &frame.dropped,
        false,
    );
    lines.push(Line::default());
    ports(&mut lines, frame, history, columns);
    lines.push(Line::default());
    queues(&mut lines, frame, columns);
    lines
}

fn number(w: &Worker) -> String {
    format!("{}{}", w.core, if w.isolated { "*" } else { "" })
}

fn workers(lines: &mut Vec<Line<'static>>, frame: &Frame, history: &History, columns: usize) {
    let Some(first) = frame.workers.first() else {
        return lines.push(heading("no worker runs".into()));
    };
    let levels: String = first
        .hits_percent
        .iter()
        .map(|(name, _)| format!("{:>LEVEL$}", format!("{name}%")))
        .collect();
    let stages: String = first
        .stages_cycles_per_packet
        .iter()
        .map(|(name, _)| format!("{name:>STAGE$}"))
        .collect();
    let staged = |w: &Worker| -> String {
        let stages = w.stages_cycles_per_packet.iter();
        stages.map(|(_, n)| format!("{n:>STAGE$.1}")).collect()
    };
    let bars = |w: &Worker| history.of_worker(w.id).cyan();
    // The tables are side by side if there is room, else one below the other.
    let apart = WORKER.len() + levels.len() + stages.len() + GAP + FRAMES > columns;
    lines.push(heading(format!(
        "{WORKER}{levels}{}",
        if apart { "" } else { &stages }
    )));
    for w in &frame.workers {
        let text = worker(w);
        lines.push(match apart {
            true => Line::from(text),
            false => Line::from(vec![format!("{text}{}  ", staged(w)).into(), bars(w)]),
        });
    }
    if apart {
        lines.push(Line::default());
        lines.push(heading(format!("WORKER{stages}  cycles per packet")));
        for w in &frame.workers {
            let text = format!("{:>6}{}  ", number(w), staged(w));
            lines.push(Line::from(vec![text.into(), bars(w)]));
        }
    }
}

/// A worker's line up to the levels of the cache.
fn worker(w: &Worker) -> String {
    let line = format!(
        "{:>6} {:>4} {:>6.1} {:>6.1} {:>8.3} {:>7.0} {:>6.0}",
        number(w),
        w.numa,
        w.busy_percent,
        w.sleep_percent,
        w.packets_per_second / 1e6,
        w.cycles_per_packet,
        w.bytes_per_packet,
    );
    let levels = w.hits_percent.iter();
    line + &levels
        .map(|(_, percent)| format!("{percent:>LEVEL$.1}"))
        .collect::<String>()
}

fn drops(lines: &mut Vec<Line<'static>>, title: &str, drops: &BTreeMap<String, Drops>, losses: bool) {
    if drops.is_empty() {
        return lines.push(heading(format!("{title:<DROP$} {:>12}", "nothing")));
    }
    lines.push(heading(format!(
        "{title:<DROP$} {:>12} {:>14}",
        "per second", "all"
    )));
    for (name, n) in drops {
        let text = format!("{name:<DROP$} {:>12.1} {:>14}", n.per_second, n.all);
        let style = if losses { loss(n.per_second) } else { Style::new() };
        lines.push(Line::from(Span::styled(text, style)));
    }
}

/// Cells for names of ports: those of the longest, if the line has room beside `beside` cells, but `least`.
fn name_cells<'a>(
    names: impl Iterator<Item = &'a str>,
    beside: usize,
    columns: usize,
    least: usize,
) -> usize {
    let longest = names.map(cells::width).max().unwrap_or(0);
    longest.min(columns.saturating_sub(beside)).max(least)
}

/// A drop's name in at most `cells` cells. If it is too long, its common prefix is left out.
fn reason(name: &str, cells: usize) -> String {
    if cells::width(name) <= cells {
        return name.to_owned();
    }
    let short = ["datapath_drop_", "drop_action_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    let short = short.unwrap_or(name);
    cells::exactly(short, cells.min(cells::width(short)))
}

fn ports(lines: &mut Vec<Line<'static>>, frame: &Frame, history: &History, columns: usize) {
    let name = name_cells(
        frame.ports.iter().map(|p| p.port.as_str()),
        PORTS.len(),
        columns,
        PORT_NAME,
    );
    lines.push(heading(format!("{:<name$}{PORTS}", "PORT")));
    lines.extend(frame.ports.iter().map(|p| port(p, name, history, columns)));
}

fn port(p: &Port, name: usize, history: &History, columns: usize) -> Line<'static> {
    let text = format!(
        "{} {:>8.1} {:>8.3} {:>8.1} {:>8.3}",
        cells::exactly(&p.port, name),
        p.rx_packets_per_second / 1e3,
        p.rx_bits_per_second / 1e9,
        p.tx_packets_per_second / 1e3,
        p.tx_bits_per_second / 1e9,
    );
    // `fold` starts at zero; `sum` of no values would be `-0.0`.
    let all = p.drops_per_second.values().fold(0.0, |sum, n| sum + n);
    let losses = p.drops_per_second.iter().filter(|(name, _)| !is_meant(name));
    let style = loss(losses.fold(0.0, |sum, (_, n)| sum + n));
    let mut left = columns.saturating_sub(cells::width(&text) + 11);
    let mut spans = vec![text.into(), Span::styled(format!(" {all:>10.1}"), style)];
    // The most frequent drop's name, if there is room, and bars before it, aligned in a column.
    if left >= GAP + FRAMES + GAP + REASON {
        left -= GAP + FRAMES;
        let bars = history.of_port(&p.port);
        let pad = " ".repeat(GAP + FRAMES - cells::width(&bars));
        spans.extend([pad.into(), bars.cyan()]);
    }
    let most = p.drops_per_second.iter().max_by(|a, b| a.1.total_cmp(b.1));
    if let Some((name, _)) = most.filter(|_| left >= GAP + MIN_REASON_COLUMNS) {
        spans.push(Span::styled(format!("  {}", reason(name, left - GAP)), style));
    }
    Line::from(spans)
}

fn queues(lines: &mut Vec<Line<'static>>, frame: &Frame, columns: usize) {
    let crosses = frame.queues.iter().any(|q| crossing(frame, q).is_some());
    let name = name_cells(
        frame.queues.iter().map(|q| q.port.as_str()),
        QUEUES.len() + if crosses { CROSSING.len() + 3 } else { 0 },
        columns,
        NAME,
    );
    lines.push(heading(format!("{:<name$}{QUEUES}", "PORT")));
    for q in &frame.queues {
        let core = q.core.map_or_else(|| "nobody".to_owned(), |c| c.to_string());
        let percent = q.percent.map_or_else(|| "-".to_owned(), |p| format!("{p:.1}"));
        let port = cells::exactly(&q.port, name);
        let crossing = crossing(frame, q).map_or_else(String::new, |node| format!("{CROSSING} {node}"));
        lines.push(format!("{port} {:>5} {core:>6} {percent:>7}{crossing}", q.queue).into());
    }
}

/// The port's NUMA node, if the worker that polls the queue is on another one.
fn crossing(frame: &Frame, queue: &Queue) -> Option<u64> {
    let worker = frame.workers.iter().find(|w| Some(w.core) == queue.core)?;
    queue.numa.filter(|node| *node != worker.numa)
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    fn sample(tsc: u64, packets: u64, dropped: u64) -> Sample {
        let text = format!(
            r#"{{"tsc": {tsc}, "tsc_hz": 1000000, "flows": 7, "flow_limit": 100,
               "drops": {{"datapath_drop_tx_full": {dropped}, "datapath_drop_tx_down": {dropped}, "datapath_drop_meter": 0}},
               "workers": [{{"id": 0, "core": 3, "numa": 1, "isolated": true, "counters":
                 {{"packets": {packets}, "cycles_busy": {}, "l1_hits": {packets}, "cycles_lookup": {}}}}}],
               "ports": [{{"port": "p0", "rx_packets": {packets}, "rx_bytes": {}, "tx_packets": 0, "tx_bytes": 0,
                 "drops": {{"datapath_drop_tx_full": {dropped}}}}}],
               "queues": [{{"port": "p0", "queue": 2, "core": 3, "percent": 12.34, "numa": 0}}, {{"port": "p1", "queue": 0, "core": null, "percent": null}}]}}"#,
            packets / 4,
            packets / 10,
            packets * 1000,
        );
        Sample::read(&text).unwrap()
    }

    fn frame() -> Frame {
        Frame::between(&sample(1_000_000, 100_000, 10), &sample(3_000_000, 4_100_000, 30))
    }

    fn text(frame: &Frame, columns: usize) -> Vec<String> {
        let lines = lines(frame, &History::default(), columns);
        lines
            .iter()
            .map(|l| l.to_string().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn shows_what_happened_in_between() {
        let frame = frame();
        assert_eq!(
            head(&frame),
            "heddle top: 1 worker, 2 receive queues, 7 of 100 flows"
        );
        let lines = text(&frame, 200);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        // A frame of two seconds: a million cycles of two million busy, four million packets.
        assert_eq!(words[..7], ["3*", "1", "50.0", "0.0", "2.000", "0", "1000"]);
        assert_eq!(words[7..11], ["0.0", "100.0", "0.0", "0.0"]);
        assert_eq!(words[13], "0.1");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(3), ["LOST", "per", "second", "all"]);
        assert_eq!(words(4), ["datapath_drop_tx_full", "10.0", "30"]);
        assert_eq!(words(6), ["datapath_drop_tx_down", "10.0", "30"]);
        assert_eq!(
            words(9),
            [
                "p0",
                "2000.0",
                "16.000",
                "0.0",
                "0.000",
                "10.0",
                "datapath_drop_tx_full"
            ]
        );
        assert_eq!(
            lines[12],
            "p0                           2      3    12.3  port on node 0"
        );
        assert_eq!(lines[13], "p1                           0 nobody       -");
    }

    /// The red texts of a frame.
    fn red(frame: &Frame) -> Vec<String> {
        let lines = lines(frame, &History::default(), 200);
        let red = lines.iter().flat_map(|l| &l.spans);
        red.filter(|s| s.style.fg == Some(Color::Red))
            .map(|s| s.content.trim().to_owned())
            .collect()
    }

    #[test]
    fn only_losses_that_happen_are_red() {
        let red_now = red(&frame());
        assert_eq!(red_now.len(), 3, "{red_now:?}");
        assert!(red_now[0].starts_with("datapath_drop_tx_full"), "{red_now:?}");
        assert_eq!(red_now[1..], ["10.0", "datapath_drop_tx_full"]);
        // No packet is lost any more.
        let over = Frame::between(&sample(1_000_000, 1, 30), &sample(3_000_000, 2, 30));
        assert!(red(&over).is_empty());
        // A frame without losses.
        let idle = Frame::between(&sample(1_000_000, 1, 0), &sample(3_000_000, 1, 0));
        let text = text(&idle, 200).join("\n");
        let lost = text.lines().find(|l| l.starts_with("LOST")).unwrap();
        assert!(lost.ends_with(" nothing"), "{lost}");
        assert!(!text.contains("-0.0"), "{text}");
    }

    #[test]
    fn stages_are_below_where_there_is_no_room_beside() {
        let at = |columns| text(&frame(), columns);
        let (wide, narrow) = (at(147), at(146));
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
        let mut now = frame();
        now.ports.clear();
        (now.queues[0].port, now.queues[0].numa) = ("端口".repeat(15), None);
        let row = |columns| text(&now, columns).into_iter().find(|l| l.starts_with('端'));
        assert!(row(200).unwrap().starts_with(&("端口".repeat(15) + "     2")));
        let cut = row(60).unwrap();
        assert_eq!(cells::width(&cut), 60);
        assert!(
            cut.contains('~') && cut.ends_with("     2      3    12.3"),
            "{cut}"
        );
        assert_eq!(cells::width(&row(40).unwrap()), NAME + QUEUES.len());
    }

    #[test]
    fn reasons_have_short_names() {
        assert_eq!(reason("datapath_drop_tx_full", 21), "datapath_drop_tx_full");
        assert_eq!(reason("datapath_drop_tx_full", 20), "tx_full");
        assert_eq!(reason("drop_action_of_pipeline", 6), "of_pi~");
        let rows = text(&frame(), 75);
        assert!(
            rows.iter()
                .any(|l| l.starts_with("p0 ") && l.ends_with("10.0  tx_full"))
        );
        assert!(rows.iter().all(|l| cells::width(l) <= 80));
    }

    #[test]
    fn bars_are_in_a_column_where_there_is_room() {
        let mut history = History::default();
        for _ in 0..3 {
            history.add(&frame());
        }
        let bars = |columns| {
            let lines = lines(&frame(), &history, columns);
            let rows: Vec<String> = lines
                .iter()
                .map(Line::to_string)
                .filter(|l| l.contains("███") || l.contains("▄▄▄"))
                .collect();
            rows
        };
        assert_eq!(bars(200).len(), 2);
        assert_eq!(bars(80).len(), 1, "of the worker alone");
        assert!(bars(100).iter().all(|l| cells::width(l) <= 100));
        assert_eq!(bars(100).len(), 2);
    }

    #[test]
    fn a_daemon_that_started_anew_is_no_nonsense() {
        let frame = Frame::between(&sample(9_000_000, 4_000_000, 99), &sample(1_000_000, 5, 3));
        let frame = text(&frame, 80).join("\n");
        assert!(!frame.contains("NaN") && !frame.contains("inf"));
    }
}
