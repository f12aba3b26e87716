//! A copy of a worker's histograms at one time, and its text.

use super::histogram::{BINS, COLUMNS, walls};
use std::fmt::Write as _;

/// A copy of a worker's histograms.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfNumbers {
    pub(super) bins: [[u64; BINS]; COLUMNS.len()],
    pub(super) iterations: u64,
    pub(super) packets: u64,
    pub(super) cycles: u64,
    pub(super) busy_cycles: u64,
    pub(super) batches: u64,
    pub(super) upcalls: u64,
    pub(super) upcall_cycles: u64,
}

impl PerfNumbers {
    /// Counts since `base`.
    pub(crate) fn since(&self, base: &Self) -> Self {
        Self {
            bins: std::array::from_fn(|c| {
                std::array::from_fn(|b| self.bins[c][b].wrapping_sub(base.bins[c][b]))
            }),
            iterations: self.iterations.wrapping_sub(base.iterations),
            packets: self.packets.wrapping_sub(base.packets),
            cycles: self.cycles.wrapping_sub(base.cycles),
            busy_cycles: self.busy_cycles.wrapping_sub(base.busy_cycles),
            batches: self.batches.wrapping_sub(base.batches),
            upcalls: self.upcalls.wrapping_sub(base.upcalls),
            upcall_cycles: self.upcall_cycles.wrapping_sub(base.upcall_cycles),
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
        if self.iterations == 0 {
            return;
        }
        let _ = writeln!(s, "{}", "-".repeat(154));
        let mut names = COLUMNS;
        names[4] = "vhost qlen";
        row(s, names.map(str::to_owned));
        let per_iteration = |n: u64| format!("{:.5}", n as f64 / self.iterations as f64);
        let batch = match self.batches {
            0 => 0.0,
            n => self.packets as f64 / n as f64,
        };
        row(
            s,
            [
                (self.cycles / self.iterations).to_string(),
                per_iteration(self.packets),
                self.busy_cycles
                    .checked_div(self.packets)
                    .unwrap_or(0)
                    .to_string(),
                format!("{batch:.5}"),
                per_iteration(0),
                per_iteration(self.upcalls),
                self.upcall_cycles
                    .checked_div(self.upcalls)
                    .unwrap_or(0)
                    .to_string(),
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
