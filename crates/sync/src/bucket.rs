//! A token bucket that any thread takes from, without a lock.
//!
//! **One number.** A bucket of rate `r` (tokens per millisecond) and size `s` holds at time `t` what has
//! flowed in less what was taken: `r·t − taken`, at most `s`. So only `taken` is kept, and a compare-and-swap
//! raises it.
//!
//! **Arithmetic** wraps: only differences count. A bucket that nobody used for so long that its difference
//! could leave the range of 2⁶³ tokens is to be [filled](TokenBucket::fill) first.
//!
//! **Time** is the caller's. One whose clock lags finds the bucket a little emptier, never fuller.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// See the module's text.
#[derive(Debug)]
pub struct TokenBucket {
    /// Tokens per millisecond.
    rate: u64,
    /// Tokens that it holds at most.
    size: u64,
    taken: AtomicU64,
}

impl TokenBucket {
    /// A full one.
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
    /// Takes so many tokens; `false`, and nothing is taken, if it holds less.
    pub fn take(&self, tokens: u64, now_ms: u64) -> bool {
        let flowed = self.rate.wrapping_mul(now_ms);
        self.taken
            .fetch_update(Relaxed, Relaxed, |taken| {
                // Signed: a bucket that somebody with a later clock has emptied holds less than nothing.
                let level = flowed.wrapping_sub(taken).cast_signed();
                let full = self.size.cast_signed();
                let (level, taken) = if level > full {
                    (full, flowed.wrapping_sub(self.size))
                } else {
                    (level, taken)
                };
                (level >= tokens.cast_signed()).then(|| taken.wrapping_add(tokens))
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
}
