//! Waits between attempts to connect: doubling from a least to a greatest one.

use std::time::Duration;

/// The series of waits.
#[derive(Debug)]
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    /// The last wait; zero before the first.
    current: Duration,
}

impl Backoff {
    pub(super) fn new(min: Duration, max: Duration) -> Backoff {
        Backoff {
            min,
            max: max.max(min),
            current: Duration::ZERO,
        }
    }

    /// The last wait given out.
    pub(super) fn current(&self) -> Duration {
        self.current
    }

    /// The next wait; the series starts anew after a connection that worked.
    pub(super) fn next_wait(&mut self, worked: bool) -> Duration {
        self.current = if worked || self.current < self.min {
            self.min
        } else {
            (self.current * 2).min(self.max)
        };
        self.current
    }

    /// The waits no longer grow: there is nothing new to say about failing.
    pub(super) fn is_quiet(&self) -> bool {
        self.current >= self.max && self.max > self.min
    }
}
