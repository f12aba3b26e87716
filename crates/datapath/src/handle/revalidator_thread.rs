//! The revalidator's thread.

use super::slices::{Piece, SlicedWork, in_slices, in_slices_with};
use crate::config::DatapathError;
use crate::revalidator::Revalidator;
use crate::shared::Shared;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Reports of new flows take this many times the rests between them. Workers save the time of reports from
/// then on, so the rests are short.
const REPORTS_PER_REST: u32 = 2;

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
            // An observer is to know of new flows soon. A pass finds those that are not reported by `end`.
            let report_new = |end: Instant| {
                let mut more = true;
                while more && !shared2.stop.load(Relaxed) {
                    let began = Instant::now();
                    let mut revalidator = revalidator.lock();
                    more = revalidator.report_new() && began < end;
                    revalidator.take_reporting();
                    drop(revalidator);
                    if more {
                        std::thread::sleep(began.elapsed() / REPORTS_PER_REST);
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
                // At most a twentieth of a processor for any number of flows, and a quarter of one for
                // reports of any number of new flows.
                earliest = started + (worked * 20).max(reported * 4);
                next = earliest.max(started + interval);
            }
        })?;
    Ok(thread)
}
