//! A connection by TCP.

use std::io;
use std::net::SocketAddr;
use tokio::net::TcpStream;

pub(crate) async fn connect_tcp(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to).await?;
    // Small requests and their replies alternate: waiting to fill a segment only adds latency.
    stream.set_nodelay(true)?;
    Ok(stream)
}
