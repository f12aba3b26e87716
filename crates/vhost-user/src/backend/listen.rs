//! Sockets in the file system: one's own is made, a stale one replaced, a live one left alone.

use heddle_sys::Foreign;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, listen, shutdown,
    socket_with,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Longest path that a socket's address holds.
const MAX_PATH: usize = 107;

/// Maximum number of connections that wait to be accepted: few, so that a flood of them is soon through.
const BACKLOG: i32 = 256;

/// The file that is locked while a socket is made.
const LOCK: &str = ".vhost-user.lock";

/// A path that fits into an address, and the descriptor that keeps it valid: a long path goes through its
/// directory's descriptor.
fn address(path: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    if path.as_os_str().len() <= MAX_PATH {
        return Ok((path.to_owned(), None));
    }
    let dir = directory(path)?;
    let name = path.file_name().unwrap_or_default();
    let short = Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(name);
    Ok((short, Some(dir)))
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    let dir = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    Ok(openat(
        CWD,
        dir,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Holds off other processes that look for stale sockets in the same directory. The lock is a file of its own
/// that only its owner can open. A process that may read the directory could lock the directory itself.
fn lock(dir: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = openat(dir, LOCK, flags, Mode::RUSR | Mode::WUSR);
    let locked = file.and_then(|f| flock(&f, FlockOperation::NonBlockingLockExclusive).map(|()| f));
    locked.map_err(|e| {
        let e = io::Error::from(e);
        io::Error::new(e.kind(), format!("the lock file {LOCK} beside it: {e}"))
    })
}

/// Connects without waiting: a listener whose queue is full is as good as none.
///
/// # Errors
/// The error of connect(2).
pub(super) fn dial(path: &Path) -> io::Result<UnixStream> {
    let (short, _dir) = address(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&fd, &SocketAddrUnix::new(&short)?)?;
    Ok(UnixStream::from(fd))
}

/// A listening socket, whose file goes with it.
#[derive(Debug)]
pub(super) struct Listener {
    /// Connections in its queue are closed by [`Foreign`], on a thread that may wait.
    socket: Foreign,
    path: PathBuf,
    /// The file that was made.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path`. A socket there without a listener was left behind by a killed process: it is
    /// replaced. The file has the permissions that the process's umask leaves.
    ///
    /// # Errors
    /// `AddrInUse`: another process listens there. `AlreadyExists`: the file there is no socket.
    /// `WouldBlock`: another process is binding a socket in this directory now. Otherwise the system's error.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        // Two processes that both find a stale socket must not remove each other's new one.
        let _lock = lock(&directory(path)?)?;
        if let Ok(meta) = std::fs::symlink_metadata(path) {
            if !meta.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is a file that is no socket",
                ));
            }
            match dial(path) {
                Ok(stream) => {
                    drop(Foreign::new(stream.into()));
                    return Err(in_use());
                }
                Err(e) if e.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => return Err(in_use()),
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                Err(e) => return Err(e),
            }
        }
        let (short, _dir) = address(path)?;
        let socket = UnixListener::bind(short)?;
        socket.set_nonblocking(true)?;
        listen(&socket, BACKLOG)?;
        let meta = std::fs::symlink_metadata(path)?;
        heddle_sys::left_sockets::made(path);
        Ok(Self {
            socket: Foreign::new(socket.into()),
            path: path.to_owned(),
            file: (meta.dev(), meta.ino()),
        })
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    /// The error of accept(2).
    pub(super) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(stream) => Ok(Some(stream.into())),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether the file is still this socket's: a process may have removed or replaced it, so that front ends
    /// no longer find this socket.
    pub(super) fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.file)
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_fd().as_raw_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Both); // no front end can connect from now on
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")
}
