//! Background work in slices, with rests in between.

use crate::shared::Shared;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Length of the rest between two pieces of work, as a multiple of the piece's time.
const RESTS: u32 = 3;

/// The result of one piece of work.
pub(super) struct Piece {
    /// There is more work.
    pub(super) more: bool,
    /// The time spent reporting new flows to an observer.
    pub(super) reporting: Duration,
}

impl Piece {
    /// A piece without reports.
    pub(super) fn plain(more: bool) -> Self {
        Self {
            more,
            reporting: Duration::ZERO,
        }
    }
}

/// The times of all pieces of some work.
#[derive(Default)]
pub(super) struct SlicedWork {
    /// Without reports.
    pub(super) worked: Duration,
    pub(super) reported: Duration,
}

/// Works piece by piece, so that other threads get the lock, and the processor, in between. A rest is
/// [`RESTS`] times the work, plus the time of reports once: workers save that time from then on.
pub(super) fn in_slices(shared: &Shared, piece: impl FnMut() -> Piece) -> SlicedWork {
    in_slices_with(shared, piece, std::thread::sleep)
}

/// Like [`in_slices`]. `rest` does other work for the time of a rest.
pub(super) fn in_slices_with(
    shared: &Shared,
    mut piece: impl FnMut() -> Piece,
    mut rest: impl FnMut(Duration),
) -> SlicedWork {
    let mut work = SlicedWork::default();
    loop {
        let begin = Instant::now();
        let Piece { more, reporting } = piece();
        let took = begin.elapsed().saturating_sub(reporting);
        work.worked += took;
        work.reported += reporting;
        if !more || shared.stop.load(Relaxed) {
            return work;
        }
        rest(took * RESTS + reporting);
    }
}
