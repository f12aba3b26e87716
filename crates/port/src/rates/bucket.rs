//! A bucket of credit that one thread uses at a time.
//!
//! **One number**: the time at which the credit is zero. Earlier it is negative, later there is credit, up to
//! the depth. A packet may leave while there is credit, whatever its length, and the bucket owes the rest. So
//! no packet is too long for a bucket, and the rate is exact in the long run.

use super::clock::{MS, SECOND};

/// Credit that a waiting packet may gain beyond the depth. The worker that sends it may be late by this time,
/// and the rate stays exact.
const SLACK: u64 = 10 * MS;
/// Maximum time that bytes take, 194 days: longer than a packet may wait, and sums do not overflow.
const MAX_DEBT_TICKS: u64 = SECOND << 24;
/// Fixed point of the cost of a byte.
const SHIFT: u32 = 16;

/// See the module's text. Times are ticks ([`super::clock`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bucket {
    /// The time at which the credit is zero.
    pub(super) at: u64,
    /// Time that a byte takes, times 2^`SHIFT`; 0: no limit.
    cost: u64,
    /// Time in which an unused bucket fills up.
    depth: u64,
}

impl Bucket {
    /// A full bucket; `None`: no limit.
    pub(super) fn full(bytes_per_s: Option<u64>, burst_bytes: u64, now: u64) -> Self {
        let cost = bytes_per_s.map_or(0, |rate| {
            let cost = (u128::from(SECOND) << SHIFT) / u128::from(rate.max(1));
            u64::try_from(cost).unwrap_or(u64::MAX)
        });
        let mut bucket = Self {
            at: 0,
            cost,
            depth: 0,
        };
        bucket.depth = bucket.time(burst_bytes);
        bucket.at = now.saturating_sub(bucket.depth);
        bucket
    }
    /// Time that `bytes` take.
    fn time(&self, bytes: u64) -> u64 {
        let time = (u128::from(bytes) * u128::from(self.cost)) >> SHIFT;
        u64::try_from(time).unwrap_or(u64::MAX).min(MAX_DEBT_TICKS)
    }
    /// Whether a packet may leave.
    #[inline]
    pub(super) fn is_ready(&self, now: u64) -> bool {
        self.at <= now
    }
    /// A packet comes to an empty queue: the bucket holds no more than its depth.
    pub(super) fn begin(&mut self, now: u64) {
        self.at = self.at.max(now.saturating_sub(self.depth));
    }
    /// A packet of `bytes` leaves.
    #[inline]
    pub(super) fn charge(&mut self, bytes: u64, now: u64) {
        let floor = now.saturating_sub(self.depth.max(SLACK));
        self.at = self.at.max(floor) + self.time(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_packet_leaves_and_owes() {
        // 1 Mbit/s: a byte takes 8 us.
        let now = 100 * SECOND;
        let mut bucket = Bucket::full(Some(125_000), 1500, now);
        assert!(bucket.is_ready(now));
        bucket.charge(64_000, now);
        // The burst was credit.
        let zero = now + (64_000 - 1500) * 8_000 * 64;
        assert!(bucket.at.abs_diff(zero) < MS, "{}", bucket.at.abs_diff(zero));
        assert!(!bucket.is_ready(zero - MS) && bucket.is_ready(zero + MS));
        // An unused bucket holds its depth, a used one what its worker was late by.
        let later = zero + SECOND;
        let mut unused = bucket;
        unused.begin(later);
        assert_eq!(unused.at, later - 1500 * 8_000 * 64);
        bucket.charge(0, later);
        assert_eq!(bucket.at, later - (1500 * 8_000 * 64).max(SLACK));
    }

    #[test]
    fn no_limit_and_the_lowest_rate() {
        let mut free = Bucket::full(None, 0, 5);
        (0..1000).for_each(|_| free.charge(65_000, 5));
        assert!(free.is_ready(5));
        let mut slow = Bucket::full(Some(0), u64::MAX, 5);
        (0..10).for_each(|_| slow.charge(65_000, 5));
        assert!(!slow.is_ready(SECOND));
    }
}
