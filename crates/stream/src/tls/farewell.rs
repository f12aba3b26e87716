//! The end of a TLS connection. A peer that sees the socket close without the alert `close_notify` (RFC 8446,
//! section 6.1) has to take that for an attack. It logs `Input/output error` instead of `End of file`.
//! Connections here end by being dropped, at any place. So the alert is sent when they are dropped: without
//! waiting, and not at all if the socket takes nothing.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::ConnectionCommon;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::Stream;

/// A connection that sends `close_notify` when it is dropped.
pub(super) struct Farewell(TlsStream<TcpStream>);

impl Farewell {
    pub(super) fn boxed(stream: impl Into<TlsStream<TcpStream>>) -> Box<dyn Stream> {
        Box::new(Self(stream.into()))
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        match &mut self.0 {
            TlsStream::Client(s) => {
                let (socket, tls) = s.get_mut();
                say_goodbye(socket, tls);
            }
            TlsStream::Server(s) => {
                let (socket, tls) = s.get_mut();
                say_goodbye(socket, tls);
            }
        }
    }
}

fn say_goodbye<D>(socket: &TcpStream, tls: &mut ConnectionCommon<D>) {
    tls.send_close_notify();
    while tls.wants_write() && tls.write_tls(&mut Now(socket)).is_ok_and(|n| n > 0) {}
}

/// Writer that takes only as much as fits into the socket's buffer.
struct Now<'a>(&'a TcpStream);

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Farewell {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Farewell {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }
    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
