//! The cost of moving a cache line between two cores.
//!
//! A switch and its guests exchange everything as cache lines between two cores. In virtual machines that
//! time varies several times over within seconds, and rates with it. So it is printed beside each
//! measurement.

use core::sync::atomic::{AtomicU64, Ordering};
use heddle_sys::{Tsc, cpu};

/// Number of round trips of one batch.
const TRIPS: u64 = 500;
/// Number of batches; the median drops those that a preemption spoilt.
const BATCHES: usize = 25;
/// Maximum time of all batches together, milliseconds.
const LIMIT_MS: u64 = 200;

#[repr(align(128))]
struct Line(AtomicU64);

/// Time of a cache line's round trip between core `a` and core `b`, in ns: the median over batches. `None` if
/// a core cannot be used, or the two threads did not run at the same time for long enough.
pub fn round_trip_ns(a: usize, b: usize) -> Option<f64> {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let end = Tsc::now() + Tsc::from_us(LIMIT_MS * 1000);
    let mut times = std::thread::scope(|scope| {
        scope.spawn(|| {
            if cpu::pin(&[b]).is_err() {
                return;
            }
            let mut seen = 0;
            while Tsc::now() < end && seen < u64::MAX {
                let n = ping.0.load(Ordering::Acquire); // pairs with the other thread's Release
                if n != seen {
                    seen = n;
                    pong.0.store(n, Ordering::Release);
                }
                core::hint::spin_loop();
            }
        });
        let measured = scope.spawn(|| {
            let mut times = Vec::with_capacity(BATCHES);
            if cpu::pin(&[a]).is_err() {
                ping.0.store(u64::MAX, Ordering::Release);
                return times;
            }
            let mut n = 0;
            'batches: for _ in 0..BATCHES {
                let start = Tsc::now();
                for _ in 0..TRIPS {
                    n += 1;
                    ping.0.store(n, Ordering::Release);
                    while pong.0.load(Ordering::Acquire) != n {
                        if Tsc::now() >= end {
                            break 'batches;
                        }
                    }
                }
                times.push(Tsc::now() - start);
            }
            ping.0.store(u64::MAX, Ordering::Release);
            times
        });
        measured.join().unwrap_or_default()
    });
    times.sort_unstable();
    let median = *times.get(times.len() / 2)?;
    Some(median as f64 / TRIPS as f64 * 1e9 / Tsc::hz() as f64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_cores_have_a_distance() {
        let cpus = heddle_sys::cpu::allowed().expect("a set");
        let (Some(&a), Some(&b)) = (cpus.first(), cpus.last()) else {
            return;
        };
        if a == b {
            return; // one core: both threads would take turns
        }
        if let Some(ns) = super::round_trip_ns(a, b) {
            assert!((5.0..1e6).contains(&ns), "{ns} ns");
        }
        assert_eq!(super::round_trip_ns(100_000, a), None);
    }
}
