//! Clocks: the time-stamp counter for cycle accounting, and the monotonic clock.
//!
//! The counter is used for cost accounting and short spins only, never for protocol timers. Its rate is
//! calibrated once against the monotonic clock and may be a few parts per million off.

#![allow(unsafe_code)] // one instruction

use rustix::time::{ClockId, clock_gettime};
use std::num::NonZeroU64;
use std::sync::OnceLock;

fn read(clock: ClockId) -> u64 {
    let ts = clock_gettime(clock);
    (ts.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(ts.tv_nsec as u64)
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// Sets how late the calling thread's sleeps may end (`PR_SET_TIMERSLACK`; by default 50 us).
///
/// # Errors
/// No error in practice.
pub fn set_timer_slack_ns(ns: u64) -> std::io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(NonZeroU64::new(ns))?)
}

/// Milliseconds of `CLOCK_MONOTONIC`, as timers of the control plane use them.
pub fn monotonic_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

/// The processor's cycle counter.
#[derive(Clone, Copy, Debug)]
pub struct Tsc;

impl Tsc {
    /// Reads the counter; not ordered against neighbouring instructions, which suits averages over bursts.
    #[inline]
    pub fn now() -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: rdtsc exists on every x86-64 processor and touches no memory.
            unsafe { core::arch::x86_64::_rdtsc() }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            monotonic_ns()
        }
    }

    /// Ticks per second, calibrated over about ten milliseconds at the first call.
    pub fn hz() -> u64 {
        static HZ: OnceLock<u64> = OnceLock::new();
        *HZ.get_or_init(calibrate)
    }

    /// Ticks in `us` microseconds.
    pub fn from_us(us: u64) -> u64 {
        (u128::from(us) * u128::from(Self::hz()) / 1_000_000) as u64
    }
}

fn calibrate() -> u64 {
    if !cfg!(target_arch = "x86_64") {
        return 1_000_000_000;
    }
    // Three short measurements; the median drops one that a preemption spoilt.
    let mut hz = [0; 3];
    for slot in &mut hz {
        let (t0, c0) = (monotonic_ns(), Tsc::now());
        std::thread::sleep(std::time::Duration::from_millis(3));
        let (t1, c1) = (monotonic_ns(), Tsc::now());
        let ns = t1.saturating_sub(t0).max(1);
        *slot = (u128::from(c1.wrapping_sub(c0)) * 1_000_000_000 / u128::from(ns)) as u64;
    }
    hz.sort_unstable();
    hz[1].max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_follows_the_clock() {
        let (t0, c0) = (monotonic_ns(), Tsc::now());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (t1, c1) = (monotonic_ns(), Tsc::now());
        let by_clock = (t1 - t0) as f64;
        let by_counter = (c1 - c0) as f64 * 1e9 / Tsc::hz() as f64;
        assert!(
            (by_counter / by_clock - 1.0).abs() < 0.1,
            "{by_counter} against {by_clock} ns"
        );
        assert!(monotonic_ms() >= t1 / 1_000_000);
    }
}
