//! Histograms of a worker's loop iterations (`pmd-perf-metrics`), shown by `dpif-netdev/pmd-perf-show` in the layout of Open vSwitch.
//!
//! **Invariants.** One writer, the worker; counters only grow, and clearing is a base that the reader subtracts (but the longest iteration,
//! which it sets to nothing). Bins and their walls are Open vSwitch's. What it calls the fill level of vhost queues is not measured here: that column
//! stays empty.
//!
//! **Long iterations.** A packet waits as long as an iteration takes. A thread that stands still has either work that takes long, or waits for a
//! lock, or has been put aside by the scheduler. [`Own`] tells the first from the others by what the thread has run meanwhile.
//!
//! **Costs.** A flag per iteration; about thirty loads and stores per iteration while it is set, and a system call every [`READ_US`].

mod history;
mod suspect;

use crate::counters::WorkerCounters;
use heddle_sync::Counter;
use heddle_sys::{Tsc, clock};
use history::{Ring, Row};
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
pub(crate) use suspect::Setting as SuspectSetting;
pub use suspect::SuspectLog;

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

/// What iterations did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    cycles: u64,
    /// Cycles of those that had packets.
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

/// What is to be shown of a worker besides what always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfWanted {
    /// No histograms (`-nh`), nor cycles per stage.
    pub brief: bool,
    /// So many of the last iterations (`-it`).
    pub iterations: usize,
    /// So many of the last milliseconds (`-ms`).
    pub milliseconds: usize,
}

/// The last iterations and milliseconds.
#[derive(Debug, Default)]
struct Rows {
    iterations: Ring,
    milliseconds: Ring,
}

/// How often it is looked whether a millisecond is over.
const LOOK_US: u64 = 4;

/// How often a thread's own time is read, and how much too long it may therefore seem.
const READ_US: u64 = 100;
/// Iterations from here on are told.
const LONG_US: u64 = 1000;

/// What the worker itself keeps from one iteration to the next: what it has run, as it was read last; the millisecond that is not over; a suspicious iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    read_at: u64,
    ran_ns: u64,
    millisecond: Row,
    look_at: u64,
    watch: suspect::Watch,
}

/// The longest iterations of a worker, and how many there were.
#[derive(Debug, Default)]
struct Long {
    longest: AtomicU64,
    longest_own_ns: AtomicU64,
    long: Counter,
    long_own: Counter,
}

impl Long {
    /// Of an iteration's `cycles`, the thread has run at most `own_ns`.
    fn add(&self, cycles: u64, own_ns: u64) {
        self.longest.fetch_max(cycles, Relaxed);
        self.longest_own_ns.fetch_max(own_ns, Relaxed);
        self.long.add(u64::from(cycles >= Tsc::from_us(LONG_US)));
        self.long_own.add(u64::from(own_ns >= LONG_US * 1000));
    }
}

/// One worker's histograms.
#[derive(Debug, Default)]
pub(crate) struct Perf {
    long_ones: Long,
    /// There once metrics have been collected.
    rows: OnceLock<Rows>,
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

    /// An iteration of `cycles` with `packets`, which began at `start`, is over at `end`. Returns whether something was written to the log about it: that took
    /// time. `own` is the worker's, with which every iteration comes here.
    pub(crate) fn iteration(
        &self,
        c: &WorkerCounters,
        own: &mut Own,
        start: Start,
        (cycles, packets): (u64, u64),
        (end, suspects): (u64, &SuspectSetting),
    ) -> bool {
        let now = Start::of(c);
        let counts = Counts {
            cycles,
            busy_cycles: if packets > 0 { cycles } else { 0 },
            packets,
            batches: now.batches.wrapping_sub(start.batches),
            upcalls: now.upcalls.wrapping_sub(start.upcalls),
            upcall_cycles: now.upcall_cycles.wrapping_sub(start.upcall_cycles),
        };
        self.count(&counts);
        self.note_long(own, cycles, end);
        self.note_rows(own, &counts, c.iterations.get(), end);
        let rows = self.rows.get_or_init(Rows::default);
        own.watch
            .iteration(suspects, &rows.iterations, c.iterations.get(), cycles)
    }

