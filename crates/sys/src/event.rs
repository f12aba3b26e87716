//! Waking up and waiting: eventfd and epoll.

#![allow(unsafe_code)] // descriptors as epoll takes them

use crate::patience;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A counter that other threads raise to wake a waiter (eventfd(2)), non-blocking.
///
/// A counter that another process made ([`EventFd::from`]) never blocks this process either, whatever the
/// other process does to it. A notification that blocks is interrupted within some 40 ms, and is the last
/// one.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    /// Whether a notification blocked, for a descriptor of another process.
    stuck: Option<AtomicBool>,
}

impl EventFd {
    /// A new counter at zero.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, stuck: None })
    }
    /// Makes it readable. A counter at its maximum already is, so the failure is no loss.
    #[inline]
    pub fn notify(&self) {
        match &self.stuck {
            None => drop(self.write()),
            Some(stuck) => self.notify_other(stuck),
        }
    }
    fn write(&self) -> Result<usize, Errno> {
        rustix::io::write(&self.fd, &1_u64.to_ne_bytes())
    }
    fn notify_other(&self, stuck: &AtomicBool) {
        // Relaxed: a thread that does not see it yet blocks once more, which is bounded.
        if stuck.load(Ordering::Relaxed) {
            return;
        }
        let done = patience::bounded(|| !self.is_writable(), || self.write());
        if done == Some(Err(Errno::INTR)) {
            stuck.store(true, Ordering::Relaxed);
            log::warn!(per_min = 4, burst = 4; "a descriptor for notifications made its writer wait: it is not written to any more");
        }
    }
    /// Whether a write would not wait now.
    fn is_writable(&self) -> bool {
        let mut asked = [PollFd::new(&self.fd, PollFlags::OUT)];
        poll(&mut asked, Some(&Timespec::default())) == Ok(1) && asked[0].revents().contains(PollFlags::OUT)
    }
    /// Whether another process's descriptor made a notification wait; it gets none since.
    pub fn is_stuck(&self) -> bool {
        self.stuck.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }
    /// Makes it unreadable again; returns how often it was raised since the last time.
    pub fn drain(&self) -> u64 {
        let mut n = [0; 8];
        match rustix::io::read(&self.fd, &mut n) {
            Ok(_) => u64::from_ne_bytes(n),
            Err(_) => 0,
        }
    }
}

impl From<OwnedFd> for EventFd {
    /// Takes over a descriptor that another process made, for [`EventFd::notify`]. It should be non-blocking:
    /// after a write that blocks, this process writes to it no more.
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd,
            stuck: Some(AtomicBool::new(false)),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// One descriptor that [`Epoll::wait`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token given to [`Epoll::add`].
    pub token: u64,
    /// Data can be read, or the peer closed.
    pub readable: bool,
    /// The descriptor is in an error state.
    pub error: bool,
}

/// Level-triggered readiness of many descriptors (epoll(7)). Waiting allocates nothing.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<epoll::Event>,
}

// SAFETY: it is not `Send` by itself since an event can hold a pointer; these hold numbers.
unsafe impl Send for Epoll {}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Epoll({:?})", self.fd)
    }
}

impl Epoll {
    /// An empty set that reports up to `max` descriptors per wait.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new(max: usize) -> io::Result<Self> {
        let none = epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        };
        Ok(Self {
            fd: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: vec![none; max.max(1)],
        })
    }
    /// Watches `fd` for input. A descriptor that is closed leaves the set by itself.
    ///
    /// # Errors
    /// `AlreadyExists` when it is watched already; otherwise errors of epoll_ctl(2).
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.fd, named(fd)?, data, epoll::EventFlags::IN)?)
    }
    /// Stops watching `fd`.
    ///
    /// # Errors
    /// `NotFound` when it was not watched.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, named(fd)?)?)
    }
    /// Waits up to `timeout_ms` (-1 is without limit, 0 is not at all). A signal ends the wait with an empty
    /// result.
    ///
    /// # Errors
    /// The errors of epoll_wait(2); in practice there are none.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<impl Iterator<Item = Ready> + '_> {
        let limit = u64::try_from(timeout_ms).ok().map(|ms| Timespec {
            tv_sec: (ms / 1000) as i64,
            tv_nsec: (ms % 1000 * 1_000_000) as i64,
        });
        let n = match epoll::wait(&self.fd, &mut self.events[..], limit.as_ref()) {
            Err(Errno::INTR) => 0,
            n => n?,
        };
        Ok(self.events.iter().take(n).map(|e| {
            let (flags, data) = (e.flags, e.data);
            Ready {
                token: data.u64(),
                readable: flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP),
                error: flags.contains(epoll::EventFlags::ERR),
            }
        }))
    }
}

