//! Limits of accept loops.
//!
//! **Problem.** Each caller costs a descriptor. If callers take all of them, nothing else can be opened:
//! neither new ports nor the socket of the next caller. An accept loop that sleeps after an error must still
//! close the connections that ended, or it waits for descriptors that it holds itself.
//!
//! **Invariants.** A caller is accepted only with a [`Slot`], and the slot outlives the caller's socket.
//! Until a slot is free, callers wait in the kernel's queue. All slots together are a part of the process's
//! descriptors.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Time from an error of accept(2) to the next attempt.
const REST: Duration = Duration::from_millis(50);
/// Bounds of the number of slots of one kind.
const MIN_SLOTS: u64 = 8;
const MAX_SLOTS: u64 = 8192;

/// Number of callers that may have one of `parts` equal parts of the process's descriptors.
pub fn descriptor_part(parts: u64) -> u64 {
    let limit = heddle_sys::process::descriptor_limit() / parts.max(1);
    limit.clamp(MIN_SLOTS, MAX_SLOTS)
}

/// The callers of one kind that may be connected at the same time.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Semaphore>);

/// One caller's right to be connected, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    /// Slots for one of `parts` equal parts of the process's descriptors.
    pub fn part(parts: u64) -> Self {
        Self::new(descriptor_part(parts))
    }

    /// `n` slots.
    pub fn new(n: u64) -> Self {
        Self(Arc::new(Semaphore::new(usize::try_from(n).unwrap_or(usize::MAX))))
    }

    /// Waits for a free slot.
    pub async fn take(&self) -> Slot {
        match self.0.clone().acquire_owned().await {
            Ok(permit) => Slot { _permit: permit },
            // A semaphore is closed by its owner only, and this one never is.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether no slot is free.
    #[cfg(test)]
    fn is_full(&self) -> bool {
        self.0.available_permits() == 0
    }
}

/// Keeps an accept loop from spinning on an error. All waiting is inside of [`Pace::accept`], which may be
/// cancelled, as a branch of `select!` is.
#[derive(Debug, Default)]
pub struct Pace {
    until: Option<Instant>,
}

impl Pace {
    /// The next caller that `accept` gives. After an error, which is logged for the component `target`, it
    /// rests before it tries again.
    pub async fn accept<T, F>(&mut self, target: &str, accept: impl Fn() -> F) -> T
    where
        F: Future<Output = io::Result<T>>,
    {
        loop {
            if let Some(until) = self.until {
                sleep_until(until).await;
                self.until = None;
            }
            match accept().await {
                Ok(caller) => return caller,
                Err(e) => {
                    // The likely cause is a lack of descriptors.
                    let why = heddle_sys::errno_text(&e);
                    log::warn!(target: target, per_min = 5, burst = 5; "accept failed: {why}");
                    self.until = Some(Instant::now() + REST);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[tokio::test]
    async fn a_slot_is_free_again_when_its_caller_goes() {
        let slots = Slots::new(2);
        let (one, _two) = (slots.take().await, slots.take().await);
        assert!(slots.is_full());
        let third = tokio::time::timeout(Duration::from_millis(20), slots.take()).await;
        assert!(third.is_err());
        drop(one);
        slots.take().await;
        assert!(Slots::part(u64::MAX).0.available_permits() == 8);
    }

    #[tokio::test]
    async fn an_error_is_waited_out_though_the_wait_is_cancelled() {
        let (mut pace, tries) = (Pace::default(), AtomicU32::new(0));
        let began = Instant::now();
        let tries = &tries;
        let accept = move || async move {
            match tries.fetch_add(1, Relaxed) {
                0 => Err(io::ErrorKind::Other.into()),
                n => Ok(n),
            }
        };
        loop {
            let wait = Duration::from_millis(5);
            match tokio::time::timeout(wait, pace.accept("test", accept)).await {
                Ok(n) => break assert_eq!(n, 1),
                Err(_) => assert!(tries.load(Relaxed) == 1),
            }
        }
        assert!(began.elapsed() >= REST);
    }
}
