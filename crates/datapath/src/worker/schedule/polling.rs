//! Adaptive polling: how long a worker polls after the last packets before it sleeps.
//!
//! **Problem.** Waking costs more than most gaps between packets: some microseconds, 50 and more if the
//! processor has halted. Empty polls take the processor from other programs, and an idle switch must use
//! almost none of it.
//!
//! **Two allowances**, of which the longer one counts. `max` is the setting (50 us).
//! * The *span* is for replies. A gap longer than the span changes it. If the gap per packet is at most
//!   `max`, polling would have found the packets, and the span becomes `max`. Otherwise it is halved.
//! * The *credit* is for steady traffic, which has longer gaps now and then. While packets come less than
//!   `max` apart, a quarter of the time is credited, up to [`MAX_CREDIT_TIMES`] times `max`. Longer gaps are
//!   taken from it.
//!
//! **Other programs on this processor.** An empty round takes some microseconds. If it took more than
//! [`PREEMPTED_TIMES`] times `max`, the kernel gave the processor to another program, often the sender or
//! receiver of these very packets. Polling would take that program's time. So for [`YIELD_TIMES`] times `max`
//! the worker does not poll, but sleeps as soon as it has no packets. If that happens again soon after it
//! polls again, the time doubles, up to [`MAX_YIELD_TIMES`] times `max`. The reason is that each attempt
//! delays packets by the other program's turn.
//!
//! The kernel may also prefer the worker, so that no round is interrupted. Then a sender on this processor
//! cannot send while the worker polls. Its next packet comes soon after the worker has begun to sleep. If
//! that happens [`FUTILE`] times in a row, it has the same effect.
//!
//! **Bound.** Polling by credit without packets takes at most a quarter of the time of steady traffic. After
//! its last packet it takes at most [`MAX_CREDIT_TIMES`] times `max`.

/// One part in 2^2 of the time in which packets come steadily is credited.
const CREDIT_SHIFT: u32 = 2;
/// Maximum credit, as a multiple of `max`: a millisecond.
const MAX_CREDIT_TIMES: u64 = 20;
/// An empty round longer than this multiple of `max` (200 us) was interrupted by another program.
const PREEMPTED_TIMES: u64 = 4;
/// First time without polling after that, as a multiple of `max`: 50 ms. Then the worker polls again, and the
/// other program loses a few milliseconds until the next gap is noticed.
const YIELD_TIMES: u64 = 1000;
/// The longest such time, as a multiple of `max`: 3.2 s.
const MAX_YIELD_TIMES: u64 = 64 * YIELD_TIMES;
/// The number of polls in a row that had no packets until the worker slept, and had packets at once then.
const FUTILE: u8 = 8;

/// See the module's text. Times are cycle counts.
#[derive(Debug, Default)]
pub(super) struct AdaptivePolling {
    /// The end of the last round with packets.
    last: u64,
    span: u64,
    credit: u64,
    /// The worker does not poll until this time.
    yields_until: u64,
    /// The length of the time that ends then.
    yields_for: u64,
    /// Polls as for [`FUTILE`].
    futile: u8,
}

impl AdaptivePolling {
    /// A round from `begin` to `end` had no packets.
    #[inline]
    pub(super) fn found_nothing(&mut self, begin: u64, end: u64, max: u64) {
        if end.saturating_sub(begin) > max * PREEMPTED_TIMES {
            self.yields(end, max);
        }
    }

    /// A packet woke the worker at `end`, which had slept since `begin`.
    pub(super) fn woken(&mut self, begin: u64, end: u64, max: u64) {
        let (polled, slept) = (begin.saturating_sub(self.last), end.saturating_sub(begin));
        if polled < max / 4 {
            return;
        }
        self.futile = if slept < max / 2 { self.futile + 1 } else { 0 };
        if self.futile == FUTILE {
            self.futile = 0;
            self.yields(end, max);
        }
    }