/// A descriptor that its owner named by its number.
fn named<'a>(fd: RawFd) -> io::Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: not -1. It goes to the kernel alone, which knows whether it is open.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notify_wakes_and_drain_clears() {
        let ev = EventFd::new().unwrap();
        let mut ep = Epoll::new(4).unwrap();
        ep.add(ev.as_raw_fd(), 7).unwrap();
        assert_eq!(ep.wait(0).unwrap().count(), 0);
        ev.notify();
        ev.notify();
        let got: Vec<Ready> = ep.wait(1000).unwrap().collect();
        assert_eq!(
            got,
            [Ready {
                token: 7,
                readable: true,
                error: false
            }]
        );
        assert_eq!(ev.drain(), 2);
        assert_eq!(ep.wait(0).unwrap().count(), 0);
        ep.remove(ev.as_raw_fd()).unwrap();
        assert!(ep.remove(ev.as_raw_fd()).is_err());
    }

    fn set_blocking(fd: &EventFd) {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).unwrap();
    }
    /// Notifies until nothing more fits, twice, without a reader. Returns the time that it took.
    fn flood(fd: &EventFd, times: usize) -> std::time::Duration {
        let began = std::time::Instant::now();
        for _ in 0..times {
            fd.notify();
        }
        began.elapsed()
    }
    /// Adds a number to its counter that it cannot hold twice.
    fn fill(fd: &EventFd) {
        let most = (u64::MAX - 2).to_ne_bytes();
        assert_eq!(rustix::io::write(fd, &most), Ok(8));
    }
    fn blocking() -> EventFd {
        EventFd::from(eventfd(0, EventfdFlags::empty()).unwrap())
    }

    /// A front end that clears O_NONBLOCK on its call descriptor, whose counter is full, does not hold a
    /// worker.
    #[test]
    fn a_full_blocking_eventfd_holds_nobody() {
        let call = blocking();
        call.notify();
        assert!(!call.is_stuck());
        fill(&call);
        let took = flood(&call, 1000);
        assert!(took < 50 * patience::TICK, "{took:?}");
        assert!(call.is_stuck());
        // Another descriptor of the same thread is notified as before, also after the watchman slept.
        for pause in [0, 500] {
            std::thread::sleep(std::time::Duration::from_millis(pause));
            let other = blocking();
            set_blocking(&other);
            other.notify();
            assert_eq!((other.drain(), other.is_stuck()), (1, false));
            fill(&other);
            let took = flood(&other, 3);
            assert!(took < 50 * patience::TICK && other.is_stuck(), "{took:?}");
        }
    }

    /// The same with a pipe that no process reads, and with one whose reader is gone.
    #[test]
    fn a_full_pipe_holds_nobody() {
        let (reader, writer) = std::io::pipe().unwrap();
        let call = EventFd::from(OwnedFd::from(writer));
        let took = flood(&call, 20_000);
        assert!(
            took < 50 * patience::TICK + std::time::Duration::from_secs(1),
            "{took:?}"
        );
        assert!(call.is_stuck());
        drop(reader);
        call.notify();
    }

    /// Many threads block at the same time; each continues.
    #[test]
    fn threads_are_let_go_one_by_one() {
        let call = blocking();
        fill(&call);
        let began = std::time::Instant::now();
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| call.notify());
            }
        });
        assert!(began.elapsed() < 50 * patience::TICK, "{:?}", began.elapsed());
    }
}
