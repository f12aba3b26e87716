//! One descriptor that stands for a changing one: a sleeper waits on it while the descriptor behind it comes
//! and goes.
//!
//! **Problem.** A thread waits on a descriptor for as long as a queue lives. The descriptor that makes the
//! queue ready (a guest's kick) is a different one in each session. The session itself must be able to wake
//! the thread, too.
//!
//! **Invariants.** [`WakeSet::as_raw_fd`] never changes. It is readable when, since the last
//! [`WakeSet::clear`], the source was raised, the doorbell was rung, or a millisecond passed. The millisecond
//! counts only with a source of `None` and polling on. No wake-up is lost: a thread that clears first and
//! then checks the queue sees either the work or the descriptor readable again.
//!
//! **Costs.** An epoll descriptor with edge-triggered members, so the source is never read. Clearing is one
//! system call (two while polling), and only a woken thread makes it. A source may be any descriptor; one
//! that epoll refuses is reported.
//!
//! **Thread-safety.** All functions take `&self` and may be called from any thread.

use crate::EventFd;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Time between two checks of a polled source, nanoseconds.
const POLL_NS: i64 = 1_000_000;

/// A stable descriptor in front of a source that may be replaced, a doorbell and a timer.
#[derive(Debug)]
pub struct WakeSet {
    epoll: OwnedFd,
    bell: EventFd,
    timer: OwnedFd,
    /// The timer runs.
    polling: AtomicBool,
}

impl WakeSet {
    /// A set without a source.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let set = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: EventFd::new()?,
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            polling: AtomicBool::new(false),
        };
        set.add(set.bell.as_fd())?;
        set.add(set.timer.as_fd())?;
        Ok(set)
    }

    /// Adds a source. One that is readable already makes the set readable.
    ///
    /// # Errors
    /// The error of epoll_ctl(2): a regular file, for example, cannot be waited for.
    pub fn add(&self, source: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            source,
            epoll::EventData::new_u64(0),
            flags,
        )?)
    }
    /// Removes a source; one that is not there is no error. (Another process may hold the same open file, so
    /// closing it is not enough.)
    pub fn remove(&self, source: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, source);
    }
    /// Begins or ends to be readable every millisecond: for a queue without a source.
    pub fn poll(&self, on: bool) {
        let every = Timespec {
            tv_sec: 0,
            tv_nsec: if on { POLL_NS } else { 0 },
        };
        let spec = Itimerspec {
            it_interval: every,
            it_value: every,
        };
        let done = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
        debug_assert!(done.is_ok(), "the descriptor is a timer and the times are legal");
        // Relaxed: a thread that does not see it yet is woken once more, which does no harm.
        self.polling.store(on, Ordering::Relaxed);
    }
    /// Makes the set readable.
    pub fn ring(&self) {
        self.bell.notify();
    }
    /// Makes it unreadable until something new happens.
    pub fn clear(&self) {
        if self.polling.load(Ordering::Relaxed) {
            // A read makes the timer run on.
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        }
        // The events' content does not matter: taking edge-triggered events clears them.
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
        let _ = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()));
    }
}

impl AsRawFd for WakeSet {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoll;
    use std::os::fd::AsFd;

    fn ready(ep: &mut Epoll, ms: i32) -> bool {
        ep.wait(ms).unwrap().next().is_some()
    }

    #[test]
    fn the_source_may_change_and_nothing_is_lost() {
        let set = WakeSet::new().unwrap();
        let mut ep = Epoll::new(4).unwrap();
        ep.add(set.as_raw_fd(), 1).unwrap();
        assert!(!ready(&mut ep, 0));
        let first = EventFd::new().unwrap();
        first.notify();
        set.add(first.as_fd()).unwrap();
        assert!(ready(&mut ep, 1000), "raised before it was added");
        set.clear();
        assert!(!ready(&mut ep, 0));
        first.notify();
        assert!(
            ready(&mut ep, 1000),
            "each raise is told, though nobody reads the source"
        );
        set.clear();
        set.remove(first.as_fd());
        first.notify();
        assert!(!ready(&mut ep, 0));
        let second = EventFd::new().unwrap();
        set.add(second.as_fd()).unwrap();
        drop(first);
        second.notify();
        set.ring();
        assert!(ready(&mut ep, 1000));
        set.clear();
        assert!(!ready(&mut ep, 0), "one call clears all");
        set.ring();
        assert!(ready(&mut ep, 1000));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(set.add(file.as_fd()).is_err());
    }

    #[test]
    fn polling_comes_by_itself() {
        let set = WakeSet::new().unwrap();
        let mut ep = Epoll::new(4).unwrap();
        ep.add(set.as_raw_fd(), 1).unwrap();
        set.poll(true);
        for _ in 0..3 {
            assert!(ready(&mut ep, 1000));
            set.clear();
        }
        set.poll(false);
        set.clear();
        assert!(!ready(&mut ep, 20));
    }
}
