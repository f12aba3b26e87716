//! Tables for a terminal.

use super::verdict::{Metric, Verdict, beats, compare_files, verdict};
use crate::results::Results;
use crate::runner::NOISY_SHARE;
use crate::stats::{interval, mean};
use std::fmt::Write as _;

/// An interval whose upper end is this many times the lower one or more is useless.
const MAX_INTERVAL: f64 = 100.0;

/// A figure with three significant digits.
pub(crate) fn figure(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 || a == 0.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 0.1 => format!("{v:.2}"),
        _ => format!("{v:.1e}"),
    }
}

/// `1234 ±5%`, or a dash.
pub(super) fn cell(values: &[f64], confidence: f64) -> String {
    if values.is_empty() {
        return "–".into();
    }
    let i = interval(values, confidence);
    match i.relative() {
        r if !r.is_finite() => figure(i.mean),
        r => format!("{} ±{:.0}%", figure(i.mean), r * 100.0),
    }
}

/// Lines of columns that are as wide as their widest cell, the first to the left, the others to the right.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |i: usize| {
        let cells = rows.iter().filter_map(|r| r.get(i));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n).map(wide).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            let _ = match i {
                0 => write!(line, "{cell}{pad}"),
                _ => write!(line, "  {pad}{cell}"),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// Cases down, contenders across.
pub(super) fn rows(results: &Results, metric: Metric, confidence: f64) -> Vec<Vec<String>> {
    let contenders = results.contenders();
    let mut rows = vec![vec!["case".to_owned()]];
    rows[0].extend(contenders.iter().cloned());
    for case in results.cases() {
        let mut row = vec![case.name()];
        let values = |c: &String| cell(&metric.values(results, c, &case), confidence);
        row.extend(contenders.iter().map(values));
        if row.iter().skip(1).any(|c| c != "–") {
            rows.push(row);
        }
    }
    rows
}

/// Remarks on the figures.
pub(super) fn notes(results: &Results, confidence: f64) -> Vec<String> {
    let mut notes = Vec::new();
    for (contender, why) in &results.unavailable {
        notes.push(format!("{contender} was not measured: {why}"));
    }
    let mut told: Vec<&String> = Vec::new();
    for (contender, case, why) in &results.faults {
        if told.contains(&contender) {
            continue;
        }
        told.push(contender);
        let all = results.faults.iter().filter(|(c, ..)| c == contender).count();
        notes.push(format!(
            "{all} series of {contender} came to nothing, the first in {case}: {why}"
        ));
    }
    let precision = results.plan.as_ref().map_or(0.05, |p| p.precision);
    let (mut wide, mut all) = (0, 0);
    for case in results.cases() {
        for contender in results.contenders() {
            let values = results.headlines(&contender, &case);
            all += usize::from(!values.is_empty());
            wide += usize::from(!values.is_empty() && interval(&values, confidence).relative() > precision);
        }
    }
    if wide > 0 {
        notes.push(format!(
            "{wide} of {all} figures are known less well than ±{:.0} %: more rounds, or a quieter machine",
            precision * 100.0
        ));
    }
    let share =
        |f: fn(&crate::results::Series) -> f64| mean(&results.series.iter().map(f).collect::<Vec<_>>());
    let (others, steal) = (share(|s| s.others_share), share(|s| s.steal_share));
    if others > NOISY_SHARE {
        notes.push(format!(
            "too noisy to trust small differences: programs that have nothing to do with it took {:.0} % of the \
             processors",
            others * 100.0
        ));
    }
    if steal > NOISY_SHARE {
        notes.push(format!(
            "too noisy to trust small differences: the hypervisor gave {:.0} % of the time to others",
            steal * 100.0
        ));
    }
    notes
}

/// The confidence interval of a ratio, as text. The interval of two noisy series is too wide to be useful.
pub(crate) fn bounds(r: &crate::stats::Ratio) -> String {
    if r.high / r.low > MAX_INTERVAL {
        "too few or too noisy series for an interval".to_owned()
    } else {
        format!("{:.2} to {:.2}", r.low, r.high)
    }
}

/// One line per pair that differs: "A beats B in n of m cases by >= 10 %", and one for all others.
pub(super) fn pairs(results: &Results, metric: Metric, margin: f64, confidence: f64) -> Vec<String> {
    let all = beats(results, metric, margin, confidence);
    let (all, alike): (Vec<_>, Vec<_>) = all.into_iter().partition(|b| b.wins > 0);
    let line = |b: &super::Beats| {
        let lost = match b.losses {
            0 => String::new(),
            n => format!(", and is beaten in {n}"),
        };
        format!(
            "{} beats {} in {} of {} cases by >= {:.0} %{lost}",
            b.a,
            b.b,
            b.wins,
            b.of,
            margin * 100.0
        )
    };
    let rest = match (alike.len(), all.is_empty()) {
        (0, _) => None,
        (n, true) => Some(format!(
            "none of {n} pairs differs surely by >= {:.0} % in any case",
            margin * 100.0
        )),
        (n, false) => Some(format!(
            "{n} more pairs do not differ surely by >= {:.0} % in any case",
            margin * 100.0
        )),
    };
    all.iter().map(line).chain(rest).collect()
}

/// The whole report for a terminal.
pub fn text(results: &Results, metrics: &[Metric], margin: f64) -> String {
    let confidence = results.plan.as_ref().map_or(0.95, |p| p.confidence);
    let mut out = String::new();
    if let Some(facts) = results.machines.last() {
        let get = |k: &str| facts.get(k).map_or("?", String::as_str);
        let _ = writeln!(
            out,
            "{}: Linux {}, {} processors ({}), {} series\n",
            get("host"),
            get("kernel"),
            get("processors"),
            get("processor"),
            results.series.len()
        );
    }
    for metric in metrics {
        let rows = rows(results, *metric, confidence);
        if rows.len() > 1 {
            let _ = writeln!(out, "{}\n{}", metric.title(), columns(&rows));
        }
        for line in pairs(results, *metric, margin, confidence) {
            let _ = writeln!(out, "  {line}");
        }
        let _ = writeln!(out);
    }
    for note in notes(results, confidence) {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// Table of changes from `old` to `new`. Also returns the number of cases that are worse by `margin` at
/// least, and the number of compared cases.
pub fn against(new: &Results, old: &Results, metric: Metric, margin: f64) -> (String, usize, usize) {
    let confidence = new.plan.as_ref().map_or(0.95, |p| p.confidence);
    let mut rows = vec![
        [
            "contender, case",
            old.name.as_str(),
            new.name.as_str(),
            "times as good",
            "",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let (mut better, mut worse, mut all) = (0, 0, 0);
    let contenders = new.contenders();
    for contender in &contenders {
        for case in new.cases() {
            let Some(r) = compare_files(new, old, metric, &case, contender, confidence) else {
                continue;
            };
            all += 1;
            let word = match verdict(&r, margin) {
                Verdict::Better => "better",
                Verdict::Worse => "WORSE",
                Verdict::Neither => "",
            };
            better += usize::from(word == "better");
            worse += usize::from(word == "WORSE");
            rows.push(vec![
                format!("{contender}, {}", case.name()),
                cell(&metric.values(old, contender, &case), confidence),
                cell(&metric.values(new, contender, &case), confidence),
                format!("{:.2} ({})", r.ratio, bounds(&r)),
                word.to_owned(),
            ]);
        }
    }
    let mut out = format!("{}\n", metric.title());
    if all == 0 {
        out += "the two files have no contender and case in common that both measured twice\n";
    } else {
        out += &columns(&rows);
        let _ = writeln!(
            out,
            "\n{} is better in {better} of {all} cases by >= {:.0} %, worse in {worse}",
            new.name,
            margin * 100.0
        );
    }
    for (what, name) in [
        ("kernel", "kernels"),
        ("processor", "processors"),
        ("processors", "numbers of processors"),
    ] {
        let of = |r: &Results| r.machines.last().and_then(|m| m.get(what).cloned());
        if of(new) != of(old) {
            let _ = writeln!(out, "note: the files are of machines with other {name}");
        }
    }
    (out, worse, all)
}
