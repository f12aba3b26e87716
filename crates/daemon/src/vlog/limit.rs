//! Rate limits for log messages, one token bucket per place in the code that logs.
//!
//! A place names its limit with two key-values of the `log` crate, so that any crate can have one without
//! importing this one:
//!
//! ```
//! # let (peer, error) = ("unix#1", "bad JSON");
//! log::warn!(target: "jsonrpc", per_min = 5, burst = 5; "{peer}: {error}");
//! ```
//!
//! Warnings and errors without these keys have the limit [`DEFAULT`], so that no peer can fill a disk through
//! a place without a limit. Other levels have none. Dropped messages are counted; a line with their number
//! precedes the next message that passes.
//!
//! Cost: one short critical section per message that would be logged; the message itself is formatted only
//! after it has passed. Workers log too, so no thread waits for the lock: if another thread holds it, the
//! message passes unlimited.

use std::collections::HashMap;
use std::time::Instant;

use heddle_sync::TokenBucket;
use log::kv::{Key, ToKey};
use parking_lot::Mutex;

/// The rate at which one place may log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Messages per minute in the long run.
    pub per_min: u32,
    /// Messages that may come at once.
    pub burst: u32,
}

/// The limit of a warning or error that names none.
pub const DEFAULT: Limit = Limit {
    per_min: 60,
    burst: 60,
};

/// The limiter's decision about one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Log it.
    Pass,
    /// Log it, after a line about those that were dropped since the last one that passed.
    PassAfter(Dropped),
    /// Drop it; it is counted.
    Drop,
}

/// Messages that a limit suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) count: u32,
    pub(super) first_secs_ago: u64,
    pub(super) last_secs_ago: u64,
}

/// One message costs this many tokens; a bucket gains `per_min` tokens per millisecond.
const TOKENS_PER_MESSAGE: u64 = 60_000;

#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    made: Instant,
    dropped: u32,
    first_dropped: Instant,
    last_dropped: Instant,
}

impl Bucket {
    fn full(limit: Limit, now: Instant) -> Bucket {
        let size = u64::from(limit.burst) * TOKENS_PER_MESSAGE;
        Bucket {
            tokens: TokenBucket::full(u64::from(limit.per_min), size, 0),
            made: now,
            dropped: 0,
            first_dropped: now,
            last_dropped: now,
        }
    }

    fn admit(&mut self, now: Instant) -> Admission {
        let ms = now.saturating_duration_since(self.made).as_millis();
        if !self
            .tokens
            .take(TOKENS_PER_MESSAGE, u64::try_from(ms).unwrap_or(u64::MAX))
        {
            if self.dropped == 0 {
                self.first_dropped = now;
            }
            self.last_dropped = now;
            self.dropped = self.dropped.saturating_add(1);
            return Admission::Drop;
        }
        match std::mem::take(&mut self.dropped) {
            0 => Admission::Pass,
            count => Admission::PassAfter(Dropped {
                count,
                first_secs_ago: now.saturating_duration_since(self.first_dropped).as_secs(),
                last_secs_ago: now.saturating_duration_since(self.last_dropped).as_secs(),
            }),
        }
    }
}

/// The buckets of all places. Bounded by the number of `log` macros in the program.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    places: Mutex<HashMap<(&'static str, u32), Bucket>>,
}

impl Limiter {
    /// Decides about a message that is enabled. Messages without a place in the code always pass.
    pub(super) fn admit(&self, record: &log::Record<'_>, now: Instant) -> Admission {
        let (Some(limit), Some(file), Some(line)) = (limit_of(record), record.file_static(), record.line())
        else {
            return Admission::Pass;
        };
        let Some(mut places) = self.places.try_lock() else {
            return Admission::Pass;
        };
        places
            .entry((file, line))
            .or_insert_with(|| Bucket::full(limit, now))
            .admit(now)
    }
}

fn limit_of(record: &log::Record<'_>) -> Option<Limit> {
    let number = |key: &str| {
        let key: Key<'_> = key.to_key();
        record
            .key_values()
            .get(key)
            .and_then(|value| value.to_u64())
            .and_then(|n| u32::try_from(n).ok())
    };
    match (number("per_min"), number("burst")) {
        (None, None) if record.level() <= log::Level::Warn => Some(DEFAULT),
        (None, None) => None,
        (per_min, burst) => {
            let per_min = per_min.unwrap_or(DEFAULT.per_min);
            Some(Limit {
                per_min,
                burst: burst.unwrap_or(per_min).max(1),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn burst_then_rate_then_report() {
        let limit = Limit {
            per_min: 60,
            burst: 3,
        };
        let start = Instant::now();
        let mut bucket = Bucket::full(limit, start);
        for _ in 0..3 {
            assert_eq!(bucket.admit(start), Admission::Pass);
        }
        assert_eq!(bucket.admit(start), Admission::Drop);
        assert_eq!(bucket.admit(start + Duration::from_millis(999)), Admission::Drop);
        let report = Dropped {
            count: 2,
            first_secs_ago: 2,
            last_secs_ago: 1,
        };
        assert_eq!(
            bucket.admit(start + Duration::from_millis(2000)),
            Admission::PassAfter(report)
        );
        // One more token than was spent has come in by then, and no more than `burst` ever gather.
        let later = start + Duration::from_secs(3600);
        for _ in 0..3 {
            assert_eq!(bucket.admit(later), Admission::Pass);
        }
    }
}
