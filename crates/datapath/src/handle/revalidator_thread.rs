//! The revalidator's thread.

use super::slices::{Piece, SlicedWork, in_slices};
use crate::config::DatapathError;
use crate::revalidator::Revalidator;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
            while !shared2.stop.load(Relaxed) {
                let due = |next| match shared2.hurried.load(Relaxed) {
                    true => earliest.min(next),
                    false => next,
                };
                shared2.revalidator_wakeup.wait_until(due(next));
                let started = Instant::now();
                if started < due(next) {
                    // Woken early: a worker's ring fills up, or an observer is to know of a new flow.
                    drain();
                    in_slices(&shared2, || {
                        let mut revalidator = revalidator.lock();
                        let more = revalidator.report_new() && Instant::now() < due(next);
                        Piece {
                            more,
                            reporting: revalidator.take_reporting(),
                        }
                    });
                    continue;
                }
                shared2.hurried.store(false, Relaxed);
                drain();
                let SlicedWork { worked, reported } = in_slices(&shared2, || {
                    let mut revalidator = revalidator.lock();
                    // New flows do not wait until the pass is over.
                    revalidator.report_new();
                    let more = !shared2.paused.load(Relaxed) && revalidator.step();
                    Piece {
                        more,
                        reporting: revalidator.take_reporting(),
                    }
                });
                // At most a twentieth of a processor for any number of flows, and a quarter of one for
                // reports of any number of new flows.
                earliest = started + (worked * 20).max(reported * 4);
                next = earliest.max(started + interval);
            }
        })?;
    Ok(thread)
}
