//! Histograms of a worker's loop iterations (`pmd-perf-metrics`), shown by `dpif-netdev/pmd-perf-show` in the layout of Open vSwitch.
//!
//! **Invariants.** One writer, the worker; counters only grow, and clearing is a base that the reader subtracts. Bins and their walls
//! are Open vSwitch's. What it calls the fill level of vhost queues is not measured here: that column stays empty.
//!
//! **Costs.** A flag per iteration; about twenty loads and stores per iteration while it is set.

use crate::counters::WorkerCounters;
use heddle_sync::Counter;
use std::fmt::Write as _;
use std::sync::OnceLock;

/// Bins of a histogram; the last is for what is beyond all walls.
const BINS: usize = 32;
/// Histograms, in the order of the columns.
const COLUMNS: [&str; 7] = [
    "cycles/it",
    "packets/it",
    "cycles/pkt",
    "pkts/batch",
    "max vhost qlen",
    "upcalls/it",
    "cycles/upcall",
];
const CYCLES: usize = 0;
const PACKETS: usize = 1;
const CYCLES_PER_PACKET: usize = 2;
const BATCH: usize = 3;
const UPCALLS: usize = 5;
const CYCLES_PER_UPCALL: usize = 6;

/// Largest values of the bins but the last.
type Walls = [u32; BINS - 1];

#[allow(clippy::cast_possible_truncation)] // a handful of bins
fn linear(min: u32, max: u32) -> Walls {
    std::array::from_fn(|i| min + i as u32 * (max - min) / (BINS as u32 - 2))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // walls are positive and small
fn logarithmic(min: u32, max: u32) -> Walls {
    let mut walls = [0; BINS - 1];
    // Zero has a bin of its own.
    let start = usize::from(min == 0);
    let (from, to) = (f64::from(min.max(1)).ln(), f64::from(max).ln());
    let steps = (BINS - 2 - start) as f64;
    let mut least = start as u32;
    for (i, wall) in walls.iter_mut().skip(start).enumerate() {
        let at = (from + i as f64 * (to - from) / steps).exp();
        *wall = (at as u32).max(least);
        least = *wall + 1;
    }
    let last = &mut walls[BINS - 2];
    *last = max.max(*last);
    walls
}

fn walls() -> &'static [Walls; COLUMNS.len()] {
    static ALL: OnceLock<[Walls; COLUMNS.len()]> = OnceLock::new();
    ALL.get_or_init(|| {
        [
            logarithmic(500, 24_000_000),
            logarithmic(0, 1000),
            linear(100, 30_000),
            linear(0, 32),
            logarithmic(0, 512),
            linear(0, 30),
            logarithmic(1000, 1_000_000),
        ]
    })
}

/// Where an iteration began, as far as counters say it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    batches: u64,
    upcalls: u64,
    upcall_cycles: u64,
}

impl Start {
    pub(crate) fn of(c: &WorkerCounters) -> Self {
        Self {
            batches: c.bursts.get(),
            upcalls: c.misses.get(),
            upcall_cycles: c.cycles_translate.get(),
        }
    }
}

/// One worker's histograms.
#[derive(Debug, Default)]
pub(crate) struct Perf {
    bins: [[Counter; BINS]; COLUMNS.len()],
    iterations: Counter,
    packets: Counter,
    cycles: Counter,
    busy_cycles: Counter,
    batches: Counter,
    upcalls: Counter,
    upcall_cycles: Counter,
}

impl Perf {
    fn sample(&self, column: usize, value: u64) {
        let bin = walls()[column].partition_point(|&wall| u64::from(wall) < value);
        self.bins[column][bin].add(1);
    }

