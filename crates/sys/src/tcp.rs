//! The kernel's state of a TCP connection.

#![allow(unsafe_code)] // getsockopt

use crate::cvt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Fields of `TCP_INFO`, tcp(7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments sent again since the connection began.
    pub retransmitted: u32,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
}

/// Queries a connected socket.
///
/// # Errors
/// The error of getsockopt(2), also for a socket that is not TCP's.
pub fn info(socket: impl AsFd) -> io::Result<TcpInfo> {
    // SAFETY: a structure of numbers only, for which zeros are values. An older kernel fills less of it.
    let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is writable for `len` bytes, and `len` is writable.
    cvt(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    })?;
    Ok(TcpInfo {
        retransmitted: info.tcpi_total_retrans,
        rtt_us: info.tcpi_rtt,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut b, _) = listener.accept().unwrap();
        a.write_all(b"x").unwrap();
        b.read_exact(&mut [0]).unwrap();
        let info = info(&a).unwrap();
        assert_eq!(info.retransmitted, 0);
        assert!(info.rtt_us > 0);
        assert!(super::info(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
