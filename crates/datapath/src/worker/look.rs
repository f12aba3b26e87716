//! How often a queue is looked at in vain whose every look is a system call.
//!
//! A worker asks each of its queues in each round. For a ring that is a load; for a tap it is a thousand
//! cycles and more, which with a burst from another queue in each round is a sixth of the worker's time, and
//! more with more taps. So a queue that was empty is left out for a while as long as **others have packets**
//! in this round, or rings had some lately ([`LIVELY`]): a packet that comes to a ring meanwhile would wait
//! until all taps have been asked. Otherwise a worker asks all.
//!
//! When the while is over, the kernel is asked for all such queues at once, through the set of descriptors
//! that the worker sleeps on, and those of which it knows nothing are left out again. The while is twice as
//! long each time that there is nothing. The bounds: such questions take about a thirtieth of the time, and
//! nobody waits longer than [`LONGEST`] for his first packet to be seen. A queue that is looked at in vain
//! although the kernel named it is left out by itself in the same way; that takes at most about an eighth of
//! the time.
//!
//! Who wakes the worker says which queues have something: the others are left out of the round that follows.
//!
//! Pure: the caller brings the time.

/// Cycles that a queue is left out at most: some 100 us.
const LONGEST: u64 = 1 << 18;
/// A look may take one part in this many times the number of queues (of questions there is one) ...
const PART: u64 = 8;
/// ... which are taken for these many, if they are fewer.
const FEW: u64 = 4;

/// As long after packets from rings more of them are expected, as a worker without packets polls on: some 50
/// us.
pub(super) const LIVELY: u64 = 1 << 17;
/// That the kernel knew of no packets is true for so long: a few microseconds.
const TOLD: u64 = 1 << 13;

/// One queue's account.
#[derive(Debug, Default)]
pub(super) struct Look {
    not_before: u64,
    /// What a look cost is multiplied by two to this power.
    vain: u32,
}

impl Look {
    /// Whether it is left out at time `now`, if others have packets.
    #[inline]
    pub(super) fn waits(&self, now: u64) -> bool {
        now < self.not_before
    }
    /// Whether the kernel is to be asked at time `now` before it is looked at again.
    #[inline]
    pub(super) fn asks(&self, now: u64) -> bool {
        self.vain > 0 && !self.waits(now)
    }
    /// The kernel, asked for all queues at once, knew of no packets at time `now`; it is to be asked again
    /// no sooner than `other` is over.
    pub(super) fn told_empty(&mut self, now: u64, other: Option<&Self>) {
        let until = other.map_or(0, |o| o.not_before).max(now + TOLD);
        self.not_before = self.not_before.max(until);
    }
    /// There were packets.
    #[inline]
    pub(super) fn found(&mut self) {
        *self = Self::default();
    }
    /// A look that ended at `now` found nothing and took `cycles`; the worker has so many queues.
    pub(super) fn in_vain(&mut self, cycles: u64, now: u64, queues: usize) {
        let most = PART * (queues as u64).max(FEW);
        self.vain = (self.vain + 1).min(u64::BITS / 2);
        let times = (1 << self.vain).min(most);
        self.not_before = now + cycles.saturating_mul(times).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker with other work: rounds of `round` cycles, in which each of `queues` queues is looked at for
    /// `look` cycles unless it waits. Returns the share of looks in all of the time, and the longest time
    /// between two looks at one queue.
    fn run(queues: usize, look: u64, round: u64) -> (f64, u64) {
        let mut looks: Vec<(Look, u64)> = (0..queues).map(|_| (Look::default(), 0)).collect();
        let (mut now, mut spent, mut longest) = (0, 0, 0);
        while now < 100_000_000 {
            now += round;
            for (l, last) in &mut looks {
                if !l.waits(now) {
                    now += look;
                    spent += look;
                    longest = longest.max(now - *last);
                    *last = now;
                    l.in_vain(look, now, queues);
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
            assert!(longest <= LONGEST + 6000 + 1000 * queues as u64, "{longest}");
        }
        // Where so many are left out as long as may be, they take what they take.
        let (_, longest) = run(200, 1000, 6000);
        assert!(longest <= LONGEST + 6000 + 200_000, "{longest}");
    }

    #[test]
    fn what_the_kernel_says_is_as_good_as_a_look() {
        let mut l = Look::default();
        l.told_empty(1, None);
        assert!(l.waits(TOLD) && !l.waits(TOLD + 1));
        // It makes no wait shorter.
        (0..10).for_each(|_| l.in_vain(1000, 1, 1));
        l.told_empty(1, None);
        assert!(l.waits(30_000) && l.asks(40_000));
        // Nor shorter than that of the question.
        let (mut question, mut l) = (Look::default(), Look::default());
        (0..10).for_each(|_| question.in_vain(1000, 1, 1));
        l.told_empty(1, Some(&question));
        assert!(l.waits(30_000) && !l.waits(40_000) && !l.asks(40_000));
    }

    #[test]
    fn a_queue_that_has_packets_is_looked_at_in_each_round() {
        let mut l = Look::default();
        assert!(!l.waits(0));
        for _ in 0..100 {
            l.in_vain(1000, 1, 1);
        }
        assert!(l.waits(30_000) && !l.waits(40_000));
        l.found();
        assert!(!l.waits(1));
        // The first look in vain after packets costs little time, a thread that was put aside in one no more
        // than the bound.
        l.in_vain(1000, 1, 1);
        assert!(l.waits(2000) && !l.waits(2001));
        l.in_vain(u64::MAX, 1, 1);
        assert!(l.waits(LONGEST) && !l.waits(LONGEST + 1));
    }
}
