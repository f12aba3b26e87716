//! Streams: one end sends, the other receives. Throughput is counted at the receiver.

use super::client::{Due, closed, is_pause, sleep_until};
use super::poller::Poller;
use super::{Counts, Left, Load, Shared, Socket};
use heddle_sys::monotonic_ns;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub(super) fn send(
    load: &Load,
    begin_ns: u64,
    hand: Vec<(usize, Arc<Socket>)>,
    shared: &Shared,
    counts: &Counts,
) -> io::Result<Left> {
    match hand.as_slice() {
        [(index, socket)] => send_one(load, Due::of(load, begin_ns, *index), socket, shared, counts)?,
        _ => send_many(load, begin_ns, &hand, shared, counts)?,
    }
    Ok(Left::default())
}

/// Sends the next piece of a message. Returns whether the message was sent as a whole.
fn piece(load: &Load, socket: &Socket, out: &[u8], sent: &mut usize, counts: &Counts) -> io::Result<bool> {
    match socket.send(&out[*sent..load.request]) {
        Ok(n) => {
            *sent += n;
            let whole = *sent >= load.request;
            if whole {
                *sent = 0;
            }
            counts.add(u64::from(whole), n as u64);
            Ok(whole)
        }
        Err(e) => Err(e),
    }
}

fn send_one(
    load: &Load,
    mut due: Option<Due>,
    socket: &Socket,
    shared: &Shared,
    counts: &Counts,
) -> io::Result<()> {
    let out = load.buffer();
    while !shared.stop.load(Relaxed) {
        if let Some(due) = &mut due
            && !sleep_until(due.next(), shared)
        {
            break;
        }
        let mut sent = 0;
        loop {
            match piece(load, socket, &out, &mut sent, counts) {
                Ok(true) => break,
                Ok(false) => {}
                Err(e) if is_pause(&e) && !shared.stop.load(Relaxed) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

fn send_many(
    load: &Load,
    begin_ns: u64,
    hand: &[(usize, Arc<Socket>)],
    shared: &Shared,
    counts: &Counts,
) -> io::Result<()> {
    let out = load.buffer();
    let mut poller = Poller::new(hand.len())?;
    let mut waiting = BinaryHeap::new();
    let mut conns = Vec::new();
    for (i, (index, socket)) in hand.iter().enumerate() {
        socket.set_nonblocking()?;
        let mut due = Due::of(load, begin_ns, *index);
        poller.add(&**socket, i, false, due.is_none())?;
        if let Some(due) = &mut due {
            waiting.push(Reverse((due.next(), i)));
        }
        conns.push((socket.clone(), due, 0_usize));
    }
    while !shared.stop.load(Relaxed) {
        while let Some(&Reverse((at, i))) = waiting.peek()
            && at <= monotonic_ns()
        {
            waiting.pop();
            poller.modify(&*conns[i].0, i, false, true)?;
        }
        let next = waiting.peek().map(|Reverse((at, _))| *at);
        let ready = poller.wait(next)?.to_vec();
        for r in ready {
            let Some((socket, due, sent)) = conns.get_mut(r.index) else {
                continue;
            };
            let whole = match piece(load, socket, &out, sent, counts) {
                Ok(whole) => whole,
                Err(e) if is_pause(&e) => continue,
                Err(e) => return Err(e),
            };
            if whole && let Some(due) = due {
                let at = due.next();
                if at > monotonic_ns() {
                    poller.modify(&**socket, r.index, false, false)?;
                    waiting.push(Reverse((at, r.index)));
                }
            }
        }
    }
    Ok(())
}

pub(super) fn receive(
    load: &Load,
    hand: Vec<(usize, Arc<Socket>)>,
    shared: &Shared,
    counts: &Counts,
) -> io::Result<Left> {
    let mut buffer = load.buffer();
    let mut take = |socket: &Socket| -> io::Result<()> {
        match socket.recv(&mut buffer) {
            Ok(0) if !socket.is_udp() => Err(closed()),
            Ok(n) => {
                counts.add(u64::from(socket.is_udp()), n as u64);
                Ok(())
            }
            Err(e) if is_pause(&e) || e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e),
        }
    };
    if let [(_, socket)] = hand.as_slice() {
        while !shared.stop.load(Relaxed) {
            take(socket)?;
        }
        return Ok(Left::default());
    }
    let mut poller = Poller::new(hand.len())?;
    for (i, (_, socket)) in hand.iter().enumerate() {
        socket.set_nonblocking()?;
        poller.add(&**socket, i, true, false)?;
    }
    while !shared.stop.load(Relaxed) {
        let ready = poller.wait(None)?.to_vec();
        for r in ready {
            if let Some((_, socket)) = hand.get(r.index) {
                take(socket)?;
            }
        }
    }
    Ok(Left::default())
}
