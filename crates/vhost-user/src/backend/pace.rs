//! Limits how often a socket's front ends are served. A front end that misbehaves, or reconnects all the
//! time, takes only a bounded part of the thread that all sockets share.
//!
//! The caller passes the current time, so that tests need not wait.

use super::session::CloseReason;
use core::time::Duration;
use std::time::Instant;

/// Time between attempts to connect or to listen, and first pause after a fault.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Longest pause after faults of front ends.
const MAX_PAUSE: Duration = Duration::from_secs(16);
/// A session of this length had no fault that matters for the next.
const GOOD: Duration = Duration::from_secs(10);
/// A session that is shorter is a hasty one.
const HASTY: Duration = Duration::from_secs(1);
/// This number of hasty sessions in a row is usual: virtual machine monitors probe the features of a back
/// end.
const FREE: u32 = 4;
/// The first pause after one more; it doubles, up to [`RETRY`].
const FIRST: Duration = Duration::from_millis(50);

/// The record of a socket's front ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    /// Sessions in a row that ended with a fault of the front end.
    faults: u32,
    /// Sessions in a row that lasted less than [`HASTY`].
    hasty: u32,
}

impl Backoff {
    /// The pause after a session of length `lasted`, in which a front end showed itself (`greeted`) or not.
    pub(super) fn after(&mut self, end: &CloseReason, greeted: bool, lasted: Duration) -> Duration {
        // A short session without a fault makes nothing good: it may be there for that.
        self.faults = match end.is_fault() {
            false if greeted && lasted > GOOD => 0,
            false => self.faults,
            true if lasted > GOOD => 1,
            true => self.faults.saturating_add(1),
        };
        self.hasty = if lasted < HASTY {
            self.hasty.saturating_add(1)
        } else {
            0
        };
        let fault = match self.faults {
            0 => Duration::ZERO,
            _ if greeted && !end.is_fault() => Duration::ZERO,
            n => (RETRY * (1 << n.saturating_sub(1).min(4))).min(MAX_PAUSE),
        };
        let haste = match self.hasty.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(n) => (FIRST * (1 << n.min(8))).min(RETRY),
        };
        fault.max(haste)
    }
}

/// Connections that are accepted in each [`Gate::SPAN`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    since: Instant,
    passed: u32,
}

impl Gate {
    const SPAN: Duration = Duration::from_millis(100);
    /// Many more than monitors make, few enough that they cost next to nothing.
    const MAX_CONNECTIONS: u32 = 32;

    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            passed: 0,
        }
    }
    /// Counts one more connection at `now`.
    ///
    /// # Errors
    /// The time of the next try: until then connections wait in the listener's queue.
    pub(super) fn pass(&mut self, now: Instant) -> Result<(), Instant> {
        if now.duration_since(self.since) >= Self::SPAN {
            *self = Self::new(now);
        }
        if self.passed >= Self::MAX_CONNECTIONS {
            return Err(self.since + Self::SPAN);
        }
        self.passed += 1;
        Ok(())
    }
}

/// A session's share of the thread's time. A session that wants more gets a quarter, after a moment in which
/// it may have all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Used time that is not paid back yet, at `at`.
    debt: Duration,
    at: Instant,
}

impl Budget {
    /// A unit of used time is paid back by this number of units of elapsed time.
    const PRICE: u32 = 4;
    /// Beyond this debt the session rests until it is down to [`Budget::RESTED_DEBT`].
    const MAX_DEBT: Duration = Duration::from_millis(40);
    const RESTED_DEBT: Duration = Duration::from_millis(20);
    /// Maximum debt: longer use was not the session's work, but the process was stopped meanwhile.
    const CEILING: Duration = Duration::from_millis(500);

    pub(super) fn new(now: Instant) -> Self {
        Self {
            debt: Duration::ZERO,
            at: now,
        }
    }
    /// The time from `began` to `now` was used. Returns until when the session is to rest, if it has to.
    pub(super) fn used(&mut self, began: Instant, now: Instant) -> Option<Instant> {
        let paid = now.saturating_duration_since(self.at) / Self::PRICE;
        let debt = self.debt.saturating_sub(paid) + now.saturating_duration_since(began);
        self.debt = debt.min(Self::CEILING);
        self.at = now;
        (self.debt > Self::MAX_DEBT).then(|| now + (self.debt - Self::RESTED_DEBT) * Self::PRICE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::SocketError;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn those_who_come_and_go_have_to_wait_a_little() {
        let mut m = Backoff::default();
        let mut hasty = |lasted| m.after(&CloseReason::Closed, true, lasted);
        for _ in 0..FREE {
            assert_eq!(hasty(5 * MS), Duration::ZERO);
        }
        let pauses: Vec<_> = (0..8).map(|_| hasty(5 * MS).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000, 1000]);
        // A session that lasts clears the record.
        assert_eq!(hasty(HASTY), Duration::ZERO);
        assert_eq!(hasty(5 * MS), Duration::ZERO);
    }

    #[test]
    fn faults_cost_more() {
        let mut m = Backoff::default();
        let fault = CloseReason::Socket(SocketError::Cut);
        let pauses: Vec<_> = (0..7).map(|_| m.after(&fault, true, MS).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 16, 16]);
        // A front end that sends nothing is no better.
        assert_eq!(m.after(&CloseReason::Closed, false, 2 * GOOD), MAX_PAUSE);
        assert_eq!(m.after(&fault, true, 2 * GOOD), RETRY);
        assert_eq!(m.after(&CloseReason::Closed, true, 2 * GOOD), Duration::ZERO);
    }

    #[test]
    fn a_flood_of_messages_gets_a_quarter_of_the_time() {
        let began = Instant::now();
        let (mut budget, mut now, mut busy) = (Budget::new(began), began, Duration::ZERO);
        while now - began < Duration::from_secs(10) {
            let turn = Duration::from_micros(300);
            busy += turn;
            let rest = budget.used(now, now + turn);
            assert!(rest.is_none_or(|r| r < now + Duration::from_millis(200)));
            now = rest.unwrap_or(now + turn);
        }
        let part = busy.as_secs_f64() / 10.0;
        assert!((0.2..0.27).contains(&part), "{part}");
        // An ordinary front end's messages never make it rest.
        let mut budget = Budget::new(now);
        for i in 0..1000 {
            let at = now + i * Duration::from_millis(2);
            assert_eq!(budget.used(at, at + Duration::from_micros(400)), None);
        }
    }

    #[test]
    fn a_process_that_was_stopped_hears_its_front_end_soon_again() {
        let began = Instant::now();
        let now = began + Duration::from_secs(60);
        let rest = Budget::new(began).used(began, now);
        assert!(rest.is_some_and(|r| r <= now + 2 * RETRY), "{rest:?}");
    }

    #[test]
    fn a_flood_of_connections_is_heard_now_and_then() {
        let began = Instant::now();
        let mut gate = Gate::new(began);
        let mut heard = 0;
        for us in 0..1_000_000 {
            let now = began + Duration::from_micros(us);
            match gate.pass(now) {
                Ok(()) => heard += 1,
                Err(until) => assert!(until > now && until - now <= Gate::SPAN),
            }
        }
        assert_eq!(heard, 10 * Gate::MAX_CONNECTIONS);
    }
}
