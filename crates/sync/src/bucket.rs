//! A token bucket that any thread takes from, without a lock.
//!
//! **One number.** Let a bucket have rate `r` (tokens per millisecond) and size `s`. At time `t` it holds
//! `r·t − taken` tokens, at most `s`. So only `taken` is kept, and a compare-and-swap raises it.
//!
//! **Arithmetic** wraps: only differences count. If a bucket was unused for so long that the difference could
//! exceed 2⁶³ tokens, the caller must [fill](TokenBucket::fill) it first.
//!
//! **Time** comes from the caller. A thread with a slow clock sees a slightly emptier bucket, never a fuller
//! one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A token bucket; the module's text explains it.
#[derive(Debug)]
pub struct TokenBucket {
    /// Tokens per millisecond.
    rate: u64,
    /// Maximum number of tokens.
    size: u64,
    taken: AtomicU64,
}

impl TokenBucket {
    /// A full bucket.
    pub const fn full(rate: u64, size: u64, now_ms: u64) -> Self {
        Self {
            rate,
            size,
            taken: AtomicU64::new(rate.wrapping_mul(now_ms).wrapping_sub(size)),
        }
    }
    /// Tokens per millisecond.
    pub fn rate(&self) -> u64 {
        self.rate
    }
    /// Fills it up.
    pub fn fill(&self, now_ms: u64) {
        self.taken
            .store(self.rate.wrapping_mul(now_ms).wrapping_sub(self.size), Relaxed);
    }
    /// Maximum number of tokens.
    pub fn size(&self) -> u64 {
        self.size
    }
    /// Takes `tokens` tokens. If it holds less, it takes none and returns `false`.
    pub fn take(&self, tokens: u64, now_ms: u64) -> bool {
        self.take_owing(tokens, tokens, now_ms)
    }
    /// Takes `tokens` tokens if it holds `needs`, and owes the rest. If it holds less, it takes none and
    /// returns `false`.
    pub fn take_owing(&self, tokens: u64, needs: u64, now_ms: u64) -> bool {
        self.take_above(tokens, needs.cast_signed(), now_ms)
    }
    /// Takes `tokens` tokens, and owes those that it does not hold.
    pub fn charge(&self, tokens: u64, now_ms: u64) {
        self.take_above(tokens, i64::MIN, now_ms);
    }
    /// Whether it holds `tokens` tokens.
    pub fn holds(&self, tokens: u64, now_ms: u64) -> bool {
        self.rate
            .wrapping_mul(now_ms)
            .wrapping_sub(self.taken.load(Relaxed))
            .cast_signed()
            >= tokens.cast_signed()
    }
    fn take_above(&self, tokens: u64, needs: i64, now_ms: u64) -> bool {
        let flowed = self.rate.wrapping_mul(now_ms);
        self.taken
            .fetch_update(Relaxed, Relaxed, |taken| {
                // Signed: a thread with a later clock may have emptied the bucket, so the level may be
                // negative here.
                let level = flowed.wrapping_sub(taken).cast_signed();
                let full = self.size.cast_signed();
                let (level, taken) = if level > full {
                    (full, flowed.wrapping_sub(self.size))
                } else {
                    (level, taken)
                };
                (level >= needs).then(|| taken.wrapping_add(tokens))
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_trickle() {
        let bucket = TokenBucket::full(1, 3000, 7);
        let taken = |now_ms| (0..10).filter(|_| bucket.take(1000, now_ms)).count();
        assert_eq!([7, 1007, 2006, 2007].map(taken), [3, 1, 0, 1]);
        assert_eq!([1_000_000, 999_999].map(taken), [3, 0]);
        bucket.fill(0);
        assert_eq!(taken(0), 3);
    }

    #[test]
    fn a_charge_is_always_taken() {
        let bucket = TokenBucket::full(1, 3000, 7);
        assert!(bucket.holds(3000, 7) && bucket.holds(3000, 1_000_000));
        bucket.charge(5000, 7);
        bucket.charge(1, 7);
        assert!(!bucket.holds(1, 2008) && bucket.holds(1, 2009));
    }

    #[test]
    fn a_full_bucket_owes() {
        let bucket = TokenBucket::full(1, 3000, 7);
        assert!(bucket.take_owing(10_000, bucket.size(), 7));
        assert!(!bucket.take_owing(10_000, 3000, 10_006) && !bucket.take(1, 7007));
        assert!(bucket.take_owing(10_000, 3000, 10_007));
    }
}
