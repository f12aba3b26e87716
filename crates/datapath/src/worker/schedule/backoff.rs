//! Back-off for queues whose every poll is a system call: truncated binary exponential back-off.
//!
//! A worker polls each of its queues in each round. Polling an empty ring is one load. Polling an empty tap
//! takes a thousand cycles or more. With a burst from another queue in each round, that is a sixth of the
//! worker's time, and more with more taps. So the worker skips an empty queue for a while as long as **other
//! queues have packets**. It also does so if rings had packets recently ([`RING_BUSY_CYCLES`]). A packet that
//! arrives on a ring would otherwise wait until all taps have been polled. Otherwise a worker polls all
//! queues.
//!
//! When the back-off ends, the worker queries the kernel for all such queues at once, through its epoll set.
//! Queues that the kernel does not report are skipped again. Each query without a result doubles the
//! back-off. Bounds: the queries take about a thirtieth of the time, and no queue waits longer than
//! [`MAX_BACKOFF_CYCLES`] for its first packet to be seen. A queue that the kernel reported but that was
//! empty backs off by itself in the same way. These polls take at most about an eighth of the time.
//!
//! An epoll wake-up reports which queues have packets: the other ones are skipped in the next round.

/// Maximum back-off of a queue: some 100 us.
const MAX_BACKOFF_CYCLES: u64 = 1 << 18;
/// An empty poll may take one part in this number times the number of queues (the kernel query counts as one
/// queue).
const SHARE: u64 = 8;
/// A smaller number of queues counts as this one.
const MIN_QUEUES: u64 = 4;

/// Time after the last packet from a ring in which more are expected: some 50 us. A worker without packets
/// polls for the same time.
pub(super) const RING_BUSY_CYCLES: u64 = 1 << 17;
/// Time for which "no packets" from the kernel is taken as true: a few microseconds.
const KERNEL_REPORT_CYCLES: u64 = 1 << 13;

/// The back-off of one queue, or of the kernel query.
#[derive(Debug, Default)]
pub(crate) struct PollBackoff {
    not_before: u64,
    /// Empty polls in a row: the back-off is the cost of a poll times two to this power.
    wasted: u32,
}

impl PollBackoff {
    /// Whether the queue is skipped at time `now` if other queues have packets.
    #[inline]
    pub(super) fn waits(&self, now: u64) -> bool {
        now < self.not_before
    }
    /// Whether the kernel has to be queried at time `now` before the queue is polled again.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.wasted > 0 && !self.waits(now)
    }
    /// The kernel reported no packets at time `now`. The next query is due after the back-off of `other`.
    pub(super) fn kernel_reports_empty(&mut self, now: u64, other: Option<&Self>) {
        let until = other.map_or(0, |o| o.not_before).max(now + KERNEL_REPORT_CYCLES);
        self.not_before = self.not_before.max(until);
    }
    /// A poll returned packets: ends the back-off.
    #[inline]
    pub(super) fn found(&mut self) {
        *self = Self::default();
    }
    /// An empty poll ended at `now` and took `cycles`; the worker has `queues` queues.
    pub(super) fn found_nothing(&mut self, cycles: u64, now: u64, queues: usize) {
        let max = SHARE * (queues as u64).max(MIN_QUEUES);
        self.wasted = (self.wasted + 1).min(u64::BITS / 2);
        let times = (1 << self.wasted).min(max);
        self.not_before = now + cycles.saturating_mul(times).min(MAX_BACKOFF_CYCLES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a worker with other work: rounds of `round` cycles, in which each of `queues` queues is
    /// polled for `look` cycles unless it backs off. Returns the share of these polls in the whole time, and
    /// the longest time between two polls of one queue.
    fn run(queues: usize, look: u64, round: u64) -> (f64, u64) {
        let mut looks: Vec<(PollBackoff, u64)> = (0..queues).map(|_| (PollBackoff::default(), 0)).collect();
        let (mut now, mut spent, mut longest) = (0, 0, 0);
        while now < 100_000_000 {
            now += round;
            for (l, last) in &mut looks {
                if !l.waits(now) {
                    now += look;
                    spent += look;
                    longest = longest.max(now - *last);
                    *last = now;
                    l.found_nothing(look, now, queues);
                }
            }
        }
        #[allow(clippy::cast_precision_loss)]
        (spent as f64 / now as f64, longest)
    }

    #[test]
    fn looks_take_an_eighth_of_the_time_and_none_is_long_in_coming() {
        let (share, longest) = run(1, 1000, 6000);
        assert!(share < 0.04, "{share}");
        assert!(longest < 45_000, "{longest}");
        for queues in [4, 16, 32] {
            let (share, longest) = run(queues, 1000, 6000);
            assert!(share < 0.13, "{queues} queues: {share}");
            assert!(
                longest <= MAX_BACKOFF_CYCLES + 6000 + 1000 * queues as u64,
                "{longest}"
            );
        }
        // With very many queues, each at the maximum back-off, the polls take more than their share.
        let (_, longest) = run(200, 1000, 6000);
        assert!(longest <= MAX_BACKOFF_CYCLES + 6000 + 200_000, "{longest}");
    }

    #[test]
    fn a_report_of_the_kernel_is_as_good_as_a_poll() {
        let mut l = PollBackoff::default();
        l.kernel_reports_empty(1, None);
        assert!(l.waits(KERNEL_REPORT_CYCLES) && !l.waits(KERNEL_REPORT_CYCLES + 1));
        // A kernel report does not shorten a back-off.
        (0..10).for_each(|_| l.found_nothing(1000, 1, 1));
        l.kernel_reports_empty(1, None);
        assert!(l.waits(30_000) && l.is_due(40_000));
        // The back-off also lasts as long as that of the query.
        let (mut question, mut l) = (PollBackoff::default(), PollBackoff::default());
        (0..10).for_each(|_| question.found_nothing(1000, 1, 1));
        l.kernel_reports_empty(1, Some(&question));
        assert!(l.waits(30_000) && !l.waits(40_000) && !l.is_due(40_000));
    }

    #[test]
    fn a_queue_that_has_packets_is_looked_at_in_each_round() {
        let mut l = PollBackoff::default();
        assert!(!l.waits(0));
        for _ in 0..100 {
            l.found_nothing(1000, 1, 1);
        }
        assert!(l.waits(30_000) && !l.waits(40_000));
        l.found();
        assert!(!l.waits(1));
        // The first empty poll after packets causes a short back-off. If the thread was preempted in a poll,
        // the back-off stays within the bound.
        l.found_nothing(1000, 1, 1);
        assert!(l.waits(2000) && !l.waits(2001));
        l.found_nothing(u64::MAX, 1, 1);
        assert!(l.waits(MAX_BACKOFF_CYCLES) && !l.waits(MAX_BACKOFF_CYCLES + 1));
    }
}
