//! Sockets for the ICMP errors by which routers report that a packet is too long: "fragmentation needed"
//! (RFC 1191) and "packet too big" (RFC 8201).
//!
//! The host's stack gets all of these errors too. It uses them only for sockets and tunnels of its own, so
//! the sender of other packets has to read them itself. Kernel filters drop all other messages: these
//! sockets cost a host without such errors a comparison per ICMP message.

use crate::cbpf::{JEQ, LD_B_IND, LDX_MSH, Op, RET};
use crate::sock;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recvfrom, socket_with};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

const ICMP_FILTER: i32 = 1;
const ICMP6_FILTER: i32 = 1;
/// ICMP type "destination unreachable", and its code "fragmentation needed".
const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u32 = 4;
/// ICMPv6 type "packet too big".
const PACKET_TOO_BIG: u8 = 2;

/// A socket that receives these errors for any address of its network namespace.
#[derive(Debug)]
pub struct TooBigSocket {
    fd: OwnedFd,
    v6: bool,
}

impl TooBigSocket {
    /// A socket for errors about IPv6 packets, or about IPv4 packets.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`; `EAFNOSUPPORT` without IPv6.
    pub fn new(v6: bool) -> io::Result<Self> {
        let (family, protocol) = match v6 {
            true => (AddressFamily::INET6, ipproto::ICMPV6),
            false => (AddressFamily::INET, ipproto::ICMP),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::RAW, flags, Some(protocol))?;
        if v6 {
            // A bit that is set: messages of this type are dropped.
            let mut types = [u32::MAX; 8];
            types[usize::from(PACKET_TOO_BIG / 32)] &= !(1 << (PACKET_TOO_BIG % 32));
            sock::set(fd.as_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, &types)?;
        } else {
            sock::set(fd.as_fd(), libc::SOL_RAW, ICMP_FILTER, &!(1_u32 << UNREACHABLE))?;
            sock::attach_filter(fd.as_fd(), &code_program())?;
        }
        Ok(Self { fd, v6 })
    }
    /// Whether the errors are about IPv6 packets.
    pub fn is_v6(&self) -> bool {
        self.v6
    }
    /// Reads an error, without waiting: its length in `to`, and its sender. IPv4 errors begin with the IP
    /// header, IPv6 errors with the ICMP message. A longer error is cut off.
    pub fn receive(&self, to: &mut [u8]) -> Option<(usize, IpAddr)> {
        loop {
            return match recvfrom(&self.fd, &mut *to, RecvFlags::empty()) {
                Ok((n, _, sender)) => {
                    let sender = sender.and_then(|a| SocketAddr::try_from(a).ok())?;
                    Some((n, sender.ip()))
                }
                Err(Errno::INTR) => continue,
                Err(_) => None,
            };
        }
    }
}

impl AsRawFd for TooBigSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Takes errors with one code. The socket sees IPv4 packets from their IP header on.
fn code_program() -> [Op; 5] {
    [
        (LDX_MSH, 0, 0, 0),
        (LD_B_IND, 0, 0, 1),
        (JEQ, 0, 1, FRAGMENTATION_NEEDED),
        (RET, 0, 0, u32::MAX),
        (RET, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, sendto};
    use std::net::{Ipv4Addr, SocketAddrV4};

    #[test]
    fn only_these_errors_are_received() {
        let done = std::thread::spawn(|| {
            #[expect(
                deprecated,
                reason = "its successor is unsafe; nothing that processes share is unshared here"
            )]
            if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
                return None;
            }
            crate::LinkCtl::new().ok()?.set_up("lo", true).ok()?;
            let socket = TooBigSocket::new(false).ok()?;
            let flags = SocketFlags::CLOEXEC;
            let sender =
                socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP)).ok()?;
            let lo = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
            for (ty, code) in [(8, 0), (3, 3), (3, 4), (4, 4)] {
                let message = [&[ty, code, 0, 0, 0, 0, 5, 120][..], &[7; 28]].concat();
                sendto(&sender, &message, SendFlags::empty(), &lo).ok()?;
            }
            let mut buffer = [0; 128];
            let mut found = Vec::new();
            while let Some((n, from)) = socket.receive(&mut buffer) {
                found.push((buffer[20], buffer[21], n, from));
            }
            let v6 = TooBigSocket::new(true).map(|s| s.receive(&mut buffer).is_none());
            Some((found, v6.unwrap_or(true)))
        });
        let Some((found, is_silent)) = done.join().unwrap() else {
            return; // without the right
        };
        assert_eq!(found, [(3, 4, 56, Ipv4Addr::LOCALHOST.into())]);
        assert!(is_silent);
    }
}
