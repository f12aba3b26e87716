//! Descriptors that another process handed over, to be let go of without waiting.
//!
//! **Problem.** Closing a descriptor can take as long as whoever made it likes: a TCP socket that lingers, a file whose server does not
//! answer, a Unix socket with such descriptors in its queue. A thread that serves many processes must not close such a thing, and also not
//! ask about it what would be asked of a file's server (fstat(2), fstatfs(2)).
//!
//! **How.** What is dropped here is closed by a thread that exists for nothing else and ends a second after the last ([`IDLE`]). A thread
//! that is made to wait is replaced, up to [`THREADS`]; then descriptors wait for their turn. What cannot make anybody wait (memory
//! files) is closed on the spot.
//!
//! **Limits.** A descriptor whose closing never returns stays in this process's table, as its maker wanted; nobody waits for it.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most threads that close.
const THREADS: usize = 32;
/// How long a thread waits for more: one that comes and goes with each descriptor would cost more than the closing.
const IDLE: Duration = Duration::from_secs(1);

/// A descriptor of another process's making. Closed elsewhere when dropped.
#[derive(Debug)]
pub struct Foreign(ManuallyDrop<OwnedFd>);

/// What kinds of descriptors there are that may be used and closed without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file in memory: a memfd, or a file in a tmpfs or hugetlbfs.
    Memory,
    /// An eventfd, or a pipe without a name.
    Notifier,
    /// Anything else.
    Other,
}

impl Foreign {
    /// Takes over a descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
    /// The descriptor itself, for who knows that it makes nobody wait ([`Foreign::kind`]).
    pub fn into_fd(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its descriptor is taken once.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
    /// What it is. Asks nobody but the kernel's own code.
    pub fn kind(&self) -> Kind {
        kind(self.as_fd())
    }
}

/// What a descriptor is. Asks nobody but the kernel's own code: no file's server, no network.
pub fn kind(fd: BorrowedFd<'_>) -> Kind {
    // SAFETY: plain system call on a descriptor that is open. Files in memory have seals, others give an error.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } >= 0 {
        return Kind::Memory;
    }
    // The kernel's name of it; one of a file in a file system begins with a slash.
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let name = link.unwrap_or_default().into_os_string();
    let name = name.as_encoded_bytes();
    if name == b"anon_inode:[eventfd]" || name.starts_with(b"pipe:[") {
        Kind::Notifier
    } else {
        Kind::Other
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the descriptor is not used after this.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        // SAFETY: plain system call on a descriptor that is open.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } >= 0 {
            drop(fd);
        } else {
            close(fd);
        }
    }
}

struct Closers {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// Threads that are in the middle of a close.
    busy: usize,
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers {
    waiting: VecDeque::new(),
    threads: 0,
    busy: 0,
});
static MORE: Condvar = Condvar::new();

fn closers() -> MutexGuard<'static, Closers> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes `fd` on another thread.
pub fn close(fd: OwnedFd) {
    let mut c = closers();
    c.waiting.push_back(fd);
    // One that is not busy takes one of those that wait.
    if c.threads - c.busy >= c.waiting.len() || c.threads >= THREADS {
        MORE.notify_one();
        return;
    }
    c.threads += 1;
    drop(c);
    let started = std::thread::Builder::new().name("fd-closer".into()).spawn(run);
    if started.is_err() {
        // No thread to be had: it waits for the next one.
        closers().threads -= 1;
    }
}

fn run() {
    let mut c = closers();
    loop {
        while let Some(fd) = c.waiting.pop_front() {
            c.busy += 1;
            drop(c);
            do_not_linger(fd.as_fd());
            drop(fd);
            c = closers();
            c.busy -= 1;
        }
        let (again, waited) = MORE.wait_timeout(c, IDLE).unwrap_or_else(PoisonError::into_inner);
        c = again;
        if waited.timed_out() && c.waiting.is_empty() {
            break;
        }
    }
    c.threads -= 1;
}

/// Asks a socket not to wait when it is closed; its maker may ask for the opposite at any time.
fn do_not_linger(fd: BorrowedFd<'_>) {
    let off = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    // What is no socket refuses.
    let _ = crate::sock::set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &off);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventFd;
    use crate::mmap::{Pages, memfd};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    #[test]
    fn kinds_are_told_apart() {
        let of = |fd: OwnedFd| Foreign::new(fd).kind();
        assert_eq!(of(memfd("test", 1, Pages::Normal).unwrap()), Kind::Memory);
        let eventfd = EventFd::new().unwrap();
        assert_eq!(kind(eventfd.as_fd()), Kind::Notifier);
        let (reader, writer) = std::io::pipe().unwrap();
        assert_eq!(
            (of(reader.into()), of(writer.into())),
            (Kind::Notifier, Kind::Notifier)
        );
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(of(zero.into()), Kind::Other);
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!((of(a.into()), of(b.into())), (Kind::Other, Kind::Other));
    }

    /// Connections that linger, with unsent data: whoever lets go of them does not wait.
    #[test]
    fn letting_go_of_what_lingers_takes_no_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let began = Instant::now();
        let mut peers = Vec::new();
        for _ in 0..4 {
            let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peers.push(listener.accept().unwrap().0);
            ours.set_nonblocking(true).unwrap();
            while ours.write(&[0; 65536]).is_ok() {}
            ours.set_nonblocking(false).unwrap();
            let on = libc::linger {
                l_onoff: 1,
                l_linger: 20,
            };
            crate::sock::set(ours.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &on).unwrap();
            let before = Instant::now();
            drop(Foreign::new(ours.into()));
            assert!(before.elapsed() < Duration::from_secs(2));
        }
        assert!(began.elapsed() < Duration::from_secs(10));
        // It is closed nevertheless.
        let (mut reader, writer) = std::io::pipe().unwrap();
        drop(Foreign::new(writer.into()));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
