//! The check address: whether it replies.

use anyhow::{Result, bail};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tries until the check address replies, at most for `limit`.
pub(crate) fn replies(check: &str, limit: Duration) -> Result<bool> {
    let end = Instant::now() + limit;
    loop {
        if once(check)? {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Tries a ping of an address, or a connection to `HOST:PORT`.
fn once(check: &str) -> Result<bool> {
    if check.parse::<IpAddr>().is_ok() {
        let done = Command::new("ping")
            .args(["-n", "-q", "-c", "1", "-W", "1", check])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        return match done {
            Ok(status) => Ok(status.success()),
            Err(e) => bail!("ping cannot be run ({e}); check may also be HOST:PORT"),
        };
    }
    // A name may be unresolvable because of the change that is checked.
    let addresses = check.to_socket_addrs().into_iter().flatten();
    for address in addresses.take(4) {
        if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_names() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        assert!(replies(&at, Duration::ZERO).unwrap());
        drop(listener);
        assert!(!replies(&at, Duration::from_millis(1)).unwrap());
        assert!(!replies("no-such-host.invalid:1", Duration::ZERO).unwrap());
    }
}
