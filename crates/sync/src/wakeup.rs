//! Waking a thread that waits for work.
//!
//! `std::thread::unpark` leaves one token, which any wait of that thread takes: a channel's `recv`, the end
//! of a scope. A thread that waits for a reply before it parks loses a token that came meanwhile. So a flag
//! announces the work, and the token only ends the sleep.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// One waiting thread, which any thread wakes.
#[derive(Debug, Default)]
pub struct Wakeup {
    rung: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Wakeup {
    /// Registers the calling thread as the one to wake, unless there is one already.
    pub fn register(&self) {
        self.thread.get_or_init(std::thread::current);
    }

    /// Wakes the thread, or makes its next wait return at once. Never blocks.
    pub fn ring(&self) {
        // Release, with the swap in `is_rung`: the woken thread sees all writes that came before.
        self.rung.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Whether it was rung since the last wait or look.
    pub fn is_rung(&self) -> bool {
        self.rung.swap(false, Ordering::Acquire)
    }

    /// Sleeps until [`Wakeup::ring`], or returns at once if that was called before.
    pub fn wait(&self) {
        self.register();
        while !self.is_rung() {
            std::thread::park();
        }
    }

    /// Like [`Wakeup::wait`], until `end` at most. Returns whether it was rung.
    pub fn wait_until(&self, end: Instant) -> bool {
        self.register();
        loop {
            if self.is_rung() {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            std::thread::park_timeout(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// The thread is woken while it waits for something else, which takes the token.
    #[test]
    fn what_wakes_a_thread_in_another_wait_is_not_lost() {
        let (wakeup, (tx, rx)) = (Wakeup::default(), mpsc::channel());
        std::thread::scope(|scope| {
            let wakeup = &wakeup;
            let waiter = scope.spawn(move || {
                wakeup.register();
                rx.recv().unwrap();
                wakeup.wait_until(Instant::now() + Duration::from_secs(60))
            });
            while wakeup.thread.get().is_none() {
                std::thread::yield_now();
            }
            // Long enough that it is in the other wait.
            std::thread::sleep(Duration::from_millis(50));
            wakeup.ring();
            std::thread::sleep(Duration::from_millis(50));
            tx.send(()).unwrap();
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn one_ring_ends_one_wait() {
        let wakeup = Wakeup::default();
        wakeup.ring();
        wakeup.wait();
        assert!(!wakeup.wait_until(Instant::now() + Duration::from_millis(5)));
    }
}
