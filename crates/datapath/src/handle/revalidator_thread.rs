//! The revalidator's thread.

use super::slices::{Piece, SlicedWork, in_slices, in_slices_with};
use crate::config::DatapathError;
use crate::revalidator::Revalidator;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Share of a processor for reports of new flows, one part in this number.
const REPORTING_SHARE: u32 = 4;
/// Maximum time of such reports at once, after a time without.
const REPORTING_BURST: Duration = Duration::from_secs(1);

/// The processor time that reports of new flows may take: a token bucket. New flows may come at any rate, and
/// other programs need the processor, too.
#[derive(Clone, Copy)]
struct ReportingBudget {
    left: Duration,
    filled: Instant,
}

impl ReportingBudget {
    fn new(now: Instant) -> Self {
        Self {
            left: REPORTING_BURST,
            filled: now,
        }
    }
    /// Takes a report from `began` to `now`. Returns the rest that is due after it.
    fn take(&mut self, began: Instant, now: Instant) -> Duration {
        let took = now.saturating_duration_since(began);
        let since = now.saturating_duration_since(self.filled);
        let all = (self.left + since / REPORTING_SHARE).min(REPORTING_BURST);
        self.left = all.saturating_sub(took);
        let rest = took.saturating_sub(all) * REPORTING_SHARE;
        // The rest pays for what was missing.
        self.filled = now + rest;
        rest
    }
}

/// Starts the revalidator's thread; it ends with [`Shared::stop`].
pub(super) fn start(
    shared: &Arc<Shared>,
    revalidator: &Arc<Mutex<Revalidator>>,
    interval: Duration,
) -> Result<JoinHandle<()>, DatapathError> {
    let (shared2, revalidator) = (Arc::clone(shared), Arc::clone(revalidator));
    let thread = std::thread::Builder::new()
        .name("revalidator".into())
        .spawn(move || {
            let mut earliest = Instant::now();
            let mut next = earliest + interval;
            let drain = || {
                in_slices(&shared2, || Piece::plain(revalidator.lock().drain()));
            };
            let budget = Cell::new(ReportingBudget::new(earliest));
            // An observer is to know of new flows soon. A pass finds those that are not reported by `end`.
            let report_new = |end: Instant| {
                let mut more = true;
                while more && !shared2.stop.load(Relaxed) {
                    let began = Instant::now();
                    let mut revalidator = revalidator.lock();
                    more = revalidator.report_new() && began < end;
                    revalidator.take_reporting();
                    drop(revalidator);
                    let mut left = budget.get();
                    let rest = left.take(began, Instant::now());
                    budget.set(left);
                    if !rest.is_zero() {
                        std::thread::sleep(rest);
                    }
                }
            };
            // New flows do not wait until a pass is over.
            let rest_from_pass = |rest: Duration| {
                let end = Instant::now() + rest;
                while Instant::now() < end && shared2.revalidator_wakeup.wait_until(end) {
                    drain();
                    report_new(end);
                }
            };
            while !shared2.stop.load(Relaxed) {
                let due = |next| match shared2.hurried.load(Relaxed) {
                    true => earliest.min(next),
                    false => next,
                };
                shared2.revalidator_wakeup.wait_until(due(next));
                let started = Instant::now();
                if started < due(next) {
                    // Woken early: a worker's ring fills up, or there is a new flow.
                    drain();
                    report_new(due(next));
                    continue;
                }
                shared2.hurried.store(false, Relaxed);
                drain();
                let step = || {
                    let mut revalidator = revalidator.lock();
                    Piece {
                        more: !shared2.paused.load(Relaxed) && revalidator.step(),
                        reporting: revalidator.take_reporting(),
                    }
                };
                let SlicedWork { worked, reported } = in_slices_with(&shared2, step, rest_from_pass);
                // At most a twentieth of a processor for any number of flows.
                earliest = started + (worked * 20).max(reported * REPORTING_SHARE);
                next = earliest.max(started + interval);
            }
        })?;
    Ok(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_new_flows_takes_a_quarter_of_a_processor_after_its_first_second() {
        let t0 = Instant::now();
        let (mut budget, mut now, mut reported) = (ReportingBudget::new(t0), t0, Duration::ZERO);
        let slice = Duration::from_millis(2);
        let mut run = |until: Duration| {
            let before = reported;
            while now < t0 + until {
                let began = now;
                now += slice;
                reported += slice;
                now += budget.take(began, now);
            }
            (reported - before).as_secs_f64()
        };
        let first = run(Duration::from_secs(1));
        assert!(first > 0.98, "{first}");
        run(Duration::from_secs(10));
        let later = run(Duration::from_secs(20));
        assert!((2.4..2.6).contains(&later), "{later}");
    }

    #[test]
    fn single_flows_have_no_rest() {
        let t0 = Instant::now();
        let mut budget = ReportingBudget::new(t0);
        for n in 1..10_000 {
            let began = t0 + Duration::from_millis(n);
            assert!(budget.take(began, began + Duration::from_micros(100)).is_zero());
        }
    }
}
