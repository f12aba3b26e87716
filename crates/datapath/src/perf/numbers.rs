//! A copy of a worker's histograms at one time, and its text.

use super::histogram::{BINS, COLUMNS, walls};
use super::history::{Row, each};
use std::fmt::Write as _;

/// A copy of a worker's histograms.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfNumbers {
    pub(super) bins: [[u64; BINS]; COLUMNS.len()],
    /// Sums over all iterations.
    pub(super) sums: Row,
}

impl PerfNumbers {
    /// Counts since `base`.
    pub(crate) fn since(&self, base: &Self) -> Self {
        Self {
            bins: std::array::from_fn(|c| {
                std::array::from_fn(|b| self.bins[c][b].wrapping_sub(base.bins[c][b]))
            }),
            sums: Row::of(std::array::from_fn(|i| {
                self.sums.numbers()[i].wrapping_sub(base.sums.numbers()[i])
            })),
        }
    }

    /// Appends the histograms and, below a line, the averages.
    pub(crate) fn show(&self, s: &mut String) {
        s.push_str("Histograms\n");
        row(s, COLUMNS.map(str::to_owned));
        for bin in 0..BINS {
            row(
                s,
                std::array::from_fn(|column| {
                    let n = self.bins[column][bin];
                    match walls()[column].get(bin) {
                        Some(wall) => format!("{wall:<9} {n:<11}"),
                        None => format!("{:<9} {n:<11}", ">"),
                    }
                }),
            );
        }
        let Row {
            iterations,
            counts: c,
            ..
        } = &self.sums;
        if *iterations == 0 {
            return;
        }
        let _ = writeln!(s, "{}", "-".repeat(154));
        let mut names = COLUMNS;
        names[4] = "vhost qlen";
        row(s, names.map(str::to_owned));
        let per_iteration = |n: u64| format!("{:.5}", n as f64 / *iterations as f64);
        let batch = match c.batches {
            0 => 0.0,
            n => c.packets as f64 / n as f64,
        };
        row(
            s,
            [
                (c.cycles / iterations).to_string(),
                per_iteration(c.packets),
                each(c.busy_cycles, c.packets).to_string(),
                format!("{batch:.5}"),
                per_iteration(0),
                per_iteration(c.upcalls),
                each(c.upcall_cycles, c.upcalls).to_string(),
            ],
        );
    }
}

/// A line of columns, 21 wide.
fn row(s: &mut String, cells: [String; COLUMNS.len()]) {
    s.push_str("   ");
    let cells = cells.map(|cell| format!("{cell:<21}"));
    let _ = writeln!(s, "{}", cells.join("  "));
}
