//! The server of request and response.

use super::client::{closed, is_pause};
use super::poller::Poller;
use super::{Counts, Left, Load, Shared, Socket};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(super) fn run(
    load: &Load,
    hand: Vec<(usize, Arc<Socket>)>,
    shared: &Shared,
    counts: &Counts,
) -> io::Result<Left> {
    match hand.as_slice() {
        [(_, socket)] if socket.is_udp() => echo(load, socket, shared, counts)?,
        [(_, socket)] => one(load, socket, shared, counts)?,
        _ => many(load, &hand, shared, counts)?,
    }
    Ok(Left::default())
}

/// Copies the number of the request into the reply, as far as there is room.
fn answer(load: &Load, request: &[u8], out: &mut [u8]) {
    let n = request.len().min(load.response).min(4);
    out[..n].copy_from_slice(&request[..n]);
}

fn one(load: &Load, socket: &Socket, shared: &Shared, counts: &Counts) -> io::Result<()> {
    let (out, mut buffer) = (load.buffer(), load.buffer());
    let bytes = (load.request + load.response) as u64;
    while !shared.stop.load(Relaxed) {
        let mut got = 0;
        while got < load.request {
            match socket.recv(&mut buffer[..load.request - got]) {
                Ok(0) => return Err(closed()),
                Ok(n) => got += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let mut sent = 0;
        while sent < load.response {
            match socket.send(&out[sent..load.response]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        counts.add(1, bytes);
    }
    Ok(())
}

fn echo(load: &Load, socket: &Socket, shared: &Shared, counts: &Counts) -> io::Result<()> {
    let (mut out, mut buffer) = (load.buffer(), load.buffer());
    let bytes = (load.request + load.response) as u64;
    while !shared.stop.load(Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(n) => answer(load, &buffer[..n], &mut out),
            Err(e) if is_pause(&e) => continue,
            Err(e) => return Err(e),
        }
        // A reply that cannot be sent now is lost, as packets are.
        match socket.send(&out[..load.response]) {
            Ok(_) => counts.add(1, bytes),
            Err(e) if is_pause(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// One of several connections: received bytes of its request, bytes of its reply still to send.
struct Conn {
    socket: Arc<Socket>,
    got: usize,
    to_send: usize,
}

fn many(load: &Load, hand: &[(usize, Arc<Socket>)], shared: &Shared, counts: &Counts) -> io::Result<()> {
    let (mut out, mut buffer) = (load.buffer(), load.buffer());
    let bytes = (load.request + load.response) as u64;
    let mut poller = Poller::new(hand.len())?;
    let mut conns = Vec::new();
    for (i, (_, socket)) in hand.iter().enumerate() {
        socket.set_nonblocking()?;
        poller.add(&**socket, i, true, false)?;
        conns.push(Conn {
            socket: socket.clone(),
            got: 0,
            to_send: 0,
        });
    }
    while !shared.stop.load(Relaxed) {
        let ready = poller.wait(None)?.to_vec();
        for r in ready {
            let Some(conn) = conns.get_mut(r.index) else {
                continue;
            };
            let waited = conn.to_send > 0;
            if waited {
                // No reading meanwhile: a client that does not take its reply can send no further request.
            } else if conn.socket.is_udp() {
                match conn.socket.recv(&mut buffer) {
                    Ok(n) => answer(load, &buffer[..n], &mut out),
                    Err(e) if is_pause(&e) => continue,
                    Err(e) => return Err(e),
                }
                conn.to_send = load.response;
            } else {
                match conn.socket.recv(&mut buffer[..load.request - conn.got]) {
                    Ok(0) => return Err(closed()),
                    Ok(n) => conn.got += n,
                    Err(e) if is_pause(&e) => continue,
                    Err(e) => return Err(e),
                }
                if conn.got < load.request {
                    continue;
                }
                conn.got = 0;
                conn.to_send = load.response;
            }
            while conn.to_send > 0 {
                match conn
                    .socket
                    .send(&out[load.response - conn.to_send..load.response])
                {
                    Ok(n) => conn.to_send -= n,
                    // Datagrams that do not fit are lost.
                    Err(e) if is_pause(&e) && conn.socket.is_udp() => conn.to_send = 0,
                    Err(e) if is_pause(&e) => break,
                    Err(e) => return Err(e),
                }
            }
            if conn.to_send == 0 {
                counts.add(1, bytes);
            }
            if waited != (conn.to_send > 0) {
                let waits = conn.to_send > 0;
                poller.modify(&*conn.socket, r.index, !waits, waits)?;
            }
        }
    }
    Ok(())
}
