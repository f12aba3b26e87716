//! The connection expiry thread.

use super::slices::{Piece, in_slices};
use crate::config::DatapathError;
use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of the search for expired connections, and the number of records checked in a row.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
const SWEEP_STEP: u32 = 4096;
/// Interval at which the thread prepares memory for new connections.
const PREPARE_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the connection expiry thread, which frees expired connections and fragments. It ends with
/// [`Shared::stop`].
pub(super) fn start(shared: &Arc<Shared>) -> Result<JoinHandle<()>, DatapathError> {
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
                    Piece::plain(more)
                });
                in_slices(&shared, || {
                    let more = !shared.conntrack.sweep(shared.clock.now_ms(), SWEEP_STEP);
                    Piece::plain(more)
                });
                in_slices(&shared, || {
                    shared.conntrack.prepare();
                    Piece::plain(shared.conntrack.give_back())
                });
            }
        })?;
    Ok(thread)
}
