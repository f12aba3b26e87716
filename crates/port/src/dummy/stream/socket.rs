//! Unix and TCP sockets behind one type, non-blocking, named as Open vSwitch names them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A connected socket.
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A waiting socket; a Unix socket's file is removed with it.
pub(super) enum Listener {
    Unix(UnixListener, String),
    Tcp(TcpListener),
}

fn unknown() -> io::Error {
    io::Error::from_raw_os_error(97) // EAFNOSUPPORT
}

/// Whether an active name has a known form.
pub(super) fn check_name(name: &str) -> io::Result<()> {
    match name.split_once(':') {
        Some(("unix" | "tcp", rest)) if !rest.is_empty() => Ok(()),
        _ => Err(unknown()),
    }
}

impl Socket {
    /// Connects to `unix:PATH` or `tcp:HOST:PORT`.
    pub(super) fn connect(name: &str) -> io::Result<Self> {
        match name.split_once(':') {
            Some(("unix", path)) => {
                let s = UnixStream::connect(path)?;
                s.set_nonblocking(true)?;
                Ok(Self::Unix(s))
            }
            Some(("tcp", addr)) => {
                let addr = addr
                    .to_socket_addrs()?
                    .next()
                    .ok_or(ErrorKind::AddrNotAvailable)?;
                let s = TcpStream::connect_timeout(&addr, CONNECT_LIMIT)?;
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
                Ok(Self::Tcp(s))
            }
            _ => Err(unknown()),
        }
    }
}

impl Listener {
    /// Listens at `punix:PATH` or `ptcp:PORT[:ADDRESS]`.
    pub(super) fn bind(name: &str) -> io::Result<Self> {
        match name.split_once(':') {
            Some(("punix", path)) => {
                // A file that an earlier process left behind would be in the way for ever.
                let _ = std::fs::remove_file(path);
                let l = UnixListener::bind(path)?;
                l.set_nonblocking(true)?;
                Ok(Self::Unix(l, path.to_owned()))
            }
            Some(("ptcp", rest)) => {
                let (port, host) = rest.split_once(':').unwrap_or((rest, ""));
                let port = port.parse::<u16>().map_err(|_| unknown())?;
                let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                let host = host.trim_matches(['[', ']']).parse().unwrap_or(any);
                let l = TcpListener::bind(SocketAddr::new(host, port))?;
                l.set_nonblocking(true)?;
                Ok(Self::Tcp(l))
            }
            _ => Err(unknown()),
        }
    }
    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(l, _) => {
                let (s, _) = l.accept()?;
                s.set_nonblocking(true)?;
                Ok(Socket::Unix(s))
            }
            Self::Tcp(l) => {
                let (s, _) = l.accept()?;
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
                Ok(Socket::Tcp(s))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Unix(l, _) => l.as_raw_fd(),
            Self::Tcp(l) => l.as_raw_fd(),
        }
    }
}
impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Unix(s) => s.as_raw_fd(),
            Self::Tcp(s) => s.as_raw_fd(),
        }
    }
}
impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(s) => s.read(buf),
            Self::Tcp(s) => s.read(buf),
        }
    }
}
impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(s) => s.write(buf),
            Self::Tcp(s) => s.write(buf),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