    /// Other programs want the processor.
    fn yields(&mut self, now: u64, max: u64) {
        // While the worker yields anyway, that is nothing new.
        if now < self.yields_until {
            return;
        }
        let again = now - self.yields_until < self.yields_for.max(max * YIELD_TIMES);
        let times = if again { self.yields_for * 2 } else { 0 };
        self.yields_for = times.clamp(max * YIELD_TIMES, max * MAX_YIELD_TIMES);
        self.yields_until = now + self.yields_for;
    }

    /// A round from `begin` to `end` had `packets`, one at least.
    #[inline]
    pub(super) fn found(&mut self, begin: u64, end: u64, packets: usize, max: u64) {
        let gap = begin.saturating_sub(self.last);
        if gap <= max {
            let earned = end.saturating_sub(self.last) >> CREDIT_SHIFT;
            self.credit = (self.credit + earned).min(max * MAX_CREDIT_TIMES);
        } else {
            self.credit = self.credit.saturating_sub(gap);
        }
        if gap > self.span {
            self.span = if gap / packets as u64 <= max {
                max
            } else {
                self.span / 2
            };
        }
        self.last = end;
    }

    /// Whether other programs want the processor, as far as known at `now`.
    pub(super) fn is_yielding(&self, now: u64) -> bool {
        now < self.yields_until
    }

    /// Whether to poll again rather than sleep, at time `now`, after empty polls.
    pub(super) fn continues(&self, now: u64, max: u64) -> bool {
        let allowed = self.span.min(max).max(self.credit.min(max * MAX_CREDIT_TIMES));
        !self.is_yielding(now) && now.saturating_sub(self.last) < allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit of time is nanoseconds in place of cycles.
    const MAX: u64 = 50_000;
    const SECOND: u64 = 1_000_000_000;
    /// Duration of a round with packets.
    const ROUND: u64 = 300;

    struct Outcome {
        sleeps: u64,
        /// Time polled without packets, per mille of the whole.
        polled: u64,
    }

    /// Simulates a second of packets with these gaps, for a worker that takes `wake` to wake up.
    fn run(wake: u64, mut gap: impl FnMut() -> u64) -> Outcome {
        let (mut polling, mut now, mut next) = (AdaptivePolling::default(), SECOND, SECOND);
        let (mut sleeps, mut polled) = (0, 0);
        while now < 2 * SECOND {
            let from = now;
            while now < next && polling.continues(now, MAX) {
                now += 100;
            }
            polled += now - from;
            if now < next {
                sleeps += 1;
                now = next + wake;
            }
            let mut packets = 0;
            while next <= now && packets < 32 {
                packets += 1;
                next += gap();
            }
            polling.found(now, now + ROUND, packets, MAX);
            now += ROUND;
        }
        Outcome {
            sleeps,
            polled: polled * 1000 / SECOND,
        }
    }

    fn random(seed: &mut u64) -> f64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((*seed >> 33) as f64 + 1.0) / f64::from(1_u32 << 31)
    }
    /// Random gaps with this mean.
    fn poisson(mean: f64) -> impl FnMut() -> u64 {
        let mut seed = 1;
        move || {
            let gap = -random(&mut seed).ln() * mean;
            std::time::Duration::from_secs_f64(gap / 1e9)
                .subsec_nanos()
                .into()
        }
    }

    #[test]
    fn steady_packets_are_polled_for() {
        for wake in [7_000, 60_000] {
            let even = run(wake, || 10_000);
            assert!(even.sleeps <= 2, "{}", even.sleeps);
            let random = run(wake, poisson(10_000.0));
            assert!(random.sleeps <= 10, "{}", random.sleeps);
            // A sender that pauses for a quarter of a millisecond 500 times a second.
            let mut n = 0;
            let halting = run(wake, || {
                n += 1;
                if n % 175 == 0 { 250_000 } else { 10_000 }
            });
            assert!(halting.sleeps <= 10, "{}", halting.sleeps);
        }
    }

