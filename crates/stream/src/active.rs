//! Outgoing connections: `unix:PATH`, `tcp:IP[:PORT]`, `ssl:IP[:PORT]`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;

use crate::connect::connect_tcp;
use crate::{MethodError, Stream, Tls, address};

/// Longest path that a `sockaddr_un` takes, without its NUL.
const SUN_PATH_MAX: usize = 107;

/// Address and method of a peer to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Active {
    /// `unix:PATH`.
    Unix(PathBuf),
    /// `tcp:IP[:PORT]`, an IPv6 address in brackets.
    Tcp(SocketAddr),
    /// `ssl:IP[:PORT]`: TLS over TCP.
    Tls(SocketAddr),
}

impl Active {
    /// Reads one method. `default_port` is the port where none is given.
    ///
    /// # Errors
    /// The text is not a method; the error has the expected form.
    pub fn parse(text: &str, default_port: u16) -> Result<Active, MethodError> {
        let error = |why| MethodError::new(text, why);
        let address = |rest| {
            address::peer(rest, default_port)
                .ok_or_else(|| error("bad address (give an IP address, IPv6 in brackets, and perhaps :PORT)"))
        };
        match text.split_once(':') {
            Some(("unix", "")) => Err(error("no path after unix:")),
            Some(("unix", path)) => Ok(Active::Unix(path.into())),
            Some(("tcp", rest)) => address(rest).map(Active::Tcp),
            Some(("ssl", rest)) => address(rest).map(Active::Tls),
            _ => Err(error(
                "unknown connection method (use unix:PATH, tcp:IP[:PORT] or ssl:IP[:PORT])",
            )),
        }
    }

    /// Reads a comma-separated list; a client tries them in turn.
    ///
    /// # Errors
    /// The error of the first method that cannot be used; an empty list is an error.
    pub fn parse_list(text: &str, default_port: u16) -> Result<Vec<Active>, MethodError> {
        text.split(',')
            .map(|one| Active::parse(one.trim(), default_port))
            .collect()
    }

    /// Whether the other end is on this machine by construction.
    pub fn is_local(&self) -> bool {
        matches!(self, Active::Unix(_))
    }

    /// Connects, without a time limit of its own. A TLS stream is returned when both ends have proved who
    /// they are.
    ///
    /// # Errors
    /// Errors of the system; for TLS also faults of the keys or of the peer's certificate.
    pub async fn connect(&self, tls: &Tls) -> io::Result<Box<dyn Stream>> {
        match self {
            Active::Unix(path) => Ok(Box::new(closed_early(connect_unix(path).await?)?)),
            Active::Tcp(to) => Ok(Box::new(connect_tcp(*to).await?)),
            Active::Tls(to) => tls.connect(*to).await,
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

/// Lowest number of the descriptors of [`closed_early`]: above those of ports, and the kernel's table of
/// descriptors stays small.
const MIN_EARLY_FD: i32 = 1 << 14;

/// The same connection with a high descriptor number. When a process is killed, the kernel closes the highest
/// number first (Linux 4.3 and later). So a server sees the end of a switch before the kernel removes the
/// devices of its ports, which takes seconds with hundreds of them. Without room for a high number, the
/// connection is returned as it is.
fn closed_early(stream: UnixStream) -> io::Result<UnixStream> {
    match rustix::io::fcntl_dupfd_cloexec(&stream, MIN_EARLY_FD) {
        Ok(high) => UnixStream::from_std(std::os::unix::net::UnixStream::from(high)),
        Err(_) => Ok(stream),
    }
}

impl fmt::Display for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Active::Unix(path) => write!(f, "unix:{}", path.display()),
            Active::Tcp(to) => write!(f, "tcp:{to}"),
            Active::Tls(to) => write!(f, "ssl:{to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn connections_have_high_numbers() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut ours = closed_early(ours).unwrap();
        assert!(ours.as_raw_fd() >= MIN_EARLY_FD);
        theirs.write_all(b"x").await.unwrap();
        assert_eq!(ours.read_u8().await.unwrap(), b'x');
        drop(ours);
        assert_eq!(theirs.read(&mut [0]).await.unwrap(), 0);
    }
}
