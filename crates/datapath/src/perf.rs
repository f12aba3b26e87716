//! Histograms of a worker's loop iterations (`pmd-perf-metrics`), shown by `dpif-netdev/pmd-perf-show` in the
//! layout of Open vSwitch.
//!
//! **Invariants.** One writer, the worker; counters only grow, and clearing is a base that the reader
//! subtracts. Bins and their walls are Open vSwitch's. Open vSwitch's fill level of vhost queues is not
//! measured here: that column stays empty.
//!
//! **Costs.** A flag per iteration; about thirty loads and stores per iteration while it is set.

mod histogram;
mod history;
mod numbers;
mod suspect;

use heddle_sync::Counter;
use heddle_sys::{Tsc, clock};
use histogram::{
    BATCH, BINS, COLUMNS, CYCLES, CYCLES_PER_PACKET, CYCLES_PER_UPCALL, PACKETS, UPCALLS, walls,
};
use history::{Ring, Row};
pub(crate) use numbers::PerfNumbers;
use std::sync::OnceLock;
pub(crate) use suspect::Setting as SuspectSetting;
pub use suspect::SuspectLog;

/// Counters at the start of an iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    pub(crate) batches: u64,
    pub(crate) upcalls: u64,
    pub(crate) upcall_cycles: u64,
}

/// Sums over iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    cycles: u64,
    /// Cycles of iterations that had packets.
    busy_cycles: u64,
    packets: u64,
    batches: u64,
    upcalls: u64,
    upcall_cycles: u64,
}

impl Counts {
    fn add(&mut self, more: &Self) {
        self.cycles += more.cycles;
        self.busy_cycles += more.busy_cycles;
        self.packets += more.packets;
        self.batches += more.batches;
        self.upcalls += more.upcalls;
        self.upcall_cycles += more.upcall_cycles;
    }
}

/// Optional parts of a worker's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfWanted {
    /// No histograms (`-nh`), nor cycles per stage.
    pub brief: bool,
    /// Number of last iterations (`-it`).
    pub iterations: usize,
    /// Number of last milliseconds (`-ms`).
    pub milliseconds: usize,
}

/// The last iterations and milliseconds.
#[derive(Debug, Default)]
struct Rows {
    iterations: Ring,
    milliseconds: Ring,
}

/// Interval of the check whether a millisecond is over.
const LOOK_US: u64 = 4;

/// State that the worker keeps from one iteration to the next: the current millisecond, and a suspicious
/// iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    millisecond: Row,
    look_at: u64,
    watch: suspect::SuspectWatch,
}

/// An iteration of a worker that has ended.
#[derive(Clone, Copy)]
pub(crate) struct Iteration {
    /// The number of the iteration.
    pub(crate) at: u64,
    /// The counters at its start.
    pub(crate) start: Start,
    /// The counters at its end.
    pub(crate) now: Start,
    /// The cycle counter at its end.
    pub(crate) end: u64,
    pub(crate) cycles: u64,
    pub(crate) packets: u64,
}

/// One worker's histograms.
#[derive(Debug, Default)]
pub(crate) struct Perf {
    /// Made when metrics are collected for the first time.
    rows: OnceLock<Rows>,
    bins: [[Counter; BINS]; COLUMNS.len()],
    /// Sums over all iterations, as [`Row::numbers`] orders them.
    sums: [Counter; history::WIDTH],
}

impl Perf {
    fn sample(&self, column: usize, value: u64) {
        let bin = walls()[column].partition_point(|&wall| u64::from(wall) < value);
        self.bins[column][bin].add(1);
    }

    /// Ends an iteration. Returns whether it was logged, which took time. `own` is the worker's own
    /// state, the same for every iteration.
    pub(crate) fn iteration(&self, own: &mut Own, iteration: &Iteration, suspects: &SuspectSetting) -> bool {
        let Iteration {
            at,
            start,
            now,
            end,
            cycles,
            packets,
        } = *iteration;
        let counts = Counts {
            cycles,
            busy_cycles: if packets > 0 { cycles } else { 0 },
            packets,
            batches: now.batches.wrapping_sub(start.batches),
            upcalls: now.upcalls.wrapping_sub(start.upcalls),
            upcall_cycles: now.upcall_cycles.wrapping_sub(start.upcall_cycles),
        };
        self.count(&counts);
        self.note_rows(own, &counts, at, end);
        let rows = self.rows.get_or_init(Rows::default);
        own.watch.iteration(suspects, &rows.iterations, at, cycles)
    }

