//! Collectors of records: UDP sockets that never block.
//!
//! Sockets are not connected: a collector that cannot be reached now is sent to again with the next record.

use heddle_ipfix::Interface;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Time for which the system's number of an interface is taken for true, µs.
const INDEX_AGE_US: u64 = 5_000_000;
/// Maximum number of names that are remembered.
const MAX_INDICES: usize = 4096;

/// The collectors of one exporter.
#[derive(Default)]
pub(super) struct Collectors {
    to: Vec<(String, SocketAddr)>,
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

impl Collectors {
    /// The collectors of `targets`, without invalid ones, which are logged.
    pub(super) fn new(targets: &BTreeSet<String>, default_port: u16) -> Self {
        let mut all = Self::default();
        for target in targets {
            match address(target, default_port) {
                Some(to) => all.to.push((target.clone(), to)),
                None => log::warn!(target: "collectors", per_min = 1, burst = 5;
                    "couldn't open connection to collector {target} (Invalid argument)"),
            }
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// Sends a message to all; returns to how many it went, and to how many it did not.
    pub(super) fn send(&mut self, message: &[u8]) -> (u64, u64) {
        let (mut sent, mut failed) = (0, 0);
        for (name, to) in &self.to {
            let (socket, any): (_, IpAddr) = match to {
                SocketAddr::V4(_) => (&mut self.v4, Ipv4Addr::UNSPECIFIED.into()),
                SocketAddr::V6(_) => (&mut self.v6, Ipv6Addr::UNSPECIFIED.into()),
            };
            match send(socket, any, *to, message) {
                Ok(()) => sent += 1,
                Err(error) => {
                    failed += 1;
                    log::warn!(target: "collectors", per_min = 1, burst = 5;
                        "{name}: sending to collector failed ({error})");
                }
            }
        }
        (sent, failed)
    }
}

fn send(socket: &mut Option<UdpSocket>, any: IpAddr, to: SocketAddr, message: &[u8]) -> std::io::Result<()> {
    if socket.is_none() {
        let new = UdpSocket::bind((any, 0))?;
        new.set_nonblocking(true)?;
        *socket = Some(new);
    }
    if let Some(socket) = socket {
        socket.send_to(message, to)?;
    }
    Ok(())
}

/// `IP`, `IP:PORT`, `[IPV6]:PORT`.
fn address(target: &str, default_port: u16) -> Option<SocketAddr> {
    let alone = target.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let to = target.parse().ok().or_else(|| {
        let ip: IpAddr = alone.unwrap_or(target).parse().ok()?;
        Some(SocketAddr::new(ip, default_port))
    });
    to.filter(|to| to.port() != 0)
}

/// The system's numbers of interfaces, by name, as records want them.
#[derive(Default)]
pub(super) struct Indices {
    socket: Option<UdpSocket>,
    known: HashMap<String, (u32, u64)>,
}

impl Indices {
    /// An interface with its number, 0 if the system has none of that name.
    pub(super) fn interface(&mut self, name: &str, now_us: u64) -> Interface {
        if name.is_empty() {
            return Interface::default();
        }
        let index = match self.known.get(name) {
            Some((index, at)) if now_us.abs_diff(*at) < INDEX_AGE_US => *index,
            _ => {
                if self.known.len() >= MAX_INDICES {
                    self.known.clear();
                }
                let index = self.index_of(name).unwrap_or(0);
                self.known.insert(name.to_owned(), (index, now_us));
                index
            }
        };
        Interface {
            index,
            name: name.to_owned(),
        }
    }

    fn index_of(&mut self, name: &str) -> Option<u32> {
        if self.socket.is_none() {
            self.socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok();
        }
        rustix::net::netdevice::name_to_index(self.socket.as_ref()?, name).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses() {
        let of = |t: &str| address(t, 4739).map(|a| a.to_string());
        let some = |t: &str| Some(t.to_owned());
        assert_eq!(of("127.0.0.1:99"), some("127.0.0.1:99"));
        assert_eq!(of("127.0.0.1"), some("127.0.0.1:4739"));
        assert_eq!(of("[::1]:99"), some("[::1]:99"));
        assert_eq!(of("[::1]"), some("[::1]:4739"));
        assert_eq!(of("::1"), some("[::1]:4739"));
        for bad in [
            "",
            "xyzzy",
            "1.2.3.4:",
            "1.2.3.4:0",
            "1.2.3.4:70000",
            "[::1",
            "a:1",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_counted() {
        let targets = ["127.0.0.1:9".to_owned(), "nowhere".to_owned()].into();
        let mut c = Collectors::new(&targets, 4739);
        assert_eq!(c.send(b"x"), (1, 0));
        assert_eq!(c.send(&vec![0; 70_000]), (0, 1), "longer than a datagram can be");
    }

    #[test]
    fn the_loopback_device_has_a_number() {
        let mut i = Indices::default();
        assert_ne!(i.interface("lo", 0).index, 0);
        assert_eq!(i.interface("no-such-device", 0).index, 0);
        assert_eq!(i.interface("", 0), Interface::default());
    }
}
