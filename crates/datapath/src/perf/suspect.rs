//! Suspiciously long iterations are logged with the iterations around them (`dpif-netdev/pmd-perf-log-set`).
//!
//! The worker itself writes the log, as in Open vSwitch, so that its name is in the lines. The caller counts
//! this time to no iteration, as otherwise each log entry would cause the next one. For debugging: off by
//! default.

use super::history::{self, LEN, Ring};
use heddle_sys::Tsc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// After a range longer than this, later ranges have [`AROUND`] iterations on each side.
const LONG_RANGE: u64 = 100;
/// Iterations before and after, in later ranges.
const AROUND: u64 = 5;

/// Settings of the log of suspicious iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuspectLog {
    /// Whether suspicious iterations are logged at all.
    pub on: bool,
    /// A second suspicious iteration soon after the first extends the logged range.
    pub extend: bool,
    /// Number of iterations before it that are logged.
    pub before: u64,
    /// Number of iterations after it that are logged.
    pub after: u64,
    /// Minimum duration of a suspicious iteration, microseconds.
    pub us: u64,
    /// Minimum fill level of a guest's queue for a suspicious iteration; not measured here.
    pub qlen: u64,
}

impl Default for SuspectLog {
    fn default() -> Self {
        Self {
            on: false,
            extend: false,
            before: AROUND,
            after: AROUND,
            us: 250,
            qlen: 128,
        }
    }
}

impl SuspectLog {
    /// Limits the ranges to the history's length.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        const MAX_ROWS: u64 = LEN as u64 - 2;
        self.before = self.before.min(MAX_ROWS);
        self.after = self.after.min(MAX_ROWS - self.before);
        self
    }
}

/// The setting, as workers read it.
#[derive(Debug, Default)]
pub(crate) struct Setting {
    on: AtomicBool,
    extend: AtomicBool,
    before: AtomicU64,
    after: AtomicU64,
    us: AtomicU64,
}

impl Setting {
    pub(crate) fn set(&self, log: &SuspectLog) {
        self.extend.store(log.extend, Relaxed);
        self.before.store(log.before, Relaxed);
        self.after.store(log.after, Relaxed);
        self.us.store(log.us, Relaxed);
        self.on.store(log.on, Relaxed);
    }
}

/// An iteration that has to be logged.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    at: u64,
    cycles: u64,
    /// Rows to log, and rows that are not finished yet.
    range: u64,
    left: u64,
}

/// A worker's part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SuspectWatch(Option<Suspect>);

impl SuspectWatch {
    /// Iteration `at` took `cycles`, and is the last in `rows`. Returns whether anything was written.
    pub(super) fn iteration(&mut self, setting: &Setting, rows: &Ring, at: u64, cycles: u64) -> bool {
        if !setting.on.load(Relaxed) {
            self.0 = None;
            return false;
        }
        let mut logged = false;
        let (before, after) = (setting.before.load(Relaxed), setting.after.load(Relaxed));
        if let Some(s) = &mut self.0 {
            (s.range, s.left) = (s.range + 1, s.left.saturating_sub(1));
        }
        if cycles > Tsc::from_us(setting.us.load(Relaxed)) {
            match &mut self.0 {
                None => {
                    self.0 = Some(Suspect {
                        at,
                        cycles,
                        range: before + 1,
                        left: after,
                    });
                }
                Some(s) if setting.extend.load(Relaxed) => {
                    log_suspect(s);
                    logged = true;
                    // Limited to the history's length.
                    let room = (LEN as u64 - 2).saturating_sub(s.range);
                    (s.at, s.cycles, s.left) = (at, cycles, after.min(room));
                }
                Some(_) => {}
            }
        }
        if let Some(s) = self.0.filter(|s| s.left == 0) {
            self.0 = None;
            logged = true;
            log_suspect(&s);
            let mut text = String::new();
            let n = usize::try_from(s.range).unwrap_or(LEN);
            history::show_iterations(&mut text, &rows.last(n));
            log::warn!(target: "pmd_perf", per_min = 600, burst = 600; "Neighborhood of suspicious iteration:\n{}", text.trim_end());
            if s.range > LONG_RANGE {
                // One long range is enough.
                setting.before.store(AROUND, Relaxed);
                setting.after.store(AROUND, Relaxed);
                setting.extend.store(false, Relaxed);
            }
        }
        logged
    }
}

fn log_suspect(s: &Suspect) {
    let us = s.cycles / Tsc::from_us(1).max(1);
    log::warn!(target: "pmd_perf", per_min = 600, burst = 600;
        "Suspicious iteration (Excessive total cycles): iter={} duration={us} us", s.at);
}

#[cfg(test)]
mod tests {
    use super::super::history::Row;
    use super::*;

    /// The iterations after which something was written.
    fn logged(log: SuspectLog, suspicious: &[u64]) -> Vec<u64> {
        let (setting, rows, mut watch) = (Setting::default(), Ring::default(), SuspectWatch::default());
        setting.set(&log.bounded());
        let long = Tsc::from_us(log.us) + 1;
        let iteration = |at: &u64| {
            rows.push(&Row::default());
            watch.iteration(
                &setting,
                &rows,
                *at,
                if suspicious.contains(at) { long } else { 1 },
            )
        };
        (0..2000).filter(iteration).collect()
    }

    #[test]
    fn what_follows_is_waited_for() {
        let off = SuspectLog::default();
        let on = SuspectLog {
            on: true,
            before: 3,
            after: 2,
            ..off
        };
        assert_eq!(logged(off, &[10]), []);
        assert_eq!(
            logged(on, &[10, 11]),
            [12],
            "the second one is among those around the first"
        );
        assert_eq!(logged(on, &[10, 20]), [12, 22]);
        let extend = SuspectLog { extend: true, ..on };
        assert_eq!(logged(extend, &[10, 11, 13]), [11, 13, 15]);
        let none = SuspectLog { after: 0, ..on };
        assert_eq!(logged(none, &[10, 11]), [10, 11]);
    }

    #[test]
    fn ranges_are_no_longer_than_the_history_and_long_ones_are_logged_once() {
        let huge = SuspectLog {
            on: true,
            before: u64::MAX,
            after: u64::MAX,
            ..SuspectLog::default()
        };
        assert_eq!((huge.bounded().before, huge.bounded().after), (998, 0));
        let long = SuspectLog {
            before: 0,
            after: 150,
            ..huge
        };
        assert_eq!(logged(long, &[10, 500]), [160, 505]);
        let all: Vec<u64> = (0..2000).collect();
        let extend = SuspectLog {
            extend: true,
            before: 10,
            after: 10,
            ..huge
        };
        // Each iteration extends the range up to the history's length. After that only the five iterations
        // before and after the last one are logged.
        let logged = logged(extend, &all);
        assert!(logged.iter().take(980).copied().eq(1..=980));
        assert_eq!(logged.last_chunk().map(|[a, b]| b - a), Some(6));
    }
}
