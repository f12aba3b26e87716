//! The address of a metrics endpoint, on the command line and in the database.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use heddle_daemon::dirs;

/// The address of a metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port of an address of this machine.
    Tcp(SocketAddr),
}

impl MetricsAddress {
    /// Reads `unix:PATH` (a relative one is below the run directory), `tcp:ADDRESS:PORT` or `tcp:PORT`, which
    /// means 127.0.0.1.
    ///
    /// # Errors
    /// The fault, for people.
    pub(crate) fn parse(text: &str) -> Result<MetricsAddress, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                Ok(MetricsAddress::Unix(dirs::inside(&dirs::rundir(), path)))
            }
            Some(("tcp", address)) => {
                let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
                let address = address.parse().or_else(|_| address.parse().map(local));
                address
                    .map(MetricsAddress::Tcp)
                    .map_err(|_| format!("{text}: no address and port"))
            }
            _ => Err(format!("{text}: neither unix:PATH nor tcp:ADDRESS:PORT")),
        }
    }
}

impl std::fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MetricsAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            MetricsAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
