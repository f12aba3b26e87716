//! Background work in slices, with rests in between.

use crate::shared::Shared;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Length of the rest between two pieces of work, as a multiple of the piece's time.
const RESTS: u32 = 3;

/// Works piece by piece, so that other threads get the lock, and the processor, in between. `piece` returns
/// whether there is more work, and the time spent reporting new flows to an observer. A rest is [`RESTS`]
/// times the work, plus the time of reports once: workers save that time from then on. Returns the time
/// worked without reports, and the time of reports.
pub(super) fn in_slices(
    shared: &Shared,
    mut piece: impl FnMut() -> (bool, Duration),
) -> (Duration, Duration) {
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
