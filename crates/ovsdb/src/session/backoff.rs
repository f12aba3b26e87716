//! Waits between attempts to connect: doubling from a minimum to a maximum.

use std::time::Duration;

/// Change of a wait against the last one, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitChange {
    /// The wait is the shortest, or as long as the last.
    Nothing,
    /// The wait is longer than the last.
    Doubled,
    /// The wait is the longest: it does not grow any more.
    Longest,
}

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

    /// The next wait, and its change for the log; the series starts anew after a connection that worked.
    pub(super) fn next_wait(&mut self, worked: bool) -> (Duration, WaitChange) {
        let before = self.current;
        self.current = if worked || before < self.min {
            self.min
        } else {
            (before * 2).min(self.max)
        };
        let change = match self.current {
            now if now <= before || now == self.min => WaitChange::Nothing,
            now if now < self.max => WaitChange::Doubled,
            _ => WaitChange::Longest,
        };
        (self.current, change)
    }

    /// The waits no longer grow: further failures are not logged.
    pub(super) fn is_quiet(&self) -> bool {
        self.current >= self.max && self.max > self.min
    }
}
