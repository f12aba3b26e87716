//! Delays of the threads that do the work.

use heddle_datapath_api::Posted;

/// A shorter delay does not count as late.
const LATE_MS: u64 = 10;
/// A worker that is late by more than this does not extend peers' deadlines any more.
const MAX_STALL_MS: u64 = 1000;

/// The delays that are known.
#[derive(Default)]
pub(super) struct Pace {
    /// When the monitor wanted to run again, ms; 0: not known.
    pub(super) wanted_ms: u64,
    /// One frame on its way, when it was posted, and until when its delay has been counted, ms.
    pub(super) posted: Option<(Posted, u64, u64)>,
}

impl Pace {
    /// The delay since the last call, ms.
    pub(super) fn late_ms(&mut self, now_ms: u64) -> u64 {
        let own = match self.wanted_ms {
            0 => 0,
            wanted_ms => now_ms.saturating_sub(wanted_ms),
        };
        let worker = match &mut self.posted {
            Some((posted, at_ms, counted_ms)) if !posted.is_done() => {
                let late = now_ms.saturating_sub(*counted_ms);
                *counted_ms = now_ms.max(*counted_ms);
                let waited = now_ms.saturating_sub(*at_ms);
                if waited <= MAX_STALL_MS { late } else { 0 }
            }
            _ => {
                self.posted = None;
                0
            }
        };
        own.saturating_sub(LATE_MS).max(worker)
    }
    /// A frame was handed to a worker.
    pub(super) fn sent(&mut self, posted: Posted, now_ms: u64) {
        self.posted.get_or_insert((posted, now_ms, now_ms + LATE_MS));
    }
}
