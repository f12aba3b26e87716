//! Listening: `punix:PATH`, `ptcp:[PORT][:IP]`, `pssl:[PORT][:IP]`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::{MethodError, Stream, Tls, address};

/// Address and method to listen with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Passive {
    /// `punix:PATH`.
    Unix(PathBuf),
    /// `ptcp:[PORT][:IP]`.
    Tcp(SocketAddr),
    /// `pssl:[PORT][:IP]`.
    Tls(SocketAddr),
}

impl Passive {
    /// Reads one method.
    ///
    /// # Errors
    /// The text is not a method; the error has the expected form.
    pub fn parse(text: &str, default_port: u16) -> Result<Passive, MethodError> {
        let error = |why| MethodError::new(text, why);
        let address = |rest| {
            address::local(rest, default_port)
                .ok_or_else(|| error("bad address (give [PORT][:IP], IPv6 in brackets)"))
        };
        match text.split_once(':').unwrap_or((text, "")) {
            ("punix", "") => Err(error("no path after punix:")),
            ("punix", path) => Ok(Passive::Unix(path.into())),
            ("ptcp", rest) => address(rest).map(Passive::Tcp),
            ("pssl", rest) => address(rest).map(Passive::Tls),
            _ => Err(error(
                "unknown connection method (use punix:PATH, ptcp:[PORT][:IP] or pssl:[PORT][:IP])",
            )),
        }
    }

    /// Listens. A socket file without a listener is replaced.
    ///
    /// # Errors
    /// Another socket listens there, or the system refuses; the text names the address.
    pub fn listen(&self, tls: &Arc<Tls>) -> io::Result<Acceptor> {
        let what = |e: io::Error| io::Error::new(e.kind(), format!("{self}: {e}"));
        let socket = match self {
            Passive::Unix(path) => Socket::Unix(listen_unix(path).map_err(what)?, path.clone()),
            Passive::Tcp(at) => Socket::Tcp(listen_tcp(*at).map_err(what)?),
            Passive::Tls(at) => Socket::Tls(listen_tcp(*at).map_err(what)?, tls.clone()),
        };
        Ok(Acceptor { socket })
    }
}

impl fmt::Display for Passive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Passive::Unix(path) => write!(f, "punix:{}", path.display()),
            Passive::Tcp(at) => write!(f, "ptcp:{}:{}", at.port(), at.ip()),
            Passive::Tls(at) => write!(f, "pssl:{}:{}", at.port(), at.ip()),
        }
    }
}

fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => UnixListener::from_std(bind_unix(path)?),
    }
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// Makes a listening socket at `path`, for its owner and group only, whatever mask the process has. A path
/// that is too long for a socket's address is reached through its directory's descriptor.
///
/// # Errors
/// The system's error, such as `AddrInUse` where there is a file already.
pub fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // On Linux the descriptor's mode becomes the file's mode, less the mask.
    fchmod(&fd, Mode::from_raw_mode(0o770))?;
    match SocketAddrUnix::new(path) {
        Ok(address) => bind(&fd, &address)?,
        Err(Errno::NAMETOOLONG) => {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let dir = std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?;
            let short = Path::new("/proc/self/fd")
                .join(dir.as_raw_fd().to_string())
                .join(name);
            bind(&fd, &SocketAddrUnix::new(&short)?)?;
        }
        Err(error) => return Err(error.into()),
    }
    listen(&fd, BACKLOG)?;
    heddle_sys::left_sockets::made(path);
    Ok(fd.into())
}

fn listen_tcp(at: SocketAddr) -> io::Result<TcpListener> {
    // The standard library sets SO_REUSEADDR: a restart does not wait for old connections to be forgotten.
    let listener = std::net::TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// A listening socket. Dropping it closes it and removes the file.
pub struct Acceptor {
    socket: Socket,
}

enum Socket {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
    Tls(TcpListener, Arc<Tls>),
}

impl Acceptor {
    /// Waits for the next caller.
    ///
    /// # Errors
    /// Errors of the system, such as when descriptors have run out.
    pub async fn accept(&self) -> io::Result<Incoming> {
        let tcp = |(socket, _): (TcpStream, SocketAddr)| {
            // Latency only; refusal is harmless.
            let _ = socket.set_nodelay(true);
            socket
        };
        Ok(match &self.socket {
            Socket::Unix(l, _) => Incoming::Unix(l.accept().await?.0),
            Socket::Tcp(l) => Incoming::Tcp(tcp(l.accept().await?)),
            Socket::Tls(l, tls) => Incoming::Tls(tcp(l.accept().await?), tls.clone()),
        })
    }

    /// The address, if it is one of the network, with the port that the system chose.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Unix(..) => None,
            Socket::Tcp(l) | Socket::Tls(l, _) => l.local_addr().ok(),
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            // A file that is gone already is no error.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A caller whose connection has been accepted. [`Incoming::open`] belongs into the connection's own task: a
/// handshake takes as long as the caller likes.
pub enum Incoming {
    /// A caller by a Unix socket.
    Unix(UnixStream),
    /// A caller by TCP.
    Tcp(TcpStream),
    /// A caller by TCP that must use TLS.
    Tls(TcpStream, Arc<Tls>),
}

impl Incoming {
    /// The stream, ready to be read and written.
    ///
    /// # Errors
    /// The handshake failed, or took too long; the text has the reason.
    pub async fn open(self) -> io::Result<Box<dyn Stream>> {
        match self {
            Incoming::Unix(socket) => Ok(Box::new(socket)),
            Incoming::Tcp(socket) => Ok(Box::new(socket)),
            Incoming::Tls(socket, tls) => tls.accept(socket).await,
        }
    }
}
