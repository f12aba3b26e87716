//! Sending lines to a syslog daemon: through `/dev/log`, a Unix socket or UDP.
//!
//! Sockets do not block; messages that the daemon does not take at once are lost, and so are all while it is
//! away. A missing `/dev/log` is normal in containers and is not reported.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The path of lines to the system log (`--syslog-method`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// The C library's syslog(3): to `/dev/log`, with a time stamp and the program's name in front.
    Libc,
    /// A Unix datagram socket, the line unchanged.
    Unix(PathBuf),
    /// A UDP socket, the line unchanged.
    Udp(SocketAddr),
    /// Nowhere.
    Null,
}

impl Method {
    /// Parses `libc`, `null`, `unix:FILE` or `udp:IP:PORT` (port 514 when omitted).
    ///
    /// # Errors
    /// The text to show: the method is unknown, or the address is not a numerical one.
    pub fn parse(text: &str) -> Result<Method, String> {
        let unsupported = || format!("unsupported syslog method '{text}'");
        match text {
            "libc" => Ok(Method::Libc),
            "null" => Ok(Method::Null),
            _ => match text.split_once(':') {
                Some(("unix", path)) => Ok(Method::Unix(path.into())),
                Some(("udp", address)) => parse_address(address).map(Method::Udp).ok_or_else(unsupported),
                _ => Err(unsupported()),
            },
        }
    }

    /// The prefix that `vlog/list-pattern` shows for this method.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            Method::Libc => "<%B> %D{%h %e %T} %E %A:",
            Method::Unix(_) | Method::Udp(_) => "<%B>",
            Method::Null => "",
        }
    }
}

/// Parses `IP:PORT` or `IP`, with port 514 as the default (RFC 5426 section 3.3).
pub(super) fn parse_address(text: &str) -> Option<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse()
        .ok()
        .or_else(|| bare.parse().ok().map(|ip| SocketAddr::new(ip, 514)))
}

/// One socket to the system log. It reconnects by itself, at most once a second.
#[derive(Debug)]
pub(super) struct Sender {
    target: Target,
    socket: Option<Socket>,
    next_try: Option<Instant>,
    /// The longest message that the socket is known to take; shrinks on EMSGSIZE.
    max_len: usize,
}

#[derive(Debug)]
enum Target {
    Unix(PathBuf),
    Udp(SocketAddr),
    Null,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Sender {
    pub(super) fn new(method: &Method) -> Sender {
        let target = match method {
            Method::Libc => Target::Unix(Path::new("/dev/log").to_owned()),
            Method::Unix(path) => Target::Unix(path.clone()),
            Method::Udp(address) => Target::Udp(*address),
            Method::Null => Target::Null,
        };
        Sender {
            target,
            socket: None,
            next_try: None,
            max_len: usize::MAX,
        }
    }

    /// Sends one message, or drops it.
    pub(super) fn send(&mut self, message: &[u8]) {
        // Twice: a syslog daemon that was restarted leaves a dead connection behind.
        for _ in 0..2 {
            if self.socket.is_none() && !self.connect() {
                return;
            }
            match self.try_send(message) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.socket = None,
                Ok(()) => return,
            }
        }
    }

    fn connect(&mut self) -> bool {
        let now = Instant::now();
        if self.next_try.is_some_and(|next| now < next) {
            return false;
        }
        self.next_try = Some(now + Duration::from_secs(1));
        self.socket = match &self.target {
            Target::Null => None,
            Target::Unix(path) => connect_unix(path).ok().map(Socket::Unix),
            Target::Udp(address) => connect_udp(*address).ok().map(Socket::Udp),
        };
        self.socket.is_some()
    }

    fn try_send(&mut self, message: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let mut len = message.len().min(self.max_len);
        loop {
            let part = message.get(..len).unwrap_or(message);
            let sent = match socket {
                Socket::Unix(socket) => socket.send(part),
                Socket::Udp(socket) => socket.send(part),
            };
            match sent {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) && len > 20 => {
                    len -= len / 20;
                    self.max_len = len;
                }
                other => return other.map(drop),
            }
        }
    }
}

fn connect_unix(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(path)?;
    Ok(socket)
}

fn connect_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect(address)?;
    Ok(socket)
}
