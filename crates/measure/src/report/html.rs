//! A page with tables and plots in one file that needs no network.

use super::svg::{Line, bars, escape, lines};
use super::table::{notes, pairs, rows};
use super::verdict::Metric;
use crate::load::Pattern;
use crate::results::{Case, QUANTILES, Results};
use crate::stats::mean;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum number of distributions that are drawn.
const MAX_CURVES: usize = 24;

const STYLE: &str = "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
    table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}\
    th:first-child,td:first-child{text-align:left}svg{max-width:100%;height:auto;margin:.5em .5em .5em 0}\
    li{margin:.2em 0}";

/// Name of a case without its number of connections.
fn family(case: &Case) -> String {
    let one = Case {
        connections: 0,
        ..case.clone()
    };
    one.name().replace(" c0", "")
}

/// Mean of a metric over the series of a contender in a case.
fn value(results: &Results, metric: Metric, contender: &str, case: &Case) -> Option<f64> {
    let values = metric.values(results, contender, case);
    (!values.is_empty()).then(|| mean(&values))
}

/// All plots: a name for a file, and the drawing.
pub fn plots(results: &Results) -> Vec<(String, String)> {
    let (contenders, cases) = (results.contenders(), results.cases());
    let mut families: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for case in &cases {
        families.entry(family(case)).or_default().push(case.clone());
    }
    let mut all = Vec::new();
    let over_connections = |title: &str, unit: &str, metric: Metric, cases: &[Case]| {
        let line = |c: &String| Line {
            name: c.clone(),
            points: cases
                .iter()
                .filter_map(|case| Some((case.connections as f64, value(results, metric, c, case)?)))
                .collect(),
        };
        let drawn: Vec<Line> = contenders
            .iter()
            .map(line)
            .filter(|l| !l.points.is_empty())
            .collect();
        lines(title, "connections", unit, &drawn, (true, true))
    };
    for (name, of) in &families {
        let file = name.replace([' ', '/'], "-");
        if of[0].pattern == Pattern::Rr {
            for (metric, word) in [(Metric::P50, "median"), (Metric::P99, "99th percentile")] {
                let title = format!("Latency ({word}) over connections: {name}");
                let word = if metric == Metric::P50 { "p50" } else { "p99" };
                let plot = over_connections(&title, "us", metric, of);
                all.push((format!("latency-{word}-{file}"), plot));
            }
        }
        let title = format!("Speed over connections: {name}");
        all.push((
            format!("speed-{file}"),
            over_connections(&title, of[0].unit(), Metric::Speed, of),
        ));
    }
    // Throughput over size, with each number of connections.
    let mut by_size: BTreeMap<(String, usize), Vec<Case>> = BTreeMap::new();
    for case in &cases {
        let word = match case.pattern {
            Pattern::Rr => "request and response",
            Pattern::Write => "write",
            Pattern::Read => "read",
        };
        let key = format!("{word}, {:?}{}", case.transport, case.family);
        by_size
            .entry((key, case.connections))
            .or_default()
            .push(case.clone());
    }
    for ((word, connections), of) in &by_size {
        if of.len() < 2 {
            continue;
        }
        let line = |c: &String| Line {
            name: c.clone(),
            points: of
                .iter()
                .filter_map(|case| {
                    let all = results.of(c, case);
                    let speeds: Vec<f64> = all.iter().map(|s| s.mib_per_s).collect();
                    let size = (case.request + case.response) as f64;
                    (!speeds.is_empty()).then(|| (size, mean(&speeds)))
                })
                .collect(),
        };
        let drawn: Vec<Line> = contenders
            .iter()
            .map(line)
            .filter(|l| !l.points.is_empty())
            .collect();
        let title = format!("Throughput over size: {word}, {connections} connections");
        let file = format!("throughput-{}-c{connections}", word.replace([' ', ','], ""));
        all.push((
            file,
            lines(&title, "bytes of a transaction", "MiB/s", &drawn, (true, true)),
        ));
    }
    // Efficiency, request and response apart from streams, since their units differ.
    for (rr, unit) in [
        (true, "transactions per CPU second"),
        (false, "MiB per CPU second"),
    ] {
        let of: Vec<&Case> = cases
            .iter()
            .filter(|c| (c.pattern == Pattern::Rr) == rr)
            .collect();
        for (n, part) in of.chunks(6).enumerate() {
            let groups: Vec<String> = part.iter().map(|c| c.name()).collect();
            let line = |c: &String| Line {
                name: c.clone(),
                points: part
                    .iter()
                    .enumerate()
                    .filter_map(|(i, case)| Some((i as f64, value(results, Metric::Efficiency, c, case)?)))
                    .collect(),
            };
            let drawn: Vec<Line> = contenders.iter().map(line).collect();
            let what = if rr { "request and response" } else { "streams" };
            let title = format!("Efficiency: {what}");
            all.push((
                format!("efficiency-{}-{n}", if rr { "rr" } else { "streams" }),
                bars(&title, unit, &groups, &drawn),
            ));
        }
    }
    let timed = cases.iter().filter(|c| c.pattern == Pattern::Rr).take(MAX_CURVES);
    for case in timed {
        let line = |c: &String| {
            let curves: Vec<&Vec<f64>> = results
                .of(c, case)
                .iter()
                .filter_map(|s| s.latency.as_ref().map(|l| &l.curve_us))
                .collect();
            let at = |i: usize| {
                let values: Vec<f64> = curves.iter().filter_map(|c| c.get(i).copied()).collect();
                (!values.is_empty()).then(|| mean(&values))
            };
            Line {
                name: c.clone(),
                points: (0..QUANTILES.len())
                    .filter_map(|i| Some((at(i)?, QUANTILES[i])))
                    .collect(),
            }
        };
        let drawn: Vec<Line> = contenders
            .iter()
            .map(line)
            .filter(|l| !l.points.is_empty())
            .collect();
        let title = format!("Distribution of latency: {}", case.name());
        let file = format!("ecdf-{}", case.name().replace([' ', '/'], "-"));
        all.push((
            file,
            lines(&title, "us", "share of transactions", &drawn, (true, false)),
        ));
    }
    all
}

