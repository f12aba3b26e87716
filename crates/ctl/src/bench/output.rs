//! Results on standard output: a table, or JSON.

use crate::console;
use clap::Args;
use heddle_loadgen::report::{HEADING, Outcome};
use heddle_loadgen::run::Step;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Args, Clone)]
pub(crate) struct Output {
    /// Print JSON, one object per measurement
    #[arg(long)]
    json: bool,
    /// Print lines `{"event":"measuring"}` and `{"event":"measured"}` when the measured time begins and ends
    #[arg(long)]
    events: bool,
}

/// One measurement.
#[derive(Serialize)]
struct Row<'a> {
    size: usize,
    line_ns: Option<f64>,
    /// Busy cycles per packet of the loop on the switch's core, if this program runs the loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    loop_cycles: Option<f64>,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

impl Output {
    /// Prints the heading of all rows.
    pub(crate) fn begin(&self) {
        if !self.json {
            // An error of a closed output comes with the first row.
            let _ = console::out(&format!("{:>6} {HEADING} line ns loop cy\n", "bytes"));
        }
    }
    /// Prints the step of a measurement, if events are to be printed.
    pub(crate) fn step(&self, step: Step) {
        if self.events {
            let event = match step {
                Step::Measuring => "measuring",
                Step::Measured => "measured",
            };
            // The measurement continues for its result, even if the output is closed.
            let _ = console::out(&format!("{}\n", serde_json::json!({ "event": event })));
        }
    }
    /// Prints one measurement; `line_ns` is a line's round trip beside it.
    pub(crate) fn row(
        &self,
        size: usize,
        outcome: &Outcome,
        line_ns: Option<f64>,
        loop_cycles: Option<f64>,
    ) -> anyhow::Result<()> {
        let mut text = String::new();
        if self.json {
            let row = Row {
                size,
                line_ns,
                loop_cycles,
                outcome,
            };
            text = serde_json::to_string(&row)? + "\n";
        } else {
            let or_dash = |v: Option<f64>| v.map_or_else(|| "-".into(), |v| format!("{v:.0}"));
            let (line, cycles) = (or_dash(line_ns), or_dash(loop_cycles));
            writeln!(text, "{size:>6} {} {line:>7} {cycles:>7}", outcome.row())?;
            for (i, p) in outcome.pairs.iter().enumerate() {
                let p99 = p.latency.map_or("-".to_owned(), |l| format!("{:.2}", l.p99_us));
                writeln!(
                    text,
                    "       ports {} and {}: {:.3} Mpps sent, {:.3} received, loss {:.4} %, p99 {p99} us",
                    2 * i,
                    2 * i + 1,
                    p.sent_pps / 1e6,
                    p.received_pps / 1e6,
                    p.loss * 100.0
                )?;
            }
            for o in &outcome.outages {
                writeln!(
                    text,
                    "       nothing received for {} ms, {} ms after the start",
                    o.ms, o.at_ms
                )?;
            }
            if outcome.corrupt + outcome.reordered > 0 {
                writeln!(
                    text,
                    "       of {} packets that were read {} were corrupt, {} out of order",
                    outcome.read, outcome.corrupt, outcome.reordered
                )?;
            }
        }
        console::out(&text)
    }
}
