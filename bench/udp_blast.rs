//! Sends small UDP datagrams as fast as one core can, or holds a socket open that takes them.
//!
//! `udp_blast send ADDRESS:PORT SECONDS BYTES` prints the number of datagrams that the kernel accepted.
//! `udp_blast sink ADDRESS:PORT` binds and sleeps until it is ended. The receiver's device counts the frames,
//! the full socket buffer drops them cheaply, and no ICMP error goes back. `udp_blast spread ADDRESS:PORT
//! SECONDS BYTES FLOWS` makes FLOWS flows: it sends from up to 1,000 source ports (10,000 and up) in turn to
//! consecutive destination ports from PORT on. A second run sends the same flows. `udp_blast sinks
//! ADDRESS:PORT FLOWS` holds sockets open for them. `udp_blast echo ADDRESS:PORT` returns each datagram.
//! `udp_blast ping ADDRESS:PORT SECONDS RATE` sends RATE requests a second to it, and sleeps between them. It
//! prints the number of replies, and p50 and p99 of one way (half of a round trip) in microseconds. Standard
//! library only, so that plain `rustc -O` builds it.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Datagrams between two looks at the clock.
const BATCH: u64 = 64;
/// The longest wait for a reply.
const LOST: Duration = Duration::from_millis(200);
/// Ports that a spread load is sent from.
const SOURCES: usize = 1000;
const FIRST_SOURCE: u16 = 10_000;

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
                (FIRST_SOURCE..).take(flows.clamp(1, SOURCES)).map(|port| UdpSocket::bind(("0.0.0.0", port))).collect::<Result<_, _>>()?;
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
        ["echo", on] => {
            let socket = UdpSocket::bind(on)?;
            let mut datagram = [0; 2048];
            loop {
                let (n, from) = socket.recv_from(&mut datagram)?;
                socket.send_to(&datagram[..n], from)?;
            }
        }
        ["ping", to, seconds, rate] => {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(LOST))?;
            let gap = Duration::from_secs_f64(1.0 / rate.parse::<f64>()?);
            let start = Instant::now();
            let end = start + Duration::from_secs_f64(seconds.parse()?);
            let (mut times, mut next, mut number, mut reply) = (Vec::new(), start, 0_u64, [0; 16]);
            while Instant::now() < end {
                number += 1;
                let sent = Instant::now();
                socket.send(&number.to_ne_bytes())?;
                // A reply that comes after the time-out is not that of this request.
                while let Ok(n) = socket.recv(&mut reply) {
                    if reply[..n] == number.to_ne_bytes() {
                        times.push(sent.elapsed().as_nanos() as f64 / 2e3);
                        break;
                    }
                }
                next = (next + gap).max(Instant::now());
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times.get((times.len().saturating_sub(1) as f64 * share) as usize).copied();
            println!("{} {:.1} {:.1}", times.len(), at(0.5).ok_or("no reply")?, at(0.99).ok_or("no reply")?);
            Ok(())
        }
        _ => Err("usage: udp_blast send ADDRESS:PORT SECONDS BYTES | sink ADDRESS:PORT | spread ADDRESS:PORT SECONDS BYTES FLOWS | sinks ADDRESS:PORT FLOWS | echo ADDRESS:PORT | ping ADDRESS:PORT SECONDS RATE".into()),
    }
}
