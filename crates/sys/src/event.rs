//! Waking up and waiting: eventfd and epoll.

use crate::{cvt, cvt_len, patience};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A counter that other threads raise to wake a waiter (eventfd(2)), non-blocking.
///
/// One that another process made ([`EventFd::from`]) never makes this one wait either, whatever it is and whatever is done to it:
/// a notification that is made to wait is interrupted within some 40 ms, and was the last one.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    /// Of another process's descriptor: whether a notification was made to wait.
    stuck: Option<AtomicBool>,
}

impl EventFd {
    /// A new counter at zero.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: plain system call; the result is checked before it is owned.
        let fd = cvt(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
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
    fn write(&self) -> io::Result<usize> {
        let one = 1_u64;
        // SAFETY: eight readable bytes.
        cvt_len(unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) })
    }
    fn notify_other(&self, stuck: &AtomicBool) {
        // Relaxed: who does not see it yet is made to wait once more, which is bounded.
        if stuck.load(Ordering::Relaxed) {
            return;
        }
        let done = patience::bounded(|| !self.is_writable(), || self.write());
        if matches!(done, Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted) {
            stuck.store(true, Ordering::Relaxed);
            log::warn!(per_min = 4, burst = 4; "a descriptor for notifications made its writer wait: it is not written to any more");
        }
    }
    /// Whether a write would not wait now.
    fn is_writable(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one valid element.
        let n = unsafe { libc::poll(&raw mut poll, 1, 0) };
        n == 1 && poll.revents & libc::POLLOUT != 0
    }
    /// Whether another process's descriptor made a notification wait; it gets none since.
    pub fn is_stuck(&self) -> bool {
        self.stuck.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }
    /// Makes it unreadable again; returns how often it was raised since the last time.
    pub fn drain(&self) -> u64 {
        let mut n = 0_u64;
        // SAFETY: eight writable bytes.
        let got = cvt_len(unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut n).cast(), 8) });
        if got.is_ok() { n } else { 0 }
    }
}

impl From<OwnedFd> for EventFd {
    /// Takes over a descriptor that somebody else made, for [`EventFd::notify`]. It should be non-blocking: who is made to wait by it
    /// does not write to it again.
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

/// What [`Epoll::wait`] reports of one descriptor.
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
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// An empty set that reports up to `max` descriptors per wait.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new(max: usize) -> io::Result<Self> {
        // SAFETY: plain system call; the result is checked before it is owned.
        let fd = cvt(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)],
        })
    }
    /// Watches `fd` for input. A descriptor that is closed leaves the set by itself.
    ///
    /// # Errors
    /// `AlreadyExists` when it is watched already; else what epoll_ctl(2) says of the descriptor.
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut ev = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        // SAFETY: `ev` is valid for the call.
        cvt(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut ev) })?;
        Ok(())
    }
    /// Stops watching `fd`.
    ///
    /// # Errors
    /// `NotFound` when it was not watched.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: deletion takes no event.
        cvt(unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                fd,
                core::ptr::null_mut(),
            )
        })?;
        Ok(())
    }
    /// Waits up to `timeout_ms` (-1: without limit, 0: not at all). A signal ends the wait with an empty answer.
    ///
    /// # Errors
    /// None in practice; what epoll_wait(2) says.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<impl Iterator<Item = Ready> + '_> {
        let max = self.events.len() as i32;
        // SAFETY: `events` has `max` elements.
        let n = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), max, timeout_ms) };
        let n = match cvt(n) {
            Ok(n) => n as usize,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(e),
        };
        Ok(self.events.iter().take(n).map(|e| {
            let (bits, token) = (e.events, e.u64);
            Ready {
                token,
                readable: bits & (libc::EPOLLIN | libc::EPOLLHUP) as u32 != 0,
                error: bits & libc::EPOLLERR as u32 != 0,
            }
        }))
    }
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
        // SAFETY: plain system call.
        let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, 0) };
        assert_eq!(done, 0);
    }
    /// Notifies until nothing more fits, twice; nobody reads. Returns how long it took.
    fn flood(fd: &EventFd, times: usize) -> std::time::Duration {
        let began = std::time::Instant::now();
        for _ in 0..times {
            fd.notify();
        }
        began.elapsed()
    }
    /// Adds to its counter what it does not hold twice.
    fn fill(fd: &EventFd) {
        let most = u64::MAX - 2;
        // SAFETY: eight readable bytes.
        let n = unsafe { libc::write(fd.as_raw_fd(), (&raw const most).cast(), 8) };
        assert_eq!(n, 8);
    }
    fn foreign(fd: libc::c_int) -> EventFd {
        // SAFETY: a fresh descriptor that nobody else owns.
        EventFd::from(unsafe { OwnedFd::from_raw_fd(cvt(fd).unwrap()) })
    }

    /// A front end that clears O_NONBLOCK on its call descriptor, whose counter is full, does not hold a worker.
    #[test]
    fn a_full_blocking_eventfd_holds_nobody() {
        // SAFETY: plain system call.
        let call = foreign(unsafe { libc::eventfd(0, 0) });
        call.notify();
        assert!(!call.is_stuck());
        fill(&call);
        let took = flood(&call, 1000);
        assert!(took < 50 * patience::TICK, "{took:?}");
        assert!(call.is_stuck());
        // Another descriptor of the same thread is notified as before, also after the watchman slept.
        for pause in [0, 500] {
            std::thread::sleep(std::time::Duration::from_millis(pause));
            // SAFETY: as above.
            let other = foreign(unsafe { libc::eventfd(0, 0) });
            set_blocking(&other);
            other.notify();
            assert_eq!((other.drain(), other.is_stuck()), (1, false));
            fill(&other);
            let took = flood(&other, 3);
            assert!(took < 50 * patience::TICK && other.is_stuck(), "{took:?}");
        }
    }

    /// The same with a pipe that nobody reads, and with one whose reader is gone.
    #[test]
    fn a_full_pipe_holds_nobody() {
        let mut ends = [0; 2];
        // SAFETY: two writable elements.
        cvt(unsafe { libc::pipe(ends.as_mut_ptr()) }).unwrap();
        let (reader, call) = (foreign(ends[0]), foreign(ends[1]));
        let took = flood(&call, 20_000);
        assert!(
            took < 50 * patience::TICK + std::time::Duration::from_secs(1),
            "{took:?}"
        );
        assert!(call.is_stuck());
        drop(reader);
        call.notify();
    }

    /// Many threads are made to wait at the same time; each goes on.
    #[test]
    fn threads_are_let_go_one_by_one() {
        // SAFETY: plain system call.
        let call = foreign(unsafe { libc::eventfd(0, 0) });
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
