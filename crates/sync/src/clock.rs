//! The switch's clock: monotonic milliseconds that tests may stop and move (`time/stop`, `time/warp`).
//!
//! Cost: one `clock_gettime` through the vDSO per read while it runs. A worker reads it once per burst. All
//! accesses are relaxed: a reader that races with `stop` or `warp` sees the time just before or just after.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Milliseconds since the clock was made, plus the time that was warped.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    stopped: AtomicBool,
    /// While it runs: the offset to the elapsed time. While it is stopped: the time itself.
    base_ms: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        // Not zero, so that a time of zero can mean "never" everywhere.
        Self {
            start: Instant::now(),
            stopped: AtomicBool::new(false),
            base_ms: AtomicU64::new(1000),
        }
    }
}

impl Clock {
    /// Now, in milliseconds. Never zero.
    pub fn now_ms(&self) -> u64 {
        let base = self.base_ms.load(Relaxed);
        if self.stopped.load(Relaxed) {
            base
        } else {
            base + self.elapsed()
        }
    }
    /// Stops the clock: from now on only [`Clock::warp`] moves it.
    pub fn stop(&self) {
        if !self.stopped.load(Relaxed) {
            let now = self.now_ms();
            self.base_ms.store(now, Relaxed);
            self.stopped.store(true, Relaxed);
        }
    }
    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }
    /// Moves the clock forward.
    pub fn warp(&self, ms: u64) {
        self.base_ms.fetch_add(ms, Relaxed);
    }
    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_and_warps() {
        let c = Clock::default();
        let t0 = c.now_ms();
        assert!(t0 >= 1000);
        c.stop();
        let t1 = c.now_ms();
        assert!(t1 >= t0);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(c.now_ms(), t1);
        c.warp(500);
        assert_eq!(c.now_ms(), t1 + 500);
        c.stop();
        assert_eq!(c.now_ms(), t1 + 500, "stopping twice changes nothing");
    }
}
