//! Rate-limited logging from translations: one flood of odd packets must not become a flood of lines.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A token bucket in one word: the time up to which lines are paid for, ms.
pub(super) struct Limit {
    paid_ms: AtomicU64,
    per_line_ms: u64,
    burst: u64,
}

/// Odd packets: one line a minute, five at once.
pub(super) static ERRORS: Limit = Limit::new(60_000, 5);
/// Remarks: the same, apart.
pub(super) static INFOS: Limit = Limit::new(60_000, 5);
/// The whole trace of translations that failed, which is long: one a minute.
pub(super) static FAILED: Limit = Limit::new(60_000, 1);
/// What was learned: thirty a minute, three hundred at once.
pub(super) static DEBUGS: Limit = Limit::new(2_000, 300);

impl Limit {
    const fn new(per_line_ms: u64, burst: u64) -> Self {
        Self {
            paid_ms: AtomicU64::new(0),
            per_line_ms,
            burst,
        }
    }
    /// Whether another line may go out at `now_ms`.
    fn take(&self, now_ms: u64) -> bool {
        // Time is shifted by a whole burst, so that the clock may start at zero.
        let now = now_ms + self.burst * self.per_line_ms;
        self.paid_ms
            .fetch_update(Relaxed, Relaxed, |paid| {
                let next = paid.max(now_ms) + self.per_line_ms;
                (next <= now).then_some(next)
            })
            .is_ok()
    }
    /// Writes a line, if allowed.
    pub(super) fn log(&self, level: log::Level, now_ms: u64, text: impl FnOnce() -> String) {
        self.log_to("ofproto_dpif_xlate", level, now_ms, text);
    }
    /// As [`Limit::log`], in another module's name.
    pub(super) fn log_to(
        &self,
        module: &'static str,
        level: log::Level,
        now_ms: u64,
        text: impl FnOnce() -> String,
    ) {
        if log::log_enabled!(target: module, level) && self.take(now_ms) {
            log::log!(target: module, level, "{}", text());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn a_burst_then_a_trickle() {
        let limit = Limit::new(1000, 3);
        assert_eq!((0..10).filter(|_| limit.take(0)).count(), 3);
        assert!(limit.take(1000) && !limit.take(1500));
        assert_eq!((0..10).filter(|_| limit.take(1_000_000)).count(), 3);
    }
}
