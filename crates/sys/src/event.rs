//! Waking up and waiting: eventfd and epoll.

use crate::{cvt, cvt_len};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A counter that other threads raise to wake a waiter (eventfd(2)), non-blocking.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new counter at zero.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: plain system call; the result is checked before it is owned.
        let fd = cvt(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
    /// Makes it readable. A counter at its maximum already is, so the failure is no loss.
    pub fn notify(&self) {
        let one = 1_u64;
        // SAFETY: eight readable bytes.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
    /// Makes it unreadable again; returns how often it was raised since the last time.
    pub fn drain(&self) -> u64 {
        let mut n = 0_u64;
        // SAFETY: eight writable bytes.
        let got = cvt_len(unsafe { libc::read(self.0.as_raw_fd(), (&raw mut n).cast(), 8) });
        if got.is_ok() { n } else { 0 }
    }
}

impl From<OwnedFd> for EventFd {
    /// Takes over a descriptor that somebody else made, for [`EventFd::notify`]. It should be non-blocking: a write to a counter
    /// at its maximum waits otherwise. What it really is does not matter to this process.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
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
}