    fn count(&self, counts: &Counts) {
        let Counts {
            cycles,
            packets,
            batches,
            upcalls,
            upcall_cycles,
            ..
        } = *counts;
        self.sample(CYCLES, cycles);
        self.sample(PACKETS, packets);
        if let Some(each) = cycles.checked_div(packets) {
            self.sample(CYCLES_PER_PACKET, each);
        }
        if let Some(each) = packets.checked_div(batches) {
            self.sample(BATCH, each);
        }
        self.sample(UPCALLS, upcalls);
        if let Some(each) = upcall_cycles.checked_div(upcalls) {
            self.sample(CYCLES_PER_UPCALL, each);
        }
        let row = Row {
            at: 0,
            iterations: 1,
            counts: *counts,
        };
        for (sum, n) in self.sums.iter().zip(row.numbers()) {
            sum.add(n);
        }
    }

    /// Adds iteration number `at` to the history, and the last millisecond if it is over.
    fn note_rows(&self, own: &mut Own, counts: &Counts, at: u64, end: u64) {
        let rows = self.rows.get_or_init(Rows::default);
        rows.iterations.push(&Row {
            at,
            iterations: 1,
            counts: *counts,
        });
        let millisecond = &mut own.millisecond;
        millisecond.iterations += 1;
        millisecond.counts.add(counts);
        if end >= own.look_at {
            own.look_at = end + Tsc::from_us(LOOK_US);
            let ms = clock::monotonic_ms();
            if ms != millisecond.at {
                if millisecond.at != 0 {
                    rows.milliseconds.push(millisecond);
                }
                *millisecond = Row {
                    at: ms,
                    ..Row::default()
                };
            }
        }
    }
    /// Appends the last `iterations` iterations and the last `milliseconds` milliseconds.
    pub(crate) fn show_last(&self, s: &mut String, iterations: usize, milliseconds: usize) {
        let rows = self.rows.get_or_init(Rows::default);
        if iterations > 0 {
            s.push('\n');
            history::show_iterations(s, &rows.iterations.last(iterations));
        }
        if milliseconds > 0 {
            s.push('\n');
            history::show_milliseconds(s, &rows.milliseconds.last(milliseconds));
        }
    }
    /// Clears the last iterations and milliseconds.
    pub(crate) fn clear(&self) {
        if let Some(rows) = self.rows.get() {
            rows.iterations.clear();
            rows.milliseconds.clear();
        }
    }

    pub(crate) fn read(&self) -> PerfNumbers {
        PerfNumbers {
            bins: std::array::from_fn(|c| std::array::from_fn(|b| self.bins[c][b].get())),
            sums: Row::of(std::array::from_fn(|i| self.sums[i].get())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_sorted_into_bins_and_a_base_clears_them() {
        let perf = Perf::default();
        let later = Start {
            batches: 2,
            upcalls: 1,
            upcall_cycles: 5_000,
        };
        let (mut own, suspects) = (Own::default(), SuspectSetting::default());
        for (at, start, cycles, packets) in [(1, Start::default(), 40_000, 64), (2, later, 300, 0)] {
            let iteration = Iteration {
                at,
                start,
                now: later,
                end: Tsc::now(),
                cycles,
                packets,
            };
            assert!(!perf.iteration(&mut own, &iteration, &suspects));
        }
        let n = perf.read();
        let c = &n.sums.counts;
        assert_eq!(
            (n.sums.iterations, c.packets, c.batches, c.upcalls),
            (2, 64, 2, 1)
        );
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
        let mut last = String::new();
        perf.show_last(&mut last, 3, 0);
        let first: Vec<Vec<&str>> = last
            .lines()
            .skip(2)
            .map(|l| l.split_whitespace().take(3).collect())
            .collect();
        assert_eq!(first, [["2", "300", "0"], ["1", "40000", "64"], ["0", "0", "0"]]);
        let none = perf.read().since(&n);
        assert_eq!((none.sums.iterations, none.bins[BATCH][30]), (0, 0));
    }
}