    /// An iteration of `cycles` with `packets`, which began at `start`, is over.
    pub(crate) fn iteration(&self, c: &WorkerCounters, start: Start, cycles: u64, packets: u64) {
        let now = Start::of(c);
        let batches = now.batches.wrapping_sub(start.batches);
        let upcalls = now.upcalls.wrapping_sub(start.upcalls);
        let upcall_cycles = now.upcall_cycles.wrapping_sub(start.upcall_cycles);
        self.sample(CYCLES, cycles);
        self.sample(PACKETS, packets);
        if let Some(each) = cycles.checked_div(packets) {
            self.sample(CYCLES_PER_PACKET, each);
            self.busy_cycles.add(cycles);
        }
        if let Some(each) = packets.checked_div(batches) {
            self.sample(BATCH, each);
        }
        self.sample(UPCALLS, upcalls);
        if let Some(each) = upcall_cycles.checked_div(upcalls) {
            self.sample(CYCLES_PER_UPCALL, each);
        }
        self.iterations.add(1);
        self.packets.add(packets);
        self.cycles.add(cycles);
        self.batches.add(batches);
        self.upcalls.add(upcalls);
        self.upcall_cycles.add(upcall_cycles);
    }

    pub(crate) fn read(&self) -> PerfNumbers {
        PerfNumbers {
            bins: std::array::from_fn(|c| std::array::from_fn(|b| self.bins[c][b].get())),
            iterations: self.iterations.get(),
            packets: self.packets.get(),
            cycles: self.cycles.get(),
            busy_cycles: self.busy_cycles.get(),
            batches: self.batches.get(),
            upcalls: self.upcalls.get(),
            upcall_cycles: self.upcall_cycles.get(),
        }
    }
}

/// A copy of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfNumbers {
    bins: [[u64; BINS]; COLUMNS.len()],
    iterations: u64,
    packets: u64,
    cycles: u64,
    busy_cycles: u64,
    batches: u64,
    upcalls: u64,
    upcall_cycles: u64,
}

impl PerfNumbers {
    /// What was counted since `base`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walls_are_where_open_vswitch_has_them() {
        let w = walls();
        assert!(w.iter().all(|w| w.windows(2).all(|p| p[0] < p[1])));
        assert_eq!((w[CYCLES][0], w[CYCLES][30]), (499, 24_000_000));
        assert_eq!(w[CYCLES][1..4], [716, 1025, 1469]);
        assert_eq!(w[PACKETS][9..13], [9, 10, 11, 13]);
        assert_eq!(w[PACKETS][30], 1000);
        assert_eq!(w[CYCLES_PER_PACKET][..3], [100, 1096, 2093]);
        assert_eq!(w[BATCH][..4], [0, 1, 2, 3]);
        assert_eq!(w[BATCH][30], 32);
        assert_eq!(
            (w[CYCLES_PER_UPCALL][0], w[CYCLES_PER_UPCALL][30]),
            (999, 1_000_000)
        );
    }

    #[test]
    fn iterations_are_sorted_into_bins_and_a_base_clears_them() {
        let (perf, c) = (Perf::default(), WorkerCounters::default());
        let start = Start::of(&c);
        c.bursts.add(2);
        c.misses.add(1);
        c.cycles_translate.add(5_000);
        perf.iteration(&c, start, 40_000, 64);
        perf.iteration(&c, Start::of(&c), 300, 0);
        let n = perf.read();
        assert_eq!((n.iterations, n.packets, n.batches, n.upcalls), (2, 64, 2, 1));
        assert_eq!(n.bins[BATCH][30], 1, "32 packets in a batch");
        assert_eq!((n.bins[CYCLES][0], n.bins[PACKETS][0]), (1, 1), "the idle one");
        assert_eq!(n.bins[CYCLES_PER_PACKET].iter().sum::<u64>(), 1);
        let mut s = String::new();
        n.show(&mut s);
        let lines: Vec<&str> = s.lines().collect();
        assert_eq!(lines.len(), 2 + BINS + 3);
        assert!(lines[1].starts_with("   cycles/it              packets/it             cycles/pkt "));
        assert!(
            lines[2].starts_with("   499       1            0         1            100       0          ")
        );
        assert!(lines[33].starts_with("   >         0            >         0 "));
        assert!(
            lines[36].starts_with("   20150                  32.00000               625   "),
            "{s}"
        );
        let none = perf.read().since(&n);
        assert_eq!((none.iterations, none.bins[BATCH][30]), (0, 0));
    }
}
