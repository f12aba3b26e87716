//! Sends small UDP datagrams as fast as one core can, or holds a socket open that takes them.
//!
//! `udp_blast send ADDRESS:PORT SECONDS BYTES` prints how many datagrams the kernel accepted; `udp_blast sink
//! ADDRESS:PORT` binds and sleeps until it is ended: the receiver's device counts the frames, the full socket
//! buffer drops them cheaply, and no ICMP error goes back.  Standard library only, so that plain `rustc -O`
//! builds it.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Datagrams between two looks at the clock.
const BATCH: u64 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["send", to, seconds, bytes] => {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            let payload = vec![0x5a; bytes.parse()?];
            let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
            let mut sent = 0_u64;
            while Instant::now() < end {
                // A refused datagram (no buffer) is not counted; anything else would show as a low count.
                sent += (0..BATCH).filter(|_| socket.send(&payload).is_ok()).count() as u64;
            }
            println!("{sent}");
            Ok(())
        }
        ["sink", on] => {
            let _socket = UdpSocket::bind(on)?;
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        _ => Err("usage: udp_blast send ADDRESS:PORT SECONDS BYTES | sink ADDRESS:PORT".into()),
    }
}
