//! Sockets of either transport, and how two ends connect.

use super::{Load, Pattern, SOCKET_TIMEOUT, Transport};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timeout for making a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A connection.
#[derive(Debug)]
pub enum Socket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A UDP socket that is connected to one peer.
    Udp(UdpSocket),
}

impl Socket {
    pub(super) fn send(&self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => (&*s).write(data),
            Self::Udp(s) => s.send(data),
        }
    }
    /// Returns the number of bytes. Zero: a peer that has gone (TCP), or an empty datagram.
    pub(super) fn recv(&self, data: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => (&*s).read(data),
            Self::Udp(s) => s.recv(data),
        }
    }
    pub(super) fn is_udp(&self) -> bool {
        matches!(self, Self::Udp(_))
    }
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s.set_nonblocking(true),
            Self::Udp(s) => s.set_nonblocking(true),
        }
    }
    pub(super) fn shutdown(&self, how: Shutdown) {
        match self {
            Self::Tcp(s) => drop(s.shutdown(how)),
            // Calls on it end after `SOCKET_TIMEOUT`.
            Self::Udp(_) => {}
        }
    }
    pub(super) fn retransmitted(&self) -> u32 {
        match self {
            Self::Tcp(s) => heddle_sys::tcp::info(s).map_or(0, |i| i.retransmitted),
            Self::Udp(_) => 0,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Udp(s) => s.as_fd(),
        }
    }
}

/// The server's sockets before the client has connected.
#[derive(Debug)]
pub enum Listening {
    /// One port for all connections.
    Tcp(TcpListener),
    /// One port for each connection.
    Udp(Vec<UdpSocket>),
}

/// The error of `bind`, with a clear text for a port in use.
fn bound(e: io::Error, at: SocketAddr) -> io::Error {
    let text = match e.kind() {
        io::ErrorKind::AddrInUse => format!("port {} of {} is in use", at.port(), at.ip()),
        _ => format!("{at}: {}", heddle_sys::errno_text(&e)),
    };
    io::Error::new(e.kind(), text)
}

impl Listening {
    /// Takes ports on `address`: `port` and the ones after it, or any if it is 0.
    ///
    /// # Errors
    /// A port is in use; the address is none of this end's.
    pub fn open(load: &Load, address: IpAddr, port: u16) -> io::Result<Self> {
        match load.transport {
            Transport::Tcp => {
                let at = SocketAddr::new(address, port);
                let listener = TcpListener::bind(at).map_err(|e| bound(e, at))?;
                // All connections wait in the queue before the first is accepted. `net.core.somaxconn` limits
                // the queue.
                rustix::net::listen(&listener, i32::try_from(load.connections).unwrap_or(i32::MAX))?;
                Ok(Self::Tcp(listener))
            }
            Transport::Udp => (0..load.connections)
                .map(|i| {
                    let next = u16::try_from(i).ok().and_then(|i| port.checked_add(i));
                    let port = if port == 0 { 0 } else { next.unwrap_or(0) };
                    let at = SocketAddr::new(address, port);
                    UdpSocket::bind(at).map_err(|e| bound(e, at))
                })
                .collect::<io::Result<_>>()
                .map(Self::Udp),
        }
    }

    /// Ports to connect to: one for all connections with TCP, one for each with UDP.
    ///
    /// # Errors
    /// `getsockname` fails.
    pub fn ports(&self) -> io::Result<Vec<u16>> {
        match self {
            Self::Tcp(l) => Ok(vec![l.local_addr()?.port()]),
            Self::Udp(all) => all.iter().map(|s| Ok(s.local_addr()?.port())).collect(),
        }
    }

    /// Accepts the client, which has connected already, or nearly.
    ///
    /// # Errors
    /// The client does not come.
    pub fn accept(self, load: &Load) -> io::Result<Vec<Arc<Socket>>> {
        match self {
            Self::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                let end = Instant::now() + CONNECT;
                let mut all = Vec::new();
                while all.len() < load.connections {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            stream.set_nonblocking(false)?;
                            stream.set_nodelay(load.pattern == Pattern::Rr)?;
                            all.push(Arc::new(Socket::Tcp(stream)));
                        }
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        Err(e) => return Err(e),
                    }
                }
                Ok(all)
            }
            // Each client has sent one datagram to its port: after `connect`, both sides have one peer.
            Self::Udp(sockets) => sockets
                .into_iter()
                .map(|socket| {
                    socket.set_read_timeout(Some(CONNECT))?;
                    let (_, peer) = socket.recv_from(&mut [0; 16])?;
                    socket.connect(peer)?;
                    socket.set_read_timeout(Some(SOCKET_TIMEOUT))?;
                    socket.set_write_timeout(Some(SOCKET_TIMEOUT))?;
                    Ok(Arc::new(Socket::Udp(socket)))
                })
                .collect(),
        }
    }
}

/// Makes the client's connections.
///
/// # Errors
/// The server cannot be reached; the system's error.
pub fn connect(load: &Load, to: IpAddr, ports: &[u16]) -> io::Result<Vec<Arc<Socket>>> {
    let one = |i: usize| {
        let port = ports.get(i).or(ports.first()).copied().unwrap_or(0);
        let at = SocketAddr::new(to, port);
        match load.transport {
            Transport::Tcp => {
                let stream = TcpStream::connect_timeout(&at, CONNECT)?;
                stream.set_nodelay(load.pattern == Pattern::Rr)?;
                Ok(Arc::new(Socket::Tcp(stream)))
            }
            Transport::Udp => {
                let any: SocketAddr = if to.is_ipv4() {
                    ([0, 0, 0, 0], 0).into()
                } else {
                    ([0_u16; 8], 0).into()
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(at)?;
                // The first packets may wait for address resolution, of which a queue holds few.
                socket.send(b"here")?;
                socket.set_read_timeout(Some(SOCKET_TIMEOUT))?;
                socket.set_write_timeout(Some(SOCKET_TIMEOUT))?;
                Ok(Arc::new(Socket::Udp(socket)))
            }
        }
    };
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{to}: {}", heddle_sys::errno_text(&e)));
    if load.transport == Transport::Udp {
        // One datagram finds the neighbour's address before the others need it.
        let first = one(0).map_err(named)?;
        std::thread::sleep(Duration::from_millis(20));
        let rest = (1..load.connections).map(one);
        return std::iter::once(Ok(first))
            .chain(rest)
            .collect::<io::Result<_>>()
            .map_err(named);
    }
    (0..load.connections)
        .map(one)
        .collect::<io::Result<_>>()
        .map_err(named)
}
