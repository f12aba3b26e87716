//! Where a server listens, in Open vSwitch's notation (ovsdb(7), "Active Database Connection Methods"), and the connected stream.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The port that IANA gave to OVSDB.
pub const DEFAULT_PORT: u16 = 6640;

/// Longest path that a `sockaddr_un` takes, without its NUL.
const SUN_PATH_MAX: usize = 107;

/// One active connection method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// `unix:PATH`.
    Unix(PathBuf),
    /// `tcp:IP[:PORT]`, an IPv6 address in brackets.
    Tcp(SocketAddr),
}

/// The text is no remote that this client can use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}: {why}")]
pub struct RemoteError {
    /// What was given.
    pub text: String,
    /// What to give instead.
    pub why: &'static str,
}

/// A connected byte stream of either kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Remote {
    /// Reads a comma-separated list; a client tries them in turn.
    ///
    /// # Errors
    /// [`RemoteError`] for the first that cannot be used, or for an empty list.
    pub fn parse_list(text: &str) -> Result<Vec<Remote>, RemoteError> {
        text.split(',').map(|one| one.trim().parse()).collect()
    }

    /// Connects, without a time limit of its own.
    ///
    /// # Errors
    /// What the system says.
    pub async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Remote::Unix(path) => Ok(Box::new(connect_unix(path).await?)),
            Remote::Tcp(addr) => {
                let stream = TcpStream::connect(addr).await?;
                // Small requests and their replies alternate; waiting to fill a segment only adds latency.
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// Connects also where the path is longer than a socket address holds, by way of the directory's descriptor.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() <= SUN_PATH_MAX {
        return UnixStream::connect(path).await;
    }
    let (Some(dir), Some(file)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "socket path names no file",
        ));
    };
    let dir = std::fs::File::open(dir)?;
    let short = Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(file);
    UnixStream::connect(short).await
}

impl FromStr for Remote {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Remote, RemoteError> {
        let error = |why| RemoteError {
            text: text.to_string(),
            why,
        };
        match text.split_once(':') {
            Some(("unix", "")) => Err(error("no path after unix:")),
            Some(("unix", path)) => Ok(Remote::Unix(PathBuf::from(path))),
            Some(("tcp", rest)) => socket_address(rest)
                .map(Remote::Tcp)
                .ok_or_else(|| error("expected tcp:IP[:PORT], an IPv6 address in brackets")),
            Some(("ssl", _)) => Err(error("ssl is not supported, use unix: or tcp:")),
            _ => Err(error("expected unix:PATH or tcp:IP[:PORT]")),
        }
    }
}

/// `1.2.3.4`, `1.2.3.4:6640`, `[::1]`, `[::1]:6640`, `[fe80::1%2]:6640`.
fn socket_address(text: &str) -> Option<SocketAddr> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Some(addr);
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    match bare {
        Some(v6) => v6
            .parse()
            .ok()
            .map(|ip| SocketAddr::new(IpAddr::V6(ip), DEFAULT_PORT)),
        None => text
            .parse()
            .ok()
            .map(|ip| SocketAddr::new(IpAddr::V4(ip), DEFAULT_PORT)),
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remote::Unix(path) => write!(f, "unix:{}", path.display()),
            Remote::Tcp(addr) => write!(f, "tcp:{addr}"),
        }
    }
}
