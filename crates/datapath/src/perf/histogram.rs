//! Bins of the histograms: those of Open vSwitch.

use std::sync::OnceLock;

/// Bins of a histogram; the last is for values beyond all walls.
pub(super) const BINS: usize = 32;
/// Histograms, in the order of the columns.
pub(super) const COLUMNS: [&str; 7] = [
    "cycles/it",
    "packets/it",
    "cycles/pkt",
    "pkts/batch",
    "max vhost qlen",
    "upcalls/it",
    "cycles/upcall",
];
pub(super) const CYCLES: usize = 0;
pub(super) const PACKETS: usize = 1;
pub(super) const CYCLES_PER_PACKET: usize = 2;
pub(super) const BATCH: usize = 3;
pub(super) const UPCALLS: usize = 5;
pub(super) const CYCLES_PER_UPCALL: usize = 6;

/// Largest values of the bins but the last.
pub(super) type Walls = [u32; BINS - 1];

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

pub(super) fn walls() -> &'static [Walls; COLUMNS.len()] {
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
}