    fn count(&self, counts: &Counts) {
        let Counts {
            cycles,
            busy_cycles,
            packets,
            batches,
            upcalls,
            upcall_cycles,
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
        self.iterations.add(1);
        self.packets.add(packets);
        self.cycles.add(cycles);
        self.busy_cycles.add(busy_cycles);
        self.batches.add(batches);
        self.upcalls.add(upcalls);
        self.upcall_cycles.add(upcall_cycles);
    }

    /// Iteration number `at` goes into the history, and what millisecond is over.
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

    fn note_long(&self, own: &mut Own, cycles: u64, end: u64) {
        if end.wrapping_sub(own.read_at) < Tsc::from_us(READ_US) {
            return;
        }
        let ran_ns = clock::thread_ns();
        // What was run since the last reading, which was at most so long before this iteration's start.
        let own_ns = ran_ns.wrapping_sub(own.ran_ns);
        if cycles >= Tsc::from_us(2 * READ_US) && own.read_at != 0 {
            self.long_ones.add(cycles, own_ns);
        }
        (own.read_at, own.ran_ns) = (end, ran_ns);
    }
    /// Appends the last so many iterations, and the last so many milliseconds.
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
    /// Forgets the longest iteration, and the last ones.
    pub(crate) fn clear(&self) {
        if let Some(rows) = self.rows.get() {
            rows.iterations.clear();
            rows.milliseconds.clear();
        }
        self.long_ones.longest.store(0, Relaxed);
        self.long_ones.longest_own_ns.store(0, Relaxed);
    }

    pub(crate) fn read(&self) -> PerfNumbers {
        PerfNumbers {
            longest_us: self.long_ones.longest.load(Relaxed) / Tsc::from_us(1).max(1),
            longest_own_us: self.long_ones.longest_own_ns.load(Relaxed) / 1000,
            long: self.long_ones.long.get(),
            long_own: self.long_ones.long_own.get(),
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
    longest_us: u64,
    longest_own_us: u64,
    long: u64,
    long_own: u64,
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
            longest_us: self.longest_us,
            longest_own_us: self.longest_own_us,
            long: self.long.wrapping_sub(base.long),
            long_own: self.long_own.wrapping_sub(base.long_own),
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
        let _ = writeln!(
            s,
            "  Longest iteration (us): {}, run by the thread itself: {}; of 1 ms and more: {}, run: {}",
            self.longest_us, self.longest_own_us, self.long, self.long_own,
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
    fn time_asleep_is_not_own() {
        let (perf, mut own) = (Perf::default(), Own::default());
        let mut iteration = |perf: &Perf, f: &dyn Fn()| {
            let start = Tsc::now();
            f();
            let end = Tsc::now();
            perf.note_long(&mut own, end - start, end);
            perf.read()
        };
        iteration(&perf, &|| std::thread::sleep(std::time::Duration::from_millis(1)));
        let n = iteration(&perf, &|| {
            std::thread::sleep(std::time::Duration::from_millis(30))
        });
        assert!(n.longest_us >= 29_000 && n.longest_own_us < 15_000, "{n:?}");
        assert_eq!((n.long, n.since(&n).long), (1, 0));
        let n = iteration(&perf, &|| {
            let before = clock::thread_ns();
            while clock::thread_ns() < before + 3_000_000 {}
        });
        assert!(n.longest_own_us >= 2_990 && n.long_own > 0, "{n:?}");
        perf.clear();
        let n = perf.read();
        assert_eq!((n.longest_us, n.longest_own_us), (0, 0));
    }

    #[test]
    fn iterations_are_sorted_into_bins_and_a_base_clears_them() {
        let (perf, c) = (Perf::default(), WorkerCounters::default());
        let start = Start::of(&c);
        c.bursts.add(2);
        c.misses.add(1);
        c.cycles_translate.add(5_000);
        let (mut own, suspects) = (Own::default(), SuspectSetting::default());
        for (start, cycles, packets) in [(start, 40_000, 64), (Start::of(&c), 300, 0)] {
            c.iterations.add(1);
            assert!(!perf.iteration(&c, &mut own, start, (cycles, packets), (Tsc::now(), &suspects)));
        }
        let n = perf.read();
        assert_eq!((n.iterations, n.packets, n.batches, n.upcalls), (2, 64, 2, 1));
        assert_eq!(n.bins[BATCH][30], 1, "32 packets in a batch");
        assert_eq!((n.bins[CYCLES][0], n.bins[PACKETS][0]), (1, 1), "the idle one");
        assert_eq!(n.bins[CYCLES_PER_PACKET].iter().sum::<u64>(), 1);
        let mut s = String::new();
        n.show(&mut s);
        let lines: Vec<&str> = s.lines().collect();
        assert_eq!(lines.len(), 2 + BINS + 4);
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
        assert_eq!((none.iterations, none.bins[BATCH][30]), (0, 0));
    }
}
