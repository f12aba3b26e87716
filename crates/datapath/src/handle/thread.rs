//! The revalidator's thread and the connection expiry thread.

use crate::config::DatapathError;
use crate::revalidator::Revalidator;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Length of the rest between two pieces of the revalidator's work, as a multiple of the piece's time.
const RESTS: u32 = 3;
/// A pass begins early if a worker has many new entries for an observer. This is the minimum time between the
/// beginnings of two passes.
const SOONEST: Duration = Duration::from_millis(100);

/// Works piece by piece, so that other threads get the lock, and the processor, in between. `piece` returns
/// whether there is more work, and the time spent reporting new flows to an observer. A rest is [`RESTS`]
/// times the work, plus the time of reports once: workers save that time from then on. Returns the time
/// worked without reports, and the time of reports.
fn in_slices(shared: &Shared, mut piece: impl FnMut() -> (bool, Duration)) -> (Duration, Duration) {
    let (mut worked, mut reported) = (Duration::ZERO, Duration::ZERO);
    loop {
        let begin = Instant::now();
        let (more, reporting) = piece();
        let took = begin.elapsed().saturating_sub(reporting);
        worked += took;
        reported += reporting;
        if !more || shared.stop.load(Relaxed) {
            return (worked, reported);
        }
        std::thread::sleep(took * RESTS + reporting);
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
            let mut soonest = next;
            let drain = || {
                in_slices(&shared2, || (revalidator.lock().drain(), Duration::ZERO));
            };
            while !shared2.stop.load(Relaxed) {
                let due = |next| match shared2.hurried.load(Relaxed) {
                    true => earliest.min(next),
                    false => next,
                };
                shared2.revalidator_wakeup.wait_until(due(next));
                let started = Instant::now();
                if started < due(next) {
                    // Woken early because a worker's ring fills up.
                    drain();
                    if started < soonest || !revalidator.lock().is_observed() {
                        continue;
                    }
                }
                shared2.hurried.store(false, Relaxed);
                drain();
                let (worked, reported) = in_slices(&shared2, || {
                    let mut revalidator = revalidator.lock();
                    let more = !shared2.paused.load(Relaxed) && revalidator.step();
                    (more, revalidator.take_reporting())
                });
                // At most a twentieth of a processor for any number of flows, and a quarter of one for
                // reports of any number of new flows.
                earliest = started + (worked * 20).max(reported * 4);
                next = earliest.max(started + interval);
                soonest = earliest.max(started + SOONEST);
            }
        })?;
    Ok(thread)
}

/// Interval of the search for expired connections, and the number of records checked in a row.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
const SWEEP_STEP: u32 = 4096;
/// Interval at which the thread prepares memory for new connections.
const PREPARE_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the connection expiry thread, which frees expired connections and fragments. It ends with
/// [`Shared::stop`].
pub(super) fn start_expiry(shared: &Arc<Shared>) -> Result<JoinHandle<()>, DatapathError> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new()
        .name("ct_clean".into())
        .spawn(move || {
            let mut last = Instant::now();
            while !shared.stop.load(Relaxed) {
                std::thread::park_timeout(PREPARE_INTERVAL);
                shared.conntrack.prepare();
                if last.elapsed() < SWEEP_INTERVAL {
                    continue;
                }
                last = Instant::now();
                in_slices(&shared, || {
                    let more = !shared.fragments.sweep(shared.clock.now_ms());
                    (more, Duration::ZERO)
                });
                in_slices(&shared, || {
                    let more = !shared.conntrack.sweep(shared.clock.now_ms(), SWEEP_STEP);
                    (more, Duration::ZERO)
                });
                in_slices(&shared, || {
                    shared.conntrack.prepare();
                    (shared.conntrack.give_back(), Duration::ZERO)
                });
            }
        })?;
    Ok(thread)
}