/// The page.
pub fn page(results: &Results, margin: f64) -> String {
    let confidence = results.plan.as_ref().map_or(0.95, |p| p.confidence);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style>\
         </head><body>\n<h1>{0}</h1>\n",
        escape(&format!("Measurements: {}", results.name))
    );
    for metric in [Metric::Speed, Metric::P99, Metric::Efficiency] {
        let _ = writeln!(out, "<h2>{}</h2>\n<ul>", escape(metric.title()));
        for line in pairs(results, metric, margin, confidence) {
            let _ = writeln!(out, "<li>{}</li>", escape(&line));
        }
        out += "</ul>\n<table>\n";
        for (n, row) in rows(results, metric, confidence).iter().enumerate() {
            let tag = if n == 0 { "th" } else { "td" };
            let cells: Vec<String> = row
                .iter()
                .map(|c| format!("<{tag}>{}</{tag}>", escape(c)))
                .collect();
            let _ = writeln!(out, "<tr>{}</tr>", cells.concat());
        }
        out += "</table>\n";
    }
    out += "<h2>Notes</h2>\n<ul>\n";
    for note in notes(results, confidence) {
        let _ = writeln!(out, "<li>{}</li>", escape(&note));
    }
    let _ = writeln!(
        out,
        "<li>Figures are means with {:.0} % confidence intervals (Student's t) over series that took turns; they \
         hold for this machine.</li>\n</ul>\n<h2>Plots</h2>",
        confidence * 100.0
    );
    for (_, plot) in plots(results) {
        out += &plot;
    }
    out += "<h2>Machine</h2>\n<table>\n";
    for (name, value) in results.machines.last().into_iter().flatten() {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td></tr>",
            escape(name),
            escape(value)
        );
    }
    out + "</table>\n</body></html>\n"
}
