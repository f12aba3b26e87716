//! Rate-limited logging from translations: one flood of odd packets must not become a flood of lines.

use heddle_sync::TokenBucket;

/// Limit of one kind of line: a token a millisecond, and `per_line_ms` tokens a line.
pub(super) struct Limit {
    bucket: TokenBucket,
    per_line_ms: u64,
}

/// Odd packets: one line a minute, five at once.
pub(super) static ERRORS: Limit = Limit::new(60_000, 5);
/// Remarks: the same rate, but a limit of their own.
pub(super) static INFOS: Limit = Limit::new(60_000, 5);
/// Packets from tunnels that have no port: one a second, five at once.
pub(super) static UNKNOWN_TUNNEL: Limit = Limit::new(1_000, 5);
/// Packets that met congestion but cannot show it: the same rate.
pub(super) static BAD_ECN: Limit = Limit::new(1_000, 5);
/// The whole trace of translations that failed, which is long: one a minute.
pub(super) static FAILED: Limit = Limit::new(60_000, 1);
/// Learned addresses: thirty a minute, three hundred at once.
pub(super) static DEBUGS: Limit = Limit::new(2_000, 300);

impl Limit {
    const fn new(per_line_ms: u64, burst: u64) -> Self {
        Self {
            bucket: TokenBucket::full(1, burst * per_line_ms, 0),
            per_line_ms,
        }
    }
    /// Writes a line, if allowed.
    pub(super) fn log(&self, level: log::Level, now_ms: u64, text: impl FnOnce() -> String) {
        self.log_to("ofproto_dpif_xlate", level, now_ms, text);
    }
    /// Writes a line in another module's name, if allowed.
    pub(super) fn log_to(
        &self,
        module: &'static str,
        level: log::Level,
        now_ms: u64,
        text: impl FnOnce() -> String,
    ) {
        if log::log_enabled!(target: module, level) && self.bucket.take(self.per_line_ms, now_ms) {
            log::log!(target: module, level, "{}", text());
        }
    }
}
