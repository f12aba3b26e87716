//! Sends small UDP datagrams as fast as one core can, or holds a socket open that takes them.
//!
//! `udp_blast send ADDRESS:PORT SECONDS BYTES` prints the number of datagrams that the kernel accepted.
//! `udp_blast sink ADDRESS:PORT` binds and sleeps until it is ended. The receiver's device counts the frames,
//! the full socket buffer drops them cheaply, and no ICMP error goes back. `udp_blast spread ADDRESS:PORT
//! SECONDS BYTES FLOWS` makes FLOWS flows: it sends from up to 1,000 source ports in turn to consecutive
//! destination ports from PORT on. `udp_blast sinks ADDRESS:PORT FLOWS` holds sockets open for them. Standard
//! library only, so that plain `rustc -O` builds it.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Datagrams between two looks at the clock.
const BATCH: u64 = 64;
/// Ports that a spread load is sent from.
const SOURCES: usize = 1000;

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
        ["spread", to, seconds, bytes, flows] => {
            let to: SocketAddr = to.parse()?;
            let flows: usize = flows.parse()?;
            let sockets: Vec<UdpSocket> =
                (0..flows.clamp(1, SOURCES)).map(|_| UdpSocket::bind("0.0.0.0:0")).collect::<Result<_, _>>()?;
            let payload = vec![0x5a; bytes.parse()?];
            let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
            let (mut sent, mut n) = (0_u64, 0_usize);
            while Instant::now() < end {
                for _ in 0..BATCH {
                    let flow = n % flows.max(1);
                    let port = to.port() + u16::try_from(flow / SOURCES)?;
                    n += 1;
                    sent += u64::from(sockets[flow % SOURCES].send_to(&payload, (to.ip(), port)).is_ok());
                }
            }
            println!("{sent}");
            Ok(())
        }
        ["sinks", on, flows] => {
            let on: SocketAddr = on.parse()?;
            let ports = u16::try_from(flows.parse::<usize>()?.div_ceil(SOURCES))?;
            let _sockets: Vec<UdpSocket> =
                (0..ports).map(|i| UdpSocket::bind((on.ip(), on.port() + i))).collect::<Result<_, _>>()?;
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        _ => Err("usage: udp_blast send ADDRESS:PORT SECONDS BYTES | sink ADDRESS:PORT | spread ADDRESS:PORT SECONDS BYTES FLOWS | sinks ADDRESS:PORT FLOWS".into()),
    }
}
