//! The last iterations of a worker one by one, and its last milliseconds (`dpif-netdev/pmd-perf-show -it N
//! -ms N`), in the layout of Open vSwitch.
//!
//! **Invariants.** One writer. A reader copies rows. Then it checks whether the writer has overwritten some
//! of them meanwhile; these count as empty. So a row that is shown is of one iteration.
//!
//! **Costs.** Ten stores per iteration while metrics are collected. Each ring has [`LEN`] rows of 64 bytes,
//! allocated when collection begins.

use super::Counts;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// Rows of a ring, one of which is being written.
pub(crate) const LEN: usize = 1000;
/// Numbers of a row.
pub(super) const WIDTH: usize = 8;

/// Counts of an iteration, or of a millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Number of the iteration, or the millisecond.
    pub(super) at: u64,
    /// Iterations.
    pub(super) iterations: u64,
    pub(super) counts: Counts,
}

impl Row {
    pub(super) fn numbers(&self) -> [u64; WIDTH] {
        let c = &self.counts;
        [
            self.at,
            self.iterations,
            c.cycles,
            c.busy_cycles,
            c.packets,
            c.batches,
            c.upcalls,
            c.upcall_cycles,
        ]
    }
    pub(super) fn of(numbers: [u64; WIDTH]) -> Self {
        let [
            at,
            iterations,
            cycles,
            busy_cycles,
            packets,
            batches,
            upcalls,
            upcall_cycles,
        ] = numbers;
        let counts = Counts {
            cycles,
            busy_cycles,
            packets,
            batches,
            upcalls,
            upcall_cycles,
        };
        Self {
            at,
            iterations,
            counts,
        }
    }
}

/// The last rows.
#[derive(Debug)]
pub(super) struct Ring {
    rows: Box<[[AtomicU64; WIDTH]]>,
    /// Rows written so far.
    n: AtomicU64,
    /// Rows that had been written when it was cleared.
    base: AtomicU64,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            rows: (0..LEN).map(|_| Default::default()).collect(),
            n: AtomicU64::new(0),
            base: AtomicU64::new(0),
        }
    }
}

impl Ring {
    fn place(&self, n: u64) -> Option<&[AtomicU64; WIDTH]> {
        self.rows.get(usize::try_from(n % LEN as u64).ok()?)
    }
    /// Writes the next row. Owner only.
    pub(super) fn push(&self, row: &Row) {
        let n = self.n.load(Relaxed);
        // Pairs with the fence in `last`: a reader that sees a value of this row then reads a counter of at
        // least `n`.
        fence(Release);
        for (to, value) in self.place(n).into_iter().flatten().zip(row.numbers()) {
            to.store(value, Relaxed);
        }
        self.n.store(n + 1, Release);
    }
    /// The last `most` rows, the newest first. Rows that do not exist, or were overwritten while they were
    /// read, are empty.
    pub(super) fn last(&self, most: usize) -> Vec<Row> {
        let n = self.n.load(Acquire);
        let base = self.base.load(Relaxed);
        let row = |back| match n.checked_sub(back).filter(|i| *i >= base) {
            Some(i) => self.place(i).map_or_else(Row::default, |row| {
                Row::of(std::array::from_fn(|k| row[k].load(Relaxed)))
            }),
            None => Row::default(),
        };
        let mut rows: Vec<Row> = (1..=most.min(LEN - 1) as u64).map(row).collect();
        // Pairs with the fence in `push`.
        fence(Acquire);
        let written = usize::try_from(self.n.load(Relaxed) - n).unwrap_or(LEN);
        // The writer may be in the middle of one more row.
        for row in rows.iter_mut().skip(LEN.saturating_sub(written + 1)) {
            *row = Row::default();
        }
        rows
    }
    /// Clears the ring.
    pub(super) fn clear(&self) {
        self.base.store(self.n.load(Acquire), Relaxed);
    }
}

pub(super) fn each(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(0)
}

/// Shows iterations.
pub(super) fn show_iterations(s: &mut String, rows: &[Row]) {
    let _ = writeln!(
        s,
        "   {:<17}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}",
        "iter", "cycles", "packets", "cycles/pkt", "pkts/batch", "vhost qlen", "upcalls", "cycles/upcall"
    );
    for Row { at, counts: c, .. } in rows {
        let _ = writeln!(
            s,
            "   {at:<17}   {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}",
            c.cycles,
            c.packets,
            each(c.cycles, c.packets),
            each(c.packets, c.batches),
            0,
            c.upcalls,
            each(c.upcall_cycles, c.upcalls),
        );
    }
}

/// Shows milliseconds: packets per millisecond are thousands per second.
pub(super) fn show_milliseconds(s: &mut String, rows: &[Row]) {
    let _ = writeln!(
        s,
        "   {:<12}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}   {:<10}",
        "ms",
        "iterations",
        "cycles/it",
        "Kpps",
        "cycles/pkt",
        "pkts/batch",
        "vhost qlen",
        "upcalls",
        "cycles/upcall"
    );
    for Row {
        at,
        iterations,
        counts: c,
    } in rows
    {
        let _ = writeln!(
            s,
            "   {at:<12}   {iterations:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}  {:<11}",
            each(c.cycles, *iterations),
            c.packets,
            each(c.busy_cycles, c.packets),
            each(c.packets, c.batches),
            0,
            c.upcalls,
            each(c.upcall_cycles, c.upcalls),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: u64) -> Row {
        Row::of([at; WIDTH])
    }

    #[test]
    fn the_newest_come_first_and_none_that_are_gone() {
        let ring = Ring::default();
        assert_eq!(ring.last(2), [Row::default(); 2]);
        for at in 1..=3 * LEN as u64 / 2 {
            ring.push(&row(at));
        }
        assert_eq!(ring.last(3), [row(1500), row(1499), row(1498)]);
        let all = ring.last(usize::MAX);
        assert_eq!((all.len(), all[LEN - 2]), (LEN - 1, row(502)));
        ring.clear();
        ring.push(&row(7));
        assert_eq!(ring.last(2), [row(7), Row::default()]);
    }

    #[test]
    fn rows_are_read_whole_while_others_are_written() {
        let (ring, over) = (Ring::default(), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 0;
                while !over.load(Relaxed) {
                    at += 1;
                    ring.push(&row(at));
                }
            });
            for _ in 0..300 {
                for got in ring.last(LEN) {
                    assert_eq!(got, row(got.at));
                }
            }
            over.store(true, Relaxed);
        });
    }

    #[test]
    fn columns_are_where_open_vswitch_has_them() {
        let mut s = String::new();
        show_iterations(&mut s, &[row(5)]);
        show_milliseconds(&mut s, &[row(2)]);
        let lines: Vec<&str> = s.lines().collect();
        assert_eq!(
            lines[1],
            "   5                   5            5            1            1            0            5            1          "
        );
        assert_eq!(
            lines[3],
            "   2              2            1            2            1            1            0            2            1          "
        );
    }
}
