//! Either end of an OpenFlow connection, with nothing behind it: what a switch takes without `ovs-ofctl`, and
//! what `ovs-ofctl` takes without a switch.
//!
//! `flow_mods send SOCKET COUNT each|stream|bundle` sends COUNT flow mods, made beforehand, those of `heddle
//! bench rules --kind exact`. `each` waits for the reply to a barrier after each of them, `stream` sends all
//! at once, `bundle` sends one bundle. It prints the seconds until all are sent and until all are confirmed.
//! `flow_mods sink SOCKET` listens there, and confirms every request. Standard library only, so that plain
//! `rustc -O` builds it.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO: u8 = 2;
const FLOW_MOD: u8 = 14;
/// Barrier request of OpenFlow 1.0, and of 1.1 and later. The reply's type is the next number.
const BARRIERS: [u8; 2] = [18, 20];
const BUNDLE_CONTROL: u8 = 33;
const BUNDLE_ADD: u8 = 34;
const V14: u8 = 5;
/// Flags of the bundle: atomic and ordered.
const FLAGS: u16 = 3;
const OPEN: u16 = 0;
const CLOSE: u16 = 2;
const COMMIT: u16 = 4;

fn message(kind: u8, xid: u32, body: &[&[u8]]) -> Vec<u8> {
    let len = 8 + body.iter().map(|b| b.len()).sum::<usize>();
    let mut out = vec![V14, kind];
    out.extend((len as u16).to_be_bytes());
    out.extend(xid.to_be_bytes());
    body.iter().for_each(|b| out.extend(*b));
    out
}

/// The flow mod about flow `n`: UDP of its own addresses and source port.
fn flow_mod(n: u32) -> Vec<u8> {
    let [_, a, b, c] = (n >> 14).to_be_bytes();
    let sport = (1024 + (n & 0x3fff) as u16).to_be_bytes();
    let mut oxm = vec![0, 1, 0, 51];
    let mut field = |number: u8, value: &[u8]| {
        oxm.extend([0x80, 0, number << 1, value.len() as u8]);
        oxm.extend(value);
    };
    field(0, &[0, 0, 0, 1]);
    field(5, &[8, 0]);
    field(10, &[17]);
    field(11, &[10, a, b, c]);
    field(12, &[20, a, c, b]);
    field(15, &sport);
    field(16, &5001_u16.to_be_bytes());
    oxm.resize(56, 0);
    let mut fixed = [0; 40];
    fixed[22..24].copy_from_slice(&0x8000_u16.to_be_bytes()); // priority
    fixed[24..36].fill(0xff); // no buffer, port, group
    let output = [0, 4, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
    message(FLOW_MOD, n, &[&fixed, &oxm, &output])
}

fn control(xid: u32, command: u16) -> Vec<u8> {
    let body = [&1_u32.to_be_bytes()[..], &command.to_be_bytes(), &FLAGS.to_be_bytes()].concat();
    message(BUNDLE_CONTROL, xid, &[&body])
}

/// A connection, and its bytes that were read and not parsed.
struct Peer {
    socket: UnixStream,
    buffer: Vec<u8>,
    at: usize,
}

impl Peer {
    fn new(socket: UnixStream) -> Self {
        Self { socket, buffer: Vec::new(), at: 0 }
    }
    /// The next message; `None` at the end of the connection.
    fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let rest = &self.buffer[self.at..];
            if let [_, _, high, low, ..] = rest {
                let len = usize::from(u16::from_be_bytes([*high, *low]));
                if rest.len() >= len.max(8) {
                    self.at += len.max(8);
                    return Ok(Some(rest[..len.max(8)].to_vec()));
                }
            }
            self.buffer.drain(..self.at);
            self.at = 0;
            let had = self.buffer.len();
            self.buffer.resize(had + (1 << 16), 0);
            let got = match self.socket.read(&mut self.buffer[had..]) {
                Err(e) if e.kind() == ErrorKind::ConnectionReset => 0,
                got => got?,
            };
            self.buffer.truncate(had + got);
            if got == 0 {
                return Ok(None);
            }
        }
    }
    /// Waits for the reply to this message.
    fn answer(&mut self, xid: u32) -> Result<()> {
        loop {
            let m = self.receive()?.ok_or("the switch hung up")?;
            match m[1] {
                ERROR => return Err(format!("the switch refuses a message: {:?}", &m[8..12]).into()),
                ECHO => self.socket.write_all(&message(ECHO + 1, 0, &[&m[8..]]))?,
                _ if m[1] != HELLO && m[4..8] == xid.to_be_bytes() => return Ok(()),
                _ => {}
            }
        }
    }
    fn ask(&mut self, m: &[u8]) -> Result<()> {
        self.socket.write_all(m)?;
        self.answer(u32::from_be_bytes([m[4], m[5], m[6], m[7]]))
    }
}

fn send(path: &str, count: u32, how: &str) -> Result<()> {
    let mut peer = Peer::new(UnixStream::connect(path)?);
    peer.socket.write_all(&message(HELLO, 0, &[]))?;
    let end = u32::MAX;
    let barrier = message(BARRIERS[1], end, &[]);
    peer.ask(&barrier)?;
    let bundled = |n| message(BUNDLE_ADD, n, &[&[0, 0, 0, 1, 0, 0, 0, FLAGS as u8], &flow_mod(n)]);
    let all: Vec<Vec<u8>> = (0..count).map(|n| if how == "bundle" { bundled(n) } else { flow_mod(n) }).collect();
    let joined = all.concat();
    let began = Instant::now();
    let sent = match how {
        "each" => {
            for m in &all {
                peer.socket.write_all(m)?;
                peer.ask(&barrier)?;
            }
            began.elapsed()
        }
        "stream" => {
            peer.socket.write_all(&joined)?;
            let sent = began.elapsed();
            peer.ask(&barrier)?;
            sent
        }
        "bundle" => {
            peer.ask(&control(end, OPEN))?;
            peer.socket.write_all(&joined)?;
            peer.ask(&control(end, CLOSE))?;
            let sent = began.elapsed();
            peer.ask(&control(end, COMMIT))?;
            sent
        }
        _ => return Err("how: each, stream or bundle".into()),
    };
    println!("{:.3} {:.3}", sent.as_secs_f64(), began.elapsed().as_secs_f64());
    Ok(())
}

fn sink(path: &str) -> Result<()> {
    let listener = UnixListener::bind(path)?;
    loop {
        let mut peer = Peer::new(listener.accept()?.0);
        while let Some(mut m) = peer.receive()? {
            let barrier = BARRIERS[usize::from(m[0] > 1)];
            if m[1] == BUNDLE_CONTROL {
                m[13] += 1; // the command's reply
            } else if m[1] == ECHO || m[1] == barrier {
                m[1] += 1;
            } else if m[1] != HELLO {
                continue;
            }
            if peer.socket.write_all(&m).is_err() {
                break;
            }
        }
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["send", path, count, how] => send(path, count.parse()?, how),
        ["sink", path] => sink(path),
        _ => Err("usage: flow_mods send SOCKET COUNT each|stream|bundle; flow_mods sink SOCKET".into()),
    }
}
