//! The threads of the revalidator and of the sweeper of connections.

use crate::config::DatapathError;
use crate::revalidator::Revalidator;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Rests between two pieces of the revalidator's work, in multiples of what a piece took.
const RESTS: u32 = 3;

/// Works piece by piece, so that others get the lock, and the processor, in between; until `piece` says that
/// there is no more. Returns the time worked.
fn in_slices(shared: &Shared, mut piece: impl FnMut() -> bool) -> Duration {
    let mut worked = Duration::ZERO;
    loop {
        let begin = Instant::now();
        let more = piece();
        let took = begin.elapsed();
        worked += took;
        if !more || shared.stop.load(Relaxed) {
            return worked;
        }
        std::thread::sleep(took * RESTS);
    }
}

/// Starts it; it ends with [`Shared::stop`].
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
            while !shared2.stop.load(Relaxed) {
                let due = |next| match shared2.hurried.load(Relaxed) {
                    true => earliest.min(next),
                    false => next,
                };
                std::thread::park_timeout(due(next).saturating_duration_since(Instant::now()));
                let started = Instant::now();
                if started < due(next) {
                    // Woken because a worker's ring fills up.
                    in_slices(&shared2, || revalidator.lock().drain());
                    continue;
                }
                shared2.hurried.store(false, Relaxed);
                in_slices(&shared2, || revalidator.lock().drain());
                let worked = in_slices(&shared2, || {
                    !shared2.paused.load(Relaxed) && revalidator.lock().step()
                });
                // At most a twentieth of a processor, however many flows there are.
                earliest = started + worked * 20;
                next = earliest.max(started + interval);
            }
        })?;
    // Set once, here.
    let _ = shared.revalidator_thread.set(thread.thread().clone());
    Ok(thread)
}

/// How often the sweeper looks for connections that are over, and how many records it looks at in a row.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
const SWEEP_STEP: u32 = 4096;

/// Starts the sweeper, which frees connections and fragments whose time is over; it ends with
/// [`Shared::stop`].
pub(super) fn start_sweeper(shared: &Arc<Shared>) -> Result<JoinHandle<()>, DatapathError> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new()
        .name("ct_clean".into())
        .spawn(move || {
            while !shared.stop.load(Relaxed) {
                std::thread::park_timeout(SWEEP_INTERVAL);
                in_slices(&shared, || !shared.fragments.sweep(shared.clock.now_ms()));
                in_slices(&shared, || {
                    !shared.conntrack.sweep(shared.clock.now_ms(), SWEEP_STEP)
                });
            }
        })?;
    Ok(thread)
}
