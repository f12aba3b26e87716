//! Time as rates need it: ticks of 1/64 ns of the cycle counter.

use heddle_sys::Tsc;
use std::sync::OnceLock;

/// Ticks in a nanosecond: a packet of 64 bytes takes 327 of them at 100 Gbit/s.
const PER_NS: u64 = 64;
pub(super) const SECOND: u64 = 1_000_000_000 * PER_NS;
pub(super) const MS: u64 = SECOND / 1000;

/// Converts counts of cycles into ticks.
#[derive(Clone, Copy, Debug)]
struct Scale {
    begin: u64,
    /// Ticks in a cycle, times 2^32.
    ticks: u64,
    /// Cycles in a tick, times 2^32.
    cycles: u64,
}

fn scale() -> &'static Scale {
    static SCALE: OnceLock<Scale> = OnceLock::new();
    SCALE.get_or_init(|| {
        let hz = u128::from(Tsc::hz().max(1));
        let ratio = |a: u128, b: u128| u64::try_from((a << 32) / b).unwrap_or(u64::MAX);
        Scale {
            // Some time has passed, so that full buckets have a beginning.
            begin: Tsc::now().saturating_sub(Tsc::hz() << 4),
            ticks: ratio(SECOND.into(), hz),
            cycles: ratio(hz, SECOND.into()),
        }
    })
}

fn times(n: u64, ratio: u64) -> u64 {
    u64::try_from((u128::from(n) * u128::from(ratio)) >> 32).unwrap_or(u64::MAX)
}

/// The time at which the cycle counter was `cycles`.
pub(super) fn at(cycles: u64) -> u64 {
    let scale = scale();
    times(cycles.saturating_sub(scale.begin), scale.ticks)
}

/// The cycle counter at a time.
pub(super) fn cycles(at: u64) -> u64 {
    let scale = scale();
    scale.begin.saturating_add(times(at, scale.cycles))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_a_second() {
        let now = Tsc::now();
        let (a, b) = (at(now), at(now + Tsc::hz()));
        assert!((b - a).abs_diff(SECOND) < SECOND / 1_000_000, "{}", b - a);
        assert!(cycles(a).abs_diff(now) < Tsc::hz() / 1000);
        assert!(a > SECOND);
    }
}
