//! Numbers of local samples: taken, sent, lost.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of local samples, each since the daemon's start.
#[derive(Default)]
pub(crate) struct SampleCounts {
    /// Taken from workers.
    pub(crate) local: AtomicU64,
    /// Sent to readers; one sample counts once for each.
    pub(crate) reader_sent: AtomicU64,
    /// Lost for a reader, which was slow.
    pub(crate) reader_lost: AtomicU64,
    /// Given to the kernel's psample.
    pub(crate) psample_sent: AtomicU64,
    /// Lost for the kernel: too many pairs of domain and point are in use.
    pub(crate) psample_no_room: AtomicU64,
    /// Lost for the kernel, which refused the packet or its action.
    pub(crate) psample_error: AtomicU64,
}

impl SampleCounts {
    /// Each number with its name.
    pub(crate) fn all(&self) -> [(&'static str, u64); 6] {
        [
            ("sample_local", &self.local),
            ("sample_reader_sent", &self.reader_sent),
            ("sample_reader_lost", &self.reader_lost),
            ("sample_psample_sent", &self.psample_sent),
            ("sample_psample_no_room", &self.psample_no_room),
            ("sample_psample_error", &self.psample_error),
        ]
        .map(|(name, n)| (name, n.load(Relaxed)))
    }
}

/// Adds to one of the numbers.
pub(crate) fn count(number: &AtomicU64, n: u64) {
    number.fetch_add(n, Relaxed);
}
