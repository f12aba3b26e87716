//! Descriptors that another process handed over, to be closed without waiting.
//!
//! **Problem.** Closing a descriptor can take as long as its maker likes. Examples are a TCP socket that
//! lingers, a file whose server does not reply, a Unix socket with such descriptors in its queue. A thread
//! that serves many processes must not close such a descriptor. It must not query it either if the query goes
//! to a file's server (fstat(2), fstatfs(2)).
//!
//! **How.** A descriptor that is dropped here is closed by a thread that exists for nothing else. Descriptors
//! that cannot block (memory files) are closed at once.
//!
//! **Limits.** A descriptor whose closing never returns stays in this process's table, as its maker wanted.
//! Descriptors that are dropped after it stay, too; only the closing thread waits.

#![allow(unsafe_code)] // a descriptor that is kept open

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

/// A descriptor of another process's making. Closed elsewhere when dropped.
#[derive(Debug)]
pub struct Foreign(ManuallyDrop<OwnedFd>);

/// Kinds of descriptors that may be used and closed without waiting.
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
    /// The descriptor itself, for a caller that knows that it never blocks ([`Foreign::kind`]).
    pub fn into_fd(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its descriptor is taken once.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
    /// The descriptor's kind. Runs only the kernel's own code.
    pub fn kind(&self) -> Kind {
        kind(self.as_fd())
    }
}

/// The kind of a descriptor. Runs only the kernel's own code: no file's server, no network.
pub fn kind(fd: BorrowedFd<'_>) -> Kind {
    // SAFETY: plain system call on a descriptor that is open. Files in memory have seals, others give an
    // error.
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

/// Closes `fd` on another thread.
pub fn close(fd: OwnedFd) {
    static CLOSER: LazyLock<Option<Sender<OwnedFd>>> = LazyLock::new(|| {
        let (sender, given) = channel::<OwnedFd>();
        let run = move || {
            for fd in given {
                do_not_linger(fd.as_fd());
                drop(fd);
            }
        };
        let started = std::thread::Builder::new().name("fd-closer".into()).spawn(run);
        started.is_ok().then_some(sender)
    });
    // Without the thread it is closed here.
    if let Some(closer) = &*CLOSER {
        let _ = closer.send(fd);
    }
}

/// Sets a socket not to wait when it is closed; its maker may set the opposite at any time.
fn do_not_linger(fd: BorrowedFd<'_>) {
    let off = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    // A descriptor that is no socket refuses.
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

    /// Connections that linger, with unsent data: the thread that drops them does not wait.
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
        // The descriptor is closed nevertheless.
        let (mut reader, writer) = std::io::pipe().unwrap();
        drop(Foreign::new(writer.into()));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