    #[test]
    fn rare_packets_are_not() {
        for wake in [7_000, 60_000] {
            for gap in [200_000, 1_000_000, 100_000_000] {
                let rare = run(wake, || gap);
                assert!(
                    rare.sleeps >= SECOND / gap / 2 && rare.polled <= 1,
                    "{gap}: {}",
                    rare.polled
                );
            }
            // Steady traffic for a long time, then slow traffic: the credit is soon used up.
            let mut n = 0;
            let slower = run(wake, || {
                n += 1;
                if n < 10_000 { 10_000 } else { 300_000 }
            });
            assert!(slower.polled <= 110, "{}", slower.polled);
        }
    }

    #[test]
    fn bursts_earn_at_maximum_a_quarter_of_their_time() {
        // A hundred packets in a millisecond, then nine milliseconds without.
        let mut n = 0;
        let bursts = run(7_000, || {
            n += 1;
            if n % 100 == 0 { 9_000_000 } else { 10_000 }
        });
        // The gaps within groups are a tenth, the polling after them a fortieth.
        assert!((100..=130).contains(&bursts.polled), "{}", bursts.polled);
    }

    #[test]
    fn nothing_is_polled_for_while_others_want_the_processor() {
        let mut polling = AdaptivePolling::default();
        let steady = |from: u64, polling: &mut AdaptivePolling| {
            for i in 0..1000 {
                polling.found(from + i * 1000, from + i * 1000 + ROUND, 1, MAX);
            }
            from + 1_000_000
        };
        let now = steady(SECOND, &mut polling);
        polling.found_nothing(now, now + MAX, MAX);
        assert!(polling.continues(now + MAX, MAX), "the worker's own round");
        let back = now + MAX + 3_000_000;
        polling.found_nothing(now + MAX, back, MAX);
        let now = steady(back, &mut polling);
        assert!(!polling.continues(now, MAX), "put aside for 3 ms");
        let now = steady(back + 50_000_000, &mut polling);
        assert!(polling.continues(now, MAX), "50 ms later");
    }

    #[test]
    fn a_sender_that_can_only_send_while_the_worker_sleeps_is_noticed() {
        let mut polling = AdaptivePolling::default();
        let mut now = SECOND;
        let mut polls = |polling: &mut AdaptivePolling, sleeps: u64| {
            polling.found(now, now + ROUND, 1, MAX);
            let begin = now + ROUND;
            now = begin;
            while polling.continues(now, MAX) {
                now += 1000;
            }
            polling.woken(now, now + sleeps, MAX);
            let polled = now - begin;
            now += sleeps;
            polled
        };
        let polled: Vec<u64> = (0..30).map(|_| polls(&mut polling, 3000)).collect();
        assert!(polled[1..8].iter().all(|p| *p >= MAX / 4), "{polled:?}");
        assert!(polled[20..].iter().all(|p| *p == 0), "{polled:?}");
        // A sender on another processor also sends while the worker polls.
        let mut polling = AdaptivePolling::default();
        let sleeps = [3000, 40_000].into_iter().cycle();
        let polled: Vec<u64> = sleeps.take(100).map(|s| polls(&mut polling, s)).collect();
        assert!(polled[90..].iter().any(|p| *p > 0), "{polled:?}");
    }

    #[test]
    fn each_interruption_soon_after_doubles_the_time_without_polling() {
        let mut polling = AdaptivePolling::default();
        // A program that takes the processor for 3 ms whenever the worker has polled.
        let interrupted = |now: u64, polling: &mut AdaptivePolling| {
            polling.found_nothing(now, now + 3_000_000, MAX);
            polling.yields_until.saturating_sub(now + 3_000_000)
        };
        let (mut now, mut waits) = (SECOND, Vec::new());
        for _ in 0..9 {
            waits.push(interrupted(now, &mut polling) / 1_000_000);
            now = polling.yields_until + 1_000_000;
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 3200, 3200]);
        assert_eq!(interrupted(now + 10 * SECOND, &mut polling), 50_000_000);
    }

    #[test]
    fn nothing_is_polled_for_where_the_setting_is_zero() {
        let mut polling = AdaptivePolling::default();
        for i in 1..1000 {
            polling.found(i * 1000, i * 1000 + ROUND, 1, MAX);
        }
        assert!(polling.continues(1_000_000, MAX) && !polling.continues(1_000_000, 0));
    }
}
