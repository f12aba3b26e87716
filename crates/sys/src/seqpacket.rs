//! Unix sockets that keep the bounds of messages (`SOCK_SEQPACKET`, unix(7)), for a sender that never waits.
//!
//! **Invariant.** A message is sent as a whole or not at all. The kernel's send buffer bounds the messages
//! that wait for a slow reader; a further message is refused with `WouldBlock`.

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// A listening socket. It never waits.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`, for the owner and the group of the process. A socket there without a listener is
    /// replaced.
    ///
    /// # Errors
    /// `AddrInUse` if another process listens there or the file is no socket; the system's errors.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let fd = socket()?;
        // On Linux the descriptor's mode becomes the file's mode, less the mask.
        fchmod(&fd, Mode::from_raw_mode(0o770))?;
        let bound = match bind(&fd, &address) {
            Err(rustix::io::Errno::ADDRINUSE) if is_left(path, &address)? => {
                std::fs::remove_file(path)?;
                bind(&fd, &address)
            }
            done => done,
        };
        bound?;
        listen(&fd, BACKLOG)?;
        Ok(Self(fd))
    }

    /// A new connection, whose send buffer has about `send_bytes`. `None`: none waits.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn accept(&self, send_bytes: usize) -> io::Result<Option<Connection>> {
        match accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => {
                // Without the right to exceed the system's limit, the buffer is as large as that allows.
                if sockopt::set_socket_send_buffer_size_force(&fd, send_bytes).is_err() {
                    let _ = sockopt::set_socket_send_buffer_size(&fd, send_bytes);
                }
                Ok(Some(Connection(fd)))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Whether the file is a socket at which no process listens. A call to a plain file is refused as well.
fn is_left(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    let refuses = connect(socket()?, address) == Err(rustix::io::Errno::CONNREFUSED);
    Ok(refuses && std::fs::symlink_metadata(path)?.file_type().is_socket())
}

/// One end of a connection. It never waits.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// The system's errors: no listener, no right.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = socket()?;
        connect(&fd, &SocketAddrUnix::new(path)?)?;
        Ok(Self(fd))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `WouldBlock`: the peer is slow. Any other error: the connection is of no use any more.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        send(&self.0, message, flags)?;
        Ok(())
    }

    /// Receives a message, cut to the size of `buf`. `None`: the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock`: no message waits.
    pub fn receive<'a>(&self, buf: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let (_, len) = recv(&self.0, &mut *buf, RecvFlags::DONTWAIT)?;
        Ok(buf.get(..len).filter(|message| !message.is_empty()))
    }

    /// Whether the peer has closed the connection, or has sent a message.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let peeked = recv(&self.0, &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        peeked.err() != Some(rustix::io::Errno::AGAIN)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_loses_messages_and_a_gone_one_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::bind(&path).unwrap();
        assert!(listener.accept(4096).unwrap().is_none());
        let reader = Connection::open(&path).unwrap();
        let writer = listener.accept(4096).unwrap().unwrap();
        let mut sent = 0;
        let refused = loop {
            match writer.send(&[u8::try_from(sent % 256).unwrap(); 500]) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 10_000, "the buffer has no bound");
        };
        assert!(refused.kind() == io::ErrorKind::WouldBlock && sent > 0 && !writer.is_over());
        let mut buf = [0; 1000];
        for i in 0..sent {
            let want = [u8::try_from(i % 256).unwrap(); 500];
            assert_eq!(reader.receive(&mut buf).unwrap(), Some(&want[..]));
        }
        assert_eq!(
            reader.receive(&mut buf).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(reader);
        assert!(writer.is_over());
        assert!(writer.send(b"x").is_err());
    }

    #[test]
    fn only_a_socket_that_was_left_behind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = Listener::bind(&path).unwrap();
        let used = Listener::bind(&path).unwrap_err();
        assert_eq!(used.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        Listener::bind(&path).unwrap();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "kept").unwrap();
        assert!(Listener::bind(&plain).is_err());
        assert_eq!(std::fs::read(&plain).unwrap(), b"kept");
    }
}
