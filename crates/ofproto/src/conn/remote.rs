//! Connection methods in Open vSwitch's syntax: `tcp:IP[:PORT]`, `unix:PATH`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// IANA's OpenFlow port.
const DEFAULT_PORT: u16 = 6653;

/// Where to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remote {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl Remote {
    /// Parses a method; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Remote, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Remote::Unix(path.into())),
            Some(("tcp", rest)) => tcp(rest).map(Remote::Tcp),
            Some(("ssl", _)) => Err(format!("{text}: TLS is not supported yet")),
            _ => Err(format!("{text}: unknown connection method")),
        }
    }
}

fn tcp(text: &str) -> Result<SocketAddr, String> {
    let bad = || format!("tcp:{text}: bad address (give an IP address and perhaps :PORT)");
    if let Ok(full) = text.parse::<SocketAddr>() {
        return Ok(full);
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    let ip: IpAddr = bare.parse().map_err(|_| bad())?;
    Ok(SocketAddr::new(ip, DEFAULT_PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods() {
        assert_eq!(Remote::parse("unix:/a"), Ok(Remote::Unix("/a".into())));
        let with_default = Remote::parse("tcp:127.0.0.1");
        assert_eq!(
            with_default,
            Ok(Remote::Tcp("127.0.0.1:6653".parse().expect("an address")))
        );
        assert_eq!(
            Remote::parse("tcp:[::1]:7"),
            Ok(Remote::Tcp("[::1]:7".parse().expect("an address")))
        );
        for bad in ["", "tcp:", "tcp:x:1", "unix:", "ssl:1.2.3.4", "foo:1"] {
            assert!(Remote::parse(bad).is_err(), "{bad}");
        }
    }
}
